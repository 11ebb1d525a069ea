"""Tensor partitioning, process assignment, data transfer and parallel computation.

Page: How can a large tensor be manually split and distributed for PyTorch-based distributed computing?
Section: 1. Clear Explanation
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    large_tensor = torch.randn(1000, 64)

    # Tensor Partitioning: row-wise, column-wise or block-wise is a placement.
    line = session.init_device_mesh((4,))
    grid = session.init_device_mesh((2, 2))
    rows = tt.distribute_tensor(large_tensor, line, [ts.Shard(0)])
    columns = tt.distribute_tensor(large_tensor, line, [ts.Shard(1)])
    blocks = tt.distribute_tensor(large_tensor, grid, [ts.Shard(0), ts.Shard(1)])
    assert rows.box((1,)) == [(250, 500), (0, 64)] and columns.box((1,)) == [(0, 1000), (16, 32)]
    assert blocks.box((1, 0)) == [(500, 1000), (0, 32)]

    # Process Assignment: equal parts by default; or who gets how much, and in which order the workers stand in the mesh.
    uneven = tt.distribute_tensor(large_tensor, line, [ts.Shard(0, sizes=[100, 200, 300, 400])])
    backwards = tt.distribute_tensor(large_tensor, session.init_device_mesh((4,), workers=[3, 2, 1, 0]), [ts.Shard(0)])
    assert uneven.box((3,)) == [(600, 1000), (0, 64)] and backwards.device_mesh.workers == (3, 2, 1, 0)

    # Data Transfer and Parallel Computation: each worker computes on what it has; only what a result needs moves.
    with session.comm_debug() as comm:
        scaled = torch.tanh(rows * 0.5)
    assert sum(comm.bytes_received) == 0 and torch.allclose(scaled.full_tensor(), torch.tanh(large_tensor * 0.5), atol=1e-6)
