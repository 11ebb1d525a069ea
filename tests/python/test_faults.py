"""Bad input and faults: a typed error that names what is wrong, and everything else goes on."""

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest

import in_time
import tessera as ts
from waiting import wait_until

S, R = ts.Shard, ts.Replicate


def test_messages_name_the_op_and_both_operands(session, mesh4):
    a = session.distribute_tensor(np.zeros((128, 64), "f4"), mesh4, [S(0)])
    b = session.distribute_tensor(np.zeros((32, 16), "f4"), mesh4)
    with pytest.raises(ts.InvalidArgumentError, match=r"matmul: inner dims differ.*f32\[128,64\].*f32\[32,16\]"):
        a @ b
    for wrong, message in [(lambda: ts.sum(a, axis=2), "axis 2"), (lambda: a[200], "200"), (lambda: a[0, 0, 0], "indices"),
                           (lambda: a.redistribute([S(5)]), "5"), (lambda: a.redistribute([S(0), S(0)]), "placements"),
                           (lambda: a.redistribute([ts.Partial()]), "Partial|P\\("), (lambda: a.to_local(9), "position"),
                           (lambda: a.box((0, 0)), "position"), (lambda: ts.permute_dims(a, (0, 0)), "permutation"),
                           (lambda: a.astype("c7"), "dtype"), (lambda: ts.where(a, a, b), "where"),
                           (lambda: ts.less(a, 1 + 2j), "real dtype"), (lambda: a @ 3, "matmul")]:
        with pytest.raises(ts.TesseraError, match=message):
            wrong()
    np.testing.assert_array_equal((a[:3] + 1).full_tensor(), 1)


def test_a_wrong_token_is_unauthenticated(cluster):
    with pytest.raises(ts.UnauthenticatedError):
        ts.connect(cluster.address.partition("#")[0], token="wrong")
    with pytest.raises(PermissionError):
        ts.connect(cluster.address.partition("#")[0])


def test_what_does_not_fit_is_refused_with_the_numbers(session, mesh4):
    small = ts.ones((4,), device_mesh=mesh4)
    x = ts.zeros((1 << 14, 1 << 14), device_mesh=mesh4, placements=[R()])  # 2 GiB on each of 256 MiB
    y = x + 1
    with pytest.raises(ts.ResourceExhaustedError, match="2,?147,?483,?648 bytes wanted"):
        x.wait()
    with pytest.raises(MemoryError):
        y.full_tensor()
    assert "Tensor(" in repr(y) and "ResourceExhausted" in str(y)
    with pytest.raises(ts.ResourceExhaustedError):
        session.distribute_tensor(np.broadcast_to(np.float64(1), (1 << 14, 1 << 13)), mesh4, [R()]).wait()
    del x, y
    np.testing.assert_array_equal(small.full_tensor(), 1)


def test_a_failed_dependent_tells_the_way_from_the_first_cause(session, mesh4):
    z = ts.zeros((1 << 28,), device_mesh=mesh4, placements=[S(0)])  # 512 MiB on each of 256 MiB
    w = z + 1
    v = w * 2
    u = v @ v
    t = ts.exp(ts.exp(u))

    def message(tensor):
        with pytest.raises(ts.ResourceExhaustedError) as error:
            tensor.wait()
        return str(error.value)

    cause, n = message(z), 1 << 28
    assert cause.startswith("zeros: ") and "on the way" not in cause
    assert message(w) == f"{cause}; on the way here: add f64[{n}]"
    assert message(v) == f"{cause}; on the way here: add f64[{n}], multiply f64[{n}]"
    assert message(u) == f"{cause}; on the way here: add f64[{n}], multiply f64[{n}], matmul f64[]"
    assert message(t) == f"{cause}; on the way here: add f64[{n}], multiply f64[{n}], ..., exp f64[], exp f64[]"
    with pytest.raises(ts.ResourceExhaustedError, match="on the way here: add"):
        w.full_tensor()


def test_huge_shapes_are_refused(session, mesh4):
    for shape in [(2**31,), (2**31 + 1, 3), (2**59,)]:
        with pytest.raises(ts.TesseraError):
            ts.zeros(shape, dtype="f64", device_mesh=mesh4, placements=[S(0)]).wait()
    assert float(ts.ones((3,), device_mesh=mesh4).sum()) == 3


def garbage():
    yield b"\xff" * 4
    yield b"\xff" * 4096
    yield os.urandom(65536)
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield struct.pack("<II", 0, 4) + b"\0" * 7          # half a message
    yield struct.pack("<II", 0, 2**31)                  # a segment of 16 GiB
    yield struct.pack("<I", 2**20) + b"\xff" * 4096     # a million segments
    yield struct.pack("<II", 0, 1) + b"\xff" * 8
    yield b""


def test_garbage_on_every_socket_closes_the_connection(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    folder = os.path.dirname(cluster.address.partition("#")[0].removeprefix("unix:"))
    sockets = [os.path.join(folder, name) for name in os.listdir(folder)
               if os.path.exists(os.path.join(folder, name)) and os.stat(os.path.join(folder, name)).st_mode & 0o170000 == 0o140000]
    assert len(sockets) >= 3
    for path in sockets:
        for data in garbage():
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(60)
                raw.connect(path)
                try:
                    raw.sendall(data)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(4096):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass
    x = session.distribute_tensor(np.arange(6.0), session.default_mesh, [S(0)])
    assert float(x.sum()) == 15


@in_time.tried_again
def test_a_killed_worker_is_named_and_the_rest_goes_on(new_cluster):
    cluster = new_cluster(workers=4)
    session = cluster.connect()
    everyone = session.init_device_mesh((4,))
    survivors = session.init_device_mesh((2,), workers=(0, 1))
    a = np.arange(4096.0).reshape(64, 64)
    lost = session.distribute_tensor(a, everyone, [S(0)]).wait()
    kept = session.distribute_tensor(a, survivors, [S(0)]).wait()
    os.kill(cluster.worker_pids[2], signal.SIGKILL)
    with in_time.Limit(2), pytest.raises(ts.UnavailableError, match="worker 2"):
        while True:
            (lost @ lost).wait()
    with pytest.raises(ConnectionError, match="worker 2"):
        lost.full_tensor()
    np.testing.assert_array_equal((kept @ kept).full_tensor(), a @ a)
    np.testing.assert_array_equal(kept.redistribute([S(1)]).full_tensor(), a)
    wait_until(lambda: session.status()["workers"][2]["state"] == "dead")   # its peers may have told of it first


@in_time.tried_again
def test_killed_in_the_middle_of_work(new_cluster):
    cluster = new_cluster(workers=4, memory="128MiB")
    session = cluster.connect()
    x = ts.rand(600, 600, device_mesh=session.default_mesh, placements=[S(0)])
    for _ in range(200):
        x = (x @ x.T) / 600
    os.kill(cluster.worker_pids[3], signal.SIGKILL)
    with in_time.Limit(2.5), pytest.raises(ts.UnavailableError, match="worker 3"):
        x.full_tensor()


@in_time.tried_again
def test_a_killed_coordinator_makes_everything_unavailable(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    x = ts.ones((4,), device_mesh=session.default_mesh).wait()
    os.kill(cluster.coordinator_pid, signal.SIGKILL)
    wait_until(lambda: not session._open)
    for use in (lambda: x + 1, x.full_tensor, session.sync, session.status):
        with pytest.raises(ts.UnavailableError):
            use()
    with in_time.Limit(1), pytest.raises(ts.UnavailableError):
        ts.connect(cluster.address)


def test_a_stopped_worker_does_not_hold_a_wait_for_ever(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect(stall_timeout=1.5)
    x = ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)]).wait(timeout=60)
    os.kill(cluster.worker_pids[1], signal.SIGSTOP)
    try:
        with pytest.raises((ts.DeadlineExceededError, ts.UnavailableError)):
            (x @ x.T).full_tensor()
        with pytest.raises((TimeoutError, ts.UnavailableError)):
            (x + x).wait(timeout=0.2)
    finally:
        os.kill(cluster.worker_pids[1], signal.SIGCONT)


@in_time.tried_again
def test_ctrl_c_in_a_wait_returns_within_a_second(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    x = ts.ones((8, 8), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    os.kill(cluster.worker_pids[0], signal.SIGSTOP)
    # A shell starts what runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with in_time.Limit(2), pytest.raises(KeyboardInterrupt):
            threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            (x @ x.T).wait()
    finally:
        signal.signal(signal.SIGINT, before)
        os.kill(cluster.worker_pids[0], signal.SIGCONT)
    assert float((x + x).sum()) == 128


CLIENT = """
import sys, numpy as np, tessera as ts
session = ts.connect(sys.argv[1])
x = session.distribute_tensor(np.zeros((1000, 1000)), session.default_mesh, [ts.Shard(0)]).wait()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_client_leaves_nothing(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    used = [w["used_bytes"] for w in session.status()["workers"]]
    client = subprocess.Popen([sys.executable, "-c", CLIENT, cluster.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout.readline() == b"ready\n"
    assert session.status()["session_count"] == 2
    assert [w["used_bytes"] for w in session.status()["workers"]] != used
    client.kill()
    client.wait()
    wait_until(lambda: session.status()["session_count"] == 1)
    wait_until(lambda: [w["used_bytes"] for w in session.status()["workers"]] == used)


SHORT_OF_FILES = """
import os, resource, sys, numpy as np, tessera as ts
session = ts.connect(sys.argv[1], stall_timeout=5)
mesh, rows, left = session.default_mesh, [ts.Shard(0)], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    for fd in held[:left]:
        os.close(fd)
try:
    x = session.distribute_tensor(np.ones(int(sys.argv[3])), mesh, rows)
    y = x.sum()
    for tensor in (y, x):
        try:
            tensor.wait()
        except ts.ResourceExhaustedError as error:
            print(error, flush=True)
except ts.ResourceExhaustedError as error:
    print("at once:", error, flush=True)
for fd in held[left:]:
    os.close(fd)
print(float(session.distribute_tensor(np.ones(4), mesh, rows).sum()))
"""


@pytest.mark.parametrize("left, elements", [(1, 10000), (2, 10000), (2, 1000000)])
def test_what_depends_on_an_upload_that_failed_here_has_the_first_cause(new_cluster, left, elements):
    cluster = new_cluster(workers=2)
    out = subprocess.run([sys.executable, "-c", SHORT_OF_FILES, cluster.address, str(left), str(elements)], text=True,
                         capture_output=True, timeout=120)
    assert out.returncode == 0, out.stderr
    cause = f"worker {left - 1}: data: socket: Too many open files"
    said = out.stdout.splitlines()
    # An upload that reads its source by slabs may hear of it before it returns.
    if elements > 500_000 and said[:1] == [f"at once: {cause}"]:
        assert said[1:] == ["4.0"], out.stderr
    else:
        assert said == [f"{cause}; on the way here: sum f64[]", cause, "4.0"], out.stderr


MANY_UPLOADS = """
import resource, sys, numpy as np, tessera as ts
session = ts.connect(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
kept = [session.distribute_tensor(np.full(4, float(i)), session.default_mesh) for i in range(3000)]
print(*[x.tolist()[0] for x in kept[::500]])
"""


def test_small_uploads_under_way_are_bounded(new_cluster):
    out = subprocess.run([sys.executable, "-c", MANY_UPLOADS, new_cluster().address], text=True, capture_output=True, timeout=120)
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["0.0", "500.0", "1000.0", "1500.0", "2000.0", "2500.0"], out.stderr


OWNER = """
import sys, tessera as ts
cluster = ts.local_cluster(workers=2, memory="32MiB")
print(cluster.coordinator_pid, *cluster.worker_pids, cluster.address.partition("#")[0][5:], flush=True)
sys.stdin.read()
"""


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):     # it may go between the two calls
        return False


def ends_of(cluster):
    """The exit codes of the workers, once they have ended, and the sockets that they left."""
    folder = os.path.dirname(cluster.address.partition("#")[0].removeprefix("unix:"))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in cluster.worker_pids]
    return codes, [name for name in os.listdir(folder) if name.startswith("worker")] if os.path.exists(folder) else []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_in_order_when_it_is_told_to(new_cluster, number):
    cluster = new_cluster(workers=2)
    for pid in cluster.worker_pids:
        os.kill(pid, number)
    assert ends_of(cluster) == ([0, 0], [])


def test_workers_end_in_order_with_their_coordinator(new_cluster):
    for _ in range(3):
        cluster = new_cluster(workers=3, memory="16MiB")
        ts.ones((6,), device_mesh=cluster.connect().default_mesh, placements=[S(0)]).wait()  # none is still joining
        os.kill(cluster.coordinator_pid, signal.SIGTERM)
        assert ends_of(cluster) == ([0, 0, 0], [])     # it has told them to


@pytest.mark.whole_system
def test_a_cluster_ends_with_its_owner():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    *pids, path = owner.stdout.readline().decode().split()
    pids = [int(pid) for pid in pids]
    assert len(pids) == 3 and all(map(runs, pids)) and os.path.exists(path)
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(map(runs, pids)))
    assert not os.path.exists(os.path.dirname(path))


@pytest.mark.whole_system
def test_a_cluster_lasts_as_long_as_a_tensor_or_an_open_session():
    def start():
        return ts.local_cluster(workers=2, memory="32MiB").connect()

    def pids_of(session):
        return [worker["pid"] for worker in session.status()["workers"]]

    x = start().distribute_tensor(np.ones(4))
    gc.collect()
    assert float((x + x).sum()) == 8
    pids = pids_of(x.session)
    del x
    wait_until(lambda: not any(map(runs, pids)))
    session = start()
    y = session.distribute_tensor(np.ones(4))
    pids = pids_of(session)
    session.close()
    wait_until(lambda: not any(map(runs, pids)))
    with pytest.raises(ts.FailedPreconditionError):
        y.full_tensor()


def test_a_stopped_cluster_leaves_no_process_and_no_file(new_cluster):
    cluster = new_cluster(workers=2)
    pids = [cluster.coordinator_pid, *cluster.worker_pids]
    folder = os.path.dirname(cluster.address.partition("#")[0].removeprefix("unix:"))
    cluster.connect()
    cluster.stop()
    assert not any(map(runs, pids)) and not os.path.exists(folder)
    cluster.stop()
    with pytest.raises(ts.FailedPreconditionError):
        cluster.connect()
