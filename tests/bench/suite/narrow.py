"""A narrow and tall array, f32[400000, 8] in rows on two workers, beside one thread of NumPy: what a data user does first."""

import functools

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, Goal

ROWS, COLUMNS, NUMBERS = 400_000, 8, 1000
NUMPY = (Goal("numpy", 1.2),)


def arrays():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, COLUMNS), np.float32)
    return {"x": x, "column": x[:, 0].copy(), "labels": rng.integers(0, NUMBERS, ROWS), "rows": rng.integers(0, ROWS, ROWS // 2),
            "weights": rng.standard_normal((COLUMNS, 10), np.float32)}


# Ours and NumPy's, of the same names; a result is an array, or a tuple of them.
CASES = {
    "row_dots": (lambda m, a: m.einsum("ij,ij->i", a.x, a.x), None),
    "vecdot": (lambda m, a: m.vecdot(a.x, a.x), lambda m, a: np.einsum("ij,ij->i", a.x, a.x)),
    "argmin_rows": (lambda m, a: m.argmin(a.x, axis=1), None),
    "sum_rows": (lambda m, a: m.sum(a.x, axis=1), None),
    "sum_columns": (lambda m, a: m.sum(a.x, axis=0), None),
    "matmul_8x10": (lambda m, a: a.x @ a.weights, None),
    "bincount": (lambda m, a: m.bincount(a.labels), None),
    "histogram": (lambda m, a: m.histogram(a.column, bins=50, range=(-4, 4))[0], None),
    "unique_counts": (lambda m, a: tuple(m.unique_counts(a.labels)), lambda m, a: np.unique(a.labels, return_counts=True)),
    "repeat_rows": (lambda m, a: m.repeat(a.x, 2, axis=0), None),
    "take_rows": (lambda m, a: m.take(a.x, a.rows, axis=0), None),
    "mask_rows": (lambda m, a: a.x[a.x[:, 0] > 0.5], None),
    "nonzero": (lambda m, a: m.nonzero(a.column > 0.5)[0], None),
}


class Named:
    def __init__(self, values):
        self.__dict__.update(values)


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def settled(result):
    for one in outputs(result):
        one.wait()
    return result


def run(options, name):
    ours, numpys = CASES[name]
    numpys = numpys or ours
    with measure.running(2, 512 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        given = arrays()
        a = Named(given)
        cut = {key: [ts.Replicate()] if key == "weights" else [ts.Shard(0)] for key in given}
        b = Named({key: session.distribute_tensor(value, mesh, cut[key]).wait() for key, value in given.items()})
        for got, want in zip(outputs(ours(ts, b)), outputs(numpys(np, a)), strict=True):
            measure.check(np.allclose(got.full_tensor(), want, rtol=1e-3, atol=1e-2), name)
        reference = lambda repetitions: {"one thread": measure.seconds_of(lambda: numpys(np, a), repetitions)}  # noqa: E731
        return measure.beside(options, lambda: settled(ours(ts, b)), {"numpy": reference}, NUMPY)


FIGURES = {f"narrow_{name}": functools.partial(run, name=name) for name in CASES}
