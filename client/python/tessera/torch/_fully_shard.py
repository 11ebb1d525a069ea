"""fully_shard: parameters in shards, gathered per unit before use and let go after it.

A unit is a module on which fully_shard was called, with the parameters that no unit within it has. Before its forward its
parameters are gathered by one op, in the order of units that the step before had: the next unit's are asked for one unit
early, and move while this one computes. After forward the cells of the gathered parameters let their handles go; backward,
which has saved them, finds the cells empty and gathers the unit again. Gradients come out of the gathering's backward by one
op for the unit, to the shards. Units are in _fsdp_unit.py; what a module has by then, torch's FSDPModule, is in _fsdp_module.py.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref

from torch import nn

from .._errors import InvalidArgumentError, UnimplementedError
from .._mesh import DeviceMesh
from ._fsdp_module import FSDPModule
from ._fsdp_unit import MixedPrecisionPolicy, Options, Order, Unit
from ._moving import bring_buffers, default_mesh

_kinds: dict = {}       # by a module's class: the one that it has after fully_shard


@dataclasses.dataclass
class OffloadPolicy:
    """Parameters lie where the mesh's workers have their tensors."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters lie in the memory of the host: where workers that are CPUs have all their tensors. pin_memory has no effect."""

    pin_memory: bool = True


def _dims_of(mesh: DeviceMesh, said) -> tuple:
    """(dims in shards, dims of copies) of the whole mesh: of a mesh of two the first copies, as torch's HSDP has it."""
    numbers = list(range(len(mesh._raw.shape))) if mesh._dims is None else list(mesh._dims)
    if said is None:
        if mesh.ndim > 2:
            raise InvalidArgumentError(f"fully_shard: mesh is {mesh!r}; it takes a mesh of one dim, as mesh['dp'], or of two, of which the first copies, "
                                       "or dp_mesh_dims= says which ones")
        return tuple(numbers[-1:]), tuple(numbers[:-1])
    named = [(one,) if isinstance(one, str) else tuple(one or ()) for one in (said.shard, said.replicate)]
    return tuple(tuple(numbers[mesh._dim_named(name)] for name in names) for names in named)


def _check_reshard(reshard, mesh: DeviceMesh, dims: tuple) -> bool | None:
    """A number of workers is True: what is in shards after forward is so on all workers."""
    if reshard is None or isinstance(reshard, bool):
        return reshard
    count = 1
    for d in dims:
        count *= mesh._raw.shape[d]
    if not isinstance(reshard, int) or not 1 < reshard < count or count % reshard:
        raise InvalidArgumentError(f"fully_shard: reshard_after_forward is {reshard!r}; it is True, False, None or a divisor of {count}, the workers that "
                                   "parameters are in shards on, between 1 and that")
    return True


def _check_offload(policy, mesh: DeviceMesh) -> None:
    """Policies are known by their names, which are torch's: its module takes long to be imported."""
    names = [one.__name__ for one in type(policy).__mro__]
    if policy is None or names[0] == "OffloadPolicy":
        return
    if "OffloadPolicy" not in names:
        raise InvalidArgumentError(f"fully_shard: offload_policy is {policy!r}; it is an OffloadPolicy, or a CPUOffloadPolicy where workers are CPUs")
    if "CPUOffloadPolicy" not in names or mesh.device_type != "cpu":
        raise UnimplementedError(f"fully_shard: offload_policy is {policy!r}, and the workers of {mesh!r} are {mesh.device_type} devices: a tensor lies on "
                                 "the device of its worker and is not brought to its host in between; take a mesh of CPU workers, or more devices")


def fully_shard(module, *, mesh: DeviceMesh | None = None, reshard_after_forward: bool | int | None = None, shard_placement_fn=None,
                mp_policy: MixedPrecisionPolicy | None = None, offload_policy: OffloadPolicy | None = None, ignored_params=None,
                dp_mesh_dims=None):
    """Shards the parameters of a module along a mesh dim, in place; returns the module. The signature is torch's.

    Call it on the inner modules first, as on each layer, and then on the whole: a parameter belongs to the innermost call. A
    list of modules is one unit. mesh: of one dim, as mesh["dp"]; of two, on the first of which parameters are copied (HSDP); or
    any, where dp_mesh_dims (torch's DataParallelMeshDims) names the dims; default default_placement's. reshard_after_forward:
    gathered parameters are let go after forward and gathered again for backward; False keeps them until backward is through;
    None is False for the outermost unit and True for those in it; a number of workers, to which torch would shard them, is
    True. shard_placement_fn(parameter): the Shard of a parameter, or None for Shard(0); uneven ones, too. mp_policy,
    offload_policy: torch's, or those of tt. ignored_params: parameters that are left where they are and as they are; their
    gradients are those of the whole batch. Optimizers, made before or after, and state_dict see the shards. The module is an
    FSDPModule then: unshard, reshard, set_requires_gradient_sync, set_modules_to_forward_prefetch and their like are its methods.

    >>> for layer in model.layers:
    ...     tt.fully_shard(layer, mesh=mesh["dp"])
    >>> tt.fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    """
    mesh = default_mesh() if mesh is None else mesh
    if not isinstance(mesh, DeviceMesh):
        raise InvalidArgumentError(f"fully_shard: mesh is {mesh!r}; it takes a mesh of one dim, as mesh['dp']")
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    if not modules or not all(isinstance(one, nn.Module) for one in modules):
        raise InvalidArgumentError(f"fully_shard: takes a module, or a list of some, not {module!r}")
    for one in modules:
        if hasattr(one, "_fully_sharded"):
            raise InvalidArgumentError(f"fully_shard: {type(one).__name__} is sharded already")
    dims, copied = _dims_of(mesh, dp_mesh_dims)
    reshard = _check_reshard(reshard_after_forward, mesh, dims)
    _check_offload(offload_policy, mesh)
    inner = [one._fully_sharded for part in modules for one in part.modules() if hasattr(one, "_fully_sharded")]
    order = inner[0].order if inner else Order()
    ignored = {id(one): weakref.ref(one) for one in ignored_params or ()}
    unit = Unit(modules, Options(mesh, dims, copied, mp_policy or MixedPrecisionPolicy(), ignored, shard_placement_fn), reshard, order)
    for one in inner:
        one.order = order
        if one.is_auto:
            one.reshard = True
    whole = DeviceMesh._wrap(mesh._session, mesh._raw)
    for one in modules:
        one._fully_sharded = unit
        one.__class__ = _sharded_kind(type(one))
        one.register_forward_pre_hook(unit.before, with_kwargs=True)
        one.register_forward_hook(unit.after)
        bring_buffers(one, whole)
    return module


def _sharded_kind(kind: type) -> type:
    if kind not in _kinds:
        _kinds[kind] = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__})
    return _kinds[kind]


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has a method gather the unit's parameters and let them go as forward does, as `generate` of a language model. Of a module
    that is not fully sharded it stays as it is."""
    if not hasattr(module, method_name):
        raise InvalidArgumentError(f"register_fsdp_forward_method: {type(module).__name__} has no method {method_name!r}")
    if not isinstance(module, FSDPModule):
        return
    method, unit = getattr(module, method_name), module._fully_sharded
    is_bound = getattr(method, "__self__", None) is module
    function, owner = method.__func__ if is_bound else method, weakref.ref(module)     # a module that held itself would not be freed

    @functools.wraps(function)
    def gathered(*args, **kwargs):
        own = owner()
        args, kwargs = unit.before(own, args, kwargs)
        return unit.after(own, args, function(own, *args, **kwargs) if is_bound else function(*args, **kwargs))

    setattr(module, method_name, gathered)


for _one in (fully_shard, register_fsdp_forward_method, OffloadPolicy, CPUOffloadPolicy):
    _one.__module__ = "tessera.torch"
