"""Pending sums in programs of torch: reduced where an op needs values, once for all of them, as the catalog says which ops those are."""

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

S, R, P = ts.Shard, ts.Replicate(), ts.Partial()
ROWS, COLUMNS = 8, 64
ALL_REDUCE = 2 * 3 * ROWS * COLUMNS * 4     # each of 4 workers brings the other terms of its quarter, and the other quarters


@pytest.fixture
def product(mesh):
    """A pending sum, and its value."""
    a, b = torch.randn(ROWS, 16), torch.randn(16, COLUMNS)
    y = tt.distribute_tensor(a, mesh, [S(1)]) @ tt.distribute_tensor(b, mesh, [S(0)])
    assert y.placements == (P,)
    return y, a @ b


def near(found, wanted) -> None:
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)


def test_ops_that_need_the_values_reduce_a_sum_once_for_all(session, product):
    y, value = product
    y.wait()
    with session.comm_debug() as comm:
        found = [F.gelu(y), y * y, y.exp(), F.layer_norm(y, (COLUMNS,)), y.abs(), torch.where(y > 0, y, -1.0), y.amax(1)]
        for one in found:
            one.wait()
    assert sum(comm.bytes_received) == ALL_REDUCE
    assert all(one.placements == (R,) for one in found) and y.placements == (P,)
    near(found[0], F.gelu(value))
    near(found[3], F.layer_norm(value, (COLUMNS,)))
    near(found[6], value.amax(1))


@pytest.mark.parametrize("keep", [lambda y: y + y, lambda y: -y, lambda y: y * 2.0, lambda y: y / 2.0, lambda y: y.sum(), lambda y: y.mean(1),
                                  lambda y: y.t(), lambda y: y[2:4], lambda y: y.reshape(-1)])
def test_ops_that_the_catalog_lets_pass_a_sum_on_move_nothing(session, product, keep):
    y, value = product
    y.wait()
    with session.comm_debug() as comm:
        out = keep(y).wait()
    assert sum(comm.bytes_received) == 0 and out.placements == (P,)
    near(out, keep(value))


def test_beside_shards_a_sum_is_reduced_to_shards(session, mesh, product):
    y, value = product
    factor = torch.randn(ROWS, COLUMNS)
    sharded = tt.distribute_tensor(factor, mesh, [S(0)])
    y.wait()
    with session.comm_debug() as comm:
        out = (y * sharded).wait()
    assert out.placements == (S(0),) and sum(comm.bytes_received) == ALL_REDUCE // 2
    near(out, value * factor)


def test_results_of_a_sum_are_reduced_once_too(session, product):
    """A conversion stays pending; what comes of it is used twice."""
    y, value = product
    wide = y.double().wait()
    assert wide.placements == (P,)
    with session.comm_debug() as comm:
        a, b = wide.exp().wait(), wide.cos().wait()
    assert sum(comm.bytes_received) == 2 * ALL_REDUCE       # of f64, one time
    near(a, value.double().exp())
    near(b, value.double().cos())


def test_a_write_is_no_reduction_of_what_was_there(product):
    y, value = product
    near(y.exp(), value.exp())
    y.mul_(2.0)
    near(y.exp(), (2 * value).exp())


def test_a_product_reduces_its_operand_and_not_its_larger_result(session, mesh, product):
    y, value = product
    wide = torch.randn(COLUMNS, 8 * COLUMNS)
    whole = tt.distribute_tensor(wide, mesh, [R])
    y.wait()
    with session.comm_debug() as comm:
        out = (y @ whole).wait()
    assert sum(comm.bytes_received) <= ALL_REDUCE and not out.placements[0].is_partial()
    torch.testing.assert_close(out.cpu(), value @ wide, rtol=1e-3, atol=1e-3)


def test_a_captured_step_reduces_once_each_time(session, mesh):
    a, b = (tt.distribute_tensor(torch.randn(8, 16), mesh, [S(1)]), tt.distribute_tensor(torch.randn(16, 8), mesh, [S(0)]))

    @tt.capture
    def step(x):
        y = x @ b
        return y.exp() + y.cos() + y.abs()

    want = [step(a).cpu() for _ in range(2)]
    with session.comm_debug() as comm:
        third = step(a)
        third.wait()
    assert torch.equal(third.cpu(), want[0]) and torch.equal(want[0], want[1])
    assert sum(comm.bytes_received) == 2 * 3 * 8 * 8 * 4
    other = tt.distribute_tensor(torch.randn(8, 16), mesh, [S(1)])
    y = (other.cpu() @ b.cpu())
    near(step(other), y.exp() + y.cos() + y.abs())
