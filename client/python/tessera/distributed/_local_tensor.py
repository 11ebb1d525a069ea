"""LocalTensor: one value for each position of a mesh, on the worker of that position."""

from __future__ import annotations

import itertools

import numpy as np

from _tessera import Tensor

from .._dtypes import array_of
from .._errors import ArgumentError, DTypeError, IndexOutOfRangeError, InvalidArgumentError
from .._from_local import _by_position
from .._mesh import DeviceMesh
from .._ops import relabel
from .._placements import Placement, Shard, listed
from .._session import mesh_for


def rows_placements(mesh_shape, extents) -> list[Placement]:
    """The placements of values that lie one below the other, in the order of the positions."""
    if len(set(extents)) == 1:
        return [Shard(0)] * len(mesh_shape)
    counts = np.asarray(extents, dtype=np.int64).reshape(mesh_shape)
    along = [counts.sum(axis=tuple(range(m + 1, len(mesh_shape)))) for m in range(len(mesh_shape))]
    return [Shard(0, sizes=one.reshape(-1).tolist()) for one in along]


class LocalTensor:
    """One value for each position of a mesh: what a tensor of a rank is in N processes.

    >>> x = LocalTensor([np.ones(3), np.zeros(3)], mesh)        # a list in the mesh's shape, {position: value}, f(position)
    >>> x[1]
    array([0., 0., 0.])

    The values have one dtype and one number of dims; their shapes may differ in dim 0. `rows` is the tensor of all values,
    one below the other, in the order of the positions."""

    __slots__ = ("_rows", "_extents", "_shape")

    def __init__(self, values, mesh: DeviceMesh | None = None):
        mesh = mesh_for(mesh, "LocalTensor")
        if mesh._dims is not None:
            raise InvalidArgumentError(f"LocalTensor: {mesh} shows some dims of a mesh; values are by position of the whole one")
        if isinstance(values, (Tensor, LocalTensor, np.ndarray)):
            raise ArgumentError(f"LocalTensor: takes one value for each position of {mesh}, not one {type(values).__name__}; write "
                                "LocalTensor([value, ...], mesh), or LocalTensor.from_tensor(x)")
        arrays = [array_of(value, "LocalTensor") for value in _by_position(values, mesh.shape, "LocalTensor")]
        first = arrays[0]
        for number, array in enumerate(arrays):
            if array.dtype != first.dtype:
                raise DTypeError(f"LocalTensor: the values have different dtypes, {first.dtype} at position 0 and {array.dtype} at {number}")
            if array.ndim != first.ndim or array.shape[1:] != first.shape[1:]:
                raise InvalidArgumentError(f"LocalTensor: the values have shapes {first.shape} at position 0 and {array.shape} at {number}, "
                                           "which differ in more than dim 0")
        parts = [array.reshape(1) if array.ndim == 0 else array for array in arrays]
        extents = [part.shape[0] for part in parts]
        at = dict(zip(itertools.product(*(range(n) for n in mesh.shape)), parts))
        rows = mesh._session.from_local(at, mesh, rows_placements(mesh.shape, extents),
                                        shape=(sum(extents), *parts[0].shape[1:]))
        self._setup(rows, extents, first.shape)

    def _setup(self, rows: Tensor, extents, shape):
        self._rows, self._extents, self._shape = rows, list(extents), tuple(shape)

    @classmethod
    def _of(cls, rows: Tensor, extents, shape) -> "LocalTensor":
        """Makes one of rows that lie as they should; `shape` is the one of the value at position 0."""
        made = object.__new__(cls)
        made._setup(rows, extents, shape)
        return made

    @classmethod
    def from_tensor(cls, x: Tensor) -> "LocalTensor":
        """Takes each worker's part of a tensor as its value: a shard, a term or a copy. Copies nothing; the shards' shapes differ in dim 0
        at most."""
        if not isinstance(x, Tensor):
            raise ArgumentError(f"LocalTensor.from_tensor: takes a Tensor, not {type(x).__name__}")
        mesh = x.device_mesh
        shapes = [tuple(stop - start for start, stop in x.box(position)) for position in mesh.positions()]
        for number, shape in enumerate(shapes):
            if shape[1:] != shapes[0][1:]:
                raise InvalidArgumentError(f"LocalTensor.from_tensor: the shards of {x._spec} are {shapes[0]} at position 0 and {shape} at "
                                           f"{number}, which differ in more than dim 0")
        extents = [shape[0] if shape else 1 for shape in shapes]
        rows = relabel(x, (sum(extents), *shapes[0][1:]), rows_placements(mesh.shape, extents))
        return cls._of(rows, extents, shapes[0])

    def as_tensor(self, placements, shape=None) -> Tensor:
        """The tensor of which each value is the worker's part: Shard(d), Partial(op) or Replicate() for each mesh dim.
        Copies nothing, and Replicate() takes your word that the values are equal.

        shape: of the tensor; where it is not given, of values of one shape that the placements put side by side."""
        placements = listed(placements, "as_tensor")
        mesh = self.device_mesh
        if shape is None:
            self._check_alike("as_tensor")
            extents = list(self._shape)
            for placement, count in zip(placements, mesh.shape):
                if isinstance(placement, Shard) and -len(extents) <= placement.dim < len(extents):
                    extents[placement.dim] *= count
            shape = extents
        return relabel(self._rows, shape, placements)

    # ---- what it is -------------------------------------------------------------------------

    @property
    def rows(self) -> Tensor:
        """All values, one below the other: dim 0 is sharded by position."""
        return self._rows

    @property
    def device_mesh(self) -> DeviceMesh:
        return self._rows.device_mesh

    @property
    def dtype(self) -> np.dtype:
        return self._rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value at each position; shapes() where they differ."""
        self._check_alike("shape")
        return self._shape

    def shapes(self) -> list[tuple[int, ...]]:
        """The value's shape at each position, in row-major order."""
        return [self._shape_at(position) for position in range(len(self._extents))]

    def numpy(self, position) -> np.ndarray:
        """The value at a position (a number in row-major order, or coordinates). Blocks."""
        shape = self.device_mesh.shape
        try:
            at = np.unravel_index(position, shape) if np.ndim(position) == 0 else tuple(position)
        except (TypeError, ValueError):
            raise IndexOutOfRangeError(f"LocalTensor: there is no position {position!r} in {self.device_mesh}") from None
        return self._rows.to_local([int(i) for i in at]).reshape(self._shape_at(int(np.ravel_multi_index(at, shape))))

    def __getitem__(self, position) -> np.ndarray:
        return self.numpy(position)

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self):
        return (self.numpy(position) for position in range(len(self)))

    def wait(self, timeout=None) -> "LocalTensor":
        """Blocks until what led to the values has run; raises the first cause of failure."""
        self._rows.wait(timeout)
        return self

    def __repr__(self):
        shapes = sorted(set(self.shapes()))
        return f"LocalTensor({', '.join(map(str, shapes))}, dtype={self.dtype}, {self.device_mesh})"

    # ---- for collectives --------------------------------------------------------------------

    def _shape_at(self, position: int) -> tuple[int, ...]:
        return (self._extents[position], *self._shape[1:]) if self._shape else ()

    def _check_alike(self, op: str) -> None:
        for number, extent in enumerate(self._extents):
            if extent != self._extents[0]:
                raise InvalidArgumentError(f"{op}: the values differ in shape: {self._shape_at(0)} at position 0 and "
                                           f"{self._shape_at(number)} at {number}")

    def _value_shape(self) -> tuple[int, ...]:
        """The shape of one value where all are alike, with dim 0 for a number, too."""
        return self._shape or (1,)

    def _put(self, rows: Tensor) -> None:
        """Other values of the same shapes."""
        self._rows = rows
