"""The page of ranks of one host, in which they match and run the collectives of their own arrays: what it leaves to the workers,
and what happens when a rank of it is stopped, killed, late, or writes over it."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import tessera as ts
import tessera.distributed as dist
from rank_processes import Ranks

SIZE = 3
LARGE = 4 << 20     # elements: some hundred steps


@pytest.fixture(scope="module")
def ranks(cluster):
    ranks = Ranks(cluster, SIZE, "test_rank_page")
    yield ranks
    ranks.stop()


def world():
    from tessera.distributed._world import group_of
    return group_of("test", None)


# ---- what goes through it

def bytes_of(kind):
    """The bytes that the workers received while the ranks ran every collective on arrays, or one on Tensors."""
    rank, session = dist.get_rank(), world().session
    x, many = np.full(1000, rank + 1.0), np.arange(3000.0)
    with session.comm_debug() as comm:
        if kind == "tensor":
            t = ts.asarray(x)
            dist.all_reduce(t)
            x = t.full_tensor()
        else:
            dist.all_reduce(x)
            dist.reduce(many.copy(), 1)
            dist.broadcast(many.copy(), 2)
            dist.all_gather_into_tensor(np.zeros(3000), np.ones(1000))
            dist.gather(x, [np.zeros(1000) for _ in range(3)] if rank == 0 else None, 0)
            dist.scatter(np.zeros(1000), [x] * 3 if rank == 0 else None, 0)
            dist.reduce_scatter_tensor(np.zeros(1000), many)
            dist.all_to_all_single(np.zeros(3000), many)
            dist.barrier()
    return float(x[0]), sum(comm.bytes_received)


def test_arrays_go_through_the_page_and_tensors_through_the_workers(ranks):
    assert ranks.run(bytes_of, "array") == [(6.0, 0)] * SIZE
    assert all(total == 6.0 and received > 0 for total, received in ranks.run(bytes_of, "tensor"))


def mixed():
    """Arrays and Tensors in turn, without a wait between: the page and the coordinator count the same calls."""
    rank, works, arrays, tensors = dist.get_rank(), [], [], []
    for _ in range(20):
        arrays.append(np.full(10, rank + 1.0))
        works.append(dist.all_reduce(arrays[-1], async_op=True))
        tensors.append(ts.full((10,), rank + 1.0))
        dist.all_reduce(tensors[-1])
    for work in works:
        work.wait()
    return [float(x[0]) for x in arrays] + [float(t.sum()) / 10 for t in tensors]


def test_arrays_and_tensors_take_turns(ranks):
    assert ranks.run(mixed) == [[6.0] * 40] * SIZE


def array_meets_tensor():
    x = np.ones(4) if dist.get_rank() == 0 else ts.ones(4, dtype="float64")
    dist.all_reduce(x)
    return float(np.asarray(x)[0])


def test_an_array_meets_a_tensor(ranks):
    assert ranks.run(array_meets_tensor) == [3.0] * SIZE


def in_opposite_orders(groups):
    """Async calls of three groups that overlap, begun in another order at each rank, and waited for in yet another one."""
    rank, works = dist.get_rank(), []
    made = [dist.new_group(group) for group in groups]
    mine = [i for i, group in enumerate(groups) if rank in group]
    order = mine[rank % len(mine):] + mine[:rank % len(mine)]
    for turn in range(30):
        for i in order if turn % 2 else reversed(order):
            x = np.full(LARGE // 64, 10.0**i)
            works.append((i, x, dist.all_reduce(x, group=made[i], async_op=True)))
    for _, _, work in reversed(works):
        work.wait()
    return all(x[0] == x[-1] == len(groups[i]) * 10.0**i for i, x, _ in works)


def test_groups_that_overlap_go_on_in_any_order(ranks):
    assert ranks.run(in_opposite_orders, [[0, 1], [1, 2], [0, 1, 2]]) == [True] * SIZE


def dropped():
    x = np.full(LARGE, 1.0)
    dist.all_reduce(x, async_op=True)       # nobody keeps the work
    y = x[:0]
    del x
    dist.barrier()
    return float(y.base[-1])


def test_a_work_that_is_dropped_goes_on(ranks):
    assert ranks.run(dropped) == [3.0] * SIZE


def in_odd_memory():
    """Inputs and outputs that overlap, or are no whole arrays."""
    rank, base = dist.get_rank(), np.arange(12.0)
    dist.all_gather_into_tensor(base, base[rank * 4:rank * 4 + 4])      # in place
    shifted = np.full(13, rank + 1.0)
    dist.reduce_scatter_tensor(shifted[1:5], shifted[:12])              # overlaps at no whole part
    every_second = np.full(8, rank + 1.0)
    dist.all_reduce(every_second[::2])
    return base.tolist(), shifted.tolist(), every_second.tolist()


def test_inputs_and_outputs_may_overlap(ranks):
    for rank, (base, shifted, every_second) in enumerate(ranks.run(in_odd_memory)):
        own = rank + 1.0
        assert base == list(np.arange(12.0)) and shifted == [own] + [6.0] * 4 + [own] * 8 and every_second == [6.0, own] * 4


# ---- what goes wrong

def differs():
    dist.barrier()
    began = time.monotonic()
    try:
        dist.all_reduce(np.ones(3 if dist.get_rank() == 1 else 4))
    except ts.InvalidArgumentError as error:
        return str(error), time.monotonic() - began
    return "no error"


def test_calls_that_differ_are_told_at_once(ranks):
    for text, seconds in ranks.run(differs):
        assert "ranks 0 and 2 called all_reduce f64[4] sum; rank 1 called all_reduce f64[3] sum" in text
        assert seconds < 2      # 0.01 on a quiet machine
    ranks.run(mixed)            # the group goes on


def far_ahead():
    """More async calls than wait for other ranks."""
    works, error = [], None
    if dist.get_rank() == 0:
        for _ in range(1100):
            try:
                works.append(dist.barrier(async_op=True))
            except ts.ResourceExhaustedError as failed:
                error = str(failed)
                break
        dist.send(np.array([len(works)]), 1)
        dist.send(np.array([len(works)]), 2)
    else:
        count = np.zeros(1, dtype=int)
        dist.recv(count, 0)
        works = [dist.barrier(async_op=True) for _ in range(count[0])]
    for work in works:
        work.wait()
    return error


def test_calls_that_nobody_meets_are_limited(ranks):
    error = ranks.run(far_ahead)[0]
    assert "1024 calls of this rank wait for other ranks; that is max_calls_ahead" in error


def forked():
    x = np.ones(4)
    dist.all_reduce(x)
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(x)
        except ts.TesseraError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    dist.all_reduce(x)
    return status, x.tolist()


def test_a_fork_is_no_rank(ranks):
    assert ranks.run(forked) == [(7, [9.0] * 4)] * SIZE


made = []       # groups that a rank has


def make_group(timeout_s):
    made.append(dist.new_group([0, 1, 2], timeout=timeout_s))


def until_it_fails(elements):
    """Calls one after another; what ended them, how long the last one took, and whether the group goes on."""
    group, x = made[-1], np.ones(elements)
    while True:
        began = time.monotonic()
        try:
            dist.all_reduce(x, group=group)
        except ts.TesseraError as error:
            text, seconds = str(error), time.monotonic() - began
            break
    y = np.ones(3)
    try:
        dist.all_reduce(y, group=group)
    except ts.TesseraError as error:
        return text, seconds, str(error)
    return text, seconds, y.tolist()


@pytest.mark.parametrize("elements", [1, LARGE])
def test_a_rank_that_is_killed_is_named(own_ranks, elements):
    ranks = own_ranks()
    ranks.run(make_group, 60)
    ranks.begin(until_it_fails, elements)
    time.sleep(1.5)
    ranks.kill(2)
    for text, seconds, again in ranks.answers([0, 1]):
        assert f"rank 2 (pid {ranks.processes[2].pid} on " in text and "is gone: the client is gone" in text
        assert seconds < 10     # 0.4 on a quiet machine
        assert "is gone" in again


@pytest.mark.parametrize("elements", [1, LARGE])
def test_a_rank_that_is_stopped_is_named_and_comes_back(own_ranks, elements):
    ranks = own_ranks()
    ranks.run(make_group, 6)
    ranks.begin(until_it_fails, elements)
    time.sleep(1.5)
    pid = ranks.processes[2].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(9)
    os.kill(pid, signal.SIGCONT)
    answers = ranks.answers()
    for text, _, _ in answers[:2]:
        assert f"rank 2 (pid {pid} on " in text
    assert any("timed out after" in text for text, _, _ in answers[:2])
    assert [again for _, _, again in answers] == [[3.0] * 3] * SIZE     # all have failed the same call


def scribble(seed):
    """Random bytes over the words of each page that this process has, and then calls in its groups."""
    rank, groups = dist.get_rank(), [dist.new_group([0, 1, 2], timeout=2), dist.new_group([0, 2], timeout=60)]
    for _ in range(3):
        dist.all_reduce(np.ones(8), group=groups[0])
    if rank == 1:
        with open("/proc/self/maps") as maps:
            pages = [int(line.split("-")[0], 16) for line in maps if "memfd:tessera" in line]
        assert pages
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for page in pages:
                memory.seek(page)
                memory.write(np.random.default_rng(seed).bytes(4096))
    ended = []
    for _ in range(3):
        try:
            dist.all_reduce(np.ones(100_000), group=groups[0])
            ended.append("done")
        except ts.TesseraError as error:
            ended.append(re.sub(r"\d+", "N", str(error))[:40])
    if rank != 1:
        x = np.ones(4)
        dist.all_reduce(x, group=groups[1])
        return ended, x.tolist()
    return ended, None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rank_that_writes_over_its_pages_harms_its_groups_alone(own_ranks, seed):
    for ended, others in own_ranks().run(scribble, seed):
        assert len(ended) == 3 and others in (None, [2.0] * 4)


def interrupted():
    rank, x, said = dist.get_rank(), np.full(4, dist.get_rank() + 1.0), None
    if rank == 0:
        threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
    else:
        dist.recv(np.zeros(4), 0)
    try:
        dist.all_reduce(x)
    except KeyboardInterrupt:
        said = "interrupted"
        for other in (1, 2):
            dist.send(x, other)
    y = np.ones(4)
    dist.all_reduce(y)
    return said, float(x[0]), y.tolist()


def test_a_wait_is_interrupted_and_the_call_goes_on_for_the_others(own_ranks):
    assert own_ranks().run(interrupted) == [("interrupted", 1.0, [3.0] * 4), (None, 6.0, [3.0] * 4), (None, 6.0, [3.0] * 4)]
