"""Between NumPy dtypes and the numbers that the catalog uses."""

from __future__ import annotations

import builtins

import numpy as np

try:
    from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2
except ImportError:     # these alone need it
    bfloat16 = float8_e4m3fn = float8_e5m2 = None

import _tessera
from ._errors import ArgumentError, DTypeError, InvalidArgumentError

# Position in the list = number on the wire.
NAMES = tuple(_tessera.dtype_names())

_NUMPY = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128),
}
# The dtypes of ml_dtypes, of which Python has no buffers: they come and go as their bits.
AS_BITS = {}
if bfloat16 is not None:
    bfloat16 = _NUMPY["bf16"] = np.dtype(bfloat16)
    float8_e4m3fn = _NUMPY["f8e4m3"] = np.dtype(float8_e4m3fn)
    float8_e5m2 = _NUMPY["f8e5m2"] = np.dtype(float8_e5m2)
    AS_BITS = {bfloat16: np.uint16, float8_e4m3fn: np.uint8, float8_e5m2: np.uint8}
_OF_ML_DTYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}

bool = np.dtype(np.bool_)  # noqa: A001 - the array API's name
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
complex64, complex128 = (np.dtype(f"complex{bits}") for bits in (64, 128))

_CODE_OF = {_NUMPY[name]: code for code, name in enumerate(NAMES) if name in _NUMPY}
_BY_CODE = {code: dtype for dtype, code in _CODE_OF.items()}


def supported() -> str:
    return ", ".join(NAMES)


# Names for which the notation and NumPy have different meanings.
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
        if code is None and str(dtype) in _OF_ML_DTYPES:
            code = NAMES.index(_OF_ML_DTYPES[str(dtype)])
        if code is None:
            raise DTypeError(f"{op}: unknown dtype {dtype!r}; supported are {supported()}")
    if bfloat16 is None and NAMES[code] in _OF_ML_DTYPES.values():
        raise DTypeError(f"{op}: NumPy has {NAMES[code]} by the package ml_dtypes, which is not installed")
    return code


def is_floating(dtype, op: str) -> bool:
    """Whether a dtype is one of real numbers."""
    return NAMES[code_of(dtype, op)].lstrip("b").startswith("f")


def numpy_of(code: int) -> np.dtype:
    return _BY_CODE[code]


def buffer_of(array: np.ndarray) -> np.ndarray:
    """An array that has a buffer of Python; the dtypes of ml_dtypes have none, so their bits."""
    bits = AS_BITS.get(array.dtype)
    return array if bits is None else array.view(bits)


def refuse_masked(value, op: str) -> None:
    """Refuses a masked array, also one in a list: its data alone would arrive, where it is masked, too."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(f"{op}: a tensor has no mask, and the values under it would count; call .filled(value) of the "
                            "masked array first")
    if isinstance(value, (list, tuple)):
        for part in value:
            if isinstance(part, (list, tuple, np.ma.MaskedArray)):
                refuse_masked(part, op)


def _described(value) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_number(op: str, what: str, number, dtype) -> None:
    """That an integer is one of the numbers of a dtype of integers; floats are converted as everywhere."""
    code = code_of(dtype, op)
    wanted = numpy_of(code)
    if wanted.kind not in "iu" or not isinstance(number, int):
        return
    range_ = np.iinfo(wanted)
    if not range_.min <= number <= range_.max:
        raise DTypeError(f"{op}: {what} {number} doesn't fit dtype {NAMES[code]}, whose numbers are {range_.min} to {range_.max}")


def _array_of_objects(array: np.ndarray, value, op: str, wanted) -> np.ndarray:
    """Values that NumPy has only as Python's objects: integers over 64 bits, which a float has, and what is no number."""
    usual = complex128 if builtins.any(isinstance(one, complex) for one in array.flat) else float64
    for one in array.flat:
        if not isinstance(one, (int, float, complex, np.number)):
            raise DTypeError(f"{op}: {_described(one)} is no number, and a tensor has numbers alone")
        if wanted is None or wanted.kind in "iub":
            if isinstance(one, int):
                check_number(op, "an element", one, np.int64 if wanted is None else wanted)
    try:
        return array.astype(wanted if wanted is not None and wanted.kind in "fc" else usual)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{op}: {_described(value)}: {error}") from None


def _check_fits(array: np.ndarray, op: str, wanted: np.dtype) -> None:
    """That the integers which a program wrote are numbers of the dtype, as NumPy wants it; those of an array wrap."""
    if array.dtype.kind not in "iu" or wanted.kind not in "iu" or not array.size:
        return
    for one in (int(array.min()), int(array.max())):
        check_number(op, "an element", one, wanted)


def _integers_of(value, array: np.ndarray, wanted: np.dtype, op: str) -> np.ndarray:
    """A list of integers on both sides of 2^63, which NumPy makes floats of unless it is told the dtype."""
    if wanted.kind not in "iu" or array.dtype != float64 or not isinstance(value, (list, tuple)):
        return array
    objects = np.asarray(value, dtype=object)
    if not builtins.all(isinstance(one, int) for one in objects.flat):
        return array
    for one in objects.flat:
        check_number(op, "an element", one, wanted)
    return objects.astype(wanted)


def converts_alike(source: np.dtype, wanted: np.dtype) -> builtins.bool:
    """Whether NumPy converts as the workers do (schemas/ops/expression.h). It rounds twice to 16 bits, and leaves open what
    a float out of an integer's range becomes."""
    is_float = source.kind == "f" or source == bfloat16
    if wanted.kind in "iu":
        return not is_float
    is_half = wanted == bfloat16 or wanted == float16
    return not is_half or source.itemsize <= 2


def array_of(value, op: str, dtype=None) -> np.ndarray:
    """`value` as a NumPy array of a supported dtype in native byte order: of `dtype`, where NumPy converts to it as the
    workers do, else as it is. Copies only if it must."""
    refuse_masked(value, op)
    wanted = None if dtype is None else numpy_of(code_of(dtype, op))
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        array = np.from_dlpack(value)
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DTypeError(f"{op}: not an array: {error}") from None
    if array.dtype == object:
        array = _array_of_objects(array, value, op, wanted)
    if wanted is not None and array.dtype != wanted:
        array = _integers_of(value, array, wanted, op)
        code_of(array.dtype, op)
        if array.dtype.kind == "c" and wanted.kind not in "cb":
            raise DTypeError(f"{op}: {array.dtype} can't become {wanted}; give the real part alone, or the absolute value")
        if isinstance(value, (int, np.generic, list, tuple)):
            _check_fits(array, op, wanted)
        if converts_alike(array.dtype, wanted):
            array = array.astype(wanted)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    code_of(array.dtype, op)
    return array
