"""A coordinator whose wall clock jumps: tokens end by it and rows have its times; leases, timers and complaints don't care."""

import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from test_cli import tessera  # noqa: E402
from test_tenants import BINARIES, token  # noqa: E402
from two_hosts import wait_until  # noqa: E402

FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
DAY = 86_400

pytestmark = pytest.mark.skipif(not FAKETIME.exists(), reason="faketime is not installed")


class JumpingPool:
    """The coordinator's wall clock is ahead of the machine's by what `jump` says; the steady clock is the machine's."""

    def __init__(self, folder, text, *flags):
        self.folder, self.offset, self.audit = folder, folder / "offset", folder / "audit.db"
        self.jump(0)
        (folder / "tenants.toml").write_text(text)
        self.socket, self.log = f"unix:{folder}/socket", open(folder / "log", "wb")
        clock = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self.offset), "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        self.processes = [subprocess.Popen([BINARIES / "server/coordinator/tessera-coordinator", f"--listen={self.socket}", f"--tenants={folder}/tenants.toml",
                                            f"--audit={self.audit}", *flags], env={**os.environ, **clock}, stdout=subprocess.PIPE, stderr=self.log, text=True)]
        assert "listening" in self.processes[0].stdout.readline()
        self.join()

    def join(self):
        self.processes.append(subprocess.Popen([BINARIES / "server/worker/tessera-worker", f"--coordinator={self.socket}", "--memory=16MiB"],
                                               env={**os.environ, "TESSERA_JOIN_TOKEN": "rack"}, stdout=subprocess.DEVNULL, stderr=self.log))
        return self.processes[-1]

    def jump(self, seconds):
        half = self.offset.with_suffix(".new")
        half.write_text(f"{seconds:+d}\n")
        os.rename(half, self.offset)

    def connect(self, whose="a-token", **more):
        return ts.connect(f"{self.socket}#token={whose}", **more)

    def book(self, *words):
        shown = tessera(*words, "--file", str(self.audit), "--json")
        assert shown.returncode == 0, shown.stderr
        return [json.loads(line) for line in shown.stdout.splitlines()]

    def said(self, words):
        return (self.folder / "log").read_text().count(words)

    def stop(self):
        for process in self.processes:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def jumping(folder, text, *flags):
    pool = JumpingPool(folder, text, *flags)
    try:
        yield pool
    finally:
        pool.stop()


def in_an_hour():
    return time.strftime("expires = %Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))


def tenants(more=""):
    return '[[tenant]]\nname = "a"\n' + token("a-token", "a", more=more) + token("root", role="admin") + token("rack", role="worker", more=more)


def test_a_token_ends_by_the_wall_clock_and_a_lease_does_not(tmp_path):
    with jumping(tmp_path, tenants(in_an_hour())) as pool:
        wait_until(lambda: pool.said("worker 0 joined"), "the worker")
        kept = pool.connect(name="kept", lease=30)
        x = kept.distribute_tensor(np.arange(10.0), kept.default_mesh, [ts.Shard(0)]).wait()
        x.name = "x"
        for session in (pool.connect(name="away", lease=30),):
            session.detach()
        pool.jump(2 * DAY)
        with pytest.raises(ts.UnauthenticatedError, match='the token "a-token" has expired'):
            pool.connect()
        late = pool.join()
        assert late.wait(30) == 4 and pool.said('join: the token "rack" has expired')
        # A session that is there goes on, and neither a worker nor a lease has lost time.
        np.testing.assert_array_equal((x + 1).full_tensor(), np.arange(10.0) + 1)
        pool.jump(0)
        with pool.connect(resume="away") as again:
            assert again.tensors() == []
        pool.jump(-2 * DAY)
        with pool.connect() as session:
            np.testing.assert_array_equal(ts.ones((8,), device_mesh=session.default_mesh).full_tensor(), np.ones(8))
        np.testing.assert_array_equal(x.full_tensor(), np.arange(10.0))
        assert not pool.said("is gone") and not pool.said("lease")
        kept.close()


def test_a_lease_ends_in_its_own_time_while_the_clock_stands_in_the_past(tmp_path):
    with jumping(tmp_path, tenants()) as pool:
        wait_until(lambda: pool.said("worker 0 joined"), "the worker")
        pool.connect(name="short", lease=0.5).detach()
        pool.jump(-30 * DAY)
        with pool.connect("root") as admin:
            wait_until(lambda: not [one for one in admin.status()["sessions"] if one["name"] == "short"], "the lease to end")


def test_rows_of_the_book_have_the_clocks_times_and_their_sums_are_right(tmp_path):
    def work(pool, name):
        with pool.connect(name=name) as session:
            values = np.arange(10_000.0)
            with session.comm_debug() as comm:      # ends when the worker has told of the transfers' ends
                x = session.distribute_tensor(values, session.default_mesh, [ts.Shard(0)])
                np.testing.assert_array_equal(x.full_tensor(), values)
                assert float(x.sum()) == values.sum()
            assert comm.bytes_downloaded == [80_008]
            session.close()

    with jumping(tmp_path, tenants()) as pool:
        wait_until(lambda: pool.said("worker 0 joined"), "the worker")
        names = ["today", "in two days", "the day before yesterday", "today again"]
        for name, days in zip(names, (0, 2, -2, 0)):
            pool.jump(days * DAY)
            work(pool, name)

        def used(since):
            rows = [one for one in pool.book("usage", "--since", since, "--sessions") if one["name"] in names]
            for one in rows:
                assert one["uploaded_bytes"] == 80_000 and one["downloaded_bytes"] == 80_008 and one["device_seconds"] >= 0, one
            return {one["name"] for one in rows}

        wait_until(lambda: used("7d") == set(names), "the rows of all")
        # `--since` is by the clock of who asks: rows of the past are left out, those of the future are not.
        assert used("1h") == {"today", "in two days", "today again"}
        total, = [one for one in pool.book("usage", "--since", "7d", "--tenant", "a")]
        assert total["uploaded_bytes"] == 4 * 80_000
        # The lines of the file stand in the order in which all happened, the database's by their times.
        lines = [json.loads(line) for line in pathlib.Path(f"{pool.audit}.jsonl").read_text().splitlines()]
        sessions = [one["session"] for one in lines if one["verb"] == "connect" and one["tenant"] == "a"]
        assert sessions == sorted(sessions) and len(sessions) == 4
        by_time = [one["ts"] for one in pool.book("audit", "--since", "7d")]
        assert by_time == sorted(by_time) and len(by_time) == len(lines)


def test_entries_that_are_lost_are_told_of_while_the_clock_stands_in_the_past(tmp_path):
    def lose_one(pool):
        before = pool.said("audit: entries are lost")
        with contextlib.closing(sqlite3.connect(pool.audit)) as database:
            database.execute("BEGIN EXCLUSIVE")
            with pytest.raises(ts.UnauthenticatedError):
                pool.connect("a-guess")
            wait_until(lambda: pool.said("audit: entries are lost") > before, "the complaint")

    with jumping(tmp_path, tenants()) as pool:
        lose_one(pool)
        pool.jump(-30 * DAY)
        time.sleep(10.1)  # two complaints are that far apart
        lose_one(pool)
