"""The modes of pad that are an arrangement of other ops: each axis in its turn, what is before x, x, and what is behind."""

from __future__ import annotations

import numpy as np

import _tessera_ops as made
from ._creation import arange
from ._errors import InvalidArgumentError
from ._indexing import take
from ._ops import MADE_PADS, astype, broadcast_to, concat, reshape
from ._statistics import median


def padded(x, widths: list, mode: str, end_values: list, stat_lengths: list | None):
    """widths, end_values, stat_lengths: a pair for each axis."""
    for dim, (before, after) in enumerate(widths):
        if before < 0 or after < 0:
            raise InvalidArgumentError(f"pad: pad_width is {(before, after)} for dim {dim} of {x._spec}; it is not negative")
        if not before and not after:
            continue
        if x.shape[dim] == 0:
            raise InvalidArgumentError(f"pad: mode {mode} can't pad dim {dim} of {x._spec}, which has no elements")
        if mode == "symmetric":
            x = _symmetric(x, dim, before, after)
            continue
        lengths = (None, None) if stat_lengths is None else stat_lengths[dim]
        parts = [_part(x, dim, side, width, mode, end_values[dim][side], lengths[side]) if width else None
                 for side, width in enumerate((before, after))]
        x = concat([part for part in (parts[0], x, parts[1]) if part is not None], axis=dim)
    return x


def _along(x, dim: int, item):
    return x[(slice(None),) * dim + (item,)]


def _symmetric(x, dim: int, before: int, after: int):
    """Mirrored at its edges, again and again where more is wanted than there is."""
    extent = x.shape[dim]
    places = np.arange(-before, extent + after) % (2 * extent)
    if max(before, after) > extent:
        return take(x, np.where(places < extent, places, 2 * extent - 1 - places), axis=dim)
    turned = made.flip(x, axis=dim)
    parts = [_along(turned, dim, slice(extent - before, None)) if before else None, x, _along(turned, dim, slice(0, after)) if after else None]
    return concat([part for part in parts if part is not None], axis=dim)


def _part(x, dim: int, side: int, width: int, mode: str, end_value, length):
    shape = [width if d == dim else n for d, n in enumerate(x.shape)]
    if mode == "linear_ramp":
        edge = _along(x, dim, slice(0, 1) if side == 0 else slice(-1, None))
        steps = arange(width, dtype=np.float64, device_mesh=x.device_mesh)
        share = (steps / width) if side == 0 else (width - 1 - steps) / width     # of the edge
        share = reshape(share, [width if d == dim else 1 for d in range(x.ndim)])
        ramp = end_value + (edge - end_value) * share
        return astype(_whole(ramp, x), x.dtype) if x.dtype.kind in "iu" else astype(ramp, x.dtype)
    count = x.shape[dim] if length is None else min(int(length), x.shape[dim])
    if count < 1:
        raise InvalidArgumentError(f"pad: stat_length is {length} for dim {dim} of {x._spec}")
    edge = _along(x, dim, slice(0, count) if side == 0 else slice(x.shape[dim] - count, None))
    if mode in ("maximum", "minimum"):
        found = (made.max if mode == "maximum" else made.min)(edge, axis=dim, keepdims=True)
    else:
        found = made.mean(edge, axis=dim, keepdims=True) if mode == "mean" else median(edge, axis=dim, keepdims=True)
        found = astype(made.round(found) if x.dtype.kind in "iu" else found, x.dtype)
    return broadcast_to(found, shape)


def _whole(ramp, x):
    return made.floor(ramp) if x.dtype.kind == "u" else made.trunc(ramp)


MADE_PADS.update(dict.fromkeys(("symmetric", "linear_ramp", "mean", "maximum", "minimum", "median"), padded))
