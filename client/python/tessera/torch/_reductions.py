"""Reductions: sums and means of pending terms stay pending; others reduce these first."""

from __future__ import annotations

import math

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._catalog import OPS
from ._dtypes import BOOL, CODES, FLOATS, INT64, U8, code
from ._one_call import ALL, one_call
from ._operands import cast, floating
from ._placing import settled
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call
_SUM, _MEAN = OPS["sum"], OPS["mean"]
_TAKES = {"dim": "dims", "keepdim": "keepdims"}
_UNSIGNED = frozenset(CODES[one] for one in (torch.uint8, torch.uint16, torch.uint32))


def dims_of(op: str, tensor, dim) -> list[int]:
    """Sorted, not negative; all of them for None and for an empty list."""
    ndim = tensor.ndim
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(ndim))
    dims = []
    for one in [dim] if isinstance(dim, int) else dim:
        if not -max(ndim, 1) <= one < max(ndim, 1):
            raise IndexError(f"{op}: Dimension out of range (expected to be in range of [{-max(ndim, 1)}, {max(ndim, 1) - 1}], "
                             f"but got {one}): {tensor!r}")
        if ndim:
            dims.append(one % ndim)
    if len(set(dims)) != len(dims):
        raise InvalidArgumentError(f"{op}: dim {dim} names a dim twice: {tensor!r}")
    return sorted(dims)


def _summed(h, dtype):
    """As sums and products take it: in the dtype that is asked for, unsigned integers as i64."""
    if dtype is not None:
        return cast(h, code(dtype))
    return cast(h, INT64) if h._dtype in _UNSIGNED else h


def _as_asked(h, dtype):
    """A sum of integers in the dtype that is asked for, which the catalog widens."""
    return h if dtype is None else cast(h, code(dtype))


def _of_one(h, dtype):
    return cast(h, INT64) if dtype is None and h._dtype not in FLOATS else h


@row("sum.default", "sum.dim_IntList", one_call=one_call("sum", FLOATS | {INT64}, **_TAKES))
def total(x, dim=None, keepdim=False, *, dtype=None):
    h = _summed(handle_of(x), dtype)
    return wrap(_as_asked(_call(_SUM, (h,), dims=dims_of("sum", x, dim), keepdims=keepdim), dtype))


@row("mean.default", "mean.dim", one_call=one_call("mean", FLOATS, **_TAKES))
def mean(x, dim=None, keepdim=False, *, dtype=None):
    h = handle_of(x)
    if dtype is not None:
        h = cast(h, code(dtype))
    if h._dtype not in FLOATS:
        raise RuntimeError(f"mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype: {x!r}")
    return wrap(_call(_MEAN, (h,), dims=dims_of("mean", x, dim), keepdims=keepdim))


def _reduction(name: str, op: int, of_bools: int):
    def function(x, dim=None, keepdim=False):
        h = handle_of(x)
        out = _call(of_bools if h._dtype == BOOL else op, (h,), dims=dims_of(name, x, dim), keepdims=keepdim)
        return wrap(cast(out, U8) if h._dtype == U8 else out)      # any and all of bytes are bytes
    return function


for _names, _op, _of_bools in ((("amax", "max"), "max", "any"), (("amin", "min"), "min", "all"), (("any",), "any", "any"), (("all",), "all", "all")):
    for _name in _names:
        _overloads = ("default",) if _name in ("max", "min") else ("default", "dim", "dims")
        _dtypes = {BOOL} if _op == _of_bools else ALL - {BOOL, U8}
        row(*(f"{_name}.{one}" for one in _overloads), one_call=one_call(_op, _dtypes, **_TAKES))(_reduction(_name, OPS[_op], OPS[_of_bools]))


@row("prod.default", "prod.dim_int", one_call=one_call("prod", FLOATS | {INT64}, **_TAKES))
def product(x, dim=None, keepdim=False, *, dtype=None):
    h = _summed(handle_of(x), dtype)
    return wrap(_as_asked(_call(OPS["prod"], (h,), dims=dims_of("prod", x, dim), keepdims=keepdim), dtype))


def _arg(name: str):
    def function(x, dim=None, keepdim=False):
        h = handle_of(x)
        if dim is None or x.ndim == 0:
            h, dims, keepdim = _call(OPS["reshape"], (h,), shape=[h.size]), [0], False
        else:
            dims = dims_of(name, x, dim)
        return wrap(_call(OPS[name], (_countable(h),), dims=dims, keepdims=keepdim))
    return function


def _countable(h):
    """A reduction of bool as u8, which has an order for the catalog."""
    return cast(h, U8) if h._dtype == BOOL else h


row("argmax.default")(_arg("argmax"))
row("argmin.default")(_arg("argmin"))


def _with_index(name: str):
    def function(x, dim, keepdim=False):
        h, dims = handle_of(x), dims_of(name, x, dim)
        if not dims:
            return wrap(h), wrap(_call(OPS["astype"], (_call(OPS["multiply"], (h, 0)),), dtype=INT64))
        kind, h = h._dtype, _countable(h)
        at = _call(OPS[f"arg{name}"], (h,), dims=dims, keepdims=keepdim)
        return wrap(cast(_call(OPS[name], (h,), dims=dims, keepdims=keepdim), kind)), wrap(at)
    return function


row("max.dim")(_with_index("max"))
row("min.dim")(_with_index("min"))


def _spread(name: str):
    def function(x, dim=None, *, correction=None, keepdim=False):
        number = 1.0 if correction is None else float(correction)
        return wrap(_call(OPS[name], (handle_of(x),), dims=dims_of(name, x, dim), keepdims=keepdim, correction=number))
    return function


row("var.correction")(_spread("var"))
row("std.correction")(_spread("std"))


@row("var_mean.correction")
def var_mean(x, dim=None, *, correction=None, keepdim=False):
    return _spread("var")(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


def _by_flag(function):
    """The older overloads, which say whether to divide by one less."""
    return lambda x, dim, unbiased=True, keepdim=False: function(x, dim, correction=int(unbiased), keepdim=keepdim)


row("var.dim")(_by_flag(_spread("var")))
row("std.dim")(_by_flag(_spread("std")))
row("var_mean.dim")(_by_flag(var_mean))


@row("linalg_vector_norm.default")
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):  # noqa: A002 - ATen's name
    h = handle_of(x)
    if dtype is not None:
        h = cast(h, code(dtype))
    dims = dims_of("linalg_vector_norm", x, dim)
    return wrap(norm_of(h, ord, dims, keepdim))


def norm_of(h, ord, dims, keepdim):  # noqa: A002
    """The ord-th root of the sum of |h| ** ord."""
    if ord == math.inf or ord == -math.inf:
        return _call(OPS["max" if ord > 0 else "min"], (_call(OPS["abs"], (h,)),), dims=dims, keepdims=keepdim)
    if ord == 1:
        return settled(_call(_SUM, (_call(OPS["abs"], (h,)),), dims=dims, keepdims=keepdim))
    return _call(OPS["vector_norm"], (h,), dims=dims, keepdims=keepdim, ord=str(ord))


@row("logsumexp.default", one_call=one_call("logsumexp", FLOATS, **_TAKES))
def logsumexp(x, dim, keepdim=False):
    return wrap(_call(OPS["logsumexp"], (floating(handle_of(x)),), dims=dims_of("logsumexp", x, dim), keepdims=keepdim))


@row("cumsum.default")
def cumsum(x, dim, *, dtype=None):
    h = _summed(handle_of(x), dtype)
    if not x.ndim:
        return wrap(_of_one(h, dtype))
    return wrap(_as_asked(_call(OPS["cumulative_sum"], (h,), dims=dims_of("cumsum", x, dim)), dtype))


@row("cumprod.default")
def cumprod(x, dim, *, dtype=None):
    h = _summed(handle_of(x), dtype)
    if not x.ndim:
        return wrap(_of_one(h, dtype))
    return wrap(_as_asked(_call(OPS["cumulative_prod"], (h,), dims=dims_of("cumprod", x, dim)), dtype))


@row("trace.default")
def trace(x):
    if x.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got {x!r}")
    return wrap(_call(_SUM, (_call(OPS["diagonal"], (_summed(handle_of(x), None),), k=0),), dims=[0]))


@row("count_nonzero.default", "count_nonzero.dim_IntList", one_call=one_call("count_nonzero", dim="dims"))
def count_nonzero(x, dim=None):
    return wrap(_call(OPS["count_nonzero"], (handle_of(x),), dims=dims_of("count_nonzero", x, dim)))


@row("_is_any_true.default")
def is_any_true(x):
    return wrap(_call(OPS["any"], (handle_of(x),), dims=list(range(x.ndim))))


@row("_is_all_true.default")
def is_all_true(x):
    return wrap(_call(OPS["all"], (handle_of(x),), dims=list(range(x.ndim))))


@row("equal.default")
def equal(a, b):
    """Whether all elements are equal: a Python bool, which is waited for."""
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
        return False
    same = _call(OPS["equal"], (handle_of(a), handle_of(b)))
    return bool(_call(OPS["all"], (same,), dims=list(range(a.ndim))).item())


