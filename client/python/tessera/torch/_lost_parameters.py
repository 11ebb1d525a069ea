"""The parameters that a lost worker took with it, by the names that they have in their modules.

An error names the worker, what of a tensor went with it, and the ops since. Which parameter that was, no handle knows: each
step binds a parameter to another one. So it is looked for when the error is raised, among the modules that are alive, and
nothing is noted before. What an error costs then: a look at all objects of the garbage collector (some 50 ms), and a wait for
the parameters, which know whether they are lost by the time the coordinator knows.
"""

from __future__ import annotations

import gc
import re
import threading
import time

from torch import nn

import _tessera
from .._errors import TesseraError
from ._tensor import Tensor, handle_of

MAX_NAMED = 8       # docs/limits.md: named_parameters
PATIENCE_S = 1.0    # docs/limits.md: named_parameters_wait
_CAUSE = re.compile(r"worker (\d+) was lost")
_state = threading.local()


def explained(message: str) -> str:
    """The text of an error, with the parameters that were lost where it is of a lost worker. Those that it is of come first."""
    cause = _CAUSE.search(message)
    if cause is None or getattr(_state, "is_explaining", False):
        return message
    _state.is_explaining = True     # waiting for a lost parameter is an error, too
    try:
        lost = _lost_on(int(cause[1]))
    finally:
        _state.is_explaining = False
    lost.sort(key=lambda one: one[1] not in message)
    shown: dict = {}
    for (root, name), _ in lost[:MAX_NAMED]:
        shown.setdefault(root, []).append(name)
    if not shown:
        return message
    text = "; ".join(f"{', '.join(names)} of {type(root).__name__}" for root, names in shown.items())
    more = f" and {len(lost) - MAX_NAMED} more" if len(lost) > MAX_NAMED else ""
    return f"{message}; lost parameters: {text}{more}"


def _lost_on(worker: int) -> list:
    """((root module, name), why) of the parameters that have no value since the worker was lost."""
    deadline, out, seen = time.monotonic() + PATIENCE_S, [], set()
    for root in _roots():
        for name, parameter in root.named_parameters():
            if not isinstance(parameter, Tensor) or parameter._cell.handle is None or parameter._cell in seen:
                continue
            seen.add(parameter._cell)
            handle = handle_of(parameter)
            try:        # also of one whose mesh lives: an update by a gradient that is lost is lost, too
                handle._wait(max(0.0, deadline - time.monotonic()))
            except TesseraError as error:
                cause = _CAUSE.search(str(error))
                if cause is not None and int(cause[1]) == worker:
                    out.append(((root, name), str(error)))
    return out


def _roots() -> list:
    """The modules that are alive and part of no other one."""
    alive = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    parts = {id(part) for one in alive for part in one.__dict__.get("_modules", {}).values()}
    return [one for one in alive if id(one) not in parts and "_parameters" in one.__dict__]


_tessera.set_explain_hook(explained)
