"""A state folder at the level `disk`, and folders on disks that are full, read-only, broken, away or hang."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from slow_disk import SLOW_DISK, Disk
from state_pool import BINARIES, ENVIRONMENT, Pool

DISK = ("--state-level=disk",)


def slow(disk):
    return {"LD_PRELOAD": str(SLOW_DISK), "SLOW_DISK_PREFIX": str(disk.folder), "SLOW_DISK_LOG": str(disk.log),
            "SLOW_DISK_HANG": str(disk.hang), "SLOW_DISK_FAIL": str(disk.fail)}


@pytest.fixture
def made():
    pools = []
    yield lambda *args, **options: pools.append(Pool(*args, **options)) or pools[-1]
    for pool in pools:
        pool.stop()


@pytest.fixture
def disk(tmp_path):
    return Disk(tmp_path)


def in_background(call):
    """The call on a thread; result() waits for it."""
    done = {}

    def run():
        done["value"] = call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result(seconds=30):
        thread.join(seconds)
        assert not thread.is_alive()
        return done["value"]

    result.is_there = lambda: not thread.is_alive()
    return result


def test_killed_in_the_middle_of_ops_every_value_is_right(tmp_path, made):
    pool = made(tmp_path, flags=DISK)
    random = np.random.default_rng(2)
    with pool.connect() as session:
        mesh = session.init_device_mesh((2,))
        for round in range(10):
            expected = random.standard_normal((100, 200))
            x = session.distribute_tensor(expected, mesh, [ts.Shard(0)])
            for i in range(int(random.integers(5, 60))):
                x, expected = x * 1.01 + float(i), expected * 1.01 + float(i)
                if i == 3:
                    pool.restart()
            np.testing.assert_allclose(np.asarray(x.redistribute(mesh, [ts.Shard(1)])), expected)
        assert {worker.poll() for worker in pool.workers} == {None}


def test_snapshots_are_taken_while_it_works_and_a_restart_is_from_the_last(tmp_path, made):
    pool = made(tmp_path, flags=(*DISK, "--snapshot-after=0.001"))
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        deadline, count = time.monotonic() + 30, 0
        while "is written, in" not in pool.text():
            assert time.monotonic() < deadline, pool.text()
            x, count = x + 1, count + 1
            x.wait()
        pool.restart()
        np.testing.assert_array_equal(np.asarray(x), np.arange(8.0) + count)
    assert re.search(r"going on with .*: snapshot \d+ and \d+ events", pool.text())


def test_no_answer_comes_before_its_sync_and_a_disk_that_hangs_is_told(tmp_path, made, disk):
    pool = made(tmp_path, flags=DISK, environment=slow(disk), state=disk.folder / "state")
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(x)) == 28.0
        with disk.away("fdatasync"):
            value = in_background(lambda: float(ts.sum(x * 2.0)))
            other = in_background(lambda: pool.connect())
            pool.await_text("has answered nothing for")
            assert "nothing is admitted until that is mended" in pool.text()
            assert not value.is_there() and not other.is_there()
        assert value() == 56.0
        other().close()
        assert float(ts.sum(x)) == 28.0
    assert {worker.poll() for worker in pool.workers} == {None}


def test_a_disk_that_hangs_as_a_segment_is_begun_is_told(tmp_path, made, disk):
    pool = made(tmp_path, flags=[*DISK, "--snapshot-after=0.001"], environment=slow(disk), state=disk.folder / "state")
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        with disk.away("fsync"):  # that of the segment's header; the log's is fdatasync
            value = in_background(lambda: [float(ts.sum(x + float(i))) for i in range(300)])
            pool.await_text("has answered nothing for")
            assert "nothing is admitted until that is mended" in pool.text()
            assert not value.is_there()
        assert value() == [28.0 + 8.0 * i for i in range(300)]
    assert {worker.poll() for worker in pool.workers} == {None}


def test_a_sync_that_fails_is_told_and_all_goes_to_another_file(tmp_path, made, disk):
    pool = made(tmp_path, flags=DISK, environment=slow(disk), state=disk.folder / "state")
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(x)) == 28.0
        with disk.broken("fdatasync fsync"):
            value = in_background(lambda: float(ts.sum(x * 2.0)))
            pool.await_text("can't sync")
            assert not value.is_there()
        assert value() == 56.0
        pool.await_text("the log goes on in another file, and all is on the disk")
        y = x * 3.0
        pool.restart()
        assert float(ts.sum(y)) == 84.0


def test_a_folder_goes_from_one_level_to_the_other(tmp_path, made):
    pool = made(tmp_path)
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        for flags in (DISK, (), DISK):
            pool.flags = flags
            pool.restart()
            x = x + 1
            assert float(ts.sum(x)) > 0
    told = subprocess.run([BINARIES / "server/coordinator/tessera-coordinator", f"--inspect={pool.state}"], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=60)
    assert told.returncode == 0 and "at the level disk" in told.stdout, told


def test_a_session_that_is_refused_is_told_so(tmp_path, made):
    pool = made(tmp_path, flags=(*DISK, "--max-sessions=2"))
    with pool.connect() as one:
        with pool.connect():
            with pytest.raises(ts.ResourceExhaustedError, match="max_sessions"):
                pool.connect()
        assert len(one.status()["sessions"]) >= 1


# ---- disks of a small size of their own


def mounted(size):
    """Words in front of a command, which runs it with a file system of its own at the path in $STATE; or why that can't be."""
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"no mounts here: {tried.stderr.strip()}")
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size},mode=700 tmpfs "$STATE" && exec "$0" "$@"']


def test_a_full_disk_admits_nothing_more_and_says_so_until_it_has_room(tmp_path, made):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    pool = made(tmp_path, before=mounted("48m"), environment={"STATE": str(state)})
    inside = Path(f"/proc/{pool.coordinator.pid}/root{state}")
    with pool.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.arange(8.0), mesh, [ts.Shard(0)])
        x.wait()
        with open(inside / "filler", "wb") as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 65536)
                filler.flush()

        def flood():
            kept = [x + float(i) for i in range(20_000)]
            return float(ts.sum(kept[19_999])), float(ts.sum(kept[10_000]))

        values = in_background(flood)
        pool.await_text("No space left on device", 60)
        assert "nothing is admitted until that is mended" in pool.text()
        assert not values.is_there()
        (inside / "filler").unlink()
        assert values(60) == (28.0 + 8 * 19_999, 28.0 + 8 * 10_000)
    assert {worker.poll() for worker in pool.workers} == {None}


@pytest.mark.parametrize("level", ["process", "disk"])
def test_a_read_only_disk_stops_the_start_by_name(tmp_path, level):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    before = mounted("1m")
    before[-1] = before[-1].replace("&& exec", '&& mount -o remount,ro "$STATE" && exec')
    refused = subprocess.run([*before, BINARIES / "server/coordinator/tessera-coordinator", f"--listen=unix:{tmp_path}/s", f"--state={state}",
                              f"--state-level={level}"], env={**ENVIRONMENT, "STATE": str(state)}, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert f"--state {state}: can't open its lock: Read-only file system" in refused.stderr


@pytest.mark.parametrize("level", ["process", "disk"])
def test_a_folder_that_vanishes_admits_nothing_more_until_it_is_back(tmp_path, made, level):
    pool = made(tmp_path, flags=(f"--state-level={level}",))
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(x)) == 28.0
        pool.state.rename(tmp_path / "away")
        pool.await_text("events-00000001.log is not there any more: No such file or directory; nothing is admitted")
        value = in_background(lambda: float(ts.sum(x * 2.0)))
        time.sleep(0.5)
        assert not value.is_there()
        (tmp_path / "away").rename(pool.state)
        assert value() == 56.0
        pool.restart()
        assert float(ts.sum(x)) == 28.0


def test_a_fork_that_is_refused_is_told_and_the_log_goes_on_without_a_snapshot(tmp_path, made, disk):
    pool = made(tmp_path, flags=("--snapshot-after=0.001",), environment=slow(disk), state=disk.folder / "state")
    with pool.connect() as session, disk.broken("fork"):
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        count = 0
        deadline = time.monotonic() + 30
        while "no snapshot is written: can't fork: Resource temporarily unavailable; the log goes on without" not in pool.text():
            assert time.monotonic() < deadline, pool.text()
            x, count = x + 1, count + 1
            x.wait()
        pool.restart()
        np.testing.assert_array_equal(np.asarray(x), np.arange(8.0) + count)


@pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed")
def test_a_clock_that_is_set_back_an_hour_changes_nothing(tmp_path, made):
    pool = made(tmp_path)

    def epoch():
        return int(re.search(r"epoch (\d+),", subprocess.run([BINARIES / "server/coordinator/tessera-coordinator",
                                                              f"--inspect={pool.state}"], env=ENVIRONMENT, capture_output=True,
                                                             text=True, timeout=60).stdout)[1])

    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        assert float(ts.sum(x)) == 28.0
        first = epoch()
        for i, clock in enumerate(["-1h", "-2h", "+1h"]):
            pool.environment["FAKETIME_DONT_FAKE_MONOTONIC"] = "1"
            pool.before = ["faketime", "-f", clock]
            kill_child(pool)
            pool.coordinator = pool.start_coordinator()
            x = x + 1
            assert float(ts.sum(x)) == 28.0 + 8 * (i + 1)
            assert epoch() == first + i + 1, "epochs come from the log"
        assert {worker.poll() for worker in pool.workers} == {None}
        kill_child(pool)
        pool.before = []
        pool.coordinator = pool.start_coordinator()
        assert float(ts.sum(x)) == 28.0 + 24


def kill_child(pool):
    """The coordinator itself, where a program that started it waits for it."""
    children = Path(f"/proc/{pool.coordinator.pid}/task/{pool.coordinator.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    pool.kill_coordinator()


@pytest.mark.skipif(os.geteuid() != 0, reason="a folder is given to another user by root alone")
def test_a_folder_of_another_user_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    refused = subprocess.run([BINARIES / "server/coordinator/tessera-coordinator", f"--listen=unix:{tmp_path}/s", f"--state={state}"],
                             env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "it belongs to uid 12345" in refused.stderr and "it must be this user's (0)" in refused.stderr


def test_a_folder_of_another_cluster_takes_none_of_this_ones_workers(tmp_path, made):
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir(mode=0o700)
    pool, other = (made(folder, workers=1) for folder in folders)
    with other.connect() as session:
        session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,)), [ts.Shard(0)]).wait()
    other.kill_coordinator()
    pool.kill_coordinator()
    pool.state.rename(tmp_path / "kept")
    other.state.rename(pool.state)
    pool.coordinator = pool.start_coordinator()
    # Both know a worker 0 of incarnation 1: what tells them apart is the epoch in which it joined.
    assert pool.workers[0].wait(30) == 3
    assert "join: worker 0" in pool.text()
