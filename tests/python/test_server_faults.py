"""Faults that the servers must survive: what fails is told and named, memory comes back, everything else goes on."""

import contextlib
import os
import pathlib
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE, IS_EMULATED
from waiting import wait_until

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


def interrupt_soon():
    """Late enough for the wait that follows to have begun, and in the block that expects it should it not have."""
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()


def connect_raw(path):
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(60)
    raw.connect(path)
    return raw


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
    assert float(x.redistribute([S(1)]).sum()) == 64  # the workers have mapped each other, and have what they keep
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
        assert another.status()["session_count"] == 2
    assert [os.path.exists(f"/proc/{pid}") for pid in pids] == [True] * 3


BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))


@contextlib.contextmanager
def workers_that_join_again(cluster, worker):
    """A function that kills the process that has the number, and starts another one; its processes end with the block."""
    address = cluster.address.partition("#")[0]
    with open(f"/proc/{cluster.worker_pids[worker]}/environ") as file:
        environment = dict(entry.split("=", 1) for entry in file.read().split("\0") if "=" in entry)
    environment["TESSERA_JOIN_TOKEN"] = cluster._raw._join_command(worker).partition("TESSERA_JOIN_TOKEN=")[2].split()[0]
    with open(f"/proc/{cluster.worker_pids[worker]}/cmdline") as file:
        kept = [given for given in file.read().split("\0") if given.startswith(("--transport=", "--device="))]
    command = [BINARIES / "server/worker/tessera-worker", "--coordinator", address, "--index", str(worker), "--memory", "64MiB",
               "--socket-dir", os.path.dirname(address.removeprefix("unix:")), *kept]
    pids, again = [cluster.worker_pids[worker]], []
    with cluster.connect() as watching:
        state = lambda: watching.status()["workers"][worker]["state"]  # noqa: E731

        def rejoin(when_dead=lambda: True):
            os.kill(pids[-1], signal.SIGKILL)
            wait_until(lambda: state() == "dead" and when_dead())
            again.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
            pids.append(again[-1].pid)
            wait_until(lambda: state() == "alive")

        try:
            yield rejoin
        finally:
            for process in again:
                process.kill()
                process.wait()


@pytest.mark.whole_system
def test_a_session_reaches_a_worker_that_joined_again(new_cluster):
    cluster = new_cluster(workers=2, memory="64MiB")
    session = cluster.connect(stall_timeout=10)
    values = np.arange(8.0)
    session.distribute_tensor(values, session.default_mesh, [S(0)]).wait()
    with workers_that_join_again(cluster, 1) as rejoin:
        rejoin()
        x = session.distribute_tensor(values, session.default_mesh, [S(0)])
        np.testing.assert_array_equal((x + 1).full_tensor(), values + 1)


@pytest.mark.whole_system
def test_a_coordinator_that_was_held_up_kills_nobody(new_cluster):
    cluster = new_cluster(workers=2, coordinator_flags=["--worker-timeout", "3"])
    session = cluster.connect()
    x = ts.ones((4,), device_mesh=session.default_mesh).wait()
    os.kill(cluster.coordinator_pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(cluster.coordinator_pid, signal.SIGCONT)
    assert float((x + 1).sum()) == 8
    assert [worker["state"] for worker in session.status()["workers"]] == ["alive", "alive"]


@pytest.mark.whole_system
def test_a_stopped_worker_is_killed_and_what_waits_for_it_fails(new_cluster):
    cluster = new_cluster(workers=2, coordinator_flags=["--worker-timeout", "3"])    # the other one may be late
    session = cluster.connect()
    x = ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    os.kill(cluster.worker_pids[1], signal.SIGSTOP)
    with pytest.raises(ts.UnavailableError, match=r"worker 1 was lost \(silent for 3 s\)"):
        x.redistribute([S(1)]).wait()
    assert float(ts.ones((8,), device_mesh=session.init_device_mesh((1,))).sum()) == 8


@contextlib.contextmanager
def started(*command, **options):
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(subprocess.run(["unshare", "-pf", "true"], capture_output=True).returncode != 0, reason="no PID namespaces here")
def test_a_worker_of_another_pid_namespace_has_no_number_here(tmp_path):
    address = f"unix:{tmp_path}/socket"
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    coordinator = ["unshare", "-pf", "--kill-child", BINARIES / "server/coordinator/tessera-coordinator", "--listen", address]
    with started(*coordinator, "--worker-timeout", "3", env=environment):
        wait_until(lambda: os.path.exists(f"{tmp_path}/socket"))
        worker = [BINARIES / "server/worker/tessera-worker", "--coordinator", address, "--memory", "1MiB", "--socket-dir", tmp_path]
        with ts.connect(address, token="a") as session, started(*worker, env=environment) as process:
            info = lambda: (session.status()["workers"] or [{"state": "none"}])[0]  # noqa: E731
            wait_until(lambda: info()["state"] == "alive")
            assert info()["pid"] == 0
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: info()["state"] == "dead")  # nobody maps its memory
            assert process.poll() is None


def test_a_coordinator_that_is_told_to_end_ends_well(tmp_path):
    """With workers and a session there; memory that was given back is overwritten, so that whoever still uses it fails."""
    address = f"unix:{tmp_path}/socket"
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b", "MALLOC_PERTURB_": "165"}
    with contextlib.ExitStack() as processes:
        coordinator = processes.enter_context(
            started(BINARIES / "server/coordinator/tessera-coordinator", "--listen", address, env=environment))
        wait_until(lambda: os.path.exists(f"{tmp_path}/socket"))
        for _ in range(3):
            processes.enter_context(started(BINARIES / "server/worker/tessera-worker", "--coordinator", address, "--memory", "1MiB",
                                            "--socket-dir", tmp_path, env=environment))
        session = ts.connect(address, token="a")
        wait_until(lambda: [worker["state"] for worker in session.status()["workers"]] == ["alive"] * 3)
        ts.ones((6,), device_mesh=session.init_device_mesh((3,))).wait()
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(60) == 0


@pytest.mark.whole_system
def test_more_tensors_than_pending_events_may_fail_at_once(new_cluster):
    cluster = new_cluster(workers=2, memory="128MiB")
    session = cluster.connect()
    kept = ts.ones((3,), device_mesh=session.init_device_mesh((1,), workers=[0])).wait()
    one = ts.ones((1,), device_mesh=session.init_device_mesh((1,), workers=[1]))
    many = [one + i for i in range(101_000)]
    session.sync()
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    with pytest.raises(ts.UnavailableError, match="worker 1 was lost"):
        many[-1].full_tensor()
    np.testing.assert_array_equal(kept.full_tensor(), np.ones(3))


@pytest.mark.whole_system
def test_ctrl_c_cancels_what_waits_in_the_client_too(new_cluster):
    cluster = new_cluster(workers=2, memory="128MiB")
    session, admin = cluster.connect(), ts.connect(cluster.admin_address)
    y = a = ts.rand(256, 256, device_mesh=session.default_mesh, placements=[S(0)]).wait()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for _ in range(40_000):
        y = y @ a
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        y.wait()
    assert [float((a * 0 + i).max()) for i in range(3)] == [0, 1, 2]  # what comes after it is not cancelled
    wait_until(lambda: admin.status()["sessions"][0]["queued"] == 0)
    with pytest.raises(ts.CancelledError):
        y.wait()
    assert (a + 1).wait().shape == (256, 256)


def test_a_name_is_not_for_megabytes(cluster):
    import _tessera
    address, token = cluster.address.split("#token=")
    with pytest.raises(ts.InvalidArgumentError, match="client has 2000 bytes; max_name_bytes is 1024"):
        _tessera.Session._connect(address, token, "", "", 10.0, -1.0, 60.0, "x" * 2000, "", "", "")


def die_with(cluster, body):
    """A client that runs `body` with a session `s` of a long lease, and is killed; how to resume its session."""
    code = ("import os, sys, time, numpy as np, tessera as ts\ns = ts.connect(sys.argv[1], lease=60)\nm = s.default_mesh\n"
            f"{body}\nprint(s.resume_text, flush=True)\nos.kill(os.getpid(), 9)")
    ended = subprocess.run([sys.executable, "-c", code, cluster.address], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    return ended.stdout.strip()


@pytest.mark.whole_system
@pytest.mark.parametrize("body", [
    "kept = [ts.full((1,), 7.0, device_mesh=m) for _ in range(10_001)]\ns.sync()",  # more than a status lists
    "x = ts.zeros((1 << 40,), device_mesh=m, placements=[ts.Replicate()])\ntry: x.wait()\nexcept MemoryError: pass",
], ids=["many tensors", "a failed one"])
def test_a_resumed_session_gives_new_tensors_new_handles(new_cluster, body):
    cluster = new_cluster(workers=2)
    with ts.connect(cluster.address, resume=die_with(cluster, body)) as session:
        assert float(ts.full((1,), 5.0, device_mesh=session.default_mesh).sum()) == 5


@pytest.mark.whole_system
def test_a_resumed_session_has_its_tensors_until_it_drops_them(new_cluster):
    cluster = new_cluster(workers=2)
    resume = die_with(cluster, "x, y = (ts.full((1000,), v, device_mesh=m).wait() for v in (3.0, 4.0))")
    with ts.connect(cluster.address, resume=resume) as session:
        used = [w["used_bytes"] for w in session.status()["workers"]]
        for _ in range(2):      # looking at them, working with them and forgetting them frees nothing
            assert [float(x[0]) for x in session.tensors()] == [3, 4]
        x, y = session.tensors()
        x += 1
        assert float(x.sum()) == 4000 and float(session.tensors()[0].sum()) == 3000
        del x
        assert [w["used_bytes"] for w in session.status()["workers"]] == used
        session.drop(y)
        assert float(y.sum()) == 4000
        del y
        assert [float(x.sum()) for x in session.tensors()] == [3000]
        session.drop(*session.tensors())
        assert session.tensors() == [] and [w["used_bytes"] for w in session.status()["workers"]] < used


@pytest.mark.whole_system
def test_a_session_is_resumed_whose_client_died_in_an_upload(new_cluster):
    cluster = new_cluster(workers=2, coordinator_flags=["--worker-timeout", "60"])
    resume = die_with(cluster, f"good = ts.ones((4,), device_mesh=m).wait()\nos.kill({cluster.worker_pids[0]}, 19)\n"
                               "x = s.distribute_tensor(np.arange(9.), m)\ny = x + 1\ny.is_ready()\ntime.sleep(.5)")
    os.kill(cluster.worker_pids[0], signal.SIGCONT)
    with ts.connect(cluster.address, resume=resume, stall_timeout=10) as session:
        assert float(ts.ones((4,), device_mesh=session.default_mesh).sum()) == 4


@pytest.mark.whole_system
def test_a_coordinator_takes_no_path_that_is_in_use(cluster, tmp_path):
    program = BINARIES / "server/coordinator/tessera-coordinator"
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    kept = tmp_path / "kept.npy"
    kept.write_text("data")
    for path, why in ((kept, "is a file, and not a socket"), (cluster.address.partition("#")[0].removeprefix("unix:"), "another process serves")):
        ended = subprocess.run([program, "--listen", f"unix:{path}"], env=environment, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 1 and why in ended.stderr
    assert kept.read_text() == "data"
    ts.connect(cluster.address).close()


@pytest.mark.parametrize("program, flag", [
    ("coordinator", "--worker-timeout=0"), ("coordinator", "--max-outstanding=-1"), ("coordinator", "--max-connections=0"),
    ("coordinator", "--session-lease=-1"), ("coordinator", "--handshake-timeout=0"), ("worker", "--memory=0"),
    ("worker", "--index=65536"), ("worker", "--threads=-1"), ("worker", "--batch-nice=20"), ("worker", "--workers-on-host=0"), ("worker", "--message-stall-timeout=0")])
def test_a_number_out_of_range_is_wrong_usage(program, flag):
    needed = {"coordinator": "--listen=unix:/nowhere/socket", "worker": "--coordinator=unix:/nowhere/socket"}[program]
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    command = [BINARIES / f"server/{program}/tessera-{program}", needed, flag]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and flag.partition("=")[0] in ended.stderr + ended.stdout


@pytest.mark.whole_system
def test_a_client_without_descriptors_still_ends(new_cluster):
    cluster = new_cluster(workers=1)
    code = """
import os, resource, signal, sys, threading, time, tessera as ts
s = ts.connect(sys.argv[1]); pid = int(sys.argv[2]); y = ts.ones((4,), device_mesh=s.default_mesh).wait()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
os.kill(pid, signal.SIGSTOP); threading.Timer(1, os.kill, (pid, signal.SIGCONT)).start()
for _ in range(2000): y = y + 1
y.wait(); del y; s.close()
"""
    ended = subprocess.run([sys.executable, "-c", code, cluster.address, str(cluster.coordinator_pid)], timeout=120)
    assert ended.returncode == 0


@pytest.mark.whole_system
def test_a_forked_child_does_not_keep_a_cluster(tmp_path):
    code = """
import os, signal, time, tessera as ts
c = ts.local_cluster(workers=1, memory="16MiB"); print(c.coordinator_pid, flush=True)
if os.fork() == 0: os.close(1); time.sleep(20); os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: not os.path.exists(f"/proc/{int(ended.stdout)}"))


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
            # It is a guest: nobody reads on, or the connection is closed (max_guest_bytes).
            with pytest.raises((TimeoutError, BrokenPipeError, ConnectionResetError)):
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


def test_a_worker_that_dies_while_a_large_array_comes_fails_that_fetch_alone(new_cluster):
    cluster = new_cluster(workers=3, memory="256MiB")
    session = cluster.connect()
    mesh, rest = session.init_device_mesh((3,)), session.init_device_mesh((2,), workers=[0, 1])
    a = np.arange(12 << 20, dtype="f8").reshape(-1, 1024)
    x = session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()
    kept = session.distribute_tensor(a[:2048], rest, [ts.Shard(0)]).wait()
    os.kill(cluster.worker_pids[2], signal.SIGSTOP)  # the first rows come, its own don't
    threading.Timer(0.5, os.kill, (cluster.worker_pids[2], signal.SIGKILL)).start()
    with pytest.raises(ts.UnavailableError, match="worker 2"):
        x.full_tensor()
    for _ in range(2):
        np.testing.assert_array_equal(kept.full_tensor(), a[:2048])


@contextlib.contextmanager
def lost_unheard(cluster, worker):
    """Soon the worker is killed, while the coordinator hears of nothing."""
    def lose():
        os.kill(cluster.coordinator_pid, signal.SIGSTOP)
        os.kill(cluster.worker_pids[worker], signal.SIGKILL)
        time.sleep(1)
        os.kill(cluster.coordinator_pid, signal.SIGCONT)

    losing = threading.Timer(0.2, lose)
    losing.start()
    yield
    losing.join()


def test_an_upload_that_sees_first_that_a_worker_is_gone_says_what_the_coordinator_says(new_cluster):
    cluster = new_cluster(workers=2, memory="256MiB")
    session = cluster.connect()
    mesh = session.init_device_mesh((2,))
    a = np.broadcast_to(np.ones(1, np.uint8), (1 << 27, 1))     # strides of 0: read an element at a time
    with lost_unheard(cluster, 1), pytest.raises(ts.UnavailableError, match=r"worker 1 was lost \("):
        while True:
            session.distribute_tensor(a, mesh, [S(0)]).wait()


@pytest.mark.parametrize("into", ["memory of the caller", "memory of its own"])
def test_a_download_that_sees_first_that_a_worker_is_gone_says_what_went_with_it(new_cluster, into):
    cluster = new_cluster(workers=2, memory="256MiB")
    session = cluster.connect()
    x = ts.ones((1 << 28,), dtype=ts.uint8, device_mesh=session.init_device_mesh((2,)), placements=[S(0)]).wait()
    out = np.empty(x.shape, np.uint8) if into == "memory of the caller" else None
    with lost_unheard(cluster, 1), pytest.raises(ts.UnavailableError, match=r"worker 1 was lost \(.*; with it went .* of u8"):
        while True:
            x.full_tensor(out=out)


def test_a_large_fetch_can_be_interrupted(new_cluster):
    cluster = new_cluster(workers=2, memory="128MiB")
    session = cluster.connect()
    a = np.arange(4 << 20, dtype="f8").reshape(-1, 1024)
    x = session.distribute_tensor(a, session.init_device_mesh((2,)), [ts.Shard(0)]).wait()
    os.kill(cluster.worker_pids[1], signal.SIGSTOP)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt_soon()
            x.full_tensor()
    finally:
        signal.signal(signal.SIGINT, before)
        os.kill(cluster.worker_pids[1], signal.SIGCONT)
    np.testing.assert_array_equal(x.full_tensor(), a)


def arenas_of(pid, size=64 << 20):
    """Mapped ones of that many bytes, and descriptors of some. An emulated GPU's lie in files, too."""
    is_one = lambda text: "tessera-arena" in text or "emulated-gpu" in text  # noqa: E731
    with open(f"/proc/{pid}/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if is_one(line)]
    mapped = sum(int(stop, 16) - int(start, 16) == size for start, stop in ranges)
    links = [os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd")]
    return mapped, sum(is_one(os.readlink(link)) and os.stat(link).st_size == size for link in links if os.path.islink(link))


@pytest.mark.skipif(DEVICE == "cuda" and not IS_EMULATED, reason="a GPU's memory is in no file that could be counted")
def test_the_memory_of_a_worker_that_is_gone_is_given_back(new_cluster):
    cluster = new_cluster(workers=2, transport="shm")
    session = cluster.connect()
    rows = lambda: ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)])  # noqa: E731
    rows().redistribute([S(1)]).wait()
    arenas = lambda: arenas_of(cluster.worker_pids[0])  # noqa: E731
    # A peer's takes no descriptor; the emulated driver keeps one of what it exports, and one of what it maps.
    alone, together = ((1, 2), (2, 3)) if IS_EMULATED else ((1, 1), (2, 1))
    assert arenas() == together
    with workers_that_join_again(cluster, 1) as rejoin:
        for _ in range(3):
            rejoin(when_dead=lambda: arenas() == alone)
            wait_until(lambda: arenas() == together)
            assert float(rows().redistribute([S(1)]).sum()) == 64


def test_calls_that_differ_in_their_numbers_of_numbers_have_plans_of_their_own(session, mesh4):
    """No client of ours sends these: numbers that the op doesn't read, and then none of them."""
    import _tessera
    from tessera._catalog import OPS
    x = session.distribute_tensor(np.zeros(4), mesh4, [ts.Replicate()])
    for scalars in ([1, 2.5], [], [1], [True], [1]):
        try:
            _tessera.call(OPS["acos"], (x,), **({"scalars": scalars} if scalars else {})).wait()
        except ts.TesseraError:
            assert scalars
    np.testing.assert_allclose(ts.acos(x).full_tensor(), np.arccos(np.zeros(4)))
