"""A graph of ops of ATen, as AOTAutograd makes it, that runs by rows: the first time op by op, then as one message.

The graph is pure: it takes tensors and gives tensors. So one run, recorded (client/recording.h), says all the others that take
tensors of the same dtype, shape and placements. Random calls have new numbers each time.
"""

from __future__ import annotations

import operator

import torch

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError
from . import _recorder, _table, _tensor
from ._capture import MAX_PROGRAMS, _name_of, _Recorder
from ._tensor import Tensor, handle_of, wrap, wrap_later
from ._dtypes import CODES
from ._device import default_generator

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_fused_attention_overrideable.default
# Their backward passes read, beside tensors, numbers that this process has of a random call.
_RANDOM_BACKWARD = (_ATTENTION, _aten._scaled_dot_product_fused_attention_overrideable_backward.default)


def compile_graph(graph_module, example_inputs):
    """The compiler of graphs that AOTAutograd asks for."""
    saved_from = _saved_from()
    is_repeatable = _is_repeatable(graph_module)
    graph = _new_graph(_by_rows(graph_module), is_repeatable, saved_from)

    def run(inputs: list):
        return graph(inputs)
    run._boxed_call = True
    run.graph = graph
    return run


def _saved_from() -> int | None:
    """The number of the first result of a forward graph that is for the backward pass alone."""
    context = torch._guards.TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    return None if metadata is None else metadata.num_forward_returns


def _by_rows(graph_module):
    """The graph's function, with rows in the place of ops of tensors of tessera."""
    made: dict = {}
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not _is_here(node):
            continue
        if node.target is _ATTENTION and _has_logarithms(node):
            node.kwargs = {**node.kwargs, "keeps": True}
        node.target = made.setdefault(node.target, _direct(node.target))
    graph_module.recompile()
    return graph_module.forward


def _has_logarithms(attention) -> bool:
    """Whether the graph takes an attention's logarithms, as one does that has a backward pass."""
    return any(user.target is operator.getitem and user.args[1] == 1 for user in attention.users)


def _is_here(node) -> bool:
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    flat = [part for one in values for part in (one if isinstance(one, (tuple, list)) else (one,))]
    return any(isinstance(one, torch.Tensor) and one.device.type == "tessera" for one in flat)


def _is_repeatable(graph_module) -> bool:
    for node in graph_module.graph.nodes:
        if node.op == "get_attr" or (node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)):
            return False
        if node.op == "call_function" and node.target in _RANDOM_BACKWARD:
            schema = node.target._schema.arguments
            at = next(i for i, one in enumerate(schema) if one.name == "dropout_p")
            if (node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)) != 0.0:
                return False
    return True


def _direct(func):
    """A row, as __torch_dispatch__ calls it."""
    if func in (_aten.view.default, _aten._unsafe_view.default):
        return _view
    try:
        row = func.tessera_row
    except AttributeError:
        row = _table.missing(func)

    def call(*args, **kwargs):
        if not any(type(one) is Tensor for one in args) and not _has_tensor(args, kwargs):
            return func(*args, **kwargs)
        try:
            return row(*args, **kwargs)
        except (InvalidArgumentError, AttributeError, TypeError) as error:
            return _tensor.again(func, row, args, kwargs, error)
    call.__name__ = func._schema.name.split("::")[1]
    return call


def _has_tensor(args, kwargs) -> bool:
    return any(isinstance(one, Tensor) for one in torch.utils._pytree.tree_leaves((args, kwargs)))


def _view(x, shape):
    """Fake tensors may have strides that let a view be, where those of the tensor don't; nobody writes to one in a graph."""
    if not isinstance(x, Tensor):
        return x.reshape(shape)
    try:
        return _table.run("view.default")(x, shape)
    except RuntimeError:
        return _table.run("view.default")(_table.run("clone.default")(x), shape)


class _Graph:
    """The compiled graph: takes a list of its inputs, which it empties, and gives its results."""

    def __init__(self, function, is_repeatable: bool, saved_from: int | None):
        self.function, self.saved_from = function, saved_from
        self.runs = 0
        self.replays = 0
        self.programs: list = []        # the one that ran last is first
        self.is_repeatable = is_repeatable

    def __call__(self, inputs: list):
        args = tuple(inputs)
        inputs.clear()
        self.runs += 1
        with torch._C._AutoDispatchBelowAutograd():
            if not self.is_repeatable or _recorder.current is not None or _tessera.is_blocking():
                return self.function(*args)
            for i, program in enumerate(self.programs):
                found = program.run(args)
                if found is not None:
                    if i:
                        self.programs.insert(0, self.programs.pop(i))
                    self.replays += 1
                    return found
            if self.runs == 1:
                return self.function(*args)
            return self._record(args)

    def _record(self, args):
        generator = _device_generator()
        offset = generator.get_offset()
        try:
            program = _Program(self, args)
            out = program.record(args)
        except FailedPreconditionError:         # it reads values
            self.is_repeatable = False
            generator.set_offset(offset)
            return self.function(*args)
        if program.is_whole:
            self.programs.insert(0, program)
            del self.programs[MAX_PROGRAMS:]
        return out


_new_graph = _Graph      # tests watch the graphs that are made


def _device_generator():
    return default_generator


class _Later:
    """The place of a result that is for the backward pass alone, and that no backward pass of a row reads."""

    __slots__ = ("shape", "code", "eps")

    def __init__(self, tensor):
        self.shape, self.code, self.eps = tuple(tensor.shape), CODES[tensor.dtype], tensor._cell.eps

    def make(self):
        out = wrap_later(self.shape, self.code, _refuse)
        out._cell.eps = self.eps
        return out


def _refuse():
    raise FailedPreconditionError("torch.compile: a tensor that a graph keeps for its backward pass alone is read; torch.compiler.disable() on "
                                  "the function that the graph is of runs it without")


class _Program:
    """One run of a graph, recorded."""

    def __init__(self, graph: _Graph, args):
        self.graph = graph
        self.others = [None if isinstance(one, Tensor) else _value(one) for one in args]
        self.is_whole = False

    def record(self, args):
        for one in args:
            if isinstance(one, Tensor):     # what is remembered of a value is asked for again
                one._cell.row_sum = None
        arguments: dict = {}
        for i, one in enumerate(args):
            if isinstance(one, Tensor):
                arguments.setdefault(_name_of(handle_of(one)), i)
        with _Recorder() as recorder:
            out = self.graph.function(*args)
            results = []
            for i, one in enumerate(out):
                is_saved = self.graph.saved_from is not None and i >= self.graph.saved_from
                if isinstance(one, Tensor) and is_saved and one._cell.handle is None:
                    results.append(_Later(one))
                else:
                    results.append(one if not isinstance(one, Tensor) else (_name_of(handle_of(one)), one._cell.eps))
        self._fill(recorder, arguments, results)
        return out

    def _fill(self, recorder, arguments, results) -> None:
        recording = self.recording = recorder.recording
        if recording.call_count == 0:
            return
        self.sources = [arguments.get(name) for name in recording.inputs]
        if None in self.sources:
            return
        kept = {name: value for value, name in recording.kept}
        wanted: list = []
        self.out = []
        for one in results:
            if not isinstance(one, tuple):
                if isinstance(one, torch.Tensor):
                    return      # a tensor of the CPU, whose values may be others in the next run
                self.out.append(one)
                continue
            name, eps = one
            if name in kept:
                if kept[name] not in wanted:
                    wanted.append(kept[name])
                self.out.append((True, wanted.index(kept[name]), eps))
            elif name in arguments:
                self.out.append((False, arguments[name], eps))
            else:
                return
        recording.keep(wanted)
        self.given_up = [False] * len(self.sources)
        self.advances = recorder.advances
        self.readings = sorted((i, key, read) for i, (key, read) in recorder.readings.items())
        self.is_whole = True

    def run(self, args):
        """The results of other arguments; None where these are of other kinds."""
        for one, other in zip(args, self.others):
            if (other is None) != isinstance(one, Tensor) or (other is not None and _value(one) != other):
                return None
        starts = {id(generator): generator.get_offset() for generator, _ in self.advances}
        numbers = [(i, starts[id(read[0])] + read[1] if key[0] == "call" else read()) for i, key, read in self.readings]
        handles = [handle_of(args[i]) for i in self.sources]
        found = self.recording.replay(handles, self.given_up, numbers, [])
        if found is None:
            return None
        for generator, count in self.advances:
            if count:
                generator.set_offset(starts[id(generator)] + count)
        return [self._result(one, found, args) for one in self.out]

    @staticmethod
    def _result(one, found, args):
        if isinstance(one, _Later):
            return one.make()
        if not isinstance(one, tuple):
            return one
        is_made, number, eps = one
        if not is_made:
            return _tensor.alias(args[number])
        out = wrap(found[number])
        out._cell.eps = eps
        return out


def _value(one):
    """The part that must be the same of an argument that is no tensor of tessera."""
    if isinstance(one, torch.Tensor):
        return (one.dtype, tuple(one.shape), one.tolist() if one.numel() < 64 else object())
    return (type(one), one)
