"""Complex numbers through real workers: what NumPy says of them, in each placement, and what has no meaning for them."""

import itertools
import warnings

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
COMPLEX = [np.dtype("c8"), np.dtype("c16")]
PLACEMENTS = [[R(), R()], [S(0), R()], [R(), S(1)], [S(0), S(1)], [S(1), S(0)], [S(0), S(0)]]
UNARY = {"negative": "negative", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "log2": "log2",
         "log10": "log10", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "arcsin", "acos": "arccos",
         "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "arcsinh", "acosh": "arccosh",
         "atanh": "arctanh", "abs": "abs", "sign": "sign", "square": "square", "reciprocal": "reciprocal",
         "positive": "positive", "round": "round", "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite",
         "real": "real", "imag": "imag", "conj": "conj", "angle": "angle", "exp2": None}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan)


def draw(rng, shape, dtype):
    return (rng.uniform(-2, 2, shape) + 1j * rng.uniform(-2, 2, shape)).astype(dtype)


def whole(rng, shape, dtype):
    """Whole numbers, whose sums and products are exact in every order."""
    return (rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)).astype(dtype)


def close(got, want):
    got, want = got.full_tensor(), np.asarray(want)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    single = got.dtype in (np.dtype("f4"), np.dtype("c8"))
    np.testing.assert_allclose(got, want, rtol=2e-5 if single else 1e-12, atol=2e-5 if single else 1e-12)


def same(got, want):
    got, want = got.full_tensor(), np.asarray(want)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", sorted(UNARY))
def test_functions_of_one_number(session, mesh22, rng, name, dtype):
    a = draw(rng, (5, 6), dtype)
    want = np.power(2, a).astype(dtype) if name == "exp2" else getattr(np, UNARY[name])(a)
    for placements in PLACEMENTS:
        close(getattr(ts, name)(session.distribute_tensor(a, mesh22, placements)), want)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", sorted(set(UNARY) - {"exp2", "reciprocal"}))
def test_special_values(session, mesh22, name, dtype):
    a = np.array([complex(x, y) for x, y in itertools.product(SPECIAL, SPECIAL)], dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = getattr(np, UNARY[name])(a)
    got = getattr(ts, name)(session.distribute_tensor(a, mesh22, [S(0), R()])).full_tensor()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for part in (np.real, np.imag):     # and zeros have their signs
        zero = (part(want) == 0) & (part(got) == 0)
        np.testing.assert_array_equal(np.signbit(part(got))[zero], np.signbit(part(want))[zero])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "equal", "not_equal", "pow"])
def test_functions_of_two_numbers(session, mesh22, rng, name, dtype):
    a, b = draw(rng, (5, 6), dtype), draw(rng, (5, 6), dtype)
    b[1] = a[1]
    oracle = getattr(np, "power" if name == "pow" else name)
    for placements, others in zip(PLACEMENTS, PLACEMENTS[1:] + PLACEMENTS):
        x = session.distribute_tensor(a, mesh22, placements)
        close(getattr(ts, name)(x, session.distribute_tensor(b, mesh22, others)), oracle(a, b))
        close(getattr(ts, name)(x, 0.5 - 1.5j), oracle(a, np.asarray(0.5 - 1.5j, dtype)))
        close(getattr(ts, name)(2.0, x), oracle(np.asarray(2.0, dtype), a))


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_quotients_and_powers_of_special_values(session, mesh22, dtype):
    numbers = np.array([complex(x, y) for x, y in itertools.product((0.0, -1.5, 3.0, np.inf, np.nan), repeat=2)], dtype)
    a, b = (np.ascontiguousarray(x) for x in np.meshgrid(numbers, numbers))
    x, y = (session.distribute_tensor(value, mesh22, [S(0), S(1)]) for value in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for got, want in ((x / y, a / b), (ts.reciprocal(x), 1 / a), (x * y, a * b), (x ** y, a ** b), (x ** 2, a ** 2), (x ** -3, a ** -3.0)):
            np.testing.assert_allclose(got.full_tensor(), want, rtol=2e-6)


def test_dtypes_of_results(session, mesh22):
    tensors = {dtype: session.distribute_tensor(np.ones(3, dtype), mesh22, [S(0), R()])
               for dtype in ("?", "i1", "i4", "i8", "f2", "f4", "f8", "c8", "c16")}
    for a, b in itertools.product(tensors, repeat=2):
        if "c" not in a + b:
            continue
        want = np.result_type(np.dtype(a), np.dtype(b))
        assert (tensors[a] + tensors[b]).dtype == want == ts.result_type(tensors[a], tensors[b]), (a, b)
    for name, x in tensors.items():
        want = "c16" if np.dtype(name).kind in "bi" or name == "f8" else name if "c" in name else "c8"
        assert (x * 1j).dtype == (1j - x).dtype == ts.result_type(x, 1j) == np.dtype(want), name
    assert (tensors["c8"] + 1).dtype == (tensors["c8"] + 2.5).dtype == np.complex64
    assert ts.abs(tensors["c8"]).dtype == ts.real(tensors["c8"]).dtype == ts.angle(tensors["c8"]).dtype == np.float32
    assert ts.complex(tensors["f4"], tensors["f4"]).dtype == np.complex64
    assert ts.complex(tensors["i4"], 2).dtype == np.complex128
    assert ts.can_cast(ts.float32, ts.complex64) and not ts.can_cast(ts.complex64, ts.float64)


def test_what_has_no_order_or_no_complex_meaning_says_so(session, mesh22):
    x = session.distribute_tensor(np.array([1 + 2j, 3, 4j], np.complex64), mesh22, [S(0), R()])
    calls = {
        "less": lambda: x < x, "greater_equal": lambda: x >= 1j, "maximum": lambda: ts.maximum(x, x),
        "minimum": lambda: ts.minimum(x, 1), "floor": lambda: ts.floor(x), "ceil": lambda: ts.ceil(x),
        "trunc": lambda: ts.trunc(x), "floor_divide": lambda: x // 2, "remainder": lambda: x % 2, "relu": lambda: ts.relu(x),
        "max": lambda: ts.max(x), "min": lambda: ts.min(x), "argmax": lambda: ts.argmax(x), "argmin": lambda: ts.argmin(x),
        "sort": lambda: ts.sort(x), "argsort": lambda: ts.argsort(x), "searchsorted": lambda: ts.searchsorted(x, x),
        "cumulative_max": lambda: ts.cumulative_max(x, axis=0), "atan2": lambda: ts.atan2(x, x),
        "hypot": lambda: ts.hypot(x, x), "signbit": lambda: ts.signbit(x), "erf": lambda: ts.erf(x),
        "bitwise_and": lambda: x & x, "astype": lambda: ts.astype(x, ts.float32), "sum": lambda: ts.sum(x, dtype=ts.float64),
        "clip": lambda: ts.clip(x, 0, 1), "complex": lambda: ts.complex(x, x),
        "redistribute": lambda: x.redistribute([R(), R()], dtype=ts.int32),
        "scatter": lambda: ts.scatter(x, session.distribute_tensor(np.arange(3), mesh22, [S(0), R()]), x, mode="max"),
    }
    for name, call in calls.items():
        with pytest.raises(ts.DTypeError, match=rf"^{name}: .*c64"):
            call()
    with pytest.raises(ts.DTypeError, match="arange: .*c64"):
        ts.arange(3, dtype=ts.complex64, device_mesh=mesh22)
    with pytest.raises(ts.DTypeError, match="full: .*doesn't fit dtype f32"):
        ts.full((3,), 1j, dtype=ts.float32, device_mesh=mesh22)
    with pytest.raises(ts.DTypeError, match="complex64 can't become float32"):
        ts.asarray(np.ones(3, np.complex64), dtype=ts.float32, device_mesh=mesh22)
    with pytest.raises(ts.DTypeError, match="P\\(max\\) needs a real dtype"):
        session.from_local(lambda p: np.ones(3, np.complex64), mesh22, [P("max"), R()], shape=(3,))
    with pytest.raises(TypeError):
        float(x[0])
    real = session.distribute_tensor(np.ones(3, np.float32), mesh22, [S(0), R()])
    with pytest.raises(ts.DTypeError):
        real += 1j
    with pytest.raises(ts.DTypeError):
        real[0] = 1j


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_reductions(session, mesh22, rng, dtype):
    a, exact = draw(rng, (7, 9), dtype), whole(rng, (7, 9), dtype)
    for placements in PLACEMENTS:
        x, y = (session.distribute_tensor(value, mesh22, placements) for value in (a, exact))
        for axis in (None, 0, 1, (0, 1)):
            same(ts.sum(y, axis=axis), exact.sum(axis))
            close(ts.mean(x, axis=axis), a.mean(axis))
            close(ts.prod(x[:3, :3], axis=axis), a[:3, :3].prod(axis))
            close(ts.var(x, axis=axis), a.var(axis))
            close(ts.std(x, axis=axis, correction=1), a.std(axis, ddof=1))
            same(ts.any(y == 0, axis=axis), (exact == 0).any(axis))
            same(ts.all(y, axis=axis), exact.all(axis))
            same(ts.count_nonzero(y, axis=axis), np.count_nonzero(exact, axis=axis))
        close(ts.cumulative_sum(x, axis=0), np.cumulative_sum(a, axis=0))
        close(ts.cumulative_prod(x, axis=1), np.cumulative_prod(a, axis=1))
        for ord in (0, 1, 2, 3, np.inf, -np.inf):
            close(ts.linalg.vector_norm(x, axis=1, ord=ord), np.linalg.norm(a, axis=1, ord=ord))
    large = draw(rng, (3, 5000), dtype)
    x = session.distribute_tensor(large, mesh22, [S(0), S(1)])
    single = dtype == np.complex64
    np.testing.assert_allclose(ts.sum(x, axis=1).full_tensor(), large.astype("c16").sum(1), rtol=1e-4 if single else 1e-12)
    np.testing.assert_allclose(ts.sum(x, axis=0).full_tensor(), large.sum(0), rtol=1e-4 if single else 1e-12)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_pending_terms(session, mesh22, rng, dtype):
    terms = whole(rng, (4, 6, 5), dtype)
    for op, want in (("sum", terms.sum(0)), ("avg", terms.mean(0)), ("product", terms.prod(0))):
        x = session.from_local(lambda p: terms[2 * p[0] + p[1]], mesh22, [P(op), P(op)], shape=(6, 5))
        close(x, want)
        for placements in PLACEMENTS:
            close(x.redistribute(placements), want)
            close(x.redistribute(placements, dtype=ts.complex128) if op != "product" else x, want.astype("c16") if op != "product" else want)
        if op == "product":
            continue
        for y, value in ((-x, -want), (ts.conj(x), want.conj()), (x * 2j, want * dtype.type(2j)), (x + x, want + want)):
            assert any(p.is_partial() for p in y.placements)
            close(y, value)
        close(x.real, want.real)
        close(x.imag, want.imag)
        close(ts.abs(x), np.abs(want))
    narrow = session.from_local(lambda p: terms[p[0]].real.astype("f4"), mesh22, [P("sum"), R()], shape=(6, 5))
    close(narrow + session.distribute_tensor(terms[0], mesh22, [S(0), S(1)]), (terms[0].real + terms[1].real).astype("f4") + terms[0])


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_products(session, mesh22, rng, dtype):
    a, b, v = whole(rng, (6, 7), dtype), whole(rng, (7, 5), dtype), whole(rng, 7, dtype)
    for left, right in itertools.product(PLACEMENTS, repeat=2):
        x, y = session.distribute_tensor(a, mesh22, left), session.distribute_tensor(b, mesh22, right)
        same(x @ y, a @ b)
        same(ts.einsum("mk,kn->nm", x, y), (a @ b).T)
    x, y = session.distribute_tensor(a, mesh22, [S(0), S(1)]), session.distribute_tensor(v, mesh22, [R(), S(0)])
    same(x @ y, a @ v)
    same(ts.vecdot(x, y), (a.conj() * v).sum(1))
    same(ts.vecdot(y, y), np.vecdot(v, v))
    same(ts.tensordot(x, y, axes=1), a @ v)
    same(x.T @ x, a.T @ a)
    wide = draw(rng, (130, 300), dtype)
    z = session.distribute_tensor(wide, mesh22, [S(0), S(1)])
    np.testing.assert_allclose((z @ ts.conj(z).T).full_tensor(), wide @ wide.conj().T, atol=1e-2 if dtype == np.complex64 else 1e-9)
    real = rng.integers(-3, 4, (7, 5)).astype("f4")
    same(x @ session.distribute_tensor(real, mesh22, [S(0), R()]), a @ real)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_moves_creation_and_indices(session, mesh22, rng, dtype):
    a = draw(rng, (6, 5, 3), dtype)
    x = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    same(x[1:, ::-2], a[1:, ::-2])
    same(ts.permute_dims(x, (2, 0, 1)).redistribute([S(1), S(0)]), a.transpose(2, 0, 1))
    same(ts.concat([x, x], axis=1), np.concatenate([a, a], axis=1))
    same(ts.roll(x, 2, axis=0), np.roll(a, 2, axis=0))
    same(ts.flip(x, axis=1), np.flip(a, axis=1))
    same(ts.tril(x), np.tril(a))
    same(ts.linalg.diagonal(x), np.diagonal(a, axis1=1, axis2=2))
    same(ts.take(x, [4, -1, 0], axis=0), a[[4, -1, 0]])
    same(ts.where(x == a[0, 0, 0], x, 0), np.where(a == a[0, 0, 0], a, 0))
    same(ts.pad(x, 1, constant_values=2 - 1j), np.pad(a, 1, constant_values=dtype.type(2 - 1j)))
    y = x + 0
    y[2] = 3 - 1j
    want = a.copy()
    want[2] = 3 - 1j
    same(y, want)
    y[want == a[0, 0, 0]] = 7j
    want[want == a[0, 0, 0]] = 7j
    same(y, want)
    y *= 2
    want *= 2
    same(y, want)
    options = {"dtype": dtype, "device_mesh": mesh22, "placements": [S(0), S(1)]}
    same(ts.full((4, 5), 2 - 3j, **options), np.full((4, 5), 2 - 3j, dtype))
    same(ts.zeros((4, 5), **options), np.zeros((4, 5), dtype))
    same(ts.ones((4, 5), **options), np.ones((4, 5), dtype))
    same(ts.eye(4, 5, **options), np.eye(4, 5, dtype=dtype))
    same(ts.full((3,), 1j, device_mesh=mesh22), np.full(3, 1j))
    close(ts.linspace(1j, 2 + 3j, 7, device_mesh=mesh22), np.linspace(1j, 2 + 3j, 7))


@pytest.mark.parametrize("source, wanted", [("f4", "c8"), ("i2", "c8"), ("f4", "c16"), ("c8", "c16"), ("c16", "c8"), ("c8", "?")])
def test_conversions_on_the_way(session, mesh22, rng, source, wanted):
    a = rng.integers(-3, 4, (300, 7)).astype(source)
    for placements, others in itertools.product(PLACEMENTS, repeat=2):
        x = session.distribute_tensor(a, mesh22, placements)
        same(x.redistribute(others, dtype=np.dtype(wanted)), a.astype(wanted))


def test_values_come_and_go(session, mesh22):
    for value in ([1, 2j], [[1 + 2j, 3.5], [True, -1j]], 3 - 4j, np.complex64(1 + 1j), np.array([1 + 2j], ">c8")):
        array = np.asarray(value)
        got = ts.asarray(value, device_mesh=mesh22)
        assert got.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(got.full_tensor(), array)
    x = ts.asarray([3 - 4j], device_mesh=mesh22)
    assert complex(x) == x.item() == 3 - 4j and bool(x) and x.tolist() == [3 - 4j]
    assert repr(x).startswith("Tensor(c128[1]") and "3.-4.j" in str(x)
    assert (abs(x).item(), x.real.item(), x.imag.item(), x.conj().item()) == (5, 3, -4, 3 + 4j)
    n = ts.asarray([1, 2], device_mesh=mesh22)
    assert n.imag.tolist() == [0, 0] and n.real.tolist() == ts.conj(n).tolist() == [1, 2]
    for source, wanted in itertools.product(("?", "i4", "u8", "f2", "f4", "f8", "c8", "c16"), ("c8", "c16", "?")):
        a = np.array([0, 1, 2, 3]).astype(source)
        same(ts.astype(session.distribute_tensor(a, mesh22, [S(0), R()]), np.dtype(wanted)), a.astype(wanted))
    tiny = np.array([1e300 + 1e-300j, 2j], np.complex128)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(ts.astype(session.distribute_tensor(tiny, mesh22, [S(0), R()]), ts.complex64), tiny.astype("c8"))
    info = ts.__array_namespace_info__()
    assert set(info.dtypes(kind="complex floating")) == {"complex64", "complex128"}
    assert ts.isdtype(ts.complex64, "complex floating") and not ts.isdtype(ts.complex64, "real floating")
    assert ts.finfo(ts.complex64).bits == 32 and ts.finfo(ts.complex128).dtype == np.float64
