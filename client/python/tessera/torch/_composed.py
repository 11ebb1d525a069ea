"""What the catalog has no row for yet, composed of rows that it has: backward passes, cross-entropy, fused optimizers.

Functions of handles. Each says its formula; a row of the catalog with the same meaning can take its place without a change
elsewhere. Operands come without pending terms unless a function says otherwise.
"""

from __future__ import annotations

import math

import _tessera
from .._tensor import OPS
from ._dtypes import BOOL, F32, F64, HALVES, INT64
from ._placing import create_like, full_like, settled
from ._recorder import number

_call = _tessera.call
(ADD, SUB, MUL, DIV, EXP, TANH, ERF, SIGMOID, WHERE, SUM, MEAN, EINSUM, ASTYPE, SQRT, RSQRT, SQUARE, GREATER, EQUAL, SLICE,
 RESHAPE, TAKE, SCATTER, SOFTMAX, MOVE, POW, LERP) = (OPS[n] for n in (
     "add", "subtract", "multiply", "divide", "exp", "tanh", "erf", "sigmoid", "where", "sum", "mean", "einsum", "astype", "sqrt",
     "rsqrt", "square", "greater", "equal", "slice", "reshape", "take_along_axis", "scatter", "softmax", "redistribute", "pow",
     "lerp"))


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


def einsum(notation: str, a, b):
    return _call(EINSUM, (a, b), notation=notation)


def as_dtype(x, dtype: int):
    return x if x._dtype == dtype else _call(ASTYPE, (x,), dtype=dtype)


def wide(x):
    """f32 of a half: sums over rows are formed in it."""
    return _call(ASTYPE, (x,), dtype=F32) if x._dtype in HALVES else x


def unsqueezed(x, dim: int):
    shape = list(x.shape)
    shape.insert(dim, 1)
    return _call(RESHAPE, (x,), shape=shape)


# ---- elementwise backward: placements as elementwise ---------------------------------------------------------------

def silu_backward(g, x):
    """g * s * (1 + x * (1 - s)), with s = sigmoid(x)."""
    s = _call(SIGMOID, (x,))
    return mul(g, mul(s, add(mul(x, sub(1, s)), 1)))


def gelu_backward(g, x, *, approximate="none"):
    """g * (Phi(x) + x * phi(x)), Phi and phi the normal distribution's function and density; or of the tanh form."""
    dtype = x._dtype
    g, x = wide(g), wide(x)
    if approximate == "tanh":
        k = math.sqrt(2 / math.pi)
        square = _call(SQUARE, (x,))
        t = _call(TANH, (mul(mul(x, k), add(mul(square, 0.044715), 1)),))
        slope = mul(mul(x, mul(sub(1, _call(SQUARE, (t,))), 0.5 * k)), add(mul(square, 3 * 0.044715), 1))
        inner = add(mul(add(t, 1), 0.5), slope)
    else:
        cdf = mul(add(_call(ERF, (mul(x, math.sqrt(0.5)),)), 1), 0.5)
        pdf = mul(_call(EXP, (mul(_call(SQUARE, (x,)), -0.5),)), 1 / math.sqrt(2 * math.pi))
        inner = add(cdf, mul(x, pdf))
    return as_dtype(mul(g, inner), dtype)


def sigmoid_backward(g, y):
    """g * y * (1 - y)."""
    return mul(g, mul(y, sub(1, y)))


def tanh_backward(g, y):
    """g * (1 - y * y)."""
    return mul(g, sub(1, _call(SQUARE, (y,))))


def threshold_backward(g, x, threshold):
    """g where x > threshold, else 0."""
    return _call(WHERE, (_call(GREATER, (x, threshold)), g, 0))


def leaky_relu_backward(g, x, negative_slope, self_is_result=False):
    """g where x > 0, else g * negative_slope."""
    return _call(WHERE, (_call(GREATER, (x, 0)), g, mul(g, float(negative_slope))))


# ---- rows: the normalised dims are whole, the others as they are ------------------------------------------------------

def moments(x, dims, eps: float):
    """Mean and 1 / sqrt(variance + eps) over the dims, kept with extent 1."""
    mean = average(x, dims)
    variance = average(_call(SQUARE, (sub(x, mean),)), dims)
    return mean, _call(RSQRT, (add(variance, eps),))


def inverse_rms(x, dims, eps: float):
    """1 / sqrt(mean of squares + eps) over the dims, kept with extent 1."""
    return _call(RSQRT, (add(average(_call(SQUARE, (x,)), dims), eps),))


def norm_backward(g, x, mean, rstd, weight, dims, wanted):
    """Of layer_norm, and of rms_norm where mean is None. With n = (x - mean) * rstd and h = g * weight:
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


def softmax_backward(g, y, dim: int):
    """y * (g - sum(g * y)): over the dim."""
    product = mul(g, y)
    return sub(product, mul(y, settled(total(product, [dim], True))))


def log_softmax_backward(g, y, dim: int, row_sum=None):
    """g - exp(y) * sum(g) over the dim; row_sum: that sum, where it is known."""
    row_sum = settled(total(g, [dim], True)) if row_sum is None else row_sum
    return sub(g, mul(_call(EXP, (y,)), row_sum))


# ---- cross-entropy: classes may be sharded -----------------------------------------------------------------------------

def _classes(x, dim: int):
    """The numbers of the classes along dim, sharded as x's dim is."""
    placements = [(1, 0, *one[2:]) if one[0] == 1 and one[1] == dim else (0, 0, 0) for one in x._placements]
    numbers = create_like("arange", x, [x.shape[dim]], INT64, [0, 1], placements)
    return _call(RESHAPE, (numbers,), shape=[x.shape[dim] if d == dim else 1 for d in range(x.ndim)])


def chosen(x, labels, dim: int):
    """Where the label of a row is the class: bool of x's shape, placed as x. An ignored label is no class."""
    return _call(EQUAL, (unsqueezed(labels, dim), _classes(x, dim)))


def _part_sums(x, dim: int):
    """Sums along a dim within each shard of it, as a dim with one element per shard: nothing is pending. Where the shards are
    uneven, the pending sum over the dim."""
    parts = math.prod(n for n, one in zip(x._mesh.shape, x._placements) if one[0] == 1 and one[1] == dim)
    if x.shape[dim] % parts:
        return total(x, [dim], True)
    shape = [*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1:]]
    return total(_call(RESHAPE, (x,), shape=shape), [dim + 1])


def nll_loss(x, labels, weight, dim: int, reduction: int, ignore_index: int):
    """-w[label] * x[label] of log probabilities x, 0 where the label is ignored; its sum, or the mean by weights. Returns it,
    and the sum of weights. reduction: 0 none, 1 mean, 2 sum. Where classes or rows are sharded, the two sums are reduced
    together."""
    hit = chosen(x, labels, dim)
    if 0 <= ignore_index < x.shape[dim]:
        hit = _call(OPS["logical_and"], (hit, unsqueezed(_call(OPS["not_equal"], (labels, ignore_index)), dim)))
    w = None
    if weight is not None:
        w = _call(RESHAPE, (weight,), shape=[x.shape[dim] if d == dim else 1 for d in range(x.ndim)])
    terms = _call(WHERE, (hit, x if w is None else mul(x, w), 0))
    if reduction == 0:
        return settled(mul(total(terms, [dim]), -1)), full_like(x, (), x._dtype, 0)
    weights = as_dtype(hit, F32) if w is None else wide(_call(WHERE, (hit, w, 0)))
    parts = [_part_sums(wide(terms), dim), _part_sums(weights, dim)]
    if parts[0]._has_partial:
        both = [total(one, range(one.ndim)) for one in parts]
        top, count = _tessera.call_all(MOVE, tuple(both), placements_each=[[(0, 0, 0)] * x._mesh_ndim] * 2)
    else:
        both = settled(total(_call(OPS["stack"], tuple(parts), dims=[0]), range(1, parts[0].ndim + 1)))
        top, count = (_call(SLICE, (both,), index=[(1, i, 1, 1)]) for i in (0, 1))
    loss = mul(top, -1) if reduction == 2 else div(mul(top, -1), as_dtype(count, top._dtype))
    return as_dtype(loss, x._dtype), as_dtype(count, x._dtype)


def nll_loss_backward(g, x, labels, weight, dim: int, reduction: int, ignore_index: int, total_weight):
    """The gradient of x (-w[label] * g at the label, divided by total_weight for the mean), and its sum over the classes."""
    scale = mul(g, -1) if reduction != 1 else div(mul(g, -1), total_weight)
    if reduction == 0:
        scale = unsqueezed(scale, dim)
    hit = chosen(x, labels, dim)
    valid = unsqueezed(_call(OPS["not_equal"], (labels, ignore_index)), dim)
    if 0 <= ignore_index < x.shape[dim]:
        hit = _call(OPS["logical_and"], (hit, valid))
    if weight is not None:
        w = _call(RESHAPE, (weight,), shape=[x.shape[dim] if d == dim else 1 for d in range(x.ndim)])
        return _call(WHERE, (hit, mul(w, scale), 0)), None
    return _call(WHERE, (hit, scale, 0)), _call(WHERE, (valid, scale, 0))


# ---- attention: batch and heads stay sharded, sequence and features are whole --------------------------------------------

def attention_scores(q, k, mask, is_causal: bool, scale: float):
    """q @ k.T * scale, with the mask, in f32 of halves. q: (batch, heads, groups, L, E), k: (batch, heads, S, E)."""
    scores = mul(einsum("bhgqd,bhkd->bhgqk", wide(q), wide(k)), scale)
    minus_infinity = float("-inf")
    if is_causal:
        rows, columns = scores.shape[-2:]
        whole = [(0, 0, 0)] * q._mesh_ndim
        at_row = _call(RESHAPE, (create_like("arange", q, [rows], INT64, [0, 1], whole),), shape=[rows, 1])
        at_column = create_like("arange", q, [columns], INT64, [0, 1], whole)
        scores = _call(WHERE, (_call(OPS["greater_equal"], (at_row, at_column)), scores, minus_infinity))
    if mask is not None:
        scores = _call(WHERE, (mask, scores, minus_infinity)) if mask._dtype == BOOL else add(scores, as_dtype(mask, scores._dtype))
    return scores


def attention_backward(g, q, k, v, mask, is_causal: bool, scale: float, keep=None):
    """With p = softmax(scores) and, where dropout kept some, p' = p * keep: dv = p'.T @ g, dp = (g @ v.T) * keep,
    ds = p * (dp - sum(dp * p)) * scale, dq = ds @ k, dk = ds.T @ q. The sums over groups are those of shared heads."""
    p = _call(SOFTMAX, (attention_scores(q, k, mask, is_causal, scale),), dims=[4])
    shown = p if keep is None else mul(p, keep)
    g32 = wide(g)
    dv = einsum("bhgqk,bhgqd->bhkd", shown, g32)
    dp = einsum("bhgqd,bhkd->bhgqk", g32, wide(v))
    if keep is not None:
        dp = mul(dp, keep)
    product = mul(dp, p)
    ds = mul(sub(product, mul(p, total(product, [4], True))), scale)
    dq = einsum("bhgqk,bhkd->bhgqd", ds, wide(k))
    dk = einsum("bhgqk,bhgqd->bhkd", ds, wide(q))
    return as_dtype(dq, q._dtype), as_dtype(dk, k._dtype), as_dtype(dv, v._dtype)


# ---- embedding: rows of a table ----------------------------------------------------------------------------------------

def embedding(weight, numbers):
    """The rows of a weight at the numbers, (..., features). Where its rows are sharded each worker gives those that it has:
    a pending sum. Where its columns are, the result's last dim is."""
    shape = list(numbers.shape)
    flat = _call(RESHAPE, (numbers,), shape=[numbers.size])
    if any(one[0] == 1 and one[1] == 0 for one in weight._placements):
        rows = _call(TAKE, (weight, unsqueezed(flat, 1)), dims=[0])
    else:
        rows = _call(TAKE, (weight, flat), dims=[0])
    return rows if len(shape) == 1 else _call(RESHAPE, (rows,), shape=[*shape, weight.shape[1]])


def embedding_backward(g, numbers, count: int, padding: int):
    """The gradient of the weight: rows of g added up at the numbers. Tokens that are sharded give a pending sum (each worker
    adds its own), features that are sharded stay so."""
    lead = len(numbers.shape)
    features = g.shape[-1]
    dtype, g = g._dtype, wide(g)
    tokens = numbers.size
    flat = _call(RESHAPE, (g,), shape=[tokens, features])
    at = _call(RESHAPE, (numbers,), shape=[tokens])
    if padding >= 0:
        flat = _call(WHERE, (_call(OPS["not_equal"], (unsqueezed(at, 1), padding)), flat, 0))
    # A dim for each mesh dim that shards the tokens: what is added up before it is summed stays on its worker.
    mesh_shape = g._mesh.shape
    cut = [d for d, one in enumerate(flat._placements) if one[0] == 1 and one[1] == 0]
    parts = math.prod(mesh_shape[d] for d in cut)
    if not cut or tokens % parts:
        placements = [(1, 1, 0) if one[0] == 1 and one[1] == 1 else (0, 0, 0) for one in flat._placements]
        zeros = full_like(g, (count, features), flat._dtype, 0, placements)
        return as_dtype(_call(SCATTER, (zeros, at, flat), dims=[0], mode="add"), dtype)
    extents = [mesh_shape[d] for d in cut]
    lead = len(extents)
    flat = _call(RESHAPE, (flat,), shape=[*extents, tokens // parts, features])
    placements = [(1, cut.index(d), 0) if d in cut else (1, lead + 1, 0) if one[0] == 1 else (0, 0, 0)
                  for d, one in enumerate(g._placements)]
    at = _call(RESHAPE, (at,), shape=[*extents, tokens // parts, 1])
    zeros = full_like(g, (*extents, count, features), flat._dtype, 0, placements)
    sums = _call(SCATTER, (zeros, at, flat), dims=[lead], mode="add")
    return as_dtype(total(sums, range(lead)), dtype)


# ---- optimizers: each of a parameter's placements ------------------------------------------------------------------------

def adam(p, g, m, v, highest, step, *, lr, beta1, beta2, weight_decay, eps, maximize, is_decoupled):
    """One step of Adam, or of AdamW where the decay is decoupled; step (counted from 1) is a 0-d handle, lr a number or one.
    Returns the parameter, both moments, and the highest second moment (amsgrad) or None.

    Each call but the first of a run takes a result of the one before it, so that the service plans a run as one: the numbers
    of the step, the first moment, and the second one with the parameter. The parameter p (1 - w) - s, with the decoupled
    decay w, is lerp(p, -s / w, w) for that."""
    dtype, p, g = p._dtype, wide(p), wide(g)
    if maximize:
        g = mul(g, -1)
    is_tensor = isinstance(lr, _tessera.Tensor)
    is_blended = bool(is_decoupled and weight_decay and not is_tensor)
    if weight_decay and is_decoupled and is_tensor:
        p = mul(p, sub(1, mul(lr, weight_decay)))
    elif weight_decay and not is_decoupled:
        g = add(g, mul(p, weight_decay))
    count = as_dtype(step, F64)     # 1 - beta ** step loses its digits in f32
    first = as_dtype(sub(1, _call(POW, (beta1, count))), F32)
    second = as_dtype(_call(SQRT, (sub(1, _call(POW, (beta2, count))),)), F32)
    if is_blended:
        size = div(-1 / weight_decay, first)
    else:
        size = div(lr if is_tensor else number(lr, float, "rate"), first)
    m = _call(LERP, (m, g, 1 - beta1))
    v = _call(LERP, (v, _call(SQUARE, (g,)), 1 - beta2))
    base = v
    if highest is not None:
        base = highest = _call(OPS["maximum"], (highest, v))
    update = mul(div(m, add(div(_call(SQRT, (base,)), second), eps)), size)
    if is_blended:
        p = _call(LERP, (p, update, number(lr, lambda rate: rate * weight_decay, "decay")))
    else:
        p = sub(p, update)
    return as_dtype(p, dtype), m, v, highest


def sgd(p, g, buffer, *, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """One step of SGD; buffer: that of the momentum, None on the first step. Returns the parameter and the buffer."""
    if maximize:
        g = mul(g, -1)
    if weight_decay:
        g = add(g, mul(p, weight_decay))
    if momentum:
        buffer = g if buffer is None else add(mul(buffer, momentum), mul(g, 1 - dampening))
        g = add(g, mul(buffer, momentum)) if nesterov else buffer
    return sub(p, mul(g, lr if isinstance(lr, _tessera.Tensor) else number(lr, float, "rate"))), buffer

