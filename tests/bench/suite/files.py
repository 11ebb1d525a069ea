"""Files of the workers' host, from the page cache, beside processes that read the same bytes."""

import pathlib
import subprocess
import sys
import tempfile
import time

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


# Writes, or reads back, so many bytes of a file without a name in a folder, in memory that is there, whenever a line comes.
_SPILLER = """
import fcntl, mmap, os, sys
folder, count = sys.argv[1], int(sys.argv[2])
memory = mmap.mmap(-1, count)
memory[::4096] = bytes(len(range(0, count, 4096)))
view, file = memoryview(memory), os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
print("ready", flush=True)
for line in sys.stdin:
    at = 0
    if line == "write\\n":
        os.ftruncate(file, 0)
        os.posix_fallocate(file, 0, count)
    while at < count:
        some = view[at:at + (4 << 20)]
        at += os.pwritev(file, [some], at) if line == "write\\n" else os.preadv(file, [some], at)
    print("done", flush=True)
"""


class Spillers:
    """Two processes that write and read as many bytes as a worker each."""

    def __init__(self, folder, bytes_each):
        self._processes = [subprocess.Popen([sys.executable, "-c", _SPILLER, str(folder), str(bytes_each)], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in self._processes:
            process.stdout.readline()

    def do(self, what):
        for process in self._processes:
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
        for process in self._processes:
            process.stdout.readline()

    def end(self):
        for process in self._processes:
            process.stdin.close()
            process.wait()


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


def spill(options):
    """Four tensors of 64 MiB leave the memory of 2 workers for files, and come back, beside two processes that write and read as many
    bytes: the page cache has them, as it does ours."""
    each, count, shape = 64 * MIB, 4, (64 * MIB // 8192, 1024)
    with tempfile.TemporaryDirectory() as folder, measure.running(2, count * each // 2 + 8 * MIB, spill=folder) as session:
        mesh = session.init_device_mesh((2,))
        make = lambda value: [ts.full(shape, value + i, dtype="f64", device_mesh=mesh, placements=[ts.Shard(0)]) for i in range(count)]  # noqa: E731
        settle = lambda: ts.zeros(2, device_mesh=mesh).wait()     # behind what was dropped     # noqa: E731
        spillers = Spillers(folder, count * each // 2)
        out, back, written, read = [], [], [], []
        for _ in range(options.rounds * options.repetitions):     # in turns
            idle = make(1.0)
            idle[-1].wait()
            start = time.perf_counter()
            others = make(7.0)
            others[-1].wait()
            out.append(time.perf_counter() - start)
            del others
            settle()
            start = time.perf_counter()
            sums = [x[0, 0] for x in idle]     # a view's value: nothing is computed
            values = [float(one.full_tensor()) for one in sums]
            back.append(time.perf_counter() - start)
            measure.check(values == [1.0, 2.0, 3.0, 4.0], "spill")
            del idle, sums
            settle()
            for what, samples in (("write", written), ("read", read)):
                start = time.perf_counter()
                spillers.do(what)
                samples.append(time.perf_counter() - start)
        spillers.end()
    goal = lambda name: (measure.Goal(name, 1 / 0.8),)     # noqa: E731
    return {"out": measure.figure(out, {"two processes write": {"pwritev": written}}, goal("two processes write"), bytes=count * each),
            "back": measure.figure(back, {"two processes read": {"preadv": read}}, goal("two processes read"), bytes=count * each)}


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
