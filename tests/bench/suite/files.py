"""Files of the workers' host, from the page cache, beside processes that read the same bytes."""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, seconds_of

# Reads its part of a file into memory that is there, whenever a line comes.
_READER = """
import mmap, os, sys
path, offset, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = mmap.mmap(-1, count)
memory[::4096] = bytes(len(range(0, count, 4096)))
view, file = memoryview(memory), os.open(path, os.O_RDONLY)
print("ready", flush=True)
for _ in sys.stdin:
    at = 0
    while at < count:
        at += os.preadv(file, [view[at:]], offset + at)
    print("read", flush=True)
"""


class Readers:
    """Processes that read a part of the file each."""

    def __init__(self, path, bytes_each, count):
        self._readers = [subprocess.Popen([sys.executable, "-c", _READER, str(path), str(i * bytes_each), str(bytes_each)],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i in range(count)]
        for reader in self._readers:
            reader.stdout.readline()

    def read(self):
        for reader in self._readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        for reader in self._readers:
            reader.stdout.readline()

    def end(self):
        for reader in self._readers:
            reader.stdin.close()
            reader.wait()


def load_npy(options):
    """A .npy file loaded by 2 workers, beside two processes that read its halves: 4 GiB (1 GiB quick)."""
    total = 1024 * MIB if options.quick else 4096 * MIB
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.npy"
        array = np.lib.format.open_memmap(path, "w+", np.float64, (total // 8192, 1024))
        array[...] = np.arange(1024)
        array[:, 0] = np.arange(len(array))
        array.flush()
        head = path.stat().st_size - total
        with measure.running(2, total // 2 + 64 * MIB, files=folder) as session:
            mesh = session.init_device_mesh((2,))
            load = lambda: ts.load("x.npy", mesh, [ts.Shard(0)], session=session).wait()     # noqa: E731
            readers = Readers(path, (total + head) // 2, 2)
            ours, theirs = [], []
            for _ in range(options.rounds):     # in turns
                ours += seconds_of(load, options.repetitions)
                theirs += seconds_of(readers.read, options.repetitions)
            readers.end()
            x = load()
            measure.check(np.array_equal(x[::4096].full_tensor(), array[::4096]), "load_npy")
    return {"by_rows": measure.figure(ours, {"two processes read their halves": {"preadv": theirs}},
                                       (measure.Goal("two processes read their halves", 1 / 0.7),), bytes=total)}
