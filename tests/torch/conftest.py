"""One cluster of four workers for all tests of tessera.torch; a test has a session of its own."""

import os

import pytest
import torch

import tessera as ts
import tessera.torch as tt

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


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def nothing_is_left_here():
    """A test writes to tmp_path: what one leaves where it runs, the checkout, is committed by somebody some day."""
    before = set(os.listdir())
    yield
    left = {name for name in set(os.listdir()) - before if not name.startswith((".", "bazel-"))}
    assert not left, f"left in {os.getcwd()}: {left}"
