"""Convolutions, means of windows, and their backward passes. A transposed convolution is the backward pass of a convolution
for its image. The backward pass of a mean is a mean itself, so sharded windows take what they reach of their neighbours.
"""

from __future__ import annotations

import math

import _tessera
import _tessera_ops as made

from .._errors import InvalidArgumentError
from .._ops import broadcast_to, pad, reshape
from .._placements import replicated, shards_of
from .._session import session_of
from .._catalog import OPS
from ._composed import einsum
from ._dtypes import F32, F64, INT64
from ._operands import cast
from ._placing import full_like, iota, settled_dims
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call


def _conv(x, weight, stride, padding, dilation, groups=1):
    return _call(OPS["conv"], (x, weight), stride=list(stride), padding=list(padding), dilation=list(dilation), groups=int(groups))


def _gradient(of, grad, other, shape, stride, padding, dilation, groups):
    """The gradient of a convolution's x or weight, which has that shape."""
    return _call(OPS[f"conv_backward_{of}"], (grad, other), shape=[int(n) for n in shape], stride=list(stride), padding=list(padding),
                 dilation=list(dilation), groups=int(groups))


def _each(values, dims: int) -> list[int]:
    return [int(v) for v in values] * (dims if len(values) == 1 else 1)


def _first(x, sizes):
    """So many rows and columns from the first on."""
    return x if x.shape[2:] == tuple(sizes) else x[(slice(None), slice(None), *(slice(0, n) for n in sizes))]


@row("convolution.default")
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    h, w = handle_of(x), handle_of(weight)
    dims = h.ndim - 2
    stride, padding, dilation = (_each(values, dims) for values in (stride, padding, dilation))
    if transposed:
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + beyond for n, s, p, d, k, beyond in
                 zip(h.shape[2:], stride, padding, dilation, w.shape[2:], _each(output_padding, dims))]
        if any(n < 1 for n in sizes) or h.shape[1] != w.shape[0]:
            raise InvalidArgumentError(f"convolution: transposed, of {x!r} with the weight {weight!r}: the result would be of {sizes}, and "
                                       "the weight's first dim is the channels of x")
        out = _gradient("x", h, w, (h.shape[0], w.shape[1] * groups, *sizes), stride, padding, dilation, groups)
    else:
        out = _conv(h, w, stride, padding, dilation, groups)
    if bias is not None:
        out = out + reshape(handle_of(bias), [out.shape[1]] + [1] * dims)
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


@row("convolution_backward.default")
def convolution_backward(grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, wanted):
    g, h, w = handle_of(grad), handle_of(x), handle_of(weight)
    dims = h.ndim - 2
    stride, padding, dilation = (_each(values, dims) for values in (stride, padding, dilation))
    of_x = of_weight = of_bias = None
    if wanted[0] and transposed:
        of_x = wrap(_first(_conv(g, w, stride, padding, dilation, groups), h.shape[2:]))
    elif wanted[0]:
        of_x = wrap(_gradient("x", g, w, h.shape, stride, padding, dilation, groups))
    if wanted[1]:
        of_weight = wrap(_gradient("weight", *((h, g) if transposed else (g, h)), w.shape, stride, padding, dilation, groups))
    if wanted[2]:
        of_bias = wrap(_call(OPS["sum"], (g,), dims=[0, *range(2, g.ndim)]))
    return of_x, of_weight, of_bias


# ---- means of windows ----------------------------------------------------------------------------------------------------

def _mean(x, kernel, stride, padding=None, **options):
    dims = len(kernel)
    return _call(OPS["avg_pool"], (x,), kernel_size=kernel, stride=stride, padding=padding or [0] * dims, dilation=[1] * dims,
                 ceil_mode=options.get("ceil_mode", False), count_include_pad=options.get("count_include_pad", True))


def _counted(window, x, out, count_include_pad):
    """How many elements each mean is of, as a tensor with the windows' dims; a number where all are of as many."""
    kernel, stride, padding = window
    sizes = x.shape[-len(kernel):]
    ends = [(n - 1) * s + k for n, s, k in zip(out, stride, kernel)]      # of the last windows, from the padding's start on
    last = [n + 2 * p if count_include_pad else n + p for n, p in zip(sizes, padding)]
    size = math.prod(kernel)
    if all(end <= stop for end, stop in zip(ends, last)) and (count_include_pad or not any(padding)):
        return size
    before = [0 if count_include_pad else p for p in padding]
    inside = [min(end, stop) - b for end, stop, b in zip(ends, last, before)]
    ones = session_of(x)._create(OPS["full"], dtype=F64 if x._dtype == F64 else F32, shape=inside, mesh=x._mesh,
                                 placements=replicated(len(x._placements)), scalars=(1,))
    ones = pad(ones, [(b, max(0, end - b - n)) for b, n, end in zip(before, inside, ends)])
    return _mean(ones, kernel, stride) * size


def _window(name, x, kernel_size, stride, padding, divisor_override):
    dims = int(name[8])
    kernel = _each(kernel_size, dims)
    if divisor_override == 0:
        raise InvalidArgumentError(f"{name}: divisor_override is 0")
    return kernel, _each(stride, dims) if stride else kernel, _each(padding, dims)


def _avg_pool(name):
    def function(x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None):
        h = handle_of(x)
        window = kernel, stride, padding = _window(name, x, kernel_size, stride, padding, divisor_override)
        out = _mean(h, kernel, stride, padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad)
        if divisor_override is None:
            return wrap(out)
        return wrap(cast(out * _counted(window, h, out.shape[-len(kernel):], count_include_pad) * (1 / divisor_override), h._dtype))
    return function


def _repeated(x, times, sizes):
    """Each element so many times, and zeros, up to those sizes."""
    for d, k in enumerate(times, start=2):
        shape = list(x.shape)
        x = broadcast_to(reshape(x, [*shape[:d + 1], 1, *shape[d + 1:]]), (*shape[:d + 1], k, *shape[d + 1:]))
        x = reshape(x, [*shape[:d], shape[d] * k, *shape[d + 1:]])
    x = _first(x, [min(n, m) for n, m in zip(x.shape[2:], sizes)])
    missing = [n - m for n, m in zip(sizes, x.shape[2:])]
    return pad(x, [(0, 0), (0, 0), *((0, n) for n in missing)]) if any(missing) else x


def _avg_pool_backward(name):
    """Each window gives its elements equal parts: the sums, over windows of stride 1, of the parts where windows begin."""
    def function(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
        g, h = handle_of(grad), handle_of(x)
        window = kernel, stride, padding = _window(name, x, kernel_size, stride, padding, divisor_override)
        dims, size = len(kernel), math.prod(kernel)
        counted = divisor_override or _counted(window, h, g.shape[-dims:], count_include_pad)
        part = g * (size / counted) if isinstance(counted, int) else cast(g / counted * size, g._dtype)
        part = reshape(part, [1] * (dims + 2 - h.ndim) + list(part.shape))
        if kernel == stride and not any(padding):       # side by side: nothing adds up, and nothing moves
            return wrap(reshape(_repeated(part, kernel, h.shape[-dims:]) * (1 / size), list(h.shape)))
        apart = _apart(part, stride, [n * s for n, s in zip(part.shape[2:], stride)])
        # Windows from the image's first element on, as far as it goes. The row pads both sides alike, and then shards stay.
        begins = [k - 1 - p for k, p in zip(kernel, padding)]
        ends = [max(0, n + p - a) for n, p, a in zip(h.shape[-dims:], padding, apart.shape[2:])]
        if all(e <= b and 2 * b <= k for b, e, k in zip(begins, ends, kernel)):
            spread = _mean(apart, kernel, [1] * dims, begins)
        else:
            spread = _mean(pad(apart, [(0, 0), (0, 0), *zip(begins, ends)]), kernel, [1] * dims)
        return wrap(reshape(_first(spread, h.shape[-dims:]), list(h.shape)))
    return function


for _name in ("avg_pool2d", "avg_pool3d"):
    row(f"{_name}.default")(_avg_pool(_name))
    row(f"{_name}_backward.default", how="composed")(_avg_pool_backward(_name))


# ---- maxima of windows that a random number places ----------------------------------------------------------------------

def _drawn_places(samples, n: int, m: int, k: int):
    """[batch, channels, m]: where each of m windows of k elements begins among n, by one random number of each channel (Graham,
    "Fractional max-pooling", 2014)."""
    i = iota(samples, m)
    if m == 1:
        return broadcast_to(i + (n - k), (*samples.shape, 1))
    step, u = (n - k) / (m - 1), samples[..., None]
    at = cast(made.trunc((cast(i, samples._dtype) + u) * step), INT64) - cast(made.trunc(u * step), INT64)
    return made.where(made.equal(i, m - 1), n - k, at)


def _fractional_max_pool(dims):
    def function(x, kernel_size, output_size, random_samples):
        h, samples = handle_of(x), handle_of(random_samples)
        kernel, counts, lifted = _each(kernel_size, dims), _each(output_size, dims), h.ndim == dims + 1
        sizes = h.shape[-dims:]
        if h.ndim not in (dims + 1, dims + 2) or any(m < 1 or n < k or m + k - 1 > n for n, m, k in zip(sizes, counts, kernel)):
            raise InvalidArgumentError(f"fractional_max_pool{dims}d: {counts} windows of {kernel} in {x!r}")
        h = settled_dims(reshape(h, (1, *h.shape)) if lifted else h, list(range(2, 2 + dims)))
        batch, channels = h.shape[:2]
        if tuple(samples.shape) != (batch, channels, dims):
            raise InvalidArgumentError(f"fractional_max_pool{dims}d: the random samples are {random_samples!r}, and {x!r} takes ({batch}, {channels}, {dims})")
        at = None       # of each window's elements the number in the image: [batch, channels, *counts, *kernel]
        for d, (n, m, k) in enumerate(zip(sizes, counts, kernel)):
            which = d if dims == 3 else dims - 1 - d        # of an image the first number is for its columns
            place = _drawn_places(samples[..., which], n, m, k)[..., None] + iota(samples, k)
            shape = [batch, channels] + [1] * (2 * dims)
            shape[2 + d], shape[2 + dims + d] = m, k
            place = reshape(place, shape)
            at = place if at is None else at * n + place
        windows, size = math.prod(counts), math.prod(kernel)
        at = reshape(at, (batch, channels, windows * size))
        values = _call(OPS["take_along_axis"], (reshape(h, (batch, channels, math.prod(sizes))), at), dims=[2])
        values, at = (reshape(one, (batch, channels, windows, size)) for one in (values, at))
        largest = _call(OPS["argmax"], (values,), dims=[3], keepdims=True)
        shape = (*([] if lifted else [batch]), channels, *counts)
        return tuple(wrap(reshape(_call(OPS["take_along_axis"], (one, largest), dims=[3]), shape)) for one in (values, at))
    return function


for _dims in (2, 3):
    row(f"fractional_max_pool{_dims}d.default", how="composed")(_fractional_max_pool(_dims))


def _to_places(dims):
    """Each window's gradient goes to the place that its largest element was found at, of the last dims as one."""
    def function(grad, x, *window):
        g, h, at = handle_of(grad), handle_of(x), handle_of(window[-1])
        lead = list(h.shape[:-dims])
        flat, places = (reshape(one, [*lead, math.prod(one.shape[-dims:])]) for one in (g, at))
        kept = shards_of(h._placements, range(len(lead)))
        zeros = full_like(h, [*lead, math.prod(h.shape[-dims:])], h._dtype, 0, kept)
        return wrap(reshape(_call(OPS["scatter"], (zeros, places, flat), dims=[len(lead)], mode="add"), list(h.shape)))
    return function


for _name, _dims in (("max_pool2d_with_indices", 2), ("max_pool3d_with_indices", 3), ("adaptive_max_pool2d", 2), ("adaptive_max_pool3d", 3),
                     ("fractional_max_pool2d", 2), ("fractional_max_pool3d", 3)):
    row(f"{_name}_backward.default", how="composed")(_to_places(_dims))


# ---- as many windows as are wanted: [floor(i n / m), ceil((i + 1) n / m)) for window i of m, over n elements ---------------

def _adaptive(sizes, counts):
    """The kernel with which that is windows side by side; None where it isn't."""
    return [n // m for n, m in zip(sizes, counts)] if all(m and n % m == 0 for n, m in zip(sizes, counts)) else None


def _shares(x, n, m):
    """[m, n]: of each element its share of each window's mean. j is in window i where j m < (i + 1) n and (j + 1) m > i n."""
    def numbers(count, shape):
        made = session_of(x)._create(OPS["arange"], dtype=INT64, shape=[count], mesh=x._mesh, placements=replicated(len(x._placements)),
                                     scalars=[0, 1])
        return reshape(made, shape)
    i, j = numbers(m, (m, 1)), numbers(n, (1, n))
    is_in = cast(_call(OPS["logical_and"], (j * m < (i + 1) * n, (j + 1) * m > i * n)), x._dtype if x._dtype == F64 else F32)
    return cast(is_in / _call(OPS["sum"], (is_in,), dims=[1], keepdims=True), x._dtype)


def _by_shares(x, shares, sides):
    """Sums by shares along the last dims, one after the other: of elements to windows ("oi"), or back ("io")."""
    letters = "abcde"[:x.ndim]
    for d, share in enumerate(shares, start=x.ndim - len(shares)):
        target = letters[:d] + "o" + letters[d + 1:]
        x = einsum(f"{letters},{sides.replace('i', letters[d])}->{target}", x, share)
    return x


def _adaptive_pool(dims):
    def function(x, output_size):
        h, counts = handle_of(x), _each(output_size, dims)
        sizes = h.shape[-dims:]
        if any(m < 0 for m in counts) or (h.ndim not in (dims + 1, dims + 2)) or 0 in h.shape[1:]:
            raise InvalidArgumentError(f"adaptive_avg_pool{dims}d: {counts} windows of {x!r}")
        kernel = _adaptive(sizes, counts)
        if kernel is not None:
            return wrap(_mean(h, kernel, kernel))
        return wrap(_by_shares(h, [_shares(h, n, m) for n, m in zip(sizes, counts)], "oi"))
    return function


def _adaptive_pool_backward(dims):
    def function(grad, x):
        g, h = handle_of(grad), handle_of(x)
        sizes, counts = h.shape[-dims:], g.shape[-dims:]
        kernel = _adaptive(sizes, counts)
        if kernel is None:
            return wrap(_by_shares(g, [_shares(h, n, m) for n, m in zip(sizes, counts)], "io"))
        part = reshape(g, [1] * (dims + 2 - g.ndim) + list(g.shape))
        return wrap(reshape(_repeated(part, kernel, sizes) * (1 / math.prod(kernel)), list(h.shape)))
    return function


for _dims in (2, 3):
    row(f"_adaptive_avg_pool{_dims}d.default")(_adaptive_pool(_dims))
    row(f"_adaptive_avg_pool{_dims}d_backward.default", how="composed")(_adaptive_pool_backward(_dims))
