"""Creation functions and random numbers."""

import numpy as np
import pytest

import tessera as ts

S, R = ts.Shard, ts.Replicate
PLACEMENTS = [[S(0), R()], [S(0), S(1)], [S(1), S(0)], [R(), R()], [S(0), S(0)]]


def test_fills(session, mesh22):
    for p in PLACEMENTS:
        for got, want in [
                (ts.zeros((5, 7), device_mesh=mesh22, placements=p), np.zeros((5, 7))),
                (ts.ones((5, 7), dtype="i32", device_mesh=mesh22, placements=p), np.ones((5, 7), "i4")),
                (ts.full((5, 7), 2.5, device_mesh=mesh22, placements=p), np.full((5, 7), 2.5)),
                (ts.full((5, 7), 3, device_mesh=mesh22, placements=p), np.full((5, 7), 3)),
                (ts.full((5, 7), True, device_mesh=mesh22, placements=p), np.full((5, 7), True)),
                (ts.eye(5, 7, device_mesh=mesh22, placements=p), np.eye(5, 7)),
                (ts.eye(5, 7, k=-2, dtype="f32", device_mesh=mesh22, placements=p), np.eye(5, 7, k=-2, dtype="f4"))]:
            assert got.placements == tuple(p) and got.dtype == want.dtype
            np.testing.assert_array_equal(got.full_tensor(), want)


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (2, 20, 3), (10, 0, -3), (0,), (5, 2), (0.0, 1.0, 0.25), (1, 2.5)])
def test_arange(session, mesh4, arguments):
    got = ts.arange(*arguments, device_mesh=mesh4, placements=[S(0)])
    want = np.arange(*arguments)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.full_tensor(), want)


@pytest.mark.parametrize("arguments, options", [((0, 1, 5), {}), ((2, -3, 7), {}), ((0, 1, 4), {"endpoint": False}),
                                                ((1, 1, 1), {}), ((0, 1, 0), {}), ((0, 10, 3), {"dtype": "float32"}),
                                                ((-1.5, 1.5, 4), {"dtype": int}), ((3, -2, 7), {"dtype": "int8"}),
                                                ((-4, 3, 8), {"dtype": "int32"})])
def test_linspace(session, mesh4, arguments, options):
    got = ts.linspace(*arguments, device_mesh=mesh4, **options).full_tensor()
    np.testing.assert_allclose(got, np.linspace(*arguments, **options), rtol=1e-14)


def test_placement_is_automatic(session, mesh22):
    assert ts.zeros((100, 100), device_mesh=mesh22).placements == (R(), R())
    assert ts.zeros((1000, 500), device_mesh=mesh22).placements == (S(0), S(0))
    assert ts.asarray(np.zeros((10, 50000)), device_mesh=mesh22).placements == (S(1), S(1))
    assert ts.zeros((1000, 500), device_mesh=mesh22, placements="auto").placements == (S(0), S(0))


def test_like_takes_after(session, mesh22):
    x = ts.ones((5, 7), dtype="f32", device_mesh=mesh22, placements=[S(0), S(1)])
    for y in (ts.zeros_like(x), ts.ones_like(x), ts.full_like(x, 3), ts.empty_like(x)):
        assert (y.shape, y.dtype, y.placements, y.device_mesh) == (x.shape, x.dtype, x.placements, mesh22)
    assert ts.zeros_like(x.sum(axis=0)).placements is not None
    assert ts.zeros_like(x, dtype="i64").dtype == np.int64


def test_asarray(session, mesh4):
    with session:
        for value in (3, 2.5, True, [1, 2], [[1.5]], np.float32(2), np.arange(4)):
            got = ts.asarray(value)
            assert got.dtype == np.asarray(value).dtype
            np.testing.assert_array_equal(got.full_tensor(), np.asarray(value))
        assert ts.asarray([1, 2], dtype="float32").dtype == np.float32


def test_random_numbers_are_the_same_on_every_mesh(session, mesh4, mesh22):
    draws = []
    for mesh, p in [(mesh4, [S(0)]), (mesh4, [S(1)]), (mesh4, [R()]), (mesh22, [S(0), S(1)]), (mesh22, [S(1), S(1)])]:
        ts.manual_seed(42)
        draws.append([ts.rand(9, 11, dtype=d, device_mesh=mesh, placements=p).full_tensor() for d in ("f32", "f64")])
    for f32, f64 in draws[1:]:
        np.testing.assert_array_equal(f32, draws[0][0])
        np.testing.assert_array_equal(f64, draws[0][1])


def test_random_numbers_look_random(session, mesh4):
    ts.manual_seed(1)
    x = ts.rand((200, 500), device_mesh=mesh4, placements=[S(0)]).full_tensor()
    y = ts.rand((200, 500), device_mesh=mesh4, placements=[S(0)]).full_tensor()
    assert 0 <= x.min() and x.max() < 1 and abs(x.mean() - 0.5) < 0.01 and abs(x.var() - 1 / 12) < 0.01
    assert abs(np.corrcoef(x.ravel(), y.ravel())[0, 1]) < 0.02 and len(np.unique(x)) > 99000
    ts.manual_seed(2)
    assert not np.array_equal(x, ts.rand(200, 500, device_mesh=mesh4).full_tensor())


def test_random_integers(session, mesh4):
    x = ts.randint(-3, 4, (1000,), device_mesh=mesh4).full_tensor()
    assert set(x) == set(range(-3, 4)) and x.dtype == np.int64


@pytest.mark.parametrize("low, high, dtype", [
    (0, 300, "int8"), (-200, 3, "int8"), (-5, 3, "uint8"), (0, 257, "uint8"), (0, 3, "bool"), (-1, 1, "bool"), (-1, 3, "uint64"),
    (0, 2**31 + 1, "int32")])
def test_random_integers_are_those_that_the_dtype_has(session, mesh4, low, high, dtype):
    with pytest.raises(ValueError) as numpys:
        np.random.randint(low, high, 3, dtype)
    with pytest.raises(ts.InvalidArgumentError, match=f"^randint: {numpys.value}"):
        ts.randint(low, high, (3,), dtype=dtype, device_mesh=mesh4)


@pytest.mark.parametrize("low, high, dtype", [(-128, 128, "int8"), (0, 256, "uint8"), (0, 2, "bool"), (-2**31, 2**31, "int32")])
def test_random_integers_may_be_all_of_a_dtype(session, mesh4, low, high, dtype):
    x = ts.randint(low, high, (5000,), dtype=dtype, device_mesh=mesh4).full_tensor()
    assert x.dtype == dtype and (high - low > 256 or set(x.tolist()) == set(range(low, high)))


@pytest.mark.parametrize("make", [
    lambda m: ts.zeros((-1,), device_mesh=m), lambda m: ts.zeros((2**62, 4), device_mesh=m),
    lambda m: ts.zeros((2**63,), device_mesh=m), lambda m: ts.zeros((2**31, 2**31, 2**31), device_mesh=m),
    lambda m: ts.zeros("ab", device_mesh=m), lambda m: ts.zeros((1.5,), device_mesh=m),
    lambda m: ts.zeros((2,), dtype="f7", device_mesh=m), lambda m: ts.zeros((2,), dtype=object, device_mesh=m),
    lambda m: ts.arange(0, 5, 0, device_mesh=m), lambda m: ts.arange(float("nan"), device_mesh=m),
    lambda m: ts.eye(-1, device_mesh=m), lambda m: ts.full((2,), "x", device_mesh=m), lambda m: ts.zeros((1,) * 17, device_mesh=m),
    lambda m: ts.asarray(["a"], device_mesh=m), lambda m: ts.asarray([[1], [1, 2]], device_mesh=m),
    lambda m: ts.asarray([1 + 2j], dtype="f4", device_mesh=m), lambda m: ts.linspace(0, 1, -1, device_mesh=m)])
def test_bad_requests_are_refused_at_once(session, mesh4, make):
    with pytest.raises(ts.TesseraError):
        make(mesh4)


MASKED = np.ma.array([1.0, 2.0, 3.0, 4.0], mask=[False, True, False, False])


@pytest.mark.parametrize("make", [
    lambda mesh, x: ts.asarray(MASKED, device_mesh=mesh),
    lambda mesh, x: ts.asarray(np.ma.array([1.0, 2.0]), device_mesh=mesh),     # nothing is masked, and the kind still says it may be
    lambda mesh, x: ts.asarray(np.ma.masked, device_mesh=mesh),
    lambda mesh, x: ts.asarray([[MASKED, MASKED], [MASKED, MASKED]], device_mesh=mesh),
    lambda mesh, x: ts.asarray([1.0, np.ma.masked], device_mesh=mesh), lambda mesh, x: ts.linspace(np.ma.masked, 2, 3, device_mesh=mesh),
    lambda mesh, x: ts.distribute_tensor(MASKED, mesh, [S(0)]),
    lambda mesh, x: ts.from_local([MASKED] * 4, mesh, [S(0)]),
    lambda mesh, x: ts.from_local({(i,): MASKED for i in range(4)}, mesh, [S(0)]),
    lambda mesh, x: x + MASKED, lambda mesh, x: MASKED * x, lambda mesh, x: x < np.ma.array(2.0, mask=True),
    lambda mesh, x: ts.where(x > 2, x, MASKED), lambda mesh, x: ts.maximum(x, np.ma.masked)])
def test_a_mask_is_not_lost_in_silence(session, mesh4, make):
    x = session.distribute_tensor(MASKED.filled(0), mesh4, [S(0)])
    with pytest.raises(TypeError, match=r"call \.filled\(value\) of the masked array first") as caught:
        make(mesh4, x)
    assert isinstance(caught.value, ts.InvalidArgumentError)
    np.testing.assert_array_equal((x + MASKED.filled(-1)).full_tensor(), MASKED.filled(0) + MASKED.filled(-1))


def test_the_byte_order_of_a_dtype_is_that_of_the_machine(session, mesh4):
    x = session.distribute_tensor(np.arange(8, dtype=">i4"), mesh4, [S(0)])
    assert x.dtype == x.astype(">i4").dtype == ts.asarray([1, 2], dtype=np.dtype(">i4"), device_mesh=mesh4).dtype == np.dtype("i4")
    assert ts.zeros(2, dtype=">f4", device_mesh=mesh4).dtype == np.dtype("f4")


def test_asarray_copies_where_it_is_asked_to(session, mesh4):
    x = session.distribute_tensor(np.zeros(8), mesh4, [ts.Shard(0)])
    for copy in (ts.asarray(x, copy=True), ts.asarray(x, copy=True, dtype="f8"), ts.asarray(x, dtype="f4"),
                 ts.asarray(x, copy=True, device=mesh4)):
        copy += 1
        assert copy.full_tensor().sum() == 8
    assert ts.asarray(x) is x and ts.asarray(x, copy=False, dtype="f8").full_tensor().sum() == 0
    assert ts.asarray(x, copy=False, device=x.device) is x and ts.asarray(x, device=mesh4).placements == x.placements
    with pytest.raises(ts.InvalidArgumentError, match="asarray: .*copy"):
        ts.asarray(x, copy=False, device=session.init_device_mesh((2, 2)))
    with pytest.raises(ts.InvalidArgumentError, match="asarray: .*copy"):
        ts.asarray(x, copy=False, dtype="f4")


def test_a_grid_of_no_vectors_is_empty(session):
    assert ts.meshgrid() == [] and ts.meshgrid(indexing="ij") == []
