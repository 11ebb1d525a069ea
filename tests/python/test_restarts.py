"""A coordinator that is killed and started again on the same state folder, with workers and clients that go on."""

import fcntl
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from state_pool import BINARIES, ENVIRONMENT, Pool

@pytest.fixture
def pool(tmp_path):
    tmp_path.chmod(0o700)
    made = Pool(tmp_path)
    yield made
    made.stop()


def test_a_session_goes_on_with_all_that_it_has(pool):
    with pool.connect() as session:
        mesh = session.init_device_mesh((2,))
        values = np.arange(1000.0)
        x = session.distribute_tensor(values, mesh, [ts.Shard(0)])
        kept = [x + float(i) for i in range(200)]
        x.name = "weights"
        for round in range(3):
            y = x * 2.0 + float(round)
            pool.restart()
            np.testing.assert_array_equal(np.asarray(y), values * 2 + round)
            np.testing.assert_array_equal(np.asarray(kept[17 * round]), values + 17 * round)
        assert float(ts.sum(session["weights"])) == values.sum()
        assert all(worker.poll() is None for worker in pool.workers)
    pool.stop()
    assert [worker.returncode for worker in pool.workers] == [0, 0]


def test_killed_in_the_middle_of_ops_every_value_is_right(pool):
    stopping = threading.Event()
    kills = []

    def kill():
        random = np.random.default_rng(0)
        while not stopping.is_set():
            time.sleep(random.uniform(0.02, 0.3))
            pool.restart()
            kills.append(time.monotonic())

    killer = threading.Thread(target=kill)
    with pool.connect() as session:
        mesh = session.init_device_mesh((2,))
        random = np.random.default_rng(1)
        killer.start()
        try:
            rounds = 0
            while len(kills) < 15 or rounds < 10:
                expected = random.standard_normal((200, 300))
                x = session.distribute_tensor(expected, mesh, [ts.Shard(0)])
                for i in range(int(random.integers(5, 100))):
                    x, expected = x * 1.01 + float(i), expected * 1.01 + float(i)
                np.testing.assert_allclose(np.asarray(x.redistribute(mesh, [ts.Shard(1)])), expected)
                rounds += 1
        finally:
            stopping.set()
            killer.join()
        assert {worker.poll() for worker in pool.workers} == {None}


def test_a_named_session_is_found_by_the_next_process_after_a_restart(pool):
    session = pool.connect(name="training")
    mesh = session.init_device_mesh((2,))
    x = session.distribute_tensor(np.arange(8.0), mesh, [ts.Shard(0)])
    x.name = "x"
    session.detach()
    pool.restart()
    with pool.connect(resume="training") as again:
        assert float(ts.sum(again["x"])) == 28.0


def test_a_worker_that_died_meanwhile_is_lost_by_name_and_others_go_on(pool):
    with pool.connect() as session:
        both = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.arange(8.0), both, [ts.Shard(0)])
        copies = session.distribute_tensor(np.arange(8.0), both, [ts.Replicate()])
        float(ts.sum(x + copies))
        pool.kill_coordinator()
        pool.workers[1].send_signal(signal.SIGKILL)
        pool.workers[1].wait()
        pool.coordinator = pool.start_coordinator()
        with pytest.raises(Exception, match="worker 1 was lost .its process ended while there was no coordinator"):
            np.asarray(x)
        np.testing.assert_array_equal(np.asarray(copies), np.arange(8.0))


def test_a_worker_that_died_meanwhile_and_whose_status_nobody_takes_is_lost_at_once(pool):
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        pool.kill_coordinator()
        pool.workers[1].send_signal(signal.SIGKILL)
        while ") Z " not in Path(f"/proc/{pool.workers[1].pid}/stat").read_text():
            time.sleep(0.01)
        pool.coordinator = pool.start_coordinator()
        with pytest.raises(ts.UnavailableError, match="worker 1 was lost .its process ended while there was no coordinator"):
            np.asarray(x)
        pool.workers.append(pool.start_worker(1, 60))
        pool.await_text("worker 1 joined: pid %d" % pool.workers[2].pid)


def test_a_worker_that_was_started_by_another_name_goes_on(tmp_path):
    """As one does that starts itself anew by /proc/self/exe, for a processor that OpenBLAS doesn't know."""
    program = tmp_path / "exe"
    program.symlink_to(BINARIES / "server/worker/tessera-worker")
    pool = Pool(tmp_path, worker=program)
    try:
        with pool.connect(lease=60) as session:
            x = ts.ones((8,), device_mesh=session.init_device_mesh((2,)))
            pool.restart()
            assert (x + 1).full_tensor().tolist() == [2] * 8
    finally:
        pool.stop()


def test_a_worker_that_ends_before_it_has_joined_again_gives_way_to_another_one(pool):
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        pool.workers[1].send_signal(signal.SIGSTOP)
        pool.restart()
        pool.workers[1].kill()
        pool.workers[1].wait()
        pool.workers[1] = pool.start_worker(1, 60)
        pool.await_text("worker 1 joined: pid %d" % pool.workers[1].pid)
        with pytest.raises(ts.UnavailableError, match="worker 1 was lost"):
            np.asarray(x)


def test_a_lock_whose_holder_has_ended_is_waited_for(pool):
    """As where a coordinator is killed as it forks: its child has the lock until it sees that."""
    pool.kill_coordinator()
    with (pool.state / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pool.coordinator = pool.start_coordinator(check=False)
        time.sleep(0.3)
        assert pool.coordinator.poll() is None
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert b"listening" in pool.coordinator.stdout.readline(), pool.text()


def test_a_worker_whose_coordinator_does_not_come_back_ends_with_status_3_and_says_so(tmp_path):
    tmp_path.chmod(0o700)
    pool = Pool(tmp_path, workers=1, outlive=0.5)
    pool.kill_coordinator()
    assert pool.workers[0].wait(30) == 3
    assert "is gone; it goes on with what it was told, and dials for 0.5 s" in pool.text()
    assert f"no coordinator has come back at {pool.address} in 0.5 s (--outlive)" in pool.text()


def test_a_worker_does_not_go_on_with_a_coordinator_that_knows_nothing_of_it(pool):
    pool.kill_coordinator()
    (pool.state / "events-00000001.log").unlink()
    pool.coordinator = pool.start_coordinator()
    assert [worker.wait(30) for worker in pool.workers] == [3, 3]
    assert re.search(r"join: worker 0, process \d of that number, is not waited for here any more", pool.text())


def test_a_folder_is_of_one_coordinator(pool):
    second = pool.start_coordinator(check=False)
    assert second.wait(30) == 1
    assert f"another coordinator has it, process {pool.coordinator.pid}" in pool.text()


def test_a_log_that_is_not_as_it_was_written_stops_the_start(pool):
    with pool.connect() as session:
        float(ts.sum(session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])))
    pool.kill_coordinator()
    log = pool.state / "events-00000001.log"
    whole = log.read_bytes()
    end = -(-len(whole.rstrip(b"\0")) // 8) * 8       # behind it is the reserve
    at = end * 3 // 4
    log.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
    refused = pool.start_coordinator(check=False)
    assert refused.wait(30) == 1
    assert "is not what was written there" in pool.text()
    assert log.read_bytes()[at + 1:] == whole[at + 1:], "the log is as it was"
    log.write_bytes(whole[:end] + b"\x01\x00\x00\x00half of an event")
    pool.coordinator = pool.start_coordinator()
    assert "were no whole event" in pool.text()


def test_a_coordinator_that_is_told_to_end_leaves_a_snapshot_from_which_the_next_one_goes_on(pool):
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        x.wait()
        for snapshot in (2, 3):
            pool.coordinator.terminate()
            assert pool.coordinator.wait(30) == 0
            pool.coordinator = pool.start_coordinator()
            assert float(ts.sum(x)) == 28.0
            assert re.search(rf"events-{snapshot:08}.log: snapshot {snapshot} and \d events", pool.text()), pool.text()


def test_snapshots_are_taken_while_it_works_and_killed_it_goes_on_from_the_last(pool):
    pool.kill_coordinator()
    pool.coordinator = pool.start_coordinator("--snapshot-after=0.001")
    with pool.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        deadline = time.monotonic() + 30
        count = 0
        while "is written, in" not in pool.text():
            assert time.monotonic() < deadline, pool.text()
            x = x + 1
            count += 1
            x.wait()
        pool.restart()
        np.testing.assert_array_equal(np.asarray(x), np.arange(8.0) + count)
    assert re.search(r"going on with .*: snapshot \d+ and \d+ events", pool.text())


def doctor(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([BINARIES / "client/cli/tessera", "doctor", f"--state={folder}"], env={**ENVIRONMENT, "TESSERA_BIN_DIR": BINARIES},
                          capture_output=True, text=True, timeout=60)


def test_doctor_says_what_a_state_folder_has_and_why_a_start_is_refused(pool):
    with pool.connect(name="training") as session:
        float(ts.sum(session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])))
        told = doctor(pool.state)  # while its coordinator runs
        assert told.returncode == 0, told.stderr
        assert re.search(r"events-00000001.log: \d+ bytes, \d+ events after 0", told.stdout)
        assert re.search(r"a start reads \d+ events: epoch \d+, 1 sessions \(1 with a name\), \d tensors, 2 workers", told.stdout)
    pool.kill_coordinator()
    log = pool.state / "events-00000001.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])
    told = doctor(pool.state)
    assert told.returncode == 1
    assert "a start is refused: " in told.stderr and "events-00000001.log: journal: " in told.stderr
    log.write_bytes(whole)
    pool.coordinator = pool.start_coordinator()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    refused = subprocess.run([BINARIES / "server/coordinator/tessera-coordinator", f"--listen=unix:{tmp_path}/s",
                              f"--state={state}"], env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1
    assert "nobody else may write to it" in refused.stderr


def test_up_starts_its_coordinator_again_and_a_session_goes_on(tmp_path):
    tmp_path.chmod(0o700)
    up = subprocess.Popen([BINARIES / "client/cli/tessera", "up", "--workers=2", "--memory=64MiB", f"--state={tmp_path}/state",
                           f"--listen=unix:{tmp_path}/socket"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = up.stdout.readline().strip()
    with ts.connect(address) as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
        for _ in range(2):
            os.kill(coordinator_of(up.pid), signal.SIGKILL)
            assert float(ts.sum(x)) == 28.0
    up.terminate()
    said = up.communicate(timeout=30)[1]
    assert up.returncode == 0
    assert "the coordinator is started again with what it had (2 of 5)" in said


def coordinator_of(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return next(int(child) for child in children if "coordin" in Path(f"/proc/{child}/comm").read_text())


def test_up_that_is_killed_with_all_its_processes_has_the_sessions_and_names_the_tensors_that_are_lost(tmp_path):
    tmp_path.chmod(0o700)

    def start():
        up = subprocess.Popen([BINARIES / "client/cli/tessera", "up", "--workers=2", "--memory=64MiB", f"--state={tmp_path}/state",
                               f"--listen=unix:{tmp_path}/socket"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return up, up.stdout.readline().strip()

    up, address = start()
    session = ts.connect(address, name="training")
    x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
    x.name = "x"
    x.wait()
    up.kill()
    up.wait()
    pids = [process["pid"] for process in json.loads((tmp_path / "state/processes").read_text())["processes"]]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    again, same = start()
    assert same == address, "its tokens lie in the folder"
    assert (tmp_path / "state/tokens").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ts.UnavailableError, match="was lost"):
        np.asarray(session["x"])
    y = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((2,)), [ts.Shard(0)])
    assert float(ts.sum(y)) == 28.0
    session.close()
    again.terminate()
    assert again.wait(30) == 0


NOTEBOOK = """
import os, numpy as np, tessera as ts
session = ts.connect(os.environ["POOL"], token="t")
mesh = session.init_device_mesh((2,))
random = np.random.default_rng(4)
expected = random.standard_normal((200, 300))
x = session.distribute_tensor(expected, mesh, [ts.Shard(0)])
"""
CELL = """
for i in range(60):
    x, expected = x * 1.01 + float(i), expected * 1.01 + float(i)
np.testing.assert_allclose(np.asarray(x.redistribute(mesh, [ts.Shard({dim})])), expected)
x
"""


def test_a_notebook_whose_coordinator_is_killed_in_every_third_cell_shows_what_it_should(pool):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    kills = []

    class Client(nbclient.NotebookClient):
        async def async_execute_cell(self, cell, cell_index, **options):
            killer = threading.Timer(0.02, lambda: (pool.restart(), kills.append(cell_index)))
            if cell_index % 3 == 0:
                killer.start()
            done = await super().async_execute_cell(cell, cell_index, **options)
            if cell_index % 3 == 0:
                killer.join()
            return done

        execute_cell = nbclient.util.run_sync(async_execute_cell)

    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [NOTEBOOK, *(CELL.format(dim=i % 2) for i in range(11)), "session.close()"]
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in cells]
    Client(notebook, timeout=120, kernel_name="python3").execute(env={**os.environ, "POOL": pool.address})
    assert kills == [0, 3, 6, 9, 12]
    shown = [output for cell in notebook.cells for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    assert sum("Tensor(f64[200,300]" in output.get("data", {}).get("text/plain", "") for output in shown) == 11
