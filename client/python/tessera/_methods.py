"""Methods of Tensor that NumPy's arrays have and that functions of several modules are behind. NumPy's functions call them:
np.cumsum(x) is x.cumsum(axis=None, dtype=None, out=None)."""

from __future__ import annotations

import weakref

import numpy as np

import _tessera
import _tessera_ops as made
from . import _calculus, _functional, _indexing, _numpy_names, _ops
from ._attach import attach
from ._errors import ArgumentError, UnimplementedError
from ._numpy_calls import written
from ._ops import reshape


def _into(name: str, out, result):
    return result if out is None else written(name, out, result)


class _Flat:
    """x.flat"""

    def __init__(self, tensor):
        self._tensor = tensor

    def __getitem__(self, key):
        return _ops.flatten(self._tensor)[key]

    def __setitem__(self, key, value):
        elements = _ops.flatten(self._tensor)
        elements[key] = value
        self._tensor[...] = reshape(elements, self._tensor.shape)

    def __len__(self):
        return self._tensor.size

    def __iter__(self):
        return iter(_ops.flatten(self._tensor))

    def __array__(self, dtype=None, copy=None):
        return _ops.flatten(self._tensor).__array__(dtype, copy)


@attach(_tessera.Tensor)
class _NumpyMethods:
    def argsort(self, axis=-1, kind=None, order=None, *, stable=None, descending=False):
        """The indices that sort the elements along an axis, by default the last one, stably; None flattens."""
        if order is not None:
            raise ArgumentError(f"argsort: order is {order!r}; a tensor has no fields")
        return made.argsort(reshape(self, (-1,)), descending=descending) if axis is None else made.argsort(self, axis=axis, descending=descending)

    def choose(self, choices, out=None, mode="raise"):
        """ts.choose(x, choices): of several tensors the element of the one whose number x has there."""
        return _into("choose", out, _functional.choose(self, choices, mode=mode))

    def compress(self, condition, axis=None, out=None):
        """ts.compress(condition, x): the slices along an axis where a condition is true; their shape waits for their
        number."""
        return _into("compress", out, _functional.compress(condition, self, axis=axis))

    def conjugate(self):
        """The complex conjugate of each element."""
        return made.conj(self)

    def cumsum(self, axis=None, dtype=None, out=None):
        """The sums of the elements up to each one along an axis, by default of the flattened tensor."""
        return _into("cumsum", out, _indexing.cumsum(self, axis=axis, dtype=dtype))

    def cumprod(self, axis=None, dtype=None, out=None):
        """The products of the elements up to each one along an axis, by default of the flattened tensor."""
        return _into("cumprod", out, _indexing.cumprod(self, axis=axis, dtype=dtype))

    def __divmod__(self, other):
        return _calculus.divmod(self, other)

    def __rdivmod__(self, other):
        return _calculus.divmod(other, self)

    def __round__(self, decimals=0):
        return _ops.round(self, decimals)

    def round(self, decimals=0, out=None):
        """ts.round(x, decimals): each element rounded to so many decimals, halves to the even one."""
        return _into("round", out, _ops.round(self, decimals))

    def diagonal(self, offset=0, axis1=0, axis2=1):
        """The offset-th diagonal of two dims, the first ones, as the last dim. ts.linalg.diagonal takes it of the last two."""
        return _calculus.diagonal(self, offset, axis1, axis2)

    def trace(self, offset=0, axis1=0, axis2=1, dtype=None, out=None):
        """The sum of the offset-th diagonal of two dims, the first ones. ts.linalg.trace takes the last two."""
        return _into("trace", out, _calculus.trace(self, offset, axis1, axis2, dtype))

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    def dot(self, other, out=None):
        """ts.dot(x, other): the product of matrices or of vectors as NumPy's dot has it."""
        return _into("dot", out, _calculus.dot(self, other))

    def nonzero(self):
        """The indices of the elements that are not 0, a tensor for each dim; their shape waits for their number."""
        return _indexing.nonzero(self)

    def searchsorted(self, v, side="left", sorter=None):
        """Where elements of v belong in the tensor, which is a sorted vector: before equal ones (left), or behind."""
        return _indexing.searchsorted(self, v, side=side, sorter=sorter)

    def take(self, indices, axis=None, out=None, mode="raise"):
        """The elements along an axis, by default of the flattened tensor, at the indices."""
        return _into("take", out, _numpy_names.take(self, indices, axis=axis, mode=mode))

    def sort(self, axis=-1, kind=None, order=None, *, stable=None):
        """Sorts the elements along an axis in place, as NumPy's method does; ts.sort gives a new tensor. Gives nothing back."""
        if order is not None:
            raise ArgumentError(f"sort: order is {order!r}; a tensor has no fields")
        self[...] = made.sort(self, axis=axis)

    def partition(self, kth, axis=-1, kind="introselect", order=None):
        """Puts the elements along an axis into an order with those before place kth no larger and those behind no smaller: all are
        sorted, in place. Gives nothing back."""
        self[...] = made.sort(self, axis=axis)

    def argpartition(self, kth, axis=-1, kind="introselect", order=None):
        """The indices that partition sorts by."""
        return _numpy_names.argsort(self, axis=axis)

    def put(self, indices, values, mode="raise"):
        """Writes values at the places of elements, counted in row-major order; ts.put. Gives nothing back."""
        _numpy_names.put(self, indices, values, mode=mode)

    def fill(self, value):
        """Writes a number into all elements. Gives nothing back."""
        self[...] = value

    @property
    def flat(self):
        """The elements in row-major order, to be read and written by their numbers: x.flat[3], x.flat[::2] = 0."""
        return _Flat(self)

    @flat.setter
    def flat(self, values):
        _Flat(self)[:] = values

    def view(self, dtype=None, type=None):
        """The elements as another dtype reads their bytes. The own dtype: a view, which is written through. The real dtype of complex
        numbers: real and imaginary parts in turn along the last axis, twice as long; it is read-only. Other dtypes are refused, as is `type`.

        >>> ts.asarray([1 + 2j, 3 + 4j]).view(ts.float64)       # [1, 2, 3, 4]
        """
        if type is not None or isinstance(dtype, (tuple, list)) or isinstance(dtype, int) and not isinstance(dtype, bool):
            raise ArgumentError(f"view: takes a dtype, not {dtype!r}; write x.reshape(shape) for another shape")
        own, wanted = self.dtype, self.dtype if dtype is None else np.dtype(dtype)
        if wanted == own:
            return self[...]
        if own.kind == "c" and wanted == np.dtype(f"f{own.itemsize // 2}") and self.ndim:
            shape = (*self.shape[:-1], 2 * self.shape[-1])
            parts = reshape(_functional.stack([self.real, self.imag], axis=-1), shape)
            out = _functional.broadcast_to(parts, shape)
            weakref.finalize(out, id, parts)      # keeps them: a view that is left alone could be written, and x would not see it
            return out
        raise UnimplementedError(f"view: {own} as {wanted}; its own dtype and the parts of complex numbers are there, x.astype(dtype) converts values, "
                                 "and x.full_tensor().view(dtype) reads bytes here")
