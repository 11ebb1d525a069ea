"""NumPy's everyday functions: each call as NumPy has it, and NumPy's own answer, on every placement.

A case is a function of the module and the arrays: `lambda m, a: m.rot90(a, 2)` is called with NumPy and its arrays, and with
tessera and tensors."""

import itertools
import re
import warnings

import numpy as np
import pytest

import tessera as ts

S, R = ts.Shard, ts.Replicate
DTYPES = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "c128": np.complex128}
REAL, ALL, FLOATS, INTEGERS = ("f32", "f64", "i64"), ("f32", "f64", "i64", "c128"), ("f32", "f64"), ("i64",)
warnings.filterwarnings("ignore", category=RuntimeWarning)


def matrix(rng, dtype, shape=(5, 6)):
    """Small numbers, several of them equal; of floats NaN and infinities, too, where `shape` is "special"."""
    special = shape == "special"
    a = rng.integers(-4, 5, (5, 6) if special else shape)
    if np.dtype(dtype).kind == "i":
        return a.astype(dtype)
    a = a / 4 + (1j * rng.integers(-4, 5, a.shape) / 4 if np.dtype(dtype).kind == "c" else 0)
    if special:
        a[0, 1], a[1, 2], a[2, 3], a[3, 3], a[4, 0] = np.nan, np.inf, -np.inf, np.nan, -0.0
        a[:, 5] = np.nan
    return a.astype(dtype)


def placements_of(shape) -> list:
    found = [[R()]]
    for dim, extent in enumerate(shape[:2]):
        found += [[S(dim)], [S(dim, sizes=[0, extent - extent // 3, 0, extent // 3])]]
    return found


def flat(result) -> list:
    return [one for part in result for one in flat(part)] if isinstance(result, (tuple, list)) else [result]


def same(got, want, exact, what):
    got, want = flat(got), flat(want)
    assert len(got) == len(want), what
    for one, other in zip(got, want):
        one, other = one.full_tensor() if isinstance(one, ts.Tensor) else np.asarray(one), np.asarray(other)
        assert one.shape == other.shape, (what, one.shape, other.shape)
        assert one.dtype == other.dtype, (what, one.dtype, other.dtype)
        if exact or one.dtype.kind not in "fc":
            np.testing.assert_array_equal(one, other, err_msg=str(what))
        else:
            tolerance = 2e-6 if one.dtype in (np.float32, np.complex64) else 1e-12
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=str(what))


def check(session, mesh, rng, name, call, dtypes, shapes, exact):
    for dtype in dtypes:
        arrays = [matrix(rng, DTYPES[dtype], shape) for shape in shapes]
        want = call(np, *arrays)
        for choice in set(itertools.islice(zip(*(itertools.cycle(map(tuple, placements_of(a.shape))) for a in arrays)), 5)):
            tensors = [session.distribute_tensor(a, mesh, list(one)) for a, one in zip(arrays, choice)]
            same(call(ts, *tensors), want, exact, (name, dtype, shapes, choice))


M, V, SP, E, T3 = (5, 6), (7,), "special", (0, 3), (2, 3, 4)
# name: (call, dtypes, shapes), and whether a sum may be ordered otherwise.
EXACT = {
    "vstack": [(lambda m, a, b: m.vstack([a, b]), ALL, (M, (6,))), (lambda m, a, b: m.vstack((a, b)), ALL, (M, (3, 6)))],
    "hstack": [(lambda m, a, b: m.hstack([a, b]), ALL, (M, (5, 2))), (lambda m, a, b: m.hstack([a, b]), ALL, (V, (3,))),
               (lambda m, a, b: m.hstack([a, b]), ALL, ((), V))],
    "dstack": [(lambda m, a, b: m.dstack([a, b]), ALL, (M, M)), (lambda m, a: m.dstack([a, a]), ALL, (V,))],
    "column_stack": [(lambda m, a, b: m.column_stack([a, b]), ALL, ((5,), M))],
    "block": [(lambda m, a, b: m.block([[a, b], [b, a]]), ALL, ((3, 3), (3, 3))), (lambda m, a, b: m.block([a, b, 2]), REAL, (V, (3,)))],
    "atleast_1d": [(lambda m, a, b: m.atleast_1d(a, b), ALL, ((), M))],
    "atleast_2d": [(lambda m, a, b, c: m.atleast_2d(a, b, c), ALL, ((), V, T3))],
    "atleast_3d": [(lambda m, a, b, c: m.atleast_3d(a, b, c), ALL, ((), V, M))],
    "array_split": [(lambda m, a: m.array_split(a, 4), ALL, (M,)), (lambda m, a: m.array_split(a, [1, 4], axis=1), ALL, (M,)),
                    (lambda m, a: m.array_split(a, 9), REAL, (V,))],
    "hsplit": [(lambda m, a: m.hsplit(a, 3), ALL, (M,)), (lambda m, a: m.hsplit(a, [2, 5]), REAL, (V,))],
    "vsplit": [(lambda m, a: m.vsplit(a, [1, 2]), ALL, (M,))],
    "dsplit": [(lambda m, a: m.dsplit(a, 2), REAL, (T3,))],
    "flipud": [(lambda m, a: m.flipud(a), ALL, (M,)), (lambda m, a: m.flipud(a), REAL, (V,))],
    "fliplr": [(lambda m, a: m.fliplr(a), ALL, (M,)), (lambda m, a: m.fliplr(a), REAL, (E,))],
    "rot90": [(lambda m, a: [m.rot90(a, k) for k in (-1, 0, 1, 2, 3, 5)], REAL, (M,)), (lambda m, a: m.rot90(a, axes=(1, 2)), REAL, (T3,))],
    "ravel": [(lambda m, a: m.ravel(a), ALL, (M,)), (lambda m, a: m.ravel(a), REAL, ((),)), (lambda m, a: m.ravel(a), REAL, (E,))],
    "resize": [(lambda m, a: [m.resize(a, (4, 4)), m.resize(a, (2, 3, 7)), m.resize(a, 5)], ALL, (M,)), (lambda m, a: m.resize(a, (2, 2)), REAL, (E,))],
    "diag": [(lambda m, a: [m.diag(a, k) for k in (-2, 0, 3)], ALL, (V,)), (lambda m, a: [m.diag(a, k) for k in (-2, 0, 3)], ALL, (M,)),
             (lambda m, a: m.diag(a), FLOATS, (SP,))],
    "diagflat": [(lambda m, a: m.diagflat(a, 1), ALL, ((2, 3),))],
    "vander": [(lambda m, a: [m.vander(a), m.vander(a, 3), m.vander(a, N=4, increasing=True), m.vander(a, 1), m.vander(a, 0)], ("f64", "i64"), (V,))],
    "delete": [(lambda m, a: [m.delete(a, 2, 0), m.delete(a, [0, -1, 3], 1), m.delete(a, slice(1, 4), 0), m.delete(a, slice(None, None, 2), 1),
                              m.delete(a, [1, 7]), m.delete(a, [], 0), m.delete(a, np.array([True] + [False] * 4), 0)], ALL, (M,))],
    "insert": [(lambda m, a, b: [m.insert(a, 1, b, axis=0), m.insert(a, [1, 1, 4], 9, axis=1), m.insert(a, -1, 7, axis=1), m.insert(a, [0, 3], b, axis=0),
                                 m.insert(a, 3, 5), m.insert(a, [2], b, axis=0), m.insert(a, slice(0, 4, 2), 8, axis=0)], REAL, (M, (6,)))],
    "append": [(lambda m, a, b: [m.append(a, b), m.append(a, b, axis=1)], ALL, (M, (5, 2)))],
    "argwhere": [(lambda m, a: m.argwhere(a), ALL, (M,)), (lambda m, a: m.argwhere(a), REAL, (T3,)), (lambda m, a: m.argwhere(a), REAL, ((),)),
                 (lambda m, a: m.argwhere(a), FLOATS, (SP,))],
    "flatnonzero": [(lambda m, a: m.flatnonzero(a), ALL, (M,)), (lambda m, a: m.flatnonzero(a), REAL, (E,))],
    "unravel_index": [(lambda m, a: m.unravel_index(abs(a), (3, 2, 2)), INTEGERS, (M,)), (lambda m, a: m.unravel_index(abs(a), (3, 4), order="F"), INTEGERS, (V,))],
    "ravel_multi_index": [(lambda m, a, b: m.ravel_multi_index((abs(a), abs(b)), (5, 6)), INTEGERS, (M, M)),
                          (lambda m, a, b: m.ravel_multi_index((a, b), (3, 4), mode=("wrap", "clip"), order="F"), INTEGERS, (V, V))],
    "array_equal": [(lambda m, a, b: [m.array_equal(a, b), m.array_equal(a, a), m.array_equal(a, b[:2])], ALL, (M, M)),
                    (lambda m, a: [m.array_equal(a, a), m.array_equal(a, a, equal_nan=True)], FLOATS, (SP,))],
    "select": [(lambda m, a, b: [m.select([a > 0, b > 0], [a, b]), m.select([a > 2, a < 0], [a, -1], default=7)], REAL, (M, M))],
    "choose": [(lambda m, a, b: [m.choose(abs(a) % 3, [a, b, 5]), m.choose(a, [a, b], mode="clip"), m.choose(a, [b, a], mode="wrap")], INTEGERS, (M, M))],
    "piecewise": [(lambda m, a: m.piecewise(a, [a < 0, a > 1], [lambda x: -x, 10, lambda x: x * 2]), REAL, (M,)), (lambda m, a: m.piecewise(a, [a < 0], [1]), REAL, (M,))],
    "compress": [(lambda m, a: [m.compress([True, False, True], a, axis=0), m.compress(np.array([0, 1, 1, 0], bool), a)], ALL, (M,))],
    "apply_along_axis": [(lambda m, a: m.apply_along_axis(lambda x: x[::-1] * 2, 0, a), ALL, (M,)), (lambda m, a: m.apply_along_axis(lambda x: x.max(), 1, a), REAL, (M,)),
                         (lambda m, a: m.apply_along_axis(lambda x: x[:, None] * x, 1, a), REAL, (T3,))],
    "heaviside": [(lambda m, a, b: [m.heaviside(a, b), m.heaviside(a, 0.5)], FLOATS, (M, M)), (lambda m, a: m.heaviside(a, 0.5), FLOATS, (SP,))],
    "fmod": [(lambda m, a, b: m.fmod(a, b), REAL, (M, M)), (lambda m, a, b: [m.fmod(a, b), m.fmod(a, 0.75), m.fmod(2.5, a)], FLOATS, (SP, SP))],
    "fmax": [(lambda m, a, b: [m.fmax(a, b), m.fmax(a, 1)], REAL, (M, M)), (lambda m, a, b: [m.fmax(a, b[::-1]), m.fmax(0.5, a)], FLOATS, (SP, SP))],
    "fmin": [(lambda m, a, b: [m.fmin(a, b), m.fmin(a, 1)], REAL, (M, M)), (lambda m, a, b: [m.fmin(a, b[::-1]), m.fmin(0.5, a)], FLOATS, (SP, SP))],
    "divmod": [(lambda m, a, b: m.divmod(a, abs(b) + 1), REAL, (M, M))],
    "gcd": [(lambda m, a, b: [m.gcd(a * 6, b * 4), m.gcd(a, 12)], INTEGERS, (M, M))],
    "lcm": [(lambda m, a, b: [m.lcm(a * 6, b * 4), m.lcm(a, 12)], INTEGERS, (M, M))],
    "nan_to_num": [(lambda m, a: [m.nan_to_num(a), m.nan_to_num(a, nan=7, neginf=-3)], FLOATS + ("c128",), (SP,)), (lambda m, a: m.nan_to_num(a), ALL, (M,))],
    "deg2rad": [(lambda m, a: m.deg2rad(a), ("f64",), (M,))],
    "nanmax": [(lambda m, a: [m.nanmax(a), m.nanmax(a, axis=0), m.nanmax(a, axis=1, keepdims=True)], FLOATS, (SP,)), (lambda m, a: m.nanmax(a, axis=1), REAL, (M,))],
    "nanmin": [(lambda m, a: [m.nanmin(a), m.nanmin(a, axis=0), m.nanmin(a, axis=1, keepdims=True)], FLOATS, (SP,)), (lambda m, a: m.nanmin(a, axis=1), REAL, (M,))],
    "nanargmax": [(lambda m, a: [m.nanargmax(a), m.nanargmax(a, axis=1), m.nanargmax(a[:, :5], axis=0)], FLOATS, (SP,)), (lambda m, a: m.nanargmax(a, axis=0), REAL, (M,))],
    "nanargmin": [(lambda m, a: [m.nanargmin(a), m.nanargmin(a, axis=1), m.nanargmin(a[:, :5], axis=0)], FLOATS, (SP,)), (lambda m, a: m.nanargmin(a, axis=0), REAL, (M,))],
    "ptp": [(lambda m, a: [m.ptp(a), m.ptp(a, axis=0), m.ptp(a, axis=1, keepdims=True)], REAL, (M,))],
    "kron": [(lambda m, a, b: m.kron(a, b), ALL, (M, (2, 3))), (lambda m, a, b: m.kron(a, b), REAL, (V, M)), (lambda m, a: m.kron(a, 3), ("f64", "i64"), (V,))],
    "bincount": [(lambda m, a: [m.bincount(abs(a)), m.bincount(abs(a), minlength=9)], INTEGERS, ((30,),)), (lambda m, a: m.bincount(abs(a), minlength=2), INTEGERS, ((0,),)),
                 (lambda m, a, b: m.bincount(abs(a), weights=b), INTEGERS, ((30,), (30,)))],
    "histogram": [(lambda m, a: [m.histogram(a), m.histogram(a, bins=3, range=(-0.5, 0.5)), m.histogram(a, bins=[-3, 0, 0.3, 9])], REAL, ((8, 9),)),
                  (lambda m, a, b: m.histogram(a, 4, weights=b), REAL, (M, M)), (lambda m, a: m.histogram(a, bins=3), REAL, (E,)),
                  (lambda m, a: m.histogram(a, 3, range=(-1, 1)), FLOATS, (SP,))],
    "digitize": [(lambda m, a: [m.digitize(a, np.array([-1.0, 0, 0.5, 2])), m.digitize(a, np.array([2, 0.5, 0]), right=True)], REAL, (M,)),
                 (lambda m, a, b: m.digitize(a, m.sort(b)), REAL, (M, V))],
    "quantile": [(lambda m, a: [m.quantile(a, 0.3), m.quantile(a, [0, 0.25, 1], axis=0), m.quantile(a, 0.7, axis=1, keepdims=True), m.quantile(a, 0.5, axis=(0, 1))],
                  REAL, (M,)), (lambda m, a: [m.quantile(a, 0.3), m.quantile(a, [0.1, 0.8], axis=0)], FLOATS, (SP,)),
                 *((lambda m, a, method=method: [m.quantile(a, 0.37, axis=1, method=method), m.quantile(a, [0.0, 0.2, 0.5, 1.0], axis=0, method=method)], REAL, (M,))
                   for method in ("inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
                                  "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest"))],
    "percentile": [(lambda m, a: [m.percentile(a, 30), m.percentile(a, [5, 95], axis=1)], REAL, (M,)), (lambda m, a: m.percentile(a, 50), REAL, ((),))],
    "nanquantile": [(lambda m, a: [m.nanquantile(a, 0.3), m.nanquantile(a[:, :5], [0.1, 0.5], axis=0), m.nanquantile(a, 0.5, axis=1)], FLOATS, (SP,)),
                    (lambda m, a: m.nanquantile(a, 0.4, axis=0), REAL, (M,))],
    "nanpercentile": [(lambda m, a: m.nanpercentile(a, 40, axis=1, method="lower"), FLOATS, (SP,))],
    "union1d": [(lambda m, a, b: m.union1d(a, b), REAL, (M, V)), (lambda m, a: m.union1d(a, [1, 2]), FLOATS, (SP,))],
    "intersect1d": [(lambda m, a, b: m.intersect1d(a, b), REAL, (M, V)), (lambda m, a, b: m.intersect1d(a, b, return_indices=True), REAL, (M, V))],
    "setdiff1d": [(lambda m, a, b: m.setdiff1d(a, b), REAL, (M, V)), (lambda m, a: m.setdiff1d(a, [0]), FLOATS, (SP,))],
    "setxor1d": [(lambda m, a, b: m.setxor1d(a, b), REAL, (M, V)), (lambda m, a, b: m.setxor1d(a, b), REAL, ((0,), V))],
    "gradient": [(lambda m, a: [m.gradient(a), m.gradient(a, 2.0, axis=0), m.gradient(a, axis=1, edge_order=2), m.gradient(a, 0.5, 3)], FLOATS, (M,)),
                 (lambda m, a: [m.gradient(a, np.array([0, 1, 3, 4, 7.5]), axis=0), m.gradient(a, np.array([0, 1, 3, 4, 7.5]), axis=0, edge_order=2)], ("f64",), (M,)),
                 (lambda m, a: m.gradient(a), INTEGERS, (V,))],
}
NEAR = {
    "sinc": [(lambda m, a: m.sinc(a), REAL, (M,))],
    "deg2rad": [(lambda m, a: [m.deg2rad(a), m.rad2deg(a)], REAL, (M,))],
    "rad2deg": [(lambda m, a: m.rad2deg(a), FLOATS, (SP,))],
    "cbrt": [(lambda m, a: m.cbrt(a * 1000), REAL, (M,)), (lambda m, a: m.cbrt(a), FLOATS, (SP,))],
    "float_power": [(lambda m, a, b: [m.float_power(abs(a) + 1, b), m.float_power(abs(a) + 1, 2)], ALL, (M, M))],
    "nansum": [(lambda m, a: [m.nansum(a), m.nansum(a, axis=0, keepdims=True)], FLOATS + ("c128",), (SP,)), (lambda m, a: m.nansum(a, axis=1), ALL, (M,))],
    "nanprod": [(lambda m, a: [m.nanprod(a), m.nanprod(a, axis=0)], FLOATS, (SP,)), (lambda m, a: m.nanprod(a, axis=1), REAL, (M,))],
    "nanmean": [(lambda m, a: [m.nanmean(a[3:]), m.nanmean(a, axis=0)], FLOATS, (SP,)), (lambda m, a: m.nanmean(a, axis=1), ALL, (M,))],
    "nanvar": [(lambda m, a: [m.nanvar(a[3:]), m.nanvar(a, axis=0)], FLOATS, (SP,)), (lambda m, a: m.nanvar(a, axis=1, correction=1), ALL, (M,))],
    "nanstd": [(lambda m, a: [m.nanstd(a[3:]), m.nanstd(a, axis=0, correction=5)], FLOATS, (SP,)), (lambda m, a: m.nanstd(a, axis=1), ALL, (M,))],
    "cov": [(lambda m, a, b: [m.cov(a), m.cov(a, b, rowvar=False), m.cov(a, bias=True), m.cov(a[0]), m.cov(a, ddof=2)], ALL, (M, (5, 6))),
            (lambda m, a: [m.cov(a, fweights=[1, 2, 0, 1, 3, 1]), m.cov(a, aweights=[1, 0.5, 2, 1, 1, 1], ddof=0),
                           m.cov(a, fweights=[1, 2, 1, 1, 3, 1], aweights=[1, 0.5, 2, 1, 1, 1])], ALL, (M,))],
    "corrcoef": [(lambda m, a: [m.corrcoef(a), m.corrcoef(a, rowvar=False), m.corrcoef(a[0])], ALL, (M,))],
    "inner": [(lambda m, a, b: m.inner(a, b), ALL, (M, (4, 6))), (lambda m, a, b: m.inner(a, b), ALL, (V, V)), (lambda m, a: m.inner(a, 3), REAL, (M,))],
    "dot": [(lambda m, a, b: m.dot(a, b), ALL, (M, (6, 2))), (lambda m, a, b: m.dot(a, b), ALL, (V, V)), (lambda m, a, b: m.dot(a, b), REAL, (M, (2, 6, 3)))],
    "trapezoid": [(lambda m, a: [m.trapezoid(a), m.trapezoid(a, dx=0.5, axis=0), m.trapezoid(a, np.array([0, 1, 3, 4, 8.0]), axis=0)], REAL, (M,)),
                  (lambda m, a, b: m.trapezoid(a, b), FLOATS, (M, M))],
    "convolve": [(lambda m, a, b: [m.convolve(a, b), m.convolve(b, a, "same"), m.convolve(a, b, mode="valid")], ALL, (V, (4,))),
                 (lambda m, a, b: [m.convolve(a, b, "same"), m.convolve(a, 2)], REAL, (V, (3,)))],
    "correlate": [(lambda m, a, b: [m.correlate(a, b), m.correlate(b, a), m.correlate(a, b, "same"), m.correlate(b, a, "same"), m.correlate(a, b, "full"),
                                    m.correlate(b, a, "full")], ALL, (V, (4,)))],
    "interp": [(lambda m, a: [m.interp(a, [-1, 0, 0.5, 3], [3.0, -2, 7, 7]), m.interp(a, [0.0, 1], [1, 2], left=-5, right=9), m.interp(a, [0.0], [4]),
                              m.interp(a, [3.0, 0.1, 1], [1, 5, 2], period=2)], REAL, (M,)),
               (lambda m, a: [m.interp(a, [-1, 0, 1.0], [1.0, np.inf, 2]), m.interp(a, [0, 1.0], [1 + 1j, 2])], FLOATS, (SP,))],
    "linalg.norm": [(lambda m, a: [m.linalg.norm(a), m.linalg.norm(a, "fro"), m.linalg.norm(a, 1), m.linalg.norm(a, -np.inf), m.linalg.norm(a, "nuc"), m.linalg.norm(a, 2),
                                   m.linalg.norm(a, axis=0), m.linalg.norm(a, np.inf, axis=1, keepdims=True), m.linalg.norm(a, 3, axis=1)], ALL, (M,)),
                    (lambda m, a: [m.linalg.norm(a), m.linalg.norm(a, axis=(2, 0)), m.linalg.norm(a, 1, axis=(0, 2), keepdims=True)], REAL, (T3,))],
    "linalg.cond": [(lambda m, a: [m.linalg.cond(a), m.linalg.cond(a, -2)], FLOATS, (M,)), (lambda m, a: [m.linalg.cond(a + 9 * np.eye(4), p) for p in ("fro", 1, -1, np.inf)], ("f64",), ((4, 4),))],
    "linalg.multi_dot": [(lambda m, a, b, c: [m.linalg.multi_dot([a, b, c]), m.linalg.multi_dot([a[0], b, c[:, 0]]), m.linalg.multi_dot([a, b])], ALL, (M, (6, 2), (2, 5)))],
    "fft.fft2": [(lambda m, a: [m.fft.fft2(a), m.fft.ifft2(a, s=(4, 4)), m.fft.fft2(a, axes=(1, 0))], ("f64", "c128"), (M,))],
    "fft.ifft2": [(lambda m, a: m.fft.ifft2(a, norm="ortho"), ("f64", "c128"), (M,))],
    "fft.rfft2": [(lambda m, a: m.fft.rfft2(a), ("f64", "i64"), (M,))],
    "fft.irfft2": [(lambda m, a: [m.fft.irfft2(a), m.fft.irfft2(a, s=(3, 4))], ("c128",), (M,))],
}


@pytest.mark.parametrize("name", EXACT)
def test_the_same_bits_as_numpy(session, mesh4, rng, name):
    for call, dtypes, shapes in EXACT[name]:
        check(session, mesh4, rng, name, call, dtypes, shapes, exact=True)


@pytest.mark.parametrize("name", NEAR)
def test_the_same_numbers_as_numpy(session, mesh4, rng, name):
    for call, dtypes, shapes in NEAR[name]:
        check(session, mesh4, rng, name, call, dtypes, shapes, exact=False)


def test_what_is_made_of_numbers_alone(session, mesh4):
    with mesh4:
        for call, exact in ((lambda m: m.logspace(0, 3, 7), False), (lambda m: m.logspace(1, 2, num=4, endpoint=False, base=2.0), False),
                            (lambda m: m.geomspace(1, 1000, 4), False), (lambda m: m.geomspace(-2, -32, num=5), False), (lambda m: m.geomspace(1j, -1, 3), False),
                            (lambda m: m.identity(3), True), (lambda m: m.identity(2, dtype=np.int64), True), (lambda m: m.tri(3, 5, 1), True),
                            (lambda m: m.tri(4, k=-1, dtype=np.float32), True), (lambda m: m.fromfunction(lambda i, j: i * 10 + j, (3, 4)), True),
                            (lambda m: m.fromfunction(lambda i: i + 1, (5,), dtype=np.int64), True)):
            same(call(ts), call(np), exact, call)


@pytest.mark.parametrize("placement", [R(), S(0), S(1), S(0, sizes=[3, 0, 2, 0])], ids=str)
def test_put_along_axis_writes_in_place(session, mesh4, rng, placement):
    a = matrix(rng, np.float64)
    x = session.distribute_tensor(a, mesh4, [placement])
    kept, indices = +x, np.abs(matrix(rng, np.int64, (5, 2))) % 3 + np.array([0, 3])
    ts.put_along_axis(x, ts.asarray(indices), 9.0, axis=1)
    b = a.copy()
    np.put_along_axis(b, indices, 9.0, axis=1)
    np.testing.assert_array_equal(x.full_tensor(), b)
    np.testing.assert_array_equal(kept.full_tensor(), a)
    assert x.placements == kept.placements
    flat_indices, values = np.array([3, 17]), np.array([1.0, 2.0])
    ts.put_along_axis(x, flat_indices, values, axis=None)
    np.put_along_axis(b, flat_indices, values, axis=None)
    np.testing.assert_array_equal(x.full_tensor(), b)


def test_sets_and_extremes_that_numpy_has_otherwise(session, mesh4, rng):
    """in1d, which NumPy calls isin alone, and torch's cummax."""
    a = matrix(rng, np.int64)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    same(ts.in1d(x, [1, 2]), np.isin(a.ravel(), [1, 2]), True, "in1d")
    same(ts.in1d([1, 9], x, invert=True), np.isin([1, 9], a, invert=True), True, "in1d")
    v = np.array([1.0, 3, 3, 2, np.nan, 7, np.nan])
    y = session.distribute_tensor(v, mesh4, [S(0)])
    same(ts.cummax(y, 0), (np.maximum.accumulate(v), np.array([0, 1, 2, 2, 4, 4, 6])), True, "cummax")
    same(ts.cummin(y, axis=-1), (np.minimum.accumulate(v), np.array([0, 0, 0, 0, 4, 4, 6])), True, "cummin")
    with pytest.raises(ts.InvalidArgumentError, match="nanargmax: 1 of 6 slices of .* are NaN alone"):
        ts.nanargmax(session.distribute_tensor(matrix(rng, np.float64, "special"), mesh4, [S(1)]), axis=0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, (4, None), (7, 1)])
def test_adaptive_pools_are_torchs(session, mesh4, rng, size):
    a = rng.random((2, 3, 6, 8))
    a[0, 0, 0, 0], a[1, 1, 3, 3] = np.nan, np.inf
    rows, columns = (size, size) if isinstance(size, int) else size
    columns = 8 if columns is None else columns
    cut = lambda n, count: [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]     # noqa: E731
    want = np.array([[[[a[b, c, r0:r1, c0:c1].mean() for c0, c1 in cut(8, columns)] for r0, r1 in cut(6, rows)] for c in range(3)] for b in range(2)])
    for placement in (R(), S(0), S(1), S(2), S(3)):
        x = session.distribute_tensor(a, mesh4, [placement])
        same(ts.adaptive_avg_pool2d(x, size), want, False, (size, placement))
        same(ts.adaptive_avg_pool2d(x[0], size), want[0], False, (size, placement))


def test_histograms_count_where_the_shards_are(session, mesh4, rng):
    a = rng.random((64, 50))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    with session.comm_debug() as comm:
        counts, _ = ts.histogram(x, 10, range=(0, 1))
        counts.wait()
    assert sum(comm.bytes_received) == 0
    np.testing.assert_array_equal(counts.full_tensor(), np.histogram(a, 10, range=(0, 1))[0])


def test_convolutions_write_no_windows_out(session, mesh4):
    """38001 windows of 2000 elements would be 608 MB, where a worker has 256 MiB."""
    a, v = np.arange(40000) % 7.0, np.ones(2000)
    got = ts.convolve(session.distribute_tensor(a, mesh4, [S(0)]), v, "valid").full_tensor()
    np.testing.assert_allclose(got, np.convolve(a, v, "valid"), rtol=1e-12)


def test_addcmul_and_addcdiv(session, mesh4, rng):
    a, b, c = (rng.random((5, 6)) + 1 for _ in range(3))
    x, y, z = (session.distribute_tensor(one, mesh4, [placement]) for one, placement in ((a, S(0)), (b, S(1)), (c, R())))
    same(ts.addcmul(x, y, z), a + b * c, False, "addcmul")
    same(ts.addcmul(x, y, z, value=0.5), a + 0.5 * b * c, False, "addcmul")
    same(ts.addcdiv(x, y, z, value=-2), a - 2 * b / c, False, "addcdiv")


def test_methods_that_arrays_have(session, mesh4, rng):
    a = matrix(rng, np.float64)
    v = np.sort(matrix(rng, np.float64, V))
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(v, mesh4, [S(0)])
    for call in (lambda t: t.argsort(axis=0, stable=True), lambda t: t.argsort(None, stable=True), lambda t: t.cumsum(), lambda t: t.cumsum(1), lambda t: t.cumprod(axis=0),
                 lambda t: t.take([3, 1]), lambda t: t.take([1, 0], axis=1), lambda t: t.nonzero(), lambda t: t.conjugate(), lambda t: t.dot(t.T),
                 lambda t: t.compress([True, False, True], axis=1), lambda t: (t > 0).astype(np.int64).choose([t, 7.0]), lambda t: t.ravel(), lambda t: t.tolist()):
        same(call(x), call(a), True, call)
    same(y.searchsorted(x), v.searchsorted(a), True, "searchsorted")
    same(y.searchsorted(0.0, side="right"), v.searchsorted(0.0, side="right"), True, "searchsorted")
    for function in (np.cumsum, np.cumprod, np.nonzero, np.argsort):     # they call the methods
        assert isinstance(flat(function(x))[0], ts.Tensor)
        same(function(x), function(a) if function is not np.argsort else np.argsort(a, stable=True), True, function)
    for name in ("byteswap", "tobytes"):
        with pytest.raises(AttributeError, match=f"^Tensor has no {name}: "):
            getattr(x, name)


def test_numpys_ufuncs_are_these(session, mesh4, rng):
    a = np.abs(matrix(rng, np.int64)) + 1
    x = session.distribute_tensor(a, mesh4, [S(1)])
    for function in (np.gcd, np.lcm, np.fmod, np.fmax, np.fmin, np.heaviside, np.float_power, np.divmod):
        b = a.astype(np.float64) if function is np.heaviside else a
        y = x.astype(np.float64) if function is np.heaviside else x
        same(function(y, y[::-1]), function(b, b[::-1]), True, function)
    for function in (np.cbrt, np.deg2rad, np.radians, np.degrees):
        same(function(x), function(a), False, function)


@pytest.mark.parametrize("call, said", [
    (lambda x: ts.quantile(x, 1.5), "quantile: q is 1.5, not from 0 to 1"), (lambda x: ts.percentile(x, [50, 101]), "percentile: q is 101, not from 0 to 100"),
    (lambda x: ts.quantile(x, 0.5, method="middle"), "quantile: method is 'middle'"), (lambda x: ts.quantile(x[:0], 0.5), "quantile: f64[0,6]"),
    (lambda x: ts.quantile(x, 0.5, dim=0), "did you mean axis=?"), (lambda x: ts.quantile(x, 0.5, axis=3), "quantile: axis 3 is out of range for 2 dims"),
    (lambda x: ts.bincount(x), "bincount: takes a vector of integers: x is f64[5,6]"), (lambda x: ts.bincount(ts.asarray([1, -2])), "-2 is one of its elements"),
    (lambda x: ts.histogram(x, [3, 1]), "histogram: `bins` must increase monotonically"), (lambda x: ts.histogram(x / 0), "histogram: autodetected range of"),
    (lambda x: ts.histogram(x, "auto"), "histogram: bins is 'auto'"), (lambda x: ts.digitize(x, [1, 3, 2]), "digitize: bins go neither up nor down"),
    (lambda x: ts.delete(x, 9, axis=0), "delete: index 9 is out of range for dim 0 of f64[5,6]"), (lambda x: ts.insert(x, [0, 7], 1, axis=1), "insert: index 7 is out of range for dim 1"),
    (lambda x: ts.unravel_index(ts.asarray([7]), (2, 3)), "unravel_index: index 7 is out of range for 6 elements of shape (2, 3)"),
    (lambda x: ts.ravel_multi_index((ts.asarray([1]), [4]), (2, 3)), "ravel_multi_index: index 4 is out of range for dim 1 of shape (2, 3)"),
    (lambda x: ts.choose(ts.asarray([0, 2]), [1, 2]), "choose: index 2 is out of range for 2 choices"), (lambda x: ts.vstack([]), "vstack: needs a list with a Tensor in it"),
    (lambda x: ts.hstack([x, x[:3]]), "concat: shapes differ"), (lambda x: ts.diag(x[None]), "diag: takes a vector or a matrix: x is f64[1,5,6]"),
    (lambda x: ts.convolve(x, x), "convolve: takes two vectors, not f64[5,6]"), (lambda x: ts.correlate(x[0], x[0], "all"), "correlate: mode is 'all'"),
    (lambda x: ts.interp(x, [1, 2], [1]), "interp: xp and fp are vectors of as many elements"), (lambda x: ts.gradient(x, edge_order=3), "gradient: edge_order is 3"),
    (lambda x: ts.geomspace(0, 1), "geomspace: from 0 to 1"), (lambda x: ts.select([x], [x]), "select: condition 0 is"), (lambda x: ts.piecewise(x, [x > 0], [1, 2, 3]), "piecewise: 3 functions for 1 conditions"),
    (lambda x: ts.apply_along_axis(lambda v: 1, 0, x), "the function gave int, not a Tensor"), (lambda x: ts.apply_along_axis(lambda v: v, 0, x[:, :0]), "has 0 vectors along dim 0"),
    (lambda x: ts.gcd(x, 2), "gcd: "), (lambda x: ts.cov(x[None]), "cov: f64[1,5,6]"), (lambda x: ts.linalg.norm(x[None], 2), "norm: axis is None"),
    (lambda x: ts.linalg.multi_dot([x, x]), "multi_dot: operands 0 and 1 don't fit each other"), (lambda x: ts.fft.fft2(x[0]), "fft2: f64[6]"),
    (lambda x: ts.adaptive_avg_pool2d(x, 2), "adaptive_avg_pool2d: takes floats of 4 dims"), (lambda x: ts.nan_to_num("1.0"), "nan_to_num: x is str, not a Tensor"),
    (lambda x: ts.block([[x], x]), "block: "), (lambda x: ts.vander(x), "vander: x is f64[5,6]")])
def test_errors_name_the_function_and_both_values(session, mesh4, rng, call, said):
    x = session.distribute_tensor(matrix(rng, np.float64), mesh4, [S(0)])
    with pytest.raises((ts.InvalidArgumentError, ts.DTypeError), match=re.escape(said)):
        call(x)


def test_what_numpy_has_is_here_or_told():
    """Each of NumPy's functions is here, or its name is answered with what to write, or it is one that docs/cookbook.md leaves out."""
    import pathlib
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs/cookbook.md").read_text()
    section = text.partition("## What NumPy has and Tessera doesn't")[2].partition("\n## ")[0]
    left_out = set(re.findall(r"`(\w+)`", section))
    from tessera._names import _ELSEWHERE
    from tessera._numpy_calls import OWN_NAMES
    no_op = re.compile(r"busday|datetime|isnat|print|repr|array2string|array_str|format_float|buf|err(call)?$|from(iter|regex|string|pyfunc|txt)|genfromtxt|savez|"
                       r"show_|info|test$|typename|include|nested_iters|require|fortran|Fortran|chkfinite|asmatrix|bmat|memory|einsum_path|mintypecode|"
                       r"min_scalar_type|isscalar|iterable|indices_from|mask_indices")
    missing = [name for name in dir(np) if callable(getattr(np, name)) and not isinstance(getattr(np, name), type) and not name.startswith("_") and
               not hasattr(ts, name) and name not in _ELSEWHERE and name not in OWN_NAMES and name not in left_out and not no_op.search(name)]
    assert missing == []
