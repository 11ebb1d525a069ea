"""NumPy's polynomials: vectors of coefficients, the highest power first."""

from __future__ import annotations

import numpy as np

import _tessera_ops as made
from . import linalg
from ._arrangement import vander
from ._calculus import convolve
from ._creation import arange, asarray, ones, zeros
from ._errors import InvalidArgumentError
from ._mesh import integers
from ._numpy_calls import as_tensor
from ._ops import astype, concat, reshape


def _vector(op: str, p):
    p = as_tensor(p)
    p = reshape(p, (1,)) if p.ndim == 0 else p
    if p.ndim != 1:
        raise InvalidArgumentError(f"{op}: {p._spec} has {p.ndim} dims; coefficients are a vector")
    return p


def _longer(p, count: int):
    """With zeros for the highest powers, up to so many coefficients."""
    return p if p.size == count else concat([zeros((count - p.size,), p.dtype), p])


def polyadd(a1, a2, /):
    """polyadd(a1, a2, /)

    The sum of the polynomials with coefficients a1 and a2."""
    a1, a2 = _vector("polyadd", a1), _vector("polyadd", a2)
    count = max(a1.size, a2.size)
    return _longer(a1, count) + _longer(a2, count)


def polysub(a1, a2, /):
    """polysub(a1, a2, /)

    The difference of the polynomials with coefficients a1 and a2."""
    a1, a2 = _vector("polysub", a1), _vector("polysub", a2)
    count = max(a1.size, a2.size)
    return _longer(a1, count) - _longer(a2, count)


def polymul(a1, a2, /):
    """polymul(a1, a2, /)

    The product of the polynomials with coefficients a1 and a2."""
    return convolve(_vector("polymul", a1), _vector("polymul", a2))


def polydiv(u, v, /):
    """polydiv(u, v, /)

    The quotient and the remainder of the polynomials with coefficients u and v. Reads both: a remainder's degree depends on the values."""
    u, v = _vector("polydiv", u), _vector("polydiv", v)
    return tuple(asarray(one) for one in np.polydiv(u.full_tensor(), v.full_tensor()))


def polyder(p, /, m=1):
    """polyder(p, /, m=1)

    The m-th derivative of the polynomial with coefficients p."""
    p, (times,) = _vector("polyder", p), integers(m, "m", "polyder")
    if times < 0:
        raise InvalidArgumentError(f"polyder: m is {times}, below 0")
    for _ in range(times):
        p = p[:-1] * arange(p.size - 1, 0, -1) if p.size > 1 else p[:0]
    return p


def polyint(p, /, m=1, k=None):
    """polyint(p, /, m=1, k=None)

    The m-th antiderivative of the polynomial with coefficients p. k: the constant of each, in order; default 0."""
    p, (times,) = _vector("polyint", p), integers(m, "m", "polyint")
    if times < 0:
        raise InvalidArgumentError(f"polyint: m is {times}, below 0")
    constants = np.zeros(times) if k is None else np.broadcast_to(np.atleast_1d(np.asarray(k)), (times,)) if np.size(k) in (1, times) else None
    if constants is None:
        raise InvalidArgumentError(f"polyint: k has {np.size(k)} constants for m={times}")
    for one in constants:
        p = concat([p / arange(p.size, 0, -1), asarray([one.item()], dtype=np.result_type(p.dtype, np.float64))])
    return p


def poly(seq_of_zeros, /):
    """poly(seq_of_zeros, /)

    The coefficients of the polynomial whose zeros are seq_of_zeros; of a square matrix its characteristic polynomial."""
    roots_ = as_tensor(seq_of_zeros)
    if roots_.ndim == 2 and roots_.shape[0] == roots_.shape[1]:
        roots_ = linalg.eigvals(roots_)
    elif roots_.ndim != 1:
        raise InvalidArgumentError(f"poly: {roots_._spec} is no vector of zeros and no square matrix")
    dtype = roots_.dtype if roots_.dtype.kind in "fc" else np.dtype(np.float64)
    out = ones((1,), dtype)
    for i in range(roots_.size):
        out = convolve(out, concat([ones((1,), dtype), -astype(roots_[i:i + 1], dtype)]))
    return out if dtype.kind != "c" or not _is_symmetric(roots_) else made.real(out)


def _is_symmetric(values) -> bool:
    """Whether complex values come in conjugate pairs; reads them."""
    given = values.full_tensor()
    return np.array_equal(np.sort(given), np.sort(given.conj()))


def roots(p, /):
    """roots(p, /)

    The zeros of the polynomial with coefficients p, as the eigenvalues of its companion matrix. Reads p: zeros at its ends are left out."""
    values = _vector("roots", p).full_tensor()
    places = np.nonzero(values)[0]
    if places.size == 0:
        return zeros((0,))
    kept = values[places[0]:places[-1] + 1].astype(np.result_type(values.dtype, np.float64))
    at_zero = zeros((values.size - 1 - places[-1],), np.complex128)
    if kept.size < 2:
        return made.real(at_zero)
    companion = np.diag(np.ones(kept.size - 2, kept.dtype), -1)
    companion[0] = -kept[1:] / kept[0]
    found = linalg.eigvals(asarray(companion))
    return found if at_zero.size == 0 else concat([found, astype(at_zero, found.dtype)])


def polyfit(x, y, /, deg, rcond=None, full=False, w=None, cov=False):
    """polyfit(x, y, /, deg, rcond=None, full=False, w=None, cov=False)

    The coefficients of the polynomial of degree deg through the points x, y that has the least squares; of a matrix y one for each column.

    rcond: singular values below it times the largest count as zero. w: what each point's difference is multiplied by. full: returns
    residuals, rank, singular values and rcond, too. cov: returns the covariance of the coefficients, too; 'unscaled' as the weights say it."""
    (degree,) = integers(deg, "deg", "polyfit")
    x, y = _vector("polyfit", x) + 0.0, as_tensor(y) + 0.0
    if degree < 0:
        raise InvalidArgumentError(f"polyfit: deg is {degree}, below 0")
    if y.ndim not in (1, 2) or y.shape[0] != x.size or not x.size:
        raise InvalidArgumentError(f"polyfit: x is {x._spec} and y {y._spec}; y has a row for each of one or more points")
    rcond = x.size * float(np.finfo(x.dtype).eps) if rcond is None else float(rcond)
    left, right = vander(x, degree + 1), y
    if w is not None:
        w = as_tensor(w) + 0.0
        if w.shape != (x.size,):
            raise InvalidArgumentError(f"polyfit: w is {w._spec} and x {x._spec}")
        left, right = left * w[:, None], right * (w if y.ndim == 1 else w[:, None])
    scale = made.sqrt(made.sum(left * left, axis=0))
    found = linalg.lstsq(left / scale, right, rtol=rcond)
    c = found[0] / (scale if y.ndim == 1 else scale[:, None])
    if full:
        return (c, *found[1:], rcond)
    if not cov:
        return c
    inverse = linalg.inv(left.T @ left)
    if cov != "unscaled":
        if x.size <= degree + 1:
            raise InvalidArgumentError(f"polyfit: {x.size} points have no covariance of {degree + 1} coefficients; cov='unscaled' has")
        off = right - left @ c
        inverse = inverse if y.ndim == 2 else inverse * (made.sum(off * off) / (x.size - degree - 1))
        if y.ndim == 2:
            inverse = inverse[:, :, None] * (made.sum(off * off, axis=0) / (x.size - degree - 1))
    elif y.ndim == 2:
        inverse = inverse[:, :, None] * ones((y.shape[1],))
    return c, inverse
