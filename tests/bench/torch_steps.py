"""The time of a training step of an MLP: torch in one process of one thread, tessera.torch on two workers of one, and captured.

    tools/python --torch tests/bench/torch_steps.py [--only 32x64] [--rounds N]

Seconds per step, the best of several rounds of steps in a row that are waited for at their end; and the CPU time of the calling
thread. WxH is Linear(W, H), ReLU, Linear(H, W) with a squared error, the first layer cut by columns and the second by rows; AdamW
fused, or SGD. Prints a table, and the same as JSON in the last line.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

CASES = {"32x64": (32, 64, 16, 20), "256x1024": (256, 1024, 256, 6), "1024x4096": (1024, 4096, 512, 1)}    # rows, steps of a round
OPTIMIZERS = {"SGD": lambda p: torch.optim.SGD(p, lr=0.01), "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True)}


def make_step(model, optimizer):
    def step(x, wanted):
        loss = F.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def seconds(step, batch, count: int, rounds: int, wait) -> dict:
    for _ in range(4):
        step(*batch)
    wait()
    wall = cpu = float("inf")
    for _ in range(rounds):
        start, own = time.perf_counter(), time.thread_time()
        for _ in range(count):
            loss = step(*batch)
        cpu = min(cpu, (time.thread_time() - own) / count)
        wait()
        wall = min(wall, (time.perf_counter() - start) / count)
    return {"seconds": wall, "thread_seconds": cpu, "loss": loss.item()}


def measure(session, mesh, case: str, name: str, rounds: int) -> dict:
    width, inner, rows, count = CASES[case]
    batch = torch.randn(rows, width), torch.randn(rows, width)
    batch_there = [tt.distribute_tensor(one, mesh, [ts.Replicate()]) for one in batch]

    def made(place):
        torch.manual_seed(0)
        model = place(nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)))
        return make_step(model, OPTIMIZERS[name](model.parameters()))
    on_mesh = lambda model: parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})  # noqa: E731
    return {"torch": seconds(made(lambda model: model), batch, count, rounds, lambda: None),
            "tessera": seconds(made(on_mesh), batch_there, count, rounds, session.sync),
            "captured": seconds(tt.capture(made(on_mesh)), batch_there, count, rounds, session.sync)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = {}
    with ts.local_cluster(workers=2, memory="1GiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,), mesh_dim_names=("tp",))
        print(f"{'step':22s} {'torch ms':>9s} {'tessera ms':>11s} {'captured ms':>12s} {'of it Python ms':>16s}")
        for case in [options.only] if options.only else CASES:
            for name in OPTIMIZERS:
                found = out[f"{case} {name}"] = measure(session, mesh, case, name, options.rounds)
                print(f"{case + ' ' + name:22s} {found['torch']['seconds'] * 1e3:9.2f} {found['tessera']['seconds'] * 1e3:11.2f} "
                      f"{found['captured']['seconds'] * 1e3:12.2f} {found['captured']['thread_seconds'] * 1e3:16.3f}", flush=True)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
