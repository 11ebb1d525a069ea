"""Special functions, by series in f64: what a distribution's density, its gradient or a window of samples asks for."""

from __future__ import annotations

import math

import _tessera_ops as made
import torch

from .._errors import InvalidArgumentError
from ._dtypes import CODES, F64, HALVES, code
from ._operands import cast
from ._placing import full_like
from ._table import row, run
from ._tensor import Tensor, handle_of, wrap

def _in_f64(function):
    def run_(x, *rest):
        h = handle_of(x)
        kind = h._dtype if h.dtype.kind == "f" or h._dtype in HALVES else code(None)
        return wrap(cast(function(cast(h, F64), *rest), kind))
    return run_


def _polynomial(x, coefficients):
    """The leading one first."""
    out = coefficients[0]
    for c in coefficients[1:]:
        out = out * x + c
    return out


def _erfinv(y):
    """Giles, "Approximating the erfinv function" (2010), and two steps of Newton's."""
    w = -made.log((1.0 - y) * (1.0 + y))
    near = _polynomial(w - 2.5, (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                                 -0.00417768164, 0.246640727, 1.50140941))
    far = _polynomial(made.sqrt(w) - 3.0, (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                                           0.00943887047, 1.00167406, 2.83297682))
    x = made.where(w < 5.0, near, far) * y
    for _ in range(2):
        x = x - (made.erf(x) - y) * (math.sqrt(math.pi) / 2) * made.exp(x * x)
    return made.where(made.equal(made.abs(y), 1.0), y * float("inf"), x)


row("erfinv.default", how="composed")(_in_f64(_erfinv))


_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
            -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7)


def lgamma_of(x):
    """Lanczos's approximation (g = 7, 9 terms), and the reflection below 1/2."""
    is_low = x < 0.5
    z = made.where(is_low, 1.0 - x, x) - 1.0
    total = _LANCZOS[0]
    for k, c in enumerate(_LANCZOS[1:], start=1):
        total = total + c / (z + float(k))
    t = z + 7.5
    out = 0.5 * math.log(2 * math.pi) + (z + 0.5) * made.log(t) - t + made.log(total)
    out = made.where(is_low, math.log(math.pi) - made.log(made.abs(made.sin(math.pi * made.remainder(x, 2.0)))) - out, out)
    is_pole = made.logical_and(x <= 0.0, made.equal(made.floor(x), x))
    return made.where(made.logical_or(is_pole, made.isinf(x)), float("inf"), out)


lgamma = row("lgamma.default", how="composed")(_in_f64(lgamma_of))


def _shifted(x, function, end: int = 8):
    """Sums of function(x), function(x + 1), ... up to the end, from which on the asymptotic series is taken, and that place."""
    total, at = 0.0, x
    for _ in range(end):
        is_low = at < float(end)
        total = total + made.where(is_low, function(at), 0.0)
        at = at + made.where(is_low, 1.0, 0.0)
    return total, at


def _digamma(x):
    is_low = x < 0.0
    total, at = _shifted(made.where(is_low, 1.0 - x, x), lambda one: 1.0 / one)
    r = 1.0 / (at * at)
    series = r * _polynomial(r, (-1 / 12, 691 / 32760, -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)[1:])
    out = made.log(at) - 0.5 / at + series - total
    out = made.where(is_low, out - math.pi / made.tan(math.pi * made.remainder(x, 1.0)), out)
    out = made.where(made.logical_and(is_low, made.equal(made.floor(x), x)), float("nan"), out)
    return made.where(made.equal(x, 0.0), -1.0 / x, out)


row("digamma.default", how="composed")(_in_f64(_digamma))


@row("polygamma.default", how="composed")
def polygamma(n, x):
    """The n-th derivative of the digamma function: (-1)^(n + 1) n! zeta(n + 1, x)."""
    if n < 2:
        return run("digamma.default")(x) if n == 0 else _trigamma(x)
    return _in_f64(lambda one: (1.0 if n % 2 else -1.0) * math.exp(math.lgamma(n + 1.0)) * _zeta(n + 1.0, one))(x)


@_in_f64
def _trigamma(x):
    is_low = x < 0.5
    total, at = _shifted(made.where(is_low, 1.0 - x, x), lambda one: 1.0 / (one * one))
    r = 1.0 / (at * at)
    series = _polynomial(r, (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)) * r / at
    out = total + 1.0 / at + 0.5 * r + series
    turn = made.sin(math.pi * made.remainder(x, 2.0))
    out = made.where(is_low, math.pi**2 / (turn * turn) - out, out)
    return made.where(made.logical_and(x <= 0.0, made.equal(made.floor(x), x)), float("inf"), out)


# ---- Hurwitz's zeta function ------------------------------------------------------------------------------------------------

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)


def _zeta_of_positive(s, q):
    """The sum of (q + k) ** -s, by Euler's and Maclaurin's formula from 10 on."""
    total, at = _shifted(q, lambda one: one ** -s, end=10)
    power = at ** -s
    total = total + power * at / (s - 1.0) + 0.5 * power
    rising, power = s, power / at
    for k, b in enumerate(_BERNOULLI, start=1):
        total = total + b / math.factorial(2 * k) * rising * power
        rising = rising * (s + (2.0 * k - 1.0)) * (s + 2.0 * k)
        power = power / (at * at)
    return total


def _zeta(s, q):
    """Below 0, where a whole s gives a number alone, by what stands left and right of 0: with q = f - m, 0 < f < 1, the sum of
    (f - j) ** -s for j from 1 to m is (-1)^s (zeta(s, 1 - f) - zeta(s, 1 - f + m))."""
    is_low = q < 0.0
    above = made.ceil(made.where(is_low, -q, 0.0))
    f = made.where(is_low, q + above, 0.5)
    sign = 1.0 - 2.0 * made.remainder(s + 0.0 * q, 2.0)
    left = sign * (_zeta_of_positive(s, 1.0 - f) - _zeta_of_positive(s, 1.0 - f + above))
    out = _zeta_of_positive(s, made.where(is_low, f, made.where(q > 0.0, q, 1.0))) + made.where(is_low, left, 0.0)
    is_whole = made.equal(made.floor(s + 0.0 * q), s + 0.0 * q)
    out = made.where(made.logical_or(made.logical_not(is_low), is_whole), out, float("nan"))
    out = made.where(made.logical_and(q <= 0.0, made.equal(made.floor(q), q)), float("inf"), out)
    s = s + 0.0 * q
    return made.where(made.equal(s, 1.0), float("inf"), made.where(s >= 1.0, out, float("nan")))


@row("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar", how="composed")
def zeta(s, q):
    if not isinstance(s, Tensor):
        return _in_f64(lambda q: _zeta(float(s), q))(q)
    return _in_f64(_zeta)(s, cast(handle_of(q), F64) if isinstance(q, Tensor) else full_like(handle_of(s), (), F64, float(q)))


# ---- modified Bessel functions of the first kind -------------------------------------------------------------------------------

_SERIES, _ASYMPTOTIC, _FAR = 48, 28, 20.0


def scaled_bessel(order: int):
    """I(x) exp(-|x|): up to 20 by the power series, whose terms all add, beyond by the asymptotic one."""
    powers, term = [], 1.0
    for k in range(_SERIES):
        powers.append(term)
        term /= (k + 1.0) * (k + 1.0 + order)
    inverse, term = [], 1.0
    for k in range(_ASYMPTOTIC):
        inverse.append(term)
        term *= -(4.0 * order * order - (2.0 * k + 1.0) ** 2) / (8.0 * (k + 1.0))

    def function(x):
        size = made.abs(x)
        is_near = size <= _FAR
        near = made.where(is_near, size, 0.0)
        small = _polynomial(0.25 * near * near, powers[::-1]) * made.exp(-near) * (0.5 * near if order else 1.0)
        beyond = made.where(is_near, _FAR, size)
        far = _polynomial(1.0 / beyond, inverse[::-1]) / made.sqrt(2.0 * math.pi * beyond)
        out = made.where(made.isnan(x), x, made.where(is_near, small, far))
        return made.where(x < 0.0, -out, out) if order else out
    return function


for _order, _name in enumerate(("i0", "i1")):
    _scaled = scaled_bessel(_order)
    row(f"special_{_name}e.default", how="composed")(_in_f64(_scaled))
    row(f"special_{_name}.default", f"special_modified_bessel_{_name}.default", *(["i0.default"] if not _order else []), how="composed")(
        _in_f64(lambda x, scaled=_scaled: scaled(x) * made.exp(made.abs(x))))


# ---- the normal distribution's tails -------------------------------------------------------------------------------------------

# Coefficients of log(erfcx(x) / t) with t = 2 / (2 + x), by Chebyshev polynomials of 2 t - 1.
_TAIL = (-0.6513268598908547171, 0.6419697923564902603, 0.019476473204185836312, -0.0095615147868086316419, -0.0009465953444820368663,
         0.00036683949785276145187, 0.000042523324806907771645, -0.000020278578112534243154, -1.6242900046470255135e-6,
         1.3036558355805232018e-6, 1.5626441722066143185e-8, -8.5238095914926542532e-8, 6.5290544390988515028e-9,
         5.0593434955514689354e-9, -9.9136415649303308045e-10, -2.2736512229318359179e-10, 9.646791102015527416e-11,
         2.3940380830391086851e-12, -6.8860275264975474243e-12, 8.9448792730906668755e-13, 3.1309213993430159756e-13,
         -1.1270822361367821465e-13, 3.8109052552451120194e-16, 7.1060976136037561694e-15, -1.523028201451734766e-15,
         -9.4574945718166579893e-17, 1.2102371892756290916e-16, -2.8166630882483707783e-17)


def _log_erfcx(x):
    """log(exp(x^2) erfc(x)), of x >= 0."""
    t = 2.0 / (2.0 + x)
    y = 4.0 * t - 2.0
    one, before = 0.0, 0.0
    for c in _TAIL[:0:-1]:      # Clenshaw's sum
        one, before = y * one - before + c, one
    return made.log(t) + 0.5 * y * one - before + _TAIL[0]


def _erfc(x):
    size = made.abs(x)
    tail = made.exp(_log_erfcx(size) - size * size)
    return made.where(size < 0.5, 1.0 - made.erf(x), made.where(x < 0.0, 2.0 - tail, tail))


def _erfcx(x):
    size = made.abs(x)
    scaled = made.exp(_log_erfcx(size))
    return made.where(x < 0.0, 2.0 * made.exp(x * x) - scaled, scaled)


def _log_ndtr(x):
    z = x * -math.sqrt(0.5)
    is_low = x < -1.0
    low = _log_erfcx(made.where(is_low, z, 1.0)) - math.log(2.0) - z * z
    return made.where(is_low, low, made.log1p(-0.5 * _erfc(made.where(is_low, 0.0, -z))))


def _ndtri(p):
    """The x below which a part p of a normal distribution lies: a first guess by erfinv, or of what is far out by its asymptotic
    series, and Newton's steps for log p."""
    low = made.minimum(p, 1.0 - p)
    is_far = low < 0.02
    near = made.where(is_far, 0.02, low)
    far = made.where(made.logical_and(is_far, low > 0.0), low, 0.01)
    w = -2.0 * made.log(far)
    x = made.where(is_far, -made.sqrt(w - made.log(w) - math.log(2.0 * math.pi)), -math.sqrt(2.0) * _erfinv(1.0 - 2.0 * near))
    wanted = made.log(made.where(is_far, far, near))
    for _ in range(4):
        log_p = _log_ndtr(x)
        x = x - (log_p - wanted) * made.exp(log_p + 0.5 * x * x) * math.sqrt(2.0 * math.pi)
    x = made.where(made.equal(low, 0.5), 0.0, made.where(p > 0.5, -x, x))
    x = made.where(made.equal(p, 0.0), float("-inf"), made.where(made.equal(p, 1.0), float("inf"), x))
    return made.where(made.logical_and(p >= 0.0, p <= 1.0), x, float("nan"))


for _names, _function in ((("erfc", "special_erfc"), _erfc), (("special_erfcx",), _erfcx), (("special_log_ndtr",), _log_ndtr),
                          (("special_ndtri",), _ndtri)):
    row(*(f"{_name}.default" for _name in _names), how="composed")(_in_f64(_function))


@row("frexp.Tensor", how="composed")
def frexp(x):
    """(mantissa, exponent): x = mantissa 2^exponent, 0.5 <= |mantissa| < 1."""
    h = handle_of(x)
    if h.dtype.kind != "f" and h._dtype not in HALVES:
        raise InvalidArgumentError(f"frexp: takes floats, not {x!r}")
    y = cast(h, F64)
    is_number = made.logical_and(made.isfinite(y), made.not_equal(y, 0.0))
    part = made.abs(made.where(is_number, y, 1.0))
    power = made.floor(made.log2(part)) + 1.0       # by one off where rounding crosses a power of 2
    left, is_large = made.abs(power), power > 0.0
    for bit in (512.0, 512.0, 256.0, 128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0):      # exactly
        is_set = left >= bit
        left = made.where(is_set, left - bit, left)
        part = part * made.where(is_set, made.where(is_large, 2.0 ** -bit, 2.0 ** bit), 1.0)
    power = power + made.where(part >= 1.0, 1.0, made.where(part < 0.5, -1.0, 0.0))
    part = part * made.where(part >= 1.0, 0.5, made.where(part < 0.5, 2.0, 1.0))
    mantissa = made.where(is_number, made.where(y < 0.0, -part, part), y)
    return wrap(cast(mantissa, h._dtype)), wrap(cast(made.where(is_number, power, 0.0), CODES[torch.int32]))
