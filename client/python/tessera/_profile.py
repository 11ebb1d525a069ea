"""Ops as they ran, when and where: `session.profile()`, measured by the workers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from . import _html
from ._errors import FailedPreconditionError

_EVERYTHING = (0, 2**64 - 1)
_PATIENCE = 1.0     # docs/limits.md: profile_patience
_SAID_OPS = 3       # of a segment, by name
_TRANSFERS = ("upload", "download")


@dataclass(frozen=True)
class Run:
    """One worker's part of an op. Seconds; `start` is counted from the profile's first."""

    worker: int
    start: float
    duration: float
    working: float              # of the duration; the rest it waited, for peers or for messages
    bytes_received: int         # from other workers
    bytes_pushed: int           # stored to other workers' memory
    bytes_transferred: int      # between the shard and a client or a file

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True)
class ProfiledOp:
    """An op, or the ops that ran as one (`segment`), from the first worker's start to the last one's end."""

    number: int                 # in the order in which the session's ops were issued
    name: str                   # of a segment its last op's
    segment: tuple[str, ...]    # the ops that ran as this one; () where it is one
    output: str                 # the spec of its result; "" where that is no longer known
    predicted: float | None     # seconds, as the plan has it
    failure: str                # the name of its error, or ""
    runs: tuple[Run, ...]       # of the workers that had something to do, and lived to report it
    line: str                   # of the program, that asked for it, "train.py:42"; "" where that is not known

    @property
    def label(self) -> str:
        if len(self.segment) < 2:
            return self.name
        said = " + ".join(self.segment[:_SAID_OPS])
        more = len(self.segment) - _SAID_OPS
        return f"{said} + {more} more" if more > 0 else said

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(sorted(run.worker for run in self.runs))

    @property
    def start(self) -> float:
        return min((run.start for run in self.runs), default=0.0)

    @property
    def end(self) -> float:
        return max((run.end for run in self.runs), default=0.0)

    @property
    def duration(self) -> float:
        return self.end - self.start

    @property
    def bytes_moved(self) -> int:
        """Between workers, each byte once."""
        return sum(run.bytes_received + run.bytes_pushed for run in self.runs)

    @property
    def bytes_uploaded(self) -> int:
        """Copied into shards from the client or a file."""
        return sum(run.bytes_transferred for run in self.runs) if self.name == "upload" else 0

    @property
    def bytes_downloaded(self) -> int:
        """Copied from shards to the client or a file."""
        return sum(run.bytes_transferred for run in self.runs) if self.name == "download" else 0


@dataclass(frozen=True)
class Total:
    """All ops of one label."""

    label: str
    count: int
    total: float
    mean: float
    share: float                # of the total of all ops
    predicted: float | None     # the sum; None where nothing was
    bytes_moved: int


def lanes_of(runs) -> list[int]:
    """A lane for each run, so that those of one lane don't overlap. `runs` are sorted by start."""
    ends: list[float] = []
    lanes = []
    for run in runs:
        lane = next((i for i, end in enumerate(ends) if end <= run.start), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = run.end
        lanes.append(lane)
    return lanes


def _op(raw, first_ns: int) -> ProfiledOp:
    number, name, segment, output, predicted_us, failure, runs, line = raw
    made = tuple(Run(worker, (started - first_ns) * 1e-9, (ended - started) * 1e-9, working * 1e-9, received, pushed, transferred)
                 for worker, started, ended, working, received, pushed, transferred in sorted(runs))
    return ProfiledOp(number, name, tuple(segment), output, predicted_us * 1e-6 if predicted_us else None, failure, made, line)


class Profile:
    """The work of the workers for a session, with times: `ops`, a table, a timeline, a trace for Perfetto.

    >>> with session.profile() as profile:
    ...     y = ts.softmax(x @ w).wait()
    >>> print(profile)                      # by op: how often, how long, what was predicted
    >>> profile.save("trace.json")          # for https://ui.perfetto.dev or chrome://tracing

    Without a block it has the last ops that are remembered, as they are when it is first looked at. A block waits at its
    end until its ops have run.
    """

    def __init__(self, session):
        self._session = session
        self._number = None         # of the open block
        self._raw = None

    def __enter__(self):
        if self._number is not None or self._raw is not None:
            raise FailedPreconditionError("profile: this one has been used; session.profile() makes a new one")
        self._number = self._session._comm_begin()
        return self

    def __exit__(self, kind, value, traceback):
        number, self._number = self._number, None
        self._raw = {"ops": [], "forgotten_ops": 0, "ops_under_way": 0, "clock_errors_ns": {}}
        try:
            *_, block = self._session._comm_end(number)
            self._load(block)
        except Exception:
            if kind is None:
                raise

    # Workers say that they are done with a transfer a moment after the client has its bytes.
    def _load(self, block) -> None:
        until = time.monotonic() + _PATIENCE
        self._raw = self._session._profile(*block)
        while self._raw["ops_under_way"] and time.monotonic() < until:
            time.sleep(0.002)
            self._raw = self._session._profile(*block)

    def _loaded(self) -> dict:
        if self._raw is None and self._number is None:
            self._load(_EVERYTHING)
        return self._raw or {"ops": [], "forgotten_ops": 0, "ops_under_way": 0, "clock_errors_ns": {}}

    @property
    def ops(self) -> list[ProfiledOp]:
        """By their start; those of an open block are not there yet."""
        raw = self._loaded()
        first = min((run[1] for op in raw["ops"] for run in op[6]), default=0)
        return sorted((_op(op, first) for op in raw["ops"]), key=lambda op: (op.start, op.number))

    @property
    def forgotten(self) -> int:
        """How many of the ops are no longer remembered: the coordinator keeps the last ones (max_profiled_runs)."""
        return self._loaded()["forgotten_ops"]

    @property
    def under_way(self) -> int:
        """How many of the ops have not ended yet."""
        return self._loaded()["ops_under_way"]

    @property
    def clock_errors(self) -> dict[int, float]:
        """By worker: seconds by which its times may be off; 0 on the coordinator's host."""
        return {worker: error * 1e-9 for worker, error in self._loaded()["clock_errors_ns"].items()}

    @property
    def bytes_uploaded(self) -> int:
        """Copied into shards from the client or files, on all workers together."""
        return sum(op.bytes_uploaded for op in self.ops)

    @property
    def bytes_downloaded(self) -> int:
        """Copied from shards to the client or files."""
        return sum(op.bytes_downloaded for op in self.ops)

    def totals(self) -> list[Total]:
        """By label, the one that took longest first."""
        by_label: dict[str, list[ProfiledOp]] = {}
        for op in self.ops:
            by_label.setdefault(op.label, []).append(op)
        whole = sum(op.duration for ops in by_label.values() for op in ops) or 1.0
        totals = []
        for label, ops in by_label.items():
            total = sum(op.duration for op in ops)
            predicted = [op.predicted for op in ops if op.predicted is not None]
            totals.append(Total(label, len(ops), total, total / len(ops), total / whole, sum(predicted) if predicted else None,
                                sum(op.bytes_moved for op in ops)))
        return sorted(totals, key=lambda one: -one.total)

    def headline(self) -> list[str]:
        ops = self.ops
        workers = {run.worker for op in ops for run in op.runs}
        said = [f"{len(ops)} op{'' if len(ops) == 1 else 's'} on {len(workers)} worker{'' if len(workers) == 1 else 's'}"]
        if ops:
            said.append(f"{_html.seconds_text(max(op.end for op in ops))} from the first to the last")
        for moved, what in ((sum(op.bytes_moved for op in ops), "moved between workers"), (self.bytes_uploaded, "uploaded"),
                            (self.bytes_downloaded, "downloaded")):
            if moved:
                said.append(f"{_html.bytes_text(moved)} {what}")
        failed = sum(bool(op.failure) for op in ops)
        for count, what in ((failed, "failed"), (self.under_way, "under way"), (self.forgotten, "no longer remembered")):
            if count:
                said.append(f"{count} {what}")
        error = max(self.clock_errors.values(), default=0)
        if error:
            said.append(f"clocks agree to {_html.seconds_text(error)}")
        return said

    def trace(self) -> dict:
        """In the Trace Event Format, which Perfetto and Chrome read: a process for each worker."""
        ops = [(op, run) for op in self.ops for run in op.runs]
        events = []
        for worker in sorted({run.worker for _, run in ops}):
            events.append(_metadata("process_name", worker + 1, 0, f"worker {worker}"))
            for first_lane, is_transfer in ((0, False), (100, True)):
                own = sorted(((op, run) for op, run in ops if run.worker == worker and (op.name in _TRANSFERS) == is_transfer),
                             key=lambda one: one[1].start)
                lanes = lanes_of([run for _, run in own])
                for lane in sorted(set(lanes)):
                    name = "transfers" if is_transfer else "ops"
                    events.append(_metadata("thread_name", worker + 1, first_lane + lane + 1, name if lane == 0 else f"{name} {lane + 1}"))
                events += [_event(op, run, first_lane + lane + 1) for (op, run), lane in zip(own, lanes)]
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made by": "tessera", "session": self._session.id}}

    def save(self, path) -> None:
        """Writes the trace as JSON, for https://ui.perfetto.dev or chrome://tracing."""
        text = json.dumps(self.trace())
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def __str__(self) -> str:
        if self._number is not None:
            return "Profile(open)"
        lines = ["; ".join(self.headline())]
        totals = self.totals()
        width = max([len(one.label) for one in totals] + [2])
        if totals:
            lines.append(f"{'op':{width}}  {'count':>6}  {'total':>8}  {'mean':>8}  {'share':>5}  {'predicted':>9}  {'moved':>8}")
        for one in totals:
            predicted = "" if one.predicted is None else _html.seconds_text(one.predicted)
            moved = _html.bytes_text(one.bytes_moved) if one.bytes_moved else ""
            lines.append(f"{one.label:{width}}  {one.count:>6}  {_html.seconds_text(one.total):>8}  {_html.seconds_text(one.mean):>8}  "
                         f"{one.share:>5.0%}  {predicted:>9}  {moved:>8}".rstrip())
        return "\n".join(lines)

    def __repr__(self) -> str:
        if self._number is not None:
            return "Profile(open)"
        try:
            return f"Profile({'; '.join(self.headline())})"
        except Exception as error:      # a repr never raises
            return f"Profile({type(error).__name__}: {error})"


def _metadata(name: str, pid: int, tid: int, value: str) -> dict:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": value}}


def _event(op: ProfiledOp, run: Run, tid: int) -> dict:
    args = {"number": op.number, "output": op.output, "working_us": round(run.working * 1e6, 3), "bytes_received": run.bytes_received,
            "bytes_pushed": run.bytes_pushed, "bytes_transferred": run.bytes_transferred}
    if op.segment:
        args["segment"] = list(op.segment)
    if op.predicted is not None:
        args["predicted_us"] = round(op.predicted * 1e6, 3)
    if op.failure:
        args["failure"] = op.failure
    if op.line:
        args["line"] = op.line
    return {"name": op.label, "cat": "transfer" if op.name in _TRANSFERS else "op", "ph": "X", "ts": round(run.start * 1e6, 3),
            "dur": round(run.duration * 1e6, 3), "pid": run.worker + 1, "tid": tid, "args": args}


Profile.__module__ = "tessera"
