"""NumPy's windows of signals, and the Bessel function of one of them."""

from __future__ import annotations

import numpy as np

import _tessera_ops as made
from ._creation import arange, ones
from ._errors import ArgumentError
from ._mesh import integers
from ._numpy_calls import as_tensor
from ._ops import astype

# The Chebyshev series of i0 in the Cephes Math Library (Moshier): of exp(-x) I0(x) on [0, 8], in x / 2 - 2, and of exp(-x) sqrt(x) I0(x)
# beyond, in 32 / x - 2.
_NEAR = (-4.41534164647933937950e-18, 3.33079451882223809783e-17, -2.43127984654795469359e-16, 1.71539128555513303061e-15, -1.16853328779934516808e-14,
         7.67618549860493561688e-14, -4.85644678311192946090e-13, 2.95505266312963983461e-12, -1.72682629144155570723e-11, 9.67580903537323691224e-11,
         -5.18979560163526290666e-10, 2.65982372468238665035e-9, -1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7,
         1.11738753912010371815e-6, -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
         -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2, -2.37374148058994688156e-2,
         4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1, -3.04682672343198398683e-1, 6.76795274409476084995e-1)
_FAR = (-7.23318048787475395456e-18, -4.83050448594418207126e-18, 4.46562142029675999901e-17, 3.46122286769746109310e-17, -2.82762398051658348494e-16,
        -3.42548561967721913462e-16, 1.77256013305652638360e-15, 3.81168066935262242075e-15, -9.55484669882830764870e-15, -4.15056934728722208663e-14,
        1.54008621752140982691e-14, 3.85277838274214270114e-13, 7.18012445138366623367e-13, -1.79417853150680611778e-12, -1.32158118404477131188e-11,
        -3.14991652796324136454e-11, 1.18891471078464383424e-11, 4.94060238822496958910e-10, 3.39623202570838634515e-9, 2.26666899049817806459e-8,
        2.04891858946906374183e-7, 2.89137052083475648297e-6, 6.88975834691682398426e-5, 3.36911647825569408990e-3, 8.04490411014108831608e-1)


def _series(x, coefficients):
    """A Chebyshev series at x in [-2, 2], by Clenshaw's recurrence."""
    before = last = 0.0
    value = coefficients[0]
    for one in coefficients[1:]:
        before, last = last, value
        value = x * last - before + one
    return 0.5 * (value - before)


def i0(x, /):
    """i0(x, /)

    The modified Bessel function of the first kind and order 0, in f64."""
    x = as_tensor(x)
    if x.dtype.kind == "c":
        raise ArgumentError(f"i0: x is {x._spec}; there is no i0 of complex numbers")
    size = made.abs(astype(x, np.float64))
    is_near = size <= 8.0
    near, far = made.where(is_near, size, 1.0), made.where(is_near, 9.0, size)
    return made.exp(size) * made.where(is_near, _series(near / 2.0 - 2.0, _NEAR), _series(32.0 / far - 2.0, _FAR) / made.sqrt(far))


def _places(op: str, M):
    """1 - M, 3 - M, ... M - 1 as f64, of M points."""
    (count,) = integers(M, "M", op)
    return arange(1.0 - count, float(count), 2.0) if count > 0 else arange(0.0)


def _taper(op: str, M, value):
    """A window by its value at the places in [-1, 1]; of one point 1."""
    places = _places(op, M)
    return ones(places.shape) if places.size <= 1 else value(places * (1.0 / (places.size - 1)))


def bartlett(M):
    """bartlett(M)

    The triangular window of M points, 0 at both ends."""
    return _taper("bartlett", M, lambda t: 1.0 - made.abs(t))


def blackman(M):
    """blackman(M)

    Blackman's window of M points: 0.42 + 0.5 cos + 0.08 cos of twice the angle."""
    return _taper("blackman", M, lambda t: 0.42 + 0.5 * made.cos(np.pi * t) + 0.08 * made.cos(2.0 * np.pi * t))


def hamming(M):
    """hamming(M)

    Hamming's window of M points: 0.54 + 0.46 cos."""
    return _taper("hamming", M, lambda t: 0.54 + 0.46 * made.cos(np.pi * t))


def hanning(M):
    """hanning(M)

    Hann's window of M points: 0.5 + 0.5 cos."""
    return _taper("hanning", M, lambda t: 0.5 + 0.5 * made.cos(np.pi * t))


def kaiser(M, beta):
    """kaiser(M, beta)

    Kaiser's window of M points, of shape beta."""
    beta = float(beta)
    return _taper("kaiser", M, lambda t: i0(beta * made.sqrt(made.maximum(1.0 - t * t, 0.0))) / np.i0(beta).item())
