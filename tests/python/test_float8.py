"""Floats of 8 bits: made, moved, cast and multiplied, with ml_dtypes' numbers; every other op says what to do instead."""

import ml_dtypes
import numpy as np
import pytest
import tessera as ts

FLOAT8 = (ts.float8_e4m3fn, ts.float8_e5m2)
PLACEMENTS = ([ts.Replicate()], [ts.Shard(0)], [ts.Shard(1)])


def numbers(dtype, shape, seed=0):
    return np.random.default_rng(seed).normal(0, 4, shape).astype(dtype)


def same_bits(tensor, array):
    got = tensor.full_tensor()
    assert got.dtype == array.dtype and np.array_equal(got.view(np.uint8), array.view(np.uint8))


def test_names():
    assert ts.float8_e4m3fn == np.dtype(ml_dtypes.float8_e4m3fn) and ts.float8_e5m2 == np.dtype(ml_dtypes.float8_e5m2)
    assert ts.isdtype(ts.float8_e5m2, "real floating") and ts.finfo(ts.float8_e4m3fn).max == 448


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_arrays_come_and_go_as_they_are(mesh4, dtype):
    every = np.arange(256, dtype=np.uint8).view(dtype).reshape(16, 16)
    for placements in PLACEMENTS:
        x = ts.distribute_tensor(every, mesh4, placements)
        assert x.dtype == dtype and x.nbytes == 256
        same_bits(x, every)
        for other in PLACEMENTS:
            same_bits(x.redistribute(placements=other), every)
    assert ts.zeros((3,), dtype="f8e4m3", device_mesh=mesh4).tolist() == [0, 0, 0]
    assert ts.full((2,), 0.1, dtype=dtype, device_mesh=mesh4).tolist() == [float(np.array(0.1, dtype))] * 2


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_casts_are_those_of_ml_dtypes(mesh4, dtype):
    f32 = np.concatenate([np.random.default_rng(1).normal(0, 100, 1000), [464, 465, 1e9, 0.0, -0.0, 2.0**-9, 2.0**-17]]).astype(np.float32)
    with np.errstate(invalid="ignore"):
        want = f32.astype(dtype)
    x = ts.distribute_tensor(f32, mesh4, [ts.Shard(0)]).astype(dtype)
    is_number = ~np.isnan(want.astype(np.float32))
    assert np.array_equal(x.full_tensor().view(np.uint8)[is_number], want.view(np.uint8)[is_number])
    assert np.array_equal(x.astype(ts.float32).full_tensor(), want.astype(np.float32), equal_nan=True)
    for other in (np.float16, ts.bfloat16, np.float64):
        assert np.array_equal(x.astype(other).full_tensor().astype(np.float64), want.astype(np.float64), equal_nan=True)
    assert ts.asarray([0, 1, 17, 19, -300], device_mesh=mesh4).astype(dtype).tolist() == np.array([0, 1, 17, 19, -300]).astype(dtype).tolist()
    # Conversion and arithmetic are one map.
    y = (x[:1000].astype(ts.float32) * 2 + 1).astype(ts.bfloat16)
    assert np.array_equal(y.full_tensor(), (want[:1000].astype(np.float32) * 2 + 1).astype(ts.bfloat16))


@pytest.mark.parametrize("left", FLOAT8, ids=str)
@pytest.mark.parametrize("right", FLOAT8, ids=str)
def test_products_are_f32_of_every_placement(mesh4, left, right):
    # Multiples of 1/4: f32 has every sum exactly, so the order in which shards are added up doesn't matter.
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) / 4 for shape in ((12, 40), (40, 20)))
    for of_a in PLACEMENTS:
        for of_b in PLACEMENTS:
            x = ts.distribute_tensor(a.astype(left), mesh4, of_a)
            y = ts.distribute_tensor(b.astype(right), mesh4, of_b)
            assert np.array_equal((x @ y).full_tensor(), a @ b) and (x @ y).dtype == np.float32
    assert np.array_equal(ts.einsum("ik,jk->ij", x, y.T).full_tensor(), a @ b)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_moves(mesh4, dtype):
    a = numbers(dtype, (9, 6))
    x = ts.distribute_tensor(a, mesh4, [ts.Shard(0)])
    same_bits(x.T, a.T.copy())
    same_bits(x[2:7, ::2], a[2:7, ::2].copy())
    same_bits(x.reshape(3, 18), a.reshape(3, 18))
    same_bits(ts.concat([x, x[:2]]), np.concatenate([a, a[:2]]))
    same_bits(ts.stack([x, x], axis=1), np.stack([a, a], axis=1))
    same_bits(ts.take(x, ts.asarray([8, 0, 3], device_mesh=mesh4), axis=0), a[[8, 0, 3]])
    same_bits(x[np.arange(9) % 2 == 0], a[::2].copy())
    same_bits(ts.roll(x, 2, axis=0), np.roll(a, 2, axis=0))
    x[1:3] = ts.distribute_tensor(a[5:7], mesh4, [ts.Replicate()])
    a[1:3] = a[5:7]
    same_bits(x, a)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_other_ops_name_the_dtype_and_the_cast(mesh4, dtype):
    x = ts.zeros((4, 4), dtype=dtype, device_mesh=mesh4)
    for call in (lambda: x + x, lambda: x * 2, lambda: ts.exp(x), lambda: x.sum(), lambda: ts.sort(x), lambda: x == x,
                 lambda: ts.linalg.inv(x), lambda: ts.cumulative_sum(x, axis=0), lambda: ts.argmax(x)):
        with pytest.raises(ts.DTypeError, match="cast by astype before or behind"):
            call()
    with pytest.raises(ts.DTypeError, match="have no common dtype"):
        x @ ts.zeros((4, 4), dtype=ts.float32, device_mesh=mesh4)
    with pytest.raises(ts.DTypeError, match="isn't added up"):
        ts.from_local([np.zeros((4, 4), dtype)] * 4, mesh4, [ts.Partial()])
