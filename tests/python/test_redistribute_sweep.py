"""Random redistributions through real workers: the answer is NumPy's, and the workers receive and send what the plan
says they do. Any mesh to any mesh, every kind of Partial, views as sources, dtypes that change on the way."""

import functools
import itertools
import math

import numpy as np
import pytest

import tessera as ts

from conftest import DEVICE, TRANSPORT
from test_programs import P, R, S, box_of

WORKERS = 8
CASES = 300
BLOCKS = 10
DTYPES = ["float64", "float32", "int64", "int32", "uint8", "int16", "float16"]
REDUCE = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


@pytest.fixture(scope="module")
def wide_cluster():
    with ts.local_cluster(workers=WORKERS, memory="16MiB", transport=TRANSPORT, device=DEVICE) as cluster:
        yield cluster


def draw_mesh_shape(rng):
    shape, most = [], WORKERS
    for _ in range(rng.integers(1, 5)):
        shape.append(int(rng.integers(1, min(most, 4) + 1)))
        most //= shape[-1]
    return tuple(rng.permutation(shape).tolist())


def draw_workers(rng, shape):
    return rng.permutation(WORKERS)[:math.prod(shape)].tolist()


def draw_placements(rng, ndim, rank, kind):
    def one():
        choice = rng.integers(0, 10 if rank else 4)
        if choice < 3 and kind:
            return P(kind)
        return R() if choice < 4 else S(int(rng.integers(0, rank)))

    return [one() for _ in range(ndim)]


def draw_case(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([0, 1, 2, 3, 5, 8, 13, 40], rng.integers(0, 4), p=[.05, .1] + [.85 / 6] * 6))
    dtype = DTYPES[rng.integers(0, len(DTYPES))]
    kinds = [None, "sum", "min", "max", "product"] + (["avg"] if dtype[0] == "f" else [])
    source_mesh = draw_mesh_shape(rng)
    workers = draw_workers(rng, source_mesh)
    source = draw_placements(rng, len(source_mesh), len(shape), kinds[rng.integers(0, len(kinds))])
    same_mesh = rng.integers(0, 2) == 0
    mesh = source_mesh if same_mesh else draw_mesh_shape(rng)
    to_workers = workers if same_mesh else draw_workers(rng, mesh)
    destination = draw_placements(rng, len(mesh), len(shape), None)
    if same_mesh:
        destination = [a if a.is_partial() and rng.integers(0, 4) == 0 else b for a, b in zip(source, destination)]
    return rng, shape, dtype, (source_mesh, workers, source), (mesh, to_workers, destination)


def make_pending(session, rng, shape, dtype, source):
    """A tensor whose terms are told by coordinate, and the array that they reduce to."""
    mesh_shape, workers, placements = source
    mesh = session.init_device_mesh(mesh_shape, workers=workers)
    pending = [d for d, p in enumerate(placements) if p.is_partial()]
    terms = {c: rng.integers(1, 4, shape).astype(dtype)
             for c in itertools.product(*(range(mesh_shape[d]) for d in pending))}

    def local(position):
        box = box_of(shape, placements, mesh_shape, position)
        return terms[tuple(position[d] for d in pending)][tuple(slice(*i) for i in box)]

    x = session.from_local(local, mesh, placements, shape=shape)
    kind = placements[pending[0]].reduce_op if pending else "sum"
    values = functools.reduce(REDUCE[kind], terms.values())
    return x, values / len(terms) if kind == "avg" else values


def draw_view(rng, x, values):
    """Transposed, or sliced along dims that no mesh dim shards (those are views), maybe backwards."""
    if values.ndim >= 2 and rng.integers(0, 3) == 0:
        order = rng.permutation(values.ndim).tolist()
        x, values = ts.permute_dims(x, order), values.transpose(order)
    sharded = {p.dim for p in x.placements if p.is_shard()}
    index = tuple(slice(None, None, -1) if d not in sharded and rng.integers(0, 3) == 0 else slice(None)
                  for d in range(values.ndim))
    return (x[index], values[index]) if values.ndim else (x, values)


def check(session, seed):
    rng, shape, dtype, source, (mesh_shape, workers, destination) = draw_case(seed)
    x, values = make_pending(session, rng, shape, dtype, source)
    x, values = draw_view(rng, x, values)
    mesh = session.init_device_mesh(mesh_shape, workers=workers)
    what = f"seed {seed}: {x!r} -> {mesh} {destination}"
    if rng.integers(0, 6) == 0 and not any(p.is_partial() for p in destination):
        to = DTYPES[rng.integers(0, len(DTYPES))]
        y = x.redistribute(mesh, destination, dtype=to)
        np.testing.assert_allclose(y.full_tensor(), values.astype(to), rtol=1e-6, atol=1, err_msg=what)
        return
    plan = x.explain_redistribute(mesh, destination)
    with session.comm_debug() as comm:
        y = x.redistribute(mesh, destination)
    one_mesh = tuple(x.device_mesh.shape) == mesh_shape and list(x.device_mesh.workers) == workers
    numbers = workers if one_mesh else range(len(plan.bytes_received))
    for planned, counted in ((plan.bytes_received, comm.bytes_received), (plan.bytes_sent, comm.bytes_sent)):
        assert planned == [counted[w] for w in numbers], f"{what}\n{comm}\n{plan}"
        assert sum(planned) == sum(counted), f"{what}\n{comm}\n{plan}"
    np.testing.assert_allclose(y.full_tensor(), values, rtol=1e-6 if dtype[0] == "f" else 0, err_msg=f"{what}\n{plan}")


@pytest.mark.whole_system
@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_redistributions(wide_cluster, block):
    session = wide_cluster.connect()
    for seed in range(block, CASES, BLOCKS):
        check(session, seed)
    session.close()
