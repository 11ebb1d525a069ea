"""The flow of a plan: which worker gives how many bytes to which other one, step by step, read from the plan's text.

The text names the overlays of each exchange and not the pairs of workers; who of several holders gives is a rule of the
planner (server/plan/exchange.h). Here each of them gives an equal part. Law: a flow is told with its bytes only where they
add up, worker by worker, to what the plan itself says each receives and sends (`Flow.adds_up`).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import re

_VALUE = re.compile(r"(?:in|out|inout|tmp)\s+%(\d+) : (.+?) in b\d+")
_SPEC = re.compile(r"(\w+?)\[([\d,]*)\] @ mesh\((.*?)\)(?: \[(.*)\])?$")
_STEP = re.compile(r"(with )?(\w+) (?:.*?)?%(\d+)(.*?) -> %(\d+)(.*)$")
_ENTRY = re.compile(r"\[(\d+):(\d+)\) (\d+)\+\d+ -> (\d+)\+\d+")
_BYTES = {"bool": 1, "bf16": 2}


@dataclasses.dataclass
class Spec:
    item: int                   # bytes of an element
    workers: list[int]          # by flat position
    mesh: tuple[int, ...]
    placements: list[tuple]     # ("S", dim), ("R",) or ("P",)

    def shard(self, position, dim: int) -> int:
        """The number of the shard along a dim, at a position."""
        number = 0
        for placement, k, n in zip(self.placements, position, self.mesh):
            if placement == ("S", dim):
                number = number * n + k
        return number

    def term(self, position) -> tuple:
        return tuple(k for placement, k in zip(self.placements, position) if placement == ("P",))

    def positions(self) -> list:
        return list(itertools.product(*(range(n) for n in self.mesh)))

    def holders(self, shards) -> dict:
        """The workers that hold a shard, by term."""
        out: dict = collections.defaultdict(list)
        for position, worker in zip(self.positions(), self.workers):
            if all(self.shard(position, dim) == shard for dim, shard in enumerate(shards)):
                out[self.term(position)].append(worker)
        return out


@dataclasses.dataclass
class Step:
    name: str
    text: str
    workers: list[int]                                  # that take part
    pairs: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(float))   # (from, to) -> bytes
    is_exchange: bool = False
    joins_last: bool = False                            # shares the phase of the step before

    @property
    def bytes(self) -> int:
        return round(sum(self.pairs.values()))


@dataclasses.dataclass
class Flow:
    workers: list[int]
    steps: list[Step]
    adds_up: bool


def parse_spec(text: str) -> Spec | None:
    match = _SPEC.match(text.split(" strides ")[0].strip())
    if match is None:
        return None
    dtype, _, mesh, placements = match.groups()
    extents, _, workers = mesh.partition("; workers=")
    shape = tuple(int(part.rpartition(":")[2]) for part in extents.split(","))
    item = _BYTES.get(dtype) or int(re.sub(r"\D", "", dtype)) // 8
    decoded: list[tuple] = []
    for one in re.findall(r"S\(\d+[^)]*\)|P\(\w+\)|R", placements or ""):
        decoded.append(("S", int(re.findall(r"\d+", one)[0])) if one[0] == "S" else (one[0],))
    return Spec(item, [int(w) for w in workers.split(",")] if workers else list(range(math.prod(shape))), shape, decoded)


def _cells(dims):
    """(shards of the source, shards of the destination, elements) of each cell."""
    for entries in itertools.product(*dims):
        yield ([int(e[2]) for e in entries], [int(e[3]) for e in entries], math.prod(int(e[1]) - int(e[0]) for e in entries))


def _share(pairs, givers, taker: int, count: float) -> None:
    if taker in givers:
        return
    for giver in givers:
        pairs[giver, taker] += count / len(givers)


def _add_exchange(pairs, role: str, source: Spec, destination: Spec, dims) -> None:
    item = source.item if role != "spread" else destination.item
    for from_shards, to_shards, elements in _cells(dims):
        terms = source.holders(from_shards)
        takers = [worker for workers in destination.holders(to_shards).values() for worker in workers]
        if role == "move":
            holders = [worker for workers in terms.values() for worker in workers]
            for taker in takers:
                _share(pairs, holders, taker, elements * item)
            continue
        reducers = [w for w in takers if any(w in workers for workers in terms.values())] or takers
        parts = 1 if role == "reduce_each" else len(reducers)
        for reducer in reducers:
            if role == "spread":
                for taker in takers:
                    _share(pairs, [reducer], taker, elements * item / parts)
                continue
            for workers in terms.values():
                _share(pairs, workers, reducer, elements * item / parts)


def _steps(text: str) -> list[Step]:
    values: dict[str, Spec] = {}
    steps: list[Step] = []
    role, source, destination, dims = "", None, None, []

    def end() -> None:
        if role and source is not None and destination is not None and len(dims) > 0:
            _add_exchange(steps[-1].pairs, role, source, destination, dims)

    for line in text.split("\n"):
        line = line.strip()
        if value := _VALUE.match(line):
            if spec := parse_spec(value[2]):
                values[value[1]] = spec
        elif line.startswith("dim "):
            dims.append(_ENTRY.findall(line))
        elif pieces := re.match(r"pieces (\d+) (\w+) as (.*)$", line):
            end()
            operands = re.findall(r"%(\d+)", steps[-1].text.partition("->")[0])
            role, source, destination, dims = "move", values.get(operands[int(pieces[1])]), parse_spec(pieces[3]), []
        elif (step := _STEP.match(line)) and (spec := values.get(step[5])):
            end()
            words = step[6].split()
            first = re.match(r"[a-z_]+", words[0])[0] if words else ""
            is_exchange = first in ("move", "reduce", "reduce_each", "spread", "share")
            name = step[2] if is_exchange else re.sub(r"^(local|contract) ", "", line.removeprefix("with ")).split("(")[0]
            steps.append(Step(name, line, spec.workers, is_exchange=is_exchange, joins_last=bool(step[1])))
            role, source, destination, dims = "", values.get(step[3]), spec, []
            if is_exchange:
                role = first
                steps[-1].workers = sorted({*spec.workers, *(source.workers if source else [])})
                if of := re.search(r" of (\S+ @ mesh\(.*?\) \[.*?\])", step[6]):
                    source = parse_spec(of[1])
    end()
    return steps


def flow_of(op: dict) -> Flow:
    """The flow of one planned op, as explain gives it."""
    steps = _steps(op["text"])
    received: dict = collections.Counter()
    sent: dict = collections.Counter()
    for step in steps:
        for (giver, taker), count in step.pairs.items():
            sent[giver] += count
            received[taker] += count

    def agrees(counted, told) -> bool:
        slack = max(64, 0.02 * max(told, default=0))      # parts are cut at whole elements
        return all(abs(counted.get(worker, 0) - count) <= slack for worker, count in zip(op["workers"], told))

    return Flow(list(op["workers"]), steps, agrees(received, op["bytes_received"]) and agrees(sent, op["bytes_sent"]))
