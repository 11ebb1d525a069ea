"""Bars of long waits, and Ctrl-C: within a second at any moment of a wait, an upload, a download or a long queue, and the
session goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import tessera as ts

# A child process that says what it does; what stands between BEGIN and END is interrupted.
_CHILD = """
import os, signal, sys, threading, time
import numpy as np, tessera as ts
cluster = ts.local_cluster(workers=2, memory="{memory}", transport=os.environ.get("TESSERA_TEST_TRANSPORT", "shm"))
session = cluster.connect()
mesh = session.default_mesh
x = session.distribute_tensor(np.arange(64.0).reshape(8, 8), mesh, [ts.Shard(0)])
x.wait()
{before}
try:
    print("BEGIN", flush=True)
    {doing}
    print("ENDED", flush=True)
except KeyboardInterrupt:
    print("INTERRUPTED", flush=True)
{after}
y = (x + 1).full_tensor()
print("GOES ON" if np.array_equal(y, np.arange(64.0).reshape(8, 8) + 1) else "WRONG", flush=True)
cluster.stop()
"""

_STOPPED = "os.kill(cluster.worker_pids[1], signal.SIGSTOP)"
_CONTINUED = "os.kill(cluster.worker_pids[1], signal.SIGCONT)"
_QUEUE = "y = ts.ones((700, 700), device_mesh=mesh, placements=[ts.Shard(0)])\nfor i in range(3000): y = (y @ y) * 1e-3"


def interrupted(before, doing, after="", memory="256MiB", delay=0.5):
    """What the child says after a SIGINT, and how many seconds it took to say that it was interrupted."""
    program = _CHILD.format(before=before, doing=textwrap.indent(doing, "    ").strip(), after=after, memory=memory)
    child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "BEGIN\n", child.stderr.read()
        threading.Event().wait(delay)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        first = child.stdout.readline().strip()
        took = time.monotonic() - start
        rest = child.communicate(timeout=120)
        return first, took, rest[0].split("\n")[0], rest[1]
    finally:
        child.kill()
        child.communicate()


@pytest.mark.whole_system
@pytest.mark.parametrize("before, doing, after", [
    pytest.param(_STOPPED + "\nz = x + 2", "z.wait()", _CONTINUED, id="wait"),
    pytest.param(_STOPPED + "\nz = x + 2", "z.wait(progress=True)", _CONTINUED, id="wait with a bar"),
    pytest.param(_STOPPED + "\nz = x + 2", "session.sync()", _CONTINUED, id="sync"),
    pytest.param(_STOPPED + "\nz = x @ x", "z.full_tensor()", _CONTINUED, id="download"),
    pytest.param("a = np.ones((64, 1 << 18))\n" + _STOPPED, "session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()", _CONTINUED, id="upload"),
    pytest.param("a = np.ones((64, 1 << 16))\nb = session.distribute_tensor(a, mesh, [ts.Shard(0)])\nb.wait()\n" + _STOPPED, "b.full_tensor()", _CONTINUED,
                 id="a large download"),
    pytest.param(_QUEUE, "y.wait()", "", id="a long queue"),
    pytest.param("y = ts.ones((64, 64), device_mesh=mesh, placements=[ts.Shard(0)])", "while True: y = (y @ y) * 1e-3", "", id="while it is queued")])
def test_ctrl_c_ends_it_within_a_second_and_the_session_goes_on(before, doing, after):
    first, took, rest, errors = interrupted(before, doing, after)
    assert (first, rest) == ("INTERRUPTED", "GOES ON"), (first, rest, errors)
    assert took < 1.0, took


def test_a_wait_shows_a_bar_of_ops(new_cluster, capfd):
    tqdm = pytest.importorskip("tqdm")
    assert tqdm
    session = new_cluster(memory="256MiB").connect()
    y = ts.ones((600, 600), device_mesh=session.default_mesh, placements=[ts.Shard(0)])
    for _ in range(150):
        y = (y @ y) * 1e-3
    assert y.wait(progress=True) is y
    bar = capfd.readouterr().err
    assert "wait" in bar and "op/s" in bar.replace("s/op", "op/s") and "100%" in bar
    assert (y * 0).full_tensor().shape == (600, 600)


def test_without_tqdm_there_is_no_bar_and_no_error(session, mesh4, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    x = ts.ones((4,), device_mesh=mesh4)
    assert x.wait(progress=True) is x and x.wait(10, progress=True) is x
    assert capfd.readouterr().err == ""


def test_a_bar_does_not_hide_a_failure(new_cluster, capfd):
    session = new_cluster(memory="16MiB").connect()
    x = ts.ones((1 << 24,), device_mesh=session.default_mesh, placements=[ts.Replicate()])
    with pytest.raises(ts.ResourceExhaustedError):
        x.wait(progress=True)
    cluster = new_cluster()
    y = ts.ones((4,), device_mesh=cluster.connect().default_mesh)
    y.wait()
    os.kill(cluster.worker_pids[0], signal.SIGSTOP)
    try:
        with pytest.raises(ts.DeadlineExceededError):
            (y + 1).wait(0.5, progress=True)
    finally:
        os.kill(cluster.worker_pids[0], signal.SIGCONT)
