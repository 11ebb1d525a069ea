"""SlurmCluster: a pool that Slurm places. Its jobs run `tessera up` and `tessera-worker`; nothing of the pool runs here.

The folder of the pool is on a file system that this machine and the nodes share: the pool writes there how it is reached.
"""

from __future__ import annotations

import os
import sys
import time as clock

from ._errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from ._mesh import integers
from ._programs import program
from ._session import connect, seconds

_OP = "SlurmCluster"
_POLL_S = 0.1
_GONE_S = 30
_LOG_TAIL = 2000
# States of squeue that say that the job is over. One that is completing may as well be about to begin again.
_OVER = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", ""}


def _run(*words: str, text: str | None = None) -> str:
    """The output of a command of Slurm. NotFoundError where it isn't there, UnavailableError with what it says where it fails."""
    import shutil
    import subprocess
    if shutil.which(words[0]) is None:
        raise NotFoundError(f"{_OP}: there is no {words[0]} in PATH: run this on a machine that submits jobs, or add Slurm's bin folder to PATH")
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise UnavailableError(f"{_OP}: {words[0]}: {done.stderr.strip() or done.stdout.strip() or f'status {done.returncode}'}")
    return done.stdout.strip()


class SlurmCluster:
    """A pool of workers on nodes that Slurm gives; it ends with the `with` block, or with close().

    >>> with ts.SlurmCluster(nodes=2, gpus_per_node=8, time="2:00:00", extra=["--partition=gpu"]) as cluster:
    ...     session = cluster.connect()
    ...     cluster.scale(4)                    # two nodes more, as a job of their own

    memory is of each worker, "64GiB", or a share of what Slurm gives the job on a node, 0.8. extra are more options of
    sbatch. folder is on a file system that all nodes share (~/.tessera/slurm).
    """

    def __init__(self, nodes=1, *, gpus_per_node=0, workers_per_node=None, memory=None, time=None, name="tessera", extra=(),
                 folder=None, files=(), worker_flags=()):
        self._nodes, self._gpus = integers(nodes, "nodes", _OP)[0], integers(gpus_per_node, "gpus_per_node", _OP)[0]
        if self._nodes < 1 or self._gpus < 0:
            raise InvalidArgumentError(f"{_OP}: nodes is {nodes!r}, gpus_per_node is {gpus_per_node!r}; a pool has 1 node or more, and 0 GPUs or more")
        self._workers = None if workers_per_node is None else integers(workers_per_node, "workers_per_node", _OP)[0]
        if isinstance(extra, str):
            raise InvalidArgumentError(f"{_OP}: extra is {extra!r}; it is a list of options, [\"--partition=gpu\"]")
        self._memory, self._time, self._name, self._extra = memory, time, str(name), [str(option) for option in extra]
        self._files = [os.fspath(one) for one in ([files] if isinstance(files, (str, os.PathLike)) else files)]
        self._flags = [str(flag) for flag in worker_flags]
        from pathlib import Path
        base = Path(folder or "~/.tessera/slurm").expanduser().absolute()
        self.folder = base / f"{self._name}-{os.urandom(4).hex()}"
        self._jobs: list[tuple[str, int]] = []      # numbers and nodes; the first has the coordinator
        self._closed = False
        self.folder.mkdir(mode=0o700, parents=True)
        try:
            self._jobs.append((_run("sbatch", "--parsable", text=self.script()).partition(";")[0], self._nodes))
        except BaseException:
            self._remove_folder()
            raise

    @property
    def job_ids(self) -> list[str]:
        return [job for job, _ in self._jobs]

    @property
    def nodes(self) -> int:
        return sum(nodes for _, nodes in self._jobs)

    def _head(self, nodes: int, log: str) -> list[str]:
        options = [f"--job-name={self._name}", f"--nodes={nodes}", f"--output={self.folder / log}", "--open-mode=append"]
        if self._gpus:
            options.append(f"--gpus-per-node={self._gpus}")
        if self._time:
            options.append(f"--time={self._time}")
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in [*options, *self._extra])]
        import shlex
        return [*lines, f"export TESSERA_PYTHON={shlex.quote(sys.executable)}"]

    def _worker_words(self) -> list[str]:
        words = ["--device=cuda"] if self._gpus else []
        return words + ([f"--memory={self._memory}"] if self._memory is not None else [])

    def script(self) -> str:
        """The batch script of the pool's first job, which could as well be submitted by hand: sbatch script.sh"""
        import shlex
        words = [program("tessera", _OP), "up", f"--folder={self.folder / 'tls'}", f"--write-address={self.folder / 'address.json'}",
                 *self._worker_words(), *(f"--files={one}" for one in self._files)]
        if self._workers is not None:
            words.append(f"--workers={self._workers}")
        return "\n".join([*self._head(self._nodes, "log.txt"), "exec " + shlex.join(words), ""])

    def _script_of_more(self, nodes: int) -> str:
        import shlex
        join = self._address()["join"]
        token = self.folder / "join_token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(join["token"] + "\n")
        by_domain = self._workers is None and not self._gpus     # as `tessera up` does on the first job's nodes
        count = "$DOMAINS" if by_domain else self._workers or self._gpus
        worker = [program("tessera-worker", _OP), f"--join={join['address']}", f"--ca-pin={join['ca_pin']}", f"--join-token-file={token}",
                  f"--workers-on-host={count}", *(self._worker_words() if self._memory is not None or self._gpus else ["--memory=0.8"]),
                  *(f"--files={one}" for one in self._files), *self._flags]
        tasks = f"$(({nodes} * DOMAINS))" if by_domain else nodes * count
        step = ["srun", f"--nodes={nodes}", f"--ntasks={tasks}", f"--ntasks-per-node={count}", *(["--cpu-bind=ldoms", "--mem-bind=local"] if by_domain else []),
                "--overlap", "--kill-on-bad-exit=0", program("tessera", _OP), "keep", "--", *worker]
        words = [f'"{word}"' if "DOMAINS" in word else shlex.quote(word) for word in step]
        domains = ["DOMAINS=$(ls -d /sys/devices/system/node/node[0-9]* 2>/dev/null | wc -l)", "[ $DOMAINS -gt 0 ] || DOMAINS=1"] if by_domain else []
        return "\n".join([*self._head(nodes, "log.txt"), *domains, "exec " + " ".join(words), ""])

    def _address(self) -> dict:
        import json
        return json.loads((self.folder / "address.json").read_text(encoding="utf-8"))

    def _state(self, job: str) -> str:
        """squeue's word, as PENDING or RUNNING; "" of a job that it knows no more."""
        try:
            return _run("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        except UnavailableError as error:
            if "Invalid job id" in str(error):
                return ""
            raise

    def log_tail(self) -> str:
        """The end of what the pool's jobs wrote."""
        try:
            return (self.folder / "log.txt").read_text(errors="replace")[-_LOG_TAIL:]
        except FileNotFoundError:
            return ""

    def connect(self, *, timeout=600, workers=None, **options):
        """A session, when the first job runs and its workers (or so many) have joined; options are those of ts.connect.

        DeadlineExceededError names the job and what Slurm says of it; UnavailableError has its log where the job has ended.
        """
        self._check()
        deadline = clock.monotonic() + seconds(timeout, f"{_OP}.connect")
        job = self._jobs[0][0]
        while not (self.folder / "address.json").exists():
            state = self._state(job)
            if state in _OVER:
                raise UnavailableError(f"{_OP}: job {job} has ended ({state or 'squeue knows it no more'}): {self.log_tail()}")
            if clock.monotonic() > deadline:
                raise DeadlineExceededError(f"{_OP}: job {job} is {state} after {timeout} s (squeue --start --jobs={job} says when it may run): {self.log_tail()}")
            clock.sleep(_POLL_S)
        address = self._address()
        session = connect(address["address"], token=address["token"], ca=address["ca"], **options)
        wanted = workers or (self._workers or max(1, self._gpus)) * self._nodes
        while (there := len(session.workers())) < wanted:
            if clock.monotonic() > deadline:
                session.close()
                raise DeadlineExceededError(f"{_OP}: {there} of {wanted} workers have joined after {timeout} s: {self.log_tail()}")
            clock.sleep(_POLL_S)
        return session

    def scale(self, nodes: int) -> None:
        """Has so many nodes all together. More come as a job of their own, and join when it runs; fewer: the newest jobs end. The first
        job has the coordinator, and stays."""
        self._check()
        wanted, = integers(nodes, "nodes", f"{_OP}.scale")
        if wanted < self._jobs[0][1]:
            raise InvalidArgumentError(f"{_OP}: scale({wanted}): the first job has {self._jobs[0][1]} nodes, and the coordinator; close() ends it")
        while len(self._jobs) > 1 and self.nodes > wanted:
            _run("scancel", self._jobs[-1][0])
            self._jobs.pop()
        if self.nodes < wanted:
            more = wanted - self.nodes
            if not (self.folder / "address.json").exists():
                raise FailedPreconditionError(f"{_OP}: scale({wanted}): the pool does not run yet; connect() waits for it")
            self._jobs.append((_run("sbatch", "--parsable", text=self._script_of_more(more)).partition(";")[0], more))

    def close(self) -> None:
        """Ends all jobs, waits until Slurm has, and removes the folder. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        for job, _ in reversed(self._jobs):
            if self._state(job) not in _OVER | {"COMPLETING"}:
                _run("scancel", job)
        deadline = clock.monotonic() + _GONE_S
        while any(self._state(job) not in _OVER for job, _ in self._jobs) and clock.monotonic() < deadline:
            clock.sleep(_POLL_S)
        self._remove_folder()

    def _remove_folder(self):
        import shutil
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check(self):
        if self._closed:
            raise FailedPreconditionError(f"{_OP}: it is closed")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"SlurmCluster({self.nodes} nodes, jobs {', '.join(self.job_ids)}{', closed' if self._closed else ''})"


SlurmCluster.__module__ = "tessera"
