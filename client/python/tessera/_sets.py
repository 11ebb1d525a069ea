"""NumPy's functions of sets: vectors of different elements, in order."""

from __future__ import annotations

import collections

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import beside, ravel
from ._errors import ArgumentError
from ._indexing import _places, isin, take, unique_all, unique_values
from ._namespace_info import result_type
from ._ops import astype, concat


def _flat(name: str, x1, x2) -> list:
    tensor = next((x for x in (x1, x2) if isinstance(x, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a Tensor, not {type(x1).__name__} and {type(x2).__name__}")
    return [ravel(beside(name, tensor, x)) for x in (x1, x2)]


def _pair(name: str, x1, x2) -> list:
    """Both flattened, of one dtype."""
    pair = _flat(name, x1, x2)
    dtype = result_type(*pair)
    return [astype(x, dtype) for x in pair]


def in1d(x1, x2, /, *, invert=False):
    """in1d(x1, x2, /, *, invert=False)

    Tests for each element of the flattened x1 whether it is one of x2's; with invert whether it is none of them."""
    return isin(*_flat("in1d", x1, x2), invert=invert)


def union1d(x1, x2, /):
    """union1d(x1, x2, /)

    The different elements of both tensors, in order. Waits for their number."""
    return _different(concat(_pair("union1d", x1, x2)))


def _different(x):
    """NumPy's unique: unique_values, where all NaN are one."""
    values = unique_values(x)
    if x.dtype.kind not in "fc" or values.size < 2:
        return values
    is_nan = made.isnan(values)
    again = made.logical_and(is_nan[1:], is_nan[:-1])
    return concat([values[:1], values[1:][made.logical_not(again)]])


_Intersection = collections.namedtuple("IntersectionResult", "values indices1 indices2")


def intersect1d(x1, x2, /, *, assume_unique=False, return_indices=False):
    """intersect1d(x1, x2, /, *, assume_unique=False, return_indices=False)

    The elements that both tensors have, in order. Waits for their number.

    assume_unique: each tensor has different elements alone. return_indices: where each is first in the flattened tensors,
    too."""
    a, b = _pair("intersect1d", x1, x2)
    if not assume_unique and not return_indices:
        a, b = _different(a), _different(b)
    firsts = None
    if return_indices and not assume_unique:
        (a, at_a, *_), (b, at_b, *_) = unique_all(a), unique_all(b)
        firsts = at_a, at_b
    both = concat([a, b])
    order = made.argsort(both)
    ordered = take(both, order)
    found = _places(ordered[1:] == ordered[:-1])
    values = take(ordered, found)
    if not return_indices:
        return values
    one, other = take(order, found), take(order, found + 1) - a.size
    if firsts is not None:
        one, other = take(firsts[0], one), take(firsts[1], other)
    return _Intersection(values, one, other)


def setdiff1d(x1, x2, /, *, assume_unique=False):
    """setdiff1d(x1, x2, /, *, assume_unique=False)

    The elements of x1 that x2 hasn't, in order. Waits for their number.

    assume_unique: each tensor has different elements alone; those of x1 keep their order then."""
    a, b = _flat("setdiff1d", x1, x2)
    a = a if assume_unique else _different(a)
    return a[isin(a, b, invert=True)]


def setxor1d(x1, x2, /, *, assume_unique=False):
    """setxor1d(x1, x2, /, *, assume_unique=False)

    The elements that one of the tensors has and the other hasn't, in order. Waits for their number.

    assume_unique: each tensor has different elements alone."""
    a, b = _pair("setxor1d", x1, x2)
    if not assume_unique:
        a, b = _different(a), _different(b)
    ordered = made.sort(concat([a, b]))
    if ordered.size < 2:
        return ordered
    differs = ordered[1:] != ordered[:-1]
    edge = beside("setxor1d", ordered, np.ones(1, np.bool_))
    return ordered[made.logical_and(concat([edge, differs]), concat([differs, edge]))]
