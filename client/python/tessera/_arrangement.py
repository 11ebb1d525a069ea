"""NumPy's names for where elements lie: stacks, splits, turns, diagonals, what is deleted and inserted. Each is an
arrangement of other ops."""

from __future__ import annotations

import builtins

import numpy as np

import _tessera
import _tessera_ops as made
from ._creation import arange, eye, full, ones, zeros
from ._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError
from ._indexing import _indices, _places, nonzero, take
from ._mesh import integers
from ._ops import (_tensor_of, _tensors_of, astype, broadcast_to, concat, expand_dims, moveaxis, pad, ravel, reshape, split,
                   stack, swapaxes)
from ._calls import as_operand, axes_of


def beside(op: str, x, value):
    """A value as a tensor on x's mesh: a tensor itself, a number, a list or an array."""
    if isinstance(value, _tessera.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype == object:
        raise ArgumentError(f"{op}: {type(value).__name__} can't stand beside {x._spec}")
    if array.ndim == 0:
        return full((), array.item(), dtype=array.dtype, device_mesh=x.device_mesh)
    return as_operand(op, x, np.ascontiguousarray(array))


def along(dim: int, item) -> tuple:
    """The index that takes an item of one dim, and the dims before and behind it whole."""
    return (slice(None),) * dim + (item,)


def numbers_of(*tensors) -> list:
    """The numbers of tensors of one element each, by one download."""
    return stack([reshape(x, ()) for x in tensors]).full_tensor().tolist()


# ---- joined --------------------------------------------------------------------------------------

def atleast_1d(*arrays):
    """atleast_1d(*arrays)

    The tensors with at least one dim; of several a tuple."""
    return _at_least("atleast_1d", arrays, lambda x: x if x.ndim else reshape(x, (1,)))


def atleast_2d(*arrays):
    """atleast_2d(*arrays)

    The tensors with at least two dims, a vector as a row; of several a tuple."""
    return _at_least("atleast_2d", arrays, lambda x: x if x.ndim > 1 else reshape(x, (1, x.size)))


def atleast_3d(*arrays):
    """atleast_3d(*arrays)

    The tensors with at least three dims, of a matrix the last of extent 1; of several a tuple."""
    return _at_least("atleast_3d", arrays, _in_3d)


def _in_3d(x):
    return x if x.ndim > 2 else x[:, :, None] if x.ndim == 2 else reshape(x, (1, x.size, 1))


def _at_least(name: str, arrays, change):
    out = tuple(change(x) for x in _tensors_of(name, list(arrays)))
    return out[0] if len(out) == 1 else out


def _of_shape(name: str, arrays, change) -> list:
    """The tensors of a list; numbers among them become tensors."""
    arrays = list(arrays) if isinstance(arrays, (list, tuple, _tessera.Tensor)) else [arrays]
    tensor = next((x for x in arrays if isinstance(x, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a list with a Tensor in it, not of {type(arrays[0]).__name__ if arrays else 'nothing'}")
    return [change(beside(name, tensor, x)) for x in arrays]


def vstack(arrays, /):
    """vstack(arrays, /)

    Joins tensors along their rows; a vector is a row."""
    return concat(_of_shape("vstack", arrays, atleast_2d), axis=0)


def hstack(arrays, /):
    """hstack(arrays, /)

    Joins tensors along their columns; vectors along their one dim."""
    arrays = _of_shape("hstack", arrays, atleast_1d)
    return concat(arrays, axis=0 if arrays[0].ndim == 1 else 1)


def dstack(arrays, /):
    """dstack(arrays, /)

    Joins tensors along their third dim; a matrix is one layer."""
    return concat(_of_shape("dstack", arrays, _in_3d), axis=2)


def column_stack(arrays, /):
    """column_stack(arrays, /)

    Joins vectors as the columns of a matrix; matrices stand between them with their own columns."""
    return concat(_of_shape("column_stack", arrays, lambda x: x if x.ndim > 1 else reshape(x, (x.size, 1))), axis=1)


def block(arrays, /):
    """block(arrays, /)

    Joins nested lists of tensors as a matrix of blocks: the innermost lists along the last dim."""
    def depth_of(item) -> int:
        return 1 + builtins.max(map(depth_of, item), default=0) if isinstance(item, list) else 0

    def leaves(item):
        return [leaf for one in item for leaf in leaves(one)] if isinstance(item, list) else [item]
    tensor = next((x for x in leaves(arrays) if isinstance(x, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError("block: needs a Tensor in the lists")
    depth = depth_of(arrays)
    rank = builtins.max(depth, *(getattr(x, "ndim", 0) for x in leaves(arrays)))

    def joined(item, level: int):
        if not isinstance(item, list):
            if level < depth:
                raise InvalidArgumentError(f"block: a list at depth {level}, where others have {depth}")
            x = beside("block", tensor, item)
            return reshape(x, (1,) * (rank - x.ndim) + tuple(x.shape))
        if not item:
            raise InvalidArgumentError("block: a list is empty")
        return concat([joined(one, level + 1) for one in item], axis=level - depth)
    return joined(arrays, 0)


# ---- split ---------------------------------------------------------------------------------------

def array_split(x, /, indices_or_sections, axis=0):
    """array_split(x, /, indices_or_sections, axis=0)

    The pieces of a tensor along an axis; so many, which differ by one element where they can't be equal, or cut before the
    indices."""
    x = _tensor_of("array_split", x)
    if not isinstance(indices_or_sections, (int, np.integer)):
        return split(x, indices_or_sections, axis=axis)
    (dim,) = axes_of("array_split", axis, x.ndim)
    count = int(indices_or_sections)
    if count < 1:
        raise InvalidArgumentError(f"array_split: {count} pieces of dim {dim} of {x._spec}")
    each, longer = divmod(x.shape[dim], count)
    starts = [i * each + builtins.min(i, longer) for i in range(count + 1)]
    return [x[along(dim, slice(a, b))] for a, b in zip(starts, starts[1:])]


def _split(name: str, x, cuts, axis: int, dims: int):
    x = _tensor_of(name, x)
    if x.ndim < dims:
        raise InvalidArgumentError(f"{name}: {x._spec} has {x.ndim} dims, it needs at least {dims}")
    return split(x, int(cuts) if isinstance(cuts, np.integer) else cuts, axis=axis)


def hsplit(x, indices_or_sections, /):
    """hsplit(x, indices_or_sections, /)

    The pieces of a tensor along its columns; of a vector along its one dim."""
    return _split("hsplit", x, indices_or_sections, 0 if getattr(x, "ndim", 2) == 1 else 1, 1)


def vsplit(x, indices_or_sections, /):
    """vsplit(x, indices_or_sections, /)

    The pieces of a tensor along its rows."""
    return _split("vsplit", x, indices_or_sections, 0, 2)


def dsplit(x, indices_or_sections, /):
    """dsplit(x, indices_or_sections, /)

    The pieces of a tensor along its third dim."""
    return _split("dsplit", x, indices_or_sections, 2, 3)


# ---- turned --------------------------------------------------------------------------------------

def _flipped(name: str, x, dim: int):
    x = _tensor_of(name, x)
    if x.ndim <= dim:
        raise InvalidArgumentError(f"{name}: {x._spec} has {x.ndim} dims, it needs at least {dim + 1}")
    return made.flip(x, axis=dim)


def flipud(x, /):
    """flipud(x, /)

    The rows in the opposite order."""
    return _flipped("flipud", x, 0)


def fliplr(x, /):
    """fliplr(x, /)

    The columns in the opposite order."""
    return _flipped("fliplr", x, 1)


def rot90(x, /, k=1, axes=(0, 1)):
    """rot90(x, /, k=1, axes=(0, 1))

    Turns the plane of two axes by 90 degrees, k times, from the first one towards the second one."""
    x = _tensor_of("rot90", x)
    given = integers(axes, "axes", "rot90")
    if len(given) != 2:
        raise InvalidArgumentError(f"rot90: axes are {axes!r}; it takes two")
    first, second = (axes_of("rot90", axis, x.ndim)[0] for axis in given)
    if first == second:
        raise InvalidArgumentError(f"rot90: axes {axes!r} of {x._spec} are one")
    times = integers(k, "k", "rot90")[0] % 4
    if times == 0:
        return x._copy()
    if times == 2:
        return made.flip(x, axis=(first, second))
    return swapaxes(made.flip(x, axis=second), first, second) if times == 1 else made.flip(swapaxes(x, first, second), axis=second)


def resize(x, /, new_shape):
    """resize(x, /, new_shape)

    The elements in another shape, in row-major order, again from the first one where it has more. Zeros of no elements.

    new_shape: the extents, a tuple of integers."""
    x = _tensor_of("resize", x)
    shape = integers(new_shape, "new_shape", "resize")
    if any(n < 0 for n in shape):
        raise InvalidArgumentError(f"resize: new_shape {tuple(shape)} has a negative extent")
    count = int(np.prod(shape, dtype=object))
    if x.size == 0 or count == 0:
        return zeros(shape, dtype=x.dtype, device_mesh=x.device_mesh)
    flat = reshape(x, (-1,))
    times = -(-count // x.size)
    return reshape((flat if times == 1 else made.tile(flat, (times,)))[:count], shape)


# ---- matrices ------------------------------------------------------------------------------------

def identity(n, /, *, dtype=None, device_mesh=None, placements=None):
    """identity(n, /, *, dtype=None, device_mesh=None, placements=None)

    The n by n matrix with ones on the diagonal, f64 by default."""
    return eye(n, dtype=dtype, device_mesh=device_mesh, placements=placements)


def tri(n_rows, n_cols=None, /, k=0, *, dtype=None, device_mesh=None, placements=None):
    """tri(n_rows, n_cols=None, /, k=0, *, dtype=None, device_mesh=None, placements=None)

    Ones on the k-th diagonal and below it, zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    return made.tril(ones((n_rows, columns), dtype=dtype, device_mesh=device_mesh, placements=placements), k=k)


def diag(x, /, k=0):
    """diag(x, /, k=0)

    Of a vector the matrix that has it on the k-th diagonal; of a matrix its k-th diagonal."""
    x = _tensor_of("diag", x)
    (k,) = integers(k, "k", "diag")
    if x.ndim == 2:
        return made.diagonal(x, offset=k)
    if x.ndim != 1:
        raise InvalidArgumentError(f"diag: takes a vector or a matrix: x is {x._spec}")
    n = x.size + abs(k)
    rows = pad(x, (builtins.max(-k, 0), builtins.max(k, 0))) if k else x
    is_on = eye(n, k=k, dtype=np.uint8, device_mesh=x.device_mesh) != 0
    zero = False if x.dtype == np.bool_ else 0
    return made.where(is_on, expand_dims(rows, 1), zero)


def diagflat(x, /, k=0):
    """diagflat(x, /, k=0)

    The matrix that has all elements, in row-major order, on its k-th diagonal."""
    return diag(ravel(_tensor_of("diagflat", x)), k=k)


def vander(x, /, N=None, increasing=False):  # noqa: N803 - NumPy's name
    """vander(x, /, N=None, increasing=False)

    The matrix of the powers of a vector's elements: N columns, by default as many as elements, the highest power first.

    increasing: the lowest power first."""
    x = _tensor_of("vander", x)
    if x.ndim != 1:
        raise InvalidArgumentError(f"vander: x is {x._spec}, no vector")
    (count,) = (x.size,) if N is None else integers(N, "N", "vander")
    if count < 0:
        raise InvalidArgumentError(f"vander: N is {count}")
    dtype = np.promote_types(x.dtype, np.int64)
    first = ones((x.size, builtins.min(count, 1)), dtype=dtype, device_mesh=x.device_mesh)
    if count < 2:
        return first
    powers = made.cumulative_prod(broadcast_to(expand_dims(astype(x, dtype), 1), (x.size, count - 1)), axis=1)
    out = concat([first, powers], axis=1)
    return out if increasing else made.flip(out, axis=1)


# ---- deleted and inserted ------------------------------------------------------------------------

def _flat_or_dim(name: str, x, axis):
    x = _tensor_of(name, x)
    if axis is None:
        return ravel(x), 0
    return x, axes_of(name, axis, x.ndim)[0]


def _checked(name: str, x, dim: int, places: np.ndarray, last: int) -> np.ndarray:
    """Indices along a dim, from 0; `last` is the greatest there may be."""
    if places.size and places.dtype.kind not in "iu":
        raise IndexOutOfRangeError(f"{name}: obj is {places.dtype}, not integers")
    places, extent = places.astype(np.int64), x.shape[dim]
    for place in places[(places < -extent) | (places > last)].reshape(-1)[:1]:
        raise IndexOutOfRangeError(f"{name}: index {place} is out of range for dim {dim} of {x._spec}")
    return np.where(places < 0, places + extent, places)


def delete(x, /, obj, axis=None):
    """delete(x, /, obj, axis=None)

    The tensor without those slices along an axis, by default without elements of the flattened tensor.

    obj: an integer, a list or an array of them, a slice, or a mask of the axis."""
    x, dim = _flat_or_dim("delete", x, axis)
    extent = x.shape[dim]
    if isinstance(obj, _tessera.Tensor) and obj.dtype == np.bool_ or not isinstance(obj, (slice, _tessera.Tensor)) and np.asarray(obj).dtype == np.bool_:
        mask = beside("delete", x, obj)
        if tuple(mask.shape) != (extent,):
            raise InvalidArgumentError(f"delete: a mask of shape {tuple(mask.shape)} for {extent} elements of dim {dim} of {x._spec}")
        return take(x, _places(made.logical_not(mask)), axis=dim)
    if isinstance(obj, slice):
        start, stop, step = obj.indices(extent)
        places = range(start, stop, step)
        if len(places) == 0:
            return x._copy()
        if abs(step) == 1:
            return concat([x[along(dim, slice(0, min(places)))], x[along(dim, slice(max(places) + 1, extent))]], axis=dim)
        kept = ones((extent,), dtype=np.bool_, device_mesh=x.device_mesh)
        kept[obj] = False
        return _first_of(x, dim, kept, extent - len(places))
    if isinstance(obj, _tessera.Tensor):
        kept = ones((extent,), dtype=np.bool_, device_mesh=x.device_mesh)
        kept[reshape(obj, (-1,))] = False
        return take(x, _places(kept), axis=dim)
    gone = np.unique(_checked("delete", x, dim, np.asarray(obj).reshape(-1), extent - 1))
    if gone.size == 0:
        return x._copy()
    if gone.size == 1:
        at = int(gone[0])
        return concat([x[along(dim, slice(0, at))], x[along(dim, slice(at + 1, extent))]], axis=dim)
    kept = ones((extent,), dtype=np.bool_, device_mesh=x.device_mesh)
    kept[gone] = False
    return _first_of(x, dim, kept, extent - gone.size)


def _first_of(x, dim: int, kept, count: int):
    """The slices along a dim that a mask keeps, whose number is known."""
    return take(x, made.argsort(made.logical_not(kept).astype(np.uint8))[:count], axis=dim)


def insert(x, /, obj, values, axis=None):
    """insert(x, /, obj, values, axis=None)

    The tensor with values before the indices along an axis, by default of the flattened tensor; in x's dtype.

    obj: an integer, or a list or slice of them, which count in x. values: of one index as many slices as there are, of
    several one for each, or one for all."""
    x, dim = _flat_or_dim("insert", x, axis)
    extent = x.shape[dim]
    if isinstance(obj, _tessera.Tensor):
        raise ArgumentError(f"insert: obj is {obj._spec}; give integers, or obj.full_tensor()")
    places = np.arange(*obj.indices(extent)) if isinstance(obj, slice) else np.asarray(obj)
    if places.dtype == np.bool_:
        places = np.flatnonzero(places)
    if places.ndim > 1:
        raise InvalidArgumentError(f"insert: obj has {places.ndim} dims; it is an integer, or a list of them")
    is_one = places.ndim == 0
    places = _checked("insert", x, dim, places, extent)
    given = astype(beside("insert", x, values), x.dtype)
    if places.size == 1:
        at = int(places.reshape(-1)[0])
        given = reshape(given, (1,) * (x.ndim - given.ndim) + tuple(given.shape))
        given = moveaxis(given, 0, dim) if is_one else given
        shape = tuple(given.shape[d] if d == dim else n for d, n in enumerate(x.shape))
        return concat([x[along(dim, slice(0, at))], broadcast_to(given, shape), x[along(dim, slice(at, extent))]], axis=dim)
    if places.size == 0:
        return x._copy()
    given = broadcast_to(given, tuple(places.size if d == dim else n for d, n in enumerate(x.shape)))
    old = arange(1, 2 * extent + 1, 2, device_mesh=x.device_mesh)
    order = made.argsort(concat([old, beside("insert", x, 2 * places)]))
    return take(concat([x, given], axis=dim), order, axis=dim)


def append(x, /, values, axis=None):
    """append(x, /, values, axis=None)

    The tensor with values behind it along an axis, by default both flattened."""
    x = _tensor_of("append", x)
    values = beside("append", x, values)
    if axis is None:
        return concat([ravel(x), ravel(values)])
    return concat([x, values], axis=axis)


# ---- where something is --------------------------------------------------------------------------

def argwhere(x, /):
    """argwhere(x, /)

    The indices of the elements that are not 0, a row for each. Returns at once; the shape waits for their
    number."""
    x = _tensor_of("argwhere", x)
    if x.ndim == 0:
        return zeros((int(x != 0), 0), dtype=np.int64, device_mesh=x.device_mesh)
    return stack(list(nonzero(x)), axis=1)


def flatnonzero(x, /):
    """flatnonzero(x, /)

    The indices of the flattened tensor's elements that are not 0. Returns at once; the shape waits for their
    number."""
    return _places(ravel(_tensor_of("flatnonzero", x)) != 0)


def _order(name: str, order: str, shape: list) -> list:
    """The dims from the slowest to the fastest one."""
    if order not in ("C", "F"):
        raise InvalidArgumentError(f"{name}: order is {order!r}, not 'C' or 'F'")
    return list(range(len(shape))) if order == "C" else list(range(len(shape)))[::-1]


def unravel_index(indices, /, shape, order="C"):
    """unravel_index(indices, /, shape, order='C')

    The index along each dim of a shape of indices into its flattened elements: a tuple. Waits for whether they are inside.

    indices: a tensor of integers. order: 'C' where the last dim is the fastest one, 'F' where the first one is."""
    indices = _tensor_of("unravel_index", indices)
    flat = _indices("unravel_index", indices, indices)
    shape = integers(shape, "shape", "unravel_index")
    size = int(np.prod(shape, dtype=object))
    _all_inside("unravel_index", flat, size, f"{size} elements of shape {tuple(shape)}")
    out = [None] * len(shape)
    for d in reversed(_order("unravel_index", order, shape)):
        out[d] = flat % builtins.max(shape[d], 1)
        flat = flat // builtins.max(shape[d], 1)
    return tuple(out)


def _all_inside(name: str, indices, extent: int, what: str) -> None:
    if indices.size == 0:
        return
    least, most = numbers_of(made.min(indices), made.max(indices))
    for one in (least, most):
        if not 0 <= one < extent:
            raise IndexOutOfRangeError(f"{name}: index {one} is out of range for {what}")


def bounded(name: str, indices, extent: int, mode: str, what: str):
    """Indices below `extent` as a mode says: raise waits for whether they are."""
    if mode == "wrap":
        return indices % builtins.max(extent, 1)
    if mode == "clip":
        return made.minimum(made.maximum(indices, 0), extent - 1)
    if mode != "raise":
        raise InvalidArgumentError(f"{name}: mode is {mode!r}, not raise, wrap or clip")
    _all_inside(name, indices, extent, what)
    return indices


def ravel_multi_index(multi_index, /, dims, mode="raise", order="C"):
    """ravel_multi_index(multi_index, /, dims, mode='raise', order='C')

    The index into a shape's flattened elements of an index along each dim.

    multi_index: a tuple of tensors of integers, one for each dim. dims: the shape. mode: 'raise' waits for whether
    indices are inside; 'wrap' counts on from the start, 'clip' takes the last one. One for all dims or one for each.
    order: 'C' where the last dim is the fastest one, 'F' where the first one is."""
    name = "ravel_multi_index"
    parts = list(multi_index)
    shape = integers(dims, "dims", name)
    modes = [mode] * len(shape) if isinstance(mode, str) else list(mode)
    if not len(parts) == len(shape) == len(modes):
        raise InvalidArgumentError(f"{name}: {len(parts)} indices and {len(modes)} modes for {len(shape)} dims")
    tensor = next((part for part in parts if isinstance(part, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a Tensor among the indices")
    out = None
    for d in _order(name, order, shape):
        part = _indices(name, tensor, beside(name, tensor, parts[d]))
        part = bounded(name, part, shape[d], modes[d], f"dim {d} of shape {tuple(shape)}")
        out = part if out is None else out * shape[d] + part
    return out


def put_along_axis(x, /, indices, values, axis=-1):
    """put_along_axis(x, /, indices, values, axis=-1)

    Writes values at indices along an axis, as x[index] = value does: x is then the tensor that has them, and other handles
    keep what they had. Nothing is given back. axis: a dim, or None for the flattened tensor."""
    x = _tensor_of("put_along_axis", x)
    x._check_write("put_along_axis")
    indices = _indices("put_along_axis", x, indices)
    y, dim = (x, axes_of("put_along_axis", axis, x.ndim)[0]) if axis is not None else (ravel(x), 0)
    if indices.ndim != y.ndim:
        raise InvalidArgumentError(f"put_along_axis: indices are {indices._spec}, for {y.ndim} dims of x")
    shape = tuple(indices.shape[d] if d == dim else n for d, n in enumerate(y.shape))
    given = astype(broadcast_to(beside("put_along_axis", x, values), shape), x.dtype)
    out = reshape(made.scatter(y, indices, given, axis=dim), x.shape)
    if not x._has_partial and list(out._placements) != list(x._placements):
        out = out.redistribute(x.device_mesh, x.placements)
    _tessera.rebind(x, out)


def array_equal(x1, x2, /, equal_nan=False):
    """array_equal(x1, x2, /, equal_nan=False)

    Whether two tensors have the same shape and the same elements: a bool of no dims.

    equal_nan: NaN is equal to NaN."""
    tensor = x1 if isinstance(x1, _tessera.Tensor) else _tensor_of("array_equal", x2)
    a, b = (beside("array_equal", tensor, x) for x in (x1, x2))
    if tuple(a.shape) != tuple(b.shape):
        return full((), False, device_mesh=tensor.device_mesh)
    same = a == b
    if equal_nan:
        same = made.logical_or(same, made.logical_and(made.isnan(a), made.isnan(b)))
    return made.all(same)
