"""Creation functions: array-API signatures with device= or device_mesh=, and placements=."""

from __future__ import annotations

import builtins
import math

import numpy as np

import _tessera
from . import _context
from ._dtypes import array_of, buffer_of, check_number, code_of, is_floating, numpy_of, refuse_masked
from ._errors import InvalidArgumentError, named
from ._mesh import integers
from _tessera_ops import complex as made_complex, where
from ._ops import astype, broadcast_arrays, broadcast_to, reshape
from ._placements import Partial, Replicate
from ._progress import bar_of
from ._session import distribute
from ._calls import no_dim
from ._filled import create, extents_of, filled, place


def full(shape, fill_value, dtype=None, *, device=None, device_mesh=None, placements=None, **unknown):
    """full(shape, fill_value, dtype=None, *, device=None, device_mesh=None, placements=None)"""
    no_dim("full", unknown, ("shape", "fill_value", "dtype", "device", "device_mesh", "placements"))
    return _full("full", shape, fill_value, dtype, device, device_mesh, placements)


def _number_of(value):
    """The number of a tensor without dims, which is downloaded; else the value itself."""
    if isinstance(value, (_tessera.Tensor, np.ndarray)) and value.ndim == 0:
        return value.dtype.type(value.item()) if value.dtype.kind in "biufc" and value.dtype.names is None else value.item()
    return value


def _full(op: str, shape, fill_value, dtype, device, device_mesh, placements):
    refuse_masked(fill_value, op)
    fill_value = _number_of(fill_value)
    if isinstance(fill_value, (_tessera.Tensor, np.ndarray, list)):
        own = asarray(fill_value, dtype, device=device, device_mesh=device_mesh)
        return astype(broadcast_to(own, extents_of(op, shape)) if placements is None else broadcast_to(own, extents_of(op, shape)).redistribute(placements), own.dtype)
    if isinstance(fill_value, np.generic):
        dtype = fill_value.dtype if dtype is None else dtype
        fill_value = fill_value.item()
    return filled(op, shape, fill_value, dtype, device, device_mesh, placements)


def zeros(shape, dtype=None, *, device=None, device_mesh=None, placements=None):
    """A tensor of zeros, f64 by default."""
    return _full("zeros", shape, 0, np.float64 if dtype is None else dtype, device, device_mesh, placements)


def ones(shape, dtype=None, *, device=None, device_mesh=None, placements=None):
    """A tensor of ones, f64 by default."""
    return _full("ones", shape, 1, np.float64 if dtype is None else dtype, device, device_mesh, placements)


def empty(shape, dtype=None, *, device=None, device_mesh=None, placements=None):
    """A tensor whose values nobody should read; they are zeros, so that no other tenant's bytes show."""
    return _full("empty", shape, 0, np.float64 if dtype is None else dtype, device, device_mesh, placements)


def host_empty(shape, dtype=None) -> np.ndarray:
    """A NumPy array, of zeros, f64 by default, in memory that workers map: distribute_tensor of it, or of a part of it that
    lies in one piece, and full_tensor(out=it) move the bytes by one copy, which the workers make.

    >>> images = ts.host_empty((600, 28, 28), ts.float32)
    >>> images[...] = 1.0
    >>> x = ts.distribute_tensor(images, mesh, [ts.Shard(0)])
    >>> y = (x * 2).full_tensor(out=images)

    To make one costs more than np.empty: it is for arrays that are moved more than once. The memory goes with the last
    array that shows it. After a fork it is shared with the child, as what mmap(MAP_SHARED) gives is.

    Errors:
    ResourceExhaustedError: the host has no room for it now.
    DTypeError: a dtype that no tensor has."""
    op = "host_empty"
    extents, code = extents_of(op, shape), code_of(np.float64 if dtype is None else dtype, op)
    return _tessera.host_array(op, code, extents)


def arange(start, /, stop=None, step=1, dtype=None, *, device=None, device_mesh=None, placements=None):
    """Evenly spaced values in [start, stop)."""
    if stop is None:
        start, stop = 0, start
    numbers = [value.item() if isinstance(value, np.generic) else value for value in map(_number_of, (start, stop, step))]
    for value in numbers:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidArgumentError(f"arange: {value!r} is no finite number")
    start, stop, step = numbers
    if step == 0:
        raise InvalidArgumentError("arange: step is 0")
    integral = builtins.all(isinstance(value, int) for value in numbers)
    if dtype is None:
        dtype = np.int64 if integral else np.float64
    try:
        count = len(range(start, stop, step)) if integral else builtins.max(0, math.ceil((stop - start) / step))
    except OverflowError:
        count = 2**63
    if count >= 2**63:
        raise InvalidArgumentError(f"arange: {start!r} to {stop!r} by {step!r} has more elements than 64 bits count")
    if integral and count > 0:
        for number in (start, start + step * (count - 1)):
            check_number("arange", "an element", number, dtype)
    if is_floating(dtype, "arange"):
        start, step = float(start), float(step)
    return create("arange", [count], dtype, [start, step], device, device_mesh, placements)


def linspace(start, stop, /, num=50, *, dtype=None, device=None, device_mesh=None, placements=None, endpoint=True, retstep=False):
    """`num` evenly spaced numbers from start to stop, which are numbers, or arrays that are broadcast, of which each has its numbers
    along a new first dim. retstep: also the distance of two."""
    (count,) = integers(num, "num", "linspace")
    if count < 0:
        raise InvalidArgumentError(f"linspace: num is {count}")
    refuse_masked((start, stop), "linspace")
    start, stop = map(_number_of, (start, stop))
    if retstep:
        gaps = count - 1 if endpoint else count
        out = linspace(start, stop, count, dtype=dtype, device=device, device_mesh=device_mesh, placements=placements, endpoint=endpoint)
        return out, (stop - start) / gaps if gaps > 0 else np.nan
    if builtins.any(isinstance(end, (list, tuple, np.ndarray, _tessera.Tensor)) for end in (start, stop)):
        return _linspace_of_arrays(start, stop, count, dtype, device_mesh if device_mesh is not None else device, endpoint)
    try:
        start, stop = (complex(end) if isinstance(end, complex) else float(end) for end in (start, stop))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"linspace: {start!r} and {stop!r} must be numbers") from None
    options = {"device": device, "device_mesh": device_mesh, "placements": placements}
    with named("linspace"):
        if isinstance(start, complex) or isinstance(stop, complex):
            real, imag = (_linspace(a, b, count, None, endpoint, options)
                          for a, b in ((start.real, stop.real), (start.imag, stop.imag)))
            return astype(made_complex(real, imag), np.complex128 if dtype is None else dtype)
        return _linspace(start, stop, count, dtype, endpoint, options)


def _linspace_of_arrays(start, stop, count: int, dtype, mesh, endpoint):
    start, stop = (end if isinstance(end, _tessera.Tensor) else asarray(end, device_mesh=mesh) for end in (start, stop))
    start, stop = broadcast_arrays(*(end if end.dtype.kind in "fc" else astype(end, np.float64) for end in (start, stop)))
    gaps = count - 1 if endpoint else count
    places = reshape(arange(count, dtype=np.float64, device_mesh=start.device_mesh), (count,) + (1,) * start.ndim)
    out = start + places * ((stop - start) / builtins.max(gaps, 1))
    if endpoint and count > 1:
        out = where(places == count - 1, stop, out)
    return out if dtype is None else astype(out, dtype)


def _linspace(start: float, stop: float, count: int, dtype, endpoint, options):
    gaps = count - 1 if endpoint else count
    step = (stop - start) / gaps if gaps > 0 else 0.0
    out = create("arange", [count], np.float64, [start, step], **options)
    if endpoint and count > 1:
        last = create("arange", [count], np.int64, [0, 1], **options) == count - 1
        out = where(last, stop, out)
    if dtype is None:
        return out
    if builtins.min(start, stop) < 0 and numpy_of(code_of(dtype, "linspace")).kind in "iu":
        # NumPy rounds down, and a conversion rounds to zero.
        whole = astype(out, np.int64)
        out = where(whole > out, whole - 1, whole)
    return astype(out, dtype)


def eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None, device_mesh=None, placements=None):
    """Ones on the k-th diagonal, zeros elsewhere."""
    shape = extents_of("eye", [n_rows, n_rows if n_cols is None else n_cols])
    (diagonal,) = integers(k, "k", "eye")
    return create("eye", shape, np.float64 if dtype is None else dtype, [diagonal], device, device_mesh, placements)


def asarray(obj, /, dtype=None, *, device=None, copy=None, device_mesh=None, placements=None):
    """A tensor from numbers, lists or arrays; placed by "auto". Of a tensor itself, unless copy is True or it must change."""
    if isinstance(obj, _tessera.Tensor):
        mesh = device_mesh if device_mesh is not None else device
        stays = placements is None and (
            mesh is None or (mesh == (own := obj.device_mesh) and mesh._session.address == own._session.address))
        converts = dtype is not None and code_of(dtype, "asarray") != obj._dtype
        if copy is False and (converts or not stays):
            raise InvalidArgumentError(f"asarray: of {obj._spec} a copy can't be avoided")
        out = astype(obj, dtype) if converts else obj
        if stays:
            return +out if copy and not converts else out
        return out.redistribute(mesh, placements)
    if copy is False:
        raise InvalidArgumentError("asarray: a copy to the workers can't be avoided")
    mesh, placements = place("asarray", device, device_mesh, placements)
    array = array_of(obj, "asarray", dtype)
    code = code_of(array.dtype, "asarray")
    wanted = code if dtype is None else code_of(dtype, "asarray")
    if placements is None:
        placements = _tessera.auto_placements(wanted, array.shape, mesh._raw)
    with bar_of("upload", array.nbytes):
        out = mesh._session._distribute(buffer_of(array), code, mesh._raw, placements)
    return out if wanted == code else astype(out, dtype)


def from_dlpack(x, /, *, device=None, copy=None, device_mesh=None, placements=None):
    """A tensor from an array of another library, by the DLPack protocol; its elements are copied to the workers."""
    if isinstance(x, _tessera.Tensor):
        return asarray(x, copy=copy, device=device, device_mesh=device_mesh, placements=placements)
    if not hasattr(x, "__dlpack__"):
        raise InvalidArgumentError(f"from_dlpack: {type(x).__name__} has no __dlpack__")
    if copy is False:
        raise InvalidArgumentError("from_dlpack: a copy to the workers can't be avoided")
    return asarray(np.from_dlpack(x), device=device, device_mesh=device_mesh, placements=placements)


def _like(op: str, x, fill_value, dtype, device, device_mesh, placements):
    """A tensor like x, on its own mesh and placements if no others are given, pending terms aside."""
    if not isinstance(x, _tessera.Tensor):
        raise InvalidArgumentError(f"{op}: {type(x).__name__} is no Tensor")
    mesh = device_mesh if device_mesh is not None else device
    if placements is None and mesh is None:
        mesh = x.device_mesh
        placements = [Replicate() if isinstance(p, Partial) else p for p in x.placements]
    return _full(op, x.shape, fill_value, x.dtype if dtype is None else dtype, None, x.device_mesh if mesh is None else mesh,
                 placements)


def zeros_like(x, /, dtype=None, *, device=None, device_mesh=None, placements=None):
    return _like("zeros_like", x, 0, dtype, device, device_mesh, placements)


def ones_like(x, /, dtype=None, *, device=None, device_mesh=None, placements=None):
    return _like("ones_like", x, 1, dtype, device, device_mesh, placements)


def empty_like(x, /, dtype=None, *, device=None, device_mesh=None, placements=None):
    return _like("empty_like", x, 0, dtype, device, device_mesh, placements)


def full_like(x, /, fill_value, dtype=None, *, device=None, device_mesh=None, placements=None):
    return _like("full_like", x, fill_value, dtype, device, device_mesh, placements)


def distribute_tensor(tensor, device_mesh=None, placements=None, *, src_data_rank=0):
    """session.distribute_tensor with the mesh's session."""
    return distribute(None if device_mesh is not None else _context.current_session(), tensor, device_mesh, placements,
                      src_data_rank)


def from_local(locals, device_mesh=None, placements=None, *, shape=None):
    """session.from_local with the mesh's session."""
    session = device_mesh._session if device_mesh is not None else _context.current_session()
    return session.from_local(locals, device_mesh, placements, shape=shape)


def init_device_mesh(*args, mesh_dim_names=None, workers=None):
    """init_device_mesh([device_type,] mesh_shape, *, mesh_dim_names=None, workers=None) of the current session."""
    return _context.current_session().init_device_mesh(*args, mesh_dim_names=mesh_dim_names, workers=workers)


for _function in (zeros_like, ones_like, empty_like, full_like):
    _function.__doc__ = f"{_function.__name__}: with the other tensor's shape, dtype, mesh and placements."
