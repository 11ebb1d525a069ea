"""`tessera up --state` that is killed, and started again: it goes on with the processes that it had left."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from up_pool import UpPool, lives, until


@pytest.fixture
def pool(tmp_path):
    made = UpPool(tmp_path)
    yield made
    made.end()


def kill(pid: int):
    os.kill(pid, signal.SIGKILL)
    until(lambda: not lives(pid))


def test_a_session_goes_on_with_all_its_tensors_and_the_op_under_way_and_in_the_end_nothing_is_left(pool):
    before, place = pool.pids(), Path(pool.record["folder"])
    values = np.random.default_rng(0).standard_normal((400, 300))
    with ts.connect(pool.address) as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(values, mesh, [ts.Shard(0)])
        kept = [x + float(i) for i in range(100)]
        for _ in range(3):
            under_way = x
            for i in range(2000):
                under_way = under_way + 1.0
            pool.restart_up()
            np.testing.assert_allclose(np.asarray(under_way), values + 2000.0)
            assert pool.pids() == before
        for i, y in enumerate(kept):
            np.testing.assert_array_equal(np.asarray(y.redistribute(mesh, [ts.Shard(1)])), values + float(i))
    assert pool.said().count("goes on with what one that was killed has left: the coordinator, process "
                             f"{before[-1]}, and 2 of 2 workers") == 3
    assert pool.stop() == 0, pool.said()
    assert not [pid for pid in before.values() if lives(pid)]
    assert not place.exists()
    assert not (pool.state / "processes").exists()


def test_what_has_ended_with_it_is_started_and_a_session_keeps_what_the_living_worker_has(pool):
    with ts.connect(pool.address) as session:
        here = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,), workers=[0]), [ts.Shard(0)])
        both = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        here.wait(), both.wait()
        before = pool.pids()
        pool.kill_up()
        kill(before[1])
        kill(before[-1])
        pool.up = pool.start()
        pool.await_up()
        after = pool.pids()
        assert after[0] == before[0] and after[1] != before[1] and after[-1] != before[-1]
        assert "goes on with what one that was killed has left: no coordinator, and 1 of 2 workers" in pool.said()
        assert float(ts.sum(here)) == 28.0
        with pytest.raises(ts.UnavailableError, match="worker 1 was lost"):
            np.asarray(both)
        again = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(again)) == 28.0


def test_the_processes_of_a_killed_one_are_watched_and_started_again_as_its_own(pool):
    pool.restart_up()
    with ts.connect(pool.address) as session:
        here = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,), workers=[0]), [ts.Shard(0)])
        here.wait()
        before = pool.pids()
        kill(before[-1])
        assert float(ts.sum(here)) == 28.0
        kill(before[1])
        until(lambda: pool.pids()[1] != before[1])
        until(lambda: [worker["state"] for worker in session.status()["workers"]] == ["alive"] * 2)
        assert pool.pids()[0] == before[0]
        assert float(ts.sum(here + 1)) == 36.0
    said = pool.said()
    assert "the coordinator is started again with what it had (1 of 5)" in said
    assert "worker 1: ended; a former owner had started it, and its status is not known" in said
    after = pool.pids()
    assert pool.stop() == 0
    assert not [pid for pid in (*before.values(), *after.values()) if lives(pid)]


def test_a_coordinator_that_is_killed_as_it_starts_again_is_started_once_more(pool):
    with ts.connect(pool.address) as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        last = pool.pids()[-1]
        os.kill(last, signal.SIGKILL)
        for _ in range(2):
            last = until(lambda last=last: (pid := pool.pids()[-1]) != last and pid)
            os.kill(last, signal.SIGKILL)  # it is listed before it has its tokens
        assert float(ts.sum(x)) == 28.0
        assert pool.up.poll() is None
        assert pool.said().count("is started again with what it had") == 3


def test_a_second_one_is_refused_while_the_first_lives_and_changes_nothing(pool):
    before = pool.pids()
    assert f"tessera up, process {pool.up.pid}, has it and lives" in pool.refused()
    assert pool.pids() == before
    with ts.connect(pool.address) as session:
        assert len(session.status()["workers"]) == 2


def test_other_flags_are_refused_by_name_and_leave_the_pool_as_it_is(pool):
    before = pool.pids()
    pool.kill_up()
    assert "runs with --memory=67108864, and --memory=134217728 is asked for" in pool.refused(memory="128MiB")
    assert "runs with --workers-on-host=2, and --workers-on-host=1 is asked for" in pool.refused(workers=1)
    kill(before[0])
    assert f"worker 1, process {before[1]}, which a tessera up that was killed has left, is one more than the 1 workers" in pool.refused(workers=1)
    del before[0]
    assert [pid for pid in before.values() if lives(pid)] == list(before.values())
    pool.up = pool.start()
    pool.await_up()
    assert {worker: pool.pids()[worker] for worker in before} == before


def test_a_record_that_is_torn_foreign_or_open_to_others_is_refused_by_name_and_nobody_is_touched(pool):
    before, record = pool.pids(), pool.state / "processes"
    whole = record.read_text()
    pool.kill_up()
    for torn in (whole[:len(whole) // 2], "", "[]", '{"version": 9}', whole.replace('"pid"', '"pit"'), "x" * (1 << 21)):
        record.write_text(torn)
        assert f"{record} is not what tessera up writes" in pool.refused()
    record.write_text(whole)
    record.chmod(0o666)
    assert "nobody else may write to it" in pool.refused()
    record.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(record, 65534, -1)
        assert "belongs to uid 65534" in pool.refused()
        os.chown(record, 0, -1)
    assert [pid for pid in before.values() if lives(pid)] == list(before.values())
    pool.up = pool.start()
    pool.await_up()
    assert pool.pids() == before


@pytest.fixture
def stranger():
    """A process that is none of the pool's, and when it started."""
    made = subprocess.Popen(["sleep", "600"])
    yield made, int(Path(f"/proc/{made.pid}/stat").read_text().rpartition(")")[2].split()[19])
    made.kill()
    made.wait()


def test_a_stranger_with_a_workers_number_is_not_touched(pool, stranger):
    before, record = pool.pids(), pool.record
    pool.kill_up()
    kill(before[1])
    for process in record["processes"]:
        process["pid"] = stranger[0].pid if process["worker"] == 1 else process["pid"]
    (pool.state / "processes").write_text(json.dumps(record))
    pool.up = pool.start()
    pool.await_up()
    assert pool.pids()[0] == before[0] and pool.pids()[1] not in (before[1], stranger[0].pid)
    assert pool.stop() == 0
    assert stranger[0].poll() is None


def test_a_record_of_another_boot_names_nobody(pool, stranger):
    before, record = pool.pids(), pool.record
    pool.kill_up()
    for pid in before.values():
        kill(pid)
    process, started = stranger
    record |= {"boot": "another", "processes": [{"worker": 0, "pid": process.pid, "started": started}]}
    (pool.state / "processes").write_text(json.dumps(record))
    pool.up = pool.start()
    pool.await_up()
    assert pool.stop() == 0
    assert process.poll() is None


def test_a_worker_that_is_stopped_is_ended_and_another_one_started(pool):
    before = pool.pids()
    with ts.connect(pool.address) as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        pool.kill_up()
        os.kill(before[1], signal.SIGSTOP)
        pool.up = pool.start()
        pool.await_up()
        with pytest.raises(ts.UnavailableError, match="worker 1 was lost"):
            np.asarray(x + 1)  # once the coordinator has waited worker_timeout for it
        until(lambda: pool.pids()[1] != before[1])
        until(lambda: [worker["state"] for worker in session.status()["workers"]] == ["alive"] * 2)
    assert not lives(before[1])
    assert {**pool.pids(), 1: 0} == {**before, 1: 0}


def test_where_nobody_comes_all_of_it_ends(tmp_path):
    pool = UpPool(tmp_path, outlive=1)
    try:
        before, place = pool.pids(), Path(pool.record["folder"])
        pool.kill_up()
        time.sleep(0.5)
        assert all(lives(pid) for pid in before.values())
        until(lambda: not [pid for pid in before.values() if lives(pid)], 30)
        pool.up = pool.start()
        pool.await_up()
        assert not place.exists()
        assert not {*pool.pids().values()} & {*before.values()}
    finally:
        pool.end()


def test_what_was_told_to_end_is_not_taken_over(pool):
    """As where it is killed while it ends the pool."""
    before = pool.pids()
    (Path(pool.record["folder"]) / "owner").unlink()
    pool.kill_up()
    pool.up = pool.start()
    pool.await_up()
    assert not [pid for pid in before.values() if lives(pid)]
    assert "goes on with" not in pool.said()


def test_killed_at_any_moment_of_its_start_the_next_one_has_a_whole_pool(pool):
    pool.kill_up()
    chance = random.Random(5)
    seen = {*pool.pids().values()}
    for _ in range(25):
        up = pool.start()
        killer = threading.Timer(chance.uniform(0.0, 0.25), up.kill)
        killer.start()
        up.communicate()
        killer.join()
        pids = pool.pids()
        seen |= {*pids.values()}
        if chance.random() < 0.5:
            kill(pids[chance.choice([-1, 0, 1])])
    pool.up = pool.start()
    pool.await_up()
    with ts.connect(pool.address) as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(x)) == 28.0
    seen |= {*pool.pids().values()}
    assert len(seen) > 3
    assert pool.stop() == 0
    assert not [pid for pid in seen if lives(pid)]
    assert not processes_with(str(pool.state))


def processes_with(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [line for line in [path.read_bytes().decode(errors="replace")] if word in line]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found
