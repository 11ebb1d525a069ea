"""When using Shard(dim) as layouts torch assumes even shards. Here a tensor knows its shards: 7 positions, or 10 features, on 4 workers.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: Note: when using the Shard(dim) as the input/output layouts for the above ParallelStyle s
"""

import copy

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 6))
    alone, x = copy.deepcopy(model), torch.randn(2, 7, 6)
    parallelize_module(model, tp_mesh, {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=ts.Shard(1)),
                                        "3": RowwiseParallel(output_layouts=ts.Shard(1))})
    out = model(x)
    assert [out.to_local((i,)).shape[1] for i in range(4)] == [2, 2, 2, 1]
    assert [model[1].weight.to_local((i,)).shape[0] for i in range(4)] == [3, 3, 3, 1]
    assert torch.allclose(out.full_tensor(), alone(x), atol=1e-5)
    out.square().mean().backward()
    alone(x).square().mean().backward()
    assert torch.allclose(model[1].weight.grad.full_tensor(), alone[1].weight.grad, atol=1e-6)
