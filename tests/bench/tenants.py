"""An op and its value beside a flood, one flood a row, and beside as many loops that use no Tessera ("hogs").

    tools/python tests/bench/tenants.py [--json] [--only NAME ...] [--flooders 1 4] [--seconds 4] [--rounds 2]
                                        [--bin-dir NAME=DIR ...]

A session of two CPU workers asks for an op and its value, then thinks 4 ms. The floods are processes of their own. Of each row:
p50 and p99 of the op and its value in ms, and what the flood keeps of the rate that it has alone. The hogs are the floor: what
the kernel's scheduler alone does. With several --bin-dir, servers of several builds in turns; of each figure that of the round
in which p99 was least, as others on the machine only add to it.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np

import tessera as ts

MIB = 1 << 20
THINK_SECONDS = 0.004
FLOAT_BYTES = 4


def chain(session, mesh):
    x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])

    def go():
        y = x
        for _ in range(1000):
            y = y + 1
        y.wait()
        return 1000
    return go


def kept(session, mesh):
    x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])

    def go():
        results = [x + 1 for _ in range(1000)]
        ts.wait(*results)
        return len(results)
    return go


def new_shapes(session, mesh):
    shapes = iter(range(2, 1 << 30))
    start = os.getpid() * 100_000

    def go():
        results = []
        for _ in range(100):
            columns = next(shapes)
            results.append(ts.full((2, 2 + columns % 5000), float(start + columns), device_mesh=mesh, placements=[ts.Shard(0)])
                           .reshape((2, 2 + columns % 5000)) + 1)
        ts.wait(*results)
        return len(results)
    return go


def small_uploads(session, mesh):
    array = np.arange(1000.0)

    def go():
        ts.wait(*[session.distribute_tensor(array, mesh, [ts.Shard(0)]) for _ in range(50)])
        return 50
    return go


def explain(session, mesh):
    x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])

    def go():
        ts.explain(ts.add, x, x)
        return 1
    return go


def status(session, _mesh):
    def go():
        session.status()
        return 1
    return go


def repeated(make, op, ahead):
    """`op` over what `make` made, with some under way."""
    def flood(session, mesh):
        operands = make(session, mesh)
        under_way = []

        def go():
            under_way.append(op(*operands))
            if len(under_way) > ahead:
                under_way.pop(0).wait()
            return 1
        return go
    return flood


def full(shape, dtype):
    return lambda session, mesh: (ts.full(shape, 0.5, dtype=dtype, device_mesh=mesh, placements=[ts.Shard(0)]).wait(),)


def pair(size):
    def make(session, mesh):
        return tuple(ts.full((size, size), 0.5, dtype="float64", device_mesh=mesh, placements=[p]).wait()
                     for p in (ts.Shard(0), ts.Replicate()))
    return make


FLOODS = {
    "tiny_chain": chain,
    "tiny_kept": kept,
    "new_shapes": new_shapes,
    "uploads_8kB": small_uploads,
    "explain": explain,
    "status": status,
    "elementwise_64MiB": repeated(full((64 * MIB // FLOAT_BYTES // 1024, 1024), "float32"), lambda x: x + 1, 4),
    "softmax_32MiB": repeated(full((32 * MIB // FLOAT_BYTES // 1024, 1024), "float32"), lambda x: ts.softmax(x, 1), 4),
    "matmul_1024": repeated(pair(1024), ts.matmul, 4),
    "matmul_4096": repeated(pair(4096), ts.matmul, 1),
}


def flood(name, address):
    """Floods until it is told to end; says its rate since then each time that it is asked, by a line."""
    with ts.connect(address) as session:
        go = FLOODS[name](session, session.init_device_mesh((2,)))
        go()
        print("ready", flush=True)
        done, since = 0, time.perf_counter()
        while True:
            done += go()
            if select.select([sys.stdin], [], [], 0)[0]:
                sys.stdin.readline()
                now = time.perf_counter()
                print(done / (now - since), flush=True)
                done, since = 0, now


def spin():
    print("ready", flush=True)
    while True:
        pass


class Loads:
    """Processes that load the machine."""

    def __init__(self, count, *arguments):
        self.processes = [subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, text=True) for _ in range(count)]
        for process in self.processes:
            assert process.stdout.readline() == "ready\n"

    def rate(self):
        """The rate of all loops together, since it was asked last."""
        for process in self.processes:
            process.stdin.write("rate\n")
            process.stdin.flush()
        return sum(float(process.stdout.readline()) for process in self.processes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def ask(session, seconds):
    """The times of an op and its value."""
    mesh = session.init_device_mesh((2,))
    x = session.distribute_tensor(np.arange(8.0), mesh, [ts.Shard(0)]).wait()
    taken, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        value = (x + 1).full_tensor()
        taken.append(time.perf_counter() - start)
        assert value[3] == 4.0
        time.sleep(THINK_SECONDS)
    return taken


def percentiles(taken):
    p50, p99 = np.percentile(np.array(taken) * 1e3, [50, 99])
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3), "ops": len(taken)}


def row(name, count, seconds):
    with ts.local_cluster(workers=2, memory="2GiB") as cluster, cluster.connect() as session:
        time.sleep(1)
        if name == "quiet":
            return percentiles(ask(session, seconds))
        if name == "hogs":
            with Loads(count, "--spin"):
                return percentiles(ask(session, seconds))
        with Loads(count, "--flood", name, cluster.address) as loads:
            loads.rate()
            time.sleep(seconds)
            alone = loads.rate()
            taken = ask(session, seconds)
            beside = loads.rate()
            return percentiles(taken) | {"flood_alone_per_s": round(alone, 1), "flood_keeps": round(beside / alone, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object at the end, in the place of the table")
    parser.add_argument("--only", nargs="+", default=["quiet", "hogs", *FLOODS])
    parser.add_argument("--flooders", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bin-dir", nargs="+", default=[], metavar="NAME=DIR")
    parser.add_argument("--flood", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--spin", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.spin:
        spin()
    if options.flood:
        flood(*options.flood)
    folders = dict(text.split("=", 1) for text in options.bin_dir) or {"": os.environ.get("TESSERA_BIN_DIR", "bazel-bin")}
    found = {}
    for name in options.only:
        for count in options.flooders if name != "quiet" else [1]:
            rounds = {folder: [] for folder in folders}
            for _ in range(options.rounds):
                for folder, path in folders.items():
                    os.environ["TESSERA_BIN_DIR"] = path
                    rounds[folder].append(row(name, count, options.seconds))
            for folder, rows in rounds.items():
                label = " ".join(part for part in (name, f"x{count}" if name != "quiet" else "", folder) if part)
                found[label] = min(rows, key=lambda one: one["p99_ms"])
                if not options.json:
                    one = found[label]
                    print(f"{label:<36} p50 {one['p50_ms']:>9.3f}  p99 {one['p99_ms']:>9.3f}  keeps {one.get('flood_keeps', '')}",
                          flush=True)
    if options.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
