"""NumPy's way to call the functions: its positions and keywords, lists, arrays and numbers as operands.

A public function is called as it is where the call fits its own signature and its first operand is a tensor. Else the call is bound to
the signature of NumPy's function of that name, and each argument goes to the parameter that means it: out=, where=, initial= and
dtype= work around the function, and what has no meaning for tensors (order=, kind=, casting=) is taken and not used.
"""

from __future__ import annotations

import functools
import inspect

import numpy as np

import _tessera
from . import _context
from ._calls import MAX_IMPLICIT_ARRAY
from ._errors import ArgumentError, DTypeError, InvalidArgumentError, TesseraError
from ._names import suggestion
from ._namespace import public

# NumPy's names of what the array API calls otherwise.
OWN_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "invert": "bitwise_invert", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "conjugate": "conj",
    "absolute": "abs", "fabs": "abs", "true_divide": "divide", "power": "pow", "rint": "round", "mod": "remainder", "around": "round",
    "radians": "deg2rad", "degrees": "rad2deg", "bitwise_not": "bitwise_invert", "amax": "max", "amin": "min", "fix": "trunc",
}
_NUMPY_NAMES = {"bitwise_invert": "invert", "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"}
# Parameters that are tensors.
_TENSORS = frozenset(("x", "x1", "x2", "a", "b", "y", "v", "m", "xp", "fp", "condition", "mask", "weights", "values", "mat1", "mat2"))
_LISTS = frozenset(("arrays", "tensors", "operands"))
# Functions that write into their first operand: an array there would lose it.
_IN_PLACE = frozenset(("put", "place", "putmask", "copyto", "fill_diagonal", "put_along_axis", "shuffle"))
# Functions that take a number n for the numbers below n.
_COUNTS = frozenset(("permutation", "choice"))
_RENAMED = {"a_min": "min", "a_max": "max", "rcond": "rtol", "tol": "rtol"}
# Taken and without meaning: a tensor has no order in memory, and its kernels are chosen by the workers.
_IGNORED = frozenset("order kind casting subok overwrite_input overwrite_a overwrite_b check_finite like signature lapack_driver".split())
# A masked-out element's value in a sum or product, and the op that adds an initial value.
_NEUTRAL = {"sum": 0, "nansum": 0, "prod": 1, "nanprod": 1, "any": False, "all": True, "count_nonzero": 0}
_JOIN = {"sum": "add", "nansum": "add", "prod": "multiply", "nanprod": "multiply", "max": "maximum", "min": "minimum",
         "nanmax": "fmax", "nanmin": "fmin"}


def _is_values(value) -> bool:
    """A list, tuple or array of numbers, in which no tensor is."""
    if isinstance(value, np.ma.MaskedArray):        # a tensor has no mask, which the function says
        return False
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and value.nbytes <= MAX_IMPLICIT_ARRAY
    if not isinstance(value, (list, tuple)):
        return False
    return all(_is_number(one) or isinstance(one, np.ndarray) or _is_values(one) for one in value)


def _is_number(value) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic))


def as_tensor(value, beside=None):
    """A tensor as it is; numbers, lists and arrays as a tensor on the mesh of the one `beside`, or on the session's own."""
    if isinstance(value, _tessera.Tensor):
        return value
    return public().asarray(value, device_mesh=None if beside is None else beside.device_mesh)


def _first_tensor(values):
    for value in values:
        if isinstance(value, _tessera.Tensor):
            return value
        if isinstance(value, (list, tuple)) and (found := _first_tensor(value)) is not None:
            return found
    return None


def _has_session() -> bool:
    try:
        _context.current_session()
    except TesseraError:        # none is open, several are, or the one that was is lost
        return False
    return True


def _numpy_function(name: str):
    name = _NUMPY_NAMES.get(name, name)
    return next((found for place in (np, np.linalg, np.fft) if callable(found := getattr(place, name, None))), None)


@functools.cache
def _numpy_signature(name: str):
    """The signature of NumPy's function; None where NumPy says none."""
    function = _numpy_function(name)
    try:
        return None if function is None else inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _is_default(value, parameter) -> bool:
    default = parameter.default
    return value is default or (value is None and default is not inspect.Parameter.empty and default is np._NoValue) or \
        type(value) is type(default) and isinstance(value, (bool, int, float, str)) and value == default


class Numpy:
    """One public function, and how NumPy's programs call it."""

    def __init__(self, function, refuse=None):
        self.function, self.name, self.refuse = function, function.__name__, refuse
        own = vars(function).get("_accepts") or inspect.signature(inspect.unwrap(function))
        kinds = inspect.Parameter
        self.only = [p.name for p in own.parameters.values() if p.kind == kinds.POSITIONAL_ONLY]
        self.either = [p.name for p in own.parameters.values() if p.kind == kinds.POSITIONAL_OR_KEYWORD]
        self.named = frozenset(p.name for p in own.parameters.values() if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY))
        self.many = next((p.name for p in own.parameters.values() if p.kind == kinds.VAR_POSITIONAL), None)
        self.most = 1 << 30 if self.many else len(self.only) + len(self.either)
        self.least = sum(p.default is p.empty for p in own.parameters.values() if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD))
        self.takes_operands = _numpy_function(self.name) is not None and not (_TENSORS | _LISTS).isdisjoint((*self.only, *self.either, self.many))
        self.takes_any = any(p.kind == kinds.VAR_KEYWORD for p in own.parameters.values())

    def fits(self, args, kwargs) -> bool:
        return len(args) <= self.most and kwargs.keys() <= self.named

    # ---- operands ---------------------------------------------------------------------------

    def operands(self, args: tuple) -> tuple:
        """The arguments with tensors in the place of lists, arrays and numbers where the function takes tensors."""
        names = [*self.only, *self.either][:len(args)]
        names += [self.many] * (len(args) - len(names))
        beside, out = _first_tensor(args), list(args)
        if beside is None and not _has_session():
            return args
        for i, (name, value) in enumerate(zip(names, args)):
            if i == 0 and self.name in _IN_PLACE:
                continue
            if name in _LISTS and isinstance(value, (list, tuple)):
                out[i] = [as_tensor(one, beside) if _is_values(one) or beside is None and _is_number(one) else one for one in value]
            elif (name in _TENSORS or name in _LISTS) and _is_values(value):
                out[i] = as_tensor(value, beside)
            elif name in ("x", "x1") and i == 0 and self.name not in _COUNTS and beside is None and _is_number(value):
                out[i] = as_tensor(value)
            beside = beside if beside is not None else out[i] if isinstance(out[i], _tessera.Tensor) else None
        return tuple(out)

    # ---- NumPy's parameters -----------------------------------------------------------------

    def plan(self, args: tuple, kwargs: dict):
        """(arguments, keywords, what works around the function), or None where it can't be called so."""
        signature = _numpy_signature(self.name)
        if signature is None:
            return None
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return None
        values, keywords, around = [], {}, {}
        for number, (name, value) in enumerate(given.arguments.items()):
            parameter = signature.parameters[name]
            if parameter.kind == parameter.VAR_KEYWORD:
                keywords |= value
            elif parameter.kind == parameter.VAR_POSITIONAL:
                values += value
            elif number < len(self.only) and parameter.kind != parameter.KEYWORD_ONLY:
                values.append(value)
            elif name == "out":
                around |= {} if value is None else {"out": value}
            elif (own := name if name in self.named else _RENAMED.get(name)) in self.named:
                if value is not np._NoValue:
                    keywords[own] = value
            elif name in _IGNORED or _is_default(value, parameter):
                continue
            elif name in ("where", "initial", "dtype"):
                around[name] = value
            else:
                return None
        if not keywords.keys() <= self.named or len(values) < len(self.only) and len(values) < self.least:
            return None
        if "where" in around and not (self.is_map() or self.name in (*_NEUTRAL, *_JOIN, *_REDUCED)) or "initial" in around and self.name not in _JOIN:
            return None
        return values, keywords, around

    def is_map(self) -> bool:
        return isinstance(_numpy_function(self.name), np.ufunc)

    def __call__(self, args: tuple, kwargs: dict):
        """The result of a call that isn't the function's own. Where NumPy's function has no such call either, the function
        says what is wrong."""
        args = self.operands(args) if self.takes_operands else args
        if self.fits(args, kwargs) and kwargs.get("out") is None:
            return self.function(*args, **kwargs)
        plan = self.plan(args, kwargs)
        if plan is None:
            unknown = {name: value for name, value in kwargs.items() if name not in self.named}
            if unknown and self.refuse is not None:
                self.refuse(self.name, unknown, self.named)
            if unknown and not self.takes_any:
                name = next(iter(unknown))
                raise ArgumentError(f"{self.function.__qualname__}() got an unexpected keyword argument {name!r}"
                                    f"{suggestion(name, self.named)}")
            return self.function(*args, **kwargs)
        values, keywords, around = plan
        out = around.pop("out", None)
        if isinstance(out, tuple):
            (out,) = out
        if out is not None and not isinstance(out, _tessera.Tensor):
            raise ArgumentError(f"{self.name}: out is {type(out).__name__}, not a Tensor; write array[...] = result.full_tensor()")
        result = self._around(self.operands(tuple(values)), keywords, around, out)
        return result if out is None else written(self.name, out, result)

    def _around(self, values: tuple, keywords: dict, around: dict, out):
        ts = public()
        if (dtype := around.get("dtype")) is not None:
            values = tuple(ts.astype(one, dtype, copy=False) if isinstance(one, _tessera.Tensor) else one for one in values)
        mask = around.get("where")
        if mask is not None and self.is_map():
            result = self.function(*values, **keywords)
            return ts.where(mask, result, ts.zeros_like(result) if out is None else out)
        if mask is None:
            result = self.function(*values, **keywords)
        else:
            result = _REDUCED.get(self.name, _with_neutral)(self, values, keywords, _mask_like(values[0], mask), around.get("initial"))
        if (initial := around.get("initial")) is not None:
            result = getattr(ts, _JOIN[self.name])(result, initial)
        return result


def _mask_like(x, mask):
    ts = public()
    return ts.broadcast_to(as_tensor(mask, x), x.shape)


def _with_neutral(row: Numpy, values, keywords, mask, initial):
    ts = public()
    x, neutral = values[0], _NEUTRAL.get(row.name, initial)
    if neutral is None:
        raise InvalidArgumentError(f"{row.name}: where= needs initial=, which is the result where no element counts")
    return row.function(ts.where(mask, x, np.asarray(neutral, x.dtype)[()]), *values[1:], **keywords)


def _mean(row: Numpy, values, keywords, mask, initial):
    ts = public()
    return ts.sum(values[0], *values[1:], where=mask, **keywords) / ts.count_nonzero(mask, *values[1:], **keywords)


def _variance(row: Numpy, values, keywords, mask, initial):
    ts = public()
    keywords = dict(keywords)
    less = keywords.pop("ddof", None) or keywords.pop("correction", None) or 0
    kept = {**keywords, "keepdims": True}
    away = ts.where(mask, ts.abs(values[0] - _mean(row, values, kept, mask, None)) ** 2, 0.0)
    found = ts.sum(away, **keywords) / (ts.count_nonzero(mask, **keywords) - less)
    return ts.sqrt(found) if row.name == "std" else found


_REDUCED = {"mean": _mean, "var": _variance, "std": _variance}


def written(name: str, out, result):
    """out= of NumPy's functions: the result, written into a tensor, which is given back."""
    if out.shape != result.shape:
        raise InvalidArgumentError(f"{name}: out is {out._spec}, the result has shape {tuple(result.shape)}")
    if not np.can_cast(result.dtype, out.dtype, "same_kind"):
        raise DTypeError(f"{name}: a result of {result.dtype} can't be written into out, {out._spec}")
    out[...] = result
    return out


@functools.cache        # a function of two names stays one function
def called_as_numpy(function, refuse=None):
    """The same function, which takes NumPy's calls, too. `refuse(name, unknown, known)` raises for keywords that it doesn't take."""
    numpy = Numpy(function, refuse)
    known, most, takes_operands, values = numpy.named, numpy.most, numpy.takes_operands, frozenset((list, tuple, np.ndarray))

    @functools.wraps(function)
    def public(*args, **kwargs):
        if len(args) <= most and (not kwargs or kwargs.keys() <= known):
            if not takes_operands:
                return function(*args, **kwargs)
            for value in args:
                if type(value) in values:
                    break
            else:
                if args and isinstance(args[0], _tessera.Tensor) and kwargs.get("out") is None:
                    return function(*args, **kwargs)
        return numpy(args, kwargs)

    public.numpy = numpy
    return public
