"""Integers of 8 bits in place of floats: their products, weights by rows, and what training rounds as if it had them.

`torch.ops.quantized_decomposed` gives and takes plain integer tensors, and runs by its own bodies. Tensors of quantized dtypes
(`torch.qint8`), which torch takes out of its own releases, are refused with what to write.
"""

from __future__ import annotations

import numpy as np
import torch

import _tessera
from .._errors import InvalidArgumentError
from .._catalog import OPS
from ._composed import einsum
from ._dtypes import CODES
from ._operands import cast
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call
_INT32 = CODES[torch.int32]


def _refuse_matrices(op: str, a, b, dtypes) -> None:
    if a.ndim != 2 or b.ndim != 2 or (a.dtype, b.dtype) not in dtypes:
        raise InvalidArgumentError(f"{op}: takes matrices of {' or '.join(f'{x} and {y}' for x, y in dtypes)}, not {a!r} and {b!r}")


@row("_int_mm.default")
def int_mm(a, b):
    """The product of two matrices of int8 in int32, exactly."""
    _refuse_matrices("_int_mm", a, b, [(torch.int8, torch.int8)])
    return wrap(cast(einsum("mk,kn->mn", cast(handle_of(a), _INT32), cast(handle_of(b), _INT32)), _INT32))


@row("_weight_int8pack_mm.default", how="composed")
def weight_int8pack_mm(x, weight, scales):
    """x times the transposed weight of int8, whose rows have a scale each."""
    floats = (torch.float32, torch.bfloat16, torch.float16)
    _refuse_matrices("_weight_int8pack_mm", x, weight, [(one, torch.int8) for one in floats])
    h = handle_of(x)
    product = cast(einsum("mk,nk->mn", cast(h, CODES[torch.float32]), cast(handle_of(weight), CODES[torch.float32])), h._dtype)
    return wrap(cast(_call(OPS["multiply"], (product, handle_of(scales))), h._dtype))


def _rounded(x, inverse, scale, zero_point, low: int, high: int):
    """The nearest of the numbers that the integers from low to high stand for, and where x was within them."""
    number = torch.round(x * inverse) + zero_point
    return (number.clamp(low, high) - zero_point) * scale, (number >= low) & (number <= high)


@row("fake_quantize_per_tensor_affine_cachemask.default", how="composed")
def fake_quantize(x, scale, zero_point, quant_min, quant_max):
    scale = np.float32(scale)
    return _rounded(x, float(np.float32(1) / scale), float(scale), zero_point, quant_min, quant_max)


@row("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", how="composed")
def fake_quantize_by_tensors(x, scale, zero_point, fake_quant_enabled, quant_min, quant_max):
    out, mask = _rounded(x, scale.reciprocal(), scale, zero_point, quant_min, quant_max)
    is_on = fake_quant_enabled != 0
    return torch.where(is_on, out, x), mask | ~is_on


@row("fake_quantize_per_channel_affine_cachemask.default", how="composed")
def fake_quantize_channels(x, scale, zero_point, axis, quant_min, quant_max):
    shape = [-1 if d == axis % x.ndim else 1 for d in range(x.ndim)]
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    return _rounded(x, scale.reciprocal(), scale, zero_point, quant_min, quant_max)


@row("quantize_per_tensor.default", "quantize_per_tensor.tensor_qparams", "quantize_per_channel.default", "quantize_per_tensor_dynamic.default")
def quantize(x, *args, **kwargs):
    raise NotImplementedError(
        "quantize: tensors of quantized dtypes (torch.qint8 and its like) have no row in Tessera; torch.ops.quantized_decomposed.quantize_per_tensor, "
        "quantize_per_channel and their dequantize_ give and take torch.int8 (import torch.ao.quantization.fx._decomposed defines them)")
