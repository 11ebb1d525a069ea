"""torch.distributed's all_reduce on the backends tessera and gloo, beside each other: ranks of this host, f32, in place.

    tools/python --torch tests/bench/torch_ranks.py [--ranks N] [--rounds N] [--only KIB ...]

A round is some calls in a row on one backend, then as many on the other, by the same processes. Microseconds of a call: the best round's
mean, and the median of the rounds' means. Prints a table, and the same as JSON in the last line.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import tessera.torch.ranks  # noqa: F401
import tessera as ts

CASES = {4: 50, 64: 50, 1024: 10, 65536: 1}     # KiB -> calls of a round
BACKENDS = ("tessera", "gloo")


def measure(group, tensor, calls: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - start) / calls * 1e6


def rank_program(rank: int, options, store: str, connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    rows = []
    for kib in options.only:
        tensor = torch.zeros(kib << 8)
        found = {backend: [] for backend in BACKENDS}
        for number in range(options.rounds + 1):
            for backend in BACKENDS:
                microseconds = measure(groups[backend], tensor, CASES[kib])
                if number:      # the first one warms
                    found[backend].append(microseconds)
        rows += [{"kib": kib, "backend": backend, "best_us": round(min(means), 1), "median_us": round(statistics.median(means), 1)}
                 for backend, means in found.items()]
    if rank == 0:
        connection.send(rows)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", type=int, nargs="+", choices=list(CASES), default=list(CASES), metavar="KIB")
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder, ts.local_cluster(options.ranks, memory="1GiB") as cluster:
        os.environ["TESSERA_ADDRESS"] = cluster.address
        taken, given = context.Pipe(duplex=False)
        processes = [context.Process(target=rank_program, args=(rank, options, f"{folder}/store", given)) for rank in range(options.ranks)]
        for process in processes:
            process.start()
        given.close()
        rows = taken.recv()
        for process in processes:
            process.join()
    print(f"{'KiB':>8} {'backend':>8} {'best us':>12} {'median us':>12}")
    for row in rows:
        print(f"{row['kib']:>8} {row['backend']:>8} {row['best_us']:>12} {row['median_us']:>12}")
    print(json.dumps({"ranks": options.ranks, "rows": rows}))


if __name__ == "__main__":
    main()
