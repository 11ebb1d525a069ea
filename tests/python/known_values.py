"""Facts about a result that hold whatever the order in which its terms are added: the oracle of differential tests.

A Known says of each element that it lies in [low, high], that it is NaN, or nothing (`open`): sums of numbers that cancel,
and what may overflow in one order and not in another, are nobody's fault. Intervals are in NumPy's longdouble, which has
more digits than f64 and a far larger range.

`reach` bounds the sum of the absolute finite terms that an element is, or may still be, the sum of: where it is over the
dtype's largest number, a term or a part of the sum may overflow, and it is times eps what rounding does. `whole` elements
are integers that the dtype has, as are all terms: their sums are exact. `signed`: a zero whose sign is known.
"""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

L = np.longdouble


def is_float(dtype) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


@dataclasses.dataclass
class Format:
    eps: L
    tiny: L
    most: L
    digits: int


def format_of(dtype) -> Format:
    info = ml_dtypes.finfo(dtype)
    return Format(L(float(info.eps)), L(float(info.smallest_subnormal)), L(float(info.max)), info.nmant + 1)


@dataclasses.dataclass
class Known:
    dtype: np.dtype
    low: np.ndarray      # of floats; of others the values, and high is the same
    high: np.ndarray
    reach: np.ndarray
    nan: np.ndarray
    open: np.ndarray
    whole: np.ndarray
    signed: np.ndarray

    @property
    def shape(self):
        return self.low.shape

    def moved(self, move) -> Known:
        """By what only moves elements: indexing, transposing, reshaping, broadcasting."""
        arrays = {f.name: np.asarray(move(getattr(self, f.name))) for f in dataclasses.fields(self) if f.name != "dtype"}
        return Known(self.dtype, **arrays)


FIELDS = ("low", "high", "reach", "nan", "open", "whole", "signed")


def exactly(value) -> Known:
    """The values to upload."""
    value = np.asarray(value)
    if not is_float(value.dtype):
        none = np.zeros(value.shape, bool)
        return Known(value.dtype, value, value, none, none, none, ~none, none)
    wide = value.astype(L)
    nan = np.isnan(wide)
    wide = np.where(nan, 0, wide)
    finite = np.isfinite(wide)
    reach = np.where(finite, np.abs(wide), 0)
    whole = finite & ~nan & (wide == np.floor(wide)) & (reach < L(2) ** format_of(value.dtype).digits)
    return Known(value.dtype, wide, wide, reach, nan, np.zeros(value.shape, bool), whole, ~nan)


def integers(dtype, value, open_) -> Known:
    value = np.asarray(value).astype(dtype)
    none = np.zeros(value.shape, bool)
    return Known(np.dtype(dtype), value, value, none, none, np.broadcast_to(open_, value.shape) | none, ~none, none)


def rounded(dtype, low, high, reach, nan, open_, whole, roundings=4) -> Known:
    """An interval as the dtype has it after so many roundings of numbers up to `reach`."""
    low, high, reach = (np.asarray(a, L) for a in (low, high, reach))
    f = format_of(dtype)
    bad = np.isnan(low) | np.isnan(high) | np.isnan(reach)
    sure_nan = nan | (bad & np.isnan(low) & np.isnan(high) & ~open_)     # of what is open nothing follows
    open_ = (open_ | bad & ~sure_nan) & ~nan
    low, high, reach = (np.where(np.isnan(a), 0, a) for a in (low, high, reach))
    finite_high = np.where(np.isfinite(high), np.abs(high), 0)
    finite_low = np.where(np.isfinite(low), np.abs(low), 0)
    reach = np.where(np.isfinite(reach), reach, 0)
    reach = np.maximum(reach, np.maximum(finite_low, finite_high))
    whole = whole & (reach < L(2) ** f.digits) & np.isfinite(low) & (low == high) & ~sure_nan
    error = np.where(whole, 0, roundings * (f.eps * reach + f.tiny))
    exact_infinity = ~np.isfinite(low) & (low == high)
    low, high = np.where(exact_infinity, low, low - error), np.where(exact_infinity, high, high + error)
    # Surely over the range in the end is infinite, and may only then be relied on when no term was close to it.
    over = np.where(low > f.most * (1 + f.eps), np.inf, np.where(high < -f.most * (1 + f.eps), -np.inf, 0))
    close = (reach > f.most / 2) & ~exact_infinity
    open_ = open_ | (close & ~sure_nan)
    low, high = np.where(over != 0, over, low), np.where(over != 0, over, high)
    return Known(np.dtype(dtype), low, high, np.where(exact_infinity, 0, reach), sure_nan, open_, whole, np.zeros(np.shape(low), bool))


def settled(k: Known) -> Known:
    """The same with nothing pending: what reach was is rounding that has been."""
    if not is_float(k.dtype):
        return k
    return dataclasses.replace(k, reach=np.maximum(np.where(np.isfinite(k.low), np.abs(k.low), 0),
                                                   np.where(np.isfinite(k.high), np.abs(k.high), 0)))


def joined(*knowns) -> list[Known]:
    shape = np.broadcast_shapes(*(k.shape for k in knowns))
    return [k.moved(lambda a: np.broadcast_to(a, shape)) for k in knowns]


def _spread(low, high) -> np.ndarray:
    return low != high


def add(a: Known, b: Known) -> Known:
    a, b = joined(a, b)
    if not is_float(a.dtype):
        return integers(a.dtype, a.low + b.low, a.open | b.open)
    return rounded(a.dtype, a.low + b.low, a.high + b.high, a.reach + b.reach, a.nan | b.nan, a.open | b.open, a.whole & b.whole)


def negative(a: Known) -> Known:
    if not is_float(a.dtype):
        return integers(a.dtype, -a.low, a.open)
    return dataclasses.replace(a, low=-a.high, high=-a.low, signed=np.zeros(a.shape, bool))


def subtract(a: Known, b: Known) -> Known:
    return integers(a.dtype, np.subtract(*np.broadcast_arrays(a.low, b.low)), a.open | b.open) if not is_float(a.dtype) else add(a, negative(b))


def multiply(a: Known, b: Known) -> Known:
    a, b = joined(a, b)
    if not is_float(a.dtype):
        return integers(a.dtype, a.low * b.low, a.open | b.open)
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    some_nan, all_nan = np.any(np.isnan(products), axis=0), np.all(np.isnan(products), axis=0)
    filled = [np.where(np.isnan(p), 0, p) for p in products]
    low, high = np.minimum.reduce(filled), np.maximum.reduce(filled)
    low, high = np.where(all_nan, np.nan, low), np.where(all_nan, np.nan, high)
    most_a = np.maximum(a.reach, np.where(np.isfinite(a.high), np.maximum(np.abs(a.low), np.abs(a.high)), 0))
    most_b = np.maximum(b.reach, np.where(np.isfinite(b.high), np.maximum(np.abs(b.low), np.abs(b.high)), 0))
    # A value that may be 0 beside an infinity may give NaN.
    maybe = [(x.low <= 0) & (x.high >= 0) & (x.low != x.high) & ~np.isfinite(y.high) for x, y in ((a, b), (b, a))]
    return rounded(a.dtype, low, high, most_a * most_b, a.nan | b.nan,
                   a.open | b.open | (some_nan & ~all_nan) | maybe[0] | maybe[1], a.whole & b.whole)


def divide(a: Known, b: Known) -> Known:
    a, b = joined(a, b)
    sure_zero = (b.low == 0) & (b.high == 0) & b.signed
    doubtful = (b.low <= 0) & (b.high >= 0) & ~sure_zero & ~b.nan
    divisor_low, divisor_high = np.where(doubtful, 1, b.low), np.where(doubtful, 1, b.high)
    quotients = [x / y for x in (a.low, a.high) for y in (divisor_low, divisor_high)]
    some_nan, all_nan = np.any(np.isnan(quotients), axis=0), np.all(np.isnan(quotients), axis=0)
    filled = [np.where(np.isnan(q), 0, q) for q in quotients]
    low, high = np.minimum.reduce(filled), np.maximum.reduce(filled)
    low, high = np.where(all_nan, np.nan, low), np.where(all_nan, np.nan, high)
    split = sure_zero & (a.low < 0) & (a.high > 0)
    least = np.minimum(np.abs(divisor_low), np.abs(divisor_high))
    reach = np.where((least > 0) & np.isfinite(least), a.reach / np.where(least > 0, least, 1), 0)
    return rounded(a.dtype, low, high, reach, a.nan | b.nan, a.open | b.open | doubtful | split | (some_nan & ~all_nan),
                   np.zeros(low.shape, bool))


def monotone(function, a: Known, roundings=8) -> Known:
    low, high = function(a.low), function(a.high)
    return rounded(a.dtype, low, high, np.zeros(a.shape), a.nan, a.open, np.zeros(a.shape, bool), roundings)


def exp(a: Known) -> Known:
    return monotone(np.exp, settled(a))


def sqrt(a: Known) -> Known:
    doubtful = (a.low < 0) & (a.high >= 0)
    out = monotone(lambda v: np.sqrt(np.where(doubtful, 0, v)), settled(a))
    return dataclasses.replace(out, open=out.open | doubtful)


def extreme(function, a: Known, b: Known) -> Known:
    a, b = joined(a, b)
    if not is_float(a.dtype):
        return integers(a.dtype, function(a.low, b.low), a.open | b.open)
    nan = a.nan | b.nan
    return Known(a.dtype, function(a.low, b.low), function(a.high, b.high), np.maximum(a.reach, b.reach), nan, (a.open | b.open) & ~nan,
                 a.whole & b.whole, np.zeros(a.shape, bool))


def relu(a: Known) -> Known:
    return extreme(np.maximum, a, exactly(np.zeros((), a.dtype)))


def compare(name: str, a: Known, b: Known) -> Known:
    a, b = joined(a, b)
    nan = a.nan | b.nan
    less = (a.high < b.low, a.low < b.high)         # surely, possibly
    greater = (a.low > b.high, a.high > b.low)
    same = ((a.low == a.high) & (b.low == b.high) & (a.low == b.low), (a.low <= b.high) & (a.high >= b.low))
    surely, possibly = {"less": less, "greater": greater, "equal": same,
                        "less_equal": (a.high <= b.low, a.low <= b.high), "greater_equal": (a.low >= b.high, a.high >= b.low),
                        "not_equal": (~same[1], ~same[0])}[name]
    value = np.where(nan, name == "not_equal", surely)
    return integers(np.dtype(bool), value, a.open | b.open | ((surely != possibly) & ~nan))


def where(condition: Known, a: Known, b: Known) -> Known:
    condition, a, b = joined(condition, a, b)
    arrays = {f: np.where(condition.low, getattr(a, f), getattr(b, f)) for f in FIELDS}
    arrays["open"] = arrays["open"] | condition.open
    return Known(a.dtype, **arrays)


def cast(a: Known, dtype) -> Known:
    dtype = np.dtype(dtype)
    if dtype == a.dtype:
        return a
    if not is_float(a.dtype):
        if not is_float(dtype):
            return integers(dtype, a.low.astype(dtype), a.open)
        wide = a.low.astype(L)
        return rounded(dtype, wide, wide, np.abs(wide), a.nan, a.open, np.ones(a.shape, bool), 1)
    if is_float(dtype):
        return rounded(dtype, a.low, a.high, a.reach, a.nan, a.open, a.whole, 1)
    if dtype == bool:
        doubtful = (a.low <= 0) & (a.high >= 0) & _spread(a.low, a.high)
        return integers(dtype, a.nan | (a.low != 0), a.open | (doubtful & ~a.nan))
    info = np.iinfo(dtype)
    ends = []
    for end in (a.low, a.high):
        clipped = np.clip(np.trunc(np.where(a.nan, 0, end)), L(info.min), L(info.max))
        ends.append(np.array([int(v) for v in clipped.ravel()], object).reshape(a.shape).astype(dtype))
    return integers(dtype, ends[0], a.open | ((ends[0] != ends[1]) & ~a.nan))


def total(a: Known, axis, keepdims, dtype) -> Known:
    """A sum over axes, to a dtype; the terms in any order."""
    count = int(np.prod([a.shape[d] for d in axis], dtype=int)) if axis else 1
    fold = lambda v: np.sum(v, axis=tuple(axis), keepdims=keepdims)     # noqa: E731
    some = lambda v: np.any(v, axis=tuple(axis), keepdims=keepdims)     # noqa: E731
    if not is_float(a.dtype):
        return integers(dtype, np.sum(a.low.astype(dtype), axis=tuple(axis), keepdims=keepdims, dtype=dtype), some(a.open))
    infinite = lambda sign: some((a.low == sign * np.inf) & (a.high == sign * np.inf) & ~a.nan & ~a.open)    # noqa: E731
    finite = np.isfinite(a.low) & np.isfinite(a.high)
    low, high = fold(np.where(finite, a.low, 0)), fold(np.where(finite, a.high, 0))
    up, down = infinite(1), infinite(-1)
    nan = some(a.nan & ~a.open) | (up & down)
    value = np.where(up, np.inf, np.where(down, -np.inf, 0))
    low, high = np.where(value != 0, value, low), np.where(value != 0, value, high)
    whole = ~some(~a.whole)
    reach = fold(a.reach)
    out = rounded(dtype, low, high, reach, nan, some(a.open) & ~nan, whole, 4 + 2 * count)
    # A term that overflowed on the way to an infinity makes a NaN where it is the other one.
    return dataclasses.replace(out, open=(out.open | (reach > format_of(dtype).most / 2)) & ~some(a.nan & ~a.open),
                               reach=np.maximum(out.reach, reach))


def mean(a: Known, axis, keepdims, dtype) -> Known:
    a = cast(a, dtype)
    count = int(np.prod([a.shape[d] for d in axis], dtype=int)) if axis else 1
    if dtype == np.float16 or dtype == ml_dtypes.bfloat16:     # the sum is in f32, and need not fit 16 bits
        sums = total(dataclasses.replace(a, dtype=np.dtype("f4")), axis, keepdims, np.dtype("f4"))
        quotient = divide(sums, exactly(np.array(count, "f4")))
        return rounded(dtype, quotient.low, quotient.high, quotient.reach, quotient.nan, quotient.open, quotient.whole)
    return divide(total(a, axis, keepdims, dtype), exactly(np.array(count, dtype)))


def extreme_over(function, a: Known, axis, keepdims) -> Known:
    fold = lambda v: function.reduce(v, axis=tuple(axis), keepdims=keepdims)     # noqa: E731
    some = lambda v: np.any(v, axis=tuple(axis), keepdims=keepdims)     # noqa: E731
    if not is_float(a.dtype):
        return integers(a.dtype, fold(a.low), some(a.open))
    nan = some(a.nan & ~a.open)
    return Known(a.dtype, fold(a.low), fold(a.high), np.max(a.reach, axis=tuple(axis), keepdims=keepdims), nan, some(a.open) & ~nan,
                 ~some(~a.whole), np.zeros(nan.shape, bool))


def matmul(a: Known, b: Known) -> Known:
    terms = multiply_terms(a, b)
    return total(terms, [1], False, a.dtype)


def multiply_terms(a: Known, b: Known) -> Known:
    left, right = a.moved(lambda v: v[:, :, None]), b.moved(lambda v: v[None, :, :])
    if not is_float(a.dtype) or a.dtype.itemsize > 2:
        return multiply(left, right)
    # Products of 16 bits are f32's, and are not rounded to 16 before they are added up.
    wide = [dataclasses.replace(k, dtype=np.dtype("f4")) for k in (left, right)]
    return dataclasses.replace(multiply(*wide), dtype=a.dtype)


def mismatch(got, want: Known) -> str:
    """"" when `got` is what is known, else what differs first."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"is {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    if not is_float(want.dtype):
        wrong = (got != want.low) & ~want.open
    else:
        wide = got.astype(L)
        inside = ~np.isnan(wide) & (wide >= want.low) & (wide <= want.high)
        # Beside the largest number the last rounding may go to infinity.
        wrong = ~np.where(want.nan, np.isnan(wide), inside) & ~want.open
    if not np.any(wrong):
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.ndim else ()
    known = "nan" if want.nan[at] else f"{want.low[at]}" if want.low[at] == want.high[at] else f"in [{want.low[at]}, {want.high[at]}]"
    return f"at {list(at)}: {got[at]}, which should be {known}"
