"""The array API's linalg. Matrices are the last two dims, those before them a batch; a batch that is sharded is computed
where it lies, sharded rows or columns are gathered, or go to the batch."""

import math
from typing import Any, NamedTuple

import numpy as np

from _tessera import Tensor
import _tessera_ops as made     # the functions that are made from the catalog
from _tessera_ops import (cholesky, cross, det, diagonal, eigvalsh, inv, lu_solve, matmul, matrix_exp, matrix_norm,
                          matrix_power, svdvals, trace, vector_norm)
from ._arrangement import beside
from ._contraction import einsum, outer, tensordot, vecdot
from ._errors import DTypeError, InvalidArgumentError, LinAlgError
from ._names import suggestion
from ._ops import _tensor_of, astype, matrix_transpose, moveaxis, reshape
from ._calls import axes_of

__all__ = ["LinAlgError", "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "lu",
           "lu_factor", "lu_solve", "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot",
           "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv",
           "tensorsolve", "trace", "vecdot", "vector_norm"]


class EigResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class LuFactorResult(NamedTuple):
    LU: Any
    pivots: Any


class LuResult(NamedTuple):
    P: Any
    L: Any
    U: Any


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


def eig(x, /):
    return EigResult(*made.eig(x))


def lu_factor(x, /):
    return LuFactorResult(*made.lu_factor(x))


def lu(x, /):
    """lu(x, /)

    Gives a permutation P, a lower triangle L with ones on its diagonal, and an upper triangle U, with x = P @ L @ U."""
    return LuResult(*made.lu_unpack(*made.lu_factor(x)))


def eigh(x, /):
    return EighResult(*made.eigh(x))


def qr(x, /, *, mode="reduced"):
    return made.qr(x, mode="reduced")[1] if mode == "r" else QRResult(*made.qr(x, mode=mode))


def slogdet(x, /):
    return SlogdetResult(*made.slogdet(x))


def svd(x, /, *, full_matrices=True, compute_uv=True):
    return SVDResult(*made.svd(x, full_matrices=full_matrices)) if compute_uv else svdvals(x)


def eigvals(x, /):
    return made.eigvals(_floating("eigvals", x))


def solve(x1, x2, /):
    return made.solve(_floating("solve", x1), _floating("solve", x2))


def solve_triangular(x1, x2, /, *, upper=None, transposed=False, unit_diagonal=False, lower=None, trans=None):
    """solve_triangular(x1, x2, /, *, upper=False, transposed=False, unit_diagonal=False, lower=None, trans=None)

    Solves x1 @ x = x2 with one triangle of x1, or its transpose. lower and trans are SciPy's words: lower is the opposite of upper, and
    trans 0 or 'N', 1 or 'T', 2 or 'C' (conjugated). A call that gives neither takes the lower triangle."""
    if upper is not None and lower is not None and bool(upper) == bool(lower):
        raise InvalidArgumentError(f"solve_triangular: upper={upper} and lower={lower} contradict each other")
    upper = bool(upper) if upper is not None else lower is not None and not lower
    if trans not in (None, 0, 1, 2, "N", "T", "C"):
        raise InvalidArgumentError(f"solve_triangular: trans is {trans!r}; it is 0, 1, 2, N, T or C")
    if trans in (2, "C"):
        x1 = made.conj(x1)
    return made.solve_triangular(x1, x2, upper=upper, transposed=transposed or trans in (1, 2, "T", "C"), unit_diagonal=unit_diagonal)


def cho_factor(x, /, *, lower=False):
    """cho_factor(x, /, *, lower=False)

    The Cholesky factor of x and whether it is the lower one, for cho_solve; as SciPy's, with zeros in the other triangle."""
    return made.cholesky(x, upper=not lower), bool(lower)


def cho_solve(c_and_lower, b, /):
    """cho_solve(c_and_lower, b, /)

    Solves x @ y = b by what cho_factor gives for x."""
    factor, lower = c_and_lower
    column = b[..., None] if b.ndim == 1 else b
    half = solve_triangular(factor, column, upper=not lower, trans=0 if lower else 2)
    found = solve_triangular(factor, half, upper=not lower, trans=2 if lower else 0)
    return found[..., 0] if b.ndim == 1 else found


def lstsq(x1, x2, /, *, rtol=None):
    x, residuals, rank, values = made.lstsq(x1, x2, rtol=rtol)
    if x1.shape[-2] <= x1.shape[-1]:
        residuals = residuals[..., :0]
    return LstsqResult(x, residuals, rank, values)


def _is_tensor(rtol) -> bool:
    return isinstance(rtol, (Tensor, np.ndarray))


def _counting(name: str, x, values, rtol):
    """Which singular values are above rtol, a tensor or an array of a number for each matrix, times the largest one."""
    rtol = beside(name, x, rtol)
    if rtol.dtype.kind not in "iuf":
        raise DTypeError(f"{name}: rtol is {rtol._spec}; it has real numbers")
    return values > astype(rtol, values.dtype)[..., None] * made.max(values, axis=-1, keepdims=True)


def pinv(x, /, *, rtol=None):
    if not _is_tensor(rtol):
        return made.pinv(x, rtol=rtol)
    x = _floating("pinv", x)
    if 0 in x.shape[-2:]:
        return made.pinv(x)
    left, values, right = made.svd(x, full_matrices=False)
    counts = _counting("pinv", x, values, rtol)
    inverses = made.where(counts, 1 / made.where(counts, values, 1), 0)
    return matmul(made.conj(right).mT, made.conj(left).mT * inverses[..., None])


def matrix_rank(x, /, *, rtol=None):
    if not _is_tensor(rtol):
        return made.matrix_rank(x, rtol=rtol)
    x = _floating("matrix_rank", x)
    if 0 in x.shape[-2:]:
        return made.matrix_rank(x)
    return made.sum(_counting("matrix_rank", x, made.svdvals(x), rtol), axis=-1, dtype="i64")


for _function in (eig, eigh, eigvals, lu_factor, qr, slogdet, svd, lstsq, pinv, matrix_rank, solve):
    _function.__doc__ = getattr(made, _function.__name__).__doc__
lstsq.__doc__ += """ Where x1 has no more rows than columns there are no distances; those of a matrix that
has not full rank are NumPy's empty ones, here they are given."""


def _floating(name: str, x):
    x = _tensor_of(name, x)
    return astype(x, "f64") if x.dtype.kind in "biu" else x


def norm(x, /, ord=None, axis=None, keepdims=False):  # noqa: A002 - NumPy's name
    """norm(x, /, ord=None, axis=None, keepdims=False)

    The norm of vectors where axis is one dim, or x has one; of matrices where it is two, or x has two. Without ord the root of
    the sum of squares, of all elements where there is no axis.

    ord: of vectors a number, inf or -inf; of matrices 'fro', 'nuc', 1, -1, 2, -2, inf or -inf."""
    x = _floating("norm", x)
    if axis is None and ord is None:
        return made.vector_norm(x, keepdims=keepdims)
    dims = list(range(x.ndim)) if axis is None else [axes_of("norm", one, x.ndim)[0] for one in (axis if isinstance(axis, tuple) else (axis,))]
    if len(dims) == 1:
        if isinstance(ord, str):
            raise InvalidArgumentError(f"norm: ord is {ord!r}; of vectors it is a number")
        return made.vector_norm(x, axis=dims[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(dims) != 2 or dims[0] == dims[1]:
        raise InvalidArgumentError(f"norm: axis is {axis!r}, for {x._spec}; it is one dim, or two")
    out = made.matrix_norm(moveaxis(x, dims, (-2, -1)), ord="fro" if ord in (None, "f") else ord)
    return reshape(out, [1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdims else out


def cond(x, /, p=None):
    """cond(x, /, p=None)

    How much a matrix magnifies errors: its norm times that of its inverse.

    p: which norm, as norm's ord; by default 2, of the singular values."""
    x = _floating("cond", x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise LinAlgError(f"cond: takes matrices of elements: x is {x._spec}")
    if p is None or p in (2, -2):
        values = made.svdvals(x)
        first, last = values[..., 0], values[..., -1]
        out = last / first if p == -2 else first / last
    else:
        out = norm(x, p, axis=(-2, -1)) * norm(made.inv(x), p, axis=(-2, -1))
    is_given = made.any(made.isnan(x), axis=(-2, -1))
    return made.where(made.logical_and(made.isnan(out), made.logical_not(is_given)), float("inf"), out)


def multi_dot(arrays, /):
    """multi_dot(arrays, /)

    The product of several matrices in the order that multiplies least; the first and the last one may be vectors."""
    arrays = [_tensor_of("multi_dot", x) for x in arrays]
    if len(arrays) < 2:
        raise InvalidArgumentError(f"multi_dot: takes at least two matrices, not {len(arrays)}")
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    ends = (0, len(arrays) - 1)
    for i, x in enumerate(arrays):
        if x.ndim != 2 and not (x.ndim == 1 and i in ends) or i >= len(letters) - 1:
            raise InvalidArgumentError(f"multi_dot: operand {i} of {len(arrays)} is {x._spec}, no matrix")
    terms = [letters[i:i + 2] for i in range(len(arrays))]
    terms[0] = terms[0][2 - arrays[0].ndim:]
    terms[-1] = terms[-1][:arrays[-1].ndim]
    output = terms[0][:arrays[0].ndim - 1] + terms[-1][1:]
    for i, (x, y) in enumerate(zip(arrays, arrays[1:])):
        if x.shape[-1] != y.shape[0]:
            raise InvalidArgumentError(f"multi_dot: operands {i} and {i + 1} don't fit each other: {x._spec} and {y._spec}")
    return einsum(",".join(terms) + "->" + output, *arrays)


def tensorinv(a, /, ind=2):
    """tensorinv(a, /, ind=2)

    The inverse of a tensor by tensordot: tensordot(tensorinv(a, ind), a, ind) is the unit tensor.

    ind: how many of the first dims go with the others."""
    a = _floating("tensorinv", a)
    if not 0 < ind <= a.ndim:
        raise InvalidArgumentError(f"tensorinv: ind is {ind}, for {a._spec}; it is above 0, and no more than the dims")
    rows, columns = a.shape[:ind], a.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise InvalidArgumentError(f"tensorinv: the first {ind} dims have other elements than the rest: a is {a._spec}")
    return reshape(made.inv(reshape(a, (math.prod(rows), -1))), (*columns, *rows))


def tensorsolve(a, b, /, axes=None):
    """tensorsolve(a, b, /, axes=None)

    The x with tensordot(a, x, x.ndim) = b.

    axes: dims of a that go behind the others first."""
    a, b = _floating("tensorsolve", a), _floating("tensorsolve", b)
    if axes is not None:
        axes = [axes_of("tensorsolve", one, a.ndim)[0] for one in axes]
        a = moveaxis(a, axes, range(a.ndim - len(axes), a.ndim))
    shape = a.shape[b.ndim:]
    if a.shape[:b.ndim] != b.shape or math.prod(shape) != math.prod(b.shape):
        raise InvalidArgumentError(f"tensorsolve: the dims of a are those of b and of x, with as many elements: a is {a._spec}, b {b._spec}")
    return reshape(made.solve(reshape(a, (-1, math.prod(shape))), reshape(b, (-1,))), shape)


def __getattr__(name: str):
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{suggestion(name, __all__).replace('=?', '?')}")


def __dir__():
    return sorted(__all__)
