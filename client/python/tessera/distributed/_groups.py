"""Groups: which positions a collective is among."""

from __future__ import annotations

import operator

import _tessera
from _tessera import Tensor
from _tessera_ops import concat

from .. import _index
from .._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError
from .._mesh import DeviceMesh
from .._placements import Shard, checked
from .._catalog import OPS
from ._local_tensor import LocalTensor, rows_placements


class ProcessGroup:
    """Some positions of a mesh, by number; the k-th of the list has rank k in the group."""

    __slots__ = ("ranks",)

    def __init__(self, ranks):
        self.ranks = tuple(ranks)

    def size(self) -> int:
        return len(self.ranks)

    def __repr__(self):
        return f"ProcessGroup({list(self.ranks)})"


class Lines:
    """The groups along some dims of a mesh, all at once. A value of `lead` and a shape has the coordinates of the other mesh
    dims in front, one element of them on each worker."""

    def __init__(self, mesh: DeviceMesh, dims):
        self.mesh, self.dims = mesh, list(dims)
        self.others = [d for d in range(mesh.ndim) if d not in self.dims]
        self.lead = [mesh.shape[d] for d in self.others]
        self.extents = [mesh.shape[d] for d in self.dims]
        self.size = 1
        for extent in self.extents:
            self.size *= extent

    def placements(self, along):
        """`along` on the group's mesh dims: one placement, or a list with one for each."""
        out = [Shard(self.others.index(d)) if d in self.others else None for d in range(self.mesh.ndim)]
        for j, d in enumerate(self.dims):
            out[d] = along[j] if isinstance(along, list) else along
        return out

    def coordinates(self, rank: int) -> list[int]:
        """The coordinates of a rank of a line, on the group's mesh dims."""
        out = []
        for extent in reversed(self.extents):
            out.insert(0, rank % extent)
            rank //= extent
        return out

    def only_at(self, rank: int, dim: int, extent: int):
        """Placements that put all of a dim at one rank of each line."""
        sizes, count, out = [], 1, []
        at = 0
        for coordinate, n in zip(self.coordinates(rank), self.extents):
            count, at = count * n, at * n + coordinate
            sizes = [extent if i == at else 0 for i in range(count)]
            out.append(Shard(dim, sizes=sizes))
        return self.placements(out)


def lines_of(op: str, group, mesh: DeviceMesh) -> Lines:
    """The lines of a group; `mesh` is that of its members alone, where it is a ProcessGroup."""
    if group is None or isinstance(group, ProcessGroup):
        return Lines(mesh, range(mesh.ndim))
    if isinstance(group, str):
        return Lines(mesh, [mesh._dim_named(group)])
    if isinstance(group, DeviceMesh):
        if not group._raw.same(mesh._raw):
            raise InvalidArgumentError(f"{op}: group is {group}, and the values are on {mesh}")
        return Lines(mesh, range(mesh.ndim) if group._dims is None else group._dims)
    raise ArgumentError(f"{op}: group is {group!r}; it is a mesh dim's name, mesh[\"name\"], new_group([...]) or None")


def rank_in(op: str, what: str, rank, group_rank, group, lines: Lines) -> int:
    """The rank in each line that is the root: of `rank`, a position of the whole mesh, or of `group_rank`."""
    if (rank is None) == (group_rank is None):
        raise InvalidArgumentError(f"{op}: takes {what} or group_{what}, and one of them")
    if rank is not None and lines.others:
        raise InvalidArgumentError(f"{op}: {what}={rank} is one position, and {group!r} has {lines.mesh.size() // lines.size} lines; "
                                   f"write group_{what}=, the rank in each of them")
    given = rank if rank is not None else group_rank
    try:
        given = operator.index(given)
    except TypeError:
        raise InvalidArgumentError(f"{op}: {what} is {given!r}, it must be a rank") from None
    if isinstance(group, ProcessGroup) and rank is not None:
        if given not in group.ranks:
            raise InvalidArgumentError(f"{op}: {what}={given} is not in the group of {list(group.ranks)}")
        return group.ranks.index(given)
    if not 0 <= given < lines.size:
        raise IndexOutOfRangeError(f"{op}: {what} {given} is out of range for a group of {lines.size}")
    return given


# ---- some positions: the same on a mesh of their workers alone ----------------------------------

def check_members(op: str, group: ProcessGroup, mesh: DeviceMesh) -> None:
    for rank in group.ranks:
        if rank >= mesh.size():
            raise IndexOutOfRangeError(f"{op}: rank {rank} of the group is out of range for {mesh}, which has {mesh.size()} positions")


def _starts(extents) -> list[int]:
    starts = [0]
    for extent in extents:
        starts.append(starts[-1] + extent)
    return starts


def rows_at(x: LocalTensor, rank: int, mesh, placements) -> Tensor:
    """The rows of a position, where they are wanted."""
    start = _starts(x._extents)[rank]
    return sliced(x.rows, slice(start, start + x._extents[rank]), mesh, placements)


def sliced(x: Tensor, key, mesh, placements) -> Tensor:
    """x[key], where it is wanted; only the elements that are not there move."""
    raw = mesh._raw if isinstance(mesh, DeviceMesh) else mesh
    return _tessera.call(OPS["slice"], (x,), index=_index.normalise(key, x.shape), mesh=raw, placements=checked(placements, "slice"))


def members(x: LocalTensor, group: ProcessGroup) -> LocalTensor:
    """The values of the group's positions, on a mesh of their workers. Nothing moves."""
    workers = x.device_mesh.workers
    mesh = _tessera.Mesh.make([group.size()], [], [workers[rank] for rank in group.ranks])
    extents = [x._extents[rank] for rank in group.ranks]
    parts = []
    for number, rank in enumerate(group.ranks):
        sizes = [extents[number] if i == number else 0 for i in range(group.size())]
        parts.append(rows_at(x, rank, mesh, [Shard(0, sizes=sizes)]))
    rows = concat(parts, axis=0) if len(parts) > 1 else parts[0]
    wanted = rows_placements([group.size()], extents)
    if list(rows.placements) != wanted:
        rows = rows.redistribute(rows.device_mesh, wanted)
    return LocalTensor._of(rows, extents, (extents[0], *x._shape[1:]) if x._shape else ())


def put_members(x: LocalTensor, group: ProcessGroup, values: LocalTensor) -> None:
    """Writes the group's values back. Nothing moves."""
    starts, at = _starts(x._extents), _starts(values._extents)
    rows, lines = x.rows.copy(), Lines(x.device_mesh, range(x.device_mesh.ndim))
    for number, rank in enumerate(group.ranks):
        if x._extents[rank]:
            here = lines.only_at(rank, 0, x._extents[rank])
            rows[starts[rank]:starts[rank + 1]] = sliced(values.rows, slice(at[number], at[number + 1]), lines.mesh, here)
    x._put(rows)

