"""A tensor in a file, as a decoder knows it, and how it refuses one."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys

import numpy as np


PLAN = ".tessera-table"     # in a folder of Parquet that is being written: what it is to be
_MAX_PLAN = 1 << 20


class Refusal(Exception):
    """The cause of a refusal, with the name of its code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def library(name: str):
    """h5py, pyarrow.parquet or zarr; each is wanted by its format alone."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"      # it is there, and something of it can't be read
        raise Refusal("FailedPrecondition", f"{package} is not installed where the worker runs, and reads such files: pip install "
                                            f"{package}, for {sys.executable}{why}") from None


class Stored:
    """A tensor in a file. `read` takes forward slices, one for each dim. Rows that are decoded together: `chunk_rows`, or up to
    each of `ends`, which ascend."""

    def __init__(self, dtype, shape, read, chunk_rows=1, *, ends=None, **more):
        self.dtype, self.shape = np.dtype(dtype), tuple(int(n) for n in shape)
        self.read, self.more = read, more
        self._chunk_rows, self._ends = max(1, int(chunk_rows)), ends

    def described(self):
        return {"dtype": self.dtype.str, "shape": list(self.shape), **self.more}

    def chunk_end(self, row: int) -> int:
        """The first row, from this one on, at which a chunk ends."""
        if self._ends is not None:
            return int(self._ends[np.searchsorted(self._ends, row, "left")])
        return min(-(-row // self._chunk_rows) * self._chunk_rows, self.shape[0])


def part_start(number: int, rows: int, count: int) -> int:
    """The first row of one of `count` parts of a table."""
    return rows * number // count


def plan_of(folder: int) -> str | None:
    """None where there is none: the folder is something else, or its table is whole, or given up."""
    try:
        fd = os.open(PLAN, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(_MAX_PLAN).decode()


def parts_stamp(folder: int) -> str:
    """A number for the files of a folder of Parquet: another one when one of them changes, which the folder's own time doesn't tell."""
    seen = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".parquet"):
                info = entry.stat(follow_symlinks=False)
                seen.append((entry.name, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return _digest(sorted(seen))


def metadata_stamp(folder: int, name: str) -> str:
    """A number for the metadata of an array in a zarr folder; not for its chunks."""
    seen = []
    for file in ("zarr.json", ".zarray"):
        try:
            info = os.stat(os.path.join(name, file), dir_fd=folder, follow_symlinks=False)
        except OSError:     # of the other version of the format
            continue
        seen.append((file, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return _digest(seen)


def _digest(seen) -> str:
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]
