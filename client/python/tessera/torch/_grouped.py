"""Products by groups, which layers of experts are made of: tokens in the order of their experts, and where each expert's end.

Offsets stay on the workers. Experts or tokens may be in shards: the catalog's row says what moves (schemas/ops/resolve_grouped.cc).
"""

from __future__ import annotations

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._ops import permute_dims
from .._catalog import OPS
from ._composed import as_dtype, einsum
from ._dtypes import CODES, FLOATS, INT64, code
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call
_GROUPED = OPS["grouped_matmul"]


@row("_grouped_mm.default")
def grouped_mm(x, y, offs=None, bias=None, out_dtype=None):
    """x (m,k) by y (g,k,n): rows of x belong to groups, the result is (m,n). x (m,k) by y (k,n): parts of k do, (g,m,n).
    x (g,m,k) by y (k,n): columns of y do, (m,n). x (g,m,k) by y (g,k,n) without offsets: (g,m,n). Group i ends before offs[i]."""
    if bias is not None:
        raise NotImplementedError("grouped_mm: bias is not None; torch has no kernel that adds it, on any device: add it to the result")
    if x.ndim not in (2, 3) or y.ndim not in (2, 3):
        raise InvalidArgumentError(f"grouped_mm: takes tensors of 2 or 3 dims, not {x!r} and {y!r}")
    a, b = handle_of(x), handle_of(y)
    if a._dtype != b._dtype or a._dtype not in FLOATS:
        raise InvalidArgumentError(f"grouped_mm: takes floats of one dtype, not {x!r} and {y!r}")
    if (offs is None) != (x.ndim == y.ndim == 3):
        raise InvalidArgumentError(f"grouped_mm: offs is {offs!r} beside {x!r} and {y!r}; offsets say where groups end along a dim of a matrix")
    if offs is None:
        out = einsum("gmk,gkn->gmn", a, b)
    else:
        ends = handle_of(offs)
        if ends._dtype not in (CODES[torch.int32], INT64):
            raise InvalidArgumentError(f"grouped_mm: offs is {offs!r}, not a vector of int32")
        if x.ndim == 3:
            out = permute_dims(_call(_GROUPED, (permute_dims(b, (1, 0)), permute_dims(a, (0, 2, 1)), ends)), (1, 0))
        else:
            out = _call(_GROUPED, (a, b, ends))
    return wrap(out if out_dtype is None else as_dtype(out, code(out_dtype)))
