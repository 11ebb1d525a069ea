"""The picture of a plan: its steps from left to right, its workers from top to bottom, what goes from whom to whom."""

from __future__ import annotations

from . import _html

_MAX_ROWS = 16      # docs/limits.md: max_drawn_workers
_MAX_STEPS = 24     # docs/limits.md: max_drawn_steps
_ROW, _WORK, _MOVE = 34, 108, 132


def _arrow(x0: float, y0: float, x1: float, y1: float, colour: str, width: float, title: str) -> str:
    bend = (x1 - x0) * 0.45
    path = f"M{x0:.1f},{y0:.1f} C{x0 + bend:.1f},{y0:.1f} {x1 - bend - 6:.1f},{y1:.1f} {x1 - 6:.1f},{y1:.1f}"
    head = f"{x1:.1f},{y1:.1f} {x1 - 7:.1f},{y1 - 3.5:.1f} {x1 - 7:.1f},{y1 + 3.5:.1f}"
    return (f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:.1f}" stroke-opacity=".8">'
            f'<title>{_html.escape(title)}</title></path><polygon points="{head}" fill="{colour}"/>')


def _columns(op: dict) -> list[list]:
    """The op's steps by column: those that share a phase stand in one."""
    columns: list[list] = []
    for step, text in zip(op["flows"], op["steps"]):
        step = step | {"text": text}
        if step["joins_last"] and columns:
            columns[-1].append(step)
        else:
            columns.append([step])
    return columns


def _moves(column, rows, x: float, most: float) -> list[str]:
    pairs: dict = {}
    for step in column:
        for giver, taker, count in step["flows"]:
            pairs[giver, taker] = pairs.get((giver, taker), 0) + count
    parts = []
    for (giver, taker), count in sorted(pairs.items()):
        title = f"{_html.bytes_text(count)}, worker {giver} to worker {taker}"
        parts.append(_arrow(x + 4, rows[giver], x + _MOVE - 4, rows[taker], _html.colour(giver), 1 + 3 * count / most, title))
    return parts


def _work(step, rows, x: float) -> list[str]:
    parts = []
    for worker in step["workers"]:
        if worker in rows:
            parts.append(_html.rectangle(x + 6, rows[worker] - 11, _WORK - 12, 22, _html.colour(worker), 'rx="4"', step["text"]))
            parts.append(_html.label(x + _WORK / 2, rows[worker] + 4, _html.fitting(step["title"], _WORK - 14, 10), fill="white", size=10))
    return parts


def _flow_svg(op: dict) -> str:
    rows = {worker: 52 + i * _ROW for i, worker in enumerate(op["workers"])}
    columns = _columns(op)[:_MAX_STEPS]
    most = max((count for step in op["flows"] for _, _, count in step["flows"]), default=1)
    x, parts = 64.0, []
    lines = [f'<line x1="60" x2="{{end:.0f}}" y1="{y}" y2="{y}" stroke="currentColor" stroke-opacity=".15"/>' for y in rows.values()]
    for column in columns:
        is_move = any(step["flows"] for step in column)
        width = _MOVE if is_move else _WORK
        moved = sum(count for step in column for _, _, count in step["flows"])
        name = " + ".join(dict.fromkeys(step["title"] for step in column))
        parts.append(_html.label(x + width / 2, 14, _html.fitting(name, width + 14), more='font-weight="bold"'))
        if is_move:
            parts.append(_html.label(x + width / 2, 28, _html.bytes_text(moved), size=10, more='opacity=".7"'))
            parts += _moves(column, rows, x, most)
        if not is_move or any(not step["is_exchange"] for step in column):
            work = next(step for step in column if not is_move or not step["is_exchange"])
            x += _MOVE if is_move else 0
            parts += _work(work, rows, x)
            x += _WORK
        else:
            x += width
    names = [_html.label(56, y + 4, f"worker {worker}", anchor="end") for worker, y in rows.items()]
    return _html.svg(x + 8, 52 + len(rows) * _ROW - 8, *(line.format(end=x) for line in lines), *names, *parts)


def _totals(plan_op) -> str:
    rows = []
    for worker, received, sent, peak in zip(plan_op["workers"], plan_op["bytes_received"], plan_op["bytes_sent"], plan_op["peak_bytes"]):
        mark = f'<span style="color:{_html.colour(worker)}">&#9632;</span> worker {worker}'
        rows.append([_html.cell(mark), *(_html.cell(_html.bytes_text(n), align="right") for n in (received, sent, peak))])
    return _html.table(["", "receives", "sends", "peak memory"], rows, align="right")


def _op_html(op: dict) -> str:
    parts = []
    if len(op["workers"]) <= _MAX_ROWS and op["flows"]:
        parts.append(f'<div style="overflow-x:auto">{_flow_svg(op)}</div>')
        if len(_columns(op)) > _MAX_STEPS:
            parts.append(_html.note(f"{len(_columns(op)) - _MAX_STEPS} more steps"))
        if sum(count for step in op["flows"] for _, _, count in step["flows"]) < sum(op["bytes_received"]):
            parts.append(_html.note("Workers also take parts of others' sorted shards: the values decide which, and the table has the most."))
    else:
        parts += [_html.note(step) for step in op["steps"]] or [_html.note("Nothing runs: the result is there already.")]
    if not op["steps"]:
        pass
    elif len(op["workers"]) <= _MAX_ROWS:
        parts.append(_totals(op))
    else:
        parts.append(_html.note(f"{len(op['workers'])} workers; a worker receives at most {_html.bytes_text(max(op['bytes_received']))}, "
                                f"sends at most {_html.bytes_text(max(op['bytes_sent']))}"))
    parts += [_html.note(f"not asked for by name: {line}") for line in op["implicit"]]
    return "".join(parts)


def html(plan) -> str:
    """Never raises."""
    try:
        moved = sum(plan.bytes_received)
        head = _html.headline(plan.output, f"{len(plan.steps)} step{'' if len(plan.steps) == 1 else 's'}",
                              f"{_html.bytes_text(moved)} moved between workers" if moved else "nothing moves",
                              f"predicted {_html.seconds_text(plan.predicted_seconds)}")
        ops = [_op_html(op) for op in plan._ops]
        if len(ops) > 1:
            ops = [_html.captioned(f"op {i + 1} of {len(ops)}: {', '.join(op['outputs'])}", text)
                   for i, (op, text) in enumerate(zip(plan._ops, ops))]
        return _html.frame(head, *ops)
    except Exception:  # a repr never raises
        return f"<pre>{_html.escape(str(plan))}</pre>"
