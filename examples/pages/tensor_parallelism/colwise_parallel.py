"""nn.Linear and nn.Embedding, by columns.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: class torch.distributed.tensor.parallel.ColwiseParallel(*, input_layouts=None, output_layouts=None, use_local_output=True)
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, parallelize_module

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.w2(torch.relu(self.w1(x)))


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    # By default the input is replicated, and the output is sharded on the last dim. All tensors are global: use_local_output, which
    # would give a rank its part, gives the same tensor here, and view() takes all of it.
    sharded_mod = parallelize_module(Model(), tp_mesh, {"w1": ColwiseParallel()})
    out = sharded_mod.w1(torch.randn(4, 8))
    assert out.placements == (ts.Shard(1),) and out.shape == (4, 16) and out.to_local((0,)).shape == (4, 4)
    assert sharded_mod.w1.weight.placements == sharded_mod.w1.bias.placements == (ts.Shard(0),)

    # input_layouts, output_layouts: a batch in shards comes in, and goes out so.
    style = ColwiseParallel(input_layouts=ts.Shard(0), output_layouts=ts.Shard(0))
    out = parallelize_module(Model(), tp_mesh, {"w1": style}).w1(torch.randn(4, 8))
    assert out.placements == (ts.Shard(0),)

    # nn.Embedding: its features are cut.
    embedding = parallelize_module(nn.Embedding(32, 16), tp_mesh, ColwiseParallel())
    assert embedding.weight.placements == (ts.Shard(1),)
    numbers = torch.randint(0, 32, (4, 6))
    assert torch.equal(embedding(numbers).full_tensor(), embedding.weight.full_tensor()[numbers])
