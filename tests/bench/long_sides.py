"""The cost of long sides where they lie, beside the same op on a copy that was gathered first.

    tools/python tests/bench/long_sides.py

Two workers: singular values and least squares of a tall matrix in row shards, and messages of edges in shards that are added up
at nodes. Medians of rounds in turns, and the bytes that workers receive for each.
"""

import json
import statistics
import time

import numpy as np

import tessera as ts

ROWS, COLUMNS, NODES, ROUNDS = 200_000, 24, 1000, 7


def cases(session, mesh, rng):
    """By name: the op and its sharded operands."""
    cut = [ts.Shard(0)]
    matrix, right = (session.distribute_tensor(rng.standard_normal((ROWS, n)), mesh, cut) for n in (COLUMNS, 2))
    at = session.distribute_tensor(rng.integers(0, NODES, ROWS), mesh, cut)
    nodes = session.distribute_tensor(np.zeros((NODES, COLUMNS)), mesh, [ts.Replicate()])
    yield "lstsq", lambda a, b: ts.linalg.lstsq(a, b).x, (matrix, right)
    yield "svd", lambda a: ts.linalg.svd(a, full_matrices=False).U, (matrix,)
    yield "svdvals", ts.linalg.svdvals, (matrix,)
    yield "index_add", lambda i, a: ts.index_add(nodes, i, a, axis=0).redistribute([ts.Replicate()]), (at, matrix)


def main() -> None:
    found = {}
    with ts.local_cluster(workers=2, memory="1GiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        for name, function, operands in cases(session, mesh, np.random.default_rng(0)):
            ways = {"in pieces": lambda f=function, o=operands: f(*o),
                    "gathered": lambda f=function, o=operands: f(*(x.redistribute([ts.Replicate()]) for x in o))}
            seconds = {way: [] for way in ways}
            received = {}
            for way, run in ways.items():
                with session.comm_debug() as comm:
                    run().wait()
                received[way] = sum(comm.bytes_received)
            for _ in range(ROUNDS):
                for way, run in ways.items():
                    start = time.perf_counter()
                    run().wait()
                    seconds[way].append(time.perf_counter() - start)
            taken = {way: statistics.median(times) for way, times in seconds.items()}
            found[name] = {"seconds": taken, "bytes_received": received, "ratio": taken["in pieces"] / taken["gathered"]}
            print(f"{name}: {found[name]['ratio']:.2f}x, {taken['in pieces'] * 1e3:.0f} of {taken['gathered'] * 1e3:.0f} ms; "
                  f"{received['in pieces']} of {received['gathered']} bytes")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
