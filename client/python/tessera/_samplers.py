"""Samples that take several random numbers each: gamma, Poisson, binomial. NumPy's names and torch's distributions are made of them.

Samples are made by rejection, with as many tries as leave none without one: nothing is read, and the same numbers come on every mesh
and placement. Parameters and samples are f64 tensors of one shape. `uniform()` and `normal()` give a tensor of new random numbers of that
shape and place, uniform in [0, 1) and normal.
"""

from __future__ import annotations

import math

import _tessera_ops as made

_GAMMA_TRIES = 12       # each is taken with a probability above 0.95, so that all are refused once in 4e15 samples


def gamma(alpha, uniform, normal):
    """Marsaglia, Tsang, "A simple method for generating gamma variables" (2000): d v of the first try that is taken, with
    v = (1 + c n)^3 of a normal n. Below 1 of alpha + 1, times u^(1 / alpha)."""
    is_low = alpha < 1.0
    d = made.where(is_low, alpha + 1.0, alpha) - 1.0 / 3.0
    c = 1.0 / made.sqrt(9.0 * d)
    out, is_found = d, made.less(alpha, float("-inf"))
    for _ in range(_GAMMA_TRIES):
        n, u = normal(), 1.0 - uniform()
        t = 1.0 + c * n
        v = t * t * t
        is_taken = made.logical_and(t > 0.0, made.log(u) < 0.5 * n * n + d * (1.0 - v + made.log(made.where(t > 0.0, v, 1.0))))
        out = made.where(made.logical_and(is_taken, made.logical_not(is_found)), d * v, out)
        is_found = made.logical_or(is_found, is_taken)
    return made.where(is_low, out * (1.0 - uniform()) ** (1.0 / made.where(is_low, alpha, 1.0)), out)


# ---- counts ---------------------------------------------------------------------------------------
#
# Where a mean is below 10, how many of the sums of probabilities of 0, 1, 2, ... a random number is beyond; else by the transformed
# rejection of Hoermann, "The transformed rejection method for generating Poisson random variables" (1993), and "The generation of
# binomial random variates" (1993).

_LOW = 10.0         # means below
_SUMS = 48          # beyond as many there is less than 2 ** -53 of such a mean
_COUNT_TRIES = 26   # each is taken with a probability above 0.75


def log_factorial(k):
    """By Stirling's series of k + 7, and the product of what is between."""
    z, between = k + 8.0, k + 1.0
    for i in range(2, 8):
        between = between * (k + float(i))
    r = 1.0 / (z * z)
    series = (1.0 / 12 - r * (1.0 / 360 - r * (1.0 / 1260 - r * (1.0 / 1680)))) / z
    return (z - 0.5) * made.log(z) - z + 0.5 * math.log(2 * math.pi) + series - made.log(between)


def _counted(u, probability, ratio):
    """How many of the sums of probabilities u is beyond; each is the one before times its ratio."""
    total, out = probability, u * 0.0
    for k in range(1, _SUMS):
        out = out + made.where(u >= total, 1.0, 0.0)
        probability = probability * ratio(float(k))
        total = total + probability
    return out


def _tried(mean, uniform, a, b, center, fast, is_below):
    """The first k = floor((2 a / us + b) u + center) that is taken."""
    out, is_found = mean, made.less(mean, float("-inf"))
    for _ in range(_COUNT_TRIES):
        u, v = uniform() - 0.5, 1.0 - uniform()
        us = 0.5 - made.abs(u)
        us = made.where(us > 0.0, us, 1e-300)
        k = made.floor((2.0 * a / us + b) * u + center)
        is_taken = made.logical_or(made.logical_and(us >= 0.07, v <= fast), is_below(k, made.log(v), us))
        out = made.where(made.logical_and(is_taken, made.logical_not(is_found)), k, out)
        is_found = made.logical_or(is_found, is_taken)
    return out


def poisson(mean, uniform):
    """Counts of each element as a mean; NaN where there is none."""
    is_low = made.logical_not(mean >= _LOW)
    low = made.where(is_low, mean, 1.0)
    counted = _counted(uniform(), made.exp(-low), lambda k: low / k)
    lam = made.where(is_low, _LOW, mean)
    log_lam = made.log(lam)
    b = 0.931 + 2.53 * made.sqrt(lam)
    a = -0.059 + 0.02483 * b
    log_scale = made.log(1.1239 + 1.1328 / (b - 3.4))

    def is_below(k, log_v, us):
        may_be = made.logical_and(k >= 0.0, made.logical_or(us >= 0.013, log_v <= made.log(us)))
        whole = made.maximum(k, 0.0)
        bound = whole * log_lam - lam - log_factorial(whole)
        return made.logical_and(may_be, log_v + log_scale - made.log(a / (us * us) + b) <= bound)

    drawn = _tried(lam, uniform, a, b, lam + 0.43, 0.9277 - 3.6224 / (b - 2.0), is_below)
    return made.where(is_low, made.where(mean >= 0.0, counted, float("nan")), drawn)


def binomial(counts, chances, uniform):
    """How many of `counts` come out that do with probability `chances`."""
    n, given = counts + 0.0 * chances, chances + 0.0 * counts
    p = made.minimum(given, 1.0 - given)
    ratio = p / (1.0 - p)
    is_low = n * p < _LOW
    counted = _counted(uniform(), made.where(is_low, made.exp(n * made.log1p(-p)), 1.0), lambda k: made.maximum(n - (k - 1.0), 0.0) / k * ratio)
    m, q = made.where(is_low, 40.0, n), made.where(is_low, 0.5, p)       # what is low has numbers that do no harm
    size = made.sqrt(m * q * (1.0 - q))
    b = 1.15 + 2.53 * size
    a = -0.0873 + 0.0248 * b + 0.01 * q
    log_r, top = made.log(q / (1.0 - q)), made.floor((m + 1.0) * q)
    log_alpha = made.log((2.83 + 5.1 / b) * size)
    most = log_factorial(top) + log_factorial(m - top)

    def is_below(k, log_v, us):
        may_be = made.logical_and(k >= 0.0, k <= m)
        whole = made.minimum(made.maximum(k, 0.0), m)
        bound = most - log_factorial(whole) - log_factorial(m - whole) + (whole - top) * log_r
        return made.logical_and(may_be, log_v + log_alpha - made.log(a / (us * us) + b) <= bound)

    drawn = _tried(m, uniform, a, b, m * q + 0.5, 0.92 - 4.2 / b, is_below)
    out = made.where(is_low, made.minimum(counted, n), drawn)
    return made.where(given > 0.5, n - out, out)
