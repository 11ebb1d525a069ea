"""Ops that torch has no decomposition of, and that are a few rows of the catalog: each with its formula."""

from __future__ import annotations

import _tessera_ops as made
import torch

import _tessera
from .. import _indexing
from .._contraction import einsum
from .._errors import InvalidArgumentError
from .._ops import argmax, broadcast_to, clip, concat, permute_dims, reshape
from .._placements import shards_of
from .._catalog import OPS
from ._composed import wide
from ._dtypes import F64, INT64, INTEGERS
from ._operands import cast, operand
from ._placing import full_like, iota, settled, settled_dims
from ._table import row, row_where_torch_has_none, run
from ._tensor import handle_of, rebind, wrap

_call = _tessera.call
_NONE, _MEAN = 0, 1     # torch's numbers of reductions


# ---- activations ---------------------------------------------------------------------------------------------------------

@row("hardshrink_backward.default", "softshrink_backward.default")
def shrink_backward(grad, x, bound):
    """Nothing where the result is 0."""
    h = handle_of(x)
    g = handle_of(grad)
    return wrap(made.where(made.logical_and(h >= -bound, h <= bound), 0, g))


@row("rrelu_with_noise.default", how="composed")
def rrelu(x, noise, lower=1 / 8, upper=1 / 3, training=False, generator=None):
    """In training each negative element by a factor of its own, which `noise` keeps."""
    h = handle_of(x)
    if not training:
        return run("leaky_relu.default")(x, (lower + upper) / 2)
    drawn = handle_of(run("uniform_.default")(run("empty_like.default")(x), lower, upper, generator=generator))
    factors = made.where(h <= 0, drawn, 1.0)
    rebind("rrelu_with_noise", noise, factors)
    return wrap(h * factors)


@row("rrelu_with_noise_backward.default", how="composed")
def rrelu_backward(grad, x, noise, lower, upper, training, self_is_result):
    if training and upper - lower > 1e-6:
        return wrap(handle_of(grad) * handle_of(noise))
    return run("leaky_relu_backward.default")(grad, x, (lower + upper) / 2, self_is_result)


@row("round.decimals", how="composed")
def round_decimals(x, *, decimals):
    h = handle_of(x)
    if decimals == 0 or h.dtype.kind in "iu":
        return wrap(made.round(h) if h.dtype.kind not in "iu" else h)
    scale = 10.0 ** abs(decimals)
    wider = wide(h)
    out = made.round(wider * scale) / scale if decimals > 0 else made.round(wider / scale) * scale
    return wrap(cast(out, h._dtype))


# ---- products --------------------------------------------------------------------------------------------------------------

@row("_trilinear.default")
def trilinear(a, b, c, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """The product of three tensors with dims of extent 1 where each is expanded, summed over some dims."""
    count = a.ndim + len(expand1)
    letters = [["abcdefghijklmnopqrstuvwxyz"[d] for d in range(count) if d not in expand] for expand in (expand1, expand2, expand3)]
    target = ["abcdefghijklmnopqrstuvwxyz"[d] for d in range(count) if d not in sumdim]
    notation = ",".join("".join(one) for one in letters) + "->" + "".join(target)
    return wrap(einsum(notation, *(operand("_trilinear", one, a) for one in (a, b, c))))


@row("addbmm.default")
def addbmm(x, left, right, *, beta=1, alpha=1):
    out = cast(einsum("bij,bjk->ik", handle_of(left), handle_of(right)), handle_of(x)._dtype)
    alpha, beta = (int(alpha), int(beta)) if out._dtype in INTEGERS else (alpha, beta)
    out = out if alpha == 1 else out * alpha
    if beta == 0:
        return wrap(broadcast_to(out, torch.broadcast_shapes(x.shape, out.shape)))
    h = handle_of(x)
    return wrap(out + (h if beta == 1 else h * beta))


# ---- losses ----------------------------------------------------------------------------------------------------------------

def _rows_of(x):
    """(batch, classes)."""
    h = handle_of(x)
    return reshape(h, (1, h.size)) if h.ndim < 2 else h


def _by_rows(grad, like, reduction):
    """A loss's gradient for each row: a number, or a column."""
    g = handle_of(grad)
    if g.ndim:
        return reshape(g, (g.shape[0], 1))
    return g / like.shape[0] if reduction == _MEAN else g


@row("multi_margin_loss_backward.default", how="composed")
def multi_margin_loss_backward(grad, x, target, p, margin, weight=None, reduction=1):
    """The gradient of w[y] / classes * sum over j != y of max(0, margin - x[y] + x[j]) ** p."""
    h = _rows_of(x)
    classes = h.shape[1]
    labels = reshape(operand("multi_margin_loss", target, x), (h.shape[0], 1))
    is_it = made.equal(labels, iota(h, classes, labels._dtype))
    over = margin - made.sum(made.where(is_it, h, 0), axis=1, keepdims=True) + h
    parts = made.where(made.logical_and(over > 0, made.logical_not(is_it)), 1.0 if p == 1 else 2.0 * over, 0.0) * (1.0 / classes)
    if weight is not None:
        parts = parts * _call(OPS["take_along_axis"], (handle_of(weight), reshape(labels, (h.shape[0],))), dims=[0])[:, None]
    parts = made.where(is_it, -made.sum(parts, axis=1, keepdims=True), parts) * _by_rows(grad, h, reduction)
    return wrap(cast(reshape(parts, tuple(x.shape)), h._dtype))


def _margins_of_labels(x, target):
    """[rows, classes]: how many of a row's labels, which end before the first -1, each class is. And [rows, classes, classes]: by class t
    and class j max(0, 1 - x[t] + x[j]), and how many pairs of a label t and a class j that is none there are."""
    h = _rows_of(x)
    rows, classes = h.shape
    labels = reshape(operand("multilabel_margin_loss", target, x), (rows, classes))
    is_label = made.equal(made.cumulative_sum(cast(labels < 0, INT64), axis=1), 0)
    counts = _call(OPS["scatter"], (full_like(h, (rows, classes), h._dtype, 0), made.where(is_label, labels, 0), cast(is_label, h._dtype)),
                   dims=[1], mode="add")
    over = made.maximum(1 - reshape(h, (rows, classes, 1)) + reshape(h, (rows, 1, classes)), 0)
    is_other = reshape(made.equal(counts, 0), (rows, 1, classes))
    return counts, over, made.where(is_other, reshape(counts, (rows, classes, 1)), 0)


@row("multilabel_margin_loss_forward.default", how="composed")
def multilabel_margin_loss(x, target, reduction):
    """The sum over labels t and classes j that are none of max(0, 1 - x[t] + x[j]), divided by the classes. torch 2.11 would take it apart
    to another sum."""
    h = _rows_of(x)
    counts, over, pairs = _margins_of_labels(x, target)
    out = made.sum(made.where(pairs > 0, over * pairs, 0), axis=(1, 2)) * (1.0 / h.shape[1])
    if reduction != _NONE:
        out = made.sum(out) * (1.0 / h.shape[0] if reduction == _MEAN else 1.0)
    elif x.ndim < 2:
        out = reshape(out, ())
    return wrap(cast(out, h._dtype)), wrap(reshape(cast(counts > 0, h._dtype), tuple(target.shape)))


@row("multilabel_margin_loss_backward.default", how="composed")
def multilabel_margin_loss_backward(grad, x, target, reduction, is_target):
    h = _rows_of(x)
    classes = h.shape[1]
    _, over, pairs = _margins_of_labels(x, target)
    pairs = made.where(over > 0, pairs, 0)
    out = (made.sum(pairs, axis=1) - made.sum(pairs, axis=2)) * (1.0 / classes) * _by_rows(grad, h, reduction)
    return wrap(cast(reshape(out, tuple(x.shape)), h._dtype))


# ---- edges and windows -----------------------------------------------------------------------------------------------------

def _replication_pad_backward(dims: int):
    def function(grad, x, padding):
        """Copies of an element are added up there."""
        g = handle_of(grad)
        for k in range(dims):
            dim, n = x.ndim - 1 - k, x.shape[x.ndim - 1 - k]
            at = clip(iota(g, g.shape[dim]) - padding[2 * k], 0, n - 1)
            shape = [n if d == dim else e for d, e in enumerate(g.shape)]
            kept = shards_of(g._placements, [d for d in range(g.ndim) if d != dim])
            zeros = full_like(g, shape, g._dtype, 0, kept)
            g = settled(_call(OPS["scatter"], (zeros, at, g), dims=[dim], mode="add"))
        return wrap(g)
    return function


for _dims in (1, 2, 3):
    row(f"replication_pad{_dims}d_backward.default", how="composed")(_replication_pad_backward(_dims))


def _for_each(numbers, dims: int) -> list[int]:
    numbers = [numbers] if isinstance(numbers, int) else [int(one) for one in numbers]
    return numbers * dims if len(numbers) == 1 else numbers


def _windows(like, n: int, m: int):
    """[m, longest]: the elements of each of m windows over n, cut to the last one; and whether they are in it."""
    longest = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
    i = reshape(iota(like, m), (m, 1))
    places = made.floor_divide(i * n, m) + iota(like, longest)
    return made.minimum(places, n - 1), places < made.floor_divide((i + 1) * n + (m - 1), m)


def _largest_of_windows(h, dims: int, windows):
    """Each window's largest element, the first of equal ones, and which of the image's elements that is. `windows`: for each of the last
    dims [windows, longest], the elements that are in a window, and whether there is one."""
    lead, sizes, (at, inside) = h.ndim - dims, h.shape[h.ndim - dims:], zip(*windows)
    counts, out = [one.shape[0] for one in at], h
    for d in reversed(range(dims)):
        out = _indexing.take(out, reshape(at[d], (at[d].size,)), axis=lead + d)
        out = reshape(out, (*out.shape[:lead + d], *at[d].shape, *out.shape[lead + d + 1:]))
    order = [*range(lead), *range(lead, lead + 2 * dims, 2), *range(lead + 1, lead + 2 * dims, 2)]
    out = reshape(permute_dims(out, order), (*h.shape[:lead], *counts, -1))
    table = is_in = None        # of the windows' elements which of the image, and whether there is one
    for d, n in enumerate(sizes):
        shape = [at[d].shape[0] if e == d else at[d].shape[1] if e == dims + d else 1 for e in range(2 * dims)]
        place, own = reshape(at[d], shape), reshape(inside[d], shape)
        table, is_in = (place, own) if table is None else (table * n + place, made.logical_and(is_in, own))
    table, is_in = (reshape(one, (*counts, -1)) for one in (table, is_in))
    out = made.where(is_in, out, float("-inf"))
    largest = argmax(out, axis=out.ndim - 1, keepdims=True)
    places = broadcast_to(table, out.shape)
    found = [_call(OPS["take_along_axis"], (one, largest), dims=[out.ndim - 1])[..., 0] for one in (out, places)]
    return wrap(cast(found[0], h._dtype)), wrap(found[1])


def _adaptive_max_pool(dims: int):
    def function(x, output_size):
        """Window i of m over n elements is [floor(i n / m), ceil((i + 1) n / m))."""
        h, lead = handle_of(x), x.ndim - dims
        counts, sizes = [int(m) for m in output_size], h.shape[lead:]
        if lead not in (1, 2) or any(m < 1 for m in counts) or 0 in h.shape[1:]:
            raise InvalidArgumentError(f"adaptive_max_pool{dims}d: {counts} windows of {x!r}")
        return _largest_of_windows(h, dims, [_windows(h, n, m) for n, m in zip(sizes, counts)])
    return function


def _max_pool(dims: int):
    def function(x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        h, lead = handle_of(x), x.ndim - dims
        kernel, steps, edges, gaps = (_for_each(one, dims) for one in (kernel_size, stride or kernel_size, padding, dilation))
        windows = []
        for n, k, step, edge, gap in zip(h.shape[lead:], kernel, steps, edges, gaps):
            room = n + 2 * edge - gap * (k - 1) - 1
            m = (room + (step - 1 if ceil_mode else 0)) // step + 1
            m -= ceil_mode and (m - 1) * step >= n + edge       # a window begins within the image
            if lead not in (1, 2) or room < 0 or 2 * edge > k or 0 in h.shape[1:]:
                raise InvalidArgumentError(f"max_pool{dims}d: windows of {kernel}, padded by {edges}, of {x!r}")
            at = reshape(iota(h, m), (m, 1)) * step + iota(h, k) * gap - edge
            windows.append((clip(at, 0, n - 1), made.logical_and(at >= 0, at < n)))
        return _largest_of_windows(h, dims, windows)
    return function


for _dims in (2, 3):
    row(f"adaptive_max_pool{_dims}d.default", how="composed")(_adaptive_max_pool(_dims))
    row_where_torch_has_none(f"max_pool{_dims}d_with_indices.default", _max_pool(_dims))


# ---- images of other sizes, each element a mean of those around it --------------------------------------------------------

def _triangle(t):
    return made.maximum(0.0, 1.0 - made.abs(t))


def _cubic(t, a=-0.5):
    d = made.abs(t)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return made.where(d < 1, near, made.where(d < 2, far, 0.0))


def _means(like, n: int, m: int, align: bool, scale, kernel, reach: float):
    """[m, n]: of n elements the weight of each in each of m, the kernel as wide as an element of the result."""
    step = ((n - 1) / (m - 1) if m > 1 else 0.0) if align else 1.0 / scale if scale else n / m
    width = max(step, 1.0)
    center = step * (reshape(iota(like, m, F64), (m, 1)) + 0.5)
    first = made.maximum(made.trunc(center - reach * width + 0.5), 0.0)
    end = made.minimum(made.trunc(center + reach * width + 0.5), float(n))
    at = iota(like, n, F64)
    weights = made.where(made.logical_and(at >= first, at < end), kernel((at - center + 0.5) * (1 / width)), 0.0)
    total = made.sum(weights, axis=1, keepdims=True)
    return cast(weights / made.where(made.equal(total, 0.0), 1.0, total), like._dtype)


def _averaged(kernel, reach: float, is_backward: bool):
    def function(x, output_size, *rest):
        h = handle_of(x)
        sizes, (align, *scales) = (rest[0][2:], rest[1:]) if is_backward else (h.shape[2:], rest)
        is_whole = h.dtype.kind in "iu"
        out = cast(h, F64) if is_whole else wide(h)
        for d, (n, m, scale) in enumerate(zip(sizes, output_size, [*scales, None, None])):
            weights = _means(out, n, m, align, scale, kernel, reach)
            source, target = ("bchw", "bcow") if d == 0 else ("bchw", "bcho")
            sides = ("o" + "hw"[d]) if not is_backward else ("hw"[d] + "o")
            out = einsum(f"{source},{sides}->{target}", out, weights)
        if is_whole:
            out = clip(made.round(out), *((0, 255) if h.dtype.itemsize == 1 else (None, None)))
        return wrap(cast(out, h._dtype))
    return function


for _name, _kernel, _reach in (("bilinear", _triangle, 1.0), ("bicubic", _cubic, 2.0)):
    row(f"_upsample_{_name}2d_aa.default", how="composed")(_averaged(_kernel, _reach, False))
    row(f"_upsample_{_name}2d_aa_backward.default", how="composed")(_averaged(_kernel, _reach, True))


# ---- distances of all pairs, running sums ----------------------------------------------------------------------------------

def _pairs(like, n: int):
    """Where (i, j) with i < j lie in an [n, n], in order: the k-th pair's row by how many come after it."""
    count = n * (n - 1) // 2
    k = iota(like, count)
    after = cast(made.trunc((made.sqrt(8.0 * cast(count - 1 - k, F64) + 1.0) - 1.0) * 0.5), INT64)
    i = n - 2 - after
    return i * n + (k + i + 1 - count + made.floor_divide((n - i) * (n - i - 1), 2))


@row("_pdist_forward.default", how="composed")
def pdist(x, p=2.0):
    n = x.shape[0]
    if n < 2:
        return wrap(full_like(handle_of(x), (0,), handle_of(x)._dtype, 0))
    whole = handle_of(run("_cdist_forward.default")(x, x, p))
    return wrap(_call(OPS["take_along_axis"], (reshape(whole, (n * n,)), _pairs(whole, n)), dims=[0]))


@row("_pdist_backward.default", how="composed")
def pdist_backward(grad, x, p, distances):
    n, g = x.shape[0], handle_of(grad)
    if n < 2:
        return wrap(full_like(handle_of(x), tuple(x.shape), handle_of(x)._dtype, 0))
    def matrix(values):
        zeros = full_like(values, (n * n,), values._dtype, 0)
        upper = reshape(_call(OPS["scatter"], (zeros, _pairs(values, n), values), dims=[0], mode="set"), (n, n))
        return wrap(upper + permute_dims(upper, (1, 0)))
    return run("_cdist_backward.default")(matrix(g), x, x, p, matrix(handle_of(distances)))


@row("logcumsumexp.default", how="composed")
def logcumsumexp(x, dim):
    """By sums of 1, 2, 4, ... neighbours, each of which is relative to its own largest; in f64, as torch's derivative takes
    differences of its exponentials."""
    out = handle_of(x)
    if not x.ndim or not x.numel():
        return wrap(out[...])
    dim %= x.ndim
    dtype, out = out._dtype, cast(settled_dims(out, [dim]), F64)
    reach = 1
    while reach < x.shape[dim]:
        head, rest, before = (out[(slice(None),) * dim + (one,)] for one in (slice(0, reach), slice(reach, None), slice(0, -reach)))
        out = concat([head, made.logaddexp(rest, before)], axis=dim)
        reach *= 2
    return wrap(cast(out, dtype))
