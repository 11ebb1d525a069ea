"""Cells and views: what a storage is where a write makes another value.

A handle names a value that never changes. torch's tensors change, and several of them share what they change: `y = x[0]`,
`y.add_(1)` shows in x. A *cell* stands for the storage: it is bound to a handle, and an in-place op binds it to another one.
A view is a cell and the steps from the cell's tensor to what the view shows. Reading a view takes the steps, once for each
version of the cell; writing to it takes them back.
"""

from __future__ import annotations

import _tessera
from .. import _indexing
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._catalog import OPS

_call = _tessera.call
_ASTYPE, _RESHAPE, _PERMUTE, _SLICE, _EXPAND, _ASSIGN, _MOVE, _FULL = (
    OPS[name] for name in ("astype", "reshape", "permute_dims", "slice", "broadcast_to", "assign", "redistribute", "full"))


class Cell:
    """The value that several tensors share. `load` gives the handle where there is none yet, or where it was let go (fully_shard)."""

    version = 0
    load = None
    row_sum = None      # of a gradient of log probabilities: its known sum over the classes
    storage_id = None   # by which code sees who shares it (_storage_id.py)
    eps = None          # of a norm's statistics: the eps that they were made with
    is_unfactored = False       # of pivots: what stands beside them is the matrix (_matrices.py)

    def __init__(self, handle):
        self.handle = handle
        if handle is not None:
            handle._run_on()        # Ctrl-C loses no tensor

    def get(self):
        handle = self.handle
        if handle is None:
            handle = self.handle = self.load()
        return handle

    def bind(self, handle) -> None:
        handle._run_on()
        self.handle = handle
        self.version += 1
        self.row_sum = None


class Unfilled:
    """A cell's `load` where the tensor was made by torch.empty and has no value yet: it says where the tensor lies, by the names that
    a handle has for it. A value that replaces the whole tensor (copy_, normal_, out=) costs no second one; a read makes zeros."""

    __slots__ = ("_session", "_mesh", "_mesh_ndim", "_placements", "_dtype", "shape")
    _has_partial = False

    def __init__(self, session, raw_mesh, placements, dtype: int, shape):
        self._session, self._mesh, self._mesh_ndim = session, raw_mesh, len(raw_mesh.shape)
        self._placements, self._dtype, self.shape = placements, dtype, tuple(int(n) for n in shape)

    @property
    def _session_key(self):
        return self._session._key

    def __call__(self):
        return self._session._create(_FULL, dtype=self._dtype, shape=list(self.shape), mesh=self._mesh, placements=self._placements, scalars=[0])


class Lost(Unfilled):
    """A cell's `load` where the value was given up for a new one that did not come: a read is an error, a new value makes it good."""

    __slots__ = ()

    def __call__(self):
        raise FailedPreconditionError("copy_: this tensor has no value: the one of before made room for a new one, whose upload failed")


def moved(handle, placements):
    """The handle with those placements on its mesh."""
    return handle if list(handle._placements) == placements else _call(_MOVE, (handle,), placements=placements)


def like(handle, base):
    """A value to be written where `base` was: in its dtype, shape, mesh and placements."""
    if handle._dtype != base._dtype:
        handle = _call(_ASTYPE, (handle,), dtype=base._dtype)
    if handle.shape != base.shape:
        handle = _call(_EXPAND, (handle,), shape=list(base.shape))
    if base._has_partial:
        return handle
    placements = list(base._placements)
    if not handle._mesh.same(base._mesh):
        return _call(_MOVE, (handle,), mesh=base._mesh, placements=placements)
    return moved(handle, placements)


class Reshape:
    __slots__ = ("shape",)

    def __init__(self, shape):
        self.shape = shape

    def take(self, handle):
        return _call(_RESHAPE, (handle,), shape=self.shape)

    def put(self, base, handle):
        return like(_call(_RESHAPE, (handle,), shape=list(base.shape)), base)


class Permute:
    __slots__ = ("order",)

    def __init__(self, order):
        self.order = order

    def take(self, handle):
        return _call(_PERMUTE, (handle,), dims=self.order)

    def put(self, base, handle):
        return like(_call(_PERMUTE, (handle,), dims=[self.order.index(d) for d in range(len(self.order))]), base)


class Index:
    """Slices, integers and new dims: items (kind, start, size, step) as _index.normalise gives them."""

    __slots__ = ("items",)

    def __init__(self, items):
        self.items = items

    def take(self, handle):
        return _call(_SLICE, (handle,), index=self.items)

    def put(self, base, handle):
        return like(_call(_ASSIGN, (base, handle), index=self.items), base)


class Expand:
    __slots__ = ("shape",)

    def __init__(self, shape):
        self.shape = shape

    def take(self, handle):
        return _call(_EXPAND, (handle,), shape=self.shape)

    def put(self, base, handle):
        raise RuntimeError(f"unsupported operation: {base._spec} is expanded to {tuple(self.shape)}, and several elements of the "
                           "written-to tensor are one; please clone() it first")


class Strided:
    """as_strided: elements of the flattened base by their numbers."""

    __slots__ = ("numbers", "shape")

    def __init__(self, numbers, shape):
        self.numbers, self.shape = numbers, shape

    def take(self, handle):
        flat = _call(_RESHAPE, (handle,), shape=[handle.size])
        return _call(_RESHAPE, (_indexing.take(flat, self.numbers, axis=0),), shape=self.shape)

    def put(self, base, handle):
        flat = _call(_RESHAPE, (base,), shape=[base.size])
        values = _call(_RESHAPE, (handle,), shape=[handle.size])
        numbers = _indexing._indices("as_strided", base, self.numbers)
        return like(_call(_RESHAPE, (_call(OPS["scatter"], (flat, numbers, values), dims=[0]),), shape=list(base.shape)), base)


class Diagonal:
    """The k-th diagonal of two dims, which are the last ones in `order`; it is the last dim of what it shows."""

    __slots__ = ("order", "k")

    def __init__(self, order, k):
        self.order, self.k = order, k

    def take(self, handle):
        return _call(OPS["diagonal"], (_call(_PERMUTE, (handle,), dims=self.order),), k=self.k)

    def put(self, base, handle):
        turned = _call(_PERMUTE, (base,), dims=self.order)
        *rest, rows, columns = shape = turned.shape
        count = max(0, min(rows + min(self.k, 0), columns - max(self.k, 0)))
        first = max(-self.k, 0) * columns + max(self.k, 0)
        places = _indexing._indices("diagonal", base, range(first, first + count * (columns + 1), columns + 1) if count else [])
        flat = _call(_RESHAPE, (turned,), shape=[*rest, rows * columns])
        values = like(handle, self.take(base))
        out = _call(OPS["scatter"], (flat, places, values), dims=[len(rest)])
        out = _call(_RESHAPE, (out,), shape=list(shape))
        return like(_call(_PERMUTE, (out,), dims=[self.order.index(d) for d in range(len(self.order))]), base)


def write(cell: Cell, steps, handle) -> None:
    """Binds the cell to what it is when a view of it shows `handle`."""
    if steps:
        shown = [cell.get()]
        for step in steps:
            shown.append(step.take(shown[-1]))
        for step, base in zip(reversed(steps), reversed(shown[:-1])):
            handle = step.put(base, handle)
    cell.bind(handle)


def check_shape(op: str, handle, tensor) -> None:
    """That an in-place op keeps the shape, as far as a value may be broadcast to it."""
    shape, own = tuple(handle.shape), tuple(tensor.shape)
    if shape != own:
        padded = (1,) * (len(own) - len(shape)) + shape
        if len(padded) != len(own) or any(a not in (1, b) for a, b in zip(padded, own)):
            raise InvalidArgumentError(f"{op}: an in-place op keeps the shape: {tensor!r} would become {handle._spec}")
