"""Tensors of GPUs that nobody used lately go to the host's memory first, and to files when that is full."""

import os
import re
import subprocess

import numpy as np
import pytest

import tessera as ts
from test_gpu_workers import gpu, needs_gpu  # noqa: F401
from test_server_faults import BINARIES

MIB = 1 << 20
WORKER = BINARIES / "server/worker/tessera-worker"


def arrays(count, megabytes=4, seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal(megabytes * MIB // 8) for _ in range(count)]


def cluster_of(tmp_path, memory, *flags, **more):
    folder = tmp_path / "spill"
    folder.mkdir()
    return ts.local_cluster(workers=2, memory="16MiB", device="cuda", spill=folder, worker_flags=[f"--spill-memory={memory}", *flags], **more)


def bytes_in_files(cluster):
    """Blocks on the disk of the files without names that the workers have open."""
    blocks = 0
    for pid in cluster.worker_pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            if re.search(r"/spill/#\d+ \(deleted\)$", os.readlink(f"/proc/{pid}/fd/{name}")):
                blocks += os.stat(f"/proc/{pid}/fd/{name}").st_blocks
    return blocks * 512


@needs_gpu
def test_the_hosts_memory_is_taken_before_files(gpu, tmp_path):  # noqa: F811
    with cluster_of(tmp_path, "24MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh("cuda", (2,))
        kept = arrays(24)
        tensors, seen = [], []
        for array in kept:
            tensors.append(session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait())
            status = session.status()
            spilled = status["sessions"][0]["spilled_bytes"]       # of each worker
            seen.append((spilled, bytes_in_files(cluster)))
            states = [one["state"] for one in status["tensors"]]
            if seen[-1][1] == 0:
                assert "spilled" not in states and states.count("spilled_to_host") * 2 * MIB == status["workers"][0]["spilled_to_host_bytes"]
        assert max(spilled for spilled, _ in seen) >= 30 * MIB
        assert all(on_disk == 0 for spilled, on_disk in seen if spilled <= 24 * MIB) and seen[-1][1] > 0, seen
        assert {"spilled", "spilled_to_host", "ready"} == set(states), states
        for tensor, array in zip(tensors, kept):
            np.testing.assert_array_equal(tensor.full_tensor(), array)
        for i, j in [(0, 23), (23, 0), (11, 12)]:
            np.testing.assert_array_equal((tensors[i] + tensors[j]).full_tensor(), kept[i] + kept[j])
        assert "of the host's memory (--spill-memory), then" in cluster.log_tail(0)


@needs_gpu
def test_what_is_dropped_gives_its_place_back(gpu, tmp_path):  # noqa: F811
    with cluster_of(tmp_path, "40MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh("cuda", (2,))
        for seed in range(3):                          # three times what the memory takes
            tensors = [session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait() for array in arrays(20, seed=seed)]
            for tensor, array in zip(tensors, arrays(20, seed=seed)):
                np.testing.assert_array_equal(tensor.full_tensor(), array)
            del tensors
        assert bytes_in_files(cluster) == 0


@pytest.mark.parametrize("flags, why", [(["--spill=/tmp"], "--spill-memory is for workers of GPUs"),
                                        (["--spill-memory=lots"], "--spill-memory")])
def test_what_could_not_work_is_refused(flags, why):
    ended = subprocess.run([WORKER, "--coordinator=unix:/nowhere", "--memory=16MiB", "--spill-memory=8MiB", *flags],
                           env={**os.environ, "TESSERA_JOIN_TOKEN": "j"}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and why in ended.stderr, ended


@needs_gpu
def test_memory_without_a_folder_is_refused_by_name(gpu):  # noqa: F811
    ended = subprocess.run([WORKER, "--coordinator=unix:/nowhere", "--memory=16MiB", "--spill-memory=8MiB", "--device=cuda"],
                           env={**os.environ, "TESSERA_JOIN_TOKEN": "j"}, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "--spill FOLDER is missing" in ended.stderr, ended
