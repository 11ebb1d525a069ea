"""NumPy's statistics that are an arrangement of other ops: quantiles by one sort, histograms by a search and one scatter,
covariances."""

from __future__ import annotations

import builtins

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import beside, numbers_of, ravel
from ._creation import full, zeros
from ._dtypes import code_of
from ._errors import ArgumentError, DTypeError, InvalidArgumentError
from ._indexing import take
from ._namespace_info import finfo, result_type
from ._local_map import local_map
from ._mesh import integers
from ._ops import _tensor_of, argmax, argmin, astype, broadcast_to, concat, expand_dims, moveaxis, reshape
from ._placements import Partial, Replicate
from ._calls import axes_of
from ._catalog import OPS


def _real(name: str, x):
    x = _tensor_of(name, x)
    if x.dtype.kind == "c":
        raise DTypeError(f"{name}: needs a real dtype: x is {x._spec}")
    return x


# ---- quantiles -----------------------------------------------------------------------------------

# (alpha, beta) of Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996: n q + alpha + q (1 - alpha - beta) - 1.
_CONTINUOUS = {"interpolated_inverted_cdf": (0, 1), "hazen": (0.5, 0.5), "weibull": (0, 0), "median_unbiased": (1 / 3.0, 1 / 3.0),
               "normal_unbiased": (3 / 8.0, 3 / 8.0)}
_METHODS = ("inverted_cdf", "averaged_inverted_cdf", "closest_observation", "linear", "lower", "higher", "midpoint", "nearest",
            *_CONTINUOUS)


def _place(method: str, n, q, ops):
    """Where the quantiles are among n sorted elements, as NumPy counts: a place, and how far behind it, or None where it is
    one of the elements. n and q are NumPy's, or tensors; `ops` has their functions."""
    if method in ("inverted_cdf", "closest_observation"):
        place = n * q - 1 if method == "inverted_cdf" else n * q - 1 - 0.5
        below = ops.floor(place)
        stays = place - below == 0
        if method == "closest_observation":
            stays = ops.logical_and(stays, ops.remainder(below, 2) == 1)
        return ops.maximum(ops.where(stays, below, below + 1), 0), None
    if method in ("lower", "higher", "nearest"):
        return {"lower": ops.floor, "higher": ops.ceil, "nearest": ops.round}[method]((n - 1) * q), None
    if method == "averaged_inverted_cdf":
        place = n * q - 1
        return place, ops.where(place - ops.floor(place) == 0, 0.5, 1.0)
    if method == "midpoint":
        place = 0.5 * (ops.floor((n - 1) * q) + ops.ceil((n - 1) * q))
        return place, ops.where(place - ops.floor(place) == 0, 0.0, 0.5)
    if method == "linear":
        place = (n - 1) * q
    else:
        alpha, beta = _CONTINUOUS[method]
        place = n * q + (alpha + q * (1 - alpha - beta)) - 1
    return place, place - ops.floor(place)


def _neighbours(place, n, ops):
    """The elements before and behind a place, the first or the last one beyond the ends."""
    before = ops.floor(place)
    is_above, is_below = place >= n - 1, place < 0
    before, behind = (ops.where(is_above, n - 1, ops.where(is_below, 0, at)) for at in (before, before + 1))
    return ops.maximum(before, 0), ops.maximum(behind, 0)


def median(x, /, axis=None, *, keepdims=False):
    """median(x, /, axis=None, *, keepdims=False)

    The middle one of the sorted elements along an axis, or several, or the mean of the two; NaN propagates."""
    x = _real("median", x)
    y, kept = _along_last("median", x, axis)
    n = y.shape[-1]
    if n == 0:
        raise InvalidArgumentError(f"median: {x._spec} has no elements along the axis")
    ordered = made.sort(y, axis=-1)
    middle = (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2
    if x.dtype.kind == "f":
        last = ordered[..., n - 1]
        middle = made.where(made.isnan(last), last, middle)
    return reshape(middle, kept) if keepdims else middle


def nanmedian(x, /, axis=None, *, keepdims=False):
    """nanmedian(x, /, axis=None, *, keepdims=False)

    The middle one of the sorted elements that are no NaN along an axis, or several, or the mean of the two."""
    return nanquantile(x, 0.5, axis=axis, keepdims=keepdims)


def _asked(name: str, q, highest: float):
    """The quantiles in [0, 1] as an array of f64, and whether they are Python's numbers, which take x's dtype."""
    if isinstance(q, _tessera.Tensor):
        q = q.full_tensor()     # which elements are taken depends on it
    array = np.asarray(q)
    if array.ndim > 1 or array.dtype.kind not in "iuf":
        raise InvalidArgumentError(f"{name}: q is {q!r}; it is a number, or a list of them")
    for one in array.reshape(-1)[~((array.reshape(-1) >= 0) & (array.reshape(-1) <= highest))][:1]:
        raise InvalidArgumentError(f"{name}: q is {one}, not from 0 to {highest:g}")
    return (array if highest == 1 else np.true_divide(array, highest)), type(q) in (int, float)


def _along_last(name: str, x, axis):
    """x with the axes as one last dim, and the shape of a result that keeps them."""
    dims = axes_of(name, axis, x.ndim)
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    if axis is None:
        return ravel(x), kept
    y = moveaxis(x, dims, list(range(x.ndim - len(dims), x.ndim))) if dims else x[..., None]
    rest = [n for d, n in enumerate(x.shape) if d not in dims]
    return (y if len(dims) == 1 else reshape(y, [*rest, int(np.prod([x.shape[d] for d in dims], dtype=np.int64))])), kept


def _between(before, behind, part, dtype):
    """NumPy's interpolation, which gives the ends exactly; parts of the gap are of a dtype."""
    gap = behind - before
    return made.where(part >= 0.5, behind - gap * astype(1 - part, dtype), before + gap * astype(part, dtype))


def _quantile(name: str, x, q, axis, method: str, keepdims, highest: float):
    x = _real(name, x)
    if method not in _METHODS:
        raise InvalidArgumentError(f"{name}: method is {method!r}, not one of {', '.join(_METHODS)}")
    q, is_weak = _asked(name, q, highest)
    y, kept = _along_last(name, x, axis)
    n = y.shape[-1]
    if n == 0:
        raise InvalidArgumentError(f"{name}: {x._spec} has no elements along the axis")
    ordered = made.sort(y, axis=-1)
    if name.startswith("nan") and x.dtype.kind == "f":
        out = _of_counted(ordered, q, method, is_weak)
    else:
        out = _of_all(ordered, n, q, method, is_weak)
        if x.dtype.kind == "f":     # the last one in order is NaN where one is
            last = ordered[..., n - 1:]
            out = made.where(made.isnan(last), last, out)
    out = moveaxis(out, -1, 0)
    return reshape(out, [*q.shape, *(kept if keepdims else y.shape[:-1])])


def _of_all(ordered, n: int, q, method: str, is_weak: bool):
    """At places that are the same in each row."""
    place, part = _place(method, n, q, np)
    if part is None:
        return take(ordered, np.asarray(place, dtype=np.int64).reshape(-1), axis=-1)
    before, behind = (take(ordered, np.asarray(at, dtype=np.int64).reshape(-1), axis=-1) for at in _neighbours(place, n, np))
    if is_weak:
        part = float(part)
        gap = behind - before
        return behind - gap * (1 - part) if part >= 0.5 else before + gap * part
    part = beside("quantile", ordered, np.asarray(part, dtype=np.asarray(place).dtype).reshape(-1))
    return _between(before, behind, part, part.dtype)


def _of_counted(ordered, q, method: str, is_weak: bool):
    """At places among those elements of each row that aren't NaN, which come first."""
    counts = made.sum(made.logical_not(made.isnan(ordered)), axis=-1, keepdims=True, dtype=np.int64)
    n = astype(counts, np.float64)
    place, part = _place(method, n, beside("quantile", ordered, q.reshape(-1).astype(np.float64)), made)
    if part is None:
        at = made.maximum(made.minimum(place, n - 1), 0)
        return made.take_along_axis(ordered, astype(at, np.int64), axis=-1)
    before, behind = (made.take_along_axis(ordered, astype(at, np.int64), axis=-1) for at in _neighbours(place, n, made))
    return _between(before, behind, part, ordered.dtype if is_weak else part.dtype)


def quantile(x, /, q, axis=None, *, method="linear", keepdims=False):
    """quantile(x, /, q, axis=None, *, method='linear', keepdims=False)

    The numbers below which so large parts of the elements are, along the axes; NaN where one of them is NaN. Of a list of
    parts the result has a first dim for them.

    q: a number from 0 to 1, or a list of them. method: which place between elements, as NumPy names them: 'linear',
    'lower', 'higher', 'midpoint', 'nearest', 'median_unbiased' and others."""
    return _quantile("quantile", x, q, axis, method, keepdims, 1)


def percentile(x, /, q, axis=None, *, method="linear", keepdims=False):
    """percentile(x, /, q, axis=None, *, method='linear', keepdims=False)

    quantile by percents.

    q: a number from 0 to 100, or a list of them. method: as quantile's."""
    return _quantile("percentile", x, q, axis, method, keepdims, 100)


def nanquantile(x, /, q, axis=None, *, method="linear", keepdims=False):
    """nanquantile(x, /, q, axis=None, *, method='linear', keepdims=False)

    quantile of the elements that aren't NaN; NaN where all are.

    q: a number from 0 to 1, or a list of them. method: as quantile's."""
    return _quantile("nanquantile", x, q, axis, method, keepdims, 1)


def nanpercentile(x, /, q, axis=None, *, method="linear", keepdims=False):
    """nanpercentile(x, /, q, axis=None, *, method='linear', keepdims=False)

    percentile of the elements that aren't NaN; NaN where all are.

    q: a number from 0 to 100, or a list of them. method: as quantile's."""
    return _quantile("nanpercentile", x, q, axis, method, keepdims, 100)


def _nan_arg(name: str, x, axis, keepdims, reduce, beyond: float):
    x = _tensor_of(name, x)
    if x.dtype.kind == "f" and x.size:
        is_nan = made.isnan(x)
        alone = made.all(is_nan, axis=axis)
        (count,) = numbers_of(made.count_nonzero(alone))
        if count:
            raise InvalidArgumentError(f"{name}: {count} of {alone.size} slices of {x._spec} are NaN alone")
        x = made.where(is_nan, beyond, x)
    return reduce(x, axis=axis, keepdims=keepdims)


def nanargmax(x, /, axis=None, *, keepdims=False):
    """nanargmax(x, /, axis=None, *, keepdims=False)

    The index of the maximum of what isn't NaN, the first one of several. Waits for whether there is a number in each slice."""
    return _nan_arg("nanargmax", x, axis, keepdims, argmax, -np.inf)


def nanargmin(x, /, axis=None, *, keepdims=False):
    """nanargmin(x, /, axis=None, *, keepdims=False)

    The index of the minimum of what isn't NaN, the first one of several. Waits for whether there is a number in each slice."""
    return _nan_arg("nanargmin", x, axis, keepdims, argmin, np.inf)


def nan_to_num(x, /, *, nan=0.0, posinf=None, neginf=None):
    """nan_to_num(x, /, *, nan=0.0, posinf=None, neginf=None)

    Gives each element, or a number where it is NaN or infinite; by default 0 and the largest numbers.

    nan: what stands for NaN. posinf, neginf: what stands for the infinities."""
    x = _tensor_of("nan_to_num", x)
    if x.dtype.kind in "biu":
        return x._copy()
    limits = finfo(x.dtype)
    numbers = [nan, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf]
    return _tessera.call(OPS["nan_to_num"], (x,), scalars=[float(number) for number in numbers])


# ---- counted -------------------------------------------------------------------------------------

def added_up(places, updates, count: int):
    """Sums of updates, or of ones, by their places, from 0 to count; the last place is for what doesn't count. Each shard has sums of its
    own, which stay pending, so that nothing of the places moves."""
    def of_shard(places, updates=None):
        mesh, places = places.device_mesh, ravel(places)
        one = full((), 1, dtype=np.int64, device_mesh=mesh) if updates is None else None
        updates = ravel(updates) if one is None else broadcast_to(one, places.shape)
        start = zeros((count + 1,), dtype=updates.dtype, device_mesh=mesh)
        return made.scatter(start, places, updates, axis=0, mode="add")[:count]
    if places.ndim == 1 and (updates is None or updates.placements == places.placements):    # one op, whose sum stays pending
        mesh, kept = places.device_mesh, [p if p.is_shard() else Replicate() for p in places.placements]
        updates = full(places.shape, 1, dtype=np.int64, device_mesh=mesh, placements=kept) if updates is None else updates
        start = zeros((count + 1,), dtype=updates.dtype, device_mesh=mesh, placements=[Replicate()] * mesh.ndim)
        return made.scatter(start, places, updates, axis=0, mode="add")[:count]
    mesh, given = places.device_mesh, [places] if updates is None else [places, updates]
    kept = [p if p.is_shard() and extent > 1 else Replicate() for p, extent in zip(places.placements, mesh.shape)]
    if not any(p.is_shard() for p in kept):
        return of_shard(*given)
    return local_map(of_shard, *given, in_placements=[kept] * len(given),
                     out_placements=[Partial("sum") if p.is_shard() else p for p in kept])


def bincount(x, /, weights=None, minlength=0):
    """bincount(x, /, weights=None, minlength=0)

    How often each number from 0 to the largest one is there. Waits for the largest one.

    x: a vector of integers, none of them negative. weights: what each counts. minlength: the least length of the result."""
    x = _tensor_of("bincount", x)
    if x.ndim != 1 or x.dtype.kind not in "iu":
        raise InvalidArgumentError(f"bincount: takes a vector of integers: x is {x._spec}")
    (count,) = integers(minlength, "minlength", "bincount")
    if count < 0:
        raise InvalidArgumentError(f"bincount: minlength is {count}")
    if x.size:
        least, most = numbers_of(made.min(x), made.max(x))
        if least < 0:
            raise InvalidArgumentError(f"bincount: x is {x._spec}, and {least} is one of its elements, which is negative")
        count = builtins.max(count, most + 1)
    places = astype(x, np.int64)
    if weights is None:
        return added_up(places, None, count)
    weights = beside("bincount", x, weights)
    if tuple(weights.shape) != tuple(x.shape):
        raise InvalidArgumentError(f"bincount: weights are {weights._spec}, x is {x._spec}")
    return added_up(places, astype(weights, np.float64), count)


def histogram(x, /, bins=10, range=None, density=False, weights=None):  # noqa: A002 - NumPy's name
    """histogram(x, /, bins=10, range=None, density=False, weights=None)

    How many elements are in each bin, and the edges of the bins; the last bin has its right edge. Waits for the least and
    the largest element where bins is a number and no range is given.

    bins: how many equal ones, or a list of edges. range: the first and the last edge; what is beyond doesn't count.
    density: divided by the number of elements and the width of the bin. weights: what each element counts."""
    x = _real("histogram", x)
    edges = _edges(x, bins, range)
    dtype = result_type(x, edges) if x.dtype != np.bool_ else np.float64
    count = edges.size - 1
    places, is_in = bins_of("histogram", [astype(x, dtype)], [edges.astype(dtype)])
    places = made.where(is_in, places, count)
    if weights is None:
        sums = added_up(places, None, count)
    else:
        weights = beside("histogram", x, weights)
        if tuple(weights.shape) != tuple(x.shape):
            raise InvalidArgumentError(f"histogram: weights are {weights._spec}, x is {x._spec}")
        sums = added_up(places, weights, count)
    shown = beside("histogram", x, edges)
    if density:
        sums = sums / beside("histogram", x, np.diff(edges).astype(np.float64)) / made.sum(sums)
    return sums, shown


def bins_of(op: str, lines: list, edges: list):
    """The number of each point's bin, in row-major order of the dims' bins, and whether it is in one at all. lines: the points' coordinates
    for each dim; edges: tensors or arrays of their dtypes. The last bin of a dim has its right edge."""
    places = is_in = None
    for x, ends in zip(lines, edges):
        last = ends.shape[0] - 1
        first_edge, last_edge = (ends[i] if isinstance(ends, _tessera.Tensor) else ends[i].item() for i in (0, last))
        own = made.where(x == last_edge, last - 1, made.searchsorted(beside(op, x, ends), x, side="right") - 1)
        own_in = made.logical_and(x >= first_edge, x <= last_edge)
        places = own if places is None else places * last + own
        is_in = own_in if is_in is None else made.logical_and(is_in, own_in)
    return places, is_in


def _edges(x, bins, given) -> np.ndarray:
    """NumPy's edges."""
    if isinstance(bins, str):
        raise InvalidArgumentError(f"histogram: bins is {bins!r}; give their number, or the edges")
    dtype = np.dtype(np.uint8) if x.dtype == np.bool_ else x.dtype
    if isinstance(bins, _tessera.Tensor):
        bins = bins.full_tensor()
    if np.ndim(bins) == 0 and given is None:
        ends = np.zeros(0, dtype)
        if x.size:
            y = x if x.dtype == dtype else astype(x, dtype)
            ends = np.asarray(numbers_of(made.min(y), made.max(y)), dtype=dtype)
    else:
        ends = np.zeros(0, dtype)
    try:
        return np.histogram_bin_edges(ends, bins, given)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"histogram: {error}; x is {x._spec}") from None


def digitize(x, /, bins, right=False):
    """digitize(x, /, bins, right=False)

    The number of the bin that each element is in: bins[i - 1] <= x < bins[i]. Waits for whether the bins go up or down.

    bins: a vector of edges, in order. right: bins[i - 1] < x <= bins[i]."""
    x = _real("digitize", x)
    bins = beside("digitize", x, bins)
    if bins.ndim != 1:
        raise InvalidArgumentError(f"digitize: bins are {bins._spec}, no vector")
    side, count = "left" if right else "right", bins.size
    goes_up = goes_down = True
    if count > 1:
        goes_up, goes_down = numbers_of(made.all(bins[1:] >= bins[:-1]), made.all(bins[1:] <= bins[:-1]))
    if not goes_up and not goes_down:
        raise InvalidArgumentError(f"digitize: bins go neither up nor down: they are {bins._spec}")
    dtype = result_type(x, bins)
    x, bins = astype(x, dtype), astype(bins, dtype)
    if goes_up:
        return made.searchsorted(bins, x, side=side)
    return count - made.searchsorted(made.flip(bins), x, side=side)


# ---- covariances ---------------------------------------------------------------------------------

def _variables(name: str, x, is_row: bool):
    x = _tensor_of(name, x)
    if x.ndim > 2:
        raise InvalidArgumentError(f"{name}: {x._spec} has more than 2 dims")
    y = reshape(x, (1, x.size)) if x.ndim < 2 else x
    return y if is_row or x.ndim < 2 else y.T


def cov(x, /, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None):
    """cov(x, /, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None)

    The covariances of variables, which are the rows of x; in f64.

    y: more variables. rowvar: False where variables are columns. bias: divided by the number of observations, else by one
    less. ddof: what is taken off that number, whatever bias is. fweights: how often each observation was made. aweights:
    how much each counts."""
    rows = _variables("cov", x, rowvar)
    if y is not None:
        rows = concat([rows, _variables("cov", beside("cov", x, y), rowvar)], axis=0)
    wide = result_type(rows, np.dtype(np.float64)) if dtype is None else dtype
    correction = float(ddof if ddof is not None else 0 if bias else 1)
    if rows.shape[0] == 0:
        return zeros((0, 0), dtype=wide, device_mesh=rows.device_mesh)
    out = _covariances(rows, correction, fweights, aweights)
    out = out if code_of(wide, "cov") == out._dtype else astype(out, wide)
    return reshape(out, ()) if out.size == 1 else out


def _covariances(rows, correction: float, fweights, aweights):
    rows = astype(rows, np.complex128 if rows.dtype.kind == "c" else np.float64)
    given = [None if one is None else astype(beside("cov", rows, one), np.float64) for one in (fweights, aweights)]
    for one in given:
        if one is not None and tuple(one.shape) != (rows.shape[1],):
            raise InvalidArgumentError(f"cov: weights are {one._spec}, for {rows.shape[1]} observations of {rows._spec}")
    if fweights is None and aweights is None:
        return made.cov(rows, correction=correction)
    of_times, of_size = given
    weights = of_size if of_times is None else of_times if of_size is None else of_times * of_size
    total = made.sum(weights)
    taken_off = correction if of_size is None else correction * made.sum(weights * of_size) / total
    difference = rows - made.sum(rows * weights, axis=1, keepdims=True) / total
    return made.matmul(difference, made.conj((difference * weights).T)) / made.maximum(total - taken_off, 0.0)


def corrcoef(x, /, y=None, rowvar=True, *, dtype=None):
    """corrcoef(x, /, y=None, rowvar=True, *, dtype=None)

    The correlations of variables, which are the rows of x: their covariances divided by both standard deviations.

    y: more variables. rowvar: False where variables are columns."""
    out = cov(x, y, rowvar=rowvar, dtype=dtype)
    if out.ndim == 0:
        return out / out
    deviation = made.sqrt(made.real(made.diagonal(out)))
    out = out / expand_dims(deviation, 1) / expand_dims(deviation, 0)
    within = lambda part: made.minimum(made.maximum(part, -1), 1)     # noqa: E731
    return made.complex(within(made.real(out)), within(made.imag(out))) if out.dtype.kind == "c" else within(out)
