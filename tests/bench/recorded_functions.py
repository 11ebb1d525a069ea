"""Functions that are made of many ops: each op by itself, beside all as one record, from its second call on.

    tools/python --torch tests/bench/recorded_functions.py

Two workers. For each function the records of a call, the caller's time until it returns, and the time until the result is there; medians of
rounds in turns. Prints a table, and the same as JSON in the last line.
"""

import json
import os
import statistics
import time

import numpy as np
import torch

import tessera as ts
import tessera.torch as tt
from tessera.torch import _table

ROUNDS = 15
SIZES = (1_000, 1_000_000)


def record_count(session) -> int:
    counts = session._counts()
    return counts["tessera_client_calls"] + counts["tessera_client_uploads"]


def cases(session, mesh, size: int):
    """(name, as one record, op by op, what waits for a result)."""
    rng = np.random.default_rng(0)
    x = session.distribute_tensor(rng.standard_normal(size), mesh, [ts.Shard(0)])
    matrix = session.distribute_tensor(rng.standard_normal((size // 50, 50)), mesh, [ts.Shard(0)])
    a, b = (tt.distribute_tensor(torch.from_numpy(rng.uniform(0.1, 30, size)), mesh, [ts.Shard(0)]) for _ in range(2))

    def of(function, *args, **kwargs):
        one = function.__wrapped__      # beneath NumPy's ways to call it
        return lambda: one(*args, **kwargs), lambda: one.__wrapped__(*args, **kwargs)

    row = _table.TABLE[torch.ops.aten.igamma.default]
    here = lambda out: (out[0] if isinstance(out, tuple) else out).wait()     # noqa: E731
    yield "igamma", lambda: row(a, b), lambda: row.__wrapped__(a, b), lambda out: tt.to_handle(out).wait()
    yield "histogram", *of(ts.histogram, x, bins=20, range=(-4.0, 4.0)), here
    yield "quantile", *of(ts.quantile, x, 0.25), here
    yield "norm", *of(ts.linalg.norm, matrix, 2, axis=(0, 1), keepdims=True), here
    yield "interp", *of(ts.interp, x, x[:16], x[16:32]), here


def measured(session, run, done) -> tuple:
    session.sync()
    before, start = record_count(session), time.perf_counter()
    out = run()
    returned = time.perf_counter()
    done(out)
    return record_count(session) - before, returned - start, time.perf_counter() - start


def main() -> None:
    found = {"load": os.getloadavg()[0]}
    with ts.local_cluster(workers=2, memory="1GiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        for size in SIZES:
            for name, as_one, by_op, done in cases(session, mesh, size):
                times = {"op by op": [], "one record": []}
                for round_ in range(ROUNDS + 2):
                    for way, run in (("op by op", by_op), ("one record", as_one)):
                        taken = measured(session, run, done)
                        if round_ >= 2:
                            times[way].append(taken)
                found[f"{name} of {size}"] = each = {
                    way: dict(zip(("records", "call_ms", "done_ms"), (round(statistics.median(one) * scale, 3) for one, scale in
                                                                      zip(zip(*several), (1, 1e3, 1e3))))) for way, several in times.items()}
                print(f"{name} of {size}: " + "; ".join(f"{way} {one['records']:.0f} records, call {one['call_ms']:.2f} ms, "
                                                        f"done {one['done_ms']:.2f} ms" for way, one in each.items()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
