"""DistributedSampler: which rows a replica sees, in which order; and the same by a batch in shards.

Page: Distributed Training
Section: Distributed Samplers
"""

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    dataset = TensorDataset(torch.arange(40.0))

    # With torch's sampler: a loader for each position, whose batches are the shards of the global batch.
    samplers = [DistributedSampler(dataset, num_replicas=4, rank=rank, shuffle=True, seed=0) for rank in range(4)]
    loaders = [DataLoader(dataset, batch_size=5, sampler=sampler) for sampler in samplers]
    seen = []
    for parts in zip(*loaders):
        batch = tt.from_local([part[0] for part in parts], mesh, [ts.Shard(0)], shape=(20,))
        assert torch.equal(batch.to_local((1,)), parts[1][0])
        seen += batch.full_tensor().tolist()
    assert sorted(seen) == list(range(40))

    # Or one loader of global batches, each cut where it goes.
    seen = []
    for (rows,) in DataLoader(dataset, batch_size=20, shuffle=True):
        seen += tt.distribute_tensor(rows, mesh, [ts.Shard(0)]).full_tensor().tolist()
    assert sorted(seen) == list(range(40))
