"""local_map: a function of tensors, run on every shard as a tensor of its own."""

from __future__ import annotations

import itertools

import _tessera
import numpy as np
from _tessera import Tensor
from _tessera_ops import max as max_of, min as min_of, prod, sum as sum_of

from . import _index
from ._errors import ArgumentError, DTypeError, InvalidArgumentError
from ._ops import concat
from ._placements import Placement, Replicate, Shard, replicated
from ._catalog import OPS

_REDUCTIONS = {"sum": sum_of, "product": prod, "max": max_of, "min": min_of}


def local_map(f, *tensors, in_placements=None, out_placements=None):
    """Runs a function of tensors on every shard, as a tensor of its own: nothing moves but what the placements ask for.

    >>> ts.local_map(lambda rows: rows - rows.mean(axis=0), x)      # each worker's rows about their own mean

    f is called for every position of the mesh that holds other shards than the ones before, with the shards that lie
    there as tensors on a mesh of those workers alone, and gives a tensor or a tuple of tensors. What it gives are the shards
    of the results: their extents add up along the dims that out_placements shard, and may differ there. Numbers and other
    objects among the tensors are passed as they are. f runs ops of the catalog, so it sees no values; the calls are
    queued for all positions at once.

    in_placements: one list of placements for each tensor, which they are brought to first. out_placements: the list of the
    results' placements (a tuple of lists, for a tuple of results); those of the first tensor if it is not given.
    Shard(d): the shards follow each other along d. Partial(op): they are terms; a sum of
    them stays pending. Replicate: they are the same, and the first position's counts."""
    if not callable(f):
        raise ArgumentError(f"local_map: {f!r} is no function; write ts.local_map(lambda shard: shard - shard.mean(axis=0), x)")
    mesh, parts = _shards_of(tensors, in_placements)
    given = [f(*arguments) for arguments, _ in parts.values()]
    several = isinstance(given[0], (tuple, list))
    rows = [tuple(one) if several else (one,) for one in given]
    first = in_placements[0] if in_placements is not None else next(x for x in tensors if isinstance(x, Tensor)).placements
    placements = _out_placements(out_placements, first, list(parts), rows, mesh)
    results = []
    for number, wanted in enumerate(placements):
        shards = {position: row[number] for position, row in zip(parts, rows)}
        results.append(_assemble(mesh, shards, wanted, _cut_dims(parts, mesh)))
    return tuple(results) if several else results[0]


def _cut_dims(parts, mesh) -> list[int]:
    """The mesh dims along which the positions of the parts differ."""
    return [m for m in range(mesh.ndim) if any(position[m] for position in parts)]


def _shards_of(tensors, in_placements):
    """The mesh, and by position {position: (arguments, sub-mesh)}."""
    own = [x for x in tensors if isinstance(x, Tensor)]
    if not own:
        raise ArgumentError("local_map: needs a Tensor after the function")
    mesh = own[0].device_mesh
    for x in own[1:]:
        if x.device_mesh != mesh:
            raise InvalidArgumentError(f"local_map: the tensors live on different meshes, {mesh} and {x.device_mesh}; bring one over with to_device")
    if in_placements is not None:
        if len(in_placements) != len(own):
            raise InvalidArgumentError(f"local_map: {len(in_placements)} lists of in_placements for {len(own)} tensors")
        brought = iter([x.redistribute(mesh, list(one)) for x, one in zip(own, in_placements)])
        tensors = [next(brought) if isinstance(x, Tensor) else x for x in tensors]
        own = [x for x in tensors if isinstance(x, Tensor)]
    for x in own:
        if any(p.is_partial() for p in x.placements):
            raise InvalidArgumentError(f"local_map: a pending value has terms and no shards: x is {x._spec}; redistribute it first, or give in_placements")
    cut = [m for m in range(mesh.ndim) if any(x.placements[m].is_shard() for x in own) and mesh.shape[m] > 1]
    workers = mesh.mesh
    parts = {}
    for position in itertools.product(*(range(n) if m in cut else (0,) for m, n in enumerate(mesh.shape))):
        holders = workers[tuple(position[m] if m in cut else slice(None) for m in range(mesh.ndim))].reshape(-1)
        sub_mesh = _tessera.Mesh.make([len(holders)], [], [int(worker) for worker in holders])
        parts[position] = tuple(_shard(x, position, sub_mesh) if isinstance(x, Tensor) else x for x in tensors), sub_mesh
    return mesh, parts


def _shard(x, position, sub_mesh):
    index = _index.normalise(tuple(slice(start, stop) for start, stop in x.box(position)), x.shape)
    return _tessera.call(OPS["slice"], (x,), index=index, mesh=sub_mesh, placements=replicated(1))


def _out_placements(out_placements, first_placements, positions, rows, mesh) -> list[list[Placement]]:
    """A list of placements for each result; what f gave is one of each kind at every position."""
    for position, row in zip(positions, rows):
        if len(row) != len(rows[0]):
            raise InvalidArgumentError(f"local_map: the function gave {len(rows[0])} results at {positions[0]} and {len(row)} at {position}")
        for one in row:
            if not isinstance(one, Tensor):
                raise ArgumentError(f"local_map: the function gave {type(one).__name__} at {position}, not a Tensor")
    if out_placements is None:
        out_placements = [Shard(p.dim) if isinstance(p, Shard) else p for p in first_placements]
    if isinstance(out_placements, Placement):
        out_placements = [out_placements]
    alike = all(isinstance(p, Placement) for p in out_placements)
    lists = [list(out_placements)] * len(rows[0]) if alike else [list(one) for one in out_placements]
    if len(lists) != len(rows[0]):
        raise InvalidArgumentError(f"local_map: {len(lists)} lists of out_placements for {len(rows[0])} results")
    return [mesh._placements(one, "local_map") for one in lists]


def _assemble(mesh, shards, placements, cut):
    """One tensor of the shards, each of which lies where its position is."""
    ranks = {shard.ndim for shard in shards.values()}
    dtypes = {str(shard.dtype) for shard in shards.values()}
    if len(ranks) > 1:
        raise InvalidArgumentError(f"local_map: the function gave results of {sorted(ranks)} dims at different positions")
    if len(dtypes) > 1:
        raise DTypeError(f"local_map: the function gave results of {' and '.join(sorted(dtypes))} at different positions")
    (rank,) = ranks
    pending = [m for m in cut if placements[m].is_partial()]
    for m, placement in enumerate(placements):
        if placement.is_partial() and m not in cut:
            raise InvalidArgumentError(f"local_map: {placement!r} of mesh dim {m}, whose positions hold the same shards, would count them {mesh.shape[m]} times")
        if placement.is_shard() and not -rank <= placement.dim < rank:
            raise InvalidArgumentError(f"local_map: {placement!r} of a result with {rank} dims")
    # By the tensor dim that they join along; terms along new dims in front.
    along = {m: len(pending) + placements[m].dim % rank if placements[m].is_shard() else pending.index(m)
             for m in cut if not placements[m].is_replicate()}
    kept = {p: shard[(None,) * len(pending)] for p, shard in shards.items() if all(p[m] == 0 for m in cut if m not in along)}
    _check_extents(kept, placements, along)
    joined = {p: shard.redistribute(mesh, _only_here(mesh, along, p, shard.shape)) for p, shard in kept.items()}
    for dim in sorted(set(along.values())):
        group = [m for m in along if along[m] == dim]
        lines = {}
        for position, shard in joined.items():
            lines.setdefault(tuple(0 if m in group else n for m, n in enumerate(position)), []).append(shard)
        joined = {position: concat(line, axis=dim) if len(line) > 1 else line[0] for position, line in lines.items()}
    (out,) = joined.values()
    for m in reversed(pending):
        op = placements[m].reduce_op
        reduce = _REDUCTIONS["sum" if op == "avg" else op]
        total = reduce(out, axis=pending.index(m), **({"dtype": out.dtype} if op in ("sum", "product", "avg") else {}))
        out = total / mesh.shape[m] if op == "avg" else total
    wanted = [own if one.is_partial() else one for own, one in zip(out.placements, placements)]
    return out if list(out.placements) == wanted else out.redistribute(mesh, wanted)


def _only_here(mesh, along, position, shape):
    """The placements with which all of a shard lies at its position, along the mesh dims that it is one of several of."""
    placements = [Replicate()] * mesh.ndim
    for m, dim in along.items():
        group = [g for g in along if along[g] == dim and g <= m]
        counts = [mesh.shape[g] for g in group]
        sizes = np.zeros(counts, dtype=np.int64)
        sizes[tuple(position[g] for g in group)] = shape[dim]
        placements[m] = Shard(dim, sizes=sizes.reshape(-1).tolist())
    return placements


def _check_extents(shards, placements, along):
    (first, example), *others = shards.items()
    for position, shard in others:
        moving = {along[m] for m in along if position[m] != first[m] and placements[m].is_shard()}
        for dim, (a, b) in enumerate(zip(example.shape, shard.shape)):
            if a != b and dim not in moving:
                raise InvalidArgumentError(
                    f"local_map: the function gave shapes {example.shape} at {first} and {shard.shape} at {position}, which "
                    f"{' '.join(str(p) for p in placements)} doesn't join: they differ in a dim that isn't sharded between the two")
