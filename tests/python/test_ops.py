"""Every op against NumPy, over dtypes and placements."""

import itertools

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
DTYPES = ["bool", "int32", "int64", "float32", "float64"]
PLACEMENTS = [[S(0), R()], [R(), S(1)], [S(0), S(1)], [S(1), S(0)], [S(0), S(0)], [R(), R()]]
SHAPE = (5, 7)  # uneven on 2x2, with empty shards when nested


def sample(rng, shape, dtype):
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    values = rng.integers(-4, 5, shape)
    return values.astype(dtype)


def close(got, want):
    got = got.full_tensor() if isinstance(got, ts.Tensor) else got
    assert got.shape == want.shape
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    tolerance = 1e-5 if want.dtype == np.float32 else 1e-12
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
COMPARE = {"equal": np.equal, "not_equal": np.not_equal, "less": np.less, "less_equal": np.less_equal,
           "greater": np.greater, "greater_equal": np.greater_equal}


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", BINARY)
def test_binary_ops(session, mesh22, rng, name, dtype):
    a, b = sample(rng, SHAPE, dtype), sample(rng, SHAPE, dtype)
    for pa, pb in itertools.product(PLACEMENTS[:4], PLACEMENTS[1:6:2]):
        x, y = session.distribute_tensor(a, mesh22, pa), session.distribute_tensor(b, mesh22, pb)
        close(getattr(ts, name)(x, y), BINARY[name](a, b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(session, mesh22, rng, name, dtype):
    a, b = sample(rng, SHAPE, dtype), sample(rng, SHAPE, dtype)
    x = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    y = session.distribute_tensor(b, mesh22, [R(), S(0)])
    close(getattr(ts, name)(x, y), COMPARE[name](a, b))


@pytest.mark.parametrize("a_dtype, b_dtype", list(itertools.combinations(DTYPES[1:], 2)))
def test_promotion_is_numpys(session, mesh22, rng, a_dtype, b_dtype):
    a, b = sample(rng, SHAPE, a_dtype), sample(rng, SHAPE, b_dtype)
    x, y = session.distribute_tensor(a, mesh22, [S(0), R()]), session.distribute_tensor(b, mesh22, [S(0), R()])
    close(x + y, a + b)
    close(y * x, b * a)


def test_division(session, mesh22, rng):
    for dtype in DTYPES[1:]:
        a, b = sample(rng, SHAPE, dtype), np.abs(sample(rng, SHAPE, dtype)) + 1
        x, y = session.distribute_tensor(a, mesh22, [S(0), R()]), session.distribute_tensor(b.astype(dtype), mesh22, [R(), S(1)])
        close(x / y, (a / b.astype(dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_unary_ops(session, mesh22, rng, dtype):
    a = sample(rng, SHAPE, dtype)
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        close(-x, -a)
        close(ts.relu(x), np.maximum(a, 0).astype(dtype))
        close(ts.exp(x), np.exp(a.astype("float64" if dtype == "int32" else dtype)))
        close(ts.sqrt(x * x), np.sqrt((a * a).astype("float64" if dtype == "int32" else dtype)))


def test_scalars_are_weak_and_numpy_scalars_are_strong(session, mesh4):
    a = np.arange(6, dtype=np.float32)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    for got, want in [(x + 1, a + 1), (2.5 * x, 2.5 * a), (1 - x, 1 - a), (1 / (x + 1), 1 / (a + 1)),
                      (x * np.float64(2), a * np.float64(2)), (np.float64(3) - x, np.float64(3) - a),
                      (x + True, a + True), (x == 3, a == 3), (3 > x, 3 > a)]:
        close(got, want)
    i = session.distribute_tensor(np.arange(6, dtype=np.int32), mesh4, [S(0)])
    assert (i + 1).dtype == np.int32 and (i + np.int64(1)).dtype == np.int64 and (i * 1.5).dtype == np.float64


def test_numpy_arrays_beside_tensors(session, mesh4):
    a, b = np.arange(12.0).reshape(3, 4), np.arange(4.0)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    close(x + b, a + b)
    close(b - x, b - a)
    close(x @ b.reshape(4, 1), a @ b.reshape(4, 1))
    with pytest.raises(TypeError, match="distribute_tensor"):
        x + np.zeros((1 << 18, 4))


def test_broadcasting(session, mesh22, rng):
    for sa, sb in [((5, 7), (7,)), ((5, 1), (1, 7)), ((5, 7), ()), ((3, 1, 7), (5, 1)), ((1,), (5, 7))]:
        a, b = rng.random(sa), rng.random(sb)
        pa = [S(0), R()] if len(sa) else [R(), R()]
        x, y = session.distribute_tensor(a, mesh22, pa), session.distribute_tensor(b, mesh22, [R(), R()])
        close(x + y, a + b)
        close(y * x, b * a)
    with pytest.raises(ts.InvalidArgumentError):
        session.distribute_tensor(np.zeros((2, 3)), mesh22) + session.distribute_tensor(np.zeros((4,)), mesh22)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_reductions(session, mesh22, rng, name, dtype):
    a = sample(rng, SHAPE, dtype)
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        for axis, keepdims in itertools.product([None, 0, 1, -1, (0, 1)], [False, True]):
            want = getattr(np, name)(a, axis=axis, keepdims=keepdims)
            if name == "sum" and dtype == "int32":
                want = np.asarray(want).astype(np.int64)
            close(getattr(ts, name)(x, axis=axis, keepdims=keepdims), np.asarray(want))
        close(getattr(x, name)(), np.asarray(getattr(np, name)(a)).astype(getattr(x, name)().dtype))


def test_sum_of_bool_counts(session, mesh22, rng):
    a = sample(rng, SHAPE, "bool")
    close(ts.sum(session.distribute_tensor(a, mesh22, [S(0), S(1)]), axis=0), a.sum(0))


@pytest.mark.parametrize("name", ["argmin", "argmax"])
def test_arg_reductions_take_the_first(session, mesh22, rng, name):
    a = sample(rng, (6, 9), "float64")
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        for axis in (0, 1, -1, None):
            close(getattr(ts, name)(x, axis=axis), np.asarray(getattr(np, name)(a, axis=axis)))
        close(getattr(ts, name)(x, axis=1, keepdims=True), getattr(np, name)(a, axis=1, keepdims=True))


def test_nan_propagates(session, mesh4):
    a = np.array([1.0, np.nan, 3.0, 2.0, 0.0])
    x = session.distribute_tensor(a, mesh4, [S(0)])
    assert np.isnan(float(ts.max(x))) and np.isnan(float(ts.min(x)))
    assert int(ts.argmax(x)) == 1
    np.testing.assert_array_equal(ts.maximum(x, 2.0).full_tensor(), np.maximum(a, 2.0))
    np.testing.assert_array_equal(ts.relu(x).full_tensor(), [1, np.nan, 3, 2, 0])


@pytest.mark.parametrize("m, k, n", [(5, 7, 3), (1, 1, 1), (8, 0, 4), (0, 3, 2), (2, 64, 2), (16, 16, 16)])
def test_matmul_on_all_placements(session, mesh22, rng, m, k, n):
    a, b = rng.integers(-3, 4, (m, k)).astype("f8"), rng.integers(-3, 4, (k, n)).astype("f8")
    for pa, pb in itertools.product(PLACEMENTS, PLACEMENTS):
        x, y = session.distribute_tensor(a, mesh22, pa), session.distribute_tensor(b, mesh22, pb)
        close(x @ y, a @ b)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_matmul_dtypes(session, mesh4, rng, dtype):
    a, b = sample(rng, (9, 5), dtype), sample(rng, (5, 6), dtype)
    close(session.distribute_tensor(a, mesh4, [S(0)]) @ session.distribute_tensor(b, mesh4, [S(1)]), a @ b)


def test_a_matmul_over_a_shared_sharded_dim_is_partial(session, mesh4, rng):
    a, b = rng.random((6, 8)), rng.random((8, 5))
    c = session.distribute_tensor(a, mesh4, [S(1)]) @ session.distribute_tensor(b, mesh4, [S(0)])
    assert c.placements == (P("sum"),)
    close(c, a @ b)
    terms = [c.to_local(p) for p in range(4)]
    np.testing.assert_allclose(sum(terms), a @ b)


def test_where_and_astype(session, mesh22, rng):
    a, b = sample(rng, SHAPE, "float64"), sample(rng, SHAPE, "float64")
    x, y = session.distribute_tensor(a, mesh22, [S(0), S(1)]), session.distribute_tensor(b, mesh22, [S(1), R()])
    close(ts.where(x > 0, x, y), np.where(a > 0, a, b))
    close(ts.where(x > 0, x, 0.0), np.where(a > 0, a, 0.0))
    for dtype in DTYPES:
        close(x.astype(dtype), a.astype(dtype))
        close(ts.astype(x, np.dtype(dtype)), a.astype(dtype))


def test_views(session, mesh22, rng):
    a = rng.random((6, 8))
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        close(x.T, a.T)
        close(x.T.T, a)
        close(ts.permute_dims(x, (1, 0)), a.T)
        close(x[None], a[None])
        for axis in (1, (0, 2), (-1, 0), (0, -2, 2)):
            close(ts.expand_dims(x, axis=axis), np.expand_dims(a, axis))
        close(x.T @ x, a.T @ a)


def test_expand_dims_refuses_an_axis_that_is_none_or_stands_twice(session, mesh4):
    x = ts.ones((3,), device_mesh=mesh4)
    for axis in ((0, 0), (0, 3), 2, None, "0"):
        with pytest.raises(ts.InvalidArgumentError, match="expand_dims"):
            ts.expand_dims(x, axis=axis)


def test_powers(session, mesh4):
    x = session.distribute_tensor(np.arange(3.0), mesh4)
    for two in (2, 2.0, np.int8(2), np.array([2, 2, 2])):
        assert (x ** two).tolist() == [0, 1, 4]
    assert (x ** x).tolist() == [1, 1, 4] and (2 ** x).tolist() == [1, 2, 4]
    with pytest.raises(TypeError):
        x ** "2"


def test_operators_are_numpys(session, mesh4, rng):
    a, b = rng.integers(-9, 9, (8,)), rng.integers(1, 5, (8,))
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, mesh4, [R()])
    for got, want in [(x // y, a // b), (x % y, a % b), (x & y, a & b), (x | 3, a | 3), (x ^ y, a ^ b), (~x, ~a), (abs(x), abs(a)),
                      (x << y, a << b), (x >> 1, a >> 1), (7 // y, 7 // b), (7 % y, 7 % b)]:
        close(got, want)
    x //= 2
    close(x, a // 2)


@pytest.mark.parametrize("key", [
    np.s_[2], np.s_[-1], np.s_[1:4], np.s_[::2], np.s_[::-1], np.s_[4:1:-2], np.s_[:, 3], np.s_[..., 0], np.s_[None, 1:3],
    np.s_[2:2], np.s_[1:5, ::3], np.s_[:, None, 2:6], np.s_[5, 7], np.s_[...], np.s_[-3:, -2:], np.s_[100:]])
def test_basic_indexing_is_numpys(session, mesh22, rng, key):
    a = rng.random((6, 8))
    for placements in PLACEMENTS:
        close(session.distribute_tensor(a, mesh22, placements)[key], np.asarray(a[key]))


def test_reshape_where_nothing_moves(session, mesh4, rng):
    a = rng.random((8, 6))
    x = session.distribute_tensor(a, mesh4, [S(0)])
    close(x.reshape(8, 2, 3), a.reshape(8, 2, 3))
    close(ts.reshape(x, (8, -1)), a)
    close(session.distribute_tensor(a, mesh4, [R()]).reshape(-1), a.reshape(-1))
    with pytest.raises(ts.InvalidArgumentError):
        x.reshape(7, 7)
    with pytest.raises(ts.InvalidArgumentError):
        x.reshape(-1, -1)


def test_reshape_of_shards_that_cut_nothing(session, mesh22, rng):
    one, a = session.init_device_mesh((1,)), rng.random((5, 1))
    column = session.distribute_tensor(a, one, [S(1)])
    close(column.reshape(5) + 1, a.reshape(5) + 1)
    close(column.T.reshape(-1), a.reshape(-1))
    b = rng.random((2, 6))
    x = session.distribute_tensor(b, mesh22, [S(0), S(1)])
    assert x.reshape(12).placements == (S(0), S(0))
    close(x.reshape(12) * 2, b.reshape(12) * 2)
    close(x.reshape(12).reshape(2, 6), b)
    c = rng.random((7, 13))
    close(session.distribute_tensor(c, mesh22, [S(1), S(0)]).reshape(91), c.reshape(91))


def test_chains_with_everything_in_flight(session, mesh22, rng):
    a = rng.random((20, 20))
    x = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    want = a
    for _ in range(50):
        x = (x * 0.5 + x.T * 0.25).redistribute([S(1), S(0)])
        want = want * 0.5 + want.T * 0.25
    close(x, want)


def test_einsum_and_linalg(session, mesh4, rng):
    a, b = rng.random((4, 6)), rng.random((6, 5))
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, mesh4, [R()])
    close(ts.einsum("mk,kn->mn", x, y), a @ b)
    close(ts.einsum("mk,kn->nm", x, y), (a @ b).T)
    close(ts.linalg.matmul(x, y), a @ b)


def test_any_and_all(session, mesh4):
    a = np.array([[0, 1], [0, 0], [1, 1]])
    x = session.distribute_tensor(a, mesh4, [S(0)])
    close(ts.any(x, axis=1), a.any(1))
    close(ts.all(x, axis=1), a.all(1))
    assert bool(ts.any(x)) and not bool(ts.all(x))


REDUCED = [{}, {"axis": 1}, {"axis": 0, "keepdims": True}]
NUMPYS = {**{name: REDUCED for name in ("sum", "mean", "max", "min", "any", "all", "argmax", "argmin")},
          "squeeze": [{}, {"axis": 1}], "transpose": [{}, {"axes": (1, 0, 2)}]}


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_functions_give_tensors(session, mesh22, rng, name):
    a = sample(rng, (5, 1, 7), "float64")
    x = session.distribute_tensor(a, mesh22, [S(0), R()])
    function = getattr(np, name)
    for arguments in NUMPYS[name]:
        got = function(x, **arguments)
        assert isinstance(got, ts.Tensor)
        close(got, np.asarray(function(a, **arguments)))


def test_numpys_functions_with_more_are_refused(session, mesh4):
    x = ts.ones((4,), device_mesh=mesh4)
    for name in ("sum", "mean", "max", "min", "any", "all"):
        with pytest.raises(TypeError, match=f"{name}: out is ndarray, not a Tensor"):
            getattr(np, name)(x, out=np.zeros(()))
        with pytest.raises(TypeError, match=f"{name}: unexpected arguments spam|unexpected keyword argument 'spam'"):
            getattr(ts, name)(x, spam=np.ones(4, bool))
    with pytest.raises(TypeError, match="argmax: out is ndarray"):
        x.argmax(out=np.zeros(()))
