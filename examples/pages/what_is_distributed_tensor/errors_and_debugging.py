"""Common Errors and Debugging Tips: what they are here.

Page: What is torch.distributed.tensor ?
Section: Errors & Debugging Tips
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    # Check device_mesh setup: a mesh of workers that aren't there is refused, with both numbers.
    try:
        session.init_device_mesh((5,))
    except ts.InvalidArgumentError as error:
        print(error)
        assert "5" in str(error) and "4" in str(error)
    else:
        raise AssertionError("a mesh of 5 of 4 workers")
    mesh = session.init_device_mesh((4,))

    # "Sharding dimension mismatch": tensors needn't be sharded along compatible axes, as operands are brought together. Who wants
    # to know when that moves something forbids it.
    x = tt.distribute_tensor(torch.ones(4, 4), mesh, [ts.Shard(0)])
    y = tt.distribute_tensor(torch.ones(4, 4), mesh, [ts.Shard(1)])
    assert (x + y).full_tensor().sum() == 32
    session.implicit_redistribution("forbid")
    try:
        x + y
    except ts.FailedPreconditionError as error:
        print(error)                                        # which operand, where to, how many bytes, and what to write
        assert "redistribute(placements=" in str(error)
    else:
        raise AssertionError("forbidden, and done")
    session.implicit_redistribution("allow")
    try:
        tt.distribute_tensor(torch.ones(4, 4), mesh, [ts.Shard(2)])
    except ts.TesseraError as error:
        assert "S(2)" in str(error) or "Shard(2)" in str(error), error
    else:
        raise AssertionError("a dim that isn't there")

    # Deadlocks in collective ops: one program asks for all, in one order, so no call can be missing on one of the workers.
    session.sync()                                          # what a barrier() is for

    # Use to_local() to inspect shard values.
    assert torch.equal(x.to_local((0,)), torch.ones(1, 4))
    # Start with backend='gloo' for CPU debugging, NCCL errors: workers of a cluster on this host are CPU workers, and
    # tools/tessera doctor says which step fails where a cluster doesn't start.
    assert [worker["device"] for worker in session.status()["workers"]] == ["cpu"] * 4
