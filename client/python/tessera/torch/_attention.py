"""Attention as one op and its backward: sharded batch and heads stay, sequence and features are whole on each worker."""

from __future__ import annotations

import math

import _tessera
from .._errors import InvalidArgumentError
from .._placements import shards_of
from .._catalog import OPS
from . import _composed
from ._device import next_call
from ._dtypes import F32, HALVES, INT64
from ._operands import operand
from ._placing import create_like, full_like, settled_dims
from ._table import row
from ._tensor import handle_of, wrap, wrap_later

_call, _call_all = _tessera.call, _tessera.call_all


def _heads(op: str, q, k, v):
    """The handles, whole along sequence and features; the number of query heads that share one of keys and values."""
    if not q.ndim == k.ndim == v.ndim == 4:
        raise InvalidArgumentError(f"{op}: takes (batch, heads, length, features), not {q!r}, {k!r}, {v!r}")
    if q.shape[1] % max(k.shape[1], 1) or k.shape[1] != v.shape[1]:
        raise InvalidArgumentError(f"{op}: {q.shape[1]} heads of {q!r} don't share {k.shape[1]} of {k!r} and {v.shape[1]} of {v!r}")
    handles = [settled_dims(handle_of(one), (2, 3)) for one in (q, k, v)]
    return (*handles, q.shape[1] // max(k.shape[1], 1))


def _grouped(q, groups: int):
    """(batch, heads, length, features) as (batch, shared heads, heads that share one, length, features)."""
    batch, heads, length, features = q.shape
    return _call(OPS["reshape"], (q,), shape=[batch, heads // groups, groups, length, features])


def _shared(x, groups: int):
    """(batch, shared heads, length, features) with a dim of the heads that share one, which copies nothing."""
    batch, heads, length, features = x.shape
    one = _call(OPS["reshape"], (x,), shape=[batch, heads, 1, length, features])
    return _call(OPS["broadcast_to"], (one,), shape=[batch, heads, groups, length, features])


def _joined(x):
    batch, heads, groups, length, features = x.shape
    return _call(OPS["reshape"], (x,), shape=[batch, heads * groups, length, features])


def _mask_of(mask, q, groups: int):
    """A mask that broadcasts to the scores (batch, shared heads, groups, L, S), or None."""
    if mask is None:
        return None
    h = settled_dims(operand("scaled_dot_product_attention", mask, q), (mask.ndim - 2, mask.ndim - 1))
    shape = [1] * (4 - h.ndim) + list(h.shape)
    heads = [shape[1] // groups, groups] if shape[1] > 1 else [1, 1]
    return _call(OPS["reshape"], (h,), shape=[shape[0], *heads, *shape[2:]])


def _keep(scores_shape, like, p: float, numbers: list[int]):
    """1 / (1 - p) where dropout keeps a probability, else 0; the same on every mesh and placement."""
    drawn = create_like("rand", like, scores_shape, F32, numbers, _score_placements(like))
    return _composed.mul(_composed.as_dtype(_call(OPS["greater_equal"], (drawn, p)), F32), 1.0 / (1.0 - p) if p < 1 else 0.0)


def _score_placements(q) -> list:
    return shards_of(q._placements, range(2))


def _to_mask(ds, mask):
    """The gradient of scores, summed over what the mask was broadcast along."""
    batch, heads, groups, *sizes = ds.shape
    ds = _call(OPS["reshape"], (ds,), shape=[batch, heads * groups, *sizes])
    shape = [1] * (4 - mask.ndim) + list(mask.shape)
    dims = [d for d, (own, other) in enumerate(zip(shape, ds.shape)) if own != other]
    ds = _composed.total(ds, dims, True) if dims else ds
    return _composed.as_dtype(_call(OPS["reshape"], (ds,), shape=list(mask.shape)), handle_of(mask)._dtype)


def _has_logarithms(q, v) -> bool:
    """Whether an attention gives the logarithms of its rows' sums at no cost, and its gradients gain by them: what cuDNN takes of a GPU
    (kernels/cuda/cudnn_attention.h)."""
    return (q._dtype in HALVES and q.shape[2] >= 16 and all(one.shape[3] <= 256 and one.shape[3] % 8 == 0 for one in (q, v))
            and q._session._device_type(q._mesh) == "cuda")


def _attended(operands, is_causal, scale: float, keeps: bool):
    """The result, and the logarithms or None."""
    if keeps:
        return _call_all(OPS["scaled_dot_product_attention_and_logarithms"], operands, is_causal=bool(is_causal), scalars=[scale])
    return _call(OPS["scaled_dot_product_attention"], operands, is_causal=bool(is_causal), scalars=[scale]), None


@row("_scaled_dot_product_fused_attention_overrideable.default")
def attention(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, keeps=False):
    """`keeps`: as where an operand wants a gradient, which those of a compiled graph don't say."""
    q, k, v, groups = _heads("scaled_dot_product_attention", query, key, value)
    number = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    drawn = next_call() if dropout_p > 0 else [0, 0]
    keeps = (keeps or any(one.requires_grad for one in (query, key, value))) and _has_logarithms(q, v)
    logarithms = None

    def scores():
        return _composed.attention_scores(_grouped(q, groups), k, _mask_of(attn_bias, query, groups), is_causal, number)

    if dropout_p > 0:
        p = _call(OPS["softmax"], (scores(),), dims=[4])
        p = _composed.mul(p, _keep(p.shape, _grouped(q, groups), dropout_p, drawn))
        out = _joined(_composed.as_dtype(_composed.einsum("bhgqk,bhkd->bhgqd", p, _composed.wide(v)), v._dtype))
    elif groups == 1:
        mask = () if attn_bias is None else (settled_dims(operand("scaled_dot_product_attention", attn_bias, query),
                                                          (attn_bias.ndim - 2, attn_bias.ndim - 1)),)
        out, logarithms = _attended((q, k, v, *mask), is_causal, float(number), keeps)
    else:
        mask = () if attn_bias is None else (_mask_of(attn_bias, query, groups),)
        out, logarithms = _attended((_grouped(q, groups), _shared(k, groups), _shared(v, groups), *mask), is_causal, float(number), keeps)
        out = _joined(out)
    shape = list(query.shape[:3])
    batch, heads, length = shape
    if logarithms is None:
        lse = wrap_later(shape, F32, lambda: _call(OPS["reshape"], (_call(OPS["logsumexp"], (scores(),), dims=[4]),), shape=shape))
    else:
        lse = wrap(logarithms if groups == 1 else _call(OPS["reshape"], (logarithms,), shape=shape))
    none = wrap_later([0], INT64, lambda: full_like(q, (0,), INT64, 0))
    seed, call = (wrap_later([], INT64, lambda one=one: full_like(q, (), INT64, one)) for one in drawn)
    seed._cell.numbers = drawn
    return wrap(out), lse, none, none, length, key.shape[2], seed, call, none


@row("_scaled_dot_product_fused_attention_overrideable_backward.default")
def attention_backward(grad, query, key, value, attn_bias, wanted, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal,
                       seed, offset, *, scale=None):
    q, k, v, groups = _heads("scaled_dot_product_attention", query, key, value)
    number = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    g = settled_dims(handle_of(grad), (2, 3))
    of_mask = attn_bias is not None and wanted[3]
    if dropout_p > 0 or of_mask:
        grouped = _grouped(q, groups)
        keep = _keep([*grouped.shape[:4], k.shape[2]], grouped, dropout_p, seed._cell.numbers) if dropout_p > 0 else None
        dq, dk, dv, ds = _composed.attention_backward(_grouped(g, groups), grouped, k, v, _mask_of(attn_bias, query, groups), is_causal,
                                                      number, keep)
        return wrap(_joined(dq)), wrap(dk), wrap(dv), wrap(_to_mask(ds, attn_bias)) if of_mask else None
    mask = () if attn_bias is None else (settled_dims(operand("scaled_dot_product_attention", attn_bias, query),
                                                      (attn_bias.ndim - 2, attn_bias.ndim - 1)),)
    op, known = "scaled_dot_product_attention_backward", ()
    if lse._cell.handle is not None and _has_logarithms(q, v):
        op, known = f"{op}_of_result", (settled_dims(handle_of(out), (2, 3)), settled_dims(handle_of(lse), (2,)))
    dq, dk, dv = _call_all(OPS[op], (g, q, k, v, *known, *mask), is_causal=bool(is_causal), scalars=[float(number)])
    return wrap(dq), wrap(dk), wrap(dv), None
