"""More tensors than memory: those that nobody used lately go to files of their workers, and come back. Real processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from slow_disk import Disk  # noqa: E402
from test_plan_command import tessera  # noqa: E402
from test_restarts import BINARIES, ENVIRONMENT, Pool  # noqa: E402
from two_hosts import wait_until  # noqa: E402

MIB = 1 << 20


def arrays(count, megabytes=8, seed=0):
    """Each of so many MiB."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(megabytes * MIB // 8) for _ in range(count)]


def states(session):
    return Counter(one["state"] for one in session.status()["tensors"])


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "spill"
    folder.mkdir()
    with ts.local_cluster(workers=2, memory="32MiB", spill=folder) as started:
        started.folder = folder
        yield started


@pytest.fixture
def session(cluster):
    with cluster.connect() as opened:
        yield opened


def test_three_times_the_memory_in_idle_tensors(cluster, session):
    mesh = session.init_device_mesh((2,))
    kept = arrays(24)
    tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in kept]
    tensors[-1].wait()
    assert states(session)["spilled"] >= 16
    (mine,) = session.status()["sessions"]
    assert mine["bytes"] <= 32 * MIB and mine["bytes"] + mine["spilled_bytes"] == 24 * 4 * MIB
    assert os.listdir(cluster.folder) == []                   # their files have no names
    for tensor, array in zip(tensors, kept):
        np.testing.assert_array_equal(tensor.full_tensor(), array)
    for i, j in [(0, 23), (23, 0), (11, 12), (5, 5)]:
        np.testing.assert_array_equal((tensors[i] + tensors[j]).full_tensor(), kept[i] + kept[j])
    table = tessera("tensors", "--address", cluster.address).stdout
    assert "IN FILES" in table


def test_writes_reach_what_is_in_files(session):
    mesh = session.init_device_mesh((2,))
    kept = arrays(12)
    tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in kept]
    views = [tensor.reshape(1024, -1) for tensor in tensors]
    for i, tensor in enumerate(tensors):
        tensor[3] = i
        kept[i][3] = i
    for view, array in zip(views, kept):
        view[5] += 1
        array.reshape(1024, -1)[5] += 1
    for tensor, array in zip(tensors, kept):
        np.testing.assert_array_equal(tensor.full_tensor(), array)


def test_what_is_dropped_in_files_gives_its_place_back(session):
    mesh = session.init_device_mesh((2,))
    tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in arrays(12)]
    tensors[-1].wait()
    assert session.status()["sessions"][0]["spilled_bytes"] > 0
    del tensors
    wait_until(lambda: session.status()["sessions"][0]["spilled_bytes"] == 0, "the files to go")
    assert session.status()["workers"][0]["used_bytes"] == 0


def test_a_neighbour_without_a_client_gives_way_and_finds_all_again(cluster):
    kept = arrays(7)
    idle = cluster.connect(name="idle", lease=600)
    mesh = idle.init_device_mesh((2,))
    named = [idle.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in kept]
    for i, tensor in enumerate(named):
        tensor.name = f"x{i}"
    idle.detach()
    with cluster.connect() as session:
        others = [session.distribute_tensor(array, session.init_device_mesh((2,)), [ts.Shard(0)]) for array in arrays(6, seed=1)]
        for tensor, array in zip(others, arrays(6, seed=1)):
            np.testing.assert_array_equal(tensor.full_tensor(), array)
        assert session.status()["sessions"][0]["spilled_bytes"] in (0, 4 * MIB)
    with cluster.connect(resume="idle") as again:
        assert len(again.tensors()) == len(kept)
        for tensor in again.tensors():
            np.testing.assert_array_equal(tensor.full_tensor(), kept[int(tensor.name[1:])])


def test_a_plan_that_needs_more_than_all_memory_is_refused_with_numbers(session):
    mesh = session.init_device_mesh((2,))
    kept = session.distribute_tensor(arrays(1)[0], mesh, [ts.Shard(0)])
    with pytest.raises(ts.ResourceExhaustedError, match="does not fit"):
        ts.zeros(10 * MIB, dtype="f64", device_mesh=mesh, placements=[ts.Shard(0)]).wait()
    np.testing.assert_array_equal(kept.full_tensor(), arrays(1)[0])


def test_a_lost_worker_takes_its_files_along_by_name(cluster, session):
    mesh = session.init_device_mesh((2,))
    tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in arrays(12)]
    copies = session.distribute_tensor(np.arange(float(MIB)), mesh, [ts.Replicate()])
    more = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in arrays(8, seed=2)]
    more[-1].wait()
    assert states(session)["spilled"] >= 8
    os.kill(cluster.worker_pids[1], signal.SIGKILL)
    with pytest.raises(ts.UnavailableError, match="worker 1"):
        tensors[0].full_tensor()
    del tensors, more                                         # what is lost has its memory until nobody has it
    np.testing.assert_array_equal(copies.full_tensor(), np.arange(float(MIB)))


def test_a_full_disk_and_a_broken_one_cost_no_tensor(tmp_path):
    disk = Disk(tmp_path)
    kept = arrays(16)
    with disk.cluster(spill=disk.folder, coordinator_flags=["--spill-retry=1"]) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        with disk.broken("fallocate", "pwrite"):
            held = [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in kept[:15]]
            with pytest.raises(ts.ResourceExhaustedError, match="could not write a file"):
                [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in (kept[15], kept[15])]
            for tensor, array in zip(held, kept):
                np.testing.assert_array_equal(tensor.full_tensor(), array)
        time.sleep(1.2)                                       # until it is tried again
        more = [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in kept[:8]]
        away = next(tensor for tensor, one in zip(held, session.status()["tensors"]) if one["state"] == "spilled")
        with disk.broken("pread"), pytest.raises(ts.TesseraError, match="did not come back.*Input/output error"):
            away.full_tensor()
        for tensor, array in [*zip(held, kept), *zip(more, kept)]:
            np.testing.assert_array_equal(tensor.full_tensor(), array)


def test_a_folder_that_vanishes_under_a_living_worker_costs_no_tensor(tmp_path):
    folder = tmp_path / "spill"
    folder.mkdir()
    kept = arrays(24)
    with ts.local_cluster(workers=2, memory="32MiB", spill=folder, coordinator_flags=["--spill-retry=0.2"]) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))

        def upload(some):
            return [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in some]

        def same(tensors):
            return all(np.array_equal(tensor.full_tensor(), array) for tensor, array in zip(tensors, kept))

        folder.rmdir()                                        # before a file was made there
        held = upload(kept[:7])
        with pytest.raises(ts.ResourceExhaustedError, match="worker [01] could not write a file for others' tensors"):
            upload(kept[7:9])
        assert same(held) and states(session)["spilled"] == 0
        assert f"a file in {folder}: No such file or directory" in cluster.log_tail(0) + cluster.log_tail(1)
        folder.mkdir()
        time.sleep(0.3)                                       # until it is tried again
        held += upload(kept[7:16])
        assert states(session)["spilled"] >= 8
        shutil.rmtree(folder)                                 # its file has no name, and stays
        held += upload(kept[16:])
        assert states(session)["spilled"] >= 16 and same(held)


def test_a_disk_that_hangs_holds_up_who_waits_for_it_alone(tmp_path):
    disk = Disk(tmp_path)
    with disk.cluster(spill=disk.folder) as cluster, cluster.connect() as session, cluster.connect() as neighbour:
        mesh = session.init_device_mesh((2,))
        kept = arrays(15)
        held = [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in kept]
        small = neighbour.distribute_tensor(np.arange(10.0), neighbour.init_device_mesh((2,)), [ts.Shard(0)]).wait()
        with disk.away("pwrite", "fallocate"):
            waiting = []
            thread = threading.Thread(target=lambda: waiting.extend(session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in kept[:2]))
            thread.start()
            for _ in range(50):
                assert float((small * 2).sum().full_tensor()) == 90
            time.sleep(0.5)
            assert thread.is_alive() and not waiting
        thread.join()
        for tensor, array in [*zip(waiting, kept), *zip(held, kept)]:
            np.testing.assert_array_equal(tensor.full_tensor(), array)


def test_a_coordinator_that_is_killed_finds_what_lies_in_files(tmp_path):
    folder = tmp_path / "spill"
    folder.mkdir()

    class SpillingPool(Pool):
        def start_worker(self, index, outlive):
            return subprocess.Popen([BINARIES / "server/worker/tessera-worker", f"--coordinator={self.address}", f"--index={index}", "--memory=32MiB",
                                     f"--socket-dir={self.folder}", f"--outlive={outlive}", f"--spill={folder}"],
                                    env=ENVIRONMENT, stdout=self.log, stderr=self.log)

    kept = arrays(16)
    pool = SpillingPool(tmp_path)
    try:
        with pool.connect() as session:
            mesh = session.init_device_mesh((2,))
            tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in kept]
            tensors[-1].wait()
            assert states(session)["spilled"] >= 8
            for first in (0, 8):
                pool.restart()
                for tensor, array in zip(tensors[first:first + 8], kept[first:first + 8]):
                    np.testing.assert_array_equal(tensor.full_tensor(), array)
    finally:
        for process in (pool.coordinator, *pool.workers):
            process.kill()
            process.wait()


@pytest.mark.parametrize("flags, said", [
    (["--spill={folder}/none"], "--spill .*none: a file in .*: No such file or directory"),
    (["--spill-max=1GiB"], "--spill-max says how much may be in the folder of --spill, which is missing"),
])
def test_a_folder_that_is_none_is_told_at_the_start(tmp_path, flags, said):
    command = [BINARIES / "server/worker/tessera-worker", f"--coordinator=unix:{tmp_path}/socket", "--memory=1MiB",
               *(flag.format(folder=tmp_path) for flag in flags)]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert re.search(said, ended.stderr), ended.stderr
