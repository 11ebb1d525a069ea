"""More of NumPy's functions: products of vectors and matrices by name, parts of numbers, phases, several-dimensional histograms, and what
brings values from texts and files."""

from __future__ import annotations

import builtins

import numpy as np

import _tessera_ops as made
from ._arrangement import ravel
from ._contraction import einsum
from ._creation import asarray, ones
from ._errors import InvalidArgumentError
from ._indexing import nonzero as indices_of
from ._mesh import integers
from ._numpy_calls import as_tensor
from ._numpy_names import diff
from ._ops import astype, concat, moveaxis, reshape, stack
from ._statistics import _edges, _real, added_up, beside, bins_of
from ._calls import axes_of

# ---- products ------------------------------------------------------------------------------------


def matvec(x1, x2, /):
    """matvec(x1, x2, /)

    The products of matrices and vectors: of (..., m, n) and (..., n) it is (..., m)."""
    return einsum("...mn,...n->...m", as_tensor(x1), as_tensor(x2))


def vecmat(x1, x2, /):
    """vecmat(x1, x2, /)

    The products of conjugated vectors and matrices: of (..., n) and (..., n, m) it is (..., m)."""
    x1 = as_tensor(x1)
    return einsum("...n,...nm->...m", made.conj(x1) if x1.dtype.kind == "c" else x1, as_tensor(x2))


# ---- parts of numbers ----------------------------------------------------------------------------

def _float(x):
    x = as_tensor(x)
    return x if x.dtype.kind == "f" else astype(x, np.float64)


def frexp(x, /):
    """frexp(x, /)

    Of each element the mantissa, from 0.5 up to 1, and the exponent of 2, an int32: x is mantissa * 2**exponent. The mantissa of 0, an
    infinity and NaN is itself, and the exponent 0."""
    x = _float(x)
    size = made.abs(astype(x, np.float64))
    is_plain = made.logical_and(size > 0.0, size < np.inf)
    is_small = made.logical_and(is_plain, size < 2.0 ** -1000)
    scaled = made.where(is_plain, made.where(is_small, size * 2.0 ** 200, size), 1.0)
    exponent = made.floor(made.log2(scaled)) + 1.0
    mantissa = scaled * _power_of_2(-exponent)
    # A logarithm may be rounded to the next whole number.
    is_over, is_under = mantissa >= 1.0, mantissa < 0.5
    mantissa = made.where(is_over, 0.5 * mantissa, made.where(is_under, 2.0 * mantissa, mantissa))
    exponent = exponent + made.where(is_over, 1.0, made.where(is_under, -1.0, 0.0)) - made.where(is_small, 200.0, 0.0)
    return (astype(made.where(is_plain, made.copysign(mantissa, astype(x, np.float64)), astype(x, np.float64)), x.dtype),
            astype(made.where(is_plain, exponent, 0.0), np.int32))


def _power_of_2(exponent):
    """2**exponent of whole numbers from -1100 to 1100, in two factors, neither of which overflows."""
    half = made.floor(exponent * 0.5)
    return made.pow(2.0, half) * made.pow(2.0, exponent - half)


def spacing(x, /):
    """spacing(x, /)

    The distance from each element to the next larger one in size, with its sign; NaN of infinities and NaN."""
    x = _float(x)
    if x.dtype.itemsize < 4:
        raise InvalidArgumentError(f"spacing: x is {x._spec}; it takes f32 and f64")
    there = made.nextafter(x, made.where(x < 0, -np.inf, np.inf)) - x
    return made.where(made.isfinite(x), there, np.nan)


def real_if_close(x, /, tol=100):
    """real_if_close(x, /, tol=100)

    The real parts, where all imaginary parts are smaller than tol times the machine's epsilon; else x. Waits for whether they are."""
    x = as_tensor(x)
    if x.dtype.kind != "c":
        return x
    limit = tol * float(np.finfo(x.dtype).eps) if tol > 1 else float(tol)
    return made.real(x) if bool(made.all(made.abs(made.imag(x)) < limit)) else x


def unwrap(p, /, discont=None, axis=-1, *, period=6.283185307179586):
    """unwrap(p, /, discont=None, axis=-1, *, period=6.283185307179586)

    Phases along an axis without their jumps: a step of more than discont, at least half a period, is changed by whole periods."""
    p = as_tensor(p)
    p = p if p.dtype.kind == "f" or isinstance(period, int) else astype(p, np.float64)
    (axis,) = axes_of("unwrap", axis, p.ndim)
    if p.shape[axis] < 2:
        return p
    steps = diff(p, axis=axis)
    is_whole = p.dtype.kind != "f"
    high = period // 2 if is_whole else period / 2
    wrapped = made.remainder(steps + high, period) - high
    if not is_whole or period % 2 == 0:
        wrapped = made.where(made.logical_and(wrapped == -high, steps > 0), high, wrapped)
    change = made.where(made.abs(steps) < (high if discont is None else discont), 0, wrapped - steps)
    first = tuple(slice(0, 1) if d == axis else slice(None) for d in range(p.ndim))
    rest = tuple(slice(1, None) if d == axis else slice(None) for d in range(p.ndim))
    return concat([p[first], p[rest] + made.cumulative_sum(change, axis=axis)], axis=axis)


# ---- arrangement ---------------------------------------------------------------------------------

def rollaxis(a, axis, start=0):
    """rollaxis(a, axis, start=0)

    The tensor a with the dim axis in front of the one at start; moveaxis says it more plainly."""
    a = as_tensor(a)
    (axis,), (start,) = axes_of("rollaxis", axis, a.ndim), integers(start, "start", "rollaxis")
    if not -a.ndim <= start <= a.ndim:
        raise InvalidArgumentError(f"rollaxis: start is {start}, of {a.ndim} dims it is in [{-a.ndim}, {a.ndim}]")
    start += a.ndim if start < 0 else 0
    return moveaxis(a, axis, start - 1 if axis < start else start)


def trim_zeros(filt, /, trim="fb", axis=None):
    """trim_zeros(filt, /, trim='fb', axis=None)

    The tensor filt without the zeros at its front (trim has 'f'), its back ('b') or both, along an axis, several or by default all. Waits
    for where the elements that aren't zero are."""
    filt = as_tensor(filt)
    if not set(trim.lower()) <= {"f", "b"}:
        raise InvalidArgumentError(f"trim_zeros: trim is {trim!r}; it has f, b or both")
    axes = range(filt.ndim) if axis is None else axes_of("trim_zeros", axis, filt.ndim)
    key = [slice(None)] * filt.ndim
    for d, places in enumerate(one.full_tensor() for one in indices_of(filt)):
        if d not in axes:
            continue
        if places.size == 0:
            key[d] = slice(0, 0) if trim else slice(None)
        else:
            key[d] = slice(places.min() if "f" in trim.lower() else 0, places.max() + 1 if "b" in trim.lower() else filt.shape[d])
    return filt[tuple(key)]


def apply_over_axes(func, a, axes):
    """apply_over_axes(func, a, axes)

    Applies func(a, axis) along each of the axes in turn; an axis that it takes away comes back with extent 1."""
    out = as_tensor(a)
    for axis in integers(axes, "axes", "apply_over_axes"):
        (axis,) = axes_of("apply_over_axes", axis, out.ndim)
        result = func(out, axis)
        if result.ndim == out.ndim - 1:
            result = reshape(result, (*result.shape[:axis], 1, *result.shape[axis:]))
        elif result.ndim != out.ndim:
            raise InvalidArgumentError(f"apply_over_axes: func makes {result._spec} of {out._spec}; it keeps the dims, or takes the axis away")
        out = result
    return out


def mask_indices(n, mask_func, k=0):
    """mask_indices(n, mask_func, k=0)

    The rows and columns of an (n, n) matrix where mask_func(ones, k), as ts.triu, leaves an element."""
    return tuple(indices_of(mask_func(ones((n, n), dtype=np.int64), k) != 0))


def asarray_chkfinite(a, dtype=None):
    """asarray_chkfinite(a, dtype=None)

    asarray, and an error where an element is an infinity or NaN. Waits for whether one is."""
    out = asarray(a, dtype)
    if out.dtype.kind in "fc" and not bool(made.all(made.isfinite(out))):
        raise InvalidArgumentError(f"asarray_chkfinite: {out._spec} has infinities or NaNs")
    return out


def require(a, dtype=None, requirements=None):
    """require(a, dtype=None, requirements=None)

    asarray of a and dtype. requirements: taken as NumPy's callers give them; a tensor has no order and no alignment in memory."""
    return asarray(a, dtype)


def einsum_path(subscripts, *operands, optimize="greedy"):
    """einsum_path(subscripts, *operands, optimize='greedy')

    The order in which NumPy would contract operands of these shapes, and a report, for subscripts; nothing is computed. optimize: NumPy's
    ways."""
    return np.einsum_path(subscripts, *(np.broadcast_to(np.float64(0), np.shape(one)) for one in operands), optimize=optimize)


# ---- histograms ----------------------------------------------------------------------------------

def histogram_bin_edges(x, /, bins=10, range=None, weights=None):  # noqa: A002 - NumPy's name
    """histogram_bin_edges(x, /, bins=10, range=None, weights=None)

    The edges that histogram takes of x for bins, a number or edges, and range; weights change nothing. Waits for the ends of x where no
    range is given."""
    return asarray(_edges(_real("histogram_bin_edges", as_tensor(x)), bins, range))


def histogramdd(sample, /, bins=10, range=None, density=False, weights=None):  # noqa: A002 - NumPy's name
    """histogramdd(sample, /, bins=10, range=None, density=False, weights=None)

    How many points, the rows of sample (points, dims) or a list of a vector for each dim, are in each box, and a list of the edges by dim.

    bins: how many equal ones, a number for all dims or one for each, or edges by dim. range: a first and a last edge by dim, or None. density:
    divided by the number of points and the volume of the box. weights: what each point counts."""
    if isinstance(sample, (list, tuple)):
        sample = stack([as_tensor(one) for one in sample], axis=-1)
    sample = _real("histogramdd", as_tensor(sample))
    sample = reshape(sample, (-1, 1)) if sample.ndim == 1 else sample
    if sample.ndim != 2:
        raise InvalidArgumentError(f"histogramdd: sample is {sample._spec}; it has a row for each point")
    dims = sample.shape[1]
    bins = list(bins) if isinstance(bins, (list, tuple)) or np.ndim(bins) else [bins] * dims
    ranges = [None] * dims if range is None else list(range)
    if len(bins) != dims or len(ranges) != dims:
        raise InvalidArgumentError(f"histogramdd: bins for {len(bins)} dims and range for {len(ranges)}, and points of {dims}")
    lines = [astype(sample[:, d], np.float64) for d in builtins.range(dims)]
    edges = [_edges(line, *one).astype(np.float64) for line, *one in zip(lines, bins, ranges)]
    flat, is_in = bins_of("histogramdd", lines, edges)
    shape = tuple(one.size - 1 for one in edges)
    total = int(np.prod(shape))
    counted = astype(is_in, np.float64) if weights is None else beside("histogramdd", sample, weights)
    out = reshape(added_up(made.where(is_in, flat, total), astype(counted, np.float64), total), shape)
    if density:
        volume = np.ones(())
        for one in edges:
            volume = volume[..., None] * np.diff(one)
        out = out / beside("histogramdd", sample, volume) / made.sum(out)
    return out, [beside("histogramdd", sample, one) for one in edges]


def histogram2d(x, y, /, bins=10, range=None, density=False, weights=None):  # noqa: A002 - NumPy's name
    """histogram2d(x, y, /, bins=10, range=None, density=False, weights=None)

    How many of the points x, y are in each rectangle, with x along the first dim, and the edges along x and along y.

    bins: how many equal ones, a number for both or one for each, edges for both or for each. range: [[first x, last x], [first y, last y]].
    density: divided by the number of points and the area. weights: what each point counts."""
    if not isinstance(bins, (int, np.integer)) and len(bins) not in (1, 2):
        bins = [bins, bins]
    elif not isinstance(bins, (int, np.integer)) and len(bins) == 1:
        bins = [bins[0]] * 2
    out, (of_x, of_y) = histogramdd([ravel(as_tensor(x)), ravel(as_tensor(y))], bins=bins, range=range, density=density, weights=weights)
    return out, of_x, of_y


# ---- from texts and files ------------------------------------------------------------------------

def _read(name: str, what: str, example: str):
    read = getattr(np, name)

    def function(*args, **options):
        return asarray(read(*args, **options))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (f"{name}(*args, **options)\n\n    {what} args and options are those of NumPy's function of this name; the values are read by this "
                        f"process.\n\n    >>> {example}")
    return function


frombuffer = _read("frombuffer", "A tensor of the bytes of a buffer, with a dtype.", "ts.frombuffer(data, dtype=ts.uint8)")
fromiter = _read("fromiter", "A tensor of the values of an iterable.", "ts.fromiter(range(3), float)")
fromstring = _read("fromstring", "A tensor of the numbers in a text, between separators.", 'ts.fromstring("1 2 3", sep=" ")')
fromfile = _read("fromfile", "A tensor of the numbers in a file of bytes, or of text.", 'ts.fromfile("values.bin", dtype=ts.float32)')
loadtxt = _read("loadtxt", "A tensor of the numbers in a text file, a row for each line.", 'ts.loadtxt("table.csv", delimiter=",")')
genfromtxt = _read("genfromtxt", "A tensor of the numbers in a text file, some of which may be missing.", 'ts.genfromtxt("table.csv", delimiter=",")')
