"""Sorts of vectors that are cut: what is received is counted where it is read, and is what changes its owner, no more; or
by messages what the ranges have that samples give, which is little more than a shard."""

import numpy as np
import pytest

import tessera as ts
from tessera import Replicate as R
from tessera import Shard as S

from conftest import TRANSPORT


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
        if TRANSPORT == "shm":
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
