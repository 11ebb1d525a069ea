"""Clusters for the tests: real processes on sockets of their own."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from left_behind import nothing_is_left_here  # noqa: E402, F401

# A shell that runs tests in the background has them ignore SIGINT, and their children with them, which are to be
# interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TRANSPORT = os.environ.get("TESSERA_TEST_TRANSPORT", "shm")
# What the workers compute on. "cuda" is the emulated driver, unless TESSERA_TEST_GPU=real says the machine's own.
DEVICE = os.environ.get("TESSERA_TEST_DEVICE", "cpu")
REAL_GPU = os.environ.get("TESSERA_TEST_GPU") == "real"
IS_EMULATED = DEVICE == "cuda" and not REAL_GPU
EMULATED_DRIVER = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/tests/emulator/cuda"


def use_emulated_driver(setenv):
    """Workers that are started from now on find the emulated libcuda.so.1 and libnccl.so.2 first, unless the GPU is real."""
    if not REAL_GPU:
        setenv("LD_LIBRARY_PATH", f"{EMULATED_DRIVER}:{EMULATED_DRIVER}/nccl:{os.environ.get('LD_LIBRARY_PATH', '')}")


if DEVICE == "cuda":
    use_emulated_driver(os.environ.__setitem__)


def pytest_configure(config):
    config.addinivalue_line("markers", "whole_system: runs real processes; run once on every transport")


def pytest_collection_modifyitems(items):
    for item in items:
        if {"cluster", "session", "new_cluster", "mesh4", "mesh22"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.whole_system)


@pytest.fixture(scope="session")
def cluster():
    """Four workers that all tests share; a test that harms a worker takes new_cluster."""
    import tessera as ts
    with ts.local_cluster(workers=4, memory="256MiB", device=DEVICE, transport=TRANSPORT) as cluster:
        yield cluster


@pytest.fixture
def session(cluster):
    session = cluster.connect()
    yield session
    session.close()


@pytest.fixture
def new_cluster():
    """Starts clusters that end with the test."""
    import tessera as ts
    started = []

    def start(workers=2, memory="64MiB", **options):
        options.setdefault("transport", TRANSPORT)
        options.setdefault("device", DEVICE)
        started.append(ts.local_cluster(workers=workers, memory=memory, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture
def mesh4(session):
    return session.init_device_mesh((4,))


@pytest.fixture
def mesh22(session):
    return session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def small_disk(tmp_path):
    """A folder with room for 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
