"""A worker whose data address a client doesn't reach: the bytes go by way of a worker that it does reach."""

import os
import random
import socket
import sys

import numpy as np
import pytest
import tessera as ts

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from tls_cluster import CutProxy, TlsCluster, held_port  # noqa: E402


def refusing():
    with socket.create_server(("localhost", 0)) as probe:
        return f"localhost:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def silent():
    """Takes connections, and says nothing."""
    with socket.create_server(("localhost", 0)) as server:
        yield f"localhost:{server.getsockname()[1]}"


@pytest.fixture(scope="module", params=["none", "refuses", "silent"])
def half_hidden(request, silent):
    """Worker 0 is reached through a proxy, worker 1 is not reached."""
    with TlsCluster(workers=1, proxied=True) as cluster:
        cluster.start_worker(1, address={"none": None, "refuses": refusing(), "silent": silent}[request.param])
        cluster.wait_for_workers(2)
        yield cluster


def test_bytes_go_by_way_of_a_worker_that_is_reached(half_hidden):
    x = np.random.default_rng(3).standard_normal((1500, 1400))
    control, door = half_hidden.proxies
    with half_hidden.connect() as session:
        for workers in ([0, 1], [1]):
            mesh = session.init_device_mesh((len(workers),), workers=workers)
            for placements in ([ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]):
                before = control.passed, door.passed
                d = session.distribute_tensor(x, mesh, placements).wait()
                np.testing.assert_array_equal(d.full_tensor(), x)
                assert door.passed - before[1] > 2 * x.nbytes
                assert control.passed - before[0] < 100_000   # none pass through the coordinator


def test_relayed_transfers_go_on_where_they_were(half_hidden):
    rng = random.Random(11)
    x = np.random.default_rng(4).standard_normal((1500, 2100))
    door = half_hidden.proxies[1]
    with half_hidden.connect() as session:
        mesh = session.init_device_mesh((2,))
        cuts = door.cuts
        for placements in ([ts.Shard(0)], [ts.Shard(1)]):
            door.cut_after(rng.randrange(1, 20_000_000))
            d = session.distribute_tensor(x, mesh, placements).wait()
            door.cut_after(rng.randrange(1, 20_000_000))
            np.testing.assert_array_equal(d.full_tensor(), x)
        assert door.cuts - cuts == 4


@pytest.mark.parametrize("after", [1, 100, 2000, 5000])
def test_a_line_that_breaks_while_a_worker_is_first_reached_is_made_again(half_hidden, after):
    x = np.arange(20_000.0).reshape(100, 200)
    door = half_hidden.proxies[1]
    with half_hidden.connect() as session:
        cuts = door.cuts
        door.cut_after(after)
        d = session.distribute_tensor(x, session.init_device_mesh((2,)), [ts.Shard(0)]).wait()
        np.testing.assert_array_equal(d.full_tensor(), x)
        assert door.cuts == cuts + 1


def test_bytes_of_all_workers_go_by_way_of_a_door_that_is_named():
    """As by `kubectl port-forward`: no worker's own address answers here, and one of them is reached by another one."""
    x = np.random.default_rng(5).standard_normal((900, 1400))
    with TlsCluster(workers=0) as cluster, held_port() as held, socket.create_server(("localhost", 0)) as never_asked:
        never_asked.setblocking(False)
        cluster.start_worker(0, address=f"localhost:{never_asked.getsockname()[1]}")
        cluster.start_worker(1, address=refusing(), data_port=held.getsockname()[1])
        cluster.wait_for_workers(2)
        door = CutProxy(held.getsockname()[1])
        cluster.proxies.append(door)
        with cluster.connect(door=f"tls://localhost:{door.port}") as session:
            for placements in ([ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]):
                d = session.distribute_tensor(x, session.init_device_mesh((2,)), placements).wait()
                np.testing.assert_array_equal(d.full_tensor(), x)
            with pytest.raises(BlockingIOError):    # nobody connects to a worker's own address
                never_asked.accept()
            door.cut_after(3_000_000)
            np.testing.assert_array_equal(d.redistribute([ts.Shard(0)]).full_tensor(), x)
            d = session.distribute_tensor(x, session.init_device_mesh((2,)), [ts.Shard(0)]).wait()
            assert door.cuts == 1
        gone = refusing()
        with cluster.connect(door=f"tls://{gone}") as session, pytest.raises(ts.UnavailableError, match=f"by way of tls://{gone}"):
            session.distribute_tensor(x, session.init_device_mesh((1,)), [ts.Shard(0)]).wait()
        for door in ("unix:/tmp/socket", "localhost:7440"):
            with pytest.raises(ts.InvalidArgumentError, match="connect: door"):
                cluster.connect(door=door)


def test_files_of_a_worker_that_is_not_reached_are_loaded_and_saved(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000.0).reshape(100, 10))
    with TlsCluster(workers=0) as cluster:
        cluster.start_worker(0, flags=[f"--files={tmp_path}"])
        cluster.start_worker(1, address=None, flags=[f"--files={tmp_path}"])
        cluster.wait_for_workers(2)
        with cluster.connect() as session:
            mesh = session.init_device_mesh((1,), workers=[1])
            x = ts.load(tmp_path / "x.npy", mesh, [ts.Shard(0)])
            assert float(x.sum()) == 499_500
            ts.save(tmp_path / "y.npy", x + 1)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.arange(1000.0).reshape(100, 10) + 1)


def test_workers_that_no_client_reaches_are_named():
    with TlsCluster(workers=0) as cluster:
        cluster.start_worker(0, address=None)
        cluster.wait_for_workers(1)
        for path in cluster.folder.glob("worker-*.sock"):   # which a client of another machine doesn't have
            path.rename(path.with_suffix(".away"))
        with cluster.connect() as session:
            with pytest.raises(ts.FailedPreconditionError, match=r"worker 0: it is on another host and has no address for clients of others"):
                session.distribute_tensor(np.ones(1000)).wait(timeout=60)
