"""Functions that are made of many ops are one record from their second call of a kind on, and nothing else changes."""

import functools
import gc

import numpy as np
import pytest
from record_counts import CountedCall, examples, record_count

import _tessera
import tessera as ts
from tessera._recorded import MAX_GRAPHS, recorded
from tessera._catalog import OPS

MOST = 2

# Examples in whose place the function is called with tensors, which are there, and so that it needs no values of them.
SAMPLES = {
    "append": "ts.append(ts.asarray([1, 2]), ts.asarray([3]))",
    "array_equal": "ts.array_equal(ts.asarray([1, 2]), ts.asarray([1, 2]))",
    "choose": "ts.choose(ts.asarray([0, 1, 0]), [ts.asarray([1, 2, 3]), -1], mode='clip')",
    "convolve": "ts.convolve(ts.asarray([1, 2, 3]), ts.asarray([1, 1]))",
    "correlate": "ts.correlate(ts.asarray([1, 2, 3]), ts.asarray([0, 1]))",
    "cov": "ts.cov(ts.asarray([[1.0, 2.0, 5.0], [2.0, 4.0, 3.0]]), aweights=ts.asarray([1.0, 2.0, 1.0]))",
    "cumulative_sum": "ts.cumulative_sum(ts.asarray([1, 2, 3]), include_initial=True)",
    "histogram": "ts.histogram(ts.asarray([1.0, 2.0, 4.0]), bins=3, range=(0.0, 5.0))",
    "histogram2d": "ts.histogram2d(ts.asarray([0.0, 1.0, 1.0]), ts.asarray([0.0, 0.0, 1.0]), bins=2, range=((0, 1), (0, 1)))",
    "histogramdd": "ts.histogramdd(ts.asarray([[0.0, 0.0], [1.0, 1.0]]), bins=2, range=((0, 1), (0, 1)))",
    "histogram_bin_edges": "ts.histogram_bin_edges(ts.asarray([0.0, 4.0]), bins=2, range=(0.0, 1.0))",
    "in1d": "ts.in1d(ts.asarray([1, 2, 3]), ts.asarray([3, 1]))",
    "interp": "ts.interp(ts.asarray([0.5, 9.0]), ts.asarray([0.0, 1.0]), ts.asarray([10.0, 20.0]))",
    "isin": "ts.isin(ts.asarray([1, 2, 3]), ts.asarray([3, 1]))",
    "ix_": "ts.ix_(ts.asarray([0, 2]), ts.asarray([1]))",
    "polyadd": "ts.polyadd(ts.asarray([1, 2]), ts.asarray([3, 4, 5]))",
    "polyder": "ts.polyder(ts.asarray([3, 2, 1]))",
    "polyfit": "ts.polyfit(ts.asarray([0.0, 1.0, 2.0]), ts.asarray([1.0, 3.0, 5.0]), 1)",
    "polyint": "ts.polyint(ts.asarray([6.0, 2.0]))",
    "polymul": "ts.polymul(ts.asarray([1, 2]), ts.asarray([1, 3]))",
    "polysub": "ts.polysub(ts.asarray([1, 2]), ts.asarray([3, 4, 5]))",
    "ravel_multi_index": "ts.ravel_multi_index((ts.asarray([1, 0]), ts.asarray([2, 1])), (2, 3), mode='clip')",
}

# Functions whose second call has more records, and why.
_SHAPES = "the shape of its result depends on values"
_READS = "it reads values"
_WRITES = "it writes to its argument"
_CALLS = "it calls a function, which may do anything"
_DRAWS = "it draws random numbers, other ones each time"
_VIEWS = "its results are views of its arguments"
# These draw with a record or two.
DRAWS = ("exponential", "normal", "permutation", "rand", "randn", "uniform", "bernoulli", "dropout")
AS_THEY_ARE = {
    **dict.fromkeys(("argwhere", "compress", "extract", "flatnonzero", "intersect1d", "place", "setdiff1d", "setxor1d", "trim_zeros", "union1d",
                     "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"), _SHAPES),
    **dict.fromkeys(("asarray_chkfinite", "bincount", "digitize", "mask_indices", "nanargmax", "nanargmin", "polydiv", "real_if_close", "roots",
                     "unravel_index"), _READS),
    **dict.fromkeys(("copyto", "fill_diagonal", "put", "put_along_axis"), _WRITES),
    **dict.fromkeys(("apply_along_axis", "apply_over_axes", "fromfunction", "piecewise"), _CALLS),
    **dict.fromkeys(("choice", "randint", "shuffle"), _DRAWS),
    **dict.fromkeys(("meshgrid",), _VIEWS),
}


@pytest.fixture
def names(session, mesh4):
    return {"np": np, "mesh": mesh4, "session": session}


def bits_of(found) -> list:
    if isinstance(found, ts.Tensor):
        return [found.dtype, found.placements, found.full_tensor().tobytes()]
    if isinstance(found, (list, tuple)):
        return [type(found), *map(bits_of, found)]
    return [type(found)]


@pytest.mark.parametrize("name", sorted(examples()))
def test_a_function_asks_for_few_records(session, names, name):
    """Three runs of its example: the second and the third have at most two records, and the bits of the first."""
    one = CountedCall(session, name, SAMPLES.get(name, examples()[name]), names)
    (first, _), (second, again), (third, last) = (one.run() for _ in range(3))
    if name in AS_THEY_ARE:
        assert max(again, last) > MOST, "it is in the list for nothing"
        return
    assert max(again, last) <= MOST
    if name not in DRAWS:
        assert bits_of(first) == bits_of(second) == bits_of(third)


# ---- the decorator ---------------------------------------------------------------------------------

@recorded
def logit(p, scale=1.0):
    return ts.log(p / (1 - p)) * scale


def on(session, mesh, values, placements=None):
    return session.distribute_tensor(np.asarray(values), mesh, placements or [ts.Shard(0)])


def counted(session, function, *args, **kwargs):
    before = record_count(session)
    out = function(*args, **kwargs)
    return out, record_count(session) - before


@pytest.mark.parametrize("placements", [[ts.Shard(0)], [ts.Replicate()]])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_second_call_is_one_record(session, mesh4, dtype, placements):
    p = on(session, mesh4, np.linspace(0.1, 0.9, 13).astype(dtype), placements)
    first, many = counted(session, logit, p)
    second, one = counted(session, logit, p)
    assert (many, one) == (4, 1)
    assert bits_of(first) == bits_of(second)
    q = on(session, mesh4, np.linspace(0.2, 0.8, 13).astype(dtype), placements)
    assert counted(session, logit, q)[1] == 1
    np.testing.assert_allclose(logit(q).full_tensor(), np.log(q.full_tensor() / (1 - q.full_tensor())), rtol=1e-5)


def test_other_arguments_are_another_kind(session, mesh4):
    p = on(session, mesh4, np.linspace(0.1, 0.9, 8))
    for scale in (1.0, 2.0, 0.0, -0.0, 1, True):
        first, _ = counted(session, logit, p, scale=scale)
        second, records = counted(session, logit, p, scale=scale)
        assert records == 1 and bits_of(first) == bits_of(second)
        np.testing.assert_array_equal(np.signbit(second.full_tensor()), np.signbit(first.full_tensor()))


def test_the_same_tensor_twice_is_another_kind(session, mesh4):
    """What was recorded of f(x, x) isn't f(x, y)."""
    difference = recorded(lambda x, y: (x - y) * 2 + x)
    x, y = on(session, mesh4, np.arange(8.0)), on(session, mesh4, np.arange(8.0)[::-1].copy())
    for _ in range(3):
        np.testing.assert_array_equal(difference(x, x).full_tensor(), np.arange(8.0))
    for _ in range(3):
        np.testing.assert_array_equal(difference(x, y).full_tensor(), (np.arange(8.0) - np.arange(8.0)[::-1]) * 2 + np.arange(8.0))


def test_values_that_come_along_are_said_by_numbers(session, mesh4):
    values = np.array([[3.0, -0.0, np.inf], [1e-300, 0.1, -7.5]])
    shifted = recorded(lambda x: (x + values) * (values + 1)[0])
    x = on(session, mesh4, np.ones((2, 3)), [ts.Replicate()])
    first, _ = counted(session, shifted, x)
    second, records = counted(session, shifted, x)
    assert records == 1 and bits_of(first) == bits_of(second)


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_values_of_each_dtype_come_along(session, mesh4, dtype):
    numbers = np.array([0, 1, 100, 127, 3], "i8").astype(dtype)
    if dtype in ("i8", "u8"):
        numbers[2] = np.iinfo(dtype).max
    both = recorded(lambda x: ts.concat([ts.concat([x, ts.asarray(numbers, device_mesh=x.device_mesh)]), x])[1:])
    x = on(session, mesh4, numbers[::-1].copy(), [ts.Replicate()])
    assert bits_of(both(x)) == bits_of(both(x))
    np.testing.assert_array_equal(both(x).full_tensor(), np.concatenate([numbers[::-1], numbers, numbers[::-1]])[1:])


def test_values_that_go_away_unused(session, mesh4):
    """One is dropped before anything is asked for."""
    def unused(x):
        ts.asarray([1.0, 2.0], device_mesh=x.device_mesh)
        return (x + 1) * 2 - x
    unused = recorded(unused)
    x = on(session, mesh4, np.arange(4.0))
    first, _ = counted(session, unused, x)
    second, records = counted(session, unused, x)
    assert records == 1 and bits_of(first) == bits_of(second)


def test_a_function_that_reads_runs_as_it_is(session, mesh4):
    taken = []

    def scaled(x):
        taken.append(ts.max(x).item())
        return (x / taken[-1] + 1) * 2
    scaled = recorded(scaled)
    for factor in (1.0, 2.0, 4.0):
        np.testing.assert_array_equal(scaled(on(session, mesh4, factor * np.ones(4))).full_tensor(), 4 * np.ones(4))
    assert taken == [1.0, 2.0, 4.0]


def test_a_function_that_draws_runs_as_it_is(session, mesh4):
    noisy = recorded(lambda x: (x + ts.rand(x.shape, device_mesh=x.device_mesh)) * 2 + 1)
    x = on(session, mesh4, np.zeros(64))
    drawn = {noisy(x).full_tensor().tobytes() for _ in range(4)}
    assert len(drawn) == 4


def test_a_function_that_writes_to_its_argument_does_so_each_time(session, mesh4):
    def count(x):
        x += 1
        return x * 2 + x
    count = recorded(count)
    x = on(session, mesh4, np.zeros(4))
    for i in range(1, 5):
        np.testing.assert_array_equal(count(x).full_tensor(), np.full(4, 3.0 * i))
    np.testing.assert_array_equal(x.full_tensor(), np.full(4, 4.0))


def test_a_view_of_an_argument_stays_one(session, mesh4):
    corner = recorded(lambda x: ts.reshape(ts.permute_dims(x[1:], (1, 0)), (3, 3))[0])
    x = on(session, mesh4, np.zeros((4, 3)), [ts.Replicate()])
    for i in range(1, 4):
        corner(x)[0] = float(i)
        assert x.full_tensor()[1, 0] == i


def test_a_result_is_written_alone(session, mesh4):
    p = on(session, mesh4, np.full(4, 0.5))
    logit(p)
    first, second = logit(p), logit(p)
    first[0] = 7.0
    assert first.full_tensor()[0] == 7 and second.full_tensor()[0] == 0 and p.full_tensor()[0] == 0.5


def test_a_result_that_is_an_argument_stays_that_tensor(session, mesh4):
    same = recorded(lambda x, y: (x, ts.log(x * y + 1)))
    x = on(session, mesh4, np.ones(4))
    for _ in range(3):
        assert same(x, x)[0] is x


def test_structures_of_results(session, mesh4):
    parts = recorded(lambda x: (ts.linalg.EighResult(x + 1, (x + 2) * 3), [x * 4, None]))
    x = on(session, mesh4, np.arange(4.0))
    for _ in range(3):
        (values, vectors), (last, none) = out = parts(x)
        assert type(out[0]) is ts.linalg.EighResult and type(out[1]) is list and none is None
        for got, want in ((values, np.arange(4.0) + 1), (vectors, (np.arange(4.0) + 2) * 3), (last, np.arange(4.0) * 4)):
            np.testing.assert_array_equal(got.full_tensor(), want)


def test_a_pending_operand_is_reduced_once_by_all(session, mesh4):
    """Its ops share the reduced value, so they go one by one."""
    p = on(session, mesh4, np.full((8, 4), 0.1))
    total = ts.sum(p, axis=0)
    assert total.placements == (ts.Partial("sum"),)
    with session.comm_debug() as comm:
        for _ in range(3):
            np.testing.assert_allclose(logit(total).full_tensor(), np.log(0.8 / 0.2), rtol=1e-12)
    assert sum(comm.bytes_received) == sum(comm.bytes_received[:]) > 0


def test_a_refusal_is_the_function_s_own(session, mesh4):
    p = on(session, mesh4, np.arange(4.0))
    mixed = recorded(lambda x, y: ts.log(x + 1) @ y + 1)
    for _ in range(3):
        with pytest.raises(ts.InvalidArgumentError, match="matmul"):
            mixed(p, on(session, mesh4, np.ones((3, 3)), [ts.Replicate()]))


def test_what_moves_by_itself_is_told_each_time(session, mesh4):
    x, y = on(session, mesh4, np.ones((4, 8))), on(session, mesh4, np.ones((4, 8)), [ts.Shard(1)])
    together = recorded(lambda x, y: (x + y) * 2 + y)
    for _ in range(3):
        together(x, y)
    with ts.implicit_redistribution("forbid"), pytest.raises(ts.FailedPreconditionError, match="implicit redistribution is forbidden"):
        together(x, y)


def test_explain_shows_the_ops(session, mesh4):
    p = on(session, mesh4, np.full(8, 0.5))
    before = str(ts.explain(logit, p))
    logit(p), logit(p)
    assert str(ts.explain(logit, p)) == before and "div:f64" in before


def test_each_op_is_waited_for_in_a_blocking_block(session, mesh4):
    p = on(session, mesh4, np.full(8, 0.5))
    logit(p), logit(p)
    with ts.blocking():
        assert counted(session, logit, p)[1] == 4


def test_only_the_last_kinds_are_remembered(session, mesh4):
    own = recorded(lambda x, k: (x + k) * k - k)
    x = on(session, mesh4, np.ones(4))
    for k in range(2 * MAX_GRAPHS):
        own(x, k)
    assert len(own.graphs) == MAX_GRAPHS


def test_nothing_is_held_between_calls(session, mesh4):
    x = on(session, mesh4, np.ones(4))
    own = recorded(lambda x: (x + np.arange(4.0)) * 2 - x)
    own(x), own(x)
    gc.collect()
    held = session._counts()["tessera_client_live_tensors"]
    for _ in range(5):
        own(x)
    gc.collect()
    assert session._counts()["tessera_client_live_tensors"] == held


def test_a_graph_of_many_ops(session, mesh4):
    """More maps than one expression has nodes."""
    def series(x):
        total = term = x
        for k in range(2, 400):
            term = term * x / k
            total = total + term
        return total
    series = recorded(series)
    x = on(session, mesh4, np.linspace(0, 2, 9))
    first, many = counted(session, series, x)
    second, one = counted(session, series, x)
    assert many > 1000 and one == 1 and bits_of(first) == bits_of(second)
    np.testing.assert_allclose(second.full_tensor(), np.expm1(np.linspace(0, 2, 9)), rtol=1e-12)


def test_a_failure_names_the_line_of_the_call(session, mesh4):
    """A worker finds a number that is too large, also where all ops are one record."""
    small = recorded(lambda x: ts.check_range(x + 1, 0, 7) * 2 + 1)
    good, bad = on(session, mesh4, np.arange(4)), on(session, mesh4, np.arange(4) * 3)
    for most in (4, 1, 1):
        out, records = counted(session, small, bad)
        assert records <= most
        np.testing.assert_array_equal(small(good).full_tensor(), (np.arange(4) + 1) * 2 + 1)
        with pytest.raises(ts.NumberOutOfRangeError, match="is not from 0 to 7.*test_recorded.py"):
            out.wait()


def test_large_tensors_go_op_by_op(session, mesh4):
    """One plan may need more memory at once than its ops one by one."""
    p = on(session, mesh4, np.full(5_000_000, 0.5))
    for _ in range(3):
        assert counted(session, logit, p)[1] == 4


def test_a_graph_of_too_many_nodes_goes_op_by_op(session, mesh4):
    def deep(x):
        for _ in range(400):
            x = ts.softmax(x)
        return x
    deep = recorded(deep)
    x = on(session, mesh4, np.arange(4.0))
    for _ in range(3):
        out, records = counted(session, deep, x)
        assert records in (400, 401)        # the refused graph is asked for once
        np.testing.assert_allclose(out.full_tensor(), np.full(4, 0.25), atol=0.01)


def test_the_row_itself(session, mesh4):
    """Results in any order, also twice and of an operand; refused in words what is no graph."""
    x, y = on(session, mesh4, np.arange(8.0)), on(session, mesh4, np.ones(8), [ts.Replicate()])
    call = functools.partial(_tessera.call_all, OPS["graph"])
    total, product, again = call((x, y), notation="multiply|%0|$2.0\nadd|%2|%1\nsum|%3|@dims=[0]\nreturn|%4|%2|%2")
    np.testing.assert_array_equal(product.full_tensor(), np.arange(8.0) * 2)
    np.testing.assert_array_equal(again.full_tensor(), np.arange(8.0) * 2)
    assert total.full_tensor() == np.arange(8.0).sum() * 2 + 8 and total.placements == (ts.Partial("sum"),)
    for notation, why in (("exp|%7\nreturn|%2", "value 7 is not there yet"), ("return", "no results"), ("nothing|%0\nreturn|%0", "unknown op")):
        with pytest.raises(ts.InvalidArgumentError, match=f"graph: .*{why}"):
            call((x, y), notation=notation)
