"""Values of an image between its elements (grid_sample), and their gradients, of the image and of the grid.

Each place is a sum over the elements around it: along each dim a few *taps*, with a weight each. So all modes are one gather of
(taps x places) elements, multiplied by the products of the dims' weights; the image's gradient adds these up where they were
taken from; that of a coordinate is the same sum with that dim's slopes in place of its weights. Batch and channels stay in shards.
"""

from __future__ import annotations

import math

import _tessera_ops as made

from .._errors import InvalidArgumentError
from .._ops import clip, reshape, stack
from .._placements import replicated, shards_of
from .._catalog import OPS
from ._composed import _call, wide
from ._dtypes import INT64
from ._operands import cast
from ._placing import create_like, full_like, settled_dims
from ._table import row
from ._tensor import handle_of, wrap

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


def _reflected(at, slope, low: float, span: float):
    """Between low and low + span, by as many reflections as it takes."""
    if span <= 0:
        return at * 0.0, slope * 0.0
    beyond = at - low
    sign = made.where(beyond < 0, -1.0, 1.0)
    size = made.abs(beyond)
    extra = made.fmod(size, span)
    is_turned = made.fmod(made.floor(size / span), 2.0) > 0.5
    return made.where(is_turned, low + span - extra, extra + low), slope * made.where(is_turned, -sign, sign)


def _bounded(at, slope, size: int, padding: int, align: bool):
    """The coordinate in an image that is continued as `padding` says, and its slope."""
    if padding == REFLECTION:
        at, slope = _reflected(at, slope, *((0.0, size - 1.0) if align else (-0.5, float(size))))
    if padding != ZEROS:
        slope = slope * cast(made.logical_and(at > 0, at < size - 1), at._dtype)
        at = clip(at, 0.0, size - 1.0)
    return at, slope


def _cubic(t):
    """The weight of an element at a signed distance, and its slope (Keys, 1981, with -0.75)."""
    a, d = -0.75, made.abs(t)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    near_slope, far_slope = (3 * (a + 2) * d - 2 * (a + 3)) * d, (3 * a * d - 10 * a) * d + 8 * a
    return made.where(d <= 1, near, far), made.sign(t) * made.where(d <= 1, near_slope, far_slope)


class _Taps:
    """Along one dim, (N, taps, Q) each: which element, whether there is one, its weight, and the weight's slope by the grid."""

    def __init__(self, grid, size: int, mode: int, padding: int, align: bool):
        scale = (size - 1) / 2 if align else size / 2
        at, slope = grid * scale + (size - 1) / 2, made.positive(grid) * 0.0 + scale
        if mode != BICUBIC:
            at, slope = _bounded(at, slope, size, padding, align)
        if mode == NEAREST:
            index, self.weight, self.slope = made.round(at), at * 0.0 + 1.0, None
        else:
            count, first = (4, -1) if mode == BICUBIC else (2, 0)
            steps = create_like("arange", grid, [count], grid._dtype, [float(first), 1.0], replicated(grid._mesh_ndim))
            steps = reshape(steps, (1, count, 1))
            low = made.floor(at)
            away = at - low - steps
            index = low + steps
            if mode == BICUBIC:
                self.weight, slopes = _cubic(away)
                index, _ = _bounded(index, 0.0 * index, size, padding, align)
            else:
                self.weight, slopes = 1.0 - made.abs(away), 2.0 * steps - 1.0
            self.slope = slopes * slope
        is_in = made.logical_and(index >= 0, index <= size - 1)
        self.weight = made.where(is_in, self.weight, 0.0)
        if self.slope is not None:
            self.slope = made.where(is_in, self.slope, 0.0)
        self.index = cast(made.where(is_in, index, 0.0), INT64)
        self.count = self.index.shape[1]


def _outer(factors, taps):
    """The products (N, all taps, Q) of a factor (N, taps, Q) for each dim."""
    dims, out = len(taps), None
    for d, factor in enumerate(factors):
        n, count, places = factor.shape
        one = reshape(factor, (n, *[count if e == d else 1 for e in range(dims)], places))
        out = one if out is None else out * one
    return reshape(out, (out.shape[0], math.prod(one.count for one in taps), out.shape[-1]))


class _Sample:
    """x as (N, C, elements), the taps of each of its dims, and where they lie: (N, all taps, Q)."""

    def __init__(self, name: str, x, grid, mode: int, padding: int, align: bool):
        dims = int(name[-2])
        if x.ndim != dims + 2 or grid.ndim != dims + 2 or grid.shape[-1] != dims or x.shape[0] != grid.shape[0]:
            raise InvalidArgumentError(f"{name}: takes (N, C, ...) and a grid (N, ..., {dims}) of one N: x is {x!r}, grid {grid!r}")
        if mode == BICUBIC and dims == 3:
            raise InvalidArgumentError(f"{name}: bicubic interpolation is of images of two dims")
        h, places = handle_of(x), settled_dims(handle_of(grid), [dims + 1])
        self.sizes, self.out = h.shape[2:], places.shape[1:-1]
        self.dtype, self.grid_dtype = h._dtype, places._dtype
        count = math.prod(self.out)
        grid = reshape(wide(places), (h.shape[0], count, dims))
        self.x = reshape(wide(h), (*h.shape[:2], math.prod(self.sizes)))
        # A grid's last dim has the coordinates of the image's dims from the last on.
        self.taps = [_Taps(cast(reshape(grid[:, :, dims - 1 - d], (h.shape[0], 1, count)), self.x._dtype), size, mode, padding, align)
                     for d, size in enumerate(self.sizes)]
        place = None
        for d, taps in enumerate(self.taps):
            own = reshape(taps.index, (h.shape[0], *[taps.count if e == d else 1 for e in range(dims)], count))
            place = own if place is None else place * self.sizes[d] + own
        self.all = math.prod(taps.count for taps in self.taps)
        self.place = reshape(place, (h.shape[0], 1, self.all * count))

    def weights(self, but: int = -1):
        """The products of the weights; with dim `but`'s slopes in place of its weights."""
        return _outer([taps.slope if d == but else taps.weight for d, taps in enumerate(self.taps)], self.taps)

    def values(self):
        """(N, C, all taps, Q)."""
        taken = _call(OPS["take_along_axis"], (self.x, self.place), dims=[2])
        return reshape(taken, (*self.x.shape[:2], self.all, math.prod(self.out)))

    def of_image(self, g):
        """The gradient of x, of that of the result (N, C, Q)."""
        n, channels = self.x.shape[:2]
        weights = self.weights()
        parts = reshape(g, (n, channels, 1, g.shape[2])) * reshape(weights, (n, 1, *weights.shape[1:]))
        kept = shards_of(self.x._placements, range(2))
        zeros = full_like(self.x, self.x.shape, self.x._dtype, 0, kept)
        parts = reshape(parts, (n, channels, self.place.shape[2]))
        return reshape(_call(OPS["scatter"], (zeros, self.place, parts), dims=[2], mode="add"), (n, channels, *self.sizes))

    def of_grid(self, g):
        n, channels = self.x.shape[:2]
        by_tap = made.sum(self.values() * reshape(g, (n, channels, 1, g.shape[2])), axis=1)
        dims = len(self.sizes)
        along = [made.sum(by_tap * self.weights(d), axis=1) for d in reversed(range(dims))]
        return reshape(stack(along, axis=-1), (n, *self.out, dims))


def _sampler(name: str):
    def function(x, grid, mode, padding, align):
        sample = _Sample(name, x, grid, mode, padding, align)
        weights = sample.weights()
        out = made.sum(sample.values() * reshape(weights, (weights.shape[0], 1, *weights.shape[1:])), axis=2)
        return wrap(cast(reshape(out, (*sample.x.shape[:2], *sample.out)), sample.dtype))
    return function


def _sampler_backward(name: str):
    def function(grad, x, grid, mode, padding, align, wanted):
        sample = _Sample(name, x, grid, mode, padding, align)
        g = wide(handle_of(grad))
        g = reshape(g, (*g.shape[:2], math.prod(sample.out)))
        of_x = wrap(cast(sample.of_image(g), sample.dtype)) if wanted[0] else None
        if not wanted[1]:
            return of_x, None
        if mode == NEAREST:
            return of_x, wrap(full_like(handle_of(grid), grid.shape, sample.grid_dtype, 0))
        return of_x, wrap(cast(sample.of_grid(g), sample.grid_dtype))
    return function


for _name in ("grid_sampler_2d", "grid_sampler_3d"):
    row(f"{_name}.default", how="composed")(_sampler(_name))
    row(f"{_name}_backward.default", how="composed")(_sampler_backward(_name))
