"""Text and HTML of tensors."""

from __future__ import annotations

import html as _html
import itertools

import numpy as np

import _tessera

_EDGE = 3
_WHOLE_ELEMENTS = 1000
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
_MAX_DRAWN = 64


def _edges(tensor) -> np.ndarray:
    """The corners of a tensor, put together; a gap of one element stands where dims are cut."""
    cut = [n > 2 * _EDGE for n in tensor.shape]
    out = np.zeros([2 * _EDGE + 1 if c else n for c, n in zip(cut, tensor.shape)], dtype=tensor.dtype)
    choices = [[("head", slice(0, _EDGE)), ("tail", slice(n - _EDGE, n))] if c else [("all", slice(0, n))]
               for c, n in zip(cut, tensor.shape)]
    for block in itertools.product(*choices):
        source = tuple(part for _, part in block)
        target = tuple(slice(_EDGE + 1, None) if kind == "tail" else slice(0, _EDGE) if kind == "head" else slice(None)
                       for kind, _ in block)
        out[target] = tensor[source].full_tensor()
    return out


def edges_text(tensor) -> str:
    """Its values, cut in the middle of long dims. Blocks."""
    if tensor.size <= _WHOLE_ELEMENTS:
        return np.array2string(tensor.full_tensor(), separator=", ")
    return np.array2string(_edges(tensor), threshold=0, edgeitems=_EDGE, separator=", ")


def _boxes(tensor):
    placements = [(0, 0, 0) if kind == 2 else (kind, dim, op) for kind, dim, op, *_ in tensor._placements]
    return _tessera.boxes(tensor._dtype, tensor.shape, tensor._mesh, placements)


def _pending(tensor) -> str:
    """"sum" of a tensor whose workers have terms of one, "" of one that has its values."""
    return next((p.reduce_op for p in tensor.placements if p.is_partial()), "")


def _svg(tensor, boxes, workers) -> str:
    """A 1-D or 2-D tensor with the boxes of its shards, coloured by the first worker that has each; of boxes that several
    have terms of it says so, in a dashed frame."""
    pending = _pending(tensor)
    frame = 'stroke="black" stroke-dasharray="4 3"' if pending else 'stroke="white"'
    rows, columns = tensor.shape if tensor.ndim == 2 else (1, tensor.shape[0])
    scale = 240 / max(rows, columns, 1)
    height, width = max(rows * scale, 24), max(columns * scale, 24)
    held: dict[tuple, list[int]] = {}
    for box, worker in zip(boxes, workers):
        held.setdefault(tuple(box), []).append(worker)
    parts = []
    for box, owners in held.items():
        (top, bottom), (left, right) = box if tensor.ndim == 2 else ((0, 1), box[0])
        if bottom <= top or right <= left:
            continue
        x, y = left * width / max(columns, 1), top * height / max(rows, 1)
        w, h = (right - left) * width / max(columns, 1), (bottom - top) * height / max(rows, 1)
        colour = _COLOURS[owners[0] % len(_COLOURS)]
        label = ",".join(map(str, owners[:8])) + ("..." if len(owners) > 8 else "")
        label = f"{pending} of {label}" if pending else label
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{colour}" fill-opacity="0.75" '
                     f'{frame}/><text x="{x + w / 2:.1f}" y="{y + h / 2 + 4:.1f}" font-size="11" '
                     f'text-anchor="middle" fill="white">{label}</text>')
    return f'<svg width="{width:.0f}" height="{height:.0f}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def html(tensor) -> str:
    """The spec, a drawing of the shards, and the mesh as a table. Fetches nothing and never raises."""
    try:
        workers = tensor._mesh.workers
        head = f"<code>{_html.escape(tensor._spec)}</code> &middot; {tensor.nbytes:,} bytes"
        if len(workers) > _MAX_DRAWN:
            return f"<div>{head}<br>{len(workers)} positions</div>"
        boxes = _boxes(tensor)
        drawing = _svg(tensor, boxes, workers) if tensor.ndim in (1, 2) and tensor.size else ""
        rows = []
        pending = _pending(tensor)
        for position, worker, box in zip(itertools.product(*(range(n) for n in tensor._mesh.shape)), workers, boxes):
            shown = ", ".join(f"{start}:{stop}" for start, stop in box)
            shown = f"[{shown}], a term of the {pending}" if pending else f"[{shown}]"
            rows.append(f'<tr><td>{position}</td><td><span style="color:{_COLOURS[worker % len(_COLOURS)]}">&#9632;</span> '
                        f"worker {worker}</td><td>{shown}</td></tr>")
        return (f"<div>{head}<br>{drawing}<table><tr><th>position</th><th>worker</th><th>shard</th></tr>"
                f'{"".join(rows)}</table></div>')
    except Exception:  # a repr never raises
        return f"<code>{_html.escape(repr(tensor))}</code>"
