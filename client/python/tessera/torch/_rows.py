"""Ops on whole rows: norms, softmax and losses. The normalised dims are brought together, the others stay as they are."""

from __future__ import annotations

import _tessera
from .._errors import InvalidArgumentError
from .._tensor import OPS
from . import _composed
from ._composed import wide
from ._dtypes import F32, F64, HALVES, code
from ._operands import operand
from ._placing import full_like, settled, settled_dims
from ._table import row
from ._tensor import handle_of, wrap, wrap_later

_call = _tessera.call


def _row_dims(op: str, x, shape) -> list[int]:
    lead = x.ndim - len(shape)
    if lead < 0 or tuple(x.shape[lead:]) != tuple(shape):
        raise InvalidArgumentError(f"{op}: normalized_shape is {list(shape)}, and the last dims of {x!r} are others")
    return list(range(lead, x.ndim))


def _statistics_shape(x, dims) -> list[int]:
    return [1 if d in dims else n for d, n in enumerate(x.shape)]


@row("native_layer_norm.default")
def layer_norm(x, shape, weight, bias, eps):
    dims = _row_dims("layer_norm", x, shape)
    h = settled_dims(handle_of(x), dims)
    scale = [handle_of(one) for one in (weight, bias) if one is not None]
    if weight is None and bias is not None:
        scale.insert(0, full_like(h, shape, h._dtype, 1))
    out = _call(OPS["layer_norm"], (h, *scale), dims=dims, eps=eps)
    kind, extents = F32 if h._dtype in HALVES else h._dtype, _statistics_shape(x, dims)
    found: list = []

    def statistics():
        if not found:
            found.extend(_composed.moments(wide(h), dims, eps))
        return found

    return (wrap(out), wrap_later(extents, kind, lambda: statistics()[0]), wrap_later(extents, kind, lambda: statistics()[1]))


@row("native_layer_norm_backward.default", how="composed")
def layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, wanted):
    dims = _row_dims("layer_norm", x, shape)
    h = settled_dims(handle_of(x), dims)
    out = _composed.norm_backward(settled(grad, h), h, handle_of(mean), handle_of(rstd),
                                  None if weight is None else handle_of(weight), dims, wanted)
    return tuple(None if one is None else wrap(one) for one in out)


def _default_eps(h) -> float:
    return 2.0**-52 if h._dtype == F64 else 2.0**-23 if h._dtype == F32 or h._dtype in HALVES else 1e-6


@row("_fused_rms_norm.default")
def rms_norm(x, shape, weight, eps):
    dims = _row_dims("rms_norm", x, shape)
    h = settled_dims(handle_of(x), dims)
    eps = _default_eps(h) if eps is None else eps
    scale = () if weight is None else (handle_of(weight),)
    out = _call(OPS["rms_norm"], (h, *scale), dims=dims, eps=eps)
    kind = F32 if h._dtype in HALVES else h._dtype
    return wrap(out), wrap_later(_statistics_shape(x, dims), kind, lambda: _composed.inverse_rms(wide(h), dims, eps))


@row("_fused_rms_norm_backward.default", how="composed")
def rms_norm_backward(grad, x, shape, rstd, weight, wanted):
    dims = _row_dims("rms_norm", x, shape)
    h = settled_dims(handle_of(x), dims)
    out = _composed.norm_backward(settled(grad, h), h, None, handle_of(rstd),
                                  None if weight is None else handle_of(weight), dims, wanted)
    return tuple(None if one is None else wrap(one) for one in out[:2])


sharded_classes: list = []      # not empty within loss_parallel


def _softmax_row(name: str):
    def function(x, dim, half_to_float=False):
        h = settled(x)
        if sharded_classes and name == "log_softmax" and (1, dim % max(x.ndim, 1)) not in [one[:2] for one in h._placements]:
            raise InvalidArgumentError("loss_parallel: should be enabled only when the input tensor is sharded on the class "
                                       f"dimension {dim}: {x!r}")
        if half_to_float:
            h = wide(h)
        if not x.ndim or not x.numel():
            return wrap(full_like(h, x.shape, h._dtype, 1.0 if name == "softmax" else 0.0))
        return wrap(_call(OPS[name], (h,), dims=[dim % x.ndim]))
    return function


row("_softmax.default")(_softmax_row("softmax"))
row("_log_softmax.default")(_softmax_row("log_softmax"))


@row("_safe_softmax.default", how="composed")
def safe_softmax(x, dim, dtype=None):
    h = settled(x)
    out = _call(OPS["softmax"], (h,), dims=[dim % x.ndim])
    out = _call(OPS["where"], (_call(OPS["isnan"], (out,)), 0, out))
    return wrap(out if dtype is None else _composed.as_dtype(out, code(dtype)))


@row("_softmax_backward_data.default", how="composed")
def softmax_backward(grad, output, dim, input_dtype):
    y = settled(output)
    if not output.ndim:
        return wrap(full_like(y, (), code(input_dtype), 0.0))
    out = _composed.softmax_backward(wide(settled(grad, y)), wide(y), dim % max(output.ndim, 1))
    return wrap(_composed.as_dtype(out, code(input_dtype)))


@row("_log_softmax_backward_data.default", how="composed")
def log_softmax_backward(grad, output, dim, input_dtype):
    y = settled(output)
    if not output.ndim:
        return wrap(full_like(y, (), code(input_dtype), 0.0))
    row_sum = grad._cell.row_sum if grad._view is None else None
    out = _composed.log_softmax_backward(settled(grad, y), y, dim % max(output.ndim, 1), row_sum)
    return wrap(_composed.as_dtype(out, code(input_dtype)))


# ---- losses ---------------------------------------------------------------------------------------------------

def _labels(x, target):
    h = settled(operand("nll_loss", target, x))
    if not isinstance(h, _tessera.Tensor):
        raise InvalidArgumentError(f"nll_loss: target is {target!r}, not a tensor beside {x!r}")
    return h


def _class_dim(x) -> int:
    return 0 if x.ndim == 1 else 1


@row("nll_loss_forward.default", "nll_loss2d_forward.default", how="composed")
def nll_loss(x, target, weight, reduction, ignore_index):
    h = settled(x)
    loss, count = _composed.nll_loss(h, _labels(x, target), None if weight is None else settled(weight), _class_dim(x),
                                     reduction, ignore_index)
    return wrap(loss), wrap(count)


@row("nll_loss_backward.default", "nll_loss2d_backward.default", how="composed")
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    h = settled(x)
    out, row_sum = _composed.nll_loss_backward(
        settled(grad), h, _labels(x, target), None if weight is None else settled(weight), _class_dim(x), reduction,
        ignore_index, handle_of(total_weight))
    out = wrap(out)
    out._cell.row_sum = row_sum
    return out


_REDUCTIONS = ("none", "mean", "sum")


@row("mse_loss.default")
def mse_loss(x, target, reduction=1):
    h = settled(x)
    other = settled(operand("mse_loss", target, x), h)
    return wrap(_call(OPS["mse_loss"], (h, other), reduction=_REDUCTIONS[reduction]))


@row("mse_loss_backward.default", how="composed")
def mse_loss_backward(grad, x, target, reduction):
    """2 * (x - target) * grad, divided by the number of elements for the mean."""
    h = settled(x)
    other = settled(operand("mse_loss", target, x), h)
    g = settled(grad, h)
    factor = 2.0 / max(x.numel(), 1) if reduction == 1 else 2.0
    return wrap(_call(OPS["multiply"], (_call(OPS["subtract"], (h, other)), _call(OPS["multiply"], (g, factor)))))
