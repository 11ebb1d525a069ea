"""PyTorch on Tessera: torch's modules, optimizers and loops on a pool of workers, from one process.

>>> import torch, tessera as ts, tessera.torch as tt
>>> with ts.local_cluster(workers=4, memory="256MiB") as cluster:
...     session = cluster.connect()
...     mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
...     model = tt.distribute_module(torch.nn.Linear(8, 4), mesh)
...     x = tt.distribute_tensor(torch.ones(16, 8), mesh, [ts.Shard(0), ts.Replicate()])
...     loss = model(x).square().mean()
...     loss.backward()
...     tuple(model.weight.grad.shape)
(4, 8)

A tensor is a torch tensor on the device `tessera` whose payload is a handle of the client: global, with placements. torch's
autograd, nn, optim, amp, checkpoint and state_dict work on it unchanged. An ATen op without a row in coverage() is
NotImplementedError with its name; nothing goes through the CPU in silence.
"""

from ._library import torch as _torch  # noqa: F401 - first: it says what is missing
from ._table import coverage
from . import (_elementwise, _contractions, _reductions, _norms, _views, _create, _gather_scatter, _attention, _foreach, _matrices,  # noqa: F401
               _order, _windows, _formulas, _embedding_bag, _grid_sample, _recurrent, _sequences, _special, _bessel, _incomplete, _orthogonal, _samples, _storages, _grouped, _custom_ops, _batched, _lost_parameters, _meeting, _optimizers, _quantized, _sparse, _nested)
from .._context import blocking
from ._capture import capture
from ._checkpoint import save
from ._data_parallel import DistributedDataParallel
from ._factories import empty, full, linspace, logspace, ones, rand, randn, zeros
from ._fsdp_module import FSDPModule
from ._fsdp_unit import MixedPrecisionPolicy
from ._fully_shard import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method
from ._gradients import no_sync
from ._loader import ShardedLoader
from ._local_map import local_map
from ._meshes import DeviceMesh, init_device_mesh
from ._moving import (default_placement, distribute_module, distribute_tensor, from_handle, from_local, redistribute, to_handle)
from ._pipeline import PipelineStage
from ._restore import load
from ._schedules import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from ._tensor import Tensor
from . import parallel
from . import _adapters, _compile, _dispatch, _flex_attention
from . import _tensor_methods  # noqa: F401 - attaches them
from .._placements import Partial, Placement, Replicate, Shard

__all__ = ["CPUOffloadPolicy", "DeviceMesh", "DistributedDataParallel", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "Partial",
           "PipelineStage", "Placement", "Replicate", "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B", "Shard",
           "ShardedLoader", "Tensor", "blocking", "capture", "coverage", "default_placement", "distribute_module", "distribute_tensor",
           "empty", "from_handle", "from_local", "full", "fully_shard", "init_device_mesh", "linspace", "load", "local_map", "logspace",
           "no_sync", "ones", "parallel", "rand", "randn", "redistribute", "register_fsdp_forward_method", "save", "to_handle", "zeros"]

_adapters.install()
_compile.hook()
_flex_attention.hook()
_nested.hook()
_dispatch.install()
