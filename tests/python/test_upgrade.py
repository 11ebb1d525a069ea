"""A coordinator that becomes its program's newest version in place, while workers wait and clients' calls go on."""

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from state_pool import BINARIES, ENVIRONMENT, Pool

COORDINATOR = BINARIES / "server/coordinator/tessera-coordinator"


def install(program, source=COORDINATOR):
    """As a package manager does it: another file under the same name."""
    shutil.copy2(source, f"{program}.new")
    os.chmod(f"{program}.new", 0o755)
    os.rename(f"{program}.new", program)


def upgrade(state):
    return subprocess.run([BINARIES / "client/cli/tessera", "upgrade", f"--state={state}"], env={**ENVIRONMENT, "TESSERA_BIN_DIR": BINARIES},
                          capture_output=True, text=True, timeout=120)


@pytest.fixture
def pool(tmp_path):
    install(tmp_path / "tessera-coordinator")
    made = Pool(tmp_path, coordinator=tmp_path / "tessera-coordinator")
    yield made
    made.stop()


def inode_of(pid):
    return os.stat(f"/proc/{pid}/exe").st_ino


def test_the_newest_program_goes_on_in_place_while_ops_are_under_way(pool):
    pid, states, stopping = pool.coordinator.pid, set(), threading.Event()
    with pool.connect() as session:
        mesh = session.init_device_mesh((2,))
        kept = session.distribute_tensor(np.arange(1000.0), mesh, [ts.Shard(0)])
        kept.name = "kept"
        random, rounds = np.random.default_rng(3), []

        def work():
            while not stopping.is_set():
                expected = random.standard_normal((100, 200))
                x = session.distribute_tensor(expected, mesh, [ts.Shard(0)])
                for i in range(30):
                    x, expected = x * 1.01 + float(i), expected * 1.01 + float(i)
                    states.add(session.state)
                rounds.append((np.asarray(x.redistribute(mesh, [ts.Shard(1)])), expected))

        worker = threading.Thread(target=work)
        worker.start()
        try:
            for _ in range(3):
                before, done = inode_of(pid), len(rounds)
                install(pool.program)
                told = upgrade(pool.state)
                assert told.returncode == 0, (told, pool.text())
                assert told.stdout.startswith("upgraded: version ") and f"process {pid}" in told.stdout
                assert inode_of(pid) != before, "it is the other file that runs"
                deadline = time.monotonic() + 60
                while len(rounds) < done + 3:
                    assert time.monotonic() < deadline and worker.is_alive(), pool.text()
                    time.sleep(0.01)
        finally:
            stopping.set()
            worker.join(60)
        for got, expected in rounds:
            np.testing.assert_allclose(got, expected)
        assert float(ts.sum(session["kept"])) == np.arange(1000.0).sum()
        assert pool.coordinator.poll() is None and {worker.poll() for worker in pool.workers} == {None}
        assert states <= {"open", "reconnecting"}, states
    assert "snapshot" in pool.text() and "going on as " in pool.text()


@pytest.mark.parametrize("program", ["#!/bin/sh\necho 'segment 2 is of version 9' >&2\nexit 1\n", "no program"])
def test_a_program_that_cannot_go_on_with_the_folder_leaves_all_as_it_is(pool, program):
    pid = pool.coordinator.pid
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        before = inode_of(pid)
        (pool.folder / "other").write_text(program)
        install(pool.program, pool.folder / "other")
        told = upgrade(pool.state)
        assert told.returncode == 1
        assert "the coordinator goes on as it was" in told.stderr, told
        assert ("is of version 9" if program.startswith("#!") else "can't be run") in told.stderr, told
        assert inode_of(pid) == before and session.state == "open"
        assert float(ts.sum(x)) == 28.0
        install(pool.program)
        assert upgrade(pool.state).returncode == 0
        assert float(ts.sum(x)) == 28.0


def from_elsewhere(pool, token="a"):
    return subprocess.run([BINARIES / "client/cli/tessera", "upgrade", "--address", f"{pool.address}#token={token}"], env=ENVIRONMENT,
                          capture_output=True, text=True, timeout=120)


def test_an_admin_from_elsewhere_upgrades_it_and_hears_of_the_end(pool):
    pid = pool.coordinator.pid
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        for _ in range(3):
            before = inode_of(pid)
            install(pool.program)
            told = from_elsewhere(pool)
            assert told.returncode == 0, (told, pool.text())
            assert told.stdout.startswith("upgraded: version ") and f"process {pid}" in told.stdout
            assert inode_of(pid) != before, "it is the other file that runs"
            assert float(ts.sum(x)) == 28.0
        (pool.folder / "other").write_text("#!/bin/sh\necho 'segment 2 is of version 9' >&2\nexit 1\n")
        install(pool.program, pool.folder / "other")
        for _ in range(2):
            told = from_elsewhere(pool)
            assert told.returncode == 1 and "the coordinator goes on as it was" in told.stderr and "is of version 9" in told.stderr, told
        install(pool.program)
        assert from_elsewhere(pool).returncode == 0 and float(ts.sum(x)) == 28.0


def test_nobody_but_an_admin_upgrades_from_elsewhere(pool):
    before = inode_of(pool.coordinator.pid)
    told = from_elsewhere(pool, token="t")
    assert told.returncode == 1 and "upgrade: the coordinator: an admin's token alone may do that" in told.stderr, told
    assert inode_of(pool.coordinator.pid) == before


def test_a_folder_that_no_coordinator_has_is_told(tmp_path):
    told = upgrade(tmp_path)
    assert told.returncode == 1
    assert "no coordinator has" in told.stderr and "start the newest program on it" in told.stderr


def test_a_pool_that_up_supervises_is_upgraded_and_ends_in_order(tmp_path):
    tmp_path.chmod(0o700)
    up = subprocess.Popen([BINARIES / "client/cli/tessera", "up", "--workers=2", "--memory=64MiB", f"--state={tmp_path}/state"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TESSERA_BIN_DIR": str(BINARIES)})
    address = up.stdout.readline().strip()
    with ts.connect(address) as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        pid = int((tmp_path / "state/lock").read_text())
        for _ in range(2):
            told = upgrade(tmp_path / "state")
            assert told.returncode == 0, told
            assert f"process {pid}" in told.stdout
            assert float(ts.sum(x)) == 28.0
        with ts.connect(address) as other:  # with the tokens that it had by a descriptor
            other.status()
        os.kill(pid, signal.SIGKILL)  # up starts it again, too
        assert float(ts.sum(x)) == 28.0
    up.terminate()
    said = up.communicate(timeout=30)[1]
    assert up.returncode == 0, said
    assert "(1 of 5)" in said, said
    assert not Path(f"/proc/{pid}").exists()


def test_a_pool_whose_up_is_killed_after_an_upgrade_leaves_no_process_where_no_other_comes(tmp_path):
    tmp_path.chmod(0o700)
    up = subprocess.Popen([BINARIES / "client/cli/tessera", "up", "--workers=1", "--memory=64MiB", f"--state={tmp_path}/state", "--outlive=0.5"],
                          stdout=subprocess.PIPE, text=True, env={**os.environ, "TESSERA_BIN_DIR": str(BINARIES)})
    up.stdout.readline()
    pid = int((tmp_path / "state/lock").read_text())
    assert upgrade(tmp_path / "state").returncode == 0
    up.kill()
    up.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
