"""Operands of an op: tensors of one mesh's session, numbers, CPU tensors without dims; and torch's promotion."""

from __future__ import annotations

import torch

import _tessera
from .._placements import replicated
from .._catalog import OPS
from ._dtypes import BOOL, CODES, FLOATS, INTEGERS, code
from ._placing import elsewhere
from ._tensor import Tensor, handle_of
from ._placing import full_like

_call = _tessera.call
_ASTYPE, _MOVE = OPS["astype"], OPS["redistribute"]


def operand(op: str, value, beside=None):
    """A handle or a number. A CPU tensor without dims is a number, as it is for torch; with dims it is refused. A tensor without
    dims that needs no gradient is brought to the mesh of what it stands beside (a norm, a step, a loss scale of pipelines)."""
    if type(value) is Tensor or isinstance(value, Tensor):
        one = handle_of(value)
        if value.ndim == 0 and isinstance(beside, Tensor) and (beside.ndim or beside.requires_grad) and not value.requires_grad:
            return number_beside(one, handle_of(beside))
        return one
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 and value.device.type == "cpu":
            return value.item()
        raise elsewhere(op, value, beside)
    return value


def number_beside(one, beside):
    """The handle of a number, on the mesh of another one of its session."""
    if one._mesh.same(beside._mesh) or one._session_key != beside._session_key:
        return one
    return _call(_MOVE, (one,), mesh=beside._mesh, placements=replicated(beside._mesh_ndim))


def handle(op: str, value, beside=None):
    """As operand, and a number becomes a tensor beside `beside`."""
    value = operand(op, value, beside)
    if isinstance(value, _tessera.Tensor):
        return value
    kind = torch.result_type(torch.empty(0, dtype=torch.bool), value)
    return full_like(handle_of(beside), (), CODES[kind], value)


def cast(one, dtype: int):
    """The handle in a dtype; of a number itself."""
    if not isinstance(one, _tessera.Tensor) or one._dtype == dtype:
        return one
    return _call(_ASTYPE, (one,), dtype=dtype)


def floating(one):
    """The handle, as a float of torch's default dtype where it is none."""
    return one if one._dtype in FLOATS else _call(_ASTYPE, (one,), dtype=code(None))


_REACH = {CODES[kind]: (torch.iinfo(kind).min, torch.iinfo(kind).max) for kind in CODES if CODES[kind] in INTEGERS}


def wrapped(value: int, dtype: int) -> int:
    """An integer as a dtype of integers has it that is too narrow, which torch makes of it without a word."""
    low, high = _REACH[dtype]
    return value if low <= value <= high else (value - low) % (high - low + 1) + low


def filled(value: int, dtype: int) -> int:
    """An integer that a tensor is filled with: a negative one wraps where integers have no sign; what else doesn't fit is the op's
    error, as it is torch's."""
    low, high = _REACH[dtype]
    return value + high + 1 if low == 0 and -high <= value < 0 else value


def within(value: int, dtype: int) -> int:
    """An integer as a bound of a dtype's."""
    low, high = _REACH[dtype]
    return min(max(value, low), high)


def number_as(value, dtype: int):
    """A number of the category that a dtype of the catalog has: a bool beside integers is an integer, an integer beside floats
    a float, and one beside integers that don't reach so far wraps."""
    if dtype == BOOL:
        return bool(value)
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, int) and dtype in INTEGERS:
        return wrapped(value, dtype)
    return float(value) if isinstance(value, int) and dtype in FLOATS and not isinstance(value, bool) else value


def promoted(op: str, a, b, is_true_divide: bool = False):
    """Both operands of a binary op in the dtype that torch's promotion gives them: tensors with dims before those without,
    and these before numbers."""
    ha, hb = operand(op, a, b), operand(op, b, a)
    is_a, is_b = isinstance(ha, _tessera.Tensor), isinstance(hb, _tessera.Tensor)
    if is_a and is_b:
        if not (a.ndim or b.ndim or b.requires_grad):
            hb = number_beside(hb, ha)
        if ha._dtype == hb._dtype and not (is_true_divide and ha._dtype not in FLOATS):
            return ha, hb
    elif is_a and type(hb) in (int, float) and ha._dtype in FLOATS:
        return ha, hb
    elif is_b and type(ha) in (int, float) and hb._dtype in FLOATS:
        return ha, hb
    elif is_a and type(hb) is int and ha._dtype in INTEGERS and not is_true_divide:
        return ha, number_as(hb, ha._dtype)
    elif is_b and type(ha) is int and hb._dtype in INTEGERS and not is_true_divide:
        return number_as(ha, hb._dtype), hb
    kind = torch.result_type(a, b)
    if is_true_divide and not (kind.is_floating_point or kind.is_complex):
        kind = torch.get_default_dtype()
    wanted = CODES[kind]
    return (cast(ha, wanted) if is_a else number_as(ha, wanted)), (cast(hb, wanted) if is_b else number_as(hb, wanted))
