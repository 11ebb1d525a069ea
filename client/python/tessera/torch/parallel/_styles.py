"""The styles: where parameters lie, and how activations come in and go out."""

from __future__ import annotations

import abc

import torch
from torch import nn

from ..._errors import InvalidArgumentError
from ..._mesh import DeviceMesh
from ..._placements import Placement, Replicate, Shard, of_dtensor
from .._tensor import Tensor
from ._place import mesh_dim_of, place_parameter, placed


class ParallelStyle(abc.ABC):
    """How a module is made parallel. A style of one's own overrides _apply(module, device_mesh) -> module."""

    src_data_rank: int | None = 0

    @abc.abstractmethod
    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module: ...


def _layout(style: str, name: str, value, default: Placement | None) -> Placement:
    value = default if value is None else of_dtensor(value)
    if not isinstance(value, Placement):
        raise InvalidArgumentError(f"{style}: {name} is {value!r}, not a placement; use ts.Shard(dim) or ts.Replicate()")
    return value


def _refuse(style: str, module: nn.Module, takes: str):
    raise InvalidArgumentError(f"{style}: takes {takes}, not {type(module).__name__}")


class _FirstInputStyle(ParallelStyle):
    """Places the first input and the output of a module."""

    input_layouts: tuple
    desired_input_layouts: tuple
    output_layouts: tuple

    def _place_parameters(self, module: nn.Module, mesh: DeviceMesh, dim: int) -> None:
        raise NotImplementedError

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        op = type(self).__name__
        dim = mesh_dim_of(op, device_mesh)
        self._place_parameters(module, device_mesh, dim)
        wanted, given = self._wanted_input(module), self.input_layouts[0]

        def before(mod, inputs):
            x = _brought(op, inputs[0], device_mesh, dim, given)
            return (placed(op, x, device_mesh, dim, wanted), *inputs[1:])

        def after(mod, inputs, output):
            return placed(op, output, device_mesh, dim, self.output_layouts[0])

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
        return module

    def _wanted_input(self, module: nn.Module) -> Placement:
        return self.desired_input_layouts[0]


def _brought(op: str, x, mesh: DeviceMesh, dim: int, layout: Placement):
    """A CPU tensor on the mesh as its layout says; what is there stays as it is."""
    if isinstance(x, torch.Tensor) and not isinstance(x, Tensor):
        return placed(op, x, mesh, dim, layout)
    return x


class ColwiseParallel(_FirstInputStyle):
    """Cuts a Linear by its outputs (weight and bias Shard(0)), an Embedding by its features (weight Shard(1)).

    input_layouts: of a CPU tensor that comes in, default Replicate; the computation takes Replicate. output_layouts: of
    what goes out, default Shard(-1). use_local_output: no effect, as all tensors are global.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output: bool = True):
        self.input_layouts = (_layout("ColwiseParallel", "input_layouts", input_layouts, Replicate()),)
        self.output_layouts = (_layout("ColwiseParallel", "output_layouts", output_layouts, Shard(-1)),)
        self.desired_input_layouts = (Replicate(),)
        self.use_local_output = use_local_output

    def _place_parameters(self, module, mesh, dim):
        if isinstance(module, nn.Linear):
            for name in list(module._parameters):
                place_parameter("ColwiseParallel", module, name, mesh, dim, Shard(0))
        elif isinstance(module, nn.Embedding):
            place_parameter("ColwiseParallel", module, "weight", mesh, dim, Shard(1))
        else:
            _refuse("ColwiseParallel", module, "nn.Linear and nn.Embedding")

    def __repr__(self):
        return (f"ColwiseParallel(input_layouts={self.input_layouts[0]}, output_layouts={self.output_layouts[0]}, "
                f"use_local_output={self.use_local_output})")


class RowwiseParallel(_FirstInputStyle):
    """Cuts a Linear by its inputs (weight Shard(1), bias Replicate), an Embedding by its rows (weight Shard(0)).

    Each worker's product is a term of the result. input_layouts: of a CPU tensor that comes in, default Shard(-1), which the
    computation of a Linear takes; an Embedding takes Replicate. output_layouts: Replicate (default) adds the terms up
    everywhere, Shard(d) each part in one place.
    """

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output: bool = True):
        self.input_layouts = (_layout("RowwiseParallel", "input_layouts", input_layouts, Shard(-1)),)
        self.output_layouts = (_layout("RowwiseParallel", "output_layouts", output_layouts, Replicate()),)
        self.desired_input_layouts = (Shard(-1),)
        self.use_local_output = use_local_output

    def _place_parameters(self, module, mesh, dim):
        if isinstance(module, nn.Linear):
            place_parameter("RowwiseParallel", module, "weight", mesh, dim, Shard(1))
            if "bias" in module._parameters:
                place_parameter("RowwiseParallel", module, "bias", mesh, dim, Replicate())
        elif isinstance(module, nn.Embedding):
            place_parameter("RowwiseParallel", module, "weight", mesh, dim, Shard(0))
        else:
            _refuse("RowwiseParallel", module, "nn.Linear and nn.Embedding")

    def _wanted_input(self, module):
        return Replicate() if isinstance(module, nn.Embedding) else Shard(-1)

    def __repr__(self):
        return (f"RowwiseParallel(input_layouts={self.input_layouts[0]}, output_layouts={self.output_layouts[0]}, "
                f"use_local_output={self.use_local_output})")


class SequenceParallel(ParallelStyle):
    """Cuts the sequence dim of what goes through a LayerNorm, RMSNorm or Dropout; their parameters are replicated.

    sequence_dim: of the input, (batch, sequence, features) by default. use_local_output: no effect, as all tensors are global.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False):
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        op = "SequenceParallel"
        dim = mesh_dim_of(op, device_mesh)
        if isinstance(module, (nn.Linear, nn.Embedding, nn.MultiheadAttention)):
            _refuse(op, module, "modules whose rows are independent, as nn.LayerNorm, nn.RMSNorm and nn.Dropout")
        for name in list(module._parameters):
            place_parameter(op, module, name, device_mesh, dim, Replicate())
        sharding = self.sequence_sharding[0]
        module.register_forward_pre_hook(lambda mod, inputs: (placed(op, inputs[0], device_mesh, dim, sharding), *inputs[1:]))
        return module

    def __repr__(self):
        return f"SequenceParallel(sequence_dim={self.sequence_sharding[0].dim}, use_local_output={self.use_local_output})"


def _tuple_of(layouts) -> tuple:
    layouts = of_dtensor(layouts)
    return (layouts,) if isinstance(layouts, Placement) or layouts is None else tuple(map(of_dtensor, layouts))


class PrepareModuleInput(ParallelStyle):
    """Redistributes a module's inputs before forward.

    input_layouts: of CPU tensors that come in, one per positional input, None for those to be left as they are.
    desired_input_layouts: what forward takes, as many. input_kwarg_layouts and desired_input_kwarg_layouts: the same by name.

    >>> PrepareModuleInput(input_layouts=(ts.Shard(1), None), desired_input_layouts=(ts.Replicate(), None))
    """

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None,
                 desired_input_kwarg_layouts=None, use_local_output: bool = False):
        op = "PrepareModuleInput"
        self.input_layouts = None if input_layouts is None else _tuple_of(input_layouts)
        self.desired_input_layouts = None if desired_input_layouts is None else _tuple_of(desired_input_layouts)
        self.input_kwarg_layouts, self.desired_input_kwarg_layouts = (
            {name: of_dtensor(one) for name, one in (layouts or {}).items()} for layouts in (input_kwarg_layouts, desired_input_kwarg_layouts))
        self.use_local_output = use_local_output
        self.with_kwargs = bool(self.input_kwarg_layouts)
        if self.input_layouts is not None:
            if self.desired_input_layouts is None:
                raise InvalidArgumentError(f"{op}: desired_input_layouts is None; say what forward takes")
            if len(self.input_layouts) != len(self.desired_input_layouts):
                raise InvalidArgumentError(f"{op}: {len(self.input_layouts)} input_layouts and "
                                           f"{len(self.desired_input_layouts)} desired_input_layouts; they must be as many")
        if self.input_kwarg_layouts.keys() != self.desired_input_kwarg_layouts.keys():
            raise InvalidArgumentError(f"{op}: input_kwarg_layouts names {sorted(self.input_kwarg_layouts)}, "
                                       f"desired_input_kwarg_layouts {sorted(self.desired_input_kwarg_layouts)}")

    def _one(self, x, layout, desired, mesh: DeviceMesh, dim: int):
        op = "PrepareModuleInput"
        if layout is None and desired is None or not isinstance(x, torch.Tensor):
            return x
        if layout is not None:
            x = _brought(op, x, mesh, dim, layout)
        return x if desired is None else placed(op, x, mesh, dim, desired)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        dim = mesh_dim_of("PrepareModuleInput", device_mesh)

        def before(mod, inputs, kwargs):
            if self.input_layouts is not None:
                if len(inputs) != len(self.input_layouts):
                    raise InvalidArgumentError(f"PrepareModuleInput: {type(mod).__name__} got {len(inputs)} positional inputs, and "
                                               f"input_layouts has {len(self.input_layouts)}")
                inputs = tuple(self._one(x, given, wanted, device_mesh, dim)
                               for x, given, wanted in zip(inputs, self.input_layouts, self.desired_input_layouts))
            kwargs = {name: self._one(x, self.input_kwarg_layouts.get(name), self.desired_input_kwarg_layouts.get(name),
                                      device_mesh, dim) for name, x in kwargs.items()}
            return inputs, kwargs

        module.register_forward_pre_hook(before, with_kwargs=True)
        return module

    def __repr__(self):
        return (f"PrepareModuleInput(input_layouts={self.input_layouts}, desired_input_layouts={self.desired_input_layouts}, "
                f"input_kwarg_layouts={self.input_kwarg_layouts}, "
                f"desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, use_local_output={self.use_local_output})")


class PrepareModuleOutput(ParallelStyle):
    """Redistributes a module's outputs after forward.

    output_layouts: of CPU tensors that come out, one per output, None for those to be left as they are.
    desired_output_layouts: what they become, as many. use_local_output: no effect, as all tensors are global.
    """

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output: bool = True):
        self.output_layouts = _tuple_of(output_layouts)
        self.desired_output_layouts = _tuple_of(desired_output_layouts)
        self.use_local_output = use_local_output
        if len(self.output_layouts) != len(self.desired_output_layouts):
            raise InvalidArgumentError(f"PrepareModuleOutput: {len(self.output_layouts)} output_layouts and "
                                       f"{len(self.desired_output_layouts)} desired_output_layouts; they must be as many")

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        op = "PrepareModuleOutput"
        dim = mesh_dim_of(op, device_mesh)

        def after(mod, inputs, outputs):
            items = outputs if isinstance(outputs, tuple) else (outputs,)
            if len(items) != len(self.output_layouts):
                raise InvalidArgumentError(f"{op}: {type(mod).__name__} gave {len(items)} outputs, and output_layouts has "
                                           f"{len(self.output_layouts)}")
            out = tuple(x if wanted is None or not isinstance(x, torch.Tensor) else placed(
                op, x if given is None else _brought(op, x, device_mesh, dim, given), device_mesh, dim, wanted)
                for x, given, wanted in zip(items, self.output_layouts, self.desired_output_layouts))
            return out if isinstance(outputs, tuple) else out[0]

        module.register_forward_hook(after)
        return module

    def __repr__(self):
        return (f"PrepareModuleOutput(output_layouts={self.output_layouts}, "
                f"desired_output_layouts={self.desired_output_layouts}, use_local_output={self.use_local_output})")


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput and PrepareModuleOutput of one module."""

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None,
                 desired_input_kwarg_layouts=None, use_local_input: bool = False, output_layouts, desired_output_layouts,
                 use_local_output: bool = True):
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts, desired_input_layouts=desired_input_layouts, input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts, use_local_output=use_local_input)
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts, desired_output_layouts=desired_output_layouts, use_local_output=use_local_output)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self):
        return f"PrepareModuleInputOutput({self.prepare_module_input!r}, {self.prepare_module_output!r})"
