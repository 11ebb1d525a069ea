"""The ops as functions, array-API names, and as methods of Tensor."""

from __future__ import annotations

import builtins
import inspect
import operator

import numpy as np

import _tessera
import _tessera_ops as made     # the functions that are made from the catalog
from ._dtypes import code_of, numpy_of
from ._errors import ArgumentError, IndexOutOfRangeError, InvalidArgumentError
from ._mesh import integers
from ._calls import as_operand, axes_of, no_dim
from ._filled import filled
from ._redistribution import redistribute_all
from ._session import distribute, session_of

_ROWS = {row[1]: row for row in _tessera.catalog()}


def _document(function, name: str):
    _, _, _, _, signature, doc = _ROWS[name]
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{signature}\n\n{doc}"
    function.__module__ = "tessera"
    return function


def _tensor_of(name: str, x):
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"{name}: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    return x


def _check_reduction(name: str, x, out, unknown: dict):
    """The tensor of a reduction. NumPy's functions call the method of that name, with out=None: np.sum(x) is x.sum()."""
    no_dim(name, unknown, ("axis", "keepdims"))
    if out is not None:
        raise ArgumentError(f"{name}: takes no out=: use the result, or write it into a tensor: y[...] = result")
    return _tensor_of(name, x)


def _arg_reduction(name: str):
    def function(x, /, axis=None, *, out=None, keepdims=False, **unknown):
        x = _check_reduction(name, x, out, unknown)
        if axis is None:
            if x.ndim == 0:
                x = reshape(x, (1,))
                keepdims = False
            return _tessera.call(_ROWS[name][0], (x,), dims=list(range(x.ndim)), keepdims=builtins.bool(keepdims))
        (dim,) = axes_of(name, axis, x.ndim) if not isinstance(axis, (tuple, list)) else (None,)
        if dim is None:
            raise ArgumentError(f"{name}: axis is {axis!r}; it takes one axis or None")
        return _tessera.call(_ROWS[name][0], (x,), dims=[dim], keepdims=builtins.bool(keepdims))
    return _document(function, name)


argmin, argmax = map(_arg_reduction, ("argmin", "argmax"))


def _spread(name: str):
    """Takes NumPy's ddof, too, which is the array API's correction; NumPy's functions call the method with all that they have."""
    row = getattr(made, name)

    def function(x, /, axis=None, *, correction=0.0, keepdims=False, ddof=None, dtype=None, out=None, **unknown):
        x = _check_reduction(name, x, out, unknown)
        if dtype is not None:
            raise ArgumentError(f"{name}: takes no dtype=; write ts.{name}(ts.astype(x, dtype))")
        if ddof is not None and correction != 0:
            raise ArgumentError(f"{name}: ddof={ddof} and correction={correction} are given; ddof is NumPy's name of correction")
        return row(x, axis=axis, correction=float(correction if ddof is None else ddof), keepdims=builtins.bool(keepdims))
    function._accepts, function.__signature__ = inspect.signature(function), inspect.signature(row)
    return _document(function, name)


std, var, nanstd, nanvar = map(_spread, ("std", "var", "nanstd", "nanvar"))


def astype(x, /, dtype, *, copy=True, device=None):
    x = _tensor_of("astype", x)
    code = code_of(dtype, "astype")
    if device is not None and device != x.device_mesh:
        x = x.to_device(device)
    if code != x._dtype:
        return _tessera.call(_ROWS["astype"][0], (x,), dtype=code)
    return x._copy() if copy else x


_document(astype, "astype")


def copy(x, /):
    """copy(x, /)

    Gives a tensor with the same elements, which may be written into: x keeps what it has. Copies nothing before that."""
    return _tensor_of("copy", x)._copy()


def permute_dims(x, /, axes):
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


def relabel(x, /, shape, placements):
    x = _tensor_of("relabel", x)
    return _tessera.call(_ROWS["relabel"][0], (x,), shape=integers(shape, "shape", "relabel"),
                         placements=x.device_mesh._placements(placements, "relabel"))


_document(relabel, "relabel")


def reshape(x, /, shape, *more, copy=None, order="C"):
    x = _tensor_of("reshape", x)
    if order == "F":        # the elements in the order in which the first dim runs fastest
        turned = transpose(reshape(transpose(x), integers((shape, *more) if more else shape, "shape", "reshape")[::-1]))
        return turned
    if order not in ("C", "A", None):
        raise InvalidArgumentError(f"reshape: order is {order!r}; it is C, F or A")
    extents = integers((shape, *more) if more else shape, "shape", "reshape")
    if extents.count(-1) > 1:
        raise InvalidArgumentError(f"reshape: only one extent may be -1, not {tuple(extents)}")
    return _tessera.reshape(x, extents)


_document(reshape, "reshape")


def expand_dims(x, /, axis=0):
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


def clip(x, /, min=None, max=None):  # noqa: A002 - the array API's names
    """clip(x, /, min=None, max=None)

    Gives each element, or the bound that it is beyond; NaN propagates. Bounds are numbers or tensors."""
    x = _tensor_of("clip", x)
    if min is None and max is None:
        return x._copy()
    mode = "max" if min is None else "min" if max is None else ""
    bounds = [as_operand("clip", x, bound) for bound in (min, max) if bound is not None]
    return _tessera.call(_ROWS["clip"][0], (x, *bounds), mode=mode)


def _tensors_of(name: str, arrays) -> list:
    # A tensor is the list of its slices, as for NumPy.
    arrays = list(arrays) if isinstance(arrays, (list, tuple, _tessera.Tensor)) else [arrays]
    if not arrays:
        raise InvalidArgumentError(f"{name}: the list of tensors is empty")
    tensor = next((array for array in arrays if isinstance(array, _tessera.Tensor)), None)
    if tensor is None:
        raise ArgumentError(f"{name}: needs a list with a Tensor in it, not of {type(arrays[0]).__name__}")
    return [_beside(name, tensor, array) for array in arrays]


def _beside(name: str, tensor, value):
    """A value as a tensor on the tensor's mesh; a number is one without dims."""
    value = value if isinstance(value, _tessera.Tensor) else as_operand(name, tensor, value)
    if isinstance(value, _tessera.Tensor):
        return value
    dtype, number = value if isinstance(value, tuple) else (None, value)    # (dtype number, number): a NumPy scalar
    return filled("full", (), number, None if dtype is None else numpy_of(dtype), device_mesh=tensor.device_mesh)


def concat(arrays, /, axis=0):
    """concat(arrays, /, axis=0)

    Joins tensors along an existing axis; with axis=None flattened."""
    arrays = _tensors_of("concat", arrays)
    if axis is None:
        arrays, axis = [reshape(array, (-1,)) for array in arrays], 0
    return _in_parts("concat", arrays, axes_of("concat", axis, arrays[0].ndim))


def stack(arrays, /, axis=0):
    """stack(arrays, /, axis=0)

    Joins tensors along a new axis."""
    arrays = _tensors_of("stack", arrays)
    dims = axes_of("stack", axis, arrays[0].ndim + 1)
    if len(arrays) > MAX_OPERANDS:
        return concat([stack(arrays[i:i + MAX_OPERANDS], axis=axis) for i in range(0, len(arrays), MAX_OPERANDS)], axis=axis)
    return _tessera.call(_ROWS["stack"][0], tuple(arrays), dims=dims)


def _in_parts(name: str, arrays: list, dims: list):
    while len(arrays) > MAX_OPERANDS:
        arrays = [_tessera.call(_ROWS[name][0], tuple(arrays[i:i + MAX_OPERANDS]), dims=dims)
                  for i in range(0, len(arrays), MAX_OPERANDS)]
    return _tessera.call(_ROWS[name][0], tuple(arrays), dims=dims)


def roll(x, /, shift, axis=None):
    """roll(x, /, shift, axis=None)

    Moves elements along the axes, in a circle; without an axis those of the flattened tensor."""
    x = _tensor_of("roll", x)
    shifts = integers(shift, "shift", "roll")
    dims = [] if axis is None else [one % x.ndim for one in _checked_axes("roll", axis, x.ndim)]
    return _tessera.call(_ROWS["roll"][0], (x,), dims=dims, shift=shifts)


def _checked_axes(name: str, axis, ndim: int) -> list[int]:
    axes = integers(axis, "axis", name)
    for one in axes:
        axes_of(name, one, ndim)
    return axes


def repeat(x, repeats, /, axis=None):
    """repeat(x, repeats, /, axis=None)

    Repeats each element along an axis, by default of the flattened tensor; repeats is a number, or one for each element."""
    x = _tensor_of("repeat", x)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    (dim,) = axes_of("repeat", axis, x.ndim)
    times = integers(repeats if not isinstance(repeats, _tessera.Tensor) else repeats.full_tensor(), "repeats", "repeat")
    if len(times) == 1:
        return _tessera.call(_ROWS["repeat"][0], (x,), dims=[dim], repeats=times)
    if len(times) != x.shape[dim]:
        raise InvalidArgumentError(f"repeat: {len(times)} repeats for {x.shape[dim]} elements of dim {dim} of {x._spec}")
    where = distribute(session_of(x), np.repeat(np.arange(len(times)), times), x.device_mesh, None)
    return _tessera.call(_ROWS["take_along_axis"][0], (x, where), dims=[dim])


def _pairs(name: str, values, ndim: int, kinds: str) -> list:
    """A pair for each axis, of one value, of (before, after), or of such pairs, as NumPy broadcasts them."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in kinds:
            raise ValueError
        return np.broadcast_to(array, (ndim, 2)).tolist()
    except ValueError:
        raise InvalidArgumentError(f"pad: {name} is {values!r}; it is a number, (before, after), or a pair for each of {ndim} dims") from None


def pad(x, pad_width, /, mode="constant", *, constant_values=0, end_values=0, stat_length=None):
    """pad(x, pad_width, /, mode='constant', *, constant_values=0, end_values=0, stat_length=None)

    Adds elements before and after each axis: pad_width is a number, (before, after), or a pair for each axis, and so are
    constant_values, end_values and stat_length. mode is constant, edge, wrap, reflect, symmetric, linear_ramp (to end_values), mean,
    maximum, minimum or median (of stat_length elements at the edge, by default of all). A corner has what the later axis adds."""
    x = _tensor_of("pad", x)
    widths = _pairs("pad_width", pad_width, x.ndim, "iu")
    if mode in MADE_PADS:
        lengths = None if stat_length is None else _pairs("stat_length", stat_length, x.ndim, "iu")
        return MADE_PADS[mode](x, widths, mode, _pairs("end_values", end_values, x.ndim, "biufc"), lengths)
    if mode != "constant":
        return _padded(x, widths, mode, [])
    values = _pairs("constant_values", constant_values, x.ndim, "biufc")
    each = [value for pair in values for value in pair] or [0]
    if each.count(each[0]) == len(each):
        return _padded(x, widths, mode, each[:1])
    for dim, (pair, added) in enumerate(zip(widths, values)):
        for side in (0, 1):
            if pair[side]:
                one = [[0, 0] for _ in widths]
                one[dim][side] = pair[side]
                x = _padded(x, one, mode, [added[side]])
    return x


MADE_PADS = {}      # mode -> function: of those that are an arrangement of other ops (_pads.py)


def _padded(x, widths: list, mode: str, scalars: list):
    return _tessera.call(_ROWS["pad"][0], (x,), pad_width=[width for pair in widths for width in pair], mode=mode, scalars=scalars)


def moveaxis(x, source, destination, /):
    """moveaxis(x, source, destination, /)

    Moves axes to other places; the others keep their order. Copies nothing."""
    x = _tensor_of("moveaxis", x)
    sources = [a % x.ndim for a in _checked_axes("moveaxis", source, x.ndim)]
    targets = [a % x.ndim for a in _checked_axes("moveaxis", destination, x.ndim)]
    if len(sources) != len(targets):
        raise InvalidArgumentError(f"moveaxis: {len(sources)} axes to {len(targets)} places")
    order = [d for d in range(x.ndim) if d not in sources]
    for target, axis in sorted(zip(targets, sources)):
        order.insert(target, axis)
    return permute_dims(x, order)


def swapaxes(x, axis1, axis2, /):
    """Exchanges two axes; copies nothing."""
    x = _tensor_of("swapaxes", x)
    a, b = (axes_of("swapaxes", axis, x.ndim)[0] for axis in (axis1, axis2))
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


def broadcast_to(x, /, shape):
    """broadcast_to(x, /, shape)

    Broadcasts a tensor to a shape; copies nothing."""
    return _tessera.call(_ROWS["broadcast_to"][0], (_tensor_of("broadcast_to", x),), shape=integers(shape, "shape", "broadcast_to"))


def broadcast_arrays(*arrays):
    """Broadcasts tensors against each other; a list. One of the common shape is itself; any other is a new tensor, which is written alone."""
    arrays = _tensors_of("broadcast_arrays", list(arrays))
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [array if array.shape == shape else broadcast_to(array, shape).copy() for array in arrays]


def broadcast_shapes(*shapes):
    """The shape that tensors of these shapes have together."""
    try:
        return tuple(np.broadcast_shapes(*(tuple(integers(shape, "shape", "broadcast_shapes")) for shape in shapes)))
    except ValueError:
        shown = ", ".join(str(tuple(shape) if isinstance(shape, (tuple, list)) else shape) for shape in shapes)
        raise InvalidArgumentError(f"broadcast_shapes: {shown} don't broadcast") from None


def _slice_along(x, dim: int, part):
    """A number as a slice of x."""
    part = _beside("diff", x, part)
    return broadcast_to(part, [1 if d == dim else n for d, n in enumerate(x.shape)]) if part.ndim == 0 else part


def diff(x, /, n=1, axis=-1, prepend=None, append=None):
    """diff(x, /, n=1, axis=-1, prepend=None, append=None)

    Calculates the difference of each element and the one before it along an axis, n times. prepend and append stand before
    and behind x along the axis."""
    x = _tensor_of("diff", x)
    (dim,) = axes_of("diff", axis, x.ndim)
    parts = [_slice_along(x, dim, part) for part in (prepend, x, append) if part is not None]
    return made.diff(concat(parts, axis=dim) if len(parts) > 1 else x, axis=dim, n=n)


def meshgrid(*arrays, indexing="xy", sparse=False, copy=True):
    """Coordinate tensors of coordinate vectors; a list. sparse: with extent 1 in the dims of the others."""
    if indexing not in ("xy", "ij"):
        raise InvalidArgumentError(f"meshgrid: indexing is {indexing!r}; it is 'xy' or 'ij'")
    if not arrays:
        return []
    arrays = _tensors_of("meshgrid", list(arrays))
    for array in arrays:
        if array.ndim > 1:
            raise InvalidArgumentError(f"meshgrid: {array._spec} has {array.ndim} dims, not 1")
    swap = indexing == "xy" and len(arrays) > 1
    shape = [array.size for array in arrays]
    if swap:
        shape[0], shape[1] = shape[1], shape[0]
    out = []
    for i, array in enumerate(arrays):
        dim = 1 - i if swap and i < 2 else i
        one = reshape(array, [array.size if d == dim else 1 for d in range(len(arrays))])
        out.append((one if sparse else broadcast_to(one, shape))._copy())
    return out


def unstack(x, /, *, axis=0):
    """unstack(x, /, *, axis=0)

    The slices along an axis, without it: a tuple."""
    slices = made.unstack(_tensor_of("unstack", x), axis=axis)
    return (slices,) if isinstance(slices, _tessera.Tensor) else tuple(slices)


def round(x, /, decimals=0):  # noqa: A001 - the array API's name
    x = _tensor_of("round", x)
    try:
        decimals = operator.index(decimals)
    except TypeError:
        raise ArgumentError(f"round: decimals is {decimals!r}, not an integer") from None
    if decimals == 0 or (x.dtype.kind in "iub" and decimals > 0):
        return made.round(x)
    if builtins.abs(decimals) > 308:
        raise InvalidArgumentError(f"round: decimals is {decimals}; from -308 to 308")
    scale = 10 ** builtins.abs(decimals)
    if x.dtype.kind in "iu":
        return astype(made.round(astype(x, np.float64) / scale) * scale, x.dtype)
    return made.round(x * float(scale)) / float(scale) if decimals > 0 else made.round(x / float(scale)) * float(scale)


round._accepts, round.__signature__ = inspect.signature(round), inspect.signature(made.round)
_document(round, "round")
round.__doc__ += " With decimals=, as NumPy's, to so many behind the point, or before it where that is negative."


def split(x, indices_or_sections, /, axis=0):
    """The pieces of a tensor along an axis: so many equal ones, or cut before the indices."""
    x = _tensor_of("split", x)
    (dim,) = axes_of("split", axis, x.ndim)
    extent = x.shape[dim]
    if isinstance(indices_or_sections, int):
        if indices_or_sections < 1 or extent % indices_or_sections:
            raise InvalidArgumentError(f"split: dim {dim} of {x._spec} can't be cut into {indices_or_sections} equal pieces")
        size = extent // indices_or_sections
        cuts = list(range(size, extent, size)) if size else [0] * (indices_or_sections - 1)
    else:
        cuts = integers(indices_or_sections, "indices", "split")
    whole = (slice(None),) * dim
    return [x[whole + (slice(a, b),)] for a, b in zip([0] + cuts, cuts + [extent])]


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

concatenate = concat
MAX_OPERANDS = 64       # docs/limits.md: max_operands

_METHODS = ("sum mean max min prod any all std var argmin argmax astype reshape exp sqrt relu log log1p expm1 sin cos tan "
            "tanh sigmoid abs sign floor ceil trunc round square clip softmax log_softmax logsumexp count_nonzero "
            "add subtract multiply divide maximum minimum equal squeeze expand_dims flip roll repeat tile swapaxes "
            "tril triu isnan isinf isfinite conj").split()


def _reshape_method(self, *shape, copy=None, order="C"):
    return reshape(self, shape[0] if len(shape) == 1 else shape, copy=copy, order=order)


def _transpose_method(self, *axes):
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))):
        axes = axes[0]
    return transpose(self, axes or None)


def ravel(x, /, order="C"):
    """ravel(x, /, order='C')

    All elements in one dim, in row-major order, or with order='F' in column-major order."""
    return reshape(_tensor_of("ravel", x), (-1,) if x.size else (0,), order="C" if order == "K" else order)


def flatten(x, /, order="C"):
    """All elements in one dim, in row-major order, or with order='F' in column-major order; what is written into it leaves x as
    it is."""
    return ravel(x, order)._copy()


def _ravel_method(self, order="C"):
    return ravel(self, order)


def _flatten_method(self, order="C"):
    return flatten(self, order)


def attach_methods() -> None:
    for name in _METHODS:
        setattr(_tessera.Tensor, name, globals().get(name) or getattr(made, name))
    for name, method in (("reshape", _reshape_method), ("transpose", _transpose_method), ("flatten", _flatten_method),
                         ("ravel", _ravel_method)):
        method.__doc__, method.__name__, method.__qualname__ = globals()[name].__doc__, name, f"Tensor.{name}"
        setattr(_tessera.Tensor, name, method)


attach_methods()
