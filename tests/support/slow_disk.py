"""A folder on a disk that is slow, away or broken, when a test says so (tests/system/hostile/slow_disk.c).

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
        self.log, self.hang, self.fail = folder / "log", folder / "hang", folder / "fail"
        self.log.touch()

    def away(self, *calls):
        return self._with(self.hang, calls)

    def broken(self, *calls):
        """Makes calls of pread, pwrite and fallocate fail."""
        return self._with(self.fail, calls)

    @contextlib.contextmanager
    def _with(self, file, calls):
        file.with_suffix(".new").write_text(" ".join(calls))
        file.with_suffix(".new").rename(file)
        try:
            yield
        finally:
            file.unlink()

    def calls(self):
        return [line.split(" ", 2) for line in self.log.read_text().splitlines()]

    @contextlib.contextmanager
    def cluster(self, *other_folders, count=2, **options):
        environment = {"LD_PRELOAD": SLOW_DISK, "SLOW_DISK_PREFIX": self.folder, "SLOW_DISK_LOG": self.log, "SLOW_DISK_HANG": self.hang,
                       "SLOW_DISK_FAIL": self.fail}
        with unittest.mock.patch.dict(os.environ, {name: str(value) for name, value in environment.items()}):
            started = ts.local_cluster(count, memory="64MiB", files=[self.folder, *other_folders], **options)
        with started as cluster:
            yield cluster
