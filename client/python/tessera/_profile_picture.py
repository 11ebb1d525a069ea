"""The picture of a profile: the last ops by worker on a line of time, and what they took in all."""

from __future__ import annotations

from . import _html
from ._profile import lanes_of

_MAX_WORKERS = 16       # docs/limits.md: max_drawn_workers
_MAX_RUNS = 400         # docs/limits.md: max_drawn_runs
_MAX_LABELS = 12        # docs/limits.md: max_drawn_labels
_WIDTH, _LEFT, _LANE, _GAP = 760, 64, 20, 8


def _title(op, run) -> str:
    said = [f"{op.label} on worker {run.worker}: {_html.seconds_text(run.duration)}"]
    if run.working < run.duration * 0.95:
        said.append(f"of which {_html.seconds_text(run.working)} at work")
    if op.predicted is not None:
        said.append(f"predicted {_html.seconds_text(op.predicted)}")
    for count, what in ((run.bytes_received, "received"), (run.bytes_pushed, "stored to others"), (run.bytes_transferred, "transferred")):
        if count:
            said.append(f"{_html.bytes_text(count)} {what}")
    if op.output:
        said.append(op.output)
    if op.failure:
        said.append(f"failed: {op.failure}")
    return ", ".join(said)


def _bar(op, run, x0: float, x1: float, y: float, colour: str) -> str:
    """The whole run in its colour, and paler where it waited: at the right, for how much it was."""
    width = max(x1 - x0, 1.0)
    waited = 1 - run.working / run.duration if run.duration > 0 else 0.0
    parts = [_html.rectangle(x0, y, width, _LANE - 4, colour, 'rx="2"', _title(op, run))]
    if waited > 0.05 and width > 6:
        parts.append(_html.rectangle(x1 - width * waited, y, width * waited, _LANE - 4, "#fff", 'fill-opacity=".35" pointer-events="none"'))
    said = _html.fitting(op.label, width - 6, 10)
    if said:
        parts.append(_html.label(x0 + width / 2, y + 12, said, size=10, fill="white", more='pointer-events="none"'))
    return "".join(parts)


def _timeline(drawn, colours: dict) -> str:
    """`drawn`: (op, run), sorted by the run's start."""
    first = min(run.start for _, run in drawn)
    span = max(run.end for _, run in drawn) - first or 1e-9
    scale = (_WIDTH - _LEFT - 8) / span
    y, parts = 22.0, []
    for worker in sorted({run.worker for _, run in drawn}):
        own = [(op, run) for op, run in drawn if run.worker == worker]
        lanes = lanes_of([run for _, run in own])
        height = (max(lanes) + 1) * _LANE
        parts.append(_html.label(_LEFT - 8, y + 12, f"worker {worker}", anchor="end"))
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y + height:.0f}" y2="{y + height:.0f}" stroke="currentColor" stroke-opacity=".15"/>')
        for (op, run), lane in zip(own, lanes):
            x0 = _LEFT + (run.start - first) * scale
            parts.append(_bar(op, run, x0, x0 + run.duration * scale, y + lane * _LANE, colours[op.label]))
        y += height + _GAP
    for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end")):
        said = "0" if share == 0 else _html.seconds_text(span * share)
        parts.append(_html.label(_LEFT + share * (_WIDTH - _LEFT - 8), 12, said, size=10, anchor=anchor, more='opacity=".7"'))
    return _html.svg(_WIDTH, y, *parts)


def _totals(totals, colours: dict) -> str:
    rows = []
    for one in totals[:_MAX_LABELS]:
        mark = f'<span style="color:{colours[one.label]}">&#9632;</span> {_html.escape(one.label)}'
        predicted = "" if one.predicted is None else _html.seconds_text(one.predicted)
        moved = _html.bytes_text(one.bytes_moved) if one.bytes_moved else ""
        texts = (str(one.count), _html.seconds_text(one.total), _html.seconds_text(one.mean), f"{one.share:.0%}", predicted, moved)
        rows.append([_html.cell(mark), *(_html.cell(text, align="right") for text in texts)])
    more = len(totals) - _MAX_LABELS
    return _html.table(["", "count", "total", "mean", "share", "predicted", "moved"], rows, align="right") + (
        _html.note(f"and {more} more kinds of ops") if more > 0 else "")


def html(profile) -> str:
    """Never raises."""
    try:
        head = _html.headline(*profile.headline())
        totals = profile.totals()
        colours = {one.label: _html.colour(i) for i, one in enumerate(totals)}
        runs = [(op, run) for op in profile.ops for run in op.runs]
        workers = sorted({run.worker for _, run in runs})
        drawn = sorted((one for one in runs if one[1].worker in workers[:_MAX_WORKERS]), key=lambda one: one[1].start)[-_MAX_RUNS:]
        parts = [f'<div style="overflow-x:auto">{_timeline(drawn, colours)}</div>', _totals(totals, colours)] if drawn else []
        if drawn and len(drawn) < len(runs):
            parts.append(_html.note(f"drawn are the last {len(drawn)} of {len(runs)} runs"))
        return _html.frame(head, *parts)
    except Exception:  # a repr never raises
        return f"<pre>{_html.escape(repr(profile))}</pre>"
