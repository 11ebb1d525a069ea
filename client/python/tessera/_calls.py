"""Calls of the catalog's ops: their numbers, and how values become operands and axes."""

from __future__ import annotations

import numpy as np

import _tessera
from ._catalog import OPS
from ._dtypes import code_of, refuse_masked
from ._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError
from ._mesh import DeviceMesh, integers
from ._names import suggestion
from ._session import distribute, session_of

MAX_IMPLICIT_ARRAY = 1 << 20       # docs/limits.md: max_implicit_array


def convert_operand(tensor, other):
    """The operand beside `tensor` in an op, or NotImplemented."""
    refuse_masked(other, "operand")
    if isinstance(other, (list, tuple)):
        other = array_beside(other)
    if isinstance(other, np.ndarray) and other.ndim == 0:
        other = other[()]
    if isinstance(other, np.generic):
        return (code_of(other.dtype, "operand"), other.item())
    if isinstance(other, np.ndarray):
        if other.nbytes > MAX_IMPLICIT_ARRAY:
            raise ArgumentError(
                f"operand: a NumPy array of {other.nbytes} bytes beside {tensor._spec}; above {MAX_IMPLICIT_ARRAY} bytes "
                "say where it goes: session.distribute_tensor(array, mesh, placements)")
        session = session_of(tensor)
        return distribute(session, other, DeviceMesh._wrap(session, tensor._mesh), None)
    if isinstance(other, bool):
        return bool(other)
    if isinstance(other, int):
        return int(other)
    if isinstance(other, float):
        return float(other)
    if isinstance(other, complex):
        return complex(other)
    return NotImplemented


def array_beside(values):
    """A list of numbers as an array, whose dtype is the default one of its kind; what is none stays as it is."""
    try:
        array = np.asarray(values)
    except ValueError:      # ragged
        return values
    return array if array.dtype.kind in "biufc" else values


def refuse_operand(op: str, tensor, other):
    raise ArgumentError(f"{op}: {type(other).__name__} can't stand beside {tensor._spec}; "
                        "of values make np.array(values) or ts.asarray(values)")


def as_operand(op: str, tensor, value):
    """An operand beside `tensor` as the extension module takes it: a tensor, a number, or (dtype number, number)."""
    if isinstance(value, (_tessera.Tensor, bool, int, float, complex)) and not isinstance(value, np.generic):
        return value
    out = convert_operand(tensor, value)
    if out is NotImplemented:
        refuse_operand(op, tensor, value)
    return out


def call(op: str, *values, **attributes):
    """One op of the catalog; at least one value is a tensor."""
    tensor = next((value for value in values if isinstance(value, _tessera.Tensor)), None)
    if tensor is None:
        shown = ", ".join(type(value).__name__ for value in values)
        raise ArgumentError(f"{op}: needs a Tensor among its operands, not {shown}; make one with ts.asarray or distribute_tensor")
    return _tessera.call(OPS[op], tuple(as_operand(op, tensor, value) for value in values), **attributes)


def call_on_own(op: str, own, value):
    """An op on a tensor that the calling function made and does not use again: the result may take its memory."""
    return _tessera.call_on_own(OPS[op], own, as_operand(op, own, value))


def no_dim(op: str, unknown: dict, known=()) -> None:
    if "dim" in unknown:
        raise ArgumentError(f"{op}: got dim=; the array API calls it axis=")
    if "keepdim" in unknown:
        raise ArgumentError(f"{op}: got keepdim=; the array API calls it keepdims=")
    if unknown:
        raise ArgumentError(f"{op}: unexpected arguments {', '.join(unknown)}{suggestion(next(iter(unknown)), known)}")


def axes_of(op: str, axis, ndim: int) -> list[int]:
    """Normalised and increasing."""
    if axis is None:
        return list(range(ndim))
    axes = integers(axis, "axis", op)
    for a in axes:
        if not -ndim <= a < ndim:
            raise IndexOutOfRangeError(f"{op}: axis {a} is out of range for {ndim} dims")
    axes = sorted(a % ndim for a in axes)
    if len(set(axes)) != len(axes):
        raise InvalidArgumentError(f"{op}: axis {axis} names a dim twice")
    return axes
