"""The guidelines: 1. DDP where the model fits; 2. FSDP where it doesn't; 3. tensor and pipeline parallelism beyond; and the note on
mixed precision (AMP).

Page: PyTorch Distributed Overview
Section: Applying Parallelism To Scale Your Model
"""

import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def train(module, x, labels, steps=5, amp=False):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    losses = []
    for _ in range(steps):
        with torch.autocast("tessera", torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def close(losses, expected, tolerance):
    return all(abs(a - b) <= tolerance for a, b in zip(losses, expected))


def held(module) -> int:
    """Bytes of parameters on the worker at the first position."""
    return sum(4 * p.to_local((0,) * p.device_mesh.ndim).numel() for p in module.parameters())


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    x, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
    expected = train(model(), x, labels)
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    rows = [ts.Shard(0), ts.Replicate()]
    batch = [tt.distribute_tensor(one, mesh, rows) for one in (x, labels)]

    # 1. DistributedDataParallel: the model is replicated, gradients are averaged.
    ddp = tt.DistributedDataParallel(model(), mesh["dp"])
    assert close(train(ddp, *batch), expected, 1e-5)
    # 2. FullyShardedDataParallel: a half of it on each worker.
    fsdp = tt.fully_shard(model(), mesh=mesh["dp"])
    assert held(fsdp) == held(ddp) // 2 and close(train(fsdp, *batch), expected, 1e-5)
    # 3. Tensor Parallel, beside it on the other dim of the mesh: a quarter.
    both = parallelize_module(model(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    tt.fully_shard(both, mesh=mesh["dp"])
    assert held(both) < held(ddp) // 3 and close(train(both, *batch), expected, 1e-5)
    # ... and Pipeline Parallel: the layers are on different workers (parallelism_apis.py).

    # Note: Data-parallel training also works with Automatic Mixed Precision (AMP).
    assert close(train(tt.DistributedDataParallel(model(), mesh["dp"]), *batch, amp=True), expected, 2e-2)
