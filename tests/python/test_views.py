"""Views share elements with the tensor that they were made of, as NumPy's do: a write into one shows in all, and where NumPy copies
nothing does."""

import copy
import random

import numpy as np
import pytest

import tessera as ts

DTYPES = ["bool", "int8", "u64", "f16", "bf16", "f32", "f64", "c64"]


@pytest.fixture
def x(session, mesh4):
    return session.distribute_tensor(np.arange(12.0).reshape(3, 4), mesh4, [ts.Shard(0)])


def equal(x, a):
    assert x.shape == a.shape
    np.testing.assert_array_equal(x.full_tensor(), a)


# A view of a tensor or an array, by a namespace that has both's functions.
VIEWS = {
    "x[0]": lambda n, x: x[0], "x[-1]": lambda n, x: x[-1], "x[1:]": lambda n, x: x[1:], "x[:, ::2]": lambda n, x: x[:, ::2],
    "x[::-1]": lambda n, x: x[::-1], "x[:]": lambda n, x: x[:], "x[..., 1]": lambda n, x: x[..., 1], "x[None]": lambda n, x: x[None],
    "x.T": lambda n, x: x.T, "x.mT": lambda n, x: x.swapaxes(0, 1), "x.transpose()": lambda n, x: x.transpose(),
    "swapaxes": lambda n, x: n.swapaxes(x, 0, 1), "moveaxis": lambda n, x: n.moveaxis(x, 0, 1), "x.reshape(-1)": lambda n, x: x.reshape(-1),
    "reshape(x)": lambda n, x: n.reshape(x, (4, 3)), "ravel": lambda n, x: n.ravel(x), "x.ravel()": lambda n, x: x.ravel(),
    "expand_dims": lambda n, x: n.expand_dims(x, axis=0), "flip": lambda n, x: n.flip(x, axis=0), "fliplr": lambda n, x: n.fliplr(x),
    "rot90": lambda n, x: n.rot90(x), "x.real": lambda n, x: x.real, "split": lambda n, x: n.split(x, 3)[0], "iteration": lambda n, x: next(iter(x)),
    "x[0][1:]": lambda n, x: x[0][1:], "x.T[0]": lambda n, x: x.T[0], "x.T.reshape of a row": lambda n, x: x.T[0].reshape(3, 1),
    "x[1:].reshape(-1)[::5]": lambda n, x: x[1:].reshape(-1)[::5], "squeeze": lambda n, x: n.squeeze(x[None], axis=0),
}
# NumPy's have elements of their own.
COPIES = {
    "x.T.reshape(-1)": lambda n, x: x.T.reshape(-1), "x[:, 1:].reshape(-1)": lambda n, x: x[:, 1:].reshape(-1), "ravel(x.T)": lambda n, x: n.ravel(x.T),
    "x[[0, 1]]": lambda n, x: x[[0, 1]], "x[x > 3]": lambda n, x: x[x > 3], "x.copy()": lambda n, x: x.copy(), "x.flatten()": lambda n, x: x.flatten(),
    "x + 0": lambda n, x: x + 0, "take": lambda n, x: n.take(x, np.array([0, 2]), axis=0), "astype": lambda n, x: x.astype("f4"),
}


def writes(y):
    """Each kind of a write, one after the other."""
    y += 1
    y *= 3
    y[(0,) * y.ndim] = 9
    y[...] -= 2
    y[0] = 4
    y[y > 20] = 1
    if y.shape[0] > 1:
        y[[0, 1]] += 2


@pytest.mark.parametrize("expression", {**VIEWS, **COPIES})
def test_what_is_written_into_a_view_shows_as_in_numpy(x, expression):
    make = {**VIEWS, **COPIES}[expression]
    a = x.full_tensor()
    b, y = make(np, a), make(ts, x)
    assert np.shares_memory(a, b) == (expression in VIEWS)
    writes(b)
    writes(y)
    equal(y, b)
    equal(x, a)
    for thing in (a, x):
        thing *= 2
        thing[0, 0] = 50
    equal(y, b)
    equal(x, a)
    assert x.placements == (ts.Shard(0),)


def test_the_statements_of_a_program(x):
    a = x.full_tensor()
    for thing in (x, a):
        thing[0][1] = 5
        for row in thing:
            row *= 2
        y = thing[0]
        y += 1
        thing.T[0, 0] = 7
        thing.reshape(-1)[::5] += 1
        thing.ravel()[0] = 1
        thing[0][1] += 1
        rows = [thing[0], thing[1]]
        rows[1] += 1
        thing[1:] = thing[:-1]
        thing[0] += 1
        thing[1:, 2] *= 3
        thing -= 1
        thing[:] **= 2
        thing[2] = thing[0]
    equal(x, a)


def test_a_view_of_a_mesh_or_placements_of_its_own_is_written_where_the_tensor_is(session, mesh4, x):
    a = x.full_tensor()
    column, b = x[:, 1], a[:, 1]
    column += session.distribute_tensor(np.arange(3.0), mesh4, [ts.Replicate()])
    b += np.arange(3.0)
    row, c = x[1], a[1]
    row *= session.distribute_tensor(np.arange(4.0), mesh4, [ts.Shard(0)])
    c *= np.arange(4.0)
    equal(x, a)
    assert x.placements == (ts.Shard(0),)


def test_real_and_imaginary_parts_are_written(session, mesh4):
    a = np.arange(6).reshape(2, 3) * (1 + 2j)
    a[0, 1] = complex(np.inf, 3)
    x = session.distribute_tensor(a, mesh4, [ts.Shard(1)])
    for thing in (x, a):
        thing.real += 1
        thing.imag[0] = 7
        thing[1].real = -1
        thing.T.imag[2, 1] -= 3
    equal(x, a)
    with pytest.raises(ts.InvalidArgumentError, match=r"add: x\.imag is read-only, as NumPy's is"):
        y = ts.arange(3.0)
        z = y.imag
        z += 1


@pytest.mark.parametrize("expression, make", {"ts.broadcast_to(x)": lambda x: ts.broadcast_to(x, (2, 3, 4)), "ts.diagonal(x)": ts.diagonal,
                                              "ts.broadcast_to(x)[0]": lambda x: ts.broadcast_to(x, (2, 3, 4))[0]}.items())
def test_what_is_read_only_in_numpy_refuses_writes(x, expression, make):
    before, y = x.full_tensor(), make(x)
    for act in (lambda: y.__setitem__(0, 1), lambda: y.__iadd__(1), lambda: y.__setitem__(y > 3, 9), lambda: y.__setitem__([0], 9)):
        with pytest.raises(ts.InvalidArgumentError) as error:
            act()
        assert f"{expression} is read-only, as NumPy's is" in str(error.value) and f"y = {expression}.copy()" in str(error.value)
    kept = y.copy()
    kept += 1
    equal(kept, y.full_tensor() + 1)
    equal(x, before)


def test_a_view_outlives_its_tensor(session, mesh4):
    x = ts.arange(12.0).reshape(3, 4)
    first, second, a = x[0], x[0:2], np.arange(12.0).reshape(3, 4)
    x += 1
    a += 1
    del x
    first *= 2
    a[0] *= 2
    equal(second, a[0:2])
    del second
    equal(first, a[0])
    first = first[1:]
    first[0] = 5
    equal(first, np.array([5.0, *a[0, 2:]]))


def test_a_view_that_is_kept_alone_keeps_no_memory_of_its_tensor(session, mesh4):
    def used():
        ts.zeros(1).wait()
        session.sync()
        return sum(worker["used_bytes"] for worker in session.status()["workers"])

    x = ts.zeros((1 << 20,))
    x.wait()
    before = used()
    x = x[:8]
    x.wait()
    for _ in range(20):
        if (now := used()) < before - (7 << 20):
            break
    assert now < before - (7 << 20)


def test_put_along_axis_writes_through(x):
    a = x.full_tensor()
    np.put_along_axis(a[0], np.array([1]), 8, axis=0)
    ts.put_along_axis(x[0], ts.asarray([1]), 8, axis=0)
    equal(x, a)


def test_a_write_that_is_refused_changes_nothing(x):
    before, y = x.full_tensor(), x[0]
    for act in (lambda: y.__iadd__(np.zeros(7)), lambda: y.__setitem__(99, 1), lambda: y.__iadd__(1j)):
        with pytest.raises((ts.TesseraError, TypeError, IndexError)):
            act()
    equal(x, before)
    equal(y, before[0])


def test_a_plan_of_a_write_writes_nothing(x):
    before, y = x.full_tensor(), x[0]

    def write():
        y[1] = 5
        x.T[0] *= 2

    ts.explain(write)
    equal(x, before)
    equal(y, before[0])


class Pair:
    """A tensor and NumPy's array, to which the same is done."""

    def __init__(self, x, a):
        self.x, self.a = x, a

    def check(self):
        equal(self.x, self.a)


def random_view(rng, pair):
    x, a = pair.x, pair.a
    kind = rng.randrange(7)
    if kind < 3:
        key = []
        for extent in a.shape:
            start = rng.randrange(extent + 1)
            whole = [slice(start, None, rng.choice([1, 1, 2])), slice(None, None, -1), slice(0, start)]
            key.append(rng.randrange(-extent, extent) if extent and rng.random() < 0.3 else rng.choice(whole))
        if rng.random() < 0.2:
            key.insert(rng.randrange(len(key) + 1), None)
        return Pair(x[tuple(key)], a[tuple(key)])
    if kind == 3:
        dims = rng.sample(range(a.ndim), a.ndim)
        return Pair(ts.permute_dims(x, dims), np.transpose(a, dims))
    if kind == 4:
        axis = rng.randrange(a.ndim)
        return Pair(ts.flip(x, axis=axis), np.flip(a, axis))
    shapes = [(a.size,), (1, a.size, 1), a.shape, *((n, a.size // n) for n in (2, 3, 4) if a.size and a.size % n == 0)]
    shape = rng.choice(shapes)
    return Pair(x.reshape(shape), a.reshape(shape))


def random_write(rng, pair):
    value, kind = rng.randrange(100), rng.randrange(4)
    for thing in (pair.x, pair.a):
        if kind == 0:
            thing += value
        elif kind == 1:
            thing[...] = value
        elif kind == 2:
            thing[thing > 50] = value
        elif thing.shape[0]:
            thing[0] -= value


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_of_views_and_writes(session, mesh4, seed):
    rng = random.Random(seed)
    shape = rng.choice([(12,), (3, 4), (2, 3, 4), (6, 2), (4, 1, 3)])
    a = np.arange(np.prod(shape), dtype=float).reshape(shape)
    live = [Pair(session.distribute_tensor(a.copy(), mesh4, [rng.choice([ts.Shard(0), ts.Replicate(), ts.Shard(len(shape) - 1)])]), a)]
    for _ in range(12):
        pair = rng.choice(live)
        act = rng.random()
        if act < 0.5 and len(live) < 7:
            made = random_view(rng, pair)
            if isinstance(made.a, np.ndarray) and made.a.ndim:
                live.append(made)
        elif act < 0.85:
            random_write(rng, pair)
        elif len(live) > 1:
            live.remove(pair)
        if rng.random() < 0.3:
            for one in live:
                one.check()
    for one in live:
        one.check()


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
    with pytest.raises(ts.InvalidArgumentError, match="copy: x is str, not a Tensor"):
        ts.copy("3")


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
    with pytest.raises(NotImplementedError) as error:
        del x[0]
    assert "immutable" not in str(error.value) and "ts.delete" in str(error.value)


def test_arrays_that_were_broadcast_together_are_written_as_numpys_are(mesh4):
    x, y = ts.distribute_tensor(np.ones((3, 4)), mesh4, [ts.Shard(1)]), ts.asarray(np.arange(4.0))
    same, wider = ts.broadcast_arrays(x, y)
    same[0, 0] = 5
    wider[0] = 7
    assert x[0, 0].item() == 5 and np.array_equal(wider.full_tensor(), [[7] * 4, range(4), range(4)])
    assert np.array_equal(y.full_tensor(), np.arange(4.0))
