"""Cells of LSTM and GRU, and other ops of modules that torch has a fused kernel of on devices: by their formulas, of ops that
the catalog has. Batches stay in shards.

What a cell keeps for its backward pass is in the order that torch's kernels have: of an LSTM the gates (in, forget, candidate,
out), of a GRU (reset, update, new, the state before, what the reset gate multiplies).
"""

from __future__ import annotations

import _tessera
from _tessera_ops import abs as abs_
from _tessera_ops import max as max_
from _tessera_ops import sigmoid, sign, sqrt, tanh, where
from _tessera_ops import sum as sum_
from .._ops import concat, reshape
from .._catalog import OPS
from ._composed import einsum
from ._dtypes import INT64
from ._placing import create_like, full_like, settled
from ._table import overload, row, run
from ._tensor import handle_of, wrap

_call = _tessera.call

def _parts(h, count: int) -> list:
    """The last dim in equal parts."""
    size = h.shape[-1] // count
    return [h[..., i * size:(i + 1) * size] for i in range(count)]

def _gates(*terms):
    """Terms that may be pending, or none, added up."""
    out = None
    for term in terms:
        if term is not None:
            out = handle_of(term) if out is None else out + handle_of(term)
    return settled(out)

def _given(grad, like):
    return full_like(like, like.shape, like._dtype, 0) if grad is None else handle_of(grad)

# ---- LSTM: c' = f c + i g, h = o tanh(c') -----------------------------------------------------------------------------------

@row("_thnn_fused_lstm_cell.default", how="composed")
def lstm_cell(of_input, of_state, cx, input_bias=None, hidden_bias=None):
    i, f, g, o = _parts(_gates(of_input, of_state, input_bias, hidden_bias), 4)
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    cy = f * handle_of(cx) + i * g
    return wrap(o * tanh(cy)), wrap(cy), wrap(concat([i, f, g, o], axis=-1))

@row("_thnn_fused_lstm_cell_backward_impl.default", how="composed")
def lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    (i, f, g, o), c = _parts(handle_of(workspace), 4), handle_of(cx)
    t = tanh(handle_of(cy))
    dh, dc = _given(grad_hy, c), _given(grad_cy, c)
    dc = dc + dh * o * (1.0 - t * t)
    gates = concat([dc * g * i * (1.0 - i), dc * c * f * (1.0 - f), dc * i * (1.0 - g * g), dh * t * o * (1.0 - o)], axis=-1)
    return wrap(gates), wrap(dc * f), wrap(sum_(gates, axis=0)) if has_bias else None

# ---- GRU: n = tanh(in + r (hn + b)), h = n + z (h - n) -----------------------------------------------------------------------

@row("_thnn_fused_gru_cell.default", how="composed")
def gru_cell(of_input, of_state, hx, input_bias=None, hidden_bias=None):
    (ir, iz, new), (hr, hz, kept) = _parts(_gates(of_input, input_bias), 3), _parts(_gates(of_state, hidden_bias), 3)
    r, z, h = sigmoid(ir + hr), sigmoid(iz + hz), handle_of(hx)
    n = tanh(new + r * kept)
    return wrap(n + z * (h - n)), wrap(concat([r, z, n, h, kept], axis=-1))

@row("_thnn_fused_gru_cell_backward.default", how="composed")
def gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, h, kept = _parts(handle_of(workspace), 5)
    grad = handle_of(grad_hy)
    dn = grad * (1.0 - z) * (1.0 - n * n)
    dr, dz = dn * kept * r * (1.0 - r), grad * (h - n) * z * (1.0 - z)
    of_input, of_state = concat([dr, dz, dn], axis=-1), concat([dr, dz, dn * r], axis=-1)
    biases = [wrap(sum_(one, axis=0)) if has_bias else None for one in (of_input, of_state)]
    return wrap(of_input), wrap(of_state), wrap(grad * z), *biases

# ---- sizes of images: each dim by itself, which is a product with what becomes of the unit matrix ----------------------------

def _spread(forward, n: int, m: int, scale, flags, dims: int, like):
    """[n, m]: of each of n elements its part in each of m. By the op itself, of the unit matrix as images of one column."""
    numbers = [reshape(create_like("arange", like, [n], INT64, [0, 1]), shape) for shape in ((n, 1), (1, n))]
    unit = where(numbers[0] == numbers[1], 1.0, 0.0)
    unit = wrap(reshape(_call(OPS["astype"], (unit,), dtype=like._dtype), (1, n, n, *[1] * (dims - 1))))
    out = forward(unit, [m, *[1] * (dims - 1)], *flags, scale, *[None] * (dims - 1))
    return reshape(handle_of(out), (n, m))

def _resized_backward(name: str, dims: int):
    forward = overload(f"{name}.default")

    def function(grad, output_size, input_size, *rest):
        flags = rest[:0 if "nearest" in name else 1]
        scales = (*rest[len(flags):], *[None] * dims)[:dims]
        out = handle_of(grad)
        letters = "abcde"[:dims + 2]
        for d in range(dims):
            n, m, scale = input_size[2 + d], output_size[d], scales[d]
            if "nearest" in name and n and m % n == 0 and (scale is None or scale == m // n):
                shape = list(out.shape)
                out = sum_(reshape(out, [*shape[:2 + d], n, m // n, *shape[3 + d:]]), axis=3 + d)
                continue
            one = letters[2 + d]
            out = einsum(f"{letters},x{one}->{letters.replace(one, 'x')}", out, _spread(forward, n, m, scale, flags, dims, out))
        return wrap(out)
    return function

for _names, _dims in ((("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d"), 1),
                      (("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"), 2),
                      (("upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_trilinear3d"), 3)):
    for _name in _names:
        row(f"{_name}_backward.default", how="composed")(_resized_backward(_name, _dims))

# ---- distances of rows, norms of weights, bags ---------------------------------------------------------------------------------

def _apart(x1, x2):
    return handle_of(x1)[..., :, None, :] - handle_of(x2)[..., None, :, :]

@row("_cdist_forward.default", how="composed")
def cdist(x1, x2, p, compute_mode=None):
    size = abs_(_apart(x1, x2))
    if p == 0:
        return wrap(sum_(where(size == 0.0, 0.0, 1.0 + 0.0 * size), axis=-1))
    if p == float("inf"):
        return wrap(max_(size, axis=-1))
    return wrap(sqrt(sum_(size * size, axis=-1)) if p == 2 else sum_(size if p == 1 else size ** p, axis=-1) ** (1.0 / p))

@row("_cdist_backward.default", how="composed")
def cdist_backward(grad, x1, x2, p, distances):
    """For x1. Where a distance is 0 there is none."""
    apart, far, g = _apart(x1, x2), handle_of(distances)[..., None], handle_of(grad)[..., None]
    if p == 0:
        return wrap(0.0 * sum_(apart, axis=-2))
    if p == 1:
        return wrap(sum_(g * sign(apart), axis=-2))
    if p == float("inf"):
        return wrap(sum_(where(abs_(apart) == far, g * sign(apart), 0.0), axis=-2))
    ratio = apart if p == 2 else sign(apart) * abs_(apart) ** (p - 1)
    safe = where(far == 0.0, 1.0, far)
    return wrap(sum_(where(far == 0.0, 0.0, g * ratio / (safe if p == 2 else safe ** (p - 1))), axis=-2))

@row("_weight_norm_interface_backward.default", how="composed")
def weight_norm_backward(grad_w, v, g, norms, dim):
    """w = v g / |v|, of each slice along the dim."""
    dw, v, g, norms = (handle_of(one) for one in (grad_w, v, g, norms))
    norms = reshape(norms, g.shape)
    along = sum_(dw * v, axis=tuple(d for d in range(v.ndim) if d != dim % v.ndim), keepdims=True)
    return wrap(g / norms * (dw - v * (along / (norms * norms)))), wrap(along / norms)

@row("transpose_.default", how="view")
def transpose_(x, dim0, dim1):
    x.data = run("transpose.int")(x, dim0, dim1)
    return x
