"""Workers on two hosts (network namespaces that the test makes): mapped memory on a host, messages between them."""

import itertools
import pathlib
import signal
import sys
import time

import numpy as np
import pytest

import in_time
import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

S, R, P = ts.Shard, ts.Replicate, ts.Partial
MIB = 1 << 20


@pytest.fixture(scope="module")
def hosts():
    try:
        with two_hosts.TwoHosts() as made:
            yield made
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"two network namespaces are not permitted here: {reason}")


@pytest.fixture(scope="module", params=["shm+ucx", "shm+tls"])
def cluster(hosts, request):
    with two_hosts.Cluster(hosts, memory="96MiB", transport=request.param) as cluster:
        yield cluster


@pytest.fixture
def session(cluster):
    with ts.connect(cluster.address) as session:
        yield session


@pytest.fixture
def mesh(session):
    return session.init_device_mesh((2, 2), mesh_dim_names=("host", "worker"))


def crossing(hosts, run):
    """Bytes that crossed between the hosts, either way, while `run` ran."""
    before = [host.received_bytes() for host in hosts.hosts]
    run()
    return sum(host.received_bytes() - b for host, b in zip(hosts.hosts, before))


def values_of(rng, shape):
    return rng.integers(-8, 9, shape).astype("f8")


def tensor_of(session, mesh, values, placements):
    """Also where terms are pending: coordinate 0 has the values less one for each other coordinate."""
    pending = [d for d, p in enumerate(placements) if p.is_partial()]
    if not pending:
        return session.distribute_tensor(values, mesh, placements)
    layout = ts.zeros(values.shape, device_mesh=mesh, placements=[R() if p.is_partial() else p for p in placements])
    terms = 2 ** len(pending)

    def local(position):
        piece = values[tuple(slice(*i) for i in layout.box(position))]
        return piece - (terms - 1) if all(position[d] == 0 for d in pending) else np.ones_like(piece)
    return ts.from_local(local, mesh, placements, shape=values.shape)


def test_each_worker_knows_its_host(session):
    of_worker = [worker["host"] for worker in session.status()["workers"]]
    assert of_worker[0] == of_worker[1] != of_worker[2] == of_worker[3]


def test_every_pair_of_placements_and_what_it_moves(session, mesh, rng):
    values = values_of(rng, (7, 5))
    plain = [R(), S(0), S(1)]
    for source in itertools.product([*plain, P()], repeat=2):
        x = tensor_of(session, mesh, values, list(source))
        for destination in itertools.product(plain, repeat=2):
            plan = x.explain_redistribute(list(destination))
            with session.comm_debug() as comm:
                y = x.redistribute(list(destination))
            what = f"{source} -> {destination}\n{plan}"
            assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, what
            for position in mesh.positions():
                box = tuple(slice(*i) for i in y.box(position))
                np.testing.assert_array_equal(y.to_local(position), values[box], what)


def test_what_stays_on_a_host_crosses_no_wire(session, mesh, hosts, rng):
    values = values_of(rng, (1024, 1024))
    x = session.distribute_tensor(values, mesh, [R(), S(0)]).wait()
    assert crossing(hosts, lambda: x.redistribute([R(), S(1)]).wait()) < 65536
    np.testing.assert_array_equal(x.redistribute([R(), S(1)]).full_tensor(), values)


def test_what_must_cross_crosses_once(session, mesh, hosts, rng):
    values = values_of(rng, (1024, 1024))  # 8 MiB
    x = session.distribute_tensor(values, mesh, [S(0), S(0)]).wait()
    turned = []
    crossed = crossing(hosts, lambda: turned.append(x.redistribute([S(1), S(1)]).wait()))
    assert 4 * MIB <= crossed < 4.6 * MIB  # half of all; the rest are headers and acknowledgements
    np.testing.assert_array_equal(turned[0].full_tensor(), values)


def test_a_hosts_sum_crosses_once(session, mesh, hosts, rng):
    values = values_of(rng, (1024, 1024))  # 8 MiB
    x = tensor_of(session, mesh, values, [P(), P()]).wait()
    reduced = []
    with session.comm_debug() as comm:
        crossed = crossing(hosts, lambda: reduced.append(x.redistribute([S(0), S(0)]).wait()))
    # One sum of each host's 4 MiB comes from the other host; within hosts every term is read once.
    assert 8 * MIB <= crossed < 9 * MIB
    assert comm.bytes_received == comm.bytes_sent == [6 * MIB] * 4
    np.testing.assert_array_equal(reduced[0].full_tensor(), values)


@pytest.mark.parametrize("source, crosses", [([S(0), S(0)], 1), ([P(), P()], 2), ([S(0), P()], 1)])
def test_what_both_workers_of_a_host_need_crosses_once(session, mesh, hosts, rng, source, crosses):
    """An all-gather: each host's half crosses once. An all-reduce: half as a sum, half as a result, each way."""
    values = values_of(rng, (1024, 1024))  # 8 MiB
    x = tensor_of(session, mesh, values, source).wait()
    gathered = []
    plan = x.explain_redistribute([R(), R()])
    with session.comm_debug() as comm:
        crossed = crossing(hosts, lambda: gathered.append(x.redistribute([R(), R()]).wait()))
    assert crosses * 8 * MIB <= crossed < crosses * 8.8 * MIB, plan
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent
    for position in mesh.positions():
        np.testing.assert_array_equal(gathered[0].to_local(position), values)


@pytest.mark.parametrize("left, right", [([S(0), S(0)], [S(0), S(0)]), ([S(1), S(1)], [S(1), S(1)]), ([S(0), S(1)], [S(0), S(1)])])
def test_what_both_workers_of_a_host_multiply_crosses_once(session, mesh, hosts, rng, left, right):
    """Half of one operand, each way; the first worker's and the second's own parts of it where they need different ones."""
    a, b = values_of(rng, (1024, 1024)), values_of(rng, (1024, 1024))  # 8 MiB
    x, y = session.distribute_tensor(a, mesh, left).wait(), session.distribute_tensor(b, mesh, right).wait()
    products = []
    plan = ts.explain(ts.matmul, x, y)
    with session.comm_debug() as comm:
        crossed = crossing(hosts, lambda: products.append((x @ y).wait()))
    assert 8 * MIB <= crossed < 8.8 * MIB, plan
    assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, plan
    np.testing.assert_array_equal(products[0].full_tensor(), a @ b)


@pytest.mark.parametrize("left, right", [([S(0), S(0)], [S(0), S(0)]), ([P(), P()], [S(0), S(0)])])
def test_a_part_of_an_operand_comes_while_another_is_multiplied(session, mesh, rng, left, right):
    a, b = values_of(rng, (1024, 1024)), values_of(rng, (1024, 1024))
    x, y = tensor_of(session, mesh, a, left), tensor_of(session, mesh, b, right)
    plan = ts.explain(ts.matmul, x, y)
    assert "comes while the one before is multiplied" in str(plan)
    for _ in range(3):
        with session.comm_debug() as comm:
            product = (x @ y).wait()
        assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, plan
        np.testing.assert_array_equal(product.full_tensor(), a @ b)


def test_operands_come_in_panels_where_the_grid_cuts_all_of_the_output(rng):
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(4, 4), memory="16MiB") as cluster, \
            ts.connect(cluster.address) as session:
        mesh = session.init_device_mesh((4, 2))
        for (m, k, n), is_in_panels in (((512, 512, 512), True), ((640, 520, 768), True), ((33, 41, 37), False)):
            left, right = values_of(rng, (m, k)), values_of(rng, (k, n))
            a, b = (tensor_of(session, mesh, v, [S(0), S(1)]) for v in (left, right))
            plan = ts.explain(ts.matmul, a, b)
            assert (" panels of k, " in str(plan)) == is_in_panels, str(plan)
            for _ in range(3):
                with session.comm_debug() as comm:
                    product = ts.matmul(a, b).wait()
                assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
                np.testing.assert_array_equal(product.full_tensor(), left @ right, str(plan))


def test_a_broadcast_crosses_once(session, mesh, hosts, rng):
    values = values_of(rng, (1024, 1024))
    x = session.distribute_tensor(values, session.init_device_mesh((1,), workers=[1]), [R()]).wait()
    everywhere = []
    crossed = crossing(hosts, lambda: everywhere.append(x.redistribute(mesh, [R(), R()]).wait()))
    assert 8 * MIB <= crossed < 8.8 * MIB
    for position in mesh.positions():
        np.testing.assert_array_equal(everywhere[0].to_local(position), values)


def test_large_sums_over_both_hosts(session, mesh, rng):
    values = values_of(rng, (1 << 10, 1 << 10))
    for placements in ([P(), P()], [P(), S(0)], [R(), P()]):
        x = tensor_of(session, mesh, values, placements)
        for destination in ([R(), R()], [S(0), S(1)]):
            np.testing.assert_array_equal(x.redistribute(destination).full_tensor(), values)


def test_products(session, mesh, rng):
    left, right = values_of(rng, (301, 257)), values_of(rng, (257, 203))
    for a, b in itertools.product([[S(0), S(1)], [S(1), S(1)], [R(), S(0)], [S(0), S(0)]], repeat=2):
        product = session.distribute_tensor(left, mesh, a) @ session.distribute_tensor(right, mesh, b)
        np.testing.assert_array_equal(product.full_tensor(), left @ right)


def test_chains_reuse_memory_that_peers_of_both_kinds_read(session, mesh, rng):
    values = values_of(rng, (256, 512))
    x = session.distribute_tensor(values, mesh, [S(0), S(1)])
    for step in range(60):
        x = (x.redistribute([[S(1), S(0)], [R(), S(1)], [S(0), S(1)], [S(1), R()]][step % 4]) + 1)
    np.testing.assert_array_equal(x.full_tensor(), values + 60)


@pytest.mark.parametrize("transport", ["shm+ucx", "shm+tls"])
@in_time.tried_again
def test_a_killed_worker_on_the_other_host_is_named_and_the_rest_goes_on(hosts, rng, transport):
    with two_hosts.Cluster(hosts, memory="160MiB", transport=transport) as cluster, ts.connect(cluster.address) as session:
        mesh = session.init_device_mesh((2, 2), mesh_dim_names=("host", "worker"))
        values = values_of(rng, (2048, 1024))  # 16 MiB: exchanges that take a while
        kept = session.distribute_tensor(values, mesh, [R(), S(0)])
        whole_on_one = session.distribute_tensor(values, session.init_device_mesh((2,), workers=[0, 1]), [S(0)])
        x = session.distribute_tensor(values, mesh, [S(0), S(0)]).wait()
        turned = [x.redistribute([S(1), S(1)]) for _ in range(8)]
        cluster.workers[3].send_signal(signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(ts.UnavailableError, match="worker 3"):
            for one in turned:
                one.wait()
            kept.redistribute([S(0), S(1)]).wait()
        in_time.check(time.monotonic() - started, 10)
        # Ops that don't need it go on, over the wire too.
        np.testing.assert_array_equal(whole_on_one.full_tensor(), values)
        rest = session.init_device_mesh((3,), workers=[0, 1, 2])
        again = session.distribute_tensor(values, rest, [S(0)]).redistribute([S(1)])
        np.testing.assert_array_equal((again + 1).full_tensor(), values + 1)


@pytest.mark.parametrize("transport", ["shm+ucx", "shm+tls"])
def test_a_transport_that_breaks_fails_what_is_under_way_and_the_next_works(hosts, rng, transport):
    with two_hosts.Cluster(hosts, memory="160MiB", transport=transport) as cluster, ts.connect(cluster.address) as session:
        mesh = session.init_device_mesh((2, 2), mesh_dim_names=("host", "worker"))
        values = values_of(rng, (2048, 1024))  # 16 MiB: exchanges that take a while
        x = session.distribute_tensor(values, mesh, [S(0), S(0)]).wait()
        failed = rounds = 0
        while rounds < 4 or (failed == 0 and rounds < 40):  # what is under way may have ended before they break
            rounds += 1
            turned = [x.redistribute([S(1), S(1)]) for _ in range(4)]
            if not hosts.break_connections():
                pytest.skip("this kernel can't end the connections of others (ss --kill)")
            for one in turned:
                try:
                    one.wait(timeout=60)
                except ts.UnavailableError as broken:
                    failed += 1
                    assert "redistribute" in str(broken) and "worker" in str(broken) and "connection" in str(broken), broken
            np.testing.assert_array_equal(x.redistribute([S(1), S(1)]).full_tensor(), values)
        assert failed > 0
        assert all(worker["state"] == "alive" for worker in session.status()["workers"])


def first_that_works(make, seconds=60):
    """A link that is up again is found by the next attempt to connect."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return make().wait()
        except ts.UnavailableError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("transport", ["shm+ucx", "shm+tls"])
@in_time.tried_again
def test_a_link_that_is_down_fails_what_is_under_way_and_the_next_works(rng, transport):
    # On hosts of its own: the connections of every cluster on them break.
    with two_hosts.TwoHosts() as hosts, \
            two_hosts.Cluster(hosts, memory="160MiB", worker_options=["--message-stall-timeout", 1], transport=transport) as cluster, \
            ts.connect(cluster.address) as session, ts.connect(cluster.address) as other:
        values = values_of(rng, (2048, 1024))  # 16 MiB: exchanges that take a while
        x = session.distribute_tensor(values, session.init_device_mesh((2, 2)), [S(0), S(0)]).wait()
        of_one_host = other.distribute_tensor(values, other.init_device_mesh((2,), workers=[0, 1]), [S(0)]).wait()
        turn = lambda: x.redistribute([S(1), S(1)])  # noqa: E731
        turned = [turn() for _ in range(8)]
        with hosts.link_down():
            started = time.monotonic()
            with pytest.raises(ts.UnavailableError, match="redistribute.*worker [0-3]: the connection broke"):
                for one in turned:
                    one.wait(timeout=60)
            # The workers of one host are held as long as what is queued waits for a connection, and then not at all.
            np.testing.assert_array_equal(of_one_host.redistribute([S(1)]).full_tensor(), values)
            in_time.check(time.monotonic() - started, 20)
            started, unreachable = time.monotonic(), [turn() for _ in range(8)]
            np.testing.assert_array_equal(of_one_host.redistribute([S(1)]).full_tensor(), values)
            in_time.check(time.monotonic() - started, 5)
            for one in unreachable:
                with pytest.raises(ts.UnavailableError, match="worker [0-3]"):
                    one.wait(timeout=60)
        np.testing.assert_array_equal(first_that_works(turn).full_tensor(), values)
        np.testing.assert_array_equal(turn().full_tensor(), values)
        assert all(worker["state"] == "alive" for worker in session.status()["workers"])


def test_several_tensors_move_together(session, mesh, rng):
    pair = session.init_device_mesh((2,), workers=[3, 0])
    values = [values_of(rng, shape) for shape in ((7, 5), (6, 4), (5, 9))]
    tensors = [tensor_of(session, on, v, placements) for on, v, placements in
               zip((mesh, pair, mesh), values, ([P(), S(0)], [P()], [S(1), S(0)]))]
    for destination in ([R(), R()], [S(1), R()]):
        plan = ts.explain(ts.redistribute, tensors, mesh, destination)
        with session.comm_debug() as comm:
            results = ts.redistribute(tensors, mesh, destination)
        assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
        for result, v in zip(results, values):
            np.testing.assert_array_equal(result.full_tensor(), v, str(plan))
