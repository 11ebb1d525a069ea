"""DeviceMesh: an N-D array of workers with named dims."""

from __future__ import annotations

import itertools
import operator
import threading

import numpy as np

import _tessera
from . import _context
from ._display import mesh_html
from ._errors import IndexOutOfRangeError, InvalidArgumentError
from ._placements import Placement, checked, replicated

_current = threading.local()


def _names_of(names, ndim: int, op: str) -> list[str]:
    if names is None:
        return []
    try:
        names = [names] if isinstance(names, str) else list(names)
    except TypeError:
        raise InvalidArgumentError(f"{op}: mesh_dim_names must be strings, not {names!r}") from None
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"{op}: mesh_dim_names must be strings, not {names!r}")
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise InvalidArgumentError(f"{op}: mesh_dim_names {names!r} can't be written as UTF-8")
    if len(names) != ndim:
        raise InvalidArgumentError(f"{op}: {len(names)} mesh_dim_names {tuple(names)} for {ndim} mesh dims")
    return names


def _device_type(device_type, op: str) -> str:
    if device_type not in (None, "cpu", "cuda"):
        raise InvalidArgumentError(f"{op}: device type is {device_type!r}, workers are cpu or cuda")
    return device_type or ""


def integers(values, what: str, op: str) -> list[int]:
    """A list of integers that fit 64 bits, from an integer or anything that iterates over them."""
    try:
        values = [operator.index(values)]
    except TypeError:
        try:
            values = [operator.index(value) for value in values]
        except TypeError:
            raise InvalidArgumentError(f"{op}: {what} is {values!r}; it must be integers") from None
    for value in values:
        if not -2**63 <= value < 2**63:
            raise InvalidArgumentError(f"{op}: {what} {values!r} does not fit 64 bits")
    return values


def _check_workers(numbers: list[int], op: str) -> None:
    if any(not -2**31 <= worker < 2**31 for worker in numbers):
        raise InvalidArgumentError(f"{op}: workers {numbers} do not exist")


def _raw_mesh(workers: np.ndarray, names: list[str]) -> _tessera.Mesh:
    return _tessera.Mesh.make(list(workers.shape), names, [int(worker) for worker in workers.reshape(-1)])


class DeviceMesh:
    """A mesh of workers of the session's cluster.

    >>> mesh = ts.DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    """

    def __init__(self, device_type, mesh, *, mesh_dim_names=None, _session=None):
        device_type = _device_type(device_type, "DeviceMesh")
        try:
            workers = np.asarray(mesh)
        except ValueError:      # rows of different lengths
            workers = np.array(None)
        if workers.dtype.kind not in "iu":
            raise InvalidArgumentError(f"DeviceMesh: mesh must be an array of worker numbers, not {mesh!r}")
        workers = workers.reshape(-1) if workers.ndim == 0 else workers
        numbers = [int(worker) for worker in workers.reshape(-1)]
        _check_workers(numbers, "DeviceMesh")
        session = _session if _session is not None else _context.current_session()
        self._setup(session, session._mesh(list(workers.shape), _names_of(mesh_dim_names, workers.ndim, "DeviceMesh"),
                                           numbers, device_type))

    def _setup(self, session, raw, parent=None, dims=None):
        self._session = session
        self._raw = raw            # what tensors live on
        self._dims = dims          # of a view: the parent's dims it shows, else None
        self._parent = parent

    @classmethod
    def _wrap(cls, session, raw, parent=None, dims=None):
        mesh = object.__new__(cls)
        mesh._setup(session, raw, parent, dims)
        return mesh

    def __deepcopy__(self, memo):
        return self         # a value, of the same session

    # ---- what it is -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self._raw.shape
        return shape if self._dims is None else tuple(shape[d] for d in self._dims)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        names = self._raw.names
        if not names:
            return None
        return tuple(names) if self._dims is None else tuple(names[d] for d in self._dims)

    @property
    def device_type(self) -> str:
        """The kind of the workers: "cpu" or "cuda"."""
        return self._session._device_type(self._raw)

    @property
    def workers(self) -> tuple[int, ...]:
        """Worker numbers by position, in row-major order."""
        return tuple(self._raw.workers)

    @property
    def lost(self) -> tuple[int, ...]:
        """Numbers of its workers that are lost. A tensor with copies elsewhere has gone on there: see its own `device_mesh`."""
        return tuple(self._session._lost_of(self._raw))

    @property
    def mesh(self) -> np.ndarray:
        return np.array(self._raw.workers).reshape(self._raw.shape)

    def size(self, mesh_dim: int | str | None = None) -> int:
        if mesh_dim is None:
            return int(np.prod(self.shape, dtype=np.int64))
        if isinstance(mesh_dim, str):
            return self.shape[self._dim_named(mesh_dim)]
        try:
            mesh_dim = operator.index(mesh_dim)
        except TypeError:
            raise InvalidArgumentError(f"mesh: dim {mesh_dim!r} is no integer and no name: {self}") from None
        if not -self.ndim <= mesh_dim < self.ndim:
            raise IndexOutOfRangeError(f"mesh: dim {mesh_dim} is out of range for {self}")
        return self.shape[mesh_dim]

    def positions(self) -> list[tuple[int, ...]]:
        """All coordinate tuples, in row-major order."""
        return list(itertools.product(*(range(n) for n in self.shape)))

    def flatten(self, name: str = "") -> "DeviceMesh":
        """All dims as one; tensors on it have placements of their own. Of a view: the dims that it shows."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f"mesh: the name of a dim is a string, not {name!r}")
        if self._dims is None:
            return DeviceMesh._wrap(self._session, self._raw.flatten(name))
        # The same workers, with the dims of the view first and as one.
        raw = self._raw
        others = [d for d in range(len(raw.shape)) if d not in self._dims]
        array = self.mesh.transpose([*self._dims, *others]).reshape(-1, *(raw.shape[d] for d in others))
        name = name or "_".join(raw.names[d] for d in self._dims)
        return DeviceMesh._wrap(self._session, _raw_mesh(array, [name, *(raw.names[d] for d in others)]), self, (0,))

    def _dim_named(self, name: str) -> int:
        names = self.mesh_dim_names or ()
        if name not in names:
            raise IndexOutOfRangeError(f"mesh: no dim {name!r} in {self}; its names are {names}")
        return names.index(name)

    def __getitem__(self, key) -> "DeviceMesh":
        keys = key if isinstance(key, tuple) else (key,)
        if keys and all(isinstance(k, str) for k in keys):
            return self._view([self._dim_named(k) for k in keys])
        return self._sub_mesh(keys)

    def _view(self, dims: list[int]) -> "DeviceMesh":
        if len(set(dims)) != len(dims):
            raise InvalidArgumentError(f"mesh: a dim is named twice in {dims}")
        if self._dims is not None:
            dims = [self._dims[d] for d in dims]
        raw = self._raw
        if dims == sorted(dims):
            whole = len(dims) == len(raw.shape)
            return DeviceMesh._wrap(self._session, raw, self, None if whole else tuple(dims))
        # Another order of dims: the same workers, with the named dims last and in that order.
        order = [d for d in range(len(raw.shape)) if d not in dims] + dims
        turned = _raw_mesh(self.mesh.transpose(order), [raw.names[d] for d in order])
        shown = tuple(range(len(order) - len(dims), len(order)))
        return DeviceMesh._wrap(self._session, turned, self, None if len(shown) == len(order) else shown)

    def _sub_mesh(self, keys) -> "DeviceMesh":
        if self._dims is not None:
            raise InvalidArgumentError(f"mesh: take coordinates of the whole mesh, not of the view {self}")
        keys = list(keys)
        if Ellipsis in keys:
            at = keys.index(Ellipsis)
            keys[at:at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        keys += [slice(None)] * (self.ndim - len(keys))
        # True is an int, and not the index of a worker.
        if len(keys) > self.ndim or not all(isinstance(k, (int, np.integer, slice)) and not isinstance(k, bool) for k in keys):
            raise InvalidArgumentError(f"mesh: {keys!r} is no index of {self}")
        try:
            array = self.mesh[tuple(keys)]
        except IndexError as error:
            raise IndexOutOfRangeError(f"mesh: {error}: {self}") from None
        except (TypeError, ValueError) as error:    # of a slice
            raise InvalidArgumentError(f"mesh: {error}: {self}") from None
        names = self._raw.names
        kept = [names[d] for d, k in enumerate(keys) if isinstance(k, slice)] if names else []
        if array.ndim == 0:
            array, kept = array.reshape(1), []
        return DeviceMesh._wrap(self._session, _raw_mesh(array, kept))

    # ---- for tensors --------------------------------------------------------------------------

    def _placed(self, placements, op: str) -> list[Placement]:
        """The same where placements may be left out, which is Replicate on each dim."""
        return replicated(len(self._raw.shape)) if placements is None else self._placements(placements, op)

    def _placements(self, placements, op: str) -> list[Placement]:
        """Placements of this mesh in the terms of the mesh that tensors live on."""
        if isinstance(placements, Placement) and self.ndim != 1:
            raise InvalidArgumentError(
                f"{op}: {placements!r} alone is for a mesh of one dim; {self} takes a list, with one for each of its {self.ndim} dims")
        placements = checked(placements, op)
        if len(placements) != self.ndim:
            raise InvalidArgumentError(
                f"{op}: {len(placements)} placements {placements} for {self}, which has {self.ndim} dims")
        if self._dims is None:
            return placements
        out = replicated(len(self._raw.shape))
        for dim, placement in zip(self._dims, placements):
            out[dim] = placement
        return out

    def __enter__(self):
        stack = getattr(_current, "stack", None)
        if stack is None:
            stack = _current.stack = []
        stack.append(self)
        return self

    def __exit__(self, *exc):
        _current.stack.pop()

    def __eq__(self, other):
        return isinstance(other, DeviceMesh) and self._raw.same(other._raw) and self._dims == other._dims

    def __hash__(self):
        return hash((self._raw.hash(), self._dims))

    def __repr__(self):
        text = self._raw.text
        if self._dims is not None:
            text += f"[{', '.join(repr(name) for name in self.mesh_dim_names)}]"
        lost = self.lost
        return text + (f" (lost: {', '.join(map(str, lost))})" if lost else "")

    def _repr_html_(self):
        return mesh_html(self)


DeviceMesh.__module__ = "tessera"


def current_mesh() -> DeviceMesh | None:
    stack = getattr(_current, "stack", None)
    return stack[-1] if stack else None


def init_device_mesh(session, args, mesh_dim_names, workers) -> DeviceMesh:
    """init_device_mesh([device_type,] mesh_shape, *, mesh_dim_names=None, workers=None)."""
    op = "init_device_mesh"
    device_type = _device_type(args[0], op) if len(args) == 2 else ""
    if len(args) not in (1, 2):
        raise InvalidArgumentError(f"{op}: takes [device_type,] mesh_shape, not {len(args)} positional arguments")
    shape = integers(args[-1], "mesh_shape", op)
    names = _names_of(mesh_dim_names, len(shape), op)
    numbers = [] if workers is None else integers(workers, "workers", op)
    _check_workers(numbers, op)
    return DeviceMesh._wrap(session, session._mesh(shape, names, numbers, device_type))
