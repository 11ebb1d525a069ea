"""Ops that the catalog has no row for yet, composed of rows that it has: statistics of norms, attention with dropout, embedding.

Functions of handles. Each says its formula; a row of the catalog with the same meaning can take its place without a change
elsewhere.
"""

from __future__ import annotations

from torch import get_float32_matmul_precision

import _tessera
from .._catalog import OPS
from ._dtypes import BOOL, F32, HALVES
from ._placing import iota, settled_dims

_call = _tessera.call
(ADD, SUB, MUL, DIV, WHERE, SUM, MEAN, EINSUM, MATMUL, ASTYPE, RSQRT, SQUARE, RESHAPE, TAKE, SOFTMAX) = (OPS[n] for n in (
    "add", "subtract", "multiply", "divide", "where", "sum", "mean", "einsum", "matmul", "astype", "rsqrt", "square", "reshape", "take_along_axis", "softmax"))


def add(a, b):
    return _call(ADD, (a, b))


def sub(a, b):
    return _call(SUB, (a, b))


def mul(a, b):
    return _call(MUL, (a, b))


def div(a, b):
    return _call(DIV, (a, b))


def total(x, dims, keepdims=False):
    return _call(SUM, (x,), dims=list(dims), keepdims=keepdims)


def average(x, dims):
    return _call(MEAN, (x,), dims=list(dims), keepdims=True)


def _precision() -> dict:
    """TF32 where torch.set_float32_matmul_precision, or torch.backends.cuda.matmul.allow_tf32, lets it be."""
    return {} if get_float32_matmul_precision() == "highest" else {"precision": "tf32"}


def einsum(notation: str, a, b):
    return _call(EINSUM, (a, b), notation=notation, **_precision())


def matmul(a, b):
    return _call(MATMUL, (a, b), **_precision())


def as_dtype(x, dtype: int):
    return x if x._dtype == dtype else _call(ASTYPE, (x,), dtype=dtype)


def wide(x):
    """f32 of a half: sums over rows are formed in it."""
    return _call(ASTYPE, (x,), dtype=F32) if x._dtype in HALVES else x


def unsqueezed(x, dim: int):
    shape = list(x.shape)
    shape.insert(dim, 1)
    return _call(RESHAPE, (x,), shape=shape)


# ---- norms and their statistics ---------------------------------------------------------------------------------------------

def moments(x, dims, eps: float):
    """Mean and 1 / sqrt(variance + eps) over the dims, kept with extent 1."""
    mean = average(x, dims)
    variance = average(_call(SQUARE, (sub(x, mean),)), dims)
    return mean, _call(RSQRT, (add(variance, eps),))


def inverse_rms(x, dims, eps: float):
    """1 / sqrt(mean of squares + eps) over the dims, kept with extent 1."""
    return _call(RSQRT, (add(average(_call(SQUARE, (x,)), dims), eps),))


def norm_backward(g, x, mean, rstd, weight, dims, wanted):
    """By given statistics: of layer_norm, and of rms_norm where mean is None. With n = (x - mean) * rstd and h = g * weight:
    dx = rstd * (h - mean(h) - n * mean(h * n)), without mean(h) for rms; dw = sum of g * n, db = sum of g over the other
    dims, which are pending where these are sharded."""
    dtype = x._dtype
    x, gw = wide(x), wide(g)
    n = mul(x if mean is None else sub(x, mean), rstd)
    h = gw if weight is None else mul(gw, wide(weight))
    lead = [d for d in range(x.ndim) if d not in dims]
    dx = dw = db = None
    if wanted[0]:
        inner = sub(h, mul(n, average(mul(h, n), dims)))
        if mean is not None:
            inner = sub(inner, average(h, dims))
        dx = as_dtype(mul(inner, rstd), dtype)
    if wanted[1] and weight is not None:
        dw = as_dtype(total(mul(gw, n), lead), weight._dtype)
    if len(wanted) > 2 and wanted[2]:
        db = as_dtype(total(gw, lead), dtype)
    return dx, dw, db


# ---- attention: batch and heads stay sharded, sequence and features are whole --------------------------------------------

def attention_scores(q, k, mask, is_causal: bool, scale: float):
    """q @ k.T * scale, with the mask, in f32 of halves. q: (batch, heads, groups, L, E), k: (batch, heads, S, E)."""
    scores = mul(einsum("bhgqd,bhkd->bhgqk", wide(q), wide(k)), scale)
    minus_infinity = float("-inf")
    if is_causal:
        rows, columns = scores.shape[-2:]
        at_row = _call(RESHAPE, (iota(q, rows),), shape=[rows, 1])
        at_column = iota(q, columns)
        scores = _call(WHERE, (_call(OPS["greater_equal"], (at_row, at_column)), scores, minus_infinity))
    if mask is not None:
        scores = _call(WHERE, (mask, scores, minus_infinity)) if mask._dtype == BOOL else add(scores, as_dtype(mask, scores._dtype))
    return scores


def attention_backward(g, q, k, v, mask, is_causal: bool, scale: float, keep=None):
    """With p = softmax(scores) and, where dropout kept some, p' = p * keep: dv = p'.T @ g, dp = (g @ v.T) * keep,
    ds = p * (dp - sum(dp * p)), dq = ds @ k * scale, dk = ds.T @ q * scale. The sums over groups are those of shared heads. The last
    result is ds, the gradient of the scores."""
    p = _call(SOFTMAX, (attention_scores(q, k, mask, is_causal, scale),), dims=[4])
    shown = p if keep is None else mul(p, keep)
    g32 = wide(g)
    dv = einsum("bhgqk,bhgqd->bhkd", shown, g32)
    dp = einsum("bhgqd,bhkd->bhgqk", g32, wide(v))
    if keep is not None:
        dp = mul(dp, keep)
    product = mul(dp, p)
    ds = sub(product, mul(p, total(product, [4], True)))
    scaled = mul(ds, scale)
    dq = einsum("bhgqk,bhkd->bhgqd", scaled, wide(k))
    dk = einsum("bhgqk,bhgqd->bhkd", scaled, wide(q))
    return as_dtype(dq, q._dtype), as_dtype(dk, k._dtype), as_dtype(dv, v._dtype), ds


# ---- embedding: rows of a table ----------------------------------------------------------------------------------------

def embedding(weight, numbers):
    """The rows of a weight at the numbers, (..., features). Where its rows are sharded each worker gives those that it has:
    a pending sum; but of more tokens than there are rows, which are gathered: one message either way, of the smaller one. Where
    its columns are, the result's last dim is."""
    shape = list(numbers.shape)
    flat = _call(RESHAPE, (numbers,), shape=[numbers.size])
    if any(one.is_shard(0) for one in weight._placements):
        if numbers.size >= weight.shape[0]:
            weight = settled_dims(weight, [0])
        rows = _call(TAKE, (weight, unsqueezed(flat, 1)), dims=[0])
    else:
        rows = _call(TAKE, (weight, flat), dims=[0])
    return rows if len(shape) == 1 else _call(RESHAPE, (rows,), shape=[*shape, weight.shape[1]])
