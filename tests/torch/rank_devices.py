"""Ranks whose tensors lie on a device: the programs of rank_programs.py, and some of its own, on the device `far` (far_device.cc).

`python rank_devices.py LIBRARY NAME RANKS BY`: LIBRARY is the compiled device; BY is `host`, where the bytes go through memory of the host, or
`library`, where the device has a library of collectives, as a GPU has NCCL.
"""

import functools
import importlib.machinery
import importlib.util
import os
import signal
import sys
import time
import types
import warnings

import torch
import torch.distributed as dist

import rank_programs
from rank_programs import failure, one_tenth, same
from tessera.distributed import _device_libraries

NAME = "far"


def load(path):
    """The device, as torch and this program know it."""
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = module.is_initialized = lambda: True
    module.device_count, module.current_device = lambda: 2, lambda: 0
    module._is_in_bad_fork, module.manual_seed_all = lambda: False, lambda seed: None
    torch._register_device_module(NAME, module)
    spec = importlib.util.spec_from_file_location("libfar_device", path, loader=importlib.machinery.ExtensionFileLoader("libfar_device", path))
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    return device


class Library:
    """Stands for NCCL: gloo in the device's order. `given` counts what it was asked for."""
    made = 0
    shared = False      # whether all ranks say that they have one device

    def __init__(self, device):
        self.device = device

    def name_of(self, device):
        return "one" if self.shared else f"far {os.getpid()}"

    def make(self, store, rank, size, timeout):
        Library.made += 1
        return self.device.make_library(dist.ProcessGroupGloo(store, rank, size, timeout))


def on_the_device(make):
    """`make`, which draws on the CPU, with its result on the device."""
    @functools.wraps(make)
    def made(*arguments):
        with torch.device("cpu"):
            result = make(*arguments)
        return result.to(NAME)
    return made


def takes(rank, ranks):
    """The host moves some calls, and the library others."""
    x = torch.full((4,), float(rank + 1))
    dist.all_reduce(x)
    assert x.device.type == NAME and (x == sum(range(1, ranks + 1))).all()
    is_by_library = NAME in _device_libraries.LIBRARIES
    assert Library.made == is_by_library
    y = torch.full((4,), rank, dtype=torch.int32)
    dist.all_reduce(y, dist.ReduceOp.BOR)       # which the library doesn't take
    assert (y == functools.reduce(int.__or__, range(ranks))).all()
    failure(lambda: dist.all_gather([torch.zeros(4) for _ in range(ranks)], torch.zeros(4, device="cpu")), "tensors on two devices", "far:0 and cpu")
    assert Library.made == is_by_library
    mine = dist.new_group()
    dist.all_reduce(x, group=mine)
    assert Library.made == 2 * is_by_library


def streams(rank, ranks):
    """Inputs are those of the stream at the call, outputs those of all that wait, and memory that is read is written behind the read."""
    side = torch.Stream(f"{NAME}:0")
    for is_async in (False, True):
        with side:
            x = torch.ones(1000) * (rank + 1)   # not done before somebody waits for `side`
            work = dist.all_reduce(x, async_op=is_async)
            if is_async:
                work.wait()
            y = x + 1
        torch.accelerator.current_stream().wait_stream(side)
        assert (y == sum(range(1, ranks + 1)) + 1).all()
    x = torch.full((10,), float(rank))
    seen = x * 1                                # reads x before the call writes it
    work = dist.broadcast(x, 0, async_op=True)
    with side:
        work.wait()                             # another stream than that of the call
        got = x * 1
    torch.accelerator.current_stream().wait_stream(side)
    assert (seen == rank).all() and (got == 0).all()
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    assert (future.wait()[0] == ranks).all()


def many_in_any_order(rank, ranks):
    """Works that are waited for in another order at each rank, beside calls on the host's memory, which the library isn't given."""
    works = []
    for number in range(40):
        x = torch.full((number + 1,), float(rank), device="cpu" if number % 5 == 4 else NAME)
        works.append((number, x, dist.all_reduce(x, async_op=True)))
    order = works[rank:] + works[:rank]
    for number, x, work in reversed(order) if rank % 2 else order:
        work.wait()
        assert (x == sum(range(ranks))).all(), number
    for number in range(20):                    # dropped at once
        dist.all_reduce(torch.full((number + 1,), float(rank)), async_op=True)
    x = torch.ones(3)
    dist.all_reduce(x)
    assert (x == ranks).all()


def another_device(rank, ranks):
    """A rank with memory of the host, and the others with the device."""
    x = torch.ones(4)
    dist.all_reduce(x)
    is_by_library = NAME in _device_libraries.LIBRARIES
    call = lambda: dist.all_reduce(torch.ones(4, device="cpu" if rank == 1 else NAME))     # noqa: E731
    if is_by_library:
        failure(call, "differs", "rank 1 called all_reduce f32[4] sum", "ranks 0 and 2 called all_reduce f32[4] sum on devices")
    else:
        call()
    dist.all_reduce(x)
    assert (x == ranks * ranks).all()


def shared(rank, ranks):
    """Ranks that share a device have no library together."""
    Library.shared = True
    takes_one = torch.full((4,), float(rank))
    dist.all_reduce(takes_one)
    assert (takes_one == sum(range(ranks))).all() and Library.made == 0


def killed_under_way(rank, ranks):
    """A rank dies while the library has a call of all of them."""
    x = torch.ones(4)
    dist.all_reduce(x)
    dist.barrier()
    if rank == 2:
        _device_libraries.LIBRARIES[NAME].device.hold()
    work = dist.all_reduce(x, async_op=True)
    work.wait()                                 # given to the library, which waits for rank 2
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        began = time.monotonic()
        is_told = lambda: any("rank 2" in str(one.message) and "gone" in str(one.message) for one in told)     # noqa: E731
        while not is_told() and time.monotonic() - began < 20:      # Python and torch have warnings of their own
            time.sleep(0.05)
    assert is_told(), [str(one.message) for one in told]
    assert time.monotonic() - began < 5
    failure(work.wait, "rank 2", "gone")
    failure(lambda: dist.all_reduce(torch.ones(4)), "rank 2", "gone")
    os._exit(0)


def timed_out(rank, ranks):
    """A rank that doesn't come: the call fails at the others, and the library is given none of it."""
    x = torch.ones(4)
    dist.all_reduce(x)
    hurried = dist.new_group(timeout=one_tenth())
    dist.all_reduce(x.clone(), group=hurried)
    dist.barrier()
    if rank != 1:
        failure(lambda: dist.all_reduce(torch.ones(3), group=hurried), "rank 1", "has not come to it")
    dist.barrier()
    if rank == 1:
        failure(lambda: dist.all_reduce(torch.ones(3), group=hurried), "has not come to it")
    dist.barrier()
    y = torch.ones(2)
    dist.all_reduce(y, group=hurried)
    same(y.cpu(), torch.full((2,), float(ranks), device="cpu"))


def is_done(work):
    """A stream may do late what a wait has made it wait for."""
    torch.accelerator.current_stream().synchronize()
    return work.is_completed()


def main(library, program, ranks, by):
    device = load(library)
    rank_programs.is_done = is_done
    rank_programs.value = on_the_device(rank_programs.value)
    if by == "library":
        _device_libraries.LIBRARIES[NAME] = Library(device)
    found = globals().get(program) or getattr(rank_programs, program)
    torch.set_default_device(NAME)
    rank_programs.main(found, ranks, f"cpu:tessera,{NAME}:tessera")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
