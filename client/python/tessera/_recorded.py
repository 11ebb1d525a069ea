"""Functions that are made of many ops, asked for as one.

The first call with arguments of some kind (specs of tensors, which of them are the same, all other values) runs as it is, and its ops are
written down (client/recording.h, lenient). From the second such call on the function's Python isn't run: one call of the catalog's row
`graph` says the same ops (schemas/ops/graph_text.h).

    @recorded
    def logit(p):
        return log(p / (1 - p))      # three ops; logit(p) is one record when p has a spec for the second time

Law: a recorded call has the values, dtypes, placements and errors of the function itself. Functions that read values, draw random numbers,
write to their arguments, or give a view of one run as they are each time; so does all that is called within a capture, within
explain(), where each op is waited for, and where what moves by itself is told or forbidden.
"""

from __future__ import annotations

import functools
from collections import OrderedDict

import numpy as np

import _tessera
from ._errors import InvalidArgumentError, TesseraError
from ._mesh import DeviceMesh
from ._placements import Partial, Replicate, Shard
from ._session import mesh_for

# The public functions, also of linalg and fft, that are recorded: those that ask for more than two ops.
OF_MANY_OPS = frozenset("""
    adaptive_avg_pool2d append array_equal array_equiv average bartlett bitwise_count blackman block cho_solve choose column_stack cond
    convolve corrcoef correlate cov cummax cummin cumulative_prod cumulative_sum delete diag diagflat digitize divmod dstack ediff1d fftfreq
    fftshift frexp geomspace gradient hamming hanning histogram histogram2d histogramdd hstack i0 ifftshift in1d indices insert interp
    isclose iscomplex isin kaiser ldexp lexsort linspace logaddexp2 logspace lu matrix_rank matvec median meshgrid modf multi_dot nancumprod
    nancumsum nanmedian nanpercentile nanquantile norm packbits pad percentile pinv poly polyadd polyder polyfit polyint polymul polysub
    polyval quantile ravel_multi_index resize rfftfreq rot90 select sort_complex spacing tensorinv tensorsolve topk trapezoid unpackbits
    unravel_index unwrap vander vdot vecmat vstack
""".split())

MAX_GRAPHS = 32             # docs/limits.md: max_graphs
MAX_TRIES = 3
MAX_ARRAY_BYTES = 2048      # of an argument that isn't a tensor
_ENOUGH_OPS = 3             # fewer are asked for as they are
_PLAIN = (type(None), bool, int, str, bytes, np.dtype, type(Ellipsis))
_READ_ONLY_STEPS = ("broadcast_to", "diagonal", "real", "imag")


class _Unknown(Exception):
    """A value that says nothing of what a function does with it, as a function, or an array that is large."""


def _shown(value, tensors: list, kinds):
    """What a function is known by of an argument; its tensors are added to the list."""
    kind = type(value)
    if kind is kinds.tensor:
        tensors.append(value)
        return kinds.note(value)
    if kind in _PLAIN or kind in kinds.values:
        return (kind, value)
    if kind is float:
        return (kind, value.hex())
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if kind is tuple or kind is list:
        return (kind, *[(bool, one) if one is True or one is False else _shown(one, tensors, kinds) for one in value])
    if kind is dict:
        return (kind, *[(name, _shown(one, tensors, kinds)) for name, one in value.items()]) if value else kind
    if kind is slice:
        return (kind, *[_shown(one, tensors, kinds) for one in (value.start, value.stop, value.step)])
    if isinstance(value, np.generic) or kind is np.ndarray and value.nbytes <= MAX_ARRAY_BYTES and value.dtype.kind in "biufc":
        return (kind, value.dtype.str, value.shape, value.tobytes())
    if kind is DeviceMesh:      # which would keep its session
        return (kind, value._raw.text, value._dims)
    if isinstance(value, type):
        return (kind, value)
    raise _Unknown


class Kinds:
    """How a package's tensors and handles belong together.

    values: types whose equal objects mean the same. identity: the same for tensors that are written together. note: what matters of a
    tensor beside its handle. settings: what functions read beside their arguments. is_result: whether wrap(handle) says all of a result.
    mesh_of: where a function without tensors makes them, or None."""

    tensor = _tessera.Tensor
    shares_handles = False      # whether a result may have the handle of an argument and is another tensor all the same
    values: tuple = (Shard, Replicate, Partial)

    def handle_of(self, tensor):
        return tensor

    def wrap(self, handle):
        return handle

    def identity(self, tensor) -> int:
        return id(tensor)

    def note(self, tensor):
        return None

    def settings(self):
        return None

    def mesh_of(self, kwargs: dict):
        given = kwargs.get("device_mesh")
        if given is not None or kwargs.get("device") is not None:
            return given if isinstance(given, DeviceMesh) else None
        try:
            return mesh_for(None, "recorded")
        except TesseraError:        # there is no session, or none that is open: the function says so
            return None

    def is_result(self, tensor) -> bool:
        return not any(name in _READ_ONLY_STEPS for name, _ in tensor._view_steps)


_ARRAYS = Kinds()


class _Graph:
    """What is known of a function's calls with arguments of one kind: a recording, then a graph; neither: it runs as it is."""

    __slots__ = ("recording", "sources", "out", "results", "given", "notation", "operands", "mesh", "tries", "why")

    def __init__(self):
        self.recording = self.notation = None
        self.tries, self.why = 0, "it has not run yet"

    def refuse(self, why: str, may_try_again: bool = False) -> None:
        self.recording, self.notation, self.why = None, None, why
        self.tries = self.tries + 1 if may_try_again else MAX_TRIES

    def fill(self, recording, arguments: dict, out, results: list, kinds) -> None:
        """arguments: numbers of the tensors by name; results: names of the results. A result may be an argument's value again."""
        if recording.spoiled:
            return self.refuse(recording.spoiled)
        if recording.call_count + len(recording.literals) < _ENOUGH_OPS:
            return self.refuse("it asks for no more than two ops")
        kept = {name: value for value, name in [*recording.kept, *recording.literals]}
        given = [arguments.get(name) for name in results]
        if any(name not in kept and (argument is None or not kinds.shares_handles) for name, argument in zip(results, given)):
            return self.refuse("a result is an argument, or is another one's")
        self.sources = [arguments.get(name) for name in recording.inputs]
        self.results = [kept[name] for name in results if name in kept]
        self.given = [(at, argument) for at, argument in enumerate(given) if results[at] not in kept]
        self.out, self.recording = out, recording
        return None

    def make(self) -> None:
        """The notation, of the recording."""
        recording, self.recording = self.recording, None
        made = recording.graph(self.results)
        if isinstance(made, str):
            return self.refuse(made)
        notation, inputs, self.mesh = made
        operands = [self.sources[i] for i in inputs]
        if None in operands:
            return self.refuse("it takes a tensor that is no argument", may_try_again=True)
        self.operands, self.notation = operands, notation
        return None


def _name_of(handle) -> tuple:
    return handle._session_key, handle._handle


def _flat(out, results: list, arguments: set, kinds):
    """The structure of results, with numbers in the places of tensors."""
    kind = type(out)
    if kind is kinds.tensor:
        if kinds.identity(out) in arguments or not kinds.is_result(out):
            raise _Unknown
        results.append(_name_of(kinds.handle_of(out)))
        return len(results) - 1
    if kind in (tuple, list) or hasattr(kind, "_make"):
        return (getattr(kind, "_make", kind), [_flat(one, results, arguments, kinds) for one in out])
    if out is None:
        return None
    raise _Unknown


def _filled(out, handles: list, kinds):
    if type(out) is int:
        return kinds.wrap(handles[out])
    if out is None:
        return None
    make, parts = out
    return make([_filled(one, handles, kinds) for one in parts])


def recorded(function, kinds: Kinds = _ARRAYS):
    """The function, which asks for its ops as one from the second call of a kind on."""
    graphs: OrderedDict = OrderedDict()

    def record(graph, args, kwargs, tensors, handles):
        names = [_name_of(one) for one in handles]
        recording = _tessera.Recording()
        recording.begin_lenient()
        try:
            out = function(*args, **kwargs)
        finally:
            recording.end()
        if [_name_of(kinds.handle_of(one)) for one in tensors] != names:
            graph.refuse("it writes to an argument")
            return out
        results: list = []
        try:
            if recording.spoiled:
                raise _Unknown
            shape = _flat(out, results, {kinds.identity(one) for one in tensors}, kinds)
        except _Unknown:
            graph.refuse(recording.spoiled or "its results are not new tensors alone")
            return out
        graph.fill(recording, {name: i for i, name in reversed(list(enumerate(names)))}, shape, results, kinds)
        return out

    @functools.wraps(function)
    def call(*args, **kwargs):
        tensors: list = []
        try:
            shown = _shown((args, kwargs), tensors, kinds)
        except _Unknown:
            return function(*args, **kwargs)
        handles = [kinds.handle_of(one) for one in tensors]
        specs = _tessera.graph_key(handles)
        mesh = None if handles or specs is None else kinds.mesh_of(kwargs)
        if specs is None or not handles and mesh is None:
            return function(*args, **kwargs)
        key = (shown, specs, None if mesh is None else mesh._raw.text, kinds.settings())
        graph = graphs.get(key)
        if graph is None:
            if len(graphs) >= MAX_GRAPHS:
                graphs.popitem(last=False)
            graph = graphs[key] = _Graph()
        elif graph.recording is not None:
            graph.make()
        if graph.notation is None:
            return function(*args, **kwargs) if graph.tries >= MAX_TRIES else record(graph, args, kwargs, tensors, handles)
        graphs.move_to_end(key)
        try:
            if graph.mesh is not None:
                made = mesh._session._create_all(_GRAPH, notation=graph.notation, mesh=graph.mesh)
            else:
                made = _tessera.call_all(_GRAPH, tuple(handles[i] for i in graph.operands), notation=graph.notation)
        except InvalidArgumentError as error:       # it has more nodes than a graph may have
            graph.refuse(str(error))
            return function(*args, **kwargs)
        for at, argument in graph.given:
            made.insert(at, handles[argument])
        return _filled(graph.out, made, kinds)

    call.graphs = graphs
    return call


_GRAPH = next(row[0] for row in _tessera.catalog() if row[1] == "graph")
