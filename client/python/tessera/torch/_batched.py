"""torch.func.vmap of attention: what is mapped over is a part of the batch. Of other ops torch knows by itself what they are when mapped.

Kernels of functorch's batching, which see the tensors of one vmap as they are, with the dim that is mapped over.
"""

from __future__ import annotations

import torch
from torch._C import _functorch

from ._create import _library

_aten = torch.ops.aten
_NAME = "_scaled_dot_product_fused_attention_overrideable"
_HIDDEN = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)


def _level() -> int:
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    return retrieve_current_functorch_interpreter().level()


def _unwrapped(x, level: int):
    """(the tensor, the dim that is mapped over, None where none is)."""
    if x is None or not _functorch.is_batchedtensor(x) or _functorch.maybe_get_level(x) != level:
        return x, None
    return _functorch._unwrap_batched(x, level)


def _leading(pair, size: int):
    """With the mapped dim first, as often as it is mapped."""
    x, dim = pair
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _as_batch(pair, size: int):
    x = _leading(pair, size)
    return x.reshape(size * x.shape[1], *x.shape[2:])


def _bias_as_batch(pair, size: int, batch: int):
    if pair[0] is None:
        return None
    x = _leading(pair, size)
    x = x.reshape(size, *[1] * (5 - x.ndim), *x.shape[1:])
    return x.expand(size, batch, *x.shape[2:]).reshape(size * batch, *x.shape[2:])


def _mapped(x, size: int, level: int):
    """A result whose batch has what was mapped over."""
    return None if x is None else _functorch._add_batch_dim(x.reshape(size, -1, *x.shape[1:]), 0, level)


def _size(pairs) -> int:
    return next(x.shape[dim] for x, dim in pairs if dim is not None)


def _refuse(dropout_p: float) -> None:
    if dropout_p > 0:
        raise NotImplementedError(f"aten.{_NAME}: with dropout has no row in Tessera within torch.func.vmap")


def _attention(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    _refuse(dropout_p)
    level = _level()
    pairs = [_unwrapped(one, level) for one in (query, key, value, attn_bias)]
    with torch._C._ExcludeDispatchKeyGuard(_HIDDEN):
        size = _size(pairs)
        operands = [_as_batch(one, size) for one in pairs[:3]]
        out, lse, *rest = getattr(_aten, _NAME).default(*operands, _bias_as_batch(pairs[3], size, operands[0].shape[0] // size), dropout_p, is_causal,
                                                        return_debug_mask, scale=scale)
        return _mapped(out, size, level), _mapped(lse, size, level), *rest


def _attention_backward(grad, query, key, value, attn_bias, wanted, out, lse, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, seed, offset, *,
                        scale=None):
    _refuse(dropout_p)
    level = _level()
    pairs = [_unwrapped(one, level) for one in (grad, query, key, value, attn_bias, out, lse)]
    plain = [_unwrapped(one, level)[0] for one in (cum_q, cum_k, seed, offset)]
    with torch._C._ExcludeDispatchKeyGuard(_HIDDEN):
        size = _size(pairs)
        g, q, k, v, out, lse = (_as_batch(one, size) for one in (*pairs[:4], *pairs[5:]))
        bias = _bias_as_batch(pairs[4], size, q.shape[0] // size)
        *found, of_bias = getattr(_aten, f"{_NAME}_backward").default(
            g, q, k, v, bias, wanted, out, lse, *plain[:2], max_q, max_k, dropout_p, is_causal, *plain[2:], scale=scale)
        results = [_mapped(one, size, level) for one in found]
        if of_bias is None or not wanted[3]:
            return *results, None
        # Back to the shape that the bias has where it isn't mapped: summed over the batch that it was expanded to.
        own = pairs[4][0].ndim - (pairs[4][1] is not None)
        of_bias = of_bias.reshape(size, -1, *of_bias.shape[1:])
        shape = _leading(pairs[4], size).shape[1:]
        of_bias = of_bias.sum_to_size((size, *[1] * (4 - own), *shape)).reshape(size, *shape)
        return *results, _functorch._add_batch_dim(of_bias, 0, level)


_library.impl(f"{_NAME}", _attention, "FuncTorchBatched")
_library.impl(f"{_NAME}_backward", _attention_backward, "FuncTorchBatched")
