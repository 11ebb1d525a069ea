"""DistributedDataParallel: replicas of parameters, the batch in shards, gradients reduced in buckets during backward."""

from __future__ import annotations

import torch
from torch import nn

from .._errors import InvalidArgumentError
from .._mesh import DeviceMesh
from .._placements import Replicate, Shard
from . import _gradients
from ._moving import default_mesh, distribute_module, distribute_tensor
from ._tensor import Tensor


class DistributedDataParallel(nn.Module):
    """A module whose batches are cut along a mesh dim, with torch's name and signature where they mean something here.

    module: its parameters that are not on tessera yet are replicated on the mesh (others keep their placements, so tensor
    parallelism composes). device_mesh: default default_placement's; of a mesh of several dims say which one cuts the batch:
    mesh["dp"]. bucket_cap_mb: gradients are reduced when so many MiB of them are there, and what is left when backward ends;
    each time by one op. CPU tensors that go into forward are brought to the mesh in Shard(0); those on tessera stay as they
    are. Parameters that a step doesn't use need nothing (find_unused_parameters is taken and has no effect).

    >>> model = tt.DistributedDataParallel(model, mesh["dp"])
    >>> loss = torch.nn.functional.cross_entropy(model(images), labels)
    >>> loss.backward()
    """

    def __init__(self, module: nn.Module, device_mesh: DeviceMesh | None = None, *, bucket_cap_mb: float = 25,
                 find_unused_parameters: bool = False, broadcast_buffers: bool = True, gradient_as_bucket_view: bool = False,
                 static_graph: bool = False):
        super().__init__()
        mesh = default_mesh() if device_mesh is None else device_mesh
        if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
            raise InvalidArgumentError(f"DistributedDataParallel: device_mesh is {mesh!r}; it takes a mesh of one dim, as mesh['dp']")
        if not bucket_cap_mb > 0:
            raise InvalidArgumentError(f"DistributedDataParallel: bucket_cap_mb is {bucket_cap_mb!r}, not above 0")
        self.device_mesh = mesh
        self.module = distribute_module(module, DeviceMesh._wrap(mesh._session, mesh._raw))
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                _gradients.watch(parameter)
                parameter._bucket_bytes = int(bucket_cap_mb * (1 << 20))

    def _brought(self, one):
        if isinstance(one, torch.Tensor) and not isinstance(one, Tensor):
            return distribute_tensor(one, self.device_mesh, [Shard(0) if one.ndim else Replicate()])
        if isinstance(one, (list, tuple)) and not hasattr(one, "_fields"):
            return type(one)(self._brought(item) for item in one)
        if isinstance(one, dict):
            return {key: self._brought(item) for key, item in one.items()}
        return one

    def forward(self, *inputs, **kwargs):
        return self.module(*self._brought(inputs), **self._brought(kwargs))

    def no_sync(self):
        """Within the block backward reduces nothing; the next one after it reduces the sums."""
        return _gradients.no_sync()


DistributedDataParallel.__module__ = "tessera.torch"
