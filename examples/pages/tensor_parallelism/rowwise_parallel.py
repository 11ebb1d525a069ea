"""nn.Linear and nn.Embedding, by rows.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: class torch.distributed.tensor.parallel.RowwiseParallel(*, input_layouts=None, output_layouts=None, use_local_output=True)
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import RowwiseParallel, parallelize_module

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    # By default the input is sharded on the last dim, and the output is replicated.
    sharded_mod = parallelize_module(Model(), tp_mesh, {"w2": RowwiseParallel()})
    x = torch.randn(4, 16)
    out = sharded_mod.w2(tt.distribute_tensor(x, tp_mesh, [ts.Shard(1)]))
    assert out.placements == (ts.Replicate(),)
    weight, bias = sharded_mod.w2.weight, sharded_mod.w2.bias
    assert weight.placements == (ts.Shard(1),) and bias.placements == (ts.Replicate(),)
    assert torch.allclose(out.full_tensor(), x @ weight.full_tensor().T + bias.full_tensor(), atol=1e-5)

    # output_layouts: each worker adds up a part of the rows, which is a reduce-scatter in place of an all-reduce.
    module = parallelize_module(Model(), tp_mesh, {"w2": RowwiseParallel(output_layouts=ts.Shard(0))})
    with session.comm_debug() as comm:
        out = module.w2(tt.distribute_tensor(x, tp_mesh, [ts.Shard(1)]))
    assert out.placements == (ts.Shard(0),) and comm.collective_counts == {"reduce_scatter": 1}

    # nn.Embedding: its rows are cut; each worker looks up what it has.
    embedding = parallelize_module(nn.Embedding(32, 16), tp_mesh, RowwiseParallel(input_layouts=ts.Replicate()))
    assert embedding.weight.placements == (ts.Shard(0),)
    numbers = torch.randint(0, 32, (4, 6))
    assert torch.equal(embedding(numbers).full_tensor(), embedding.weight.full_tensor()[numbers])
