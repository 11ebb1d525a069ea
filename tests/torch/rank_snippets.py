"""The examples of torch.distributed's documentation, with backend="tessera": a function for each, of the same name.

Run by rank_programs.py's ranks: `python rank_snippets.py RANKS` runs all that are for so many. Tensors that the examples put on a GPU are on
the CPU here. `test_ranks.py` holds that every function whose documentation has an example has one here.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist

import rank_programs
from rank_programs import failure, is_in_torch

COMPLEX = torch.tensor([1 + 1j, 2 + 2j], dtype=torch.cfloat)
OBJECTS = ["foo", 12, {1: 2}, None]
OLDER_NAMES = {"all_gather_into_tensor": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single"}
# Functions that torch 2.11 lacks. Their examples run where torch has them.
NEWER = {"set_timeout": dist, "gather_single": dist, "record_comm": dist, "_reconfigure": dist.distributed_c10d}


def equal(got, want):
    assert torch.equal(got, torch.as_tensor(want)), (got, want)


def of_either_name(older):
    """The function by its older name, and by its newer one where torch has that."""
    return [getattr(dist, name) for name in (OLDER_NAMES[older], older) if is_in_torch(dist, name)]


def set_timeout(rank, ranks):
    dist.set_timeout(datetime.timedelta(seconds=30))
    if rank == 0:
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        assert backend.options._timeout == datetime.timedelta(seconds=30)
    dist.set_timeout(datetime.timedelta(minutes=30))


def _coalescing_manager(rank, ranks):
    tensors = [torch.full((3,), float(number + rank)) for number in range(4)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for number, tensor in enumerate(tensors):
        equal(tensor, torch.full((3,), ranks * float(sum(number + r for r in range(ranks)))))


def batch_isend_irecv(rank, ranks):
    sent, received = torch.arange(2.0) + 2 * rank, torch.empty(2)
    ops = [dist.P2POp(dist.isend, sent, (rank + 1) % ranks), dist.P2POp(dist.irecv, received, (rank - 1 + ranks) % ranks)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    equal(received, torch.arange(2.0) + 2 * ((rank - 1) % ranks))


def all_reduce(rank, ranks):
    x = torch.arange(2) + 1 + 2 * rank
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    equal(x, sum(torch.arange(2) + 1 + 2 * r for r in range(ranks)))
    x = COMPLEX + 2 * rank * (1 + 1j)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    equal(x, sum(COMPLEX + 2 * r * (1 + 1j) for r in range(ranks)))
    handle = dist.all_reduce(x, async_op=True)      # "Synchronous and asynchronous collective operations"
    handle.wait()
    assert handle.is_completed()


def all_gather_object(rank, ranks):
    got = [None] * ranks
    dist.all_gather_object(got, OBJECTS[rank])
    assert got == OBJECTS[:ranks]


def gather_object(rank, ranks):
    got = [None] * ranks
    dist.gather_object(OBJECTS[rank], got if rank == 0 else None, dst=0)
    assert got == (OBJECTS[:ranks] if rank == 0 else [None] * ranks)


def send_object_list(rank, ranks):
    if rank == 0:
        dist.send_object_list(OBJECTS[:3], dst=1, device=torch.device("cpu"))
    elif rank == 1:
        got = [None] * 3
        dist.recv_object_list(got, src=0, device=torch.device("cpu"))
        assert got == OBJECTS[:3]


recv_object_list = send_object_list


def broadcast_object_list(rank, ranks):
    objects = OBJECTS[:3] if rank == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0, device=torch.device("cpu"))
    assert objects == OBJECTS[:3]


def scatter_object_list(rank, ranks):
    got = [None]
    dist.scatter_object_list(got, OBJECTS[:ranks] if rank == 0 else [None] * ranks, src=0)
    assert got == [OBJECTS[rank]]


def all_gather(rank, ranks):
    for base in (torch.arange(2) + 1, COMPLEX):
        step = base.new_tensor(2 + 2j if base.is_complex() else 2)
        got = [torch.zeros_like(base) for _ in range(ranks)]
        dist.all_gather(got, base + step * rank)
        for number, one in enumerate(got):
            equal(one, base + step * number)


def all_gather_single(rank, ranks):
    own, want = torch.arange(2) + 1 + 2 * rank, torch.arange(2 * ranks) + 1
    for out in (torch.zeros(2 * ranks, dtype=torch.int64), torch.zeros(ranks, 2, dtype=torch.int64)):
        for function in of_either_name("all_gather_into_tensor"):
            function(out.zero_(), own)
            equal(out.flatten(), want)


def gather(rank, ranks):
    own = torch.ones(2) + rank
    got = [torch.zeros_like(own) for _ in range(ranks)] if rank == 0 else None
    dist.gather(own, got, dst=0)
    for number, one in enumerate(got or []):
        equal(one, torch.ones(2) + number)


def gather_single(rank, ranks):
    got = torch.zeros(2 * ranks, dtype=torch.int64) if rank == 0 else None
    dist.gather_single(torch.arange(2) + 1 + 2 * rank, got, dst=0)
    if rank == 0:
        equal(got, torch.arange(2 * ranks) + 1)


def scatter(rank, ranks):
    own = torch.zeros(2)
    dist.scatter(own, [torch.ones(2) * (1 + 4 * r) for r in range(ranks)] if rank == 0 else None, src=0)
    equal(own, torch.ones(2) * (1 + 4 * rank))


def reduce_scatter_single(rank, ranks):
    whole, out = torch.arange(2 * ranks), torch.zeros(2, dtype=torch.int64)
    for given in (whole, whole.reshape(ranks, 2)):
        for function in of_either_name("reduce_scatter_tensor"):
            function(out.zero_(), given)
            equal(out, ranks * whole[2 * rank:2 * rank + 2])


def uneven(rank, ranks):
    """The sizes that each rank gives the others, and takes: [from][to] numbers of elements."""
    sizes = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]]
    gives = [row[:ranks] for row in sizes[:ranks]]
    starts = [torch.arange(sum(row)) + 10 * r for r, row in enumerate(gives)]
    want = [starts[r].split(gives[r])[rank] for r in range(ranks)]
    return starts[rank], gives[rank], [row[rank] for row in gives], want


def all_to_all_single(rank, ranks):
    given = torch.arange(ranks) + rank * ranks
    for factor in (1, torch.tensor(1 + 1j, dtype=torch.cfloat)):
        out = torch.empty_like(given * factor)
        dist.all_to_all_single(out, given * factor)
        equal(out, (torch.arange(ranks) * ranks + rank) * factor)
    parts, taken = list(given.chunk(ranks)), list(torch.empty_like(given).chunk(ranks))
    for source in range(ranks):
        dist.scatter(taken[source], parts if source == rank else [], src=source)
    equal(torch.cat(taken), torch.arange(ranks) * ranks + rank)
    given, input_splits, output_splits, want = uneven(rank, ranks)
    out = torch.empty(sum(output_splits), dtype=torch.int64)
    dist.all_to_all_single(out, given, output_splits, input_splits)
    equal(out, torch.cat(want))


def all_to_all(rank, ranks):
    given = list((torch.arange(ranks) + rank * ranks).chunk(ranks))
    out = list(torch.empty(ranks, dtype=torch.int64).chunk(ranks))
    dist.all_to_all(out, given)
    equal(torch.cat(out), torch.arange(ranks) * ranks + rank)
    given, input_splits, output_splits, want = uneven(rank, ranks)
    out = [torch.empty(size, dtype=torch.int64) for size in output_splits]
    dist.all_to_all(out, list(given.split(input_splits)))
    for got, its in zip(out, want, strict=True):
        equal(got, its)


def monitored_barrier(rank, ranks):
    """Rank 1 does not come."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        failure(lambda: rank_programs.monitored_barrier(timeout=datetime.timedelta(seconds=0.3)), "Rank 1 failed to pass monitoredBarrier")
        store.set("the barrier has failed", "")
    elif rank > 1:
        failure(rank_programs.monitored_barrier, f"Rank {rank} successfully reached monitoredBarrier")
    store.wait(["the barrier has failed"])
    dist.barrier()


def new_subgroups(rank, ranks):
    own, groups = dist.new_subgroups(group_size=ranks // 2 if ranks % 2 == 0 else ranks)
    members = dist.get_process_group_ranks(own)
    x = torch.ones(1) * rank
    dist.all_reduce(x, group=own)
    equal(x, torch.tensor([float(sum(members))]))
    for group in groups:
        dist.destroy_process_group(group)


def new_subgroups_by_enumeration(rank, ranks):
    lists = [[0, 2], [1, 3]] if ranks == 4 else [list(range(ranks))]
    own, _ = dist.new_subgroups_by_enumeration(lists)
    x = torch.ones(1) * rank
    dist.all_reduce(x, group=own)
    equal(x, torch.tensor([float(sum(next(its for its in lists if rank in its)))]))


def record_comm(rank, ranks):
    with dist.record_comm("layer 1"):
        all_gather_single(rank, ranks)


def _reconfigure(rank, ranks):
    store = dist.distributed_c10d._get_default_store()
    handle = dist.distributed_c10d._get_reconfigure_handle()
    store.set(f"snippet/{rank}", handle)
    handles = [store.get(f"snippet/{r}").decode() for r in range(ranks)]
    dist.distributed_c10d._reconfigure(uuid=77, handles=handles).wait()
    all_reduce(rank, ranks)


def profiled(rank, ranks):
    """"Profiling Collective Communication": the collective is named in the profile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        x = torch.ones(3)
        dist.all_reduce(x)
    assert any("tessera:all_reduce" in event.name for event in profile.events())


def ways_to_begin(rank, ranks):
    """"TCP initialization", "Environment variable initialization", a backend by device, a store."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        import socket
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            store.set("port", str(free.getsockname()[1]))
    port = int(store.get("port"))
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("tessera", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    all_reduce(rank, ranks)
    dist.barrier()
    dist.destroy_process_group()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port + 1), RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("cpu:tessera")
    assert dist.get_backend_config() == "cpu:tessera", dist.get_backend_config()
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "tessera"
    all_reduce(rank, ranks)
    assert not dist.is_torchelastic_launched() and dist.is_initialized() and dist.is_available()
    dist.barrier()


def debugged(rank, ranks):
    """"Debugging": with TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares the calls' shapes before they run."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group()
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    equal(x, torch.full((3,), float(ranks)))
    failure(lambda: dist.all_reduce(torch.ones(3 + (rank == 1)), group=group), "Detected mismatch between collectives on ranks")
    dist.set_debug_level(dist.DebugLevel.OFF)


NAMES = ("set_timeout", "_coalescing_manager", "batch_isend_irecv", "all_reduce", "all_gather_object", "gather_object",
         "send_object_list", "recv_object_list", "broadcast_object_list", "scatter_object_list", "all_gather",
         "all_gather_single", "gather", "gather_single", "scatter", "reduce_scatter_single", "all_to_all_single",
         "all_to_all", "monitored_barrier", "new_subgroups", "new_subgroups_by_enumeration", "record_comm", "profiled",
         "debugged", "_reconfigure", "ways_to_begin")


def all_snippets(rank, ranks):
    for name in NAMES:
        if name in NEWER and not is_in_torch(NEWER[name], name):
            print(f"{name}: torch {torch.__version__} lacks it", file=sys.stderr, flush=True)
            continue
        print(name, file=sys.stderr, flush=True)
        globals()[name](rank, ranks)


if __name__ == "__main__":
    rank_programs.main(all_snippets, int(sys.argv[1]))
