"""The command line and the demo against a real cluster."""

import json
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import in_time
import tessera as ts
from conftest import DEVICE, IS_EMULATED
from test_plan_command import tessera

BIN = os.environ.get("TESSERA_BIN_DIR", "bazel-bin")
TESSERA = os.path.join(BIN, "client/cli/tessera")
TRANSPORT = os.environ.get("TESSERA_TEST_TRANSPORT", "shm")


def read_line(process, seconds=30):
    assert select.select([process.stdout], [], [], seconds)[0], "it printed nothing"
    return process.stdout.readline().strip()


def test_what_can_not_be_written_is_no_success():
    with open("/dev/full", "w") as full:
        done = subprocess.run([TESSERA, "plan", "--json", "f32[8] @ mesh(2) [S(0)] -> [R]"], stdout=full, stderr=subprocess.PIPE,
                              text=True)
    assert done.returncode == 1 and done.stderr == "tessera: the output can't be written\n"


def test_doctor_says_what_works(tmp_path):
    checks = ["start", "connect", "upload", "download"]
    out = tessera("doctor", "--json")
    report = json.loads(out.stdout)
    assert out.returncode == 0 and report["ok"] is True and report["error"] is None
    assert report["checks"] == [{"check": check, "ok": True} for check in checks]
    assert report["workers"] == 1 and report["memory_bytes"] == 16 << 20
    lines = tessera("doctor", LD_LIBRARY_PATH="").stdout.splitlines()
    assert lines[-3].startswith("ok: ") and lines[-2].startswith("decoders of files are ")
    assert lines[-1].startswith("no worker with a GPU: cuda: ") and "libcuda.so.1" in lines[-1]
    out = tessera("doctor", "--json", TESSERA_BIN_DIR=str(tmp_path))
    report = json.loads(out.stdout)
    assert out.returncode == 1 and report["ok"] is False and report["checks"] == [{"check": "start", "ok": False}]
    assert "tessera-coordinator" in report["error"] and report["error"] in out.stderr
    help_text = tessera("doctor", "--help").stdout
    assert all(word in help_text for word in ["--json", "error", *checks])


@pytest.mark.skipif(IS_EMULATED, reason="100 MiB at a time take the emulated driver minutes")
def test_bench_measures_a_cluster_that_is_there_or_one_of_its_own(cluster, tmp_path):
    names = ["tiny_ops", "op_and_fetch", "memcpy", "upload", "download", "rows_to_columns", "all_gather", "sum", "matmul"]
    for flags, workers, device in ((("--address", cluster.address), 4, DEVICE), (("--workers", "1"), 1, "cpu")):
        out = tessera("bench", "--json", *flags, HOME=str(tmp_path), TESSERA_ADDRESS="")
        assert out.returncode == 0, out.stderr
        report = json.loads(out.stdout)
        assert (report["workers"], report["device"]) == (workers, device)
        assert [figure["name"] for figure in report["figures"]] == names
        for figure in report["figures"]:
            assert len(figure["seconds"]) == report["runs"] and min(figure["seconds"]) > 0
            assert figure["best"] >= figure["median"] > 0 and figure["unit"] in ("ops/s", "GB/s", "GFLOP/s")
    out = tessera("bench", "--address", "unix:/nowhere#token=1")
    assert out.returncode == 1 and "/nowhere" in out.stderr
    assert tessera("bench", "--workers", "0").returncode == 2


def test_status_and_tensors_show_who_holds_what(cluster, session, mesh4):
    x = ts.zeros((1000, 100), device_mesh=mesh4, placements=[ts.Shard(0)]).wait()
    address = cluster.admin_address
    status = json.loads(tessera("status", "--json", "--address", address).stdout)
    assert [w["state"] for w in status["workers"]] == ["alive"] * 4
    mine = [s for s in status["sessions"] if s["id"] == session.id]
    assert len(mine) == 1 and mine[0]["tensors"] == 1 and mine[0]["bytes"] >= x.nbytes // 4
    text = tessera("status", TESSERA_ADDRESS=address).stdout
    assert "WORKER" in text and "alive" in text and "SESSION" in text
    assert "python" in tessera("tensors", "--address", address).stdout
    listed = json.loads(tessera("tensors", "--json", "--address", address).stdout)
    assert list(listed) == ["sessions"] and mine[0] in listed["sessions"]


def test_a_wrong_token_is_status_1(session):
    out = tessera("status", "--address", f"{session.address}#token=wrong")
    assert out.returncode == 1 and "token" in out.stderr


def test_a_token_in_the_address_beats_the_environments(cluster, monkeypatch):
    base, _, token = cluster.address.partition("#token=")
    monkeypatch.setenv("TESSERA_TOKEN", "another")
    cluster.connect().close()
    assert tessera("status", "--address", cluster.address).returncode == 0
    with pytest.raises(ts.UnauthenticatedError):
        ts.connect(cluster.address, token="another")
    monkeypatch.setenv("TESSERA_TOKEN", token)
    ts.connect(base).close()
    assert tessera("status", "--address", base).returncode == 0


@pytest.mark.whole_system
def test_up_prints_the_address_first_and_ends_on_ctrl_c():
    up = subprocess.Popen([TESSERA, "up", "--workers", "2", "--memory", "32MiB", "--transport", TRANSPORT],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = read_line(up)
        assert address.startswith("unix:/")
        with ts.connect(address) as session:
            np.testing.assert_array_equal(ts.arange(10, device_mesh=session.default_mesh).full_tensor(), np.arange(10))
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        with pytest.raises(ts.UnavailableError):
            ts.connect(address)
    finally:
        up.kill()


@pytest.mark.whole_system
def test_a_bind_beyond_this_host_is_refused():
    out = tessera("up", "--listen", "0.0.0.0:7070")
    assert out.returncode == 2 and "an address is unix:/path or tls://host:port" in out.stderr
    for address, why in (("tcp:0.0.0.0:7070", "an address is unix:/path or tls://host:port"),
                         ("tls://0.0.0.0:7070", "TLS needs a certificate and its key")):
        server = subprocess.run([os.path.join(BIN, "server/coordinator/tessera-coordinator"), "--listen", address],
                                capture_output=True, text=True, timeout=120,
                                env={**os.environ, "TESSERA_TOKEN": "t", "TESSERA_JOIN_TOKEN": "j"})
        assert server.returncode == 2 and why in server.stderr


@pytest.mark.whole_system
def test_the_demo_passes_its_checks():
    out = subprocess.run([sys.executable, "-m", "tessera.demo", "--json", "--transport", TRANSPORT], capture_output=True,
                         text=True, timeout=120)
    report = json.loads(out.stdout)
    assert out.returncode == 0 and report["ok"] and all(report["checks"].values()) and len(report["checks"]) == 12
    assert report["accuracy"] == 0.98831 and report["rows"] == [450, 450, 450, 447]
    assert report["matmul"]["counted"] == [344832] * 3 + [345600]
    assert report["redistribute"]["counted"] == [2424600] * 3 + [2413800]
    assert "bytes wanted" in report["refused"] and "The Gram matrix" in out.stderr


@pytest.mark.whole_system
def test_a_demo_whose_check_fails_is_status_1(monkeypatch):
    from tessera import demo
    monkeypatch.setattr(demo, "ACCURACY", 0.5)
    monkeypatch.setattr(sys, "argv", ["demo", "--json"])
    assert demo.main() == 1


@pytest.mark.whole_system
@in_time.tried_again
def test_a_cluster_larger_than_the_host_is_refused():
    with in_time.Limit(5), pytest.raises(ts.ResourceExhaustedError, match="available"):
        ts.local_cluster(workers=2, memory="100TiB")


@pytest.mark.whole_system
def test_a_cluster_whose_programs_are_missing_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_BIN_DIR", str(tmp_path))
    with pytest.raises(ts.NotFoundError, match="tessera-coordinator"):
        ts.local_cluster(workers=1, memory="16MiB")


def wrap(folder, role, script):
    """A program of that role that is a shell script; "$REAL" is the real one."""
    program = folder / f"tessera-{role}"
    program.write_text(f"#!/bin/sh\nREAL={os.path.abspath(os.path.join(BIN, 'server', role, f'tessera-{role}'))}\n{script}\n")
    program.chmod(0o755)


@pytest.mark.whole_system
@pytest.mark.parametrize("role, match", [("coordinator", "the coordinator does not listen after 8 s: on my way"),
                                         ("worker", "0 of 1 workers joined in 8 s; worker 0: on my way")])
def test_a_cluster_that_is_not_up_in_time_tells_who_is_late(monkeypatch, tmp_path, role, match):
    for real in ("coordinator", "worker"):
        wrap(tmp_path, real, 'exec "$REAL" "$@"')
    wrap(tmp_path, role, "echo on my way >&2\nexec sleep 60")    # the cluster ends it
    monkeypatch.setenv("TESSERA_BIN_DIR", str(tmp_path))
    with pytest.raises(ts.DeadlineExceededError, match=match):
        ts.local_cluster(workers=1, memory="16MiB", timeout=8)


@pytest.mark.whole_system
def test_a_log_is_kept_up_to_its_end(monkeypatch, tmp_path):
    wrap(tmp_path, "coordinator", 'head -c 20000000 /dev/zero | tr "\\0" x >&2\necho the end >&2\nexec "$REAL" "$@"')
    wrap(tmp_path, "worker", 'exec "$REAL" "$@"')
    monkeypatch.setenv("TESSERA_BIN_DIR", str(tmp_path))

    def kept():
        logs = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.stat(log).st_blocks * 512 for log in logs if os.path.islink(log) and "memfd:coordinator" in os.readlink(log))

    before = kept()     # of other clusters of this process
    with ts.local_cluster(workers=1, memory="16MiB") as cluster:
        deadline = time.monotonic() + 60
        while kept() - before > 1 << 20:
            assert time.monotonic() < deadline, kept()
            time.sleep(0.05)
        assert "xxxthe end\n" in cluster.log_tail()


@pytest.mark.whole_system
@in_time.tried_again
def test_a_child_that_ends_is_told_at_once(monkeypatch, tmp_path):
    for role in ("coordinator", "worker"):
        program = tmp_path / f"tessera-{role}"
        program.write_text("#!/bin/sh\necho what went wrong >&2\nexit 3\n")
        program.chmod(0o755)
    monkeypatch.setenv("TESSERA_BIN_DIR", str(tmp_path))
    with in_time.Limit(5), pytest.raises(ts.UnavailableError, match="what went wrong"):
        ts.local_cluster(workers=1, memory="16MiB")
