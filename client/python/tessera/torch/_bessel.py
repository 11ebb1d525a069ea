"""Bessel functions of both kinds, modified ones of the second kind, Airy's Ai and spherical j0: in f64, each by a polynomial near 0 and one
far out, so that their cost is bounded and a few maps (_bessel_tables.py says which polynomials)."""

from __future__ import annotations

import math

import _tessera_ops as made

from ._bessel_tables import AIRY_FAR, AIRY_NEAR, AIRY_P, AIRY_Q, BESSEL_J, BESSEL_K, BESSEL_K_FAR, BESSEL_Y, HANKEL_P, HANKEL_Q
from ._special import _in_f64, _polynomial, scaled_bessel
from ._table import row

_NEAR, _K_NEAR = 8.0, 2.0


def _parts(x):
    """Of |x|: where it is near, |x| where it is and a number that does no harm elsewhere, and the same of what is far out."""
    size = made.abs(x)
    is_near = size <= _NEAR
    return is_near, made.where(is_near, size, 1.0), made.where(is_near, 2 * _NEAR, size)


def _hankel(order: int, x):
    """(P, Q / x, cos(c), sin(c)) with c = x - pi/4 (2 order + 1), whose terms are taken apart: a large x keeps its digits."""
    inverse = _NEAR / x
    t = 2.0 * inverse * inverse - 1.0
    cos, sin = made.cos(x), made.sin(x)
    total, apart = (cos + sin) * math.sqrt(0.5), (sin - cos) * math.sqrt(0.5)
    return _polynomial(t, HANKEL_P[order]), _polynomial(t, HANKEL_Q[order]) / x, *((total, apart) if order == 0 else (apart, -total))


def _near_j(order: int, x):
    out = _polynomial(x * x * (1.0 / 32.0) - 1.0, BESSEL_J[order])
    return out * x if order else out


def _bessel_j(order: int):
    def function(x):
        is_near, near, far = _parts(x)
        p, q, cos, sin = _hankel(order, far)
        out = made.where(is_near, _near_j(order, near), made.sqrt(2.0 / (math.pi * far)) * (p * cos - q * sin))
        return made.where(made.isnan(x), x, made.where(made.signbit(x), -out, out) if order else out)
    return function


def _bessel_y(order: int):
    def function(x):
        is_near, near, far = _parts(x)
        p, q, cos, sin = _hankel(order, far)
        is_above = made.logical_and(is_near, x > 0.0)
        near = made.where(is_above, near, 1.0)
        rest, product = _polynomial(near * near * (1.0 / 32.0) - 1.0, BESSEL_Y[order]), made.log(near) * _near_j(order, near)
        small = rest + (2 / math.pi) * product if order == 0 else rest * near + (2 / math.pi) * (product - 1.0 / near)
        out = made.where(is_near, small, made.sqrt(2.0 / (math.pi * far)) * (p * sin + q * cos))
        return made.where(x > 0.0, out, made.where(made.equal(x, 0.0), float("-inf"), float("nan")))
    return function


def _bessel_k(order: int, is_scaled: bool):
    of_first_kind = scaled_bessel(order)

    def function(x):
        is_near = made.logical_and(x > 0.0, x <= _K_NEAR)
        near, far = made.where(is_near, x, 1.0), made.where(x > _K_NEAR, x, 2 * _K_NEAR)
        entire = _polynomial(0.5 * near * near - 1.0, BESSEL_K[order])
        product = made.log(near) * of_first_kind(near) * made.exp(near)
        small = entire - product if order == 0 else entire * near + product + 1.0 / near
        large = _polynomial(4.0 / far - 1.0, BESSEL_K_FAR[order]) / made.sqrt(far)
        out = made.where(is_near, small * made.exp(near) if is_scaled else small, large if is_scaled else large * made.exp(-far))
        return made.where(x > 0.0, out, made.where(made.equal(x, 0.0), float("inf"), float("nan")))
    return function


def _airy(x):
    is_low, is_high = x < -4.0, x > 2.0
    near = made.where(made.logical_or(is_low, is_high), 0.0, x)
    out = _polynomial((near + 1.0) / 3.0, AIRY_NEAR)
    high = made.where(is_high, x, 4.0)
    turn = 2.0 / 3.0 * high * made.sqrt(high)
    t = 2.0 * (2.0 / 3.0 * 2.0 ** 1.5) / turn - 1.0
    out = made.where(is_high, _polynomial(t, AIRY_FAR) * made.exp(-turn) / (2.0 * math.sqrt(math.pi) * made.sqrt(made.sqrt(high))), out)
    low = made.where(is_low, -x, 8.0)
    turn = 2.0 / 3.0 * low * made.sqrt(low)
    t = 2.0 * (16.0 / 3.0) ** 2 / (turn * turn) - 1.0
    cos, sin = made.cos(turn), made.sin(turn)
    waves = _polynomial(t, AIRY_P) * (cos + sin) + _polynomial(t, AIRY_Q) / turn * (sin - cos)
    return made.where(is_low, waves * math.sqrt(0.5 / math.pi) / made.sqrt(made.sqrt(low)), out)


def _spherical(x):
    """sin(x) / x, and near 0 its series."""
    is_near = made.abs(x) < 0.5
    near, far = made.where(is_near, x, 0.0), made.where(made.logical_or(is_near, made.isinf(x)), 1.0, x)
    series = _polynomial(near * near, [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1)])
    return made.where(is_near, series, made.where(made.isinf(x), 0.0, made.sin(far) / far))


for _order in (0, 1):
    row(f"special_bessel_j{_order}.default", how="composed")(_in_f64(_bessel_j(_order)))
    row(f"special_bessel_y{_order}.default", how="composed")(_in_f64(_bessel_y(_order)))
    row(f"special_modified_bessel_k{_order}.default", how="composed")(_in_f64(_bessel_k(_order, is_scaled=False)))
    row(f"special_scaled_modified_bessel_k{_order}.default", how="composed")(_in_f64(_bessel_k(_order, is_scaled=True)))
row("special_airy_ai.default", how="composed")(_in_f64(_airy))
row("special_spherical_bessel_j0.default", how="composed")(_in_f64(_spherical))
