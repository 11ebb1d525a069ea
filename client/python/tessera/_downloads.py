"""Downloads into arrays of the program: full_tensor(out=), to_local(out=)."""

from __future__ import annotations

import numpy as np

from ._dtypes import buffer_of, refuse_masked
from ._errors import ArgumentError, DTypeError, InvalidArgumentError

_STAGED = 32 << 20      # docs/limits.md: staged_bytes


def _text(dtype, shape) -> str:
    order = "" if dtype.isnative else " of the other byte order"
    return f"{dtype.name}{list(shape)}{order}"


def check_out(op: str, tensor, out, shape) -> None:
    """That `out` is an array for those values of the tensor."""
    refuse_masked(out, op)
    if not isinstance(out, np.ndarray):
        raise ArgumentError(f"{op}: out is a {type(out).__name__}, it must be a NumPy array")
    if out.dtype != tensor.dtype or out.shape != shape:
        wrong = DTypeError if out.dtype != tensor.dtype else InvalidArgumentError
        raise wrong(f"{op}: out is {_text(out.dtype, out.shape)}, the values are {_text(tensor.dtype, shape)} of {tensor._spec}")
    if not out.flags.writeable:
        raise InvalidArgumentError(f"{op}: out, {_text(out.dtype, out.shape)}, is read-only")


def full_to(tensor, out) -> None:
    """The whole tensor."""
    if out.flags.c_contiguous:
        tensor._full_to(buffer_of(out), tensor._dtype)
    elif tensor._has_partial:       # reduced once
        out[...] = tensor._full()
    else:
        rows = max(1, _STAGED // max(1, tensor.nbytes // max(1, tensor.shape[0])))
        for start in range(0, tensor.shape[0], rows):
            stop = min(start + rows, tensor.shape[0])
            out[start:stop] = rows_of(tensor, start, stop)


def rows_of(tensor, start: int, stop: int, out=None) -> np.ndarray:
    """Rows of dim 0, in a new array or row-major memory."""
    if out is None:
        out = np.empty((stop - start, *tensor.shape[1:]), tensor.dtype)
    tensor._rows_to(start, stop, buffer_of(out), tensor._dtype)
    return out


def local_to(tensor, position, out) -> None:
    """The shard at a position."""
    if out.flags.c_contiguous:
        tensor._local_to(position, buffer_of(out), tensor._dtype)
    else:
        out[...] = tensor._local(position)
