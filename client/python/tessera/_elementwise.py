"""NumPy's functions of elements, and its reductions that leave NaN out, as an arrangement of other ops: chains of them become
one map on the workers."""

from __future__ import annotations

import math

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import beside
from ._dtypes import code_of
from ._errors import ArgumentError, DTypeError
from ._info import finfo, result_type
from ._ops import _tensor_of, astype, reshape
from ._tensor import as_operand


def _both(name: str, x1, x2) -> list:
    """Two operands, at least one of them a tensor; numbers stay numbers, which take the tensor's dtype."""
    tensor = next((x for x in (x1, x2) if isinstance(x, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a Tensor among its operands, not {type(x1).__name__}, {type(x2).__name__}; make one with ts.asarray or distribute_tensor")
    return [x if isinstance(x, (_tessera.Tensor, int, float, complex)) and not isinstance(x, np.generic) else beside(name, tensor, x)
            for x in (x1, x2)]


def _kind(x) -> str:
    return x.dtype.kind if isinstance(x, _tessera.Tensor) else np.asarray(x).dtype.kind


def _real(name: str, *operands) -> None:
    for x in operands:
        if _kind(x) == "c":
            raise DTypeError(f"{name}: needs a real dtype, not {getattr(x, '_spec', x)}")


def _floating(name: str, x):
    """Integers as f64."""
    x = _tensor_of(name, x)
    return astype(x, np.float64) if x.dtype.kind in "biu" else x


def _full_pair(name: str, x1, x2) -> list:
    """Two operands as tensors of the dtype that they have together."""
    a, b = _both(name, x1, x2)
    dtype = result_type(a, b)
    tensor = a if isinstance(a, _tessera.Tensor) else b
    return [astype(beside(name, tensor, x), dtype) for x in (a, b)]


# ---- of elements ---------------------------------------------------------------------------------

def heaviside(x1, x2, /):
    """heaviside(x1, x2, /)

    Gives 0 where x1 is negative, 1 where it is positive, and x2 where it is 0; integers give f64."""
    a, b = _full_pair("heaviside", x1, x2)
    _real("heaviside", a)
    a, b = _floating("heaviside", a), _floating("heaviside", b)
    return made.where(a == 0, b, made.where(made.isnan(a), a, astype(a > 0, a.dtype)))


def sinc(x, /):
    """sinc(x, /)

    Calculates sin(pi x) / (pi x) of each element, 1 of 0; integers give f64."""
    x = _floating("sinc", x)
    # Beside 0, a number whose sine is itself.
    y = made.where(x == 0, 1e-7 if x.dtype == np.float16 else 1e-20, x) * math.pi
    return made.sin(y) / y


def deg2rad(x, /):
    """deg2rad(x, /)

    Converts degrees to radians; integers give f64."""
    _real("deg2rad", _tensor_of("deg2rad", x))
    return _floating("deg2rad", x) * (math.pi / 180)


def rad2deg(x, /):
    """rad2deg(x, /)

    Converts radians to degrees; integers give f64."""
    _real("rad2deg", _tensor_of("rad2deg", x))
    return _floating("rad2deg", x) * (180 / math.pi)


def fmod(x1, x2, /):
    """fmod(x1, x2, /)

    Gives the remainder of the quotient rounded to 0, which has the sign of x1's element."""
    a, b = _full_pair("fmod", x1, x2)
    _real("fmod", a)
    if a.dtype.kind == "f":
        return made.copysign(made.remainder(made.abs(a), made.abs(b)), a)
    rest = made.remainder(a, b)
    return made.where(made.logical_and(rest != 0, (a < 0) != (rest < 0)), rest - b, rest)


def _extreme(name: str, x1, x2, row):
    a, b = _both(name, x1, x2)
    _real(name, a, b)
    a, b = (a, b) if isinstance(a, _tessera.Tensor) else (b, a)
    extreme = row(a, b)
    return made.where(made.isnan(a), b, made.where(made.isnan(extreme), a, extreme))


def fmax(x1, x2, /):
    """fmax(x1, x2, /)

    Computes the larger of each element of x1 and the respective element of x2, or the one that isn't NaN."""
    return _extreme("fmax", x1, x2, made.maximum)


def fmin(x1, x2, /):
    """fmin(x1, x2, /)

    Computes the smaller of each element of x1 and the respective element of x2, or the one that isn't NaN."""
    return _extreme("fmin", x1, x2, made.minimum)


def float_power(x1, x2, /):
    """float_power(x1, x2, /)

    Raises each element of x1 to the power of the respective element of x2, in f64 or c128."""
    a, b = _both("float_power", x1, x2)
    dtype = np.complex128 if "c" in (_kind(a), _kind(b)) else np.float64
    return made.pow(*(astype(x, dtype) if isinstance(x, _tessera.Tensor) else x for x in (a, b)))


def gcd(x1, x2, /):
    """gcd(x1, x2, /)

    Calculates the greatest common divisor of each element of x1 and the respective element of x2, by Euclid: as many steps
    as numbers of the dtype may take."""
    a, b = _full_pair("gcd", x1, x2)
    if a.dtype.kind not in "iu":
        raise DTypeError(f"gcd: needs integers: x1 is {getattr(x1, '_spec', x1)}, x2 is {getattr(x2, '_spec', x2)}")
    a, b = made.abs(a), made.abs(b)
    # Fibonacci's numbers take most steps (Lame, 1844): log to the golden ratio of the largest number.
    for _ in range(math.ceil(np.iinfo(a.dtype).bits / math.log2((1 + math.sqrt(5)) / 2)) + 1):
        a, b = made.where(b == 0, a, b), made.where(b == 0, b, made.remainder(a, b))
    return made.abs(a)


def lcm(x1, x2, /):
    """lcm(x1, x2, /)

    Calculates the least common multiple of each element of x1 and the respective element of x2."""
    a, b = _full_pair("lcm", x1, x2)
    if a.dtype.kind not in "iu":
        raise DTypeError(f"lcm: needs integers: x1 is {getattr(x1, '_spec', x1)}, x2 is {getattr(x2, '_spec', x2)}")
    return made.abs(made.floor_divide(a, gcd(a, b)) * b)


def cbrt(x, /):
    """cbrt(x, /)

    Calculates the cube root of each element; integers give f64."""
    x = _floating("cbrt", x)
    _real("cbrt", x)
    first = made.copysign(made.pow(made.abs(x), 1 / 3), x)
    # A step of Newton's makes up for 1/3, which is rounded; of 0 and infinities it is NaN.
    better = first - (first - x / (first * first)) / 3
    return made.where(made.isnan(better), first, better)


def nan_to_num(x, /, *, nan=0.0, posinf=None, neginf=None):
    """nan_to_num(x, /, *, nan=0.0, posinf=None, neginf=None)

    Gives each element, or a number where it is NaN or infinite; by default 0 and the largest numbers.

    nan: what stands for NaN. posinf, neginf: what stands for the infinities."""
    x = _tensor_of("nan_to_num", x)
    if x.dtype.kind in "biu":
        return x._copy()
    limits = finfo(x.dtype)
    above, below = (float(limits.max) if posinf is None else posinf), (float(limits.min) if neginf is None else neginf)

    def replaced(part):
        finite = made.where(part == math.inf, above, made.where(part == -math.inf, below, part))
        return made.where(made.isnan(part), nan, finite)
    return made.complex(replaced(made.real(x)), replaced(made.imag(x))) if x.dtype.kind == "c" else replaced(x)


def _factor(name: str, x, value):
    return as_operand(name, x, value)


def addcmul(x, x1, x2, /, *, value=1):
    """addcmul(x, x1, x2, /, *, value=1)

    Gives x + value * x1 * x2 of each element."""
    return x + made.multiply(x1, x2) * _factor("addcmul", _tensor_of("addcmul", x), value)


def addcdiv(x, x1, x2, /, *, value=1):
    """addcdiv(x, x1, x2, /, *, value=1)

    Gives x + value * x1 / x2 of each element."""
    return x + made.divide(x1, x2) * _factor("addcdiv", _tensor_of("addcdiv", x), value)


# ---- reductions that leave NaN out ---------------------------------------------------------------

def _without(x, number):
    return made.where(made.isnan(x), number, x) if x.dtype.kind in "fc" else x


def nansum(x, /, axis=None, *, dtype=None, keepdims=False):
    """nansum(x, /, axis=None, *, dtype=None, keepdims=False)

    Calculates the sum over the axes, in which NaN counts as 0."""
    return made.sum(_without(_tensor_of("nansum", x), 0), axis=axis, dtype=dtype, keepdims=keepdims)


def nanprod(x, /, axis=None, *, dtype=None, keepdims=False):
    """nanprod(x, /, axis=None, *, dtype=None, keepdims=False)

    Calculates the product over the axes, in which NaN counts as 1."""
    return made.prod(_without(_tensor_of("nanprod", x), 1), axis=axis, dtype=dtype, keepdims=keepdims)


def _nan_extreme(name: str, x, axis, keepdims, row, beyond: float):
    x = _tensor_of(name, x)
    _real(name, x)
    out = row(_without(x, beyond), axis=axis, keepdims=keepdims)
    return out if x.dtype.kind != "f" else made.where(made.all(made.isnan(x), axis=axis, keepdims=keepdims), math.nan, out)


def nanmax(x, /, axis=None, *, keepdims=False):
    """nanmax(x, /, axis=None, *, keepdims=False)

    Calculates the maximum over the axes of what isn't NaN; NaN where all are."""
    return _nan_extreme("nanmax", x, axis, keepdims, made.max, -math.inf)


def nanmin(x, /, axis=None, *, keepdims=False):
    """nanmin(x, /, axis=None, *, keepdims=False)

    Calculates the minimum over the axes of what isn't NaN; NaN where all are."""
    return _nan_extreme("nanmin", x, axis, keepdims, made.min, math.inf)


def _wide(x):
    """In which sums are made: f32 for f16."""
    return astype(x, np.float32) if x.dtype.itemsize == 2 else x


def _count(x, axis, keepdims):
    return astype(made.sum(made.logical_not(made.isnan(x)), axis=axis, dtype=np.int64, keepdims=keepdims), np.float64)


def _mean(x, axis, keepdims):
    return astype(nansum(x, axis, keepdims=keepdims) / _count(x, axis, keepdims), x.dtype)


def nanmean(x, /, axis=None, *, keepdims=False):
    """nanmean(x, /, axis=None, *, keepdims=False)

    Calculates the mean over the axes of what isn't NaN; NaN where all are."""
    x = _floating("nanmean", x)
    return astype(_mean(_wide(x), axis, keepdims), x.dtype)


def _variance(name: str, x, axis, correction, keepdims):
    """By two passes, as var's."""
    x = _wide(_floating(name, x))
    difference = made.where(made.isnan(x), 0, x - _mean(x, axis, True))     # what an infinity makes NaN counts
    squares = made.real(difference * made.conj(difference)) if x.dtype.kind == "c" else difference * difference
    divisor = _count(x, axis, keepdims) - correction
    return made.where(divisor <= 0, math.nan, made.sum(squares, axis=axis, keepdims=keepdims) / divisor)


def _real_dtype(x):
    return np.dtype(np.float64) if x.dtype.kind in "biu" else np.empty(0, x.dtype).real.dtype if x.dtype.kind == "c" else x.dtype


def nanvar(x, /, axis=None, *, correction=0.0, keepdims=False):
    """nanvar(x, /, axis=None, *, correction=0.0, keepdims=False)

    Calculates the variance over the axes of what isn't NaN; NaN of no more elements than correction."""
    return astype(_variance("nanvar", x, axis, correction, keepdims), _real_dtype(x))


def nanstd(x, /, axis=None, *, correction=0.0, keepdims=False):
    """nanstd(x, /, axis=None, *, correction=0.0, keepdims=False)

    Calculates the standard deviation over the axes of what isn't NaN: the square root of nanvar."""
    return astype(made.sqrt(_variance("nanstd", x, axis, correction, keepdims)), _real_dtype(x))


def ptp(x, /, axis=None, *, keepdims=False):
    """ptp(x, /, axis=None, *, keepdims=False)

    Calculates the maximum minus the minimum over the axes."""
    x = _tensor_of("ptp", x)
    _real("ptp", x)
    return made.max(x, axis=axis, keepdims=keepdims) - made.min(x, axis=axis, keepdims=keepdims)


def kron(x1, x2, /):
    """kron(x1, x2, /)

    Computes the Kronecker product: x2 as a whole times each element of x1."""
    a, b = _full_pair("kron", x1, x2)
    rank = max(a.ndim, b.ndim)
    rows, columns = ((1,) * (rank - x.ndim) + tuple(x.shape) for x in (a, b))
    spread = [[n for pair in pairs for n in pair] for pairs in (zip(rows, (1,) * rank), zip((1,) * rank, columns))]
    return reshape(reshape(a, spread[0]) * reshape(b, spread[1]), [m * n for m, n in zip(rows, columns)])
