"""Placements on the way: pending sums that are reduced once, and where results that torch makes itself lie.

Placements are in the encoded form of the extension module here: (0, 0, 0) is Replicate, (1, d, 0) Shard(d), (2, 0, op) Partial.
"""

from __future__ import annotations

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._tensor import OPS
from ._dtypes import INT64
from ._tensor import Tensor, handle_of

_call = _tessera.call
_MOVE, _FULL = OPS["redistribute"], OPS["full"]
REPLICATE = (0, 0, 0)
SMALL_BYTES = 64 << 10      # docs/limits.md: small_gather


def elsewhere(op: str, tensor: torch.Tensor, beside) -> InvalidArgumentError:
    """The error of a tensor that is not on tessera. In an op of ATen _meeting.py says it again, with the op's name and a tensor that is."""
    shown = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
    error = InvalidArgumentError(f"{op}: expected all tensors to be on the same device, but {shown} stands beside "
                                 f"{beside if isinstance(beside, str) else repr(beside)}; tt.distribute_tensor(x, mesh, placements) brings it there")
    error.tensor = tensor
    return error


def shard(dim: int) -> tuple:
    return (1, dim, 0)


def kept(handle) -> list:
    """The handle's placements, with Replicate where it is pending: what is made like it has these."""
    return [REPLICATE if one[0] == 2 else one for one in handle._placements]


def dropped(placements, dims) -> list:
    """Placements of a tensor without some of its dims (sorted): Replicate where one of these was sharded."""
    out = []
    for one in placements:
        if one[0] == 1:
            one = REPLICATE if one[1] in dims else (1, one[1] - sum(d < one[1] for d in dims), *one[2:])
        out.append(one)
    return out


def settled(tensor, beside=None):
    """The handle of a tensor (or the handle given) without pending terms: they are reduced once and remembered.

    beside: a handle of the same shape that stands beside it; where that is sharded, the terms are reduced to its shards."""
    is_tensor = type(tensor) is Tensor
    if is_tensor:
        handle = tensor._cell.handle if tensor._view is None else handle_of(tensor)
        if handle is None:
            handle = tensor._cell.get()
    elif isinstance(tensor, torch.Tensor):
        raise elsewhere("tessera", tensor, "others that are")
    else:
        handle = tensor
    if not handle._has_partial:
        return handle
    remembered = tensor._cell if is_tensor and tensor._view is None else None
    if remembered is not None and remembered.reduced is not None and remembered.reduced[0] is handle:
        return remembered.reduced[1]
    placements = list(handle._placements)
    other = None if beside is None or beside.shape != handle.shape else beside._placements
    taken = [one[1] for one in placements if one[0] == 1]
    for i, one in enumerate(placements):
        if one[0] == 2:
            goes = other is not None and other[i][0] == 1 and other[i][1] not in taken
            placements[i] = other[i] if goes else REPLICATE
    out = _call(_MOVE, (handle,), placements=placements)
    if remembered is not None:
        remembered.reduced = (handle, out)
    return out


def settled_dims(handle, dims):
    """Without pending terms, and whole along the dims: what works on whole rows takes it."""
    own = list(handle._placements)
    placements = [REPLICATE if one[0] == 2 or (one[0] == 1 and one[1] in dims) else one for one in own]
    return handle if placements == own else _call(_MOVE, (handle,), placements=placements)


def is_small(handle) -> bool:
    """Whether bringing the tensor together costs less than the messages that it saves, though it moves more bytes."""
    return handle.nbytes <= SMALL_BYTES


def full_like(handle, shape, code: int, value, placements=None):
    """A tensor of one value on the handle's mesh; with its placements where the shape is its shape, else Replicate."""
    if placements is None:
        placements = kept(handle) if tuple(shape) == handle.shape else [REPLICATE] * handle._mesh_ndim
    return handle._session._create(_FULL, dtype=code, shape=list(shape), mesh=handle._mesh, placements=placements, scalars=[value])


def create_like(op: str, handle, shape, code: int, scalars, placements=None):
    """A creation row of the catalog (arange, rand, normal, ...) on the handle's mesh."""
    if placements is None:
        placements = kept(handle) if tuple(shape) == handle.shape else [REPLICATE] * handle._mesh_ndim
    return handle._session._create(OPS[op], dtype=code, shape=list(shape), mesh=handle._mesh, placements=placements, scalars=scalars)


def iota(handle, count: int, code: int = INT64, start: int = 0):
    """start, start + 1, ... on the handle's mesh, whole everywhere: what stands beside a dim of it."""
    return create_like("arange", handle, [count], code, [start, 1], [REPLICATE] * handle._mesh_ndim)
