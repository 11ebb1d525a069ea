"""tessera.torch.Tensor: a torch tensor whose payload is a handle."""

from __future__ import annotations

import torch

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._mesh import DeviceMesh
from .._session import session_of
from .._catalog import OPS
from ._cell import Cell, Expand, Index, Permute, Reshape, Unfilled, check_shape, like, write
from ._dtypes import TORCH, tensor_of
from ._library import make as _make, view_rows, wrap
from ._one_call import ATTRIBUTES

_Base = torch._C.TensorBase
_is_inference = torch.is_inference_mode_enabled
# With these a row says that it doesn't take its operands as they are; `again` is asked then.
REFUSALS = (InvalidArgumentError, AttributeError, TypeError)


class Tensor(torch.Tensor):
    """A global tensor on a mesh of workers, on torch's device `tessera`.

    dtype, shape, device_mesh and placements are known at once; what is computed is computed by the workers, in order, and
    nothing waits for it but what reads values: item, tolist, cpu, full_tensor, to_local, print of an f-string with a format.

    >>> x = tt.distribute_tensor(torch.ones(4, 6), mesh, [ts.Shard(0)])
    >>> (x @ x.t()).placements
    (Shard(0),)
    """

    _view = None        # the steps from the cell's tensor to this one
    _seen = None        # (version of the cell, handle): what a view showed last
    __torch_function__ = torch._C._disabled_torch_function_impl
    __array_ufunc__ = None      # NumPy leaves operators to this class, which downloads nothing for them

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if len(types) > 1:
            if sparse_class in types:
                return sparse_row(func, args, kwargs or {})
            if not all(issubclass(one, Tensor) for one in types):
                return NotImplemented        # a class of others that is made of tensors, as NestedTensor: it takes the op apart
        try:
            row = func.tessera_row
        except AttributeError:
            row = missing(func)
        try:
            return row(*args, **kwargs) if kwargs else row(*args)
        except REFUSALS as error:
            return again(func, row, args, kwargs or {}, error)

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def placements(self):
        """One placement per mesh dim."""
        return tuple(base_of(self)._placements)

    @property
    def device_mesh(self) -> DeviceMesh:
        base = base_of(self)
        return DeviceMesh._wrap(session_of(base), base._mesh)

    @property
    def data(self):
        return _Base.data.__get__(self)     # what is written to it is no version of this tensor: detach() would count it

    @data.setter
    def data(self, new):
        _Base.data.__set__(self, new)       # torch copies what it knows; the payload goes along
        if isinstance(new, Tensor):
            self._cell, self._view, self._seen = new._cell, new._view, new._seen

    def __repr__(self, *, tensor_contents=None):
        try:
            spec = handle_of(self)._spec
        except Exception:      # repr never raises
            spec = "?"
        kind = "Parameter" if self._is_param else "Tensor"
        grad = f", grad_fn=<{self.grad_fn.name()}>" if self.grad_fn is not None else (
            ", requires_grad=True" if self.requires_grad else "")
        return f"tessera.{kind}({spec}{grad})"

    # ---- moving -----------------------------------------------------------------------------------

    def full_tensor(self, *, grad_placements=None) -> torch.Tensor:
        """The whole tensor as a CPU tensor. Blocks; raises the first cause if something failed. grad_placements: taken as
        DTensor's callers give it; the gradient comes back to this tensor's placements."""
        return self.cpu()

    def to_local(self, position) -> torch.Tensor:
        """The shard at a position of the mesh as a CPU tensor; of a Partial, that position's term. Blocks."""
        return tensor_of(handle_of(self).to_local(position))

    def box(self, position):
        """[(start, stop), ...] per dim: what of the tensor lies at the position."""
        return handle_of(self).box(position)

    def wait(self, timeout=None):
        """Blocks until everything that led here has run; returns the tensor, raises the first cause of failure."""
        handle_of(self).wait(timeout)
        return self

    # ---- values in this process ---------------------------------------------------------------------

    def data_ptr(self):
        """No address: a number that tensors of one storage have alike, for code that looks who shares one."""
        return self.untyped_storage().data_ptr() + self.storage_offset() * self.element_size()

    def is_pinned(self, device=None):
        return False

    def numpy(self, *, force=False):
        if self.requires_grad and not force:
            raise FailedPreconditionError("numpy: of a tensor that requires grad; take x.detach().numpy()")
        return self.detach().cpu().numpy()

    def __array__(self, dtype=None, copy=None):
        array = self.detach().cpu().numpy()
        return array if dtype is None else array.astype(dtype)

    def tolist(self):
        return self.detach().cpu().tolist()

    def __dlpack__(self, **options):
        return self.detach().cpu().__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)

    def __format__(self, spec):
        if spec and self.ndim == 0:
            return format(self.item(), spec)
        if spec:
            raise InvalidArgumentError(f"format: {spec!r} is for one number, not for {self!r}")
        return repr(self)

    def share_memory_(self):
        raise FailedPreconditionError(f"share_memory_: {self!r} lives on workers")

    def pin_memory(self, device=None):
        raise FailedPreconditionError(f"pin_memory: {self!r} lives on workers")

    # ---- copies -----------------------------------------------------------------------------------

    def __coerce_same_metadata_as_tangent__(self, expected_metadata, expected_type=None):
        return self         # a gradient of what torch.compile recorded as a plain tensor of this device

def missing(func):      # replaced by _table, which gives each overload that has a row the attribute tessera_row
    raise NotImplementedError(str(func))


def set_missing(function) -> None:
    global missing
    missing = function


def again(func, row, args, kwargs, error):      # replaced by _meeting, which knows what to do where an op has refused its operands
    raise error


def set_again(function) -> None:
    global again
    again = function


sparse_class, sparse_row = None, None


def set_sparse(kind, function) -> None:
    """The class of sparse tensors, and what runs an op that has one among its operands (_sparse)."""
    global sparse_class, sparse_row
    sparse_class, sparse_row = kind, function


wrap(Tensor, Cell, TORCH, _tessera.calls_table())


def wrap_later(shape, code: int, load) -> Tensor:
    """A tensor that few read: `load` gives its handle when one does."""
    out = _make(Tensor, tuple(shape), TORCH[code])
    out._cell = Cell(None)
    out._cell.load = load
    return out


def wrap_unfilled(session, raw_mesh, placements, dtype: int, shape) -> Tensor:
    """A tensor that has no value yet."""
    place = Unfilled(session, raw_mesh, placements, dtype, shape)
    return wrap_later(place.shape, dtype, place)


def _make_recorded(*given):
    with torch.inference_mode(False):
        return _make(*given)


def _maker(base: Tensor):
    """The function that makes a view of `base`: within inference_mode, too, a tensor that autograd knows has views that it knows."""
    return _make_recorded if _is_inference() and not base.is_inference() else _make


def wrap_view(base: Tensor, handle, step, strides, offset=0) -> Tensor:
    """A view of what `base` shows."""
    shape, make = handle.shape, _maker(base)
    if strides is None and offset:
        strides = torch.empty(shape, device="meta").stride()
    if strides is None:
        out = make(Tensor, shape, TORCH[handle._dtype])
    else:
        out = make(Tensor, shape, TORCH[handle._dtype], tuple(strides), offset)
    cell = out._cell = base._cell
    out._view = (step,) if base._view is None else (*base._view, step)
    out._seen = (cell.version, handle)
    return out


def handle_of(tensor: Tensor):
    """The handle that a tensor is bound to now."""
    cell = tensor._cell
    if tensor._view is None:
        handle = cell.handle
        return cell.get() if handle is None else handle
    seen = tensor._seen
    if seen[0] == cell.version:
        return seen[1]
    handle = cell.get()
    for step in tensor._view:
        handle = step.take(handle)
    tensor._seen = (cell.version, handle)
    return handle


# The rows of views; the compiled device makes a step's call and the view at once.
VIEWS = view_rows(handle_of, [(step, field, OPS[op], ATTRIBUTES[attribute][0]) for step, field, op, attribute in (
    (Reshape, "shape", "reshape", "shape"), (Permute, "order", "permute_dims", "dims"), (Index, "items", "slice", "index"),
    (Expand, "shape", "broadcast_to", "shape"))])
alias = VIEWS["alias"]      # another tensor of the same cell and steps


def base_of(tensor: Tensor):
    """The place of a tensor that is written as a whole: its handle, or an Unfilled."""
    cell = tensor._cell
    return cell.load if cell.handle is None and tensor._view is None and isinstance(cell.load, Unfilled) else handle_of(tensor)


def rebind(op: str, tensor: Tensor, handle) -> Tensor:
    """tensor op= ...: the new value in the place of the old one, in its dtype, shape and placements, for all that share it."""
    check_shape(op, handle, tensor)
    base = base_of(tensor)
    handle = like(handle, base)
    if tensor._view is None:
        tensor._cell.bind(handle)
    else:
        write(tensor._cell, tensor._view, handle)
    return tensor


Tensor.__module__ = "tessera.torch"
