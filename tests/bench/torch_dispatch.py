"""The main thread's time for an op: torch on this CPU, the bare client, and tessera.torch.

    tools/python --torch tests/bench/torch_dispatch.py

CPU time of the calling thread in us per op, of tensors of 64 numbers; the least of several rounds. Prints a table, and the
same as JSON in the last line.
"""

import json
import time

import torch
import torch.nn.functional as F

import _tessera
import tessera as ts
import tessera.torch as tt
from tessera._catalog import OPS

ROUNDS, COUNT = 150, 200     # short rounds: one of them is undisturbed


def cost(function, session) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(COUNT):
            function()
        best = min(best, (time.thread_time() - start) / COUNT)
        session.sync()
    return best * 1e6


def backward(leaf) -> None:
    leaf.grad = None
    (leaf * leaf).sum().backward()


def main() -> None:
    torch.set_num_threads(1)
    with ts.local_cluster(workers=1, memory="256MiB") as cluster, cluster.connect() as session:
        mesh = session.default_mesh
        here = torch.ones(8, 8)
        there = tt.distribute_tensor(here, mesh)
        handle = tt.to_handle(there)
        leaf_here, leaf = here.clone().requires_grad_(), tt.distribute_tensor(here, mesh).requires_grad_()
        call = _tessera.call
        cases = {
            "add": (lambda: here + here, lambda: handle + handle, lambda: there + there),
            "add, recorded": (lambda: leaf_here + here, lambda: handle + handle, lambda: leaf + there),
            "mul by a number": (lambda: here * 2.0, lambda: handle * 2.0, lambda: there * 2.0),
            "relu": (lambda: here.relu(), lambda: call(OPS["relu"], (handle,)), lambda: there.relu()),
            "mm": (lambda: here @ here, lambda: handle @ handle, lambda: there @ there),
            "linear": (lambda: F.linear(here, here), lambda: call(OPS["einsum"], (handle, handle), notation="ai,oi->ao"),
                       lambda: F.linear(there, there)),
            "view": (lambda: here.view(64), lambda: call(OPS["reshape"], (handle,), shape=[64]), lambda: there.view(64)),
            "t": (lambda: here.t(), lambda: handle.T, lambda: there.t()),
            "sum": (lambda: here.sum(), lambda: call(OPS["sum"], (handle,), dims=[0, 1], keepdims=False), lambda: there.sum()),
            "cat": (lambda: torch.cat([here, here]), lambda: call(OPS["concat"], (handle, handle), dims=[0]), lambda: torch.cat([there, there])),
            "layer_norm": (lambda: F.layer_norm(here, (8,)), lambda: call(OPS["layer_norm"], (handle,), dims=[1], eps=1e-5),
                           lambda: F.layer_norm(there, (8,))),
            "square, sum, backward": (lambda: backward(leaf_here), lambda: call(OPS["sum"], (handle * handle,), dims=[0, 1], keepdims=False),
                                      lambda: backward(leaf)),
        }
        out = {}
        print(f"{'op':24s} {'torch':>8s} {'client':>8s} {'tessera.torch':>14s} {'of torch':>9s}")
        for name, functions in cases.items():
            of_torch, of_client, ours = (cost(function, session) for function in functions)
            out[name] = {"torch_us": of_torch, "client_us": of_client, "tessera_torch_us": ours}
            print(f"{name:24s} {of_torch:8.2f} {of_client:8.2f} {ours:14.2f} {ours / of_torch:8.2f}x")
        print(json.dumps(out))


if __name__ == "__main__":
    main()
