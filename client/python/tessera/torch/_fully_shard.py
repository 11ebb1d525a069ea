"""fully_shard: parameters in shards, gathered per unit before use and let go after it.

A unit is a module on which fully_shard was called, with the parameters that no unit within it has. Before its forward its
parameters are gathered by one op, in the order of units that the step before had: the next unit's are asked for one unit
early, and move while this one computes. After forward the cells of the gathered parameters let their handles go; backward,
which has saved them, finds the cells empty and gathers the unit again. Gradients come out of the gathering's backward by one
op for the unit, to the shards. What a module has by then, torch's FSDPModule, is in _fsdp_module.py.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Callable

import torch
from torch import nn

import _tessera
from .._errors import InvalidArgumentError, UnimplementedError
from .._mesh import DeviceMesh
from .._placements import encode
from .._tensor import OPS
from . import _gradients
from ._cell import moved
from ._dtypes import code
from ._fsdp_module import FSDPModule
from ._moving import as_parameter, default_mesh, on_mesh
from ._operands import cast
from ._tensor import Tensor, handle_of, wrap, wrap_later


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """param_dtype: in which parameters are gathered and used; reduce_dtype: in which gradients are reduced; output_dtype: of
    floating outputs; cast_forward_inputs: floating inputs become param_dtype. None leaves a dtype as it is; gradients are
    reduced in the dtype of their parameters then. param_dtype_override_fn(parameter): the parameter's own dtype, where it is to
    be gathered and used in that, or None."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True
    param_dtype_override_fn: Callable | None = dataclasses.field(default=None, kw_only=True)


@dataclasses.dataclass
class OffloadPolicy:
    """Parameters lie where the mesh's workers have their tensors."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters lie in the memory of the host: where workers that are CPUs have all their tensors. pin_memory has no effect."""

    pin_memory: bool = True


class _Gather(torch.autograd.Function):
    """The parameters of a unit, whole along the mesh dim; backward brings their gradients to the shards."""

    @staticmethod
    def forward(ctx, unit, is_later, *parameters):
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        out = []
        if is_later:        # by the first one that is read
            whole = [wrap_later(p.shape, kind, None) for p, kind in zip(parameters, unit.kinds([handle_of(p) for p in parameters]))]
        else:
            whole = [wrap(handle) for handle in unit.take(is_for_backward=not unit.reshard)]
        for tensor in whole:
            tensor._cell.load = unit.loader(len(out))
            out.append(tensor)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        return (None, None, *ctx.unit.reduced(grads))


@dataclasses.dataclass
class _Options:
    """What fully_shard was told of a unit. dims, copied: the dims of the whole mesh along which parameters are in shards, and
    along which they are copied; ignored: the ids of parameters."""

    mesh: DeviceMesh
    dims: tuple
    copied: tuple
    policy: MixedPrecisionPolicy
    ignored: set
    placement_of: Callable | None


class _Unit:
    """The parameters of one module, or of some that are gathered together, and what is gathered of them."""

    def __init__(self, modules: list, options: _Options, reshard: bool | None, order: list):
        self.options, self.policy, self.order = options, options.policy, order
        self.is_auto = reshard is None  # gathered parameters are let go after forward unless it is the outermost unit
        self.reshard = bool(reshard)
        self.modules = modules
        self.left: set = set()          # of several modules those that have not run since the unit was gathered
        self.places: list = []      # (module, name, number of the parameter): tied ones have several
        self.parameters: list = []
        self.used_as: list = []     # the number of the dtype in which each parameter is gathered
        self.gathered: tuple | None = None      # what was asked for early: of which handles, and the whole ones
        self.taken: tuple | None = None         # the same, of what backward uses and keeps
        self.is_held = False        # gradients are added up where they are, and not reduced
        self.is_copied_held = False     # gradients are not reduced over the copies
        self.keeps = False          # what backward has gathered is there for the next forward
        self.following: list | None = None      # units that are asked for early, forward and backward; None: the neighbour
        self.preceding: list | None = None
        self.shown: list = []       # weak references to the cells of the gathered parameters of each forward
        numbers: dict = {}
        for submodule in (one for module in modules for one in module.modules()):
            for name, parameter in submodule._parameters.items():
                if parameter is None or id(parameter) in options.ignored:
                    continue
                if getattr(parameter, "_unit", None) is not None and id(parameter) not in numbers:
                    continue
                if id(parameter) not in numbers:
                    numbers[id(parameter)] = len(self.parameters)
                    self.used_as.append(self._used_as(parameter))
                    placed = self._placed(parameter)
                    numbers[id(placed)] = len(self.parameters)
                    self.parameters.append(placed)
                number = numbers[id(parameter)]
                submodule._parameters[name] = self.parameters[number]
                self.places.append((submodule, name, number))
        rooms: dict = {}
        for submodule, _, number in self.places:
            rooms.setdefault(id(submodule), []).append(number)
        self.rooms = list(rooms.values())       # the parameters of each submodule

    def _used_as(self, parameter) -> int:
        policy, dtype = self.policy, self.policy.param_dtype
        override = getattr(policy, "param_dtype_override_fn", None)
        if override is not None and (own := override(parameter)) is not None:
            if own not in (policy.param_dtype, parameter.dtype):
                raise InvalidArgumentError(f"fully_shard: param_dtype_override_fn gives {own} for {parameter.dtype}{list(parameter.shape)}; it gives "
                                           f"None, param_dtype ({policy.param_dtype}) or the parameter's dtype")
            dtype = own
        return code(parameter.dtype if dtype is None else dtype)

    def _sharded(self, parameter) -> tuple:
        """The encoded placement of a parameter along the unit's dims."""
        wanted = None if self.options.placement_of is None else self.options.placement_of(parameter)
        if wanted is None:
            return (1, 0, 0) if parameter.ndim else (0, 0, 0)
        shown = f"{str(parameter.dtype).removeprefix('torch.')}{list(parameter.shape)}"
        if hasattr(wanted, "mesh_info"):
            raise UnimplementedError(f"fully_shard: shard_placement_fn gives {shown} a mesh of its own ({wanted!r}); call fully_shard on the "
                                     "module that has it, with mesh=")
        kind, dim, *rest = encode([wanted], "fully_shard: shard_placement_fn")[0]
        if kind != 1 or not -parameter.ndim <= dim < parameter.ndim:
            raise InvalidArgumentError(f"fully_shard: shard_placement_fn gives {wanted!r} for {shown}; it gives None, or a Shard of one of its dims")
        return (1, dim % parameter.ndim, *rest)

    def _placed(self, parameter):
        """The parameter in shards along the unit's dims; its other placements stay."""
        mesh = self.options.mesh
        placement = self._sharded(parameter)
        original = parameter
        if not isinstance(parameter, Tensor):
            known = getattr(parameter, "_on_tessera", None)
            parameter = known if known is not None else as_parameter(
                on_mesh(parameter, DeviceMesh._wrap(mesh._session, mesh._raw)), parameter.requires_grad)
            original._on_tessera = parameter
        handle = handle_of(parameter)
        placements = list(handle._placements)
        for d in self.options.dims:
            placements[d] = placement
        parameter._cell.bind(moved(handle, placements))
        parameter._unit = True
        return parameter

    # ---- gathering ----------------------------------------------------------------------------------

    def _gather(self, handles: list) -> list:
        wanted = [[(0, 0, 0) if d in self.options.dims else one for d, one in enumerate(h._placements)] for h in handles]
        return _gradients.bring([cast(h, kind) for h, kind in zip(handles, self.kinds(handles))], wanted)    # converted before it moves

    def kinds(self, handles: list) -> list:
        """In which dtypes parameters are used; without a policy in their own, whatever module.to has made of them."""
        return self.used_as if self.policy.param_dtype is not None else [h._dtype for h in handles]

    def prefetch(self) -> None:
        """Asks for the whole parameters, unless that was asked for and they are still the same."""
        sources = [handle_of(one) for one in self.parameters]
        if self.gathered is None or any(a is not b for a, b in zip(self.gathered[0], sources)):
            self.gathered = (sources, self._gather(sources))

    def take(self, is_for_backward: bool) -> list:
        self.prefetch()
        taken = self.gathered
        self.gathered = taken if self.left else None
        self.taken = taken if self.keeps and is_for_backward else None
        return taken[1]

    def is_wanted(self) -> bool:
        """Whether a cell of an earlier forward is empty, which backward may read."""
        return any(one() is not None and one().handle is None for cells in self.shown for one in cells)

    def loader(self, number: int):
        """What an emptied cell calls: fills all emptied cells, as the unit is gathered as one."""
        def load():
            handles = self.take(is_for_backward=True)
            for before in self._neighbours(-1, self.preceding):
                if before.reshard and before.is_wanted():
                    before.prefetch()
            for cells in self.shown:
                for other, handle in zip(cells, handles):
                    if other() is not None and other().handle is None:
                        other().handle = handle
            return handles[number]
        return load

    def _neighbours(self, step: int, said: list | None) -> list:
        if said is not None:
            return said
        at = self.order.index(self) + step if self in self.order else -1
        return [self.order[at]] if 0 <= at < len(self.order) else []

    def mark_held(self) -> None:
        for parameter in self.parameters:
            parameter._is_held = self.is_held or self.is_copied_held

    # ---- hooks ------------------------------------------------------------------------------------------

    def before(self, module, args, kwargs):
        if self not in self.order:
            self.order.append(self)
        if len(self.modules) > 1:
            self.left = (self.left or {id(one) for one in self.modules}) - {id(module)}
        tensors = self._show(is_later=False)
        for following in self._neighbours(1, self.following):
            if following.reshard:
                following.prefetch()
        self._register(tensors)
        if self.policy.param_dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = (_cast(one, self.policy.param_dtype) for one in (args, kwargs))
        return args, kwargs

    def after(self, module, args, output):
        self._register(self.parameters)
        cells = self.shown[-1]
        if any(all(cells[number]() is None for number in numbers) for numbers in self.rooms):
            self._stand_by(output)
        if self.reshard:
            self.let_go()
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def _show(self, is_later: bool) -> tuple:
        tensors = _Gather.apply(self, is_later, *self.parameters)
        self.shown = [cells for cells in self.shown if any(one() is not None for one in cells)]
        self.shown.append([weakref.ref(one._cell) for one in tensors])
        return tensors

    def _register(self, tensors) -> None:
        for submodule, name, number in self.places:
            submodule._parameters[name] = tensors[number]

    def _stand_by(self, output) -> None:
        """A submodule of which backward has saved no parameter may be computed again (activation checkpoints): whole parameters
        are there from when backward comes to the outputs until it ends, and are gathered when one is read."""
        outputs = [one for one in _tensors_of(output) if one.requires_grad]
        if not outputs:
            return

        def stand(_):
            with torch.enable_grad():
                self._register(self._show(is_later=True))
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._register(self.parameters))

        torch.autograd.graph.register_multi_grad_hook(outputs, stand, mode="any")

    def let_go(self) -> None:
        for cells in self.shown:
            for one in cells:
                cell = one()
                if cell is not None:
                    cell.handle = None
                    cell.reduced = None

    def reduced(self, grads) -> list:
        """Gradients in the shards of their parameters, in the parameters' dtypes."""
        if self.taken is not None or self.left:
            self.gathered, self.taken, self.left = self.taken, None, set()
        self.let_go()
        places = [i for i, one in enumerate(grads) if one is not None]
        handles = [handle_of(grads[i]) for i in places]
        kinds = [handle_of(self.parameters[i])._dtype for i in places]
        if not _gradients.is_held() and not self.is_held:
            reduce_dtype = self.policy.reduce_dtype
            handles = [cast(h, kind if reduce_dtype is None else code(reduce_dtype)) for h, kind in zip(handles, kinds)]
            if handles:
                handles = _gradients.bring(handles, [self._reduced_to(self.parameters[i], h) for i, h in zip(places, handles)])
        out: list = [None] * len(grads)
        for i, handle, kind in zip(places, handles, kinds):
            out[i] = wrap(cast(handle, kind))
        return out

    def _reduced_to(self, parameter, grad) -> list:
        wanted = _gradients._wanted(parameter)
        if self.is_copied_held:
            wanted = [own if d in self.options.copied and own[0] == 2 else one for d, (one, own) in enumerate(zip(wanted, grad._placements))]
        return wanted


def _tensors_of(one) -> list:
    if isinstance(one, torch.Tensor):
        return [one]
    if isinstance(one, dict):
        one = list(one.values())
    return [tensor for item in one for tensor in _tensors_of(item)] if isinstance(one, (list, tuple)) else []


def _cast(one, dtype: torch.dtype):
    if isinstance(one, torch.Tensor):
        return one.to(dtype) if one.is_floating_point() else one
    if isinstance(one, (list, tuple)) and not hasattr(one, "_fields"):
        return type(one)(_cast(item, dtype) for item in one)
    if isinstance(one, dict):
        return {key: _cast(item, dtype) for key, item in one.items()}
    return one


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
    gradients are those of the whole batch. Optimizers are made after this; they and state_dict see the shards. The module is an
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
    order = inner[0].order if inner else []
    options = _Options(mesh, dims, copied, mp_policy or MixedPrecisionPolicy(), {id(one) for one in ignored_params or ()}, shard_placement_fn)
    unit = _Unit(modules, options, reshard, order)
    for one in inner:
        one.order = order
        if one.is_auto:
            one.reshard = True
    whole = DeviceMesh._wrap(mesh._session, mesh._raw)
    for one in modules:
        one._fully_sharded = unit
        kind = type(one)
        one.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__})
        one.register_forward_pre_hook(unit.before, with_kwargs=True)
        one.register_forward_hook(unit.after)
        for submodule in one.modules():
            for name, buffer in submodule._buffers.items():
                if buffer is not None and not isinstance(buffer, Tensor):
                    submodule._buffers[name] = on_mesh(buffer, whole)
    return module


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Has a method gather the unit's parameters and let them go as forward does, as `generate` of a language model. Of a module
    that is not fully sharded it stays as it is."""
    if not hasattr(module, method_name):
        raise InvalidArgumentError(f"register_fsdp_forward_method: {type(module).__name__} has no method {method_name!r}")
    if not isinstance(module, FSDPModule):
        return
    method, unit = getattr(module, method_name), module._fully_sharded

    @functools.wraps(method)
    def gathered(*args, **kwargs):
        args, kwargs = unit.before(module, args, kwargs)
        return unit.after(module, args, method(*args, **kwargs))

    setattr(module, method_name, gathered)


for _one in (fully_shard, register_fsdp_forward_method, MixedPrecisionPolicy, OffloadPolicy, CPUOffloadPolicy):
    _one.__module__ = "tessera.torch"
