"""torch.nn.attention.flex_attention on this device: scores and masks by functions of the caller, as ops on whole tensors.

score_mod and mask_mod are written for one score. They get all of them here: the scores (batch, heads, length of queries, of keys), and
the four indices as tensors that broadcast to them, (batch,1,1,1) to (1,1,1,keys). A function of four numbers gives the same of tensors. Autograd
records it, so whatever tensors they take get their gradients. Shards of batches and heads stay.
"""

from __future__ import annotations

import inspect
import math
import sys
import types

import torch

from .._errors import InvalidArgumentError
from ._adapters import _imports
from ._placing import iota
from ._tensor import Tensor, handle_of, wrap

_MODULE = "torch.nn.attention.flex_attention"


def attention(query, key, value, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False, kernel_options=None, *,
              return_aux=None):
    """flex_attention of tensors of tessera. kernel_options are for torch's kernels, and change nothing. A block mask may be of any device: its
    mask_mod is asked again, of the indices here."""
    _check(query, key, value, enable_gqa, block_mask)
    if return_lse and return_aux is not None:
        raise InvalidArgumentError("flex_attention: return_lse and return_aux are both given; return_aux=AuxRequest(lse=True) is the newer one")
    if torch.is_autocast_enabled(query.device.type):
        kind = torch.get_autocast_dtype(query.device.type)
        query, key, value = (one.to(kind) for one in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        scores = _scores(query, key, value, score_mod, block_mask, 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
        batch, heads, length, keys = scores.shape
        shared = key.shape[1]
        weights = torch._safe_softmax(scores, -1).to(value.dtype).reshape(batch, shared, heads // shared * length, keys)
        out = (weights @ value).reshape(batch, heads, length, value.shape[-1])
        if return_aux is not None:
            other = sys.modules[_MODULE].AuxOutput
            return out, other(lse=_log_sum(scores) if return_aux.lse else None, max_scores=scores.amax(-1) if return_aux.max_scores else None)
        return (out, _log_sum(scores)) if return_lse else out


def _check(query, key, value, enable_gqa, block_mask) -> None:
    shown = f"query is {query!r}, key {key!r}, value {value!r}"
    for one in (query, key, value):
        if not isinstance(one, Tensor):
            raise InvalidArgumentError(f"flex_attention: expected all tensors to be on the same device: {shown}")
    if not query.ndim == key.ndim == value.ndim == 4:
        raise InvalidArgumentError(f"flex_attention: takes (batch, heads, length, features): {shown}")
    if not query.dtype == key.dtype == value.dtype:
        raise InvalidArgumentError(f"flex_attention: the dtypes differ: {shown}")
    if query.shape[-1] != key.shape[-1] or key.shape[:3] != value.shape[:3]:
        raise InvalidArgumentError(f"flex_attention: query and key have other features, or key and value other heads or lengths: {shown}")
    if key.shape[0] not in (1, query.shape[0]):
        raise InvalidArgumentError(f"flex_attention: the batches differ: {shown}")
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared and not (enable_gqa and shared and heads % shared == 0):
        raise InvalidArgumentError(f"flex_attention: {heads} heads of queries beside {shared}: "
                                   f"{'not a multiple' if enable_gqa else 'enable_gqa=True lets several share one'}: {shown}")
    if block_mask is not None and getattr(block_mask.mask_mod, "__name__", "") == "_sliced_mask_mod_error":
        raise RuntimeError("Cannot use mask_mod from a sliced BlockMask")


def _scores(query, key, value, score_mod, block_mask, scale: float):
    """The scores before the softmax: query @ key.T * scale, as score_mod changes it, and -inf where the mask is false."""
    batch, heads, length, features = query.shape
    shared, keys = key.shape[1], key.shape[2]
    kind = torch.float64 if query.dtype is torch.float64 else torch.float32
    grouped = query.to(kind).reshape(batch, shared, heads // shared * length, features)     # heads that share keys, one after the other
    scores = (grouped @ key.to(kind).transpose(-2, -1)).reshape(batch, heads, length, keys) * scale
    h = handle_of(query)
    places = [wrap(iota(h, n)).reshape([n if d == at else 1 for d in range(4)]) for at, n in enumerate((batch, heads, length, keys))]
    if score_mod is not None:
        scores = score_mod(scores, *places).to(kind)
    if block_mask is not None and getattr(block_mask.mask_mod, "__name__", "") != "noop_mask":
        scores = torch.where(block_mask.mask_mod(*places), scores, float("-inf"))
    return scores.expand(batch, heads, length, keys)


def _log_sum(scores):
    """The logarithm of the sum of exponentials; -inf, without a gradient, where a query sees no key."""
    sees_none = (scores == float("-inf")).all(-1)
    return torch.where(sees_none, float("-inf"), torch.where(sees_none.unsqueeze(-1), 0.0, scores).logsumexp(-1))


# ---- its place in torch -----------------------------------------------------------------------------------------------------------------

def _take_place(module) -> None:
    """flex_attention stays the function that it is, for all that hold it; of tensors of tessera it calls the one above."""
    function = module.flex_attention
    module._of_torch = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    module._of_torch.__kwdefaults__ = function.__kwdefaults__
    module._of_tessera = attention
    parameters = inspect.signature(function).parameters.values()
    taken = ", ".join(f"{'*, ' if one.kind is one.KEYWORD_ONLY else ''}{one.name}=None" for one in parameters)
    given = ", ".join(f"{one.name}={one.name}" for one in parameters)
    text = f"def flex_attention({taken}):\n    return (_of_tessera if query.device.type == 'tessera' else _of_torch)({given})\n"
    made: dict = {}
    exec(compile(text, module.__file__, "exec"), made)
    function.__code__ = made["flex_attention"].__code__


def hook() -> None:
    """Takes its place once the module is there, which takes a second to import."""
    _imports.when_imported(_MODULE, _take_place)
