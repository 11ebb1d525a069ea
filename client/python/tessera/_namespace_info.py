"""The array API's questions about dtypes and the namespace. Nothing here asks a server."""

from __future__ import annotations

import builtins
import dataclasses

import numpy as np

import _tessera
from ._dtypes import NAMES, code_of, is_floating, numpy_of
from ._errors import ArgumentError, DTypeError, InvalidArgumentError, TesseraError
from ._session import mesh_for


@dataclasses.dataclass(frozen=True)
class finfo_object:  # noqa: N801 - the array API's name
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class iinfo_object:  # noqa: N801
    bits: int
    max: int
    min: int
    dtype: np.dtype


def _dtype_of(name: str, value):
    return value.dtype if isinstance(value, _tessera.Tensor) else numpy_of(code_of(getattr(value, "dtype", value), name))


def finfo(dtype, /):
    """Limits of a float dtype, or of a tensor's; of a complex one those of its parts."""
    dtype = _dtype_of("finfo", dtype)
    if dtype.kind == "c":
        dtype = np.dtype(f"float{dtype.itemsize * 4}")
    if not is_floating(dtype, "finfo"):
        raise DTypeError(f"finfo: {dtype} is no float dtype")
    if dtype.kind == "f":
        info = np.finfo(dtype)
    else:
        import ml_dtypes
        info = ml_dtypes.finfo(dtype)
    return finfo_object(int(info.bits), float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), dtype)


def iinfo(dtype, /):
    """Limits of an integer dtype, or of a tensor's."""
    dtype = _dtype_of("iinfo", dtype)
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo: {dtype} is no integer dtype")
    info = np.iinfo(dtype)
    return iinfo_object(int(info.bits), int(info.max), int(info.min), dtype)


def result_type(*values):
    """The dtype that tensors, dtypes and Python numbers have together, as an op of them gives."""
    dtypes, numbers = [], []
    for value in values:
        if isinstance(value, (builtins.bool, int, float, complex)) and not isinstance(value, np.generic):
            numbers.append(value)
        else:
            dtypes.append(_dtype_of("result_type", value))
    if not dtypes:
        raise ArgumentError("result_type: needs a tensor or a dtype")
    code = code_of(dtypes[0], "result_type")
    for dtype in dtypes[1:]:
        joined = _tessera.promote(code, code_of(dtype, "result_type"))
        if joined < 0:
            raise DTypeError(f"result_type: {numpy_of(code)} and {dtype} have no common dtype")
        code = joined
    result = numpy_of(code)
    for number in numbers:
        if isinstance(number, complex) and result.kind != "c":
            narrow = is_floating(result, "result_type") and result.itemsize <= 4
            result = np.dtype(np.complex64 if narrow else np.complex128)
        elif isinstance(number, float) and result.kind != "c" and not is_floating(result, "result_type"):
            result = np.dtype(np.float64)
        elif isinstance(number, int) and not isinstance(number, builtins.bool) and result.kind == "b":
            result = np.dtype(np.int64)
    return result


def can_cast(from_, to, /):
    """Whether a dtype, or a tensor's, goes to another one by promotion."""
    first, second = code_of(_dtype_of("can_cast", from_), "can_cast"), code_of(_dtype_of("can_cast", to), "can_cast")
    return _tessera.promote(first, second) == second


_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}


def isdtype(dtype, kind):
    """Whether a dtype is another one, or of a kind, or of one of a tuple of them."""
    dtype = numpy_of(code_of(dtype, "isdtype"))
    letter = "f" if is_floating(dtype, "isdtype") else dtype.kind
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for one in kinds:
        if isinstance(one, str) and one not in NAMES:
            if one not in _KINDS:
                raise InvalidArgumentError(f"isdtype: kind is {one!r}; kinds are {', '.join(_KINDS)}")
            if letter in _KINDS[one]:
                return True
        elif numpy_of(code_of(one, "isdtype")) == dtype:
            return True
    return False


class _Namespace:
    """__array_namespace_info__: what the array API's inspection asks."""

    def capabilities(self):
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 16}

    def default_device(self):
        try:
            return mesh_for(None, "default_device")
        except TesseraError:     # no session is open
            return None

    def devices(self):
        mesh = self.default_device()
        return [] if mesh is None else [mesh]

    def default_dtypes(self, *, device=None):
        return {"real floating": np.dtype(np.float64), "complex floating": np.dtype(np.complex128),
                "integral": np.dtype(np.int64), "indexing": np.dtype(np.int64)}

    def dtypes(self, *, device=None, kind=None):
        every = {"bool": np.dtype(np.bool_)}
        every |= {f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
        every |= {f"float{bits}": np.dtype(f"float{bits}") for bits in (32, 64)}
        every |= {f"complex{bits}": np.dtype(f"complex{bits}") for bits in (64, 128)}
        return every if kind is None else {name: dtype for name, dtype in every.items() if isdtype(dtype, kind)}


def __array_namespace_info__():
    return _Namespace()
