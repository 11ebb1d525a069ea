"""Operating a pool: config files, the log, systemd's notices, an orderly stop, and what admins do to sessions and workers."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading

import numpy as np
import pytest

import tessera as ts
from test_cli import tessera
from test_server_faults import BINARIES, wait_until

COORDINATOR = BINARIES / "server/coordinator/tessera-coordinator"
WORKER = BINARIES / "server/worker/tessera-worker"
TOKENS = {"TESSERA_TOKEN": "client-token", "TESSERA_JOIN_TOKEN": "join-token", "TESSERA_ADMIN_TOKEN": "admin-token"}
R, S = ts.Replicate, ts.Shard


class Pool:
    """A coordinator that runs from a config file, and workers of 16 MiB."""

    def __init__(self, *flags, workers=2, notify=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-operating-", dir="/tmp"))
        self.socket = f"unix:{self.folder}/socket"
        self.config = self.folder / "coordinator.toml"
        self.config.write_text(f'# of the test\nlisten = ["{self.socket}"]\nlog-format = "json"\n')
        self.log = open(self.folder / "log", "wb")
        environment = {**os.environ, **TOKENS, **({"NOTIFY_SOCKET": notify, "WATCHDOG_USEC": "400000"} if notify else {})}
        self.coordinator = subprocess.Popen([COORDINATOR, "--config", self.config, *flags], env=environment,
                                            stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert "listening" in self.coordinator.stdout.readline()
        self.workers = [self.start_worker(index) for index in range(workers)]
        self.await_workers(workers)

    def start_worker(self, index, **environment):
        return subprocess.Popen([WORKER, f"--coordinator={self.socket}", f"--index={index}", "--memory=16MiB", f"--socket-dir={self.folder}"],
                                env={**os.environ, **TOKENS, **environment}, stdout=subprocess.DEVNULL, stderr=self.log)

    def await_workers(self, count):
        with self.connect("admin-token") as admin:
            wait_until(lambda: sum(one["state"] == "alive" for one in admin.status()["workers"]) == count)

    def connect(self, token="client-token", **more):
        return ts.connect(f"{self.socket}#token={token}", **more)

    def tessera(self, *words, token="admin-token"):
        return tessera(*words, "--address", f"{self.socket}#token={token}")

    def lines(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]

    def said(self, words):
        return [line for line in self.lines() if words in line["message"]]

    def stop(self):
        for process in [self.coordinator, *self.workers]:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        codes = [process.wait(timeout=60) for process in [self.coordinator, *self.workers]]
        self.coordinator.stdout.close()
        self.log.close()
        return codes


@contextlib.contextmanager
def running(*flags, **more):
    made = Pool(*flags, **more)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def pool():
    with running() as made:
        yield made


def refused(*words, **environment):
    ended = subprocess.run(words, env={**os.environ, **TOKENS, **environment}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended
    return ended.stderr


# ---- config files and the log ---------------------------------------------------------------------


@pytest.mark.parametrize("program, needed", [(COORDINATOR, 'listen = ["unix:/tmp/x"]\n'), (WORKER, 'coordinator = "unix:/tmp/x"\n')])
def test_a_config_file_is_checked_and_what_is_wrong_is_named(tmp_path, program, needed):
    config = tmp_path / "server.toml"
    config.write_text(needed)
    checked = subprocess.run([program, "--config", config, "--check-config"], env={**os.environ, **TOKENS}, capture_output=True,
                             text=True, timeout=60)
    assert (checked.returncode, checked.stdout) == (0, f"{config}: good\n"), checked.stderr
    config.write_text(needed + "\nno-such-key = 1\n")
    assert f'{config}:3: "no-such-key" is no flag' in refused(program, "--config", config, "--check-config")
    config.write_text(needed + 'log-level = "loud"\n')
    assert f"{config}:2: log-level: " in refused(program, "--config", config, "--check-config")
    config.write_text(needed)
    assert "not in {text,json}" in refused(program, "--config", config, "--log-format", "xml")
    assert "/no/such.toml" in refused(program, "--config", "/no/such.toml")


def test_a_value_of_two_flags_that_disagree_is_found_in_the_file(tmp_path):
    config = tmp_path / "coordinator.toml"
    config.write_text('listen = ["unix:/tmp/x"]\nsession-lease = 50\nmax-session-lease = 5\n')
    assert "coordinator.toml:" in refused(COORDINATOR, "--config", config, "--check-config")
    missing = refused(COORDINATOR, "--config", config, TESSERA_COORDINATOR_SESSION_LEASE="1", TESSERA_COORDINATOR_TENANTS="/no/such")
    assert "/no/such" in missing


def test_each_line_of_a_json_log_is_an_object(pool):
    with pool.connect() as session:
        assert float(ts.ones((4,), device_mesh=session.default_mesh).sum()) == 4
    with pytest.raises(ts.UnauthenticatedError):
        pool.connect("guess\n\"")
    joined = pool.said("worker 1 joined")[0]
    assert joined["worker"] == 1 and joined["level"] == "info" and joined["program"] == "tessera-coordinator"
    assert pool.said("the token is wrong")
    assert all(line["ts"].endswith("Z") for line in pool.lines())
    assert not any("guess" in line["message"] or "token\"" in line["message"] for line in pool.lines())


# ---- systemd, and the stop --------------------------------------------------------------------------


def test_systemd_hears_of_both_programs(tmp_path):
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as manager:
        path = str(tmp_path / "notify")
        manager.bind(path)
        manager.settimeout(60)
        with running(notify=path, workers=0) as pool:
            worker = pool.start_worker(0, NOTIFY_SOCKET=path, WATCHDOG_USEC="400000")
            pool.workers.append(worker)
            heard = []

            def until(words):
                while not any(words in one for one in heard):
                    heard.append(manager.recv(1000).decode())
                heard.clear()

            until(f"MAINPID={worker.pid}")
            for _ in range(3):
                until("WATCHDOG=1")
            worker.send_signal(signal.SIGTERM)
            until("STOPPING=1")
            assert worker.wait(timeout=60) == 0
            pool.coordinator.send_signal(signal.SIGTERM)
            until("STOPPING=1")
            assert pool.coordinator.wait(timeout=60) == 0


def test_the_units_are_what_systemd_takes(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    units = pathlib.Path(__file__).resolve().parents[2] / "deploy/systemd"
    for name, instance in (("tessera-coordinator.service", "tessera-coordinator.service"), ("tessera-worker@.service", "tessera-worker@3.service")):
        text = re.sub(r"/usr/bin/tessera-\w+", "/bin/true", (units / name).read_text())  # which need not be installed
        (tmp_path / instance).write_text(text)
        verified = subprocess.run(["systemd-analyze", "verify", tmp_path / instance], capture_output=True, text=True, timeout=60)
        assert verified.returncode == 0 and "tessera" not in verified.stderr, verified.stderr


def test_a_stopped_coordinator_ends_what_was_issued_and_tells_all():
    pool = Pool()
    session = pool.connect()
    x = ts.ones((256, 256), device_mesh=session.default_mesh, placements=[R()])
    for _ in range(50):
        x = (x @ x) / 256
    x.wait()
    assert pool.stop() == [0, 0, 0]  # the workers, too: theirs was no lost coordinator
    with pytest.raises(ts.TesseraError) as told:
        (x + 1).wait()
    assert "the coordinator was stopped" in str(told.value)


def test_a_coordinator_with_a_tenants_file_ends_well(tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[[tenant]]\nname = "a"\n')
    assert Pool("--tenants", str(tenants)).stop() == [0, 0, 0]


def test_a_second_signal_ends_a_stop_at_once():
    with running("--stop-timeout", "3600", workers=1) as pool:
        with pool.connect() as session:
            pool.workers[0].send_signal(signal.SIGSTOP)  # what it is told does not end
            kept = ts.ones((64,), device_mesh=session.default_mesh) + 1
            wait_until(lambda: pool.tessera("status", "--json").stdout.find('"outstanding": 0') < 0)
            pool.coordinator.send_signal(signal.SIGTERM)
            wait_until(lambda: pool.said("stopping: what was issued may take"))
            with pytest.raises(ts.UnavailableError, match="being stopped"):
                pool.connect()
            assert pool.coordinator.poll() is None
            pool.coordinator.send_signal(signal.SIGTERM)
            assert pool.coordinator.wait(timeout=60) == 0
            pool.workers[0].send_signal(signal.SIGCONT)
            del kept


def test_a_stop_with_a_state_folder_is_a_pause(tmp_path):
    flags = ("--state", str(tmp_path / "state"))
    with running(*flags, workers=0) as pool:
        pool.workers.append(pool.start_worker(0, TESSERA_WORKER_OUTLIVE="60"))
        pool.await_workers(1)
        with pool.connect() as session:
            x = ts.ones((64,), device_mesh=session.default_mesh)
            x.wait()
            pool.coordinator.send_signal(signal.SIGTERM)
            y = x
            for _ in range(300):  # some of it comes while the coordinator stops, or is gone
                y = y + 1
            assert pool.coordinator.wait(timeout=60) == 0
            again = subprocess.Popen([COORDINATOR, "--config", pool.config, *flags], env={**os.environ, **TOKENS},
                                     stdout=subprocess.DEVNULL, stderr=pool.log)
            try:
                np.testing.assert_array_equal(y.full_tensor(), np.full(64, 301.0))
            finally:
                again.terminate()
                assert again.wait(timeout=60) == 0


# ---- the audit ------------------------------------------------------------------------------------


def book_of(path, *words):
    shown = tessera(*words, "--file", str(path), "--since", "1h", "--json")
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_the_audit_knows_who_did_what_and_no_token(tmp_path):
    path = tmp_path / "audit.db"
    with running("--audit", str(path)) as pool:
        with pytest.raises(ts.UnauthenticatedError):
            pool.connect("a-guess")
        with pool.connect(name="run -- 1") as session:
            values = np.arange(10_000.0)
            np.testing.assert_array_equal(session.distribute_tensor(values, session.default_mesh, [S(0)]).full_tensor(), values)
            assert pool.tessera("limit", "de\"fault\n", "weight", "3").returncode == 1
            assert pool.tessera("limit", "default", "weight", "3").returncode == 0
            assert pool.tessera("evict", "default", token="client-token").returncode == 1
            assert pool.tessera("evict", "default", "--reason", "it is late").returncode == 0
        assert pool.tessera("drain", "1").returncode == 0
        wait_until(lambda: any(one["verb"] == "drain" for one in book_of(path, "audit")))
        seen = [(one["verb"], one["decision"], one["token"]) for one in book_of(path, "audit")]
        for expected in (("join", "allowed", "TESSERA_JOIN_TOKEN"), ("connect", "refused", ""), ("connect", "allowed", "TESSERA_TOKEN"),
                         ("limit", "refused", "TESSERA_ADMIN_TOKEN"), ("limit", "allowed", "TESSERA_ADMIN_TOKEN"),
                         ("evict", "refused", "TESSERA_TOKEN"), ("evict", "allowed", "TESSERA_ADMIN_TOKEN"),
                         ("drain", "allowed", "TESSERA_ADMIN_TOKEN")):
            assert expected in seen, (expected, seen)
        assert any("it is late" in one["why"] for one in book_of(path, "audit", "--verb", "end"))
        used, = [one for one in book_of(path, "usage", "--sessions") if one["name"] == "run -- 1"]
        assert used["tenant"] == "default" and used["uploaded_bytes"] == 80_000 and used["downloaded_bytes"] == 80_000
    lines = [json.loads(line) for line in pathlib.Path(f"{path}.jsonl").read_text().splitlines()]
    assert [one["verb"] for one in lines] == [one["verb"] for one in book_of(path, "audit")]
    everything = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    for token in (*TOKENS.values(), "a-guess"):
        assert token.encode() not in everything
    for one in tmp_path.iterdir():
        assert one.stat().st_mode & 0o077 == 0, one


def test_an_admin_reads_the_book_from_elsewhere(tmp_path):
    path = tmp_path / "audit.db"
    with running("--audit", str(path), "--audit-max-rows", "900") as pool:
        with pool.connect("admin-token") as admin:
            for number in range(100, 1400):                      # more than a page has, and than the book keeps
                with pytest.raises(ts.NotFoundError):
                    admin.kill_worker(number)
        wait_until(lambda: any(one["object"] == "worker 1399" for one in book_of(path, "audit")))

        def asked(*words):
            shown = pool.tessera(*words, "--json")
            assert shown.returncode == 0, shown.stderr
            return [json.loads(line) for line in shown.stdout.splitlines()]

        kills = [one["object"] for one in asked("audit", "--verb", "kill-worker")]
        assert 600 < len(kills) <= 900 and kills == [f"worker {number}" for number in range(1400 - len(kills), 1400)]
        assert asked("audit", "--tenant", "nobody") == [] and isinstance(asked("usage", "--sessions", "--since", "1h"), list)
        assert "kill-worker" in pool.tessera("audit").stdout
        assert any(one["verb"] == "audit" and one["decision"] == "allowed" for one in book_of(path, "audit"))
        for verb in ("audit", "usage"):
            refused = pool.tessera(verb, token="client-token")
            assert refused.returncode == 1 and "an admin's token alone may do that" in refused.stderr, refused
    everything = book_of(path, "audit")
    assert len(everything) == 900 and any(one["verb"] == "usage" and one["decision"] == "refused" for one in everything)


def test_a_coordinator_without_a_book_says_so(pool):
    for verb in ("audit", "usage"):
        told = pool.tessera(verb)
        assert told.returncode == 1 and "keeps no audit (tessera-coordinator --audit FILE)" in told.stderr, told
    told = pool.tessera("upgrade")
    assert told.returncode == 1 and "has no state folder" in told.stderr, told


def test_what_the_book_is_asked_wrongly_is_named(tmp_path):
    missing = tessera("usage", "--file", str(tmp_path / "none.db"))
    assert missing.returncode == 1 and "none.db: unable to open" in missing.stderr
    assert "neither a time ago" in tessera("usage", "--file", str(tmp_path), "--since", "soon").stderr


# ---- what admins do -----------------------------------------------------------------------------------


def test_a_tenant_is_evicted_by_name_and_others_go_on(pool):
    with pool.connect() as kept, pool.connect("admin-token") as admin:
        x = ts.ones((8,), device_mesh=kept.default_mesh)
        x.wait()
        assert "no tenant" in pool.tessera("evict", 'no"body\n').stderr
        assert "admin's token" in pool.tessera("evict", "default", token="client-token").stderr
        assert float(x.sum()) == 8
        ended = pool.tessera("evict", "default", "--reason", "the pool is needed")
        assert ended.returncode == 0 and "1 sessions are ended" in ended.stdout, ended
        with pytest.raises(ts.TesseraError) as told:
            (x + 1).wait()
        assert 'an admin evicted tenant "default": the pool is needed' in str(told.value)
        assert admin.status()["session_count"] == 1


def test_a_cordoned_worker_is_kept_from_sessions_that_begin(pool):
    with pool.connect() as former:
        both = former.default_mesh
        assert "admin's token" in pool.tessera("cordon", "1", token="client-token").stderr
        assert "worker 9 is not here" in pool.tessera("cordon", "9").stderr
        assert pool.tessera("cordon", "1").returncode == 0
        assert "cordoned" in pool.tessera("top", "--once").stdout
        assert float(ts.ones((8,), device_mesh=both, placements=[S(0)]).sum()) == 8
        with pool.connect() as later:
            assert later.default_mesh.size() == 1
            asked = later.init_device_mesh((2,), workers=[0, 1])
            with pytest.raises(ts.UnavailableError) as told:
                ts.ones((8,), device_mesh=asked, placements=[S(0)]).wait()
            assert "worker 1 is cordoned" in str(told.value)
        assert pool.tessera("uncordon", "1").returncode == 0
        with pool.connect() as later:
            assert float(ts.ones((8,), device_mesh=later.default_mesh, placements=[S(0)]).sum()) == 8


def test_a_drain_that_would_lose_something_names_its_owner_and_harms_nobody(pool):
    with pool.connect(name='the "run"') as session:
        mesh = session.default_mesh
        x = ts.ones((1024,), device_mesh=mesh, placements=[S(0)])
        x.wait()
        drained = pool.tessera("drain", "1")
        assert drained.returncode == 1 and "worker 1 alone has tensors" in drained.stderr, drained
        assert "default" in drained.stdout and "1 tensors" in drained.stdout, drained.stdout
        assert float((x + 1).sum()) == 2048
        assert "admin's token" in pool.tessera("drain", "1", token="client-token").stderr
        lost = pool.tessera("drain", "1", "--lose")
        assert lost.returncode == 0 and "1 tensors" in lost.stdout, lost
        assert pool.workers[1].wait(timeout=60) == 0
        with pytest.raises(ts.UnavailableError) as told:
            (x + 1).wait()
        assert "an admin drained it" in str(told.value)


def test_a_drain_under_load_loses_nothing_that_has_a_copy(pool):
    with pool.connect() as session:
        mesh = session.default_mesh
        x = ts.ones((64, 64), device_mesh=mesh, placements=[R()])
        ended, results = threading.Event(), []

        def work():
            while not ended.is_set():
                results.append(float((x @ x).sum()))

        worker = threading.Thread(target=work)
        worker.start()
        wait_until(lambda: len(results) > 20)
        drained = pool.tessera("drain", "1")
        before = len(results)
        wait_until(lambda: len(results) > before + 20)
        ended.set()
        worker.join()
        assert drained.returncode == 0, drained
        assert set(results) == {64.0 ** 3}
        assert pool.workers[1].wait(timeout=60) == 0
        pool.workers.append(pool.start_worker(1))
        pool.await_workers(2)


def test_a_worker_that_does_not_end_its_work_is_not_drained():
    with running("--stop-timeout", "1") as pool:
        with pool.connect() as session:
            x = ts.ones((64,), device_mesh=session.init_device_mesh((1,), workers=[0]))
            x.wait()
            pool.workers[1].send_signal(signal.SIGSTOP)
            y = ts.ones((64,), device_mesh=session.init_device_mesh((1,), workers=[1]))
            drained = pool.tessera("drain", "1", "--lose")
            assert drained.returncode == 1 and "has not ended in 1 s" in drained.stderr, drained
            pool.workers[1].send_signal(signal.SIGCONT)
            np.testing.assert_array_equal((y + 1).full_tensor(), np.full(64, 2.0))


def test_a_replay_of_what_admins_did_gives_the_same(tmp_path):
    journal = tmp_path / "journal"
    with running("--journal", str(journal), "--journal-digest") as pool:
        with pool.connect() as session:
            float(ts.ones((8,), device_mesh=session.default_mesh, placements=[S(0)]).sum())
            for words in (("cordon", "1"), ("uncordon", "1"), ("cordon", "0"), ("drain", "1", "--lose"), ("evict", "default")):
                assert pool.tessera(*words).returncode == 0, words
    replayed = subprocess.run([COORDINATOR, "--replay", journal], capture_output=True, text=True, timeout=60)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.split()[-1] == (tmp_path / "journal.digest").read_text().strip()
