"""Ranks of tessera.distributed, processes with sessions: sums of tensors on workers, many ranks, messages, and how soon failures are told.

    tools/python tests/bench/rank_figures.py [--only handles many messages failures] [--many 64]

`handles`: two ranks whose f32 tensors of 64 KiB lie on their workers: an all_reduce in a chain of 200, and one that is waited for beside a
tiny op that is waited for, in turns. `many`: ranks on this host that join, and a barrier of theirs. `messages`: rank 0 sends an array to
rank 1, which sends it back (send and recv of both); and the same of Tensors. `failures`: until all three ranks
have the error of a call that differs, and until the others know that a rank was killed. Prints JSON.
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import time

import numpy as np

import tessera as ts
import tessera.distributed as dist

CHAIN, ALONE, ROUNDS, BARRIERS, MISMATCHES = 200, 60, 7, 100, 30
RANKS = {"handles": 2, "many": 64, "messages": 2, "failures": 3}
ELEMENTS = (64 << 10) // 4
MESSAGES = {4: 200, 64: 200, 1024: 20}      # KiB -> messages there and back, of a round


def timed(call, count):
    """Microseconds of each."""
    marks = [time.perf_counter()]
    for _ in range(count):
        call()
        marks.append(time.perf_counter())
    return [(end - start) * 1e6 for start, end in zip(marks, marks[1:])]


def handles(rank, told):
    x = ts.ones(ELEMENTS, dtype="float32")
    tiny = ts.ones(8, dtype="float32")
    dist.all_reduce(x, dist.ReduceOp.MAX)
    x.wait()
    chained, alone, ops = [], [], []
    for number in range(ROUNDS + 1):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(CHAIN):
            dist.all_reduce(x, dist.ReduceOp.MAX)
        x.wait()
        chain_us = (time.perf_counter() - began) / CHAIN * 1e6
        dist.barrier()

        def one():
            dist.all_reduce(x, dist.ReduceOp.MAX)
            x.wait()

        one_us = timed(one, ALONE)
        tiny_us = timed(lambda: (tiny + 1).wait(), ALONE)
        if number:      # the first one warms
            chained.append(chain_us)
            alone += one_us
            ops += tiny_us
    return {"chained_us": round(statistics.median(chained), 1), "chained_best_us": round(min(chained), 1),
            "waited_for_us": round(statistics.median(alone), 1), "tiny_op_us": round(statistics.median(ops), 1)}


def many(rank, told):
    times = timed(dist.barrier, BARRIERS)[BARRIERS // 10:]
    return {"barrier_ms": round(statistics.median(times) / 1e3, 2), "barrier_best_ms": round(min(times) / 1e3, 2)}


def messages(rank, told):
    found = {}
    for kib, count in MESSAGES.items():
        array = np.zeros(kib << 8, dtype="float32")
        for kind, value in {"array": array, "tensor": ts.asarray(array)}.items():
            def there_and_back(value=value):
                for turn in (0, 1):
                    (dist.send if rank == turn else dist.recv)(value, 1 - rank)

            times = []
            for number in range(ROUNDS + 1):
                dist.barrier()
                round_us = timed(there_and_back, count)
                times += round_us if number else []     # the first one warms
            found[f"{kib} KiB {kind}"] = {"us": round(statistics.median(times), 1), "best_us": round(min(times), 1)}
    return found


def failures(rank, told):
    x, seconds = np.ones(1000, dtype="float32"), []
    for _ in range(MISMATCHES):
        dist.barrier()
        began = time.perf_counter()
        try:
            dist.all_reduce(x, dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
        except ts.InvalidArgumentError:
            seconds.append(time.perf_counter() - began)
    dist.barrier()
    if rank == 2:
        told.send(time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(x)
    except ts.UnavailableError:
        named = time.monotonic()
    return {"mismatch_ms": round(max(seconds) * 1e3, 1), "mismatch_median_ms": round(statistics.median(seconds) * 1e3, 1), "named_at": named}


def rank_program(name, rank, size, address, began, told):
    session = ts.connect(address, timeout=60)
    dist.init_process_group(session=session, rank=rank, world_size=size, group_name=name, timeout=120)
    joined = time.monotonic() - began
    if rank == 0:
        told.send(joined)
    found = globals()[name](rank, told)
    if rank == 0:
        told.send(found)
    if name != "failures":
        dist.destroy_process_group()
        session.close()


def run(name, size):
    context = multiprocessing.get_context("fork")
    with ts.local_cluster(size, memory="64MiB") as cluster:
        taken, told = context.Pipe(duplex=False)
        began = time.monotonic()
        processes = [context.Process(target=rank_program, args=(name, rank, size, cluster.address, began, told)) for rank in range(size)]
        for process in processes:
            process.start()
        told.close()
        found = {"joined_s": round(taken.recv(), 2)}
        if name == "failures":
            killed = taken.recv()
            found |= taken.recv()
            found["killed_named_ms"] = round((found.pop("named_at") - killed) * 1e3, 1)
        else:
            found |= taken.recv()
        for process in processes:
            process.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(RANKS), default=list(RANKS))
    parser.add_argument("--many", type=int, default=64)
    options = parser.parse_args()
    sizes = RANKS | {"many": options.many}
    print(json.dumps({"load": os.getloadavg()[0]} | {name: run(name, sizes[name]) for name in options.only}))


if __name__ == "__main__":
    main()
