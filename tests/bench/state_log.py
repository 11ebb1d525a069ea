"""The cost of a state folder: ops a second and the time of an op and its value, with `--state` and without, in turns; and how
long a coordinator that is killed is away.

    tools/python tests/bench/state_log.py [--json] [--seconds 3] [--rounds 3] [--tensors 100000]

Two CPU workers. `kept` ops keep their results, a `chain` is planned in segments, `op_and_value` is one op and its number. Of
each the best round, as others on the machine only add to it. `restart`: the time from the kill to the first right value, of a
pool with so many tensors, and what a start says that it read.
"""

import argparse
import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import time

import numpy as np

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tenants  # noqa: E402

BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))
WORKERS = 2


class Pool:
    def __init__(self, folder, has_state):
        self.folder, self.has_state = folder, has_state
        self.environment = {**os.environ, "TESSERA_TOKEN": "t", "TESSERA_JOIN_TOKEN": secrets.token_hex(8)}
        self.address = f"unix:{folder}/socket"
        self.log = open(f"{folder}/log", "w+")
        self.start()
        self.workers = [subprocess.Popen([BINARIES / "server/worker/tessera-worker", f"--coordinator={self.address}", f"--index={i}",
                                          "--memory=512MiB", f"--socket-dir={folder}", "--outlive=60"], env=self.environment,
                                         stdout=self.log, stderr=self.log) for i in range(WORKERS)]
        with self.connect() as session:
            while len(session.status()["workers"]) < WORKERS:
                time.sleep(0.02)

    def start(self):
        command = [BINARIES / "server/coordinator/tessera-coordinator", f"--listen={self.address}"]
        command += [f"--state={self.folder}/state"] if self.has_state else []
        self.coordinator = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=self.log)
        self.coordinator.stdout.readline()

    def connect(self):
        return ts.connect(self.address, token="t")

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()

    def stop(self):
        for process in [*self.workers, self.coordinator]:
            process.kill()
            process.wait()
        self.log.close()


def rate(go, seconds):
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        count += go()
    return count / (time.perf_counter() - began)


def op_and_value_us(session, mesh, seconds):
    x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        float(ts.sum(x))
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e6


def measure(pool, seconds):
    with pool.connect() as session:
        mesh = session.init_device_mesh((WORKERS,))
        return {"kept_per_s": rate(tenants.kept(session, mesh), seconds), "chain_per_s": rate(tenants.chain(session, mesh), seconds),
                "op_and_value_us": op_and_value_us(session, mesh, seconds)}


def best(rounds):
    return {name: (min if name.endswith("_us") else max)(one[name] for one in rounds) for name in rounds[0]}


def restart(pool, tensors):
    with pool.connect() as session:
        mesh = session.init_device_mesh((WORKERS,))
        held = [ts.full((2, 2), float(i), device_mesh=mesh, placements=[ts.Shard(0)]) for i in range(tensors)]
        held[-1].wait()
        pool.kill_coordinator()
        began = time.perf_counter()
        pool.start()
        value = float(ts.sum(held[tensors // 2]))
        took = time.perf_counter() - began
        assert value == 4.0 * (tensors // 2), value
        pool.log.flush()
        lines = re.findall(r"going on with .*", pathlib.Path(pool.folder, "log").read_text())
        return {"tensors": tensors, "first_value_s": took, "start_said": lines[-1].replace(str(pool.folder), "")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tensors", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as kept:
        pools = {"without": Pool(plain, False), "with_state": Pool(kept, True)}
        try:
            rounds = {name: [] for name in pools}
            for _ in range(options.rounds):
                for name, pool in pools.items():
                    rounds[name].append(measure(pool, options.seconds))
            figures = {name: best(one) for name, one in rounds.items()}
            figures["kept_ratio"] = figures["with_state"]["kept_per_s"] / figures["without"]["kept_per_s"]
            figures["chain_ratio"] = figures["with_state"]["chain_per_s"] / figures["without"]["chain_per_s"]
            figures["op_and_value_added_us"] = figures["with_state"]["op_and_value_us"] - figures["without"]["op_and_value_us"]
            figures["restart"] = restart(pools["with_state"], options.tensors)
        finally:
            for pool in pools.values():
                pool.stop()
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(name, value)


if __name__ == "__main__":
    main()
