"""Nested tensors of torch's jagged layout: sequences of different lengths, as one tensor of all their values and the offsets of their starts.

torch's NestedTensor is a class over `values` and `offsets`. Both are tensors of this device, and torch takes most ops apart into ops on values.
The rows here bring sequences to one length and back; attention goes by them. A call that needs the longest length or all lengths
(attention, `unbind`) waits for the offsets, as it does on a GPU; a list of tensors has told them.

>>> x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged, device="tessera")
>>> x.to_padded_tensor(0.0).shape
torch.Size([2, 3, 4])
"""

from __future__ import annotations

import torch

import _tessera
from .. import _indexing
from .._errors import InvalidArgumentError
from .._ops import reshape
from .._catalog import OPS
from . import _composed, _ranges
from ._adapters import _imports
from ._dtypes import BOOL, INT64, INTEGERS
from ._operands import cast, within
from ._placing import full_like, iota
from ._table import row
from ._tensor import Tensor, handle_of, wrap

_call = _tessera.call
_TO_PADDED, _FROM_PADDED = "_jagged_to_padded_dense_forward", "_padded_dense_to_jagged_forward"


def _ends(op: str, offsets):
    """The handle of the offsets: sequence i has the rows from offsets[i] to before offsets[i + 1]."""
    if len(offsets) != 1:
        raise NotImplementedError(f"aten.{op}.default: has no row in Tessera for sequences of sequences, which {len(offsets)} vectors of offsets are; "
                                  "one ragged dim has")
    if not isinstance(offsets[0], Tensor) or offsets[0].ndim != 1 or not offsets[0].shape[0]:
        raise InvalidArgumentError(f"{op}: offsets are {offsets[0]!r}, not a vector on tessera of one number more than there are sequences")
    return cast(handle_of(offsets[0]), INT64)


def _beside(is_there, handle):
    """A mask with the handle's dims, of which it has the first ones."""
    return reshape(is_there, (*is_there.shape, *[1] * (handle.ndim - is_there.ndim)))


def _padding(value: float, dtype: int):
    """The padding as a number of the dtype: infinite, where torch looks for the least of a sequence, it is the dtype's largest integer."""
    if dtype in INTEGERS:
        return within(int(min(max(value, -2.0**63), 2.0**63)), dtype)
    return bool(value) if dtype == BOOL else value


def _rows(h, numbers):
    return _composed.embedding(h, numbers) if h.ndim == 2 else _indexing.take(h, numbers, axis=0)


@row(f"{_TO_PADDED}.default", how="composed")
def to_padded(values, offsets, max_lengths, padding_value=0.0):
    """(rows, ...) as (sequences, length, ...): a shorter sequence ends in the padding, a longer one is cut."""
    h, ends = handle_of(values), _ends(_TO_PADDED, offsets)
    count, length = ends.shape[0] - 1, int(max_lengths[0])
    padding = _padding(padding_value, h._dtype)
    shape = (count, length, *h.shape[1:])
    if 0 in shape or not h.shape[0]:
        return wrap(full_like(h, shape, h._dtype, padding))
    at = reshape(ends[:-1], (count, 1)) + reshape(iota(ends, length), (1, length))
    is_there = at < reshape(ends[1:], (count, 1))
    rows = _rows(h, _ranges.indices(_call(OPS["where"], (is_there, at, 0)), h.shape[0]))
    return wrap(_call(OPS["where"], (_beside(is_there, rows), rows, padding)))


@row(f"{_FROM_PADDED}.default", how="composed")
def from_padded(dense, offsets, total_L=None):  # noqa: N803 - ATen's name
    """(sequences, length, ...) as (total_L, ...), the rows before each sequence's end; 0 where a sequence is longer. Waits for the last
    offset where total_L isn't given."""
    h, ends = handle_of(dense), _ends(_FROM_PADDED, offsets)
    count = ends.shape[0] - 1
    if h.ndim < 2 or h.shape[0] != count:
        raise InvalidArgumentError(f"{_FROM_PADDED}: takes a tensor (sequences, length, ...) with {count} sequences, as offsets say, not {dense!r}")
    length, total = h.shape[1], int(ends[-1]) if total_L is None else int(total_L)
    if not total or not h.size:
        return wrap(full_like(h, (total, *h.shape[2:]), h._dtype, 0))
    at = iota(ends, total)
    of = cast(_call(OPS["searchsorted"], (ends, at), side="right"), INT64) - 1
    place = at - _call(OPS["take_along_axis"], (ends, _call(OPS["maximum"], (of, 0))), dims=[0])
    is_there = _call(OPS["logical_and"], (_call(OPS["logical_and"], (of >= 0, of < count)), place < length))
    rows = _rows(reshape(h, (count * length, *h.shape[2:])), _call(OPS["where"], (is_there, of * length + place, 0)))
    return wrap(_call(OPS["where"], (_beside(is_there, rows), rows, _padding(0, h._dtype))))


def _refuse_strided(name: str):
    def refuse(*args, **kwargs):
        raise NotImplementedError(f"aten.{name}: has no row in Tessera: nested tensors in the strided layout are not built; "
                                  "use layout=torch.jagged")
    return refuse


for _name in ("_nested_tensor_from_tensor_list.default", "_nested_view_from_buffer.default", "_nested_view_from_buffer_copy.default",
              "_nested_tensor_from_mask.default", "_nested_from_padded.default"):
    row(_name, how="refused")(_refuse_strided(_name))


# ---- attention -------------------------------------------------------------------------------------------------------------------------

def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention of (batch, heads, ragged, features): each sequence's queries see its own keys. is_causal counts the
    queries and the keys of a sequence from its start."""
    from torch.nested._internal.nested_tensor import nested_from_padded
    for name, one in (("query", query), ("key", key), ("value", value)):
        if one.dim() != 4 or one._ragged_idx != 2 or one._lengths is not None:
            # InvalidArgumentError, as torch takes a NotImplementedError here as leave to go on with another op.
            raise InvalidArgumentError(f"scaled_dot_product_attention: {name} is {one!r}; on tessera nested tensors are (batch, heads, ragged, "
                                       "features) without holes: x.unflatten(-1, (heads, -1)).transpose(1, 2) of (batch, ragged, features)")
    longest = [one._get_max_seqlen() for one in (query, key)]
    # The ragged dim is beside the batch while it is padded, as torch's gradients of that take it.
    q, k, v = (one.transpose(1, 2).to_padded_tensor(0.0, output_size=(one.shape[0], length, one.shape[1], one.shape[3])).transpose(1, 2)
               for one, length in ((query, longest[0]), (key, longest[1]), (value, longest[1])))
    places = [torch.arange(length, device=query.device) for length in longest]
    mask = (places[1] < key.offsets().diff().unsqueeze(1))[:, None, None, :]
    if is_causal:
        mask = mask & (places[1] <= places[0].unsqueeze(1))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)
    return nested_from_padded(out, query.offsets(), 1, query._maybe_min_seqlen, longest[0], query._values.shape[1]).transpose(1, 2)


def _take_place(ops) -> None:
    """Attention of nested tensors of tessera is the one above; of the CPU it stays torch's."""
    from torch.nested._internal import sdpa
    of_torch = ops.jagged_scaled_dot_product_attention

    def choose(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if query.device.type != "tessera":
            return of_torch(*given)
        query, key, value, _ = sdpa._autocast(*given[:4])
        sdpa._validate_sdpa_input(query, key, value, *given[3:7])
        is_dense = query._ragged_idx == 1 and query.dim() > 3       # of whole sequences, of which there are different numbers
        return (of_torch if is_dense else attention)(query, key, value, *given[3:])

    ops.jagged_scaled_dot_product_attention = choose


def hook() -> None:
    _imports.when_imported("torch.nested._internal.ops", _take_place)
