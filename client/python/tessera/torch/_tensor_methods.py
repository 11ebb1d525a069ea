"""Methods of Tensor that stand on the modules above it."""

from __future__ import annotations

import copy

import torch

from .._attach import attach
from .._placements import of_older, replicated
from . import _device, _moving, _tensor
from ._gradients import watch
from ._storage_id import StorageId
from ._storages import reduced
from ._tensor import Tensor, handle_of, wrap


@attach(Tensor, Tensor.__module__)
class _TensorMethods:
    @staticmethod
    def __new__(cls, handle, *, requires_grad=False):
        return _moving.from_handle(handle).requires_grad_(requires_grad)

    @property
    def _is_param(self) -> bool:
        return self.__dict__.get("_parameter", False)

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        """How nn.Parameter marks its tensors; from then on backward brings their gradients to their placements."""
        self.__dict__["_parameter"] = value
        if value and self.requires_grad and self.is_leaf:
            watch(self)

    def redistribute(self, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None):
        """The same tensor with other placements, or on another mesh; torch's autograd goes through it.

        Returns at once, with async_op or without. The gradient comes back to this tensor's placements; where this tensor is
        a pending sum the gradient is replicated, as each term gets it. forward_dtype: the dtype that moves and that the
        result has; backward_dtype: the dtype in which the gradient moves, before it has this tensor's again.
        """
        return _moving.redistribute(self, device_mesh, placements, forward_dtype=forward_dtype, backward_dtype=backward_dtype)

    @staticmethod
    def from_local(local_tensors, device_mesh=None, placements=None, **options):
        """tt.from_local."""
        return _moving.from_local(local_tensors, device_mesh, placements, **options)

    def untyped_storage(self):
        """An id of the elements, which tensors that share them have alike, and their bytes; this process can read none of them."""
        return StorageId(self)

    def __deepcopy__(self, memo):
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
                               "moment; take x.detach() first")
        out = wrap(handle_of(self)).requires_grad_(self.requires_grad)
        memo[id(self)] = out
        for name, value in self.__dict__.items():
            if name not in ("_cell", "_view", "_seen", "_bucket", "_unit"):
                out.__dict__[name] = copy.deepcopy(value, memo)
        if self.grad is not None:
            out.grad = copy.deepcopy(self.grad, memo)
        if hasattr(self, "_bucket"):
            watch(out)
        return out

    def __reduce_ex__(self, protocol):
        return reduced(self)


def _restore_location(values: torch.Tensor) -> torch.device:
    """Where torch.load's map_location says that a tensor of this device goes; here, where it says nothing."""
    where = torch.serialization._serialization_tls.map_location
    here = str(_device.DEVICE)
    if callable(where):
        storage = where(values.untyped_storage(), here)
        return _device.DEVICE if storage is None else storage.device
    return torch.device(torch._utils._get_restore_location(here))


def rebuild(values: torch.Tensor, requires_grad: bool, placements: tuple, is_parameter: bool):
    """Tensors of older files, from before _storages.py wrote them as torch does: on the default mesh; with these placements, where it has as many dims. Elsewhere where
    torch.load has a map_location that says so."""
    place = _restore_location(values)
    if place.type != _device.NAME:
        values = values.to(place)
        return torch.nn.Parameter(values, requires_grad) if is_parameter else values.requires_grad_(requires_grad)
    mesh = _moving.default_mesh()
    placements = of_older(placements)
    if len(placements) != len(mesh._raw.shape) or any(one.is_partial() for one in placements):
        placements = replicated(len(mesh._raw.shape))
    out = wrap(_moving.upload(values, mesh, placements))
    return torch.nn.Parameter(out, requires_grad) if is_parameter else out.requires_grad_(requires_grad)


# The name that older files have.
_tensor.rebuild, rebuild.__module__ = rebuild, _tensor.__name__
torch.serialization.add_safe_globals([rebuild])
