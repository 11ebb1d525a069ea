"""A pool whose coordinator has a state folder, and is killed and started again."""

import os
import signal
import subprocess
import time
from pathlib import Path

import tessera as ts

BINARIES = Path(os.environ.get("TESSERA_BIN_DIR", Path(__file__).resolve().parents[2] / "bazel-bin"))
ENVIRONMENT = {**os.environ, "TESSERA_TOKEN": "t", "TESSERA_JOIN_TOKEN": "j", "TESSERA_ADMIN_TOKEN": "a"}


class Pool:
    """A coordinator with a state folder and workers that outlive it, each a process of its own.

    `flags` and `environment` are of each of its coordinators; `state` is another folder than FOLDER/state, `before` are words of a
    command line in front of theirs; `worker_flags` are of each worker.
    """

    def __init__(self, folder: Path, workers: int = 2, outlive: float = 60, flags=(), environment=None, state=None, before=(), worker_flags=(),
                 coordinator=BINARIES / "server/coordinator/tessera-coordinator", worker=BINARIES / "server/worker/tessera-worker"):
        folder.chmod(0o700)
        self.folder, self.state, self.program = folder, state or folder / "state", coordinator
        self.worker_flags, self.worker_program = worker_flags, worker
        self.flags, self.environment, self.before = flags, {**ENVIRONMENT, **(environment or {})}, before
        self.log = (folder / "log").open("w+")
        self.coordinator = self.start_coordinator()
        self.workers = [self.start_worker(i, outlive) for i in range(workers)]
        with self.connect() as session:
            deadline = time.monotonic() + 60
            while len(session.status()["workers"]) < workers:
                assert time.monotonic() < deadline, self.text()
                time.sleep(0.02)

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/socket"

    def start_coordinator(self, *flags: str, check: bool = True) -> subprocess.Popen:
        process = subprocess.Popen([*self.before, self.program, f"--listen={self.address}", f"--state={self.state}", *self.flags,
                                    *flags], env=self.environment, stdout=subprocess.PIPE, stderr=self.log)
        if check:
            assert b"listening" in process.stdout.readline(), self.text()
        return process

    def start_worker(self, index: int, outlive: float) -> subprocess.Popen:
        return subprocess.Popen([self.worker_program, f"--coordinator={self.address}",
                                 f"--index={index}", "--memory=128MiB", f"--socket-dir={self.folder}", f"--outlive={outlive}",
                                 *self.worker_flags],
                                env=ENVIRONMENT, stdout=self.log, stderr=self.log)

    def connect(self, **options):
        return ts.connect(self.address, token="t", **options)

    def kill_coordinator(self):
        self.coordinator.send_signal(signal.SIGKILL)
        self.coordinator.wait()

    def restart(self):
        self.kill_coordinator()
        self.coordinator = self.start_coordinator()

    def await_text(self, words: str, seconds: float = 30):
        deadline = time.monotonic() + seconds
        while words not in self.text():
            assert time.monotonic() < deadline, f"no {words!r} in\n{self.text()}"
            time.sleep(0.02)

    def text(self) -> str:
        return (self.folder / "log").read_text()

    def stop(self):
        for process in [*self.workers, self.coordinator]:
            process.terminate()
        for process in [*self.workers, self.coordinator]:
            process.wait(30)
