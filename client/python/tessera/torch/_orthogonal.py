"""Orthogonal polynomials: of a degree that is a number by their recurrences, and those of Chebyshev of any degree by angles.

In f64. The degree may be a tensor: Chebyshev's need nothing more; of the others its largest one is read, and each element takes its
own of as many steps.
"""

from __future__ import annotations

import _tessera_ops as made

import _tessera
from .._errors import InvalidArgumentError
from ._dtypes import F64, HALVES, code
from ._operands import cast, promoted
from ._placing import full_like
from ._table import row
from ._tensor import wrap

MAX_DEGREE = 1024       # docs/limits.md: polynomial_degree
_FEW_STEPS = 8          # up to which degree a recurrence of Chebyshev's is shorter

# ---- recurrences: the polynomial of degree 1, and that of degree k + 1 by those of k and k - 1 ----------------------------------------


def _double(x, q, p, k):
    return 2.0 * x * q - p


_RECURRENCES = {
    "chebyshev_polynomial_t": (lambda x: x, _double),
    "chebyshev_polynomial_u": (lambda x: 2.0 * x, _double),
    "chebyshev_polynomial_v": (lambda x: 2.0 * x - 1.0, _double),
    "chebyshev_polynomial_w": (lambda x: 2.0 * x + 1.0, _double),
    "hermite_polynomial_h": (lambda x: 2.0 * x, lambda x, q, p, k: 2.0 * x * q - 2.0 * k * p),
    "hermite_polynomial_he": (lambda x: x, lambda x, q, p, k: x * q - k * p),
    "laguerre_polynomial_l": (lambda x: 1.0 - x, lambda x, q, p, k: ((2.0 * k + 1.0 - x) * q - k * p) / (k + 1.0)),
    "legendre_polynomial_p": (lambda x: x, lambda x, q, p, k: ((2.0 * k + 1.0) * x * q - k * p) / (k + 1.0)),
}


def _up_to(name: str, x, degree: int):
    """The polynomials of degrees 0, 1, ... of x."""
    if degree > MAX_DEGREE:
        raise InvalidArgumentError(f"{name}: a degree is {degree}, above polynomial_degree, which is {MAX_DEGREE}")
    first, step = _RECURRENCES[name]
    before, at = 1.0 + 0.0 * made.where(made.isfinite(x), x, 0.0), first(x)
    yield before
    for k in range(1, degree + 1):
        yield at
        if k < degree:
            before, at = at, step(x, at, before, float(k))


# ---- Chebyshev's by angles: T_n(cos t) = cos(n t), and of |x| > 1 with the hyperbolic functions -----------------------------------------

class _Angle:
    """The t of |x|, a half of which keeps its digits near |x| = 1."""

    def __init__(self, x):
        size = made.abs(x)
        self.is_in = size <= 1.0
        inner, beyond = made.where(self.is_in, size, 0.5), made.where(self.is_in, 1.0, size - 1.0)
        self.inner = 2.0 * made.asin(made.sqrt(0.5 * (1.0 - inner)))
        self.outer = made.log1p(beyond + made.sqrt(beyond * (beyond + 2.0)))
        self.is_end = made.equal(size, 1.0)

    def cos(self, factor):
        return made.where(self.is_in, made.cos(factor * self.inner), made.cosh(factor * self.outer))

    def sines(self, factor, divisor: float):
        """sin(factor t) / sin(divisor t)."""
        below = made.where(self.is_end, 1.0, made.where(self.is_in, made.sin(divisor * self.inner), made.sinh(divisor * self.outer)))
        out = made.where(self.is_in, made.sin(factor * self.inner), made.sinh(factor * self.outer)) / below
        return made.where(self.is_end, factor * (1.0 / divisor), out)


def _by_angle(kind: str, x, n):
    angle, is_low = _Angle(x), x < 0.0
    if kind == "t":
        out = angle.cos(n)
    elif kind == "u":
        out = angle.sines(n + 1.0, 1.0)
    else:       # of a negative x the one is the other, with the sign of its degree
        third, fourth = angle.cos(n + 0.5) / angle.cos(0.5), angle.sines(n + 0.5, 0.5)
        out = made.where(is_low, fourth, third) if kind == "v" else made.where(is_low, third, fourth)
    is_odd = made.equal(made.remainder(n + 0.0 * x if not isinstance(n, _tessera.Tensor) else n, 2.0), 1.0)
    return made.where(made.logical_and(is_low, is_odd), -out, made.where(made.isnan(x), x, out))


# ---- rows -----------------------------------------------------------------------------------------------------------------------------

def _of_number(name: str, x, degree: int):
    if degree < 0:
        return full_like(x, x.shape, F64, 0.0)
    if name.startswith("chebyshev") and degree > _FEW_STEPS:
        return _by_angle(name[-1], x, float(degree))
    for out in _up_to(name, x, degree):
        pass
    return out


def _of_tensor(name: str, x, n):
    n = made.trunc(n)
    first = _RECURRENCES[name][0](x)
    if name.startswith("chebyshev"):
        out = _by_angle(name[-1], x, n)
    else:
        out = full_like(x, (), F64, 0.0)
        most = int(made.max(n).item()) if n.size else 0
        for k, one in enumerate(_up_to(name, x, max(most, 1))):
            if k > 1:
                out = made.where(made.equal(n, float(k)), one, out)
    out = made.where(made.equal(n, 1.0), first, out)
    return made.where(made.equal(n, 0.0), 1.0, made.where(n < 0.0, 0.0, out))


def _row(name: str, is_shifted: bool):
    op = f"shifted_{name}" if is_shifted else name

    def function(x, n):
        hx, hn = promoted(op, x, n)
        h = hx if isinstance(hx, _tessera.Tensor) else hn
        kind = h._dtype if h.dtype.kind == "f" or h._dtype in HALVES else code(None)
        wide = cast(hx, F64) if isinstance(hx, _tessera.Tensor) else full_like(hn, (), F64, float(hx))
        if is_shifted:
            wide = 2.0 * wide - 1.0
        if isinstance(hn, _tessera.Tensor):
            out = _of_tensor(name, wide, cast(hn, F64))
        else:
            out = _of_number(name, wide, int(hn))
        return wrap(cast(out, kind))
    return function


for _name in _RECURRENCES:
    for _is_shifted in (False, True) if _name.startswith("chebyshev") else (False,):
        _full = f"special_{'shifted_' if _is_shifted else ''}{_name}"
        row(f"{_full}.default", f"{_full}.x_scalar", f"{_full}.n_scalar", how="composed")(_row(_name, _is_shifted))
