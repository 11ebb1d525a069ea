"""A pool that `tessera up --state` keeps, and its processes as the record in its folder names them."""

import json
import os
import subprocess
import time
from pathlib import Path

BINARIES = Path(os.environ.get("TESSERA_BIN_DIR", Path(__file__).resolve().parents[2] / "bazel-bin"))


def until(true, seconds: float = 60):
    """Its value as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.02)
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class UpPool:
    """`flags`: names and values of the command line's, as workers=2."""

    def __init__(self, folder: Path, **flags):
        folder.chmod(0o700)
        self.folder, self.state = folder, folder / "state"
        self.flags = {"workers": 2, "memory": "64MiB", **flags}
        self.log = folder / "up.log"
        self.up = self.start()
        self.address = self.await_up()

    def start(self, **changed) -> subprocess.Popen:
        flags = [f"--{name}={value}" for name, value in {**self.flags, **changed}.items()]
        environment = {**os.environ, "TESSERA_BIN_DIR": str(BINARIES)}
        with self.log.open("ab") as log:
            return subprocess.Popen([BINARIES / "client/cli/tessera", "up", f"--state={self.state}", *flags], text=True,
                                    stdout=subprocess.PIPE, stderr=log, env=environment)

    def await_up(self) -> str:
        address = self.up.stdout.readline().strip()
        assert address, self.said()
        while self.up.stdout.readline().startswith("admin: ") is False:  # the last of its lines
            assert self.up.poll() is None, self.said()
        return address

    def said(self) -> str:
        return self.log.read_text()

    def refused(self, **changed) -> str:
        """The words of one that doesn't start."""
        before = len(self.said())
        process = self.start(**changed)
        process.communicate(timeout=60)
        assert process.returncode != 0
        return self.said()[before:]

    @property
    def record(self) -> dict:
        return json.loads((self.state / "processes").read_text())

    def pids(self) -> dict[int, int]:
        """By worker; -1 is the coordinator."""
        return {process["worker"]: process["pid"] for process in self.record["processes"]}

    def kill_up(self):
        self.up.kill()
        self.up.communicate()

    def restart_up(self):
        self.kill_up()
        self.up = self.start()
        assert self.await_up() == self.address

    def stop(self) -> int:
        self.up.terminate()
        self.up.communicate(timeout=60)
        return self.up.returncode

    def end(self):
        """Whatever a test has left."""
        pids = self.pids().values() if (self.state / "processes").exists() else ()
        for pid in [self.up.pid, *pids]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.up.wait()
        self.up.stdout.close()
