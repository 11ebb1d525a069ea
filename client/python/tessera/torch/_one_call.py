"""Rows that are one call of the catalog: what the compiled device is told of them, so that it makes the call without Python.

>>> one_call("sum", FLOATS, dim="dims", keepdim="keepdims")     # sum.dim_IntList(x, [1], True): sum(x, dims=[1], keepdims=true)

one_call.h says what is asked of the arguments; where that isn't so, the row's function runs, which says the same in Python.
"""

from __future__ import annotations

import enum
from typing import Callable, NamedTuple

import _tessera
from .._catalog import OPS
from ._dtypes import CODES, FLOATS, FLOATS8

ALL = frozenset(CODES.values()) - FLOATS8
REAL_FLOATS = frozenset(code for dtype, code in CODES.items() if dtype.is_floating_point) - FLOATS8


class Settled(enum.IntEnum):
    """Which placements the operands may have: any; none that is pending; nor, of the first one, a cut along a dim of the call."""

    ANY = 0
    REDUCED = 1
    WHOLE = 2


ATTRIBUTES = {name: (number, kind) for number, (name, kind) in enumerate(_tessera.attributes())}
# How an attribute is read (Taken of one_call.h): dims and the last dims of a norm are brought in order.
_DIMS, _ROWS, _SCALAR, _ADDED = 0, 1, 6, 7
_OF_KIND = {"flag": 2, "integer": 3, "number": 4, "text": 5}


class OneCall(NamedTuple):
    """As the device reads it (Declared of one_call.h)."""

    op: int | None              # None: the result is the operand's value
    dtypes: int                 # a bit for each of the catalog's
    number_dtypes: int          # beside which a number may stand
    settled: int
    first_alike: int
    later: Callable | None
    takes: tuple                # (argument, how it is read, attribute's number)
    is_product: bool
    notations: tuple            # by the number of the first operand's dims, from 1; or one
    notation: int = ATTRIBUTES["notation"][0]
    add: int = OPS["add"]


def _mask(dtypes) -> int:
    return sum(1 << code for code in dtypes)


def _take(argument: str, attribute: str) -> tuple:
    if attribute in ("dims", "rows"):
        return argument, _ROWS if attribute == "rows" else _DIMS, ATTRIBUTES["dims"][0]
    if attribute in ("scalars", "added"):
        return argument, _SCALAR if attribute == "scalars" else _ADDED, 0
    number, kind = ATTRIBUTES[attribute]
    return argument, _OF_KIND[kind], number


def one_call(op: str | None, dtypes=ALL, *, settled: Settled = Settled.ANY, first_alike: int = 0, later: Callable | None = None,
             is_product: bool = False, notations: tuple = (), **takes: str) -> OneCall:
    """op(operands, attributes) for operands of one of the dtypes. first_alike: the operands before have any dtype. later: the function
    that gives the results after the first, when one is read: later(list, handle, dims, number, which), with a list that they share.
    is_product: of f32 by TF32 it is the row's. takes: torch's arguments and the attributes that they are; "rows" are the dims that
    normalized_shape names, "added" is a tensor that is added to the result, by a second call."""
    return OneCall(None if op is None else OPS[op], _mask(dtypes), _mask(set(dtypes) & FLOATS), int(settled), first_alike, later,
                   tuple(_take(*one) for one in takes.items()), is_product, notations)
