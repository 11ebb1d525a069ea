"""Products of two tensors over any letters: einsum and what is said by it."""

from __future__ import annotations

import builtins
import operator
from functools import reduce
from itertools import count
from string import ascii_letters

import numpy as np

import _tessera
from ._dtypes import bool as bool_dtype, numpy_of
from ._errors import ArgumentError, DTypeError, IndexOutOfRangeError, InvalidArgumentError, named
from ._mesh import integers
from _tessera_ops import any, conj, diagonal, matmul, multiply, sum  # noqa: A004
from ._ops import _document, astype, permute_dims
from ._tensor import as_operand, call, call_on_own


def _tensors(name: str, operands) -> None:
    for x in operands:
        if not isinstance(x, _tessera.Tensor):
            raise ArgumentError(f"{name}: takes tensors, not {type(x).__name__}; make one with ts.asarray or distribute_tensor")


def _product(x1, x2, left: str, right: str, output: str, name: str = "einsum", **precision):
    """The product that the user called `name`."""
    with named(name):
        return call("einsum", x1, x2, notation=f"{left},{right}->{output}", **precision)


def _fresh(used: str) -> str:
    return "".join(letter for letter in ascii_letters if letter not in used)


class _Notation:
    """An einsum's letters by operand, and those of the output; "..." becomes letters of its own."""

    def __init__(self, notation, operands):
        if not isinstance(notation, str):
            raise ArgumentError(f"einsum: the notation is {notation!r}, not a text")
        text = notation.replace(" ", "")
        inputs, arrow, output = text.partition("->")
        parts = inputs.split(",")
        if len(parts) != len(operands):
            raise InvalidArgumentError(f"einsum: {notation!r} is for {len(parts)} operands, not {len(operands)}")
        for part in [*parts, output]:
            if part.count("...") > 1:
                raise InvalidArgumentError(f"einsum: ... stands twice in {part!r} of {notation!r}")
        fresh = _fresh(text)
        bare = [part.replace("...", "") for part in parts]
        self.shared = ""
        for part, letters, x in zip(parts, bare, operands):
            if "..." in part:
                dims = x.ndim - len(letters)
                if dims < 0:
                    raise InvalidArgumentError(f"einsum: {notation!r} has too many letters for {x._spec}")
                self.shared = max(self.shared, fresh[:dims], key=len)
        for i, (part, x) in enumerate(zip(parts, operands)):
            dims = x.ndim - len(bare[i])
            parts[i] = part.replace("...", self.shared[len(self.shared) - dims:] if dims > 0 else "")
        if not arrow:
            letters = "".join(bare)
            output = "..." + "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
        if self.shared and "..." not in output:
            raise InvalidArgumentError(
                f"einsum: ... of {notation!r} stands for {len(self.shared)} dims, and must stand in the output too")
        self.inputs, self.output = parts, output.replace("...", self.shared)
        self._check(notation, operands)

    def _check(self, notation, operands):
        for letters, x in zip(self.inputs + [self.output], [*operands, None]):
            if not builtins.all(letter in ascii_letters for letter in letters):
                raise InvalidArgumentError(f"einsum: {notation!r} is no notation like mk,kn->mn")
            if x is not None and len(letters) != x.ndim:
                raise InvalidArgumentError(f"einsum: {letters!r} of {notation!r} has other dims than {x._spec}")
            if len(set(letters)) != len(letters):
                if x is None:
                    raise InvalidArgumentError(f"einsum: the output of {notation!r} has a letter twice")
        missing = set(self.output) - set("".join(self.inputs))
        if missing:
            raise InvalidArgumentError(f"einsum: {min(missing)!r} of the output of {notation!r} is in no operand")


def _common_dtype(operands):
    """The dtypes of all operands before anything is multiplied or added up: each integer is promoted with the floats, not with
    another integer first (i8 and u8 are i16, which beside bf16 is f32; each of the two beside bf16 is bf16)."""
    try:
        return numpy_of(reduce(_tessera.promote, sorted((x._dtype for x in operands), key=lambda d: numpy_of(d).kind in "biu")))
    except DTypeError as error:
        raise DTypeError(f"einsum: {', '.join(x._spec for x in operands)}: {error}") from None


def _sum_out(x, letters: str, kept, dtype):
    """Sums over the letters that are not in `kept`, in that dtype; of bool, whether any is true."""
    axes = tuple(d for d, letter in enumerate(letters) if letter not in kept)
    if not axes:
        return x, letters
    total = any(x, axis=axes) if dtype == bool_dtype else sum(x, axis=axes, dtype=dtype)
    return total, "".join(letter for letter in letters if letter in kept)


def _stretched(x, letters: str, y, other: str) -> set[str]:
    """Letters along which y, of extent 1, is broadcast to x: summed over, they are a sum of x."""
    return {letter for d, letter in enumerate(letters)
            if letter in other and y.shape[other.index(letter)] == 1 != x.shape[d]}


def einsum(notation, /, *operands, precision="full"):
    _tensors("einsum", operands)
    if not operands:
        raise ArgumentError("einsum: takes a notation and tensors")
    if precision not in ("full", "tf32"):
        raise InvalidArgumentError(f"einsum: precision is {precision!r}, not 'full' or 'tf32'")
    with named("einsum"):
        return _einsum(notation, operands, precision)


_document(einsum, "einsum")


def _without_repeats(letters: str, x):
    """Each letter once: where one stands twice, the diagonal of its two dims."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            if x.shape[first] != x.shape[second]:
                raise InvalidArgumentError(
                    f"einsum: {letter!r} is {x.shape[first]} and {x.shape[second]} of {x._spec}")
            rest = [d for d in range(x.ndim) if d not in (first, second)]
            x = diagonal(permute_dims(x, [*rest, first, second]))
            letters = "".join(letters[d] for d in rest) + letter
    return letters, x


def _order(inputs: list[str], output: str, operands: list) -> list[tuple[int, int]]:
    """Which two to multiply next, by the fewest multiplications of all (numpy.einsum_path)."""
    if len(operands) < 3:
        return [(0, 1)] * (len(operands) - 1)
    shown = [np.broadcast_to(np.empty((), np.int8), x.shape) for x in operands]
    method = "optimal" if len(operands) <= 6 else "greedy"
    path, _ = np.einsum_path(f"{','.join(inputs)}->{output}", *shown, optimize=method)
    pairs = []
    left = len(operands)
    for step in path[1:]:       # steps of more than two, which no product is faster for, go two by two
        places = sorted(step)
        while len(places) > 1:
            pairs.append((places[0], places[1]))
            left -= 1
            taken = set(places[:2])
            places = sorted([place - builtins.sum(t < place for t in taken) for place in places[2:]] + [left - 1])
    return pairs


def _einsum(notation, given, precision):
    operands = given
    parsed = _Notation(notation, operands)
    output = parsed.output
    dtype = _common_dtype(operands)
    pairs = [_without_repeats(letters, x) for letters, x in zip(parsed.inputs, operands)]
    inputs, operands = [letters for letters, _ in pairs], [x for _, x in pairs]
    if len(operands) == 1:
        x, letters = _sum_out(operands[0], inputs[0], output, dtype)
        if letters == output and x is not given[0]:
            return x
        out = permute_dims(x, [letters.index(letter) for letter in output])
        return out._copy() if letters == output else out
    if len(operands) > 2:   # of two the product itself takes the common dtype
        operands[0] = astype(operands[0], dtype)
    for i, j in _order(inputs, output, operands):
        y, other = operands.pop(j), inputs.pop(j)
        x, letters = operands.pop(i), inputs.pop(i)
        # Letters that nobody needs any more are summed over as early as that is exact.
        later = set(output).union(*inputs)
        of_x = set(other) - _stretched(x, letters, y, other)
        of_y = set(letters) - _stretched(y, other, x, letters)
        x, letters = _sum_out(x, letters, later | of_x, dtype)
        y, other = _sum_out(y, other, later | of_y, dtype)
        both = letters + "".join(letter for letter in other if letter not in letters)
        kept = output if not operands else "".join(letter for letter in both if letter in later)
        operands.append(_product(x, y, letters, other, kept, precision=precision))
        inputs.append(kept)
    return operands[0]


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
    letters = _fresh("k")[:builtins.max(x1.ndim, x2.ndim) - 1]
    parts = []
    for x in (x1, x2):
        own = letters[len(letters) - (x.ndim - 1):]
        at = x.ndim + axis
        parts.append(own[:at] + "k" + own[at:])
    if x1.dtype.kind == "c":
        x1 = conj(x1)
    return _product(x1, x2, *parts, letters, "vecdot")


def _lists_of_axes(axes, x1, x2) -> list[list[int]]:
    try:
        parts = [integers(part, "axes", "tensordot") for part in axes]
    except TypeError:
        parts = []
    if len(parts) != 2:
        raise InvalidArgumentError(f"tensordot: axes is {axes!r}; it must be an integer or two lists of integers")
    for part, x in zip(parts, (x1, x2)):
        for a in part:
            if not -x.ndim <= a < x.ndim:
                raise IndexOutOfRangeError(f"tensordot: axis {a} is out of range for {x.ndim} dims")
    return [[a % x.ndim for a in part] for part, x in zip(parts, (x1, x2))]


def tensordot(x1, x2, /, axes=2):
    """tensordot(x1, x2, /, axes=2)

    Sums products over the last `axes` axes of x1 and the first of x2, or over the pairs of axes of two lists."""
    _tensors("tensordot", (x1, x2))
    try:
        axes = operator.index(axes)
    except TypeError:
        first, second = _lists_of_axes(axes, x1, x2)
    else:
        if not 0 <= axes <= builtins.min(x1.ndim, x2.ndim):
            raise InvalidArgumentError(f"tensordot: axes {axes} do not fit {x1._spec} and {x2._spec}")
        first, second = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    if len(first) != len(second) or len(set(first)) != len(first) or len(set(second)) != len(second):
        raise InvalidArgumentError(f"tensordot: axes {axes!r} are no pairs of axes")
    fresh = count()
    left = [ascii_letters[next(fresh)] for _ in range(x1.ndim)]
    right = [left[first[second.index(d)]] if d in second else ascii_letters[next(fresh)] for d in range(x2.ndim)]
    kept = [left[d] for d in range(x1.ndim) if d not in first] + [right[d] for d in range(x2.ndim) if d not in second]
    return _product(x1, x2, *("".join(letters) for letters in (left, right, kept)), "tensordot")


for _function in (bmm, mm, addmm, outer, vecdot, tensordot):
    _function.__module__ = "tessera"
