"""Sessions: who may have one, see one and end one, how long a wait lasts, and where the default mesh is."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import tessera as ts
from test_cli import TESSERA, tessera
from waiting import wait_until

S, R, P = ts.Shard, ts.Replicate, ts.Partial


# ---- who sees and ends what -------------------------------------------------------------------------------------------

def test_a_session_sees_itself_and_how_many_there_are(new_cluster):
    cluster = new_cluster(workers=1)
    mine, other = cluster.connect(), cluster.connect()
    x = ts.ones((8,), device_mesh=other.default_mesh).wait()
    status = mine.status()
    assert [one["id"] for one in status["sessions"]] == [mine.id]
    assert (status["session_count"], status["tensor_count"]) == (2, 1)
    with ts.connect(cluster.admin_address) as admin:
        seen = {one["id"]: one for one in admin.status()["sessions"]}
    assert set(seen) == {mine.id, other.id, admin.id} and seen[other.id]["bytes"] >= x.nbytes


def test_an_admin_closes_a_session_and_nobody_else_does(new_cluster):
    cluster = new_cluster(workers=1)
    session, other = cluster.connect(), cluster.connect()
    x = ts.ones((1000,), device_mesh=session.default_mesh).wait()
    used = lambda: other.status()["workers"][0]["used_bytes"]
    assert used() > 0
    refused = tessera("close", str(session.id), "--address", cluster.address)
    assert refused.returncode == 1 and "admin" in refused.stderr
    assert float(x.sum()) == 1000
    closed = tessera("close", str(session.id), "--address", cluster.admin_address)
    assert closed.returncode == 0, closed.stderr
    wait_until(lambda: not session._open)
    with pytest.raises(ts.CancelledError, match="admin"):
        x.wait()
    wait_until(lambda: used() == 0)
    absent = tessera("close", "999", "--address", cluster.admin_address)
    assert absent.returncode == 1 and "session 999 is not here" in absent.stderr


def test_an_admin_ends_a_worker_and_nobody_else_does(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    mesh = session.init_device_mesh((2,))
    rows, copies = (ts.full((8,), 3.0, device_mesh=mesh, placements=[p]).wait() for p in (ts.Shard(0), ts.Replicate()))
    refused = tessera("kill-worker", "1", "--address", cluster.address)
    assert refused.returncode == 1 and "admin" in refused.stderr
    with pytest.raises(ts.PermissionDeniedError, match="kill-worker: worker 1: an admin's token alone may do that"):
        session.kill_worker(1)
    assert float(rows.sum()) == 24
    ended = tessera("kill-worker", "1", "--reason", "its\nfan broke", "--address", cluster.admin_address)
    assert ended.returncode == 0 and "worker 1 is ended" in ended.stdout, ended.stderr
    wait_until(lambda: session.status()["workers"][1]["state"] == "dead")
    with pytest.raises(ts.UnavailableError, match=r"worker 1 was lost \(an admin ended it: its\\nfan broke\)"):
        rows.wait()
    assert float(copies.sum()) == 24
    with ts.connect(cluster.admin_address) as admin:
        for absent in (1, 7, -1):
            with pytest.raises(ts.NotFoundError, match=f"kill-worker: worker {absent} is not here"):
                admin.kill_worker(absent)
        with pytest.raises(ts.InvalidArgumentError, match="reason is 3"):
            admin.kill_worker(0, 3)
        admin.kill_worker(0)
        wait_until(lambda: admin.status()["workers"][0]["state"] == "dead")


HOLD_SESSIONS = """
import sys, tessera as ts
held = []
try:
    for _ in range(2000):
        held.append(ts.connect(sys.argv[1], lease=60))
except ts.ResourceExhaustedError as error:
    print(len(held), error, flush=True)
sys.stdin.read()
"""


def test_sessions_that_take_every_place_leave_an_admin_one(new_cluster):
    cluster = new_cluster(workers=1, coordinator_flags=["--max-sessions=20"])
    holder = subprocess.Popen([sys.executable, "-c", HOLD_SESSIONS, cluster.address], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    try:
        line = holder.stdout.readline()
        assert "max_sessions_per_uid is 15" in line
        with pytest.raises(ts.ResourceExhaustedError, match=f"15 sessions of uid {os.getuid()} are open"):
            cluster.connect()
        status = json.loads(tessera("status", "--json", "--address", cluster.admin_address).stdout)
        held = [one["id"] for one in status["sessions"] if "python" in one["client"]]
        assert len(held) == 15
        assert tessera("close", str(held[0]), "--address", cluster.admin_address).returncode == 0
        cluster.connect().close()
    finally:
        holder.kill()
        holder.wait()


def test_a_lease_is_bounded(cluster):
    for lease in (86_400, float("inf")):
        with pytest.raises(ts.InvalidArgumentError, match="max_session_lease is 3600 s"):
            cluster.connect(lease=lease)


def test_what_a_session_to_resume_lacks_is_not_told(cluster):
    with cluster.connect(lease=1) as session:
        number, secret, event = session.resume_text.split(":")
        for wrong in (f"{number}:{int(secret) ^ 1}:{event}", f"{int(number) + 1000}:{secret}:{event}"):
            with pytest.raises(ts.NotFoundError, match="with this secret is here"):
                ts.connect(cluster.address, resume=wrong)


def test_a_wrong_token_leaves_a_line_in_the_log(new_cluster):
    cluster = new_cluster(workers=1)
    for number in (1, 2):
        with pytest.raises(ts.UnauthenticatedError):
            cluster.connect(token="wrong")
        wait_until(lambda: f"pid {os.getpid()}: connect: the token is wrong (refusal {number})" in cluster.log_tail())


def test_what_a_client_asks_for_in_vain_is_counted(new_cluster):
    cluster = new_cluster(workers=1)
    with pytest.raises(ts.NotFoundError):
        ts.connect(cluster.address, resume="1000:1:1")
    wait_until(lambda: "(refusal 1)" in cluster.log_tail())


def test_names_are_shown_as_text(new_cluster):
    import _tessera
    cluster = new_cluster(workers=1)
    address, token = cluster.address.split("#token=")
    forged = "x\x1b[2J\n9  alive  1"
    session = _tessera.Session._connect(address, token, "", "", 10.0, -1.0, 60.0, forged, "", "", "")
    shown = tessera("status", "--address", cluster.admin_address).stdout
    assert "\x1b" not in shown and not any(line.startswith("9  alive") for line in shown.splitlines())
    assert "x\\x1b[2J\\n9  alive  1" in shown
    json.loads(tessera("status", "--json", "--address", cluster.admin_address).stdout)
    session._close()


def test_guests_lock_nobody_out(new_cluster):
    cluster = new_cluster(workers=1)
    path = cluster.address.partition("#")[0].removeprefix("unix:")
    held = []
    try:
        for _ in range(1100):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(path)
        with cluster.connect() as session:
            assert session.worker_count == 1
        assert "max_waiting_guests" in cluster.log_tail()
    finally:
        for one in held:
            one.close()


def test_a_guest_may_send_little(new_cluster):
    cluster = new_cluster(workers=1)
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(60)
    raw.connect(cluster.address.partition("#")[0].removeprefix("unix:"))
    raw.sendall((0).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little"))  # a message of 8 MiB is to come
    told = b""
    while more := raw.recv(1 << 10):
        told += more
    assert b"a guest may still send 65536" in told


# ---- how long a wait lasts --------------------------------------------------------------------------------------------

def test_an_op_that_takes_long_is_no_stall(new_cluster):
    cluster = new_cluster(workers=1, memory="2GiB")     # the largest two, beside those before them
    session = cluster.connect(stall_timeout=2)      # which a busy machine's heartbeats keep
    # Products twice as long each, until one is longer than the time-out; those who wait for it read nothing that runs meanwhile.
    for size in (2580, 3251, 4096, 5161, 6502, 8192):
        large = ts.ones((size, size), device_mesh=session.default_mesh, dtype=ts.float64).wait()
        start = time.monotonic()
        product = large @ large
        product.wait()
        took = time.monotonic() - start
        assert float(product[0, 0]) == size
        if took > 2.4:
            return
    raise AssertionError(f"{took} s: it shows nothing")


def test_a_wait_with_a_timeout_waits_for_it(new_cluster):
    cluster = new_cluster(workers=2, coordinator_flags=["--worker-timeout=60"])
    session = cluster.connect(stall_timeout=0.5)
    x = ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)]).wait(timeout=60)
    os.kill(cluster.worker_pids[1], signal.SIGSTOP)
    try:
        y = x + x
        start = time.monotonic()
        with pytest.raises(ts.DeadlineExceededError, match=r"no progress for 0.5 s.*stall_timeout.*TESSERA_STALL_TIMEOUT"):
            y.wait()
        with pytest.raises((TimeoutError, ts.DeadlineExceededError), match="not done after 1.5 s"):
            y.wait(timeout=1.5)
        assert time.monotonic() - start > 1.9
    finally:
        os.kill(cluster.worker_pids[1], signal.SIGCONT)


def test_a_stall_timeout_of_the_environment_is_a_number(cluster, monkeypatch):
    monkeypatch.setenv("TESSERA_STALL_TIMEOUT", "soon")
    with pytest.raises(ts.InvalidArgumentError, match="TESSERA_STALL_TIMEOUT"):
        cluster.connect()
    monkeypatch.setenv("TESSERA_STALL_TIMEOUT", "30")
    cluster.connect().close()


# ---- where new tensors are --------------------------------------------------------------------------------------------

def test_the_default_mesh_is_over_the_workers_that_are_there(new_cluster):
    cluster = new_cluster(workers=3)
    session = cluster.connect()
    assert session.default_mesh.shape == (3,) and session.worker_count == 3
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    wait_until(lambda: session.worker_count == 2)
    mesh = session.default_mesh
    assert mesh.shape == (2,) and "workers=0,2" in str(mesh).replace(" ", "")
    np.testing.assert_array_equal(ts.arange(10, device_mesh=mesh, placements=[S(0)]).full_tensor(), np.arange(10))
    np.testing.assert_array_equal(ts.ones((4,)).full_tensor(), np.ones(4))
    assert session.init_device_mesh((2,)).shape == (2,)
    with pytest.raises(ts.InvalidArgumentError, match="the cluster has 2 workers that are there"):
        session.init_device_mesh((3,))
    with cluster.connect() as later:
        assert later.default_mesh.shape == (2,)


def test_without_its_coordinator_a_session_says_so(new_cluster):
    cluster = new_cluster(workers=1)
    session = cluster.connect()
    os.kill(cluster.coordinator_pid, signal.SIGKILL)
    wait_until(lambda: not session._open)
    with pytest.raises(ts.UnavailableError, match=f"session {session.id} at unix:.*coordinator was lost"):
        ts.ones(3)
    session.close()
    with pytest.raises(ts.FailedPreconditionError, match="no session is open"):
        ts.ones(3)


# ---- a coordinator's journal ------------------------------------------------------------------------------------------

def test_a_journal_that_can_not_be_written_is_told(tmp_path):
    coordinator = os.path.join(os.path.dirname(TESSERA), "..", "..", "server", "coordinator", "tessera-coordinator")
    out = subprocess.run([coordinator, f"--listen=unix:{tmp_path}/c.sock", "--journal=/dev/full"], text=True, timeout=120,
                         capture_output=True, env={**os.environ, "TESSERA_TOKEN": "t", "TESSERA_JOIN_TOKEN": "j"})
    assert out.returncode == 1 and out.stderr.startswith("tessera-coordinator: journal: can't write"), out.stderr
