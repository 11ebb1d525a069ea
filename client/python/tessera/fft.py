"""The array API's fft. A dim that is transformed is whole on every worker; the others keep their shards."""

from __future__ import annotations

import operator

import _tessera
from ._creation import arange
from ._dtypes import float64, numpy_of
from ._errors import ArgumentError, InvalidArgumentError
from ._mesh import integers
from ._ops import astype, roll
from ._calls import axes_of
from ._catalog import OPS

__all__ = ["fft", "ifft", "fftn", "ifftn", "rfft", "irfft", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2", "hfft", "ihfft", "fftfreq", "rfftfreq", "fftshift",
           "ifftshift"]

_DOCS = {row[1]: f"{row[4]}\n\n{row[5]}" for row in _tessera.catalog()}


def _given(name: str, x, norm):
    """The tensor, integers as f64."""
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"{name}: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    if norm not in (None, "backward", "ortho", "forward"):
        raise InvalidArgumentError(f"{name}: norm is {norm!r}, not backward, ortho or forward")
    return astype(x, float64) if numpy_of(x._dtype).kind in "biu" else x


def _length(name: str, n):
    try:
        return operator.index(n)
    except TypeError:
        raise InvalidArgumentError(f"{name}: n is {n!r}, not an integer") from None


def _along_one(name: str):
    def function(x, /, *, n=None, axis=-1, norm="backward"):
        x = _given(name, x, norm)
        length = {} if n is None else {"k": _length(name, n)}
        return _tessera.call(OPS[name], (x,), dims=axes_of(name, operator.index(axis), x.ndim), norm=norm or "backward", **length)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOCS[name]
    return function


def _along_several(name: str):
    def function(x, /, *, s=None, axes=None, norm="backward"):
        x = _given(name, x, norm)
        lengths = None if s is None else integers(s, "s", name)
        if axes is None:
            dims = list(range(x.ndim - (x.ndim if lengths is None else len(lengths)), x.ndim))
        else:
            dims = [axes_of(name, axis, x.ndim)[0] for axis in integers(axes, "axes", name)]
        if lengths is not None and len(lengths) != len(dims) or any(d < 0 for d in dims):
            raise InvalidArgumentError(f"{name}: s is {s!r}, for axes {axes!r} of {x._spec}")
        return _tessera.call(OPS[name], (x,), dims=dims, norm=norm or "backward", **({} if lengths is None else {"lengths": lengths}))
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOCS[name].replace("lengths=None", "s=None")
    return function


fft, ifft, rfft, irfft, hfft, ihfft = map(_along_one, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_along_several, ("fftn", "ifftn", "rfftn", "irfftn"))


def _along_two(name: str, of_several):
    def function(x, /, *, s=None, axes=(-2, -1), norm="backward"):
        if isinstance(x, _tessera.Tensor) and x.ndim < 2:
            raise InvalidArgumentError(f"{name}: {x._spec} has {x.ndim} dims, it needs at least 2")
        return of_several(x, s=s, axes=axes, norm=norm)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}(x, /, *, s=None, axes=(-2, -1), norm='backward')\n\n{of_several.__name__} along two axes."
    return function


fft2, ifft2, rfft2, irfft2 = map(_along_two, ("fft2", "ifft2", "rfft2", "irfft2"), (fftn, ifftn, rfftn, irfftn))


def _frequencies(name: str, n, d, whole: bool, dtype, place: dict):
    n = _length(name, n)
    if n < 1:
        raise InvalidArgumentError(f"{name}: n is {n}, not at least 1")
    dtype = float64 if dtype is None else dtype
    if whole:
        numbers = arange(n, dtype=dtype, **place)
        steps = numbers - n * astype(numbers >= (n + 1) // 2, dtype)
    else:
        steps = arange(n // 2 + 1, dtype=dtype, **place)
    return steps / (n * d)


def fftfreq(n, /, *, d=1.0, dtype=None, device=None, device_mesh=None, placements=None):
    """fftfreq(n, /, *, d=1.0, dtype=None, device=None, device_mesh=None, placements=None)

    The frequencies of fft's n elements, for samples that are d apart."""
    return _frequencies("fftfreq", n, d, True, dtype, {"device": device, "device_mesh": device_mesh, "placements": placements})


def rfftfreq(n, /, *, d=1.0, dtype=None, device=None, device_mesh=None, placements=None):
    """rfftfreq(n, /, *, d=1.0, dtype=None, device=None, device_mesh=None, placements=None)

    The frequencies of rfft's n // 2 + 1 elements, for samples that are d apart."""
    return _frequencies("rfftfreq", n, d, False, dtype, {"device": device, "device_mesh": device_mesh, "placements": placements})


def _shifted(name: str, x, axes, steps):
    dims = axes_of(name, axes, x.ndim)
    return roll(x, [steps(x.shape[dim]) for dim in dims], axis=dims) if dims else x


def fftshift(x, /, *, axes=None):
    """fftshift(x, /, *, axes=None)

    Moves the frequency 0 to the middle of the axes."""
    return _shifted("fftshift", x, axes, lambda n: n // 2)


def ifftshift(x, /, *, axes=None):
    """ifftshift(x, /, *, axes=None)

    Undoes fftshift."""
    return _shifted("ifftshift", x, axes, lambda n: -(n // 2))


def __dir__():
    return sorted(__all__)
