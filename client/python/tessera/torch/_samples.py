"""Samples of distributions that take several random numbers each: by rejection with as many tries as leave none without one, so that
nothing is read and the same numbers come on every mesh and placement. In f64, but for gamma.
"""

from __future__ import annotations

import math

import _tessera_ops as made

from .._errors import InvalidArgumentError
from ._composed import wide
from ._device import next_call
from ._dtypes import F64
from ._operands import cast
from ._placing import create_like, full_like, settled
from ._table import row
from ._tensor import wrap

# ---- gamma, Dirichlet -----------------------------------------------------------------------------------------------------

_TRIES = 12     # each is taken with a probability above 0.95, so that all are refused once in 4e15 samples


@row("_standard_gamma.default", how="composed")
def standard_gamma(x, generator=None):
    """Marsaglia, Tsang, "A simple method for generating gamma variables" (2000): d v of the first try that is taken, with
    v = (1 + c n)^3 of a normal n. Below 1 of alpha + 1, times u^(1 / alpha)."""
    alpha = wide(settled(x))
    def drawn(name):
        kept = [one if one[0] == 1 else (0, 0, 0) for one in alpha._placements]
        numbers = next_call(generator) if name == "rand" else [0.0, 1.0, *next_call(generator), *next_call(generator)]
        return create_like(name, alpha, alpha.shape, alpha._dtype, numbers, kept)
    is_low = alpha < 1.0
    d = made.where(is_low, alpha + 1.0, alpha) - 1.0 / 3.0
    c = 1.0 / made.sqrt(9.0 * d)
    out, is_found = d, made.less(alpha, float("-inf"))
    for _ in range(_TRIES):
        n, u = drawn("normal"), 1.0 - drawn("rand")
        t = 1.0 + c * n
        v = t * t * t
        is_taken = made.logical_and(t > 0.0, made.log(u) < 0.5 * n * n + d * (1.0 - v + made.log(made.where(t > 0.0, v, 1.0))))
        out = made.where(made.logical_and(is_taken, made.logical_not(is_found)), d * v, out)
        is_found = made.logical_or(is_found, is_taken)
    return wrap(cast(made.where(is_low, out * (1.0 - drawn("rand")) ** (1.0 / made.where(is_low, alpha, 1.0)), out), settled(x)._dtype))


@row("_sample_dirichlet.default", how="composed")
def sample_dirichlet(x, generator=None):
    parts = settled(standard_gamma(x, generator))
    return wrap(parts / made.sum(parts, axis=-1, keepdims=True))


# ---- counts: Poisson, binomial ------------------------------------------------------------------------------------------------
#
# Where a mean is below 10, how many of the sums of probabilities of 0, 1, 2, ... a random number is beyond; else by the transformed
# rejection of Hoermann, "The transformed rejection method for generating Poisson random variables" (1993), and "The generation of
# binomial random variates" (1993).

_LOW = 10.0         # means below
_SUMS = 48          # beyond as many there is less than 2 ** -53 of such a mean
_COUNT_TRIES = 26   # each is taken with a probability above 0.75


def _uniform(like, generator):
    kept = [one if one[0] == 1 else (0, 0, 0) for one in like._placements]
    return create_like("rand", like, like.shape, F64, next_call(generator), kept)


def _log_factorial(k):
    """By Stirling's series of k + 7, and the product of what is between."""
    z, between = k + 8.0, k + 1.0
    for i in range(2, 8):
        between = between * (k + float(i))
    r = 1.0 / (z * z)
    series = (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680)))) / z
    return (z - 0.5) * made.log(z) - z + 0.5 * math.log(2 * math.pi) + series - made.log(between)


def _counted(u, probability, ratio):
    """How many of the sums of probabilities u is beyond; each is the one before times its ratio."""
    total, out = probability, full_like(u, u.shape, F64, 0)
    for k in range(1, _SUMS):
        out = out + cast(u >= total, F64)
        probability = probability * ratio(float(k))
        total = total + probability
    return out


def _tried(mean, generator, a, b, center, fast, log_bound):
    """The first k = floor((2 a / us + b) u + center) that is taken."""
    out, is_found = mean, made.less(mean, float("-inf"))
    for _ in range(_COUNT_TRIES):
        u, v = _uniform(mean, generator) - 0.5, 1.0 - _uniform(mean, generator)
        us = 0.5 - made.abs(u)
        us = made.where(us > 0.0, us, 1e-300)
        k = made.floor((2.0 * a / us + b) * u + center)
        is_taken = made.logical_or(made.logical_and(us >= 0.07, v <= fast), log_bound(k, made.log(v), us))
        out = made.where(made.logical_and(is_taken, made.logical_not(is_found)), k, out)
        is_found = made.logical_or(is_found, is_taken)
    return out


@row("poisson.default", how="composed")
def poisson(x, generator=None):
    """Of each element as a mean; NaN where there is none."""
    mean = cast(settled(x), F64)
    is_low = made.logical_not(mean >= _LOW)
    low = made.where(is_low, mean, 1.0)
    counted = _counted(_uniform(mean, generator), made.exp(-low), lambda k: low / k)
    lam = made.where(is_low, _LOW, mean)
    log_lam = made.log(lam)
    b = 0.931 + 2.53 * made.sqrt(lam)
    a = -0.059 + 0.02483 * b
    log_scale = made.log(1.1239 + 1.1328 / (b - 3.4))

    def is_below(k, log_v, us):
        may_be = made.logical_and(k >= 0.0, made.logical_or(us >= 0.013, log_v <= made.log(us)))
        whole = made.maximum(k, 0.0)
        bound = whole * log_lam - lam - _log_factorial(whole)
        return made.logical_and(may_be, log_v + log_scale - made.log(a / (us * us) + b) <= bound)

    drawn = _tried(lam, generator, a, b, lam + 0.43, 0.9277 - 3.6224 / (b - 2.0), is_below)
    out = made.where(is_low, made.where(mean >= 0.0, counted, float("nan")), drawn)
    return wrap(cast(out, settled(x)._dtype))


@row("binomial.default", how="composed")
def binomial(count, prob, generator=None):
    """How many of `count` come out that do with probability `prob`."""
    if count.dtype != prob.dtype:
        raise InvalidArgumentError(f"binomial: count and prob have one dtype, not {count!r} and {prob!r}")
    counts, chances = cast(settled(count), F64), cast(settled(prob), F64)
    n, given = counts + 0.0 * chances, chances + 0.0 * counts
    p = made.minimum(given, 1.0 - given)
    ratio = p / (1.0 - p)
    is_low = n * p < _LOW
    counted = _counted(_uniform(n, generator), made.where(is_low, made.exp(n * made.log1p(-p)), 1.0), lambda k: made.maximum(n - (k - 1.0), 0.0) / k * ratio)
    m, q = made.where(is_low, 40.0, n), made.where(is_low, 0.5, p)       # what is low has numbers that do no harm
    size = made.sqrt(m * q * (1.0 - q))
    b = 1.15 + 2.53 * size
    a = -0.0873 + 0.0248 * b + 0.01 * q
    log_r, top = made.log(q / (1.0 - q)), made.floor((m + 1.0) * q)
    log_alpha = made.log((2.83 + 5.1 / b) * size)
    most = _log_factorial(top) + _log_factorial(m - top)

    def is_below(k, log_v, us):
        may_be = made.logical_and(k >= 0.0, k <= m)
        whole = made.minimum(made.maximum(k, 0.0), m)
        bound = most - _log_factorial(whole) - _log_factorial(m - whole) + (whole - top) * log_r
        return made.logical_and(may_be, log_v + log_alpha - made.log(a / (us * us) + b) <= bound)

    drawn = _tried(m, generator, a, b, m * q + 0.5, 0.92 - 4.2 / b, is_below)
    out = made.where(is_low, made.minimum(counted, n), drawn)
    return wrap(cast(made.where(given > 0.5, n - out, out), settled(count)._dtype))
