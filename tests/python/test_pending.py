"""Results whose shape depends on values: handles at once, whose spec is pending; ops on them queue without waiting."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessera as ts

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from tls_cluster import TlsCluster  # noqa: E402

LIMITS = pathlib.Path(__file__).resolve().parents[2] / "docs/limits.md"


@contextlib.contextmanager
def held(cluster, worker=1):
    """Nothing runs on the worker inside the block: what needs it stays pending, however long the block takes."""
    os.kill(cluster.worker_pids[worker], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(cluster.worker_pids[worker], signal.SIGCONT)


@pytest.fixture(scope="module")
def pair():
    with ts.local_cluster(workers=2, memory="256MiB", coordinator_flags=["--worker-timeout", "600"]) as cluster:
        yield cluster


@pytest.fixture
def here(pair):
    with pair.connect() as session:
        yield session


def vector(session, n=1000, workers=(0, 1)):
    mesh = session.init_device_mesh((len(workers),), workers=workers)
    values = np.random.default_rng(3).standard_normal(n)
    return values, session.distribute_tensor(values, mesh, [ts.Shard(0)])


def test_a_chain_behind_a_mask_queues_while_its_producer_is_held(pair, here):
    values, x = vector(here)
    x.wait()
    with held(pair):
        y = x[x > 0]
        assert y.spec_pending and (y.dtype, y.ndim) == (np.float64, 1)
        assert repr(y) == "Tensor(f64[?] spec pending)"
        expected = values[values > 0]
        for i in range(20):
            y = y * 1.5 + i if i % 2 else ts.sqrt(ts.abs(y))
            expected = expected * 1.5 + i if i % 2 else np.sqrt(np.abs(expected))
        z = (y[y > 3] * y.mean()).sum()
        assert y.spec_pending and z.spec_pending and z.ndim == 0 and not z.is_ready()
        assert "spec pending" in repr(z)
        assert y.device_mesh == x.device_mesh
        with pytest.raises(ts.DeadlineExceededError, match="shape of f64.*spec pending"):
            y.wait(timeout=0.05)
    assert y.shape == expected.shape and y.size == expected.size and len(y) == expected.size
    assert not y.spec_pending and "f64[" in repr(y) and "pending" not in repr(y)
    np.testing.assert_allclose(y.full_tensor(), expected)
    np.testing.assert_allclose(z.item(), (expected[expected > 3] * expected.mean()).sum())


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)])
def test_what_is_found_is_what_numpy_finds(here, shape):
    mesh = here.init_device_mesh((2,))
    values = np.random.default_rng(1).integers(-2, 3, shape)
    x = here.distribute_tensor(values, mesh, [ts.Shard(len(shape) - 1)])
    for got, want in zip(ts.nonzero(x), np.nonzero(values), strict=True):
        np.testing.assert_array_equal(got.full_tensor(), want)
    np.testing.assert_array_equal(x[x > 0].full_tensor(), values[values > 0])
    if shape[0]:
        mask = values.reshape(shape[0], -1).sum(axis=1) > 0
        np.testing.assert_array_equal(x[here.distribute_tensor(mask, mesh, [ts.Shard(0)])].full_tensor(), values[mask])
        np.testing.assert_array_equal(x[mask].full_tensor(), values[mask])
    unique = ts.unique_all(x)
    want = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    for got, expected in zip(unique, want, strict=True):
        np.testing.assert_array_equal(got.full_tensor(), expected.reshape(got.shape))


def test_pending_operands_on_both_sides_and_beside_others(here):
    values, x = vector(here)
    large, small = x[x > 0], x[x <= 0]
    joined = ts.concat([large, small])
    assert joined.shape == values.shape
    np.testing.assert_allclose(ts.sort(joined).full_tensor(), np.sort(values))
    count = ts.count_nonzero(large)
    np.testing.assert_allclose((large / count).full_tensor(), values[values > 0] / (values > 0).sum())
    places = ts.nonzero(x > 1)[0]
    np.testing.assert_array_equal(ts.take(x, places).full_tensor(), values[values > 1])
    found = ts.unique_values(ts.round(large))
    np.testing.assert_array_equal(found.full_tensor(), np.unique(np.round(values[values > 0])))
    large += 1
    np.testing.assert_allclose(large.full_tensor(), values[values > 0] + 1)


def test_what_ends_in_what_is_found_is_pending_too(pair, here):
    values, x = vector(here, 60)
    whole = ts.round(x * 2).astype("int64")
    want = np.round(values * 2).astype("i8")
    ts.wait(x, whole)
    with held(pair):
        found = {"argwhere": ts.argwhere(x > 0), "flatnonzero": ts.flatnonzero(x > 0), "compress": ts.compress(x > 0, x),
                 "masked_select": ts.masked_select(x, x > 0), "unique_values": ts.unique_values(whole),
                 "union1d": ts.union1d(whole, whole + 3)}
        counts = ts.unique_counts(whole).counts
        assert all(y.spec_pending for y in found.values()) and counts.spec_pending
    expected = {"argwhere": np.argwhere(values > 0), "flatnonzero": np.flatnonzero(values > 0),
                "compress": np.compress(values > 0, values), "masked_select": values[values > 0],
                "unique_values": np.unique(want), "union1d": np.union1d(want, want + 3)}
    for name, y in found.items():
        np.testing.assert_array_equal(y.full_tensor(), expected[name], err_msg=name)
    np.testing.assert_array_equal(counts.full_tensor(), np.unique(want, return_counts=True)[1])
    np.testing.assert_array_equal(ts.intersect1d(whole, whole + 3).full_tensor(), np.intersect1d(want, want + 3))
    np.testing.assert_array_equal(ts.setdiff1d(whole, whole + 3).full_tensor(), np.setdiff1d(want, want + 3))


def test_slices_with_numbers_and_reshapes_queue_too(pair, here):
    values, x = vector(here, 400)
    kept = values[values > 0]
    half = len(kept) // 2 * 2
    x.wait()
    with held(pair):
        y = x[x > 0]
        found = {"slice": y[3:-1:2], "backward": y[::-1], "beyond": y[:100000], "none": y[5:2], "item": y[-2], "axis": y[None, 4:],
                 "dots": y[..., 1], "NumPy": y[np.int64(7)], "column": ts.reshape(y, (-1, 1)), "flat": y.reshape(1, -1).reshape(-1),
                 "pairs": y[:half].reshape(-1, 2)[1:, 0], "known": ts.reshape(y[:12], (3, 4)), "one": y[5:6].reshape(())}
        z = y * 1
        z[2:9] = 5
        z[-1] = 7.0
        found["assigned"] = z
        assert [name for name, tensor in found.items() if not tensor.spec_pending] == []
        assert [found[name].ndim for name in ("item", "axis", "column", "known", "one")] == [0, 2, 2, 2, 0]
        outside, misfit = y[len(kept)], ts.reshape(y[:12], (5, 3))
        missing = y[:7].reshape(2, -1)
    expected = {"slice": kept[3:-1:2], "backward": kept[::-1], "beyond": kept[:100000], "none": kept[5:2], "item": kept[-2],
                "axis": kept[None, 4:], "dots": kept[..., 1], "NumPy": kept[7], "column": kept.reshape(-1, 1), "flat": kept,
                "pairs": kept[:half].reshape(-1, 2)[1:, 0], "known": kept[:12].reshape(3, 4), "one": kept[5]}
    expected["assigned"] = kept.copy()
    expected["assigned"][2:9], expected["assigned"][-1] = 5, 7
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.full_tensor(), expected[name], err_msg=name)
    with pytest.raises(ts.IndexOutOfRangeError, match=rf"{len(kept)} is out of range for dim 0 of shape \({len(kept)},\)"):
        outside.shape
    with pytest.raises(ts.InvalidArgumentError, match=r"reshape.*12.*"):
        misfit.shape
    with pytest.raises(ts.InvalidArgumentError, match="reshape: .* with 7 elements does not fit"):
        missing.shape


def test_errors_come_by_name_where_they_can_be_known(pair, here):
    values, x = vector(here, 10)
    with pytest.raises(ts.IndexOutOfRangeError, match="mask of shape"):
        x[np.ones(9, bool)]
    with pytest.raises(ts.IndexOutOfRangeError, match="mask of shape"):
        x[here.distribute_tensor(np.ones((10, 2), bool), x.device_mesh, [ts.Replicate()])]
    x.wait()
    with held(pair):
        bad = x[x > 0] + here.distribute_tensor(np.ones(2000), x.device_mesh, [ts.Replicate()])
        after = bad * 2
        assert bad.spec_pending and after.spec_pending
    for tensor in (bad, after):
        with pytest.raises(ts.InvalidArgumentError, match="add.*2000"):
            tensor.shape
        assert "spec pending" in repr(tensor) and tensor.is_ready()
    with pytest.raises(ts.InvalidArgumentError, match="add"):
        (after + 1).full_tensor()
    np.testing.assert_array_equal((x * 2).full_tensor(), values * 2)


def test_what_is_unstacked_queues_where_its_axis_is_known(pair, here):
    values, x = vector(here)
    x.wait()
    with held(pair):
        m = x[x > 0]
        low, high = ts.unstack(ts.stack([m - 1, m + 1]))
        pairs = ts.unstack(ts.stack([m, m * 2], axis=-1), axis=-1)
        turned = ts.unstack((ts.stack([m, m, m]) + 1).T[:, ::2], axis=1)
        moved = ts.unstack(ts.concat([m[None], m[None] * 3])[None], axis=1)[1]
        assert all(y.spec_pending for y in (low, high, *pairs, *turned, moved))
        assert (len(pairs), len(turned), moved.ndim) == (2, 2, 2)
        total = (high - low).sum()
        assert total.spec_pending
    want = values[values > 0]
    assert total.item() == 2 * want.size
    for y, expected in ((low, want - 1), (high, want + 1), (pairs[1], want * 2), (turned[1], want + 1), (moved, want[None] * 3)):
        np.testing.assert_array_equal(y.full_tensor(), expected)


def test_an_axis_that_values_decide_is_waited_for_by_unstack(here):
    """Two of five elements are there; each of these has another number of rows with five, or with none."""
    x = here.distribute_tensor(np.array([3.0, -1, -2, 4, -5]), here.init_device_mesh((2,), workers=(0, 1)), [ts.Shard(0)])
    for part, want in ((lambda m: m, [3, 4]), (lambda m: m[:5], [3, 4]), (lambda m: m[-3:2], [3, 4]), (lambda m: m[::-1], [4, 3]),
                       (lambda m: ts.concat([m, m[:1]]), [3, 4, 3]), (lambda m: ts.flip(m)[-3:2] + 1, [5, 4]),
                       (lambda m: ts.stack([m, m])[:, -4:2][0], [3, 4])):
        assert [y.item() for y in ts.unstack(part(x[x > 0]))] == want


def test_the_policy_of_a_call_is_that_of_the_line_that_asked(pair, here):
    _, x = vector(here, 16)
    total = ts.sum(x)       # pending: each worker has a term
    ts.wait(x, total)
    with held(pair):
        with ts.implicit_redistribution("forbid"):
            forbidden = x[x > 0] + total
        with ts.implicit_redistribution("warn"):
            told = x[x > 0] + total
        allowed = x[x > 0] + total
    with pytest.warns(ts.ImplicitRedistributionWarning, match="add.*is redistributed") as warned:
        told.shape
    assert len(warned) == 1
    with pytest.raises(ts.FailedPreconditionError, match="add: implicit redistribution is forbidden"):
        forbidden.shape
    assert allowed.shape == told.shape


def test_ctrl_c_ends_the_wait_for_a_shape_and_cancels_what_waited(pair, here):
    values, x = vector(here)
    x.wait()
    with held(pair):
        y = x[x > 0] + 1
        timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            y.shape
        timer.join()
    with pytest.raises(ts.CancelledError):
        y.shape
    np.testing.assert_array_equal(x[x > 0].full_tensor(), values[values > 0])


def test_dropped_handles_leave_nothing(pair, here):
    _, x = vector(here)
    x.wait()
    with held(pair):
        for i in range(50):
            y = x[x > i / 50]
            for _ in range(30):
                y = y + 1
            del y
        kept = x[x > 0] + 1
        halves = ts.unique_all(x)
        del halves
    assert kept.shape
    here.sync()
    deadline = time.monotonic() + 60
    while len(here.tensors()) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(here.tensors()) == 2


def test_ten_sessions_wait_for_their_own(pair):
    """A session whose values are not there yet holds nobody else up, nor its own calls that don't need them."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(pair.connect()) for _ in range(10)]
        data = [vector(session, 100 + i, workers=[1]) for i, session in enumerate(sessions)]
        for _, x in data:
            x.wait()
        with held(pair):
            found = [x[x > 0] * 2 for _, x in data]
            assert all(y.spec_pending for y in found)
            alone = sessions[0].init_device_mesh((1,), workers=[0])
            other = sessions[0].distribute_tensor(np.arange(8), alone, [ts.Replicate()])
            assert other[other > 3].shape == (4,)
        for (values, _), y in zip(data, found, strict=True):
            np.testing.assert_array_equal(y.full_tensor(), values[values > 0] * 2)


def test_more_than_the_limit_wait(pair, here):
    limit = int(LIMITS.read_text().split("| `max_deferred_calls` |")[1].split("|")[0].replace(",", ""))
    values, x = vector(here)
    x.wait()
    with held(pair):
        y = x[x > 0]
        kept = [y + i for i in range(limit - 2)]
        assert kept[-1].spec_pending
        timer = threading.Timer(0.3, os.kill, (pair.worker_pids[1], signal.SIGCONT))
        timer.start()
        more = [y + i for i in range(10)]     # the first ones wait for the timer
        timer.join()
    np.testing.assert_array_equal(more[3].full_tensor(), values[values > 0] + 3)
    np.testing.assert_array_equal(kept[-1].full_tensor(), values[values > 0] + (limit - 3))


def test_a_worker_that_dies_is_named_by_what_waited(new_cluster):
    cluster = new_cluster(workers=2, memory="64MiB")
    session = cluster.connect()
    values, x = vector(session)
    y = session.distribute_tensor(values, session.init_device_mesh((1,), workers=[0]), [ts.Replicate()])
    ts.wait(x, y)
    with contextlib.suppress(ProcessLookupError), held(cluster):
        found = x[x > 0] + 1
        assert found.spec_pending
        os.kill(cluster.worker_pids[1], signal.SIGKILL)
    with pytest.raises(ts.UnavailableError, match="worker 1"):
        found.shape
    with pytest.raises(ts.UnavailableError, match="worker 1"):
        (found * 2).full_tensor()
    np.testing.assert_array_equal(y[y > 0].full_tensor(), values[values > 0])


def test_cuts_while_specs_are_pending(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with TlsCluster(proxied=True) as cluster, cluster.connect() as session:
        values, x = vector(session)
        found, expected = [], []
        for i in range(30):
            y = x[x > i / 30]
            cluster.proxies[0].cut_after(1 + 977 * i) if i % 3 else cluster.proxies[0].cut()
            found.append((y * 2)[y > 1])
            part = values[values > i / 30]
            expected.append((part * 2)[part > 1])
        for y, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(y.full_tensor(), want)
        session.sync()
        assert cluster.proxies[0].cuts >= 5


def test_explain_waits_and_does_not_compute(pair, here):
    _, x = vector(here)
    y = x[x > 0]
    assert f"f64[{len(y)}]" in str(ts.explain(ts.add, x[x > 0], 1))
    with pytest.raises(ts.FailedPreconditionError, match="nonzero.*depends on values"):
        ts.explain(lambda: ts.nonzero(x + 1))


def test_what_names_or_counts_a_pending_tensor_waits(here):
    values, x = vector(here)
    y = x[x > 0]
    y.name = "found"
    np.testing.assert_array_equal(here["found"].full_tensor(), values[values > 0])
    with here.comm_debug() as comm:
        z = x[x > 0].redistribute([ts.Replicate()])
    assert not z.spec_pending and sum(comm.bytes_received) > 0
    assert not any(tensor.spec_pending for tensor in here.tensors())


def test_a_session_that_closes_or_goes_with_pending_handles(pair):
    session = pair.connect()
    _, x = vector(session)
    x.wait()
    with held(pair):
        y = x[x > 0] + 1
        assert y.spec_pending
        session.close()
    with pytest.raises(ts.FailedPreconditionError, match="closed"):
        y.shape
    script = ("import numpy as np, tessera as ts\nsession = ts.connect()\nmesh = session.init_device_mesh((2,))\n"
              "x = session.distribute_tensor(np.arange(1000.0), mesh, [ts.Shard(0)])\n"
              "for i in range(200):\n    y = x[x > i] + 1\n    if i % 3: del y\nprint('end')\n")
    done = subprocess.run([sys.executable, "-c", script], env=os.environ | {"TESSERA_ADDRESS": pair.address},
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
