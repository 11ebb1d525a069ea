"""A folder on a disk that is slow, or away, when a test says so (tests/system/hostile/slow_disk.c).

    disk = Disk(tmp_path)
    with disk.cluster() as cluster, disk.away("pread"):
        ...     # what workers read below disk.folder waits until the block ends
"""

import contextlib
import os
import pathlib
import unittest.mock

import tessera as ts

SLOW_DISK = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin")) / \
    "tests/system/hostile/libslow_disk.so"


class Disk:
    """A folder whose calls, or those of some names, hang while it is away; and its calls by thread."""

    def __init__(self, folder):
        self.folder = folder / "slow"
        self.folder.mkdir()
        self.log, self.hang = folder / "log", folder / "hang"
        self.log.touch()

    @contextlib.contextmanager
    def away(self, *calls):
        self.hang.with_suffix(".new").write_text(" ".join(calls))
        self.hang.with_suffix(".new").rename(self.hang)
        try:
            yield
        finally:
            self.hang.unlink()

    def calls(self):
        return [line.split(" ", 2) for line in self.log.read_text().splitlines()]

    @contextlib.contextmanager
    def cluster(self, *other_folders, count=2, **options):
        environment = {"LD_PRELOAD": SLOW_DISK, "SLOW_DISK_PREFIX": self.folder, "SLOW_DISK_LOG": self.log, "SLOW_DISK_HANG": self.hang}
        with unittest.mock.patch.dict(os.environ, {name: str(value) for name, value in environment.items()}):
            started = ts.local_cluster(count, memory="64MiB", files=[self.folder, *other_folders], **options)
        with started as cluster:
            yield cluster
