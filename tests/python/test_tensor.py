"""A Tensor's behaviour: specs at once, handles, mutation, reading, reprs."""

import copy
import gc
import pickle
import unittest.mock
import warnings

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def test_everything_but_values_is_known_at_once(session, mesh22):
    a = session.distribute_tensor(np.ones((6, 4), "f4"), mesh22, [S(0), R()])
    b = session.distribute_tensor(np.ones((4, 8), "f4"), mesh22, [R(), S(1)])
    c = a @ b
    assert (c.shape, c.dtype, c.ndim, c.size, c.nbytes) == ((6, 8), np.float32, 2, 48, 192)
    assert c.placements == (S(0), S(1)) and c.device_mesh == mesh22 == c.device
    assert c.box((1, 0)) == [(3, 6), (0, 4)]
    assert repr(c) == "Tensor(f32[6,8] @ mesh(dp:2,tp:2) [S(0), S(1)])"
    assert c.session is session and len(c) == 6


def test_negative_dims_are_normalised(session, mesh4):
    x = session.distribute_tensor(np.zeros((4, 6)), mesh4, [S(-1)])
    assert x.placements == (S(1),)
    assert x.redistribute([S(-2)]).placements == (S(0),)


def test_augmented_assignment_rebinds_the_handle(session, mesh4):
    x = session.distribute_tensor(np.arange(8.0), mesh4, [S(0)])
    other_name, view, earlier = x, x[2:4], x[2:4].copy()
    before = id(x)
    x += 1
    x *= np.arange(8.0)
    assert id(x) == before and other_name is x and x.placements == (S(0),)
    np.testing.assert_array_equal(other_name.full_tensor(), (np.arange(8) + 1) * np.arange(8))
    np.testing.assert_array_equal(earlier.full_tensor(), [2, 3])
    np.testing.assert_array_equal(view.full_tensor(), [6, 12])
    x += x
    assert x.full_tensor()[1] == 4


def test_augmented_assignment_keeps_dtype_and_shape(session, mesh4):
    i = session.distribute_tensor(np.arange(4), mesh4, [S(0)])
    with pytest.raises(ts.DTypeError):
        i += 1.5
    with pytest.raises(ts.DTypeError):
        i /= 2
    with pytest.raises(ts.InvalidArgumentError):
        i += np.zeros((3, 4), int)
    f = session.distribute_tensor(np.ones(4, "f4"), mesh4, [S(0)])
    f += np.ones(4)
    assert f.dtype == np.float32 and f.placements == (S(0),)
    np.testing.assert_array_equal(i.full_tensor(), np.arange(4))


def test_augmented_assignment_brings_the_other_operand(session, mesh4, mesh22):
    """The tensor stays where it is, although it would be placed as the other one for nothing."""
    for placements, other, received in [([R()], mesh4, 3 * 2 * 8), ([S(0)], mesh4, 3 * 2 * 8), ([R()], mesh22, 4 * 8)]:
        x = session.distribute_tensor(np.arange(64.0).reshape(8, 8), mesh4, placements)
        y = session.distribute_tensor(np.arange(8.0), other, [S(0)] + [R()] * (other.ndim - 1))
        with session.comm_debug() as comm:
            x += y
        assert x.device_mesh == mesh4 and x.placements == tuple(placements)
        np.testing.assert_array_equal(x.full_tensor(), np.arange(64.0).reshape(8, 8) + np.arange(8.0))
        assert comm.total_bytes == 4 * received
    pending = session.from_local(lambda position: np.ones(8), mesh4, [P()])
    pending += session.distribute_tensor(np.arange(8.0), mesh22, [S(0), S(0)])
    assert pending.device_mesh == mesh4
    np.testing.assert_array_equal(pending.full_tensor(), np.arange(8.0) + 4)
    with ts.implicit_redistribution("forbid"), pytest.raises(ts.FailedPreconditionError, match="forbidden: add"):
        x += y


def test_item_assignment_is_seen_by_all_names_and_views(session, mesh4):
    x = session.distribute_tensor(np.zeros(4), mesh4)
    other, part, copy = x, x[:2], x[:2].copy()
    x[0] = 1
    assert x.tolist() == other.tolist() == [1, 0, 0, 0] and part.tolist() == [1, 0] and copy.tolist() == [0, 0]
    with pytest.raises(ts.UnimplementedError, match="a tensor keeps its shape; x = ts.delete"):
        del x[0]


def test_reading_scalars(session, mesh4):
    x = session.distribute_tensor(np.array([[3]]), mesh4)
    assert (x.item(), int(x), float(x), bool(x), complex(x)) == (3, 3, 3.0, True, 3 + 0j)
    assert list(range(10))[x[0, 0]] == 3
    assert isinstance(x.item(), int) and isinstance((x * 1.0).item(), float) and isinstance((x == 3).item(), bool)
    y = session.distribute_tensor(np.zeros(3), mesh4)
    for read in (y.item, lambda: float(y), lambda: bool(y)):
        with pytest.raises(ts.InvalidArgumentError):
            read()
    with pytest.raises(TypeError):
        range(10)[y]


def test_iteration_is_bounded(session, mesh4):
    x = session.distribute_tensor(np.arange(6.0).reshape(3, 2), mesh4, [S(0)])
    assert [float(row.sum()) for row in x] == [1, 5, 9]
    with pytest.raises(ts.InvalidArgumentError, match="limit"):
        for number, _ in enumerate(ts.zeros((5000,), device_mesh=mesh4)):
            pass
    assert number == 4095 and np.iterable(ts.zeros((5000,), device_mesh=mesh4))
    with pytest.raises(TypeError):
        iter(x[0, 0])


def test_numpy_reads_it(session, mesh4, monkeypatch):
    a = np.arange(12.0).reshape(3, 4)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    np.testing.assert_array_equal(np.asarray(x), a)
    assert np.asarray(x, dtype="f4").dtype == np.float32
    np.testing.assert_array_equal(np.from_dlpack(x), a)
    monkeypatch.setattr(ts._tensor, "MAX_IMPLICIT_DOWNLOAD", 50)
    with pytest.raises(ts.ResourceExhaustedError, match="full_tensor"):
        np.asarray(x)


def test_text_shows_the_edges(session, mesh4):
    x = ts.arange(100000, device_mesh=mesh4, placements=[S(0)])
    text = str(x)
    assert "0," in text and "99999" in text and "..." in text and len(text) < 300
    m = ts.arange(4000000, device_mesh=mesh4, placements=[S(0)]).reshape(2000, 2000)
    assert "3999999" in str(m) and "1999" in str(m) and "..." in str(m)
    assert str(session.distribute_tensor(np.arange(3), mesh4)).startswith("[0, 1, 2]")


def test_html_draws_the_shards_and_never_raises(session, mesh22):
    x = session.distribute_tensor(np.zeros((6, 4)), mesh22, [S(0), S(1)])
    html = x._repr_html_()
    assert html.count("<rect") == 4 + 4      # shards, and positions of the mesh
    assert "worker 3" in html and "f64[6,4]" in html
    session.close()
    assert "f64[6,4]" in x._repr_html_() and "f64[6,4]" in repr(x)


def test_wait_and_is_ready(session, mesh4):
    x = ts.zeros((100, 100), device_mesh=mesh4, placements=[S(0)])
    y = x @ x
    assert y.wait() is y and y.is_ready()
    ts.wait(x, y, x + y)
    ts.wait()
    ts.wait(x, y, timeout=60)
    with pytest.raises(ts.InvalidArgumentError, match=r"spread a list"):
        ts.wait([x, y])
    assert y.wait(timeout=60) is y
    session.sync()


def test_a_timeout_is_a_number_of_seconds(session, mesh4):
    x = ts.ones((4,), device_mesh=mesh4)
    assert x.wait(10) is x and x.wait(np.float32(10)) is x and x.wait(float("inf")) is x
    for timeout in ("a", "1", float("nan"), -1, 10**400, [1], x):
        for wait in (lambda: x.wait(timeout), lambda: ts.wait(x, timeout=timeout)):
            with pytest.raises(ts.InvalidArgumentError, match="^wait: timeout is"):
                wait()
    for options in ({"timeout": "a"}, {"timeout": -1}, {"lease": None, "stall_timeout": "1"}, {"lease": "long"}):
        with pytest.raises(ts.InvalidArgumentError, match="^connect: "):
            ts.connect(session.address, **options)


def test_what_cannot_be_compared_is_no_silent_answer(session, mesh4):
    x = session.distribute_tensor(np.arange(3), mesh4)
    for value in ("abc", b"abc", {1}, {1: 2}, range(3), int, object()):
        for compare in (lambda: x == value, lambda: x != value, lambda: value == x, lambda: value != x, lambda: value in x,
                        lambda: ts.equal(x, value), lambda: x < value):
            with pytest.raises(TypeError, match=type(value).__name__):
                compare()
    assert (x == [0, 5, 2]).tolist() == ((0, 5, 2) == x).tolist() == [True, False, True]     # as NumPy has it
    with pytest.raises(ts.InvalidArgumentError, match=r"equal: list can't stand beside i64\[3\].*make np.array\(values\)"):
        x == ["a", "b", "c"]
    np.testing.assert_array_equal((x == np.array([0, 5, 2])).full_tensor(), [True, False, True])


def test_what_knows_how_it_compares_is_asked(session, mesh4):
    x = ts.ones((3,), device_mesh=mesh4)
    assert (x == None) is False and (x != None) is True and (None == x) is False  # noqa: E711
    assert x == unittest.mock.ANY and not x != unittest.mock.ANY
    assert None not in x and 1 in x and x in [x, "other"] and {x: 1, "other": 2}[x] == 1


def test_a_format_is_of_one_number(session, mesh4):
    x = session.distribute_tensor(np.arange(3.0), mesh4)
    assert f"{x.sum():.2f}" == "3.00" and f"{x}" == str(x)
    for many in (x, x[:1]):
        with pytest.raises(TypeError, match=r"format: '\.2f' is for one number, not for f64"):
            format(many, ".2f")


def test_dropped_handles_free_their_memory(session, mesh4):
    for _ in range(200):
        ts.zeros((1 << 20,), device_mesh=mesh4, placements=[S(0)]) + 1  # 2 MiB a worker and op, 256 MiB each
    gc.collect()
    session.sync()
    kept = ts.ones((3,), device_mesh=mesh4)
    tensors = session.tensors()
    assert len(tensors) == 1 and tensors[0].shape == (3,)
    assert float(kept.sum()) == 3


def test_tensors_lists_what_is_held(session, mesh4):
    x, y = ts.zeros((3,), device_mesh=mesh4), ts.ones((2, 2), dtype="i32", device_mesh=mesh4)
    assert sorted(repr(t) for t in session.tensors()) == sorted([repr(x), repr(y)])


def test_a_pickle_has_values_and_placements(session, mesh4):
    x = ts.distribute_tensor(np.arange(24.0).reshape(8, 3), mesh4, [ts.Shard(0)])
    again = pickle.loads(pickle.dumps(x))
    assert again.placements == x.placements and np.array_equal(again.full_tensor(), x.full_tensor()) and again.dtype == x.dtype
    pending = x.sum(axis=0)
    again = pickle.loads(pickle.dumps({"sum": pending, "half": x.astype(ts.bfloat16)}))
    assert again["sum"].placements == (ts.Replicate(),) and np.array_equal(again["sum"].full_tensor(), x.full_tensor().sum(0))
    assert again["half"].dtype == ts.bfloat16
    uneven = ts.distribute_tensor(np.arange(8.0), mesh4, [ts.Shard(0, [1, 2, 5, 0])])
    assert pickle.loads(pickle.dumps(uneven)).placements == uneven.placements


def test_a_pickle_of_an_older_version_has_its_placements(session, mesh4):
    """They were numbers there: kind, dim, reduce op, and sizes."""
    from tessera._tensor import _unpickled
    with mesh4:
        assert _unpickled(np.ones((8, 2)), ((1, 0, 0),)).placements == (S(0),)
        assert _unpickled(np.ones((8, 2)), ((1, 0, 0, (5, 1, 1, 1)),)).placements == (S(0, sizes=[5, 1, 1, 1]),)
        assert _unpickled(np.ones((8, 2)), ((0, 0, 0),)).placements == (R(),)


@pytest.mark.parametrize("placement", [S(0), S(2, sizes=[1, 2]), R(), P(), P("max")])
def test_a_placement_is_a_value(session, placement):
    assert pickle.loads(pickle.dumps(placement)) == copy.deepcopy(placement) == placement
    for name in ("dim", "sizes", "reduce_op", "other"):
        with pytest.raises(AttributeError):
            setattr(placement, name, 1)


def test_what_a_tensor_says_of_its_placements_is_what_it_takes(session, mesh22):
    x = session.distribute_tensor(np.ones((6, 4)), mesh22, [S(0), S(1)])
    assert x.placements is not None and x.redistribute(x.placements).placements == x.placements
    assert [type(one) for one in x.sum(axis=0).placements] == [P, S]
    uneven = session.distribute_tensor(np.ones((6, 4)), mesh22, [S(0, sizes=[5, 1]), R()])
    assert uneven.placements == (S(0, sizes=[5, 1]), R()) and uneven.placements[0].sizes == (5, 1)


def test_a_pickle_of_another_mesh_is_replicated(session, mesh4):
    x = ts.distribute_tensor(np.arange(8.0), session.init_device_mesh((2, 2)), [ts.Shard(0), ts.Replicate()])
    again = pickle.loads(pickle.dumps(x))
    assert again.placements == (ts.Replicate(),) and again.device_mesh == session.default_mesh and np.array_equal(again.full_tensor(), np.arange(8.0))


def test_a_view_by_dtype(session, mesh4):
    x = ts.distribute_tensor(np.arange(6.0).reshape(2, 3), mesh4, [ts.Shard(0)])
    x.view(np.float64)[0, 0] = 7
    assert x[0, 0].item() == 7 and x.view()[0, 0].item() == 7
    z = np.arange(6).reshape(2, 3) * (1 - 2j)
    parts = ts.asarray(z).view(float)
    assert np.array_equal(parts.full_tensor(), z.view(float))
    with pytest.raises(ts.InvalidArgumentError, match="read-only"):
        parts[0, 0] = 1
    with pytest.raises(ts.UnimplementedError, match="view: float64 as int64; .* x.astype"):
        x.view(np.int64)
    with pytest.raises(TypeError, match=r"x.reshape\(shape\) for another shape"):
        x.view((3, 2))


def test_keyword_dim_has_a_hint(session, mesh4):
    x = ts.zeros((2, 2), device_mesh=mesh4)
    for call in (lambda: ts.sum(x, dim=0), lambda: x.max(dim=1), lambda: ts.argmin(x, dim=0)):
        with pytest.raises(TypeError, match="axis="):
            call()
    with pytest.raises(TypeError, match="keepdims="):
        ts.sum(x, keepdim=True)


def test_implicit_redistribution_policies(session, mesh4):
    x = ts.ones((8, 8), device_mesh=mesh4, placements=[S(0)])
    y = ts.ones((8, 8), device_mesh=mesh4, placements=[S(1)])
    with ts.implicit_redistribution("forbid"):
        with pytest.raises(ts.TesseraError, match=r"384 bytes.*redistribute\(placements="):
            x + y
        (x + x).wait()
    with ts.implicit_redistribution("warn"), pytest.warns(ts.ImplicitRedistributionWarning, match="redistribute"):
        x + y
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal((x + y).full_tensor(), 2)
    for forbid in (lambda: session.implicit_redistribution("forbid"), lambda: setattr(session, "implicit_redistribution", "forbid")):
        assert session.implicit_redistribution == "allow"
        forbid()
        assert session.implicit_redistribution == "forbid"
        with pytest.raises(ts.TesseraError):
            x + y
        with ts.implicit_redistribution("allow"):
            x + y
        session.implicit_redistribution = "allow"
    with pytest.raises(ts.InvalidArgumentError, match="maybe"):
        session.implicit_redistribution = "maybe"
    with pytest.raises(ts.InvalidArgumentError):
        with ts.implicit_redistribution("maybe"):
            pass


def test_generic_array_api_code_works(session, mesh4):
    x = session.distribute_tensor(np.arange(6.0).reshape(2, 3), mesh4, [S(1)])
    xp = x.__array_namespace__()
    y = xp.mean(xp.exp(x - xp.max(x, axis=1, keepdims=True)), axis=1)
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(y.full_tensor(), np.exp(a - a.max(1, keepdims=True)).mean(1))
    z = xp.zeros((2,), device=x.device)
    assert z.device == mesh4


def test_a_namespace_of_a_version_that_is_not_there_is_refused(mesh4):
    x = ts.ones(3, device_mesh=mesh4)
    for version in (None, "2021.12", ts.__array_api_version__):
        assert x.__array_namespace__(api_version=version) is ts
    for version in ("1999.01", "2031.12", 3):
        with pytest.raises(ValueError, match="there are 2021.12"):
            x.__array_namespace__(api_version=version)


def test_dlpack_takes_what_the_array_api_gives_it(mesh4):
    x = ts.arange(4, device_mesh=mesh4)
    assert np.from_dlpack(x).tolist() == [0, 1, 2, 3]
    x.__dlpack__(stream=None, max_version=(1, 0), dl_device=x.__dlpack_device__(), copy=True)
    with pytest.raises(BufferError, match="a copy can't be avoided"):
        x.__dlpack__(copy=False)
    with pytest.raises(TypeError):
        x.__dlpack__(nonsense=1)


def test_methods_of_numpys_arrays_that_take_axes_and_places(session, mesh4):
    a = np.arange(24).reshape(2, 3, 4)
    x = session.distribute_tensor(a, mesh4, [S(1)])
    for call in (lambda v: v.diagonal(), lambda v: v.diagonal(1, 2, 0), lambda v: v.trace(), lambda v: v.trace(-1, axis1=0, axis2=2)):
        np.testing.assert_array_equal(call(x).full_tensor(), call(a))
    for call in (lambda v: v.item(5), lambda v: v.item(-1), lambda v: v.item(1, 2, 3), lambda v: v.item((0, 1, 2)), lambda v: v.itemsize):
        assert call(x) == call(a)
    for wrong in (lambda: x.item(24), lambda: x.item(1, 2), lambda: x.item(2, 0, 0)):
        with pytest.raises(IndexError):
            wrong()
    for wrong in (lambda: x.diagonal(0, 1, 1), lambda: x[0, 0].trace(), lambda: x.item()):
        with pytest.raises(ValueError):
            wrong()


def test_numbers_beside_tensors_have_no_dims(mesh4):
    x = ts.arange(3.0, device_mesh=mesh4)
    for call in (lambda m, v: m.broadcast_arrays(v, 1)[1], lambda m, v: m.atleast_2d(v, 2.5)[1], lambda m, v: m.stack([v[0], np.float32(4)])):
        got, want = call(ts, x), call(np, np.arange(3.0))
        np.testing.assert_array_equal(got.full_tensor(), want)
        assert got.dtype == want.dtype
