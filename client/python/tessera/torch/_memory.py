"""How much memory of the workers is taken, by the names of torch.accelerator: numbers of the coordinator, asked for by one request.

torch has one device here, and behind it are the workers. A number is that of the worker that has the most taken, or the least
free. What was most at some time is known to nobody: plans are made to fit, and nothing counts on the way.
"""

from __future__ import annotations

import collections

import torch

from .. import _context
from .._errors import FailedPreconditionError, UnimplementedError


def _clusters(op: str) -> list[dict]:
    """The status of the open sessions' coordinators, each once, with the bytes that those sessions have there."""
    found: dict = {}
    for session in _context.open_sessions():
        status = session.status()
        own = next((one["bytes"] for one in status["sessions"] if one["id"] == session.id), 0)
        known = found.setdefault((session.address, status["epoch"]), status)
        known["own_bytes"] = known.get("own_bytes", 0) + own
        known["own_sessions"] = known.get("own_sessions", 0) + 1
    if not found:
        raise FailedPreconditionError(f"{op}: no session is open: connect with ts.connect(address) or ts.local_cluster()")
    return list(found.values())


def _workers(status: dict) -> list[dict]:
    return [one for one in status["workers"] if one["state"] == "alive"]


def _allocated(status: dict) -> int:
    """All that a worker has taken is of the sessions here, where there are no others; else it is no more than their tensors."""
    most = max((one["used_bytes"] for one in _workers(status)), default=0)
    return most if status["session_count"] == status["own_sessions"] else min(most, status["own_bytes"])


def memory_allocated(device=None, /) -> int:
    """Bytes that the tensors of the open sessions take, on the worker with the most."""
    return max(_allocated(one) for one in _clusters("memory_allocated"))


def memory_reserved(device=None, /) -> int:
    """Bytes of a worker's memory, all of which it has from its start."""
    return max((one["memory_bytes"] for status in _clusters("memory_reserved") for one in _workers(status)), default=0)


def get_memory_info(device=None, /) -> tuple[int, int]:
    """(free, whole) bytes of the worker that has the least free."""
    pairs = [(one["memory_bytes"] - one["used_bytes"], one["memory_bytes"]) for status in _clusters("get_memory_info") for one in _workers(status)]
    return min(pairs, default=(0, 0))


def memory_stats(device=None, /) -> collections.OrderedDict:
    """The values of torch's keys that are known, and `workers`: the bytes that everybody has on each one."""
    clusters = _clusters("memory_stats")
    workers = [one for status in clusters for one in _workers(status)]
    reserved = max((one["memory_bytes"] for one in workers), default=0)
    return collections.OrderedDict([
        ("allocated_bytes.all.current", max(map(_allocated, clusters))), ("reserved_bytes.all.current", reserved), ("reserved_bytes.all.peak", reserved),
        *((f"workers.{one['index']}.used_bytes", one["used_bytes"]) for one in workers)])


def empty_cache() -> None:
    """Nothing is kept that no tensor has: memory that is let go is free for the next op."""


def _unknown(name: str):
    def function(device=None, /):
        raise UnimplementedError(f"{name}: no peak is counted on tessera; memory_allocated() is what is taken now, tessera.explain(...).peak_bytes "
                                 "what an op takes while it runs")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = "Refused: no peak is counted."
    return function


max_memory_allocated = _unknown("max_memory_allocated")
reset_peak_memory_stats = _unknown("reset_peak_memory_stats")
reset_accumulated_memory_stats = _unknown("reset_accumulated_memory_stats")
max_memory_reserved = memory_reserved
FUNCTIONS = {one.__name__: one for one in (memory_allocated, memory_reserved, get_memory_info, memory_stats, empty_cache, max_memory_allocated,
                                           reset_peak_memory_stats, reset_accumulated_memory_stats)} | {"max_memory_reserved": max_memory_reserved}


def install(module: type) -> None:
    """As functions of torch.tessera, and of torch.accelerator, whose own ask an allocator of this process."""
    for name, function in FUNCTIONS.items():
        setattr(module, name, staticmethod(function))
        setattr(torch.accelerator, name, function)
        setattr(torch.accelerator.memory, name, function)
    module.mem_get_info = staticmethod(get_memory_info)
