"""Results that are found by order: medians and k-th values, running extremes, places in a sorted vector, different values, counts."""

from __future__ import annotations

import math

import torch

import _tessera
import _tessera_ops as made
from .. import _calculus, _indexing, _statistics
from .._errors import InvalidArgumentError
from .._ops import concat, pad, permute_dims, reshape, squeeze
from .._placements import replicated
from .._catalog import OPS
from ._dtypes import BOOL, CODES, FLOATS, U8
from ._operands import cast
from ._placing import full_like, iota, settled
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call
_INT32, _INT64 = CODES[torch.int32], CODES[torch.int64]


def _at(h, dim: int, place: int):
    return h[(slice(None),) * dim + (slice(place, place + 1),)]


def _kth(name: str, x, k: int, dim: int, keepdim: bool, is_median: bool):
    """The k-th (from 0) of the sorted values and its index; of a median NaN where there is one."""
    h = handle_of(x)
    if not x.ndim:
        return wrap(h[...]), wrap(full_like(h, (), _INT64, 0))
    dim %= x.ndim
    if not 0 <= k < max(x.shape[dim], 1) or not x.shape[dim]:
        raise InvalidArgumentError(f"{name}: dim {dim} of {x!r} has {x.shape[dim]} elements")
    order = _call(OPS["argsort"], (h,), dims=[dim], descending=False, stable=True)
    place = _at(order, dim, k)
    if is_median and h._dtype in FLOATS:       # NaN is last
        last = _at(order, dim, x.shape[dim] - 1)
        place = made.where(made.isnan(_call(OPS["take_along_axis"], (h, last), dims=[dim])), last, place)
    value = _call(OPS["take_along_axis"], (h, place), dims=[dim])
    return tuple(wrap(one if keepdim else squeeze(one, axis=dim)) for one in (value, place))


@row("median.default")
def median(x):
    flat = wrap(reshape(handle_of(x), (-1,)))
    return _kth("median", flat, (flat.shape[0] - 1) // 2, 0, False, True)[0]


@row("median.dim")
def median_along(x, dim, keepdim=False):
    return _kth("median", x, (x.shape[dim] - 1) // 2 if x.ndim else 0, dim, keepdim, True)


@row("nanmedian.default")
def nanmedian(x):
    return nanmedian_along(wrap(reshape(handle_of(x), (-1,))), 0)[0]


@row("nanmedian.dim")
def nanmedian_along(x, dim, keepdim=False):
    """The result for elements that aren't NaN, which is last in order; NaN where there is nothing else."""
    h = handle_of(x)
    if not x.ndim or h._dtype not in FLOATS:
        return median_along(x, dim, keepdim)
    dim %= x.ndim
    order = _call(OPS["argsort"], (h,), dims=[dim], descending=False, stable=True)
    count = made.sum(cast(made.logical_not(made.isnan(h)), _INT64), axis=dim, keepdims=True)
    place = _call(OPS["take_along_axis"], (order, made.floor_divide(made.maximum(count - 1, 0), 2)), dims=[dim])
    value = _call(OPS["take_along_axis"], (h, place), dims=[dim])
    return tuple(wrap(one if keepdim else squeeze(one, axis=dim)) for one in (value, place))


@row("kthvalue.default")
def kthvalue(x, k, dim=-1, keepdim=False):
    return _kth("kthvalue", x, k - 1, dim, keepdim, False)


@row("mode.default")
def mode(x, dim=-1, keepdim=False):
    """The least of the values that are there most often, and the last place of it: where its run among the sorted ends."""
    h = handle_of(x)
    if not x.ndim:
        return wrap(h[...]), wrap(full_like(h, (), _INT64, 0))
    dim %= x.ndim
    n = x.shape[dim]
    if not n:
        raise InvalidArgumentError(f"mode: dim {dim} of {x!r} has no elements")
    order = _call(OPS["argsort"], (h,), dims=[dim], descending=False, stable=True)
    ordered = _call(OPS["take_along_axis"], (h, order), dims=[dim])
    number = reshape(iota(ordered, n), [n if d == dim else 1 for d in range(x.ndim)])
    begins = made.equal(number, 0)
    if n > 1:
        along = (slice(None),) * dim
        differs = made.not_equal(ordered[(*along, slice(1, None))], ordered[(*along, slice(0, -1))])
        begins = made.logical_or(begins, pad(differs, [(1, 0) if d == dim else (0, 0) for d in range(x.ndim)]))
    length = number - made.cumulative_max(made.where(begins, number, 0), axis=dim)
    end = _call(OPS["argmax"], (length,), dims=[dim], keepdims=True)
    found = [_call(OPS["take_along_axis"], (one, end), dims=[dim]) for one in (ordered, order)]
    return tuple(wrap(one if keepdim else squeeze(one, axis=dim)) for one in found)


def _running(function):
    def run_(x, dim):
        h = handle_of(x)
        if not x.ndim:
            return wrap(h[...]), wrap(full_like(h, (), _INT64, 0))
        values, places = function(cast(h, U8) if h._dtype == BOOL else h, axis=dim)
        return wrap(cast(values, h._dtype)), wrap(places)
    return run_


row("cummax.default")(_running(_calculus.cummax))
row("cummin.default")(_running(_calculus.cummin))


def _counted_before(rows, values, right: bool):
    """How many elements of its row are before each value (or equal, on the right); NaN is behind all."""
    row, value = rows[..., None, :], values[..., :, None]
    is_before = made.less_equal(row, value) if right else made.less(row, value)
    if rows._dtype in FLOATS:
        beyond = made.isnan(value)
        is_before = made.logical_or(is_before, beyond if right else made.logical_and(beyond, made.logical_not(made.isnan(row))))
    return made.sum(cast(is_before, _INT64), axis=-1)


@row("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sequence, x, *, out_int32=False, right=False, side=None, sorter=None):
    if side is not None and right and side != "right":
        raise RuntimeError("torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    ordered = handle_of(sequence)
    if sorter is not None:
        ordered = _call(OPS["take_along_axis"], (ordered, cast(handle_of(sorter), _INT64)), dims=[ordered.ndim - 1])
    if sequence.ndim > 1:
        return wrap(cast(_counted_before(ordered, handle_of(x), right or side == "right"), _INT32 if out_int32 else _INT64))
    h = handle_of(x) if isinstance(x, torch.Tensor) else full_like(ordered, (), ordered._dtype, x)
    found = made.searchsorted(ordered, h, side=side or ("right" if right else "left"))
    return wrap(cast(found, _INT32 if out_int32 else _INT64))


@row("bucketize.Tensor")
def bucketize(x, boundaries, *, out_int32=False, right=False):
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@row("_unique2.default")
def unique(x, sorted=True, return_inverse=False, return_counts=False):  # noqa: A002 - ATen's name
    found = _indexing.unique_all(handle_of(x))
    return wrap(found.values), wrap(found.inverse_indices), wrap(found.counts)


@row("_unique.default")
def unique_pair(x, sorted=True, return_inverse=False):  # noqa: A002 - ATen's name
    return unique(x)[:2]


@row("unique_consecutive.default", how="composed")
def unique_consecutive(x, return_inverse=False, return_counts=False, dim=None):
    """The first elements of runs of equal ones; their number depends on the values, as that of `unique`."""
    if dim is not None and x.ndim != 1:
        raise NotImplementedError(f"unique_consecutive: along a dim of {x!r} has no row in Tessera; of all elements it has")
    h = reshape(handle_of(x), (-1,))
    if not h.size:
        none = full_like(h, (0,), _INT64, 0)
        return wrap(h), wrap(reshape(none, tuple(x.shape))), wrap(none)
    begins = concat([full_like(h, (1,), CODES[torch.bool], True), made.not_equal(h[1:], h[:-1])], axis=0)
    number = _call(OPS["cumulative_sum"], (cast(begins, _INT64),), dims=[0]) - 1
    counts = _call(OPS["scatter"], (full_like(h, h.shape, _INT64, 0), number, full_like(h, h.shape, _INT64, 1)), dims=[0], mode="add")
    return (wrap(_indexing.masked_select(h, begins)), wrap(reshape(number, tuple(x.shape))) if return_inverse else wrap(full_like(h, (0,), _INT64, 0)),
            wrap(_indexing.masked_select(counts, counts > 0)) if return_counts else wrap(full_like(h, (0,), _INT64, 0)))


@row("unique_dim.default", how="composed")
def unique_dim(x, dim, sorted=True, return_inverse=False, return_counts=False):  # noqa: A002 - ATen's name
    """Different slices along a dim, in the order of their first elements, then of the second: sorted by each element once, from the
    last one on."""
    h = handle_of(x)
    dim %= max(x.ndim, 1)
    if not x.ndim or not x.numel():
        raise NotImplementedError(f"unique_dim: of {x!r} has no row in Tessera; of what has elements along a dim it has")
    turned = permute_dims(h, (dim, *(d for d in range(x.ndim) if d != dim)))
    rows = reshape(turned, (x.shape[dim], -1))
    count, width = rows.shape
    order = iota(rows, count)
    for column in reversed(range(width)):
        values = _call(OPS["take_along_axis"], (rows[:, column], order), dims=[0])
        order = _call(OPS["take_along_axis"], (order, _call(OPS["argsort"], (values,), dims=[0], descending=False, stable=True)), dims=[0])
    ordered = _indexing.take(rows, order, axis=0)
    begins = full_like(h, (1,), CODES[torch.bool], True)
    if count > 1:
        begins = concat([begins, made.any(made.not_equal(ordered[1:], ordered[:-1]), axis=1)], axis=0)
    number = _call(OPS["cumulative_sum"], (cast(begins, _INT64),), dims=[0]) - 1
    found = _indexing.take(ordered, _indexing.nonzero(begins)[0], axis=0)
    found = reshape(found, (found.shape[0], *turned.shape[1:]))
    found = permute_dims(found, (*range(1, dim + 1), 0, *range(dim + 1, x.ndim)))
    zeros, ones = (full_like(h, (count,), _INT64, value, replicated(h._mesh_ndim)) for value in (0, 1))
    inverse = _call(OPS["scatter"], (zeros, order, number), dims=[0], mode="set")
    counts = settled(_call(OPS["scatter"], (zeros, number, ones), dims=[0], mode="add"))
    return wrap(found), wrap(inverse), wrap(_indexing.masked_select(counts, counts > 0))


@row("repeat_interleave.Tensor", how="composed")
def repeat_interleave(repeats, *, output_size=None):
    """Each number as often as its element says. Without output_size it waits for how many there are."""
    ends = _call(OPS["cumulative_sum"], (cast(handle_of(repeats), _INT64),), dims=[0])
    if repeats.ndim != 1:
        raise RuntimeError(f"repeat_interleave: repeats are {repeats!r}, not a vector")
    count = (int(ends[-1].item()) if repeats.shape[0] else 0) if output_size is None else output_size
    at = iota(ends, count)
    return wrap(cast(_call(OPS["searchsorted"], (ends, at), side="right"), handle_of(repeats)._dtype))


@row("histc.default", how="composed")
def histc(x, bins=100, min=0, max=0):  # noqa: A002 - ATen's names
    """How many elements are in each of equal parts of [min, max], or of what the elements reach where these are equal."""
    h = reshape(handle_of(x), (-1,))
    if min == max:
        low, high = made.min(h), made.max(h)
        is_one = made.equal(low, high)
        low, high = made.where(is_one, low - 1, low), made.where(is_one, high + 1, high)
    else:
        low, high = float(min), float(max)
    is_in = made.logical_and(h >= low, h <= high)
    place = made.minimum(cast(made.where(is_in, (h - low) * bins / (high - low), 0), _INT64), bins - 1)
    return wrap(_statistics.added_up(place, cast(is_in, h._dtype), bins))


def _counted(h, lines: list, edges: list, weight):
    """How much is in each bin, in h's dtype, of points whose coordinates are given by dim."""
    place, is_in = _statistics.bins_of("histogram", lines, edges)
    bins = math.prod(one.shape[0] - 1 for one in edges)
    amount = cast(is_in, h._dtype) if weight is None else made.where(is_in, cast(reshape(handle_of(weight), (-1,)), h._dtype), 0)
    return settled(_statistics.added_up(made.where(is_in, place, bins), amount, bins))


def _histogram(h, edges, weight, density: bool):
    """How much is between each two edges."""
    out = _counted(h, [reshape(h, (-1,))], [edges], weight)
    if density:
        out = out / made.sum(out) / (edges[1:] - edges[:-1])
    return wrap(out), wrap(edges)


@row("histogram.bins_tensor", how="composed")
def histogram_of_edges(x, bins, *, weight=None, density=False):
    return _histogram(handle_of(x), handle_of(bins), weight, density)


def _edges(op: str, h, bins: int, bounds):
    """The edges of equal parts of a range, or of the elements' own."""
    if bounds is None and h.size:
        low, high = made.min(h), made.max(h)
        is_one = made.equal(low, high)
        low, high = made.where(is_one, low - 0.5, low), made.where(is_one, high + 0.5, high)
    else:
        low, high = bounds or (0.0, 1.0)
        if not low <= high:
            raise InvalidArgumentError(f"{op}: the range {low} to {high}")
        low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
    at = iota(h, bins + 1, h._dtype)
    step = (high - low) / bins
    return made.where(2 * at < bins, low + at * step, high - (bins - at) * step)


@row("histogram.bin_ct", how="composed")
def histogram(x, bins=100, *, range=None, weight=None, density=False):  # noqa: A002 - ATen's name
    h = handle_of(x)
    return _histogram(h, _edges("histogram", h, bins, range), weight, density)


def _columns(x, bins) -> list:
    """The coordinates of points, which stand in the last dim, one after the other."""
    h = handle_of(x)
    if h._dtype not in FLOATS:
        raise InvalidArgumentError(f"histogramdd: takes floats, not {x!r}")
    if h.ndim < 2 or h.shape[-1] != len(bins):
        raise InvalidArgumentError(f"histogramdd: bins of {len(bins)} dims, and {x!r} has points of {h.shape[-1] if h.ndim else 0} coordinates")
    return [reshape(h[..., d], (-1,)) for d in range(len(bins))]


def _edges_of_columns(x, bins, bounds) -> list:
    columns = _columns(x, bins)
    if bounds is not None and len(bounds) != 2 * len(bins):
        raise InvalidArgumentError(f"histogramdd: a range of {len(bounds)} numbers for {len(bins)} dims; it has two for each")
    return [_edges("histogramdd", one, count, None if bounds is None else tuple(bounds[2 * d:2 * d + 2])) for d, (one, count) in enumerate(zip(columns, bins))]


@row("_histogramdd_bin_edges.default", how="composed")
def histogramdd_edges(x, bins, *, range=None, weight=None, density=False):  # noqa: A002
    return [wrap(one) for one in _edges_of_columns(x, bins, range)]


def _histogramdd(x, edges: list, weight, density: bool):
    columns = _columns(x, edges)
    out = reshape(_counted(columns[0], columns, edges, weight), tuple(one.shape[0] - 1 for one in edges))
    if density:
        out = out / made.sum(out)
        for d, one in enumerate(edges):
            out = out / reshape(one[1:] - one[:-1], (-1, *[1] * (len(edges) - 1 - d)))
    return wrap(out)


@row("_histogramdd_from_bin_cts.default", how="composed")
def histogramdd(x, bins, *, range=None, weight=None, density=False):  # noqa: A002
    return _histogramdd(x, _edges_of_columns(x, bins, range), weight, density)


@row("_histogramdd_from_bin_tensors.default", how="composed")
def histogramdd_of_edges(x, bins, *, weight=None, density=False):
    return _histogramdd(x, [handle_of(one) for one in bins], weight, density)


@row("bincount.default")
def bincount(x, weights=None, minlength=0):
    return wrap(_statistics.bincount(handle_of(x), None if weights is None else handle_of(weights), minlength))
