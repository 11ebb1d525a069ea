"""Operands that are not where the others are: what an op does about them after it has refused them.

A tensor that a factory, `.to("tessera")` or torch.load made is on the default mesh, as nothing said which one. Where it meets
tensors of a mesh of some of those workers, it is used there: it is replicated, so each of them has the whole of it and no byte moves.

>>> pair = session.init_device_mesh((2,), workers=[0, 1])
>>> x = tt.distribute_tensor(torch.ones(4), pair)
>>> (x + torch.arange(4, device="tessera")).device_mesh == pair
True

A tensor of the CPU stays there, and is an error that names both.
"""

from __future__ import annotations

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._placements import replicated
from .._catalog import OPS
from . import _tensor
from ._placing import elsewhere
from ._tensor import Tensor, base_of, handle_of, wrap

_MOVE = OPS["redistribute"]
_HINT = ("; what is made without a mesh, as torch.arange(n, device=x.device), goes to tt.default_placement's: `with "
         "tt.default_placement(mesh):` around the code that makes it puts it beside the others")


def _again(func, row, args, kwargs, error):
    """Runs the row again with its operands on one mesh, where they can be brought there; else raises the error, or a better one."""
    tensors = _tensors_of((*args, *kwargs.values()))
    here = [one for one in tensors if isinstance(one, Tensor)]
    stranger = _stranger(error, tensors)
    if stranger is not None and here:
        raise elsewhere(func._schema.name.split("::")[1].removeprefix("native_"), stranger, here[0]) from None
    if not isinstance(error, InvalidArgumentError):
        raise error
    written = _written(func, args, kwargs)
    mesh = None if written is None else _common_mesh(here, written)
    if mesh is None:
        if "live on different workers" in str(error):
            raise type(error)(f"{error}{_HINT}") from None
        raise error
    brought: dict = {}
    for one in here:
        if not handle_of(one)._mesh.same(mesh):
            brought[id(one)] = _rebound(one, mesh) if any(one is other for other in written) else wrap(_on(handle_of(one), mesh))
    args, kwargs = _replaced(tuple(args), brought), _replaced(dict(kwargs), brought)
    return row(*args, **kwargs)


def _tensors_of(values) -> list:
    found = []
    for one in values:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += [item for item in one if isinstance(item, torch.Tensor)]
    return found


def _stranger(error, tensors):
    """The CPU tensor that the error comes from."""
    named = getattr(error, "tensor", None) if isinstance(error, InvalidArgumentError) else getattr(error, "obj", None)
    if isinstance(named, torch.Tensor) and not isinstance(named, Tensor):
        return named
    if isinstance(error, TypeError) and not isinstance(error, InvalidArgumentError):     # of the extension, which knows handles and numbers
        return next((one for one in tensors if not isinstance(one, Tensor) and one.ndim), None)
    return None


def _written(func, args, kwargs) -> list | None:
    """The tensor that the op writes to, or none. None: it writes to several, of which some may have been written."""
    out = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if isinstance(value, (list, tuple)):
                return None
            out.append(value)
    return out if len(out) < 2 else None


def _common_mesh(tensors, written):
    """The mesh of one of the tensors to which the others can come; None where there is none."""
    meshes: list = []
    for one in (*[one for one in written or () if isinstance(one, Tensor)], *tensors):
        mesh = base_of(one)._mesh
        if not any(mesh.same(other) for other in meshes):
            meshes.append(mesh)
    if len(meshes) < 2:
        return None
    return next((mesh for mesh in meshes if all(_can_come(one, mesh) for one in tensors)), None)


def _can_come(tensor: Tensor, mesh) -> bool:
    base = base_of(tensor)
    if base._mesh.same(mesh):
        return True
    is_whole = all(one.is_replicate() for one in base._placements)
    return is_whole and not tensor.requires_grad and set(mesh.workers) <= set(base._mesh.workers)


def _on(handle, mesh):
    return _tessera.call(_MOVE, (handle,), mesh=mesh, placements=replicated(len(mesh.shape)))


def _rebound(tensor: Tensor, mesh) -> Tensor:
    """A tensor that is written to goes to the mesh with all that share it."""
    tensor._cell.bind(_on(tensor._cell.get(), mesh))
    return tensor


def _replaced(values, brought: dict):
    if isinstance(values, dict):
        return {name: _replaced(one, brought) for name, one in values.items()}
    if isinstance(values, (list, tuple)) and not hasattr(values, "_fields"):
        return type(values)(_replaced(one, brought) for one in values)
    return brought.get(id(values), values) if isinstance(values, torch.Tensor) else values


_tensor.set_again(_again)
