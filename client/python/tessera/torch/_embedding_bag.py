"""EmbeddingBag: the rows of a weight at indices that offsets cut into bags, added up, averaged, or their maxima by bag.

Rows are taken as of an embedding (_composed.embedding) and written to their bags by one scatter, so indices in shards give a
pending sum. Where a bag begins is data: which bag an index is in is found by a search of its number in the offsets.
"""

from __future__ import annotations

import _tessera_ops as made

from .._errors import InvalidArgumentError
from .._ops import concat, permute_dims, reshape
from .._placements import replicated, shards_of
from .._catalog import OPS
from . import _composed, _ranges, _sparse
from ._cell import moved
from ._composed import _call, wide
from ._dtypes import INT64
from ._operands import cast
from ._placing import create_like, full_like, settled
from ._table import row
from ._tensor import handle_of, wrap

SUM, MEAN, MAX = 0, 1, 2


def _whole(like):
    return replicated(like._mesh_ndim)


def _added(zeros, at, updates, mode="add"):
    """By rows."""
    return _call(OPS["scatter"], (zeros, at, updates), dims=[0], mode=mode)


def _beside(values, column):
    return reshape(values, (values.shape[0], 1)) if column else values


def _is_counted(numbers, padding_idx: int, weight_rows: int):
    """Whether each index counts; None where all do."""
    if padding_idx < 0:
        return None
    return made.not_equal(numbers, padding_idx % weight_rows)


def _frequencies(numbers, count: int, kind: int):
    """How often its index is there, of each."""
    ones = full_like(numbers, numbers.shape, kind, 1)
    counts = _added(full_like(numbers, (count,), kind, 0, _whole(numbers)), numbers, ones)
    return _call(OPS["take_along_axis"], (counts, numbers), dims=[0])


def by_frequency(g, numbers, count: int):
    """The gradients of rows, each divided by how often its index is there."""
    return g / _beside(_frequencies(numbers, count, wide(g)._dtype), True)


def _bags(numbers, offsets):
    """The bag of each index."""
    at = create_like("arange", numbers, numbers.shape, INT64, [0, 1])
    return cast(_call(OPS["searchsorted"], (offsets, at), side="right"), INT64) - 1


def _checked(starts, count: int):
    """The offsets; where the first isn't 0, one is less than the one before, or one is beyond the indices, what is computed with
    them fails, as a lookup beyond the last offset."""
    if not starts.shape[0]:
        return starts
    before = concat([full_like(starts, (1,), INT64, 0), starts[:-1]], axis=0)
    at = create_like("arange", starts, starts.shape, INT64, [0, 1])
    is_bad = made.logical_or(starts < before, made.logical_or(starts > count, made.logical_and(made.equal(at, 0), made.not_equal(starts, 0))))
    return _call(OPS["take_along_axis"], (starts, made.where(is_bad, starts.shape[0] + at, at)), dims=[0])


def _by_columns(w):
    """A table whose rows are in shards with its columns in shards: maxima of bags need a bag's rows together, and a worker has them
    of its columns for a part of the table."""
    return moved(w, [one.on_dim(1) if one.is_shard(0) else one for one in w._placements])


def _embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=SUM, sparse=False, per_sample_weights=None,
                   include_last_offset=False, padding_idx=-1):
    w, numbers, starts = wide(handle_of(weight)), cast(handle_of(indices), INT64), cast(handle_of(offsets), INT64)
    if numbers.ndim != 1 or starts.ndim != 1 or w.ndim != 2:
        raise InvalidArgumentError(f"embedding_bag: takes a matrix, and vectors of indices and offsets: {weight!r}, {indices!r}, {offsets!r}")
    count = starts.shape[0] - bool(include_last_offset)
    if count < 0:
        raise InvalidArgumentError(f"embedding_bag: include_last_offset takes at least one offset: {offsets!r}")
    numbers = _ranges.indices(numbers, w.shape[0])
    bag = _bags(numbers, _checked(starts, numbers.shape[0])[:count])
    rows = _composed.embedding(_by_columns(w) if mode == MAX else w, numbers)
    counted = _is_counted(numbers, padding_idx, w.shape[0])
    if per_sample_weights is not None:
        rows = rows * _beside(cast(handle_of(per_sample_weights), w._dtype), True)
    ones = full_like(numbers, numbers.shape, INT64, 1) if counted is None else cast(counted, INT64)
    size = settled(_added(full_like(numbers, (count,), INT64, 0, _whole(numbers)), bag, ones))
    if mode == MAX:
        out, most = _maxima(rows, numbers, bag, counted, size)
    else:
        if counted is not None:
            rows = rows * _beside(cast(counted, w._dtype), True)
        out = _added(full_like(rows, (count, w.shape[1]), w._dtype, 0, _whole(rows)), bag, rows)
        if mode == MEAN:
            out = out / _beside(made.maximum(cast(size, w._dtype), 1.0), True)
        most = full_like(numbers, (0,), INT64, 0)
    return wrap(cast(out, handle_of(weight)._dtype)), wrap(bag), wrap(size), wrap(most)


def _maxima(rows, numbers, bag, counted, size):
    """The largest elements of each bag's rows, 0 of an empty one; and the row of the weight that each is of, -1 of none."""
    shape, infinite = (size.shape[0], rows.shape[1]), float("-inf")
    if counted is not None:
        rows = made.where(_beside(counted, True), rows, infinite)
    largest = _added(full_like(rows, shape, rows._dtype, infinite, _whole(rows)), bag, rows, "max")
    is_empty = _beside(made.equal(size, 0), True)
    # The first of equal ones.
    is_it = made.equal(rows, _call(OPS["take_along_axis"], (largest, bag), dims=[0]))
    if counted is not None:
        is_it = made.logical_and(is_it, _beside(counted, True))
    total = numbers.shape[0]
    at = made.where(is_it, _beside(create_like("arange", numbers, numbers.shape, INT64, [0, 1]), True), total)
    first = _added(full_like(at, shape, INT64, total, _whole(at)), bag, at, "min")
    is_none = made.logical_or(is_empty, made.equal(first, total))
    if not total:
        return full_like(rows, shape, rows._dtype, 0), full_like(numbers, shape, INT64, -1)
    # By columns, which may be in shards.
    flat = reshape(permute_dims(made.where(is_none, 0, first), (1, 0)), (shape[0] * shape[1],))
    rows_of = permute_dims(reshape(_call(OPS["take_along_axis"], (numbers, flat), dims=[0]), shape[::-1]), (1, 0))
    return made.where(is_empty, 0.0, largest), made.where(is_none, -1, rows_of)


row("_embedding_bag.default", "_embedding_bag_forward_only.default", how="composed")(_embedding_bag)


def _of_rows(g, bag, size, mode: int, sample_weights):
    """The gradients of the rows that sums and means of bags took, in the order of the indices."""
    if mode == MEAN:
        g = g / _beside(made.maximum(cast(handle_of(size), g._dtype), 1.0), True)
    rows = _call(OPS["take_along_axis"], (g, handle_of(bag)), dims=[0])
    return rows if sample_weights is None else rows * _beside(cast(handle_of(sample_weights), rows._dtype), True)


@row("_embedding_bag_dense_backward.default", how="composed")
def of_weight(grad, indices, bag, size, most, count, by_freq, mode, sample_weights, padding_idx=-1):
    g, numbers = wide(handle_of(grad)), cast(handle_of(indices), INT64)
    kind = handle_of(grad)._dtype
    if mode == MAX:
        at = handle_of(most)
        g = made.where(made.greater_equal(at, 0), g, 0.0)
        zeros = full_like(g, (count, g.shape[1]), g._dtype, 0, shards_of(g._placements, [1]))
        return wrap(cast(_added(zeros, made.maximum(at, 0), g), kind))
    rows = _of_rows(g, bag, size, mode, sample_weights)
    if by_freq:
        rows = by_frequency(rows, numbers, count)
    out = _call(OPS["embedding_backward"], (rows, numbers), num_classes=count, ignore_index=padding_idx)
    return wrap(cast(out, kind))


def _sparse_of_weight(grad, indices, bag, size, count, mode, sample_weights, padding_idx):
    """The rows' gradients by their indices; those of the padding's row are zeros, so that nobody waits for how many it has."""
    if mode == MAX:
        raise NotImplementedError("embedding_bag: mode='max' has no sparse gradient, as in torch; sparse=False has one")
    g, numbers = wide(handle_of(grad)), cast(handle_of(indices), INT64)
    rows = _of_rows(g, bag, size, mode, sample_weights)
    counted = _is_counted(numbers, padding_idx, count)
    if counted is not None:
        rows = made.where(_beside(counted, True), rows, 0.0)
    return _sparse.make(wrap(reshape(numbers, (1, numbers.shape[0]))), wrap(cast(rows, handle_of(grad)._dtype)), (count, g.shape[1]))


@row("_embedding_bag_backward.default", how="composed")
def backward(grad, indices, offsets, bag, size, most, count, by_freq, mode, sparse, sample_weights, padding_idx=-1):
    if sparse:
        return _sparse_of_weight(grad, indices, bag, size, count, mode, sample_weights, padding_idx)
    return of_weight(grad, indices, bag, size, most, count, by_freq, mode, sample_weights, padding_idx)


@row("_embedding_bag_per_sample_weights_backward.default", how="composed")
def of_sample_weights(grad, weight, indices, offsets, bag, mode, padding_idx=-1):
    g, w, numbers = wide(handle_of(grad)), wide(handle_of(weight)), cast(handle_of(indices), INT64)
    taken = _call(OPS["take_along_axis"], (g, handle_of(bag)), dims=[0])
    out = made.sum(taken * _composed.embedding(w, numbers), axis=1)
    counted = _is_counted(numbers, padding_idx, w.shape[0])
    return wrap(cast(out if counted is None else made.where(counted, out, 0.0), handle_of(weight)._dtype))
