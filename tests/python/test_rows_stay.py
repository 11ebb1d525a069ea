"""Rows that a mask keeps stay where they are, in shards of explicit sizes; rows that indices want go to the workers of their
places, each once. Nobody holds more than its share."""

import numpy as np
import pytest

import tessera as ts

from conftest import DEVICE, TRANSPORT
from test_programs import P, R, S

# Where workers map each other's memory rows are read one by one; elsewhere every worker gives what it has for all indices.
READS_ROWS = DEVICE == "cpu" and TRANSPORT == "shm"


def moved_of(session, act):
    """The result, and the bytes that each worker received for it."""
    with session.comm_debug() as comm:
        y = act()
        y.wait()
    return y, list(comm.bytes_received)


def kept_of(mask, sizes):
    ends = np.cumsum(sizes)
    return tuple(int(mask[end - size:end].sum()) for size, end in zip(sizes, ends))


@pytest.mark.parametrize("sizes", [None, (3, 0, 5, 2), (0, 0, 10, 0)], ids=str)
@pytest.mark.parametrize("kept", ["some", "all", "none", "first shard"])
@pytest.mark.parametrize("dtype", ["f8", "i2", "?", "c16"])
def test_a_filter_moves_no_row(session, mesh4, rng, sizes, kept, dtype):
    cut = S(0) if sizes is None else S(0, sizes=list(sizes))
    a = (rng.standard_normal((10, 3)) * 4).astype(dtype)
    own = (3, 3, 3, 1) if sizes is None else sizes
    m = {"some": rng.random(10) > 0.4, "all": np.ones(10, bool), "none": np.zeros(10, bool), "first shard": np.arange(10) < 2}[kept]
    x = session.distribute_tensor(a, mesh4, [cut])
    mask = session.distribute_tensor(m, mesh4, [cut])
    ts.wait(x, mask)
    y, received = moved_of(session, lambda: x[mask])
    np.testing.assert_array_equal(y.full_tensor(), a[m])
    assert y.placements == session.distribute_tensor(a[m], mesh4, [S(0, sizes=list(kept_of(m, own)))]).placements
    assert sum(received) <= 4 * 3 * 8      # four counts
    np.testing.assert_array_equal(ts.compress(mask, x, axis=0).full_tensor(), a[m])
    places = ts.nonzero(mask)[0]
    np.testing.assert_array_equal(places.full_tensor(), np.nonzero(m)[0])
    assert [p.dim for p in places.placements] == [0]


PLACES = [[S(0), R()], [R(), S(0)], [S(0), S(0)], [S(0), S(1)], [S(1), S(0)], [R(), R()], [S(1), R()], [R(), P("sum")], [S(0), P("sum")],
          [S(0, sizes=[2, 7]), S(0, sizes=[1, 1, 0, 7])], [P("sum"), P("sum")]]


@pytest.mark.parametrize("of_mask", [[R(), R()], [S(0), R()], [R(), S(0)], [S(0), S(0)], [S(0, sizes=[9, 0]), R()]], ids=str)
@pytest.mark.parametrize("places", PLACES, ids=str)
def test_every_placement_of_rows_and_mask(session, mesh22, rng, places, of_mask):
    a = rng.integers(-9, 9, (9, 4)).astype("f8")
    m = rng.random(9) > 0.5
    cut = [p if not p.is_partial() else R() for p in places]
    x = session.distribute_tensor(a, mesh22, cut)
    if any(p.is_partial() for p in places):
        x = ts.matmul(session.distribute_tensor(np.eye(9), mesh22, [S(1) if p.is_partial() else R() for p in places]),
                      session.distribute_tensor(a, mesh22, [S(0) if p.is_partial() else R() for p in places]))
    mask = session.distribute_tensor(m, mesh22, of_mask)
    y = x[mask]
    np.testing.assert_allclose(y.full_tensor(), a[m])
    np.testing.assert_allclose((y * 2 + y).full_tensor(), 3 * a[m])
    np.testing.assert_allclose(ts.sum(y, axis=0).full_tensor(), a[m].sum(0))
    np.testing.assert_array_equal(x[:, a[0] > 0].full_tensor(), a[:, a[0] > 0])
    np.testing.assert_array_equal(x[..., a[0] > 0].full_tensor(), a[..., a[0] > 0])
    np.testing.assert_array_equal(x[1:, session.distribute_tensor(a[0] > 0, mesh22, [R(), R()])].full_tensor(), a[1:, a[0] > 0])
    np.testing.assert_array_equal(x[x > 0].full_tensor(), a[a > 0])
    np.testing.assert_array_equal(y[y[:, 0] > 0].full_tensor(), a[m][a[m][:, 0] > 0])
    for got, want in zip(ts.nonzero(x > 2), np.nonzero(a > 2), strict=True):
        np.testing.assert_array_equal(got.full_tensor(), want)


def test_masks_over_several_dims_and_assignment(session, mesh4, rng):
    a = rng.standard_normal((6, 5, 3))
    m = a[:, :, 0] > 0
    for cut in ([S(0)], [S(1)], [S(2)], [R()]):
        x = session.distribute_tensor(a, mesh4, cut)
        np.testing.assert_array_equal(x[x[:, :, 0] > 0].full_tensor(), a[m])
        np.testing.assert_array_equal(x[m].full_tensor(), a[m])
        x[x[:, :, 0] > 0] = 7.0
        b = a.copy()
        b[m] = 7
        np.testing.assert_array_equal(x.full_tensor(), b)
    y = session.distribute_tensor(a, mesh4, [S(0)])
    assert y[session.distribute_tensor(m, mesh4, [S(0)])].placements[0].is_shard(0)


def test_masks_that_dont_fit_are_refused(session, mesh4):
    x = session.distribute_tensor(np.zeros((6, 2)), mesh4, [S(0)])
    with pytest.raises(IndexError, match=r"a mask of shape \[5\] for f64\[6,2\]"):
        x[session.distribute_tensor(np.ones(5, bool), mesh4, [S(0)])]
    with pytest.raises(IndexError, match="mask"):
        x[:, np.ones(3, bool)]
    assert x[np.zeros(0, bool)].shape == (0, 2)
    short = ts.compress(np.array([False, True, True]), x, axis=0)
    assert short.shape == (2, 2)


@pytest.mark.parametrize("of_indices", [[R()], [S(0)], [S(0, sizes=[7, 0, 1, 3])]], ids=str)
@pytest.mark.parametrize("cut", [[S(0)], [S(0, sizes=[5, 0, 2, 6])], [S(1)], [R()]], ids=str)
@pytest.mark.parametrize("dtype", ["f8", "u1", "?", "c8"])
def test_gathered_rows_are_levelled(session, mesh4, rng, cut, of_indices, dtype):
    a = (rng.standard_normal((13, 6)) * 3).astype(dtype)
    indices = rng.integers(-13, 13, 11)
    x, i = session.distribute_tensor(a, mesh4, cut), session.distribute_tensor(indices, mesh4, of_indices)
    ts.wait(x, i)
    y, received = moved_of(session, lambda: ts.take(x, i, axis=0))
    np.testing.assert_array_equal(y.full_tensor(), a[indices])
    np.testing.assert_array_equal(x[i].full_tensor(), a[indices])
    np.testing.assert_array_equal(x[[0, 12, 0]].full_tensor(), a[[0, 12, 0]])
    np.testing.assert_array_equal(ts.take_along_axis(x, session.distribute_tensor(a.astype("f8").argsort(0), mesh4, [R()]), axis=0)
                                  .full_tensor(), np.take_along_axis(a, a.astype("f8").argsort(0), 0))
    np.testing.assert_array_equal(ts.take(x, [5, 1], axis=1).full_tensor(), a[:, [5, 1]])
    with pytest.raises(IndexError, match="index 13 is out of range for dim 0 of extent 13"):
        ts.take(x, [0, 13], axis=0).wait()
    if not cut[0].is_shard(0):
        return
    wanted = of_indices if of_indices[0].is_shard() else [S(0)]
    assert y.placements == session.distribute_tensor(a[indices], mesh4, wanted).placements
    if READS_ROWS and not isinstance(cut[0], type(None)) and dtype == "f8":
        assert received == [6 * 8 * n for n in rows_of_others(a.shape[0], cut[0], indices, wanted[0])]


def intervals(extent, placement):
    sizes = placement.sizes or [max(0, min(-(-extent // 4), extent - i * -(-extent // 4))) for i in range(4)]
    ends = np.cumsum(sizes)
    return [(end - size, end) for size, end in zip(sizes, ends)]


def rows_of_others(extent, cut, indices, wanted):
    """By worker: how many of its places have rows of another one."""
    places = np.where(indices < 0, indices + extent, indices)
    shards = intervals(extent, cut)
    return [sum(1 for place in places[start:end] if not shards[w][0] <= place < shards[w][1])
            for w, (start, end) in enumerate(intervals(len(indices), wanted))]


def test_gathers_on_meshes_of_several_dims(session, mesh22, rng):
    a = rng.standard_normal((7, 5))
    indices = rng.integers(0, 7, 6)
    for cut in ([S(0), R()], [R(), S(0)], [S(0), S(0)], [S(0), S(1)], [S(1), S(0)], [S(0), P("sum")]):
        kept = [p if not p.is_partial() else R() for p in cut]
        for of_indices in ([R(), R()], [S(0), R()], [R(), S(0)], [S(0), S(0)]):
            x = session.distribute_tensor(a, mesh22, kept)
            y = ts.take(x, session.distribute_tensor(indices, mesh22, of_indices), axis=0)
            np.testing.assert_array_equal(y.full_tensor(), a[indices], err_msg=f"{cut} {of_indices}")
            assert not any(p.is_partial() for p in y.placements)


@pytest.mark.skipif(DEVICE != "cpu", reason="memory of CPU workers")
def test_rows_of_what_fills_the_workers_are_filtered(new_cluster):
    with new_cluster(workers=4, memory="64MiB").connect() as session:
        mesh = session.init_device_mesh((4,))
        a = np.random.default_rng(3).random((12 << 20) // 8 * 8).reshape(-1, 8)
        assert a.nbytes == 96 << 20
        x = session.distribute_tensor(a, mesh, [S(0)]).wait()
        for bound in (0.5, 0.97):
            y, received = moved_of(session, lambda: x[x[:, 0] > bound])      # noqa: B023
            assert sum(received) <= 4 * 3 * 8
            want = a[a[:, 0] > bound]
            assert y.shape == want.shape and y.placements[0].is_shard(0)
            for start in range(0, want.shape[0], 1 << 18):
                np.testing.assert_array_equal(y[start:start + (1 << 18)].full_tensor(), want[start:start + (1 << 18)])
            del y
        if READS_ROWS:
            rows = np.random.default_rng(4).integers(0, a.shape[0], 1 << 19)
            y = ts.take(x, session.distribute_tensor(rows, mesh, [S(0)]), axis=0)     # 32 MiB, of which each has 8
            np.testing.assert_array_equal(y[: 1 << 16].full_tensor(), a[rows[: 1 << 16]])
