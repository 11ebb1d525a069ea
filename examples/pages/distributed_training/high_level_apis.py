"""DistributedDataParallel, with unused parameters and buckets.

Page: Distributed Training
Section: High-Level APIs
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt

class Conditional(nn.Module):
    """One of two branches is used."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, is_left):
        return self.left(x) if is_left else self.right(x)


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    alone = Conditional()
    torch.manual_seed(0)
    # device_ids and process_group are the mesh. find_unused_parameters has nothing to find: who has no gradient is not waited for.
    # A gradient is a tensor of its own, so gradient_as_bucket_view changes nothing.
    module = tt.DistributedDataParallel(Conditional(), mesh, bucket_cap_mb=25, find_unused_parameters=True, gradient_as_bucket_view=True)
    x = torch.randn(8, 4)
    with session.comm_debug() as comm:
        module(x, True).square().mean().backward()          # a CPU batch goes in by shards
    assert module.module.right.weight.grad is None
    alone(x, True).square().mean().backward()
    assert torch.allclose(module.module.left.weight.grad.full_tensor(), alone.left.weight.grad, atol=1e-6)
