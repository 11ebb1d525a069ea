"""A pool that a real Ray places on two nodes: docs/ray.md. Skipped by name where Ray isn't installed."""

import os
import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = pathlib.Path(os.environ.get("TESSERA_ENGINES_PYTHON", "~/.cache/tessera/engines")).expanduser() / "bin/python"


def test_a_pool_on_two_nodes_is_right_loses_workers_grows_and_leaves_nothing():
    has_ray = PYTHON.exists() and subprocess.run([PYTHON, "-c", "import ray, psutil"], capture_output=True).returncode == 0
    if not has_ray:
        pytest.skip(f"Ray is not installed in {PYTHON} (tools/engines ray installs it)")
    environment = {**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "200"}
    done = subprocess.run([PYTHON, HERE / "ray_program.py"], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "right" in done.stdout, done.stdout[-3000:] + done.stderr[-5000:]
