"""Arrays of the program: full_tensor(out=), to_local(out=), and ts.host_empty, which workers read and write themselves."""

import gc
import os
import signal

import ml_dtypes
import numpy as np
import pytest

import in_time
import tessera as ts
from test_progress import interrupted

S, R, P = ts.Shard, ts.Replicate, ts.Partial
DTYPES = [np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32,
          np.float64, np.complex64, np.complex128, ml_dtypes.bfloat16]


def values(shape, dtype=np.float32):
    return (np.arange(np.prod(shape, dtype=int)) % 251).reshape(shape).astype(dtype)


def mapped_files():
    """Memory that a worker can map, by mapping."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("memfd:tessera" in line for line in maps)


# ---- out= -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("rows", [5, 3 << 18])
def test_values_come_into_the_given_array(mesh4, dtype, rows):
    a = values((rows, 7), dtype)
    x = ts.distribute_tensor(a, mesh4, [S(0)])
    out = np.zeros_like(a)
    assert x.full_tensor(out=out) is out and np.array_equal(out, a)
    shard = np.zeros_like(a[slice(*x.box(1)[0])])
    assert x.to_local(1, out=shard) is shard and np.array_equal(shard, a[slice(*x.box(1)[0])])


@pytest.mark.parametrize("shape, placements", [
    ((), [R(), R()]), ((0, 3), [S(0), S(1)]), ((1, 1), [S(0), S(1)]), ((7, 5), [S(1), S(0)]), ((3, 5, 300_001), [S(0), S(1)]),
    ((3, 5, 300_001), [S(2), R()]), ((2, 1_500_000), [S(0), S(1)]), ((1, 3_000_001), [S(1), S(1)]), ((4_000_001,), [S(0), S(0)])])
def test_every_layout_comes_into_it(mesh22, shape, placements):
    a = values(shape)
    x = ts.distribute_tensor(a, mesh22, placements)
    for out in (np.full(shape, -1, np.float32), ts.host_empty(shape, ts.float32)):
        assert np.array_equal(x.full_tensor(out=out), a)
        assert np.array_equal(x.full_tensor(), a)
    again = ts.host_empty(shape, np.float32)
    again[...] = a
    assert np.array_equal(ts.distribute_tensor(again, mesh22, placements).full_tensor(), a)


def test_an_array_in_any_order_is_filled(mesh4, monkeypatch):
    monkeypatch.setattr("tessera._downloads._STAGED", 1 << 12)
    a = values((700, 9))
    x = ts.distribute_tensor(a, mesh4, [S(0)])
    wide = np.zeros((1400, 18), np.float32)
    for out in (np.zeros_like(a, order="F"), wide[::2, ::2], wide[::-2, 1::2]):
        assert x.full_tensor(out=out) is out and np.array_equal(out, a)
    shard = np.zeros((175, 9), np.float32, order="F")
    assert np.array_equal(x.to_local(2, out=shard), a[350:525])
    terms = ts.from_local(lambda position: a, mesh4, [P("sum")])
    out = np.zeros_like(a, order="F")
    assert np.array_equal(terms.full_tensor(out=out), 4 * a)
    assert np.array_equal(terms.full_tensor(out=np.zeros_like(a)), 4 * a)
    assert np.array_equal(terms.to_local(3, out=np.zeros_like(a)), a)


@pytest.mark.parametrize("out, error, words", [
    (np.zeros((3, 4), np.float64), ts.DTypeError, ["float64[3, 4]", "float32[3, 4]"]),
    (np.zeros((3, 4), ">f4"), ts.DTypeError, ["other byte order", "float32[3, 4]"]),
    (np.zeros((4, 3), np.float32), ts.InvalidArgumentError, ["float32[4, 3]", "float32[3, 4]"]),
    (np.zeros(12, np.float32), ts.InvalidArgumentError, ["float32[12]", "float32[3, 4]"]),
    (np.broadcast_to(np.zeros(4, np.float32), (3, 4)), ts.InvalidArgumentError, ["read-only"]),
    (np.ma.zeros((3, 4), np.float32), ts.InvalidArgumentError, ["mask"]),
    ([[0.0] * 4] * 3, ts.InvalidArgumentError, ["list"])])
def test_what_is_no_such_array_is_refused(mesh4, out, error, words):
    x = ts.distribute_tensor(values((3, 4)), mesh4, [R()])
    for call in (x.full_tensor, lambda out: x.to_local(0, out=out)):
        with pytest.raises(error) as raised:
            call(out=out)
        assert all(word in str(raised.value) for word in words), str(raised.value)


# ---- host_empty ---------------------------------------------------------------------------------------

def test_it_is_plain_memory_for_numpy():
    a = ts.host_empty((300, 5, 1001))
    assert type(a) is np.ndarray and a.dtype == np.float64 and a.shape == (300, 5, 1001)
    assert a.flags.c_contiguous and a.flags.writeable and not a.any()
    a += 2
    assert a.sum() == 2 * a.size and (a[::3].copy() == 2).all() and a.T.shape == (1001, 5, 300)
    for dtype in DTYPES:
        assert ts.host_empty(7, dtype).dtype == np.dtype(dtype)
    assert ts.host_empty((), ts.int8).shape == () and ts.host_empty((0, 3)).shape == (0, 3)


@pytest.mark.parametrize("arguments", [((-1,),), (("a",),), ((2, 3), "no"), ((2,), object), ((1 << 40, 1 << 40),), ((1,) * 70,)])
def test_it_has_the_errors_of_empty(session, arguments):
    shape, *dtype = arguments
    with pytest.raises(ts.TesseraError) as here:
        ts.host_empty(shape, *dtype)
    with pytest.raises(type(here.value)) as there:
        ts.empty(shape, dtype=dtype[0] if dtype else None)
    assert type(there.value) is type(here.value) and str(here.value).startswith("host_empty: ")


def test_what_the_host_has_no_room_for_is_refused():
    with pytest.raises(ts.ResourceExhaustedError, match="host memory"):
        ts.host_empty(1 << 50, np.uint8)


def test_the_memory_goes_with_the_last_view():
    gc.collect()
    before, files = mapped_files(), len(os.listdir("/proc/self/fd"))
    arrays = [ts.host_empty((1024, 1024)) for _ in range(3)]
    part = arrays[1][5:7, ::2].T
    assert mapped_files() == before + 3
    del arrays
    gc.collect()
    assert mapped_files() == before + 1 and part.sum() == 0
    del part
    gc.collect()
    assert mapped_files() == before and len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("placements", [[S(0)], [S(1)], [R()]], ids=str)
def test_its_bytes_pass_through_no_other_memory(cluster, placements):
    with cluster.connect() as session:      # no transfer of another one has left it a ring
        mesh = session.init_device_mesh((4,))
        a = ts.host_empty((1500, 2003), np.float64)
        a[...] = values(a.shape, np.float64)
        mapped = mapped_files()
        x = ts.distribute_tensor(a, mesh, placements)
        part = ts.distribute_tensor(a[700:1400], mesh, placements)
        flat = ts.distribute_tensor(np.frombuffer(memoryview(a), np.float64)[3:2_000_003], mesh, [S(0)])
        out = ts.host_empty(a.shape, a.dtype)
        assert np.array_equal(x.full_tensor(out=out), a)
        assert np.array_equal(part.full_tensor(out=out[100:800]), a[700:1400]) and np.array_equal(out[:100], a[:100])
        assert np.array_equal(out[800:], a[800:])
        assert mapped_files() == mapped + 1
        assert np.array_equal(flat.full_tensor(), a.reshape(-1)[3:2_000_003])
        assert mapped_files() == mapped + 2     # the ring of this one
        b = ts.distribute_tensor(a[:, 1:], mesh, placements)
        assert np.array_equal(b.full_tensor(), a[:, 1:])


def test_it_may_be_written_when_the_upload_has_returned(session, mesh4):
    a = ts.host_empty((2000, 1000))
    for i in range(5):
        a[...] = i
        x = ts.distribute_tensor(a, mesh4, [S(0)])
        a[...] = -1
        assert float(x.min()) == float(x.max()) == i


def test_locals_that_lie_in_it_are_read_there(session, mesh4):
    a = ts.host_empty((4, 600, 1000))
    a[...] = values(a.shape, np.float64)
    mapped = mapped_files()
    x = ts.from_local(list(a), mesh4, [S(0)])
    assert mapped_files() == mapped
    assert np.array_equal(x.full_tensor(), a.reshape(2400, 1000))


@pytest.mark.whole_system
@in_time.tried_again
def test_nobody_writes_to_it_when_a_download_was_interrupted():
    before = ("out = ts.host_empty((64, 1 << 16))\na = np.ones((64, 1 << 16))\nb = session.distribute_tensor(a, mesh, [ts.Shard(0)])\n"
              "b.wait()\nos.kill(cluster.worker_pids[1], signal.SIGSTOP)")
    after = ("out[...] = 7\nos.kill(cluster.worker_pids[1], signal.SIGCONT)\n"
             "assert np.array_equal(b.full_tensor(), a)\nassert (out == 7).all()\n"
             "assert np.array_equal(b.full_tensor(out=out), a)\n"
             "assert np.array_equal(session.distribute_tensor(out, mesh, [ts.Shard(0)]).full_tensor(), a)")
    first, took, rest, errors = interrupted(before, "b.full_tensor(out=out)", after)
    assert (first, rest) == ("INTERRUPTED", "GOES ON"), (first, rest, errors)
    in_time.check(took, 1.0)


@pytest.mark.whole_system
@in_time.tried_again
def test_an_upload_of_it_is_interrupted():
    before = "a = ts.host_empty((64, 1 << 16))\nos.kill(cluster.worker_pids[1], signal.SIGSTOP)"
    first, took, rest, errors = interrupted(before, "session.distribute_tensor(a, mesh, [ts.Shard(0)])",
                                            "os.kill(cluster.worker_pids[1], signal.SIGCONT)")
    assert (first, rest) == ("INTERRUPTED", "GOES ON"), (first, rest, errors)
    in_time.check(took, 1.0)


def test_a_lost_worker_ends_a_download_into_it(new_cluster):
    cluster = new_cluster(workers=2, memory="256MiB")
    session = cluster.connect()
    x = ts.ones((64, 1 << 16), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    out = ts.host_empty(x.shape)
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    with pytest.raises(ts.UnavailableError):
        x.full_tensor(out=out)
    out[...] = 3
    assert (out == 3).all()
