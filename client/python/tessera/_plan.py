"""Plan: what ops would do, without doing it."""

from __future__ import annotations

import functools

import _tessera
from ._errors import InvalidArgumentError
from ._plan_picture import html


class Plan:
    """The steps that one op, or a function of several, would take.

    Lists go by position in row-major order (by worker when the meshes of source and destination, or of the ops, differ).
    Of an op with several results, `placements` is a list with those of each, and `output` names all.

    flows: by step, (from, to, bytes) of each pair of workers between which bytes go; empty where an op has more than 64 workers, and for
    a merge of sorted runs, whose values decide.

    Of several ops: steps, flows, implicit, bytes_received, bytes_sent and predicted_seconds are those of all, peak_bytes are those
    of the op that needs most on each worker, placements and output those of the last op.
    """

    def __init__(self, *ops: dict):
        self._ops = ops
        self.text: str = "\n".join(op["text"] for op in ops)
        self.steps: list[str] = [step for op in ops for step in op["steps"]]
        self.implicit: list[str] = [line for op in ops for line in op["implicit"]]
        self.bytes_received: list[int] = _over(ops, "bytes_received", sum)
        self.bytes_sent: list[int] = _over(ops, "bytes_sent", sum)
        self.peak_bytes: list[int] = _over(ops, "peak_bytes", max)
        self.predicted_seconds: float = sum(op["predicted_seconds"] for op in ops)
        placements = list(ops[-1]["placements"])
        self.placements = placements[0] if len(placements) == 1 else placements
        self.output: str = ", ".join(ops[-1]["outputs"])
        self.grid: str = "; ".join(op["grid"] for op in ops if op["grid"])
        self.runners_up: list[str] = [line for op in ops for line in op["runners_up"]]
        self.flows: list[list[tuple[int, int, int]]] = [step["flows"] for op in ops for step in op["flows"]]

    def __str__(self):
        return self.text

    def __repr__(self):
        return f"Plan({self.output}, {len(self.steps)} steps, {sum(self.bytes_received)} bytes received)"

    def _repr_html_(self):
        return html(self)


Plan.__module__ = "tessera"


def _over(ops, name: str, combine) -> list[int]:
    """A list of the ops as one: by position where all are on the same one mesh, else by worker."""
    if all(op["workers"] == ops[0]["workers"] for op in ops):
        return [combine(values) for values in zip(*(op[name] for op in ops))]
    by_worker = [dict(zip(op["workers"], op[name])) for op in ops]
    count = max(worker for op in ops for worker in op["workers"]) + 1
    return [combine(values.get(worker, 0) for values in by_worker) for worker in range(count)]


def explain(function, *args, **kwargs) -> Plan:
    """The plan of the ops that `function(*args, **kwargs)` asks for; nothing runs.

    >>> print(ts.explain(ts.matmul, a, b))

    Each op is planned as it would be issued now, on results that have specs and no values: a function that reads some
    is FailedPreconditionError.
    """
    if not callable(function):
        raise InvalidArgumentError(f"explain: {function!r} is no function; write ts.explain(ts.matmul, a, b)")
    ops = _tessera.plans_of(functools.partial(function, *args, **kwargs))
    if not ops:
        raise InvalidArgumentError(f"explain: {getattr(function, '__name__', function)} asked for no op on a tensor")
    return Plan(*ops)
