"""Small sums and gathers among many hosts take a message for each digit of their number, not one for each host."""

import pathlib
import sys

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

S, R, P = ts.Shard, ts.Replicate, ts.Partial
HOSTS = 16  # by rounds of 4 and 4


@pytest.fixture(scope="module", params=[1, 2], ids=["a_worker_each", "two_workers_each"])
def session(request):
    with two_hosts.Cluster(two_hosts.named_hosts(HOSTS), workers=HOSTS * (request.param,), memory="16MiB") as cluster:
        with ts.connect(cluster.address) as session:
            yield session


def check(session, mesh, values, source, placements, by_rounds):
    """`values` are those of every position: terms, or what it has."""
    x = session.from_local(values, mesh, source)
    plan = x.explain_redistribute(placements=placements)
    with session.comm_debug() as comm:
        y = x.redistribute(placements=placements)
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
    assert any("doubling 1 of 2" in step for step in plan.steps) == by_rounds, plan.steps
    return y, plan, comm


@pytest.mark.parametrize("shape", [(), (1,), (7,), (64,), (13, 5), (300,)], ids=str)
def test_a_sum(session, shape):
    mesh = session.default_mesh
    workers = mesh.size()
    rng = np.random.default_rng(len(shape))
    terms = {(p,): rng.integers(-9, 9, shape).astype("f8") for p in range(workers)}
    y, plan, comm = check(session, mesh, terms, [P()], [R()], True)
    for position in mesh.positions():
        np.testing.assert_array_equal(y.to_local(position), sum(terms.values()))
    assert sum(comm.bytes_received) == (2 * workers - 2) * int(np.prod(shape)) * 8
    assert any("halving 2 of 2" in step for step in plan.steps), plan.steps
    assert comm.collective_counts == {"reduce_scatter": 1, "all_gather": 1}


def test_an_average_is_divided_once(session):
    mesh = session.default_mesh
    terms = {(p,): np.arange(40.0) + p for p in range(mesh.size())}
    y, *_ = check(session, mesh, terms, [P("avg")], [R()], True)
    np.testing.assert_allclose(y.full_tensor(), np.arange(40.0) + (mesh.size() - 1) / 2, rtol=1e-14)


@pytest.mark.parametrize("extent", [16, 37, 3, 120])
def test_a_gather(session, extent):
    mesh = session.default_mesh
    values = np.random.default_rng(extent).random((extent, 3))
    x = session.distribute_tensor(values, mesh, [S(0)])
    plan = x.explain_redistribute(placements=[R()])
    with session.comm_debug() as comm:
        y = x.redistribute(placements=[R()])
    assert any("doubling 2 of 2" in step for step in plan.steps), plan.steps
    for position in mesh.positions():
        np.testing.assert_array_equal(y.to_local(position), values)
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
    assert sum(comm.bytes_received) == (mesh.size() - 1) * values.nbytes


def test_what_is_large_goes_directly(session):
    mesh = session.default_mesh
    terms = {(p,): np.full(1 << 16, p + 1.0) for p in range(mesh.size())}
    y, *_ = check(session, mesh, terms, [P()], [R()], False)
    assert np.all(y.full_tensor() == mesh.size() * (mesh.size() + 1) / 2)


def test_several_tensors_and_many_ops_in_flight(session):
    mesh = session.default_mesh
    workers = mesh.size()
    terms = {(p,): np.full(30, p + 1.0) for p in range(workers)}
    x, rows = session.from_local(terms, mesh, [P()]), session.distribute_tensor(np.arange(48.0), mesh, [S(0)])
    total = workers * (workers + 1) / 2
    both = [ts.redistribute([x, rows], placements=[R()]) for _ in range(20)]
    chained = x.redistribute(placements=[R()])
    for _ in range(20):
        chained = (chained / total).redistribute(placements=[S(0)]).redistribute(placements=[R()]) * total
    for summed, gathered in both:
        np.testing.assert_array_equal(summed.full_tensor(), np.full(30, total))
        np.testing.assert_array_equal(gathered.full_tensor(), np.arange(48.0))
    np.testing.assert_allclose(chained.full_tensor(), np.full(30, total))
