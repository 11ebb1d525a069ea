"""Faults that the servers must survive: what fails is told and named, memory comes back, everything else goes on."""

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def test_status_is_given_while_refused_tensors_are_held(session, mesh4):
    kept = ts.ones((8,), device_mesh=mesh4)
    refused = ts.zeros((1 << 14, 1 << 14), device_mesh=mesh4, placements=[R()])
    with pytest.raises(ts.ResourceExhaustedError):
        refused.wait()
    assert [one.shape for one in session.tensors()] == [kept.shape]
