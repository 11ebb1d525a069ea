"""Tiny ops in a cluster's first seconds, while its workers take the pages of their arenas.

    tools/python tests/bench/first_seconds.py [--memory 4GiB] [--seconds 8] [--rounds 3] [--bin-dir NAME=DIR ...]

Two workers; each op is waited for. With several --bin-dir, programs of several builds in turns. Percentiles in microseconds: while
pages are taken (the first seconds), and of workers that have next to none to take. Of each, that of the round in which it was
least, as others on the machine only add to it.
"""

import argparse
import json
import os
import time

import numpy as np

import tessera as ts


def percentiles(rounds: list[list[float]]) -> dict[str, float]:
    least = np.min([np.percentile(np.array(seconds) * 1e6, [50, 90, 99, 99.9]) for seconds in rounds], axis=0)
    return {"ops": sum(map(len, rounds)), **dict(zip(("p50", "p90", "p99", "p99.9"), np.round(least, 1).tolist()))}


def measure(memory: str, seconds: float) -> list[float]:
    """How long each op took."""
    taken = []
    with ts.local_cluster(workers=2, memory=memory) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.arange(8.0), mesh, [ts.Shard(0)])
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            (x + 1).wait()
            taken.append(time.perf_counter() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bin-dir", nargs="+", default=[], metavar="NAME=DIR")
    options = parser.parse_args()
    folders = dict(text.split("=", 1) for text in options.bin_dir) or {"": os.environ.get("TESSERA_BIN_DIR", "bazel-bin")}
    taken: dict[str, list[list[float]]] = {name: [] for name in folders}
    idle: dict[str, list[list[float]]] = {name: [] for name in folders}
    for _ in range(options.rounds):
        for name, folder in folders.items():
            os.environ["TESSERA_BIN_DIR"] = folder
            taken[name].append(measure(options.memory, options.seconds))
            idle[name].append(measure("64MiB", options.seconds / 4))
    found = {name: {"while pages are taken": percentiles(taken[name]), "of 64 MiB": percentiles(idle[name])} for name in folders}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
