"""One cluster of four workers for all tests of tessera.torch; a test has a session of its own."""

import pathlib
import sys

import pytest
import torch

import tessera as ts
import tessera.torch as tt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from left_behind import nothing_is_left_here  # noqa: E402, F401

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cluster():
    with ts.local_cluster(workers=4, memory="256MiB") as cluster:
        yield cluster


@pytest.fixture
def session(cluster):
    session = cluster.connect()
    yield session
    session.close()


@pytest.fixture
def mesh(session):
    """Four workers in one dim, where new tensors go."""
    mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))
    with tt.default_placement(mesh):
        yield mesh


@pytest.fixture
def mesh22(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    with tt.default_placement(mesh):
        yield mesh


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder for the files of a cluster that serves it."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture
def folder(served, request):
    """A folder of the test's own among those that are served."""
    path = served / request.node.name.replace("[", "-").strip("]")
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
