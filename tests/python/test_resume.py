"""Sessions outlive their connections: cuts at any byte, restarted kernels, names."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessera as ts

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from tls_cluster import CutProxy, TlsCluster  # noqa: E402


@pytest.fixture(scope="module")
def cut_cluster():
    with TlsCluster(proxied=True) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_the_same_session_goes_on_after_cuts(cut_cluster):
    """Each op runs once, and no handle is lost or left over, whatever byte the cuts come after."""
    rng = random.Random(5)
    control = cut_cluster.proxies[0]
    with cut_cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        total = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])
        kept, expected = [], 0
        for cut in range(60):
            if cut % 3 == 0:
                control.cut()
            else:
                control.cut_after(rng.randrange(1, 60_000))
            for _ in range(rng.randrange(1, 120)):
                total = total + 1
                expected += 1
            kept.append((total * 2, expected * 2))
            if cut % 10 == 9:
                np.testing.assert_array_equal(total.full_tensor(), np.full(8, expected))
        for tensor, value in kept:
            np.testing.assert_array_equal(tensor.full_tensor(), np.full(8, value))
        session.sync()
        assert session.state == "open" and control.cuts >= 20
        wait_for(lambda: len(session.tensors()) == len(kept) + 1)


def test_transfers_go_on_where_they_were(cut_cluster):
    rng = random.Random(7)
    x = np.random.default_rng(2).standard_normal((1500, 2100))
    data = cut_cluster.proxies[1:]
    with cut_cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        for placements in ([ts.Shard(0)], [ts.Shard(1)]):
            for proxy in data:
                proxy.cut_after(rng.randrange(1, 9_000_000))
            d = session.distribute_tensor(x, mesh, placements)
            d.wait()
            for proxy in data:
                proxy.cut_after(rng.randrange(1, 9_000_000))
            np.testing.assert_array_equal(d.full_tensor(), x)
    assert sum(proxy.cuts for proxy in data) >= 4


def test_what_was_asked_while_there_is_no_line_comes_then(cut_cluster):
    control = cut_cluster.proxies[0]
    with cut_cluster.connect() as session:
        x = session.distribute_tensor(np.ones(4)).wait()
        real, control._target = control._target, 1   # nobody listens there
        try:
            control.cut()
            wait_for(lambda: session.state == "reconnecting")
            y = x + 41
            with pytest.raises(ts.DeadlineExceededError):
                y.wait(timeout=0.2)
        finally:
            control._target = real
        np.testing.assert_array_equal(y.full_tensor(), np.full(4, 42.0))
        assert session.state == "open"
    assert session.state == "closed"


def test_a_lease_that_runs_out_ends_the_session_by_name(cut_cluster):
    control = cut_cluster.proxies[0]
    session = cut_cluster.connect(lease=0.3)
    x = session.distribute_tensor(np.ones(4)).wait()
    real, control._target = control._target, 1
    try:
        control.cut()
        with pytest.raises(ts.UnavailableError, match="lost, and the session with it"):
            x.full_tensor()
    finally:
        control._target = real
    assert session.state == "closed"


def test_without_a_lease_a_cut_is_the_end(new_cluster):
    cluster = new_cluster(workers=1)
    session = cluster.connect()
    x = session.distribute_tensor(np.ones(4)).wait()
    os.kill(cluster.coordinator_pid, signal.SIGKILL)
    with pytest.raises(ts.UnavailableError, match="connection to the coordinator was lost"):
        (x + 1).wait()


def restarted(cluster, *programs):
    """Runs programs, one after the other, each with a `connect(**options)`; what the last one printed."""
    head = ("import sys, numpy as np, tessera as ts\n"
            "def connect(**options): return ts.connect(sys.argv[1], token=sys.argv[2], ca=sys.argv[3], **options)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = ""
    for body in programs:
        command = [sys.executable, "-c", head + body, cluster.address, cluster.token, str(cluster.certificates / "ca.crt")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        out = done.stdout
    return out


@pytest.mark.parametrize("end", ["", "import os, signal; session.sync(); os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_restarted_kernel_finds_its_tensors_by_name(cut_cluster, end):
    first = ("session = connect(name='training')\n"
             "w = session.distribute_tensor(np.arange(6.0)); w.name = 'w'\n"
             "temporary = w + 1\n"
             "v = w * 2; v.name = 'v'; del v\n" + end)
    second = ("session = connect(resume='training')\n"
              "print(session['w'].full_tensor().sum(), session['v'].full_tensor().sum(), session['w'].name)\n"
              "try: session['u']\n"
              "except ts.NotFoundError as error: print(error)\n"
              "session.close()\n")
    assert restarted(cut_cluster, first, second).splitlines() == [
        "15.0 30.0 w", "session: no tensor is named \"u\"; there are: w, v"]


def test_a_session_is_found_by_its_name_again_and_again(cut_cluster):
    first = "session = connect(name='training'); w = session.distribute_tensor(np.arange(6.0)); w.name = 'w'\n"
    second = "session = connect(resume='training'); print(session.name, session['w'].full_tensor().sum()); session.detach()\n"
    assert restarted(cut_cluster, first, second, second, second).splitlines() == ["training 15.0"]


class LateSocket:
    def __init__(self, sends_on):
        self._sends_on = sends_on

    def __getattr__(self, name):
        return getattr(self._sends_on, name)

    def sendall(self, data):
        time.sleep(0.2)
        self._sends_on.sendall(data)


class LateRecords(CutProxy):
    """A proxy of clients of which the second connection, that of the records, is late."""

    def __init__(self, port):
        self._numbers = itertools.count()
        super().__init__(port)

    def _pass(self, near, far):
        super()._pass(near, LateSocket(far) if next(self._numbers) % 2 == 1 else far)


def test_who_leaves_has_brought_all_records(cut_cluster):
    """Those that are behind the answer to a call: the two have connections of their own."""
    with LateRecords(int(cut_cluster.clients.rpartition(":")[2])) as late:
        session = cut_cluster.connect(address=f"tls://localhost:{late.port}")
        x = session.distribute_tensor(np.arange(6.0))
        x.name, left = "x", session.resume_text
        session.detach()
    with cut_cluster.connect(resume=left) as session:
        assert float(session["x"].sum()) == 15


@pytest.mark.parametrize("end", ["", "import os, signal; session.sync(); os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_named_session_on_the_own_host_outlives_its_process(new_cluster, end):
    cluster = new_cluster(workers=1)
    head = "import sys, numpy as np, tessera as ts\nsession = ts.connect(sys.argv[1], "
    first = head + "name='training')\nw = session.distribute_tensor(np.arange(6.0)); w.name = 'w'\nu = w + 1; session.sync()\n" + end
    second = head + "resume='training')\nprint([(x.name, float(x.sum())) for x in session.tensors()])\nsession.close()\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for body in (first, second):
        done = subprocess.run([sys.executable, "-c", body, cluster.address], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert done.stdout.strip() == "[('w', 15.0), (None, 21.0)]"


def test_names_move_and_go(session):
    x, y = session.distribute_tensor(np.ones(4)), session.distribute_tensor(np.zeros(4))
    assert x.name is None
    x.name = "w"
    y.name = "w"
    assert (x.name, y.name) == (None, "w") and float(session["w"].sum()) == 0
    y.name = "z"
    with pytest.raises(ts.NotFoundError, match='no tensor is named "w"; there are: z'):
        session["w"]
    held = len(session.tensors())
    del y
    assert len(session.tensors()) == held and float(session["z"].sum()) == 0
    x.name = "z"   # the former one, which its name alone kept, goes
    wait_for(lambda: len(session.tensors()) == held - 1)
    x.name = None
    with pytest.raises(ts.NotFoundError, match="none has a name"):
        session["z"]
    for wrong in (3, b"w"):
        with pytest.raises(ts.InvalidArgumentError, match="is no str"):
            x.name = wrong
    with pytest.raises(ts.InvalidArgumentError, match="2000 bytes; 1024 are allowed"):
        x.name = "x" * 2000


def test_what_cannot_be_resumed_is_said(cut_cluster):
    with cut_cluster.connect(name="one") as session:
        text = session.resume_text
        with pytest.raises(ts.NotFoundError, match=r"no session 'two' at tls://.*\(there: one\)"):
            cut_cluster.connect(resume="two")
    for wrong in (True, 1.5, ""):
        with pytest.raises(ts.InvalidArgumentError, match="resume is"):
            cut_cluster.connect(resume=wrong)
    with pytest.raises(ts.NotFoundError, match="its lease may be over"):
        cut_cluster.connect(resume=text)   # it was closed
    number, _, rest = text.partition(":")
    with pytest.raises(ts.NotFoundError, match="its lease may be over"):   # as if absent
        cut_cluster.connect(resume=f"{number}:{int(rest.split(':')[0]) ^ 1}:0")


def test_ten_clients_are_cut_at_once(cut_cluster):
    control = cut_cluster.proxies[0]
    sums = [None] * 10
    connected = threading.Barrier(11)

    def work(one):
        with cut_cluster.connect() as session:
            connected.wait(120)
            x = session.distribute_tensor(np.full(4, float(one)))
            for _ in range(200):
                x = x + 1
                time.sleep(0.001)
            sums[one] = float(x.sum())

    threads = [threading.Thread(target=work, args=(one,)) for one in range(10)]
    for thread in threads:
        thread.start()
    connected.wait(120)
    for _ in range(6):
        time.sleep(0.1)
        control.cut()
    for thread in threads:
        thread.join(120)
    assert sums == [4.0 * (one + 200) for one in range(10)]


def test_of_sessions_of_one_name_the_last_one_is_resumed(cut_cluster):
    first, second = (cut_cluster.connect(name="twice") for _ in range(2))
    with cut_cluster.connect(resume="twice") as again:
        assert again.id == second.id
    with cut_cluster.connect(resume=first.id) as again:
        assert again.id == first.id
