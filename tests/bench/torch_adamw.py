"""A worker's time for a step of AdamW beside one pass over the memory that it takes.

    tools/python --torch tests/bench/torch_adamw.py

A step reads the parameter, the gradient and both moments and writes all but the gradient. One pass: as many bytes copied by one
thread of this process. Medians of rounds in turns; prints how many kernels the profile counts for a step, too.
"""

import json
import statistics
import time

import numpy as np
import torch

import tessera as ts
import tessera.torch as tt

ELEMENTS, STEPS, ROUNDS = 1 << 22, 4, 9


def main() -> None:
    with ts.local_cluster(workers=1, memory="1GiB") as cluster, cluster.connect() as session:
        with tt.default_placement(session.default_mesh):
            p = tt.distribute_tensor(torch.randn(ELEMENTS), session.default_mesh).requires_grad_()
            p.grad = tt.distribute_tensor(torch.randn(ELEMENTS), session.default_mesh)
            optimizer = torch.optim.AdamW([p], lr=1e-3, fused=True)
            half = ELEMENTS * 7 // 2
            source, destination = np.ones(half, np.float32), np.ones(half, np.float32)
            optimizer.step()
            session.sync()
            step, copy = [], []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(STEPS):
                    optimizer.step()
                session.sync()
                step.append((time.perf_counter() - start) / STEPS)
                start = time.perf_counter()
                for _ in range(STEPS):
                    np.copyto(destination, source)
                copy.append((time.perf_counter() - start) / STEPS)
            with session.profile() as profile:
                optimizer.step()
                session.sync()
    ours, pass_ = statistics.median(step), statistics.median(copy)
    print(f"step {ours * 1e3:.2f} ms, one pass {pass_ * 1e3:.2f} ms: {ours / pass_:.2f}x")
    print(profile)
    print(json.dumps({"step_seconds": ours, "pass_seconds": pass_, "ratio": ours / pass_}))


if __name__ == "__main__":
    main()
