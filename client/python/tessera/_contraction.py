"""Products of two tensors over any letters: einsum and what is said by it."""

from __future__ import annotations

import builtins
import operator
from string import ascii_letters

import numpy as np

import _tessera
from ._dtypes import bool as bool_dtype, numpy_of
from ._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError, named
from ._mesh import integers
from _tessera_ops import any, conj, diagonal, matmul, multiply, sum  # noqa: A004
from ._ops import _document, astype, permute_dims
from ._calls import as_operand, call, call_on_own


def _tensors(name: str, operands) -> None:
    for x in operands:
        if not isinstance(x, _tessera.Tensor):
            raise ArgumentError(f"{name}: takes tensors, not {type(x).__name__}; make one with ts.asarray or distribute_tensor")


def _product(x1, x2, left: str, right: str, output: str, name: str = "einsum", **precision):
    """The product that the user called `name`."""
    with named(name):
        return call("einsum", x1, x2, notation=f"{left},{right}->{output}", **precision)


def einsum(notation, /, *operands, precision="full"):
    _tensors("einsum", operands)
    if not operands:
        raise ArgumentError("einsum: takes a notation and tensors")
    if precision not in ("full", "tf32"):
        raise InvalidArgumentError(f"einsum: precision is {precision!r}, not 'full' or 'tf32'")
    with named("einsum"):
        return _einsum(notation, operands, precision)


_document(einsum, "einsum")


def _einsum(notation, operands, precision):
    if not isinstance(notation, str):
        raise ArgumentError(f"einsum: the notation is {notation!r}, not a text")
    dtype, result, steps = _tessera.einsum_steps(notation, operands)
    dtype = numpy_of(dtype)
    slots = list(operands)
    for kind, slot, other, dims, product in steps:
        x = slots[slot]
        if kind == "product":
            x = call("einsum", x, slots[other], notation=product, precision=precision)
        elif kind == "sum":
            x = any(x, axis=tuple(dims)) if dtype == bool_dtype else sum(x, axis=tuple(dims), dtype=dtype)
        elif kind == "cast":
            x = astype(x, dtype)
        else:
            x = permute_dims(x, dims)
            x = diagonal(x) if kind == "diagonal" else x
        slots[slot] = x
    out = slots[result]
    return permute_dims(out, range(out.ndim))._copy() if out is operands[0] else out


def bmm(x1, x2, /):
    """bmm(x1, x2, /)

    Multiplies two batches of matrices: bmk,bkn->bmn, nothing is broadcast."""
    _tensors("bmm", (x1, x2))
    if x1.ndim != 3 or x2.ndim != 3:
        raise InvalidArgumentError(f"bmm: takes two batches of matrices: a is {x1._spec}, b is {x2._spec}")
    if x1.shape[0] != x2.shape[0]:
        raise InvalidArgumentError(
            f"bmm: the batches differ, {x1.shape[0]} and {x2.shape[0]} matrices: a is {x1._spec}, b is {x2._spec}")
    return _product(x1, x2, "bmk", "bkn", "bmn", "bmm")


def _check_matrices(name: str, x1, x2) -> None:
    _tensors(name, (x1, x2))
    if x1.ndim != 2 or x2.ndim != 2:
        raise InvalidArgumentError(f"{name}: takes two matrices: a is {x1._spec}, b is {x2._spec}")


def mm(x1, x2, /):
    """mm(x1, x2, /)

    Multiplies two matrices."""
    _check_matrices("mm", x1, x2)
    with named("mm"):
        return matmul(x1, x2)


def _factor(name: str, beside, value):
    """A number that scales a tensor; of 0 dims it may be a tensor, which isn't read here."""
    if getattr(value, "ndim", 0) == 0:
        number = value[()] if isinstance(value, np.ndarray) else value
        if isinstance(as_operand("addmm", beside, number), (_tessera.Tensor, builtins.bool, int, float, complex, tuple)):
            return number
    raise ArgumentError(f"addmm: {name} is {type(value).__name__} of shape {tuple(value.shape)}, not a number")


def _is_number(value, number: int) -> builtins.bool:
    return not isinstance(value, _tessera.Tensor) and value == number


def _addend(value, shape, beside, beta):
    """beta * value, to be added to a product of that shape; None where it adds nothing, and is checked all the same."""
    is_array = isinstance(value, (_tessera.Tensor, np.ndarray)) and value.ndim > 0
    if is_array and (len(value.shape) > len(shape) or builtins.any(
            n not in (1, whole) for n, whole in zip(value.shape[::-1], shape[::-1]))):
        text = "".join(str(list(value.shape)).split())
        raise InvalidArgumentError(f"input of shape {text} is not broadcast to the product, of shape [{shape[0]},{shape[1]}]")
    if isinstance(value, _tessera.Tensor) and value._session_key != beside._session_key:
        raise InvalidArgumentError(f"input, {value._spec}, is of another session; fetch it there and distribute it here")
    if not is_array:
        as_operand("addmm", beside, value)
    if _is_number(beta, 0):
        return None
    if isinstance(value, np.ndarray) and is_array:    # uploaded
        value = as_operand("addmm", beside, value)
    if _is_number(beta, 1):
        return value
    if isinstance(value, _tessera.Tensor) or isinstance(beta, _tessera.Tensor):
        return multiply(value, beta)
    with np.errstate(all="ignore"):
        return value * beta


def addmm(input, mat1, mat2, /, *, beta=1, alpha=1):  # noqa: A002 - the name that torch has
    """addmm(input, mat1, mat2, /, *, beta=1, alpha=1)

    beta * input + alpha * (mat1 @ mat2). The result has the product's shape, and input is broadcast to it; where beta is 0 it
    is not read. beta and alpha are numbers."""
    _check_matrices("addmm", mat1, mat2)
    with named("addmm"):
        beta, alpha = _factor("beta", mat1, beta), _factor("alpha", mat1, alpha)
        addend = _addend(input, (mat1.shape[0], mat2.shape[1]), mat1, beta)
        product = matmul(mat1, mat2)
        if not _is_number(alpha, 1):
            product = call_on_own("multiply", product, alpha)
        return product if addend is None else call_on_own("add", product, addend)


def outer(x1, x2, /):
    """outer(x1, x2, /)

    Multiplies each element of a vector with each of another."""
    _tensors("outer", (x1, x2))
    if x1.ndim != 1 or x2.ndim != 1:
        raise InvalidArgumentError(f"outer: takes two vectors: a is {x1._spec}, b is {x2._spec}")
    return _product(x1, x2, "i", "j", "ij", "outer")


def vecdot(x1, x2, /, *, axis=-1):
    """vecdot(x1, x2, /, *, axis=-1)

    Sums the products along an axis, counted from the end, of complex numbers with the conjugates of x1; the other axes are
    broadcast."""
    _tensors("vecdot", (x1, x2))
    try:
        axis = operator.index(axis)
    except TypeError:
        raise InvalidArgumentError(f"vecdot: axis is {axis!r}; it must be an integer") from None
    if not -builtins.min(x1.ndim, x2.ndim) <= axis < 0:
        raise IndexOutOfRangeError(f"vecdot: axis {axis!r} is no negative axis of {x1._spec} and {x2._spec}")
    letters = ascii_letters.replace("k", "")[:builtins.max(x1.ndim, x2.ndim) - 1]
    parts = []
    for x in (x1, x2):
        own = letters[len(letters) - (x.ndim - 1):]
        at = x.ndim + axis
        parts.append(own[:at] + "k" + own[at:])
    if x1.dtype.kind == "c":
        x1 = conj(x1)
    return _product(x1, x2, *parts, letters, "vecdot")


def _lists_of_axes(axes) -> list[list[int]]:
    try:
        parts = [integers(part, "axes", "tensordot") for part in axes]
    except TypeError:
        parts = []
    if len(parts) != 2:
        raise InvalidArgumentError(f"tensordot: axes is {axes!r}; it must be an integer or two lists of integers")
    return parts


def tensordot(x1, x2, /, axes=2):
    """tensordot(x1, x2, /, axes=2)

    Sums products over the last `axes` axes of x1 and the first of x2, or over the pairs of axes of two lists."""
    _tensors("tensordot", (x1, x2))
    try:
        axes = operator.index(axes)
    except TypeError:
        first, second = _lists_of_axes(axes)
    else:
        if not 0 <= axes <= builtins.min(x1.ndim, x2.ndim):
            raise InvalidArgumentError(f"tensordot: axes {axes} do not fit {x1._spec} and {x2._spec}")
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    with named("tensordot"):
        return call("einsum", x1, x2, notation=_tessera.tensordot_notation(x1.ndim, x2.ndim, first, second))


for _function in (bmm, mm, addmm, outer, vecdot, tensordot):
    _function.__module__ = "tessera"
