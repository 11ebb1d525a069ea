"""Sorts of vectors that are cut: what is received is counted where it is read, and is what changes its owner, no more; or
by messages what the ranges have that samples give, which is little more than a shard. GPUs gather all of it (docs/gpu.md)."""

import numpy as np
import pytest

import tessera as ts
from tessera import Replicate as R
from tessera import Shard as S

from conftest import DEVICE, TRANSPORT


def owed(order, bounds):
    """By shard: the elements of it that come from other shards."""
    source = np.searchsorted(bounds, order, side="right") - 1
    return [int((source[start:stop] != i).sum()) for i, (start, stop) in enumerate(zip(bounds, [*bounds[1:], len(order)]))]


CASES = {
    "random": lambda rng, n: rng.integers(-1000, 1000, n),
    "few": lambda rng, n: rng.integers(0, 3, n),
    "same": lambda rng, n: np.zeros(n),
    "rising": lambda rng, n: np.arange(n),
    "falling": lambda rng, n: -np.arange(n),
}


@pytest.mark.parametrize("dtype", ["f4", "i8", "u1"])
@pytest.mark.parametrize("case", CASES)
def test_a_sort_moves_what_changes_its_owner(session, rng, case, dtype):
    mesh = session.init_device_mesh((4,))
    n = 40_003
    a = CASES[case](rng, n).astype(dtype)
    bounds = [0, 10_001, 20_002, 30_003]
    x = session.distribute_tensor(a, mesh, [S(0)])
    order = np.argsort(a, kind="stable")
    for op, want, element_bytes in ((ts.sort, a[order], a.itemsize), (ts.argsort, order, a.itemsize + 8)):
        with session.comm_debug() as comm:
            y = op(x).wait()
        np.testing.assert_array_equal(y.full_tensor(), want)
        received = [comm.bytes_received[w] for w in mesh.workers]
        if DEVICE == "cuda":    # whose host reads nothing between phases: all that others have
            assert received == [element_bytes * (n - rows) for rows in (10_001, 10_001, 10_001, 10_000)], str(comm)
        elif TRANSPORT == "shm":
            assert received == [element_bytes * k for k in owed(order, bounds)], str(comm)
        else:   # a shard of the result, the slack of 2 (2 * 4 - 1) (50 - 1) elements, and each 50th element of three runs
            assert max(received) <= element_bytes * (10_001 + 686) + a.itemsize * 3 * 201, str(comm)
        most = ts.explain(op, x).bytes_received
        assert all(got <= said for got, said in zip(comm.bytes_received, most))


def test_zeros_of_both_signs_stay_in_their_order(session, rng):
    a = np.where(rng.integers(0, 2, 1001) == 0, np.float32(-0.0), np.float32(0.0))
    a[::7] = -1
    x = session.distribute_tensor(a, session.init_device_mesh((4,)), [S(0)])
    np.testing.assert_array_equal(ts.argsort(x).full_tensor(), np.argsort(a, kind="stable"))
    got = ts.sort(x).full_tensor()
    zeros = got[got == 0]
    assert np.signbit(zeros).sum() == np.signbit(a[a == 0]).sum() and np.all(np.diff(np.signbit(zeros).astype(int)) <= 0)


def test_what_is_made_of_a_sort(session, rng):
    mesh = session.init_device_mesh((2, 2))
    a = rng.integers(0, 50, 1001).astype("f4")
    a[[3, 500, 900]] = np.nan
    for placements in ([S(0), S(0)], [S(0), R()], [ts.Shard(0, sizes=[0, 1001]), R()]):
        x = session.distribute_tensor(a, mesh, placements)
        np.testing.assert_array_equal(ts.sort(x).full_tensor(), np.sort(a))
        values, _ = ts.topk(x[:500], 7)
        np.testing.assert_array_equal(values.full_tensor()[1:], -np.sort(-a[:500])[:6])
        whole = session.distribute_tensor(np.nan_to_num(a), mesh, placements)
        np.testing.assert_array_equal(ts.unique_values(whole).full_tensor(), np.unique(np.nan_to_num(a)))
        found = ts.searchsorted(ts.sort(whole), whole)
        np.testing.assert_array_equal(found.full_tensor(), np.searchsorted(np.sort(np.nan_to_num(a)), np.nan_to_num(a)))


def moved(session, op):
    """The op's result, and the bytes that workers received for it, all together."""
    with session.comm_debug() as comm:
        result = op()
        session.sync()
    return result, sum(comm.bytes_received)


@pytest.mark.parametrize("placements", [[S(0), S(0)], [S(0), R()], [ts.Shard(0, sizes=[0, 40_003]), R()]])
def test_a_search_in_a_vector_that_is_cut_leaves_it_where_it_is(session, rng, placements):
    a = np.sort(rng.integers(-1000, 1000, 40_003)).astype("f4")
    wanted = rng.integers(-1100, 1100, (3, 5)).astype("f4")
    mesh = session.init_device_mesh((2, 2))
    x, w = session.distribute_tensor(a, mesh, placements).wait(), session.distribute_tensor(wanted, mesh, [R(), R()]).wait()
    for side in ("left", "right"):
        found, received = moved(session, lambda: ts.searchsorted(x, w, side=side))
        assert received == 0 and any(p.is_partial() for p in found.placements)
        np.testing.assert_array_equal(found.full_tensor(), np.searchsorted(a, wanted, side))
    # Values that are many have the vector brought to them.
    many = session.distribute_tensor(rng.integers(-1100, 1100, 80_000).astype("f4"), mesh, [S(0), S(0)]).wait()
    found = ts.searchsorted(x, many)
    assert found.placements == (S(0), S(0))
    np.testing.assert_array_equal(found.full_tensor(), np.searchsorted(a, many.full_tensor()))


@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.parametrize("shape, axis", [((40_003,), 0), ((3, 20_001), 1), ((20_001, 3), 0)])
def test_the_largest_are_those_of_the_shards(session, rng, shape, axis, dtype):
    a = rng.integers(-50, 50, shape).astype(dtype)     # many are equal: the first of them come first
    for mesh, placements in ((session.init_device_mesh((4,)), [S(axis)]), (session.init_device_mesh((2, 2)), [R(), S(axis)]),
                             (session.init_device_mesh((4,)), [ts.Shard(axis, sizes=[5, 0, 10_000, shape[axis] - 10_005])])):
        x = session.distribute_tensor(a, mesh, placements).wait()
        for k, largest in ((7, True), (300, False), (0, True)):
            (values, places), received = moved(session, lambda: ts.topk(x, k, axis=axis, largest=largest))
            order = np.argsort(-a if largest else a, axis=axis, kind="stable").take(range(k), axis=axis)
            np.testing.assert_array_equal(places.full_tensor(), order)
            np.testing.assert_array_equal(values.full_tensor(), np.take_along_axis(a, order, axis))
            candidates = 4 * k * a.size // shape[axis]      # of all workers, each at most once to each
            assert received <= 4 * candidates * (a.itemsize + 3 * 8), (k, received)


def test_a_vector_of_one_worker_is_selected_from_and_not_sorted(session):
    x = session.distribute_tensor(np.arange(1000.0), session.init_device_mesh((1,)), [S(0)])
    assert "first=7" in ts.explain(ts.topk, x, 7).steps[0]
    np.testing.assert_array_equal(ts.topk(x, 7)[1].full_tensor(), np.arange(999, 992, -1))


@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_unique_moves_what_its_sort_and_its_values_need(session, rng, dtype):
    n = 40_000
    a = rng.permutation(n).astype(dtype)
    x = session.distribute_tensor(a, session.init_device_mesh((4,)), [S(0)]).wait()
    values, of_values = moved(session, lambda: ts.unique_values(x))
    (_, counts), of_counts = moved(session, lambda: ts.unique_counts(x))
    (_, inverse), of_inverse = moved(session, lambda: ts.unique_inverse(x))
    np.testing.assert_array_equal(values.full_tensor(), np.arange(n))
    np.testing.assert_array_equal(counts.full_tensor(), np.ones(n))
    np.testing.assert_array_equal(inverse.full_tensor(), a)
    if TRANSPORT != "shm":     # a sort by messages moves more
        return
    whole = 3 * n * a.itemsize     # of every worker all others' shards
    # A sort, the places of what begins (i64 and the keys of a sort), and the sorted values for those who take of them.
    assert max(of_values, of_counts) <= 2 * whole + 3 * n * 9
    if dtype == "i4":
        assert of_inverse <= 3 * whole + 3 * n * 9      # and the values once more, to be searched


def test_few_updates_are_written_where_a_table_lies(session, rng):
    a, rows = rng.standard_normal((4001, 8)).astype("f4"), rng.standard_normal((5, 8)).astype("f4")
    at = np.array([4000, -4001, 7, 2000, 7])
    mesh = session.init_device_mesh((4,))
    updates, indices = (session.distribute_tensor(one, mesh, [R()]).wait() for one in (rows, at))
    x = session.distribute_tensor(a, mesh, [S(0)]).wait()

    def assign():
        x[indices] = updates

    _, received = moved(session, assign)
    a[at] = rows
    assert received == 0 and x.placements == (S(0),)
    np.testing.assert_array_equal(x.full_tensor(), a)
    y, received = moved(session, lambda: ts.index_add(x, indices, updates, axis=0))
    np.add.at(a, at, rows)
    assert received == 0 and y.placements == (S(0),)
    np.testing.assert_array_equal(y.full_tensor(), a)
    with pytest.raises(IndexError, match="4001"):
        x[ts.asarray([4001], device_mesh=mesh)] = 0.0
        x.wait()


def test_what_is_repeated_goes_to_its_place(session, rng):
    a = rng.standard_normal((4000, 6)).astype("f4")
    x = session.distribute_tensor(a, session.init_device_mesh((4,)), [S(0)]).wait()
    for repeats in ((2,), (3, 1), (2, 2), (1, 100)):
        y, received = moved(session, lambda: ts.tile(x, repeats))
        np.testing.assert_array_equal(y.full_tensor(), np.tile(a, repeats))
        assert received <= y.nbytes and not y.placements[0].is_replicate()
