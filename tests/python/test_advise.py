"""ts.advise finds faults, and its advice holds."""

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def names(findings):
    return [finding.name for finding in findings]


def test_shards_that_are_small_uneven_or_empty_are_found(session, mesh4):
    assert names(ts.advise(ts.ones((64, 8), device_mesh=mesh4, placements=[S(0)]))) == ["small shards"]
    large = ts.ones((1024, 1024), device_mesh=mesh4, placements=[S(0)])
    assert ts.advise(large) == []
    uneven = large.redistribute([S(0, sizes=[700, 100, 124, 100])])
    (finding,) = ts.advise(uneven)
    assert finding.name == "uneven shards" and "2.7 times" in str(finding)
    empty = ts.ones((3, 1 << 17), device_mesh=mesh4, placements=[S(0)])
    (finding,) = ts.advise(empty)
    assert finding.name == "empty shards" and finding.text.startswith("Workers 3 have nothing of x")
    assert ts.advise(ts.ones((3,), device_mesh=mesh4)) == [] and ts.advise(ts.ones((0, 3), device_mesh=mesh4, placements=[S(0)])) == []


def test_copies_and_terms_are_found(session, mesh4):
    (finding,) = ts.advise(ts.ones((512, 1024), device_mesh=mesh4, placements=[R()]))
    assert finding.name == "replicated" and "16 MiB in place of 4 MiB" in finding.text and "ts.Shard(1)" in finding.text
    pending = ts.sum(ts.ones((4, 512, 512), device_mesh=mesh4, placements=[S(0)]), axis=0)
    (finding,) = ts.advise(pending)
    moved = sum(pending.explain_redistribute([R()]).bytes_received)
    assert finding.name == "pending" and moved == 2 * 3 * pending.nbytes and "12 MiB" in finding.text
    assert ts.advise(pending.redistribute([S(0)])) == []


def test_a_placement_that_moves_less_is_found_and_moves_less(session, mesh4):
    x = ts.ones((1024, 1024), device_mesh=mesh4, placements=[S(1)])
    (finding,) = ts.advise(x, ts.softmax)
    assert finding.name == "placement" and "softmax moves" in finding.text and "and 0 B with x as [S(0)]" in finding.text
    with session.comm_debug() as comm:
        ts.softmax(x).wait()
    assert comm.total_bytes == sum(ts.explain(ts.softmax, x).bytes_received) > 0
    y = x.redistribute([S(0)]).wait()
    with session.comm_debug() as comm:
        ts.softmax(y).wait()
    assert comm.total_bytes == 0 and ts.advise(y, ts.softmax) == []
    w = ts.ones((1024, 64), device_mesh=mesh4, placements=[R()])
    assert ts.advise(y, lambda x: x @ w) == []


def test_nothing_runs_and_what_is_no_tensor_is_named(session, mesh4):
    x = ts.ones((1024, 1024), device_mesh=mesh4, placements=[S(1)])
    x.wait()
    with session.comm_debug() as comm:
        assert ts.advise(x, ts.softmax, lambda x: ts.sort(x, axis=1))
    assert comm.total_bytes == 0 and comm.collective_counts == {}
    with pytest.raises(TypeError, match="advise: x is ndarray"):
        ts.advise(np.ones(3))
    with pytest.raises(ts.InvalidArgumentError, match="advise: 3 is no function"):
        ts.advise(x, 3)
