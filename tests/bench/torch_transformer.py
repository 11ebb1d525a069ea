"""The calling thread's time for a transformer of two layers, forward and backward: torch with its arithmetic, and tessera.torch.

    tools/python --torch tests/bench/torch_transformer.py [--profile]

CPU time of the calling thread in ms, and how many ops torch asks for; the least of several rounds. The model is Gpt of
tests/torch/models.py, tensor parallel on two workers of one thread. Prints a line, and the same as JSON. --profile prints where
Python spends its time instead.
"""

import cProfile
import json
import pathlib
import pstats
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "torch"))
from models import Gpt, batches, on, same_start, tensor_parallel  # noqa: E402

ROUNDS, COUNT = 200, 5


class Counting(TorchDispatchMode):
    """How many ops torch asks for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def make_step(model, numbers, labels):
    def step():
        loss = F.cross_entropy(model(numbers).flatten(0, 1), labels.flatten())
        loss.backward()
        model.zero_grad()
    return step


def cost(step, wait) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(COUNT):
            step()
        best = min(best, (time.thread_time() - start) / COUNT)
        wait()
    return best * 1e3


def main() -> None:
    torch.set_num_threads(1)
    here, model = same_start(Gpt)
    data = batches(1)
    with ts.local_cluster(workers=2, memory="256MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,), mesh_dim_names=("tp",))
        tensor_parallel(model, mesh)
        step = make_step(model, *on(mesh, data, [ts.Replicate()])[0])
        for _ in range(3):
            step()
        session.sync()
        if sys.argv[1:] == ["--profile"]:
            profile = cProfile.Profile()
            for _ in range(40):
                profile.enable()
                step()
                profile.disable()
                session.sync()
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
            return
        own = make_step(here, *data[0])
        with Counting() as ops:
            own()
        out = {"torch_ms": cost(own, lambda: None), "tessera_ms": cost(step, session.sync), "torch_ops": ops.count}
    print(f"torch {out['torch_ms']:.2f} ms, tessera.torch {out['tessera_ms']:.2f} ms; torch asks for {ops.count} ops")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
