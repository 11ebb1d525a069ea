"""Matrix products of f64, beside a dgemm in each of as many processes and ScaLAPACK's pdgemm."""

import dataclasses

import numpy as np

import tessera as ts

from . import measure, peers
from .measure import Goal

HALVES = (Goal("limit", 1.05),)
AHEAD = (Goal("scalapack_pdgemm", 1.0),)
OVERSUBSCRIBED = (Goal("limit", 1.5),)


@dataclasses.dataclass(frozen=True)
class Case:
    """A (m x k) times B (k x n), to `result` where that is not what the product has by itself."""
    m: int
    n: int
    k: int
    a: object
    b: object
    split: str  # how the limit's processes share the work
    goals: tuple
    workers: int = 2
    result: object = None


S, R = ts.Shard, ts.Replicate
CASES = {
    "matmul_2048_rows_by_whole": Case(2048, 2048, 2048, S(0), R(), "rows", HALVES),
    "matmul_2048_rows_by_rows": Case(2048, 2048, 2048, S(0), S(0), "rows", HALVES),
    "matmul_256x256x131072": Case(256, 256, 131072, S(1), S(0), "inner", AHEAD, result=S(0)),
    "matmul_8192x256x4096": Case(8192, 256, 4096, S(0), S(0), "rows", AHEAD),
    "matmul_4096x4096x64": Case(4096, 4096, 64, S(0), S(0), "rows", AHEAD),
    "matmul_2048_rows_by_rows_4_workers": Case(2048, 2048, 2048, S(0), S(0), "rows", OVERSUBSCRIBED, workers=4),
    "matmul_256x256x131072_4_workers": Case(256, 256, 131072, S(1), S(0), "inner", OVERSUBSCRIBED, workers=4, result=S(0)),
    "matmul_8192x256x4096_4_workers": Case(8192, 256, 4096, S(0), S(0), "rows", OVERSUBSCRIBED, workers=4),
    "matmul_4096x4096x64_4_workers": Case(4096, 4096, 64, S(0), S(0), "rows", OVERSUBSCRIBED, workers=4),
}


def run(options, name):
    case = CASES[name]
    references = {"limit": measure.limit("product", m=case.m, n=case.n, k=case.k, split=case.split, processes=case.workers)}
    if options.peers and case.workers == 2:
        references["scalapack_pdgemm"] = peers.scalapack("product", case.workers, m=case.m, n=case.n, k=case.k)
        if name.startswith("matmul_2048"):
            text = {S(0): "S0", R(): "R"}
            references["dtensor"] = peers.dtensor("product", extents=[case.m, case.n, case.k], dtype="float64",
                                                  source=text[case.a], destination=text[case.b])
    bytes_in_all = 8 * (case.m * case.k + case.k * case.n + case.m * case.n)
    with measure.running(case.workers, bytes_in_all * 2 + 64 * measure.MIB) as session:
        mesh = session.init_device_mesh((case.workers,))
        rng = np.random.default_rng(1)
        left = rng.integers(-4, 5, (case.m, case.k)).astype(np.float64)
        right = rng.integers(-4, 5, (case.k, case.n)).astype(np.float64)
        a = session.distribute_tensor(left, mesh, [case.a]).wait()
        b = session.distribute_tensor(right, mesh, [case.b]).wait()

        def multiply():
            product = a @ b
            return product if case.result is None else product.redistribute(placements=[case.result])

        measure.check(np.array_equal(multiply().full_tensor(), left @ right), name)
        explained = ts.explain(ts.matmul, a, b)
        return measure.beside(options, lambda: multiply().wait(), references, case.goals,
                              flops=2.0 * case.m * case.n * case.k, workers=case.workers, plan=list(explained.steps))
