"""Collectives (all_reduce and all_gather) and P2P (send and isend): redistributions, which all return at once.

Page: PyTorch Distributed Overview
Section: Communications APIs
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))
    whole = torch.arange(4.0)
    reduced = tt.from_local([whole] * 4, mesh, [ts.Partial()]).redistribute(placements=[ts.Replicate()])
    gathered = tt.distribute_tensor(whole, mesh, [ts.Shard(0)]).redistribute(placements=[ts.Replicate()])
    assert torch.equal(reduced.to_local((3,)), whole * 4) and torch.equal(gathered.to_local((3,)), whole)

    # send and isend: from a mesh of one worker to a mesh of another; nobody has to receive.
    one, other = (session.init_device_mesh((1,), workers=[worker]) for worker in (1, 3))
    with session.comm_debug() as comm:
        there = tt.distribute_tensor(whole, one).redistribute(other, [ts.Replicate()], async_op=True)
    assert there.device_mesh.workers == (3,) and comm.bytes_received == [0, 0, 0, 16]
    assert torch.equal(there.wait().full_tensor(), whole)
