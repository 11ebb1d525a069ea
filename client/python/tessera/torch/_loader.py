"""Batches of torch's DataLoader on the mesh, in shards."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from .._errors import InvalidArgumentError
from .._mesh import DeviceMesh
from .._placements import Replicate, Shard
from ._moving import default_mesh, distribute_tensor
from ._tensor import Tensor


class ShardedLoader:
    """Iterates over a DataLoader's batches, on the mesh and in shards.

    loader: a DataLoader of global batches, or a list of them whose batches are put one after the other, as with torch's
    DistributedSampler: one for each rank. device_mesh: default the default mesh; mesh["dp"] where that is one dim of several.
    placements: of every tensor of a batch that has dims, default Shard(0) on a mesh of one dim; others are replicated. Lists, tuples
    and dicts of tensors stay such; what is no tensor is handed on.

    The next batch is on its way to the workers while a step asks for its ops, so they needn't wait for it; no more than two batches
    are there at a time.

    >>> for images, labels in tt.ShardedLoader(DataLoader(dataset, batch_size=96, shuffle=True), mesh["dp"]):
    ...     train_step(images, labels)
    """

    def __init__(self, loader, device_mesh: DeviceMesh | None = None, placements=None):
        self.loaders = list(loader) if isinstance(loader, (list, tuple)) else [loader]
        if not self.loaders or not all(isinstance(one, DataLoader) for one in self.loaders):
            raise InvalidArgumentError(f"ShardedLoader: takes a DataLoader or a list of them, not {loader!r}")
        mesh = default_mesh() if device_mesh is None else device_mesh
        if not isinstance(mesh, DeviceMesh):
            raise InvalidArgumentError(f"ShardedLoader: device_mesh is {mesh!r}, not a DeviceMesh")
        if placements is None:
            if mesh.ndim != 1:
                raise InvalidArgumentError(f"ShardedLoader: {mesh} has {mesh.ndim} dims; say placements=, or give one dim, as mesh['dp']")
            placements = [Shard(0)]
        mesh._placements(placements, "ShardedLoader")       # refuses what doesn't fit the mesh
        self.device_mesh, self.placements = mesh, list(placements)

    def __len__(self) -> int:
        return min(len(one) for one in self.loaders)

    def set_epoch(self, epoch: int) -> None:
        """Has the samplers that can shuffle anew, as DistributedSampler does by epoch."""
        for one in self.loaders:
            if hasattr(one.sampler, "set_epoch"):
                one.sampler.set_epoch(epoch)

    def __iter__(self):
        ahead = None
        for parts in zip(*self.loaders):
            batch = self._brought(parts[0] if len(parts) == 1 else _joined(parts))
            if ahead is not None:
                yield ahead
            ahead = batch
        if ahead is not None:
            yield ahead

    def _brought(self, one):
        if isinstance(one, Tensor):
            return one
        if isinstance(one, torch.Tensor):
            placements = [self._of(one, placement) for placement in self.placements]
            return distribute_tensor(one, self.device_mesh, placements)
        return _mapped(self._brought, one)

    @staticmethod
    def _of(tensor, placement):
        """A Shard of a dim that the tensor doesn't have is Replicate for it."""
        return Replicate() if isinstance(placement, Shard) and not -tensor.ndim <= placement.dim < tensor.ndim else placement


def _mapped(function, *ones):
    first = ones[0]
    if isinstance(first, dict):
        return {key: function(*(one[key] for one in ones)) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(function(*items) for items in zip(*ones)))
    if isinstance(first, (list, tuple)):
        return type(first)(function(*items) for items in zip(*ones))
    return first


def _joined(parts):
    """Batches of several loaders as one: tensors one after the other along dim 0."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts) if parts[0].ndim else parts[0]
    return _mapped(lambda *items: _joined(items), *parts)


ShardedLoader.__module__ = "tessera.torch"
