"""Convolutions and pooling: torch's functional names, layouts and meaning."""

from __future__ import annotations

import _tessera
from ._errors import ArgumentError, InvalidArgumentError
from ._mesh import integers
from ._ops import reshape
from ._calls import as_operand
from ._catalog import OPS


def _of_each_dim(name: str, key: str, value, dims: int) -> list[int]:
    numbers = integers(value, key, name)
    if len(numbers) not in (1, dims):
        raise InvalidArgumentError(f"{name}: {key} is {value!r}; it is a number, or {dims} of them")
    return numbers * dims if len(numbers) == 1 else numbers


def _images(name: str, x, dims: int):
    """The batch of images, and whether it is one image alone, which has no dim for the batch."""
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"{name}: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    if x.ndim not in (dims + 1, dims + 2):
        raise InvalidArgumentError(f"{name}: takes {dims + 2} dims, or {dims + 1} without a batch: x is {x._spec}")
    alone = x.ndim == dims + 1
    return (x[None] if alone else x), alone


def _padding(name: str, padding, kernel, stride, dilation):
    if padding == "valid":
        return 0
    if padding != "same":
        return padding
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(s != 1 for s in stride) or any(n % 2 for n in total):
        raise InvalidArgumentError(f"{name}: padding 'same' needs stride 1 and the same padding on both sides; write it as numbers")
    return [n // 2 for n in total]


def _conv(name: str, dims: int, x, weight, bias, stride, padding, dilation, groups):
    x, alone = _images(name, x, dims)
    weight = as_operand(name, x, weight)
    if not isinstance(weight, _tessera.Tensor) or weight.ndim != dims + 2:
        raise InvalidArgumentError(f"{name}: the weight takes {dims + 2} dims: {getattr(weight, '_spec', weight)}")
    stride, dilation = _of_each_dim(name, "stride", stride, dims), _of_each_dim(name, "dilation", dilation, dims)
    padding = _padding(name, padding, weight.shape[2:], stride, dilation)
    out = _tessera.call(OPS["conv"], (x, weight), stride=stride, padding=_of_each_dim(name, "padding", padding, dims),
                        dilation=dilation, groups=int(groups))
    if bias is not None:
        bias = as_operand(name, x, bias)
        if tuple(getattr(bias, "shape", ())) != (weight.shape[0],):
            raise InvalidArgumentError(f"{name}: the bias has an element for each of the {weight.shape[0]} output channels")
        out = out + reshape(bias, [weight.shape[0]] + [1] * dims)
    return out[0] if alone else out


def conv1d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1):
    """conv1d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1)

    Convolves x of dims (N, C, L), or (C, L), with a weight of dims (O, C / groups, K)."""
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1):
    """conv2d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1)

    Convolves x of dims (N, C, H, W), or (C, H, W), with a weight of dims (O, C / groups, KH, KW). Batch and output
    channels keep their shards; a sharded image keeps its own, which take from their neighbours what windows reach beyond."""
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1):
    """conv3d(x, weight, bias=None, /, *, stride=1, padding=0, dilation=1, groups=1)

    Convolves x of dims (N, C, D, H, W), or (C, D, H, W), with a weight of dims (O, C / groups, KD, KH, KW)."""
    return _conv("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def _pool(row: str, name: str, dims: int, x, kernel_size, stride, padding, dilation, ceil_mode, **attributes):
    x, alone = _images(name, x, dims)
    kernel = _of_each_dim(name, "kernel_size", kernel_size, dims)
    out = _tessera.call(OPS[row], (x,), kernel_size=kernel,
                        stride=kernel if stride is None else _of_each_dim(name, "stride", stride, dims),
                        padding=_of_each_dim(name, "padding", padding, dims),
                        dilation=_of_each_dim(name, "dilation", dilation, dims), ceil_mode=bool(ceil_mode), **attributes)
    return out[0] if alone else out


def max_pool1d(x, /, kernel_size, *, stride=None, padding=0, dilation=1, ceil_mode=False):
    """max_pool1d(x, /, kernel_size, *, stride=None, padding=0, dilation=1, ceil_mode=False)

    Gives the maximum of each window of the last dim; without a stride windows lie side by side."""
    return _pool("max_pool", "max_pool1d", 1, x, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(x, /, kernel_size, *, stride=None, padding=0, dilation=1, ceil_mode=False):
    """max_pool2d(x, /, kernel_size, *, stride=None, padding=0, dilation=1, ceil_mode=False)

    Gives the maximum of each window of the last two dims; without a stride windows lie side by side."""
    return _pool("max_pool", "max_pool2d", 2, x, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool1d(x, /, kernel_size, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """avg_pool1d(x, /, kernel_size, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True)

    Gives the mean of each window of the last dim; count_include_pad: padding counts as zeros."""
    return _pool("avg_pool", "avg_pool1d", 1, x, kernel_size, stride, padding, 1, ceil_mode,
                 count_include_pad=bool(count_include_pad))


def avg_pool2d(x, /, kernel_size, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """avg_pool2d(x, /, kernel_size, *, stride=None, padding=0, ceil_mode=False, count_include_pad=True)

    Gives the mean of each window of the last two dims; count_include_pad: padding counts as zeros."""
    return _pool("avg_pool", "avg_pool2d", 2, x, kernel_size, stride, padding, 1, ceil_mode,
                 count_include_pad=bool(count_include_pad))


for _function in (conv1d, conv2d, conv3d, max_pool1d, max_pool2d, avg_pool1d, avg_pool2d):
    _function.__module__ = "tessera"
