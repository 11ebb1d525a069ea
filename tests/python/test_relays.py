"""Hosts that want the same bytes of one host pass them on to each other, where that is faster."""

import numpy as np
import pytest

import tessera as ts

from test_programs import R, S


@pytest.fixture(scope="module")
def far_workers():
    """Four workers that reach each other by messages alone, each as if on a host of its own."""
    with ts.local_cluster(workers=4, memory="64MiB", transport="ucx") as cluster, cluster.connect() as session:
        yield session


def test_the_source_gives_each_element_once(far_workers):
    session = far_workers
    everyone, one = session.init_device_mesh((4,)), session.init_device_mesh((1,))
    values = np.random.default_rng(2).random(1 << 20, dtype="f4")
    for placement in ([R()], [S(0)]):
        x = session.distribute_tensor(values, one if placement == [R()] else everyone, placement)
        plan = x.explain_redistribute(device_mesh=everyone, placements=[R()])
        with session.comm_debug() as comm:
            y = x.redistribute(device_mesh=everyone, placements=[R()])
        for position in everyone.positions():
            np.testing.assert_array_equal(y.to_local(position), values)
        assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, str(plan)
        assert max(plan.bytes_sent) <= values.nbytes + 64, str(plan)  # 3 times that from the one, if it gave to all
        assert any("by relays" in step for step in plan.steps) == (placement == [R()]), plan.steps


def test_a_small_tensor_goes_straight_to_all(far_workers):
    session = far_workers
    x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,)), [R()])
    plan = x.explain_redistribute(device_mesh=session.init_device_mesh((4,)), placements=[R()])
    assert len(plan.steps) == 1 and "by relays" not in plan.steps[0], plan.steps


def test_several_tensors_are_given_once_together(far_workers):
    session = far_workers
    everyone, one = session.init_device_mesh((4,)), session.init_device_mesh((1,))
    values = [np.random.default_rng(k).random(shape, dtype="f4") for k, shape in enumerate([(1 << 19,), (300, 700), (5,)])]
    tensors = [session.distribute_tensor(value, one, [R()]) for value in values]
    with session.comm_debug() as comm:
        moved = ts.redistribute(tensors, device_mesh=everyone, placements=[R()])
    total = sum(value.nbytes for value in values)
    assert max(comm.bytes_sent) <= total + 256 and sum(comm.bytes_received) == 3 * total, comm.bytes_sent
    for tensor, value in zip(moved, values):
        for position in everyone.positions():
            np.testing.assert_array_equal(tensor.to_local(position), value)
