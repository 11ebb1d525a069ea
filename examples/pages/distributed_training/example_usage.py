"""setup, demo_basic, cleanup: each of two ranks has ones, and all have their sum after an all-reduce.

Page: Distributed Training
Section: Example Usage
"""

import torch

import tessera as ts
import tessera.torch as tt

def demo_basic(session, world_size):
    mesh = session.init_device_mesh((world_size,))

    # Create a tensor: a term on each worker
    tensor = tt.from_local([torch.ones(2, 2) for _ in range(world_size)], mesh, [ts.Partial()])

    # All-reduce operation
    tensor = tensor.redistribute(placements=[ts.Replicate()])
    for rank in range(world_size):
        print(f"Rank {rank}: {tensor.to_local((rank,))}")
        assert torch.equal(tensor.to_local((rank,)), torch.full((2, 2), float(world_size)))


if __name__ == "__main__":
    world_size = 2
    with ts.local_cluster(workers=world_size, memory="64MiB") as cluster, cluster.connect() as session:    # setup, and cleanup
        demo_basic(session, world_size)
