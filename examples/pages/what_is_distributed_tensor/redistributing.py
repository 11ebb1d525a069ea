"""Another placement is one call, which returns at once.

Page: What is torch.distributed.tensor ?
Section: 2. Reshaping & Redistributing Tensors
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    device_mesh = session.init_device_mesh((4,))
    global_tensor = torch.randn(4, 4)
    sharded_tensor = tt.distribute_tensor(global_tensor, device_mesh, placements=[ts.Shard(0)])

    # Resharding: Change distribution strategy
    with session.comm_debug() as comm:
        resharded_tensor = sharded_tensor.redistribute(device_mesh, placements=[ts.Shard(1)])
    print(f"Resharded Tensor: {resharded_tensor}")
    assert torch.equal(resharded_tensor.to_local((1,)), global_tensor[:, 1:2])
    assert comm.bytes_received == [12] * 4                  # each worker gets the three numbers of its column that it lacks

    # Reshaping: a view of the whole, whatever lies where
    assert torch.equal(resharded_tensor.view(2, 8).full_tensor(), global_tensor.view(2, 8))
