"""The incomplete gamma functions P(a, x) and Q(a, x), in f64: of each region of a and x its series, of a bounded length.

From a = 20 on and around x = a Temme's uniform expansion; else below x = a + 1 the power series of P, and beyond Legendre's continued
fraction of Q; of a small a and x the series of Q, which is no difference from 1 there. (Cephes' igam has these regions.)
"""

from __future__ import annotations

import math

import _tessera_ops as made

from ._dtypes import F64, HALVES, code
from ._operands import cast, promoted
from ._special import _log_erfcx, _polynomial, lgamma_of
from ._table import row
from ._tensor import wrap

# log(Gamma(1 + a)) / (a (a - 1)), of t = 2 a - 1 with a from 0 to 1; a times what Stirling's formula leaves of log(Gamma(a)), of
# t = 2 (8 / a)^2 - 1 with a from 8 on. Chebyshev interpolants, as in _bessel_tables.py, the leading coefficient first.
_LGAMMA_1P = (
    1.2170358219385592e-12, -3.8008085820640625e-12, 4.892185826125285e-12, -1.5410479069560222e-11, 6.615691316451458e-11,
    -2.0871311005452823e-10, 6.353017600845751e-10, -2.016989565826891e-09, 6.448043752521901e-09, -2.0620995364628568e-08,
    6.622926112005164e-08, -2.138632494418463e-07, 6.948460789947273e-07, -2.2742474054826674e-06, 7.5113911543279285e-06,
    -2.5094328669818345e-05, 8.510090382266539e-05, -0.00029455070151955954, 0.0010498186644491197, -0.003913560937626187,
    0.015727850268641236, -0.07297994795715304, 0.4831289505409809)
_STIRLING = (
    1.52677241648853e-18, -3.706682902180455e-17, 1.1491819673413438e-15, -4.804140294211764e-14, 2.8769125526383285e-12,
    -2.718192092526114e-10, 4.760738262207585e-08, -2.1605346910992954e-05, 0.08331168010429436)
# Temme, "The asymptotic expansion of the incomplete gamma functions" (1979): the Taylor coefficients of c_0, c_1, ... by eta, as many
# as count for a from 20 on and eta up to 0.62; the constant one first.
_TEMME = (
    (-0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073, 0.0003527336860670194,
     -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06, 8.296711340953087e-07,
     -1.7665952736826078e-07, 6.707853543401498e-09, 1.0261809784240309e-08, -4.382036018453353e-09, 9.14769958223679e-10,
     -2.5514193994946248e-11, -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12, 1.1004392031956135e-13,
     3.371763262400985e-13),
    (-0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596, 0.00020576131687242798,
     -4.018775720164609e-07, -1.8098550334489977e-05, 7.64916091608111e-06, -1.6120900894563446e-06, 4.647127802807434e-09,
     1.378633446915721e-07, -5.752545603517705e-08, 1.1951628599778148e-08, -1.7543241719747647e-11, -1.0091543710600413e-09,
     4.162792991842583e-10, -8.56390702649298e-11, 6.067215101604758e-14, 7.1624989648114856e-12, -2.933186643771437e-12),
    (0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06, -0.0001073665322636516,
     5.2923448829120125e-05, -1.2760635188618728e-05, 3.423578734096138e-08, 1.3721957309062934e-06, -6.298992138380055e-07,
     1.4280614206064242e-07, -2.0477098421990866e-10, -1.409252991086752e-08, 6.228974084922022e-09, -1.3670488396617114e-09,
     9.428356159014678e-13, 1.2872252400089318e-10, -5.5645956134363323e-11),
    (0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885, -7.561801671883977e-05,
     -2.396505113867297e-07, 1.1082654115347302e-05, -5.6749528269915965e-06, 1.4230900732435883e-06, -2.7861080291528143e-11,
     -1.6958404091930278e-07, 8.099464905388083e-08, -1.9111168485973655e-08, 2.3928620439808118e-12, 2.0620131815488797e-09,
     -9.460496661855133e-10, 2.1541049775774907e-10),
    (-0.0008618882909167117, 0.0007840392217200666, -0.0002990724803031902, -1.4638452578843418e-06, 6.641498215465122e-05,
     -3.968365047179435e-05, 1.1375726970678419e-05, 2.507497226237533e-10, -1.6954149536558305e-06, 8.907507532205309e-07,
     -2.292934834000805e-07, 2.956794137544049e-11, 2.8865829742708783e-08, -1.4189739437803219e-08, 3.4463580499464896e-09),
    (-0.00033679855336635813, -6.972813758365857e-05, 0.0002772753244959392, -0.00019932570516188847, 6.797780477937208e-05,
     1.419062920643967e-07, -1.3594048189768693e-05, 8.018470256334202e-06, -2.291481176508095e-06, -3.252473551298454e-10,
     3.4652846491085265e-07, -1.8447187191171344e-07, 4.8240967037894184e-08),
    (0.0005313079364639922, -0.0005921664373536939, 0.0002708782096718045, 7.902353232660328e-07, -8.153969367561969e-05,
     5.61168275310625e-05, -1.8329116582843375e-05, -3.0796134506033047e-09, 3.465155368803609e-06, -2.0291327396058603e-06,
     5.788792863149004e-07),
    (0.00034436760689237765, 5.171790908260592e-05, -0.00033493161081142234, 0.0002812695154763237, -0.00010976582244684731,
     -1.2741009095484485e-07, 2.7744451511563645e-05, -1.8263488805711332e-05, 5.7876949497350525e-06),
    (-0.0006526239185953094, 0.0008394987206720873, -0.000438297098541721, -6.969091458420552e-07, 0.00016644846642067547,
     -0.00012783517679769218, 4.629953263691304e-05),
    (-0.0005967612901927463, -7.204895416020011e-05, 0.0006782308837667328, -0.0006401475260262758, 0.00027750107634328704),
)

_SERIES, _FRACTION, _SMALL_SERIES = 64, 48, 24


def _excess(x, a, is_near):
    """D = m - log(1 + m) of m = (x - a) / a, which is half of eta squared; where m is small by a series: with s = m / (2 + m) log(1 + m) is
    2 artanh(s)."""
    m = (x - a) / a
    small = made.where(is_near, m, 0.0)
    s = small / (2.0 + small)
    series = _polynomial(s * s, [1.0 / (2 * k + 3) for k in range(17, -1, -1)])
    return made.where(is_near, small * s - 2.0 * s * s * s * series, x / a - 1.0 - made.log(x / a)), m


def _factor(a, x, excess):
    """x ** a exp(-x) / Gamma(a + 1)."""
    is_low = a < 8.0
    low, high = made.where(is_low, a, 1.0), made.where(is_low, 8.0, a)
    direct = made.exp(low * made.log(x) - x - lgamma_of(low + 1.0))
    correction = _polynomial(2.0 * (64.0 / (high * high)) - 1.0, _STIRLING) / high
    return made.where(is_low, direct, made.exp(-high * excess - correction) / made.sqrt(2.0 * math.pi * high))


def _uniform(a, excess, m):
    """(P, Q) of a large a."""
    eta = made.where(m < 0.0, -1.0, 1.0) * made.sqrt(2.0 * excess)
    inverse, total = 1.0 / a, 0.0
    for terms in reversed(_TEMME):
        total = total * inverse + _polynomial(eta, terms[::-1])
    y = made.abs(eta) * made.sqrt(0.5 * a)
    scale = made.exp(-a * excess)
    half = 0.5 * made.exp(_log_erfcx(y)) * scale
    rest = total * scale / made.sqrt(2.0 * math.pi * a)
    small = made.where(m < 0.0, half - rest, half + rest)       # P below x = a, Q above
    return made.where(m < 0.0, small, 1.0 - small), made.where(m < 0.0, 1.0 - small, small)


def _of_series(a, x, factor):
    term, total = 1.0, 1.0
    for k in range(1, _SERIES):
        term = term * x / (a + float(k))
        total = total + term
    return factor * total


def _of_fraction(a, x, factor):
    out = x + (2.0 * _FRACTION + 1.0) - a
    for k in range(_FRACTION, 0, -1):
        out = x + (2.0 * k - 1.0) - a - float(k) * (float(k) - a) / out
    return factor * a / out


def _of_small(a, x):
    """Q = 1 - x ** a / Gamma(1 + a) (1 + a (sum of (-x) ** k / (k! (a + k)) from 1 on))."""
    term, total = 1.0, 0.0
    for k in range(1, _SMALL_SERIES):
        term = term * x * (-1.0 / k)
        total = total + term / (a + float(k))
    log_lead = a * made.log(x) - a * (a - 1.0) * _polynomial(2.0 * a - 1.0, _LGAMMA_1P)
    return -made.expm1(log_lead) - a * made.exp(log_lead) * total


def _incomplete(a, x):
    """(P, Q) of positive numbers."""
    is_large = a >= 20.0
    is_uniform = made.logical_and(is_large, made.logical_and(x > 0.5 * a, x < 1.7 * a))
    excess, m = _excess(x, a, made.logical_and(x > 0.5 * a, x < 1.7 * a))
    uniform_p, uniform_q = _uniform(made.where(is_uniform, a, 20.0), made.where(is_uniform, excess, 0.0), made.where(is_uniform, m, 0.0))
    is_small = made.logical_and(a <= 1.0, x <= 2.0)
    is_beyond = x > made.maximum(a + 1.0, 2.0)
    factor = _factor(a, x, excess)
    low = _of_series(made.where(is_beyond, 1.0, a), made.where(is_beyond, 1.0, x), factor)
    high = _of_fraction(made.where(is_beyond, a, 1.0), made.where(is_beyond, x, 3.0), factor)
    small = _of_small(made.where(is_small, a, 0.5), made.where(is_small, x, 1.0))
    p = made.where(is_uniform, uniform_p, made.where(is_beyond, 1.0 - high, low))
    q = made.where(is_uniform, uniform_q, made.where(is_beyond, high, made.where(is_small, small, 1.0 - low)))
    return p, q


def _row(is_upper: bool):
    def function(a, x):
        ha, hx = promoted("igamma", a, x)
        kind = ha._dtype if ha.dtype.kind == "f" or ha._dtype in HALVES else code(None)
        a, x = cast(ha, F64), cast(hx, F64)
        is_plain = made.logical_and(made.logical_and(a > 0.0, x > 0.0), made.logical_and(made.isfinite(a), made.isfinite(x)))
        out = _incomplete(made.where(is_plain, a, 1.0), made.where(is_plain, x, 1.0))[is_upper]
        is_one = made.logical_and(a >= 0.0, x > a) if not is_upper else made.logical_and(x >= 0.0, a > x)      # 0 or infinite, one of them
        is_end = made.logical_and(made.logical_and(a >= 0.0, x >= 0.0), made.not_equal(a, x))
        out = made.where(is_plain, out, made.where(is_end, made.where(is_one, 1.0, 0.0), float("nan")))
        return wrap(cast(out, kind))
    return function


row("igamma.default", "special_gammainc.default", how="composed")(_row(is_upper=False))
row("igammac.default", "special_gammaincc.default", how="composed")(_row(is_upper=True))
