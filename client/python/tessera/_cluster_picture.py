"""Pictures of a session and of a cluster: its workers with their memory, and who holds what."""

from __future__ import annotations

import _tessera
from . import _html

_MAX_WORKERS = 64       # docs/limits.md: max_drawn_members
_MAX_TENSORS = 20       # docs/limits.md: max_listed_tensors
_BAR = 220
_STATES = {"alive": "#59a14f", "suspect": "#f28e2b", "dead": "#e15759"}


def _bar(total: int, segments) -> str:
    """Memory of a worker as a bar. `segments`: (bytes, colour, title)."""
    x, parts = 0.0, [_html.rectangle(0, 2, _BAR, 12, "#8883", 'rx="2"', f"{_html.bytes_text(total)} in all")]
    for count, colour, title in segments:
        width = min(max(count / max(total, 1) * _BAR, 1 if count else 0), _BAR - x)
        if width > 0:
            parts.append(_html.rectangle(x, 2, width, 12, colour, "", f"{title}: {_html.bytes_text(count)}"))
            x += width
    return _html.svg(_BAR, 16, *parts)


def _workers_table(status: dict, segments_of) -> str:
    rows = []
    for worker in status["workers"][:_MAX_WORKERS]:
        state = f'<span style="color:{_STATES.get(worker["state"], "#888")}">&#9679;</span> {worker["state"]}'
        used = f"{_html.bytes_text(worker['used_bytes'])} of {_html.bytes_text(worker['memory_bytes'])}"
        rows.append([_html.cell(f"worker {worker['index']}"), _html.cell(state), _html.cell(_bar(worker["memory_bytes"], segments_of(worker))),
                     _html.cell(used, align="right"), _html.cell(_html.bytes_text(worker["received_bytes"]), align="right"),
                     _html.cell(str(worker["outstanding"]), align="right")])
    table = _html.table(["", "state", "memory", "in use", "received so far", "ops under way"], rows)
    more = len(status["workers"]) - _MAX_WORKERS
    return table + (_html.note(f"and {more} more workers") if more > 0 else "")


def _tensors_table(tensors, colours) -> str:
    rows = []
    for one in tensors[:_MAX_TENSORS]:
        mark = f'<span style="color:{colours[one["handle"]]}">&#9632;</span> {one["handle"]}'
        said = one["error"] or one["state"]
        rows.append([_html.cell(mark), _html.cell(_html.escape(one["spec"])),
                     _html.cell(_html.bytes_text(one["bytes_per_worker"]), align="right"), _html.cell(_html.escape(said))])
    return _html.table(["handle", "tensor", "bytes per worker", "state"], rows)


def _uptime(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def session_html(session) -> str:
    """Never raises."""
    try:
        status = session.status()
        tensors = sorted(status["tensors"], key=lambda one: -one["bytes_per_worker"])
        own = next((one for one in status["sessions"] if one["id"] == session.id), {"queued": 0, "bytes": 0})
        colours = {one["handle"]: _html.colour(i) for i, one in enumerate(tensors)}
        placed = [(one, set(one["workers"])) for one in tensors[:_MAX_TENSORS]]

        def segments(worker):
            shown, left = [], worker["used_bytes"]
            for one, workers in placed:
                if worker["index"] in workers and left > 0:
                    count = min(one["bytes_per_worker"], left)
                    shown.append((count, colours[one["handle"]], f"tensor {one['handle']}"))
                    left -= count
            return [*shown, (left, "#888", "others, and memory that is kept for the next op")]

        head = _html.headline(f"Session {session.id}", session.address.partition("#")[0], f"{len(status['workers'])} workers",
                              f"{status['tensor_count']} tensors on the cluster" if not tensors else
                              f"{len(tensors)} tensors, {_html.bytes_text(own['bytes'])} on a worker at most",
                              f"{own['queued']} ops queued")
        parts = [head, _workers_table(status, segments)]
        if tensors:
            parts.append(_tensors_table(tensors, colours))
            if len(tensors) > _MAX_TENSORS:
                parts.append(_html.note(f"and {len(tensors) - _MAX_TENSORS} smaller tensors; session.tensors() has all"))
        else:
            parts.append(_html.note("It holds no tensors."))
        return _html.frame(*parts)
    except Exception as error:  # a repr never raises
        return _html.frame(_html.headline(repr(session)), _html.warning(f"{type(error).__name__}: {error}"))


def _admin_status(cluster) -> tuple[dict, int]:
    """The status that an admin's session of a moment is told, and its number."""
    session = _tessera.Session._connect(cluster.admin_address, "", "", "", 2.0, -1.0, 2.0, "tessera picture", "", "", "")
    try:
        return session._status(), session.id
    finally:
        session._close()


def cluster_html(cluster) -> str:
    """Never raises."""
    try:
        if cluster._stopped:
            return _html.frame(_html.headline(repr(cluster)))
        status, own = _admin_status(cluster)
        sessions = [one for one in status["sessions"] if one["id"] != own]
        head = _html.headline(f"Cluster of {len(status['workers'])} workers", cluster.address.partition("#")[0],
                              f"up for {_uptime(status['uptime_s'])}", f"{status['plans_cached']} plans kept")
        parts = [head, _workers_table(status, lambda worker: [(worker["used_bytes"], _html.colour(0), "in use")])]
        rows = [[_html.cell(str(one["id"])), _html.cell(_html.escape(one["client"])), _html.cell(str(one["tensors"]), align="right"),
                 _html.cell(_html.bytes_text(one["bytes"]), align="right"), _html.cell(str(one["queued"]), align="right"),
                 _html.cell("connected" if one["connected"] else "away")] for one in sessions]
        parts.append(_html.table(["session", "client", "tensors", "bytes on a worker", "queued", ""], rows) if rows else
                     _html.note("No session is open."))
        return _html.frame(*parts)
    except Exception as error:  # a repr never raises
        return _html.frame(_html.headline(repr(cluster)), _html.warning(f"{type(error).__name__}: {error}"))
