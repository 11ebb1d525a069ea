"""Numbers that an op takes. Values are on the workers, and a call waits for none, so the worker that has a number finds that it is out
of its range (check_range of the catalog). Results that depend on it fail, and say so where they are waited for."""

from __future__ import annotations

import numpy as np

import _tessera
from .._catalog import OPS
from ._dtypes import F32, F64, INT64, INTEGERS
from ._operands import cast

_call = _tessera.call
_LOWEST, _HIGHEST = -2**63, 2**63 - 1


def checked(h, low, high, what: str, *other):
    """The handle; its numbers are from low to high, or `other`. `what` says what they are, in words with _ between them."""
    kind = h._dtype
    wide = h if kind in (INT64, F32, F64) else cast(h, INT64 if kind in INTEGERS else F32)
    return cast(_call(OPS["check_range"], (wide,), scalars=[low, high, *other], mode=what), kind)


def indices(h, extent: int):
    """Indices of a dim; negative ones are none."""
    return checked(h, 0, extent - 1, "index")


def probabilities(h, what: str = "probability"):
    return checked(h, 0.0, 1.0, what)


def weights(h):
    """Weights of the choices along the last dim: each is finite and not below 0, and no row is all 0."""
    wide = h if h._dtype in (F32, F64) else cast(h, F32)
    info = np.finfo(wide.dtype)
    wide = checked(wide, 0.0, float(info.max), "probability")
    total = checked(_call(OPS["sum"], (wide,), dims=[h.ndim - 1], keepdims=True), float(info.tiny), float("inf"), "sum_of_probabilities")
    return cast(_call(OPS["where"], (total > 0, wide, 0.0)), h._dtype)


def divisor(op: str, x, y):
    """Divisors of integers; 0 is none."""
    if isinstance(y, _tessera.Tensor):
        if y._dtype not in INTEGERS:
            return y
        size = checked(_call(OPS["abs"], (cast(y, INT64),)), 1, _HIGHEST, "size_of_the_divisor", _LOWEST)
        return _call(OPS["where"], (_call(OPS["not_equal"], (size, 0)), y, 1))
    if y == 0 and x._dtype in INTEGERS:
        raise RuntimeError(f"{op}: ZeroDivisionError: the divisor of integers is 0")
    return y
