"""Rounds of loads and saves on a disk that is slow or away, of files that change meanwhile.

    python disk_rounds.py --rounds 200 --seed 7

In each round one call about a file hangs, of those that tests/system/hostile/slow_disk.c stands before, while a session
loads or saves a file. A file that is loaded may be written over, cut, replaced or removed meanwhile. A round holds if
the neighbour's ops and uploads are right in the meantime, if the load gives one version of the file as a whole or an
error that names the file, and if what was saved is the new version as a whole. No worker ends. Else the round says its seed
and what happened."""

import argparse
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

import numpy as np

import tessera as ts
from slow_disk import Disk

CALLS = ["open", "openat", "openat2", "close", "fstat", "fstatat", "pread", "pwrite", "fsync", "fdatasync", "syncfs", "fallocate", "ftruncate",
         "renameat2", "linkat", "unlinkat", "mkdirat"]
SUFFIXES = {".npy": None, ".h5": "h5py", ".zarr": "zarr", ".parquet": "pyarrow"}
ROWS, COLUMNS = 300, 7
CALL_SECONDS = 1.0      # in which a call that is to hang must be made; a load makes not all of them
END_SECONDS = 60


class Wrong(Exception):
    """A round's findings."""


def version(number):
    """No element of one is that of another, nor of another place."""
    return np.arange(ROWS * COLUMNS, dtype="f8").reshape(ROWS, COLUMNS) + 1e6 * number


def write(path, array):
    """By the library alone."""
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".h5":
        import h5py
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=array, chunks=(ROWS // 3, COLUMNS), compression="gzip")
    elif path.suffix == ".zarr":
        import zarr
        zarr.create_group(path).create_array("x", data=array, chunks=(ROWS // 3, COLUMNS))
    else:
        import pyarrow
        import pyarrow.parquet
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), COLUMNS)
        pyarrow.parquet.write_table(pyarrow.table({"x": column}), path, row_group_size=ROWS // 3)


def read(path):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".h5":
        import h5py
        with h5py.File(path, "r") as file:
            return file["x"][()]
    if path.suffix == ".zarr":
        import zarr
        return zarr.open(path, mode="r")["x"][()]
    import pyarrow.parquet
    column = pyarrow.parquet.read_table(path).column("x").combine_chunks()
    return column.flatten().to_numpy().reshape(-1, COLUMNS)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


# ---- what may happen to a file in the middle of a load


def replaced(rng, path, new):
    """By one that has the same times, too, now and then."""
    beside = path.with_name(f"new{path.suffix}")
    write(beside, new)
    if rng.random() < 0.5:
        os.utime(beside, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    if path.is_dir():
        remove(path)
    beside.rename(path)


def written_over(rng, path, new):
    """In place: the same file has other bytes."""
    beside = path.with_name(f"new{path.suffix}")
    write(beside, new)
    if path.is_dir():
        shutil.copytree(beside, path, dirs_exist_ok=True)
    else:
        with open(path, "r+b") as file:
            file.write(beside.read_bytes())
            file.truncate()
    remove(beside)


def cut(rng, path, new):
    file = rng.choice(sorted(one for one in path.rglob("*") if one.is_file())) if path.is_dir() else path
    os.truncate(file, file.stat().st_size * rng.randrange(10) // 10)


def removed(rng, path, new):
    remove(path)


def untouched(rng, path, new):
    pass


CHANGES = [replaced, written_over, cut, removed, untouched]


# ---- a round


class Background(threading.Thread):
    """A call that hangs; what it gave, or its error."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result, self.error = call, None, None
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except Exception as error:      # of any kind: the round says which ones are right
            self.error = error

    def end(self):
        self.join(END_SECONDS)
        if self.is_alive():
            raise Wrong(f"it has not ended {END_SECONDS} s after the disk was back")
        return self.result


def await_call(disk, name, since, background):
    """Whether the call was made; a load or save may end without it."""
    deadline = time.monotonic() + CALL_SECONDS
    while time.monotonic() < deadline and background.is_alive():
        if any(call == name for _, call, _ in disk.calls()[since:]):
            return True
        time.sleep(0.002)
    return False


def check_neighbour(neighbour):
    large = np.ones((256, 1024))
    if float(neighbour.distribute_tensor(large, neighbour.default_mesh).sum()) != large.size:
        raise Wrong("a neighbour's upload has another sum")


def check_load(path, load, allowed):
    got = load.end()
    if load.error is not None:
        if not isinstance(load.error, ts.TesseraError) or path.name not in str(load.error):
            raise Wrong(f"a load ended with {type(load.error).__name__}: {load.error}")
        return "an error"
    if not any(np.array_equal(got, one) for one in allowed):
        parts = [f"{np.count_nonzero(got == one)} elements of version {number}" for number, one in enumerate(allowed)]
        raise Wrong(f"a load of {got.size} elements has {', '.join(parts)}")
    return "a version"


def run_round(disk, cluster, neighbour, seed, told):
    rng = random.Random(seed)
    suffix = rng.choice([suffix for suffix, package in SUFFIXES.items() if package is None or has(package)])
    path, call, is_load = disk.folder / f"file{seed}{suffix}", rng.choice(CALLS), rng.random() < 0.6
    old, new = version(1), version(2)
    write(path, old)
    change = rng.choice(CHANGES) if is_load else untouched
    told.append(f"{path.name}: {'loaded' if is_load else 'saved'}, {call} hangs, the file is {change.__name__}")
    with cluster.connect(stall_timeout=END_SECONDS) as session:
        mesh = session.init_device_mesh((2,))
        x = None if is_load else session.distribute_tensor(new, mesh)
        if x is not None:
            x.wait()

        def work():
            with session:
                if not is_load:
                    return ts.save(path, x if suffix == ".npy" else {"x": x})
                loaded = ts.load(path, mesh)
                return (loaded["x"] if isinstance(loaded, dict) else loaded).full_tensor()

        since = len(disk.calls())
        with disk.away(call):
            background = Background(work)
            hung = await_call(disk, call, since, background)
            for _ in range(3):
                check_neighbour(neighbour)
            change(rng, path, new)
        told.append("it hung" if hung else "nothing hung")
        if is_load:
            told.append(check_load(path, background, [old] if change is untouched else [old, new]))
            if change is untouched and background.error is not None:
                raise Wrong(f"a load of a file that stayed ended with {background.error}")
        else:
            background.end()
            if background.error is not None:
                raise Wrong(f"a save ended with {type(background.error).__name__}: {background.error}")
            if not np.array_equal(read(path), new):
                raise Wrong("a save is not what was saved")
    if [worker["state"] for worker in neighbour.status()["workers"]] != ["alive", "alive"]:
        raise Wrong("a worker has ended")
    if path.exists():
        remove(path)
    return hung


def has(package):
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def run(rounds, seed):
    """How many rounds had a call that hung; raises Wrong, with the seed and what happened."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-disk-"))
    hung = 0
    try:
        disk = Disk(folder)
        with disk.cluster() as cluster, cluster.connect(stall_timeout=END_SECONDS) as neighbour:
            for number in range(seed, seed + rounds):
                told = []
                try:
                    hung += run_round(disk, cluster, neighbour, number, told)
                except (Wrong, ts.TesseraError) as error:
                    raise Wrong("\n".join([f"tools/fuzz --disks 1 --seed {number}", *told, f"{type(error).__name__}: {error}"])) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return hung


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", "--disks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        hung = run(options.rounds, options.seed)
    except Wrong as error:
        print(error)
        return 1
    print(f"{options.rounds} rounds from seed {options.seed} hold; in {hung} of them a call hung")
    return 0


if __name__ == "__main__":
    sys.exit(main())
