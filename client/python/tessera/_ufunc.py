"""NumPy's functions on tensors: np.exp(x) is ts.exp(x), array + x is ts.add(array, x)."""

from __future__ import annotations

import numpy as np

import _tessera
from ._errors import ArgumentError
from ._namespace import public
from ._numpy_calls import OWN_NAMES


class ArrayUfunc:
    """__array_ufunc__ as NumPy looks for it, on the class: the function. On a tensor it is None, which is what masked arrays
    ask for: they leave an operator to who has None there, and else take the data and lose the mask."""

    def __get__(self, tensor, owner):
        return array_ufunc if tensor is None else None


# ufunc.reduce(x) and ufunc.accumulate(x) of NumPy.
_REDUCE = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}
_ACCUMULATE = {"add": "cumulative_sum", "multiply": "cumulative_prod", "maximum": "cumulative_max", "minimum": "cumulative_min"}


def array_ufunc(tensor, ufunc, method, *inputs, out=None, **options):
    """Tensor.__array_ufunc__"""
    names = {"__call__": OWN_NAMES.get(ufunc.__name__, ufunc.__name__), "reduce": _REDUCE.get(ufunc.__name__), "accumulate": _ACCUMULATE.get(ufunc.__name__)}
    name = names.get(method)
    function = None if name is None else vars(public()).get(name)
    if out is not None:
        target = next(one for one in out if one is not None)
        if isinstance(target, np.ndarray):
            raise ArgumentError(f"{name}: a NumPy array can't take {tensor._spec} in place; write array += x.full_tensor(), or x = x + array")
        options["out"] = target
    if function is None:
        wanted = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise ArgumentError(f"np.{wanted} does not take {tensor._spec}; write it with functions of tessera, or of x.full_tensor()")
    if any(not isinstance(value, (_tessera.Tensor, np.ndarray, np.generic, int, float, complex, list, tuple)) for value in inputs):
        return NotImplemented
    if method != "__call__":        # the axis is the first one there, and all of them here
        options = {"axis": 0, **{key: value for key, value in options.items() if value is not np._NoValue}}
    return function(*inputs, **options)
