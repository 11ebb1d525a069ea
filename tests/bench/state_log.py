"""The cost of a state folder: ops a second and the time of an op and its value, without one and at the levels `process` and `disk`,
in turns; and how long a coordinator is away that is killed, or upgraded in place.

    tools/python tests/bench/state_log.py [--json] [--seconds 3] [--rounds 3] [--tensors 100000] [--folder FOLDER]

Two CPU workers. `kept` ops keep their results, a `chain` is planned in segments, `op_and_value` is one op and its number. Of
each the best round, as others on the machine only add to it. `restart`: the time from the kill to the first right value, of a
pool with so many tensors, and what a start says that it read; `upgrade`: the same of `tessera upgrade`. `commit_us`: an fdatasync of a
few hundred bytes in a file beside the logs, in the same run; an op and its value take two of them more at the level `disk`.
`--folder` is on the disk that is measured.
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
    def __init__(self, folder, level=None):
        self.folder, self.level = folder, level
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
        command += [f"--state={self.folder}/state", f"--state-level={self.level}"] if self.level else []
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


def commit_us(folder, seconds=1.0):
    """The median time of an fdatasync behind a write of 400 bytes."""
    times, end = [], time.perf_counter() + seconds
    with open(f"{folder}/commits", "wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
        while time.perf_counter() < end:
            file.write(b"x" * 400)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e6


def restart(pool, tensors, act):
    """`act` ends the coordinator, and another one is there."""
    with pool.connect() as session:
        mesh = session.init_device_mesh((WORKERS,))
        held = [ts.full((2, 2), float(i), device_mesh=mesh, placements=[ts.Shard(0)]) for i in range(tensors)]
        held[-1].wait()
        began = time.perf_counter()
        act()
        value = float(ts.sum(held[tensors // 2]))
        took = time.perf_counter() - began
        assert value == 4.0 * (tensors // 2), value
        pool.log.flush()
        lines = re.findall(r"going on with .*", pathlib.Path(pool.folder, "log").read_text())
        return {"tensors": tensors, "first_value_s": took, "start_said": lines[-1].replace(str(pool.folder), "")}


def pauses(pool, tensors):
    """The longest time for which an op and its value took, while the coordinator is upgraded beside so many tensors."""
    with pool.connect() as session:
        mesh = session.init_device_mesh((WORKERS,))
        held = [ts.full((2, 2), float(i), device_mesh=mesh, placements=[ts.Shard(0)]) for i in range(tensors)]
        held[-1].wait()
        process = subprocess.Popen([BINARIES / "client/cli/tessera", "upgrade", f"--state={pool.folder}/state"], stdout=subprocess.DEVNULL)
        longest, until = 0.0, None
        while until is None or time.perf_counter() < until:
            began = time.perf_counter()
            value = float(ts.sum(held[7]))
            longest = max(longest, time.perf_counter() - began)
            assert value == 28.0, value
            if until is None and process.poll() is not None:
                assert process.returncode == 0, process.returncode
                until = time.perf_counter() + 0.5
        return {"tensors": tensors, "longest_value_s": longest}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in ("without", "process", "disk"):
            os.mkdir(f"{folder}/{name}", 0o700)
        pools = {"without": Pool(f"{folder}/without"), **{level: Pool(f"{folder}/{level}", level) for level in ("process", "disk")}}
        try:
            rounds = {name: [] for name in pools}
            for _ in range(options.rounds):
                for name, pool in pools.items():
                    rounds[name].append(measure(pool, options.seconds))
            figures = {name: best(one) for name, one in rounds.items()}
            plain = figures["without"]
            for level in ("process", "disk"):
                one = figures[level]
                figures[f"{level}_ratios"] = {"kept": one["kept_per_s"] / plain["kept_per_s"], "chain": one["chain_per_s"] / plain["chain_per_s"],
                                              "op_and_value_added_us": one["op_and_value_us"] - plain["op_and_value_us"]}
            figures["commit_us"] = commit_us(folder)
            for level in ("process", "disk"):
                pool = pools[level]
                figures[f"{level}_restart"] = restart(pool, options.tensors, lambda pool=pool: (pool.kill_coordinator(), pool.start()))
                figures[f"{level}_upgrade"] = pauses(pool, options.tensors)
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
