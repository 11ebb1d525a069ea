"""Clusters for the tests: real processes on sockets of their own."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from left_behind import nothing_is_left_here  # noqa: E402, F401

# A shell that runs tests in the background has them ignore SIGINT, and their children with them, which are to be
# interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TRANSPORT = os.environ.get("TESSERA_TEST_TRANSPORT", "shm")
# The workers' device. "cuda" is the emulated driver, unless TESSERA_TEST_GPU=real says the machine's own.
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


# The tests that moved bytes between workers, one id a line: a run writes them to MOVED_TO, and a run on another transport
# takes those of ONLY alone, as the others would do the same again.
MOVED_TO = os.environ.get("TESSERA_TEST_MOVED_TO")
ONLY = os.environ.get("TESSERA_TEST_ONLY")


# When tests that ran before are no longer begun again, in seconds since 1970 (tools/test --within).
REPEATS_UNTIL = float(os.environ.get("TESSERA_TEST_REPEATS_UNTIL", "inf"))
IS_REPEAT = TRANSPORT != "shm" or DEVICE != "cpu"


def pytest_runtest_setup(item):
    if IS_REPEAT and time.time() > REPEATS_UNTIL:
        pytest.skip("a repeat for which there was no time")


def pytest_configure(config):
    config.addinivalue_line("markers", "whole_system: runs real processes; what moves bytes is run once on every transport")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if {"cluster", "session", "new_cluster", "mesh4", "mesh22"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.whole_system)
    if ONLY:
        wanted = set(pathlib.Path(ONLY).read_text().splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


def received_bytes(cluster) -> int | None:
    """How many bytes the workers of a cluster have taken from each other; None where they can't be asked any more."""
    try:
        with cluster.connect() as session:
            return sum(worker["received_bytes"] for worker in session.status()["workers"])
    except Exception:  # noqa: BLE001: a test may have ended any of its processes
        return None


class Moved:
    """The bytes that a test's clusters moved: the shared one since it was asked last, its own ones until they are stopped."""

    def __init__(self):
        self.asked = False
        self.shared_bytes = 0
        self.own = []

    def begin(self):
        self.asked, self.own = False, []

    def ask(self, cluster):
        self.asked = True
        self.own.append(received_bytes(cluster))

    def anything(self, shared) -> bool:
        """True, too, where nothing is known: of a test that starts its processes by itself."""
        if shared is not None:
            before, self.shared_bytes = self.shared_bytes, received_bytes(shared)
            self.asked = True
            if self.shared_bytes != before:
                return True
        return not self.asked or any(count != 0 for count in self.own)


MOVED = Moved()


@pytest.fixture(autouse=True)
def tell_what_moves(request):
    """Writes the test's id to MOVED_TO if it moved something."""
    if not MOVED_TO or request.node.get_closest_marker("whole_system") is None:
        yield
        return
    shared = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    MOVED.begin()
    yield
    if MOVED.anything(shared):
        with open(MOVED_TO, "a") as file:
            file.write(request.node.nodeid + "\n")


def pytest_runtest_logreport(report):
    # A test that is for another transport moves something there.
    if MOVED_TO and report.skipped:
        with open(MOVED_TO, "a") as file:
            file.write(report.nodeid + "\n")


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
        if MOVED_TO:
            MOVED.ask(cluster)
        cluster.stop()


@pytest.fixture
def own_ranks(new_cluster):
    """Ranks of a cluster of their own, which a test may harm."""
    from rank_processes import Ranks
    started = []

    def start(size=3, key="own"):
        started.append(Ranks(new_cluster(workers=size), size, key))
        return started[-1]

    yield start
    for one in started:
        one.stop()


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
