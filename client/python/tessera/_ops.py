"""The ops as functions, array-API names, and as methods of Tensor."""

from __future__ import annotations

import builtins

import _tessera
from ._dtypes import code_of
from ._errors import ArgumentError, InvalidArgumentError
from ._mesh import integers
from ._tensor import axes_of, call, no_dim, redistribute_all

_ROWS = {row[1]: row for row in _tessera.catalog()}


def _document(function, name: str):
    _, _, _, _, signature, doc = _ROWS[name]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{signature}\n\n{doc}"
    function.__module__ = "tessera"
    return function


def _binary(name: str):
    def function(x1, x2, /, **unknown):
        no_dim(name, unknown)
        return call(name, x1, x2)
    return _document(function, name)


def _unary(name: str):
    def function(x, /, **unknown):
        no_dim(name, unknown)
        return call(name, x)
    return _document(function, name)


add, subtract, multiply, divide = map(_binary, ("add", "subtract", "multiply", "divide"))
maximum, minimum, matmul = map(_binary, ("maximum", "minimum", "matmul"))
equal, not_equal, less, less_equal, greater, greater_equal = map(
    _binary, ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
negative, exp, sqrt, relu = map(_unary, ("negative", "exp", "sqrt", "relu"))


def _tensor_of(name: str, x):
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"{name}: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    return x


def _check_reduction(name: str, x, out, unknown: dict):
    """Of a reduction: its tensor. NumPy's functions call the method of that name, with out=None: np.sum(x) is x.sum()."""
    no_dim(name, unknown)
    if out is not None:
        raise ArgumentError(f"{name}: takes no out=: tensors are immutable, use the result")
    return _tensor_of(name, x)


def _reduction(name: str):
    takes_dtype = name == "sum"

    def function(x, /, axis=None, *, dtype=None, out=None, keepdims=False, **unknown):
        x = _check_reduction(name, x, out, unknown)
        if dtype is not None and not takes_dtype:
            raise ArgumentError(f"{name}: takes no dtype")
        attributes = {} if dtype is None else {"dtype": code_of(dtype, name)}
        return _tessera.call(_ROWS[name][0], (x,), dims=axes_of(name, axis, x.ndim), keepdims=builtins.bool(keepdims),
                             **attributes)
    return _document(function, name)


sum, mean, max, min = map(_reduction, ("sum", "mean", "max", "min"))  # noqa: A001 - the array API's names


def _arg_reduction(name: str):
    def function(x, /, axis=None, *, out=None, keepdims=False, **unknown):
        x = _check_reduction(name, x, out, unknown)
        if axis is None:
            ndim = x.ndim
            if ndim != 1:
                x = reshape(x.redistribute(placements=[_replicate()] * len(x._placements)), (-1,))
            out = _tessera.call(_ROWS[name][0], (x,), dims=[0], keepdims=False)
            return reshape(out, (1,) * ndim) if keepdims else out
        (dim,) = axes_of(name, axis, x.ndim) if not isinstance(axis, (tuple, list)) else (None,)
        if dim is None:
            raise ArgumentError(f"{name}: axis is {axis!r}; it takes one axis or None")
        return _tessera.call(_ROWS[name][0], (x,), dims=[dim], keepdims=builtins.bool(keepdims))
    return _document(function, name)


def _replicate():
    from ._placements import Replicate
    return Replicate()


argmin, argmax = map(_arg_reduction, ("argmin", "argmax"))


def where(condition, x1, x2, /):
    return call("where", condition, x1, x2)


_document(where, "where")


def astype(x, dtype, /, *, copy=True, device=None):
    x = _tensor_of("astype", x)
    code = code_of(dtype, "astype")
    return x._copy() if code == x._dtype else _tessera.call(_ROWS["astype"][0], (x,), dtype=code)


_document(astype, "astype")


def permute_dims(x, /, axes):
    from ._errors import IndexOutOfRangeError
    x = _tensor_of("permute_dims", x)
    order = integers(axes, "axes", "permute_dims")
    for axis in order:
        if not -x.ndim <= axis < x.ndim:
            raise IndexOutOfRangeError(f"permute_dims: axis {axis} is out of range for {x.ndim} dims")
    order = [axis % x.ndim for axis in order]
    if sorted(order) != list(range(x.ndim)):
        raise InvalidArgumentError(f"permute_dims: axes {axes} are no permutation of the {x.ndim} dims of {x._spec}")
    return _tessera.call(_ROWS["permute_dims"][0], (x,), dims=order)


_document(permute_dims, "permute_dims")


def transpose(x, /, axes=None):
    """Permutes the dims, by default reverses them; copies nothing."""
    return permute_dims(x, range(x.ndim - 1, -1, -1) if axes is None else axes)


def matrix_transpose(x, /):
    """Swaps the last two dims; copies nothing."""
    return _tensor_of("matrix_transpose", x).mT


def reshape(x, /, shape, *, copy=None):
    x = _tensor_of("reshape", x)
    extents = integers(shape, "shape", "reshape")
    if extents.count(-1) > 1:
        raise InvalidArgumentError(f"reshape: only one extent may be -1, not {tuple(extents)}")
    if -1 in extents:
        rest = 1
        for n in extents:
            rest *= 1 if n == -1 else n
        if rest <= 0 or x.size % rest:
            raise InvalidArgumentError(f"reshape: {x._spec} with {x.size} elements does not fit {tuple(extents)}")
        extents[extents.index(-1)] = x.size // rest
    return _tessera.call(_ROWS["reshape"][0], (x,), shape=extents)


_document(reshape, "reshape")


def expand_dims(x, /, *, axis=0):
    """A new dim of extent 1 at `axis`; of a tuple, at each of them, counted in the result."""
    x = _tensor_of("expand_dims", x)
    axes = integers(axis, "axis", "expand_dims")
    ndim = x.ndim + len(axes)
    dims = axes_of("expand_dims", axes, ndim)
    return x[tuple(None if d in dims else slice(None) for d in range(ndim))]


def squeeze(x, /, axis=None):
    """Drops dims of extent 1: those of `axis`, by default all that there are."""
    x = _tensor_of("squeeze", x)
    dims = [d for d, n in enumerate(x.shape) if n == 1] if axis is None else axes_of("squeeze", axis, x.ndim)
    for dim in dims:
        if x.shape[dim] != 1:
            raise InvalidArgumentError(f"squeeze: dim {dim} of {x._spec} has extent {x.shape[dim]}, not 1")
    return x[tuple(0 if d in dims else slice(None) for d in range(x.ndim))]


def any(x, /, *, axis=None, out=None, keepdims=False, **unknown):  # noqa: A001
    """Whether any element is true along the axes."""
    x = _check_reduction("any", x, out, unknown) != 0
    if x.size == 0:     # of no elements there is a sum and no maximum
        return sum(x, axis=axis, keepdims=keepdims) != 0
    return max(astype(x, "i32"), axis=axis, keepdims=keepdims) != 0


def all(x, /, *, axis=None, out=None, keepdims=False, **unknown):  # noqa: A001
    """Whether all elements are true along the axes."""
    x = _check_reduction("all", x, out, unknown) != 0
    if x.size == 0:
        return sum(x, axis=axis, keepdims=keepdims) == 0
    return min(astype(x, "i32"), axis=axis, keepdims=keepdims) != 0


def redistribute(x, /, device_mesh=None, placements=None, *, dtype=None, async_op=False, relabel=False):
    if isinstance(x, (list, tuple)):
        return redistribute_all(x, device_mesh, placements, dtype, relabel)
    return _tensor_of("redistribute", x).redistribute(device_mesh, placements, dtype=dtype, relabel=relabel)


_document(redistribute, "redistribute")
redistribute.__doc__ += """

x: a tensor; or a list of tensors, which gives the list of results. They move together: one op, and one message for
each pair of workers where redistribute of one tensor after the other has one for each tensor. placements: one list
for all, or a list of lists, one for each tensor. The tensors may be on different meshes; with device_mesh all are
brought there. If one of them fails, all results do.

>>> y, z = ts.redistribute([a, b], placements=[ts.Shard(1)])
>>> y, z = ts.redistribute([a, b], placements=[[ts.Shard(1)], [ts.Replicate()]])
>>> print(ts.explain(ts.redistribute, [a, b], placements=[ts.Shard(1)]))

dtype: converted on the way, on the side with fewer bytes. relabel: of one tensor, the workers in the order that moves
least."""

sub, mul, div, neg = subtract, multiply, divide, negative

_METHODS = ("sum mean max min argmin argmax astype reshape any all exp sqrt relu "
            "add subtract multiply divide maximum minimum equal squeeze expand_dims").split()


def _reshape_method(self, *shape, copy=None):
    return reshape(self, shape[0] if len(shape) == 1 else shape, copy=copy)


def _transpose_method(self, *axes):
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]
    return transpose(self, axes or None)


def attach_methods() -> None:
    for name in _METHODS:
        setattr(_tessera.Tensor, name, globals()[name])
    for name, method in (("reshape", _reshape_method), ("transpose", _transpose_method)):
        method.__doc__, method.__name__, method.__qualname__ = globals()[name].__doc__, name, f"Tensor.{name}"
        setattr(_tessera.Tensor, name, method)


attach_methods()
