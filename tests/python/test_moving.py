"""Upload, redistribute and download: values, layouts, and the bytes that plans and workers count."""

import concurrent.futures
import itertools
import os
import threading

import numpy as np
import pytest

import tessera as ts
from waiting import wait_until

S, R, P = ts.Shard, ts.Replicate, ts.Partial
ALL22 = [list(p) for p in itertools.product([S(0), S(1), R()], repeat=2)]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0, 3), (5, 7), (2, 3, 4), (1, 1), (9, 0)])
def test_what_goes_up_comes_down(session, mesh22, rng, shape):
    a = rng.random(shape)
    placements = [[R(), R()]] + [[S(d), R()] for d in range(len(shape))] + [[S(d), S(d)] for d in range(len(shape))]
    for p in placements:
        x = session.distribute_tensor(a, mesh22, p)
        np.testing.assert_array_equal(x.full_tensor(), a)
        assert x.full_tensor().shape == shape
        for position in mesh22.positions():
            box = x.box(position)
            np.testing.assert_array_equal(x.to_local(position), a[tuple(slice(*i) for i in box)])


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "float64"])
def test_every_dtype_goes_up_and_down(session, mesh4, rng, dtype):
    a = (rng.random((10, 3)) * 5).astype(dtype)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    assert x.dtype == a.dtype and x.full_tensor().dtype == a.dtype
    np.testing.assert_array_equal(x.full_tensor(), a)


def test_any_strides_and_byte_orders(session, mesh4, rng):
    a = rng.random((12, 10))
    for view in (a.T, a[::2], a[:, ::-1], np.asfortranarray(a), a[3:3], a.astype(">f8"), np.broadcast_to(a[0], (5, 10))):
        np.testing.assert_array_equal(session.distribute_tensor(view, mesh4, [S(0)]).full_tensor(), view)
    a.setflags(write=False)
    np.testing.assert_array_equal(session.distribute_tensor(a, mesh4, [S(1)]).full_tensor(), a)


def test_large_uploads_in_slabs(session, mesh22, rng):
    a = rng.random((3001, 700))  # 16 MB: above the snapshot size, uneven
    for p in ([S(0), S(1)], [S(1), R()], [R(), R()]):
        x = session.distribute_tensor(a, mesh22, p)
        np.testing.assert_array_equal(x.full_tensor(), a)
    np.testing.assert_array_equal(session.distribute_tensor(a.T, mesh22, [S(0), S(1)]).full_tensor(), a.T)
    wide = rng.random((2, 1_000_000))  # a row is larger than a slab
    np.testing.assert_array_equal(session.distribute_tensor(wide, mesh22, [S(0), R()]).full_tensor(), wide)


def shared_bytes():
    """Bytes of this process's memfds for transfers."""
    total = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:tessera"):
                total += os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        except FileNotFoundError:   # the descriptor of the listing itself
            pass
    return total


def test_long_rows_take_no_more_memory_than_they_have(session, mesh22, rng):
    values = rng.random(5_000_000)
    most = 0
    for shape in ((1, 5_000_000), (2, 2_500_000), (8, 625_000)):
        a = values.reshape(shape)
        for placements in ([R(), R()], [S(0), S(1)]):
            wait_until(lambda: shared_bytes() <= 4 * (4 << 20))     # the download before has let go of its own
            done = []
            thread = threading.Thread(target=lambda: done.append(session.distribute_tensor(a, mesh22, placements).wait()))
            thread.start()
            while thread.is_alive():
                most = max(most, shared_bytes())
                thread.join(1e-3)
            np.testing.assert_array_equal(done[0].full_tensor(), a)
    assert most <= values.nbytes + (1 << 20)
    wait_until(lambda: shared_bytes() <= 4 * (4 << 20))


def test_a_snapshot_is_taken_before_distribute_returns(session, mesh4):
    a = np.zeros(1000)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    a[:] = 1
    assert x.full_tensor().sum() == 0


def test_memmap_lists_and_tensors(session, mesh4, tmp_path):
    a = np.arange(24.0).reshape(6, 4)
    a.tofile(tmp_path / "a.bin")
    mapped = np.memmap(tmp_path / "a.bin", dtype="f8", mode="r", shape=(6, 4))
    np.testing.assert_array_equal(session.distribute_tensor(mapped, mesh4, [S(0)]).full_tensor(), a)
    x = session.distribute_tensor([[1, 2], [3, 4]], mesh4)
    assert x.placements == (R(),) and x.dtype == np.int64
    assert session.distribute_tensor(x, mesh4, [S(0)]).placements == (S(0),)


@pytest.mark.parametrize("source", ALL22, ids=str)
def test_redistribute_between_all_placements(session, mesh22, rng, source):
    a = rng.random((5, 7))
    x = session.distribute_tensor(a, mesh22, source)
    for destination in ALL22:
        plan = x.explain_redistribute(destination)
        with session.comm_debug() as comm:
            y = x.redistribute(placements=destination)
        assert y.placements == tuple(destination)
        assert comm.bytes_received == plan.bytes_received, str(plan)
        assert comm.bytes_sent == plan.bytes_sent
        np.testing.assert_array_equal(y.full_tensor(), a)
        for position in mesh22.positions():
            np.testing.assert_array_equal(y.to_local(position), a[tuple(slice(*i) for i in y.box(position))])


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max", "product"])
def test_pending_terms_are_reduced(session, mesh4, rng, op):
    terms = [rng.integers(1, 5, (5, 3)).astype("f8") for _ in range(4)]
    x = session.from_local(terms, mesh4, [P(op)])
    want = {"sum": sum(terms), "avg": sum(terms) / 4, "min": np.minimum.reduce(terms), "max": np.maximum.reduce(terms),
            "product": np.multiply.reduce(terms)}[op]
    for destination in ([R()], [S(0)], [S(1)]):
        plan = x.explain_redistribute(destination)
        with session.comm_debug() as comm:
            y = x.redistribute(destination)
        assert comm.bytes_received == plan.bytes_received
        np.testing.assert_allclose(y.full_tensor(), want)
    np.testing.assert_allclose(x.full_tensor(), want)
    np.testing.assert_array_equal(x.to_local(2), terms[2])


@pytest.mark.parametrize("rows", [1, 64])
def test_sums_of_two_terms(session, rng, rows):
    """Small or large, each worker reduces a half and stores it to the other: two steps, with the bytes of the bound."""
    mesh = session.init_device_mesh((2,))
    terms = [rng.random((rows, 1024), "f4") for _ in range(2)]
    x = session.from_local(terms, mesh, [P()])
    plan = x.explain_redistribute([R()])
    with session.comm_debug() as comm:
        y = x.redistribute([R()])
    assert comm.collective_counts == {"reduce_scatter": 1, "all_gather": 1} and len(plan.steps) == 2
    assert comm.bytes_received[:2] == comm.bytes_sent[:2] == plan.bytes_received == [terms[0].nbytes] * 2
    for position in mesh.positions():
        np.testing.assert_array_equal(y.to_local(position), terms[0] + terms[1])


def test_a_pending_sum_counts_a_replicate_once(session, mesh4):
    total = session.distribute_tensor(np.arange(10.0), mesh4, [S(0)]).sum()
    assert total.placements == (P("sum"),)
    assert float(total + 10) == 55


def test_rows_to_columns_takes_the_fewest_bytes(session, mesh4):
    x = ts.zeros((8, 8), device_mesh=mesh4, placements=[S(0)])
    plan = x.explain_redistribute([S(1)])
    assert plan.bytes_received == [3 * 2 * 2 * 8] * 4 and plan.placements == (S(1),)
    assert "all_to_all" in str(plan) and plan.steps and plan.predicted_seconds > 0 and len(plan.peak_bytes) == 4


def test_another_mesh_over_the_same_workers(session, mesh4, mesh22, rng):
    a = rng.random((6, 8))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    y = x.redistribute(mesh22, [S(1), S(0)])
    assert y.device_mesh == mesh22
    np.testing.assert_array_equal(y.full_tensor(), a)
    np.testing.assert_array_equal((x + y).full_tensor(), a + a)


def test_other_workers_are_named(session, rng):
    left, right = (session.init_device_mesh((2,), workers=w) for w in ((0, 1), (2, 3)))
    a = rng.random((6, 4))
    x, y = session.distribute_tensor(a, left, [S(0)]), session.distribute_tensor(a, right, [S(0)])
    with pytest.raises(ts.InvalidArgumentError, match="to_device"):
        x + y
    np.testing.assert_array_equal((x.to_device(right) + y).full_tensor(), a + a)


def test_from_local_of_shards_by_sizes(session, rng):
    parts = [rng.random((n, 2)) for n in (1, 3)]
    x = session.from_local(parts, session.init_device_mesh((2,)), [ts.Shard(0, sizes=[1, 3])])
    assert x.placements == (ts.Shard(0, sizes=[1, 3]),)
    np.testing.assert_array_equal(x.full_tensor(), np.concatenate(parts))


def test_from_local_forms(session, mesh22, rng):
    a = rng.random((5, 7))
    reference = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    shards = {p: reference.to_local(p) for p in mesh22.positions()}
    nested = [[shards[i, j] for j in range(2)] for i in range(2)]
    for locals in (shards, nested, shards.__getitem__):
        x = session.from_local(locals, mesh22, [S(0), S(1)])
        assert x.shape == (5, 7)
        np.testing.assert_array_equal(x.full_tensor(), a)
    x = session.from_local(shards, mesh22, [S(0), S(1)], shape=(5, 7))
    np.testing.assert_array_equal(x.full_tensor(), a)
    with pytest.raises(ts.InvalidArgumentError):
        session.from_local({(0, 0): a}, mesh22, [S(0), S(1)])
    with pytest.raises(ts.InvalidArgumentError):
        session.from_local(nested, mesh22, [S(0), S(1)], shape=(6, 7))
    with pytest.raises(ts.InvalidArgumentError):
        session.from_local([[np.zeros(3), np.zeros(2)], [np.zeros(3), np.zeros(3)]], mesh22, [S(0), R()])


def test_what_is_replicated_is_fetched_once(session, mesh4):
    a = np.arange(4096.0)
    x = session.distribute_tensor(a, mesh4, [R()])
    np.testing.assert_array_equal(x.full_tensor(), a)
    for p in range(4):
        np.testing.assert_array_equal(x.to_local(p), a)


@pytest.mark.parametrize("shape", [(1 << 20,), (1 << 20, 2), (1031, 1039), (7, 300, 501), (2, 1 << 19), (1, 1 << 20)])
def test_large_arrays_are_fetched_whatever_their_rows(session, mesh4, mesh22, rng, shape):
    """8 MiB and more come by slabs of rows; a row above 4 MiB at once."""
    a = rng.integers(-1000, 1000, shape).astype("f8")
    last = S(len(shape) - 1)
    for mesh, placements in [(mesh4, [S(0)]), (mesh4, [last]), (mesh4, [R()]), (mesh22, [S(0), last]), (mesh22, [R(), S(0)])]:
        x = session.distribute_tensor(a, mesh, placements)
        np.testing.assert_array_equal(x.full_tensor(), a)
        if len(shape) == 2:
            np.testing.assert_array_equal(np.asarray(x.T), a.T)
        for position in mesh.positions():
            box = tuple(slice(*interval) for interval in x.box(position))
            np.testing.assert_array_equal(x.to_local(position), a[box])


def test_large_arrays_are_fetched_side_by_side(session, mesh4):
    arrays = [np.full((3000, 512), float(i)) for i in range(4)]
    tensors = [session.distribute_tensor(a, mesh4, [S(0)]) for a in arrays]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, a in zip(pool.map(lambda x: x.full_tensor(), tensors), arrays):
                np.testing.assert_array_equal(got, a)
                got += 1  # nobody else's memory


def test_the_array_outlives_everything(session, mesh4):
    a = session.distribute_tensor(np.arange(100000.0), mesh4, [S(0)]).full_tensor()
    a += 1
    assert a[0] == 1 and a[-1] == 100000


def test_comm_debug_counts_only_its_block(session, mesh4):
    x = ts.zeros((64, 64), device_mesh=mesh4, placements=[S(0)])
    x.redistribute([S(1)])
    with session.comm_debug() as empty:
        pass
    assert empty.bytes_received == [0] * 4 and empty.collective_counts == {}
    with session.comm_debug() as comm:
        x.redistribute([R()])
        x.redistribute([R()])
    assert comm.bytes_received == [2 * 48 * 64 * 8] * 4
    assert comm.collective_counts.get("all_gather") == 2


def test_every_open_comm_debug_counts(session, mesh4):
    x = ts.zeros((64, 64), device_mesh=mesh4, placements=[S(0)])

    def times(count):
        return [count * 48 * 64 * 8] * 4

    with session.comm_debug() as outer:
        x.redistribute([R()])
        with session.comm_debug() as inner:
            x.redistribute([R()])
        assert inner.bytes_received == times(1)
        with session.comm_debug() as empty:
            pass
        x.redistribute([R()])
    assert outer.bytes_received == outer.bytes_sent == times(3) and outer.collective_counts == {"all_gather": 3}
    assert empty.bytes_received == [0] * 4
    first, second = session.comm_debug(), session.comm_debug()
    first.__enter__()
    x.redistribute([R()])
    second.__enter__()
    x.redistribute([R()])
    first.__exit__(None, None, None)
    x.redistribute([R()])
    x.redistribute([R()])
    second.__exit__(None, None, None)
    assert first.bytes_received == times(2) and second.bytes_received == times(3)


def test_explain_runs_nothing(session, mesh4, rng):
    a = rng.random((64, 64))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    with session.comm_debug() as comm:
        plan = ts.explain(ts.matmul, x, x.T)
    assert sum(plan.bytes_received) > 0 and comm.bytes_received == [0] * 4
    assert plan.grid and plan.runners_up and plan.placements == (S(0),)
    assert ts.explain(lambda p, q: p + q, x, x).bytes_received == [0] * 4
    implicit = ts.explain(ts.add, x, x.redistribute([S(1)]))
    assert implicit.implicit
    with pytest.raises(ts.InvalidArgumentError):
        ts.explain(ts.matmul, x, x[:3])
    with pytest.raises(ts.InvalidArgumentError):
        ts.explain(len, [])


def test_a_pending_value_is_reduced_once_however_often_it_is_used(session):
    mesh = session.init_device_mesh((4,))
    values = np.random.default_rng(1).integers(-9, 9, (8, 1000)).astype(np.float64)
    y = ts.distribute_tensor(values, mesh, [ts.Shard(0)]).sum(axis=0)
    assert y.placements == (ts.Partial("sum"),)
    ts.wait(y)
    with session.comm_debug() as first:
        ts.wait(ts.exp(y))
    assert sum(first.bytes_received) == 3 * 8 * 1000      # each of 4 owners gets the other terms of its quarter
    with session.comm_debug() as later:
        results = [ts.sin(y), ts.cos(y), ts.abs(y)]
        ts.wait(*results)
    assert sum(later.bytes_received) == 0
    assert y.placements == (ts.Partial("sum"),)
    np.testing.assert_allclose(results[1].full_tensor(), np.cos(values.sum(axis=0)))
    held = len(session.tensors())
    del y
    ts.ones((1,), device_mesh=mesh).wait()
    assert len(session.tensors()) == held - 2       # with what it was reduced to
