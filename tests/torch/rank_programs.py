"""The programs of test_ranks.py: every rank calls one function with its number and the number of ranks.

`python rank_programs.py NAME RANKS` imports torch once and forks the ranks; it fails when one of them does. Every rank can make the
inputs of all ranks (`value`), so each compares its own result with the dense answer.
"""

import faulthandler
import os
import signal
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist

import tessera.torch_ranks  # noqa: F401

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
MOVED = (*FLOATS, *INTEGERS, *COMPLEX, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn)
LONGEST_S = 150
IS_OLDER = torch.__version__ < "2.15"       # such a torch may lack functions
SIZES = (0, 1, 7, 12, 1000)
BITS = {dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or, dist.ReduceOp.BXOR: torch.bitwise_xor}
COMBINE = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.AVG: torch.add, dist.ReduceOp.PRODUCT: torch.mul,
           dist.ReduceOp.MIN: torch.minimum, dist.ReduceOp.MAX: torch.maximum} | BITS


def value(rank, size, dtype=torch.float32):
    """Small whole numbers, so that sums and products are exact in every dtype."""
    base = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(100 + rank))
    return base.to(torch.float32).to(dtype) if dtype == torch.float8_e4m3fn else base.to(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor.numel()


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
    assert torch.equal(bits(got), bits(want)) if got.numel() else True, (got, want)


def near(op, got, want):
    """A mean is divided in another order; all others are the same bits."""
    if op == dist.ReduceOp.AVG:
        torch.testing.assert_close(got, want)
    else:
        same(got, want)


def reduced(op, terms):
    result = terms[0].clone()
    for term in terms[1:]:
        result = COMBINE[op](result, term)
    return result / len(terms) if op == dist.ReduceOp.AVG else result


def is_done(work):
    """Whether a work that was waited for says so."""
    return work.is_completed()


def ended(work, is_async):
    if is_async:
        work.wait()
        assert is_done(work)
    else:
        assert work is None


def combinations():
    for dtype in (*FLOATS, *INTEGERS, *COMPLEX):
        for op in COMBINE:
            if op in BITS and dtype not in INTEGERS:
                continue
            if op == dist.ReduceOp.AVG and dtype in INTEGERS:
                continue
            if dtype in COMPLEX and op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):   # torch's own rule
                continue
            yield dtype, op


def all_reductions(rank, ranks):
    for number, (dtype, op) in enumerate(combinations()):
        size, is_async, root = SIZES[number % len(SIZES)], number % 2 == 1, number % ranks
        terms = [value(r, size, dtype) for r in range(ranks)]
        want = reduced(op, terms)
        x = terms[rank].clone()
        ended(dist.all_reduce(x, op, async_op=is_async), is_async)
        near(op, x, want)
        x = terms[rank].clone()
        ended(dist.reduce(x, root, op, async_op=is_async), is_async)
        near(op, x, want if rank == root else x)
        terms = [value(r, size * ranks, dtype) for r in range(ranks)]
        mine = reduced(op, terms)[rank * size:(rank + 1) * size]
        for scatter, whole in ((dist.reduce_scatter_tensor, terms[rank]), (dist.reduce_scatter, [t.clone() for t in terms[rank].split(size)] if size else [terms[rank]] * ranks)):
            out = torch.empty(size, dtype=dtype)
            ended(scatter(out, whole, op, async_op=is_async), is_async)
            near(op, out, mine)


def all_moves(rank, ranks):
    for number, dtype in enumerate(MOVED):
        for size in SIZES if dtype == torch.float32 else (SIZES[number % len(SIZES)], 5):
            moves_of(rank, ranks, dtype, size, number % 2 == 1, number % ranks)


def moves_of(rank, ranks, dtype, size, is_async, root):
    given = [value(r, size, dtype) for r in range(ranks)]
    empty = lambda: torch.empty(size, dtype=dtype)  # noqa: E731
    x = given[rank].clone()
    ended(dist.broadcast(x, root, async_op=is_async), is_async)
    same(x, given[root])
    outs = [empty() for _ in given]
    ended(dist.all_gather(outs, given[rank], async_op=is_async), is_async)
    [same(out, want) for out, want in zip(outs, given, strict=True)]
    whole = torch.empty(size * ranks, dtype=dtype)
    ended(dist.all_gather_into_tensor(whole, given[rank], async_op=is_async), is_async)
    [same(whole[r * size:(r + 1) * size], given[r]) for r in range(ranks)]
    outs = [empty() for _ in given] if rank == root else None
    ended(dist.gather(given[rank], outs, dst=root, async_op=is_async), is_async)
    [same(out, want) for out, want in zip(outs or [], given)]
    x = empty()
    ended(dist.scatter(x, given if rank == root else None, src=root, async_op=is_async), is_async)
    same(x, given[rank])
    pieces = [[value(10 * r + s, size, dtype) for s in range(ranks)] for r in range(ranks)]    # [from][to]
    outs = [empty() for _ in given]
    ended(dist.all_to_all(outs, pieces[rank], async_op=is_async), is_async)
    [same(outs[r], pieces[r][rank]) for r in range(ranks)]
    sent, whole = torch.empty(size * ranks, dtype=dtype), torch.empty(size * ranks, dtype=dtype)
    for r in range(ranks):
        sent[r * size:(r + 1) * size] = pieces[rank][r]
    ended(dist.all_to_all_single(whole, sent, async_op=is_async), is_async)
    [same(whole[r * size:(r + 1) * size], pieces[r][rank]) for r in range(ranks)]


def uneven(rank, ranks):
    size = lambda source, to: (2 * source + 3 * to) % 5    # noqa: E731 - 0 for some pairs
    pieces = [[value(10 * r + s, size(r, s)) for s in range(ranks)] for r in range(ranks)]
    for is_async in (False, True):
        out = torch.empty(sum(size(r, rank) for r in range(ranks)))
        ended(dist.all_to_all_single(out, torch.cat(pieces[rank]), [size(r, rank) for r in range(ranks)],
                                     [size(rank, r) for r in range(ranks)], async_op=is_async), is_async)
        same(out, torch.cat([pieces[r][rank] for r in range(ranks)]))
        outs = [torch.empty(size(r, rank)) for r in range(ranks)]
        ended(dist.all_to_all(outs, pieces[rank], async_op=is_async), is_async)
        [same(outs[r], pieces[r][rank]) for r in range(ranks)]
        outs = [torch.empty(r + 1, 2) for r in range(ranks)]
        ended(dist.all_gather(outs, value(rank, 2 * (rank + 1)).view(rank + 1, 2), async_op=is_async), is_async)
        [same(outs[r], value(r, 2 * (r + 1)).view(r + 1, 2)) for r in range(ranks)]
        terms = [[value(10 * r + s, s) for s in range(ranks)] for r in range(ranks)]
        out = torch.empty(rank)
        ended(dist.reduce_scatter(out, terms[rank], async_op=is_async), is_async)
        same(out, sum(terms[r][rank] for r in range(ranks)))
    two_dims = torch.arange(ranks * 2 * 3.0).view(ranks * 2, 3) + rank
    out = torch.empty_like(two_dims)
    dist.all_to_all_single(out, two_dims)
    same(out, torch.cat([torch.arange(ranks * 2 * 3.0).view(ranks * 2, 3)[2 * rank:2 * rank + 2] + r for r in range(ranks)]))


def sizes_that_differ(rank, ranks):
    """Rank 0 takes 3 elements of rank 1, which gives 2."""
    splits = [1] * ranks
    gives, takes = (list(splits), list(splits))
    if rank == 1:
        gives[0] = 2
    if rank == 0:
        takes[1] = 3
    failure(lambda: dist.all_to_all_single(torch.empty(sum(takes)), torch.ones(sum(gives)), takes, gives), "f32[2]", "f32[3]",
            must_fail=rank < 2)
    dist.barrier()


def memory_of_all_kinds(rank, ranks):
    """Tensors that aren't contiguous, views of one storage, and parameters."""
    whole = torch.zeros(6, 8)
    part = whole.t()[2:5, ::2]
    part.copy_(torch.arange(9.0).view(3, 3) + rank)
    dist.all_reduce(part)
    want = sum(torch.arange(9.0).view(3, 3) + r for r in range(ranks))
    same(part.contiguous(), want)
    assert whole.sum() == want.sum()
    outs = list(torch.zeros(ranks, 3, 3).unbind())
    dist.all_gather(outs, torch.full((3, 3), float(rank)).t())
    assert all((outs[r] == r).all() for r in range(ranks))
    outs = list(torch.zeros(3, ranks).unbind(1))
    dist.all_gather(outs, torch.full((3,), float(rank)))
    assert all((outs[r] == r).all() for r in range(ranks))
    parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
    dist.broadcast(parameter, 1)
    assert (parameter == 1).all() and parameter.requires_grad and parameter.grad_fn is None


def groups(rank, ranks):
    """Sub-groups that overlap, with calls of several groups under way at once, in other orders by rank."""
    named = {members: dist.new_group(list(members)) for members in ((0, 2), (1, 2), (0, 1), (2,))}
    mine = [members for members in named if rank in members]
    works = []
    for members in mine if rank % 2 else mine[::-1]:
        x = torch.full((3,), float(rank + 1))
        works.append((members, x, dist.all_reduce(x, group=named[members], async_op=True)))
    world = torch.full((3,), float(rank + 1))
    dist.all_reduce(world)
    assert (world == sum(range(1, ranks + 1))).all()
    for members, x, work in works:
        work.wait()
        assert (x == sum(r + 1 for r in members)).all(), (members, x)
    if rank in (1, 2):
        x = torch.tensor([float(rank)])
        dist.broadcast(x, src=2, group=named[1, 2])    # the world's rank
        assert x == 2
    for members in mine:
        dist.destroy_process_group(named[members])
    dist.barrier()


def messages(rank, ranks):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    # Several in one direction, taken in the other order by their tags; empty ones, too.
    sends = [dist.isend(value(rank, tag), right, tag=tag) for tag in range(6)]
    for tag in reversed(range(6)):
        x = torch.empty(tag)
        work = dist.irecv(x, left, tag=tag)
        work.wait()
        assert is_done(work)
        same(x, value(left, tag))
    [work.wait() for work in sends]
    # In the order of one tag.
    works = [dist.isend(torch.tensor([float(k)]), right) for k in range(5)]
    taken = [torch.empty(1) for _ in range(5)]
    works += [dist.irecv(x, left) for x in taken]
    [work.wait() for work in works]
    assert torch.cat(taken).tolist() == [0, 1, 2, 3, 4]
    x = torch.empty(3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), right), dist.P2POp(dist.irecv, x, left)]):
        work.wait()
    assert (x == left).all()
    if rank == 0:
        sources = {dist.recv(x): x[0].item() for _ in range(ranks - 1)}
        assert sources == {r: float(r) for r in range(1, ranks)}, sources
    else:
        dist.send(torch.full((3,), float(rank)), 0)
    dist.barrier()


def messages_of_any_size(rank, ranks):
    """Large ones at once in all directions, and beside collectives; nobody has to receive before others can send."""
    others = [r for r in range(ranks) if r != rank]
    for size in (0, 1, 30_000, 400_000):
        works = [dist.isend(value(rank, size) + to, to, tag=3) for to in others]
        x = torch.full((5,), float(rank))
        dist.all_reduce(x)
        assert (x == sum(range(ranks))).all()
        taken = {r: torch.empty(size) for r in others}
        works += [dist.irecv(taken[r], r, tag=3) for r in reversed(others)]
        while not all(work.is_completed() for work in works):
            time.sleep(0)
        [same(taken[r], value(r, size) + rank) for r in others]
    small = torch.ones(1)
    for r in others:        # all send first
        dist.send(small * rank, r)
    for r in others:
        dist.recv(small, r)
        assert small.item() == r


def messages_that_fail(rank, ranks):
    """The receiver is told what differs, the sender by one of its next calls, a wait ends by its time, and the group goes on."""
    def text_of(work, words):
        began = time.monotonic()
        found = failure(work, *words)
        assert time.monotonic() - began < 10, found

    if rank == 0:
        told = []
        for call in [*(lambda tag=tag: dist.send(torch.ones(3), 1, tag=tag) for tag in (5, 6, 7)), dist.barrier]:
            try:
                call()
            except dist.DistBackendError as error:
                told.append(str(error))
        assert 1 <= len(told) <= 2, told        # the last of both, or each
        assert "rank 0 called send f32[3] to rank 1 with tag 6; rank 1 called recv i32[3] from rank 0 with tag 6" in told[-1], told
        assert "which is done" in told[-1] and (len(told) == 2 or "the last of 2 such messages" in told[0]), told
    if rank == 1:
        text_of(lambda: dist.recv(torch.ones(2), 0, tag=5), ["differs", "rank 0 called send f32[3] to rank 1 with tag 5",
                                                             "rank 1 called recv f32[2] from rank 0 with tag 5"])
        text_of(lambda: dist.recv(torch.ones(3, dtype=torch.int32), 0, tag=6), ["differs", "send f32[3]", "recv i32[3]"])
        x = torch.zeros(3)
        dist.recv(x, 0, tag=7)
        assert (x == 1).all()
    if rank != 0:
        dist.barrier()
    hurried = dist.new_group(timeout=one_tenth())
    if rank == 1:
        text_of(lambda: dist.recv(torch.ones(2), 0, group=hurried), ["recv f32[2] from rank 0", "timed out after 0.1 s", "has not sent it"])
        text_of(lambda: dist.recv(torch.ones(2), group=hurried), ["no rank has sent it"])
        large = torch.ones(1 << 20)
        text_of(lambda: dist.send(large, 0, group=hurried), ["send f32[1048576] to rank 0", "has not received it"])
    dist.barrier()
    if rank == 0:       # what was given up midway
        text_of(lambda: dist.recv(torch.empty(1 << 20), 1, group=hurried), ["rank 1 of group", "gave a send up"])
    x = torch.full((2,), float(rank))
    if rank == 1:
        dist.isend(x, 0, group=hurried).wait()
    if rank == 0:
        dist.recv(x, 1, group=hurried)
        assert (x == 1).all()
    dist.barrier()


def messages_told_at_the_end(rank, ranks):
    """A sender whose message was wrong, and that calls nothing more in the group, is warned as it leaves."""
    group = dist.new_group()
    if rank == 0:
        work = dist.isend(torch.ones(3), 1, group=group)
    if rank == 1:
        failure(lambda: dist.recv(torch.ones(2), 0, group=group), "differs")
    dist.barrier()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dist.destroy_process_group(group)
        del group
        if rank == 0:
            del work
    texts = [str(one.message) for one in told if "called recv f32[2] from rank 0" in str(one.message)]
    assert len(texts) == (rank == 0), [str(one.message) for one in told]


def a_failure_that_nobody_waits_for(rank, ranks):
    """A work that was dropped and fails afterwards is a warning."""
    hurried = dist.new_group(timeout=one_tenth())
    if rank == 0:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dist.isend(torch.ones(1 << 20), 1, group=hurried)
            until = time.monotonic() + 30
            while not told and time.monotonic() < until:
                time.sleep(0.01)
        assert "nobody waited" in str(told[0].message) and "timed out after 0.1 s" in str(told[0].message), told
    dist.barrier()


def killed_in_a_message(rank, ranks):
    taken = torch.empty(2)
    if rank == 2:
        dist.send(torch.full((2,), 7.0), 0)     # lies there when its sender has gone
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    began = time.monotonic()
    if rank == 0:
        time.sleep(0.5)
        dist.recv(taken, 2)
        assert (taken == 7).all()
    failure(lambda: dist.recv(taken, 2), "recv f32[2] from rank 2", "rank 2 (pid", "is gone")
    failure(lambda: dist.send(torch.ones(1 << 20), 2), "send f32[1048576] to rank 2", "is gone")
    assert time.monotonic() - began < 20
    other = 1 - rank
    work = dist.isend(torch.full((2,), float(rank)), other)
    dist.recv(taken, other)
    work.wait()
    assert (taken == other).all()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} is done", "")
    store.wait([f"rank {other} is done"])
    os._exit(0)


def objects(rank, ranks):
    gathered = [None] * ranks
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(ranks)]
    given = [("a", 1), None, [1.5]] if rank == 1 else [None] * 3
    dist.broadcast_object_list(given, src=1)
    assert given == [("a", 1), None, [1.5]]
    gathered = [None] * ranks if rank == 0 else None
    dist.gather_object(rank * 10, gathered, dst=0)
    assert gathered is None or gathered == [r * 10 for r in range(ranks)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(ranks)] if rank == 2 else None, src=2)
    assert mine == [f"for {rank}"]


def coalesced(rank, ranks):
    xs = [torch.full((size,), float(rank + 1)) for size in (3, 0, 5)]
    with dist._coalescing_manager():
        for x in xs:
            dist.all_reduce(x)
    total = sum(range(1, ranks + 1))
    assert all((x == total).all() for x in xs)
    outs = [torch.empty(ranks * size) for size in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, size in zip(outs, (2, 3)):
            dist.all_gather_into_tensor(out, torch.full((size,), float(rank)))
    manager.wait()
    for out, size in zip(outs, (2, 3)):
        same(out, torch.arange(float(ranks)).repeat_interleave(size))
    x = torch.full((4,), float(rank + 1))
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert (x == total / 2).all()


def works(rank, ranks):
    x = torch.full((1000,), float(rank))
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().then(lambda done: done.value()[0].sum().item())
    assert future.wait() == 1000 * sum(range(ranks))
    assert work.wait() and is_done(work)
    # Nobody waits for this one, whose tensor and work are dropped at once.
    dist.all_reduce(torch.ones(100_000), async_op=True)
    dist.broadcast(torch.zeros(100_000).view(100, 1000).t(), 0, async_op=True)
    dist.barrier()
    # Rank 0 waits for less than the call needs, and then for it.
    if rank:
        dist.recv(torch.empty(1), src=0)
    y = torch.ones(2)
    work = dist.all_reduce(y, async_op=True)
    if rank == 0:
        failure(lambda: work.wait(timeout=one_tenth()), " Timed out ")
        for r in range(1, ranks):
            dist.send(torch.ones(1), r)
    work.wait()
    assert (y == ranks).all()


def is_in_torch(owner, name):
    assert hasattr(owner, name) or IS_OLDER, f"torch {torch.__version__} has no {name}"
    return hasattr(owner, name)


def one_tenth():
    from datetime import timedelta
    return timedelta(seconds=0.1)


def failure(call, *words, must_fail=True):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in {error}"
        return str(error)
    assert not must_fail, "no error"
    return None


def mismatch(rank, ranks):
    for call in (lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM),
                 lambda: dist.all_reduce(torch.ones(5 if rank == 1 else 4)),
                 lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32)),
                 lambda: dist.broadcast(torch.ones(4), 1 if rank == 1 else 0),
                 lambda: dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(4))):
        began = time.monotonic()
        try:
            call()
            raise AssertionError("no error")
        except dist.DistBackendError as error:
            text = str(error)
        assert "differs" in text and "ranks 0 and 2 called" in text and "rank 1 called" in text, text
        assert time.monotonic() - began < 10, text
        x = torch.ones(2)
        dist.all_reduce(x)
        assert (x == ranks).all()


def killed(rank, ranks):
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    failure(lambda: dist.all_reduce(torch.ones(4)), "rank 2", "gone")
    assert time.monotonic() - began < 20
    os._exit(0)


def monitored_barrier(timeout=None, wait_all_ranks=False):
    """torch's. That of torch 2.11 refuses all backends but gloo, and its groups don't."""
    import inspect
    if "only implemented for GLOO" not in inspect.getsource(dist.monitored_barrier):
        return dist.monitored_barrier(timeout=timeout, wait_all_ranks=wait_all_ranks)
    return dist.group.WORLD.monitored_barrier(timeout or dist.distributed_c10d.default_pg_timeout, wait_all_ranks=wait_all_ranks)


def timed_out(rank, ranks):
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        options = dist.BarrierOptions()
        options.timeout = one_tenth()
        failure(lambda: dist.group.WORLD.barrier(options).wait(), " Timed out waiting 100ms", "rank")
        failure(lambda: monitored_barrier(timeout=one_tenth()), "Rank 1 failed to pass monitoredBarrier")
        failure(lambda: monitored_barrier(timeout=one_tenth(), wait_all_ranks=True), "Ranks 1, 2 failed to pass monitoredBarrier")
        store.set("rank 0 has given up", "")
    else:
        store.wait(["rank 0 has given up"])
        for _ in range(2):
            failure(monitored_barrier, f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    "send/recv from rank 0")
    monitored_barrier()


def refusals(rank, ranks):
    failure(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG), "avg")
    failure(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND), "band")
    failure(lambda: dist.reduce(torch.ones(3, dtype=torch.complex64), 0, dist.ReduceOp.MAX), "max")
    failure(lambda: dist.all_reduce(torch.ones(3, 3).to_sparse(), dist.ReduceOp.MAX), "Backend tessera does not support")
    failure(lambda: dist.all_reduce(torch.ones(3 + rank, 3).to_sparse()), "sizes differ")
    failure(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float8_e4m3fn)), "Backend tessera does not support", "Float8")
    failure(lambda: dist.all_gather_into_tensor(torch.ones(4), torch.ones(3)), "4 elements")
    failure(lambda: dist.send(torch.ones(1), (rank + 1) % ranks, tag=-1), "Tag must be nonnegative")
    failure(lambda: dist.all_reduce(torch.ones(1).expand(4)), "allreduce", "one place in memory")
    x = torch.ones(4)
    failure(lambda: dist.all_gather([x] * ranks, torch.ones(4)), "allgather", "overlap in memory")
    failure(lambda: dist.all_to_all(list(torch.ones(ranks + 1).unfold(0, 2, 1)), list(torch.ones(ranks, 2))), "alltoall", "overlap in memory")
    failure(lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1] * ranks, [1] * ranks), "Split sizes")
    failure(lambda: dist.broadcast(x, 9), "9")
    failure(lambda: dist.all_gather([x], torch.ones(4)), "list of")
    group = dist.new_group()
    dist.destroy_process_group(group)
    failure(lambda: dist.all_reduce(x, group=group), "group")
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == ranks


def split(rank, ranks):
    """Parts of the world, and a part of a part, beside each other."""
    world = dist.group.WORLD
    pair = dist.split_group(world, [[0, 1]] if ranks < 4 else [[0, 1], [2, 3]])
    reversed_world = dist.split_group(world, [list(range(ranks))[::-1]], timeout=one_tenth() * 300)
    if rank < 2:
        assert dist.get_world_size(pair) == 2 and dist.get_rank(pair) == rank and dist.get_process_group_ranks(pair) == [0, 1]
        x = torch.full((5,), float(rank + 1))
        dist.all_reduce(x, group=pair)
        assert (x == 3).all()
        alone = dist.split_group(pair, [[1]])
        assert (alone == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 0)
        if rank == 1:
            dist.all_reduce(x, group=alone)
            assert (x == 3).all()
    else:
        assert pair == dist.GroupMember.NON_GROUP_MEMBER
    assert dist.get_rank(reversed_world) == ranks - 1 - rank
    out = [torch.empty(1) for _ in range(ranks)]
    dist.all_gather(out, torch.tensor([float(rank)]), group=reversed_world)
    assert torch.cat(out).tolist() == [float(r) for r in range(ranks)][::-1]
    dist.barrier()


def sparse(rank, ranks):
    """Sums of sparse tensors: other places by rank, none at one, rows of values."""
    for dense_dim in (0, 1):
        for empty in (-1, 1):
            terms = []
            for r in range(ranks):
                dense = torch.zeros(5, 4)
                if r != empty:
                    dense[r, :] = value(r, 4) + 1
                    dense[4, 1] = 0.5
                terms.append(dense.to_sparse(2 - dense_dim))
            x = terms[rank].clone()
            dist.all_reduce(x)
            same(x.to_dense(), sum(term.to_dense() for term in terms))
            assert x.is_sparse and x.sparse_dim() == 2 - dense_dim


def aborted(rank, ranks):
    """Calls that are under way end at once, at the rank that aborts and at the others."""
    group, other = dist.new_group(), dist.new_group()
    seen = []
    backend = group._get_backend(torch.device("cpu"))
    has_hooks = is_in_torch(backend, "register_abort_hook")     # torch 2.11 has none of aborts
    if has_hooks:
        backend.register_abort_hook(7, lambda: seen.append("aborting"))
    if rank == 1:
        work = dist.irecv(torch.empty(3), 0, group=group)
        waited = dist.all_reduce(torch.ones(1 << 20), group=other, async_op=True)
        dist.distributed_c10d._abort_process_group(group)
        failure(work.wait, "ended at this rank")
        assert seen == ["aborting"] * has_hooks
        waited.wait()
        failure(lambda: group.allreduce([torch.ones(1)]), "shut down")
    else:
        waited = dist.all_reduce(torch.ones(1 << 20), group=other, async_op=True)
        failure(lambda: dist.barrier(group=group), "rank 1", "gone")
        assert not seen
        waited.wait()
    x = torch.ones(2)
    dist.all_reduce(x)
    assert (x == ranks).all()


def reconfigured(rank, ranks):
    """A rank is killed; the others go on in the same process group, with each other."""
    store = dist.distributed_c10d._get_default_store()
    assert dist.distributed_c10d._supports_reconfigure()
    handle = dist.distributed_c10d._get_reconfigure_handle()
    store.set(f"handle/{rank}", handle)
    handles = [store.get(f"handle/{r}").decode() for r in range(ranks)]
    assert handles[rank] == handle and len(set(handles)) == ranks
    failure(lambda: dist.distributed_c10d._reconfigure(1, handles[:rank] + handles[rank + 1:]), "this rank is not among")
    failure(lambda: dist.distributed_c10d._reconfigure(1, handles + handles[:1]), "the same")
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    failure(lambda: dist.all_reduce(torch.ones(4)), "rank 0", "gone")
    dist.distributed_c10d._reconfigure(2, set(handles[1:])).wait()
    group = dist.group.WORLD
    assert (group.rank(), group.size()) == (rank - 1, ranks - 1)
    for _ in range(3):
        x = torch.full((4,), float(rank))
        group.allreduce([x]).wait()
        assert (x == sum(range(1, ranks))).all()
    dist.distributed_c10d._reconfigure(3, [handle_of(group, store, r) for r in range(ranks - 1)][::-1], timeout=one_tenth() * 300).wait()
    assert group.rank() == ranks - 1 - rank
    os._exit(0)     # the store is that of rank 0


def allocated(rank, ranks):
    """Memory that the others read and write where it lies: of all ranks, of some, of views, and after its group is gone."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    size = 1_000_003    # many steps through the page

    def tensor(is_there=True, dtype=torch.float32, count=size):
        own = backend.allocate_tensor(count, dtype=dtype, device=torch.device("cpu")) if is_there else torch.empty(count, dtype=dtype)
        return own.copy_(value(rank, count, dtype))

    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for is_there in (True, rank != 1):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                x = tensor(is_there, dtype)
                dist.all_reduce(x, op)
                same(x, reduced(op, [value(r, size, dtype) for r in range(ranks)]))
                work = dist.all_reduce(x[7:-5], op, async_op=True)
                work.wait()
                same(x[7:-5], reduced(op, [reduced(op, [value(r, size, dtype) for r in range(ranks)])[7:-5]] * ranks))
            whole = tensor(is_there, dtype, size * ranks)
            own = whole[rank * size:(rank + 1) * size].copy_(value(rank, size, dtype))
            dist.all_gather_into_tensor(whole, own)
            same(whole, torch.cat([value(r, size, dtype) for r in range(ranks)]))
            part = torch.empty(size, dtype=dtype)
            dist.reduce_scatter_tensor(part, tensor(is_there, dtype, size * ranks))
            same(part, sum(value(r, size * ranks, dtype)[rank * size:(rank + 1) * size] for r in range(ranks)))
    first = tensor().data_ptr()
    assert tensor().data_ptr() == first     # what was freed is taken again
    group = dist.new_group()
    kept = group._get_backend(torch.device("cpu")).allocate_tensor(10, dtype=torch.float32, device=torch.device("cpu"))
    dist.destroy_process_group(group)
    assert kept.fill_(3).sum() == 30
    failure(lambda: backend.allocate_tensor(3, dtype=torch.float32, device=torch.device("meta")), "meta", "own memory")


def handle_of(group, store, number):
    """In the order of the group's ranks: each broadcasts its own."""
    own = group.get_reconfigure_handle().encode()
    length = torch.tensor([len(own)])
    group.broadcast(length, number).wait()
    text = torch.frombuffer(bytearray(own), dtype=torch.uint8) if group.rank() == number else torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(text, number).wait()
    return bytes(text.tolist()).decode()


def hooks(rank, ranks):
    """A hook and torch's flight recorder hear of calls that have ended, whether somebody waited for them or not."""
    import json
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    # torch 2.11 has one hook, which is of a group, and records the calls of its own backends alone.
    is_recorded = is_in_torch(backend, "_register_on_completion_hook")
    backend = backend if is_recorded else group
    ended = []
    backend._register_on_completion_hook(lambda info: ended.append((info.op_type, info.seq)))
    works = [dist.all_reduce(torch.ones(100), group=group, async_op=True) for _ in range(3)]
    dist.barrier(group=group)
    del works
    backend._wait_for_pending_works()
    assert len(ended) == 4 and [number for _, number in sorted(ended, key=lambda one: one[1])] == [1, 2, 3, 4], ended
    if not is_recorded:
        return
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="tessera"))
    of_group = [(entry["profiling_name"], entry["state"]) for entry in trace["entries"] if entry["process_group"][0] == group.group_name]
    assert of_group == [("tessera:all_reduce", "completed")] * 3 + [("tessera:barrier", "completed")], of_group


def data_parallel(rank, ranks):
    def net():
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def train(model, batch, steps=4):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    batch = torch.randn(4 * ranks, 12, generator=torch.Generator().manual_seed(1))
    alone = train(net(), batch)
    for keywords in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}, {"static_graph": True}):
        model = torch.nn.parallel.DistributedDataParallel(net(), **keywords)
        for got, want in zip(train(model, batch[4 * rank:4 * rank + 4]), alone, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def many_at_once(rank, ranks):
    given = [torch.full((50,), float(rank + number)) for number in range(300)]
    works = [dist.all_reduce(x, async_op=True) for x in given]
    futures = [work.get_future() for work in works[::3]]
    for waited in (*works[::-1], *futures):
        waited.wait()
    for number, x in enumerate(given):
        assert (x == sum(r + number for r in range(ranks))).all(), number


def fully_sharded_in_the_arena(rank, ranks):
    """FSDP2 whose buffers are the group's memory."""
    fully_sharded(rank, ranks, prepare=lambda layer: layer.set_allocate_memory_from_process_group_for_comm(True))


def fully_sharded(rank, ranks, prepare=lambda layer: None):
    """torch's FSDP2 and DTensor on a mesh of CPU ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (ranks,))
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)))
    sharded, alone = models
    for layer in (sharded[0], sharded[2], sharded):
        prepare(fully_shard(layer, mesh=mesh))
    batch = torch.randn(4 * ranks, 8, generator=torch.Generator().manual_seed(3))
    for model, rows in ((sharded, batch[4 * rank:4 * rank + 4]), (alone, batch)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    for got, want in zip(sharded.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.full_tensor(), want, rtol=1e-5, atol=1e-6)
    a, b = torch.arange(42.0).view(6, 7), torch.arange(35.0).view(7, 5)
    product = distribute_tensor(a, mesh, [Shard(1)]) @ distribute_tensor(b, mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor(), a @ b)
    torch.testing.assert_close(distribute_tensor(a, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)]).full_tensor(), a)


def run(program, rank, ranks, store, backend):
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)     # a rank that hangs says where
    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    program(rank, ranks)
    dist.destroy_process_group()


def main(program, ranks, backend="tessera"):
    """Ends this process, with status 0 where all ranks ended well or killed themselves."""
    import multiprocessing
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        processes = [context.Process(target=run, args=(program, rank, ranks, f"{folder}/store", backend)) for rank in range(ranks)]
        for process in processes:
            process.start()
        waiting = list(processes)
        while waiting and all(process.exitcode in (None, 0, -signal.SIGKILL) for process in waiting):
            waiting = [process for process in waiting if process.exitcode is None]
            time.sleep(0.01)
        for process in waiting:
            process.terminate()     # of ranks that wait for one that has failed
        codes = [process.exitcode for process in processes]
    print("exit codes", codes)
    sys.exit(next((1 for code in codes if code not in (0, -signal.SIGKILL)), 0))


if __name__ == "__main__":
    main(globals()[sys.argv[1]], int(sys.argv[2]))
