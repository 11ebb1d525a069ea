"""The operands are cut along different dims; the planner finds what moves least.

Page: What is torch.distributed.tensor ?
Section: 3. Distributed Matrix Multiplication
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    device_mesh = session.init_device_mesh((4,))
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    sharded_tensor = tt.distribute_tensor(a, device_mesh, placements=[ts.Shard(0)])

    # Create another sharded tensor
    tensor2 = tt.distribute_tensor(b, device_mesh, placements=[ts.Shard(1)])

    # Distributed matmul
    result = torch.matmul(sharded_tensor, tensor2)
    print(f"Distributed Matmul Result: {result.full_tensor()}")
    assert torch.allclose(result.full_tensor(), a @ b, atol=1e-6)
    print(ts.explain(ts.matmul, tt.to_handle(sharded_tensor), tt.to_handle(tensor2)))      # what moves, and why so
