"""DistributedDataParallel: replicas of parameters, the batch in shards, gradients reduced in buckets during backward."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from .._errors import InvalidArgumentError, UnimplementedError
from .._mesh import DeviceMesh
from .._placements import Replicate, Shard
from . import _gradients
from ._dtypes import BF16, F16
from ._moving import default_mesh, distribute_module, distribute_tensor
from ._tensor import Tensor

_HOOKS = {"allreduce_hook": None, "fp16_compress_hook": F16, "bf16_compress_hook": BF16}


class DistributedDataParallel(nn.Module):
    """A module whose batches are cut along a mesh dim, with torch's name and signature.

    module: its parameters that are not on tessera yet are replicated on the mesh (others keep their placements, so tensor
    parallelism composes). device_mesh, which may stand second, or process_group: a mesh of one dim, as mesh["dp"]; default
    default_placement's. dim: the one of batches that is cut. bucket_cap_mb: gradients are reduced when so many MiB of them are
    there (default 25), and what is left when backward ends; each time by one op. CPU tensors that go into forward are brought
    to the mesh in Shard(dim); those on tessera stay as they are. Parameters that a step doesn't use need nothing, nor does a
    step that is another one each time: find_unused_parameters, static_graph, gradient_as_bucket_view, broadcast_buffers, init_sync,
    device_ids of one device and output_device are taken and have no effect.

    >>> model = tt.DistributedDataParallel(model, mesh["dp"])
    >>> loss = torch.nn.functional.cross_entropy(model(images), labels)
    >>> loss.backward()
    """

    def __init__(self, module: nn.Module, device_ids=None, output_device=None, dim: int = 0, broadcast_buffers: bool | None = None, init_sync: bool = True,
                 process_group=None, bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
                 gradient_as_bucket_view: bool = False, static_graph: bool = False, delay_all_reduce_named_params=None,
                 param_to_hook_all_reduce=None, mixed_precision=None, device_mesh: DeviceMesh | None = None,
                 skip_all_reduce_unused_params: bool = False, bucket_cap_mb_list=None, batched_grad_copy: bool = False,
                 forward_sync_buffers: bool | None = None, lazy_bucket_allocation: bool = False):
        super().__init__()
        if isinstance(device_ids, DeviceMesh):
            device_ids, device_mesh = None, device_ids
        for name, value, instead in (
                ("delay_all_reduce_named_params", delay_all_reduce_named_params, "no_sync() holds gradients back"),
                ("param_to_hook_all_reduce", param_to_hook_all_reduce, "no_sync() holds gradients back"),
                ("mixed_precision", mixed_precision, "torch.autocast('tessera', dtype) is the way"),
                ("bucket_cap_mb_list", bucket_cap_mb_list, "bucket_cap_mb is one number for all buckets")):
            if value is not None:
                raise UnimplementedError(f"DistributedDataParallel: {name} is {value!r}; {instead}")
        if device_ids is not None and len(device_ids) > 1:
            raise InvalidArgumentError(f"DistributedDataParallel: device_ids is {device_ids!r}; it is None or one device: the workers are those of device_mesh")
        mesh = next((one for one in (device_mesh, process_group) if one is not None), None)
        mesh = default_mesh() if mesh is None else mesh
        if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
            name = "process_group" if device_mesh is None and process_group is not None else "device_mesh"
            raise InvalidArgumentError(f"DistributedDataParallel: {name} is {mesh!r}; it takes a mesh of one dim, as mesh['dp']")
        bucket_cap_mb = 25 if bucket_cap_mb is None else bucket_cap_mb
        if not bucket_cap_mb > 0:
            raise InvalidArgumentError(f"DistributedDataParallel: bucket_cap_mb is {bucket_cap_mb!r}, not above 0")
        self.device_mesh, self.dim = mesh, dim
        self.module = distribute_module(module, DeviceMesh._wrap(mesh._session, mesh._raw))
        for parameter in self._trained():
            _gradients.watch(parameter)
            parameter._bucket_bytes = int(bucket_cap_mb * (1 << 20))

    def _trained(self) -> list:
        return [one for one in self.module.parameters() if one.requires_grad]

    def _brought(self, one):
        if isinstance(one, torch.Tensor) and not isinstance(one, Tensor):
            return distribute_tensor(one, self.device_mesh, [Shard(self.dim) if one.ndim > self.dim else Replicate()])
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

    @contextlib.contextmanager
    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False):
        """For ranks with batches of other numbers; here a batch is one tensor, and a block needs nothing."""
        yield

    def register_comm_hook(self, state, hook) -> None:
        """How gradients move, by the hooks of torch.distributed.algorithms.ddp_comm_hooks.default_hooks: allreduce_hook is what
        is done without; with fp16_compress_hook and bf16_compress_hook sums move in that dtype, and are the parameters' again.
        A hook of your own would work on a bucket's flat memory in this process, where gradients are not: it is refused."""
        name = getattr(hook, "__name__", repr(hook))
        if getattr(hook, "__module__", None) != "torch.distributed.algorithms.ddp_comm_hooks.default_hooks" or name not in _HOOKS:
            raise UnimplementedError(f"register_comm_hook: {name} works on a bucket's memory, and gradients lie on workers; the hooks that are done there are "
                                     f"{', '.join(_HOOKS)} of torch.distributed.algorithms.ddp_comm_hooks.default_hooks")
        for parameter in self._trained():
            parameter._moves_in = _HOOKS[name]


DistributedDataParallel.__module__ = "tessera.torch"
