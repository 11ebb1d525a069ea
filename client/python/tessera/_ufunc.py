"""NumPy's functions on tensors: np.exp(x) is ts.exp(x), array + x is ts.add(array, x)."""

from __future__ import annotations

import numpy as np

import _tessera
from ._errors import ArgumentError

# NumPy's names of what the array API calls otherwise.
_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "invert": "bitwise_invert", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "conjugate": "conj",
    "absolute": "abs", "fabs": "abs", "true_divide": "divide", "power": "pow", "rint": "round", "mod": "remainder",
    "radians": "deg2rad", "degrees": "rad2deg",
}


class ArrayUfunc:
    """__array_ufunc__ as NumPy looks for it, on the class: the function. On a tensor it is None, which is what masked arrays
    ask for: they leave an operator to who has None there, and else take the data and lose the mask."""

    def __get__(self, tensor, owner):
        return array_ufunc if tensor is None else None


def array_ufunc(tensor, ufunc, method, *inputs, out=None, **options):
    """Tensor.__array_ufunc__"""
    import tessera
    name = ufunc.__name__
    if out is not None:
        target = next(one for one in out if one is not None)
        if isinstance(target, np.ndarray):
            raise ArgumentError(f"{name}: a NumPy array can't take {tensor._spec} in place; write array += x.full_tensor(), or x = x + array")
        raise ArgumentError(f"{name}: takes no out=: use the result, or write it into a tensor: y[...] = result")
    function = vars(tessera).get(_NAMES.get(name, name))
    if method != "__call__" or function is None:
        wanted = name if method == "__call__" else f"{name}.{method}"
        raise ArgumentError(f"np.{wanted} does not take {tensor._spec}; write it with functions of tessera, or of x.full_tensor()")
    if any(value is not None and value is not True for value in options.values()):
        raise ArgumentError(f"np.{name}: takes no {next(iter(options))}= with a tensor")
    if any(not isinstance(value, (_tessera.Tensor, np.ndarray, np.generic, int, float, complex)) for value in inputs):
        return NotImplemented
    return function(*inputs)
