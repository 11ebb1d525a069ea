"""Start and end rows of one's own: a Shard with sizes, and what follows from the boxes.

Page: How can a large tensor be manually split and distributed for PyTorch-based distributed computing?
Section: Example 2: Block-wise Partitioning with custom splitting logic and `torch.distributed.scatter`
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    large_tensor = torch.randn(10, 6)
    world_size, (n_rows, n_cols) = 4, large_tensor.shape
    rows_per_process = (n_rows + world_size - 1) // world_size
    bounds = [(min(rank * rows_per_process, n_rows), min((rank + 1) * rows_per_process, n_rows)) for rank in range(world_size)]

    blocks = tt.distribute_tensor(large_tensor, mesh, [ts.Shard(0, sizes=[end - start for start, end in bounds])])
    assert [blocks.box((rank,))[0] for rank in range(world_size)] == bounds
    # Or from blocks that are made one by one, and never together in this process.
    made = tt.from_local(lambda position: large_tensor[slice(*bounds[position[0]]), :], mesh, blocks.placements, shape=(n_rows, n_cols))
    assert torch.equal(made.to_local((3,)), large_tensor[9:10])

    # communication and aggregation: all_gather is a redistribute
    everywhere = (blocks * 2).redistribute(placements=[ts.Replicate()])
    assert torch.equal(everywhere.to_local((2,)), large_tensor * 2)
