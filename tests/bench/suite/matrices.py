"""Factorisations of a matrix in shards, f64[4000, 4000] in rows on two workers, beside one thread of NumPy."""

import functools

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, Goal
from .narrow import outputs, settled

NUMPY = (Goal("numpy", 0.6),)

# Ours and NumPy's of the same name, of a general matrix, one that is positive definite, and a right side of four columns.
CASES = {
    "solve": lambda m, general, definite, right: m.linalg.solve(general, right),
    "cholesky": lambda m, general, definite, right: m.linalg.cholesky(definite),
    "inv": lambda m, general, definite, right: m.linalg.inv(general),
    "slogdet": lambda m, general, definite, right: tuple(m.linalg.slogdet(general)),
}


def run(options, name):
    n = 1000 if options.quick else 4000
    rng = np.random.default_rng(3)
    general, right = rng.standard_normal((n, n)), rng.standard_normal((n, 4))
    given = (general, general @ general.T / n + np.eye(n), right)
    call = CASES[name]
    with measure.running(2, 1024 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        cut = ([ts.Shard(0)], [ts.Shard(0)], [ts.Replicate()])
        own = [session.distribute_tensor(array, mesh, placements).wait() for array, placements in zip(given, cut)]
        for got, want in zip(outputs(call(ts, *own)), outputs(call(np, *given)), strict=True):
            measure.check(np.allclose(got.full_tensor(), want, rtol=1e-6, atol=1e-6), name)
        reference = lambda repetitions: {"one thread": measure.seconds_of(lambda: call(np, *given), repetitions)}  # noqa: E731
        return measure.beside(options, lambda: settled(call(ts, *own)), {"numpy": reference}, NUMPY)


FIGURES = {f"matrix_{name}": functools.partial(run, name=name) for name in CASES}
