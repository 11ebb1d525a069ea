"""ts.linalg against NumPy, on every kind of placement."""

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
MATRICES = [[R(), R()], [S(0), R()], [R(), S(1)], [S(0), S(1)], [S(1), S(0)], [S(0), S(0)], ["uneven", S(1)]]
BATCHES = [[R(), R()], [S(0), R()], [S(0), S(1)], [S(0), S(0)], [S(2), S(1)], [R(), "uneven"]]
DTYPES = [np.float32, np.float64]


def tolerance(dtype):
    return 5e-4 if dtype == np.float32 else 1e-9


def close(got, want, dtype):
    got, want = np.asarray(got.full_tensor()), np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=tolerance(dtype), atol=tolerance(dtype))


def definite(rng, shape, dtype):
    a = rng.standard_normal(shape)
    return (a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def each_placement(session, mesh22, arrays):
    """The tensors of some arrays on placements that differ."""
    choices = [BATCHES if array.ndim > 2 else MATRICES if array.ndim == 2 else [[R(), R()], [S(0), R()]] for array in arrays]
    for i in range(max(map(len, choices))):
        yield [session.distribute_tensor(array, mesh22, [S(0, sizes=[array.shape[0] - 1, 1]) if p == "uneven" else p
                                                         for p in own[(i * (k + 1)) % len(own)]])
               for k, (array, own) in enumerate(zip(arrays, choices))]


def joined(got, names):
    assert type(got)._fields == names
    return [np.asarray(part.full_tensor()) for part in got]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 4), (4, 3, 3), (2, 2, 3, 3)])
def test_square_matrices(session, mesh22, rng, shape, dtype):
    a = definite(rng, shape, dtype)
    for (x,) in each_placement(session, mesh22, [a]):
        close(ts.linalg.cholesky(x), np.linalg.cholesky(a), dtype)
        close(ts.linalg.cholesky(x, upper=True), np.linalg.cholesky(a, upper=True), dtype)
        close(ts.linalg.inv(x), np.linalg.inv(a), dtype)
        close(ts.linalg.det(x) / 100, np.linalg.det(a) / 100, dtype)
        for got, want in zip(ts.linalg.slogdet(x), np.linalg.slogdet(a)):
            close(got, want, dtype)
        close(ts.linalg.eigvalsh(x), np.linalg.eigvalsh(a), dtype)
        w, v = joined(ts.linalg.eigh(x), ("eigenvalues", "eigenvectors"))
        np.testing.assert_allclose(w, np.linalg.eigh(a).eigenvalues, rtol=tolerance(dtype))
        np.testing.assert_allclose(a @ v, v * w[..., None, :], rtol=0, atol=20 * tolerance(dtype))
        for n in (-2, 0, 1, 3):
            close(ts.linalg.matrix_power(x / 10, n), np.linalg.matrix_power(a / dtype(10), n), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (4, 6, 2), (4, 2, 3)])
def test_matrices_of_any_shape(session, mesh22, rng, shape, dtype):
    a = rng.standard_normal(shape).astype(dtype)
    for (x,) in each_placement(session, mesh22, [a]):
        for mode in ("reduced", "complete"):
            got, want = ts.linalg.qr(x, mode=mode), np.linalg.qr(a, mode=mode)
            assert type(got)._fields == ("Q", "R")
            close(got.Q, want.Q, dtype)
            close(got.R, want.R, dtype)
        for full in (True, False):
            u, s, vh = joined(ts.linalg.svd(x, full_matrices=full), ("U", "S", "Vh"))
            want = np.linalg.svd(a, full_matrices=full)
            assert (u.shape, s.shape, vh.shape) == (want.U.shape, want.S.shape, want.Vh.shape)
            k = s.shape[-1]
            np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=tolerance(dtype))
            np.testing.assert_allclose(u.swapaxes(-1, -2) @ u, np.broadcast_to(np.eye(u.shape[-1]), u.shape[:-2] + (u.shape[-1],) * 2),
                                       atol=tolerance(dtype))
        close(ts.linalg.svdvals(x), np.linalg.svdvals(a), dtype)
        close(ts.linalg.pinv(x), np.linalg.pinv(a, rtol=None), dtype)
        np.testing.assert_array_equal(ts.linalg.matrix_rank(x).full_tensor(), np.linalg.matrix_rank(a))
        np.testing.assert_array_equal(ts.linalg.matrix_rank(x, rtol=0.5).full_tensor(), np.linalg.matrix_rank(a, rtol=0.5))
        for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
            for keepdims in (False, True):
                close(ts.linalg.matrix_norm(x, ord=order, keepdims=keepdims),
                      np.linalg.matrix_norm(a, ord=order, keepdims=keepdims), dtype)
        close(ts.linalg.matrix_transpose(x), a.swapaxes(-1, -2), dtype)
        for offset in (-1, 0, 2):
            close(ts.linalg.diagonal(x, offset=offset), np.linalg.diagonal(a, offset=offset), dtype)
            close(ts.linalg.trace(x, offset=offset), np.linalg.trace(a, offset=offset), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("left, right", [((4, 4), (4,)), ((4, 4), (4, 6)), ((4, 3, 3), (3, 2)), ((3, 3), (4, 3, 2)),
                                         ((4, 3, 3), (3,)), ((4, 3, 3), (4, 3, 5)), ((2, 1, 3, 3), (4, 3, 2))])
def test_systems(session, mesh22, rng, left, right, dtype):
    a, b = definite(rng, left, dtype), rng.standard_normal(right).astype(dtype)
    for x, y in each_placement(session, mesh22, [a, b]):
        close(ts.linalg.solve(x, y), np.linalg.solve(a, b), dtype)
        for upper in (False, True):
            triangle = np.triu(a) if upper else np.tril(a)
            close(ts.linalg.solve_triangular(x, y, upper=upper), np.linalg.solve(triangle, b), dtype)
            close(ts.linalg.solve_triangular(x, y, upper=upper, transposed=True),
                  np.linalg.solve(triangle.swapaxes(-1, -2), b), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (4, 3, 3), (2, 2, 5, 5)])
def test_eigenvalues_of_any_matrix(session, mesh22, rng, shape, dtype):
    a = (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == np.complex128 else 0)).astype(dtype)
    want = np.linalg.eig(a).eigenvalues
    for (x,) in each_placement(session, mesh22, [a]):
        w, v = joined(ts.linalg.eig(x), ("eigenvalues", "eigenvectors"))
        alone = np.asarray(ts.linalg.eigvals(x).full_tensor())
        assert w.dtype == v.dtype == alone.dtype == (np.complex64 if dtype == np.float32 else np.complex128)
        np.testing.assert_allclose(a @ v, v * w[..., None, :], atol=tolerance(dtype))
        np.testing.assert_allclose(np.linalg.norm(v, axis=-2), np.ones(shape[:-1]), rtol=tolerance(dtype))
        for got in (w, alone):
            np.testing.assert_allclose(np.sort_complex(got.round(4)), np.sort_complex(want.round(4)), atol=2e-4)


def test_a_turn_has_the_eigenvalues_of_its_angle(session, mesh4):
    turn = session.distribute_tensor(np.array([[0.0, -1.0], [1.0, 0.0]]), mesh4, [S(0)])
    assert sorted(ts.linalg.eigvals(turn).tolist(), key=lambda w: w.imag) == [-1j, 1j]
    for bad in (np.nan, np.inf):
        x = session.distribute_tensor(np.full((3, 3), bad), mesh4, [S(0)])
        for part in (*ts.linalg.eig(x), ts.linalg.eigvals(x)):
            with pytest.raises(ts.LinAlgError, match="eig.*did not converge"):
                part.full_tensor()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (4, 3, 3), (2, 2, 4, 2)])
def test_factors_multiply_to_the_matrix(session, mesh22, rng, shape, dtype):
    a = (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == np.complex128 else 0)).astype(dtype)
    m, n, k = *shape[-2:], min(shape[-2:])
    for (x,) in each_placement(session, mesh22, [a]):
        p, lower, upper = joined(ts.linalg.lu(x), ("P", "L", "U"))
        assert p.shape == (*shape[:-1], m) and lower.shape == (*shape[:-2], m, k) and upper.shape == (*shape[:-2], k, n)
        np.testing.assert_allclose(p @ lower @ upper, a, atol=tolerance(dtype))
        np.testing.assert_array_equal(p @ p.swapaxes(-1, -2), np.broadcast_to(np.eye(m), p.shape))
        np.testing.assert_array_equal(lower, np.tril(lower, -1) + np.eye(m, k))
        np.testing.assert_array_equal(upper, np.triu(upper))
        assert (np.abs(lower) <= (np.sqrt(2) if dtype == np.complex128 else 1) + 1e-6).all()   # the largest pivots
        factors, pivots = ts.linalg.lu_factor(x)
        assert pivots.dtype == np.int64 and pivots.shape == (*shape[:-2], k)
        if m != n:
            continue
        for right in ((n,), (n, 3), (4, n, 2)) if a.ndim == 3 else ((n,), (n, 3)):
            b = rng.standard_normal(right).astype(dtype)
            y = session.distribute_tensor(b, mesh22, [S(0), R()])
            close(ts.linalg.lu_solve(factors, pivots, y), np.linalg.solve(a, b), dtype)
            close(ts.linalg.lu_solve(factors, pivots, y, transposed=True), np.linalg.solve(a.swapaxes(-1, -2), b), dtype)


def test_factors_that_say_nothing_are_refused(session, mesh22, rng):
    x = session.distribute_tensor(rng.standard_normal((4, 4)), mesh22, [S(0), R()])
    factors, pivots = ts.linalg.lu_factor(x)
    with pytest.raises(ts.DTypeError, match="lu_solve: pivots are integers"):
        ts.linalg.lu_solve(factors, pivots * 1.0, x)
    with pytest.raises(ts.InvalidArgumentError, match="lu_solve: there is one pivot for each"):
        ts.linalg.lu_solve(factors, pivots[:3], x)
    with pytest.raises(ts.InvalidArgumentError, match="lu_solve: needs square"):
        ts.linalg.lu_solve(factors[:, :3], pivots[:3], x)
    with pytest.raises(ts.IndexOutOfRangeError, match=r"pivot \d+ of 4 rows"):
        ts.linalg.lu_solve(factors, pivots + 8, x).wait()
    singular = session.distribute_tensor(np.ones((3, 3)), mesh22, [R(), S(1)])
    p, lower, upper = ts.linalg.lu(singular)
    close(p @ lower @ upper, np.ones((3, 3)), np.float64)
    with pytest.raises(ts.LinAlgError, match="singular"):
        ts.linalg.lu_solve(*ts.linalg.lu_factor(singular), singular).wait()


def test_exponentials_of_matrices(session, mesh22, rng):
    for dtype in (np.float32, np.float64, np.complex128):
        for scale in (1e-3, 1, 30):
            q = np.linalg.qr(rng.standard_normal((4, 4)))[0]
            w = scale * (rng.standard_normal(4) - 1) * (1j if dtype == np.complex128 else 1)
            a, want = ((q * w) @ q.T).astype(dtype), ((q * np.exp(w)) @ q.T).astype(dtype)
            for (x,) in each_placement(session, mesh22, [a]):
                np.testing.assert_allclose(np.asarray(ts.linalg.matrix_exp(x).full_tensor()) / abs(want).max(), want / abs(want).max(),
                                           atol=(1e-3 if dtype == np.float32 else 1e-11) * max(scale, 1))
    nilpotent = np.array([[0.0, 3, 5], [0, 0, 2], [0, 0, 0]])
    close(ts.linalg.matrix_exp(ts.asarray(np.stack([nilpotent, np.zeros((3, 3))]))),
          np.stack([np.eye(3) + nilpotent + nilpotent @ nilpotent / 2, np.eye(3)]), np.float64)
    assert np.isnan(ts.linalg.matrix_exp(ts.asarray(np.full((2, 2), np.inf))).full_tensor()).all()


def test_tensors_as_matrices(session, mesh22, rng):
    a = rng.standard_normal((4, 6, 8, 3))
    b = rng.standard_normal((4, 6))
    for (x, y) in each_placement(session, mesh22, [a, b]):
        close(ts.linalg.tensorinv(x), np.linalg.tensorinv(a), np.float64)
        close(ts.linalg.tensorsolve(x, y), np.linalg.tensorsolve(a, b), np.float64)
    turned = np.moveaxis(a, 0, 2)       # (6, 8, 4, 3)
    close(ts.linalg.tensorsolve(session.distribute_tensor(turned, mesh22, [R(), S(1)]), ts.asarray(b.T.copy()), axes=(1,)),
          np.linalg.tensorsolve(turned, b.T, axes=(1,)), np.float64)
    close(ts.linalg.tensorinv(ts.asarray(a.reshape(24, 8, 3)), ind=1), np.linalg.tensorinv(a.reshape(24, 8, 3), ind=1), np.float64)
    for bad in (0, -1, 5):
        with pytest.raises(ts.InvalidArgumentError, match=f"tensorinv: ind is {bad}"):
            ts.linalg.tensorinv(ts.asarray(a), ind=bad)
    with pytest.raises(ts.InvalidArgumentError, match="tensorinv: the first 1 dims"):
        ts.linalg.tensorinv(ts.asarray(a), ind=1)
    with pytest.raises(ts.InvalidArgumentError, match="tensorsolve: the dims"):
        ts.linalg.tensorsolve(ts.asarray(a), ts.asarray(b.T.copy()))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("long", [64, 61])
def test_the_long_side_of_a_matrix_stays_where_it_is(session, mesh4, rng, long, dtype):
    a = (rng.standard_normal((long, 3)) + (1j * rng.standard_normal((long, 3)) if dtype == np.complex128 else 0)).astype(dtype)
    b = rng.standard_normal((long, 2)).astype(dtype)
    x, y = (session.distribute_tensor(one, mesh4, [S(0)]) for one in (a, b))
    with session.comm_debug() as comm:
        got = ts.linalg.lstsq(x, y)
        ts.wait(*got)
    # Triangles of 3 x 3, and sums of 3 x 2 and of 2 numbers: nothing of the long side.
    assert sum(comm.bytes_received) <= 4 * 3 * (9 + 2 * 6 + 2) * a.itemsize, comm.bytes_received
    want = np.linalg.lstsq(a, b)
    close(got.x, want[0], dtype)
    close(got.residuals, want[1], dtype)
    assert got.rank.item() == 3
    close(got.singular_values, want[3], dtype)
    for values, matrix in ((x, a), (session.distribute_tensor(a.T.copy(), mesh4, [S(1)]), a.T)):
        u, s, vh = ts.linalg.svd(values, full_matrices=False)
        assert (u if matrix is a else vh).placements == values.placements
        np.testing.assert_allclose(np.asarray((u * s.astype(u.dtype)).full_tensor()) @ np.asarray(vh.full_tensor()), matrix, atol=tolerance(dtype))
        close(ts.linalg.svdvals(values), np.linalg.svdvals(matrix), dtype)
        close(ts.linalg.pinv(values), np.linalg.pinv(matrix), dtype)
        assert ts.linalg.matrix_rank(values).item() == 3
        with session.comm_debug() as comm:
            ts.wait(ts.linalg.svdvals(values), ts.linalg.matrix_rank(values), ts.linalg.matrix_norm(values, ord=2))
        assert sum(comm.bytes_received) <= 3 * 4 * 3 * 9 * a.itemsize, comm.bytes_received
    deficient = a.copy()
    deficient[:, 2] = deficient[:, 0]
    got, want = ts.linalg.lstsq(session.distribute_tensor(deficient, mesh4, [S(0)]), y), np.linalg.lstsq(deficient, b)
    close(got.x, want[0], dtype)
    assert got.rank.item() == 2


@pytest.mark.parametrize("right", [(8,), (8, 3)])
def test_least_squares(session, mesh22, rng, right):
    a, b = rng.standard_normal((8, 3)), rng.standard_normal(right)
    for x, y in each_placement(session, mesh22, [a, b]):
        got, want = ts.linalg.lstsq(x, y), np.linalg.lstsq(a, b)
        close(got.x, want[0], np.float64)
        close(got.residuals, want[1], np.float64)
        assert got.rank.item() == want[2]
        close(got.singular_values, want[3], np.float64)
    wide = ts.linalg.lstsq(ts.asarray(a.T.copy()), ts.asarray(b[:3]))
    close(wide.x, np.linalg.lstsq(a.T, b[:3])[0], np.float64)
    assert wide.residuals.shape[0] == 0


@pytest.mark.parametrize("rows", [64, 61, 13])
def test_tall_matrices_stay_where_they_are(session, mesh4, rng, rows):
    a = rng.standard_normal((rows, 3))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    got, want = ts.linalg.qr(x), np.linalg.qr(a)
    close(got.Q, want.Q, np.float64)
    close(got.R, want.R, np.float64)
    assert got.Q.placements[0] == S(0) or rows == 13
    eye = np.eye(rows, 3)
    close(ts.linalg.qr(session.distribute_tensor(eye, mesh4, [S(0)])).R, np.linalg.qr(eye).R, np.float64)
    if rows == 64:
        with session.comm_debug() as comm:
            ts.linalg.qr(x).Q.wait()
        # Three triangles of 3 x 3 for each worker, and the first 3 rows of Q.
        assert sum(comm.bytes_received) <= 4 * (3 + 1) * 9 * 8, comm.bytes_received


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("n", [128, 131, 190])
def test_sharded_rows_are_factored_by_blocks(session, mesh4, mesh22, rng, n, dtype):
    a = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype == np.complex128 else 0)
    a = (a @ a.conj().T / n + np.eye(n)).astype(dtype)
    want = np.linalg.cholesky(a)
    for x in (session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(a, mesh22, [R(), S(0)])):
        lower = ts.linalg.cholesky(x)
        close(lower, want, np.float32 if dtype == np.float32 else np.float64)
        assert S(0) in lower.placements
        close(ts.linalg.cholesky(x, upper=True), want.conj().T, np.float32 if dtype == np.float32 else np.float64)
        for b in (rng.standard_normal((n, 3)).astype(dtype), rng.standard_normal(n).astype(dtype)):
            y = session.distribute_tensor(b, x.device_mesh, [S(0)] * x.device_mesh.ndim)
            solved = ts.linalg.solve_triangular(lower, y)
            np.testing.assert_allclose(want @ np.asarray(solved.full_tensor()), b, atol=1e-3 if dtype == np.float32 else 1e-9)
            upper = session.distribute_tensor(np.ascontiguousarray(want.conj().T), x.device_mesh, x.placements)
            solved = ts.linalg.solve_triangular(upper, y, upper=True)
            np.testing.assert_allclose(want.conj().T @ np.asarray(solved.full_tensor()), b, atol=1e-3 if dtype == np.float32 else 1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize("n", [128, 131, 300])
def test_sharded_matrices_are_solved_by_columns_in_turns(session, mesh4, mesh22, rng, n, dtype):
    def made(*shape):
        return (rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == np.complex128 else 0)).astype(dtype)

    def near(got, want):   # LAPACK's pivots, and sums in another order than LAPACK's
        np.testing.assert_allclose(np.asarray(got.full_tensor()), want, atol=(3e-2 if dtype == np.float32 else 1e-9) * np.abs(want).max())

    a = made(n, n)
    for mesh, placements in ((mesh4, [S(0)]), (mesh4, [S(1)]), (mesh22, [R(), S(0)]), (mesh22, [S(1), R()])):
        x = session.distribute_tensor(a, mesh, placements)
        near(ts.linalg.inv(x), np.linalg.inv(a))
        sign, logarithm = ts.linalg.slogdet(x)
        want = np.linalg.slogdet(a)
        np.testing.assert_allclose(np.asarray(sign.full_tensor()), want.sign, atol=1e-3)
        np.testing.assert_allclose(np.asarray(logarithm.full_tensor()), want.logabsdet, rtol=1e-4)
        for b in (made(n), made(n, 3), made(n, n // 4 + 1)):
            near(ts.linalg.solve(x, session.distribute_tensor(b, mesh, [S(0)] * mesh.ndim)), np.linalg.solve(a, b))
    batch, sides = made(4, n, n), made(4, n, 5)
    x = session.distribute_tensor(batch, mesh22, [S(0), S(1)])
    solved = ts.linalg.solve(x, session.distribute_tensor(sides, mesh22, [S(0), R()]))
    assert solved.placements[0] == S(0)
    near(solved, np.linalg.solve(batch, sides))
    near(ts.linalg.inv(x), np.linalg.inv(batch))


@pytest.mark.parametrize("placement", [S(0), S(1)])
def test_a_singular_matrix_in_shards_is_named(session, mesh4, rng, placement):
    a = rng.standard_normal((256, 256))
    a[:, 200] = a[:, 3] * 0
    x = session.distribute_tensor(a, mesh4, [placement])
    sign, logarithm = ts.linalg.slogdet(x)
    assert sign.item() == 0 and logarithm.item() == -np.inf
    assert ts.linalg.det(x).item() == 0
    for call in (lambda: ts.linalg.solve(x, x[:, :2]), lambda: ts.linalg.inv(x)):
        with pytest.raises(ts.InvalidArgumentError, match="singular"):
            call().wait()
    a[0, 0] = np.nan
    assert np.isnan(ts.linalg.det(session.distribute_tensor(a, mesh4, [placement])).item())


def test_a_matrix_that_no_worker_can_hold_is_factored(rng):
    n = 2048                                            # 32 MiB, of which a worker has 4
    a = rng.standard_normal((n, n))
    b = rng.standard_normal(n)
    with ts.local_cluster(8, memory="28MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((8,))
        x = session.distribute_tensor(a, mesh, [S(0)])
        np.testing.assert_allclose(a @ np.asarray(ts.linalg.solve(x, session.distribute_tensor(b, mesh, [R()])).full_tensor()), b, atol=1e-8)
        assert abs(ts.linalg.slogdet(x)[1].item() - np.linalg.slogdet(a)[1]) < 1e-8
        del x
        definite = a @ a.T / n + np.eye(n)
        x = session.distribute_tensor(definite, mesh, [S(0)])
        lower = ts.linalg.cholesky(x)
        np.testing.assert_allclose(np.asarray(lower[:64].full_tensor()), np.linalg.cholesky(definite)[:64], atol=1e-10)


def test_what_is_factored_by_blocks_is_not_gathered(session, mesh4, rng):
    n = 512
    a = rng.standard_normal((n, n))
    x = session.distribute_tensor(a @ a.T / n + np.eye(n), mesh4, [S(0)])
    with session.comm_debug() as comm:
        lower = ts.linalg.cholesky(x).wait()
    # At most the 10 of 16 blocks on and below the diagonal for each worker; 12 if the matrix were gathered.
    assert sum(comm.bytes_received) <= 4 * 10 * (n // 4) ** 2 * 8, comm.bytes_received
    with session.comm_debug() as comm:
        ts.linalg.solve_triangular(lower, x[:, :8]).wait()
    # The 4 blocks on the diagonal, and the right side.
    assert sum(comm.bytes_received) <= 4 * (4 * (n // 4) ** 2 + n * 8) * 8, comm.bytes_received
    with pytest.raises(ts.InvalidArgumentError, match="cholesky.*positive definite"):
        ts.linalg.cholesky(session.distribute_tensor(a @ a.T - 9 * np.eye(n), mesh4, [S(0)])).wait()


def test_batches_are_computed_where_they_lie(session, mesh22, rng):
    x = session.distribute_tensor(definite(rng, (8, 5, 5), np.float64), mesh22, [S(0), S(0)])
    b = session.distribute_tensor(rng.standard_normal((8, 5, 2)), mesh22, [S(0), S(0)])
    with session.comm_debug() as comm:
        ts.wait(ts.linalg.inv(x), ts.linalg.solve(x, b), *ts.linalg.svd(x), *ts.linalg.eigh(x), ts.linalg.det(x))
    assert sum(comm.bytes_received) == 0
    rows = session.distribute_tensor(np.ones((4, 5, 5)) + np.eye(5), mesh22, [S(1), R()])
    assert ts.linalg.inv(rows).placements == (S(0), R())
    assert "redistribute" in str(ts.explain(ts.linalg.inv, rows)) or "all_to_all" in str(ts.explain(ts.linalg.inv, rows))


@pytest.mark.parametrize("dtype", [ts.float16, ts.bfloat16])
def test_short_floats_are_computed_in_f32(session, mesh22, rng, dtype):
    a = definite(rng, (4, 4), np.float32)
    x = ts.astype(session.distribute_tensor(a, mesh22, [S(0), R()]), dtype)
    for function in (ts.linalg.inv, ts.linalg.cholesky, ts.linalg.svdvals, ts.linalg.eigvalsh):
        got = function(x)
        assert got.dtype == dtype
        want = getattr(np.linalg, function.__name__)(ts.astype(x, ts.float32).full_tensor())
        np.testing.assert_allclose(ts.astype(got, ts.float32).full_tensor(), want, rtol=0.02, atol=0.02)


def test_what_has_no_elements(session, mesh22):
    for shape in ((0, 0), (3, 0, 0), (0, 2, 2), (0, 3, 2), (2, 3, 0), (2, 0, 3)):
        a = np.zeros(shape)
        x = session.distribute_tensor(a, mesh22, [S(0), R()])
        for mode in ("reduced", "complete"):
            for got, want in zip(ts.linalg.qr(x, mode=mode), np.linalg.qr(a, mode=mode)):
                close(got, want, np.float64)
        for full in (True, False):
            for got, want in zip(ts.linalg.svd(x, full_matrices=full), np.linalg.svd(a, full_matrices=full)):
                close(got, want, np.float64)
        p, lower, upper = joined(ts.linalg.lu(x), ("P", "L", "U"))
        np.testing.assert_array_equal(p @ lower @ upper, a)
        close(ts.linalg.pinv(x), np.linalg.pinv(a), np.float64)
        close(ts.linalg.matrix_norm(x), np.linalg.matrix_norm(a), np.float64)
        assert ts.linalg.matrix_rank(x).shape == shape[:-2]
        if shape[-1] != shape[-2]:
            continue
        for name in ("inv", "cholesky", "det", "eigvalsh"):
            close(getattr(ts.linalg, name)(x), getattr(np.linalg, name)(a), np.float64)
        for got, want in zip(ts.linalg.slogdet(x), np.linalg.slogdet(a)):
            close(got, want, np.float64)
        b = np.zeros(shape[:-1] + (2,))
        y = session.distribute_tensor(b, mesh22, [R(), S(0)])
        close(ts.linalg.solve(x, y), b, np.float64)
        close(ts.linalg.lu_solve(*ts.linalg.lu_factor(x), y), b, np.float64)
        for got, want in zip(ts.linalg.eig(x), np.linalg.eig(a)):
            close(got, want.astype(np.complex128), np.float64)
        assert ts.linalg.matrix_exp(x).shape == shape


def test_a_matrix_without_an_answer_is_an_error_of_that_op(session, mesh22, rng):
    zeros = session.distribute_tensor(np.zeros((4, 4)), mesh22, [S(0), R()])
    indefinite = session.distribute_tensor(np.array([[1.0, 2], [2, 1]]), mesh22, [R(), S(1)])
    good = session.distribute_tensor(definite(rng, (4, 4), np.float64), mesh22, [S(0), R()])
    for name, bad, why in (("inv", lambda: ts.linalg.inv(zeros), "singular"),
                           ("solve", lambda: ts.linalg.solve(zeros, good), "singular"),
                           ("cholesky", lambda: ts.linalg.cholesky(indefinite), "not positive definite")):
        result = bad()
        after = ts.linalg.inv(good)
        with pytest.raises(ts.LinAlgError, match=f"{name}.*{why}"):
            result.full_tensor()
        with pytest.raises(np.linalg.LinAlgError):
            (result + 1).full_tensor()
        after.wait()
    assert ts.linalg.det(zeros).item() == 0
    sign, logarithm = ts.linalg.slogdet(zeros)
    assert sign.item() == 0 and logarithm.item() == -np.inf
    for bad in (np.nan, np.inf):
        x = session.distribute_tensor(np.full((3, 3), bad), mesh22, [S(0), R()])
        for function in (ts.linalg.svd, ts.linalg.eigh):
            for part in function(x):
                with pytest.raises(ts.LinAlgError, match="did not converge"):
                    part.full_tensor()
        with pytest.raises(ts.LinAlgError):
            ts.linalg.pinv(x).full_tensor()
        for part in ts.linalg.qr(x):
            part.wait()
    close(ts.linalg.inv(good) @ good, np.eye(4), np.float64)


def test_cross_products_are_broadcast(session, mesh22, rng):
    for left, right, axis in (((3,), (4, 3), -1), ((4, 3), (3,), -1), ((4, 1, 3), (5, 3), -1), ((3, 4), (2, 3, 4), -2)):
        a, b = rng.standard_normal(left), rng.standard_normal(right)
        for x, y in each_placement(session, mesh22, [a, b]):
            close(ts.linalg.cross(x, y, axis=axis), np.linalg.cross(a, b, axis=axis), np.float64)


def test_bad_input_is_said_by_the_function(session, mesh22, rng):
    x = session.distribute_tensor(rng.standard_normal((4, 3)), mesh22, [S(0), R()])
    for name in ("inv", "det", "cholesky", "eigh", "slogdet", "eigvalsh"):
        with pytest.raises(ts.InvalidArgumentError, match=f"^{name}: needs square matrices"):
            getattr(ts.linalg, name)(x)
    numbers = ts.asarray(np.eye(3, dtype=np.int64))
    for name in ("inv", "det", "cholesky", "eigh", "svd", "qr", "pinv", "matrix_norm", "matrix_rank", "svdvals"):
        with pytest.raises(ts.DTypeError, match=f"^{name}: .*dtype"):
            getattr(ts.linalg, name)(numbers)
        with pytest.raises(ts.InvalidArgumentError, match=f"^{name}: .*at least 2 dims"):
            getattr(ts.linalg, name)(x[0])
    with pytest.raises(ts.InvalidArgumentError, match="^solve: the rows"):
        ts.linalg.solve(x[:3], x)
    with pytest.raises(ts.InvalidArgumentError, match="^solve: .*broadcast"):
        ts.linalg.solve(ts.ones((2, 3, 3)), ts.ones((3, 3, 3)))
    with pytest.raises(ts.InvalidArgumentError, match="^qr: mode is raw"):
        ts.linalg.qr(x, mode="raw")
    with pytest.raises(ts.InvalidArgumentError, match="^matrix_norm: ord is 3"):
        ts.linalg.matrix_norm(x, ord=3)
    with pytest.raises(ts.InvalidArgumentError, match="^matrix_power: needs square"):
        ts.linalg.matrix_power(x, 2)
    close(ts.linalg.matrix_power(numbers * 2, 3).astype(ts.float64), np.eye(3) * 8, np.float64)


def test_the_namespace_is_the_array_apis():
    for name in ("cholesky cross det diagonal eig eigh eigvals eigvalsh inv matmul matrix_norm matrix_power matrix_rank matrix_transpose outer "
                 "pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm").split():
        assert callable(getattr(ts.linalg, name)) and getattr(ts.linalg, name).__doc__, name
    assert not hasattr(ts, "inv") and not hasattr(ts, "svd")
    for name in ("outer", "vecdot", "tensordot", "matmul", "matrix_transpose"):
        assert getattr(ts, name) is getattr(ts.linalg, name)
