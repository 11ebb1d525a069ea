"""Faults that the servers must survive: what fails is told and named, memory comes back, everything else goes on."""

import os
import resource
import signal
import socket
import struct
import time

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def test_status_is_given_while_refused_tensors_are_held(session, mesh4):
    kept = ts.ones((8,), device_mesh=mesh4)
    refused = ts.zeros((1 << 14, 1 << 14), device_mesh=mesh4, placements=[R()])
    with pytest.raises(ts.ResourceExhaustedError):
        refused.wait()
    assert [one.shape for one in session.tensors()] == [kept.shape]


def sockets_of(cluster):
    folder = os.path.dirname(cluster.address.partition("#")[0].removeprefix("unix:"))
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".sock")]


def connect_raw(path):
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(5)
    raw.connect(path)
    return raw


def wait_until(true, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def test_garbage_leaves_a_line_in_the_log(new_cluster):
    cluster = new_cluster(workers=1)
    for path in sockets_of(cluster):
        with connect_raw(path) as raw:
            raw.sendall(b"\xff" * 64)
    wait_until(lambda: "ended without a session" in cluster.log_tail(-1))
    wait_until(lambda: "ended without a call" in cluster.log_tail(0))


def test_running_out_of_descriptors_ends_no_process(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    x = ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)])
    x.redistribute([S(1)]).wait()  # the workers have mapped each other
    pids = [cluster.coordinator_pid, *cluster.worker_pids]
    for pid in pids:
        used = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 8, used + 8))
    held = [connect_raw(path) for path in sockets_of(cluster) for _ in range(30)]
    time.sleep(0.3)
    assert float(x.redistribute([S(1)]).sum()) == 64
    for raw in held:
        raw.close()
    big = np.arange(100_000.0)  # through the workers' sockets again
    np.testing.assert_array_equal(session.distribute_tensor(big, session.default_mesh, [S(0)]).full_tensor(), big)
    with cluster.connect() as another:
        assert len(another.status()["sessions"]) == 2
    assert [os.path.exists(f"/proc/{pid}") for pid in pids] == [True] * 3


def bootstrap(question):
    """Cap'n Proto's first message, framed: five words."""
    return struct.pack("<IIIIHHIIIIIQ", 0, 5, 0, 0x00010001, 8, 0, 0, 0, 0x00010001, question, 0, 0)


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_without_reading_does_not_fill_memory(new_cluster):
    cluster = new_cluster(workers=1)
    session = cluster.connect()
    for path, pid in zip(sockets_of(cluster), [cluster.coordinator_pid, *cluster.worker_pids]):
        before = resident_bytes(pid)
        with connect_raw(path) as raw:
            raw.settimeout(0.5)
            with pytest.raises(TimeoutError):
                for question in range(0, 100_000, 1000):
                    raw.sendall(b"".join(bootstrap(q) for q in range(question, question + 1000)))
            assert resident_bytes(pid) - before < 16 << 20
    assert float(ts.ones((4,), device_mesh=session.default_mesh).sum()) == 4


def test_what_a_killed_worker_had_nothing_of_can_be_fetched(new_cluster):
    cluster = new_cluster(workers=4)
    session = cluster.connect()
    mesh = session.init_device_mesh((4,))
    small, large = np.arange(6.0).reshape(3, 2), np.arange(30_000.0).reshape(3, 10_000)
    kept = [(session.distribute_tensor(a, mesh, [S(0)]).wait(), a) for a in (small, large)]  # workers 0, 1 and 2
    os.kill(cluster.worker_pids[3], signal.SIGKILL)
    wait_until(lambda: session.status()["workers"][3]["state"] == "dead")
    for tensor, value in kept:
        np.testing.assert_array_equal(tensor.full_tensor(), value)
        np.testing.assert_array_equal(tensor.to_local(1), value[1:2])
