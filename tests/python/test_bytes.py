"""Fewest bytes, through real workers: on every ordered pair of placements of small worlds, what a plan says, what the
workers count and the bound computed here, element by element, are equal."""

import collections
import itertools

import numpy as np
import pytest

import tessera as ts

from conftest import TRANSPORT
from test_programs import P, R, S, box_of


def elements(box):
    return itertools.product(*(range(start, stop) for start, stop in box))


def holders(shape, placements, mesh_shape):
    """For each element, the positions that hold it (of a pending tensor: a term of it)."""
    out = collections.defaultdict(list)
    for position in itertools.product(*(range(n) for n in mesh_shape)):
        for element in elements(box_of(shape, placements, mesh_shape, position)):
            out[element].append(position)
    return out


def fewest_transfers(shape, source, destination, mesh_shape):
    """c terms to r destinations need c + r - 2 transfers where a destination owns a term, else c + r - 1."""
    have, want = holders(shape, source, mesh_shape), holders(shape, destination, mesh_shape)
    pending = [d for d, p in enumerate(source) if p.is_partial()]
    total = 0
    for element in itertools.product(*(range(n) for n in shape)):
        if not pending:
            total += len(set(want[element]) - set(have[element]))
            continue
        terms = {tuple(position[d] for d in pending) for position in have[element]}
        owned = bool(set(have[element]) & set(want[element]))
        total += len(terms) + len(want[element]) - (2 if owned else 1)
    return total


def pairs(rank, ndim):
    plain = [R()] + [S(d) for d in range(rank)]
    sources = [list(p) for p in itertools.product(plain + [P("sum")], repeat=ndim)]
    destinations = [list(p) for p in itertools.product(plain, repeat=ndim)]
    return itertools.product(sources, destinations)


@pytest.mark.parametrize("shape", [(5, 7), (8,), (3,)], ids=str)
@pytest.mark.parametrize("mesh_shape, workers", [((4,), [2, 0, 3, 1]), ((2, 2), None), ((3,), [3, 1, 0])], ids=str)
def test_plan_counters_and_bound_are_equal(session, rng, mesh_shape, workers, shape):
    mesh = session.init_device_mesh(mesh_shape, workers=workers)
    values = rng.integers(-4, 5, shape).astype("f8")
    for source, destination in pairs(len(shape), len(mesh_shape)):
        pending = [d for d, p in enumerate(source) if p.is_partial()]

        def local(position):
            box = box_of(shape, source, mesh_shape, position)
            return values[tuple(slice(*i) for i in box)] * (1 + sum(position[d] for d in pending))

        x = session.from_local(local, mesh, source, shape=shape)
        plan = x.explain_redistribute(destination)
        with session.comm_debug() as comm:
            y = x.redistribute(destination)
        by_position = [[comm_bytes[w] for w in mesh.workers] for comm_bytes in (comm.bytes_received, comm.bytes_sent)]
        assert by_position == [plan.bytes_received, plan.bytes_sent], f"{comm}\n{plan}"
        assert sum(comm.bytes_received) == sum(plan.bytes_received) == sum(comm.bytes_sent), f"{comm}\n{plan}"
        assert sum(plan.bytes_received) == 8 * fewest_transfers(shape, source, destination, mesh_shape), str(plan)
        if not pending:
            have, want = holders(shape, source, mesh_shape), holders(shape, destination, mesh_shape)
            missing = collections.Counter(position for e in want for position in want[e] if position not in have[e])
            assert plan.bytes_received == [8 * missing[position] for position in mesh.positions()], str(plan)
        factor = sum(1 + sum(c) for c in itertools.product(*(range(mesh_shape[d]) for d in pending)))
        np.testing.assert_array_equal(y.full_tensor(), values * factor, err_msg=str(plan))


@pytest.mark.parametrize("mesh_shape", [(4,), (2, 2)], ids=str)
def test_plan_and_counters_of_matmul_are_equal(session, rng, mesh_shape):
    mesh = session.init_device_mesh(mesh_shape)
    a, b = rng.integers(-4, 5, (5, 7)).astype("f8"), rng.integers(-4, 5, (7, 3)).astype("f8")
    places = [list(p) for p in itertools.product([R(), S(0), S(1)], repeat=len(mesh_shape))]
    for left, right in itertools.product(places, places):
        x, y = session.distribute_tensor(a, mesh, left), session.distribute_tensor(b, mesh, right)
        plan = ts.explain(ts.matmul, x, y)
        with session.comm_debug() as comm:
            z = x @ y
        assert comm.bytes_received == plan.bytes_received and comm.bytes_sent == plan.bytes_sent, f"{comm}\n{plan}"
        np.testing.assert_array_equal(z.full_tensor(), a @ b, err_msg=str(plan))


@pytest.mark.parametrize("mesh_shape, source, destination", [((4,), [S(0)], [R()]), ((4,), [S(1)], [R()]),
                                                             ((2, 2), [S(0), S(1)], [R(), S(1)]),
                                                             ((2, 2), [S(0), R()], [R(), R()])], ids=str)
def test_what_all_want_is_stored_by_its_holders(session, rng, mesh_shape, source, destination):
    values = rng.integers(0, 256, (4096, 8192)).astype("u1")
    x = session.distribute_tensor(values, session.init_device_mesh(mesh_shape), source)
    plan = x.explain_redistribute(destination)
    assert ("stored by holders" in plan.steps[0]) == (TRANSPORT == "shm")
    for _ in range(3):  # into memory that was used before
        with session.comm_debug() as comm:
            y = x.redistribute(destination)
        assert (comm.bytes_received, comm.bytes_sent) == (plan.bytes_received, plan.bytes_sent), f"{comm}\n{plan}"
        for position in y.device_mesh.positions():
            assert np.array_equal(y.to_local(position), values[tuple(slice(*i) for i in y.box(position))])
