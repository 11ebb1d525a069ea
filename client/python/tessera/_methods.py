"""Methods of Tensor that NumPy's arrays have and that functions of several modules are behind. NumPy's functions call them:
np.cumsum(x) is x.cumsum(axis=None, dtype=None, out=None)."""

from __future__ import annotations

import _tessera
import _tessera_ops as made
from . import _calculus, _functional, _indexing, _ops
from ._attach import attach
from ._errors import ArgumentError
from ._ops import reshape


def _no_out(name: str, out) -> None:
    if out is not None:
        raise ArgumentError(f"{name}: takes no out=: use the result, or write it into a tensor: y[...] = result")


@attach(_tessera.Tensor)
class _NumpyMethods:
    def argsort(self, axis=-1, kind=None, order=None, *, stable=None, descending=False):
        """The indices that sort the elements along an axis, by default the last one, stably; None flattens."""
        if order is not None:
            raise ArgumentError(f"argsort: order is {order!r}; a tensor has no fields")
        return made.argsort(reshape(self, (-1,)), descending=descending) if axis is None else made.argsort(self, axis=axis, descending=descending)

    def choose(self, choices, out=None, mode="raise"):
        """ts.choose(x, choices): of several tensors the element of the one whose number x has there."""
        _no_out("choose", out)
        return _functional.choose(self, choices, mode=mode)

    def compress(self, condition, axis=None, out=None):
        """ts.compress(condition, x): the slices along an axis where a condition is true; their shape waits for their
        number."""
        _no_out("compress", out)
        return _functional.compress(condition, self, axis=axis)

    def conjugate(self):
        """The complex conjugate of each element."""
        return made.conj(self)

    def cumsum(self, axis=None, dtype=None, out=None):
        """The sums of the elements up to each one along an axis, by default of the flattened tensor."""
        _no_out("cumsum", out)
        return _indexing.cumsum(self, axis=axis, dtype=dtype)

    def cumprod(self, axis=None, dtype=None, out=None):
        """The products of the elements up to each one along an axis, by default of the flattened tensor."""
        _no_out("cumprod", out)
        return _indexing.cumprod(self, axis=axis, dtype=dtype)

    def __divmod__(self, other):
        return _calculus.divmod(self, other)

    def __rdivmod__(self, other):
        return _calculus.divmod(other, self)

    def __round__(self, decimals=0):
        return _ops.round(self, decimals)

    def round(self, decimals=0, out=None):
        """ts.round(x, decimals): each element rounded to so many decimals, halves to the even one."""
        _no_out("round", out)
        return _ops.round(self, decimals)

    def diagonal(self, offset=0, axis1=0, axis2=1):
        """The offset-th diagonal of two dims, the first ones, as the last dim. ts.linalg.diagonal takes it of the last two."""
        return _calculus.diagonal(self, offset, axis1, axis2)

    def trace(self, offset=0, axis1=0, axis2=1, dtype=None, out=None):
        """The sum of the offset-th diagonal of two dims, the first ones. ts.linalg.trace takes the last two."""
        _no_out("trace", out)
        return _calculus.trace(self, offset, axis1, axis2, dtype)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    def dot(self, other, out=None):
        """ts.dot(x, other): the product of matrices or of vectors as NumPy's dot has it."""
        _no_out("dot", out)
        return _calculus.dot(self, other)

    def nonzero(self):
        """The indices of the elements that are not 0, a tensor for each dim; their shape waits for their number."""
        return _indexing.nonzero(self)

    def searchsorted(self, v, side="left", sorter=None):
        """Where elements of v belong in the tensor, which is a sorted vector: before equal ones (left), or behind."""
        return _indexing.searchsorted(self, v, side=side, sorter=sorter)

    def take(self, indices, axis=None, out=None, mode="raise"):
        """The elements along an axis, by default of the flattened tensor, at the indices."""
        _no_out("take", out)
        if mode != "raise":
            raise ArgumentError(f"take: mode is {mode!r}; an index outside is an error, take x.take(indices % n)")
        return _indexing.take(reshape(self, (-1,)) if axis is None else self, indices, axis=0 if axis is None else axis)
