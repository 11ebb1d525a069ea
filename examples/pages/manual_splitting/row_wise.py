"""Rows are independent data points: each worker has a chunk of them, cut as torch.chunk cuts.

Page: How can a large tensor be manually split and distributed for PyTorch-based distributed computing?
Section: Example 1: Row-wise Partitioning using `torch.chunk` and `torch.distributed.scatter`
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    large_tensor = torch.randn(1002, 16)
    local_tensors = tt.distribute_tensor(large_tensor, mesh, [ts.Shard(0)])
    assert all(torch.equal(local_tensors.to_local((rank,)), chunk) for rank, chunk in enumerate(torch.chunk(large_tensor, 4, dim=0)))

    # Proceed with local computations; gather results: a mean over all rows is all-reduced from the workers' sums.
    mean = local_tensors.mean(0).redistribute(placements=[ts.Replicate()])
    assert torch.allclose(mean.full_tensor(), large_tensor.mean(0), atol=1e-5)
