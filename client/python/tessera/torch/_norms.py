"""Ops on whole rows: norms, softmax and losses. The normalised dims are brought together, the others stay as they are."""

from __future__ import annotations

import functools

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._catalog import OPS
from . import _composed, _ranges
from ._composed import wide
from ._dtypes import F32, F64, HALVES, code
from ._one_call import REAL_FLOATS, Settled, one_call
from ._operands import operand
from ._placing import full_like, is_small, settled, settled_dims
from ._table import apart, row
from ._tensor import handle_of, wrap, wrap_later

_call, _call_all = _tessera.call, _tessera.call_all
_LAYER_NORM_BACKWARD, _RMS_NORM_BACKWARD = OPS["layer_norm_backward"], OPS["rms_norm_backward"]


def _row_dims(op: str, x, extents, shape) -> list[int]:
    ndim = len(extents)
    lead = ndim - len(shape)
    if lead < 0 or extents[lead:] != tuple(shape):
        raise InvalidArgumentError(f"{op}: normalized_shape is {list(shape)}, and the last dims of {x!r} are others")
    return [lead] if lead + 1 == ndim else list(range(lead, ndim))


def _statistics_shape(extents, dims) -> tuple:
    return (*extents[:dims[0]], *[1] * len(dims)) if dims else extents


def _moment(found: list, h, dims, eps: float, which: int):
    """The mean or 1 / standard deviation of rows; `found` has both once one was read."""
    if not found:
        found.extend(_composed.moments(wide(h), dims, eps))
    return found[which]


def _inverse_rms(found: list, h, dims, eps: float, which: int):
    return _composed.inverse_rms(wide(h), dims, eps)


def _later(h, dims, eps: float, statistic, count: int) -> list:
    """Statistics of rows, which are computed when one is read; backward asks the last for its eps."""
    kind, extents, found = F32 if h._dtype in HALVES else h._dtype, _statistics_shape(h.shape, dims), []
    out = [wrap_later(extents, kind, functools.partial(statistic, found, h, dims, eps, which)) for which in range(count)]
    out[-1]._cell.eps = eps
    return out


@row("native_layer_norm.default",
     one_call=one_call("layer_norm", REAL_FLOATS, settled=Settled.WHOLE, later=_moment, normalized_shape="rows", eps="eps"))
def layer_norm(x, shape, weight, bias, eps):
    h = handle_of(x)
    dims = _row_dims("layer_norm", x, h.shape, shape)
    h = settled_dims(h, dims)
    scale = [handle_of(one) for one in (weight, bias) if one is not None]
    if weight is None and bias is not None:
        scale.insert(0, full_like(h, shape, h._dtype, 1))
    return wrap(_call(OPS["layer_norm"], (h, *scale), dims=dims, eps=eps)), *_later(h, dims, eps, _moment, 2)


@row("native_layer_norm_backward.default")
def layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, wanted):
    h = handle_of(x)
    dims = _row_dims("layer_norm", x, h.shape, shape)
    h = settled_dims(h, dims)
    return _norm_backward(_LAYER_NORM_BACKWARD, handle_of(grad), h, weight, dims, mean, rstd, wanted)


def _norm_backward(op: int, g, h, weight, dims, mean, rstd, wanted):
    """The gradients of x, the weight and the bias, as far as they are wanted. The row computes the statistics anew, with the eps of the forward
    pass; those that come from elsewhere (a hook that kept them on the CPU) are taken as they are."""
    eps, w = rstd._cell.eps, () if weight is None else (handle_of(weight),)
    if eps is None or (weight is None and len(wanted) > 2 and wanted[2]):
        out = _composed.norm_backward(g, h, None if mean is None else handle_of(mean), handle_of(rstd), *(w or (None,)), dims, wanted)
    elif w:
        out = _call_all(op, (g, h, *w), dims=dims, eps=eps)
    else:
        out = (_call(op, (g, h), dims=dims, eps=eps), None, None)
    return tuple(wrap(one) if is_wanted and one is not None else None for one, is_wanted in zip(out, wanted))


def _default_eps(h) -> float:
    return 2.0**-52 if h._dtype == F64 else 2.0**-23 if h._dtype == F32 or h._dtype in HALVES else 1e-6


@row("_fused_rms_norm.default",
     one_call=one_call("rms_norm", REAL_FLOATS, settled=Settled.WHOLE, later=_inverse_rms, normalized_shape="rows", eps="eps"))
def rms_norm(x, shape, weight, eps):
    h = handle_of(x)
    dims = _row_dims("rms_norm", x, h.shape, shape)
    h = settled_dims(h, dims)
    eps = _default_eps(h) if eps is None else eps
    scale = () if weight is None else (handle_of(weight),)
    return wrap(_call(OPS["rms_norm"], (h, *scale), dims=dims, eps=eps)), *_later(h, dims, eps, _inverse_rms, 1)


@row("_fused_rms_norm_backward.default")
def rms_norm_backward(grad, x, shape, rstd, weight, wanted):
    h = handle_of(x)
    dims = _row_dims("rms_norm", x, h.shape, shape)
    h = settled_dims(h, dims)
    return _norm_backward(_RMS_NORM_BACKWARD, handle_of(grad), h, weight, dims, None, rstd, wanted[:2])


sharded_classes: list = []      # not empty within loss_parallel


def _softmax_row(name: str):
    def function(x, dim, half_to_float=False):
        h = handle_of(x)
        if sharded_classes and name == "log_softmax" and not any(one.is_shard(dim % max(x.ndim, 1)) for one in h._placements):
            raise InvalidArgumentError("loss_parallel: should be enabled only when the input tensor is sharded on the class "
                                       f"dimension {dim}: {x!r}")
        if half_to_float:
            h = wide(h)
        if not x.ndim or not x.numel():
            return wrap(full_like(h, x.shape, h._dtype, 1.0 if name == "softmax" else 0.0))
        if not sharded_classes and is_small(h):
            h = settled_dims(h, [dim % x.ndim])     # by one message; else by three, of numbers of rows
        return wrap(_call(OPS[name], (h,), dims=[dim % x.ndim]))
    return function


row("_softmax.default")(_softmax_row("softmax"))
row("_log_softmax.default")(_softmax_row("log_softmax"))


@row("_safe_softmax.default", how="composed")
def safe_softmax(x, dim, dtype=None):
    h = handle_of(x)
    out = _call(OPS["softmax"], (h,), dims=[dim % x.ndim])
    out = _call(OPS["where"], (_call(OPS["isnan"], (out,)), 0, out))
    return wrap(out if dtype is None else _composed.as_dtype(out, code(dtype)))


@row("_softmax_backward_data.default")
def softmax_backward(grad, output, dim, input_dtype):
    y = handle_of(output)
    if not output.ndim:
        return wrap(full_like(y, (), code(input_dtype), 0.0))
    out = _call(OPS["softmax_backward"], (handle_of(grad), y), dims=[dim % output.ndim])
    return wrap(_composed.as_dtype(out, code(input_dtype)))


@row("_log_softmax_backward_data.default")
def log_softmax_backward(grad, output, dim, input_dtype):
    y = handle_of(output)
    if not output.ndim:
        return wrap(full_like(y, (), code(input_dtype), 0.0))
    row_sum = grad._cell.row_sum if grad._view is None else None
    known = () if row_sum is None else (row_sum,)
    out = _call(OPS["log_softmax_backward"], (handle_of(grad), y, *known), dims=[dim % output.ndim])
    return wrap(_composed.as_dtype(out, code(input_dtype)))


# ---- losses ---------------------------------------------------------------------------------------------------

def _labels(x, target):
    h = operand("nll_loss", target, x)
    if not isinstance(h, _tessera.Tensor):
        raise InvalidArgumentError(f"nll_loss: target is {target!r}, not a tensor beside {x!r}")
    return h


def _class_dim(x) -> int:
    return 0 if x.ndim == 1 else 1


_REDUCTIONS = ("none", "mean", "sum")


def _nll_operands(x, target, weight, reduction, ignore_index):
    """The handles of x, labels and weights, and the attributes of the rows."""
    h = handle_of(x)
    return (h, _labels(x, target)), () if weight is None else (handle_of(weight),), {
        "dims": [_class_dim(x)], "reduction": _REDUCTIONS[reduction], "ignore_index": ignore_index}


@row("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(x, target, weight, reduction, ignore_index):
    operands, weights, attributes = _nll_operands(x, target, weight, reduction, ignore_index)
    loss, count = _call_all(OPS["nll_loss_and_weight"], operands + weights, **attributes)
    return wrap(settled(loss)), wrap(count)


@row("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    operands, weights, attributes = _nll_operands(x, target, weight, reduction, ignore_index)
    h, labels = operands
    op, given = OPS["nll_loss_backward"], (h, handle_of(grad), labels, handle_of(total_weight), *weights)
    if weights:
        return wrap(_call(op, given, **attributes))
    found, row_sum = _call_all(op, given, **attributes)
    out = wrap(found)
    out._cell.row_sum = row_sum     # what log_softmax's backward would sum up
    return out


@row("binary_cross_entropy.default", how="composed")
def binary_cross_entropy(x, target, weight=None, reduction=1):
    """As torch takes it apart, of probabilities."""
    x, target = (wrap(_ranges.probabilities(handle_of(one), what)) for one, what in ((x, "probability"), (target, "target")))
    return apart("binary_cross_entropy.default")(x, target, weight, reduction)


@row("one_hot.default")
def one_hot(x, num_classes=-1):
    if x.dtype is not torch.int64:
        raise RuntimeError(f"one_hot: takes indices of int64, not {x!r}")
    if num_classes == -1:
        if not x.numel():
            raise RuntimeError(f"one_hot: of no elements the number of classes can't be inferred: {x!r}")
        num_classes = int(x.max()) + 1
    if num_classes < 1 and x.numel():
        raise RuntimeError(f"one_hot: num_classes is {num_classes}, not above 0")
    return wrap(_call(OPS["one_hot"], (_ranges.checked(handle_of(x), 0, num_classes - 1, "class"),), num_classes=num_classes))


# torch takes it apart before it comes to the rows, into what leaves out what is no class.
_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("one_hot", one_hot, "AutogradPrivateUse1")


@row("mse_loss.default")
def mse_loss(x, target, reduction=1):
    h = handle_of(x)
    other = operand("mse_loss", target, x)
    return wrap(_call(OPS["mse_loss"], (h, other), reduction=_REDUCTIONS[reduction]))


@row("mse_loss_backward.default", how="composed")
def mse_loss_backward(grad, x, target, reduction):
    """2 * (x - target) * grad, divided by the number of elements for the mean."""
    h = handle_of(x)
    other = operand("mse_loss", target, x)
    g = handle_of(grad)
    factor = 2.0 / max(x.numel(), 1) if reduction == 1 else 2.0
    return wrap(_call(OPS["multiply"], (_call(OPS["subtract"], (h, other)), _call(OPS["multiply"], (g, factor)))))
