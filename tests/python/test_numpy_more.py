"""More of NumPy's functions beside NumPy: windows, polynomials, histograms of several dims, parts of numbers, texts."""

import io

import numpy as np
import pytest

import tessera as ts

X = np.array([0.3, -1.7, 2.2, 0.1, 0.9, -0.4, 1.3, -2.5])
Y = np.array([1.0, 0.2, -0.7, 2.1, -1.1, 0.6, 0.4, -0.3])
NUMBERS = np.array([0.0, -0.0, 1, -1, 0.5, 3.7, -1e300, 1e-310, 5e-324, 2.0**60, np.nextafter(8, 0)])

CALLS = {
    "i0": lambda m: m.i0(m.asarray(np.linspace(-20, 20, 101))),
    **{f"{name}({count})": (lambda m, name=name, count=count: getattr(m, name)(count)) for name in ("bartlett", "blackman", "hamming", "hanning")
       for count in (0, 1, 2, 7)},
    "kaiser": lambda m: [m.kaiser(count, 14.0) for count in (0, 1, 9)],
    **{name: (lambda m, name=name: getattr(m, name)(m.asarray(X), m.asarray(Y[:3]))) for name in ("polyadd", "polysub", "polymul", "polydiv")},
    "polyder": lambda m: [m.polyder(m.asarray(X), times) for times in (0, 1, 2, 9)],
    "polyint": lambda m: [m.polyint(m.asarray(X)), m.polyint([1, 2], 2, k=[3, 4])],
    "poly": lambda m: [m.poly(m.asarray([1.0, 2.0, 3.0])), m.poly(m.asarray([1, 2])), m.poly(m.asarray([1 + 1j, 1 - 1j]))],
    "polyfit": lambda m: [m.polyfit(m.asarray(X), m.asarray(Y), 3), *m.polyfit(m.asarray(X), m.asarray(Y), 2, cov=True),
                          m.polyfit(m.asarray(X), m.asarray(np.stack([Y, X], 1)), 2, w=m.asarray(np.abs(X))),
                          *m.polyfit(m.asarray(X), m.asarray(Y), 2, cov="unscaled")],
    "matvec": lambda m: m.matvec(m.asarray(np.arange(24.0).reshape(2, 3, 4)), m.asarray(np.arange(4.0))),
    "vecmat": lambda m: m.vecmat(m.asarray([1 + 2j, 3]), m.asarray([[1.0, 2], [3, 4]])),
    "spacing": lambda m: m.spacing(m.asarray([1.0, -4.0, 0.0, 1e300, np.inf, np.nan])),
    "unwrap": lambda m: [m.unwrap(m.asarray([0, 0.78, 5.49, 6.28, -3, 3.3, 9])), m.unwrap(m.asarray([0, 1, 2, -1, 0]), period=4),
                         m.unwrap(m.asarray(10 * X.reshape(2, 4)), axis=0), m.unwrap(m.asarray(10 * X), discont=4.0)],
    "rollaxis": lambda m: [m.rollaxis(m.ones((3, 4, 5)), axis, start) for axis, start in ((2, 0), (0, 3), (1, -1))],
    "trim_zeros": lambda m: [m.trim_zeros(m.asarray([0, 0, 1, 2, 0, 3, 0]), how) for how in ("fb", "f", "b")] +
                            [m.trim_zeros(m.asarray([0, 0])), m.trim_zeros(m.asarray([[0, 0, 0], [0, 1, 0], [0, 2, 0]])),
                             m.trim_zeros(m.asarray([[0, 0, 0], [0, 1, 0]]), axis=0), m.trim_zeros(m.zeros((2, 2)))],
    "apply_over_axes": lambda m: m.apply_over_axes(m.sum, m.asarray(np.arange(24.0).reshape(2, 3, 4)), [0, 2]),
    "mask_indices": lambda m: m.mask_indices(4, m.triu, 1),
    "real_if_close": lambda m: [m.real_if_close(m.asarray([1 + 1e-15j, 2])), m.real_if_close(m.asarray([1 + 1e-3j, 2]))],
    "histogram_bin_edges": lambda m: m.histogram_bin_edges(m.asarray(X), 7),
    "histogramdd": lambda m: _flat(m.histogramdd(m.asarray(np.stack([X, Y, X * Y], 1)), bins=(3, 4, 5))),
    "histogram2d": lambda m: [*m.histogram2d(m.asarray(X), m.asarray(Y), bins=4), *m.histogram2d(m.asarray(X), m.asarray(Y), range=[[0, 1], [0, 1]]),
                              *m.histogram2d(m.asarray(X), m.asarray(Y), bins=[3, [-1.0, 0, 1]], density=True, weights=m.asarray(np.abs(X)))],
    "frombuffer": lambda m: m.frombuffer(bytes([1, 2, 3]), dtype=np.uint8), "fromiter": lambda m: m.fromiter((i * i for i in range(4)), float),
    "loadtxt": lambda m: [m.loadtxt(io.StringIO("1 2\n3 4")), m.genfromtxt(io.StringIO("1,\n3,4"), delimiter=",")],
}


def _flat(histogram):
    return [histogram[0], *histogram[1]]


def compare(got, wanted):
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted):
            compare(one, other)
        return
    assert isinstance(got, ts.Tensor) and got.dtype == np.asarray(wanted).dtype and got.shape == np.shape(wanted)
    np.testing.assert_allclose(got.full_tensor(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_it_gives_numpys_values_and_dtypes(session, mesh4, name):
    compare(CALLS[name](ts), CALLS[name](np))


def test_shards_give_the_same(session, mesh4):
    x, y = (ts.distribute_tensor(one, mesh4, [ts.Shard(0)]) for one in (X, Y))
    compare(_flat(ts.histogramdd([x, y], bins=3)), _flat(np.histogramdd([X, Y], bins=3)))
    compare(ts.polyfit(x, y, 2), np.polyfit(X, Y, 2))
    compare(ts.unwrap(10 * x), np.unwrap(10 * X))
    compare(ts.polymul(x, y), np.polymul(X, Y))


def test_parts_of_numbers_are_numpys_to_the_bit(session):
    for dtype in (np.float64, np.float32):
        values = np.array([*NUMBERS, np.inf, -np.inf, np.nan]).clip(np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)
        values[-3:] = np.inf, -np.inf, np.nan
        for got, wanted in zip(ts.frexp(ts.asarray(values)), np.frexp(values)):
            assert got.dtype == wanted.dtype
            is_finite = np.isfinite(values)
            np.testing.assert_array_equal(got.full_tensor()[is_finite], wanted[is_finite])
        np.testing.assert_array_equal(ts.frexp(ts.asarray(values))[0].full_tensor()[-3:], values[-3:])


def test_roots_are_the_zeros(session):
    for p in ([1.0, -6, 11, -6], [2.0, 0, 0], [0.0, 0, 1, -2], [1.0, 0, 1]):
        got, wanted = ts.roots(p).full_tensor(), np.roots(p)
        np.testing.assert_allclose(np.sort_complex(got), np.sort_complex(wanted), atol=1e-9)
    assert ts.roots([0.0, 0.0]).shape == (0,)


@pytest.mark.parametrize("call, said", [
    (lambda: ts.polyder([1, 2], -1), "m is -1, below 0"), (lambda: ts.polyint([1, 2], 2, k=[1, 2, 3]), "k has 3 constants for m=2"),
    (lambda: ts.polyfit([1.0, 2], [1.0], 1), "y has a row for each"), (lambda: ts.poly(ts.ones((2, 3))), "no vector of zeros and no square matrix"),
    (lambda: ts.trim_zeros(ts.ones((2,)), "x"), "trim is 'x'"), (lambda: ts.rollaxis(ts.ones((2, 2)), 0, 5), "start is 5"),
    (lambda: ts.asarray_chkfinite([1.0, np.nan]), "has infinities or NaNs"), (lambda: ts.histogramdd(ts.ones((3, 2)), bins=[1, 2, 3]), "points of 2"),
    (lambda: ts.apply_over_axes(lambda x, axis: x.sum(), ts.ones((2, 3, 4)), [0]), "func makes")])
def test_what_does_not_go_is_said(session, call, said):
    with pytest.raises(ts.InvalidArgumentError, match=said):
        call()
