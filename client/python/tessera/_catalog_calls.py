"""How the functions that are made from the op catalog run: from what Python gives to a call of the catalog."""

from __future__ import annotations

import inspect
import operator

import numpy as np

import _tessera
from ._dtypes import code_of
from ._errors import ArgumentError, InvalidArgumentError
from ._mesh import integers
from ._numpy_calls import called_as_numpy
from ._calls import as_operand, axes_of, no_dim

_KINDS = dict(_tessera.attributes())
_BOOL = code_of(np.bool_, "bool")
# As NumPy: arithmetic and order of bools are logic.
_OF_BOOLS = {"add": "logical_or", "multiply": "logical_and", "maximum": "logical_or", "minimum": "logical_and", "max": "any", "min": "all"}
_NUMBERS = {row[1]: row[0] for row in _tessera.catalog()}


def function(implementation):
    """The public function: its signature is the implementation's, and a name that torch has for an argument gets an answer that
    says what to write."""
    public = called_as_numpy(implementation, no_dim)
    public.__module__ = "tessera"
    public.__doc__ = f"{implementation.__name__}{inspect.signature(implementation)}\n\n{implementation.__doc__}"
    return public


def _number(name: str, key: str, value):
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (bool, int, float)):
        raise ArgumentError(f"{name}: {key} is {value!r}, not a number")
    return value


def _attribute(name: str, key: str, attribute: str, value, first):
    kind = _KINDS[attribute]
    if attribute == "dims":
        return axes_of(name, value, first.ndim)
    if kind == "dtype":
        return code_of(value, name)
    if kind == "flag":
        return bool(value)
    if kind == "number":
        return float(_number(name, key, value))
    if kind == "integer":
        try:
            return operator.index(value)
        except TypeError:
            raise ArgumentError(f"{name}: {key} is {value!r}, not an integer") from None
    if kind == "text":
        return str(value)
    return integers(value, key, name)


def _is_bool(value) -> bool:
    return value._dtype == _BOOL if isinstance(value, _tessera.Tensor) else isinstance(value, (bool, np.bool_))


def _along_nothing(number: int, name: str, operands: tuple, arguments: dict, first):
    """axis=(): what reduces does so along a dim of extent 1 that is made for it; what keeps the dims has nothing to do."""
    if "keepdims" not in arguments:
        if name not in ("flip", "squeeze", "fftshift", "ifftshift"):
            raise InvalidArgumentError(f"{name}: axis is (), {first._spec} needs at least one")
        return first._copy()
    values = tuple(as_operand(name, first, value) for value in operands)
    spread = tuple(value[..., None] if isinstance(value, _tessera.Tensor) else value for value in values)
    return run(number, name, spread, {**arguments, **{key: ("dims", -1) for key, (attribute, _) in arguments.items() if attribute == "dims"},
                                      "keepdims": ("keepdims", False)})


def run(number: int, name: str, operands: tuple, arguments: dict):
    """`arguments`: (attribute, value) by the public name; without an attribute the value is a number of the call."""
    while len(operands) > 1 and operands[-1] is None:
        operands = operands[:-1]
    first = next((value for value in operands if isinstance(value, _tessera.Tensor)), None)
    if first is None:
        shown = ", ".join(type(value).__name__ for value in operands) or "nothing"
        raise ArgumentError(f"{name}: needs a Tensor among its operands, not {shown}; make one with ts.asarray or distribute_tensor")
    if name in _OF_BOOLS and first._dtype == _BOOL and all(_is_bool(value) for value in operands):
        number, name = _NUMBERS[_OF_BOOLS[name]], _OF_BOOLS[name]
    if any(value is None for value in operands):
        raise InvalidArgumentError(f"{name}: operand {operands.index(None)} is None, and one behind it is given")
    attributes, scalars = {}, []
    for key, (attribute, value) in arguments.items():
        if value is None:
            continue
        if attribute == "dims" and isinstance(value, (tuple, list)) and not value:
            return _along_nothing(number, name, operands, arguments, first)
        if attribute is None:
            scalars.append(_number(name, key, value))
        else:
            attributes[attribute] = _attribute(name, key, attribute, value, first)
    if "dims" not in attributes and any(attribute == "dims" for attribute, _ in arguments.values()):
        attributes["dims"] = list(range(first.ndim))
    if scalars:
        attributes["scalars"] = scalars
    return _tessera.call(number, tuple(as_operand(name, first, value) for value in operands), **attributes)
