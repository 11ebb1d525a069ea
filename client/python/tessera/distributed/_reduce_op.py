"""ReduceOp: how the values of a group become one."""

from __future__ import annotations

import numpy as np

from .._errors import DTypeError, InvalidArgumentError

_KINDS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "product", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
          "BXOR": "bxor", "PREMUL_SUM": "sum"}


class ReduceOp:
    """ReduceOp.SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR, and ReduceOp.premul_sum(factor): the sum of the values times the
    factor. Of bools SUM and MAX are whether any is true, PRODUCT and MIN whether all are."""

    __slots__ = ("name", "factor")

    def __init__(self, name: str, factor=None):
        self.name, self.factor = name, factor

    @staticmethod
    def premul_sum(factor) -> "ReduceOp":
        """The sum of the values, each of them times the factor: a number, or a Tensor that broadcasts with them."""
        return ReduceOp("PREMUL_SUM", factor)

    @property
    def partial(self) -> str:
        """The reduce_op of the Partial that stays pending until it is reduced."""
        return _KINDS[self.name]

    def __eq__(self, other):
        return isinstance(other, ReduceOp) and self.name == other.name and self.factor is other.factor

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"ReduceOp.{self.name}" if self.factor is None else f"ReduceOp.premul_sum({self.factor!r})"


for _name in _KINDS:
    if _name != "PREMUL_SUM":
        setattr(ReduceOp, _name, ReduceOp(_name))


def reduce_op_of(function: str, op, dtype) -> ReduceOp:
    """The given ReduceOp, also torch's or a name, if it is defined for the dtype."""
    known = op
    if not isinstance(op, ReduceOp):
        name = (op if isinstance(op, str) else str(op).rpartition(".")[2]).upper()
        known = getattr(ReduceOp, name, None) if name in _KINDS else None
    if not isinstance(known, ReduceOp):
        names = ", ".join(f"ReduceOp.{name}" for name in _KINDS if name != "PREMUL_SUM")
        raise InvalidArgumentError(f"{function}: op is {op!r}; it is one of {names}, ReduceOp.premul_sum(factor)")
    kind = np.dtype(dtype).kind
    if known.name in ("BAND", "BOR", "BXOR") and kind not in "iub":
        raise DTypeError(f"{function}: {known!r} is of the bits of integers, or of bools; the values are {dtype}")
    if known.name in ("MIN", "MAX") and kind == "c":
        raise DTypeError(f"{function}: {known!r} of {dtype}: complex numbers have no order")
    if known.name == "AVG" and kind in "iub":
        raise DTypeError(f"{function}: {known!r} of {dtype} is no whole number; take ReduceOp.SUM, and divide as you mean it")
    return known
