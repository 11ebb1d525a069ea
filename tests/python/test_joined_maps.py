"""Large steps of optimizers, whose maps run in one pass over memory: to the bit what they give part by part, where each
part is too small to be joined (min_joined_bytes)."""

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE

PART, PARTS = 60 * 1024, 4      # elements: 240 KiB of f32, and as many blocks in each part


@pytest.fixture(scope="module")
def session():
    with ts.local_cluster(workers=2, memory="64MiB", device=DEVICE) as cluster, cluster.connect() as session:
        yield session


def step(kind, values, count):
    """Three steps, each with the results of the one before."""
    x, gradient, *state = values
    for _ in range(3):
        if kind == "sgd":
            x, *state = ts.sgd_step(x, gradient, 0.1, *state, momentum=0.9, weight_decay=0.01, mode="momentum")
        else:
            highest = state[2:]
            x, *state = ts.adam_step(x, gradient, *state[:2], count, 0.01, *highest, weight_decay=0.1, mode=kind)
    return [x, *state]


@pytest.mark.parametrize("kind, arrays", [("sgd", 3), ("adam", 4), ("adamw", 4), ("adamw", 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_is_to_the_bit_what_its_parts_give(session, kind, arrays, dtype):
    mesh = session.init_device_mesh((2,))
    generator = np.random.default_rng(arrays)
    whole = [generator.normal(size=(2, PARTS * PART)).astype(dtype) for _ in range(arrays)]
    for array in whole[3:]:
        np.abs(array, out=array)        # second moments
    count = session.distribute_tensor(np.asarray(3), mesh)
    placed = lambda arrays: [session.distribute_tensor(np.ascontiguousarray(a), mesh, [ts.Shard(0)]) for a in arrays]  # noqa: E731
    got = [out.full_tensor() for out in step(kind, placed(whole), count)]
    columns = PART * 4 // np.dtype(dtype).itemsize
    for start in range(0, PARTS * PART, columns):
        part = [a[:, start:start + columns] for a in whole]
        for mine, other in zip(got, step(kind, placed(part), count)):
            np.testing.assert_array_equal(mine[:, start:start + columns], other.full_tensor())


def test_maps_that_read_each_others_results_elsewhere_stay_apart(session):
    """Reversed and shifted reads of what the map before wrote."""
    mesh = session.init_device_mesh((1,))
    array = np.random.default_rng(0).normal(size=1 << 18).astype(np.float32)
    x = session.distribute_tensor(array, mesh, [ts.Replicate()])
    y = x * 2 + 1
    z = y[::-1] + y
    w = z[1:] * z[:-1] - z[1:]
    expected = array * 2 + 1
    expected = expected[::-1] + expected
    np.testing.assert_array_equal(w.full_tensor(), expected[1:] * expected[:-1] - expected[1:])
