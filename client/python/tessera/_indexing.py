"""Indexing with arrays and masks, and what is found by it: take, nonzero, unique, sets.

The shape of x[mask], nonzero and unique depends on values: their results are there at once and their shape is pending. x.shape
waits for it; ops on them don't.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import math

import numpy as np

import _tessera
import _tessera_ops as made
from ._creation import arange, asarray, full
from ._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError, named
from ._index import mask_fits
from ._namespace_info import result_type
from ._local_map import local_map
from ._ops import _beside, _tensor_of, astype, broadcast_arrays, broadcast_to, concat, permute_dims, reshape
from ._placements import Replicate, Shard
from ._calls import as_operand, axes_of
from ._catalog import OPS


def _indices(op: str, x, indices):
    """An i64 tensor beside x."""
    if isinstance(indices, (list, tuple, range)):
        indices = np.asarray(indices, dtype=np.int64) if len(indices) else np.zeros(0, np.int64)
    if isinstance(indices, (int, np.integer)):
        indices = np.asarray(indices)
    if isinstance(indices, np.ndarray):
        if indices.dtype.kind not in "iu":
            raise IndexOutOfRangeError(f"{op}: indices are {indices.dtype}, not integers")
        indices = as_operand(op, x, np.ascontiguousarray(indices.astype(np.int64)))     # of at least one dim
    if not isinstance(indices, _tessera.Tensor):
        raise ArgumentError(f"{op}: indices are {type(indices).__name__}, not a Tensor or an array of integers")
    if indices.dtype.kind not in "iu":
        raise IndexOutOfRangeError(f"{op}: indices are {indices._spec}, not integers")
    return indices if indices.dtype == np.int64 else astype(indices, np.int64)


def take(x, indices, /, axis=None):
    """take(x, indices, /, axis=None)

    The elements along an axis at the indices, in their order; negative ones count from the end. With a tensor of indices the
    result has its dims in place of the axis. An index outside is an error of this op alone."""
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"take: x is {type(x).__name__}, not a Tensor")
    if axis is None:
        if x.ndim != 1:
            raise InvalidArgumentError(f"take: {x._spec} has {x.ndim} dims; say which axis")
        axis = 0
    (dim,) = axes_of("take", axis, x.ndim)
    is_one = isinstance(indices, (int, np.integer, np.ndarray)) and np.ndim(indices) == 0
    where = _indices("take", x, indices)
    if is_one:      # NumPy drops the dim
        where = reshape(where, ())
    with named("take"):
        flat = where if where.ndim == 1 else reshape(where, (-1,))
        out = _tessera.call(OPS["take_along_axis"], (x, flat), dims=[dim])
        return out if where.ndim == 1 else reshape(out, x.shape[:dim] + where.shape + x.shape[dim + 1:])


def gather(x, indices, /, *, axis=-1):
    """gather(x, indices, /, *, axis=-1)

    The elements of x along an axis at the indices, which have as many dims as x; in the other dims they may be shorter."""
    if isinstance(indices, _tessera.Tensor) and isinstance(x, _tessera.Tensor) and indices.ndim == x.ndim:
        (dim,) = axes_of("gather", axis, x.ndim)
        kept = tuple(slice(None) if d == dim or n == 1 else slice(0, n) for d, n in enumerate(indices.shape))
        x = x[kept]
    with named("gather"):
        return made.take_along_axis(x, indices, axis=axis)


def scatter_add(x, indices, updates, /, *, axis=-1):
    """scatter_add(x, indices, updates, /, *, axis=-1)

    Gives x with the updates added at the indices along an axis; what goes to one place is added up in order."""
    return made.scatter(x, indices, updates, axis=axis, mode="add")


def index_add(x, indices, updates, /, *, axis=-1):
    """index_add(x, indices, updates, /, *, axis=-1)

    Gives x with slices of updates added at the indices, a vector, along an axis."""
    if isinstance(x, _tessera.Tensor):
        indices = _indices("index_add", x, indices)
        if indices.ndim != 1:
            raise InvalidArgumentError(f"index_add: indices are {indices._spec}, no vector")
    return made.scatter(x, indices, updates, axis=axis, mode="add")


def embedding(indices, weight, /):
    """The rows of a (count, features) weight at the indices: take(weight, indices, axis=0)."""
    return take(weight, indices, axis=0)


def _is_mask(item) -> bool:
    return isinstance(item, (np.ndarray, _tessera.Tensor)) and item.dtype == np.bool_


def is_array(item) -> bool:
    """Whether an item of an index is an array or a tensor, of any number of dims: basic indexing has none."""
    return isinstance(item, (list, np.ndarray, _tessera.Tensor))


def _places(mask):
    """The row-major numbers of the true elements; their shape is pending."""
    return _tessera.find_places(mask)


def nonzero(x, /):
    """nonzero(x, /)

    The indices of the elements that are not 0, a tensor for each dim. Returns at once; their shape waits for their number."""
    return _tessera.nonzero(_tensor_of("nonzero", x))


def _unravel(places, shape):
    out = []
    for extent in reversed(shape):
        out.append(places % builtins.max(extent, 1))
        places = places // builtins.max(extent, 1)
    return out[::-1]


@dataclasses.dataclass
class _Truth:
    """True, False or a mask without dims: a new dim of extent 1, taken or not."""
    places: object


def _places_of(mask, x):
    return _places(mask if isinstance(mask, _tessera.Tensor) else as_operand("index", x, np.ascontiguousarray(mask)))


def _item_of(item):
    """An item of an index as it is worked with: lists, True and False as arrays."""
    if isinstance(item, list):
        item = np.asarray(item)
        return item.astype(np.int64) if item.size == 0 else item
    return np.asarray(item) if isinstance(item, (bool, np.bool_)) else item


def _dims_named(item) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if is_array(item) and _is_mask(item) else 1


def _expand(key, x) -> list:
    """The items of an index, one for each dim but for None, _Truth and Ellipsis, behind which the dims are that it stands for;
    masks as the places where they are true."""
    keys = [_item_of(item) for item in (key if isinstance(key, tuple) else (key,))]
    dots = [i for i, item in enumerate(keys) if item is Ellipsis]
    if len(dots) > 1:
        raise InvalidArgumentError("index: only one Ellipsis may stand in an index")
    named = sum(map(_dims_named, keys))
    if named > x.ndim:
        raise IndexOutOfRangeError(f"index: {named} indices for {x._spec}")
    at = dots[0] + 1 if dots else len(keys)
    keys[at:at] = [slice(None)] * (x.ndim - named)
    items, dim = [], 0
    for item in keys:
        if not (is_array(item) and _is_mask(item)):
            items.append(item)
        elif item.ndim == 0:
            items.append(_Truth(_places_of(reshape(item, (1,)) if isinstance(item, _tessera.Tensor) else item.reshape(1), x)))
        else:
            extents = x.shape[dim:dim + item.ndim]
            if not mask_fits(item.shape, extents):
                raise IndexOutOfRangeError(f"index: a mask of shape {tuple(item.shape)} for dims {tuple(extents)} of {x._spec}")
            places = _places_of(item, x)
            items += _unravel(places, item.shape) if item.ndim > 1 else [places]
        dim += _dims_named(item)
    return items


def _linear(op: str, x, arrays: list, extents: list):
    """One index into the merged dims for several; beyond their end where one of them is outside of its dim."""
    try:
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
    except ValueError:
        shown = ", ".join(str(tuple(array.shape)) for array in arrays)
        raise IndexOutOfRangeError(f"{op}: indices of shapes {shown} don't broadcast, for {x._spec}") from None
    total, place = 1, None
    for array, extent in reversed(list(zip(arrays, extents))):
        at = made.where(array < 0, array + extent, array)
        is_in = made.logical_and(at >= 0, at < extent)
        part = at * total
        place = part if place is None else place + part
        valid = is_in if total == 1 else made.logical_and(valid, is_in)
        total *= extent
    place = made.where(valid, place, total)
    return broadcast_to(place, shape)


@dataclasses.dataclass
class _Plan:
    basic: tuple        # what is done first: no arrays
    arrays: list        # i64 tensors, each for a dim of what that gives
    dims: list[int]
    first: int          # which dims of the result are the arrays': NumPy's rule


def _plan(x, key) -> _Plan:
    """Arrays and numbers that stand side by side give their dims where they stand, apart from each other the first ones."""
    plan = _Plan((), [], [], 0)
    basic, dim, runs, was_array = [], 0, 0, False
    for item in _expand(key, x):
        is_apart = item is None or item is Ellipsis or isinstance(item, slice)
        if not is_apart and not was_array:
            runs += 1
            plan.first = dim
        was_array = not is_apart
        if item is Ellipsis:
            continue
        if isinstance(item, _Truth) or is_array(item):
            plan.arrays.append(item.places if isinstance(item, _Truth) else _indices("index", x, item))
            plan.dims.append(dim)
            item = None if isinstance(item, _Truth) else slice(None)
        basic.append(item)
        dim += item is None or isinstance(item, slice)
    plan.basic = tuple(basic)
    plan.first = plan.first if runs == 1 else 0
    return plan


def _is_whole(plan: _Plan) -> bool:
    return all(isinstance(item, slice) and item == slice(None) for item in plan.basic)


def get(x, key):
    """x[key], where an item is an array."""
    only = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if is_array(only) and not isinstance(only, list) and _is_mask(only) and only.ndim:
        mask = only if isinstance(only, _tessera.Tensor) else as_operand("index", x, np.ascontiguousarray(only))
        return _tessera.masked_select(x, mask)
    with named("index"):
        one = _one_mask(x, key) if isinstance(key, tuple) else None
        if one is not None:
            mask, dim, basic = one
            y = x if all(item == slice(None) for item in basic if item is not Ellipsis) else x[basic]
            return _tessera.filter(y, mask, dim)
        return _get_by(x, _plan(x, key))


def _one_mask(x, key: tuple):
    """The parts of x[.., mask, ..] with a mask of one dim between slices: the mask, its dim and the slices, whole in its place."""
    at = [i for i, item in enumerate(key) if is_array(item)]
    if len(at) != 1 or isinstance(key[at[0]], list) or not _is_mask(key[at[0]]) or key[at[0]].ndim != 1:
        return None
    rest = [item for i, item in enumerate(key) if i != at[0]]
    dots = [i for i, item in enumerate(key) if item is Ellipsis]
    if len(dots) > 1 or len(key) - len(dots) > x.ndim or not all(isinstance(item, slice) or item is Ellipsis for item in rest):
        return None
    dim = at[0] if not dots or at[0] < dots[0] else x.ndim - (len(key) - at[0])
    mask = key[at[0]]
    if not mask_fits(mask.shape, x.shape[dim:dim + 1]):
        return None
    mask = mask if isinstance(mask, _tessera.Tensor) else as_operand("index", x, np.ascontiguousarray(mask))
    return mask, dim, key[:at[0]] + (slice(None),) + key[at[0] + 1:]


def _get_by(x, plan: _Plan):
    y = x if _is_whole(plan) else x[plan.basic]
    if len(plan.arrays) == 1 and plan.first == plan.dims[0]:
        return take(y, plan.arrays[0], axis=plan.dims[0])
    rest = [d for d in range(y.ndim) if d not in plan.dims]
    order = rest[:plan.first] + plan.dims + rest[plan.first:]
    y = permute_dims(y, order) if order != list(range(y.ndim)) else y
    if len(plan.arrays) == 1:
        return take(y, plan.arrays[0], axis=plan.first)
    end = plan.first + len(plan.dims)
    extents = y.shape[plan.first:end]
    place = _linear("index", y, plan.arrays, extents)
    merged = reshape(y, (*y.shape[:plan.first], int(np.prod(extents)), *y.shape[end:]))
    return take(merged, place, axis=plan.first)


def _as_tensor(x, value):
    """A value to be written into x, as a tensor beside it."""
    value = as_operand("x[i] = v", x, value)
    value = value[1] if isinstance(value, tuple) else value     # (dtype number, number): a NumPy scalar
    if isinstance(value, _tessera.Tensor):
        return value
    is_own = isinstance(value, int) and not isinstance(value, builtins.bool) and x.dtype.kind in "iu"
    return full((), value, dtype=x.dtype if is_own else None, device_mesh=x.device_mesh)


def _without_leading_ones(value, ndim: int):
    """NumPy drops dims of extent 1 that a value has more than its place."""
    while value.ndim > ndim and value.shape[0] == 1:
        value = value[0]
    return value


def _value_like(x, value, shape, what: str):
    """The values that are written, in x's dtype, as they broadcast to the shape."""
    value = _as_tensor(x, value)
    value = value if value._dtype == x._dtype else _tessera.call(OPS["astype"], (value,), dtype=x._dtype)
    value = _without_leading_ones(value, len(shape))
    try:
        fits = np.broadcast_shapes(value.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise InvalidArgumentError(f"{what} = v: a value of shape {tuple(value.shape)} doesn't broadcast to {tuple(shape)}, of {x._spec}")
    return value


def put(x, key, value, **options):
    """x with x[key] = value, where an item of the key is an array; a new tensor. options: of scatter, as mode="add"."""
    plan = _plan(x, key)
    if _is_whole(plan):
        return _put(x, plan, value, options)
    kept = x._copy()
    kept[plan.basic] = _put(x[plan.basic], plan, value, options)
    return kept


def _put(x, plan: _Plan, value, options: dict):
    rest = [d for d in range(x.ndim) if d not in plan.dims]
    order = plan.dims + rest
    y = permute_dims(x, order) if order != list(range(x.ndim)) else x
    extents, others = [x.shape[d] for d in plan.dims], [x.shape[d] for d in rest]
    place = _linear("index", x, plan.arrays, extents)
    first, count, k = plan.first, place.size, place.ndim
    shown = [*others[:first], *place.shape, *others[first:]]
    value = broadcast_to(_value_like(x, value, shown, "x[i]"), shown)
    if first:
        value = permute_dims(value, [*range(first, first + k), *range(first), *range(first + k, value.ndim)])
    merged = reshape(y, [int(np.prod(extents)), *others])
    out = _tessera.call(OPS["scatter"], (merged, reshape(place, (-1,)), reshape(value, [count, *others])), dims=[0], **options)
    out = reshape(out, [*extents, *others])
    back = [order.index(d) for d in range(x.ndim)]
    return permute_dims(out, back) if back != list(range(x.ndim)) else out


def put_masked(x, mask, value):
    """x with x[mask] = value: a value for all, or one for each place where the mask is true, in order. A new tensor."""
    rest = tuple(x.shape[mask.ndim:])
    if tuple(mask.shape) != tuple(x.shape[:mask.ndim]):     # one of its extents is 0
        if not isinstance(value, (builtins.bool, int, float, complex)):
            _value_like(x, _as_tensor(x, value), (0, *rest), "x[mask]")
        return x._copy()
    if isinstance(value, np.generic) or not isinstance(value, (builtins.bool, int, float, complex)):
        value = _without_leading_ones(_as_tensor(x, value), len(rest))
        if value.ndim > len(rest):
            return _put_each(x, mask, rest, value)
        value = _value_like(x, value, rest, "x[mask]")
    chosen = _tessera.call(OPS["where"], (mask[(..., *[None] * len(rest))] if rest else mask, value, x))
    return chosen if chosen._dtype == x._dtype else _tessera.call(OPS["astype"], (chosen,), dtype=x._dtype)


def _put_each(x, mask, rest: tuple, value):
    places = _places(mask) if mask.ndim else _places(reshape(mask, (1,)))
    count = places.shape[0]
    value = _value_like(x, value, (count, *rest), "x[mask]")
    merged = reshape(x, (mask.size, *rest))
    out = _tessera.call(OPS["scatter"], (merged, places, broadcast_to(value, (count, *rest))), dims=[0])
    return reshape(out, x.shape)


def masked_select(x, mask, /):
    """x[mask]: the elements where the mask, which is broadcast to x, is true. Returns at once; its shape
    waits for their number."""
    x, mask = broadcast_arrays(x, mask)
    return x[mask]


def cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False):
    """cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)

    The sum of the elements up to each one along an axis; with include_initial behind a first 0."""
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial, 0)


def cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False):
    """cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)

    The product of the elements up to each one along an axis; with include_initial behind a first 1."""
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial, 1)


def _cumulative(name: str, x, axis, dtype, include_initial, initial):
    if axis is None and getattr(x, "ndim", 1) != 1:
        raise InvalidArgumentError(f"{name}: {x._spec} has {x.ndim} dims; say which axis")
    out = getattr(made, name)(x, axis=0 if axis is None else axis, dtype=dtype)
    if not include_initial:
        return out
    (dim,) = axes_of(name, 0 if axis is None else axis, x.ndim)
    shape = [1 if d == dim else n for d, n in enumerate(out.shape)]
    return concat([full(shape, initial, dtype=out.dtype, device_mesh=out.device_mesh), out], axis=dim)


def cumsum(x, /, axis=None, dtype=None):
    """NumPy's name of cumulative_sum; without an axis of the flattened tensor."""
    return made.cumulative_sum(reshape(x, (-1,)) if axis is None else x, axis=0 if axis is None else axis, dtype=dtype)


def cumprod(x, /, axis=None, dtype=None):
    """NumPy's name of cumulative_prod; without an axis of the flattened tensor."""
    return made.cumulative_prod(reshape(x, (-1,)) if axis is None else x, axis=0 if axis is None else axis, dtype=dtype)


def topk(x, k, /, *, axis=-1, largest=True):
    """The k largest (smallest) elements along an axis, in order, and their indices."""
    (dim,) = axes_of("topk", axis, x.ndim)
    if not 0 <= k <= x.shape[dim]:
        raise InvalidArgumentError(f"topk: k is {k}, dim {dim} of {x._spec} has {x.shape[dim]} elements")
    order = (_topk_of_shards if _has_long_shards(x, k, dim) else _order_of_topk)(x, k, dim, builtins.bool(largest))
    return made.take_along_axis(x, order, axis=dim), order


# From so many elements of a dim that is cut, its shards give their k largest first.
_LONG_DIM = 1 << 14


def _has_long_shards(x, k, dim):
    if any(p.is_partial() for p in x.placements):
        return False
    shards = math.prod(n for n, p in zip(x.device_mesh.shape, x.placements) if p.is_shard(dim))
    return shards > 1 and x.shape[dim] >= builtins.max(_LONG_DIM, 4 * k * shards)


def _order_of_topk(x, k, dim, largest):
    # A vector that is cut, of which many are wanted, is merged of its sorted shards: none of them has room for all.
    if x.ndim > 1 or all(n == 1 or not p.is_shard() for n, p in zip(x.device_mesh.shape, x.placements)):
        return made.argsort_first(x, k, axis=dim, descending=largest)
    return made.argsort(x, axis=dim, descending=largest)[(slice(None),) * dim + (slice(0, k),)]


def _topk_of_shards(x, k, dim, largest):
    """The same order: of equal elements the first comes first, in a shard, and of shards."""
    along = [Shard(0, sizes=p.sizes) if p.is_shard(dim) else Replicate() for p in x.placements]
    places = arange(x.shape[dim], dtype=np.int64, device_mesh=x.device_mesh, placements=along)

    def largest_of(shard, places):
        order = _order_of_topk(shard, builtins.min(k, shard.shape[dim]), dim, largest)
        first = reshape(places[:1], [1] * shard.ndim) if places.size else 0
        return made.take_along_axis(shard, order, axis=dim), order + first

    cut = [Shard(dim) if p.is_shard(dim) else p for p in x.placements]
    candidates, places = local_map(largest_of, x, places, out_placements=(cut, cut))
    return made.take_along_axis(places, _order_of_topk(candidates, k, dim, largest), axis=dim)


def searchsorted(x1, x2, /, side="left", sorter=None):
    """searchsorted(x1, x2, /, side='left', sorter=None)

    Finds where elements of x2 belong in the sorted vector x1: before equal ones (left), or behind (right). sorter: the
    indices that sort x1, where it isn't sorted."""
    x1 = _tensor_of("searchsorted", x1)
    if isinstance(x2, (builtins.bool, int, float)) and not isinstance(x2, np.generic):
        dtype = result_type(x1, x2)
        x1, x2 = astype(x1, dtype, copy=False), np.asarray(x2, dtype)
    return made.searchsorted(x1 if sorter is None else take(x1, sorter), _beside("searchsorted", x1, x2), side=side)


def isin(x1, x2, /, *, invert=False):
    """isin(x1, x2, /, *, invert=False)

    Tests for each element of x1 whether it is one of x2's; with invert whether it is none of them."""
    tensor = x1 if isinstance(x1, _tessera.Tensor) else x2
    if not isinstance(tensor, _tessera.Tensor):
        raise ArgumentError(f"isin: needs a Tensor, not {type(x1).__name__} and {type(x2).__name__}")
    one, other = (value if isinstance(value, _tessera.Tensor) else asarray(value, device_mesh=tensor.device_mesh)
                  for value in (x1, x2))
    dtype = result_type(one, other)
    one, other = astype(one, dtype), made.sort(reshape(astype(other, dtype), (-1,)))
    if other.size == 0:
        found = one != one if dtype.kind != "f" else made.logical_and(one != one, one == one)
    else:
        at = made.minimum(made.searchsorted(other, one), other.size - 1)
        found = take(other, at) == one
    return made.logical_not(found) if invert else found


_UniqueAll = collections.namedtuple("UniqueAllResult", "values indices inverse_indices counts")
_UniqueCounts = collections.namedtuple("UniqueCountsResult", "values counts")
_UniqueInverse = collections.namedtuple("UniqueInverseResult", "values inverse_indices")


def unique_all(x, /):
    """unique_all(x, /)

    The different elements, in order; where each is first; of each element of x which one it is; how often each is there.
    Every NaN is one of its own. Returns at once; the shapes wait for their number."""
    return _UniqueAll(*_tessera.unique_all(_tensor_of("unique_all", x), True, True, True))


def unique_values(x, /):
    """unique_values(x, /)

    The different elements, in order. Returns at once; the shape waits for their number."""
    return _tessera.unique_all(_tensor_of("unique_values", x), False, False, False)[0]


def unique_counts(x, /):
    """unique_counts(x, /)

    The different elements, in order, and how often each is there. Returns at once; the shapes wait for
    their number."""
    return _UniqueCounts(*_tessera.unique_all(_tensor_of("unique_counts", x), False, False, True))


def unique_inverse(x, /):
    """unique_inverse(x, /)

    The different elements, in order, and of each element of x which one it is. Returns at once;
    the shape of the values waits for their number."""
    return _UniqueInverse(*_tessera.unique_all(_tensor_of("unique_inverse", x), False, True, False))
