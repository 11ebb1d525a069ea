"""A weight in columns, trained: its gradient is in columns, too, and an update moves nothing.

Page: How can a large tensor be manually split and distributed for PyTorch-based distributed computing?
Section: Example 3:  Column-wise Partitioning and All-Reduce for Model Weights
"""

import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    weight_matrix, x, wanted = torch.randn(8, 16), torch.randn(32, 8), torch.randn(32, 16)
    learning_rate = 0.1

    weights = tt.distribute_tensor(weight_matrix, mesh, [ts.Shard(1)]).requires_grad_()     # Column-wise partitioning
    batch = tt.distribute_tensor(x, mesh, [ts.Shard(0)])                                    # each worker has a part of the rows
    F.mse_loss(batch @ weights, tt.distribute_tensor(wanted, mesh, [ts.Shard(0)])).backward()
    assert weights.grad.shape == (8, 16)                                                    # summed over all rows
    with session.comm_debug() as comm, torch.no_grad():
        weights -= weights.grad.redistribute(placements=weights.placements) * learning_rate
    assert weights.placements == (ts.Shard(1),)

    alone = weight_matrix.clone().requires_grad_()
    F.mse_loss(x @ alone, wanted).backward()
    assert torch.allclose(weights.full_tensor(), alone.detach() - alone.grad * learning_rate, atol=1e-6)
