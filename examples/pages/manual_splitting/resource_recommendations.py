"""The primitives that it names, `all_gather`, `all_reduce` and `broadcast`, as placements.

Page: How can a large tensor be manually split and distributed for PyTorch-based distributed computing?
Section: 3. Resource Recommendations
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    whole = torch.arange(8.0)
    with session.comm_debug() as comm:                                                      # all_gather
        everywhere = tt.distribute_tensor(whole, mesh, [ts.Shard(0)]).redistribute(placements=[ts.Replicate()])
    assert comm.collective_counts == {"all_gather": 1} and torch.equal(everywhere.to_local((3,)), whole)
    terms = tt.from_local([whole] * 4, mesh, [ts.Partial()])
    with session.comm_debug() as comm:                                                      # all_reduce
        total = terms.redistribute(placements=[ts.Replicate()])
    assert comm.collective_counts == {"reduce_scatter": 1, "all_gather": 1}
    assert torch.equal(total.to_local((1,)), whole * 4)
    first = session.init_device_mesh((1,), workers=[0])
    source = tt.distribute_tensor(whole, first)
    with session.comm_debug() as comm:                                                      # broadcast
        sent = source.redistribute(mesh, [ts.Replicate()])
    assert comm.bytes_received == [0, 32, 32, 32] and torch.equal(sent.to_local((2,)), whole)
