"""The parameters that fully_shard gathers together: which they are, when they are whole, and where their gradients go.

A unit lives as long as its modules, which hold it by their hooks. It holds its modules, the units beside it and the cells that it has
filled by weak references alone, so that a model is freed with its last name.

A unit has the parameters that its modules have when a forward begins: one that was put in, taken out or replaced since the last one
is taken up there. A forward and its backward keep the parameters that they began with (`_Shards`).
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from typing import Callable

import torch
from torch import nn

from .._errors import InvalidArgumentError, UnimplementedError
from .._mesh import DeviceMesh
from .._placements import REPLICATE, Placement, Shard, checked, is_within, replicated
from . import _gradients
from ._dtypes import code
from ._moving import place
from ._operands import cast
from ._tensor import Tensor, base_of, handle_of, wrap, wrap_later


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
class Options:
    """The arguments of fully_shard for a unit. dims, copied: the dims of the whole mesh along which parameters are in shards, and
    along which they are copied; ignored: weak references to parameters, by their ids."""

    mesh: DeviceMesh
    dims: tuple
    copied: tuple
    policy: MixedPrecisionPolicy
    ignored: dict
    placement_of: Callable | None


class Order:
    """The units of a model in the order in which their forwards began in the first step."""

    def __init__(self):
        self._units: list = []      # weak references

    def units(self) -> list:
        return [unit for ref in self._units if (unit := ref()) is not None]

    def add(self, unit) -> None:
        if unit not in self.units():
            self._units.append(weakref.ref(unit))

    def beside(self, unit, step: int) -> list:
        units = self.units()
        at = units.index(unit) + step if unit in units else -1
        return [units[at]] if 0 <= at < len(units) else []


@dataclasses.dataclass
class _Shards:
    """The parameters of a unit, and the dtype in which each is used, from one forward to the backward of it."""

    parameters: list
    used_as: list


class _Place:
    """A module of a unit as the unit has left it: its submodules, and what stands as its parameters."""

    __slots__ = ("module", "children", "shown", "numbers")

    def __init__(self, module: nn.Module):
        self.module = weakref.ref(module)
        self.children = list(module._modules.values())
        self.shown: dict = {}       # by name: a parameter, the gathered tensor in its place, or what is not the unit's
        self.numbers: dict = {}     # by name: of the unit's parameters

    def is_as_left(self) -> bool:
        module = self.module()
        parameters, children = module._parameters, module._modules
        return (len(children) == len(self.children) and parameters.keys() == self.shown.keys()
                and all(map(operator.is_, children.values(), self.children)) and all(map(operator.is_, parameters.values(), self.shown.values())))

    def show(self, tensors) -> None:
        """Puts a tensor in the place of each parameter, but where somebody has put another one."""
        parameters = self.module()._parameters
        for name, number in self.numbers.items():
            if parameters.get(name) is self.shown[name]:
                parameters[name] = self.shown[name] = tensors[number]


class _Gather(torch.autograd.Function):
    """The parameters of a unit, whole along the mesh dim; backward brings their gradients to the shards."""

    @staticmethod
    def forward(ctx, unit, shards, is_later, *parameters):
        ctx.unit, ctx.shards = unit, shards
        ctx.set_materialize_grads(False)
        out = []
        if is_later:        # by the first one that is read
            kinds = unit.kinds(shards, [handle_of(p) for p in parameters])
            whole = [wrap_later(p.shape, kind, None) for p, kind in zip(parameters, kinds)]
        else:
            whole = [wrap(handle) for handle in unit.take(shards, is_for_backward=not unit.reshard)]
        for tensor in whole:
            tensor._cell.load = unit.loader(shards, len(out))
            out.append(tensor)
        return tuple(out)

    @staticmethod
    def backward(ctx, *grads):
        return (None, None, None, *ctx.unit.reduced(ctx.shards, grads))


class Unit:
    """The parameters of one module, or of some that are gathered together, and what is gathered of them."""

    def __init__(self, modules: list, options: Options, reshard: bool | None, order: Order):
        self.options, self.policy, self.order = options, options.policy, order
        self.is_auto = reshard is None  # gathered parameters are let go after forward unless it is the outermost unit
        self.reshard = bool(reshard)
        self.modules = [weakref.ref(one) for one in modules]
        self.left: set = set()          # of several modules those that have not run since the unit was gathered
        self.places: list = []
        self.shards = _Shards([], [])
        self.gathered: tuple | None = None      # what was asked for early: of which handles, and the whole ones
        self.taken: tuple | None = None         # the same, of what backward uses and keeps
        self.is_held = False        # gradients are added up where they are, and not reduced
        self.is_copied_held = False     # gradients are not reduced over the copies
        self.keeps = False          # what backward has gathered is there for the next forward
        self.following: list | None = None      # weak references to units that are asked for early; None: the neighbour
        self.preceding: list | None = None
        self.shown: list = []       # of each forward: its shards, and weak references to the cells of the whole parameters
        self._take_up()

    # ---- which parameters -----------------------------------------------------------------------------

    def look_again(self) -> None:
        """Takes up what was put into the modules, or taken out of them, since the unit looked last."""
        is_here = all(type(one) is Tensor for one in self.shards.parameters)       # and was not brought to the CPU
        if not (is_here and self.places and all([one.is_as_left() for one in self.places])):
            self._take_up()

    def _take_up(self) -> None:
        hidden = {id(one.shown[name]): self.shards.parameters[number] for one in self.places for name, number in one.numbers.items()}
        numbers: dict = {}
        parameters, places = [], []
        for module in self._own_modules():
            places.append(_Place(module))
            for name, shown in module._parameters.items():
                places[-1].shown[name] = shown
                parameter = hidden.get(id(shown), shown)
                if parameter is None or not self._has(parameter):
                    continue
                if id(parameter) not in numbers:
                    numbers[id(parameter)] = len(parameters)
                    parameters.append(parameter)
                places[-1].numbers[name] = numbers[id(parameter)]
        for parameter in self.shards.parameters:
            if id(parameter) not in numbers:
                parameter.__dict__.pop("_unit", None)
        # Parameters that were taken out are freed before others come in; after an error all is looked at again.
        self.shards, self.places, self.gathered = _Shards([], []), [], None
        hidden = parameter = None
        used_as = [self._used_as(one) for one in parameters]
        for one in parameters:
            self._place(one)
        self.shards, self.places = _Shards(parameters, used_as), places
        self.mark_held()

    def _own_modules(self) -> list:
        """The modules and all in them, but for those of units within."""
        found: dict = {}
        waiting = [one() for one in reversed(self.modules)]
        while waiting:
            module = waiting.pop()
            if module is not None and id(module) not in found and module.__dict__.get("_fully_sharded", self) is self:
                found[id(module)] = module
                waiting.extend(reversed(module._modules.values()))
        return list(found.values())

    def _has(self, parameter) -> bool:
        ignored = self.options.ignored.get(id(parameter))
        owner = parameter.__dict__.get("_unit")
        return (ignored is None or ignored() is not parameter) and (owner is None or owner() is None or owner() is self)

    def _used_as(self, parameter) -> int:
        policy, dtype = self.policy, self.policy.param_dtype
        override = getattr(policy, "param_dtype_override_fn", None)
        if override is not None and (own := override(parameter)) is not None:
            if own not in (policy.param_dtype, parameter.dtype):
                raise InvalidArgumentError(f"fully_shard: param_dtype_override_fn gives {own} for {parameter.dtype}{list(parameter.shape)}; it gives "
                                           f"None, param_dtype ({policy.param_dtype}) or the parameter's dtype")
            dtype = own
        return code(parameter.dtype if dtype is None else dtype)

    def _sharded(self, parameter) -> Placement:
        """The placement of a parameter along the unit's dims."""
        wanted = None if self.options.placement_of is None else self.options.placement_of(parameter)
        if wanted is None:
            return Shard(0) if parameter.ndim else REPLICATE
        shown = f"{str(parameter.dtype).removeprefix('torch.')}{list(parameter.shape)}"
        if hasattr(wanted, "mesh_info"):
            raise UnimplementedError(f"fully_shard: shard_placement_fn gives {shown} a mesh of its own ({wanted!r}); call fully_shard on the "
                                     "module that has it, with mesh=")
        (placement,) = checked([wanted], "fully_shard: shard_placement_fn")
        if not placement.is_shard() or not is_within(placement, parameter.ndim):
            raise InvalidArgumentError(f"fully_shard: shard_placement_fn gives {wanted!r} for {shown}; it gives None, or a Shard of one of its dims")
        return placement.on_dim(placement.dim % parameter.ndim)

    def _place(self, parameter) -> None:
        """Brings the parameter into shards along the unit's dims; its other placements stay."""
        mesh = self.options.mesh
        placement = self._sharded(parameter)
        placements = replicated(len(mesh._raw.shape))
        if isinstance(parameter, Tensor) and base_of(parameter)._mesh.same(mesh._raw):
            placements = list(base_of(parameter)._placements)
        for d in self.options.dims:
            placements[d] = placement
        place(parameter, DeviceMesh._wrap(mesh._session, mesh._raw), placements)
        parameter._unit = weakref.ref(self)

    # ---- gathering ----------------------------------------------------------------------------------

    def kinds(self, shards: _Shards, handles: list) -> list:
        """In which dtypes parameters are used; without a policy in their own, whatever module.to has made of them."""
        return shards.used_as if self.policy.param_dtype is not None else [h._dtype for h in handles]

    def prefetch(self) -> None:
        """Asks for the whole parameters of the forward that comes."""
        self.look_again()
        self._ask(self.shards)

    def _ask(self, shards: _Shards) -> None:
        """Asks for the whole parameters, unless that was asked for and they are still the same."""
        sources = [handle_of(one) for one in shards.parameters]
        if self.gathered is not None and len(sources) == len(self.gathered[0]) and all(map(operator.is_, self.gathered[0], sources)):
            return
        wanted = [[REPLICATE if d in self.options.dims else one for d, one in enumerate(h._placements)] for h in sources]
        converted = [cast(h, kind) for h, kind in zip(sources, self.kinds(shards, sources))]     # before it moves
        self.gathered = (sources, _gradients.bring(converted, wanted))

    def take(self, shards: _Shards, is_for_backward: bool) -> list:
        self._ask(shards)
        taken = self.gathered
        self.gathered = taken if self.left else None
        self.taken = taken if self.keeps and is_for_backward else None
        return taken[1]

    def _ask_for_backward(self) -> None:
        """Asks for what an earlier forward has let go of and backward may read."""
        for shards, cells in self.shown:
            if any(one() is not None and one().handle is None for one in cells):
                self._ask(shards)
                return

    def loader(self, shards: _Shards, number: int):
        """Called by an emptied cell: fills all emptied cells, as the unit is gathered as one."""
        def load():
            handles = self.take(shards, is_for_backward=True)
            for before in self._neighbours(-1, self.preceding):
                if before.reshard:
                    before._ask_for_backward()
            for others, cells in self.shown:
                for other, handle in zip(cells, handles if others is shards else ()):
                    if other() is not None and other().handle is None:
                        other().handle = handle
            return handles[number]
        return load

    def _neighbours(self, step: int, said: list | None) -> list:
        if said is None:
            return self.order.beside(self, step)
        return [unit for ref in said if (unit := ref()) is not None]

    def mark_held(self) -> None:
        for parameter in self.shards.parameters:
            parameter._is_held = self.is_held or self.is_copied_held

    # ---- hooks ------------------------------------------------------------------------------------------

    def before(self, module, args, kwargs):
        self.look_again()
        self.order.add(self)
        if len(self.modules) > 1:
            self.left = (self.left or {id(one()) for one in self.modules}) - {id(module)}
        tensors = self._gather(is_later=False)
        for following in self._neighbours(1, self.following):
            if following.reshard:
                following.prefetch()
        self._show(tensors)
        if self.policy.param_dtype is not None and self.policy.cast_forward_inputs:
            args, kwargs = (_cast(one, self.policy.param_dtype) for one in (args, kwargs))
        return args, kwargs

    def after(self, module, args, output):
        self._show(self.shards.parameters)
        _, cells = self.shown[-1]
        if any(all(cells[number]() is None for number in one.numbers.values()) for one in self.places if one.numbers):
            self._stand_by(output)
        if self.reshard:
            self.let_go()
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def _gather(self, is_later: bool) -> tuple:
        tensors = _Gather.apply(self, self.shards, is_later, *self.shards.parameters)
        self.shown = [(shards, cells) for shards, cells in self.shown if any(one() is not None for one in cells)]
        self.shown.append((self.shards, [weakref.ref(one._cell) for one in tensors]))
        return tensors

    def _show(self, tensors) -> None:
        for one in self.places:
            one.show(tensors)

    def _stand_by(self, output) -> None:
        """A submodule of which backward has saved no parameter may be computed again (activation checkpoints): whole parameters
        are there from when backward comes to the outputs until it ends, and are gathered when one is read."""
        outputs = [one for one in _tensors_of(output) if one.requires_grad]
        if not outputs:
            return

        def stand(_):
            with torch.enable_grad():
                self._show(self._gather(is_later=True))
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._show(self.shards.parameters))

        torch.autograd.graph.register_multi_grad_hook(outputs, stand, mode="any")

    def let_go(self) -> None:
        for _, cells in self.shown:
            for one in cells:
                cell = one()
                if cell is not None:
                    cell.handle = None

    def reduced(self, shards: _Shards, grads) -> list:
        """Gradients in the shards of their parameters, in the parameters' dtypes."""
        if self.taken is not None or self.left:
            self.gathered, self.taken, self.left = self.taken, None, set()
        self.let_go()
        parameters = shards.parameters
        places = [i for i, one in enumerate(grads) if one is not None]
        handles = [handle_of(grads[i]) for i in places]
        kinds = [handle_of(parameters[i])._dtype for i in places]
        if not _gradients.is_held() and not self.is_held:
            reduce_dtype = self.policy.reduce_dtype
            handles = [cast(h, kind if reduce_dtype is None else code(reduce_dtype)) for h, kind in zip(handles, kinds)]
            if handles:
                handles = _gradients.bring(handles, [self._reduced_to(parameters[i], h) for i, h in zip(places, handles)])
        out: list = [None] * len(grads)
        for i, handle, kind in zip(places, handles, kinds):
            out[i] = wrap(cast(handle, kind))
        return out

    def _reduced_to(self, parameter, grad) -> list:
        wanted = _gradients._wanted(parameter)
        if self.is_copied_held:
            wanted = [own if d in self.options.copied and own.is_partial() else one for d, (one, own) in enumerate(zip(wanted, grad._placements))]
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


MixedPrecisionPolicy.__module__ = "tessera.torch"
