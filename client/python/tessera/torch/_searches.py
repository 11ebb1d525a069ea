"""What is found by order: medians and k-th values, running extremes, places in a sorted vector, different values, counts."""

from __future__ import annotations

import torch

import _tessera
import _tessera_ops as made
from .. import _calculus, _indexing, _statistics
from .._errors import InvalidArgumentError
from .._ops import reshape, squeeze
from .._tensor import OPS
from ._dtypes import CODES, FLOATS
from ._operands import cast
from ._placing import full_like, settled
from ._table import row
from ._tensor import wrap

_call = _tessera.call
_INT32, _INT64 = CODES[torch.int32], CODES[torch.int64]


def _at(h, dim: int, place: int):
    return h[(slice(None),) * dim + (slice(place, place + 1),)]


def _kth(name: str, x, k: int, dim: int, keepdim: bool, is_median: bool):
    """The k-th (from 0) of the sorted values and its index; of a median NaN where there is one."""
    h = settled(x)
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
    flat = wrap(reshape(settled(x), (-1,)))
    return _kth("median", flat, (flat.shape[0] - 1) // 2, 0, False, True)[0]


@row("median.dim")
def median_along(x, dim, keepdim=False):
    return _kth("median", x, (x.shape[dim] - 1) // 2 if x.ndim else 0, dim, keepdim, True)


@row("nanmedian.default")
def nanmedian(x):
    return nanmedian_along(wrap(reshape(settled(x), (-1,))), 0)[0]


@row("nanmedian.dim")
def nanmedian_along(x, dim, keepdim=False):
    """Of what isn't NaN, which is last in order; NaN where there is nothing else."""
    h = settled(x)
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


def _running(function):
    def run_(x, dim):
        h = settled(x)
        if not x.ndim:
            return wrap(h[...]), wrap(full_like(h, (), _INT64, 0))
        return tuple(wrap(one) for one in function(h, axis=dim))
    return run_


row("cummax.default")(_running(_calculus.cummax))
row("cummin.default")(_running(_calculus.cummin))


@row("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(sequence, x, *, out_int32=False, right=False, side=None, sorter=None):
    if sequence.ndim != 1:
        raise NotImplementedError(f"searchsorted: in {sequence!r}: only vectors have a row in Tessera")
    if side is not None and right and side != "right":
        raise RuntimeError("torch.searchsorted(): side and right can't be set to opposites, got side of left while right was True")
    ordered = settled(sequence)
    ordered = ordered if sorter is None else _indexing.take(ordered, settled(sorter), axis=0)
    h = settled(x) if isinstance(x, torch.Tensor) else full_like(ordered, (), ordered._dtype, x)
    found = made.searchsorted(ordered, h, side=side or ("right" if right else "left"))
    return wrap(cast(found, _INT32 if out_int32 else _INT64))


@row("bucketize.Tensor")
def bucketize(x, boundaries, *, out_int32=False, right=False):
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


@row("_unique2.default")
def unique(x, sorted=True, return_inverse=False, return_counts=False):  # noqa: A002 - ATen's name
    found = _indexing.unique_all(settled(x))
    return wrap(found.values), wrap(found.inverse_indices), wrap(found.counts)


@row("_unique.default")
def unique_pair(x, sorted=True, return_inverse=False):  # noqa: A002 - ATen's name
    return unique(x)[:2]


@row("bincount.default")
def bincount(x, weights=None, minlength=0):
    return wrap(_statistics.bincount(settled(x), None if weights is None else settled(weights), minlength))
