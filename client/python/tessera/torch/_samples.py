"""Samples of distributions that take several random numbers each (../_samplers.py), and gradients through them. In f64, but for gamma."""

from __future__ import annotations

import _tessera_ops as made

from .. import _samplers
from .._errors import InvalidArgumentError
from ._composed import wide
from ._device import next_call
from ._dtypes import F64
from ._operands import cast
from ._placing import create_like
from ._special import _digamma
from ._table import row
from ._tensor import handle_of, wrap

# ---- gamma, Dirichlet -----------------------------------------------------------------------------------------------------

def _uniform(like, generator):
    return lambda: create_like("rand", like, like.shape, like._dtype, next_call(generator))


def _normal(like, generator):
    return lambda: create_like("normal", like, like.shape, like._dtype, [0.0, 1.0, *next_call(generator)])


@row("_standard_gamma.default", how="composed")
def standard_gamma(x, generator=None):
    alpha = wide(handle_of(x))
    return wrap(cast(_samplers.gamma(alpha, _uniform(alpha, generator), _normal(alpha, generator)), handle_of(x)._dtype))


@row("_sample_dirichlet.default", how="composed")
def sample_dirichlet(x, generator=None):
    parts = handle_of(standard_gamma(x, generator))
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
    """The argument of a piece: where it isn't taken, a number that does no harm."""
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
    a, x = cast(handle_of(alpha), F64), cast(handle_of(sample), F64)
    is_small = x < 0.8
    is_large = made.logical_and(made.logical_not(is_small), a > 8.0)
    out = made.where(is_small, _gamma_of_small(_number_or(is_small, x, 0.5), a),
                     made.where(is_large, _gamma_of_large(_number_or(is_large, x, 9.0), _number_or(is_large, a, 9.0)),
                                _gamma_between(_number_or(made.logical_not(is_small), x, 1.0), a)))
    return wrap(cast(out, handle_of(alpha)._dtype))


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
    y, a, whole = (cast(handle_of(one), F64) for one in (x, alpha, total))
    b, edge = whole - a, whole * y * (1.0 - y)
    is_low = made.logical_and(y <= 0.5, edge < 2.5)
    is_high = made.logical_and(made.logical_not(is_low), made.logical_and(y >= 0.5, edge < 0.75))
    is_small = made.logical_or(is_low, is_high)
    is_large = made.logical_and(made.logical_not(is_small), made.logical_and(a > 6.0, b > 6.0))
    pieces = [_beta_of_small_alpha(_number_or(is_low, y, 0.5), a, b), -_beta_of_small_beta(_number_or(is_high, 1.0 - y, 0.5), b, a),
              _beta_of_large(_number_or(is_large, y, 0.3), _number_or(is_large, a, 7.0), _number_or(is_large, b, 7.0)), _beta_between(y, a, b)]
    out = made.where(is_low, pieces[0], made.where(is_high, pieces[1], made.where(is_large, pieces[2], pieces[3])))
    return wrap(cast(out, handle_of(x)._dtype))


# ---- counts: Poisson, binomial ------------------------------------------------------------------------------------------------

@row("poisson.default", how="composed")
def poisson(x, generator=None):
    """Counts of each element as a mean; NaN where there is none."""
    mean = cast(handle_of(x), F64)
    return wrap(cast(_samplers.poisson(mean, _uniform(mean, generator)), handle_of(x)._dtype))


@row("binomial.default", how="composed")
def binomial(count, prob, generator=None):
    """How many of `count` come out that do with probability `prob`."""
    if count.dtype != prob.dtype:
        raise InvalidArgumentError(f"binomial: count and prob have one dtype, not {count!r} and {prob!r}")
    counts, chances = cast(handle_of(count), F64), cast(handle_of(prob), F64)
    n = counts + 0.0 * chances
    return wrap(cast(_samplers.binomial(counts, chances, _uniform(n, generator)), handle_of(count)._dtype))
