"""The array API's linalg. Matrices are the last two dims, those before them a batch; a batch that is sharded is computed
where it lies, sharded rows or columns are gathered, or go to the batch."""

from typing import Any, NamedTuple

import _tessera_ops as made     # the functions that are made from the catalog
from _tessera_ops import (cholesky, cross, det, diagonal, eigvalsh, inv, matmul, matrix_norm, matrix_power, matrix_rank,
                          pinv, solve, solve_triangular, svdvals, trace, vector_norm)
from ._contraction import outer, tensordot, vecdot
from ._errors import LinAlgError, UnimplementedError
from ._names import suggestion
from ._ops import matrix_transpose

__all__ = ["LinAlgError", "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "lstsq", "matmul", "matrix_norm",
           "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular",
           "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm"]


class EighResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    sign: Any
    logabsdet: Any


class SVDResult(NamedTuple):
    U: Any
    S: Any
    Vh: Any


class LstsqResult(NamedTuple):
    x: Any
    residuals: Any
    rank: Any
    singular_values: Any


def eigh(x, /):
    return EighResult(*made.eigh(x))


def qr(x, /, *, mode="reduced"):
    return QRResult(*made.qr(x, mode=mode))


def slogdet(x, /):
    return SlogdetResult(*made.slogdet(x))


def svd(x, /, *, full_matrices=True):
    return SVDResult(*made.svd(x, full_matrices=full_matrices))


def lstsq(x1, x2, /, *, rtol=None):
    x, residuals, rank, values = made.lstsq(x1, x2, rtol=rtol)
    if x1.shape[0] <= x1.shape[1]:
        residuals = residuals[:0]
    return LstsqResult(x, residuals, rank, values)


for _function in (eigh, qr, slogdet, svd, lstsq):
    _function.__doc__ = getattr(made, _function.__name__).__doc__
lstsq.__doc__ += """ Where x1 has no more rows than columns there are no distances; those of a matrix that
has not full rank are NumPy's empty ones, here they are given."""


class ReservedNameError(UnimplementedError, AttributeError):
    """A name of the array API that nothing is behind yet; hasattr says so, too."""


ReservedNameError.__module__ = "tessera"


def __getattr__(name: str):
    if name in ("eig", "eigvals", "norm"):
        raise ReservedNameError(f"linalg.{name} is not supported yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{suggestion(name, __all__).replace('=?', '?')}")


def __dir__():
    return sorted(__all__)
