"""Parameters and activations with a placement on one mesh dim; on the other dims they are as they were."""

from __future__ import annotations

import torch

from ..._errors import InvalidArgumentError
from ..._mesh import DeviceMesh
from ..._placements import Placement, Replicate, Shard, checked, kept, replicated
from .._moving import _redistributed, bring_buffers, bring_parameter, distribute_tensor, place
from .._tensor import Tensor, handle_of


def mesh_dim_of(op: str, mesh: DeviceMesh) -> int:
    """The number of a 1-D (view of a) mesh's dim among the dims that tensors on it have."""
    if not isinstance(mesh, DeviceMesh):
        raise InvalidArgumentError(f"{op}: device_mesh is {mesh!r}, not a DeviceMesh")
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        hint = f"mesh[{names[-1]!r}]" if names else 'a mesh with names, and mesh["tp"]'
        raise InvalidArgumentError(f"{op}: {mesh} has {mesh.ndim} dims; tensor parallelism goes along one of them: give {hint}")
    return 0 if mesh._dims is None else mesh._dims[0]


def _goal(op: str, placement: Placement, placements, dim: int, ndim: int) -> list:
    """The placements with this one on a mesh dim. A Shard counts from the end where it is negative; of a dim that the
    tensor doesn't have it is an error."""
    if not isinstance(placement, Placement):
        raise InvalidArgumentError(f"{op}: {placement!r} is no placement; use ts.Shard(dim), ts.Replicate() or ts.Partial()")
    if isinstance(placement, Shard):
        if not -ndim <= placement.dim < ndim:
            raise InvalidArgumentError(f"{op}: {placement!r} of a tensor of {ndim} dims")
        placement = Shard(placement.dim % ndim)
    out = list(placements)
    out[dim] = checked([placement], op)[0]
    return out


def is_on(x: Tensor, mesh: DeviceMesh) -> bool:
    return handle_of(x)._mesh.same(mesh._raw)


def placed(op: str, x, mesh: DeviceMesh, dim: int, placement: Placement):
    """An activation with a placement on the mesh dim; autograd goes through it. A CPU tensor is brought to the mesh first."""
    if not isinstance(x, torch.Tensor):
        raise InvalidArgumentError(f"{op}: expected a tensor, not {type(x).__name__}")
    if not isinstance(x, Tensor):
        x = distribute_tensor(x, DeviceMesh._wrap(mesh._session, mesh._raw))
    handle = handle_of(x)
    if not handle._mesh.same(mesh._raw):        # as a factory's, on the default mesh
        goal = _goal(op, placement, replicated(len(mesh._raw.shape)), dim, x.ndim)
        return _redistributed(x, mesh._raw, kept(goal))
    own = handle._placements[dim]
    if own.is_replicate() and type(placement) is Replicate:
        return x
    if own.is_shard() and own.sizes is None and type(placement) is Shard and own.dim - placement.dim in (0, x.ndim):
        return x        # it is there; the dim counts from the start, or from the end
    goal = _goal(op, placement, handle._placements, dim, x.ndim)
    if goal[dim] == own or (goal[dim].is_partial() and not own.is_partial()):
        return x        # it is there; and nothing becomes a pending sum
    return _redistributed(x, None, goal)


def place_parameter(op: str, module: torch.nn.Module, name: str, mesh: DeviceMesh, dim: int, placement: Placement) -> None:
    """Gives a parameter its placement. It stays the same object, so that what shares it shares that."""
    parameter = module._parameters[name]
    if parameter is None:
        return
    whole = DeviceMesh._wrap(mesh._session, mesh._raw)
    own = replicated(whole.ndim)
    if isinstance(parameter, Tensor) and is_on(parameter, mesh):
        own = handle_of(parameter)._placements
    try:
        goal = _goal(op, placement, own, dim, parameter.ndim)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}: the parameter {name!r} of {type(module).__name__}, {parameter!r}") from None
    place(parameter, whole, goal)


def bring_rest(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Parameters and buffers that no style named are replicated."""
    whole = DeviceMesh._wrap(mesh._session, mesh._raw)
    for parameter in module.parameters():
        if not isinstance(parameter, Tensor):
            bring_parameter(parameter, whole)
    bring_buffers(module, whole)
