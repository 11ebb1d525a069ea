"""A module's output has one layout and is brought to another.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: class torch.distributed.tensor.parallel.PrepareModuleOutput(*, output_layouts, desired_output_layouts, use_local_output=True)
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import PrepareModuleOutput, parallelize_module

class TransformerBlock(nn.Module):
    """Contains an "attn" submodule."""

    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, x):
        return x + self.attn(x, 2.0, mask=None)


class Attention(nn.Module):
    def forward(self, x, scale, mask=None):
        self.seen = x.placements
        weights = torch.softmax(x @ x.transpose(-1, -2) * scale, -1)
        return weights @ x


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    block = TransformerBlock()
    # The output of the block is replicated, and then redistributed to sharded.
    parallelize_module(block, tp_mesh, parallelize_plan=PrepareModuleOutput(output_layouts=ts.Replicate(), desired_output_layouts=ts.Shard(0)))
    x = torch.randn(4, 8, 16)
    out = block(tt.distribute_tensor(x, tp_mesh))
    assert out.placements == (ts.Shard(0),)
    assert torch.allclose(out.full_tensor(), x + torch.softmax(x @ x.transpose(-1, -2) * 2, -1) @ x, atol=1e-5)
