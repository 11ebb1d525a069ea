"""A module's input comes in one layout and is brought to another.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: class torch.distributed.tensor.parallel.PrepareModuleInput(*, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None, use_local_output=False)
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import PrepareModuleInput, parallelize_module

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
    # The first input of attn is annotated to be sharded, and then redistributed to replicated; None: as it is.
    parallelize_module(block, tp_mesh, parallelize_plan={
        "attn": PrepareModuleInput(input_layouts=(ts.Shard(0), None), desired_input_layouts=(ts.Replicate(), None))})
    x = torch.randn(4, 8, 16)
    out = block(tt.distribute_tensor(x, tp_mesh, [ts.Shard(0)]))
    assert block.attn.seen == (ts.Replicate(),)
    assert torch.allclose(out.full_tensor(), x + torch.softmax(x @ x.transpose(-1, -2) * 2, -1) @ x, atol=1e-5)

    # input_kwarg_layouts, desired_input_kwarg_layouts
    class Named(nn.Module):
        def forward(self, *, x):
            return x * 2
    named = parallelize_module(Named(), tp_mesh, PrepareModuleInput(input_kwarg_layouts={"x": ts.Replicate()},
                                                                    desired_input_kwarg_layouts={"x": ts.Shard(1)}))
    assert named(x=x).placements == (ts.Shard(1),)
