"""Sharded tensors; collective operations; compatibility with DDP and FSDP.

Page: What is torch.distributed.tensor ?
Section: Key Features
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,), mesh_dim_names=("dp",))
    whole = torch.arange(32.0).reshape(8, 4)

    # Sharded Tensors - Splits a tensor across devices for parallel processing.
    x = tt.distribute_tensor(whole, mesh, [ts.Shard(0)])
    assert [x.to_local((i,)).shape[0] for i in range(4)] == [2, 2, 2, 2]

    # Collective Operations - matmul, sum, all_reduce: what a placement asks for is moved, and counted.
    with session.comm_debug() as comm:
        product = x @ x.t()
        total = x.sum()                                     # a term on each worker: a pending sum
        total = total.redistribute(placements=[ts.Replicate()])
    assert torch.equal(product.full_tensor(), whole @ whole.t()) and total.item() == whole.sum()
    # Each worker reduces a part and all gather them, or, of two small terms, each reduces all.
    assert comm.collective_counts.get("all_reduce") == 1 or comm.collective_counts["reduce_scatter"] == 1

    # Compatibility - DistributedDataParallel and FSDP are placements of parameters: replicated, or in shards.
    torch.manual_seed(0)
    replicated = tt.DistributedDataParallel(torch.nn.Linear(4, 4), mesh)
    torch.manual_seed(0)
    sharded = tt.fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    assert replicated.module.weight.placements == (ts.Replicate(),) and sharded.weight.placements == (ts.Shard(0),)
    assert torch.allclose(replicated(x).full_tensor(), sharded(x).full_tensor())
