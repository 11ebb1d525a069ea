"""The entry point: a module, a mesh of one dim, a plan.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: torch.distributed.tensor.parallel.parallelize_module(module, device_mesh=None, parallelize_plan=None)
"""

import copy
import warnings

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    # Define the module.
    m = Model()
    alone, x = copy.deepcopy(m), torch.randn(4, 8)
    m = parallelize_module(m, tp_mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    with session.comm_debug() as comm:
        out = m(x)
    assert torch.allclose(out.full_tensor(), alone(x), atol=1e-6)
    assert comm.collective_counts == {"reduce_scatter": 1, "all_gather": 1}      # which is one all-reduce

    # device_mesh: if not specified, the call must be under a DeviceMesh context.
    with tp_mesh:
        assert parallelize_module(Model(), parallelize_plan={"w1": ColwiseParallel()}).w1.weight.placements == (ts.Shard(0),)
    # parallelize_plan: a ParallelStyle for the module itself; if not specified, the call will do nothing.
    assert parallelize_module(nn.Linear(8, 8), tp_mesh, RowwiseParallel()).weight.placements == (ts.Shard(1),)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not isinstance(parallelize_module(Model(), tp_mesh).w1.weight, tt.Tensor) and len(caught) == 1

    # Note that parallelize_module only accepts a 1-D DeviceMesh: slice a 2-D one first.
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    assert parallelize_module(Model(), mesh["tp"], {"w1": ColwiseParallel()}).w1.weight.placements == (ts.Replicate(), ts.Shard(0))
    try:
        parallelize_module(Model(), mesh, {"w1": ColwiseParallel()})
    except ts.InvalidArgumentError as error:
        assert 'mesh["tp"]' in str(error) or "mesh['tp']" in str(error)
    else:
        raise AssertionError("a mesh of two dims")
