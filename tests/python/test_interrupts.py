"""Ctrl-C leaves values whole: a name that is updated in place keeps a value, whatever was queued when it came."""

import random
import time
import warnings

import numpy as np
import pytest

import tessera as ts
from interrupts import interrupted
from tessera import Replicate as R
from tessera import Shard as S

LIMIT_S = 2.0       # of a wait for the next look at signals, on a machine that is busy


@pytest.mark.parametrize("placement", [S(0), R()], ids=["sharded", "replicated"])
def test_a_name_that_is_updated_in_place_keeps_a_value(mesh4, placement):
    x = ts.zeros((64, 64), device_mesh=mesh4, placements=[placement])
    y = ts.ones((64, 64), device_mesh=mesh4, placements=[placement])
    count = 0

    def step():
        nonlocal x, y, count
        gradient = ts.ones_like(x) @ y * 0 + 1
        x += gradient
        y[0, 0] = 1
        y *= 1.0
        count += 1
        if count % 7 == 0:
            float(x[0, 0])

    for seed in range(8):
        took = interrupted(step, random.Random(seed).uniform(0.005, 0.2))
        values = x.full_tensor()
        assert (values == values[0, 0]).all() and count - 1 <= values[0, 0] <= count + seed + 1
        np.testing.assert_array_equal(y.full_tensor(), np.ones((64, 64)))
        x += 1
        assert float(x[0, 0]) == values[0, 0] + 1
        x -= 1
        assert took < LIMIT_S


def test_what_leads_to_an_update_runs_on_and_the_rest_is_cancelled(mesh4):
    a = ts.rand(192, 192, device_mesh=mesh4, placements=[S(0)]).wait()
    x = ts.zeros((192, 192), device_mesh=mesh4, placements=[S(0)])
    y = a
    for _ in range(300):
        y = (y @ a) * 1e-2
    x += y
    b = ts.rand(1024, 1024, device_mesh=mesh4, placements=[S(0)])
    z = b
    for _ in range(300):                            # 640 GFlop: seconds on any machine, all but the first of them cancelled
        z = (z @ b) * 1e-3

    def wait():
        z.wait()
        time.sleep(1)

    interrupted(wait, 0.05)
    assert np.isfinite(x.full_tensor()).all()
    assert np.isfinite(y.full_tensor()).all()       # x needed it
    with pytest.raises(ts.CancelledError):
        z.wait()


def test_a_full_queue_that_is_interrupted_has_not_taken_the_update(mesh4):
    x = ts.zeros((128, 128), device_mesh=mesh4, placements=[S(0)])
    y = ts.ones((128, 128), device_mesh=mesh4, placements=[S(0)])
    count = 0

    def step():
        nonlocal x, y, count
        y = (y @ y) * 1e-3
        x += 1
        count += 1

    interrupted(step, 4.0)
    values = x.full_tensor()
    assert (values == values[0, 0]).all() and count <= values[0, 0] <= count + 1


def test_an_update_that_is_warned_of_as_an_error_is_made(mesh4):
    x = ts.ones((8, 8), device_mesh=mesh4, placements=[S(0)])
    y = ts.ones((8, 8), device_mesh=mesh4, placements=[S(1)])
    with warnings.catch_warnings(), ts.implicit_redistribution("warn"):
        warnings.simplefilter("error")
        with pytest.raises(ts.ImplicitRedistributionWarning):
            x += y
    np.testing.assert_array_equal(x.full_tensor(), np.full((8, 8), 2.0))
