"""fully_shard: parameters in shards, gathered per unit before use and let go after it.

A unit is a module on which fully_shard was called, with the parameters that no unit within it has. Before its forward its
parameters are gathered by one op, in the order of units that the step before had: the next unit's are asked for one unit
early, and move while this one computes. After forward the cells of the gathered parameters let their handles go; backward,
which has saved them, finds the cells empty and gathers the unit again. Gradients come out of the gathering's backward by one
op for the unit, to the shards.
"""

from __future__ import annotations

import dataclasses
import weakref

import torch
from torch import nn

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._mesh import DeviceMesh
from .._tensor import OPS
from . import _gradients
from ._cell import moved
from ._dtypes import code
from ._moving import as_parameter, default_mesh, distribute_tensor
from ._tensor import Tensor, handle_of, wrap


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """param_dtype: in which parameters are gathered and used; reduce_dtype: in which gradients are reduced; output_dtype: of
    floating outputs; cast_forward_inputs: floating inputs become param_dtype. None leaves a dtype as it is."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


class _Gather(torch.autograd.Function):
    """The parameters of a unit, whole along the mesh dim; backward brings their gradients to the shards."""

    @staticmethod
    def forward(ctx, unit, *parameters):
        ctx.unit = unit
        ctx.set_materialize_grads(False)
        out = []
        for handle in unit.take():
            tensor = wrap(handle)
            tensor._cell.load = unit.loader(len(out), weakref.ref(tensor._cell))
            out.append(tensor)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        return (None, *ctx.unit.reduced(grads))


class _Unit:
    """The parameters of one module, and what is gathered of them."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh, dim: int, reshard: bool, policy: MixedPrecisionPolicy, order: list):
        self.mesh, self.dim, self.reshard, self.policy, self.order = mesh, dim, reshard, policy, order
        self.places: list = []      # (module, name, number of the parameter): tied ones have several
        self.parameters: list = []
        self.gathered: tuple | None = None      # what was asked for early: of which handles, and the whole ones
        self.is_held = False        # gradients are added up where they are, and not reduced
        self.following: list | None = None      # units that are asked for early, forward and backward; None: the neighbour
        self.preceding: list | None = None
        self.shown: list = []       # weak references to the cells of the gathered parameters of each forward
        numbers: dict = {}
        for submodule in module.modules():
            for name, parameter in submodule._parameters.items():
                if parameter is None or getattr(parameter, "_unit", None) is not None and id(parameter) not in numbers:
                    continue
                if id(parameter) not in numbers:
                    numbers[id(parameter)] = len(self.parameters)
                    placed = self._placed(parameter)
                    numbers[id(placed)] = len(self.parameters)
                    self.parameters.append(placed)
                number = numbers[id(parameter)]
                submodule._parameters[name] = self.parameters[number]
                self.places.append((submodule, name, number))

    def _placed(self, parameter):
        """The parameter in Shard(0) along the mesh dim; its other placements stay."""
        whole = DeviceMesh._wrap(self.mesh._session, self.mesh._raw)
        original = parameter
        if not isinstance(parameter, Tensor):
            known = getattr(parameter, "_on_tessera", None)
            parameter = known if known is not None else as_parameter(distribute_tensor(parameter.detach(), whole), parameter.requires_grad)
            original._on_tessera = parameter
        handle = handle_of(parameter)
        placements = list(handle._placements)
        placements[self.dim] = (1, 0, 0) if parameter.ndim else (0, 0, 0)
        parameter._cell.bind(moved(handle, placements))
        parameter._unit = True
        return parameter

    # ---- gathering ----------------------------------------------------------------------------------

    def _gather(self, handles: list) -> list:
        wanted = [[(0, 0, 0) if d == self.dim else one for d, one in enumerate(h._placements)] for h in handles]
        if self.policy.param_dtype is not None:     # converted before it moves
            kind = code(self.policy.param_dtype)
            handles = [_tessera.call(OPS["astype"], (h,), dtype=kind) if h._dtype != kind else h for h in handles]
        return _gradients.bring(handles, wanted)

    def prefetch(self) -> None:
        """Asks for the whole parameters, unless that was asked for and they are still the same."""
        sources = [handle_of(one) for one in self.parameters]
        if self.gathered is None or any(a is not b for a, b in zip(self.gathered[0], sources)):
            self.gathered = (sources, self._gather(sources))

    def take(self) -> list:
        self.prefetch()
        _, handles = self.gathered
        self.gathered = None
        return handles

    def is_wanted(self) -> bool:
        """Whether a cell of an earlier forward is empty, which backward may read."""
        return any(one() is not None and one().handle is None for cells in self.shown for one in cells)

    def loader(self, number: int, cell):
        """What an emptied cell calls: fills all cells of its forward, as the unit is gathered as one."""
        def load():
            handles = self.take()
            for before in self._neighbours(-1, self.preceding):
                if before.reshard and before.is_wanted():
                    before.prefetch()
            for cells in self.shown:
                if cells[number]() is cell():
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

    # ---- hooks ------------------------------------------------------------------------------------------

    def before(self, module, args, kwargs):
        if self not in self.order:
            self.order.append(self)
        tensors = _Gather.apply(self, *self.parameters)
        for following in self._neighbours(1, self.following):
            if following.reshard:
                following.prefetch()
        self.shown = [cells for cells in self.shown if any(one() is not None for one in cells)]
        self.shown.append([weakref.ref(one._cell) for one in tensors])
        for submodule, name, number in self.places:
            submodule._parameters[name] = tensors[number]
        if self.policy.param_dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = (_cast(one, self.policy.param_dtype) for one in (args, kwargs))
        return args, kwargs

    def after(self, module, args, output):
        for submodule, name, number in self.places:
            submodule._parameters[name] = self.parameters[number]
        if self.reshard:
            self.let_go()
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def let_go(self) -> None:
        for cells in self.shown:
            for one in cells:
                cell = one()
                if cell is not None:
                    cell.handle = None
                    cell.reduced = None

    def reduced(self, grads) -> list:
        """Gradients in the shards of their parameters, in the parameters' dtypes."""
        self.let_go()
        places = [i for i, one in enumerate(grads) if one is not None]
        handles = [handle_of(grads[i]) for i in places]
        if not _gradients.is_held() and not self.is_held:
            if self.policy.reduce_dtype is not None:
                kind = code(self.policy.reduce_dtype)
                handles = [_tessera.call(OPS["astype"], (h,), dtype=kind) if h._dtype != kind else h for h in handles]
            if handles:
                handles = _gradients.bring(handles, [_gradients._wanted(self.parameters[i]) for i in places])
        out: list = [None] * len(grads)
        for i, handle in zip(places, handles):
            kind = handle_of(self.parameters[i])._dtype
            out[i] = wrap(handle if handle._dtype == kind else _tessera.call(OPS["astype"], (handle,), dtype=kind))
        return out


def _cast(one, dtype: torch.dtype):
    if isinstance(one, torch.Tensor):
        return one.to(dtype) if one.is_floating_point() else one
    if isinstance(one, (list, tuple)) and not hasattr(one, "_fields"):
        return type(one)(_cast(item, dtype) for item in one)
    if isinstance(one, dict):
        return {key: _cast(item, dtype) for key, item in one.items()}
    return one


class _Gathered:
    """What unshard(async_op=True) gives: the gathering is on its way, and what needs it waits for it there."""

    def wait(self) -> None:
        pass


class FSDPModule:
    """What a module has after fully_shard, by torch's names. Its parameters are global tensors at any time: what these say is
    only when they are gathered and when their gradients are reduced."""

    def __deepcopy__(self, memo):
        raise FailedPreconditionError(f"deepcopy: {type(self).__name__} is fully sharded; copy the module before fully_shard, and its state_dict()")

    def __reduce_ex__(self, protocol):
        raise FailedPreconditionError(f"pickle: {type(self).__name__} is fully sharded; save its state_dict(), or tt.save it")

    def _units(self, recurse: bool) -> list:
        return [one._fully_sharded for one in (self.modules() if recurse else [self]) if isinstance(one, FSDPModule)]

    def unshard(self, async_op: bool = False):
        """Asks for the whole parameters of this unit now, for the forward that comes."""
        self._fully_sharded.prefetch()
        return _Gathered() if async_op else None

    def reshard(self) -> None:
        """Lets the gathered parameters of this unit go."""
        self._fully_sharded.gathered = None
        self._fully_sharded.let_go()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: gradients are added up where they are; the first backward after True reduces the sums."""
        for unit in self._units(recurse):
            unit.is_held = not requires_gradient_sync
            for parameter in unit.parameters:
                parameter._is_held = unit.is_held

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        for unit in self._units(recurse):
            unit.reshard = bool(reshard_after_forward)

    def set_modules_to_forward_prefetch(self, modules: list) -> None:
        """The units that are asked for before this one's forward, in place of the one that followed it in the step before."""
        self._fully_sharded.following = _units_of("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules: list) -> None:
        """The units that are asked for when backward reads this one, in place of the one before it."""
        self._fully_sharded.preceding = _units_of("set_modules_to_backward_prefetch", modules)


def _units_of(op: str, modules) -> list:
    for one in modules:
        if not isinstance(one, FSDPModule):
            raise InvalidArgumentError(f"{op}: {type(one).__name__} is not fully sharded; call tt.fully_shard on it first")
    return [one._fully_sharded for one in modules]


def fully_shard(module: nn.Module, *, mesh: DeviceMesh | None = None, reshard_after_forward: bool = True,
                mp_policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Shards the parameters of a module along a mesh dim, in place; returns the module.

    Call it on the inner modules first, as on each layer, and then on the whole: a parameter belongs to the innermost call.
    mesh: of one dim, as mesh["dp"]; default default_placement's. reshard_after_forward: gathered parameters are let go after
    forward and gathered again for backward; False keeps them until backward is through. mp_policy: torch's, or
    tt.MixedPrecisionPolicy. Optimizers are made after this; they and state_dict see the shards. The module is an FSDPModule
    then: unshard, reshard, set_requires_gradient_sync, set_modules_to_forward_prefetch and their like are its methods.

    >>> for layer in model.layers:
    ...     tt.fully_shard(layer, mesh=mesh["dp"])
    >>> tt.fully_shard(model, mesh=mesh["dp"], reshard_after_forward=False)
    """
    mesh = default_mesh() if mesh is None else mesh
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        raise InvalidArgumentError(f"fully_shard: mesh is {mesh!r}; it takes a mesh of one dim, as mesh['dp']")
    if hasattr(module, "_fully_sharded"):
        raise InvalidArgumentError(f"fully_shard: {type(module).__name__} is sharded already")
    order = next((one._fully_sharded.order for one in module.modules() if hasattr(one, "_fully_sharded")), [])
    for inner in module.modules():
        if hasattr(inner, "_fully_sharded"):
            inner._fully_sharded.order = order
    dim = 0 if mesh._dims is None else mesh._dims[0]
    unit = _Unit(module, mesh, dim, bool(reshard_after_forward), mp_policy or MixedPrecisionPolicy(), order)
    module._fully_sharded = unit
    kind = type(module)
    module.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__})
    module.register_forward_pre_hook(unit.before, with_kwargs=True)
    module.register_forward_hook(unit.after)
    whole = DeviceMesh._wrap(mesh._session, mesh._raw)
    for submodule in module.modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and not isinstance(buffer, Tensor):
                submodule._buffers[name] = distribute_tensor(buffer, whole)
    return module


fully_shard.__module__ = FSDPModule.__module__ = MixedPrecisionPolicy.__module__ = "tessera.torch"
