"""tt.capture: a step that is asked for again without its Python.

While a step runs, the ops that it asks for are recorded (client/recording.h). What they take is looked up where it comes from:
an argument, the storage of a tensor that lives between steps (a parameter, an optimizer's state), a number with a known origin.
When two calls in a row say the same ops about the same things, the second recording is a program: from then on a call hands it
the arguments and what the storages hold, and binds these, the gradients and what is returned to the new results.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError
from . import _recorder
from ._cell import Cell, Unfilled
from ._device import default_generator
from ._dtypes import CODES
from ._placing import full_like
from ._tensor import Tensor, handle_of, wrap

MAX_PROGRAMS = 8            # docs/limits.md: max_captured_programs
MAX_DIFFERENCES = 3         # docs/limits.md: max_capture_differences
_HERE = tuple(os.path.dirname(os.path.abspath(one)) + os.sep for one in (os.path.dirname(__file__), torch.__file__))


def _user_line() -> str:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Recorder:
    """One run of a step: its ops, where each was asked for, and the numbers that are read anew."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.recording = _tessera.Recording()
        self.lines: list = []
        self.numbers: list = []         # of all calls
        self.callers: list = []         # of each number the number of its call
        self.pending: list = []         # (value, key, read): of the next calls
        self.readings: dict = {}        # by number: (key, read)
        self.groups: dict = {}          # by parameter: its group of an optimizer
        self.read_of: set = set()       # (group, name): read anew, so no part of what has to stay
        self.starts: dict = {}          # by generator: the number of its next call when the step began

    def see(self, numbers: list) -> None:
        self.lines.append(_user_line())
        for one in numbers:
            if self.pending and one == self.pending[0][0]:
                self.readings[len(self.numbers)] = self.pending.pop(0)[1:]
            self.numbers.append(one)
            self.callers.append(len(self.lines) - 1)

    def line_of(self, number: int) -> str:
        return self.lines[self.callers[number]]

    def see_optimizer(self, optimizer, args, kwargs) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.groups[id(parameter)] = group

    def next_call(self, generator, seed: int, number: int) -> None:
        start = self.starts.setdefault(id(generator), (generator, number))[1]
        self.pending.append((seed, ("seed", id(generator)), lambda: generator.initial_seed() & (2**63 - 1)))
        self.pending.append((number, ("call", id(generator), number - start), (generator, number - start)))

    def __enter__(self):
        self.starts[id(default_generator)] = (default_generator, default_generator.get_offset())
        self.recording.begin(self.see)      # refused within another one, which leaves nothing behind
        self.hook = register_optimizer_step_pre_hook(self.see_optimizer)
        _recorder.current = self
        return self

    def __exit__(self, *exc):
        _recorder.current = None
        self.recording.end()
        self.hook.remove()
        self.advances = [(generator, generator.get_offset() - start) for generator, start in self.starts.values()]


def _living():
    """Cells by session and number of their handle, and leaves that may have a gradient."""
    cells: dict = {}
    leaves = []
    for one in gc.get_objects():
        if type(one) is Cell:
            if one.handle is not None:
                cells.setdefault(_name_of(one.handle), []).append(one)
        elif type(one) is Tensor and one.requires_grad and one.is_leaf:
            leaves.append(one)
    return cells, leaves


def _modes(taken: set) -> list:
    """(weak reference, whether it trains) of modules that have one of these cells, of those that hold such modules, and of all that these hold."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    owners = {id(one) for one in modules for tensor in (*one._parameters.values(), *one._buffers.values())
              if isinstance(tensor, Tensor) and id(tensor._cell) in taken}
    met: dict = {}
    for one in modules:
        held = list(one.modules())
        if any(id(part) in owners for part in held):
            met.update((id(part), (weakref.ref(part), part.training)) for part in held)
    return list(met.values())


def _name_of(handle) -> tuple:
    return handle._session_key, handle._handle


def _forget_derived() -> None:
    """Forgets results that are remembered of values, so that each step asks for them alike."""
    for one in gc.get_objects():
        if type(one) is Cell:
            one.row_sum = None
            if one.handle is None and type(one.load) is Unfilled:   # its zeros would be made in each step
                one.get()
        elif type(one) is Tensor and one._view is not None:
            one._seen = (-1, None)


def _settings(groups) -> list:
    return [(group, name, value) for group in groups for name, value in group.items() if name != "params"]


class _Program:
    """A recording, and where what it takes comes from and goes to."""

    def __init__(self, leaves, tree, gradients_before):
        self.leaves = [self._shown(one) for one in leaves]
        self.tree = tree
        self.modes: list = []               # [(weak reference to a module, whether it trains)]
        self.before = gradients_before      # [(leaf, whether it has a gradient)], of all there are; later of those it takes

    @staticmethod
    def _shown(leaf):
        """The part of an argument that must be the same: none of a float."""
        if isinstance(leaf, Tensor):
            return (Tensor, leaf.requires_grad, handle_of(leaf)._spec)
        return (float,) if type(leaf) is float else (type(leaf), leaf)

    def matches(self, leaves, tree) -> bool:
        """Whether it was recorded with arguments of these kinds, and all else is as it was."""
        if tree != self.tree or len(leaves) != len(self.leaves):
            return False
        for leaf, shown in zip(leaves, self.leaves):
            if not (type(leaf) is shown[0] or isinstance(leaf, shown[0])) or self._shown(leaf) != shown:
                return False
        return self.is_as_it_was()

    def is_as_it_was(self) -> bool:
        for group, name, value in self.settings:
            now = group.get(name)
            if now is not value and now != value:
                return False
        for leaf, had in self.before:
            if (leaf.grad is not None) != had:
                return False
        for module, trains in self.modes:
            one = module()
            if one is not None and one.training != trains:
                return False
        return True

    def fill(self, recorder, leaves, cells, gradients, out) -> str | None:
        """Takes the recorder after the step; cells: those before it. Gives the cause why it can't be repeated, if there is one."""
        recording = self.recording = recorder.recording
        self.recorder = recorder
        groups = {id(group): group for group in recorder.groups.values()}.values()
        self.settings = [one for one in _settings(groups) if (id(one[0]), one[1]) not in recorder.read_of]
        self.advances = recorder.advances
        self.readings = sorted((i, key, read) for i, (key, read) in recorder.readings.items())
        arguments = {name: i for i, name in reversed(list(enumerate(self.arguments))) if name is not None}
        self.sources = []
        for i, name in enumerate(recording.inputs):
            if name in arguments:
                self.sources.append(arguments[name])
            elif name in cells:
                self.sources.append(cells[name][0])
            else:
                constant = recording.constant(i)
                if constant is None:
                    return "it takes a tensor that is there no more"
                self.sources.append(constant)
        after, _ = _living()
        flat, self.out_tree = _pytree.tree_flatten(out)
        kept = {name: value for value, name in recording.kept}
        returned = {id(one._cell) for one in flat if isinstance(one, Tensor)}
        old = {id(one) for several in cells.values() for one in several}
        argument_cells = {id(one._cell): i for i, one in enumerate(leaves) if isinstance(one, Tensor)}
        wanted: list = []

        def number_of(name):
            value = kept[name]
            if value not in wanted:
                wanted.append(value)
            return wanted.index(value)

        self.out = [(number_of(_name_of(handle_of(one))) if _name_of(handle_of(one)) in kept else None,
                     one.detach() if isinstance(one, Tensor) else one) if isinstance(one, Tensor) else (None, one) for one in flat]
        self.rebinds = []       # (argument, or weak reference to a cell; number of the result)
        self.gradients = []     # (leaf, its gradient)
        for leaf, had in gradients:
            if leaf.grad is not had:
                self.gradients.append((leaf, leaf.grad))
        for name in kept:
            for cell in after.get(name, ()):
                if id(cell) in argument_cells:
                    self.rebinds.append((argument_cells[id(cell)], number_of(name)))
                elif id(cell) in old or id(cell) not in returned:
                    self.rebinds.append((weakref.ref(cell), number_of(name)))
        recording.keep(wanted)
        bound = {one if isinstance(one, int) else id(one()) for one, _ in self.rebinds}
        self.given_up = [(one in bound) if isinstance(one, int) else id(one) in bound for one in self.sources]
        taken = {id(one) for one in self.sources if isinstance(one, Cell)}
        taken |= {id(one) for several in cells.values() for one in several if id(one) in bound}
        self.modes = _modes(taken)
        self.before = [(leaf, had is not None) for leaf, had in gradients if id(leaf._cell) in taken]
        return None

    def difference(self, other) -> tuple | None:
        """(call, text) where another recording of the same arguments says something else."""
        found = self.recording.difference(other.recording)
        if found is not None:
            return found
        for i, (mine, others) in enumerate(zip(self.sources, other.sources)):
            is_same = mine == others if isinstance(mine, int) else (
                mine is others if isinstance(mine, Cell) else isinstance(others, _tessera.Tensor) and _name_of(mine) == _name_of(others))
            if not is_same:
                return (0, f"input {i} is a tensor that the call before made; what a step hands to the next one is kept in one "
                           "tensor, by x.copy_(...)")
        if [(i, key) for i, key, _ in self.readings] != [(i, key) for i, key, _ in other.readings]:
            return (0, "numbers of other optimizers or generators are read")
        if [one[0] for one in self.out] != [one[0] for one in other.out] or len(self.rebinds) != len(other.rebinds):
            return (max(0, self.recording.call_count - 1), "other results are kept")
        return None

    def differing_number(self, other) -> int | None:
        read = {i for i, _, _ in self.readings}
        for i, (mine, others) in enumerate(zip(self.recorder.numbers, other.recorder.numbers)):
            if i not in read and mine != others and (mine == mine or others == others):
                return i
        return None

    def run(self, leaves):
        starts = {id(generator): generator.get_offset() for generator, _ in self.advances}
        numbers = []
        for i, key, read in self.readings:
            kind = key[0]
            if kind == "argument":
                numbers.append((i, leaves[read]))
            elif kind == "call":
                numbers.append((i, starts[id(read[0])] + read[1]))
            else:
                numbers.append((i, read()))
        cells = [(leaves[cell]._cell if isinstance(cell, int) else cell(), result) for cell, result in self.rebinds]
        results = self.recording.replay([self._value(one, leaves) for one in self.sources], self.given_up, numbers,
                                        [one for one in cells if one[0] is not None])
        if results is None:
            return NotImplemented
        for leaf, gradient in self.gradients:
            leaf.grad = gradient
        for generator, count in self.advances:
            if count:
                generator.set_offset(starts[id(generator)] + count)
        return _pytree.tree_unflatten([one if result is None else wrap(results[result]) for result, one in self.out], self.out_tree)

    @staticmethod
    def _value(source, leaves):
        if isinstance(source, int):
            return handle_of(leaves[source])
        return source.get() if type(source) is Cell else source


class Captured:
    """A captured step; see capture."""

    def __init__(self, step):
        functools.update_wrapper(self, step)
        self._step = step
        self._programs: list = []       # the one that ran last is first
        self._candidate = None
        self._differences = 0
        self.replays = 0

    def __call__(self, *args, **kwargs):
        if _tessera.is_blocking():      # each op is to fail at its line, and a replay has none
            return self._step(*args, **kwargs)
        leaves, tree = _pytree.tree_flatten((args, kwargs))
        for i, program in enumerate(self._programs):
            if program.matches(leaves, tree):
                if i:
                    self._programs.insert(0, self._programs.pop(i))
                found = program.run(leaves)
                if found is NotImplemented:     # a storage that it takes has another dtype, shape or placement by now
                    break
                self.replays += 1
                return found
        return self._record(leaves, tree)

    def _record(self, leaves, tree):
        for one in leaves:
            if isinstance(one, torch.Tensor) and not isinstance(one, Tensor):
                raise InvalidArgumentError(f"capture: an argument is {str(one.dtype)[6:]}{list(one.shape)} on {one.device}, whose values "
                                           "would be those of this call for ever; tt.distribute_tensor brings it to the workers")
        _forget_derived()
        handles = [handle_of(one) if isinstance(one, Tensor) else None for one in leaves]
        cells, parameters = _living()
        gradients = [(one, one.grad) for one in parameters]
        program = _Program(leaves, tree, gradients)
        program.arguments = [None if one is None else _name_of(one) for one in handles]
        beside = next((one for one in handles if one is not None), None)
        del handles
        with _Recorder() as recorder:
            given = [self._number(i, one, beside, recorder) if type(one) is float else one for i, one in enumerate(leaves)]
            args, kwargs = _pytree.tree_unflatten(given, tree)
            out = self._step(*args, **kwargs)
        del given, args, kwargs, beside
        out = _pytree.tree_map_only(Tensor, lambda one: one.detach(), out)
        if recorder.recording.call_count == 0:
            raise FailedPreconditionError("capture: the step asks for no op")
        wrong = program.fill(recorder, leaves, cells, gradients, out)
        self._consider(program, leaves, tree, wrong)
        return out

    @staticmethod
    def _number(i, value, beside, recorder):
        """A float among the arguments is a tensor without dims that each call fills anew."""
        if beside is None:
            raise InvalidArgumentError(f"capture: the number {value} is an argument, but no tensor is, beside which it would lie")
        recorder.pending.append((value, ("argument", i), i))
        return wrap(full_like(beside, (), CODES[torch.get_default_dtype()], value))

    def _consider(self, program, leaves, tree, wrong) -> None:
        before, self._candidate = self._candidate, program
        if wrong is not None:
            self._refuse(program, 0, wrong)
            return
        if before is None or before.leaves != program.leaves or before.tree != tree or not hasattr(before, "sources"):
            self._differences = 0
            return
        if {id(one()): trains for one, trains in before.modes} != {id(one()): trains for one, trains in program.modes}:
            return
        if [one[1:] for one in before.settings] != [one[1:] for one in program.settings] or len(before.before) != len(program.before) or any(
                a[1] != b[1] for a, b in zip(before.before, program.before)):
            return
        found = before.difference(program)
        if found is not None:
            self._refuse(program, *found)
            return
        number = before.differing_number(program)
        if number is not None:
            self._candidate = None
            raise FailedPreconditionError(
                f"capture: at {program.recorder.line_of(number)} a number is {before.recorder.numbers[number]!r} in one call and "
                f"{program.recorder.numbers[number]!r} in the next; nothing says where it comes from, so that it could be read anew: make "
                "it an argument of the step (a float), or take a fused optimizer, whose step is counted on the workers")
        self._differences = 0
        self._candidate = None
        self._programs.insert(0, program)
        del self._programs[MAX_PROGRAMS:]

    def _refuse(self, program, call: int, text: str) -> None:
        """A first step may make what later ones take; one that says something else again and again can't be captured."""
        self._differences += 1
        if self._differences < MAX_DIFFERENCES:
            return
        self._differences = 0
        self._candidate = None
        lines = program.recorder.lines
        raise FailedPreconditionError(f"capture: the step says something else in each call, at {lines[min(call, len(lines) - 1)]}: {text}")


def capture(step) -> Captured:
    """A function that does what `step` does, and asks for it as one message once two calls have said the same ops.

    step takes tensors on the workers, numbers, and lists, tuples and dicts of them. Its first calls run as they are. Then its
    Python isn't run any more: its ops are asked for again, with the arguments of the call, the values that parameters and
    optimizers have by then, learning rates, and the numbers of random calls. What it returns has no graph. Losses have the bits
    that they would have without.

    A float among the arguments is a tensor without dims in the step, and may be another one in each call. A tensor of another
    dtype, shape or placement, another argument that is no float, another setting of an optimizer, or train() and eval() of a module
    whose parameters the step takes are captured beside.
    FailedPrecondition, at the line of the step: a value is read or brought (x.item(), `if x > 0`, a CPU tensor), a number or
    an op is another one in each call.

    >>> @tt.capture
    ... def step(x, labels):
    ...     loss = F.cross_entropy(model(x), labels)
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     return loss
    """
    return Captured(step)


capture.__module__ = Captured.__module__ = "tessera.torch"
