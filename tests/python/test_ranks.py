"""Collectives of processes that are ranks, on tensors of their workers and on arrays of their own: against NumPy."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import tessera as ts
import tessera.distributed as dist
from rank_processes import Failure, Ranks
from test_distributed import DTYPES, OPS, is_defined, numbers, reduced
from waiting import wait_until

SIZE = 3
KINDS = ["array", "tensor"]
SHAPES = [(4,), (2, 3), (), (0, 2), (5, 7, 3), (2048,)]


@pytest.fixture(scope="module")
def ranks(cluster):
    ranks = Ranks(cluster, SIZE, "test_ranks")
    yield ranks
    ranks.stop()


def value_of(kind, array):
    return np.array(array) if kind == "array" else ts.asarray(array)


def same(got, wanted):
    got = np.asarray(got)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got, wanted)
    np.testing.assert_array_equal(got, wanted)


def inputs(dtype, shape, seed):
    return [numbers(dtype, shape, seed + rank) for rank in range(SIZE)]


# ---- each in a rank

def every_all_reduce(kind, dtype, op):
    """The sum, or another reduction, of all shapes, async or not; and one in each kind of group."""
    rank, out = dist.get_rank(), []
    for seed, shape in enumerate(SHAPES):
        x = value_of(kind, inputs(dtype, shape, seed)[rank])
        work = dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=seed % 2 == 1)
        if work is not None:
            assert work.wait() and work.is_completed()
        out.append(np.asarray(x))
    return out


def every_move(kind, dtype):
    """All collectives that don't reduce, by shape."""
    rank, out = dist.get_rank(), []
    for seed, shape in enumerate(SHAPES):
        data = inputs(dtype, shape, seed)
        x, root, got = value_of(kind, data[rank]), seed % SIZE, {}
        dist.broadcast(x, src=root)
        got["broadcast"] = np.asarray(x)
        x = value_of(kind, data[rank])
        parts = [value_of(kind, np.zeros_like(data[0])) for _ in range(SIZE)]
        dist.all_gather(parts, x)
        got["all_gather"] = [np.asarray(one) for one in parts]
        whole = value_of(kind, np.zeros((SIZE, *shape), dtype=data[0].dtype))
        dist.all_gather_into_tensor(whole, x)
        got["all_gather_into_tensor"] = np.asarray(whole)
        parts = [value_of(kind, np.zeros_like(data[0])) for _ in range(SIZE)] if rank == root else None
        dist.gather(x, parts, dst=root)
        got["gather"] = None if parts is None else [np.asarray(one) for one in parts]
        into = value_of(kind, np.zeros_like(data[0]))
        dist.scatter(into, [value_of(kind, one) for one in data] if rank == root else None, src=root)
        got["scatter"] = np.asarray(into)
        # Rank i sends data[i] to all ranks.
        given = [value_of(kind, np.asarray(data[rank])) for _ in range(SIZE)]
        taken = [value_of(kind, np.zeros_like(data[0])) for _ in range(SIZE)]
        dist.all_to_all(taken, given)
        got["all_to_all"] = [np.asarray(one) for one in taken]
        out.append(got)
    return out


def every_reduce_scatter(kind, dtype, op):
    rank, out, reduce_op = dist.get_rank(), [], getattr(dist.ReduceOp, op)
    for seed, shape in enumerate(SHAPES):
        data = [numbers(dtype, (SIZE, *shape), 10 * seed + r) for r in range(SIZE)]
        got = {}
        into = value_of(kind, np.zeros(shape, dtype=data[0].dtype))
        dist.reduce_scatter_tensor(into, value_of(kind, data[rank]), reduce_op)
        got["reduce_scatter_tensor"] = np.asarray(into)
        into = value_of(kind, np.zeros(shape, dtype=data[0].dtype))
        dist.reduce_scatter(into, [value_of(kind, part) for part in data[rank]], reduce_op)
        got["reduce_scatter"] = np.asarray(into)
        x = value_of(kind, data[rank])
        dist.reduce(x, dst=seed % SIZE, op=reduce_op)
        got["reduce"] = np.asarray(x)
        out.append(got)
    return out


# ---- against NumPy

@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_reductions(ranks, kind, dtype):
    for op in OPS:
        if not is_defined(op, dtype):
            continue
        for outcome in ranks.run(every_all_reduce, kind, dtype, op):
            for seed, (shape, got) in enumerate(zip(SHAPES, outcome)):
                same(got, reduced(op, inputs(dtype, shape, seed)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", ts.bfloat16], ids=lambda d: np.dtype(d).name)
def test_reductions_in_parts(ranks, kind, dtype):
    for op in ("SUM", "MAX", "AVG", "BXOR"):
        if not is_defined(op, dtype):
            continue
        for rank, outcome in enumerate(ranks.run(every_reduce_scatter, kind, dtype, op)):
            for seed, (shape, got) in enumerate(zip(SHAPES, outcome)):
                data = [numbers(dtype, (SIZE, *shape), 10 * seed + r) for r in range(SIZE)]
                whole = reduced(op, data)
                same(got["reduce_scatter_tensor"], whole[rank])
                same(got["reduce_scatter"], whole[rank])
                same(got["reduce"], whole if rank == seed % SIZE else data[rank])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_moves(ranks, kind, dtype):
    for rank, outcome in enumerate(ranks.run(every_move, kind, dtype)):
        for seed, (shape, got) in enumerate(zip(SHAPES, outcome)):
            data, root = inputs(dtype, shape, seed), seed % SIZE
            same(got["broadcast"], data[root])
            same(got["all_gather_into_tensor"], np.stack(data))
            same(got["scatter"], data[rank])
            for name in ("all_gather", "gather", "all_to_all"):
                if name == "gather" and rank != root:
                    assert got[name] is None
                    continue
                for one, wanted in zip(got[name], data):
                    same(one, wanted)


def uneven(kind):
    rank = dist.get_rank()
    parts = [value_of(kind, np.zeros(2 * r)) for r in range(SIZE)]
    dist.all_gather(parts, value_of(kind, np.full(2 * rank, 1.0 + rank)))
    sent = [1, 0, 2]        # rows of each rank to ranks 0, 1, 2
    received = [sent[rank]] * SIZE
    x = value_of(kind, np.arange(6.0).reshape(3, 2) + 10 * rank)
    out = value_of(kind, np.zeros((sum(received), 2)))
    dist.all_to_all_single(out, x, received, sent)
    into = value_of(kind, np.zeros(rank + 1))
    dist.reduce_scatter(into, [value_of(kind, np.full(r + 1, float(rank))) for r in range(SIZE)])
    even = value_of(kind, np.zeros(6))
    dist.all_to_all_single(even, value_of(kind, np.arange(6.0) + 10 * rank))
    return [np.asarray(one) for one in parts], np.asarray(out), np.asarray(into), np.asarray(even)


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_sizes(ranks, kind):
    sent, first = [1, 0, 2], [0, 1, 1]
    for rank, (parts, out, into, even) in enumerate(ranks.run(uneven, kind)):
        for r, part in enumerate(parts):
            same(part, np.full(2 * r, 1.0 + r))
        rows = [np.arange(6.0).reshape(3, 2)[first[rank]:first[rank] + sent[rank]] + 10 * source for source in range(SIZE)]
        same(out, np.concatenate(rows))
        same(into, np.full(rank + 1, 3.0))
        same(even, np.concatenate([np.arange(6.0)[2 * rank:2 * rank + 2] + 10 * source for source in range(SIZE)]))


def views_and_orders():
    """Operands whose elements lie apart, and results in arrays that do."""
    rank = dist.get_rank()
    x = np.arange(12.0).reshape(3, 4) + rank
    dist.all_reduce(x[:, ::2])
    t = ts.asarray(np.arange(12.0).reshape(3, 4) + rank)
    turned, stepped = t.T, t[:, ::2].copy()
    dist.all_reduce(turned)     # a view: t has it, too
    dist.all_reduce(stepped)
    return x, np.asarray(turned), np.asarray(stepped), np.asarray(t)


def test_views(ranks):
    whole = np.arange(12.0).reshape(3, 4)
    for rank, (x, turned, stepped, t) in enumerate(ranks.run(views_and_orders)):
        wanted = whole + rank
        wanted[:, ::2] = (3 * whole + 3)[:, ::2]
        same(x, wanted)
        same(turned, (3 * whole + 3).T)
        same(t, 3 * whole + 3)
        same(stepped, (3 * whole + 3)[:, ::2])


def chain_of_handles():
    x = ts.ones((64, 64), dtype="float32")
    for _ in range(20):
        dist.all_reduce(x, dist.ReduceOp.AVG)
        x = x + 1
    return float(np.asarray(x)[3, 4]), list(x.device_mesh.workers) == [dist.get_rank()]


def test_results_are_used_at_once(ranks):
    assert ranks.run(chain_of_handles) == [(21.0, True)] * SIZE


def factors():
    x = np.full(4, float(dist.get_rank() + 1))
    dist.all_reduce(x, dist.ReduceOp.premul_sum(0.5))
    y = [np.full(2, 1.0), np.full((2, 2), 2.0)]
    dist.all_reduce_coalesced(y)
    return x.tolist(), [one.sum() for one in y]


def test_scaled_and_coalesced(ranks):
    assert ranks.run(factors) == [([3.0] * 4, [6.0, 24.0])] * SIZE


# ---- messages

def messages(kind):
    rank, right, left = dist.get_rank(), (dist.get_rank() + 1) % SIZE, (dist.get_rank() - 1) % SIZE
    got = value_of(kind, np.zeros(5))
    works = [dist.irecv(got, left), dist.isend(value_of(kind, np.full(5, float(rank))), right)]
    for work in works:
        work.wait()
    first = np.asarray(got).tolist()
    second = value_of(kind, np.zeros(3, dtype=np.int32))
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value_of(kind, np.full(3, rank, dtype=np.int32)), left, tag=7),
                                        dist.P2POp(dist.irecv, second, right, tag=7)]):
        work.wait()
    sources = []
    if rank == 0:
        for _ in range(SIZE - 1):
            any_value = value_of(kind, np.zeros(2))
            source = dist.recv(any_value)
            sources.append((source, np.asarray(any_value).tolist()))
    else:
        dist.send(value_of(kind, np.full(2, float(rank))), 0)
    return first, np.asarray(second).tolist(), sorted(sources)


@pytest.mark.parametrize("kind", KINDS)
def test_messages(ranks, kind):
    for rank, (first, second, sources) in enumerate(ranks.run(messages, kind)):
        assert first == [(rank - 1) % SIZE] * 5 and second == [(rank + 1) % SIZE] * 3
        assert sources == ([(r, [r, r]) for r in range(1, SIZE)] if rank == 0 else [])


def objects():
    rank = dist.get_rank()
    gathered, here = [None] * SIZE, [None] * SIZE
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank * 3000})
    dist.gather_object(("one", rank), here if rank == 1 else None, dst=1)
    told = [1, "two"] if rank == 2 else [None, None]
    dist.broadcast_object_list(told, src=2)
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(SIZE)] if rank == 0 else None, src=0)
    sent = [None, None]
    if rank == 0:
        dist.send_object_list(["a", {2}], dst=1)
    if rank == 1:
        dist.recv_object_list(sent, src=0)
    return gathered, here, told, mine, sent


def test_objects(ranks):
    for rank, (gathered, here, told, mine, sent) in enumerate(ranks.run(objects)):
        assert gathered == [{"rank": r, "text": "x" * r * 3000} for r in range(SIZE)]
        assert here == ([("one", r) for r in range(SIZE)] if rank == 1 else [None] * SIZE)
        assert told == [1, "two"] and mine == [f"for {rank}"]
        assert sent == (["a", {2}] if rank == 1 else [None, None])


# ---- groups

def in_groups():
    rank = dist.get_rank()
    pair, other, alone = dist.new_group([0, 2]), dist.new_group([1, 2]), dist.new_group([1])
    out = [dist.get_rank(pair), dist.get_world_size(other), dist.get_rank(alone)]
    works, x, y = [], np.full(2, float(rank + 1)), np.full(2, float(10 * (rank + 1)))
    # Overlapping groups in opposite order.
    order = [(pair, x), (other, y)] if rank != 2 else [(other, y), (pair, x)]
    for group, value in order:
        if dist.get_rank(group) >= 0:
            works.append(dist.all_reduce(value, group=group, async_op=True))
    for work in works:
        work.wait()
    if rank == 1:
        dist.barrier(alone)
        assert dist.get_process_group_ranks(other) == [1, 2] and dist.get_global_rank(other, 0) == 1
        assert dist.get_group_rank(other, 2) == 1
    own, every = dist.new_subgroups(1)
    dist.barrier(own)
    assert len(every) == SIZE
    for group in (pair, other, alone):
        dist.destroy_process_group(group)
    return out, x[0], y[0]


def test_groups(ranks):
    assert ranks.run(in_groups) == [([0, -1, -1], 4.0, 10.0), ([-1, 2, 0], 2.0, 50.0), ([1, 2, -1], 4.0, 50.0)]


# ---- calls that differ, and bad input

def call_that_differs(field):
    rank = dist.get_rank()
    x = np.ones(4 if field != "elements" or rank == 0 else 5, dtype="int32" if field == "dtype" and rank == 1 else "float32")
    if field == "op":
        dist.all_reduce(x, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    elif field == "root":
        dist.reduce(x if rank else ts.asarray(x), dst=1 if rank == 2 else 0, async_op=True).wait()
    elif field == "kind" and rank == 1:
        dist.barrier()
    elif field == "parts":
        dist.all_gather_into_tensor(np.zeros(12, dtype="float32"), x)
    else:
        dist.all_reduce(x)


@pytest.mark.parametrize("field", ["op", "dtype", "elements", "kind", "root"])
def test_calls_that_differ_are_named_at_all_ranks(ranks, field):
    failures = ranks.failures(call_that_differs, field)
    for failure in failures:
        assert failure.kind == "InvalidArgumentError"
        assert "of group '" in failure.text and " differs: rank" in failure.text and "reduce " in failure.text
    assert ranks.run(dist.get_rank) == list(range(SIZE))
    ranks.run(chain_of_handles)     # the group goes on


def destroyed_group_is_used(x):
    group = dist.new_group([0, 1, 2])
    dist.destroy_process_group(group)
    dist.all_reduce(x, group=group)


def splits_that_differ(asked):
    """Rank 0 wants two rows of rank 1, which gives one. A sender that had sent before the other side asked is told when it leaves."""
    rank = dist.get_rank()
    takes = [1, 2, 1] if rank == 0 else [1, 1, 1]
    try:
        dist.all_to_all_single(np.zeros(sum(takes)), np.ones(3), takes, [1, 1, 1])
    finally:
        if rank == 0:
            asked.touch()
    if rank == 1:
        wait_until(asked.exists)
    dist.destroy_process_group()


def test_splits_that_the_other_side_does_not_expect_are_named(own_ranks, tmp_path):
    for failure in own_ranks().run(splits_that_differ, tmp_path / "asked", allow=True)[:2]:     # those whom it concerns
        assert "rank 1 called send f64[1] to rank 0" in failure.text and "rank 0 called recv f64[2] from rank 1" in failure.text


def refused(case):
    rank = dist.get_rank()
    x = np.ones(4, dtype="float32")
    read_only = x.copy()
    read_only.flags.writeable = False
    calls = {
        "a list": lambda: dist.all_reduce([1.0]),
        "read-only": lambda: dist.all_reduce(read_only),
        "another mesh": lambda: dist.all_reduce(ts.ones(4, device=dist.get_mesh()._session.init_device_mesh((1,), workers=[(rank + 1) % 3]))),
        "no root": lambda: dist.broadcast(x, src=7),
        "itself": lambda: dist.send(x, rank),
        "tag": lambda: dist.isend(x, (rank + 1) % 3, tag=-1),
        "bits of floats": lambda: dist.all_reduce(x, dist.ReduceOp.BAND),
        "average of integers": lambda: dist.all_reduce(np.ones(4, dtype="int32"), dist.ReduceOp.AVG),
        "order of complex": lambda: dist.all_reduce(np.ones(4, dtype="complex64"), dist.ReduceOp.MAX),
        "another length": lambda: dist.all_gather([x], x),
        "overlap": lambda: dist.all_gather([read_only.copy()] + [x] * 2, x.copy()),
        "splits": lambda: dist.all_to_all_single(np.zeros(4, dtype="float32"), x, [1, 1, 1], [2, 1, 1]),
        "time": lambda: dist.barrier(timeout=0),
        "no number": lambda: dist.barrier(timeout=float("nan")),
        "infinite": lambda: dist.barrier(timeout=float("inf")),
        "destroyed": lambda: destroyed_group_is_used(x),
        "twice": lambda: dist.init_process_group(),
        "no group": lambda: dist.barrier(dist.GroupMember.NON_GROUP_MEMBER),
        "ranks": lambda: dist.new_group([0, 9]),
    }
    return calls[case]()


@pytest.mark.parametrize("case, text", [
    ("a list", "all_reduce: tensor is list; a rank gives a Tensor or a NumPy array"),
    ("read-only", "all_reduce: tensor is read-only"),
    ("another mesh", "a rank's values lie on its worker"),
    ("no root", "broadcast: src is 7; the group has the ranks [0, 1, 2]"),
    ("itself", "isend: dst is this rank itself"),
    ("tag", "isend: tag is -1; it is a number from 0 on"),
    ("bits of floats", "all_reduce: ReduceOp.BAND is of the bits of integers"),
    ("average of integers", "ReduceOp.AVG of int32"),
    ("order of complex", "complex numbers have no order"),
    ("another length", "all_gather: tensor_list has 1 values for a group of 3"),
    ("overlap", "all_gather: tensor_list[1] and tensor_list[2] overlap in memory"),
    ("splits", "output_split_sizes is [1, 1, 1]; it has an extent for each of 3 ranks, 4 rows in all"),
    ("time", "barrier: timeout is 0"),
    ("no number", "barrier: timeout is nan"),
    ("infinite", "barrier: timeout is inf"),
    ("destroyed", "was destroyed"),
    ("twice", "destroy_process_group() comes first"),
    ("no group", "barrier: this rank is not in the group"),
    ("ranks", "new_group: ranks is [0, 9]"),
])
def test_bad_input_is_refused_by_name(ranks, case, text):
    for failure in ranks.failures(refused, case):
        assert text in failure.text, failure.text


def timed_out():
    if dist.get_rank() == 1:
        return "elsewhere"
    dist.barrier(dist.new_group([0, 2]))        # both come to the next call at about the same time
    began = time.monotonic()
    try:
        dist.barrier(timeout=3.0)
    except ts.DeadlineExceededError as error:
        return str(error), time.monotonic() - began
    return "no error"


def test_a_rank_that_does_not_come_is_named(own_ranks):
    answers = own_ranks().run(timed_out)
    for text, seconds in (answers[0], answers[2]):
        assert "timed out after 3 s: rank 1 (pid " in text and "has not come to it" in text and "called barrier" in text
        assert 1.5 < seconds < 60       # the first one's time counts


def record_of(what):
    x = np.ones(4)
    if what == "calls":
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif dist.get_rank() == 1:
            dist.recv(x, 0)
        dist.barrier()
    if dist.get_rank() != 0:
        return None
    work = dist.all_gather_into_tensor(np.zeros(12), x, async_op=True)
    record = dist.flight_record()
    return record, work is not None


def go_on():
    dist.all_gather_into_tensor(np.zeros(12), np.ones(4))


def test_the_flight_record_has_the_last_calls_of_every_rank(own_ranks):
    ranks = own_ranks()
    record, _ = ranks.run(record_of, "calls")[0]
    # Rank 2 may come to the barrier before the message is sent.
    assert sorted((call["call"], call["what"]) for call in record["calls"]) == [
        (0, "send f64[4] to rank 1 with tag 0 of rank 0"), (1, "all_reduce f64[4] sum"), (2, "barrier"), (3, "all_gather f64[4]")]
    assert all(call["matched"] is not None and not call["failure"] for call in record["calls"][:3])
    last = record["calls"][3]
    assert last["matched"] is None and last["arrived"][1:] == [None, None] and 0 <= last["arrived"][0] < 60
    assert [member["state"] for member in record["members"]] == ["here"] * 3
    assert [member["calls"] for member in record["members"]] == [3, 2, 2]
    ranks.run(go_on, ranks=[1, 2])


def wait_for_rank_two():
    began = time.monotonic()
    try:
        dist.all_reduce(np.ones(4))
    except ts.UnavailableError as error:
        return str(error), time.monotonic() - began
    return "no error"


def be_away(seconds):
    time.sleep(seconds)


def pair_goes_on():
    group = dist.new_group([0, 1])
    x = np.ones(3)
    dist.all_reduce(x, group=group)
    return x.tolist()


def test_a_killed_rank_is_named_and_the_others_go_on(own_ranks):
    ranks = own_ranks()
    ranks.begin(be_away, 60, ranks=[2])
    ranks.begin(wait_for_rank_two, ranks=[0, 1])
    time.sleep(0.5)
    ranks.kill(2)
    for text, _ in ranks.answers([0, 1]):
        assert f"rank 2 (pid {ranks.processes[2].pid} on " in text and "is gone: the client is gone" in text
    later = ranks.run(wait_for_rank_two, ranks=[0, 1])
    assert all("is gone" in text and seconds < 5 for text, seconds in later)
    assert ranks.run(pair_goes_on, ranks=[0, 1]) == [[2.0] * 3] * 2


LATE = """
import sys
import tessera as ts
import tessera.distributed as dist
try:
    dist.init_process_group(rank=int(sys.argv[1]), world_size=2, timeout=float(sys.argv[2]))
except ts.TesseraError as error:
    print(error)
else:
    print("joined", dist.get_rank())
"""


def test_a_process_of_an_earlier_restart_meets_nobody(cluster, tmp_path):
    script = tmp_path / "late.py"
    script.write_text(LATE)

    def begin(rank, restart, seconds):
        environment = {**os.environ, "TESSERA_ADDRESS": cluster.address, "TORCHELASTIC_RUN_ID": str(tmp_path), "TORCHELASTIC_RESTART_COUNT": restart}
        return subprocess.Popen([sys.executable, script, str(rank), str(seconds)], env=environment, stdout=subprocess.PIPE, text=True)

    late, first, second = begin(1, "0", 10), begin(0, "1", 60), begin(1, "1", 60)
    assert [first.communicate()[0], second.communicate()[0]] == ["joined 0\n", "joined 1\n"]
    assert "rank 0" in late.communicate()[0]     # is missing


def leave_and_join_again():
    dist.destroy_process_group()
    assert not dist.is_initialized()
    try:
        dist.get_rank()
    except ts.FailedPreconditionError as error:
        return str(error)
    return "no error"


def test_a_rank_that_has_left_is_none(own_ranks):
    ranks = own_ranks(2)
    assert all("this process is no rank; call init_process_group first" in text for text in ranks.run(leave_and_join_again))


def test_one_process_by_a_file_and_by_a_port(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "TESSERA_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ts.InvalidArgumentError, match="rank isn't given, and the environment has no RANK"):
        dist.init_process_group()
    with pytest.raises(ts.InvalidArgumentError, match="rank 3 of 2 ranks"):
        dist.init_process_group(rank=3, world_size=2)
    with pytest.raises(ts.InvalidArgumentError, match="init_method is 'udp://x'"):
        dist.init_process_group(init_method="udp://x", rank=0, world_size=1)
    with pytest.raises(ts.InvalidArgumentError, match="backend is 'nccl'"):
        dist.init_process_group("nccl", rank=0, world_size=1)
    dist.init_process_group(init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    x = np.ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [1, 1, 1] and oct(os.stat(tmp_path / "meeting").st_mode & 0o777) == "0o600"
    dist.destroy_process_group()
    assert not isinstance(Failure(ValueError("x")), ValueError)
