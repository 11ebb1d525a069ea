"""torch.distributed's backend `tessera` for tensors on a device (far_device.cc), through memory of the host and by a library of the device.
rank_devices.py has what the ranks run."""

import pathlib

import pytest
import torch

from tessera import torch_device
from test_ranks import IS_OLDER, run

HERE = pathlib.Path(__file__).parent
OF_RANKS = ("all_reductions", "all_moves", "uneven", "sizes_that_differ", "memory_of_all_kinds", "groups", "messages", "coalesced", "works", "mismatch",
            "killed", "data_parallel", "many_at_once", "messages_that_fail")
OF_DEVICES = ("takes", "streams", "many_in_any_order", "another_device", "timed_out")
BY_THE_LIBRARY = ("shared", "killed_under_way")


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The compiled device."""
    target = tmp_path_factory.mktemp("far") / "libfar_device.so"
    torch_device.compile(HERE / "far_device.cc", target, pathlib.Path(torch.__file__).parent)
    return target


@pytest.mark.skipif(IS_OLDER, reason=f"far_device.cc is for torch 2.15, and this is {torch.__version__}")
@pytest.mark.parametrize("program, by", [*((program, by) for program in OF_RANKS + OF_DEVICES for by in ("host", "library")),
                                         *((program, "library") for program in BY_THE_LIBRARY)])
def test_three_ranks(cluster, device, program, by):
    run(cluster, HERE / "rank_devices.py", device, program, 3, by)
