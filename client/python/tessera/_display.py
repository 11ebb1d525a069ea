"""Text and pictures of tensors and meshes."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np

import _tessera
from . import _html
from ._errors import ArgumentError, TesseraError
from ._placements import kept

_EDGE = 3
_WHOLE_ELEMENTS = 1000
_MAX_CELLS = 256        # docs/limits.md: max_drawn_positions
_MAX_PANELS = 16        # docs/limits.md: max_drawn_panels
_EDGES_TIMEOUT = 1.0    # docs/limits.md: edges_timeout
_PATIENCE = 1.0         # docs/limits.md: picture_patience


# ---- values -------------------------------------------------------------------------------------

def _edges(tensor) -> np.ndarray:
    """The corners of a tensor, put together; a gap of one element stands where dims are cut."""
    cut = [n > 2 * _EDGE for n in tensor.shape]
    out = np.zeros([2 * _EDGE + 1 if c else n for c, n in zip(cut, tensor.shape)], dtype=tensor.dtype)
    for target, part in _corners(tensor):
        out[target] = part.full_tensor()
    return out


def _corners(tensor) -> list:
    """(where it stands among the edges, the slice), for each corner."""
    choices = [[("head", slice(0, _EDGE)), ("tail", slice(n - _EDGE, n))] if n > 2 * _EDGE else [("all", slice(0, n))]
               for n in tensor.shape]
    places = {"head": slice(0, _EDGE), "tail": slice(_EDGE + 1, None), "all": slice(None)}
    return [(tuple(places[kind] for kind, _ in block), tensor[tuple(part for _, part in block)])
            for block in itertools.product(*choices)]


def edges_text(tensor) -> str:
    """Its values, cut in the middle of long dims. Blocks."""
    if tensor.size <= _WHOLE_ELEMENTS:
        return np.array2string(tensor.full_tensor(), separator=", ")
    return np.array2string(_edges(tensor), threshold=0, edgeitems=_EDGE, separator=", ")


def _number_text(value) -> str:
    value = value.item()
    if isinstance(value, complex):
        return f"{value.real:.4g}{value.imag:+.4g}j"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _values_table(array: np.ndarray, extents) -> str:
    """The edges of a matrix of the extents; columns and rows that are left out are dots."""
    def numbers(shown: int, extent: int) -> list:
        return list(range(extent)) if shown == extent else [*range(_EDGE), None, *range(extent - _EDGE, extent)]
    rows = []
    columns = numbers(array.shape[1], extents[1])
    for i, row in enumerate(numbers(array.shape[0], extents[0])):
        named = "" if extents[0] == 1 else "⋮" if row is None else str(row)
        cells = [_html.cell(named, style="opacity:.5")]
        for j, column in enumerate(columns):
            shown = "⋮" if row is None else "…" if column is None else _number_text(array[i, j])
            cells.append(_html.cell(_html.escape(shown), align="right"))
        rows.append(cells)
    return _html.table(["", *("…" if column is None else str(column) for column in columns)], rows, align="right")


def _is_soon_ready(tensor) -> bool:
    try:
        tensor._wait(_PATIENCE)
    except TimeoutError:
        return tensor.is_ready()
    return True


def _values(tensor) -> str:
    """The values at the edges, in HTML; says why where there are none. Waits for the fetch of the edges, and for an op
    only as long as nobody notices: `c = a @ b; c` in one cell of a notebook is worth showing."""
    if not _is_soon_ready(tensor):
        return _html.note("Its values are still being computed.")
    if tensor.size == 0:
        return _html.note("It has no elements.")
    shown, index = tensor, ""
    if tensor.ndim > 2:
        first = (0,) * (tensor.ndim - 2)
        shown, index = tensor[first], f"x[{', '.join(map(str, first))}]"
    parts = _corners(shown) if shown.ndim else [((), shown)]
    _tessera.wait_all([part for _, part in parts], _EDGES_TIMEOUT)
    extents = (1,) * (2 - shown.ndim) + shown.shape
    array = np.zeros([2 * _EDGE + 1 if n > 2 * _EDGE else n for n in shown.shape], dtype=tensor.dtype)
    for target, part in parts:
        array[target] = part.full_tensor()
    matrix = array.reshape((1,) * (2 - array.ndim) + array.shape)
    return _html.captioned(f"values {index}".strip(), _values_table(matrix, extents))


# ---- shards -------------------------------------------------------------------------------------

def boxes_of(tensor) -> list:
    """[(start, stop), ...] by position of the mesh."""
    placements = kept(tensor._placements)
    return [tuple(map(tuple, box)) for box in _tessera.boxes(tensor._dtype, tensor.shape, tensor._mesh, placements)]


def _pending(tensor) -> str:
    """"sum" of a tensor whose workers have terms of one, "" of one that has its values."""
    return next((p.reduce_op for p in tensor.placements if p.is_partial()), "")


def _box_text(box) -> str:
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]" if box else "the number"


def _owners(boxes, workers) -> dict:
    """The workers of each box, by box, in the order of positions."""
    owners: dict = {}
    for box, worker in zip(boxes, workers):
        owners.setdefault(box, []).append(worker)
    return owners


def _workers_text(workers) -> str:
    return ",".join(map(str, workers)) if len(workers) <= 4 else f"{workers[0]},{workers[1]},…,{workers[-1]}"


def _is_empty(box) -> bool:
    return any(stop <= start for start, stop in box)


def _drawn_dims(tensor, owners) -> tuple[int, ...]:
    """At most two dims that are drawn: those that are cut, else the last ones."""
    cut = [d for d in range(tensor.ndim) if len({box[d] for box in owners}) > 1]
    rest = [d for d in reversed(range(tensor.ndim)) if d not in cut]
    return tuple(sorted((cut + rest)[:2]))


def _panel(tensor, dims, boxes, owners, colours) -> str:
    """The boxes, seen along two dims (or one, or none), each with the colour of its shard and the workers that have it."""
    pending = _pending(tensor)
    extents = [1] * (2 - len(dims)) + [max(tensor.shape[d], 1) for d in dims]
    # Long thin tensors are drawn less so: a shard must stay wide enough to read.
    ratio = min(max((extents[1] / extents[0]) ** 0.5, 1 / 2.5), 2.5)
    width, height = (220, 220 / ratio) if ratio >= 1 else (220 * ratio, 220)
    height = 44 if len(dims) < 2 else height
    width = 90 if not dims else width
    left, top = (52, 18) if len(dims) == 2 else (4, 18)
    edge = 'stroke="currentColor" stroke-dasharray="4 3"' if pending else 'stroke="white" stroke-width="1.5"'
    parts = []
    for box in boxes:
        spans = [(0, 1)] * (2 - len(dims)) + [box[d] for d in dims]
        (y0, y1), (x0, x1) = [(start / extent, stop / extent) for (start, stop), extent in zip(spans, extents)]
        x, y, w, h = left + x0 * width, top + y0 * height, (x1 - x0) * width, (y1 - y0) * height
        said = f"{pending} of {_workers_text(owners[box])}" if pending else _workers_text(owners[box])
        parts.append(_html.rectangle(x, y, w, h, colours[box], edge, f"worker {_workers_text(owners[box])}: {_box_text(box)}"))
        if h >= 11:
            parts.append(_html.label(x + w / 2, y + h / 2 + 4, _html.fitting(said, w), fill="white"))
    if dims:
        axis = f"dim {dims[-1]}: {tensor.shape[dims[-1]]:,}"
        parts.append(_html.label(left + width / 2, 12, axis, size=10, more='opacity=".6"'))
    if len(dims) == 2:
        turned = f'opacity=".6" transform="rotate(-90 {left - 8:.0f} {top + height / 2:.0f})"'
        parts.append(_html.label(left - 8, top + height / 2, f"dim {dims[0]}: {tensor.shape[dims[0]]:,}", size=10, more=turned))
    return _html.svg(left + width + 4, top + height + 4, *parts)


def _drawing(tensor, owners, colours) -> str:
    """The tensor with its shards; where more than two dims are cut, a panel for each interval of the others."""
    solid = [box for box in owners if not _is_empty(box)]
    if not solid:
        return ""
    dims = _drawn_dims(tensor, owners)
    others = [d for d in range(tensor.ndim) if d not in dims]
    panels: dict = {}
    for box in solid:
        panels.setdefault(tuple(box[d] for d in others), []).append(box)
    whole = [d for d in others if len({box[d] for box in owners}) == 1]
    blocks = []
    for spans, boxes in list(panels.items())[:_MAX_PANELS]:
        said = ", ".join(f"dim {d}: {start}:{stop}" for d, (start, stop) in zip(others, spans) if d not in whole)
        blocks.append(_html.captioned(said, _panel(tensor, dims, boxes, owners, colours)) if said else
                      _panel(tensor, dims, boxes, owners, colours))
    text = _html.beside(*blocks)
    if len(panels) > _MAX_PANELS:
        text += _html.note(f"{len(panels) - _MAX_PANELS} more such panels")
    if whole:
        named = ", ".join(f"dim {d} ({tensor.shape[d]:,})" for d in whole)
        text += _html.note(f"not drawn, whole in each shard: {named}")
    return text


def _row_names(shape, names) -> list[str]:
    return [", ".join(f"{name} {k}" for name, k in zip(names, at)) for at in np.ndindex(*shape[:-1])]


def _mesh_picture(raw, fills, texts, titles) -> str:
    """A mesh of workers, by position: the first dim goes down and the last across, with a gap between blocks of the dims
    between. A cell has a colour, up to two lines and a title."""
    shape, names = tuple(raw.shape), list(raw.names) or [f"mesh dim {d}" for d in range(len(raw.shape))]
    rows, columns = (1, shape[0]) if len(shape) == 1 else (math.prod(shape[:-1]), shape[-1])
    widest = max((len(line) for lines in texts for line in lines), default=1)
    width, height, left, top = min(max(widest * 6.4 + 10, 42), 190), 18 + 13 * (max(map(len, texts), default=1) - 1), 6, 18
    block = shape[-2] if len(shape) > 2 else rows
    left += 0 if len(shape) == 1 else 26 + 6 * max(len(said) for said in _row_names(shape, names))
    parts = [_html.label(left, 12, f"{names[-1]}: {columns} →", size=10, anchor="start", more='opacity=".6"')]
    for position, fill in enumerate(fills):
        row, column = divmod(position, columns)
        x, y = left + column * (width + 3), top + row * (height + 3) + row // block * 8
        parts.append(_html.rectangle(x, y, width, height, fill, 'rx="3"', titles[position]))
        for i, line in enumerate(texts[position]):
            parts.append(_html.label(x + width / 2, y + 13 + 13 * i, line, fill="white", size=11 if i == 0 else 10))
        if column == 0 and len(shape) > 1:
            said = _row_names(shape, names)[row]
            parts.append(_html.label(left - 8, y + height / 2 + 4, said, size=10, anchor="end", more='opacity=".6"'))
    return _html.svg(left + columns * (width + 3) + 4, top + rows * (height + 3) + rows // block * 8 + 4, *parts)


def _mesh_of_shards(tensor, boxes, colours) -> str:
    pending = _pending(tensor)
    workers = tensor._mesh.workers
    texts = [[f"worker {worker}", "empty" if _is_empty(box) else _box_text(box)] for worker, box in zip(workers, boxes)]
    titles = [f"worker {worker}: {'a term of the ' + pending + ' of ' if pending else ''}{_box_text(box)}"
              for worker, box in zip(workers, boxes)]
    return _mesh_picture(tensor._mesh, [colours[box] for box in boxes], texts, titles)


def _sizes_text(tensor, boxes) -> str:
    """How many bytes a worker has, of the whole."""
    item = tensor.nbytes // tensor.size if tensor.size else 0
    shares = [item * math.prod(stop - start for start, stop in box) for box in boxes]
    least, most = min(shares), max(shares)
    return _html.bytes_text(most) if least == most else f"{_html.bytes_text(least)} to {_html.bytes_text(most)}"


def html(tensor) -> str:
    """Spec, bytes, shards by mesh and by place, and the values at the edges. Never raises."""
    try:
        return _tensor_html(tensor)
    except Exception:  # a repr never raises
        return f"<code>{_html.escape(repr(tensor))}</code>"


def _tensor_html(tensor) -> str:
    boxes = boxes_of(tensor)
    owners = _owners(boxes, tensor._mesh.workers)
    colours = {box: "#8885" if _is_empty(box) else _html.colour(i) for i, box in enumerate(owners)}
    parts = [_html.headline(tensor._spec, tensor.dtype.name, _html.bytes_text(tensor.nbytes),
                            f"{_sizes_text(tensor, boxes)} per worker")]
    if pending := _pending(tensor):
        parts.append(_html.note(f"Pending: each worker has a term of the {pending}, and an op that needs the values reduces them."))
    if len(boxes) <= _MAX_CELLS:
        parts.append(_html.beside(_html.captioned("tensor, by shard", _drawing(tensor, owners, colours)),
                                  _html.captioned("mesh, by worker", _mesh_of_shards(tensor, boxes, colours)),
                                  _values_or_why_not(tensor)))
    else:
        parts.append(_html.note(f"{len(boxes)} positions, {len(owners)} shards; too many to draw"))
        parts.append(_values_or_why_not(tensor))
    return _html.frame(*parts)


def _values_or_why_not(tensor) -> str:
    try:
        return _values(tensor)
    except TimeoutError:
        return _html.note("Its values are not shown: the workers are busy.")
    except TesseraError as error:
        return _html.warning(f"{type(error).__name__}: {error}")


def mesh_html(mesh) -> str:
    """The workers of a mesh, by position. Never raises."""
    try:
        workers = mesh.workers
        head = _html.headline(repr(mesh), f"{len(workers)} workers")
        if len(workers) > _MAX_CELLS:
            return _html.frame(head)
        return _html.frame(head, _mesh_picture(mesh._raw, [_html.colour(worker) for worker in workers],
                                               [[f"worker {worker}"] for worker in workers],
                                               [f"position {position}" for position in np.ndindex(*mesh._raw.shape)]))
    except Exception:  # a repr never raises
        return f"<code>{_html.escape(repr(mesh))}</code>"


# ---- text ---------------------------------------------------------------------------------------

def sharding_text(tensor) -> str:
    """The shards and their workers as a text: a grid of the shards where at most two dims are cut, else a line for each position."""
    boxes = boxes_of(tensor)
    owners = _owners(boxes, tensor._mesh.workers)
    pending = _pending(tensor)
    lines = [f"{tensor._spec}  {_html.bytes_text(tensor.nbytes)}, {_sizes_text(tensor, boxes)} per worker"]
    if pending:
        lines.append(f"pending: each worker has a term of the {pending}")
    cut = [d for d in range(tensor.ndim) if len({box[d] for box in owners}) > 1]
    if len(cut) > 2 or len(owners) > _MAX_CELLS:
        for position, worker, box in zip(np.ndindex(*tensor._mesh.shape), tensor._mesh.workers, boxes):
            lines.append(f"  {position}  worker {worker}  {_box_text(box)}")
        return "\n".join(lines)
    across = cut[-1] if cut else None
    down = cut[0] if len(cut) == 2 else None

    def spans(dim) -> list:
        return [None] if dim is None else sorted({box[dim] for box in owners if not _is_empty(box)})

    grid = [["" if down is None else f"{down_span[0]}:{down_span[1]}",
             *(_workers_text([w for box, workers in owners.items() for w in workers if not _is_empty(box)
                              and (across is None or box[across] == span) and (down is None or box[down] == down_span)])
               for span in spans(across))] for down_span in spans(down)]
    head = ["" if down is None else f"dim {down}", *("whole" if span is None else f"{span[0]}:{span[1]}" for span in spans(across))]
    widths = [max(len(row[c]) for row in [head, *grid]) + 2 for c in range(len(head))]
    rule = " " * widths[0] + "+" + "+".join("-" * w for w in widths[1:]) + "+"
    if across is not None:
        lines.append(f"{' ' * widths[0]} dim {across}")
    lines.append("".join(f"{text:^{w}} " for text, w in zip(head, widths)).rstrip())
    for row in grid:
        lines += [rule, row[0].rjust(widths[0] - 1) + " |" + "|".join(f"{text:^{w}}" for text, w in zip(row[1:], widths[1:])) + "|"]
    return "\n".join([*lines, rule, "in each box: the workers that have it"])


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def visualize_sharding(x, /) -> None:
    """Shows which worker has which part of a tensor: a picture in a notebook, a table of text elsewhere. It fetches no
    values in a terminal, and in a notebook those at the edges.

    >>> ts.visualize_sharding(x)
    f64[8,6] @ mesh(dp:2,tp:2) [S(0), S(1)]  384 B, 96 B per worker
           dim 1
    dim 0   0:3   3:6
          +-----+-----+
      0:4 |  0  |  1  |
          +-----+-----+
      4:8 |  2  |  3  |
          +-----+-----+
    in each box: the workers that have it

    Of what is no Tensor it is an InvalidArgumentError.
    """
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"visualize_sharding: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    if in_notebook():
        from IPython.display import display
        display(x)
    else:
        print(sharding_text(x))
