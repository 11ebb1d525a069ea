"""Lookups and writes by indices: embedding, index, gather, scatter, sort."""

from __future__ import annotations

import math

import torch

import _tessera
from .. import _indexing, linalg
from .._errors import InvalidArgumentError
from .._ops import concat, pad, stack
from .._catalog import OPS
from .._index import normalise
from ._embedding_bag import by_frequency
from ._dtypes import array_of
from . import _composed, _ranges
from ._dtypes import BOOL, INT64, U8
from ._operands import cast, handle, number_as, operand
from ._placing import full_like
from ._table import row, run
from ._tensor import Tensor, handle_of, rebind, wrap

_call = _tessera.call


def _numbers(op: str, x, indices):
    h = operand(op, indices, x)
    if not isinstance(h, _tessera.Tensor):
        raise InvalidArgumentError(f"{op}: indices are {indices!r}, not a tensor of integers beside {x!r}")
    return cast(h, INT64)


def _indices(op: str, x, dim: int, indices):
    """Indices of a dim; negative ones are errors, as in torch."""
    return _ranges.indices(_numbers(op, x, indices), x.shape[dim] if x.ndim else 1)


@row("embedding.default", how="composed")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return wrap(_composed.embedding(handle_of(weight), _indices("embedding", weight, 0, indices)))


@row("embedding_dense_backward.default")
def embedding_backward(grad, indices, count, padding_idx, scale_grad_by_freq):
    g, numbers = handle_of(grad), _numbers("embedding", grad, indices)
    if scale_grad_by_freq:
        flat = _call(OPS["reshape"], (numbers,), shape=[numbers.size])
        g = by_frequency(_call(OPS["reshape"], (g,), shape=[numbers.size, g.shape[-1]]), flat, count)
        numbers = flat
    return wrap(_call(OPS["embedding_backward"], (g, numbers), num_classes=count, ignore_index=padding_idx))


@row("embedding_renorm_.default", how="composed")
def embedding_renorm_(weight, indices, max_norm, norm_type):
    """Rows that are used, and longer than max_norm, become so long."""
    w, numbers = handle_of(weight), _indices("embedding", weight, 0, indices)
    flat = _call(OPS["reshape"], (numbers,), shape=[numbers.size])
    used = _call(OPS["scatter"], (full_like(w, (w.shape[0],), BOOL, False), flat, full_like(flat, flat.shape, BOOL, True)), dims=[0], mode="set")
    norms = linalg.vector_norm(w, axis=1, ord=norm_type)
    scale = _call(OPS["where"], (_call(OPS["logical_and"], (used, norms > max_norm)), max_norm / (norms + 1e-7), 1.0))
    return rebind("embedding_renorm_", weight, w * _call(OPS["reshape"], (scale,), shape=[w.shape[0], 1]))


@row("take.default")
def take(x, indices):
    h = handle_of(x)
    return wrap(_indexing.take(_call(OPS["reshape"], (h,), shape=[h.size]), _numbers("take", x, indices), axis=0))


@row("put.default")
def put(x, indices, source, accumulate=False):
    h, numbers = handle_of(x), _numbers("put", x, indices)
    flat, at, updates = (_call(OPS["reshape"], (one,), shape=[one.size]) for one in (h, numbers, cast(handle_of(source), h._dtype)))
    out = _call(OPS["scatter"], (flat, at, updates), dims=[0], mode="add" if accumulate else "set")
    return wrap(_call(OPS["reshape"], (out,), shape=list(h.shape)))


@row("masked_scatter.default", how="composed")
def masked_scatter(x, mask, source):
    """The first element of the source at the first true one of the mask, and so on."""
    h, m, values = handle_of(x), cast(handle_of(mask), BOOL), cast(handle_of(source), handle_of(x)._dtype)
    shape = list(torch.broadcast_shapes(h.shape, m.shape))
    h, m = (_call(OPS["broadcast_to"], (one,), shape=shape) for one in (h, m))
    if not h.size or not values.size:
        return wrap(h)
    flat = cast(_call(OPS["reshape"], (m,), shape=[m.size]), INT64)
    number = _call(OPS["cumulative_sum"], (flat,), dims=[0]) - 1
    number = _call(OPS["where"], (flat > 0, number, 0))
    taken = _call(OPS["take_along_axis"], (_call(OPS["reshape"], (values,), shape=[values.size]), number), dims=[0])
    return wrap(_call(OPS["where"], (m, _call(OPS["reshape"], (taken,), shape=list(h.shape)), h)))


@row("masked_scatter_backward.default", how="composed")
def masked_scatter_backward(grad, mask, sizes):
    """The gradient of the source."""
    g, count = handle_of(grad), math.prod(sizes)
    m = _call(OPS["broadcast_to"], (cast(handle_of(mask), BOOL),), shape=list(g.shape))
    flat, m = (_call(OPS["reshape"], (one,), shape=[g.size]) for one in (g, m))
    zeros = full_like(g, (count,), g._dtype, 0)
    if not g.size or not count:
        return wrap(_call(OPS["reshape"], (zeros,), shape=list(sizes)))
    number = _call(OPS["cumulative_sum"], (cast(m, INT64),), dims=[0]) - 1
    operands = (zeros, _call(OPS["where"], (m, number, 0)), _call(OPS["where"], (m, flat, 0)))
    return wrap(_call(OPS["reshape"], (_call(OPS["scatter"], operands, dims=[0], mode="add"),), shape=list(sizes)))


def _key(op: str, x, indices) -> tuple:
    """An index of the client: tensors, and slices where there are none. CPU tensors may be indices, as they are for CUDA."""
    out = []
    for one in indices:
        if one is None:
            out.append(slice(None))
        elif isinstance(one, Tensor):
            h = handle_of(one)
            out.append(_call(OPS["not_equal"], (h, 0)) if one.dtype == torch.uint8 else h)
        else:
            out.append(array_of(one))
    return tuple(out)


@row("index.Tensor", "_unsafe_index.Tensor")
def index(x, indices):
    """x[indices]; a mask waits for the number of its true elements."""
    return wrap(_indexing.get(handle_of(x), _key("index", x, indices)))


@row("index_put.default", "_unsafe_index_put.default")
def index_put(x, indices, values, accumulate=False):
    h = handle_of(x)
    if len(indices) == 1 and not accumulate and indices[0] is not None and indices[0].dtype == torch.bool and values.numel() == 1:
        mask = operand("index_put", indices[0], x) if isinstance(indices[0], Tensor) else handle_of(indices[0].to(x.device))
        if mask.ndim < h.ndim:
            mask = _call(OPS["reshape"], (mask,), shape=[*mask.shape, *[1] * (h.ndim - mask.ndim)])
        value = operand("index_put", values, x)
        if isinstance(value, _tessera.Tensor):
            value = cast(_call(OPS["reshape"], (value,), shape=[]), h._dtype)
        return wrap(_call(OPS["where"], (mask, value, h)))
    key = _key("index_put", x, indices)
    value = cast(handle("index_put", values, x), h._dtype)
    # Elements that go to one place are added up, if asked for.
    return wrap(_indexing.put(h, key, value, **({"mode": "add"} if accumulate else {})))


@row("_index_put_impl_.default")
def index_put_impl_(x, indices, values, accumulate=False, unsafe=False):
    return rebind("index_put_", x, handle_of(index_put(x, indices, values, accumulate)))


def _with_dims(function):
    """A tensor without dims is taken as one of one element, and its result given back without."""
    def run_(x, dim, indices, *rest, **options):
        if x.ndim:
            return function(x, dim, indices, *rest, **options)
        lifted = [wrap(_call(OPS["reshape"], (handle_of(one),), shape=[one.numel()])) if isinstance(one, Tensor) and not one.ndim else one
                  for one in (x, indices, *rest)]
        out = function(lifted[0], 0, *lifted[1:], **options)
        return wrap(_call(OPS["reshape"], (handle_of(out),), shape=[]))
    return run_


@row("index_select.default")
@_with_dims
def index_select(x, dim, indices):
    return wrap(_indexing.take(handle_of(x), _call(OPS["reshape"], (_indices("index_select", x, dim, indices),), shape=[indices.numel()]),
                               axis=dim % max(x.ndim, 1)))


@row("index_add.default")
@_with_dims
def index_add(x, dim, indices, source, *, alpha=1):
    h, at = handle_of(source), _call(OPS["reshape"], (_indices("index_add", x, dim, indices),), shape=[indices.numel()])
    if alpha != 1:
        h = full_like(h, h.shape, BOOL, False) if h._dtype == BOOL else _composed.mul(h, number_as(alpha, h._dtype))      # False
    return wrap(_call(OPS["scatter"], (handle_of(x), at, h),
                      dims=[dim % x.ndim], mode="add"))


@row("gather.default")
def gather(x, dim, indices, *, sparse_grad=False):
    if not indices.numel():
        return wrap(full_like(handle_of(x), tuple(indices.shape), handle_of(x)._dtype, 0))
    if not x.ndim or not indices.ndim:
        out = gather(x.reshape(-1), 0, indices.reshape(-1))
        return out.reshape(indices.shape)
    return wrap(_indexing.gather(handle_of(x), _indices("gather", x, dim, indices), axis=dim))


def _scatter(mode: str):
    def function(x, dim, indices, source):
        h, at = handle_of(x), _indices("scatter", x, dim, indices)
        updates = cast(handle("scatter", source, x), h._dtype)
        if updates.ndim == 0:
            updates = _call(OPS["broadcast_to"], (updates,), shape=list(at.shape))
        elif tuple(updates.shape) != tuple(at.shape):
            updates = updates[tuple(slice(0, n) for n in at.shape)]
        dim %= max(x.ndim, 1)
        if any(n != h.shape[d] for d, n in enumerate(at.shape) if d != dim):
            part = tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(at.shape))
            written = _call(OPS["scatter"], (h[part], at, updates), dims=[dim], mode=mode)
            return wrap(_call(OPS["assign"], (h, written), index=normalise(part, h.shape)))
        return wrap(_call(OPS["scatter"], (h, at, updates), dims=[dim], mode=mode))
    return function


row("scatter.src", "scatter.value")(_with_dims(_scatter("set")))
row("scatter_add.default")(_with_dims(_scatter("add")))


_REDUCE = {"sum": "add", "amax": "max", "amin": "min", "add": "add", "mean": "add"}


def _lowest(h):
    """The number whose maximum with any other is the other one."""
    dtype = h.dtype
    if dtype.kind in "iu":
        import numpy as np
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return (False, True) if dtype.kind == "b" else (float("-inf"), float("inf"))


@row("scatter_reduce.two", "scatter.reduce", "scatter.value_reduce")
@_with_dims
def scatter_reduce(x, dim, indices, source, reduce=None, *, include_self=True, **options):
    """Places that nothing goes to keep what they have; the others are counted where that matters."""
    reduce = reduce or options.get("reduce")
    if reduce in ("prod", "multiply"):
        return _scatter_product(x, dim, indices, source, include_self)
    mode = _REDUCE.get(reduce)
    if mode is None:
        raise InvalidArgumentError(f"scatter_reduce: reduce={reduce!r} is not sum, prod, mean, amax or amin")
    if include_self and reduce != "mean":
        return _scatter(mode)(x, dim, indices, source)
    h, at = handle_of(x), _numbers("scatter", x, indices)
    zeros, ones = (full_like(one, one.shape, INT64, value) for one, value in ((h, 0), (at, 1)))
    counts = handle_of(_scatter("add")(wrap(zeros), dim, indices, wrap(ones)))
    is_met = counts > 0
    base = h
    if not include_self:
        neutral = _lowest(h)[mode == "min"] if mode != "add" else False if h._dtype == BOOL else 0
        base = _call(OPS["where"], (is_met, neutral, h))
    out = handle_of(_scatter(mode)(wrap(base), dim, indices, source))
    if reduce == "mean":
        counts = cast(_call(OPS["maximum"], (counts + int(include_self), 1)), h._dtype)
        out = _call(OPS["floor_divide" if h.dtype.kind in "iu" else "divide"], (out, counts))
    return wrap(out if include_self else _call(OPS["where"], (is_met, out, h)))


def _scatter_product(x, dim, indices, source, include_self: bool):
    """Products by indices: in the order of the indices by products of 1, 2, 4, ... neighbours that go to one place; the last of a
    place has them all, and is added to nothing there."""
    h, at = handle_of(x), _indices("scatter_reduce", x, dim, indices)
    updates = cast(handle("scatter_reduce", source, x), h._dtype)
    if h._dtype == BOOL:
        out = _scatter_product(wrap(cast(h, U8)), dim, indices, wrap(cast(updates, U8)), include_self)
        return wrap(cast(handle_of(out), BOOL))
    dim %= x.ndim
    updates = _call(OPS["broadcast_to"], (updates,), shape=list(at.shape)) if not updates.ndim else updates[tuple(slice(0, n) for n in at.shape)]
    n = at.shape[dim]
    if not at.size:
        return wrap(h)
    order = _call(OPS["argsort"], (at,), dims=[dim], descending=False, stable=True)
    at, product = (_call(OPS["take_along_axis"], (one, order), dims=[dim]) for one in (at, updates))

    def part(one, start, stop):
        return one[(slice(None),) * dim + (slice(start, stop),)]

    reach = 1
    while reach < n:
        is_one = _call(OPS["equal"], (part(at, reach, None), part(at, 0, -reach)))
        longer = _call(OPS["where"], (is_one, part(product, 0, -reach), 1)) * part(product, reach, None)
        product = concat([part(product, 0, reach), longer], axis=dim)
        reach *= 2
    is_last = pad(_call(OPS["not_equal"], (part(at, 1, None), part(at, 0, -1))), [(0, 1) if d == dim else (0, 0) for d in range(x.ndim)],
                  constant_values=True)
    zeros, met = (full_like(h, h.shape, kind, 0) for kind in (h._dtype, INT64))
    product = handle_of(_scatter("add")(wrap(zeros), dim, wrap(at), wrap(_call(OPS["where"], (is_last, product, 0)))))
    met = handle_of(_scatter("add")(wrap(met), dim, wrap(at), wrap(cast(is_last, INT64))))
    return wrap(_call(OPS["where"], (met > 0, h * product if include_self else product, h)))


@row("index_reduce.default")
@_with_dims
def index_reduce(x, dim, indices, source, reduce, *, include_self=True):
    numbers = _numbers("index_reduce", x, indices)
    at = _call(OPS["reshape"], (numbers,), shape=[indices.numel() if d == dim % x.ndim else 1 for d in range(x.ndim)])
    at = _call(OPS["broadcast_to"], (at,), shape=list(source.shape))
    return scatter_reduce(x, dim, wrap(at), source, reduce, include_self=include_self)


@row("sort.default", "sort.stable")
def sort(x, dim=-1, descending=False, *, stable=True):
    h = handle_of(x)
    axis = [dim % max(x.ndim, 1)]
    order = _call(OPS["argsort"], (h,), dims=axis, descending=bool(descending), stable=True)
    return wrap(_call(OPS["take_along_axis"], (h, order), dims=axis)), wrap(order)


@row("argsort.default", "argsort.stable")
def argsort(x, dim=-1, descending=False, *, stable=True):
    return wrap(_call(OPS["argsort"], (handle_of(x),), dims=[dim % max(x.ndim, 1)], descending=bool(descending), stable=True))


@row("topk.default")
def topk(x, k, dim=-1, largest=True, sorted=True):  # noqa: A002 - ATen's names
    if not x.ndim:
        return wrap(handle_of(x)), run("zeros_like.default")(x, dtype=torch.int64)
    values, order = _indexing.topk(handle_of(x), k, axis=dim, largest=largest)
    return wrap(values), wrap(order)


@row("nonzero.default")
def nonzero(x):
    """The places that are not 0, (number, dims); waits for their number."""
    return wrap(stack(list(_indexing.nonzero(handle_of(x))), axis=1))


@row("nonzero_static.default")
def nonzero_static(x, *, size, fill_value=-1):
    """The first `size` of them, and fill_value behind the last: nothing is waited for."""
    h = handle_of(x)
    flat = _call(OPS["reshape"], (h if h._dtype == BOOL else _call(OPS["not_equal"], (h, 0)),), shape=[h.size])
    zeros = cast(_call(OPS["logical_not"], (flat,)), INT64)
    order = _call(OPS["argsort"], (zeros,), dims=[0], descending=False, stable=True)[:size]
    found = _call(OPS["equal"], (_call(OPS["take_along_axis"], (zeros, order), dims=[0]), 0))
    columns, rest = [], order
    for extent in reversed(h.shape):
        columns.append(_call(OPS["where"], (found, _call(OPS["remainder"], (rest, max(extent, 1))), fill_value)))
        rest = _call(OPS["floor_divide"], (rest, max(extent, 1)))
    if not columns:
        return wrap(full_like(h, (size, 0), INT64, 0))
    out = concat([_call(OPS["reshape"], (one,), shape=[one.size, 1]) for one in reversed(columns)], axis=1)
    return wrap(pad(out, [(0, size - out.shape[0]), (0, 0)], constant_values=fill_value) if size > out.shape[0] else out)


@row("masked_select.default")
def masked_select(x, mask):
    h, where = handle_of(x), handle_of(mask)
    return wrap(_indexing.masked_select(h, where if where._dtype == BOOL else cast(where, BOOL)))
