"""The Python methods of Tensor."""

from __future__ import annotations

import math
import operator
import sys
import warnings

import numpy as np

import _tessera
from . import _context, _index, _indexing, _plan
from ._array_function import array_function, tell_download
from ._attach import attach
from ._calls import convert_operand, refuse_operand
from ._catalog import OPS
from ._display import edges_text, html
from ._dtypes import numpy_of
from ._errors import (BY_CODE, ArgumentError, IndexOutOfRangeError, InvalidArgumentError, ResourceExhaustedError, TesseraError,
                      UnimplementedError)
from ._mesh import DeviceMesh, integers
from ._namespace import public
from ._downloads import check_out, full_to, local_to
from ._placements import Placement, has_sizes_for, kept, of_older, replicated
from ._progress import BAR_AFTER, bar_of, has_bars, progress_of
from ._redistribution import attributes_of
from ._refresh import show
from ._session import distribute_array, seconds, session_of
from ._ufunc import ArrayUfunc
from ._views import refuse_write

MAX_IMPLICIT_DOWNLOAD = 1 << 30    # docs/limits.md: max_implicit_download
MAX_ITERATION = 4096               # docs/limits.md: max_iteration

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")   # each of the array API includes those before it


class ImplicitRedistributionWarning(UserWarning):
    """An op moved bytes that nobody asked for by name."""


ImplicitRedistributionWarning.__module__ = "tessera"


def _warn_implicit(text: str) -> None:
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ImplicitRedistributionWarning, stacklevel=level)


_tessera.set_hooks(BY_CODE, convert_operand, _warn_implicit, refuse_operand, refuse_write)


@attach(_tessera.Tensor)
class _TensorMethods:
    # ---- what it is -------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        return numpy_of(self._dtype)

    @property
    def real(self):
        """The real parts."""
        return _tessera.call(OPS["real"], (self,))

    @real.setter
    def real(self, value):
        self.real[...] = value

    @property
    def imag(self):
        """The imaginary parts; zeros of a real tensor."""
        return _tessera.call(OPS["imag"], (self,))

    @imag.setter
    def imag(self, value):
        self.imag[...] = value

    @property
    def device_mesh(self) -> DeviceMesh:
        return DeviceMesh._wrap(session_of(self), self._mesh)

    device = device_mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self._placements

    @property
    def session(self):
        return session_of(self)

    @property
    def name(self) -> str | None:
        """By which the session finds the tensor again, also from a new process: `session["w"]`. The session keeps a tensor
        that has a name, until it gets None, or another tensor gets the name."""
        return self._name or None

    @name.setter
    def name(self, value):
        if not isinstance(value, (str, type(None))):
            raise InvalidArgumentError(f"name: {value!r} is no str")
        self._name = value or ""

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    __hash__ = object.__hash__
    __array_ufunc__ = ArrayUfunc()
    __array_function__ = array_function
    __array_priority__ = 1000

    def __array_namespace__(self, *, api_version=None):
        if api_version is not None and api_version not in API_VERSIONS:
            raise InvalidArgumentError(f"__array_namespace__: api_version is {api_version!r}; there are {', '.join(API_VERSIONS)}")
        return public()

    # ---- moving -----------------------------------------------------------------------------

    def redistribute(self, device_mesh=None, placements=None, *, async_op=False, dtype=None, relabel=False):
        """The same tensor with other placements, or on another mesh. Returns at once; moves the fewest bytes.

        >>> x.redistribute([ts.Shard(1)])

        Without placements: on a mesh of as many dims, or with dtype or relabel alone, x's own (pending terms are reduced to
        Replicate where the dtype changes, as x.astype does); else Replicate.
        async_op is taken as DTensor's callers give it: the call returns at once either way.
        dtype: converted on the way, on the side with fewer bytes. relabel: the workers of the mesh may stand in any
        order, and the one that moves least is found; the result's device_mesh says which.
        """
        attributes = attributes_of(self, device_mesh, placements, dtype, relabel)
        return _tessera.call(OPS["redistribute"], (self,), **attributes)

    def explain_redistribute(self, device_mesh=None, placements=None, *, dtype=None, relabel=False) -> _plan.Plan:
        """The plan of redistribute; nothing runs. A list of placements is accepted first too."""
        attributes = attributes_of(self, device_mesh, placements, dtype, relabel)
        return _plan.Plan(_tessera.explain_redistribute(self, **attributes))

    def to_device(self, device_mesh, /, *, stream=None):
        """The same tensor on another mesh, whose workers may be others."""
        if not isinstance(device_mesh, DeviceMesh):
            raise InvalidArgumentError(f"to_device: {device_mesh!r} is no DeviceMesh")
        try:
            return self.redistribute(device_mesh, None)
        except InvalidArgumentError as error:
            raise type(error)(f"to_device: {str(error).removeprefix('redistribute: ')}") from None

    def full_tensor(self, *, out=None) -> np.ndarray:
        """The whole tensor as a NumPy array. Blocks; raises the first cause if something failed.

        out: an array of its dtype and shape, which gets the values and is given back: nothing is allocated where it is
        contiguous, and nothing copied twice where it is of ts.host_empty. What it has after an error is left open."""
        if out is not None:
            check_out("full_tensor", self, out, self.shape)
        with bar_of("download", self.nbytes):
            if out is None:
                return self._full()
            full_to(self, out)
        return out

    def to_local(self, position=None, *, out=None) -> np.ndarray:
        """The shard at a position; of a Partial, that position's term. Blocks. Only where the mesh has one position it
        may be left out: a client is no rank, and has no shard of its own.

        out: as full_tensor takes it."""
        if position is None:
            if self._mesh.size != 1:
                raise ArgumentError(f"to_local: which shard of {self._spec}? Write x.to_local({(0,) * self._mesh_ndim}) for the "
                                    "one at that position of the mesh, or x.full_tensor() for the whole")
            position = (0,) * self._mesh_ndim
        position = integers(position, "position", "to_local")
        shape = tuple(stop - start for start, stop in self._box(position))
        if out is not None:
            check_out("to_local", self, out, shape)
        with bar_of("download", self.dtype.itemsize * math.prod(shape)):
            if out is None:
                return self._local(position)
            local_to(self, position, out)
        return out

    def box(self, position) -> list[tuple[int, int]]:
        """[(start, stop), ...] per dim: what of the tensor lies at the position."""
        return self._box(integers(position, "position", "box"))

    # ---- reading ----------------------------------------------------------------------------

    def wait(self, timeout=None, *, progress=None):
        """Blocks until everything that led here has run; returns the tensor, raises the first cause of failure. Ctrl-C
        ends it: what has not been issued is cancelled, but for what leads to names that were updated in place, and the
        session goes on.

        progress: True shows a bar of the session's ops, where tqdm is installed, False none. By default there is one after 2 s in a
        terminal or a notebook."""
        limit = None if timeout is None else seconds(timeout, "wait")
        if progress is None and (limit is None or limit > BAR_AFTER) and not self.is_ready() and has_bars():
            try:
                self._wait(BAR_AFTER)
                return self
            except TimeoutError:
                progress, limit = True, None if limit is None else limit - BAR_AFTER
        if not progress:
            self._wait(limit)
            return self
        with progress_of(self.session, "wait"):
            self._wait(limit)
        return self

    def item(self, *index):
        """The one element as a Python value; of several the one at an index, or a number in row-major order. Blocks."""
        if index:
            index = tuple(index[0]) if isinstance(index[0], tuple) else index
            if len(index) == 1 and self.ndim != 1:
                number = operator.index(index[0])
                if not -self.size <= number < self.size:
                    raise IndexOutOfRangeError(f"item: {number} is no number of an element of {self._spec}")
                index = tuple(int(n) for n in np.unravel_index(number % self.size, self.shape))
            if len(index) != self.ndim:
                raise IndexOutOfRangeError(f"item: {len(index)} indices for {self._spec}")
            return self[tuple(map(operator.index, index))].item()
        if self.size != 1:
            raise InvalidArgumentError(f"item: {self._spec} has {self.size} elements, not 1")
        return self._full().reshape(()).item()

    def tolist(self):
        return self._download("tolist").tolist()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __complex__(self):
        return complex(self.item())

    def __bool__(self):
        if self.size != 1:
            raise InvalidArgumentError(f"bool: the truth of {self._spec} with {self.size} elements is ambiguous; use ts.any or ts.all")
        return bool(self.item())

    def __index__(self):
        if self.ndim != 0 or self.dtype.kind not in "iu":
            raise ArgumentError(f"index: only a 0-d integer tensor is an index, not {self._spec}")
        return operator.index(self.item())

    def _download(self, op: str) -> np.ndarray:
        if self.nbytes > MAX_IMPLICIT_DOWNLOAD:
            raise ResourceExhaustedError(
                f"{op}: {self._spec} has {self.nbytes} bytes, the limit of an implicit download is {MAX_IMPLICIT_DOWNLOAD}; "
                "call x.full_tensor() if you mean it")
        return self.full_tensor()

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise InvalidArgumentError(f"__array__: {self._spec} lives on workers, a copy can't be avoided")
        tell_download(self)
        array = self._download("__array__")
        array = array if dtype is None else array.astype(dtype, copy=False)
        if not copy:    # what is written into it would be lost: NumPy refuses that where it is read-only
            array.flags.writeable = False
        return array

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy is False:
            raise BufferError(f"__dlpack__: {self._spec} lives on workers, a copy can't be avoided")
        return self._download("__dlpack__").__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self):
        return (1, 0)

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return self._rows()

    def _rows(self):
        for i in range(self.shape[0]):
            if i == MAX_ITERATION:
                raise InvalidArgumentError(f"iter: {self._spec} has {self.shape[0]} rows, the limit is {MAX_ITERATION}; "
                                           "index it, or iterate over x.full_tensor()")
            yield self[i]

    def __contains__(self, value):
        return value is not None and bool((self == value).any())

    # ---- indexing ---------------------------------------------------------------------------

    def __getitem__(self, key):
        item = _tessera.get_item(self, key)
        if item is not None:
            return item
        if _index.has_arrays(key):
            return _indexing.get(self, key)
        keys = key if isinstance(key, tuple) else (key,)
        return _tessera.get_item(self, tuple(map(_index.plain, keys)))

    def __setitem__(self, key, value):
        if _tessera.set_item(self, key, value):
            return
        mask = _index.mask_of(key, self)
        if mask is not None:
            kept = _indexing.put_masked(self, mask, value)
            if not self._has_partial and list(kept._placements) != list(self._placements):
                kept = kept.redistribute(self.device_mesh, self.placements)
            _tessera.rebind(self, kept)
            return
        if _index.has_arrays(key):
            kept = _indexing.put(self, key, value)
            if not self._has_partial and list(kept._placements) != list(self._placements):
                kept = kept.redistribute(self.device_mesh, self.placements)
            _tessera.rebind(self, kept)
            return
        keys = key if isinstance(key, tuple) else (key,)
        _tessera.set_item(self, tuple(map(_index.plain, keys)), value)

    def __delitem__(self, key):
        raise UnimplementedError(f"del x[i] on {self._spec}: a tensor keeps its shape; x = ts.delete(x, i, axis=0) makes one without")

    @property
    def T(self):
        if self.ndim != 2:
            raise InvalidArgumentError(f"T: {self._spec} has {self.ndim} dims, not 2; use ts.permute_dims")
        return _tessera.call(OPS["permute_dims"], (self,), dims=[1, 0])

    @property
    def mT(self):
        if self.ndim < 2:
            raise InvalidArgumentError(f"mT: {self._spec} has {self.ndim} dims, it needs at least 2")
        order = list(range(self.ndim))
        order[-2:] = [self.ndim - 1, self.ndim - 2]
        return _tessera.call(OPS["permute_dims"], (self,), dims=order)

    def __pos__(self):
        return self._copy()

    def copy(self):
        """A tensor with the same elements, which may be written into: x keeps what it has. Copies nothing before that."""
        return self._copy()

    # ---- shown ------------------------------------------------------------------------------

    def __repr__(self):
        try:
            return f"Tensor({self._spec_now})"
        except Exception:  # repr never raises
            return "Tensor(?)"

    def __str__(self):
        try:
            return f"{edges_text(self)}\n{self!r}"
        except TesseraError as error:
            return f"{self!r}: {type(error).__name__}: {error}"

    def __format__(self, spec):
        if not spec:
            return str(self)
        if self.ndim != 0:
            raise ArgumentError(f"format: {spec!r} is for one number, not for {self._spec}; format elements of x.full_tensor()")
        return format(self.item(), spec)

    def _repr_html_(self):
        return html(self)

    def _ipython_display_(self):
        show(self, lambda tensor: {"text/html": tensor._repr_html_(), "text/plain": repr(tensor)})

    def __reduce__(self):
        """A pickle has the values, which come here for it, and the placements: it becomes a tensor of the current session's default mesh."""
        return _unpickled, (np.asarray(self.full_tensor()), tuple(kept(self._placements)))

    def __copy__(self):
        return self._copy()

    def __deepcopy__(self, memo):
        return self._copy()


def _unpickled(values, placements):
    """The tensor of a pickle: with its placements, where the default mesh has as many dims and they fit; else replicated."""
    mesh = _context.current_session().default_mesh
    placements = of_older(placements)
    fits = len(placements) == mesh.ndim and all(has_sizes_for(one, extent, values.shape) for one, extent in zip(placements, mesh.shape))
    return distribute_array(mesh._session, values, mesh._raw, placements if fits else replicated(mesh.ndim))


def wait(*tensors, timeout=None):
    """Waits for all of them, with one message to the server; raises the first cause of failure. `timeout` (seconds) is for
    all together."""
    for tensor in tensors:
        if not isinstance(tensor, _tessera.Tensor):
            raise InvalidArgumentError(f"wait: takes tensors, not {type(tensor).__name__}; spread a list: wait(*tensors)")
    _tessera.wait_all(list(tensors), None if timeout is None else seconds(timeout, "wait"))
