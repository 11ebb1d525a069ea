"""What ops under sharding move, forward and backward, beside DTensor's on torch's fake process group: never more bytes, nor more
collectives."""

import functools
import json
import pathlib
import subprocess
import sys

import pytest
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


# Where less is moved in more messages, of numbers of rows instead of the rows.
MORE_MESSAGES = {"linear by columns of sharded rows", "softmax along the shards", "embedding by rows"}


@pytest.mark.parametrize("case", CASES)
def test_an_op_moves_no_more_than_dtensors(session, mesh, case):
    theirs, found = dtensors()[case], ours(session, mesh, case)
    assert not isinstance(theirs, str), theirs
    (own_bytes, own_count), (their_bytes, their_count) = ([sum(one[k] for one in side) for k in (0, 1)] for side in (found, theirs))
    if case in MORE_MESSAGES:
        assert own_bytes < their_bytes, (found, theirs)
    else:
        assert own_bytes <= their_bytes and own_count <= their_count, (found, theirs)


def test_many_cases_move_something():
    assert len(CASES) >= 30
    assert sum(forward[0] + backward[0] > 24 for forward, backward in dtensors().values()) >= 15      # 24: the loss itself
