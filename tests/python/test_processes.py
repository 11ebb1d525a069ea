"""The processes of a cluster on this host: what they listen to, know and leave behind, and who starts them again."""

import contextlib
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest

import tessera as ts
from waiting import wait_until

S, R = ts.Shard, ts.Replicate
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))
COORDINATOR = BINARIES / "server/coordinator/tessera-coordinator"
WORKER = BINARIES / "server/worker/tessera-worker"
TESSERA = BINARIES / "client/cli/tessera"


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):     # it may go between the two calls
        return False


def test_a_worker_that_finds_no_memory_for_its_proof_ends_by_a_signal(tmp_path):
    # OpenBLAS spins for ever where it may map nothing; the proof's deadline is 20 s.
    limited = lambda: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))  # noqa: E731
    for number in (signal.SIGTERM, signal.SIGINT):
        worker = subprocess.Popen([WORKER, "--coordinator=unix:/nowhere", "--memory=16MiB", "--threads=2", f"--socket-dir={tmp_path}"],
                                  env={**os.environ, "TESSERA_JOIN_TOKEN": "x"}, preexec_fn=limited, stderr=subprocess.PIPE, text=True)
        try:
            spun = lambda: sum(map(int, pathlib.Path(f"/proc/{worker.pid}/stat").read_text().split()[13:15])) > 50  # noqa: E731
            wait_until(lambda: worker.poll() is not None or spun())
            assert worker.poll() is None, worker.stderr.read()
            worker.send_signal(number)
            assert worker.wait(10) == -number
        finally:
            worker.kill()
            worker.wait()
            worker.stderr.close()


@pytest.mark.parametrize("told", ["SIGTERM", "SIGINT", "parent"])
def test_a_worker_ends_while_its_coordinator_says_nothing(tmp_path, told):
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "socket"))
        silent.listen()
        worker = subprocess.Popen([WORKER, f"--coordinator=unix:{tmp_path}/socket", "--memory=16MiB", "--threads=1",
                                   f"--socket-dir={tmp_path}", f"--exit-with-parent-fd={ours}"],
                                  env={**os.environ, "TESSERA_JOIN_TOKEN": "x"}, pass_fds=[ours])
        os.close(ours)
        try:
            taken, _ = silent.accept()
            with taken:
                assert taken.recv(1)
                if told == "parent":
                    os.close(theirs)
                else:
                    worker.send_signal(getattr(signal, told))
                assert worker.wait(10) == 0
        finally:
            worker.kill()
            worker.wait()
    if told != "parent":
        os.close(theirs)
    assert os.listdir(tmp_path) == ["socket"]


def folder_of(address):
    return os.path.dirname(address.partition("#")[0].removeprefix("unix:"))


def inet_sockets(pid):
    """The lines of /proc/net for internet sockets that the process has open."""
    inodes = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    lines = [line for table in ("tcp", "tcp6", "udp", "udp6") if os.path.exists(f"/proc/net/{table}")
             for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [line for line in lines if f"socket:[{line.split()[9]}]" in inodes]


@pytest.mark.parametrize("transport", ["shm", "ucx"])
def test_on_one_host_no_process_has_an_internet_socket(new_cluster, transport):
    cluster = new_cluster(workers=3, transport=transport)
    with cluster.connect() as session:
        values = np.arange(300_000.0).reshape(600, 500)
        x = session.distribute_tensor(values, session.default_mesh, [S(0)])
        np.testing.assert_array_equal(x.redistribute([S(1)]).full_tensor(), values)
        for pid in [cluster.coordinator_pid, *cluster.worker_pids]:
            assert inet_sockets(pid) == []


def start_worker(path, index, *options):
    environment = {**os.environ, "TESSERA_JOIN_TOKEN": "b"}
    command = [WORKER, "--coordinator", f"unix:{path}/socket", "--index", index, "--memory", "1MiB", "--socket-dir", path, *options]
    return subprocess.Popen([*map(str, command)], env=environment, stderr=subprocess.PIPE, text=True)


def test_workers_of_several_hosts_need_a_network_that_is_trusted(tmp_path):
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    coordinator = subprocess.Popen([BINARIES / "server/coordinator/tessera-coordinator", "--listen", f"unix:{tmp_path}/socket"],
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    workers = []
    try:
        coordinator.stdout.readline()
        first = start_worker(tmp_path, 0, "--transport", "ucx", "--host-id", "here")
        workers.append(first)
        with ts.connect(f"unix:{tmp_path}/socket", token="a") as session:
            wait_until(lambda: [worker["state"] for worker in session.status()["workers"]] == ["alive"])
        # 4: the coordinator refuses it, 2: the worker itself refuses its flags.
        for index, (options, status) in enumerate([(("ucx",), 4), (("shm",), 4), (("ucx", "--trusted-network"), 4), (("shm+ucx",), 2)], 1):
            workers.append(start_worker(tmp_path, index, "--host-id", "there", "--transport", *options))
            assert workers[-1].wait(60) == status
            said = workers[-1].stderr.read()
            assert "--trusted-network" in said, said
        assert first.poll() is None
    finally:
        for process in [coordinator, *workers]:
            process.kill()
            process.wait()


def started(folder, program, *arguments):
    """A server of a cluster at folder/socket."""
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    own = ["--listen", f"unix:{folder}/socket"] if program == COORDINATOR else [
        "--coordinator", f"unix:{folder}/socket", "--memory", "1MiB", "--threads", "1", "--socket-dir", folder]
    return subprocess.Popen([program, *own, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def ended(*processes):
    """With the block."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()


def test_a_worker_waits_for_its_coordinator_and_says_so_and_that_it_has_lost_it(tmp_path):
    worker = started(tmp_path, WORKER)
    with ended(worker):
        assert "no coordinator listens at" in worker.stderr.readline()
        coordinator = started(tmp_path, COORDINATOR)
        with ended(coordinator):
            coordinator.stdout.readline()
            with ts.connect(f"unix:{tmp_path}/socket", token="a") as session:
                wait_until(lambda: [one["state"] for one in session.status()["workers"]] == ["alive"])
        assert worker.wait(20) == 3
        assert worker.stderr.read() == f"tessera-worker: the coordinator at unix:{tmp_path}/socket is gone\n"


def test_a_worker_that_finds_no_coordinator_in_time_ends_by_name(tmp_path):
    worker = started(tmp_path, WORKER, "--join-timeout", "0.2")
    with ended(worker):
        assert worker.wait(20) == 3
        assert f"join: no server at unix:{tmp_path}/socket" in worker.stderr.read()


def test_words_of_a_worker_make_no_lines_of_the_coordinators_log(tmp_path):
    """The address at which others reach a worker is what it says."""
    with tempfile.TemporaryDirectory(prefix="x\n[forged] \x1b[2J", dir="/tmp") as folder:
        coordinator = started(tmp_path, COORDINATOR)
        worker = subprocess.Popen([WORKER, f"--coordinator=unix:{tmp_path}/socket", "--memory=1MiB", f"--socket-dir={folder}"],
                                  env={**os.environ, "TESSERA_JOIN_TOKEN": "b"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with ended(coordinator, worker):
            coordinator.stdout.readline()
            with ts.connect(f"unix:{tmp_path}/socket", token="a") as session:
                wait_until(lambda: [one["state"] for one in session.status()["workers"]] == ["alive"] or worker.poll() is not None)
                assert worker.poll() is None, worker.stderr.read()
            coordinator.terminate()
            said = coordinator.stderr.read()
    assert "[forged]" in said and "\x1b" not in said
    assert not [line for line in said.splitlines() if line.startswith("[forged]")]


def test_a_worker_that_is_asked_to_end_ends_with_status_0(tmp_path):
    coordinator, worker = started(tmp_path, COORDINATOR), started(tmp_path, WORKER)
    with ended(coordinator, worker):
        coordinator.stdout.readline()
        with ts.connect(f"unix:{tmp_path}/socket", token="a") as session:
            wait_until(lambda: [one["state"] for one in session.status()["workers"]] == ["alive"])
        worker.terminate()
        assert worker.wait(20) == 0


def shown_of(pid):
    """The parts of a process that the user's other processes, and its own children, see."""
    return "".join(pathlib.Path(f"/proc/{pid}/{what}").read_text() for what in ("environ", "cmdline"))


def test_the_processes_of_a_cluster_show_no_token(new_cluster, monkeypatch):
    monkeypatch.setenv("TESSERA_TOKEN", "of-another-cluster")
    cluster = new_cluster(workers=1)
    client, admin = (address.partition("#token=")[2] for address in (cluster.address, cluster.admin_address))
    join = cluster._raw._join_command(0).partition("TESSERA_JOIN_TOKEN=")[2].split()[0]
    for pid in (cluster.coordinator_pid, *cluster.worker_pids):
        shown = shown_of(pid)
        assert "PATH=" in shown
        assert not [token for token in (client, admin, join, "_TOKEN=") if token in shown]


@pytest.mark.parametrize("how", ["environment", "flag", "file"])
def test_a_server_overwrites_the_tokens_that_it_was_given(tmp_path, how):
    tokens = {"TESSERA_TOKEN": "secret-a", "TESSERA_JOIN_TOKEN": "secret-b", "TESSERA_ADMIN_TOKEN": "secret-c"}
    (tmp_path / "tokens").write_text("".join(f"{name}={value}\n" for name, value in tokens.items()))
    (tmp_path / "tokens").chmod(0o600)
    given = {"environment": [], "flag": ["--token=secret-a", "--join-token", "secret-b", "--admin-token=secret-c"],
             "file": ["--tokens", tmp_path / "tokens"]}[how]
    environment = {**os.environ, **(tokens if how == "environment" else {})}
    coordinator = subprocess.Popen([COORDINATOR, "--listen", f"unix:{tmp_path}/socket", *given], env=environment, stdout=subprocess.PIPE)
    worker = None
    try:
        coordinator.stdout.readline()
        own = [argument for argument in given if "secret-a" not in str(argument) and "secret-c" not in str(argument)]
        worker = subprocess.Popen([WORKER, "--coordinator", f"unix:{tmp_path}/socket", "--memory", "1MiB", "--socket-dir", tmp_path, *own], env=environment)
        with ts.connect(f"unix:{tmp_path}/socket", token="secret-a") as session:
            wait_until(lambda: [one["state"] for one in session.status()["workers"]] == ["alive"])
        assert "secret" not in shown_of(coordinator.pid) + shown_of(worker.pid)
    finally:
        for process in filter(None, [worker, coordinator]):
            process.kill()
            process.wait()
        coordinator.stdout.close()


SOMEBODY_ELSE = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1]); listener.listen(); print("listens", flush=True)
    other, _ = listener.accept()
    print(len(other.recv(4096)), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_no_token_is_shown_to_another_user(tmp_path, monkeypatch):
    tmp_path.chmod(0o777)
    for parent in list(tmp_path.parents)[:-2]:
        parent.chmod(0o755)
    path = f"{tmp_path}/socket"
    for trusted in (None, "65534"):
        listener = subprocess.Popen([sys.executable, "-c", SOMEBODY_ELSE, path], stdout=subprocess.PIPE, text=True)
        assert listener.stdout.readline() == "listens\n"
        if trusted:
            monkeypatch.setenv("TESSERA_SERVER_UID", trusted)
        with pytest.raises(ts.UnavailableError if trusted else ts.PermissionDeniedError) as error:
            ts.connect(f"unix:{path}", token="secret", timeout=20)
        if not trusted:
            assert "65534" in str(error.value) and "TESSERA_SERVER_UID" in str(error.value) and path in str(error.value)
        assert (listener.stdout.readline() != "0\n") == bool(trusted)
        assert listener.wait() == 0
        listener.stdout.close()
        os.unlink(path)


OWNER = """
import sys, tessera as ts
cluster = ts.local_cluster(workers=2, memory="16MiB")
print(cluster.coordinator_pid, *cluster.worker_pids, cluster.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", ["owner and coordinator", "all"])
def test_no_folder_of_sockets_stays(killed):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    *pids, address = owner.stdout.readline().split()
    pids = [int(pid) for pid in pids]
    os.kill(owner.pid, signal.SIGSTOP)  # it can't do anything about it
    for pid in pids[:1] if killed == "owner and coordinator" else pids:
        os.kill(pid, signal.SIGKILL)
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(map(runs, pids)))
    if killed == "all":
        assert os.listdir(folder_of(address)) != []
        # Threads of what was killed may take a moment longer.
        wait_until(lambda: ts.local_cluster(workers=1, memory="1MiB").stop() or not os.path.exists(folder_of(address)))
    assert not os.path.exists(folder_of(address)), os.listdir(folder_of(address))


def test_a_sweep_leaves_clusters_that_live(new_cluster):
    cluster = new_cluster(workers=1)
    new_cluster(workers=1)
    with cluster.connect() as session:
        assert float(ts.ones((4,), device_mesh=session.default_mesh).sum()) == 4


class Up:
    """tessera up, with what it says."""

    def __init__(self, *options):
        self.process = subprocess.Popen([TESSERA, "up", "--memory", "16MiB", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.address, _, self.join = (self.process.stdout.readline().strip() for _ in range(3))
        self.said = []
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


def test_up_tells_how_a_worker_ended_and_starts_it_again():
    with Up("--workers", "2") as up, ts.connect(up.address) as session:
        info = lambda: session.status()["workers"]  # noqa: E731
        for _ in range(2):
            old = info()[1]["pid"]
            os.kill(old, signal.SIGKILL)
            wait_until(lambda: info()[1]["state"] == "alive" and info()[1]["pid"] != old)
            assert float(ts.ones((4,), device_mesh=session.init_device_mesh((2,))).sum()) == 4
        wait_until(lambda: sum("worker 1: killed by signal 9 (SIGKILL)" in line for line in up.said) == 2)
        assert any("worker 1 is started again in 0.50 s (2 of 5)" in line for line in up.said)


def test_up_warns_of_decoders_that_may_take_more_memory_than_the_host_has(tmp_path):
    flags = ("--workers", "2", "--files", str(tmp_path), "--decoder", sys.executable, "--decoder-unconfined")
    for memory, warnings in (("8TiB", 1), ("256MiB", 0)):
        with Up(*flags, "--decoder-memory", memory) as up:
            pass
        assert sum("--decoder-memory" in line for line in up.said) == warnings, up.said
    assert not [line for line in up.said if "workers" in line]


def test_what_up_says_makes_another_worker_join():
    with Up("--workers", "1") as up, ts.connect(up.address) as session:
        assert up.join.startswith("another worker joins by: TESSERA_JOIN_TOKEN=")
        other = subprocess.Popen(["sh", "-c", "exec env " + up.join.partition(": ")[2]], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: [worker["state"] for worker in session.status()["workers"]] == ["alive"] * 2)
            with ts.connect(up.address) as later:
                assert float(ts.ones((4,), device_mesh=later.init_device_mesh((2,)), placements=[S(0)]).sum()) == 4
        finally:
            other.terminate()
            assert other.wait(60) == 0


@pytest.mark.parametrize("worker", [1, -1])
def test_stop_warns_of_a_server_that_a_signal_ended(worker):
    cluster = ts.local_cluster(2, memory="16MiB")
    pid = cluster.coordinator_pid if worker < 0 else cluster.worker_pids[worker]
    os.kill(pid, signal.SIGSEGV)
    wait_until(lambda: not runs(pid))
    who = "the coordinator" if worker < 0 else f"worker {worker}"
    with pytest.warns(RuntimeWarning, match=rf"{who} was killed by signal 11 \(SIGSEGV\)") as seen:
        cluster.stop()
    assert len(seen) == 1
    cluster.stop()      # said once


def test_stop_warns_of_nothing_when_all_end_by_themselves(recwarn):
    with ts.local_cluster(2, memory="16MiB") as cluster, cluster.connect():
        ts.ones(3).wait()
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]
