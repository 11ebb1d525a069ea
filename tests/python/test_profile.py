"""`session.profile()`: what the workers measured of a session's ops."""

import json
import os
import signal
import time

import numpy as np
import pytest

import tessera as ts
from tessera._profile import Run, lanes_of
from test_pictures import needs_browser, shown

S, R = ts.Shard, ts.Replicate


def ops_named(profile, name):
    return [op for op in profile.ops if op.name == name]


def test_a_block_has_what_ran_in_it(session, mesh4):
    x = ts.ones((64, 64), device_mesh=mesh4, placements=[S(0)]).wait()
    with session.comm_debug() as comm, session.profile() as profile:
        y = x.redistribute([S(1)])
    assert profile.under_way == 0 and profile.forgotten == 0
    (op,) = profile.ops
    assert (op.name, op.segment, op.output, op.failure) == ("redistribute", (), y._spec, "")
    assert op.workers == (0, 1, 2, 3) and op.predicted > 0
    # Counted by the workers, as comm_debug's are.
    assert op.bytes_moved == comm.total_bytes > 0
    assert all(0 < run.working <= run.duration for run in op.runs)


def test_a_large_product_takes_longer_than_a_tiny_op(session, mesh4):
    big = ts.ones((768, 768), device_mesh=mesh4, placements=[S(0)]).wait()
    tiny = ts.ones((4,), device_mesh=mesh4, placements=[S(0)]).wait()
    begin = time.perf_counter()
    with session.profile() as profile:
        (big @ big).wait()
        for _ in range(10):
            (tiny + 1).wait()
    wall = time.perf_counter() - begin
    (product,), additions = ops_named(profile, "matmul"), ops_named(profile, "add")
    assert len(additions) == 10
    # A worker that others keep from its core counts as working: not in each of the ten.
    assert sum(run.working for run in product.runs) > 5 * min(sum(run.working for run in one.runs) for one in additions)
    assert product.end <= wall
    # The ops that a worker ran one after the other fit into the time that passed.
    for worker in range(4):
        assert sum(run.duration for op in profile.ops for run in op.runs if run.worker == worker) <= 2 * wall  # two streams
        assert sum(run.working for op in profile.ops for run in op.runs if run.worker == worker) <= 2 * wall
    assert product.start < additions[0].start


def test_a_segment_names_its_ops(session, mesh4):
    x = ts.ones((32, 8), device_mesh=mesh4, placements=[S(0)]).wait()
    for _ in range(20):     # on a busy machine some of them may be sent before the others are there
        with session.profile() as profile:
            y = ts.exp(ts.sqrt(x * 2) + 1).wait()
        if len(profile.ops) == 1:
            break
    (op,) = profile.ops
    assert op.segment == ("multiply", "sqrt", "add", "exp") and op.name == "exp" and op.output == y._spec
    assert op.label == "multiply + sqrt + add + 1 more"
    assert "multiply + sqrt + add + 1 more" in str(profile)


def test_without_a_block_it_has_the_last_ops(new_cluster):
    session = new_cluster(workers=2).connect()
    assert session.profile().ops == [] and "0 ops" in str(session.profile()) and "0 ops" in session.profile()._repr_html_()
    x = ts.ones((4, 4), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    (x @ x).wait()
    assert [op.name for op in session.profile().ops][-1] == "matmul"
    assert session.profile().ops[0].start == 0.0


def test_a_session_sees_its_own_ops_alone(new_cluster):
    cluster = new_cluster(workers=2)
    one, two = cluster.connect(), cluster.connect()
    with one.profile() as first, two.profile() as second:
        ts.ones((4, 4), device_mesh=one.default_mesh).wait()
        ts.sum(ts.ones((4, 4), device_mesh=two.default_mesh)).wait()
    assert "sum" not in {op.name for op in first.ops} and len(first.ops) == 1
    assert "sum" in str(second) and all("sum" not in op.label for op in one.profile().ops)


def test_blocks_lie_within_each_other(session, mesh4):
    x = ts.ones((4, 4), device_mesh=mesh4, placements=[S(0)]).wait()
    with session.profile() as outer:
        (x + 1).wait()
        with session.profile() as inner:
            (x @ x).wait()
        (x - 1).wait()
    assert [op.name for op in inner.ops] == ["matmul"]
    assert [op.name for op in outer.ops] == ["add", "matmul", "subtract"]
    with pytest.raises(ts.FailedPreconditionError, match="has been used"):
        inner.__enter__()


def test_transfers_are_in_it_with_their_bytes(session, mesh4):
    data = np.arange(3 * 2**20, dtype="f4")     # 12 MiB: by slabs
    with session.profile() as profile:
        x = session.distribute_tensor(data, mesh4, [S(0)])
        assert np.array_equal(x.full_tensor(), data)
    (upload,), (download,) = ops_named(profile, "upload"), ops_named(profile, "download")
    for op in (upload, download):
        assert sum(run.bytes_transferred for run in op.runs) == data.nbytes
        assert op.output == x._spec and op.predicted is None and op.duration > 0 and op.bytes_moved == 0


def test_what_failed_is_in_it(session, mesh4):
    x = session.distribute_tensor(np.zeros((4, 4)), mesh4, [R()])
    with session.profile() as profile:
        y = ts.linalg.cholesky(x)
        with pytest.raises(ts.TesseraError):
            y.wait()
    assert any(op.failure for op in profile.ops) and "failed" in str(profile)


def test_a_worker_that_died_leaves_what_the_others_did(new_cluster):
    cluster = new_cluster(workers=2)
    session = cluster.connect()
    x = ts.ones((4, 4), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    (x + 1).wait()
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    with session.profile() as profile:
        with pytest.raises(ts.TesseraError):
            (x * 2).wait()
    assert all(run.worker == 0 for op in profile.ops for run in op.runs)
    before = session.profile()
    assert {run.worker for op in before.ops for run in op.runs} == {0, 1}       # of before it died
    assert "2 workers" in str(before) and "<svg" in before._repr_html_()


def test_memory_is_bounded(new_cluster):
    session = new_cluster(workers=2, coordinator_flags=("--max-profiled-runs", "20", "--max-segment-ops", "1")).connect()
    x = ts.ones((4,), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    with session.profile() as profile:
        for _ in range(100):
            x = x + 1
        x.wait()
    assert len(profile.ops) == 10 and profile.forgotten == 90 and "90 no longer remembered" in str(profile)
    assert len(session.profile().ops) == 10


def test_the_trace_is_in_chromes_format(session, mesh4, tmp_path):
    x = ts.ones((64, 64), device_mesh=mesh4, placements=[S(0)]).wait()
    with session.profile() as profile:
        (ts.softmax(x) @ x).full_tensor()
    profile.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    assert trace["displayTimeUnit"] == "ms"
    for event in events:
        assert event["ph"] in ("X", "M") and isinstance(event["pid"], int) and isinstance(event["tid"], int) and event["name"]
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and event["cat"] in ("op", "transfer") and {"number", "output", "working_us"} <= set(event["args"])
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == {w + 1: f"worker {w}" for w in range(4)}
    threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} == set(threads)
    assert {name.split()[0] for name in threads.values()} == {"ops", "transfers"}
    assert {event["name"] for event in events if event["ph"] == "X"} >= {"matmul", "download"}
    # Slices of one thread follow each other: a viewer would nest what overlaps.
    for thread in threads:
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == thread)
        assert all(end <= start + 0.002 for (_, end), (start, _) in zip(own, own[1:]))


def test_lanes_are_as_many_as_overlap():
    runs = [Run(0, start, duration, duration, 0, 0, 0) for start, duration in ((0, 4), (1, 1), (2, 3), (4, 1), (4.5, 1))]
    assert lanes_of(runs) == [0, 1, 1, 0, 2]


def test_the_table_adds_up(session, mesh4):
    x = ts.ones((16, 16), device_mesh=mesh4, placements=[S(0)]).wait()
    with session.profile() as profile:
        for _ in range(5):
            (x + 1).wait()
        (x @ x).wait()
    totals = {one.label: one for one in profile.totals()}
    assert totals["add"].count == 5 and totals["matmul"].count == 1
    assert totals["add"].mean == pytest.approx(totals["add"].total / 5)
    assert sum(one.share for one in totals.values()) == pytest.approx(1)
    first, heads, *rows = str(profile).split("\n")
    assert "6 ops on 4 workers" in first and heads.split() == ["op", "count", "total", "mean", "share", "predicted", "moved"]
    assert {row.split()[0] for row in rows} == {"add", "matmul"}


def test_workers_of_the_coordinators_host_have_its_clock(session, mesh4):
    ts.ones((4,), device_mesh=mesh4).wait()
    errors = session.profile().clock_errors
    assert set(errors) >= {0, 1, 2, 3} and all(error == 0 for error in errors.values())


def test_a_picture_never_raises(new_cluster):
    cluster = new_cluster(workers=1)
    session = cluster.connect()
    profile = session.profile()
    os.kill(cluster.coordinator_pid, signal.SIGKILL)
    assert "Error" in repr(profile) and "Error" in profile._repr_html_()
    with pytest.raises(ts.TesseraError):
        profile.ops


@needs_browser
def test_a_browser_shows_the_timeline(new_cluster, tmp_path):
    session = new_cluster(workers=3).connect()
    x = ts.ones((512, 512), device_mesh=session.default_mesh, placements=[S(0)]).wait()
    with session.profile() as profile:
        (x @ x).wait()
        ts.softmax(x).wait()
        x.redistribute([S(1)]).wait()
    dark = f"<div style='background:#111;color:#eee'>{profile._repr_html_()}</div>"
    (words, titles), (in_the_dark, _) = shown(tmp_path, profile._repr_html_(), dark)
    assert words == in_the_dark and words[0].startswith("3 ops on 3 workers")
    assert [f"worker {w}" for w in range(3)] == [word for word in words if word.startswith("worker ")]
    assert {"count", "total", "mean", "share", "predicted", "moved"} <= set(words)
    assert sum(title.startswith("matmul on worker ") and "predicted" in title for title in titles) == 3
    assert any(title.startswith("redistribute on worker 1") and "KiB" in title for title in titles)
