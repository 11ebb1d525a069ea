"""Values that are easy to get nearly right: whole powers and roots, pads of several numbers, diagonals of more than two dims, medians
over several axes, tolerances of each matrix."""

import numpy as np
import pytest

import tessera as ts

R, S = ts.Replicate, ts.Shard


def ulps(got, want):
    """How many numbers of the dtype lie between them at most."""
    bits = {4: np.int32, 8: np.int64}[want.dtype.itemsize]
    return int(np.max(np.abs(got.view(bits).astype(object) - want.view(bits).astype(object)))) if want.size else 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_whole_powers_of_two_are_exact(session, mesh4, rng, dtype):
    """A vector's rest, too, and wherever in it an element lies."""
    info = np.finfo(dtype)
    whole = np.arange(info.minexp - info.nmant, info.maxexp).astype(dtype)
    got = ts.exp2(session.distribute_tensor(whole, mesh4, [S(0)])).full_tensor()
    np.testing.assert_array_equal(got, np.ldexp(dtype(1), whole.astype(int)))
    assert ts.exp2(ts.asarray([3])).tolist() == [8.0]
    a = np.concatenate([rng.uniform(-30, 30, 20000), rng.uniform(-1e-3, 1e-3, 1001), [np.inf, -np.inf, np.nan, 0.0, -0.0, 5e9, -5e9]]).astype(dtype)
    want = np.exp2(a.astype(np.longdouble)).astype(dtype)
    got = ts.exp2(session.distribute_tensor(a, mesh4, [S(0)])).full_tensor()
    assert ulps(got[:-7], want[:-7]) <= 1
    np.testing.assert_array_equal(got[-7:], want[-7:])
    np.testing.assert_array_equal(ts.exp2(session.distribute_tensor(a[3:], mesh4, [R()])).full_tensor(), got[3:])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_roots_of_cubes_are_exact(session, mesh4, rng, dtype):
    k = np.arange(-2000 if dtype == np.float64 else -255, 2001 if dtype == np.float64 else 256).astype(dtype)
    np.testing.assert_array_equal(ts.cbrt(session.distribute_tensor(k**3, mesh4, [S(0)])).full_tensor(), k)
    a = np.concatenate([rng.uniform(-1e3, 1e3, 20001), 10.0 ** rng.uniform(-37, 37, 5000), [np.inf, -np.inf, np.nan, 0.0, -0.0]])
    if dtype == np.float64:
        a = np.concatenate([10.0 ** rng.uniform(-322, 308, 20001), [5e-324, -5e-324, 1.7976931348623157e308, 2.2250738585072014e-308], a])
    a = a.astype(dtype)
    want = np.cbrt(a.astype(np.longdouble)).astype(dtype)
    got = ts.cbrt(session.distribute_tensor(a, mesh4, [S(0)])).full_tensor()
    assert ulps(got[:-5], want[:-5]) <= 1
    np.testing.assert_array_equal(got[-5:], want[-5:])
    assert np.all(np.signbit(got[-2:]) == [False, True])
    np.testing.assert_array_equal(ts.cbrt(session.distribute_tensor(a[5:], mesh4, [R()])).full_tensor(), got[5:])


@pytest.mark.parametrize("placements", [[R()], [S(0)], [S(1)]], ids=str)
@pytest.mark.parametrize("values", [5, (7, 9), ((1, 2), (3, 4)), ((1,), (2,)), [[6, 6]], np.float64(2.5), np.float32(1.5), np.int8(-3),
                                    np.array([7, 9]), np.array(4), (1, np.float64(2)), float("nan")], ids=str)
def test_a_pad_of_several_numbers(session, mesh4, placements, values):
    a = np.arange(12.0).reshape(3, 4)
    x = session.distribute_tensor(a, mesh4, placements)
    for widths in (2, (1, 2), ((1, 0), (2, 3)), ((1,), (2,)), np.array([[0, 2], [1, 0]]), [(np.int64(1), 0), (0, 0)]):
        want = np.pad(a, widths, constant_values=values)
        np.testing.assert_array_equal(ts.pad(x, widths, constant_values=values).full_tensor(), want)
        np.testing.assert_array_equal(np.pad(x, widths, constant_values=values).full_tensor(), want)


def test_pads_that_are_refused_say_why(session):
    x = ts.ones((2, 6))
    with pytest.raises(ts.InvalidArgumentError, match="pad: mode is empty, not constant, edge, wrap or reflect"):
        ts.pad(x, 2, mode="empty")
    with pytest.raises(ts.InvalidArgumentError, match=r"pad: constant_values is \(1, 2, 3\); it is a number"):
        ts.pad(x, 2, constant_values=(1, 2, 3))
    with pytest.raises(ts.InvalidArgumentError, match="pad: pad_width is 'a'"):
        ts.pad(x, "a")
    with pytest.raises(ts.InvalidArgumentError, match="pad: pad_width is 1.5"):
        ts.pad(x, 1.5)
    assert ts.pad(ts.asarray(3.0), 1).item() == 3.0
    assert ts.pad(ts.asarray([True]), (1, 2), constant_values=(False, True)).tolist() == [False, True, True, True]
    assert ts.pad(ts.asarray([1j]), 1, constant_values=(2j, 3)).tolist() == [2j, 1j, 3]


@pytest.mark.parametrize("placements", [[R()], [S(0)], [S(2)]], ids=str)
def test_diagonals_are_numpys_and_those_of_linalg_the_array_apis(session, mesh4, rng, placements):
    a = rng.integers(-9, 9, (2, 4, 6))
    x = session.distribute_tensor(a, mesh4, placements)
    for arguments in ({}, {"offset": 1}, {"offset": -1, "axis1": 2, "axis2": 0}, {"axis1": 1, "axis2": 2}, {"axis1": -1, "axis2": -3}):
        for name in ("diagonal", "trace"):
            want = getattr(np, name)(a, **arguments)
            for got in (getattr(ts, name)(x, **arguments), getattr(x, name)(**arguments), getattr(np, name)(x, **arguments)):
                np.testing.assert_array_equal(got.full_tensor(), want)
                assert got.dtype == want.dtype
    np.testing.assert_array_equal(ts.linalg.trace(x).full_tensor(), np.linalg.trace(a))
    np.testing.assert_array_equal(ts.linalg.diagonal(x).full_tensor(), np.linalg.diagonal(a))
    assert ts.trace(x, dtype=ts.float32).dtype == np.float32
    with pytest.raises(ts.InvalidArgumentError, match="trace: axis1 and axis2 are both 1"):
        ts.trace(x, axis1=1, axis2=1)
    with pytest.raises(ts.InvalidArgumentError, match="diagonal: needs at least 2 dims"):
        ts.diagonal(ts.ones(3))


@pytest.mark.parametrize("placements", [[R()], [S(0)], [S(-1)]], ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (2, 0), (0, 1, 2), [1, 2]], ids=str)
def test_medians_over_several_axes(session, mesh4, rng, placements, axis):
    a = rng.standard_normal((3, 4, 5))
    a[0, 1, 2] = np.nan
    x = session.distribute_tensor(a, mesh4, placements)
    axis_of_numpy = tuple(axis) if isinstance(axis, list) else axis
    for keepdims in (False, True):
        got = ts.median(x, axis=axis, keepdims=keepdims)
        np.testing.assert_array_equal(got.full_tensor(), np.median(a, axis=axis_of_numpy, keepdims=keepdims))
        np.testing.assert_allclose(ts.percentile(x, 30, axis=axis, keepdims=keepdims).full_tensor(), np.percentile(a, 30, axis=axis_of_numpy, keepdims=keepdims))
        np.testing.assert_allclose(ts.nanquantile(x, 0.3, axis=axis, keepdims=keepdims).full_tensor(), np.nanquantile(a, 0.3, axis=axis_of_numpy, keepdims=keepdims))
    integers = session.distribute_tensor(np.arange(60).reshape(3, 4, 5), mesh4, placements)
    np.testing.assert_array_equal(ts.median(integers, axis=axis).full_tensor(), np.median(np.arange(60).reshape(3, 4, 5), axis=axis_of_numpy))
    with pytest.raises(ts.InvalidArgumentError, match="names a dim twice"):
        ts.median(x, axis=(1, 1))


def test_a_tolerance_of_each_matrix(session, mesh4, rng):
    left, right = (np.linalg.qr(rng.standard_normal((3, 4, 4)))[0] for _ in range(2))
    a = left @ (np.array([1, 1e-2, 1e-4, 1e-6])[:, None] * right)
    for dtype in (np.float64, np.complex128):
        b = a.astype(dtype)
        x = session.distribute_tensor(b, mesh4, [S(0)])
        for rtol in (np.array([1e-3, 1e-5, 1e-7]), np.array(1e-3), np.float64(1e-5), 1e-3):
            given = [rtol] if isinstance(rtol, float) else [rtol, ts.asarray(rtol)]
            for one in given:
                np.testing.assert_allclose(ts.linalg.pinv(x, rtol=one).full_tensor(), np.linalg.pinv(b, rtol), rtol=1e-6, atol=1e-3)
                np.testing.assert_array_equal(ts.linalg.matrix_rank(x, rtol=one).full_tensor(), np.linalg.matrix_rank(b, rtol=rtol))
    assert ts.linalg.pinv(ts.ones((2, 0, 3)), rtol=ts.asarray([1.0, 2.0])).shape == (2, 3, 0)
    assert ts.linalg.matrix_rank(ts.ones((2, 0, 3)), rtol=ts.asarray([1.0, 2.0])).tolist() == [0, 0]
    with pytest.raises(ts.DTypeError, match="pinv: rtol is bool"):
        ts.linalg.pinv(x, rtol=ts.asarray([True, False, True]))
