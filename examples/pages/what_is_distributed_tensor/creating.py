"""There is no process group to start: a session knows its workers.

Page: What is torch.distributed.tensor ?
Section: 1. Creating a Distributed Tensor
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    # Create a device mesh (logical view of devices)
    device_mesh = session.init_device_mesh((session.worker_count,))

    # Define a global tensor and shard it across devices
    global_tensor = torch.randn(4, 4)
    sharded_tensor = tt.distribute_tensor(global_tensor, device_mesh, placements=[ts.Shard(0)])
    print(f"Sharded Tensor: {sharded_tensor}")
    assert torch.equal(sharded_tensor.to_local((2,)), global_tensor[2:3])
