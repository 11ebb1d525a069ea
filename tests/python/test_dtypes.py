"""Every dtype through real workers: what NumPy says of it (ml_dtypes for bf16), in each placement."""

import itertools
import operator

import ml_dtypes
import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
BF16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
FLOATS = [np.dtype("f2"), BF16, np.dtype("f4"), np.dtype("f8")]
NUMBERS = INTEGERS + FLOATS
EVERY = [np.dtype(bool)] + NUMBERS


def is_float(dtype):
    return dtype in FLOATS


def small(rng, shape, dtype):
    """Whole numbers that every dtype has, and their sums and products."""
    return rng.integers(0, 4, shape).astype(dtype)


def exact(values):
    return np.asarray(values).astype("f8")


def assert_same(got, want):
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    np.testing.assert_array_equal(exact(got), exact(want))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_values_move_as_they_are(session, mesh22, rng, dtype):
    """Bit by bit: every placement to every other, a view, and a slice of bytes that lie at odd places."""
    values = np.frombuffer(rng.bytes(7 * 5 * 3 * dtype.itemsize), dtype).reshape(7, 5, 3)
    if dtype.kind == "b":
        values = values.view("u1") % 2 == 1
    bits = f"u{dtype.itemsize}"
    plain = [R(), S(0), S(1), S(2)]
    for source, destination in zip(itertools.product(plain, repeat=2), itertools.islice(itertools.cycle(itertools.product(plain[::-1], repeat=2)), 16)):
        x = session.distribute_tensor(values, mesh22, list(source))
        assert x.dtype == dtype and x.nbytes == values.nbytes
        for y, want in ((x.redistribute(list(destination)), values), (x[1:, ::-2].redistribute(list(destination)), values[1:, ::-2]),
                        (ts.permute_dims(x, (2, 0, 1)).redistribute(list(destination)), values.transpose(2, 0, 1))):
            got = y.full_tensor()
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.view(bits), np.ascontiguousarray(want).view(bits))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_pending_terms_are_reduced(session, mesh22, rng, dtype):
    terms = rng.integers(1, 4, (4, 6, 5)).astype(dtype)
    for op, reduce in (("sum", np.add), ("max", np.maximum), ("min", np.minimum), ("product", np.multiply)):
        x = session.from_local(lambda p: terms[2 * p[0] + p[1]], mesh22, [P(op), P(op)], shape=(6, 5))
        want = reduce.reduce(exact(terms)).astype(dtype)
        for destination in ([R(), R()], [S(0), S(1)], [S(1), R()]):
            assert_same(x.redistribute(destination).full_tensor(), want)
    if is_float(dtype):
        x = session.from_local(lambda p: terms[2 * p[0] + p[1]], mesh22, [P("avg"), P("avg")], shape=(6, 5))
        np.testing.assert_allclose(exact(x.full_tensor()), exact(terms).mean(0), rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_sixteen_bits_are_added_up_in_more(session, mesh4, dtype):
    """Ones beside a number whose neighbours are further apart than one: added one by one they would be lost."""
    large = 2048 if dtype != BF16 else 256
    terms = [large, 1, 1, 2]
    x = session.from_local(lambda p: np.full((64,), terms[p[0]], dtype), mesh4, [P()], shape=(64,))
    assert_same(x.redistribute([S(0)]).full_tensor(), np.full(64, large + 4).astype(dtype))
    values = np.ones(1 << 16, dtype)
    row = session.distribute_tensor(values, mesh4, [R()])
    assert ts.sum(row).item() == (np.inf if dtype != BF16 else 65536) and ts.mean(row).item() == 1
    assert ts.mean(session.distribute_tensor(values, mesh4, [S(0)])).item() == 1
    ones, column = row.redistribute([S(0)]), session.distribute_tensor(values[: 1 << 12], mesh4, [S(0)])
    assert ts.vecdot(column, column).full_tensor() == 4096
    assert (ones[:1000] + 0).dtype == dtype


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_arithmetic_is_numpys(session, mesh4, rng, dtype):
    a, b = small(rng, (9, 7), dtype), small(rng, (9, 7), dtype) + dtype.type(1)
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, mesh4, [S(1)])
    for ours, theirs in ((x + y, a + b), (x * y, a * b), (ts.maximum(x, y), np.maximum(a, b)), (ts.minimum(x, y), np.minimum(a, b)),
                         (y - x, b - a), (x * 2, a * dtype.type(2)), (ts.where(x < y, x, y), np.where(a < b, a, b)), (-x, -a),
                         (ts.sum(x), None), (ts.max(x, axis=1), a.max(1)), (ts.min(x, axis=0), a.min(0))):
        got = ours.full_tensor()
        if theirs is None:
            assert exact(got) == exact(a).sum() and got.dtype == (dtype if is_float(dtype) else np.sum(a).dtype)
        else:
            assert_same(got, theirs)
    for ours, theirs in ((x == y, a == b), (x < y, a < b), (x >= y, a >= b)):
        np.testing.assert_array_equal(ours.full_tensor(), theirs)
    np.testing.assert_array_equal(ts.argmax(x, axis=0).full_tensor(), exact(a).argmax(0))
    np.testing.assert_allclose(exact((x / y).full_tensor()), exact(a) / exact(b), rtol=1e-2)
    if is_float(dtype):
        assert_same(ts.sqrt(x * x).full_tensor(), a)
        np.testing.assert_allclose(exact(ts.exp(x).full_tensor()), np.exp(exact(a)), rtol=1e-2)
    else:
        wide = np.iinfo(dtype).max
        assert_same((session.distribute_tensor(np.array([wide], dtype), mesh4, [R()]) + 1).full_tensor(),
                    np.array([wide], dtype) + dtype.type(1))
    assert x[2, 1].item() == a[2, 1].item() and x.tolist() == a.tolist()


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_products_are_numpys(session, mesh4, rng, dtype):
    a, b = small(rng, (13, 8), dtype), small(rng, (8, 11), dtype)
    want = (exact(a) @ exact(b)).astype(dtype)
    for left, right in itertools.product([[S(0)], [S(1)], [R()]], repeat=2):
        x, y = session.distribute_tensor(a, mesh4, left), session.distribute_tensor(b, mesh4, right)
        assert_same((x @ y).full_tensor(), want)
    assert_same(ts.einsum("ij,jk->ki", x, y).full_tensor(), want.T)


def test_every_dtype_becomes_every_other(session, mesh4, rng):
    for source, destination in itertools.product(EVERY, repeat=2):
        values = small(rng, (9, 5), source)
        x = session.distribute_tensor(values, mesh4, [S(0)])
        assert_same(x.astype(destination).full_tensor(), values.astype(destination))
        assert_same(x.redistribute([S(1)], dtype=destination).full_tensor(), values.astype(destination))


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_rounding_is_numpys(session, mesh4, rng, dtype):
    values = (rng.standard_normal(4096) * 10.0 ** rng.integers(-9, 5, 4096)).astype("f4")
    x = session.distribute_tensor(values, mesh4, [S(0)])
    np.testing.assert_array_equal(x.astype(dtype).full_tensor().view("u2"), values.astype(dtype).view("u2"))
    a, b = values[:2048].astype(dtype), values[2048:].astype(dtype)
    with np.errstate(all="ignore"):
        for ours, theirs in ((x.astype(dtype)[:2048] + x.astype(dtype)[2048:], a + b), (x.astype(dtype)[:2048] * x.astype(dtype)[2048:], a * b)):
            np.testing.assert_array_equal(exact(ours.full_tensor()), exact(theirs))


def test_what_promotes_to_what_is_numpys(session, mesh4):
    ones = {dtype: session.distribute_tensor(np.ones(3, dtype), mesh4, [R()]) for dtype in EVERY}
    for a, b in itertools.product(EVERY, repeat=2):
        if a.kind == b.kind == "b":
            continue    # no numbers
        if {a, b} == {np.dtype("f2"), BF16}:
            continue    # NumPy has none
        if BF16 in (a, b) and a != b:
            continue    # ml_dtypes promotes integers in its own way
        assert (ones[a] + ones[b]).dtype == np.result_type(a, b), (a, b)
    assert (ones[np.dtype("f2")] + ones[BF16]).dtype == np.float32
    for exact in (ts.equal, ts.less, ts.bitwise_and):       # f64 would be wrong beyond 2^53
        with pytest.raises(ts.DTypeError, match="i64 and u64"):
            exact(ones[np.dtype("i8")], ones[np.dtype("u8")])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_tensors_are_made(session, mesh4, dtype):
    for make, want in ((lambda **o: ts.zeros((5, 3), **o), np.zeros((5, 3))), (lambda **o: ts.full((5,), 7, **o), np.full(5, 7)),
                       (lambda **o: ts.arange(2, 14, 3, **o), np.arange(2, 14, 3)), (lambda **o: ts.eye(4, 6, **o), np.eye(4, 6))):
        x = make(dtype=dtype, device_mesh=mesh4, placements=[S(0)])
        assert_same(x.full_tensor(), want.astype(dtype))
    assert ts.ones_like(x).dtype == dtype
    assert ts.asarray([1, 2, 3], dtype=dtype, device_mesh=mesh4).dtype == dtype


def test_numbers_of_64_bits_without_sign(session, mesh4):
    large = 2**64 - 1
    x = ts.full((3,), np.uint64(large), dtype="uint64", device_mesh=mesh4)
    assert x.tolist() == [large] * 3 == ts.full((3,), large, dtype="uint64", device_mesh=mesh4).tolist()
    assert (x == large).full_tensor().all() and (x - np.uint64(2**63)).tolist() == [2**63 - 1] * 3
    assert ts.einsum("ij,kj->", *[ts.ones((3, 3), dtype="uint8", device_mesh=mesh4)] * 2).dtype == np.uint8
    with pytest.raises(ts.DTypeError, match="does not fit 64 bits"):
        x + 2**64


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_where_they_are_reduced_and_not_before(session, mesh4, dtype):
    """Lazy or not: the value is what it is when everything lies at one worker."""
    limits = np.iinfo(dtype)
    for values in (np.array([3], dtype), np.array([limits.max, 5, limits.min], dtype)):
        x = session.distribute_tensor(values, mesh4, [S(0)])
        for op, want in ((ts.min, values.min()), (ts.max, values.max())):
            with np.errstate(over="ignore"):
                assert_same((op(x) + 2).full_tensor(), np.asarray(want + dtype.type(2)))
                assert_same((op(x) - 2).full_tensor(), np.asarray(want - dtype.type(2)))
            assert_same(op(x).astype("int64").full_tensor(), np.asarray(want).astype("int64"))
    terms = [limits.max, limits.max, 3, 1]
    total = np.array(terms, dtype).sum(dtype=dtype)
    pending = session.from_local(lambda p: np.full((2,), terms[p[0]], dtype), mesh4, [P()], shape=(2,))
    assert_same(pending.astype("float64").full_tensor(), np.full(2, total).astype("f8"))
    assert ts.sum(pending).item() == 2 * int(total) and ts.mean(pending).item() == float(total)
    assert ((pending * 1.0).full_tensor() == float(total)).all() and ((pending / 2).full_tensor() == float(total) / 2).all()


@pytest.mark.parametrize("terms", [[1.0, 0.0], [1.0, -2.0], [0.0, 0.0]], ids=str)
def test_a_pending_sum_is_scaled_as_its_value_is(session, mesh4, terms):
    values = np.array(terms)
    x = session.distribute_tensor(values, mesh4, [S(0)])
    with np.errstate(all="ignore"):
        for number in (3.0, 0.0, 0, 2, np.inf, -np.inf, np.nan):
            np.testing.assert_array_equal((ts.sum(x) / number).full_tensor(), values.sum() / np.float64(number))
            np.testing.assert_array_equal((ts.sum(x) * number).full_tensor(), values.sum() * number)
    assert (ts.sum(x) / 3.0).placements[0].is_partial()


@pytest.mark.parametrize("dtype", [np.dtype(bool)] + INTEGERS, ids=str)
def test_integers_are_compared_with_numbers_of_any_size(session, mesh4, dtype):
    limits = np.iinfo(dtype) if dtype.kind != "b" else np.iinfo("u1")
    values = np.array([int(limits.min), 0, 1, int(limits.max)], dtype)
    x = session.distribute_tensor(values, mesh4, [S(0)])
    numbers = [-2**63, -2**31 - 1, -129, -1, 0, 1, 255, 300, 2**16, 2**32, 2**63 - 1, 2**63, 2**64 - 1, limits.min, limits.max]
    for number in map(int, numbers):
        for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
            want = [op(int(value), number) for value in values]     # Python's integers are never too large
            assert op(x, number).tolist() == want, (op, number)
            assert op(number, x).tolist() == [op(number, int(value)) for value in values], (op, number)
        assert (number in x) == (number in values.tolist())
    assert ts.less(-1, x).tolist() == [-1 < int(value) for value in values]


def test_a_number_that_does_not_fit_is_refused(session, mesh4):
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        x = ts.zeros((3,), dtype=dtype, device_mesh=mesh4)
        assert (x + int(min(limits.max, 2**63 - 1))).dtype == dtype
        if limits.max < 2**63 - 1:
            with pytest.raises(ts.DTypeError, match="doesn't fit dtype"):
                x + (int(limits.max) + 1)
            with pytest.raises(ts.DTypeError, match="doesn't fit dtype"):
                ts.full((3,), int(limits.max) + 1, dtype=dtype, device_mesh=mesh4)
        if limits.min == 0:
            with pytest.raises(ts.DTypeError, match="doesn't fit dtype"):
                x + -1


def adversarial_integers():
    """Around the middles between neighbours of 16 bits, where a double can't tell on which side they lie."""
    for exponent in range(8, 64):
        for step in (exponent - 8, exponent - 11):
            for odd in (1, 3, 5):
                middle = (1 << exponent) + (odd << step) if step >= 0 else 1 << exponent
                yield from (middle - 1, middle, middle + 1)


def half_of(integer, bits, largest):
    """The integer rounded once, to nearest, ties to even, to so many significant bits."""
    magnitude = abs(integer)
    drop = max(0, magnitude.bit_length() - bits)
    kept, rest = magnitude >> drop, magnitude & ((1 << drop) - 1)
    half = 1 << drop >> 1
    kept += 1 if drop and (rest > half or (rest == half and kept & 1)) else 0
    value = float(kept << drop)
    return np.copysign(value if value <= largest else np.inf, integer)


@pytest.mark.parametrize("dtype, bits, largest", [("bfloat16", 8, 3.4e38), ("float16", 11, 65504.0)])
def test_integers_are_rounded_once_to_16_bits(session, mesh4, dtype, bits, largest):
    wide = sorted(set(adversarial_integers()))
    for source, values in (("uint64", wide), ("int64", [v for v in wide if v < 2**63] + [-v for v in wide if v <= 2**63])):
        want = np.array([half_of(v, bits, largest) for v in values])
        array = np.array(values, source)
        x = session.distribute_tensor(array, mesh4, [S(0)])
        np.testing.assert_array_equal(np.asarray(x.astype(dtype)).astype("f8"), want)
        np.testing.assert_array_equal(np.asarray(ts.asarray(array, dtype=dtype, device_mesh=mesh4)).astype("f8"), want)
        alike = [v for v in values if v < 2**63]    # NumPy makes floats of a list of both
        np.testing.assert_array_equal(np.asarray(ts.asarray(alike, dtype=dtype, device_mesh=mesh4)).astype("f8"), want[:len(alike)])
    for value in wide[::7]:
        got = ts.full((1,), value, dtype=dtype, device_mesh=mesh4).full_tensor()
        assert float(got[0]) == half_of(value, bits, largest)


def test_asarray_converts_as_astype_does(session, mesh4):
    floats = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e300, -1e300, 2.0**63, -2.0**63, -1.5, 255.9, 0.1, 65520, 1 + 2**-11 + 2**-40])
    for source in ("float64", "float32", "float16", "bfloat16"):
        with np.errstate(all="ignore"):
            array = floats.astype(ts.bfloat16 if source == "bfloat16" else source)
        x = session.distribute_tensor(array, mesh4, [R()])
        for dtype in ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"):
            with np.errstate(all="ignore"):
                got, want = (np.asarray(y).astype("f8") for y in (ts.asarray(array, dtype=dtype, device_mesh=mesh4), x.astype(dtype)))
            np.testing.assert_array_equal(got, want, err_msg=f"{source} to {dtype}")
    assert ts.asarray([np.nan, 1e300, -1e300], dtype="int32", device_mesh=mesh4).tolist() == [0, 2**31 - 1, -(2**31)]


def test_astype_without_a_copy_gives_the_tensor_itself(session, mesh4):
    x = ts.ones(3, device_mesh=mesh4)
    assert ts.astype(x, ts.float64, copy=False) is x
    copied = ts.astype(x, ts.float64)
    x[0] = 5
    assert copied is not x and copied.tolist() == [1, 1, 1]
    assert ts.astype(x, ts.float32, copy=False).dtype == np.float32
    pair = session.init_device_mesh((2,))
    moved = ts.astype(x, ts.int32, device=pair)
    assert moved.device == pair and moved.dtype == np.int32 and moved.tolist() == [5, 1, 1]


def test_isdtype_takes_its_arguments_by_name():
    assert ts.isdtype(dtype=ts.float32, kind="real floating") and not ts.isdtype(ts.int8, kind=("bool", ts.int16))
