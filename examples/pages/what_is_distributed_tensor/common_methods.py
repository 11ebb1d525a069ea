"""Each row of the table.

Page: What is torch.distributed.tensor ?
Section: Common Methods
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    whole = torch.arange(16.0).reshape(4, 4)

    # distribute_tensor() | Splits a tensor across devices.
    x = tt.distribute_tensor(whole, mesh, [ts.Shard(0)])
    # redistribute() | Changes sharding strategy.
    assert x.redistribute(placements=[ts.Shard(1)]).placements == (ts.Shard(1),)
    # full_tensor() | Converts back to a single local tensor.
    assert torch.equal(x.full_tensor(), whole)
    # all_reduce() | Aggregates values across processes: the terms of a pending sum, where one wants the sum.
    terms = tt.from_local([whole[i] for i in range(4)], mesh, [ts.Partial()])
    assert torch.equal(terms.redistribute(placements=[ts.Replicate()]).full_tensor(), whole.sum(0))
    # to_local() | Retrieves the local shard of a tensor: that of a position, as one process sees them all.
    assert torch.equal(x.to_local((3,)), whole[3:])
