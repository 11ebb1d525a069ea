"""NCCL, gloo, MPI: a cluster has transports instead, and no program says which. Within a host workers read each other's memory ("shm");
messages ("ucx") go between hosts, and can be asked for within one.

Page: Distributed Training
Section: Backends
"""

import torch

import tessera as ts
import tessera.torch as tt

totals = []
for transport in ("shm", "ucx"):
    with ts.local_cluster(workers=2, memory="64MiB", transport=transport) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = tt.distribute_tensor(torch.linspace(0, 1, 1001), mesh, [ts.Shard(0)])
        totals.append((x.redistribute(placements=[ts.Replicate()]) * x).sum().item())
assert totals[0] == totals[1]                               # to the bit
