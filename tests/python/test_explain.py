"""ts.explain of functions with several ops: the plans of all of them, and nothing that runs."""

import operator

import numpy as np
import pytest

import tessera as ts

R, S, P = ts.Replicate(), ts.Shard, ts.Partial


@pytest.fixture
def ordinal(session):
    """The next instruction's name: as long as it stays, nothing ran."""
    return lambda: session.status()["next_ordinal"]


def agree(session, function, *args):
    """The plan of the function, whose bytes are those that running it moves."""
    plan = ts.explain(function, *args)
    with session.comm_debug() as comm:
        result = function(*args)
    assert plan.bytes_received == comm.bytes_received, plan
    assert plan.bytes_sent == comm.bytes_sent, plan
    assert plan.placements == result.placements and plan.output == result._spec
    return plan


def test_every_op_of_the_function_is_planned(session, mesh4):
    a = ts.ones((8, 16), device_mesh=mesh4, placements=[S(1)], dtype="f4")
    w = ts.ones((16, 3), device_mesh=mesh4, placements=[S(0)], dtype="f4")
    c = ts.ones((8, 3), device_mesh=mesh4, placements=[S(0)], dtype="f4")
    b = ts.ones((8,), device_mesh=mesh4, placements=[S(0)], dtype="f4")
    plan = agree(session, ts.addmm, c, a, w)
    assert plan.bytes_received == [72] * 4 and plan.placements == (S(0),)
    assert len(plan.steps) == 3 and len(plan.implicit) == 1 and plan.grid
    assert str(plan).count("plan {") == 2
    assert agree(session, ts.einsum, "ab,c->a", a, b).bytes_received == [36, 28, 28, 28]
    assert len(agree(session, lambda x: x + x + x, a).steps) == 2
    agree(session, ts.argmax, a)
    agree(session, ts.mean, a)
    agree(session, lambda x: ts.linspace(0, 1, 8) + x.redistribute([R])[0, :8], a)


def test_figures_of_several_ops_are_those_of_all(session, mesh4):
    x = ts.ones((64, 64), device_mesh=mesh4, placements=[S(0)])
    first = ts.explain(ts.redistribute, x, [R])
    second = ts.explain(ts.redistribute, x.redistribute([R]), [S(1)])
    both = ts.explain(lambda t: t.redistribute([R]).redistribute([S(1)]), x)
    assert both.steps == first.steps + second.steps
    assert both.bytes_received == [p + q for p, q in zip(first.bytes_received, second.bytes_received)]
    assert both.peak_bytes == [max(p, q) for p, q in zip(first.peak_bytes, second.peak_bytes)]
    assert both.predicted_seconds == first.predicted_seconds + second.predicted_seconds
    assert both.placements == second.placements and both.output == second.output
    assert str(both) == f"{first}\n{second}"


def test_a_view_of_a_planned_result_is_planned_as_it_lies(session, mesh4):
    x = ts.ones((8, 16), device_mesh=mesh4, placements=[R])
    y = x + x
    turned = ts.explain(lambda t: ts.reshape(t.T[::2], (64,)), y)
    assert turned.steps == ts.explain(ts.reshape, y.T[::2], (64,)).steps
    assert "strides" in str(ts.explain(lambda t: (t + t).T[::2] + 1, x))


def test_figures_on_several_meshes_go_by_worker(session):
    front, back = (session.init_device_mesh((2,), workers=workers) for workers in ([0, 1], [3, 2]))
    x = ts.ones((8, 8), device_mesh=front, placements=[S(0)])
    y = ts.ones((8, 8), device_mesh=back, placements=[S(0)])

    def both():
        x.redistribute([R])
        return y.redistribute([R])[:4]

    plan = ts.explain(both)
    assert plan.bytes_received == [256] * 4 and plan.peak_bytes == [768] * 4
    assert ts.explain(lambda: (y.redistribute([R]), y + 1)).bytes_received == [256] * 2


def test_figures_go_by_worker_where_meshes_differ_and_nothing_moves(session):
    one, other = (session.init_device_mesh((2,), workers=workers) for workers in ([3, 1], [1, 3]))
    x = ts.ones((8,), device_mesh=one, placements=[R])
    plan = x.explain_redistribute(other, [R])
    assert not plan.steps and plan.bytes_received == plan.bytes_sent == [0] * 4 and plan.peak_bytes == [0, 64, 0, 64]
    assert x.explain_redistribute(one, [R]).bytes_received == [0, 0]


def test_nothing_of_an_explained_function_runs(session, mesh4, ordinal):
    x = ts.ones((8,), device_mesh=mesh4, placements=[S(0)]).wait()
    before, tensors = ordinal(), len(session.tensors())

    def program(t):
        t += ts.rand(8)
        t = t * session.distribute_tensor(np.arange(8.0), mesh4, [S(0)])
        p, q = ts.redistribute([t, t], placements=[[R], [S(0)]])
        return ts.sum(p + q + np.ones(8))

    assert ts.explain(program, x).output == "f64[] @ mesh(4) [P(sum)]"
    assert ts.explain(operator.iadd, x, 1).placements == (S(0),)
    assert ordinal() == before and len(session.tensors()) == tensors
    np.testing.assert_array_equal(x.full_tensor(), np.ones(8))


def test_a_function_that_reads_what_is_planned_is_refused(session, mesh4):
    x = ts.ones((8,), device_mesh=mesh4, placements=[S(0)])
    for read in (lambda t: t.full_tensor(), lambda t: bool(ts.any(t)), lambda t: t.sum().item(), lambda t: t.wait(),
                 lambda t: t.to_local(0), lambda t: t.tolist()):
        with pytest.raises(ts.FailedPreconditionError, match="explain: .*was planned and never runs: it has no values"):
            ts.explain(lambda: read(x + 1))
    kept = []
    ts.explain(lambda: kept.append(x + 1))
    with pytest.raises(ts.FailedPreconditionError, match="never runs"):
        kept[0] * 2
    with pytest.raises(ts.FailedPreconditionError, match="never runs"):
        kept[0].full_tensor()
    # Values that are there may be read, and an error of an op is the op's.
    assert ts.explain(lambda: x * float(x.full_tensor()[0])).placements == (S(0),)
    with pytest.raises(ts.InvalidArgumentError, match="broadcast"):
        ts.explain(lambda: (x + 1) + ts.ones((3,)))
    np.testing.assert_array_equal((x + 1).full_tensor(), np.full(8, 2.0))


def test_explained_functions_may_explain(session, mesh4):
    x = ts.ones((64,), device_mesh=mesh4, placements=[S(0)])
    seen = []

    def outer():
        y = x + 1
        seen.append(ts.explain(lambda: (y * 2).redistribute([R])))
        seen.append(y.explain_redistribute([R]))
        return y - 1

    assert len(ts.explain(outer).steps) == 2
    assert seen[0].bytes_received == seen[1].bytes_received == [48 * 8] * 4


def test_what_is_rebound_in_place_is_what_it_was(session, mesh4):
    weights = [session.distribute_tensor(np.ones(8), mesh4, [S(0)])]
    alias = weights[0]

    def step(fails=False):
        weights[0] -= 0.5
        weights[0] *= 2.0
        assert weights[0] is alias
        if fails:
            raise KeyError("in the middle")
        return weights[0]

    assert len(ts.explain(step).steps) == 2
    np.testing.assert_array_equal(weights[0].full_tensor(), np.ones(8))
    with pytest.raises(KeyError):
        ts.explain(step, fails=True)
    np.testing.assert_array_equal(alias.full_tensor(), np.ones(8))
    np.testing.assert_array_equal(step().full_tensor(), np.ones(8))


def test_of_no_elements_any_is_false_and_all_is_true(session, mesh4):
    empty = ts.zeros((0, 3), device_mesh=mesh4)
    assert not ts.any(empty).item() and ts.all(empty).item()
    assert ts.any(empty, axis=0).tolist() == [False] * 3 and ts.all(empty, axis=0).tolist() == [True] * 3


def test_an_operand_that_is_given_twice_is_there_once(session, mesh4):
    x, y = (ts.ones((64, 64), device_mesh=mesh4, placements=[S(0)]) for _ in range(2))
    own = x.nbytes // 4
    for op in (ts.add, ts.matmul):
        once, twice = ts.explain(op, x, x), ts.explain(op, x, y)
        assert [b - a for a, b in zip(once.peak_bytes, twice.peak_bytes)] == [own] * 4
    assert ts.explain(ts.add, x, x.T).peak_bytes[0] < ts.explain(ts.add, x, y.T).peak_bytes[0]  # a view of it
