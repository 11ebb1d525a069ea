"""Placements on the way: pending sums that are reduced once, and where results that torch makes itself lie."""

from __future__ import annotations

import torch

from .._errors import InvalidArgumentError
from .._placements import REPLICATE, kept, replicated
from .._catalog import OPS
from ._cell import moved
from ._dtypes import INT64

SMALL_BYTES = 64 << 10      # docs/limits.md: small_gather


def elsewhere(op: str, tensor: torch.Tensor, beside) -> InvalidArgumentError:
    """The error of a tensor that is not on tessera. In an op of ATen _meeting.py says it again, with the op's name and a tensor that is."""
    shown = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
    error = InvalidArgumentError(f"{op}: expected all tensors to be on the same device, but {shown} stands beside "
                                 f"{beside if isinstance(beside, str) else repr(beside)}; tt.distribute_tensor(x, mesh, placements) brings it there")
    error.tensor = tensor
    return error


def dropped(placements, dims) -> list:
    """Placements of a tensor without some of its dims (sorted): Replicate where one of these was sharded."""
    return [one if not one.is_shard() else REPLICATE if one.dim in dims else one.on_dim(one.dim - sum(d < one.dim for d in dims))
            for one in placements]


def settled(handle, beside=None):
    """The handle without pending terms, which are reduced once (client/session_reduced.cc): to the shards of `beside`, a handle of the
    same shape, where that is cut.

    An op that needs the values of what it is given does so by itself, as the catalog says. This is for rows whose result is never
    pending, and for compositions that use parts of a value, or look at its placements."""
    return handle._reduced(beside)


def settled_dims(handle, dims):
    """Without pending terms, and whole along the dims: what works on whole rows takes it."""
    handle = handle._reduced()
    for one in handle._placements:
        if one is not REPLICATE and one.dim in dims:
            return moved(handle, [REPLICATE if one.is_shard() and one.dim in dims else one for one in handle._placements])
    return handle


def is_small(handle) -> bool:
    """Whether bringing the tensor together costs less than the messages that it saves, though it moves more bytes."""
    return handle.nbytes <= SMALL_BYTES


def full_like(handle, shape, code: int, value, placements=None):
    """A tensor of one value on the handle's mesh; with its placements where the shape is its shape, else Replicate."""
    return create_like("full", handle, shape, code, [value], placements)


def create_like(op: str, handle, shape, code: int, scalars, placements=None):
    """A creation row of the catalog (arange, rand, normal, ...) on the handle's mesh."""
    if placements is None:
        placements = kept(handle._placements) if tuple(shape) == handle.shape else replicated(handle._mesh_ndim)
    return handle._session._create(OPS[op], dtype=code, shape=list(shape), mesh=handle._mesh, placements=placements, scalars=scalars)


def iota(handle, count: int, code: int = INT64, start: int = 0):
    """start, start + 1, ... on the handle's mesh, whole everywhere: what stands beside a dim of it."""
    return create_like("arange", handle, [count], code, [start, 1], replicated(handle._mesh_ndim))
