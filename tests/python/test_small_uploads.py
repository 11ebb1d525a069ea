"""Values of up to max_inline_bytes come in the record that asks for their tensor."""

import numpy as np
import pytest

import tessera as ts

S, R = ts.Shard, ts.Replicate


@pytest.mark.parametrize("placements", [[R(), R()], [S(0), R()], [R(), S(1)], [S(1), S(0)], [S(0), S(0)]], ids=str)
@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (7, 73), (0, 3)], ids=str)
def test_each_worker_has_its_own_box(session, mesh22, placements, shape):
    a = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    x = session.distribute_tensor(a, mesh22, placements)
    np.testing.assert_array_equal((x + 1).full_tensor(), a + 1)
    for position in np.ndindex(2, 2):
        box = tuple(slice(start, stop) for start, stop in x.box(position))
        np.testing.assert_array_equal(x.to_local(position), a[box])


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_all_dtypes_and_layouts(session, mesh4, dtype):
    a = np.arange(24).reshape(4, 6).astype(dtype)
    for one in (a, a.T, a[::2, ::-1], a[1, 2], np.broadcast_to(a[0], (3, 6))):
        np.testing.assert_array_equal(session.distribute_tensor(one, mesh4).full_tensor(), one)


# 4096 bytes come in the record, one more by a ticket: nobody can tell.
@pytest.mark.parametrize("count", [4095, 4096, 4097])
def test_at_the_limit(session, mesh4, count):
    a = np.arange(count, dtype=np.uint8)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    np.testing.assert_array_equal((x + x).full_tensor(), a + a)


def test_what_was_brought_is_the_value_at_the_call(session, mesh4):
    a = np.zeros(8)
    made = []
    for i in range(100):
        a[:] = i
        made.append(session.distribute_tensor(a, mesh4, [R()]))
    for i, x in enumerate(made):
        np.testing.assert_array_equal(x.full_tensor(), np.full(8, i))


def test_a_profile_counts_what_came(session, mesh4):
    with session.profile() as profile:
        session.distribute_tensor(np.ones(8), mesh4, [S(0)]).wait()
        session.distribute_tensor(np.ones(8), mesh4, [R()]).wait()
    uploads = [op for op in profile.ops if op.name == "upload"]
    assert [sum(run.bytes_transferred for run in op.runs) for op in uploads] == [64, 256]


def test_it_is_refused_as_any_other(session, mesh4):
    hog = ts.zeros((1 << 28) - (1 << 20), dtype=ts.uint8, device_mesh=mesh4, placements=[R()]).wait()
    small = [session.distribute_tensor(np.ones(512), mesh4, [R()]) for _ in range(300)]
    with pytest.raises(ts.ResourceExhaustedError, match="upload: does not fit in memory"):
        for one in small:
            one.wait()
    del small, hog
    np.testing.assert_array_equal(session.distribute_tensor(np.ones(8), mesh4).full_tensor(), np.ones(8))


def test_within_blocking_it_is_there_when_the_call_returns(session, mesh4):
    hog = ts.zeros((1 << 28) - (1 << 20), dtype=ts.uint8, device_mesh=mesh4, placements=[R()]).wait()
    with ts.blocking(), pytest.raises(ts.ResourceExhaustedError, match="upload: does not fit in memory"):
        kept = [session.distribute_tensor(np.ones(512), mesh4, [R()]) for _ in range(300)]
        assert not kept, "each call was to fail by itself"
    del hog
