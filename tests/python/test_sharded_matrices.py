"""Factorisations of square matrices in shards, which no worker has whole, against NumPy's."""

import numpy as np
import pytest

import tessera as ts

S, R = ts.Shard, ts.Replicate
DTYPES = [np.float64, np.float32, np.complex128]


def epsilon(dtype):
    return np.finfo(dtype).eps


def made(rng, dtype, *shape):
    return (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)).astype(dtype)


def whole(*parts):
    return [np.asarray(part.full_tensor()) for part in parts]


def near(got, want, dtype, factor):
    """Within some roundings of the largest element."""
    np.testing.assert_allclose(got, want, rtol=0, atol=factor * epsilon(dtype) * max(np.abs(want).max(), 1e-300))


def orthonormal(q, dtype):
    near(q.swapaxes(-1, -2).conj() @ q, np.broadcast_to(np.eye(q.shape[-1]), q.shape[:-2] + (q.shape[-1],) * 2), dtype, 4 * q.shape[-2])


def placed(session, mesh4, mesh22, a):
    for mesh, placements in ((mesh4, [S(0)]), (mesh4, [S(1)]), (mesh22, [R(), S(0)]), (mesh22, [S(1), R()])):
        yield session.distribute_tensor(a, mesh, placements)


@pytest.fixture(scope="module")
def eight():
    """A session of eight workers, from which on svd and eigh go by panels, and their mesh."""
    with ts.local_cluster(8, memory="128MiB") as cluster, cluster.connect() as session:
        yield session, session.init_device_mesh((8,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [128, 299])
def test_lu(session, mesh4, mesh22, rng, n, dtype):
    a, b = made(rng, dtype, n, n), made(rng, dtype, n, 3)
    lapacks, pivots_wanted = whole(*ts.linalg.lu_factor(session.distribute_tensor(a, mesh4, [R()])))
    for x in placed(session, mesh4, mesh22, a):
        factors, pivots = ts.linalg.lu_factor(x)
        assert S(0) in factors.placements and pivots.dtype == np.int64
        np.testing.assert_array_equal(np.asarray(pivots.full_tensor()), pivots_wanted)
        near(np.asarray(factors.full_tensor()), lapacks, dtype, 100 * n)
        p, lower, upper = ts.linalg.lu(x)
        assert S(0) in p.placements and S(0) in lower.placements and S(0) in upper.placements
        p, lower, upper = whole(p, lower, upper)
        near(p @ lower @ upper, a, dtype, 4 * n)
        np.testing.assert_array_equal(np.triu(lower, 1), 0)
        np.testing.assert_array_equal(np.tril(upper, -1), 0)
        for y in (b, b[:, 0]):
            right = session.distribute_tensor(np.ascontiguousarray(y), x.device_mesh, [R()] * x.device_mesh.ndim)
            for transposed in (False, True):
                solved, = whole(ts.linalg.lu_solve(factors, pivots, right, transposed=transposed))
                near((a.T if transposed else a) @ solved, y, dtype, 2000 * n)
    batch = made(rng, dtype, 4, n, n)
    p, lower, upper = whole(*ts.linalg.lu(session.distribute_tensor(batch, mesh22, [S(0), S(1)])))
    near(p @ lower @ upper, batch, dtype, 4 * n)


def test_lu_of_singular_and_of_no_numbers(session, mesh4, rng):
    n = 190
    a = rng.standard_normal((n, n))
    a[:, 150] = a[:, 3]
    a[:, 20] = 0
    x = session.distribute_tensor(a, mesh4, [S(0)])
    p, lower, upper = whole(*ts.linalg.lu(x))
    near(p @ lower @ upper, a, np.float64, 4 * n)
    with pytest.raises(ts.LinAlgError, match="lu_solve.*singular"):
        ts.linalg.lu_solve(*ts.linalg.lu_factor(x), x[:, :2]).wait()
    a[7, 9] = np.nan
    factors, pivots = whole(*ts.linalg.lu_factor(session.distribute_tensor(a, mesh4, [S(0)])))
    assert np.isnan(factors[-1, -1]) and (0 <= pivots).all() and (pivots < n).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(128, 128), (131, 131), (140, 301), (301, 200)])
def test_qr(session, mesh4, mesh22, rng, shape, dtype):
    a = made(rng, dtype, *shape)
    for x in placed(session, mesh4, mesh22, a):
        for mode in ("reduced", "complete"):
            q, r = ts.linalg.qr(x, mode=mode)
            assert S(0) in q.placements and S(0) in r.placements
            q, r = whole(q, r)
            want = np.linalg.qr(a, mode=mode)
            assert (q.shape, r.shape, q.dtype) == (want.Q.shape, want.R.shape, want.Q.dtype)
            orthonormal(q, dtype)
            near(q @ r, a, dtype, 4 * max(shape))
            np.testing.assert_array_equal(np.tril(r, -1), 0)
            near(r, want.R, dtype, 1000 * max(shape))    # LAPACK's signs
    batch = made(rng, dtype, 4, *shape)
    q, r = whole(*ts.linalg.qr(session.distribute_tensor(batch, mesh22, [S(0), S(1)])))
    orthonormal(q, dtype)
    near(q @ r, batch, dtype, 4 * max(shape))


def spectra(rng, n):
    q = np.linalg.qr(rng.standard_normal((n, n))).Q
    yield "geometric", (q * np.geomspace(1, 1e-18, n)) @ q.T
    yield "repeated", (q * (np.arange(n) // 8 - 3)) @ q.T
    yield "minus unit", -np.eye(n)


@pytest.mark.parametrize("n", [1031])
def test_singular_and_eigenvalues_of_any_spectrum(eight, rng, n):
    session, mesh = eight
    for name, a in spectra(rng, n):
        a = (a + a.T) / 2
        x = session.distribute_tensor(a, mesh, [S(0)])
        size = max(np.linalg.norm(a, 2), 1e-300)
        u, s, vh = whole(*ts.linalg.svd(x))
        w, v = whole(*ts.linalg.eigh(x))
        for vectors in (u, vh.T, v):
            orthonormal(vectors, np.float64)
        for got, want in ((u * s @ vh, a), (v * w @ v.T, a), (s, np.linalg.svdvals(a)), (w, np.linalg.eigvalsh(a)),
                          *zip(whole(ts.linalg.svdvals(x), ts.linalg.eigvalsh(x)), (s, w))):
            np.testing.assert_allclose(got / size, want / size, rtol=0, atol=20 * n * epsilon(np.float64), err_msg=name)
        assert (np.diff(s) <= 0).all() and (s >= 0).all() and (np.diff(w) >= 0).all(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1024])
def test_svd_and_eigh(eight, rng, n, dtype):
    session, mesh = eight
    a = made(rng, dtype, n, n)
    symmetric = (a + a.conj().T) / 2
    below = np.tril(symmetric) + 7 * np.triu(a, 1)      # NumPy's eigh reads the lower triangle alone
    placements = [S(1 if dtype == np.float64 else 0)]
    for x, y in [[session.distribute_tensor(matrix, mesh, placements) for matrix in (a, below)]]:
        u, s, vh = ts.linalg.svd(x)
        assert S(0) in u.placements and S(1) in vh.placements
        u, s, vh = whole(u, s, vh)
        want = np.linalg.svd(a)
        assert (u.dtype, s.dtype, vh.dtype) == (want.U.dtype, want.S.dtype, want.Vh.dtype)
        orthonormal(u, dtype)
        orthonormal(vh.conj().T, dtype)
        near(u * s @ vh, a, dtype, 20 * n)
        near(s, want.S, dtype, 20 * n)
        near(whole(ts.linalg.svdvals(x))[0], want.S, dtype, 20 * n)
        w, v = ts.linalg.eigh(y)
        assert S(0) in v.placements
        w, v = whole(w, v)
        orthonormal(v, dtype)
        near(v * w @ v.conj().T, symmetric, dtype, 20 * n)
        near(w, np.linalg.eigvalsh(symmetric), dtype, 20 * n)
        near(whole(ts.linalg.eigvalsh(y))[0], np.linalg.eigvalsh(symmetric), dtype, 20 * n)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_has_no_values(eight, rng, bad):
    session, mesh = eight
    a = rng.standard_normal((1024, 1024))
    a[90, 40] = bad
    x = session.distribute_tensor(a, mesh, [S(0)])
    for name in ("svd", "svdvals", "eigh", "eigvalsh"):
        got = getattr(ts.linalg, name)(x)
        for part in got if isinstance(got, tuple) else (got,):
            with pytest.raises(ts.LinAlgError, match=f"{name}.*did not converge"):
                part.full_tensor()
    for part in ts.linalg.qr(x):
        part.wait()


def test_matrices_that_no_worker_can_hold(rng):
    n = 1024                                            # 8 MiB: as much as a worker has, with its own share and results
    a, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    symmetric = (a + a.T) / 2
    with ts.local_cluster(16, memory="8MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((16,))
        x = session.distribute_tensor(a, mesh, [S(0)])
        y = session.distribute_tensor(b, mesh, [R()])
        factors, pivots = ts.linalg.lu_factor(x)
        for transposed in (False, True):
            solved, = whole(ts.linalg.lu_solve(factors, pivots, y, transposed=transposed))
            near((a.T if transposed else a) @ solved, b, np.float64, 2000 * n)
        del factors
        q, r = ts.linalg.qr(x)
        near(np.asarray((q @ (r @ y)).full_tensor()), a @ b, np.float64, 20 * n)
        near(np.asarray((q @ y).full_tensor()), np.linalg.qr(a).Q @ b, np.float64, 2000 * n)
        del q, r
        u, s, vh = ts.linalg.svd(x)
        near(np.asarray((u @ (s * (vh @ y))).full_tensor()), a @ b, np.float64, 20 * n)
        del u, vh, x
        x = session.distribute_tensor(symmetric, mesh, [S(0)])
        w, v = ts.linalg.eigh(x)
        near(np.asarray(w.full_tensor()), np.linalg.eigvalsh(symmetric), np.float64, 20 * n)
        near(np.asarray((v @ (w * (v.mT @ y))).full_tensor()), symmetric @ b, np.float64, 20 * n)


# Memory of each worker, beside a matrix of 8 MiB, that has no room for the gathered matrix and LAPACK's results.
FEW_WORKERS = [("svdvals", 4, "8MiB"), ("eigvalsh", 4, "8MiB"), ("eigh", 4, "19MiB"), ("svd", 4, "22MiB"), ("eigvalsh", 2, "11900KiB"),
               ("eigh", 7, "11MiB")]


@pytest.mark.parametrize("name, workers, memory", FEW_WORKERS)
def test_few_workers_go_by_panels_where_the_gathered_matrix_does_not_fit(rng, name, workers, memory):
    n = 1024
    a = rng.standard_normal((n, n))
    a = (a + a.T) / 2 if name.startswith("eig") else a
    function, numpys = getattr(ts.linalg, name), getattr(np.linalg, name)

    def results_in(memory):
        with ts.local_cluster(workers, memory=memory) as cluster, cluster.connect() as session:
            x = session.distribute_tensor(a, session.init_device_mesh((workers,)), [S(0)])
            plan = ts.explain(function, x)
            results = function(x)
            results = results if isinstance(results, tuple) else (results,)
            return max(plan.peak_bytes), [one.placements for one in results], whole(*results)
    peak, placements, results = results_in(memory)
    gathered, same_placements, of_lapack = results_in("64MiB")
    assert peak < gathered and placements == same_placements
    want = numpys(a)
    want = want if isinstance(want, tuple) else (want,)
    values = 1 if name == "svd" else 0
    near(results[values], np.asarray(want[values]), np.float64, 20 * n)
    near(of_lapack[values], np.asarray(want[values]), np.float64, 20 * n)
    if name == "eigh":
        w, v = results
        orthonormal(v, np.float64)
        near(v * w @ v.T, a, np.float64, 20 * n)
    if name == "svd":
        u, values, vh = results
        orthonormal(u, np.float64)
        orthonormal(vh.T, np.float64)
        near(u * values @ vh, a, np.float64, 20 * n)
