"""Schedules of pipelines: the order in which one program asks for the microbatches' forwards and backwards.

A schedule gives each *rank*, the stages of one mesh, an order of its actions; `order` is one order of all that keeps these and
what they wait for. The program asks in that order and waits for nothing, so meshes of different workers compute side by side,
each in its own order. What a stage keeps of a microbatch, from its forward to its backward, follows from the order alone.
"""

from __future__ import annotations

import typing

import torch

from .._errors import FailedPreconditionError, InvalidArgumentError
from ._moving import default_placement
from ._pipeline import PipelineStage


class Action(typing.NamedTuple):
    """The forward ("F") or backward ("B") of a microbatch in a stage."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"


def gpipe(stages: int, microbatches: int) -> list[list[Action]]:
    """By stage: all forwards, then all backwards."""
    return [[Action(kind, k, m) for kind in "FB" for m in range(microbatches)] for k in range(stages)]


def one_forward_one_backward(stages: int, microbatches: int) -> list[list[Action]]:
    """By stage: as many forwards as there are stages from it on, then a backward before each further forward."""
    out = []
    for k in range(stages):
        ahead = min(stages - k, microbatches)
        actions = [Action("F", k, m) for m in range(ahead)]
        for m in range(ahead, microbatches):
            actions += [Action("B", k, m - ahead), Action("F", k, m)]
        out.append(actions + [Action("B", k, m) for m in range(microbatches - ahead, microbatches)])
    return out


def interleaved(stages: int, ranks: int, microbatches: int) -> list[list[Action]]:
    """By rank, which has stages r, r + ranks, ...: Megatron's order (Narayanan and others, 2021, "Efficient Large-Scale
    Language Model Training on GPU Clusters"), with rounds of microbatches as torch has them."""
    local = stages // ranks
    each = microbatches // max(1, microbatches // ranks)     # microbatches of a round
    out = []
    for rank in range(ranks):
        forwards = [Action("F", rank + ranks * c, m) for first in range(0, microbatches, each) for c in range(local)
                    for m in range(first, first + each)]
        backwards = [Action("B", rank + ranks * c, m) for first in range(0, microbatches, each) for c in reversed(range(local))
                     for m in range(first, first + each)]
        ahead = min((local - 1) * each + 2 * (ranks - 1 - rank), len(forwards))
        actions = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards):
            actions += [forward, backward]
        out.append(actions + backwards[len(forwards) - ahead:])
    return out


def merged(ranks: list[list[Action]], stages: int) -> list[Action]:
    """One order that keeps each rank's and in which every action comes after what it needs: a forward after that of the stage
    before, a backward after that of the stage behind, each rank taking one action a turn if it can."""
    at, done, out = [0] * len(ranks), set(), []
    total = sum(len(actions) for actions in ranks)
    while len(out) < total:
        turn = []
        for rank, actions in enumerate(ranks):
            if at[rank] == len(actions):
                continue
            kind, stage, microbatch = action = actions[at[rank]]
            last = stage == stages - 1
            if kind == "B":
                need = Action("F", stage, microbatch) if last else Action("B", stage + 1, microbatch)
            else:
                need = Action("F", stage - 1, microbatch)
            if kind == "F" and stage == 0 or need in done:
                turn.append(action)
                at[rank] += 1
        if not turn:
            raise FailedPreconditionError(f"schedule: the orders {ranks} wait for each other")
        done.update(turn)
        out += turn
    return out


class _Schedule:
    """The parts that the schedules share: the microbatches of a batch, and one step by the order."""

    def __init__(self, stages, n_microbatches: int, loss_fn=None, args_chunk_spec=None, kwargs_chunk_spec=None,
                 output_merge_spec=None, scale_grads: bool = True):
        self._op = type(self).__name__
        self._stages = self._checked(stages)
        if not isinstance(n_microbatches, int) or n_microbatches < 1:
            raise InvalidArgumentError(f"{self._op}: n_microbatches is {n_microbatches!r}, not a number above 0")
        self._count = n_microbatches
        self._loss_fn, self._scale_grads = loss_fn, scale_grads
        self._args_spec, self._kwargs_spec, self._merge_spec = args_chunk_spec, kwargs_chunk_spec, output_merge_spec
        self.ranks = self._ranks()
        self.order = merged(self.ranks, len(self._stages))

    def _ranks(self) -> list[list[Action]]:
        raise NotImplementedError

    def _checked(self, stages) -> list[PipelineStage]:
        stages = list(stages) if isinstance(stages, (list, tuple)) else [stages]
        if not stages or not all(isinstance(one, PipelineStage) for one in stages):
            raise InvalidArgumentError(f"{self._op}: stages are {stages!r}; it takes all PipelineStages of the pipeline")
        stages.sort(key=lambda one: one.stage_index)
        found, wanted = [one.stage_index for one in stages], stages[0].num_stages
        if found != list(range(wanted)) or any(one.num_stages != wanted for one in stages):
            raise InvalidArgumentError(f"{self._op}: the stages are {found} of {[one.num_stages for one in stages]}; one program has all of "
                                       f"them, 0 to {wanted - 1}")
        if len({one.device._session._key for one in stages}) > 1:
            raise InvalidArgumentError(f"{self._op}: the stages' meshes are of several sessions")
        return stages

    # ---- microbatches -----------------------------------------------------------------------------------

    def _chunks(self, what: str, value, spec) -> list:
        """The parts of one argument. spec: a dim (or torch's TensorChunkSpec) to cut a tensor along; "replicate": each has all."""
        if not isinstance(value, torch.Tensor) or spec == "replicate" or type(spec).__name__ == "_Replicate":
            return [value] * self._count
        dim = getattr(spec, "split_dim", spec)
        if not isinstance(dim, int) or not -value.ndim <= dim < value.ndim:
            raise InvalidArgumentError(f"{self._op}: {what} of shape {tuple(value.shape)} can't be cut along dim {dim!r} into "
                                       "microbatches")
        if value.shape[dim] % self._count:
            raise InvalidArgumentError(f"{self._op}: {what} has {value.shape[dim]} rows in dim {dim}, which {self._count} microbatches "
                                       "don't divide")
        size = value.shape[dim] // self._count
        return [value.narrow(dim, i * size, size) for i in range(self._count)]

    def _split(self, args: tuple, kwargs: dict, target):
        """By microbatch: positional arguments, keyword arguments, targets."""
        specs = self._args_spec if self._args_spec is not None else (0,) * len(args)
        if len(specs) != len(args):
            raise InvalidArgumentError(f"{self._op}: args_chunk_spec has {len(specs)} entries for {len(args)} arguments")
        parts = [self._chunks(f"argument {i}", one, spec) for i, (one, spec) in enumerate(zip(args, specs))]
        named = {name: self._chunks(f"argument {name!r}", one, (self._kwargs_spec or {}).get(name, 0)) for name, one in kwargs.items()}
        for name in kwargs:
            if not any(stage._names is None or name in stage._names for stage in self._stages):
                raise InvalidArgumentError(f"{self._op}: no stage's forward takes {name!r}")
        targets = self._chunks("target", target, 0)
        numbers = range(self._count)
        return [tuple(one[m] for one in parts) for m in numbers], [{k: one[m] for k, one in named.items()} for m in numbers], targets

    # ---- running ------------------------------------------------------------------------------------------

    def step(self, *args, target=None, losses: list | None = None, return_outputs: bool = True, **kwargs):
        """Runs a batch forward and backward, and adds up gradients; returns the last stage's outputs, detached, or None.

        args: of the first stage's forward; tensors are cut along dim 0 (or by args_chunk_spec) into microbatches. CPU
        tensors are cut before they are brought to the mesh, and cost nothing there; tensors on tessera are cut there.
        kwargs: those that a stage's forward takes by name go to it. target: for loss_fn(output, target). losses: its items
        become the microbatches' losses. With scale_grads the gradients are of the losses' mean, as of the whole batch,
        and those that were there before stay as they are. Waits for nothing.
        """
        if self._loss_fn is None:
            raise FailedPreconditionError(f"{self._op}: step needs loss_fn; eval runs forward alone")
        return self._run(self.order, args, kwargs, target, losses, return_outputs)

    def eval(self, *args, target=None, losses: list | None = None, return_outputs: bool = True, **kwargs):
        """Runs a batch forward, without gradients; arguments and result are step's. With target and loss_fn, losses too."""
        with torch.no_grad():
            forwards = [action for action in self.order if action.kind == "F"]
            return self._run(forwards, args, kwargs, target, losses, return_outputs)

    def _run(self, order, args, kwargs, target, losses, return_outputs):
        arguments, named, targets = self._split(args, kwargs, target)
        scale = 1 / self._count if self._scale_grads else 1.0
        step = _Step(self._stages, self._loss_fn, scale, self._count, target is not None, return_outputs)
        for action in order:
            if action.kind == "F":
                step.forward(action.stage, action.microbatch, arguments, named, targets)
            else:
                step.backward(action.stage, action.microbatch)
        if losses is not None:
            losses[:] = [step.losses[m] for m in sorted(step.losses)]
        return self._merged(step.results) if return_outputs else None

    def _merged(self, results: dict):
        rows = [results[m] for m in range(self._count)]
        specs = self._merge_spec if isinstance(self._merge_spec, (tuple, list)) else [self._merge_spec] * len(rows[0])
        out = []
        for spec, parts in zip(specs, zip(*rows)):
            if not isinstance(parts[0], torch.Tensor):
                out.append(parts[0])
            elif parts[0].ndim == 0:
                out.append(torch.stack(parts))
            else:
                out.append(torch.cat(parts, 0 if spec is None else getattr(spec, "split_dim", spec)))
        return out[0] if len(out) == 1 else tuple(out)


class _Step:
    """The inputs and outputs of each stage and microbatch, from its forward to its backward."""

    def __init__(self, stages, loss_fn, scale: float, count: int, has_target: bool, keeps_results: bool):
        self.stages, self.loss_fn, self.scale, self.has_target, self.keeps_results = stages, loss_fn, scale, has_target, keeps_results
        self.inputs, self.outputs, self.sent, self.losses, self.results = {}, {}, {}, {}, {}
        self.gradients: dict = {}       # of a stage's outputs, from the stage behind
        self.left = [count] * len(stages)

    def forward(self, k: int, m: int, arguments, named, targets) -> None:
        stage = self.stages[k]
        if stage.is_first:
            args = tuple(stage.place(one) for one in arguments[m])
        else:
            args = stage.received(self.sent.pop((k - 1, m)))
        kwargs = {name: stage.place(one) for name, one in named[m].items() if stage._names is None or name in stage._names}
        out = stage.forward_one(args, kwargs)
        if stage.is_last:
            if self.keeps_results:
                self.results[m] = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in out)
            if self.loss_fn is not None and (self.has_target or torch.is_grad_enabled()):
                with default_placement(stage.device):
                    loss = self.loss_fn(out[0] if len(out) == 1 else out, stage.place(targets[m]))
                self.losses[m] = loss.detach()
                out = (loss if self.scale == 1 else loss * self.scale,)
        else:
            self.sent[k, m] = out
        if torch.is_grad_enabled():
            self.inputs[k, m], self.outputs[k, m] = args, out

    def backward(self, k: int, m: int) -> None:
        stage = self.stages[k]
        inputs, outputs = self.inputs.pop((k, m)), self.outputs.pop((k, m))
        gradients = (None,) * len(outputs) if stage.is_last else self.gradients.pop((k, m))
        self.left[k] -= 1
        stage.backward_one(outputs, gradients, self.left[k] == 0)
        if not stage.is_first:
            self.gradients[k - 1, m] = tuple(one.grad if isinstance(one, torch.Tensor) else None for one in inputs)


class ScheduleGPipe(_Schedule):
    """All microbatches forward, then all backward: each stage keeps all n_microbatches' activations.

    stages: all PipelineStages of the pipeline (torch's takes this rank's; here one program has them all). n_microbatches: the
    parts of a batch. loss_fn(output, target): gives a number per microbatch, a mean for the gradients of the whole batch.
    args_chunk_spec, kwargs_chunk_spec: by argument the dim to cut along, torch's TensorChunkSpec, or "replicate"; default 0.
    output_merge_spec: the dims to put outputs together along; default 0. scale_grads: gradients are divided by n_microbatches.
    `order` is the order of all actions, `ranks` each mesh's.

    >>> schedule = tt.ScheduleGPipe(stages, 8, torch.nn.functional.cross_entropy)
    >>> losses = []
    >>> schedule.step(images, target=labels, losses=losses)
    >>> optimizer.step()
    """

    def _ranks(self):
        return gpipe(len(self._stages), self._count)


class Schedule1F1B(_Schedule):
    """One forward, one backward: stage k of K keeps at most K - k microbatches' activations, however many there are.

    Arguments are ScheduleGPipe's.

    >>> schedule = tt.Schedule1F1B(stages, 8, torch.nn.functional.cross_entropy)
    """

    def _ranks(self):
        return one_forward_one_backward(len(self._stages), self._count)


class ScheduleInterleaved1F1B(_Schedule):
    """1F1B where each mesh has several stages: stage k is on mesh k modulo the number of meshes, so that a mesh waits for the
    others a fraction of the time. With P meshes of V stages and rounds of P microbatches, mesh r keeps at most
    (V - 1) P + 2 (P - 1 - r) + 1 activations of stages. Arguments are ScheduleGPipe's.

    InvalidArgumentError: stages that don't go around the meshes in this way, or microbatches that are no multiple of the
    rounds (of as many microbatches as there are meshes, or some more).

    >>> stages = [tt.PipelineStage(part, k, 4, group=mesh["pp"]) for k, part in enumerate(parts)]     # pp has 2 coordinates
    >>> schedule = tt.ScheduleInterleaved1F1B(stages, 8, torch.nn.functional.cross_entropy)
    """

    def _ranks(self):
        meshes = [one.device for one in self._stages]
        count = len(set(meshes))
        if any(mesh != meshes[k % count] for k, mesh in enumerate(meshes)) or len(meshes) % count:
            raise InvalidArgumentError(f"{self._op}: stage k is on mesh k modulo {count}; here {len(meshes)} stages are on {meshes}")
        if self._count % max(1, self._count // count):
            raise InvalidArgumentError(f"{self._op}: {self._count} microbatches are not a multiple of {self._count // count}, the rounds on "
                                       f"{count} meshes")
        return interleaved(len(self._stages), count, self._count)


for _class in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
    _class.__module__ = "tessera.torch"
