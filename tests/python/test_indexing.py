"""Indices of every kind, read and written, against NumPy: arrays, tensors and numbers side by side and apart, masks with
and without dims, nothing at all."""

import numpy as np
import pytest

import tessera as ts

pytestmark = pytest.mark.whole_system


@pytest.fixture
def mesh(mesh4):
    return mesh4


def made(mesh, array, dim=0):
    return ts.distribute_tensor(array, mesh, [ts.Shard(dim) if array.ndim > dim else ts.Replicate()])


X = np.arange(5 * 3 * 4).reshape(5, 3, 4)
MASK = X % 7 < 3
I, J = np.array([0, 2, 1]), np.array([[1], [-2]])

INDICES = {
    "array": (I,), "array behind a slice": (slice(None), I), "list": ([0, -1],), "empty list": ([],), "two arrays": (I, I),
    "broadcast": (J, I), "two behind": (slice(1, 4), I, I), "apart": (I, slice(None), I), "number and array": (0, I),
    "number apart from array": (0, slice(None), I), "number behind": (slice(None), 0, I), "array, number apart": (I, slice(None), 0),
    "dots between": (0, ..., I), "empty dots between": (slice(None), I, ..., I), "dots before": (..., I), "new dim": (None, I),
    "new dim between": (I, None, I), "steps": (slice(None, None, -2), I), "no dims": (np.array(2),), "no dims, twice": (np.array(2), np.array(1)),
    "mask": (MASK,), "mask of rows": (MASK[:, 0, 0],), "mask behind": (slice(None), MASK[0, :, 0]), "mask behind dots": (..., MASK[0, 0]),
    "mask and number": (MASK[:, 0, 0], 0), "mask and array": (MASK[:3, 0, 0].nonzero()[0], I[:1]), "mask of two dims": (MASK[:, :, 0],),
    "mask of two dims behind": (slice(None), MASK[0]), "mask list": ([True, False, True, False, False],),
    "True": (True,), "False": (False,), "True among slices": (slice(None), True, 0), "True beside an array": (slice(None), True, I),
    "True apart from an array": (True, slice(None), I), "mask without dims": (np.array(True),), "no place": (np.zeros(5, bool),),
}


def of_tensors(mesh, index):
    return tuple(made(mesh, item) if isinstance(item, np.ndarray) else item for item in index)


@pytest.mark.parametrize("name", INDICES)
@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_what_is_read_is_numpys(mesh, name, kind):
    index = INDICES[name]
    given = index if kind == "arrays" else of_tensors(mesh, index)
    for dim in (0, 1):
        got = made(mesh, X, dim)[given]
        want = X[index]
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.full_tensor(), want)


@pytest.mark.parametrize("name", INDICES)
def test_what_is_written_is_numpys(mesh, name):
    index = INDICES[name]
    for value in (7, 2.5, np.int8(3), -np.arange(X[index].size).reshape(X[index].shape)):
        x, want = made(mesh, X), X.copy()
        want[index] = value
        x[index] = value
        np.testing.assert_array_equal(x.full_tensor(), want)
        assert x.dtype == X.dtype


def test_a_mask_takes_one_value_for_each_place(mesh):
    x, want = made(mesh, X), X.copy()
    x[MASK] = np.arange(MASK.sum())
    want[MASK] = np.arange(MASK.sum())
    np.testing.assert_array_equal(x.full_tensor(), want)
    rows = np.array([True, False, True, False, False])
    x[rows] = -np.arange(24).reshape(2, 3, 4)
    want[rows] = -np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(x.full_tensor(), want)
    with pytest.raises(ValueError, match=r"x\[mask\] = v.*\(5,\).*\(3, 4\)"):
        x[rows] = np.arange(5)
    with pytest.raises(ValueError, match=r"\(3,\)"):
        x[MASK] = np.arange(3)
    np.testing.assert_array_equal(x.full_tensor(), want)


def test_of_nothing(mesh):
    for shape in ((0, 3), (3, 0), (0,)):
        array = np.zeros(shape)
        x, mask = made(mesh, array), made(mesh, array > 0)
        np.testing.assert_array_equal(x[mask].full_tensor(), array[array > 0])
        x[mask] = 1.0
        x[mask] = np.zeros(0)
        assert x.shape == shape
    zero = made(mesh, np.array(3.0))
    assert zero[zero > 2].shape == (1,) and zero[zero < 2].shape == (0,)
    zero[zero > 2] = 5
    assert float(zero) == 5


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 0, 4), (0, 0), (5, 0), (0,)])
def test_a_mask_with_an_extent_of_0_chooses_nothing(mesh, shape):
    x, mask = made(mesh, X), np.zeros(shape, bool)
    for key in (mask, made(mesh, mask)):
        np.testing.assert_array_equal(x[key].full_tensor(), X[mask])
        assert x[key].dtype == X.dtype
        x[key] = 7
        x[key] = np.zeros(X[mask].shape)
        with pytest.raises(ValueError, match=r"x\[mask\] = v: a value of shape \(2,"):
            x[key] = np.zeros((2, *X.shape[len(shape):]))
    if len(shape) < X.ndim:
        np.testing.assert_array_equal(x[mask, 0].full_tensor(), X[mask, 0])
    np.testing.assert_array_equal(x.full_tensor(), X)
    for wrong in ((0, 2), (4, 0)):
        with pytest.raises(IndexError, match="mask of shape"):
            x[np.zeros(wrong, bool)]
        with pytest.raises(IndexError, match="mask of shape"):
            x[np.zeros(wrong, bool)] = 1


def test_indices_that_dont_fit_are_index_errors(mesh):
    x = made(mesh, X)
    with pytest.raises(IndexError, match=r"\(3,\), \(2,\)"):
        x[I, np.array([0, 1])]
    with pytest.raises(IndexError, match="mask of shape"):
        x[MASK[:2]]
    with pytest.raises(IndexError, match="indices"):
        x[I, I, I, I]
    with pytest.raises(IndexError):
        x[np.array([0.5])]
    with pytest.raises(IndexError):
        x[np.array([5])].wait()
    np.testing.assert_array_equal(x.full_tensor(), X)


def test_slices_of_a_single_row_are_a_tuple(mesh):
    for count in (0, 1, 3):
        slices = ts.unstack(ts.zeros((count, 2)))
        assert isinstance(slices, tuple) and len(slices) == count


def test_unique_of_complex_numbers(mesh):
    values = np.array([1 + 2j, 1 - 1j, 1 + 2j, 0, 1 - 1j, 1j])
    found = ts.unique_all(made(mesh, values))
    want, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    for got, expected in zip(found, (want, first, inverse, counts)):
        np.testing.assert_array_equal(got.full_tensor(), expected)


def test_no_axis_reduces_nothing(mesh):
    x = made(mesh, X.astype(float))
    for name in "sum prod max min mean var std any all count_nonzero".split():
        np.testing.assert_allclose(getattr(ts, name)(x, axis=()).full_tensor(), getattr(np, name)(X.astype(float), axis=()))
    np.testing.assert_array_equal(ts.flip(x, axis=()).full_tensor(), X)


def test_axes_and_dtypes_may_stand_by_position(mesh):
    x = made(mesh, X)
    for ours, numpys in ((lambda m, a: m.concat((a, a), 1), lambda m, a: m.concatenate((a, a), 1)), (lambda m, a: m.stack((a, a), 1),) * 2,
                         (lambda m, a: m.roll(a, 1, 0),) * 2, (lambda m, a: m.repeat(a, 2, 1),) * 2, (lambda m, a: m.take(a, [0, 2], 1),) * 2,
                         (lambda m, a: m.diff(a, 2, 0),) * 2, (lambda m, a: m.median(a, 1),) * 2, (lambda m, a: m.tensordot(a, a, 3),) * 2,
                         (lambda m, a: m.zeros((2,), "float32"),) * 2, (lambda m, a: m.full((2,), 3, "int8"),) * 2, (lambda m, a: m.arange(0, 6, 2, "int8"),) * 2,
                         (lambda m, a: m.searchsorted(a[0, 0], a[0, 0], "right"),) * 2, (lambda m, a: m.zeros_like(a, "int8"),) * 2):
        got, want = ours(ts, x).full_tensor(), numpys(np, X)
        assert got.dtype == np.asarray(want).dtype
        np.testing.assert_array_equal(got, want)


def test_rounding_to_decimals(mesh):
    values = np.array([1.25, -0.127, 1234.5, np.inf, np.nan])
    x = made(mesh, values)
    for decimals in (2, 0, -2):
        np.testing.assert_allclose(ts.round(x, decimals).full_tensor(), np.round(values, decimals))
        np.testing.assert_allclose(round(x, decimals).full_tensor() if decimals else x.round().full_tensor(), np.round(values, decimals))
    np.testing.assert_array_equal(ts.round(made(mesh, np.array([1234, -55])), -2).full_tensor(), np.round(np.array([1234, -55]), -2))
    with pytest.raises(TypeError, match="decimals is 'x'"):
        ts.round(x, "x")
    for got, want in zip(divmod(made(mesh, X), 7), divmod(X, 7)):
        np.testing.assert_array_equal(got.full_tensor(), want)
    for got, want in zip(divmod(50, made(mesh, X + 1)), divmod(50, X + 1)):
        np.testing.assert_array_equal(got.full_tensor(), want)


@pytest.mark.parametrize("count", [64, 61])
def test_what_is_added_up_by_indices_stays_in_its_shards(session, rng, count):
    """Messages along edges: more of them than nodes."""
    mesh4 = session.init_device_mesh((4,))
    at, values, nodes = rng.integers(-5, 5, count), rng.integers(-9, 9, (count, 3)).astype(np.float64), rng.integers(-9, 9, (5, 3)).astype(np.float64)
    edges, sent = (session.distribute_tensor(one, mesh4, [ts.Shard(0)]) for one in (at, values))
    x = session.distribute_tensor(nodes, mesh4, [ts.Replicate()])
    for mode, added in (("add", np.add), ("max", np.maximum), ("min", np.minimum)):
        want = nodes.copy()
        added.at(want, at, values)
        with session.comm_debug() as comm:
            got = ts.scatter(x, edges, sent, axis=0, mode=mode).wait()
        assert sum(comm.bytes_received) == 0 and got.placements[0].is_partial()
        np.testing.assert_array_equal(got.full_tensor(), want)
        np.testing.assert_array_equal((got * 2 + 1).full_tensor(), want * 2 + 1)
    # A sum that is pending goes on being one.
    pending = ts.scatter(ts.sum(ts.ones((4, 5, 3), device_mesh=mesh4, placements=[ts.Shard(0)]), axis=0), edges, sent, axis=0, mode="add")
    want = np.full((5, 3), 4.0)
    np.add.at(want, at, values)
    assert pending.placements == (ts.Partial(),)
    np.testing.assert_array_equal(pending.full_tensor(), want)
    with pytest.raises(ts.IndexOutOfRangeError):
        ts.scatter(x, edges + 5, sent, axis=0, mode="add").wait()
    np.testing.assert_array_equal(x.full_tensor(), nodes)


@pytest.mark.parametrize("key", [1.5, "a", b"a", (0, 2.0), slice(0, "x"), object()], ids=lambda key: type(key).__name__)
def test_what_is_no_index_is_an_index_error(mesh4, key):
    x = ts.zeros((3, 3), device_mesh=mesh4)
    with pytest.raises(IndexError, match="^index: "):
        x[key]
    with pytest.raises(IndexError, match="^index: "):
        x[key] = 1


def test_a_bad_index_names_the_function_that_was_called(mesh4):
    x, i = ts.arange(5, device_mesh=mesh4), ts.asarray([7], device_mesh=mesh4)
    for name, call in (("take", lambda: ts.take(x, i)), ("index", lambda: x[i]), ("gather", lambda: ts.gather(x, i))):
        with pytest.raises(IndexError, match=f"^{name}: .*index 7 is out of range.* of extent 5"):
            call().full_tensor()
    assert x.sum().item() == 10
