"""torch.distributed's all_reduce and barrier, and what DDP adds to a step, on the backends tessera and gloo, beside each other: ranks of
this host, f32, in place.

    tools/python --torch tests/bench/torch_ranks.py [--ranks N] [--rounds N] [--only KIB ...] [--allocated] [--barrier] [--ddp]
                                             [--messages]

A round is some calls in a row on one backend, then as many on the other, by the same processes. Microseconds of a call: the best round's
mean, the median of the rounds' means, and the median of all calls. --allocated: the same of tensors in memory of allocate_tensor, which gloo's
are not. --messages: rank 0 sends to rank 1, which sends it back (send and recv of both). Of DDP: an MLP's step with SGD, less the same step without DDP. Prints
a table, and the same as JSON in the last line.
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

import tessera.torch_ranks  # noqa: F401
import tessera as ts

CASES = {4: 200, 64: 200, 1024: 40, 65536: 2}   # KiB -> calls of a round
BARRIERS, STEPS = 200, 30                       # of a round
MODELS = {"mlp 32x64": (32, 64, 16), "mlp 256x1024": (256, 1024, 64)}   # widths, rows of a batch
BACKENDS = ("tessera", "gloo")


def measure(group, call, calls: int) -> list[float]:
    """Microseconds of each of these calls."""
    dist.barrier(group=group)
    marks = [time.perf_counter()]
    for _ in range(calls):
        call()
        marks.append(time.perf_counter())
    return [(end - start) * 1e6 for start, end in zip(marks, marks[1:])]


def row(what: str, kind: str, rounds: list[list[float]], less: float = 0.0) -> dict:
    means = [statistics.mean(calls) for calls in rounds]
    calls = statistics.median(call for calls in rounds for call in calls)
    return {"what": what, "backend": kind, "best_us": round(min(means) - less, 1), "median_us": round(statistics.median(means) - less, 1),
            "call_us": round(calls - less, 1)}


def in_turns(calls: dict, count: int, rounds: int) -> dict:
    """By name, the rounds of each; calls: name -> (the group, the call)."""
    found = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, (group, call) in calls.items():
            times = measure(group, call, count)
            if number:      # the first one warms
                found[name].append(times)
    return found


def steps_of(groups: dict, options) -> list[dict]:
    rows = []
    for name, (width, hidden, batch) in MODELS.items():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, width))
        x, optimizer = torch.randn(batch, width), torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(model, x=x, optimizer=optimizer):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        calls = {"bare": (groups["gloo"], lambda: step(net))}
        for backend, group in groups.items():
            model = torch.nn.parallel.DistributedDataParallel(net, process_group=group, gradient_as_bucket_view=True)
            rounds = in_turns({**calls, backend: (group, lambda model=model: step(model))}, STEPS, options.rounds)
            bare = statistics.median(call for times in rounds["bare"] for call in times)
            rows.append(row(f"{name} adds", backend, rounds[backend], less=bare))
            del model
    return rows


def rank_program(rank: int, options, store: str, connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    rows = []
    for kib in options.only:
        tensor = torch.zeros(kib << 8)
        calls = {backend: (group, lambda group=group: dist.all_reduce(tensor, group=group)) for backend, group in groups.items()}
        found = in_turns(calls, CASES[kib], options.rounds)
        rows += [row(f"{kib} KiB", backend, rounds) for backend, rounds in found.items()]
    for kib in options.only if options.allocated else ():
        own = groups["tessera"]._get_backend(torch.device("cpu")).allocate_tensor(kib << 8, dtype=torch.float32, device=torch.device("cpu")).zero_()
        tensors = {"tessera": own, "gloo": torch.zeros(kib << 8)}
        calls = {backend: (group, lambda group=group, tensor=tensors[backend]: dist.all_reduce(tensor, group=group)) for backend, group in groups.items()}
        found = in_turns(calls, CASES[kib], options.rounds)
        rows += [row(f"{kib} KiB allocated", backend, rounds) for backend, rounds in found.items()]
    if options.barrier:
        calls = {backend: (group, lambda group=group: dist.barrier(group=group)) for backend, group in groups.items()}
        rows += [row("barrier", backend, rounds) for backend, rounds in in_turns(calls, BARRIERS, options.rounds).items()]
    for kib in options.only if options.messages else ():
        tensor = torch.zeros(kib << 8)

        def there_and_back(group, tensor=tensor):
            if rank < 2:
                for turn in (0, 1):
                    (dist.send if rank == turn else dist.recv)(tensor, 1 - rank, group=group)

        calls = {backend: (group, lambda group=group: there_and_back(group)) for backend, group in groups.items()}
        found = in_turns(calls, CASES[kib], options.rounds)
        rows += [row(f"{kib} KiB there and back", backend, rounds) for backend, rounds in found.items()]
    if options.ddp:
        rows += steps_of(groups, options)
    if rank == 0:
        connection.send(rows)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", type=int, nargs="*", choices=list(CASES), default=list(CASES), metavar="KIB")
    parser.add_argument("--allocated", action="store_true")
    parser.add_argument("--barrier", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--messages", action="store_true")
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
    print(f"{'':>20} {'backend':>8} {'best us':>12} {'median us':>12} {'a call us':>12}")
    for one in rows:
        print(f"{one['what']:>20} {one['backend']:>8} {one['best_us']:>12} {one['median_us']:>12} {one['call_us']:>12}")
    print(json.dumps({"ranks": options.ranks, "load": os.getloadavg()[0], "rows": rows}))


if __name__ == "__main__":
    main()
