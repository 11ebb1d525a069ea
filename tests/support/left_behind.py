"""Files and processes that tests leave where they run. Both conftests have the fixture."""

import os

import pytest


@pytest.fixture(autouse=True)
def nothing_is_left_here():
    """A test writes to tmp_path: what one leaves where it runs, the checkout, is committed by somebody some day."""
    before = set(os.listdir())
    yield
    left = {name for name in set(os.listdir()) - before if not name.startswith((".", "bazel-"))}
    assert not left, f"left in {os.getcwd()}: {left}"
