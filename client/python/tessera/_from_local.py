"""from_local: a tensor of shards that the caller has already."""

from __future__ import annotations

import itertools

import numpy as np

from ._dtypes import array_of, buffer_of, code_of
from ._errors import InvalidArgumentError
from ._placements import counted
from ._progress import bar_of
from ._session import mesh_for


def _by_position(locals, shape, op: str) -> list:
    """One object per position, in row-major order."""
    positions = list(itertools.product(*(range(n) for n in shape)))
    if callable(locals):
        return [locals(position) for position in positions]
    if isinstance(locals, dict):
        given = {(key,) if isinstance(key, (int, np.integer)) else tuple(key): value for key, value in locals.items()}
        missing = [p for p in positions if p not in given]
        extra = [p for p in given if p not in positions]
        if missing or extra:
            raise InvalidArgumentError(f"{op}: positions missing {missing}, not in the mesh {extra}; mesh shape {shape}")
        return [given[position] for position in positions]
    out = [locals]
    for extent in shape:
        level = []
        for part in out:
            if not isinstance(part, (list, tuple)) or len(part) != extent:
                raise InvalidArgumentError(f"{op}: locals must be a nested list in mesh shape {shape}, a dict by position, or f(position)")
            level.extend(part)
        out = level
    return out


def _global_shape(arrays, mesh_shape, placements, op: str) -> tuple[int, ...]:
    """The extents that the local arrays add up to."""
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1:
        raise InvalidArgumentError(f"{op}: the local arrays have different ranks {sorted(ranks)}")
    (rank,) = ranks
    grid = np.empty(len(arrays), dtype=object)
    for i, array in enumerate(arrays):
        grid[i] = array
    grid = grid.reshape(mesh_shape)
    shape = []
    for dim in range(rank):
        sharding = [m for m, one in enumerate(counted(placements, rank)) if one.is_shard(dim)]
        line = grid[tuple(slice(None) if m in sharding else 0 for m in range(len(mesh_shape)))]
        parts = list(line.reshape(-1)) if sharding else [line]
        shape.append(sum(part.shape[dim] for part in parts))
    return tuple(shape)


def from_local(session, locals, device_mesh, placements, shape):
    op = "from_local"
    mesh = mesh_for(device_mesh, op, session)
    session = session or mesh._session
    raw_shape = mesh._raw.shape
    placements = mesh._placed(placements, op)
    objects = _by_position(locals, raw_shape if mesh._dims is None else mesh.shape, op)
    if mesh._dims is not None and len(objects) != mesh._raw.size:
        # A view: the other dims replicate.
        by_view = dict(zip(itertools.product(*(range(n) for n in mesh.shape)), objects))
        objects = [by_view[tuple(p[d] for d in mesh._dims)] for p in itertools.product(*(range(n) for n in raw_shape))]
    arrays = [array_of(value, op) for value in objects]
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1:
        raise InvalidArgumentError(f"{op}: the local arrays have different dtypes {sorted(map(str, dtypes))}")
    if shape is None:
        shape = _global_shape(arrays, raw_shape, placements, op)
    with bar_of("upload", sum(array.nbytes for array in arrays)):
        return session._from_local(code_of(arrays[0].dtype, op), [int(n) for n in shape], mesh._raw, placements,
                                   [buffer_of(array) for array in arrays])
