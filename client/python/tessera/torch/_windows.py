"""Convolutions, and their backward passes as convolutions: of the image with the gradient, and of the gradient with the
weight the other way round. So sharded windows take what they reach of their neighbours, in both directions."""

from __future__ import annotations

import _tessera

from .._ops import pad, permute_dims, reshape
from .._tensor import OPS
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call


def _swapped(x):
    """With its first two dims the other way round."""
    return permute_dims(x, (1, 0, *range(2, x.ndim)))


def _conv(x, weight, stride, padding, dilation, groups=1):
    return _call(OPS["conv"], (x, weight), stride=list(stride), padding=list(padding), dilation=list(dilation), groups=int(groups))


def _each(values, dims: int) -> list[int]:
    return [int(v) for v in values] * (dims if len(values) == 1 else 1)


def _check(op: str, transposed, groups) -> None:
    if transposed:
        raise NotImplementedError(f"{op}: transposed convolutions have no row in Tessera")
    if op == "convolution_backward" and groups != 1:
        raise NotImplementedError(f"{op}: groups={groups}: the gradient of grouped convolutions has no row in Tessera")


@row("convolution.default")
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    _check("convolution", transposed, groups)
    h, w = handle_of(x), handle_of(weight)
    dims = h.ndim - 2
    out = _conv(h, w, _each(stride, dims), _each(padding, dims), _each(dilation, dims), groups)
    if bias is not None:
        out = out + reshape(handle_of(bias), [w.shape[0]] + [1] * dims)
    return wrap(out)


def _apart(grad, strides, extents):
    """Zeros of the extents with the gradient at every stride-th place."""
    if all(s == 1 for s in strides):
        return pad(grad, [(0, 0), (0, 0), *((0, n - g) for n, g in zip(extents, grad.shape[2:]))])
    # Each element with stride - 1 zeros behind it: one dim of as many as the stride, and the two as one.
    for d, s in enumerate(strides, start=2):
        if s != 1:
            shape = list(grad.shape)
            grad = pad(reshape(grad, [*shape[:d + 1], 1, *shape[d + 1:]]),
                       [(0, s - 1) if i == d + 1 else (0, 0) for i in range(len(shape) + 1)])
            grad = reshape(grad, [*shape[:d], shape[d] * s, *shape[d + 1:]])
    grad = grad[(slice(None), slice(None), *(slice(0, n) for n in extents))]
    missing = [n - g for n, g in zip(extents, grad.shape[2:])]
    return pad(grad, [(0, 0), (0, 0), *((0, n) for n in missing)]) if any(missing) else grad


def _of_input(grad, x, w, stride, padding, dilation):
    reach = [d * (k - 1) for d, k in zip(dilation, w.shape[2:])]
    # What windows reached outside of the image is left out at the end.
    apart = _apart(grad, stride, [n + 2 * p - r for n, p, r in zip(x.shape[2:], padding, reach)])
    backward = (slice(None), slice(None), *[slice(None, None, -1)] * len(stride))
    beyond = [max(0, p - r) for p, r in zip(padding, reach)]
    out = _conv(apart, _swapped(w[backward]), [1] * len(stride), [r - p + b for p, r, b in zip(padding, reach, beyond)], dilation)
    return out[(slice(None), slice(None), *(slice(b, b + n) for b, n in zip(beyond, x.shape[2:])))] if any(beyond) else out


def _of_weight(grad, x, w, stride, padding, dilation):
    out = _conv(_swapped(x), _swapped(grad), dilation, padding, stride)
    return _swapped(out[(slice(None), slice(None), *(slice(0, k) for k in w.shape[2:]))])


@row("convolution_backward.default", how="composed")
def convolution_backward(grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted):
    _check("convolution_backward", transposed, groups)
    g, h, w = handle_of(grad), handle_of(x), handle_of(weight)
    dims = h.ndim - 2
    stride, padding, dilation = (_each(values, dims) for values in (stride, padding, dilation))
    of_x = wrap(_of_input(g, h, w, stride, padding, dilation)) if wanted[0] else None
    of_weight = wrap(_of_weight(g, h, w, stride, padding, dilation)) if wanted[1] else None
    of_bias = wrap(_call(OPS["sum"], (g,), dims=[0, *range(2, g.ndim)])) if wanted[2] else None
    return of_x, of_weight, of_bias
