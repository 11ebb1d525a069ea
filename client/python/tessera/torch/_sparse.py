"""Sparse tensors in coordinates, as gradients of tables: indices and values that are tensors of this device, and a shape.

`nn.Embedding(sparse=True)` and `nn.EmbeddingBag(sparse=True)` give their weight such a gradient; SparseAdam, SGD and Adagrad write the
rows that it names. A row is one value here, wherever the table lies: its rows or columns in shards, or whole on every worker.
`coalesce` waits for the number of different indices, as it does on a GPU; nothing else here waits.

>>> x = torch.sparse_coo_tensor(torch.tensor([[0, 2, 2]], device="tessera"), torch.ones(3, 4, device="tessera"), (5, 4))
>>> x.coalesce().values().shape
torch.Size([2, 4])
"""

from __future__ import annotations

import math

import torch

import _tessera
from .. import _indexing
from .._errors import InvalidArgumentError
from .._placements import shards_of
from .._catalog import OPS
from . import _composed, _tensor
from ._dtypes import INT64
from ._operands import cast
from ._placing import full_like
from ._table import aten, overload, row, run
from ._tensor import Tensor, alias, handle_of, rebind, wrap

_call = _tessera.call
_ROWS: dict = {}


class SparseTensor(torch.Tensor):
    """A sparse tensor (torch.sparse_coo) on tessera: what torch.sparse_coo_tensor and gradients of tables give."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})

    def new(self, *args):
        """A sparse tensor of indices, values and a shape, as optimizers ask for it."""
        if len(args) < 2:
            raise InvalidArgumentError(f"new: of a sparse tensor on tessera takes indices, values and a shape, not {len(args)} arguments; "
                                       "torch.sparse_coo_tensor makes others")
        return torch.sparse_coo_tensor(*args, check_invariants=False)

    def __repr__(self, *, tensor_contents=None):
        return (f"tessera.SparseTensor(shape={tuple(self.shape)}, dtype={self.dtype}, nnz={self._at.shape[1]}, "
                f"is_coalesced={self._is_coalesced})")


SparseTensor.__module__ = "tessera.torch"


def make(at: Tensor, values: Tensor, shape, is_coalesced: bool = False) -> SparseTensor:
    """The sparse tensor of indices (dims, count) and values (count, ...)."""
    out = torch.Tensor._make_wrapper_subclass(SparseTensor, tuple(shape), dtype=values.dtype, layout=torch.sparse_coo, device=values.device)
    out._at, out._values_, out._is_coalesced = at, values, bool(is_coalesced)
    return out


def dispatch(func, args, kwargs):
    """The row of an op that has a sparse tensor among its operands."""
    function = _ROWS.get(func)
    if function is None:
        raise NotImplementedError(f"{func}: has no row in Tessera for sparse tensors; x.to_dense() is one for which it may have")
    return function(*args, **kwargs)


_tensor.set_sparse(SparseTensor, dispatch)


def _sparse_row(*names: str):
    def register(function):
        for name in names:
            found = overload(name)
            if found is not None:
                _ROWS[found] = function
        return function
    return register


@row("_sparse_coo_tensor_with_dims_and_tensors.default", how="client")
def from_parts(sparse_dim, dense_dim, size, indices, values, *, dtype=None, layout=None, device=None, pin_memory=None, is_coalesced=None):
    if not isinstance(indices, Tensor) or not isinstance(values, Tensor):
        raise InvalidArgumentError(f"sparse_coo_tensor: takes indices and values on one device: {indices!r}, {values!r}; .to(\"tessera\") brings a tensor there")
    if dtype is not None and dtype != values.dtype:
        values = values.to(dtype)
    return make(alias(indices), alias(values), size, bool(is_coalesced))


# ---- its parts -------------------------------------------------------------------------------------------------

_sparse_row("_indices.default", "indices.default")(lambda x: alias(x._at))
_sparse_row("_values.default", "values.default")(lambda x: alias(x._values_))
_sparse_row("sparse_dim.default", "_dimI.default")(lambda x: x._at.shape[0])
_sparse_row("dense_dim.default", "_dimV.default")(lambda x: x._values_.ndim - 1)
_sparse_row("_nnz.default")(lambda x: x._at.shape[1])
_sparse_row("is_coalesced.default")(lambda x: x._is_coalesced)
_sparse_row("detach.default", "alias.default")(lambda x: make(alias(x._at), alias(x._values_), x.shape, x._is_coalesced))


@_sparse_row("clone.default")
def _clone(x, *, memory_format=None):
    return make(x._at.clone(), x._values_.clone(), x.shape, x._is_coalesced)


@_sparse_row("_coalesced_.default")
def _set_coalesced(x, coalesced):
    x._is_coalesced = bool(coalesced)
    return x


@_sparse_row("_to_copy.default")
def _to_copy(x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    at, values = (one if device is None else one.to(device) for one in (x._at, x._values_))
    values = values if dtype is None else values.to(dtype)
    return torch.sparse_coo_tensor(at, values, x.shape, is_coalesced=x._is_coalesced, check_invariants=False)


# ---- rows of dense tensors at the indices ----------------------------------------------------------------------

def _shaped(h, shape):
    return h if tuple(h.shape) == tuple(shape) else _call(OPS["reshape"], (h,), shape=list(shape))


def _flat(x: SparseTensor):
    """The numbers of the values' rows in a tensor whose sparse dims are one, and the shape of that."""
    at, count = cast(handle_of(x._at), INT64), x._at.shape[0]
    number = None
    for d in range(count):
        one = _shaped(at[d:d + 1], (at.shape[1],))
        number = one if number is None else number * x.shape[d] + one
    return number, (math.prod(x.shape[:count]), *x.shape[count:])


def _added(h, x: SparseTensor, values):
    """The handle with values added at the indices; as often as an index is there."""
    number, shape = _flat(x)
    if not number.size:
        return h
    return _shaped(_call(OPS["scatter"], (_shaped(h, shape), number, cast(values, h._dtype)), dims=[0], mode="add"), h.shape)


@_sparse_row("_to_dense.default")
def _to_dense(x, dtype=None, masked_grad=None):
    values = handle_of(x._values_)
    out = wrap(_added(full_like(values, x.shape, values._dtype, 0), x, values))
    return out if dtype is None else out.to(dtype)


@_sparse_row("sparse_mask.default")
def _sparse_mask(dense, mask):
    if isinstance(dense, SparseTensor):
        raise NotImplementedError("aten.sparse_mask.default: has no row in Tessera for a sparse tensor by a sparse one; "
                                  "x.to_dense().sparse_mask(mask) has")
    if tuple(dense.shape) != tuple(mask.shape):
        raise InvalidArgumentError(f"sparse_mask: takes tensors of one shape, not {tuple(dense.shape)} and {tuple(mask.shape)}")
    number, shape = _flat(mask)
    h = _shaped(handle_of(dense), shape)
    taken = _composed.embedding(h, number) if h.ndim == 2 else _indexing.take(h, number, axis=0)
    return make(alias(mask._at), wrap(taken), mask.shape, mask._is_coalesced)


@_sparse_row("_coalesce.default")
def _coalesce(x):
    """Each index once, in order, with the sum of its values. Waits for the number of indices."""
    if x._is_coalesced or not x._at.shape[1]:
        return make(alias(x._at), alias(x._values_), x.shape, True)
    number, shape = _flat(x)
    values, found = handle_of(x._values_), _indexing.unique_all(number)
    count = found.values.shape[0]
    zeros = full_like(values, (count, *values.shape[1:]), values._dtype, 0, shards_of(values._placements, range(1, values.ndim)))
    at = _shaped(found.inverse_indices, (number.size,))
    total = _call(OPS["scatter"], (zeros, at, values), dims=[0], mode="add")
    rest, columns = found.values, []
    for extent in reversed(x.shape[1:x._at.shape[0]]):
        columns.append(_call(OPS["remainder"], (rest, max(extent, 1))))
        rest = _call(OPS["floor_divide"], (rest, max(extent, 1)))
    at = run("stack.default")([wrap(one) for one in (rest, *reversed(columns))])
    return make(at, wrap(total), x.shape, True)


# ---- arithmetic ------------------------------------------------------------------------------------------------

def _scaled(values: Tensor, alpha) -> Tensor:
    return values if alpha == 1 else values * alpha


def _refuse_shapes(op: str, a, b) -> None:
    if tuple(a.shape) != tuple(b.shape):
        raise InvalidArgumentError(f"{op}: a sparse tensor takes one of its own shape, not {tuple(a.shape)} and {tuple(b.shape)}")


def _sum(op: str, a: SparseTensor, b: SparseTensor, alpha):
    """Indices and values of both, one behind the other."""
    _refuse_shapes(op, a, b)
    if a._at.shape[0] != b._at.shape[0]:
        raise InvalidArgumentError(f"{op}: sparse tensors of {a._at.shape[0]} and {b._at.shape[0]} sparse dims; to_dense() makes one of them dense")
    return torch.cat([a._at, b._at], 1), torch.cat([a._values_, _scaled(b._values_, alpha)], 0)


@_sparse_row("add.Tensor")
def _add(a, b, *, alpha=1):
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return make(*_sum("add", a, b, alpha), a.shape)
    if isinstance(a, SparseTensor):
        a, b, alpha = _scaled(b, alpha), a, 1
    _refuse_shapes("add", a, b)
    return wrap(_added(handle_of(a), b, handle_of(_scaled(b._values_, alpha))))


@_sparse_row("add_.Tensor")
def _add_(a, b, *, alpha=1):
    if isinstance(a, SparseTensor):
        if not isinstance(b, SparseTensor):
            raise InvalidArgumentError("add_: a sparse tensor can't take a dense one; dense + sparse is a dense tensor")
        a._at, a._values_ = _sum("add_", a, b, alpha)
        a._is_coalesced = False
        return a
    _refuse_shapes("add_", a, b)
    return rebind("add_", a, _added(handle_of(a), b, handle_of(_scaled(b._values_, alpha))))


_sparse_row("sub.Tensor")(lambda a, b, *, alpha=1: _add(a, _mul(b, -1), alpha=alpha) if isinstance(b, SparseTensor) else _add(a, -b, alpha=alpha))
_sparse_row("sub_.Tensor")(lambda a, b, *, alpha=1: _add_(a, b, alpha=-alpha))


def _is_number(other) -> bool:
    return not isinstance(other, torch.Tensor) or other.ndim == 0


def _by_number(op: str):
    """Products and quotients with a number; in place they change the values."""
    def apply(x, other):
        if not isinstance(x, SparseTensor):
            x, other = other, x
        if not _is_number(other):
            raise NotImplementedError(f"aten.{op}.Tensor: has no row in Tessera for sparse tensors and tensors with dims; x.to_dense() is one "
                                      "for which it has")
        return make(alias(x._at), getattr(x._values_, op)(other), x.shape, x._is_coalesced)

    def apply_(x, other):
        x._values_ = apply(x, other)._values_
        return x
    _sparse_row(f"{op}.Tensor", f"{op}.Scalar")(apply)
    _sparse_row(f"{op}_.Tensor", f"{op}_.Scalar")(apply_)
    return apply


_mul, _div = _by_number("mul"), _by_number("div")
_sparse_row("neg.default")(lambda x: _mul(x, -1))


@_sparse_row("zero_.default")
def _zero_(x):
    x._at, x._values_, x._is_coalesced = x._at[:, :0], x._values_[:0], True
    return x
