"""ts.redistribute([x, y, ...]): several tensors by one op, with the bytes and the steps of its plan."""

import itertools

import numpy as np
import pytest

import tessera as ts

from test_programs import P, R, S
from test_redistribute_sweep import draw_case, draw_placements, draw_view, make_pending, wide_cluster  # noqa: F401


def lists(session, mesh):
    """A tensor of each kind, with its value: of several dtypes, pending, a view, and one that is where it should be."""
    rng = np.random.default_rng(3)
    a = rng.integers(-9, 9, (6, 8)).astype("float32")
    b = rng.integers(0, 2, (5, 4)).astype(bool)
    terms = rng.integers(-9, 9, (mesh.size(), 7, 4)).astype("float64")
    c = np.arange(24, dtype="int64").reshape(4, 6)
    return [(session.distribute_tensor(a, mesh, [S(0)]), a),
            (session.distribute_tensor(b, mesh, [S(1)]), b),
            (session.from_local(lambda position: terms[position[0]], mesh, [P("sum")], shape=(7, 4)), terms.sum(0)),
            (session.distribute_tensor(c, mesh, [S(0)]).T, c.T),
            (session.distribute_tensor(a[:4], mesh, [R()]), a[:4])]


@pytest.mark.parametrize("destination", [[S(0)], [S(1)], [R()]], ids=str)
def test_results_counters_and_steps_are_those_of_the_plan(session, mesh4, destination):
    tensors, values = zip(*lists(session, mesh4))
    plan = ts.explain(ts.redistribute, list(tensors), placements=destination)
    alone = [x.explain_redistribute(destination) for x in tensors]
    assert plan.bytes_received == [sum(bytes) for bytes in zip(*(one.bytes_received for one in alone))], str(plan)
    assert plan.placements == [tuple(destination)] * 5 and plan.output.count(" @ ") == 5
    assert sum(not step.startswith("with ") for step in plan.steps) <= 2, plan.steps
    with session.comm_debug() as comm:
        results = ts.redistribute(list(tensors), placements=destination)
    assert isinstance(results, list) and len(results) == 5
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
    names = [step.removeprefix("with ").split()[0] for step in plan.steps]
    assert comm.collective_counts == {name: names.count(name) for name in names}
    for x, y, value in zip(tensors, results, values):
        assert y.placements == tuple(destination) and y.device_mesh == mesh4 and y.dtype == x.dtype
        np.testing.assert_array_equal(y.full_tensor(), value)


def test_each_mesh_waits_for_its_own_tensors(session):
    """Ops that one mesh has yet to run hold the workers of the other in no stream."""
    left, right = (session.init_device_mesh((2,), workers=workers) for workers in ([0, 1], [2, 3]))
    one = session.init_device_mesh((1,), workers=[3])
    w = ts.ones((8, 8), device_mesh=left, placements=[S(0)]).wait()
    x = ts.ones((2048, 1024), device_mesh=right, placements=[S(0)]).wait()
    y = ts.ones((8, 8), device_mesh=one).wait()
    for _ in range(5):
        exchanged, computed = x.redistribute([S(1)]), y + 1.0  # in flight
        moved = ts.redistribute([w, exchanged, computed], placements=[[S(1)], [S(0)], [R()]])
        ts.wait(*moved, timeout=60)
        u, v = ts.redistribute([w, y + 1.0], right, [[S(1)], [S(0)]])
        np.testing.assert_array_equal((u + v).full_tensor(), np.full((8, 8), 3.0))


def test_each_tensor_may_have_its_own_placements(session, mesh22, rng):
    a, b = rng.random((5, 7)), rng.random((3, 4, 2))
    every = [[R(), R()], [S(0), R()], [S(1), S(0)], [R(), S(1)]]
    for first, second in itertools.product(every, every):
        x, y = session.distribute_tensor(a, mesh22, first), session.distribute_tensor(b, mesh22, second)
        with session.comm_debug() as comm:
            u, v, w = ts.redistribute((x, y, x), placements=[second, first, first])
        plan = ts.explain(ts.redistribute, [x, y, x], placements=[second, first, first])
        assert comm.bytes_received == plan.bytes_received
        assert u.placements == tuple(second) and v.placements == tuple(first) and w.placements == tuple(first)
        for result, value in ((u, a), (v, b), (w, a)):
            np.testing.assert_array_equal(result.full_tensor(), value)


def test_tensors_of_other_meshes_and_dtypes_come_together(session, mesh4, rng):
    a, b = rng.integers(-9, 9, (6, 4)).astype("float64"), rng.integers(-9, 9, (5, 3)).astype("int32")
    pair = session.init_device_mesh((2,), workers=[3, 1])
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, pair, [S(0)])
    with session.comm_debug() as comm:
        u, v = ts.redistribute([x, y], mesh4, [S(1)], dtype="float32")
    assert comm.bytes_received == ts.explain(ts.redistribute, [x, y], mesh4, [S(1)], dtype="float32").bytes_received
    for result, value in ((u, a), (v, b)):
        assert result.device_mesh == mesh4 and result.dtype == np.float32
        np.testing.assert_array_equal(result.full_tensor(), value.astype("float32"))
    u, v = ts.redistribute([x, y], [R()])  # each on its own mesh
    assert u.device_mesh == mesh4 and v.device_mesh == pair
    np.testing.assert_array_equal(v.full_tensor(), b)
    u, v = ts.redistribute([x, y])  # as of one tensor: no placements means Replicate
    assert u.placements == v.placements == (R(),)


def test_results_may_be_dropped_used_again_and_many(session, mesh4, rng):
    a = rng.random((8, 8))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    ts.redistribute([x, x * 2], placements=[S(1)])  # nobody holds the results
    many = ts.redistribute([x + i for i in range(64)], placements=[S(1)])
    total = many[0]
    for y in many[1:]:
        total += y
    np.testing.assert_allclose(total.full_tensor(), 64 * a + sum(range(64)))
    back = ts.redistribute(many, placements=[S(0)])
    np.testing.assert_array_equal(back[17].full_tensor(), a + 17)


def test_it_is_one_op_for_all(session, mesh4):
    tensors = [ts.ones((8, 8), device_mesh=mesh4, placements=[S(0)]) + i for i in range(5)]
    session.sync()
    before = session.status()["next_ordinal"]
    ts.redistribute(tensors, placements=[S(1)])
    session.sync()
    assert session.status()["next_ordinal"] == before + 1


@pytest.mark.whole_system
@pytest.mark.parametrize("seed", range(40))
def test_random_lists(wide_cluster, seed):
    rng = np.random.default_rng(seed)
    with wide_cluster.connect() as session:
        tensors, values, destinations = [], [], []
        for n in range(rng.integers(2, 6)):
            draws, shape, dtype, source, (mesh_shape, workers, destination) = draw_case(1000 * seed + n)
            x, value = make_pending(session, draws, shape, dtype, source)
            if n == 0:
                mesh = session.init_device_mesh(mesh_shape, workers=workers)
            x, value = draw_view(draws, x, value)
            tensors.append(x)
            values.append(value)
            destinations.append(draw_placements(draws, len(mesh.shape), value.ndim, None))
        plan = ts.explain(ts.redistribute, tensors, mesh, destinations)
        with session.comm_debug() as comm:
            results = ts.redistribute(tensors, mesh, destinations)
        assert sum(plan.bytes_received) == sum(comm.bytes_received) and sum(plan.bytes_sent) == sum(comm.bytes_sent)
        single = [x.explain_redistribute(mesh, to) for x, to in zip(tensors, destinations)]
        assert sum(comm.bytes_received) == sum(sum(one.bytes_received) for one in single), str(plan)
        for y, value in zip(results, values):
            np.testing.assert_allclose(y.full_tensor(), value, rtol=1e-6, err_msg=str(plan))


def test_a_failure_of_one_tensor_is_that_of_all_results(session, mesh4):
    good = ts.ones((8, 8), device_mesh=mesh4, placements=[S(1)])
    lost = ts.ones((1 << 14, 1 << 14), dtype="float64", device_mesh=mesh4, placements=[R()])  # 2 GiB: does not fit
    u, v = ts.redistribute([good, lost], placements=[S(1)])
    for result in (u, v):
        with pytest.raises(ts.ResourceExhaustedError, match="^ones: "):
            result.wait()
    assert float(good.sum()) == 64
    u, v = ts.redistribute([good, good + 1], placements=[S(0)])
    assert float((u + v).sum()) == 192


def test_what_does_not_fit_refuses_all_with_the_numbers(new_cluster):
    session = new_cluster(workers=2, memory="64MiB").connect()
    mesh = session.init_device_mesh((2,))
    x = ts.zeros((6 << 20,), dtype="float64", device_mesh=mesh, placements=[S(0)])
    small = ts.zeros((64,), dtype="float64", device_mesh=mesh, placements=[S(0)])
    results = ts.redistribute([small, x], placements=[R()])
    for result in results:
        with pytest.raises(ts.ResourceExhaustedError, match=f"{48 << 20} bytes wanted on each of 2 workers"):
            result.wait()
    assert float(ts.redistribute([small], placements=[R()])[0].sum()) == 0


def test_what_cannot_be_is_refused_by_operand(session, mesh4, mesh22, cluster):
    x = ts.ones((4, 6), device_mesh=mesh4, placements=[S(0)])
    y = ts.ones((5,), device_mesh=mesh4, placements=[R()])
    z = ts.ones((4, 4), device_mesh=mesh22, placements=[R(), R()])
    for arguments, match in (
            (([x, y], None, [S(1)]), r"operand 1: placement S\(1\).*from f64\[5\] @ mesh\(4\) \[R\] to mesh\(4\) \[S\(1\)\]"),
            (([x, y], None, [P("sum")]), r"operand 0: S\(0\) to P\(sum\)"),
            (([x, z], None, [S(1)]), r"operand 1, f64\[4,4\] @ mesh\(dp:2,tp:2\) \[R, R\]: 1 placements"),
            (([x, y], None, [[S(1)], [R()], [R()]]), "3 lists of placements for 2 tensors"),
            (([],), "empty"),
            (([x] * 65, None, [S(1)]), "64 operands, not 65")):
        with pytest.raises(ts.InvalidArgumentError, match=match):
            ts.redistribute(*arguments)
    with pytest.raises(ts.InvalidArgumentError, match="relabel= is for one tensor"):
        ts.redistribute([x, y], placements=[R()], relabel=True)
    with pytest.raises(TypeError, match="item 1 of the list is ndarray"):
        ts.redistribute([x, np.ones(3)], placements=[R()])
    (alone,) = ts.redistribute([x], placements=[S(1)], relabel=True)
    assert alone.placements == (S(1),)
    other = cluster.connect()
    there = ts.ones((4,), device_mesh=other.init_device_mesh((2,)))
    with pytest.raises(ts.InvalidArgumentError, match="^redistribute: operand 1, .*of another session"):
        ts.redistribute([x, there], placements=[R()])
    other.close()
