"""Memory that is given back: nobody sees what was there."""

import mmap
import os

import numpy as np
import pytest

import tessera as ts
from differential import run_programs
from test_sessions import wait_until

SECRET = np.frombuffer(b"another tenant's secret value, 32", dtype=np.uint8)[:32]


def arenas(cluster) -> list[bytes]:
    """The bytes of the workers' memory, as a worker of the same host sees them."""
    found = []
    for pid in cluster.worker_pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            try:
                if "memfd:" not in os.readlink(path):
                    continue
                with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                    found.append(memory[:])
            except (OSError, ValueError):
                continue        # it was closed meanwhile, or is empty
    return found


def holders_of_secret(cluster) -> int:
    return sum(SECRET.tobytes() in memory for memory in arenas(cluster))


def put_and_drop(session):
    x = session.distribute_tensor(np.tile(SECRET, 1024), session.default_mesh, [ts.Shard(0)]).wait()
    view = x[32:]
    del x
    view.wait()
    del view
    session.sync()


@pytest.mark.parametrize("fills", [False, True])
def test_freed_memory_keeps_no_values(fills):
    with ts.local_cluster(workers=2, memory="16MiB", coordinator_flags=["--debug-fill"] if fills else []) as cluster, cluster.connect() as session:
        put_and_drop(session)
        wait_until(lambda: all(one["used_bytes"] == 0 for one in session.status()["workers"]))
        if fills:
            wait_until(lambda: holders_of_secret(cluster) == 0)
        else:
            assert holders_of_secret(cluster) > 0, "without the fill it is there, so the test sees it"


def test_no_program_reads_what_it_did_not_write():
    """Bytes that nothing wrote are NaN, and differ from what NumPy says."""
    with ts.local_cluster(workers=4, memory="64MiB", coordinator_flags=["--debug-fill"]) as cluster, cluster.connect() as session:
        failures = run_programs(session, range(200))
    assert not failures, "\n".join(failures)
