"""torch.accelerator and torch.tessera: which device there is, and what its workers' memory holds."""

import subprocess
import sys

import pytest
import torch

import tessera as ts
import tessera.torch as tt
from tessera import _context

ROOMS = [torch.accelerator, torch.tessera]
R, S = ts.Replicate(), ts.Shard


@pytest.fixture
def small():
    """Two workers of 64 MiB."""
    with ts.local_cluster(workers=2, memory="64MiB") as cluster:
        yield cluster


@pytest.fixture
def alone(small):
    """A session that has them for itself: what lies there is of the test."""
    with small.connect() as session, tt.default_placement(session.init_device_mesh((2,))):
        yield session


def test_there_is_one_device(mesh):
    assert torch.accelerator.current_accelerator() == torch.device("tessera")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == torch.tessera.device_count() == 1
    assert torch.accelerator.current_device_index() == torch.tessera.current_device() == 0
    for room in ROOMS:
        room.synchronize()
        room.empty_cache()


@pytest.mark.parametrize("room", ROOMS)
def test_memory_is_what_tensors_take_on_the_worker_with_the_most(alone, room):
    mesh, one = alone.init_device_mesh((2,)), alone.init_device_mesh((1,), workers=[1])
    assert room.memory_allocated() == 0
    x = tt.distribute_tensor(torch.ones(1 << 20), mesh, [S(0)]).wait()
    assert room.memory_allocated() == 2 << 20
    y = x.view(1 << 10, 1 << 10)        # has the same memory
    assert room.memory_allocated() == 2 << 20
    z = tt.distribute_tensor(torch.ones(1 << 18), one).wait()
    assert room.memory_allocated(0) == room.memory_allocated("tessera") == 3 << 20
    stats = room.memory_stats()
    assert stats["workers.0.used_bytes"] == 2 << 20 and stats["workers.1.used_bytes"] == stats["allocated_bytes.all.current"] == 3 << 20
    assert room.memory_reserved() == room.max_memory_reserved() == stats["reserved_bytes.all.peak"] == 64 << 20
    assert room.get_memory_info() == (61 << 20, 64 << 20) == torch.tessera.mem_get_info()
    del x, y, z
    assert room.memory_allocated() == 0


def test_memory_is_that_of_the_sessions_here(alone, cluster):
    other = cluster.connect()
    mesh = other.init_device_mesh((4,))
    x = tt.distribute_tensor(torch.ones(1 << 20), mesh)
    assert torch.accelerator.memory_allocated() >= 4 << 20
    del x
    y = tt.distribute_tensor(torch.ones(1 << 18), alone.default_mesh)
    for session in _context.open_sessions():
        if session is not alone:
            session.close()
    assert torch.accelerator.memory_allocated() == 1 << 20
    assert y.sum().item() == 1 << 18


@pytest.mark.parametrize("name", ["max_memory_allocated", "reset_peak_memory_stats", "reset_accumulated_memory_stats"])
def test_what_nobody_counts_is_refused_by_name(alone, name):
    for room in ROOMS:
        with pytest.raises(ts.UnimplementedError, match=f"{name}: no peak is counted"):
            getattr(room, name)()


def test_without_a_session_there_is_nothing_to_ask(monkeypatch):
    monkeypatch.setattr(_context, "open_sessions", lambda: [])
    for name in ("memory_allocated", "memory_reserved", "memory_stats", "get_memory_info"):
        with pytest.raises(ts.FailedPreconditionError, match=f"{name}: no session is open"):
            getattr(torch.accelerator, name)()


def test_another_program_on_the_same_workers_is_not_counted(small, alone):
    x = tt.distribute_tensor(torch.ones(1 << 18), alone.default_mesh)
    code = f"""
import numpy as np, tessera as ts
with ts.connect({small.address!r}) as session:
    y = session.distribute_tensor(np.ones(1 << 20, np.float32), session.default_mesh).wait()
    print("there", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "there\n"
        stats = torch.accelerator.memory_stats()
        assert stats["workers.0.used_bytes"] == 5 << 20 and stats["allocated_bytes.all.current"] == 1 << 20
        other.communicate("\n")
    assert other.returncode == 0 and x.sum().item() == 1 << 18
