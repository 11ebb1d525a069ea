"""A day in the life of a pool: twenty tenants work all day, while what happens to a pool happens to this one. Real processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from state_pool import BINARIES, Pool  # noqa: E402
from test_cli import tessera  # noqa: E402
from test_operating import book_of  # noqa: E402
from test_tenants import token  # noqa: E402
from two_hosts import wait_until  # noqa: E402

MIB = 1 << 20
TENANTS = [f"t{number:02}" for number in range(20)]
DRAINED, KILLED = 3, 2


def tenants_file(more="", rotated=(), limits=None):
    """The file with tokens of all tenants: `t00-token`, or `t00-new` of those that were rotated."""
    text = "".join(f'[[tenant]]\nname = "{name}"\nweight = {1 + number % 3}\nmemory.max = "{(limits or {}).get(name, "40MiB")}"\nsessions = 4\n'
                   for number, name in enumerate(TENANTS))
    text += "".join(token(f"{name}-new" if name in rotated else f"{name}-token", name) for name in TENANTS)
    return text + token("root", role="admin") + token("j", role="worker") + more


class DayPool(Pool):
    """Four workers that spill, and a coordinator with a state folder, a tenants file, an audit and metrics."""

    def __init__(self, folder):
        self.file, self.spill, self.audit = folder / "tenants.toml", folder / "spill", folder / "audit.db"
        self.file.write_text(tenants_file())
        self.spill.mkdir()
        self.port = 0
        super().__init__(folder, workers=4)

    def start_coordinator(self, check=True):
        process = subprocess.Popen([BINARIES / "server/coordinator/tessera-coordinator", f"--listen={self.address}", f"--state={self.state}", f"--tenants={self.file}",
                                    f"--audit={self.audit}", f"--listen-http=127.0.0.1:{self.port}", "--snapshot-after=0.2", "--stop-timeout=30"],
                                   stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert "listening" in process.stdout.readline(), self.text()
        self.port = int(re.search(r"127.0.0.1:(\d+)", process.stdout.readline())[1])
        return process

    def start_worker(self, index, outlive):
        return subprocess.Popen([BINARIES / "server/worker/tessera-worker", f"--coordinator={self.address}", f"--index={index}", "--memory=48MiB",
                                 f"--socket-dir={self.folder}", f"--outlive={outlive}", f"--spill={self.spill}"],
                                env={**os.environ, "TESSERA_JOIN_TOKEN": "j"}, stdout=self.log, stderr=self.log)

    def connect(self, name="root", **more):
        return ts.connect(f"{self.address}#token={name}", **more)

    def tessera(self, *words):
        done = tessera(*words, "--address", f"{self.address}#token=root")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def reread(self, text):
        told = self.text().count("the tenants file has")
        half = self.file.with_suffix(".new")
        half.write_text(text)
        os.rename(half, self.file)
        self.coordinator.send_signal(signal.SIGHUP)
        wait_until(lambda: self.text().count("the tenants file has") > told, "the file to be read")

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            return answer.read().decode()


class Team(threading.Thread):
    """A tenant at work: small jobs, one after the other, each compared with NumPy. It begins a new session when it is told to."""

    def __init__(self, pool, name):
        super().__init__(name=name)
        self.pool, self.tenant, self.token = pool, name, f"{name}-token"
        self.done, self.losses, self.sessions, self.fault = 0, 0, 0, None
        self.is_over, self.is_to_reconnect = threading.Event(), threading.Event()

    def run(self):
        random = np.random.default_rng(int(self.tenant[1:]))
        try:
            while not self.is_over.is_set():
                self.is_to_reconnect.clear()
                with self.pool.connect(self.token) as session:
                    self.sessions += 1
                    while not (self.is_over.is_set() or self.is_to_reconnect.is_set()):
                        self.job(session, random)
        except Exception as fault:  # noqa: BLE001: the test tells it
            self.fault = fault

    def job(self, session, random):
        a, b = random.standard_normal((2, 24, 24))
        try:
            x, y = (session.distribute_tensor(array, session.default_mesh, [ts.Shard(0)]) for array in (a, b))
            product, moved, total = (x @ y + 1).full_tensor(), x.redistribute([ts.Shard(1)]).full_tensor(), float((x * 2).sum())
        except ts.UnavailableError as error:
            # The one that was killed is named; nothing else may be the reason.
            if f"worker {KILLED}" not in str(error):
                raise
            self.losses += 1
            return
        np.testing.assert_allclose(product, a @ b + 1)
        np.testing.assert_array_equal(moved, a)
        np.testing.assert_allclose(total, 2 * a.sum(), atol=1e-10)
        self.done += 1


class Day:
    def __init__(self, pool):
        self.pool, self.teams = pool, [Team(pool, name) for name in TENANTS]

    def __enter__(self):
        for team in self.teams:
            team.start()
        self.all_go_on("the morning")
        return self

    def all_go_on(self, when):
        """Each team ends three more jobs."""
        before = [team.done for team in self.teams]
        deadline = time.monotonic() + 60
        while any(team.done < done + 3 for team, done in zip(self.teams, before)):
            faults = {team.tenant: team.fault for team in self.teams if team.fault is not None}
            assert not faults, (when, faults)
            assert time.monotonic() < deadline, (when, {team.tenant: team.done - done for team, done in zip(self.teams, before)}, self.pool.text()[-2000:])
            time.sleep(0.02)

    def __exit__(self, *_):
        for team in self.teams:
            team.is_over.set()
        for team in self.teams:
            team.join()


@pytest.fixture
def pool(tmp_path):
    made = DayPool(tmp_path)
    yield made
    for process in (made.coordinator, *made.workers):
        process.kill()
        process.wait()


def test_twenty_teams_share_a_pool_for_a_day(pool):
    with Day(pool) as day:
        everyone = {name: pool.connect(f"{name}-token", lease=60) for name in TENANTS[:7]}
        mesh = {name: session.init_device_mesh((2,), workers=[0, 1]) for name, session in everyone.items()}

        # A token is rotated under load: its session goes on, and a new one needs the new token.
        pool.reread(tenants_file(token("t00-new", "t00")))
        day.teams[0].token = "t00-new"
        pool.reread(tenants_file(rotated=["t00"]))
        with pytest.raises(ts.UnauthenticatedError):
            pool.connect("t00-token")
        day.teams[0].is_to_reconnect.set()
        day.all_go_on("a token was rotated")
        assert day.teams[0].sessions == 2

        # A quota falls below what its tenant has: nothing is taken away, and no more is given.
        held = [np.random.default_rng(i).standard_normal(MIB // 8) for i in range(4)]
        kept = [everyone["t01"].distribute_tensor(array, mesh["t01"], [ts.Shard(0)]).wait() for array in held]
        pool.reread(tenants_file(rotated=["t00"], limits={"t01": "1MiB"}))
        with pytest.raises(ts.ResourceExhaustedError, match="memory.max is 1048576"):
            ts.ones((MIB,), device_mesh=mesh["t01"], placements=[ts.Shard(0)]).wait()
        day.teams[1].is_over.set()  # its jobs would be refused, too
        day.teams[1].join()
        pool.reread(tenants_file(rotated=["t00"]))
        day.teams[1] = Team(pool, "t01")
        day.teams[1].start()

        # One tenant's weights, read by three others where they lie.
        weights = np.random.default_rng(7).standard_normal((256, 64))
        w = everyone["t02"].distribute_tensor(weights, mesh["t02"], [ts.Shard(0)])
        everyone["t02"].publish({"w": w, "wt": w.T @ w}, "t02/weights", readers=["t03", "t04", "t05"])
        read = [everyone[name].attach("t02/weights") for name in ("t03", "t04", "t05")]
        with pytest.raises(ts.NotFoundError):
            everyone["t06"].attach("t02/weights")

        # More tensors than memory.
        many = [np.random.default_rng(100 + i).standard_normal(8 * MIB // 8) for i in range(15)]
        pool.reread(tenants_file(rotated=["t00"], limits={"t06": "none"}))
        spilled = [everyone["t06"].distribute_tensor(array, mesh["t06"], [ts.Shard(0)]) for array in many]
        spilled[-1].wait()
        assert sum(one["state"] == "spilled" for one in everyone["t06"].status()["tensors"]) >= 3
        day.all_go_on("tensors went to files")

        def all_is_there():
            for tensor, array in [*zip(kept, held), *zip(spilled, many), *((one["w"], weights) for one in read)]:
                np.testing.assert_array_equal(tensor.full_tensor(), array)
            for one in read:
                np.testing.assert_allclose(one["wt"].full_tensor(), weights.T @ weights)

        # A worker is cordoned; teams that begin again use the others, and it is drained.
        pool.tessera("cordon", str(DRAINED))
        for team in day.teams:
            team.is_to_reconnect.set()
        wait_until(lambda: all(not team.is_to_reconnect.is_set() for team in day.teams), "all to begin again")
        day.all_go_on("a worker was cordoned")
        pool.tessera("drain", str(DRAINED))
        assert pool.workers[DRAINED].wait(60) == 0
        day.all_go_on("a worker was drained")

        # The coordinator is killed in the middle of all that, and started again.
        pool.restart()
        day.all_go_on("the coordinator was killed")
        all_is_there()

        # A worker dies: its name is told where something was on it, and all go on with the rest.
        pool.workers[KILLED].kill()
        day.all_go_on("a worker died")
        all_is_there()
        assert sum(team.losses for team in day.teams) < 200

        text = pool.metrics()
        for name in TENANTS:
            assert re.search(rf'tessera_tenant_device_seconds_total\{{tenant="{name}",worker="0",lane="\w+"\}} ', text), name
        assert f'tessera_worker_state{{worker="{KILLED}",state="lost"}} 1' in text
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
            assert checked.returncode == 0, checked.stdout + checked.stderr

    # The evening: everything has been given back, and the book has the day.
    assert [team.fault for team in day.teams] == [None] * 20
    del kept, w, read, spilled
    everyone["t02"].unpublish("t02/weights")
    for session in everyone.values():
        session.close()
    with pool.connect() as admin:
        wait_until(lambda: all(worker["used_bytes"] == 0 for worker in admin.workers()), "all memory to be given back")
    verbs = {(one["verb"], one["decision"], one["tenant"]) for one in book_of(pool.audit, "audit")}
    assert {("cordon", "allowed", "default"), ("drain", "allowed", "default"), ("connect", "allowed", "t19"), ("join", "allowed", "default"),
            ("tenants-file", "allowed", "")} <= verbs, verbs
    pool.coordinator.send_signal(signal.SIGTERM)
    assert pool.coordinator.wait(60) == 0
    used = {one["tenant"]: one for one in book_of(pool.audit, "usage")}
    assert set(TENANTS) <= set(used)
    assert all(used[name]["device_seconds"] > 0 and used[name]["uploaded_bytes"] > 0 for name in TENANTS)
