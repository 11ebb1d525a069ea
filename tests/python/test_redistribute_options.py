"""redistribute(dtype=) converts where fewer bytes move, and on the way if memory is short; redistribute(relabel=True)
lets the workers stand where least has to move; what can't be is refused by name."""

import itertools

import numpy as np
import pytest

import tessera as ts

from test_programs import P, R, S, box_of


def moved(session, act):
    with session.comm_debug() as comm:
        result = act()
    return result, comm.bytes_received


@pytest.mark.parametrize("to, factor", [("float32", 4), ("int32", 4), ("float64", 8)])
def test_dtype_is_converted_on_the_side_with_fewer_bytes(session, rng, mesh4, to, factor):
    values = rng.integers(-9, 9, (8, 4)).astype("float64")
    x = session.distribute_tensor(values, mesh4, [S(0)])
    y, received = moved(session, lambda: x.redistribute([S(1)], dtype=to))
    assert y.dtype == np.dtype(to) and received == [6 * factor] * 4
    assert x.explain_redistribute([S(1)], dtype=to).bytes_received == received
    np.testing.assert_array_equal(y.full_tensor(), values.astype(to))
    back, received = moved(session, lambda: y.redistribute([R()], dtype="float64"))
    assert received == [24 * factor] * 4
    np.testing.assert_array_equal(back.full_tensor(), values.astype(to).astype("float64"))


def test_dtype_of_a_sum_is_converted_after_it_is_reduced_and_before_it_is_spread(session, rng, mesh4):
    terms = rng.integers(-9, 9, (4, 8, 6)).astype("float64")
    x = session.from_local(lambda position: terms[position[0]], mesh4, [P("sum")], shape=(8, 6))
    y, received = moved(session, lambda: x.redistribute([R()], dtype="float32"))
    assert received == [3 * 12 * 8 + 3 * 12 * 4] * 4
    np.testing.assert_array_equal(y.full_tensor(), terms.sum(0).astype("float32"))
    z, received = moved(session, lambda: x.redistribute([S(1)], dtype="float32"))
    assert sum(received) == 3 * 48 * 8
    np.testing.assert_array_equal(z.full_tensor(), terms.sum(0))


@pytest.mark.parametrize("workers", [[1, 0], [2, 3]], ids=str)
def test_dtype_changes_between_meshes(session, rng, workers):
    values = rng.integers(-9, 9, (7, 5)).astype("float64")
    x = session.distribute_tensor(values, session.init_device_mesh((2,)), [S(0)])
    mesh = session.init_device_mesh((2,), workers=workers)
    narrow, received = moved(session, lambda: x.redistribute(mesh, [S(0)], dtype="float32"))
    assert sum(received) == 35 * 4
    wide, received = moved(session, lambda: narrow.redistribute(x.device_mesh, [S(0)], dtype="float64"))
    assert sum(received) == 35 * 4
    np.testing.assert_array_equal(wide.full_tensor(), values)


def test_another_dtype_alone_keeps_the_placements(session, rng, mesh22):
    values = rng.integers(-9, 9, (9, 4)).astype("float64")
    x = session.distribute_tensor(values, mesh22, [S(1), R()])
    for act in (lambda: x.redistribute(dtype="f4"), lambda: x.redistribute(dtype="f4", relabel=True),
                lambda: ts.redistribute([x], dtype="f4")[0]):
        y, received = moved(session, act)
        assert y.placements == x.placements and y.dtype == np.float32 and received == [0] * 4
        np.testing.assert_array_equal(y.full_tensor(), values)
    assert x.explain_redistribute(dtype="f4").placements == x.placements
    assert x.redistribute(relabel=True).placements == x.redistribute(dtype="f8").placements == x.placements
    # Without anything it is Replicate, and so is what was pending in another dtype.
    assert x.redistribute().placements == (R(), R())
    pending = session.from_local(lambda position: values, mesh22, [P("sum"), R()], shape=(9, 4))
    assert pending.redistribute(dtype="f8").placements == (P("sum"), R())
    reduced = pending.redistribute(dtype="f4")
    assert reduced.placements == (R(), R())
    np.testing.assert_array_equal(reduced.full_tensor(), 2 * values)


def test_relabel_finds_the_workers_that_have_the_data(session, rng):
    values = rng.integers(-9, 9, (9, 4)).astype("float64")
    reversed_mesh = session.init_device_mesh((4,), workers=[3, 2, 1, 0])
    x = session.distribute_tensor(values, reversed_mesh, [S(0)])
    mesh = session.init_device_mesh((4,), mesh_dim_names=("rows",))
    plan = x.explain_redistribute(mesh, [S(0)], relabel=True)
    y, received = moved(session, lambda: x.redistribute(mesh, [S(0)], relabel=True))
    assert received == [0] * 4 == plan.bytes_received
    assert list(y.device_mesh.workers) == [3, 2, 1, 0] and y.device_mesh.mesh_dim_names == ("rows",)
    np.testing.assert_array_equal(y.full_tensor(), values)
    stays = x.redistribute(placements=[S(1)], relabel=True)
    assert sorted(stays.device_mesh.workers) == [0, 1, 2, 3]
    np.testing.assert_array_equal(stays.full_tensor(), values)


def test_relabel_moves_what_the_best_order_of_workers_moves(session, rng):
    values = rng.integers(-9, 9, (6, 7)).astype("float64")
    plain = [R(), S(0), S(1)]
    for source, destination in itertools.product(itertools.product(plain, repeat=2), repeat=2):
        x = session.distribute_tensor(values, session.init_device_mesh((2, 2), workers=[2, 0, 3, 1]), source)
        y, received = moved(session, lambda: x.redistribute(session.init_device_mesh((2, 2)), destination, relabel=True))
        best = min(sum(x.explain_redistribute(session.init_device_mesh((2, 2), workers=order), destination).bytes_received)
                   for order in itertools.permutations(range(4)))
        assert sum(received) == best, f"{x!r} -> {destination}: {y.device_mesh}"
        np.testing.assert_array_equal(y.full_tensor(), values)


@pytest.mark.parametrize("source", [[P("sum"), R()], [P("sum"), S(0)], [S(1), P("sum")], [P("sum"), P("sum")]], ids=str)
def test_relabel_of_pending_terms_moves_what_the_best_order_moves(session, rng, source):
    mesh = session.init_device_mesh((2, 2), workers=[2, 0, 3, 1])
    terms = sum(p.is_partial() for p in source) * 2
    values = rng.integers(-9, 9, (6, 7)).astype("float64")
    x = session.from_local(lambda position: values[tuple(slice(*d) for d in box_of((6, 7), source, (2, 2), position))],
                           mesh, source, shape=(6, 7))
    for destination in itertools.product([R(), S(0), S(1)], repeat=2):
        y, received = moved(session, lambda: x.redistribute(session.init_device_mesh((2, 2)), destination, relabel=True))
        best = min(sum(x.explain_redistribute(session.init_device_mesh((2, 2), workers=order), destination).bytes_received)
                   for order in itertools.permutations(range(4)))
        assert sum(received) == best, f"{x!r} -> {destination}: {y.device_mesh}"
        np.testing.assert_array_equal(y.full_tensor(), terms * values)


def test_what_can_not_be_pending_is_refused_by_name(session, mesh4):
    x = session.distribute_tensor(np.ones(8), mesh4, [S(0)])
    with pytest.raises(ts.InvalidArgumentError, match=r"S\(0\) to P\(sum\) on mesh dim 0: nothing else can"):
        x.redistribute([P("sum")])
    pending = session.from_local(lambda position: np.ones(8), mesh4, [P("sum")], shape=(8,))
    with pytest.raises(ts.InvalidArgumentError, match=r"P\(sum\) to P\(max\) on mesh dim 0: Partials of different kinds"):
        pending.redistribute([P("max")])
    with pytest.raises(ts.InvalidArgumentError, match="to Partial on another mesh"):
        pending.redistribute(session.init_device_mesh((2,)), [P("sum")])
    with pytest.raises(ts.DTypeError, match="a pending value can't change dtype"):
        pending.redistribute([P("sum")], dtype="float32")


def test_a_mesh_whose_workers_are_gone_is_refused_by_name(new_cluster):
    import os
    import signal

    cluster = new_cluster(workers=3)
    session = cluster.connect()
    mesh = session.init_device_mesh((2,))
    x = session.distribute_tensor(np.arange(8.0), mesh, [S(0)])
    x.wait()
    with pytest.raises(ts.InvalidArgumentError, match="worker 7"):
        x.redistribute(session.init_device_mesh((2,), workers=[0, 7]), [R()]).wait()
    os.kill(cluster.worker_pids[2], signal.SIGKILL)
    with pytest.raises(ts.UnavailableError, match="worker 2"):
        while True:
            x.redistribute(session.init_device_mesh((2,), workers=[0, 2]), [R()]).wait()
    np.testing.assert_array_equal(x.redistribute([R()]).full_tensor(), np.arange(8.0))
    with pytest.raises(ts.UnavailableError, match="redistribute: worker 2 was lost"):
        x.explain_redistribute(session.init_device_mesh((2,), workers=[0, 2]), [R()])


def test_a_wider_dtype_is_converted_as_it_is_taken(session, rng, mesh4):
    values = rng.integers(-9, 9, (64, 36)).astype("float32")
    x = session.distribute_tensor(values, mesh4, [S(0)])
    plan = x.explain_redistribute([S(1)], dtype="float64")
    y, received = moved(session, lambda: x.redistribute([S(1)], dtype="float64"))
    assert received == plan.bytes_received == [432 * 4] * 4
    assert plan.peak_bytes == [(x.nbytes + y.nbytes) // 4] * 4
    assert len(plan.steps) == 1 and plan.steps[0].removesuffix(", by NCCL").endswith(", as f64"), plan.steps
    np.testing.assert_array_equal(y.full_tensor(), values)


@pytest.mark.parametrize("source, destination", [(S(0), S(1)), (S(1), R()), (P("sum"), S(0)), (P("sum"), R())], ids=str)
@pytest.mark.parametrize("narrow, wide", [("float32", "float64"), ("float64", "float32")])
def test_a_conversion_fits_where_input_and_output_do(new_cluster, source, destination, narrow, wide):
    values = np.arange(1 << 19, dtype=narrow).reshape(512, 1024)
    share = lambda placement, dtype: values.size * np.dtype(dtype).itemsize // (4 if placement.is_shard() else 1)  # noqa: E731
    both = share(source, narrow) + share(destination, wide)
    session = new_cluster(workers=4, memory=f"{both >> 10}KiB").connect()
    mesh = session.init_device_mesh((4,))
    if source.is_partial():
        x = ts.from_local(lambda position: values * (position[0] == 1), mesh, [source], shape=values.shape).wait()
    else:
        x = session.distribute_tensor(values, mesh, [source]).wait()
    y, received = moved(session, lambda: x.redistribute([destination], dtype=wide).wait())
    np.testing.assert_array_equal(y.full_tensor(), values.astype(wide))
    assert sum(received) > 0
    if narrow == "float32":  # which is what moves
        transfers = {(S(0), S(1)): 3 / 4, (S(1), R()): 3, (P("sum"), S(0)): 3, (P("sum"), R()): 6}[source, destination]
        assert sum(received) == transfers * values.nbytes
        assert x.explain_redistribute([destination], dtype=wide).peak_bytes == [both] * 4


@pytest.mark.parametrize("narrow, wide", [("float16", "float32"), ("int32", "int64"), ("float32", "float64")])
@pytest.mark.parametrize("shape", [(1,), (3,), (0, 5), (7, 5), (600, 701)], ids=str)
def test_a_sum_that_becomes_wider_is_widened_where_its_result_lies(session, mesh4, narrow, wide, shape):
    values = np.arange(np.prod(shape), dtype="int64").reshape(shape) % 11 - 5
    terms = [(values + position).astype(narrow) for position in range(4)]
    x = session.from_local(lambda position: terms[position[0]], mesh4, [P("sum")], shape=shape)
    plan = x.explain_redistribute([R()], dtype=wide)
    y, received = moved(session, lambda: x.redistribute([R()], dtype=wide))
    assert plan.peak_bytes == [terms[0].nbytes + y.nbytes] * 4
    assert sum(received) == sum(plan.bytes_received) == 6 * terms[0].nbytes
    np.testing.assert_array_equal(y.full_tensor(), sum(term.astype(wide) for term in terms))


def test_what_does_not_fit_is_refused_with_what_would(new_cluster):
    session = new_cluster(workers=2, memory="64MiB").connect()
    mesh = session.init_device_mesh((2,))
    x = ts.zeros((6 << 20,), dtype="float64", device_mesh=mesh, placements=[S(0)])
    with pytest.raises(ts.ResourceExhaustedError) as refused:
        x.redistribute([R()]).wait()
    message = str(refused.value)
    assert f"{48 << 20} bytes wanted on each of 2 workers" in message and "free of" in message, message
    assert f"f64[{6 << 20}] @ mesh(2) [R] would fit with placements [S(0)], or shortened to f64[" in message, message
    fits = int(message.rsplit("f64[", 1)[1].split("]")[0])
    assert ts.zeros((fits,), dtype="float64", device_mesh=mesh, placements=[R()]).wait() is not None
    x.redistribute([R()], dtype="int32").wait()


def test_a_sum_that_becomes_narrower_is_reduced_where_each_element_is_nearest(session):
    """c - 1 transfers of the wide terms, and narrow ones to all who want it but one that has a term."""
    n = (36, 24)
    terms = [np.arange(n[0] * n[1]).reshape(n) % 30 + k for k in range(3)]
    for workers, to, shape, placements in (([0, 1], [0, 3], (2,), [S(1)]), ([0, 1, 2], [0, 3], (2,), [S(0)]),
                                           ([0, 1, 2], [3, 0, 1], (3,), [S(0)]), ([0, 1], [2, 1, 3], (3,), [S(1)]),
                                           ([0, 1], [0, 1, 2, 3], (2, 2), [S(0), R()]), ([0, 2], [3, 2, 1, 0], (2, 2), [R(), S(1)])):
        source = session.init_device_mesh((len(workers),), workers=workers)
        x = session.from_local([t.astype("f8") for t in terms[:len(workers)]], source, [P()])
        mesh = session.init_device_mesh(shape, workers=to)
        want = sum(terms[:len(workers)])
        replicas = 2 if R() in placements else 1
        shard_of = {w: k // replicas if placements[-1] == R() else k % len(to) if replicas == 1 else k % 2 for k, w in enumerate(to)}
        shards = len(to) // replicas
        near = {shard_of[w] for w in to if w in workers}
        for dtype in ("f4", "i2", "i1"):
            plan = x.explain_redistribute(mesh, placements, dtype=dtype)
            with session.comm_debug() as comm:
                y = x.redistribute(mesh, placements, dtype=dtype).wait()
            np.testing.assert_array_equal(y.full_tensor(), want.astype(dtype))
            elements = n[0] * n[1]
            least = elements * (len(workers) - 1) * 8 + (elements * replicas - elements * len(near) // shards) * np.dtype(dtype).itemsize
            assert sum(comm.bytes_received) == sum(plan.bytes_received) == least, str(plan)


def test_relabel_is_a_bool(session, mesh4):
    x = ts.ones((8,), device_mesh=mesh4)
    assert x.redistribute([S(0)], relabel=np.True_).placements == (S(0),)
    for relabel in ("yes", 2, 1, None, float("nan"), x):
        for refused in (lambda: x.redistribute([S(0)], relabel=relabel), lambda: x.explain_redistribute([S(0)], relabel=relabel),
                        lambda: ts.redistribute(x, [S(0)], relabel=relabel), lambda: ts.redistribute([x], [S(0)], relabel=relabel)):
            with pytest.raises(ts.InvalidArgumentError, match="redistribute: .*relabel is .*not a bool"):
                refused()
