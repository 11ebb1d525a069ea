"""dtypes of torch, of NumPy, and their numbers in the catalog."""

from __future__ import annotations

import numpy as np
import torch

from .._dtypes import AS_BITS, bfloat16, code_of, float8_e4m3fn, float8_e5m2, numpy_of

_PAIRS = {
    torch.bool: np.bool_, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32, torch.int64: np.int64,
    torch.uint8: np.uint8, torch.uint16: np.uint16, torch.uint32: np.uint32, torch.uint64: np.uint64,
    torch.float16: np.float16, torch.bfloat16: bfloat16, torch.float32: np.float32, torch.float64: np.float64,
    torch.complex64: np.complex64, torch.complex128: np.complex128,
    torch.float8_e4m3fn: float8_e4m3fn, torch.float8_e5m2: float8_e5m2,
}
CODES = {dtype: code_of(np.dtype(other), "tessera.torch") for dtype, other in _PAIRS.items()}
_OF_CODE = {code: dtype for dtype, code in CODES.items()}
TORCH = [_OF_CODE.get(code) for code in range(max(_OF_CODE) + 1)]      # by the catalog's number
BOOL, INT64, U8 = CODES[torch.bool], CODES[torch.int64], CODES[torch.uint8]
F16, BF16, F32, F64 = (CODES[d] for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64))
FLOATS = frozenset((F16, BF16, F32, F64, CODES[torch.complex64], CODES[torch.complex128]))
FLOATS8 = frozenset((CODES[torch.float8_e4m3fn], CODES[torch.float8_e5m2]))
HALVES = frozenset((F16, BF16))
# dtypes of which torch makes no NumPy arrays, and those of their bits
_BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
INTEGERS = frozenset(code for dtype, code in CODES.items() if not dtype.is_floating_point and not dtype.is_complex) - {BOOL}


def code(dtype: torch.dtype | None, default: torch.dtype | None = None) -> int:
    """The catalog's number of a dtype of torch."""
    dtype = dtype or default or torch.get_default_dtype()
    try:
        return CODES[dtype]
    except KeyError:
        raise NotImplementedError(f"tessera.torch: {dtype} is no dtype of the catalog") from None


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a NumPy array, without a copy where torch can."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in _BITS:
        return tensor.contiguous().view(_BITS[tensor.dtype]).numpy().view(numpy_dtype(tensor.dtype))
    return tensor.contiguous().numpy()


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A CPU tensor of an array, whose memory it has."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in AS_BITS:
        dtype = _OF_CODE[code_of(array.dtype, "tessera.torch")]
        return torch.from_numpy(array.view(AS_BITS[array.dtype])).view(dtype)
    if array.dtype == np.uint64:        # which has two names in NumPy, of which torch knows one
        array = array.view(np.uint64)
    return torch.from_numpy(array)


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return numpy_of(CODES[dtype])
