"""Results of indexing, iteration and turning have elements of their own: a write into one is refused while a tensor is there that
would show it in NumPy, and nothing else is."""

import copy

import numpy as np
import pytest

import tessera as ts

DTYPES = ["bool", "int8", "u64", "f16", "bf16", "f32", "f64", "c64"]


def assign(x, key, value):
    x[key] = value


def add(x):
    x += 1


def refused(act, *said):
    with pytest.raises(ts.InvalidArgumentError) as error:
        act()
    for text in said:
        assert text in str(error.value), str(error.value)


@pytest.fixture
def x(session, mesh4):
    return session.distribute_tensor(np.arange(12.0).reshape(3, 4), mesh4, [ts.Shard(0)])


VIEWS = {
    "x[0]": lambda x: x[0], "x[-1]": lambda x: x[-1], "x[1:]": lambda x: x[1:], "x[:, ::2]": lambda x: x[:, ::2], "x[:]": lambda x: x[:],
    "x[..., 1]": lambda x: x[..., 1], "x[None]": lambda x: x[None], "x.T": lambda x: x.T, "x.T ": lambda x: x.mT, "x.T  ": lambda x: x.transpose(),
    "x.T   ": lambda x: ts.permute_dims(x, (1, 0)), "x.T    ": lambda x: ts.swapaxes(x, 0, 1), "x.T     ": lambda x: ts.moveaxis(x, 0, 1),
    "x.T      ": ts.matrix_transpose, "x.reshape(-1)": lambda x: x.reshape(-1), "x.reshape(4, 3)": lambda x: ts.reshape(x, (4, 3)),
    "x.reshape(-1) ": ts.ravel, "x.reshape(-1)  ": lambda x: x.ravel(), "x[None, :, :]": lambda x: ts.expand_dims(x, 0), "ts.flip(x)": ts.flip,
    "ts.broadcast_to(x)": lambda x: ts.broadcast_to(x, (2, 3, 4)), "x.real": lambda x: x.real, "x[0:1]": lambda x: ts.split(x, 3)[0],
    "ts.unstack(x)": lambda x: ts.unstack(x)[0], "ts.diagonal(x)": ts.diagonal, "x[0] ": lambda x: next(iter(x)), "x[0][1:]": lambda x: x[0][1:],
    "x.T[0]": lambda x: x.T[0],
}


@pytest.mark.parametrize("expression", VIEWS)
def test_a_view_refuses_writes_and_says_what_it_is(x, expression):
    before, y = x.full_tensor(), VIEWS[expression](x)
    made = expression.strip()
    refused(lambda: assign(y, (0,) * y.ndim, 9), f"{made} has elements of its own", f"y = {made}.copy()")
    refused(lambda: add(y), f"add: {made} has elements of its own")
    refused(lambda: assign(y, y > 3, 9), made)
    refused(lambda: assign(y, [0], 9), made)
    kept = y.copy()
    kept += 1
    np.testing.assert_array_equal(kept.full_tensor(), y.full_tensor() + 1)
    np.testing.assert_array_equal(x.full_tensor(), before)


def test_the_error_says_what_to_write(x):
    refused(lambda: assign(x[0], 1, 5), "x[i] = v: x[0] has", "write x[0, 1] = v", "y = x[0].copy()")
    refused(lambda: assign(x[0], slice(1, 3), 5), "write x[0, 1:3] = v")
    refused(lambda: assign(x[:, 2], 1, 5), "write x[1, 2] = v")
    refused(lambda: assign(x.T, (0, 2), 5), "write x[2, 0] = v")
    refused(lambda: assign(x.T, 0, 5), "write into x itself")
    refused(lambda: assign(x[1:], 0, 5), "write into x itself")
    y = x[0]
    refused(lambda: add(y), "write x[0] += v")
    z = x[0][1:]
    refused(lambda: add(z), "x[0][1:] has", "write x[0, 1:] += v")
    for row in x:
        with pytest.raises(ValueError, match=r"multiply: x\[0\] has elements .* write x\[0\] \*= v"):
            row *= 2
        break
    with pytest.raises(ValueError, match=r"x\.reshape\(-1\) has elements"):
        x.reshape(-1)[::5] += 1
    with pytest.raises(ValueError, match=r"write x\[0, 1\] = v"):
        x[0][1] += 1
    with pytest.raises(ValueError, match="put_along_axis"):
        ts.put_along_axis(y, ts.asarray([0]), 1)


def test_an_index_is_written_through_its_own_statement(x):
    a = x.full_tensor()
    for thing in (x, a):
        thing[0] += 1
        thing[1:, 2] *= 3
        thing[...] -= 2
        thing[2, 3] = 7
        thing[1] = thing[0]
        thing[thing > 5] += 1
        thing[[0, 2]] += 4
        thing -= 1
        thing[:] **= 2
    np.testing.assert_array_equal(x.full_tensor(), a)
    parts = {"x": x}
    parts["x"][0, 0] += 1
    assert x[0, 0].item() == a[0, 0] + 1
    rows = [x[0], x[1]]
    with pytest.raises(ValueError, match=r"x\[1\] has"):
        rows[1] += 1


def test_what_nobody_else_shows_is_written(session, mesh4, x):
    """As a view whose tensor is gone, whatever led there."""
    y = ts.arange(12.0).reshape(3, 4)
    y += 1
    y[0, 0] = 9
    y = y.T
    y[0, 1] = 7
    y = y[1:]
    y *= 2
    z = (x + 1)[0]
    z -= 1
    w = ts.median(x, axis=0)
    w += 1
    (x * 2)[0][1] = 5
    assert y[0, 0].item() == 4 and z[1].item() == 1 and w[0].item() == 5
    first, second = x[0], x[0]
    del x
    refused(lambda: add(first), "x[0] has")     # the other one would show it
    del second


def test_a_tensor_that_has_views_is_written(x):
    """The views keep what they had."""
    y, z = x[0], x.T
    x[0, 0] = 5
    x += 1
    assert x[0, 0].item() == 6 and y[0].item() == 0 and z[0, 0].item() == 0
    refused(lambda: add(y), "x[0]")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_copy_is_written_and_leaves_what_was_copied(session, mesh4, dtype):
    x = ts.astype(session.distribute_tensor(np.array([[0, 1, 1], [1, 0, 0]]), mesh4, [ts.Shard(1)]), dtype)
    before = x.full_tensor()
    for take in (lambda x: x.copy(), ts.copy, copy.copy, copy.deepcopy, np.copy, lambda x: ts.asarray(x, copy=True), lambda x: x.flatten(),
                 lambda x: x[0].copy()):
        y = take(x)
        assert isinstance(y, ts.Tensor) and y.dtype == x.dtype
        y[(0,) * y.ndim] = 1
        y[...] = True
        np.testing.assert_array_equal(x.full_tensor(), before)
        assert bool(ts.all(y == 1))
    with pytest.raises(ts.InvalidArgumentError, match="copy: x is int, not a Tensor"):
        ts.copy(3)


def test_numpy_arrays_of_a_tensor_are_read_only_unless_a_copy_is_asked_for(x):
    for array in (np.asarray(x), np.array(x, copy=None), np.asarray(x, dtype="f4"), np.asarray(x[0]), x.__array__()):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for array in (np.array(x), np.array(x, copy=True), np.array(x, dtype="f4"), x.full_tensor()):
        array[0] = 1
    with pytest.raises(ValueError):
        np.array(x, copy=False)
    assert x[0, 0].item() == 0


def test_grids_of_coordinates_are_written(session):
    a, b = ts.meshgrid(ts.arange(3), ts.arange(2))
    a += 1
    b[0, 0] = 7
    assert a.tolist() == [[1, 2, 3]] * 2 and b.tolist() == [[7, 0, 0], [1, 1, 1]]


def test_messages_do_not_call_tensors_immutable(x):
    for act in (lambda: x.__delitem__(0), lambda: np.add(x, 1, out=x), lambda: ts.sum(x, out=x), lambda: x.cumsum(out=x), lambda: ts.exp(x, out=x)):
        with pytest.raises((TypeError, NotImplementedError)) as error:
            act()
        assert "immutable" not in str(error.value) and ("y[...] = result" in str(error.value) or "ts.delete" in str(error.value))
