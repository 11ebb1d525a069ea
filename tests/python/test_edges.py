"""Values and sizes at the edge of what a dtype, a shard or 64 bits hold."""

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def test_pending_integers_wrap_before_they_are_multiplied(session, mesh22):
    mesh = session.init_device_mesh((2,))
    a = session.from_local([np.full((2, 2), 100, np.int8)] * 2, mesh, [P("sum")])  # -56 each
    want = np.full((2, 2), -56)
    for dtype in ("int32", "float16", "float64"):
        b = session.distribute_tensor(np.eye(2, dtype=dtype), mesh)
        np.testing.assert_array_equal((a @ b).full_tensor(), want)
        np.testing.assert_array_equal(ts.einsum("ij,jk->ik", b, a).full_tensor(), want)
    eye = session.distribute_tensor(np.eye(2, dtype=np.int8), mesh)
    assert (a @ eye).placements == (P("sum"),)  # of one dtype nothing is converted
    np.testing.assert_array_equal((a @ eye).full_tensor(), want)


def test_a_pending_sum_of_bool_is_true_or_false(session):
    mesh = session.init_device_mesh((2,))
    t = session.from_local([np.array([True])] * 2, mesh, [P("sum")])
    for value in (t, t.sum(), ts.astype(t, "int32"), t.mean(), t.redistribute([R()], dtype="int32"), t + 0):
        np.testing.assert_array_equal(np.asarray(value.full_tensor()).reshape(()), 1)


@pytest.mark.parametrize("dtype, number", [("float32", 1e300), ("float16", 1e6), ("float32", np.inf)])
def test_a_number_that_is_infinite_in_the_dtype_makes_no_nan(session, dtype, number):
    x = session.from_local([np.array([2], dtype), np.array([-1], dtype)], session.init_device_mesh((2,)), [P("sum")])
    assert (x * number).full_tensor() == np.inf
    assert (x / 1e-60).full_tensor() == np.inf
    assert (x * 2.0).placements == (P("sum"),)


def test_nothing_moves_for_a_result_without_elements(session, mesh4):
    x = ts.ones((8, 5), device_mesh=mesh4, placements=[S(1)])
    none = ts.ones((0, 8), device_mesh=mesh4, placements=[S(1)])
    pending = ts.sum(ts.ones((4, 8, 5), device_mesh=mesh4, placements=[S(0)]), axis=0)
    row = ts.ones((1, 5), device_mesh=mesh4, placements=[S(1)])
    for make, shape in ((lambda: none @ x, (0, 5)), (lambda: none @ pending, (0, 5)), (lambda: none.T[:8, :] + row[:, :0], (8, 0)),
                        (lambda: ts.sum(none, axis=1), (0,)), (lambda: none + ts.ones((1, 8)), (0, 8)),
                        (lambda: ts.addmm(row, none, x), (0, 5))):
        plan = ts.explain(make)
        assert sum(plan.bytes_received) == 0, str(plan)
        with session.comm_debug() as comm:
            result = make().wait()
        assert result.shape == shape and sum(comm.bytes_received) == 0
        np.testing.assert_array_equal(np.asarray(result), np.ones(shape))
        np.testing.assert_array_equal(np.asarray(result + 1), np.ones(shape))


def test_an_empty_shard_of_an_extreme_is_not_seen(session, mesh4):
    y = session.distribute_tensor(np.array([1, 5, 3], "float32"), mesh4, [S(0)])  # three rows on four workers
    assert (y.max() + np.inf).full_tensor() == np.inf and (y.min() - np.inf).full_tensor() == -np.inf
    assert (y.max() + 1.0).full_tensor() == 6 and (y.max() + 1.0).placements == (P("max"),)


def test_bytes_that_overflow_in_a_wider_result_are_refused(session, mesh4):
    z = ts.zeros((0, 2**61 + 1), dtype="uint8", device_mesh=mesh4, placements=[R()])
    with pytest.raises(ts.InvalidArgumentError, match="sum: "):
        ts.sum(z, axis=0)


def test_a_slice_may_have_any_step(session, mesh4):
    x = session.distribute_tensor(np.arange(3), mesh4)
    for step in (2**70, -(2**70), 2**63):
        np.testing.assert_array_equal(x[::step].full_tensor(), np.arange(3)[::step])


@pytest.mark.parametrize("said, run", [
    ("bmm: needs a numeric dtype", lambda b, x, v: ts.bmm(b, b.mT)),
    ("outer: needs a numeric dtype", lambda b, x, v: ts.outer(b[0, 0], b[0, 0])),
    ("vecdot: inner dims differ", lambda b, x, v: ts.vecdot(x, v)),
    ("tensordot: inner dims differ", lambda b, x, v: ts.tensordot(x, x, axes=1)),
    ("zeros: shape", lambda b, x, v: ts.zeros((-1,), device_mesh=x.device_mesh)),
    ("ones: shape", lambda b, x, v: ts.ones((-1,), device_mesh=x.device_mesh)),
    ("empty_like: str is no Tensor", lambda b, x, v: ts.empty_like("3")),
    ("full_like: fill_value", lambda b, x, v: ts.full_like(x, "1")),
    ("arange: 0 to", lambda b, x, v: ts.arange(2**70, device_mesh=x.device_mesh)),
    ("operand: the integer 1180591620717411303424 does not fit", lambda b, x, v: v + 2**70),
    ("init_device_mesh: mesh_dim_names must be strings", lambda b, x, v: x.device_mesh._session.init_device_mesh((4,), mesh_dim_names=3)),
    ("init_device_mesh: mesh_dim_names .* UTF-8",
     lambda b, x, v: x.device_mesh._session.init_device_mesh((4,), mesh_dim_names=("\ud800",))),
])
def test_an_error_says_what_the_user_called(session, mesh4, said, run):
    values = np.ones((1, 4, 6), bool), np.ones((4, 6)), np.ones(5, int)
    with pytest.raises(ts.InvalidArgumentError, match=f"^{said}"):
        run(*(session.distribute_tensor(value, mesh4) for value in values))


@pytest.mark.parametrize("said, run", [
    ("bmm", lambda x, v: ts.bmm(x, ts.permute_dims(x, (0, 2, 1)))), ("outer", lambda x, v: ts.outer(v, v)),
    ("einsum", lambda x, v: ts.einsum("i,j->ij", v, v)), ("vecdot", lambda x, v: ts.vecdot(v[:, None, None], v[:, None])),
    ("tensordot", lambda x, v: ts.tensordot(v, v, axes=0)), ("addmm", lambda x, v: ts.addmm(0, v[:, None], v[None])),
    ("addmm", lambda x, v: ts.addmm(ts.zeros((1, 1), device_mesh=x.device_mesh), v[:, None], v[None], alpha=2)),
    ("matmul", lambda x, v: v[:, None] @ v[None]),
    *((name, lambda x, v, name=name: getattr(ts, name)((1 << 13, 1 << 13), device_mesh=x.device_mesh))
      for name in ("zeros", "ones", "empty")),
    ("full", lambda x, v: ts.full((1 << 26,), 3, device_mesh=x.device_mesh)),
    ("rand", lambda x, v: ts.rand(1 << 26, device_mesh=x.device_mesh)),
    ("randint", lambda x, v: ts.randint(9, shape=(1 << 26,), device_mesh=x.device_mesh)),
    ("linspace", lambda x, v: ts.linspace(0, 1, 1 << 26, device_mesh=x.device_mesh))])
def test_what_fails_later_says_what_the_user_called_too(new_cluster, said, run):
    """A tensor that does not fit: the coordinator says so, when the call is over."""
    with new_cluster(workers=2, memory="16MiB").connect() as session:
        x = ts.zeros((1 << 13, 1 << 13, 0), device_mesh=session.default_mesh)
        v = ts.zeros((1 << 13,), device_mesh=session.default_mesh)
        with pytest.raises(ts.ResourceExhaustedError, match=f"^{said}: does not fit"):
            run(x, v).wait()
        with pytest.raises(ts.ResourceExhaustedError, match="on the way here: .*negative f64"):
            (-run(x, v).astype("float64")).wait()
        with pytest.raises(ts.ResourceExhaustedError, match="^full: does not fit"):     # a name is gone with its call
            ts.full((1 << 26,), 3, device_mesh=x.device_mesh).wait()


def test_a_closed_session_says_so_itself(new_cluster):
    session = new_cluster().connect()
    mesh = session.default_mesh
    x = ts.ones((2, 2, 2), device_mesh=mesh)
    session.close()
    for run in (lambda: ts.zeros(3, device_mesh=mesh), lambda: ts.bmm(x, x)):
        with pytest.raises(ts.FailedPreconditionError, match="^session: it is closed"):
            run()


def test_an_in_place_op_says_its_name(session, mesh4):
    k = session.distribute_tensor(np.arange(3), mesh4)
    with pytest.raises(ts.DTypeError, match="add: an in-place op keeps the dtype"):
        k += 1.5


def test_sync_tells_no_failure_again(session, mesh4):
    x = ts.zeros((10**9,), device_mesh=mesh4, placements=[R()])
    with pytest.raises(ts.ResourceExhaustedError):
        x.wait()
    session.sync()


def test_a_view_of_a_mesh_flattens_to_its_own_dims(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"), workers=[3, 1, 2, 0])
    values = np.arange(12).reshape(4, 3)
    for names in (("tp",), ("dp",), ("dp", "tp"), ("tp", "dp")):
        flat = mesh[names].flatten("x")
        assert flat.shape == (2 ** len(names),) and flat.mesh_dim_names == ("x",)
        x = session.distribute_tensor(values, flat, [S(0)])
        np.testing.assert_array_equal(x.full_tensor(), values)
        y = session.distribute_tensor(values, mesh[names], [S(0)] * len(names))
        with session.comm_debug() as comm:
            x.redistribute(mesh[names], [S(0)] * len(names)).wait()
        assert sum(comm.bytes_received) == 0 and y.shape == x.shape


@pytest.mark.whole_system
@pytest.mark.parametrize("fetch", ["full_tensor", "to_local"])
def test_what_was_fetched_and_dropped_makes_room_for_what_comes_next(fetch):
    with ts.local_cluster(workers=4, memory="1MiB", device=DEVICE) as cluster, cluster.connect() as s:
        m = s.init_device_mesh((4,))
        for _ in range(100):
            x = ts.full(90000, 1.0, device_mesh=m, placements=[ts.Replicate()]).wait()
            x.full_tensor() if fetch == "full_tensor" else x.to_local(0)
            x = None


@pytest.mark.parametrize("make, said", [
    (lambda m: ts.full((2,), 2**63, device_mesh=m), f"full: fill_value {2**63} doesn't fit dtype i64, whose numbers are"),
    (lambda m: ts.full((2,), -(2**63) - 1, device_mesh=m), "full: fill_value -9223372036854775809 doesn't"),
    (lambda m: ts.full((2,), 256, dtype="uint8", device_mesh=m), "full: fill_value 256 doesn't fit dtype u8, whose numbers are 0 to 255"),
    (lambda m: ts.full_like(ts.ones((2,), dtype="int32", device_mesh=m), 2**31), f"full_like: fill_value {2**31} doesn't"),
    (lambda m: ts.arange(2**63, 2**63 + 3, device_mesh=m), f"arange: an element {2**63} doesn't"),
    (lambda m: ts.arange(250, 260, dtype="uint8", device_mesh=m), "arange: an element 259 doesn't fit dtype u8"),
    (lambda m: ts.arange(1e20, device_mesh=m), "arange: 0 to 1e\\+20 by 1 has more elements than 64 bits count"),
    (lambda m: ts.arange(2**70, device_mesh=m), "has more elements than 64 bits count"),
    (lambda m: ts.asarray([300], dtype="uint8", device_mesh=m), "asarray: an element 300 doesn't fit dtype u8"),
    (lambda m: ts.asarray(-1, dtype="uint64", device_mesh=m), "asarray: an element -1 doesn't fit dtype u64")])
def test_an_integer_that_the_dtype_has_not_is_refused(mesh4, make, said):
    with pytest.raises(ts.InvalidArgumentError, match="^(full|full_like|arange|asarray): .*" * said.startswith("has") + said):
        make(mesh4)


def test_integers_at_the_edge_of_a_dtype_are_taken(mesh4):
    for value, dtype in ((2**63, "uint64"), (2**64 - 1, "uint64"), (-(2**63), "int64"), (255, "uint8"), (-128, "int8")):
        for x in (ts.full((2,), value, dtype=dtype, device_mesh=mesh4), ts.asarray([value] * 2, dtype=dtype, device_mesh=mesh4),
                  ts.arange(value, value + 1, dtype=dtype, device_mesh=mesh4)):
            assert x.tolist() == [value] * x.size
    assert ts.asarray([1, 2**63 + 1], dtype="uint64", device_mesh=mesh4).tolist() == [1, 2**63 + 1]
    assert ts.asarray([2**63], device_mesh=mesh4).dtype == np.uint64    # as NumPy
    assert ts.asarray(np.array([300]), dtype="uint8", device_mesh=mesh4).tolist() == [44]    # what an array has wraps
    assert ts.full((1,), 2**63, dtype="float64", device_mesh=mesh4).tolist() == [2.0**63]


@pytest.mark.parametrize("shape, axis", [((0,), 0), ((3, 0), 1), ((0, 3), 1), ((0, 3), 0)])
def test_a_softmax_of_no_elements_has_none(mesh4, shape, axis):
    x = ts.zeros(shape, dtype="float32", device_mesh=mesh4, placements=[ts.Shard(0)])
    for function in (ts.softmax, ts.log_softmax):
        y = function(x, axis=axis)
        assert (y.shape, y.dtype) == (shape, np.float32) and y.full_tensor().shape == shape
