"""A pool that a real Slurm places on two nodes: docs/slurm.md. Skipped by name where Slurm isn't installed."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tessera as ts
from engine_checks import figure, hosts, numbers, processes_with, right_product, seconds_until, started
from slurm_engine import SlurmEngine
from two_hosts import BINARIES


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    yield from started(SlurmEngine, tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def cluster(slurm, tmp_path, monkeypatch):
    """Makes pools of Slurm that end with the test."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.environment[name])
    made = []

    def make(nodes=2, workers_per_node=1, **options):
        made.append(ts.SlurmCluster(nodes=nodes, workers_per_node=workers_per_node, memory="64MiB", folder=tmp_path / "shared", **options))
        return made[-1]
    yield make
    for one in made:
        one.close()


def test_a_worker_for_each_numa_domain_is_bound_where_the_cluster_binds(slurm, cluster):
    domains = max(1, sum(path.name[4:].isdigit() for path in pathlib.Path("/sys/devices/system/node").glob("node*")))
    pool = cluster(nodes=1, workers_per_node=None)
    with pool.connect(timeout=60) as session:
        assert right_product(session) == list(range(domains))
        pool.scale(2)
        seconds_until(lambda: len(session.workers()) == 2 * domains, "the second node's workers", tell=pool.log_tail)
        assert right_product(session) == list(range(2 * domains))
    asked = [open(f"/proc/{pid}/cmdline").read() for pid in processes_with("--cpu-bind=ldoms")]
    assert any("--mem-bind=local" in one for one in asked), asked


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


def blocks_of_page():
    """The shell's and Python's blocks of docs/slurm.md by its chapter on batch scripts."""
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/slurm.md").read_text()
    return [text for _, text in re.findall(r"^```(\w*)\n(.*?)^```", page.partition("## By a batch script")[2], re.S | re.M)][:2]


def test_the_batch_script_of_the_page_runs_as_it_stands_there_and_ends_in_order(slurm, tmp_path):
    (tmp_path / "pool").mkdir(mode=0o700)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tessera").symlink_to(BINARIES / "client/cli/tessera")
    script, client = blocks_of_page()
    assert "exec tessera up" in script
    script = script.replace("64G", "256M").replace("#SBATCH", f"#SBATCH --output={tmp_path}/log.txt", 1)
    home = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{slurm.path}", "TESSERA_BIN_DIR": str(BINARIES)}
    job = slurm.run("env", *(f"{name}={value}" for name, value in home.items()), "sbatch", "--parsable", input=script)
    log = tmp_path / "log.txt"
    tell = lambda: log.read_text() if log.exists() else "no log"   # noqa: E731
    seconds_until((tmp_path / "pool/address.json").exists, "the pool to run", tell=tell)
    program = client + "\nimport sys, time\nwhile len(session.workers()) < 2: time.sleep(0.05)\nsys.path.insert(0, sys.argv[1])\n" \
                       "from engine_checks import right_product\nprint(right_product(session))"
    done = subprocess.run([sys.executable, "-c", program, pathlib.Path(__file__).parent], env={**os.environ, "HOME": str(tmp_path)}, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "[0, 1]\n", done.stderr + tell()
    assert "from SLURM_MEM_PER_NODE" in tell() or "SLURM_MEM_PER_NODE lets it have 268435456" in tell(), tell()
    tokens = [line.partition("=")[2] for line in (tmp_path / "pool/tls/tokens").read_text().splitlines()]
    assert len(tokens) == 3 and not any(token in tell() for token in tokens), "a job's output is for others, too"
    # Slurm does this a minute before the job's time is over.
    slurm.run("scancel", "--signal=TERM", "--batch", job)
    seconds_until(lambda: slurm.run("squeue", "--noheader") == "", "the job to end", tell=tell)
    assert "JobState=COMPLETED" in slurm.run("scontrol", "show", "job", job), tell()
    assert not (tmp_path / "pool/address.json").exists()
    seconds_until(lambda: not processes_with("--index-from=SLURM_PROCID"), "the processes to end")


def test_what_cannot_be_submitted_is_said(cluster, monkeypatch, tmp_path):
    with pytest.raises(ts.UnavailableError, match="sbatch"):
        cluster(extra=["--partition=nowhere"])
    with pytest.raises(ts.InvalidArgumentError, match="nodes is 0"):
        cluster(nodes=0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ts.NotFoundError, match="no sbatch in PATH"):
        cluster()


def test_up_in_an_allocation_without_srun_says_so(slurm, tmp_path):
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "PATH": "/nowhere", "HOME": str(tmp_path)}
    done = subprocess.run([BINARIES / "client/cli/tessera", "up"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "there is no srun in PATH" in done.stderr and "--here" in done.stderr
