"""Linear algebra and Fourier transforms of the catalog, with the names and results that torch's have.

A factorisation that fails (of a singular or no positive definite matrix) fails the op: its results raise LinAlgError where they
are read, and `info` is 0. What torch keeps of a solve for its backward pass as LU and pivots is here the matrix itself, turned
as torch turns it, and pivots that say so: it is solved with once more, which is one op where factors are several.
"""

from __future__ import annotations

import torch

import _tessera_ops as made
from _tessera_ops import conj, lu_unpack as made_lu_unpack, real
from .. import fft, linalg
from .._errors import InvalidArgumentError
from .._ops import broadcast_to, concat, matrix_transpose
from ._dtypes import CODES, INT64
from ._operands import cast
from ._placing import full_like, iota, settled_dims
from ._table import row
from ._tensor import handle_of, wrap

_INT32 = CODES[torch.int32]
_UNROLLED = 8       # columns that are eliminated one by one
_NORMS = ("backward", "ortho", "forward")       # by torch's number: not scaled, by the root of the length, by the length


def _info(h):
    return wrap(full_like(h, h.shape[:-2], _INT32, 0))


def _nothing(h):
    return wrap(full_like(h, (0,), h._dtype, 0))


def _adjoint(h):
    h = matrix_transpose(h)
    return conj(h) if h.dtype.kind == "c" else h


@row("_linalg_check_errors.default", how="client")
def check_errors(info, name, *, is_matrix):
    """The op itself fails."""


@row("linalg_cholesky_ex.default")
def cholesky_ex(x, *, upper=False, check_errors=False):
    h = handle_of(x)
    return wrap(linalg.cholesky(h, upper=upper)), _info(h)


@row("cholesky.default")
def cholesky(x, upper=False):
    """torch 2.11 has it; later versions have torch.linalg.cholesky alone."""
    return wrap(linalg.cholesky(handle_of(x), upper=upper))


@row("linalg_inv_ex.default")
def inv_ex(x, *, check_errors=False):
    h = handle_of(x)
    return wrap(linalg.inv(h)), _info(h)


def _factors(h):
    """In the place of LU and pivots: the matrix, and zeros of the shape that pivots have."""
    pivots = wrap(full_like(h, h.shape[:-1], _INT32, 0))
    pivots._cell.is_unfactored = True
    return wrap(h), pivots


def _turned_factors(x, h):
    """The same where torch factors the transposed matrix."""
    return _factors(matrix_transpose(h) if x.is_contiguous() and h.dtype.kind != "c" else h)


def _solved(a, b, left: bool):
    """a @ x = b, or x @ a = b."""
    if left:
        return linalg.solve(a, b)
    return matrix_transpose(linalg.solve(matrix_transpose(a), matrix_transpose(b)))


@row("_linalg_solve_ex.default")
def solve_ex(x, other, *, left=True, check_errors=False):
    a, b = handle_of(x), handle_of(other)
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and a.shape[:-1] == b.shape)
    out = _solved(a, b[..., None] if is_vector else b, left or is_vector)
    return wrap(out[..., 0] if is_vector else out), *_factors(a), _info(a)


def _turned_to_left(solve, b, left: bool, adjoint: bool, is_complex: bool):
    """op(a) x = b, or x op(a) = b, by solve(b, transposed), which solves with a or with its transpose."""
    transposed = adjoint
    if not left:
        b, transposed = matrix_transpose(b), not transposed
    # An adjoint is solved by conjugates: conj(a)^T x = b is a^T conj(x) = conj(b).
    turns = adjoint and is_complex
    x = solve(conj(b) if turns else b, transposed)
    x = conj(x) if turns else x
    return x if left else matrix_transpose(x)


def _columns(h, start, stop):
    return h[..., start:stop]


def _lu_in_place(h):
    """L without its ones, and U, in one matrix, without exchanging rows: the left half of the columns, what it leaves of the
    others, and the right half of that."""
    m, n = h.shape[-2:]
    if min(m, n) > _UNROLLED:
        k = min(m, n) // 2
        left = _lu_in_place(_columns(h, 0, k))
        upper = linalg.solve_triangular(left[..., :k, :], _columns(h, k, n)[..., :k, :], unit_diagonal=True)
        rest = _lu_in_place(_columns(h, k, n)[..., k:, :] - made.matmul(left[..., k:, :], upper))
        return concat([left, concat([upper, rest], axis=-2)], axis=-1)
    rows, columns = (iota(h, count) for count in (m, n))
    for k in range(min(m - 1, n)):
        below = made.where((rows > k)[:, None], h[..., :, k:k + 1] / h[..., k:k + 1, k:k + 1], 0)
        is_column = made.logical_and((rows > k)[:, None], made.equal(columns, k))
        h = made.where(is_column, below, h - below * made.where(columns > k, h[..., k:k + 1, :], 0))
    return h


def _without_pivots(h):
    """(LU, pivots that exchange nothing, the number of the first 0 that was divided by: 0 of none)."""
    factors = _lu_in_place(settled_dims(h, [h.ndim - 2, h.ndim - 1]))
    count = min(h.shape[-2:])
    at = iota(h, count, start=1)
    zeros = made.equal(made.diagonal(factors), 0)
    first = made.min(made.where(zeros, at, count + 1), axis=-1) if count else full_like(h, h.shape[:-2], INT64, 0)
    pivots = broadcast_to(cast(at, _INT32), (*h.shape[:-2], count))
    return factors, pivots, cast(made.where(first > count, 0, first), _INT32)


@row("linalg_lu_factor_ex.default")
def lu_factor(x, *, pivot=True, check_errors=False):
    h = handle_of(x)
    if not pivot:
        return tuple(wrap(one) for one in _without_pivots(h))
    factors, pivots = linalg.lu_factor(h)
    return wrap(factors), wrap(cast(pivots + 1, _INT32)), _info(h)


@row("linalg_lu.default")
def lu(x, *, pivot=True):
    h = handle_of(x)
    if not pivot:
        factors, m, n = _without_pivots(h)[0], *h.shape[-2:]
        k = min(m, n)
        lower = made.tril(factors[..., :k], k=-1)
        rows = iota(h, m)
        return _nothing(h), wrap(lower + cast(made.equal(rows[:, None], rows[:k]), h._dtype)), wrap(made.triu(factors[..., :k, :]))
    return tuple(wrap(one) for one in linalg.lu(h))


@row("lu_unpack.default")
def lu_unpack(factors, pivots, unpack_data=True, unpack_pivots=True):
    h = handle_of(factors)
    p, lower, upper = made_lu_unpack(h, cast(handle_of(pivots), INT64) - 1)
    return (wrap(p) if unpack_pivots else _nothing(h), *((wrap(lower), wrap(upper)) if unpack_data else (_nothing(h), _nothing(h))))


@row("linalg_lu_solve.default")
def lu_solve(lu, pivots, other, *, left=True, adjoint=False):
    a, b = handle_of(lu), handle_of(other)
    if pivots._cell.is_unfactored:
        return wrap(_solved(_adjoint(a) if adjoint else a, b, left))
    at = cast(handle_of(pivots), INT64) - 1
    return wrap(_turned_to_left(lambda b, transposed: linalg.lu_solve(a, at, _beside(a, b), transposed=transposed), b, left, adjoint,
                                a.dtype.kind == "c"))


def _beside(a, b):
    """The right side with the batch that both have, where it has a batch and the matrices have a longer one."""
    return broadcast_to(b, (*a.shape[:-2], *b.shape[-2:])) if 2 < b.ndim < a.ndim else b


@row("linalg_solve_triangular.default")
def solve_triangular(x, other, *, upper, left=True, unitriangular=False):
    a, b = handle_of(x), handle_of(other)
    options = {"upper": upper, "unit_diagonal": unitriangular}
    if left:
        return wrap(linalg.solve_triangular(a, b, **options))
    return wrap(matrix_transpose(linalg.solve_triangular(a, matrix_transpose(b), transposed=True, **options)))


@row("_linalg_det.default")
def det(x):
    h = handle_of(x)
    return wrap(linalg.det(h)), *_turned_factors(x, h)


@row("_linalg_slogdet.default")
def slogdet(x):
    h = handle_of(x)
    sign, size = linalg.slogdet(h)
    return wrap(sign), wrap(size), *_turned_factors(x, h)


@row("linalg_qr.default")
def qr(x, mode="reduced"):
    h = handle_of(x)
    q, r = linalg.qr(h, mode="reduced" if mode == "r" else mode)
    return _nothing(h) if mode == "r" else wrap(q), wrap(r)


@row("geqrf.default", how="composed")
def geqrf(x):
    """R, and below it the vectors V of the reflections that Q is made of; and their scales. As Q - 1 = -V T V1^H, with V1 the
    first rows of V and T triangular with the scales on its diagonal, the factors of Q - 1 without pivots are V and -T V1^H
    (Ballard et al., Reconstructing Householder vectors from tall-skinny QR). A step of rounding more than 1 is subtracted, so
    that a column that is reflected by nothing isn't divided by 0."""
    h = handle_of(x)
    q, r = linalg.qr(h)
    m, n = h.shape[-2:]
    k = min(m, n)
    rows = iota(h, m)
    one = cast(made.equal(rows[:, None], rows[:k]), h._dtype)
    factors = _without_pivots(q - one * (1 + torch.finfo(x.dtype).eps))[0]
    below = made.tril(factors, k=-1)
    if m > k:
        r = concat([r, full_like(r, (*r.shape[:-2], m - k, n), r._dtype, 0)], axis=-2)
    if n > k:
        below = concat([below, full_like(below, (*below.shape[:-1], n - k), below._dtype, 0)], axis=-1)
    return wrap(below + r), wrap(-made.diagonal(factors))


@row("_linalg_svd.default")
def svd(x, full_matrices=False, compute_uv=True, *, driver=None):
    h = handle_of(x)
    if not compute_uv:
        return _nothing(h), wrap(linalg.svdvals(h)), _nothing(h)
    return tuple(wrap(one) for one in linalg.svd(h, full_matrices=full_matrices))


@row("_linalg_eigh.default")
def eigh(x, UPLO="L", compute_v=True):  # noqa: N803 - ATen's name
    h = handle_of(x)
    h = _adjoint(h) if UPLO.upper() == "U" else h
    if not compute_v:
        return wrap(linalg.eigvalsh(h)), _nothing(h)
    return tuple(wrap(one) for one in linalg.eigh(h))


@row("linalg_eig.default")
def eig(x):
    return tuple(wrap(one) for one in linalg.eig(handle_of(x)))


@row("_linalg_eigvals.default")
def eigvals(x):
    return wrap(linalg.eigvals(handle_of(x)))


@row("linalg_matrix_exp.default")
def matrix_exp(x):
    return wrap(linalg.matrix_exp(handle_of(x)))


@row("triangular_solve.default")
def old_triangular_solve(x, a, upper=True, transpose=False, unitriangular=False):
    matrix = handle_of(a)
    return wrap(linalg.solve_triangular(matrix, handle_of(x), upper=upper, transposed=transpose, unit_diagonal=unitriangular)), wrap(matrix)


def _by_cholesky(factor, b, upper: bool):
    """x of a x = b, with a = L L^H, or U^H U."""
    lower = _adjoint(factor) if upper else factor
    return linalg.solve_triangular(_adjoint(lower), linalg.solve_triangular(lower, b), upper=True)


@row("cholesky_solve.default")
def cholesky_solve(x, factor, upper=False):
    return wrap(_by_cholesky(handle_of(factor), handle_of(x), upper))


@row("cholesky_inverse.default")
def cholesky_inverse(factor, upper=False):
    h = handle_of(factor)
    return wrap(_by_cholesky(h, cast(_unit(h, h.shape[-1]), h._dtype), upper))


def _unit(h, n: int):
    at = iota(h, n)
    return at[:, None] == at


def _reflected(x, tau, other, adjoint=False):
    """(1 - tau_1 v_1 v_1^H) (1 - tau_2 v_2 v_2^H) ... times a matrix (or its adjoint times it), by 1 - V T V^H, with
    T = (1 + diag(tau) striu(V^H V))^-1 diag(tau)."""
    m, k = x.shape[-2], tau.shape[-1]
    rows, columns = (iota(x, count) for count in (m, k))
    vectors = made.where(rows[:, None] > columns, x[..., :k], cast(rows[:, None] == columns, x._dtype))
    inner = tau[..., None] * made.triu(made.matmul(_adjoint(vectors), vectors), k=1)
    turned = made.matmul(_adjoint(vectors), other)
    if not adjoint:
        scaled = linalg.solve_triangular(inner, tau[..., None] * turned, upper=True, unit_diagonal=True)
    else:       # T^H = diag(tau)^H (1 + diag(tau) striu(V^H V))^-H
        scaled = conj(tau[..., None]) * linalg.solve_triangular(_adjoint(inner), turned, unit_diagonal=True)
    return other - made.matmul(vectors, scaled)


@row("linalg_householder_product.default", how="composed")
def householder_product(x, tau):
    h = handle_of(x)
    m, n = h.shape[-2:]
    rows = iota(h, m)
    return wrap(_reflected(h, handle_of(tau), cast(rows[:, None] == rows[:n], h._dtype)))


@row("ormqr.default", how="composed")
def ormqr(x, tau, other, left=True, transpose=False):
    """q @ other, or other @ q, or with the adjoint of q, by the reflections that a QR is made of."""
    h, scales, b = handle_of(x), handle_of(tau), handle_of(other)
    if left:
        return wrap(_reflected(h, scales, b, adjoint=transpose))
    return wrap(_adjoint(_reflected(h, scales, _adjoint(b), adjoint=not transpose)))


@row("linalg_pinv.atol_rtol_tensor")
def pinv(x, *, atol=None, rtol=None, hermitian=False):
    h = handle_of(x)
    if 0 in h.shape[-2:] or (atol is None and rtol is None and not hermitian):
        return wrap(linalg.pinv(h))
    if hermitian:       # of the lower triangle, as eigh
        lower, diagonal = made.tril(h, k=-1), made.tril(made.triu(h))
        h = lower + (cast(real(diagonal), h._dtype) if h.dtype.kind == "c" else diagonal) + _adjoint(lower)
    u, values, vh = linalg.svd(h, full_matrices=False)
    least = made.max(values, axis=-1, keepdims=True) * (_relative(h, atol) if rtol is None else handle_of(rtol)[..., None])
    if atol is not None:
        least = made.maximum(least, handle_of(atol)[..., None])
    counts = values > least
    inverses = made.where(counts, 1.0 / made.where(counts, values, 1.0), 0.0)
    return wrap(made.matmul(_adjoint(vh), _adjoint(u) * inverses[..., None]))


def _relative(h, atol) -> float:
    """torch's default: none where an absolute tolerance is given."""
    single = h.dtype.itemsize // (2 if h.dtype.kind == "c" else 1) == 4
    return 0.0 if atol is not None else (2.0**-23 if single else 2.0**-52) * max(h.shape[-2:])


@row("linalg_lstsq.default")
def lstsq(x, b, rcond=None, *, driver=None):
    a, right = handle_of(x), handle_of(b)
    is_vector = right.ndim == 1 or (a.ndim - 1 == right.ndim and a.shape[:-1] == right.shape)
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise InvalidArgumentError(f"linalg_lstsq: driver is {driver!r}, not gels, gelsy, gelsd or gelss")
    out, distances, rank, values = linalg.lstsq(a, right[..., None] if is_vector else right, rtol=rcond)
    has_distances = a.shape[-2] > a.shape[-1] and driver in ("gels", "gelsd", "gelss")
    if distances.dtype.kind == "c":
        distances = real(distances)
    return (wrap(out[..., 0] if is_vector else out), wrap(distances) if has_distances else _nothing(distances),
            wrap(full_like(a, (0,), INT64, 0)) if driver == "gels" else wrap(rank),
            wrap(values) if driver in ("gelsd", "gelss") else _nothing(values))


@row("_conj.default", "_conj_physical.default", "conj_physical.default")
def conj_(x):
    h = handle_of(x)
    return wrap(conj(h) if h.dtype.kind == "c" else h[...])


# ---- Fourier transforms ------------------------------------------------------------------------------------

def _inverse_norm(normalization: int) -> str:
    """An inverse that torch doesn't scale is scaled the other way than ours is by itself."""
    return _NORMS[2 - normalization]


@row("_fft_c2c.default")
def fft_c2c(x, dim, normalization, forward):
    if not dim:
        return x.clone()
    h = handle_of(x)
    return wrap(fft.fftn(h, axes=dim, norm=_NORMS[normalization]) if forward else fft.ifftn(h, axes=dim, norm=_inverse_norm(normalization)))


@row("_fft_r2c.default")
def fft_r2c(x, dim, normalization, onesided):
    return wrap((fft.rfftn if onesided else fft.fftn)(handle_of(x), axes=dim, norm=_NORMS[normalization]))


@row("_fft_c2r.default")
def fft_c2r(x, dim, normalization, last_dim_size):
    sizes = [*(x.shape[one] for one in dim[:-1]), last_dim_size]
    return wrap(fft.irfftn(handle_of(x), s=sizes, axes=dim, norm=_inverse_norm(normalization)))
