"""A worker is lost: what had copies elsewhere goes on from there, what had none fails by name."""

import os
import signal
import threading

import numpy as np
import pytest

import tessera as ts
from test_faults import wait_until

S, R = ts.Shard, ts.Replicate


def kill(cluster, session, *workers):
    for worker in workers:
        os.kill(cluster.worker_pids[worker], signal.SIGKILL)
    wait_until(lambda: all(session.status()["workers"][worker]["state"] == "dead" for worker in workers))


def test_a_replicated_tensor_outlives_a_worker(new_cluster):
    cluster = new_cluster(workers=3)
    session = cluster.connect()
    mesh = session.init_device_mesh((3,))
    a = np.arange(12.0).reshape(4, 3)
    x = session.distribute_tensor(a, mesh, [R()]).wait()
    rows = session.distribute_tensor(a, mesh, [S(0)]).wait()
    kill(cluster, session, 1)
    assert x.device_mesh.workers == (0, 2) and x.placements == (R(),)
    assert mesh.lost == (1,) and x.device_mesh.lost == () and repr(mesh) == "mesh(3) (lost: 1)"
    np.testing.assert_array_equal(x.full_tensor(), a)
    np.testing.assert_array_equal(x.to_local(1), a)
    np.testing.assert_array_equal((x + 1).full_tensor(), a + 1)
    np.testing.assert_array_equal((x @ x.T).sum(0).full_tensor(), (a @ a.T).sum(0))
    np.testing.assert_array_equal(x.redistribute([S(0)]).full_tensor(), a)
    other = session.init_device_mesh((2,), workers=[2, 0])
    np.testing.assert_array_equal(x.redistribute(other, [S(1)]).full_tensor(), a)
    np.testing.assert_array_equal((x + ts.ones(3)).full_tensor(), a + 1)    # of those that are there
    x += 1
    x[0] = 7
    np.testing.assert_array_equal(x.full_tensor(), np.vstack([np.full(3, 7), a[1:] + 1]))
    with pytest.raises(ts.UnavailableError, match=r"worker 1 was lost .*with it went \[2:4,0:3\] of f64\[4,3\]"):
        rows.full_tensor()
    with pytest.raises(ts.UnavailableError, match="worker 1"):
        x.redistribute(mesh, [R()]).wait()


@pytest.mark.parametrize("placements", [[R(), S(0)], [R(), S(1)], [R(), ts.Partial()], [R(), R()]], ids=str)
@pytest.mark.parametrize("lost", [(0,), (3,), (1, 2)], ids=str)
def test_copies_along_one_mesh_dim_are_enough(new_cluster, placements, lost):
    cluster = new_cluster(workers=4)
    session = cluster.connect()
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    a = np.arange(30.0).reshape(6, 5)
    if placements[1] == ts.Partial():
        x = session.from_local([[a, 2 * a], [a, 2 * a]], mesh, placements)
        a = 3 * a
    else:
        x = session.distribute_tensor(a, mesh, placements)
    x.wait()
    kill(cluster, session, *lost)
    np.testing.assert_array_equal((x * 2).full_tensor(), a * 2)
    np.testing.assert_array_equal((x @ x.T).full_tensor(), a @ a.T)
    np.testing.assert_array_equal(x.sum(0).full_tensor(), a.sum(0))
    np.testing.assert_allclose(ts.softmax(x, axis=0).full_tensor().sum(0), np.ones(5))
    assert not set(x.device_mesh.workers) & set(lost)


# Ops that work on each worker alone lose nothing, wherever they are: asked for, queued, or running.
@pytest.mark.parametrize("seed", range(4))
def test_work_on_copies_goes_on_while_a_worker_dies(new_cluster, seed):
    cluster = new_cluster(workers=3)
    session = cluster.connect()
    a = np.arange(4096.0)
    x = session.distribute_tensor(a, session.init_device_mesh((3,)), [R()]).wait()
    y = x + 0
    killer = threading.Timer(0.01 * (seed + 1), os.kill, (cluster.worker_pids[seed % 3], signal.SIGKILL))
    killer.start()
    for _ in range(3000):
        x += 1
        y = y + 2
    killer.join()
    wait_until(lambda: session.status()["workers"][seed % 3]["state"] == "dead")
    for _ in range(10):
        x += 1
        y = y + 2
    np.testing.assert_array_equal(x.full_tensor(), a + 3010)
    np.testing.assert_array_equal(y.full_tensor(), a + 6020)


def test_a_read_that_is_under_way_goes_on_from_another_copy(new_cluster):
    cluster = new_cluster(workers=2, memory="256MiB")
    session = cluster.connect()
    a = np.arange(16 << 20, dtype="f8")
    x = session.distribute_tensor(a, session.init_device_mesh((2,)), [R()]).wait()
    os.kill(cluster.worker_pids[0], signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (cluster.worker_pids[0], signal.SIGKILL)).start()
    np.testing.assert_array_equal(x.full_tensor(), a)
    out = np.empty_like(a)
    x.full_tensor(out=out)
    np.testing.assert_array_equal(out, a)


def test_a_small_read_that_is_under_way_goes_on_from_another_copy(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [R()]).wait()
    os.kill(cluster.worker_pids[0], signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (cluster.worker_pids[0], signal.SIGKILL)).start()
    np.testing.assert_array_equal(x.full_tensor(), np.arange(8.0))


def test_the_last_copy_is_named_when_it_goes(new_cluster):
    cluster = new_cluster(workers=3)
    session = cluster.connect()
    x = session.distribute_tensor(np.arange(3.0), session.init_device_mesh((3,)), [R()]).wait()
    kill(cluster, session, 0, 2)
    np.testing.assert_array_equal(x.full_tensor(), np.arange(3.0))
    kill(cluster, session, 1)
    with pytest.raises(ts.UnavailableError, match=r"worker 1 was lost .*with it went \[0:3\]"):
        x.full_tensor()
