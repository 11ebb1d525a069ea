"""Matmuls whose temporaries don't fit: they run in parts, give what they give with room, and refuse with numbers."""

import re
import threading
import time

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
MIB = 1 << 20


def free_bytes(session):
    session.sync()
    return min(worker["memory_bytes"] - worker["used_bytes"] for worker in session.status()["workers"])


def wait_until_free(session, bytes, seconds=60.0):
    """A dropped tensor's memory is free when the coordinator has heard of it."""
    deadline = time.monotonic() + seconds
    while free_bytes(session) != bytes:
        assert time.monotonic() < deadline, f"{free_bytes(session)} bytes are free, not {bytes}"
        threading.Event().wait(0.02)


def fill(session, mesh, leave_bytes):
    """Takes all memory of every worker but so much."""
    return ts.zeros(((free_bytes(session) - leave_bytes) // 8,), dtype=np.float64, device_mesh=mesh, placements=[R()] * mesh.ndim)


def gathered(session, mesh, rng):
    """The right operand's pieces are thin: it is gathered, 768 KiB on each worker."""
    a, b = rng.standard_normal((256, 2048)), rng.standard_normal((2048, 48))
    return (session.distribute_tensor(a, mesh, [S(0)]), session.distribute_tensor(b, mesh, [S(1)])), a @ b


def pending(session, mesh, rng):
    """The right operand is pending: its terms are reduced and spread first, 768 KiB on each worker."""
    a, b = rng.standard_normal((256, 2048)), rng.standard_normal((2048, 48))
    left = session.distribute_tensor(a, mesh, [S(0)])
    right = session.from_local(lambda p: b - p[0] % 2, mesh, [P("max")], shape=b.shape)
    return (left, right), a @ b


def converted(session, mesh, rng):
    """The right operand is gathered, 384 KiB, and converted, 768 KiB."""
    a, b = rng.standard_normal((256, 2048)), rng.standard_normal((2048, 48)).astype(np.float32)
    return (session.distribute_tensor(a, mesh, [S(0)]), session.distribute_tensor(b, mesh, [S(1)])), a @ b.astype(np.float64)


@pytest.mark.parametrize("operands", [gathered, pending, converted])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_matmul_that_does_not_fit_runs_in_parts(new_cluster, rng, operands, workers):
    session = new_cluster(workers=workers, memory="8MiB").connect()
    mesh = session.init_device_mesh((workers,))
    (a, b), want = operands(session, mesh, rng)
    free = free_bytes(session)
    with session.comm_debug() as whole:
        with_room = (a @ b).full_tensor()
    wait_until_free(session, free)
    filler = fill(session, mesh, MIB // 2)
    plan = ts.explain(ts.matmul, a, b)
    assert re.search(r"in \d+ parts over n", plan.grid), plan
    with session.comm_debug() as comm:
        c = a @ b
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, f"{comm}\n{plan}"
    assert sum(comm.bytes_received) == sum(whole.bytes_received), "no byte is received twice"
    np.testing.assert_allclose(c.full_tensor(), want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(c.full_tensor(), with_room, rtol=1e-12, atol=1e-12)
    del c, filler
    wait_until_free(session, free)


def blocks(dtype):
    """Both operands lie in blocks, and so does the product: the mesh cuts its rows and its columns. Each worker gathers
    a block row of the left operand and a block column of the right one, 256 KiB each as f64."""

    def make(session, mesh, rng):
        a, b = rng.integers(-8, 9, (512, 128)).astype(np.float64), rng.integers(-8, 9, (128, 512)).astype(np.float64)
        left = session.distribute_tensor(a.astype(dtype), mesh, [S(0), S(1)])
        return (left, session.distribute_tensor(b, mesh, [S(0), S(1)])), a @ b

    return make


def pending_blocks(session, mesh, rng):
    """Both operands are pending on a mesh dim, whose terms are reduced first, 256 KiB and 256 KiB."""
    a, b = rng.integers(-8, 9, (512, 128)).astype(np.float64), rng.integers(-8, 9, (128, 512)).astype(np.float64)
    left = session.from_local(lambda p: a[256 * p[0] : 256 * (p[0] + 1)] - p[1] % 2, mesh, [S(0), P("max")], shape=a.shape)
    right = session.from_local(lambda p: b[:, 256 * p[1] : 256 * (p[1] + 1)] - p[0] % 2, mesh, [P("max"), S(1)], shape=b.shape)
    return (left, right), a @ b


@pytest.mark.parametrize("operands", [blocks(np.float64), blocks(np.float32), pending_blocks], ids=["f64", "f32", "pending"])
def test_a_matmul_whose_rows_and_columns_the_mesh_cuts_runs_in_parts(new_cluster, rng, operands):
    session = new_cluster(workers=4, memory="8MiB").connect()
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    (a, b), want = operands(session, mesh, rng)
    free = free_bytes(session)
    whole = ts.explain(ts.matmul, a, b)
    assert whole.placements == (S(0), S(1)) and "parts over" not in whole.grid, whole
    with session.comm_debug() as whole_comm:
        np.testing.assert_array_equal((a @ b).full_tensor(), want)
    wait_until_free(session, free)
    output_bytes = 512 * 512 * 8 // 4
    for temporary_bytes in (440 << 10, 360 << 10):
        filler = fill(session, mesh, output_bytes + temporary_bytes)
        filler.wait()
        plan = ts.explain(ts.matmul, a, b)
        assert re.search(r"in \d+ parts over [mn], of \d+( each| and the rest), on 2 sub-meshes side by side", plan.grid), plan
        with session.comm_debug() as comm:
            c = a @ b
        np.testing.assert_array_equal(c.full_tensor(), want)
        assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, f"{comm}\n{plan}"
        assert sum(comm.bytes_received) == sum(whole_comm.bytes_received), "no byte is received twice"
        del c, filler
        wait_until_free(session, free)
    filler = fill(session, mesh, output_bytes + (100 << 10))  # one operand's temporary alone is 256 KiB
    with pytest.raises(ts.ResourceExhaustedError, match=r"bytes of temporaries wanted on each of 4 workers, \d+ free; split into \d+ parts over"):
        (a @ b).wait()
    del filler


def test_explain_counts_what_the_ops_before_hold(new_cluster, rng):
    """A function's results, as long as it has them, and views of them; not those that it has dropped."""
    session = new_cluster(workers=2, memory="8MiB").connect()
    mesh = session.init_device_mesh((2,))
    (a, b), _ = gathered(session, mesh, rng)
    room = free_bytes(session)

    def large(keep):
        first = ts.zeros((room // 8 // 2,), device_mesh=mesh, placements=[R()])
        kept = first.reshape((-1, 1)) if keep == "view" else first if keep else None
        del first
        second = ts.ones((room // 8 * 42 // 100,), device_mesh=mesh, placements=[R()])
        return a @ b, kept, second

    for keep in (True, "view", False):
        assert ("parts over n" in str(ts.explain(large, keep))) == bool(keep), keep
        results = large(keep)
        results[0].wait()
        del results
        wait_until_free(session, room)


def test_whole_numbers_are_the_same_bit_for_bit(new_cluster, rng):
    session = new_cluster(workers=2, memory="8MiB").connect()
    mesh = session.init_device_mesh((2,))
    a, b = rng.integers(-8, 9, (256, 2048)).astype(np.float64), rng.integers(-8, 9, (2048, 48)).astype(np.float64)
    x, y = session.distribute_tensor(a, mesh, [S(0)]), session.distribute_tensor(b, mesh, [S(1)])
    free = free_bytes(session)
    for leave_bytes in (MIB // 2, MIB // 4, MIB // 6):
        filler = fill(session, mesh, leave_bytes)
        assert "parts over n" in ts.explain(ts.matmul, x, y).grid
        np.testing.assert_array_equal((x @ y).full_tensor(), a @ b)
        del filler
        wait_until_free(session, free)


def test_many_in_a_row_share_their_memory(new_cluster, rng):
    """The temporaries of one are written again by the next, while peers may still read: nothing mixes."""
    session = new_cluster(workers=4, memory="8MiB").connect()
    mesh = session.init_device_mesh((4,))
    a = rng.integers(-8, 9, (512, 1024)).astype(np.float64)
    x = session.distribute_tensor(a, mesh, [S(0)])
    terms = rng.integers(-8, 9, (4, 1024, 24)).astype(np.float64)
    ys = [session.from_local(lambda p: t - p[0], mesh, [P("max")], shape=t.shape) for t in terms]
    filler = fill(session, mesh, 200 << 10)
    assert "parts over n" in ts.explain(ts.matmul, x, ys[0]).grid
    for _ in range(10):
        for t, z in [(t, x @ y) for t, y in zip(terms, ys)]:
            np.testing.assert_array_equal(z.full_tensor(), a @ t)
            del z
    del filler


def test_what_fits_in_no_way_is_refused_with_numbers(new_cluster, rng):
    session = new_cluster(workers=2, memory="8MiB").connect()
    mesh = session.init_device_mesh((2,))
    (a, b), want = gathered(session, mesh, rng)
    filler = fill(session, mesh, 64 << 10)
    c = a @ b
    with pytest.raises(ts.ResourceExhaustedError, match=r"786432 bytes of temporaries wanted on each of 2 workers, \d+ free; split into 24 parts"):
        c.wait()
    del filler
    large = ts.matmul(a.T, a)  # 32 MiB
    with pytest.raises(ts.ResourceExhaustedError, match=r"bytes wanted on each of 2 workers; worker \d has \d+ free of 8388608; .*; f64\[2048,2048\].*would fit"):
        large.wait()
    np.testing.assert_allclose((a @ b).full_tensor(), want, rtol=1e-9, atol=1e-9)
