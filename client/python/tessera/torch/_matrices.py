"""Linear algebra and Fourier transforms of the catalog, with the names and results that torch's have.

A factorisation that fails (of a singular or no positive definite matrix) fails the op: its results raise LinAlgError where they
are read, and `info` is 0. What torch keeps of a solve for its backward pass as LU and pivots is here the matrix itself, turned
as torch turns it, and zeros; linalg_lu_solve takes just that, and torch.linalg.lu_factor has no row.
"""

from __future__ import annotations

import torch

from _tessera_ops import conj
from .. import fft, linalg
from .._ops import matrix_transpose
from ._dtypes import CODES
from ._placing import full_like, settled
from ._table import row
from ._tensor import wrap

_INT32 = CODES[torch.int32]
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
    h = settled(x)
    return wrap(linalg.cholesky(h, upper=upper)), _info(h)


@row("linalg_inv_ex.default")
def inv_ex(x, *, check_errors=False):
    h = settled(x)
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
    a, b = settled(x), settled(other)
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and a.shape[:-1] == b.shape)
    out = _solved(a, b[..., None] if is_vector else b, left or is_vector)
    return wrap(out[..., 0] if is_vector else out), *_factors(a), _info(a)


@row("linalg_lu_solve.default")
def lu_solve(lu, pivots, other, *, left=True, adjoint=False):
    if not pivots._cell.is_unfactored:
        raise NotImplementedError("aten.linalg_lu_solve.default: of factors that were made elsewhere has no row in Tessera; torch.linalg.solve has one")
    a = settled(lu)
    return wrap(_solved(_adjoint(a) if adjoint else a, settled(other), left))


@row("linalg_solve_triangular.default")
def solve_triangular(x, other, *, upper, left=True, unitriangular=False):
    a, b = settled(x), settled(other)
    options = {"upper": upper, "unit_diagonal": unitriangular}
    if left:
        return wrap(linalg.solve_triangular(a, b, **options))
    return wrap(matrix_transpose(linalg.solve_triangular(a, matrix_transpose(b), transposed=True, **options)))


@row("_linalg_det.default")
def det(x):
    h = settled(x)
    return wrap(linalg.det(h)), *_turned_factors(x, h)


@row("_linalg_slogdet.default")
def slogdet(x):
    h = settled(x)
    sign, size = linalg.slogdet(h)
    return wrap(sign), wrap(size), *_turned_factors(x, h)


@row("linalg_qr.default")
def qr(x, mode="reduced"):
    h = settled(x)
    q, r = linalg.qr(h, mode="reduced" if mode == "r" else mode)
    return _nothing(h) if mode == "r" else wrap(q), wrap(r)


@row("_linalg_svd.default")
def svd(x, full_matrices=False, compute_uv=True, *, driver=None):
    h = settled(x)
    if not compute_uv:
        return _nothing(h), wrap(linalg.svdvals(h)), _nothing(h)
    return tuple(wrap(one) for one in linalg.svd(h, full_matrices=full_matrices))


@row("_linalg_eigh.default")
def eigh(x, UPLO="L", compute_v=True):  # noqa: N803 - ATen's name
    h = settled(x)
    h = _adjoint(h) if UPLO.upper() == "U" else h
    if not compute_v:
        return wrap(linalg.eigvalsh(h)), _nothing(h)
    return tuple(wrap(one) for one in linalg.eigh(h))


@row("_conj.default", "_conj_physical.default", "conj_physical.default")
def conj_(x):
    h = settled(x)
    return wrap(conj(h) if h.dtype.kind == "c" else h[...])


# ---- Fourier transforms ------------------------------------------------------------------------------------

def _inverse_norm(normalization: int) -> str:
    """An inverse that torch doesn't scale is scaled the other way than ours is by itself."""
    return _NORMS[2 - normalization]


@row("_fft_c2c.default")
def fft_c2c(x, dim, normalization, forward):
    if not dim:
        return x.clone()
    h = settled(x)
    return wrap(fft.fftn(h, axes=dim, norm=_NORMS[normalization]) if forward else fft.ifftn(h, axes=dim, norm=_inverse_norm(normalization)))


@row("_fft_r2c.default")
def fft_r2c(x, dim, normalization, onesided):
    return wrap((fft.rfftn if onesided else fft.fftn)(settled(x), axes=dim, norm=_NORMS[normalization]))


@row("_fft_c2r.default")
def fft_c2r(x, dim, normalization, last_dim_size):
    sizes = [*(x.shape[one] for one in dim[:-1]), last_dim_size]
    return wrap(fft.irfftn(settled(x), s=sizes, axes=dim, norm=_inverse_norm(normalization)))
