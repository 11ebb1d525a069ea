"""Large arrays are copied by several threads of the program, where it has cores for them: TESSERA_COPY_THREADS says how many."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.whole_system

PROGRAM = """
import pathlib
import numpy as np
import tessera as ts

def threads():
    return [task for task in pathlib.Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() == "copy"]

rng = np.random.default_rng(5)
whole = rng.standard_normal((1531, 2049))
arrays = [whole, whole.T, whole[::-1, ::3], whole[:, None, 7:], whole[:1], whole.astype(np.float16), np.asfortranarray(whole),
          rng.integers(0, 255, (3, 5_000_001), np.uint8)]
with ts.local_cluster(2, memory="256MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((2,))
    for array in arrays:
        for placement in (ts.Shard(0), ts.Shard(array.ndim - 1), ts.Replicate()):
            x = ts.distribute_tensor(array, mesh, [placement])
            np.testing.assert_array_equal(x.full_tensor(), array)
            there = np.empty(array.shape, array.dtype)
            x.full_tensor(out=there)
            np.testing.assert_array_equal(there, array)
    blocked = [int(line.split()[1], 16) for task in threads() for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk")]
    # SIGINT is blocked in them: Ctrl-C interrupts the program's own threads.
    print(len(threads()), all(mask & 2 for mask in blocked))
"""


@pytest.mark.parametrize("threads, started", [("4", "3 True"), ("1", "0 True")])
def test_arrays_of_any_layout_come_and_go(threads, started):
    run = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "TESSERA_COPY_THREADS": threads}, capture_output=True,
                         text=True, timeout=300)
    assert (run.stdout.strip(), run.returncode) == (started, 0), run.stderr
