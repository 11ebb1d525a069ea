"""Calls that are planned as one give the bits of each call by itself."""

import numpy as np
import pytest

import conftest
import differential
import tessera as ts


@pytest.fixture(scope="module")
def clusters():
    """One that plans segments, and one that plans each call by itself."""
    options = {"workers": 4, "memory": "8MiB", "transport": conftest.TRANSPORT, "device": conftest.DEVICE}
    with ts.local_cluster(**options) as fused, \
            ts.local_cluster(**options, coordinator_flags=["--max-segment-ops", "1"]) as single:
        yield fused, single


def bits(value):
    value = np.asarray(value)
    return np.where(np.isnan(value), np.nan, value).tobytes() if value.dtype.kind == "f" else value.tobytes()


def results(session, lines, names):
    space = {"session": session, "ts": ts, "np": np, "inf": np.inf, "nan": np.nan}
    for line in lines:
        exec(line, space)   # noqa: S102 - as in differential.py
    return {name: space[name].full_tensor() for name in names}


@pytest.mark.whole_system
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_random_programs_have_the_same_bits_fused_and_op_by_op(clusters, start):
    with clusters[0].connect() as fused, clusters[1].connect() as single, np.errstate(all="ignore"):
        for seed in range(start, start + 40):
            program = differential.Program(seed)
            a, b = (results(session, program.lines, program.pool) for session in (fused, single))
            for name in program.pool:
                assert bits(a[name]) == bits(b[name]), f"{name} of seed {seed}\n{program.script(name)}"


CHAINS = {
    "maps": lambda x, y: ts.tanh(x * 2 + 1) * y - x / 3,
    "square": lambda x, y: (x + y) * (x + y),
    "into a sum": lambda x, y: ((x - y) * (x - y)).sum(axis=1),
    "into a mean": lambda x, y: ts.mean(ts.abs(x * y), axis=0),
    "from a mean": lambda x, y: (x - ts.mean(x, axis=1, keepdims=True)) * 2,
    "from a product": lambda x, y: ts.maximum(ts.matmul(x, y.T) + 0.5, 0.0),
    "composites": lambda x, y: ts.square(x) + ts.square(y),
    "astype": lambda x, y: ts.astype(x + y, "float32") * 3,
}


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("placement", [ts.Shard(0), ts.Shard(1), ts.Replicate()])
def test_chains_have_the_same_bits_fused_and_op_by_op(clusters, name, dtype, placement):
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal((9, 7)).astype(dtype) for _ in range(2)]
    values = []
    for cluster in clusters:
        with cluster.connect() as session:
            mesh = session.init_device_mesh((4,))
            x, y = (session.distribute_tensor(array, mesh, [placement]) for array in arrays)
            values.append(bits(CHAINS[name](x, y).full_tensor()))
    assert values[0] == values[1]


def test_a_long_chain_counts_right_and_leaves_nothing_behind(clusters):
    with clusters[0].connect() as session:
        mesh = session.init_device_mesh((4,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])
        y = x
        for i in range(1000):
            y = y + i
        assert np.array_equal(y.full_tensor(), np.full(8, float(sum(range(1000)))))
        assert len(session.tensors()) == 2


def test_assignment_writes_in_place_and_leaves_what_was_taken_before(clusters):
    with clusters[0].connect() as session:
        mesh = session.init_device_mesh((4,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])
        before, view = x[2:6].copy(), x[2:6]
        also = x + 0
        for i in range(8):
            x[i] = float(i)
        assert np.array_equal(x.full_tensor(), np.arange(8.0))
        assert np.array_equal(before.full_tensor(), np.zeros(4)) and np.array_equal(view.full_tensor(), np.arange(2.0, 6.0))
        assert np.array_equal(also.full_tensor(), np.zeros(8))
