"""PipelineStage: a part of a model on workers of its own, and what runs one microbatch through it.

A stage's module is on a mesh of its own, as mesh[k] of a (pp, dp) mesh. Between two stages an activation is cut from autograd:
it is redistributed to the next stage's mesh and begins a graph there, and its gradient is redistributed back where the
activation lay. So each microbatch has a graph per stage, which its backward frees.
"""

from __future__ import annotations

import contextlib
import inspect

import torch
from torch import nn

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError
from .._mesh import DeviceMesh
from .._placements import Shard, fitting, kept, replicated
from .._catalog import OPS
from . import _gradients
from ._data_parallel import DistributedDataParallel
from ._moving import default_placement, distribute_module, distribute_tensor
from ._tensor import Tensor, handle_of, wrap

_MOVE = OPS["redistribute"]


class PipelineStage:
    """A part of a model, with torch.distributed.pipelining's name and signature where they mean something in one program.

    submodule: what runs as this stage; its parameters that are on the CPU are replicated on the stage's mesh, others (as of
    tensor parallelism, fully_shard, DistributedDataParallel on that mesh) stay as they are. stage_index: from 0;
    num_stages: of the whole pipeline. device: the mesh of the stage. group: instead of it the dim of a mesh along which stages
    lie, as mesh["pp"]; stage k is on its coordinate k modulo that dim's size, so that with interleaved schedules several
    stages are on one. input_placements: how CPU microbatches and targets come to the mesh; default Shard(0) on the dim of
    fully_shard or DistributedDataParallel where the submodule has them, else Replicate.

    InvalidArgumentError: an index that is not below num_stages, neither or both of device and group, a parameter that is on
    another mesh, or that another stage has too.

    >>> stages = [tt.PipelineStage(part, k, 2, group=mesh["pp"]) for k, part in enumerate(parts)]
    """

    def __init__(self, submodule: nn.Module, stage_index: int, num_stages: int, device: DeviceMesh | None = None, *,
                 group: DeviceMesh | None = None, input_placements=None):
        op = "PipelineStage"
        if not isinstance(submodule, nn.Module):
            raise InvalidArgumentError(f"{op}: submodule is {type(submodule).__name__}, not a Module")
        if not 0 <= stage_index < num_stages:
            raise InvalidArgumentError(f"{op}: stage_index is {stage_index}, and num_stages {num_stages}")
        if (device is None) == (group is None):
            raise InvalidArgumentError(f"{op}: give device, the stage's mesh, or group, as mesh['pp']; here are device={device!r} and "
                                       f"group={group!r}")
        if group is not None:
            device = _slice_of(op, group, stage_index)
        if not isinstance(device, DeviceMesh):
            raise InvalidArgumentError(f"{op}: device is {device!r}, not a DeviceMesh")
        self.device = DeviceMesh._wrap(device._session, device._raw)
        self.stage_index, self.num_stages = stage_index, num_stages
        self.is_first, self.is_last = stage_index == 0, stage_index == num_stages - 1
        self.submod = self._brought(submodule)
        self._inputs = self._placements_of_inputs(input_placements)
        self._names = _accepted(submodule)

    def __repr__(self):
        return f"PipelineStage({self.stage_index} of {self.num_stages}, {type(self.submod).__name__} on {self.device})"

    # ---- places -------------------------------------------------------------------------------------

    def _brought(self, submodule: nn.Module) -> nn.Module:
        for name, parameter in submodule.named_parameters():
            is_there = isinstance(parameter, Tensor) and handle_of(parameter)._mesh.same(self.device._raw)
            other = getattr(parameter, "_pipeline_stage", self.stage_index)
            if is_there or not isinstance(parameter, Tensor) and other == self.stage_index:
                continue
            shared = f" is one of stage {other} too; a shared parameter is for modules of one stage. It" if other != self.stage_index else ""
            raise InvalidArgumentError(f"PipelineStage: the parameter {name!r} of stage {self.stage_index}{shared} is {parameter!r}, "
                                       f"and the stage's mesh is {self.device}")
        for parameter in submodule.parameters():
            parameter._pipeline_stage = self.stage_index
        return distribute_module(submodule, self.device)

    def _placements_of_inputs(self, placements) -> list:
        if placements is not None:
            return self.device._placements(placements, "PipelineStage")
        out = replicated(len(self.device._raw.shape))
        for module in self.submod.modules():
            if isinstance(module, DistributedDataParallel):
                out[0 if module.device_mesh._dims is None else module.device_mesh._dims[0]] = Shard(0)
            elif hasattr(module, "_fully_sharded"):
                for dim in (*module._fully_sharded.options.copied, *module._fully_sharded.options.dims):
                    out[dim] = Shard(0)
        return out

    def _fitting(self, ndim: int) -> list:
        return fitting(self._inputs, ndim)

    def place(self, value):
        """Tensors of a microbatch on the stage's mesh: CPU tensors by input_placements, those of other meshes as they lay."""
        if isinstance(value, Tensor):
            handle = handle_of(value)
            return value if handle._mesh.same(self.device._raw) else wrap(self._moved(handle))
        if isinstance(value, torch.Tensor):
            return distribute_tensor(value.detach(), self.device, self._fitting(value.ndim))
        return value

    def _moved(self, handle, placements=None):
        """A handle on this stage's mesh, with its own placements where the mesh has as many dims; pending sums are summed up."""
        if placements is None:
            own = list(handle._placements)
            placements = own if len(own) == len(self.device._raw.shape) else self._fitting(len(handle.shape))
        placements = kept(placements)
        return _tessera.call(_MOVE, (handle,), mesh=self.device._raw, placements=placements)

    def received(self, sent: tuple) -> tuple:
        """The outputs of the stage before as leaves on this stage's mesh."""
        out = []
        for one in sent:
            if isinstance(one, torch.Tensor):
                leaf = wrap(self._moved(handle_of(one)))
                one = leaf.requires_grad_() if one.requires_grad else leaf
            out.append(one)
        return tuple(out)

    # ---- running ---------------------------------------------------------------------------------------

    def forward_one(self, args: tuple, kwargs: dict) -> tuple:
        """The outputs of a microbatch, as a tuple. What forward makes with device="tessera" is on the stage's mesh."""
        with default_placement(self.device):
            out = self.submod(*args, **kwargs)
        out = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        for i, one in enumerate(out):
            if isinstance(one, torch.Tensor) and not isinstance(one, Tensor):
                raise FailedPreconditionError(f"PipelineStage: output {i} of stage {self.stage_index} is a CPU tensor {tuple(one.shape)}; "
                                              "a stage's outputs are on its mesh")
        return out

    def backward_one(self, outputs: tuple, gradients: tuple, is_last_microbatch: bool) -> None:
        """Adds a microbatch's gradients to the parameters and to its inputs. They are reduced with the last one's."""
        pairs = []
        for one, gradient in zip(outputs, gradients):
            if isinstance(one, torch.Tensor) and one.requires_grad and (gradient is not None or one.ndim == 0):
                if gradient is not None:
                    source = handle_of(gradient)
                    own = list(handle_of(one)._placements)
                    if not source._mesh.same(self.device._raw):
                        gradient = wrap(self._moved(source, own))
                pairs.append((one, gradient))
        if pairs:
            with default_placement(self.device), contextlib.nullcontext() if is_last_microbatch else _gradients.no_sync():
                torch.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])


def _slice_of(op: str, group, stage_index: int) -> DeviceMesh:
    if not isinstance(group, DeviceMesh) or group.ndim != 1:
        raise InvalidArgumentError(f"{op}: group is {group!r}; it takes one dim of a mesh, as mesh['pp']")
    dim = 0 if group._dims is None else group._dims[0]
    whole = DeviceMesh._wrap(group._session, group._raw)
    return whole[(*[slice(None)] * dim, stage_index % group.size())]


def _accepted(module: nn.Module):
    """The names of keyword arguments that a module's forward takes; None: all."""
    if isinstance(module, DistributedDataParallel):
        module = module.module
    parameters = inspect.signature(module.forward).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return None
    return {one.name for one in parameters if one.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)}


PipelineStage.__module__ = "tessera.torch"
