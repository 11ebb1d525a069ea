"""A pool that a real Slurm places on two nodes: docs/slurm.md. Skipped by name where Slurm isn't installed."""

import os
import signal
import subprocess
import time

import numpy as np
import pytest

import tessera as ts
from engine_checks import figure, hosts, numbers, processes_with, right_product, seconds_until
from slurm_engine import NotHere, SlurmEngine


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    try:
        with SlurmEngine(tmp_path_factory.mktemp("slurm") / "engine") as engine:
            yield engine
    except NotHere as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cluster(slurm, tmp_path, monkeypatch):
    """Makes pools of Slurm that end with the test."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    made = []

    def make(nodes=2, **options):
        made.append(ts.SlurmCluster(nodes=nodes, workers_per_node=1, memory="64MiB", folder=tmp_path / "shared", **options))
        return made[-1]
    yield make
    for one in made:
        one.close()


def test_a_pool_on_two_nodes_is_right_loses_a_worker_grows_and_leaves_nothing(slurm, cluster):
    began = time.monotonic()
    pool = cluster()
    session = pool.connect(timeout=60)
    assert right_product(session) == [0, 1] and len(hosts(session)) == 2
    figure("slurm", "from a running engine to a right product over two nodes, s", time.monotonic() - began)

    mesh = session.init_device_mesh((2,))
    x = session.distribute_tensor(np.ones((100, 100)), mesh, [ts.Shard(0)]).wait()
    victim = next(pid for pid in processes_with(str(pool.folder)) + processes_with("--index-from=SLURM_PROCID")
                  if open(f"/proc/{pid}/comm").read() == "tessera-worker\n" and b"SLURM_PROCID=1\0" in open(f"/proc/{pid}/environ", "rb").read())
    os.kill(victim, signal.SIGKILL)
    seconds_until(lambda: numbers(session) == [0], "the loss to be seen", tell=pool.log_tail)
    figure("slurm", "a killed worker is back, s after its loss was seen",
           seconds_until(lambda: numbers(session) == [0, 1], "worker 1 to be back", tell=pool.log_tail))
    with pytest.raises(ts.UnavailableError, match="worker 1"):
        x.full_tensor()
    assert right_product(session) == [0, 1]
    assert "tessera keep" in pool.log_tail() and "signal 9" in pool.log_tail()

    began = time.monotonic()
    pool.scale(3)
    seconds_until(lambda: len(session.workers()) == 3, "a third worker", tell=pool.log_tail)
    figure("slurm", "a worker is added, s", time.monotonic() - began)
    assert right_product(session) == [0, 1, 2]
    pool.scale(2)
    seconds_until(lambda: len(session.workers()) == 2, "the third worker to end", tell=pool.log_tail)
    assert right_product(session) == [0, 1]

    folder = str(pool.folder)
    began = time.monotonic()
    session.close()
    pool.close()
    seconds_until(lambda: not processes_with(folder) and not processes_with("--index-from=SLURM_PROCID"), "the processes to end")
    figure("slurm", "stopped, s", time.monotonic() - began)
    assert not os.path.exists(folder) and slurm.run("squeue", "--noheader") == ""


def test_a_job_that_is_cancelled_is_named_with_its_log(slurm, cluster):
    pool = cluster(extra=["--begin=now+1hour"])
    with pytest.raises(ts.DeadlineExceededError, match=f"job {pool.job_ids[0]} is PENDING"):
        pool.connect(timeout=0.3)
    with pytest.raises(ts.FailedPreconditionError, match="does not run yet"):
        pool.scale(3)
    slurm.run("scancel", pool.job_ids[0])
    with pytest.raises(ts.UnavailableError, match=f"job {pool.job_ids[0]} has ended"):
        pool.connect(timeout=60)


def test_a_job_that_is_requeued_makes_the_pool_again_with_the_same_address_and_ca(slurm, cluster):
    pool = cluster(extra=["--requeue"])
    session = pool.connect(timeout=60)
    ca = (pool.folder / "tls/ca.crt").read_text()
    slurm.run("scontrol", "requeue", pool.job_ids[0])
    seconds_until(lambda: not (pool.folder / "address.json").exists(), "the first run to end", tell=pool.log_tail)
    slurm.run("scontrol", "update", f"jobid={pool.job_ids[0]}", "StartTime=now")
    again = pool.connect(timeout=200)
    assert right_product(again) == [0, 1]
    assert (pool.folder / "tls/ca.crt").read_text() == ca
    again.close()
    session.close()


def test_what_cannot_be_submitted_is_said(cluster, monkeypatch, tmp_path):
    with pytest.raises(ts.UnavailableError, match="sbatch"):
        cluster(extra=["--partition=nowhere"])
    with pytest.raises(ts.InvalidArgumentError, match="nodes is 0"):
        cluster(nodes=0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ts.NotFoundError, match="no sbatch in PATH"):
        cluster()


def test_up_in_an_allocation_without_srun_says_so(slurm, tmp_path):
    from two_hosts import BINARIES
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "PATH": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run([BINARIES / "client/cli/tessera", "up"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no srun in PATH" in done.stderr and "--here" in done.stderr
