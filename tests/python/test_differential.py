"""2,000 random programs against what is known of their results (differential.py; tools/fuzz runs any number of them)."""

import subprocess
import sys

import numpy as np
import pytest

import conftest
import differential
import known_values as kv
import tessera as ts


@pytest.fixture(scope="module")
def small_cluster():
    with ts.local_cluster(workers=4, memory="4MiB", transport=conftest.TRANSPORT) as cluster:
        yield cluster


@pytest.mark.whole_system
@pytest.mark.parametrize("start", range(0, 2000, 100))
def test_random_programs_give_what_is_known(small_cluster, start):
    with small_cluster.connect() as session:
        failures = differential.run_programs(session, range(start, start + 100))
    assert not failures, "\n".join(failures)


def program_with(lines, known):
    program = differential.Program(0)
    program.lines = ["mesh = session.init_device_mesh((4,))", *lines]
    program.pool = {"x1": known}
    return program


def test_a_wrong_result_is_found_and_its_script_shows_it(small_cluster):
    value = np.array([1.0, np.inf, np.nan, 3.0])
    known = kv.add(kv.exactly(value), kv.exactly(value))
    upload = f"x0 = session.distribute_tensor({differential.array_text(value)}, mesh, [ts.Shard(0)])"
    with small_cluster.connect() as session, np.errstate(all="ignore"):
        assert program_with([upload, "x1 = ts.add(x0, x0)"], known).run(session) == ""
        for wrong in ("ts.subtract(x0, x0)", "ts.add(x0, 1.0)", "ts.maximum(x0, 2.0)", "x0[1:]", "ts.astype(x0, 'float32')"):
            failure = program_with([upload, f"x1 = {wrong}"], known).run(session)
            assert failure.startswith("seed 0: x1 = Tensor("), (wrong, failure)
    script = failure.split("\n", 1)[1]
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0 and "Tensor(f32[4]" in shown.stdout, shown.stdout + shown.stderr[-2000:]


def test_what_is_known_is_what_numpy_says():
    rng = np.random.default_rng(3)
    with np.errstate(all="ignore"):
        for _ in range(200):
            a, b = (rng.choice([0.0, -0.0, 1, -3, 0.1, np.inf, -np.inf, np.nan, 1e308, 5e-324], (3, 4)) for _ in range(2))
            x, y = kv.exactly(a), kv.exactly(b)
            for got, known in ((a + b, kv.add(x, y)), (a * b, kv.multiply(x, y)), (a / b, kv.divide(x, y)), (a - b, kv.subtract(x, y)),
                               (np.exp(a), kv.exp(x)), (np.sqrt(a), kv.sqrt(x)), (np.maximum(a, b), kv.extreme(np.maximum, x, y)),
                               (a < b, kv.compare("less", x, y)), (a != b, kv.compare("not_equal", x, y)),
                               (a.sum(axis=0), kv.total(x, [0], False, a.dtype)), (a @ b.T, kv.matmul(x, y.moved(lambda v: v.T))),
                               (a.astype("f4"), kv.cast(x, "f4")), (a.mean(axis=1), kv.mean(x, [1], False, a.dtype))):
                assert kv.mismatch(np.asarray(got), known) == ""


def test_little_is_open():
    """An oracle that answers "nobody can say" finds nothing."""
    elements = open_ = 0
    with np.errstate(all="ignore"):
        for seed in range(100):
            for known in differential.Program(seed).pool.values():
                elements += known.open.size
                open_ += int(known.open.sum())
    assert elements > 5000 and open_ < 0.05 * elements, (elements, open_)
