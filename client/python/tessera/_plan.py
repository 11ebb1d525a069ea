"""Plan: what an op would do, without doing it."""

from __future__ import annotations

import _tessera
from ._errors import InvalidArgumentError
from ._placements import decode


class Plan:
    """Lists go by position in row-major order (by worker when source and destination meshes differ). Of an op with several
    results, `placements` is a list with those of each, and `output` names all."""

    def __init__(self, raw: dict):
        self.text: str = raw["text"]
        self.steps: list[str] = raw["steps"]
        self.implicit: list[str] = raw["implicit"]
        self.bytes_received: list[int] = raw["bytes_received"]
        self.bytes_sent: list[int] = raw["bytes_sent"]
        self.peak_bytes: list[int] = raw["peak_bytes"]
        self.predicted_seconds: float = raw["predicted_seconds"]
        placements = [decode(one) for one in raw["placements"]]
        self.placements = placements[0] if len(placements) == 1 else placements
        self.output: str = ", ".join(raw["outputs"])
        self.grid: str = raw["grid"]
        self.runners_up: list[str] = raw["runners_up"]

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"Plan({self.output}, {len(self.steps)} steps, {sum(self.bytes_received)} bytes received)"


Plan.__module__ = "tessera"


class Captured(BaseException):
    """Ends a function whose first op was planned."""


def explain(function, *args, **kwargs) -> Plan:
    """The plan of the one op that `function(*args, **kwargs)` asks for; nothing runs.

    >>> print(ts.explain(ts.matmul, a, b))
    """
    if not callable(function):
        raise InvalidArgumentError(f"explain: {function!r} is no function; write ts.explain(ts.matmul, a, b)")
    _tessera.capture_begin()
    try:
        function(*args, **kwargs)
    except Captured:
        pass
    finally:
        raw = _tessera.capture_end()
    if raw is None:
        raise InvalidArgumentError(f"explain: {getattr(function, '__name__', function)} asked for no op on a tensor")
    return Plan(raw)
