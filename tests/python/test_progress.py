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

import in_time
import tessera as ts

# A child process that says what it does; what stands between BEGIN and END is interrupted. Its workers are CPUs whatever is
# tested: what is interrupted is the client, by sizes that an emulated GPU takes minutes for.
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
_ROW_BY_ROW = "a = np.broadcast_to(np.ones(1, np.uint8), {shape})"     # strides of 0: read an element at a time
_MANY_PAGES = "z = ts.zeros((3 << 28,), dtype=np.float32, device_mesh=mesh, placements=[ts.Shard(0)])"
_QUEUE = "y = ts.ones((700, 700), device_mesh=mesh, placements=[ts.Shard(0)])\nfor i in range(3000): y = (y @ y) * 1e-3"


def interrupted(before, doing, after="", memory="256MiB", delay=0.5):
    """The child's words after a SIGINT, and how many seconds it took to say that it was interrupted."""
    program = _CHILD.format(before=before, doing=textwrap.indent(doing, "    ").strip(), after=after, memory=memory)
    child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(120, child.kill)   # a child that hangs says nothing more
    limit.start()
    try:
        assert child.stdout.readline() == "BEGIN\n", child.stderr.read()
        threading.Event().wait(delay)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        first = child.stdout.readline().strip()
        took = time.monotonic() - start
        # By readline again: it may hold both lines by now, which communicate would not see.
        rest = child.stdout.readline().strip()
        return first, took, rest, child.communicate()[1]
    finally:
        limit.cancel()
        child.kill()
        child.communicate()


@pytest.mark.whole_system
@pytest.mark.parametrize("before, doing, after", [
    pytest.param(_ROW_BY_ROW.format(shape="(3 << 27, 1)"), "while True: session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()", "", id="an upload that goes on"),
    pytest.param(_ROW_BY_ROW.format(shape="(1, 3 << 27, 1)"), "while True: session.distribute_tensor(a, mesh, [ts.Shard(1)]).wait()", "", id="an upload of one long row"),
    pytest.param(_STOPPED + "\n" + _MANY_PAGES, "z.full_tensor()", _CONTINUED, id="pages that are made while workers compute"),
    pytest.param(_MANY_PAGES, "while True: z.full_tensor()", "", id="a download that goes on"),
    pytest.param(_STOPPED + "\nz = x + 2", "z.wait()", _CONTINUED, id="wait"),
    pytest.param(_STOPPED + "\nz = x + 2", "z.wait(progress=True)", _CONTINUED, id="wait with a bar"),
    pytest.param(_STOPPED + "\nz = x + 2", "session.sync()", _CONTINUED, id="sync"),
    pytest.param(_STOPPED + "\nz = x @ x", "z.full_tensor()", _CONTINUED, id="download"),
    pytest.param("a = np.ones((64, 1 << 18))\n" + _STOPPED, "session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()", _CONTINUED, id="upload"),
    pytest.param("a = np.ones((64, 1 << 16))\nb = session.distribute_tensor(a, mesh, [ts.Shard(0)])\nb.wait()\n" + _STOPPED, "b.full_tensor()", _CONTINUED,
                 id="a large download"),
    pytest.param(_QUEUE, "y.wait()", "", id="a long queue"),
    pytest.param("y = ts.ones((64, 64), device_mesh=mesh, placements=[ts.Shard(0)])", "while True: y = (y @ y) * 1e-3", "", id="while it is queued")])
@in_time.tried_again
def test_ctrl_c_ends_it_within_a_second_and_the_session_goes_on(before, doing, after):
    large = _MANY_PAGES in before
    first, took, rest, errors = interrupted(before, doing, after, **{"memory": "2GiB", "delay": 0.1} if large else {})
    assert (first, rest) == ("INTERRUPTED", "GOES ON"), (first, rest, errors)
    in_time.check(took, 1.0)


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


# ---- transfers ------------------------------------------------------------------------------------

class SeenBar:
    """Stands in for tqdm's: what bars were told."""
    bars: list = []

    def __init__(self, total, desc, **options):
        self.total, self.desc, self.n, self.closed, self.options = total, desc, 0, False, options
        self.bars.append(self)

    def refresh(self):
        assert not self.closed and 0 <= self.n <= self.total, (self.n, self.total)

    def close(self):
        self.closed = True


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("tessera._progress._LEAST", 1 << 20)
    monkeypatch.setattr("tessera._progress._bar_class", lambda: SeenBar)
    monkeypatch.setenv("TESSERA_PROGRESS", "1")
    monkeypatch.setattr(SeenBar, "bars", [])
    return SeenBar.bars


@pytest.mark.parametrize("placements", [[ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]], ids=str)
@pytest.mark.parametrize("kind", ["plain", "host_empty"])
def test_transfers_show_the_bytes_that_have_moved(session, mesh4, bars, placements, kind):
    a = np.ones((1000, 2500)) if kind == "plain" else ts.host_empty((1000, 2500))
    x = ts.distribute_tensor(a, mesh4, placements)
    x.wait()
    x.full_tensor(out=a)
    x.full_tensor()
    x.to_local(0)
    assert [bar.desc for bar in bars] == ["upload"] + ["download"] * 3
    shard = int(np.prod([stop - start for start, stop in x.box(0)])) * 8
    assert [bar.n for bar in bars[1:]] == [bar.total for bar in bars[1:]] == [a.nbytes, a.nbytes, shard]
    assert bars[0].total == a.nbytes and a.nbytes - (4 << 22) <= bars[0].n <= a.nbytes    # four slabs may be on the way
    assert all(bar.closed and bar.options["leave"] is False and bar.options["unit"] == "B" for bar in bars)


def test_files_show_the_bytes_that_workers_have_moved(new_cluster, bars, tmp_path):
    mesh = new_cluster(workers=2, memory="256MiB", files=[tmp_path]).connect().default_mesh
    x = ts.ones((3000, 1000), device_mesh=mesh, placements=[ts.Shard(0)])
    ts.save(str(tmp_path / "x.npy"), x)
    ts.load(str(tmp_path / "x.npy"), mesh).wait()
    give_up = time.monotonic() + 60
    while not all(bar.closed for bar in bars) and time.monotonic() < give_up:
        threading.Event().wait(0.05)
    assert [(bar.desc, bar.n, bar.total, bar.closed) for bar in bars] == [("save x.npy", x.nbytes, x.nbytes, True),
                                                                          ("load x.npy", x.nbytes, x.nbytes, True)]


def test_a_load_that_is_refused_leaves_no_bar(new_cluster, bars, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1 << 22,)))
    mesh = new_cluster(workers=2, memory="4MiB", files=[tmp_path]).connect().default_mesh
    with pytest.raises(ts.ResourceExhaustedError):
        ts.load(str(tmp_path / "x.npy"), mesh).wait()
    give_up = time.monotonic() + 60
    while not bars[0].closed and time.monotonic() < give_up:
        threading.Event().wait(0.05)
    assert bars[0].closed and bars[0].n == 0


@pytest.mark.parametrize("said, is_terminal, shown", [("0", True, False), ("1", False, True), ("", True, True), ("", False, False)])
def test_a_bar_is_shown_where_somebody_looks(session, mesh4, bars, monkeypatch, said, is_terminal, shown):
    monkeypatch.setenv("TESSERA_PROGRESS", said)
    monkeypatch.setattr(sys, "stderr", type("Stream", (), {"isatty": lambda self: is_terminal, "write": lambda self, text: None})())
    ts.distribute_tensor(np.ones(1 << 18), mesh4, [ts.Shard(0)])
    assert bool(bars) == shown
    ts.distribute_tensor(np.ones(1 << 10), mesh4, [ts.Shard(0)])       # small ones never
    assert len(bars) == shown


def test_a_transfer_that_fails_leaves_no_bar(new_cluster, bars):
    session = new_cluster(memory="4MiB").connect()
    with pytest.raises(ts.ResourceExhaustedError):
        session.distribute_tensor(np.ones(1 << 21), session.default_mesh, [ts.Shard(0)])
    assert [bar.closed for bar in bars] == [True]


def test_a_bar_of_tqdm_goes_when_it_is_done(session, mesh4, capfd, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("tessera._progress._LEAST", 1 << 20)
    monkeypatch.setenv("TESSERA_PROGRESS", "1")
    x = ts.distribute_tensor(np.ones(1 << 20), mesh4, [ts.Shard(0)])
    x.full_tensor()
    shown = capfd.readouterr().err
    assert "upload" in shown and "download" in shown and "8.00M" in shown
    assert shown.endswith("\r") and shown.rsplit("\r", 2)[1].strip() == ""
