"""send, recv, broadcast, all_reduce, reduce, all_gather, gather, scatter, barrier. A rank that calls one of them says its part; here
one program says where a tensor shall lie, and the planner which bytes move.

Page: Distributed Training
Section: Communication Primitives
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    everyone = session.init_device_mesh((4,))
    on = [session.init_device_mesh((1,), workers=[worker]) for worker in range(4)]
    R, S, P = ts.Replicate(), ts.Shard(0), ts.Partial()
    values = torch.arange(4.0)

    # send(tensor, dst) and recv(tensor, src): from worker 0 to worker 2
    there = tt.distribute_tensor(values, on[0]).redistribute(on[2], [R])
    assert there.device_mesh.workers == (2,) and torch.equal(there.full_tensor(), values)

    # broadcast(tensor, src)
    copies = tt.distribute_tensor(values, on[1]).redistribute(everyone, [R])
    assert all(torch.equal(copies.to_local((rank,)), values) for rank in range(4))

    # all_reduce(tensor, op): of sum, and of the other ops
    for op, wanted in (("sum", 6), ("max", 3), ("min", 0), ("product", 0), ("avg", 1.5)):
        terms = tt.from_local([torch.full((2,), float(rank)) for rank in range(4)], everyone, [ts.Partial(op)])
        assert terms.redistribute(placements=[R]).to_local((3,)).tolist() == [wanted] * 2, op

    # reduce(tensor, dst): to worker 3 alone
    terms = tt.from_local([values] * 4, everyone, [P])
    total = terms.redistribute(on[3], [R])
    assert total.device_mesh.workers == (3,) and torch.equal(total.full_tensor(), values * 4)

    # all_gather(tensor_list, tensor)
    shards = tt.from_local([values + 10 * rank for rank in range(4)], everyone, [S], shape=(16,))
    gathered = shards.redistribute(placements=[R])
    assert torch.equal(gathered.to_local((1,)), torch.cat([values + 10 * rank for rank in range(4)]))

    # gather(tensor, gather_list, dst): on one worker; or here
    assert torch.equal(shards.redistribute(on[0], [R]).full_tensor(), shards.full_tensor())

    # scatter(tensor, scatter_list, src): from worker 0; or from here, by distribute_tensor
    parts = tt.distribute_tensor(torch.arange(16.0), on[0]).redistribute(everyone, [S])
    assert parts.to_local((2,)).tolist() == [8, 9, 10, 11]

    # barrier(): until all that was asked for has run
    session.sync()
