"""Benchmarks of a running cluster, each beside a limit or a peer measured in the same run.

    tools/bench [--quick] [--only NAME ...] [--check]

A table on stdout; JSON with every sample in tests/bench/out/tessera.json (or the folder
$TESSERA_BENCH_OUT). Ratios are of best to best and of median to median: absolute times say little
on another machine. --check: exit status 1 when a ratio is over the limit that it has.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import numpy as np

import tessera as ts

HERE = pathlib.Path(__file__).resolve().parent
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", HERE.parents[1] / "bazel-bin"))
MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def seconds_of(run, repetitions, warm_ups=2):
    """A list of seconds; what `run` returns is dropped outside the timed part."""
    samples = []
    for i in range(warm_ups + repetitions):
        start = time.perf_counter()
        kept = run()
        took = time.perf_counter() - start
        del kept
        if i >= warm_ups:
            samples.append(took)
    return samples


def summary(samples):
    return {"best_seconds": min(samples), "median_seconds": float(np.median(samples)), "samples": samples}


def compare(samples, limit_samples, limit_ratio=None, **more):
    """A figure: ours, the limit measured beside it, and both ratios."""
    ours, limit = summary(samples), summary(limit_samples)
    return {"tessera": ours, "limit": limit,
            "best_ratio": ours["best_seconds"] / limit["best_seconds"],
            "median_ratio": ours["median_seconds"] / limit["median_seconds"],
            "limit_ratio": limit_ratio, **more}


def limits_program(name, quick):
    """What two plain processes reach, from tests/bench/limits_bench."""
    command = [BINARIES / "tests/bench/limits_bench", "--only", name] + (["--quick"] if quick else [])
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)[name]


def in_turns(rounds, ours, limit):
    """Samples of both, measured alternately so that a slow minute of the machine meets both."""
    own_samples, limit_samples = [], []
    for _ in range(rounds):
        limit_samples += limit()
        own_samples += ours()
    return own_samples, limit_samples


# ---- the heavy figures -----------------------------------------------------------------------------


def rows_to_columns(options):
    """8192 x 8192 f64 from rows to columns, 2 workers, against plain loads and stores."""
    n = 8192
    with ts.local_cluster(workers=2, memory="1GiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        values = np.arange(n * n, dtype=np.float64).reshape(n, n)
        x = session.distribute_tensor(values, mesh, [ts.Shard(0)]).wait()
        turned = x.redistribute(placements=[ts.Shard(1)])
        if not np.array_equal(turned.to_local(1), values[:, n // 2:]):
            raise SystemExit("rows_to_columns: wrong values")
        del turned, values

        def limit():
            measured = limits_program("rows_to_columns_8192_f64", options.quick)
            return min(measured["memcpy_seconds"], measured["streaming_seconds"], key=min)

        run = lambda: x.redistribute(placements=[ts.Shard(1)]).wait()  # noqa: E731
        ours, baseline = in_turns(options.rounds, lambda: seconds_of(run, options.repetitions), limit)
    return compare(ours, baseline, 2.0, bytes=n * n * 8)


def matmul(options, name, placements):
    n = 2048
    with ts.local_cluster(workers=2, memory="512MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        rng = np.random.default_rng(1)
        left, right = rng.integers(-4, 5, (2, n, n)).astype(np.float64)
        a = session.distribute_tensor(left, mesh, [placements[0]]).wait()
        b = session.distribute_tensor(right, mesh, [placements[1]]).wait()
        if not np.array_equal((a @ b).full_tensor(), left @ right):
            raise SystemExit(f"{name}: wrong values")
        limit = lambda: limits_program("dgemm_halves_2048", options.quick)["seconds"]  # noqa: E731
        ours, baseline = in_turns(options.rounds, lambda: seconds_of(lambda: (a @ b).wait(), options.repetitions), limit)
    return compare(ours, baseline, 1.15, flops=2.0 * n**3)


def matmul_rows_by_whole(options):
    """2048^3 f64, A by rows and B on both workers, against two processes with a dgemm each."""
    return matmul(options, "matmul_rows_by_whole", (ts.Shard(0), ts.Replicate()))


def matmul_rows_by_rows(options):
    """2048^3 f64, A and B by rows (half of B moves), against two processes with a dgemm each."""
    return matmul(options, "matmul_rows_by_rows", (ts.Shard(0), ts.Shard(0)))


def up_and_down(options):
    """Upload and download of one array by rows, 2 workers, against memcpy of the same bytes."""
    total = 256 * MIB if options.quick else 1024 * MIB
    with ts.local_cluster(workers=2, memory=total) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        source = np.arange(total // 8, dtype=np.float64).reshape(-1, 1024)
        target = np.zeros_like(source)
        copied = seconds_of(lambda: np.copyto(target, source), 5)
        del target
        fresh = seconds_of(source.copy, 5)
        up = lambda: session.distribute_tensor(source, mesh, [ts.Shard(0)]).wait()  # noqa: E731
        uploads = seconds_of(up, options.repetitions)
        x = up()
        downloads = seconds_of(x.full_tensor, options.repetitions)
        if not np.array_equal(x.full_tensor(), source):
            raise SystemExit("up_and_down: wrong values")
    return {"upload": compare(uploads, copied, bytes=total), "download": compare(downloads, copied, bytes=total),
            "download_beside_copy_to_fresh_memory": compare(downloads, fresh, bytes=total)}


# ---- the small figures -----------------------------------------------------------------------------


def tiny_ops(options):
    """Chained tiny ops a second from Python, and one tiny op with its fetch; 2 workers."""
    count = 5_000 if options.quick else 50_000
    with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)]).wait()

        def chain():
            y = x
            for _ in range(count):
                y = y + 1
            return y.wait()

        def issue():
            y = x
            for _ in range(count):
                y = y + 1
            return y

        chained = seconds_of(chain, 3, warm_ups=1)
        issued = []
        for _ in range(3):
            issued += seconds_of(issue, 1, warm_ups=0)
            session.sync()
        fetched = seconds_of(lambda: (x + 1).full_tensor(), 200 if options.quick else 2000, warm_ups=50)
        waited = seconds_of(lambda: (x + 1).wait(), 200 if options.quick else 2000, warm_ups=50)
        if not np.array_equal(chain().full_tensor(), np.full(8, float(count))):
            raise SystemExit("tiny_ops: wrong values")
    percentile = lambda samples, p: float(np.percentile(samples, p)) * 1e6  # noqa: E731
    return {"ops": count,
            "chained_ops_per_second": count / min(chained),
            "issue_us_per_op": min(issued) / count * 1e6,
            "op_and_fetch_us": {"median": percentile(fetched, 50), "p99": percentile(fetched, 99)},
            "op_and_wait_us": {"median": percentile(waited, 50), "p99": percentile(waited, 99)}}


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def live_tensors(options):
    """Memory of the coordinator for each live tensor."""
    count = 20_000 if options.quick else 100_000
    with ts.local_cluster(workers=2, memory="128MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)]).wait()
        ts.wait(*[x + 1 for _ in range(1000)])
        session.sync()
        before = resident_bytes(cluster.coordinator_pid)
        held = [x + 1 for _ in range(count)]
        ts.wait(held[-1])
        session.sync()
        grown = resident_bytes(cluster.coordinator_pid) - before
        del held
        session.sync()
    return {"tensors": count, "coordinator_bytes_per_tensor": grown / count}


FIGURES = {"rows_to_columns": rows_to_columns, "matmul_rows_by_whole": matmul_rows_by_whole,
           "matmul_rows_by_rows": matmul_rows_by_rows, "up_and_down": up_and_down, "tiny_ops": tiny_ops,
           "live_tensors": live_tensors}


# ---- what is told ----------------------------------------------------------------------------------


def is_comparison(figure):
    return "best_ratio" in figure


def lines(name, figure):
    """Lines of the table: name, ours, limit, ratio."""
    if is_comparison(figure):
        ours, limit = figure["tessera"], figure["limit"]
        wanted = f"  (at most {figure['limit_ratio']})" if figure["limit_ratio"] else ""
        yield (f"{name:<42} {ours['best_seconds'] * 1e3:>9.2f} {limit['best_seconds'] * 1e3:>9.2f} "
               f"{figure['best_ratio']:>7.2f} {ours['median_seconds'] * 1e3:>9.2f} "
               f"{limit['median_seconds'] * 1e3:>9.2f} {figure['median_ratio']:>7.2f}{wanted}")
        return
    for key, value in figure.items():
        if isinstance(value, dict):
            yield from lines(f"{name}.{key}", value)
        else:
            yield f"{f'{name}.{key}':<42} {value:>12,.1f}"


def over_limit(figures):
    return [name for name, figure in figures.items()
            if is_comparison(figure) and figure["limit_ratio"] and figure["best_ratio"] > figure["limit_ratio"]]


def machine():
    models = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().split("\n")
              if line.startswith("model name")]
    return {"cpu": models[0] if models else platform.processor(), "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform()}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, 256 MiB instead of 1 GiB")
    parser.add_argument("--only", nargs="+", choices=[*FIGURES, "kernels"], default=[*FIGURES, "kernels"], metavar="NAME",
                        help=f"some of: {', '.join([*FIGURES, 'kernels'])}")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a ratio is over its limit")
    options = parser.parse_args()
    options.rounds, options.repetitions = (2, 5) if options.quick else (4, 11)
    return options


def main():
    options = parse_arguments()
    result = {"machine": machine(), "quick": options.quick, "figures": {}}
    print(f"{'best and median, milliseconds':<42} {'tessera':>9} {'limit':>9} {'ratio':>7} {'tessera':>9} {'limit':>9} {'ratio':>7}")
    for name, measure in FIGURES.items():
        if name not in options.only:
            continue
        figure = result["figures"][name] = measure(options)
        for line in lines(name, figure):
            print(line, flush=True)
    if "kernels" in options.only:
        command = [BINARIES / "tests/bench/kernels_bench"] + (["--quick"] if options.quick else [])
        result["kernels"] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for name, kernel in result["kernels"].items():
            if "ratio_to_memcpy" in kernel:
                print(f"{'kernel.' + name:<42} {kernel['seconds'] * 1e3:>9.2f} {'memcpy':>9} {kernel['ratio_to_memcpy']:>7.2f}")
    folder = pathlib.Path(os.environ.get("TESSERA_BENCH_OUT", HERE / "out"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tessera.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {path}")
    missed = over_limit(result["figures"])
    for name in missed:
        print(f"over its limit: {name}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
