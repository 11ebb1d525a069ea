"""The bytes that ops under sharding move, forward and backward, beside DTensor's on torch's fake process group: never more bytes, nor more
collectives."""

import functools
import json
import pathlib
import subprocess
import sys

import pytest
import torch
from byte_cases import CASES, R, run

import tessera as ts
import tessera.torch as tt


@functools.lru_cache(maxsize=None)
def dtensors() -> dict:
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("byte_cases.py")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def ours(session, mesh, case) -> list:
    steps = run(case, lambda value, place: tt.distribute_tensor(value, mesh, [ts.Replicate() if place == R else ts.Shard(place)]),
                lambda one: one.redistribute(placements=[ts.Replicate()]),
                lambda leaf: leaf.grad.redistribute(placements=leaf.placements))
    next(steps)
    found = []
    for _ in range(2):
        with session.comm_debug() as comm:
            next(steps)
        found.append([sum(comm.bytes_received), collectives(comm.collective_counts)])
    return found


def collectives(counts) -> int:
    """As DTensor counts: an all-reduce of the service is a sum into shards (a reduce-scatter, or an all-to-all of terms) and an
    all-gather; a slice moves nothing."""
    return max(counts.get("all_gather", 0), counts.get("reduce_scatter", 0) + counts.get("all_to_all", 0)) + counts.get("all_reduce", 0)


@pytest.mark.parametrize("case", CASES)
def test_an_op_moves_no_more_than_dtensors(session, mesh, case):
    theirs, found = dtensors()[case], ours(session, mesh, case)
    assert not isinstance(theirs, str), theirs
    (own_bytes, own_count), (their_bytes, their_count) = ([sum(one[k] for one in side) for k in (0, 1)] for side in (found, theirs))
    assert own_bytes <= their_bytes and own_count <= their_count, (found, theirs)


def test_what_is_not_small_moves_fewer_bytes_in_more_messages(session, mesh):
    """Rows of 8192 numbers that are cut: DTensor gathers them, 3 times 8 of them; here numbers of rows are reduced, of the forward
    pass two of each row, and of the backward pass one."""
    x = tt.distribute_tensor(torch.randn(8, 8192), mesh, [ts.Shard(1)]).requires_grad_()
    with session.comm_debug() as comm:
        out = torch.softmax(x, -1)
        out.backward(out.detach())
    assert out.placements == x.grad.placements == (ts.Shard(1),)
    assert sum(comm.bytes_received) == 3 * 2 * 3 * 8 * 4 < 3 * x.nbytes
    assert collectives(comm.collective_counts) == 3


def test_many_cases_move_something():
    assert len(CASES) >= 30
    assert sum(forward[0] + backward[0] > 24 for forward, backward in dtensors().values()) >= 15      # 24: the loss itself
