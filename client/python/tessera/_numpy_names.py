"""NumPy's functions that are an arrangement of other ones, or have more arguments in NumPy than in the array API; and NumPy's names
of what the array API calls otherwise."""

from __future__ import annotations

import builtins

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import array_equal, ravel
from ._contraction import vecdot
from ._creation import arange, asarray, full, zeros
from ._errors import ArgumentError, InvalidArgumentError
from ._indexing import cumprod, cumsum, nonzero as indices_of, searchsorted as search, take as take_at, unique_all
from ._namespace_info import result_type
from ._numpy_calls import OWN_NAMES, as_tensor
from ._ops import _tensor_of, astype, broadcast_arrays, broadcast_to, clip, concat, diff, moveaxis, reshape, stack
from ._calls import axes_of


def array(obj, /, dtype=None, *, copy=True, ndmin=0, device=None, device_mesh=None, placements=None):
    """array(obj, /, dtype=None, *, copy=True, ndmin=0, device=None, device_mesh=None, placements=None)

    A new tensor from numbers, lists, arrays or tensors, also from lists of tensors; with at least ndmin dims."""
    options = {"device": device, "device_mesh": device_mesh, "placements": placements}
    if isinstance(obj, (list, tuple)) and _holds_tensor(obj):
        out = stack([array(one) for one in obj])
        out = asarray(out, dtype, **options)
    else:
        out = asarray(obj, dtype, copy=builtins.bool(copy) if isinstance(obj, _tessera.Tensor) and copy is not None else None, **options)
    return reshape(out, (1,) * (ndmin - out.ndim) + tuple(out.shape)) if ndmin > out.ndim else out


def _holds_tensor(values) -> bool:
    return builtins.any(isinstance(one, _tessera.Tensor) or isinstance(one, (list, tuple)) and _holds_tensor(one) for one in values)


def where(condition, x1=None, x2=None, /):
    """where(condition, x1=None, x2=None, /)

    Returns elements of x1 where the condition is true, or not 0, and of x2 where it is false; of a condition alone its indices,
    a tensor for each dim, as nonzero."""
    if x1 is None and x2 is None:
        return indices_of(condition)
    if x1 is None or x2 is None:
        raise ArgumentError("where: takes both values or none")
    if isinstance(condition, (_tessera.Tensor, np.ndarray)) and condition.dtype != np.bool_:
        condition = condition != 0
    return made.where(condition, x1, x2)


def sort(x, /, axis=-1, *, descending=False, stable=True):
    if axis is None:
        x, axis = ravel(x), -1
    return made.sort(x, axis=axis, descending=descending, stable=stable)


def argsort(x, /, axis=-1, *, descending=False, stable=True):
    if axis is None:
        x, axis = ravel(x), -1
    return made.argsort(x, axis=axis, descending=descending, stable=stable)


def average(x, /, weights=None, axis=None, *, keepdims=False, returned=False):
    """average(x, /, weights=None, axis=None, *, keepdims=False, returned=False)

    Calculates the mean over the axes, in which each element counts by its weight; without weights the mean. With returned also the
    sum of the weights. Weights of one axis are a vector."""
    x = _tensor_of("average", x)
    if isinstance(weights, int):        # NumPy's second argument is the axis
        weights, axis = (axis if axis is not None and not isinstance(axis, int) else None), weights
    if weights is None:
        out = made.mean(x, axis=axis, keepdims=keepdims)
        count = x.size // builtins.max(out.size, 1)
        return (out, full(out.shape, float(count), device_mesh=x.device_mesh)) if returned else out
    weights = as_tensor(weights)
    if weights.ndim == 1 and x.ndim > 1 and axis is not None:
        (dim,) = axes_of("average", axis, x.ndim)
        weights = reshape(weights, [x.shape[dim] if d == dim else 1 for d in range(x.ndim)])
    out = made.average(x, weights, axis=axis, keepdims=keepdims)
    return (out, made.sum(broadcast_to(weights, x.shape), axis=axis, keepdims=keepdims)) if returned else out


def isclose(x1, x2, /, *, rtol=1e-05, atol=1e-08, equal_nan=False):
    """isclose(x1, x2, /, *, rtol=1e-05, atol=1e-08, equal_nan=False)

    Tests for each element whether |x1 - x2| <= atol + rtol * |x2|; equal infinities are close, and with equal_nan two NaN are."""
    close = made.isclose(x1, x2, rtol=rtol, atol=atol)
    return made.logical_or(close, made.logical_and(made.not_equal(x1, x1), made.not_equal(x2, x2))) if equal_nan else close


def allclose(x1, x2, /, *, rtol=1e-05, atol=1e-08, equal_nan=False):
    """allclose(x1, x2, /, *, rtol=1e-05, atol=1e-08, equal_nan=False)

    Tests whether all elements are close, as isclose says."""
    return made.all(isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=True)) if equal_nan else made.allclose(x1, x2, rtol=rtol, atol=atol)


def angle(x, /, deg=False):
    """angle(x, /, deg=False)

    Calculates the angle of each element in the complex plane, with deg in degrees; integers give f64."""
    return made.angle(x) * (180 / np.pi) if deg else made.angle(x)


def vdot(a, b, /):
    """vdot(a, b, /)

    The sum of the products of all elements, a's conjugated."""
    return vecdot(ravel(as_tensor(a)), ravel(as_tensor(b)))


def searchsorted(x1, x2, /, side="left", sorter=None):
    """searchsorted(x1, x2, /, side='left', sorter=None)

    Finds where elements of x2 belong in the sorted vector x1: before equal ones (left), or behind (right). sorter: the
    indices that sort x1, where it isn't sorted."""
    if isinstance(x1, _tessera.Tensor) and isinstance(x2, _tessera.Tensor) and x1.dtype != x2.dtype:
        dtype = result_type(x1, x2)
        x1, x2 = astype(x1, dtype, copy=False), astype(x2, dtype, copy=False)
    return search(x1, x2, side=side, sorter=sorter)


def take(x, indices, /, axis=None, *, mode="raise"):
    """take(x, indices, /, axis=None, *, mode='raise')

    The elements along an axis, by default of the flattened tensor, at the indices, in their order; negative ones count from the
    end. With a tensor of indices the result has its dims in place of the axis. An index outside is an error of this op alone, or with
    mode 'wrap' counted in a circle, with 'clip' the nearest one."""
    x = _tensor_of("take", x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    if mode != "raise":
        (dim,) = axes_of("take", axis, x.ndim)
        if mode not in ("wrap", "clip"):
            raise InvalidArgumentError(f"take: mode is {mode!r}; it is raise, wrap or clip")
        indices = indices if isinstance(indices, _tessera.Tensor) else np.asarray(indices)
        extent = x.shape[dim]
        indices = indices % extent if mode == "wrap" else clip(as_tensor(indices), 0, extent - 1)
    return take_at(x, indices, axis=axis)


# ---- unique and sets -----------------------------------------------------------------------------

def unique(x, /, return_index=False, return_inverse=False, return_counts=False):
    """unique(x, /, return_index=False, return_inverse=False, return_counts=False)

    The different elements, in order; with them, as asked for: where each is first, which one each element of x is, and how often each
    is there. Returns at once; the shapes wait for their number."""
    found = unique_all(as_tensor(x))
    wanted = [found.values, *(one for one, is_wanted in zip((found.indices, found.inverse_indices, found.counts),
                                                           (return_index, return_inverse, return_counts)) if is_wanted)]
    return wanted[0] if len(wanted) == 1 else tuple(wanted)


def lexsort(keys, /, axis=-1):
    """lexsort(keys, /, axis=-1)

    The indices that sort by several keys, the last one first."""
    keys = [as_tensor(key) for key in keys]
    if not keys:
        raise InvalidArgumentError("lexsort: there are no keys")
    order = made.argsort(keys[0], axis=axis)
    for key in keys[1:]:
        order = made.take_along_axis(order, made.argsort(made.take_along_axis(key, order, axis=axis), axis=axis), axis=axis)
    return order


def sort_complex(x, /):
    """sort_complex(x, /)

    The elements of a vector sorted by their real parts, equal ones by their imaginary parts; complex."""
    x = as_tensor(x)
    x = x if x.dtype.kind == "c" else astype(x, np.complex128)
    return take_at(x, lexsort((made.imag(x), made.real(x))), axis=0) if x.ndim == 1 else made.take_along_axis(x, lexsort((x.imag, x.real)), axis=-1)


def partition(x, kth, /, axis=-1):
    """partition(x, kth, /, axis=-1)

    The elements along an axis with those before place kth no larger and those behind no smaller: all are sorted."""
    return sort(x, axis=axis)


def argpartition(x, kth, /, axis=-1):
    """argpartition(x, kth, /, axis=-1)

    The indices that partition gives the elements in the order of."""
    return argsort(x, axis=axis)


# ---- written in place ----------------------------------------------------------------------------

def _written(op: str, x):
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"{op}: x is {type(x).__name__}, not a Tensor")
    return x


def _repeated(values, count: int):
    """A vector of so many elements: the values again and again, as NumPy's put and place take them."""
    values = ravel(values)
    if values.size == 0:
        raise InvalidArgumentError("put: there are no values")
    return values if values.size == count else take_at(values, np.arange(count) % values.size, axis=0)


def put(x, ind, v, /, mode="raise"):
    """put(x, ind, v, /, mode='raise')

    Writes values into x at the indices of its elements in row-major order; values that are fewer come again. Gives nothing back."""
    _written("put", x)
    ind = ind if isinstance(ind, _tessera.Tensor) else np.asarray(ind, np.int64)
    if mode not in ("raise", "wrap", "clip"):
        raise InvalidArgumentError(f"put: mode is {mode!r}; it is raise, wrap or clip")
    if mode == "wrap":
        ind = ind % x.size
    elif mode == "clip":
        ind = clip(as_tensor(ind, x), 0, x.size - 1)
    ind = reshape(as_tensor(ind, x), (-1,))
    values = _repeated(as_tensor(v, x), ind.size)
    if x.ndim < 2:
        x[ind if x.ndim else ...] = values if x.ndim else values[-1]
        return
    ind = made.where(ind < 0, ind + x.size, ind)
    places = []
    for extent in reversed(x.shape[1:]):
        places.insert(0, ind % extent)
        ind = ind // extent
    x[(ind, *places)] = values


def place(x, mask, vals, /):
    """place(x, mask, vals, /)

    Writes values into x where the mask is true, in order; values that are fewer come again. Gives nothing back. Waits for the number of
    places where there are several values."""
    _written("place", x)
    mask, vals = as_tensor(mask, x), ravel(as_tensor(vals, x))
    x[mask] = vals[0] if vals.size == 1 else _repeated(vals, int(made.count_nonzero(mask)))


def putmask(x, mask, values, /):
    """putmask(x, mask, values, /)

    Writes into x where the mask is true the values of the same places; values that are fewer come again. Gives nothing back."""
    values = as_tensor(values, _written("putmask", x))
    values = values if values.ndim == 0 or values.shape == x.shape else reshape(_repeated(values, x.size), x.shape)
    x[...] = made.where(as_tensor(mask, x), values, x)


def copyto(dst, src, /, *, where=True):
    """copyto(dst, src, /, *, where=True)

    Writes src into dst, or into where the mask is true. Gives nothing back."""
    _written("copyto", dst)
    src = as_tensor(src, dst)
    if not np.can_cast(src.dtype, dst.dtype, "same_kind"):
        raise ArgumentError(f"copyto: {src._spec} can't be written into {dst._spec}; write it as astype(src, {dst.dtype})")
    dst[...] = src if where is True else made.where(as_tensor(where, dst), src, dst)


def fill_diagonal(x, val, /, wrap=False):
    """fill_diagonal(x, val, /, wrap=False)

    Writes a value, or values one after the other, on the diagonal of x. Gives nothing back. wrap: the diagonal of a tall matrix
    begins again below its end."""
    _written("fill_diagonal", x)
    if x.ndim < 2:
        raise InvalidArgumentError(f"fill_diagonal: {x._spec} has {x.ndim} dims, it needs at least 2")
    if x.ndim > 2 and len(set(x.shape)) > 1:
        raise InvalidArgumentError(f"fill_diagonal: the dims of {x._spec} are of different extents")
    rows = np.arange(builtins.min(x.shape))
    if wrap and x.ndim == 2:
        places = np.arange(0, x.size, x.shape[1] + 1)
        index = (places // x.shape[1], places % x.shape[1])
    else:
        index = (rows,) * x.ndim
    val = as_tensor(val, x)
    x[index] = val if val.ndim == 0 else _repeated(val, len(index[0]))


# ---- indices -------------------------------------------------------------------------------------

def _triangle(n, k, m, upper):
    rows, columns = np.triu_indices(n, k, m) if upper else np.tril_indices(n, k, m)
    return asarray(rows.astype(np.int64)), asarray(columns.astype(np.int64))


def tril_indices(n, k=0, m=None):
    """tril_indices(n, k=0, m=None)

    The rows and the columns of the elements of an (n, m) matrix on and below the k-th diagonal."""
    return _triangle(n, k, m, False)


def triu_indices(n, k=0, m=None):
    """triu_indices(n, k=0, m=None)

    The rows and the columns of the elements of an (n, m) matrix on and above the k-th diagonal."""
    return _triangle(n, k, m, True)


def _matrix(op: str, x):
    if x.ndim != 2:
        raise InvalidArgumentError(f"{op}: {x._spec} has {x.ndim} dims, not 2")
    return x.shape


def tril_indices_from(x, /, k=0):
    """tril_indices_from(x, /, k=0)

    tril_indices of a matrix of x's shape."""
    rows, columns = _matrix("tril_indices_from", x)
    return tril_indices(rows, k, columns)


def triu_indices_from(x, /, k=0):
    """triu_indices_from(x, /, k=0)

    triu_indices of a matrix of x's shape."""
    rows, columns = _matrix("triu_indices_from", x)
    return triu_indices(rows, k, columns)


def diag_indices(n, ndim=2):
    """diag_indices(n, ndim=2)

    The indices of the diagonal of n elements of a tensor with ndim dims of extent n."""
    return (arange(n),) * ndim


def diag_indices_from(x, /):
    """diag_indices_from(x, /)

    diag_indices of a tensor whose dims are of x's extent."""
    if x.ndim < 2 or len(set(x.shape)) > 1:
        raise InvalidArgumentError(f"diag_indices_from: the dims of {x._spec} are fewer than 2 or of different extents")
    return diag_indices(x.shape[0], x.ndim)


def indices(dimensions, dtype=np.int64, sparse=False):
    """indices(dimensions, dtype=int64, sparse=False)

    Of each element of a tensor of these extents its place along each dim: one tensor whose first dim are the dims, or with sparse a
    tensor for each dim, with extent 1 in the others."""
    extents = tuple(dimensions)
    each = [reshape(arange(n, dtype=dtype), [n if d == at else 1 for d in range(len(extents))]) for at, n in enumerate(extents)]
    if sparse:
        return tuple(each)
    return stack([broadcast_to(one, extents) for one in each]) if each else zeros((0,), dtype)


def ix_(*sequences):
    """ix_(*sequences)

    Vectors of indices, or masks, as indices of all their combinations: x[ts.ix_(rows, columns)]."""
    out = []
    for at, one in enumerate(sequences):
        one = as_tensor(one)
        if one.ndim != 1:
            raise InvalidArgumentError(f"ix_: {one._spec} has {one.ndim} dims, not 1")
        one = indices_of(one)[0] if one.dtype == np.bool_ else one
        out.append(reshape(one, [-1 if d == at else 1 for d in range(len(sequences))]))
    return tuple(out)


def extract(condition, x, /):
    """extract(condition, x, /)

    The elements of x where the condition is true, or not 0, in row-major order. Returns at once; their shape waits for their number."""
    condition = as_tensor(condition)
    return ravel(as_tensor(x))[ravel(condition if condition.dtype == np.bool_ else condition != 0)]


# ---- arithmetic ----------------------------------------------------------------------------------

def nancumsum(x, /, axis=None, dtype=None):
    """nancumsum(x, /, axis=None, dtype=None)

    The sums of the elements up to each one along an axis, by default of the flattened tensor; NaN counts as 0."""
    x = as_tensor(x)
    return cumsum(made.where(made.isnan(x), 0, x) if x.dtype.kind in "fc" else x, axis=axis, dtype=dtype)


def nancumprod(x, /, axis=None, dtype=None):
    """nancumprod(x, /, axis=None, dtype=None)

    The products of the elements up to each one along an axis, by default of the flattened tensor; NaN counts as 1."""
    x = as_tensor(x)
    return cumprod(made.where(made.isnan(x), 1, x) if x.dtype.kind in "fc" else x, axis=axis, dtype=dtype)


def logaddexp2(x1, x2, /):
    """logaddexp2(x1, x2, /)

    Calculates the logarithm to base 2 of 2**x1 + 2**x2."""
    larger, smaller = made.maximum(x1, x2), made.minimum(x1, x2)
    apart = made.where(larger == smaller, 0, smaller - larger)     # of equal infinities, too
    return larger + made.log1p(made.exp2(apart)) * (1 / np.log(2))


def ldexp(x1, x2, /):
    """ldexp(x1, x2, /)

    Calculates x1 * 2**x2."""
    return made.multiply(x1, 2.0 ** x2 if isinstance(x2, (int, float)) else made.pow(2.0, astype(as_tensor(x2), np.float64)))


def modf(x, /):
    """modf(x, /)

    The fractional and the whole part of each element, with its sign."""
    x = as_tensor(x)
    whole = made.trunc(x if x.dtype.kind == "f" else astype(x, np.float64))
    return made.copysign(made.where(made.isinf(whole), 0.0, x - whole), whole), whole


def ediff1d(x, /, to_end=None, to_begin=None):
    """ediff1d(x, /, to_end=None, to_begin=None)

    The differences of each element of the flattened tensor and the one before it, between what is given."""
    x = ravel(as_tensor(x))
    parts = [None if one is None else astype(ravel(as_tensor(one, x)), x.dtype) for one in (to_begin, to_end)]
    parts = [one for one in (parts[0], diff(x), parts[1]) if one is not None]
    return concat(parts) if len(parts) > 1 else parts[0]


def polyval(p, x, /):
    """polyval(p, x, /)

    The polynomial with coefficients p, the highest power first, at x, by Horner's rule."""
    x = as_tensor(x)
    coefficients = p.full_tensor() if isinstance(p, _tessera.Tensor) else np.asarray(p)
    out = made.multiply(x, 0) + (coefficients[0].item() if len(coefficients) else 0)
    for one in coefficients[1:]:
        out = out * x + one.item()
    return out


def isreal(x, /):
    """isreal(x, /)

    Tests for each element whether its imaginary part is 0."""
    x = as_tensor(x)
    return made.imag(x) == 0 if x.dtype.kind == "c" else full(x.shape, True, device_mesh=x.device_mesh)


def iscomplex(x, /):
    """iscomplex(x, /)

    Tests for each element whether its imaginary part is not 0."""
    return made.logical_not(isreal(x))


def isposinf(x, /):
    """isposinf(x, /)

    Tests for each element whether it is positive infinity."""
    return made.equal(x, np.inf)


def isneginf(x, /):
    """isneginf(x, /)

    Tests for each element whether it is negative infinity."""
    return made.equal(x, -np.inf)


def bitwise_count(x, /):
    """bitwise_count(x, /)

    The number of bits that are set in the absolute value of each element."""
    x = as_tensor(x)
    if x.dtype.kind not in "iu":
        raise ArgumentError(f"bitwise_count: needs an integer dtype: x is {x._spec}")
    rest, out = astype(made.abs(x) if x.dtype.kind == "i" else x, np.uint64), None
    for bit in range(x.dtype.itemsize * 8):
        one = made.bitwise_and(made.bitwise_right_shift(rest, bit), 1)
        out = one if out is None else out + one
    return astype(out, np.uint8)


def packbits(x, /, axis=None, bitorder="big"):
    """packbits(x, /, axis=None, bitorder='big')

    Eight bools, or numbers that are 0 or not, as the bits of one u8, along an axis, by default of the flattened tensor; what is
    missing at the end counts as 0."""
    x = as_tensor(x)
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    (dim,) = axes_of("packbits", axis, x.ndim)
    bits = moveaxis(astype(x != 0, np.uint8), dim, -1)
    missing = -bits.shape[-1] % 8
    if missing:
        bits = concat([bits, zeros((*bits.shape[:-1], missing), np.uint8, device_mesh=x.device_mesh)], axis=-1)
    weights = np.array([1 << (at if bitorder == "little" else 7 - at) for at in range(8)], np.uint8)
    packed = made.sum(reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8)) * weights, axis=-1, dtype=np.uint8)
    return moveaxis(packed, -1, dim)


def unpackbits(x, /, axis=None, count=None, bitorder="big"):
    """unpackbits(x, /, axis=None, count=None, bitorder='big')

    The bits of each u8, as eight u8, along an axis, by default of the flattened tensor; of them the first count, or all but so many
    of the last where that is negative."""
    x = as_tensor(x)
    if x.dtype != np.uint8:
        raise ArgumentError(f"unpackbits: needs dtype u8: x is {x._spec}")
    x, axis = (ravel(x), 0) if axis is None else (x, axis)
    (dim,) = axes_of("unpackbits", axis, x.ndim)
    shifts = np.array([at if bitorder == "little" else 7 - at for at in range(8)], np.uint8)
    rows = moveaxis(x, dim, -1)
    bits = made.bitwise_and(made.bitwise_right_shift(rows[..., None], shifts), np.uint8(1))
    bits = reshape(bits, (*rows.shape[:-1], rows.shape[-1] * 8))
    return moveaxis(bits if count is None else bits[..., :count], -1, dim)


# ---- what something is ---------------------------------------------------------------------------

def ndim(x, /):
    """ndim(x, /)

    The number of dims."""
    return x.ndim if isinstance(x, _tessera.Tensor) else np.ndim(x)


def shape(x, /):
    """shape(x, /)

    The extents."""
    return x.shape if isinstance(x, _tessera.Tensor) else np.shape(x)


def size(x, /, axis=None):
    """size(x, /, axis=None)

    The number of elements, or the extent of an axis."""
    return (x.size if axis is None else x.shape[axis]) if isinstance(x, _tessera.Tensor) else np.size(x, axis)


def iscomplexobj(x, /):
    """iscomplexobj(x, /)

    Whether the dtype is a complex one."""
    return x.dtype.kind == "c" if isinstance(x, _tessera.Tensor) else np.iscomplexobj(x)


def isrealobj(x, /):
    """isrealobj(x, /)

    Whether the dtype is none of the complex ones."""
    return not iscomplexobj(x)


def array_equiv(x1, x2, /):
    """array_equiv(x1, x2, /)

    Whether all elements are equal when the tensors are broadcast to one shape."""
    try:
        return array_equal(*broadcast_arrays(as_tensor(x1), as_tensor(x2)))
    except (InvalidArgumentError, ValueError):
        return False


# Further names of what is there, beside those of NumPy's ufuncs.
ALIASES = {**{name: own for name, own in OWN_NAMES.items() if name not in ("absolute", "power", "mod")},
           "asanyarray": "asarray", "ascontiguousarray": "asarray", "promote_types": "result_type", "row_stack": "vstack"}
