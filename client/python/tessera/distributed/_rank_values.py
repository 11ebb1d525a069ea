"""A rank's values: Tensors that lie on its worker, or NumPy arrays in memory of its own."""

from __future__ import annotations

import numpy as np

import _tessera
from _tessera import Tensor

from .._dtypes import code_of
from .._errors import ArgumentError, DTypeError, InvalidArgumentError
from .._ops import relabel
from .._placements import Replicate


class Value:
    """One value of a rank: read as the operand of a call, or written with its result."""

    __slots__ = ("op", "name", "x", "group")

    def __init__(self, op: str, name: str, x, group):
        if isinstance(x, Tensor):
            if not x._mesh.same(group.mesh._raw) and list(x._mesh.workers) != [group.worker]:
                raise InvalidArgumentError(f"{op}: {name} is {x._spec}; a rank's values lie on its worker, {group.worker}: "
                                           "make them with ts.asarray(x, device=dist.get_mesh())")
            if x._has_partial:
                raise InvalidArgumentError(f"{op}: {name} is {x._spec}, which is pending")
        elif not isinstance(x, np.ndarray):
            raise ArgumentError(f"{op}: {name} is {type(x).__name__}; a rank gives a Tensor or a NumPy array"
                                + (", one program a LocalTensor" if op != "send" else ""))
        self.op, self.name, self.x, self.group = op, name, x, group

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.x.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_own_memory(self) -> bool:
        return isinstance(self.x, np.ndarray)

    def flat(self) -> Tensor:
        """The elements, one after another, as a tensor on the rank's worker."""
        if self.is_own_memory:
            array = np.ascontiguousarray(self.x).reshape(-1)
            return self.group.session.distribute_tensor(array, self.group.mesh, [Replicate()])
        x = self.x
        if x.ndim == 1 and x._placements[0].is_replicate() and len(x._placements) == 1 and x._mesh.same(self.group.mesh._raw):
            return x
        return relabel(x, (self.size,), [Replicate()])

    def check_writable(self) -> None:
        if self.is_own_memory and not self.x.flags.writeable:
            raise InvalidArgumentError(f"{self.op}: {self.name} is read-only; a result can't be written to it")

    def wanted(self, shape=None) -> tuple[int, tuple[int, ...]]:
        """(dtype number, shape) of the result that it takes."""
        return code_of(self.dtype, self.op), self.shape if shape is None else tuple(shape)

    def put(self, result: Tensor):
        """Takes a result of its shape. A tensor has it at once; an array when what this gives is called."""
        if not self.is_own_memory:
            _tessera.rebind(self.x, result)
            return None
        target = self.x
        return lambda: np.copyto(target, np.asarray(result).reshape(target.shape))


    def put_late(self, work):
        """Takes the result of a call that has none yet. A tensor has it when what this gives is called, or when somebody uses the tensor."""
        late = _Late(self.x, work)
        _tessera.await_value(self.x, late)
        return late


class _Late:
    """Gives a tensor what it receives, once."""

    __slots__ = ("x", "work")

    def __init__(self, x: Tensor, work):
        self.x, self.work = x, work

    def __call__(self) -> None:
        x, work = self.x, self.work
        if work is None:
            return
        result = work.result        # waits; another thread may be here, too
        if self.work is not None:
            self.x = self.work = None
            _tessera.forget_awaited(x, self)
            _tessera.rebind(x, result)


def check_dtype(op: str, values, like: Value) -> None:
    for one in values:
        if one.dtype != like.dtype:
            raise DTypeError(f"{op}: {one.name} is {one.dtype}, {like.name} is {like.dtype}")


def check_alike(op: str, values, like: Value) -> None:
    check_dtype(op, values, like)
    for one in values:
        if one.shape != like.shape:
            raise InvalidArgumentError(f"{op}: {one.name} is {one.shape}, {like.name} is {like.shape}")


def check_apart(op: str, values) -> None:
    """Results that are written to the same memory would be lost."""
    arrays = [value for value in values if value.is_own_memory and value.size]
    for i, one in enumerate(arrays):
        for other in arrays[i + 1:]:
            if np.shares_memory(one.x, other.x):
                raise InvalidArgumentError(f"{op}: {one.name} and {other.name} overlap in memory; each needs its own")
