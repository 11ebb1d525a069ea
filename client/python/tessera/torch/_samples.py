"""Samples of distributions that take several random numbers each, and gradients through them.

Samples are made by rejection, with as many tries as leave none without one: nothing is read, and the same numbers come on every mesh
and placement. In f64, but for gamma.
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
from ._special import _digamma
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
        numbers = next_call(generator) if name == "rand" else [0.0, 1.0, *next_call(generator), *next_call(generator)]
        return create_like(name, alpha, alpha.shape, alpha._dtype, numbers)
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


# ---- gradients through samples of gamma and Dirichlet distributions, by the pieces that torch has ------------------------------------
#
# Jankowiak, Obermeyer, "Pathwise derivatives beyond the reparameterization trick" (2018): series where the sample is small, a saddle
# point where the parameters are large, and rational functions that were fitted to what is between.

_GAMMA = ((0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1.0, 0.32668115, 0.10406089, 0.0014179084),
          (0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915, -0.00058392623),
          (0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07))
_BETA = ((((1.003668233, -0.01061107488, -0.0657888334, 0.01201642863), (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
           (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013)),
          ((0.221950385, -0.3187676331, 0.01799915743, 0.01074823814), (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
           (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05)),
          ((-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565), (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
           (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05))),
         (((1.0, -0.02924021934, -0.04438342661, 0.007285809825), (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
           (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149)),
          ((0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273), (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
           (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05)),
          ((0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05), (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
           (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06))))


def _number_or(is_it, x, other: float):
    """What a piece is computed of: where it isn't taken, a number that does no harm."""
    return made.where(is_it, x, other)


def _gamma_of_small(x, alpha):
    numerator, denominator = 1.0, alpha
    first, second = 1.0 / alpha, 1.0 / (alpha * alpha)
    for i in range(1, 6):
        numerator = numerator * x * (-1.0 / i)
        denominator = denominator + 1.0
        first, second = first + numerator / denominator, second + numerator / (denominator * denominator)
    # Over the density x ** (alpha - 1) exp(-x).
    out = -x * made.exp(x) * ((made.log(x) - _digamma(alpha)) * first - second)
    return made.where(made.isnan(out), 0.0, out)


def _gamma_of_large(x, alpha):
    is_mean = made.logical_and(0.9 * alpha <= x, x <= 1.1 * alpha)
    second = 1440.0 * alpha * alpha + 6.0 * x * (53.0 - 120.0 * x) - 65.0 * x * x / alpha + alpha * (107.0 + 3600.0 * x)
    near = (1.0 + 24.0 * alpha * (1.0 + 12.0 * alpha)) * second / (1244160.0 * alpha * alpha * alpha * alpha)
    y = made.where(is_mean, 2.0 * alpha, x)
    scale, ratio = made.sqrt(8.0 * alpha), made.log(y / alpha)
    third = made.where(y < alpha, -1.0, 1.0) * (y - alpha - alpha * ratio) ** -1.5
    term = ratio * (scale / (alpha - y) + third) - made.sqrt(2.0 / alpha) * (alpha + y) / ((alpha - y) * (alpha - y))
    stirling = 1.0 + 1.0 / (12.0 * alpha) * (1.0 + 1.0 / (24.0 * alpha))
    return made.where(is_mean, near, -stirling * y * term / scale)


def _gamma_between(x, alpha):
    u, v = made.log(x / alpha), made.log(alpha)
    c = [a + u * (b + u * d) for a, b, d in zip(*_GAMMA)]
    return made.exp((c[0] + v * (c[1] + v * (c[2] + v * c[3]))) / (c[4] + v * (c[5] + v * (c[6] + v * c[7]))))


@row("_standard_gamma_grad.default", how="composed")
def standard_gamma_grad(alpha, sample):
    a, x = cast(settled(alpha), F64), cast(settled(sample), F64)
    is_small = x < 0.8
    is_large = made.logical_and(made.logical_not(is_small), a > 8.0)
    out = made.where(is_small, _gamma_of_small(_number_or(is_small, x, 0.5), a),
                     made.where(is_large, _gamma_of_large(_number_or(is_large, x, 9.0), _number_or(is_large, a, 9.0)),
                                _gamma_between(_number_or(made.logical_not(is_small), x, 1.0), a)))
    return wrap(cast(out, settled(alpha)._dtype))


def _beta_of_small_alpha(x, alpha, beta):
    factor = _digamma(alpha) - _digamma(alpha + beta) - made.log(x)
    numerator, series = 1.0, (factor + 1.0 / alpha) / alpha
    for i in range(1, 11):
        numerator = numerator * (float(i) - beta) * x * (1.0 / i)
        series = series + numerator / (alpha + float(i)) * (factor + 1.0 / (alpha + float(i)))
    out = x * (1.0 - x) ** -beta * series
    return made.where(made.isnan(out), 0.0, out)


def _beta_of_small_beta(x, alpha, beta):
    factor = _digamma(alpha + beta) - _digamma(beta)
    numerator, betas, slopes, series = 1.0, 1.0, 0.0, factor / alpha
    for i in range(1, 9):
        numerator = numerator * x * (-1.0 / i)
        slopes = slopes * (beta - float(i)) + betas
        betas = betas * (beta - float(i))
        series = series + numerator / (alpha + float(i)) * (slopes + factor * betas)
    out = -((1.0 - x) ** (1.0 - beta)) * series
    return made.where(made.isnan(out), 0.0, out)


def _stirling(x):
    return 1.0 + 1.0 / (12.0 * x) + 1.0 / (288.0 * x * x)


def _beta_of_large(x, alpha, beta):
    total = alpha + beta
    mean, deviation = alpha / total, made.sqrt(alpha * beta / (total + 1.0)) / total
    is_mean = made.logical_and(mean - 0.1 * deviation <= x, x <= mean + 0.1 * deviation)
    b2, rest = beta * beta, 1.0 - x
    inner = 3.0 * (59.0 + 180.0 * beta - 90.0 * x) * b2 + alpha * ((453.0 + 1620.0 * beta * rest - 455.0 * x) * beta + alpha * (8.0 * rest * (135.0 * beta - 11.0)))
    poly = 47.0 * x * b2 * b2 + alpha * ((43.0 + 20.0 * (16.0 + 27.0 * beta) * x) * b2 * beta + alpha * inner)
    near = (1.0 + 12.0 * alpha) * (1.0 + 12.0 * beta) / (total * total) / rest * poly / (12960.0 * alpha * alpha * alpha * b2 * (1.0 + 12.0 * total))
    y = made.where(is_mean, 0.5 * mean, x)
    rest, apart = 1.0 - y, alpha * (y - 1.0) + beta * y
    first = -(2.0 * alpha * alpha * rest + alpha * beta * rest + y * b2) / (made.sqrt(2.0 * alpha / beta) * total ** 1.5 * apart * apart)
    log_a, log_b = made.log(alpha / (total * y)), made.log(beta / (total * rest))
    last = made.where(y < mean, 1.0, -1.0) * (beta * log_b + alpha * log_a) ** -1.5
    out = first + 0.5 * log_a * (made.sqrt(8.0 * alpha * beta / total) / apart + last)
    return made.where(is_mean, near, _stirling(alpha) * _stirling(beta) / _stirling(total) * -y / made.sqrt(2.0 * alpha * beta / total) * out)


def _beta_between(x, alpha, beta):
    total = alpha + beta
    u = made.log(x)
    a = made.log(alpha) - u
    b = made.log(total) - a
    sums = []
    for table in _BETA:
        out, of_u = 0.0, 1.0
        for rows in table:
            of_a = of_u
            for c in rows:
                out = out + of_a * (c[0] + b * (c[1] + b * (c[2] + b * c[3])))
                of_a = of_a * a
            of_u = of_u * u
        sums.append(out)
    return sums[0] / sums[1] * x * (_digamma(total) - _digamma(alpha)) / beta


@row("_dirichlet_grad.default", how="composed")
def dirichlet_grad(x, alpha, total):
    y, a, whole = (cast(settled(one), F64) for one in (x, alpha, total))
    b, edge = whole - a, whole * y * (1.0 - y)
    is_low = made.logical_and(y <= 0.5, edge < 2.5)
    is_high = made.logical_and(made.logical_not(is_low), made.logical_and(y >= 0.5, edge < 0.75))
    is_small = made.logical_or(is_low, is_high)
    is_large = made.logical_and(made.logical_not(is_small), made.logical_and(a > 6.0, b > 6.0))
    pieces = [_beta_of_small_alpha(_number_or(is_low, y, 0.5), a, b), -_beta_of_small_beta(_number_or(is_high, 1.0 - y, 0.5), b, a),
              _beta_of_large(_number_or(is_large, y, 0.3), _number_or(is_large, a, 7.0), _number_or(is_large, b, 7.0)), _beta_between(y, a, b)]
    out = made.where(is_low, pieces[0], made.where(is_high, pieces[1], made.where(is_large, pieces[2], pieces[3])))
    return wrap(cast(out, settled(x)._dtype))


# ---- counts: Poisson, binomial ------------------------------------------------------------------------------------------------
#
# Where a mean is below 10, how many of the sums of probabilities of 0, 1, 2, ... a random number is beyond; else by the transformed
# rejection of Hoermann, "The transformed rejection method for generating Poisson random variables" (1993), and "The generation of
# binomial random variates" (1993).

_LOW = 10.0         # means below
_SUMS = 48          # beyond as many there is less than 2 ** -53 of such a mean
_COUNT_TRIES = 26   # each is taken with a probability above 0.75


def _uniform(like, generator):
    return create_like("rand", like, like.shape, F64, next_call(generator))


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
