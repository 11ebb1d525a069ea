"""NumPy's functions along a line: differences, areas, convolutions, what lies between points; and products of vectors."""

from __future__ import annotations

import builtins
import collections
import math

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import along, beside
from ._contraction import tensordot, vecdot
from ._creation import arange, linspace
from ._errors import ArgumentError, DTypeError, InvalidArgumentError
from ._indexing import take
from ._namespace_info import result_type
from ._mesh import integers
from ._ops import _tensor_of, astype, concat, diff, pad, permute_dims, reshape
from ._calls import axes_of
from ._windows import conv1d


def _two(name: str, x1, x2) -> list:
    tensor = next((x for x in (x1, x2) if isinstance(x, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a Tensor, not {type(x1).__name__} and {type(x2).__name__}")
    return [beside(name, tensor, x) for x in (x1, x2)]


# ---- diagonals -----------------------------------------------------------------------------------

def _last_two(name: str, x, axis1, axis2):
    """x with the two axes behind the others."""
    x = _tensor_of(name, x)
    if x.ndim < 2:
        raise InvalidArgumentError(f"{name}: needs at least 2 dims: x is {x._spec}")
    first, second = axes_of(name, axis1, x.ndim)[0], axes_of(name, axis2, x.ndim)[0]
    if first == second:
        raise InvalidArgumentError(f"{name}: axis1 and axis2 are both {first}, of {x._spec}")
    if (first, second) == (x.ndim - 2, x.ndim - 1):
        return x
    return permute_dims(x, [d for d in range(x.ndim) if d not in (first, second)] + [first, second])


def diagonal(x, /, offset=0, axis1=0, axis2=1):
    """diagonal(x, /, offset=0, axis1=0, axis2=1)

    The offset-th diagonal of two dims, by default the first ones, as the last dim. ts.linalg.diagonal takes it of the last
    two."""
    return made.diagonal(_last_two("diagonal", x, axis1, axis2), offset=offset)


def trace(x, /, offset=0, axis1=0, axis2=1, dtype=None):
    """trace(x, /, offset=0, axis1=0, axis2=1, dtype=None)

    The sum of the offset-th diagonal of two dims, by default the first ones. ts.linalg.trace takes the last two."""
    return made.trace(_last_two("trace", x, axis1, axis2), offset=offset, dtype=dtype)


# ---- products ------------------------------------------------------------------------------------

def inner(x1, x2, /):
    """inner(x1, x2, /)

    Sums products over the last dims of two tensors: of vectors one number."""
    a, b = _two("inner", x1, x2)
    return a * b if a.ndim == 0 or b.ndim == 0 else tensordot(a, b, axes=((-1,), (-1,)))


def dot(x1, x2, /):
    """dot(x1, x2, /)

    The product of matrices or of vectors as NumPy's dot has it: sums products over the last dim of x1 and the last but one
    of x2; matmul takes leading dims as a batch."""
    a, b = _two("dot", x1, x2)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if a.ndim == 1 and b.ndim == 1:
        return vecdot(a if a.dtype.kind != "c" else made.conj(a), b)
    return made.matmul(a, b) if b.ndim <= 2 else tensordot(a, b, axes=((-1,), (-2,)))


def divmod(x1, x2, /):  # noqa: A001 - NumPy's name
    """divmod(x1, x2, /)

    The quotients rounded down and what remains: floor_divide and remainder."""
    return made.floor_divide(x1, x2), made.remainder(x1, x2)


_Extremes = collections.namedtuple("CumulativeResult", "values indices")


def _extremes(name: str, x, axis, values_of):
    x = _tensor_of(name, x)
    (dim,) = axes_of(name, axis, x.ndim)
    values = values_of(x, axis=dim)
    numbers = reshape(arange(x.shape[dim], device_mesh=x.device_mesh), [n if d == dim else 1 for d, n in enumerate(x.shape)])
    is_one = x == values
    if x.dtype.kind == "f":
        is_one = made.logical_or(is_one, made.isnan(x))
    return _Extremes(values, made.cumulative_max(made.where(is_one, numbers, 0), axis=dim))


def cummax(x, /, axis):
    """cummax(x, /, axis)

    The maximum of the elements up to each one along an axis, and where it is, the last one of several, as torch has it."""
    return _extremes("cummax", x, axis, made.cumulative_max)


def cummin(x, /, axis):
    """cummin(x, /, axis)

    The minimum of the elements up to each one along an axis, and where it is, the last one of several, as torch has it."""
    return _extremes("cummin", x, axis, made.cumulative_min)


# ---- differences and areas -----------------------------------------------------------------------

def trapezoid(y, x=None, /, dx=1.0, axis=-1):
    """trapezoid(y, x=None, /, dx=1.0, axis=-1)

    The area under points along an axis, by trapezoids.

    y: a tensor, the heights. x: where they are, a vector or a tensor like y; else they are dx apart."""
    y = _tensor_of("trapezoid", y)
    (dim,) = axes_of("trapezoid", axis, y.ndim)
    width = dx
    if x is not None:
        x = beside("trapezoid", y, x)
        width = diff(x, axis=0 if x.ndim == 1 else dim)
        if x.ndim == 1:
            width = reshape(width, [width.size if d == dim else 1 for d in range(y.ndim)])
    n = y.shape[dim]
    heights = y[along(dim, slice(1, n))] + y[along(dim, slice(0, builtins.max(n - 1, 0)))]
    return made.sum(width * heights / 2.0, axis=dim)


def _spacing(f, given, dims: list) -> list:
    """For each dim the distance of neighbours: a number, or a vector of distances."""
    if not given:
        return [1.0] * len(dims)
    if len(given) == 1 and np.ndim(given[0]) == 0:
        return list(given) * len(dims)
    if len(given) != len(dims):
        raise ArgumentError(f"gradient: {len(given)} spacings for {len(dims)} axes of {f._spec}")
    out = []
    for one, dim in zip(given, dims):
        if np.ndim(one) == 0:
            out.append(one)
            continue
        places = beside("gradient", f, one)
        if tuple(places.shape) != (f.shape[dim],):
            raise InvalidArgumentError(f"gradient: places are {places._spec}, for dim {dim} of {f._spec}")
        out.append(diff(astype(places, np.float64) if places.dtype.kind in "iu" else places))
    return out


def gradient(f, /, *varargs, axis=None, edge_order=1):
    """gradient(f, /, *varargs, axis=None, edge_order=1)

    The derivatives along the axes, of central differences; of several axes a tuple.

    f: a tensor. varargs: how far elements are apart, a number for all axes, or for each a number or the vector of places.
    edge_order: 1 or 2, how exact the first and the last one are."""
    f = _tensor_of("gradient", f)
    dims = list(range(f.ndim)) if axis is None else [axes_of("gradient", one, f.ndim)[0] for one in integers(axis, "axis", "gradient")]
    spacing = _spacing(f, varargs, dims)
    if edge_order not in (1, 2):
        raise InvalidArgumentError(f"gradient: edge_order is {edge_order!r}, not 1 or 2")
    f = astype(f, np.float64) if f.dtype.kind in "biu" else f
    out = []
    for dim, apart in zip(dims, spacing):
        if f.shape[dim] < edge_order + 1:
            raise InvalidArgumentError(f"gradient: dim {dim} of {f._spec} has {f.shape[dim]} elements, it needs {edge_order + 1}")
        one = _derivative(f, dim, apart, edge_order)
        out.append(one if one.dtype == f.dtype else astype(one, f.dtype))
    return out[0] if len(out) == 1 else tuple(out)


def _derivative(f, dim: int, apart, edge_order: int):
    n = f.shape[dim]
    at = lambda start, stop: f[along(dim, slice(start, stop))]     # noqa: E731
    one = lambda place: at(place % n, place % n + 1)               # noqa: E731
    is_even = np.ndim(apart) == 0
    shape = [-1 if d == dim else 1 for d in range(f.ndim)]
    apart = apart if is_even else reshape(apart, shape)
    gap = lambda i: apart if is_even else apart[along(dim, slice(i % (n - 1), i % (n - 1) + 1))]     # noqa: E731
    if is_even:
        inside = (at(2, n) - at(0, builtins.max(n - 2, 0))) / (2.0 * apart)
    else:
        before, behind = apart[along(dim, slice(0, n - 2))], apart[along(dim, slice(1, n - 1))]
        inside = (-behind / (before * (before + behind)) * at(0, n - 2) + (behind - before) / (before * behind) * at(1, n - 1) +
                  before / (behind * (before + behind)) * at(2, n))
    if edge_order == 1:
        first, last = (one(1) - one(0)) / gap(0), (one(-1) - one(-2)) / gap(-1)
    elif is_even:
        first = -1.5 / apart * one(0) + 2.0 / apart * one(1) + -0.5 / apart * one(2)
        last = 0.5 / apart * one(-3) + -2.0 / apart * one(-2) + 1.5 / apart * one(-1)
    else:
        a, b = gap(0), gap(1)
        first = -(2.0 * a + b) / (a * (a + b)) * one(0) + (a + b) / (a * b) * one(1) + -a / (b * (a + b)) * one(2)
        a, b = gap(-2), gap(-1)
        last = b / (a * (a + b)) * one(-3) + -(b + a) / (a * b) * one(-2) + (2.0 * b + a) / (b * (a + b)) * one(-1)
    return concat([first, inside, last], axis=dim)


# ---- convolutions --------------------------------------------------------------------------------

_MODES = ("full", "same", "valid")


def _slid(name: str, a, v, mode: str):
    """Sums of products of v with the part of a that begins at each place; the shorter one is v."""
    if mode not in _MODES:
        raise InvalidArgumentError(f"{name}: mode is {mode!r}, not {', '.join(_MODES)}")
    n, m = a.size, v.size
    before = {"full": m - 1, "same": m // 2, "valid": 0}[mode]
    count = {"full": n + m - 1, "same": n, "valid": n - m + 1}[mode]
    behind = builtins.max(count + m - 1 - before - n, 0)
    padded = pad(a, (before, behind)) if before or behind else a
    return _windows_times(padded, v)


def _windows_times(a, v):
    """Sums of products of v with each of a's windows, which aren't written out."""
    if a.dtype.kind != "c":
        return conv1d(a[None, None], v[None, None])[0, 0]
    (a_real, a_imag), (v_real, v_imag) = ((made.real(x), made.imag(x)) for x in (a, v))
    real = _windows_times(a_real, v_real) - _windows_times(a_imag, v_imag)
    return made.complex(real, _windows_times(a_real, v_imag) + _windows_times(a_imag, v_real))


def _lines(name: str, x1, x2) -> list:
    a, v = _two(name, x1, x2)
    if a.ndim > 1 or v.ndim > 1:
        raise InvalidArgumentError(f"{name}: takes two vectors, not {a._spec} and {v._spec}")
    a, v = reshape(a, (a.size,)), reshape(v, (v.size,))
    if a.size == 0 or v.size == 0:
        raise InvalidArgumentError(f"{name}: a vector is empty: {a._spec} and {v._spec}")
    dtype = result_type(a, v)
    if dtype == np.bool_:
        raise DTypeError(f"{name}: needs numbers: {a._spec} and {v._spec}")
    return [astype(a, dtype), astype(v, dtype)]


def convolve(x1, x2, /, mode="full"):
    """convolve(x1, x2, /, mode='full')

    The convolution of two vectors.

    mode: 'full' for every place where they overlap, 'same' for as many as the longer one has elements, 'valid' where they
    overlap as a whole."""
    a, v = _lines("convolve", x1, x2)
    a, v = (v, a) if v.size > a.size else (a, v)
    return _slid("convolve", a, made.flip(v), mode)


def correlate(x1, x2, /, mode="valid"):
    """correlate(x1, x2, /, mode='valid')

    The sums of products of x1 and the conjugate of x2, which is moved along it.

    mode: 'full', 'same' or 'valid', as of convolve."""
    a, v = _lines("correlate", x1, x2)
    v = made.conj(v) if v.dtype.kind == "c" else v
    if v.size <= a.size:
        return _slid("correlate", a, v, mode)
    return made.flip(_slid("correlate", v, a, mode))


def interp(x, xp, fp, /, left=None, right=None, period=None):
    """interp(x, xp, fp, /, left=None, right=None, period=None)

    The heights at x of the line through points; in f64.

    xp: where the points are, a vector, in order. fp: their heights. left, right: what is given beyond the first and the
    last one, by default their heights. period: the points are repeated so far apart, and may lie in any order."""
    tensor = next((one for one in (x, xp, fp) if isinstance(one, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError("interp: needs a Tensor among x, xp and fp")
    x, xp, fp = (beside("interp", tensor, one) for one in (x, xp, fp))
    if xp.ndim != 1 or xp.shape != fp.shape or xp.size == 0:
        raise InvalidArgumentError(f"interp: xp and fp are vectors of as many elements, at least one: {xp._spec} and {fp._spec}")
    x, xp = astype(x, np.float64), astype(xp, np.float64)
    fp = astype(fp, np.complex128 if fp.dtype.kind == "c" else np.float64)
    if period is not None:
        if period == 0:
            raise InvalidArgumentError("interp: period is 0")
        period, left, right = abs(period), None, None
        x, xp = x % period, xp % period
        order = made.argsort(xp)
        xp, fp = take(xp, order), take(fp, order)
        xp, fp = concat([xp[-1:] - period, xp, xp[:1] + period]), concat([fp[-1:], fp, fp[:1]])
    n = xp.size
    place = made.searchsorted(xp, x, side="right") - 1
    inside = made.maximum(made.minimum(place, n - 2), 0)
    behind = made.minimum(inside + 1, n - 1)
    low, high, f_low, f_high = take(xp, inside), take(xp, behind), take(fp, inside), take(fp, behind)
    slope = (f_high - f_low) / (high - low)
    out = slope * (x - low) + f_low
    out = made.where(made.isnan(out), made.where(f_low == f_high, f_low, slope * (x - high) + f_high), out)
    out = made.where(x == low, f_low, out)      # slope * 0 is NaN where the slope is infinite
    out = made.where(x < xp[0], fp[0] if left is None else left, out)
    out = made.where(x > xp[-1], fp[-1] if right is None else right, made.where(x == xp[-1], fp[-1], out))
    return made.where(made.isnan(x), x, out)


# ---- numbers in a row ----------------------------------------------------------------------------

def _number(name: str, what: str, value):
    value = value.item() if isinstance(value, (np.generic, _tessera.Tensor)) else value
    if not isinstance(value, (int, float, complex)):
        raise InvalidArgumentError(f"{name}: {what} is {value!r}, not a number")
    return value


def logspace(start, stop, /, num=50, endpoint=True, base=10.0, *, dtype=None, device_mesh=None, placements=None):
    """logspace(start, stop, /, num=50, endpoint=True, base=10.0, *, dtype=None, device_mesh=None, placements=None)

    `num` powers of a base, whose exponents are evenly spaced from start to stop.

    base: the number that is raised."""
    exponents = linspace(start, stop, num, endpoint=endpoint, device_mesh=device_mesh, placements=placements)
    out = made.pow(_number("logspace", "base", base), exponents)
    return out if dtype is None else astype(out, dtype)


def geomspace(start, stop, /, num=50, endpoint=True, *, dtype=None, device_mesh=None, placements=None):
    """geomspace(start, stop, /, num=50, endpoint=True, *, dtype=None, device_mesh=None, placements=None)

    `num` numbers from start to stop, each by the same factor larger than the one before."""
    start, stop = _number("geomspace", "start", start), _number("geomspace", "stop", stop)
    if start == 0 or stop == 0:
        raise InvalidArgumentError(f"geomspace: from {start} to {stop}: a 0 has no factor")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    if not is_complex and (start < 0) != (stop < 0):
        raise InvalidArgumentError(f"geomspace: from {start} to {stop}: real factors don't change the sign")
    sign = start / abs(start) if is_complex else math.copysign(1.0, start)
    ends = [complex(np.log10(complex(end / sign))) if is_complex else math.log10(end / sign) for end in (start, stop)]
    out = logspace(*ends, num, endpoint, device_mesh=device_mesh, placements=placements)
    count = out.size
    numbers = arange(count, device_mesh=out.device_mesh)
    if count:
        out = made.where(numbers == 0, start / sign, out)
    if count > 1 and endpoint:
        out = made.where(numbers == count - 1, stop / sign, out)
    out = out * sign if sign != 1.0 else out
    return out if dtype is None else astype(out, dtype)
