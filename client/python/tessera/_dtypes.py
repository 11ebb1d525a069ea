"""Between NumPy dtypes and the numbers that the catalog uses."""

from __future__ import annotations

import numpy as np

try:
    from ml_dtypes import bfloat16
except ImportError:     # bf16 alone needs it
    bfloat16 = None

import _tessera
from ._errors import ArgumentError, DTypeError, UnimplementedError

# Position in the list = number on the wire.
_ROWS = _tessera.dtype_names()
NAMES = tuple(name for name, _ in _ROWS)
_IMPLEMENTED = tuple(implemented for _, implemented in _ROWS)

_NUMPY = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128),
}
if bfloat16 is not None:
    bfloat16 = _NUMPY["bf16"] = np.dtype(bfloat16)

bool = np.dtype(np.bool_)  # noqa: A001 - the array API's name
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))

_CODE_OF = {_NUMPY[name]: code for code, name in enumerate(NAMES) if name in _NUMPY}
_BY_CODE = {code: dtype for dtype, code in _CODE_OF.items()}


def supported() -> str:
    return ", ".join(name for name, implemented in _ROWS if implemented)


# What the notation and NumPy both have a meaning for.
_AMBIGUOUS = {"i8": ("int8", "int64"), "u8": ("uint8", "uint64")}


def code_of(dtype, op: str) -> int:
    """The number of anything that NumPy, or the notation ("f32"), calls a dtype."""
    if isinstance(dtype, str) and dtype in _AMBIGUOUS:
        here, there = _AMBIGUOUS[dtype]
        raise DTypeError(f'{op}: dtype "{dtype}" is {here} in Tessera\'s notation and {there} in NumPy\'s; say "{here}" or "{there}"')
    if isinstance(dtype, str) and dtype in NAMES:
        code = NAMES.index(dtype)
    else:
        try:
            code = _CODE_OF.get(np.dtype(dtype).newbyteorder("="))
        except TypeError:
            code = None
        if code is None and str(dtype) == "bfloat16":
            code = NAMES.index("bf16")
        if code is None:
            raise DTypeError(f"{op}: unknown dtype {dtype!r}; supported are {supported()}")
    if NAMES[code] == "bf16" and bfloat16 is None:
        raise DTypeError(f"{op}: NumPy has bf16 by the package ml_dtypes, which is not installed")
    if not _IMPLEMENTED[code]:
        # Both: the dtype is wrong here, and it is a reserved one.
        raise ReservedDTypeError(f"{op}: dtype {NAMES[code]} is not supported yet; supported are {supported()}")
    return code


def is_floating(dtype, op: str) -> bool:
    return NAMES[code_of(dtype, op)].lstrip("b").startswith("f")


def numpy_of(code: int) -> np.dtype:
    return _BY_CODE[code]


class ReservedDTypeError(DTypeError, UnimplementedError):
    """A dtype that has a name and a number, and no kernels yet."""


ReservedDTypeError.__module__ = "tessera"


def buffer_of(array: np.ndarray) -> np.ndarray:
    """What has a buffer of Python, which bf16 hasn't: its bits."""
    return array.view(np.uint16) if bfloat16 is not None and array.dtype == bfloat16 else array


def refuse_masked(value, op: str) -> None:
    """Of a masked array, also one in a list, only the data would arrive, where it is masked too."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{op}: a tensor has no mask, and the values under it would count; call .filled(value) of the "
                            "masked array first")
    if isinstance(value, (list, tuple)):
        for part in value:
            if isinstance(part, (list, tuple, np.ma.MaskedArray)):
                refuse_masked(part, op)


def array_of(value, op: str, dtype=None) -> np.ndarray:
    """`value` as a NumPy array of a supported dtype in native byte order. Copies only if it must."""
    refuse_masked(value, op)
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        array = np.from_dlpack(value)
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DTypeError(f"{op}: not an array: {error}") from None
    if dtype is not None:
        wanted = numpy_of(code_of(dtype, op))
        if array.dtype != wanted:
            array = array.astype(wanted)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    code_of(array.dtype, op)
    return array
