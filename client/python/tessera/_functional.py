"""NumPy's functions that call a function, and those that choose among tensors."""

from __future__ import annotations

import builtins

import numpy as np

import _tessera
import _tessera_ops as made
from ._arrangement import beside, bounded
from ._creation import arange, full
from ._errors import ArgumentError, DTypeError, InvalidArgumentError, named
from ._indexing import _indices, nonzero, take
from ._local_map import local_map
from ._mesh import integers
from ._ops import _tensor_of, astype, broadcast_arrays, broadcast_to, concat, moveaxis, reshape, stack
from ._placements import Replicate
from ._calls import axes_of
from ._tensor import MAX_ITERATION


def fromfunction(function, shape, *, dtype=None, device_mesh=None, placements=None, **arguments):
    """fromfunction(function, shape, *, dtype=None, device_mesh=None, placements=None)

    What a function makes of the indices of a shape: it is called once, with a tensor of numbers for each dim.

    function: a function of tensors; other keyword arguments are passed to it. dtype: of the indices, f64 by default."""
    extents = integers(shape, "shape", "fromfunction")
    grids = []
    for d, n in enumerate(extents):
        line = arange(n, dtype=np.float64 if dtype is None else dtype, device_mesh=device_mesh)
        grids.append(broadcast_to(reshape(line, [n if e == d else 1 for e in range(len(extents))]), extents))
    out = function(*grids, **arguments)
    return out if placements is None or not isinstance(out, _tessera.Tensor) else out.redistribute(placements)


def apply_along_axis(function, axis, x, /, *args, **kwargs):
    """apply_along_axis(function, axis, x, /, *args, **kwargs)

    What a function makes of each vector along an axis, in its place. It is called once for each vector, each worker's shards
    by themselves, so it is for few of them: functions that take an axis= do the same at once, and local_map takes whole shards.

    function: of a tensor of one dim; it gives a tensor, of the same shape for each. args, kwargs: are passed to it, too.

    Errors:
    InvalidArgumentError: no vectors, more than 4096 of them, or the function gives no tensor."""
    name = "apply_along_axis"
    x = _tensor_of(name, x)
    (dim,) = axes_of(name, axis, x.ndim)
    rows = moveaxis(x, dim, -1)
    count = int(np.prod(rows.shape[:-1], dtype=object))
    if not 0 < count <= MAX_ITERATION:
        raise InvalidArgumentError(f"{name}: {x._spec} has {count} vectors along dim {dim}; it takes 1 to {MAX_ITERATION}, and local_map whole shards")

    def of_shard(shard):
        flat = reshape(shard, (-1, shard.shape[-1]))
        out = [function(flat[i], *args, **kwargs) for i in range(flat.shape[0])]
        for one in out:
            if not isinstance(one, _tessera.Tensor):
                raise ArgumentError(f"{name}: the function gave {type(one).__name__}, not a Tensor")
        return reshape(stack(out), [*shard.shape[:-1], *out[0].shape])

    # A shard of no vectors has nothing that the function could be called with.
    keeps = [p if p.is_shard() and p.dim % rows.ndim != rows.ndim - 1 else Replicate() for p in rows.placements]
    rows = rows.redistribute(rows.device_mesh, keeps)
    if any(start == stop for position in np.ndindex(*rows.device_mesh.shape) for start, stop in rows.box(position)[:-1]):
        keeps = [Replicate()] * len(keeps)
    out = local_map(of_shard, rows, in_placements=[keeps], out_placements=keeps)
    added = list(range(rows.ndim - 1, out.ndim))
    return moveaxis(out, added, [dim + i for i in range(len(added))]) if added else out


def select(condlist, choicelist, default=0):
    """select(condlist, choicelist, default=0)

    The elements of the first of several tensors whose condition is true, else a default.

    condlist: tensors of bools. choicelist: as many tensors or numbers. default: where no condition is true."""
    conditions, choices = list(condlist), list(choicelist)
    if len(conditions) != len(choices) or not conditions:
        raise InvalidArgumentError(f"select: {len(conditions)} conditions for {len(choices)} choices; as many, and at least one")
    for i, condition in enumerate(conditions):
        if getattr(condition, "dtype", np.asarray(condition).dtype if not isinstance(condition, _tessera.Tensor) else None) != np.bool_:
            raise DTypeError(f"select: condition {i} is {getattr(condition, '_spec', condition)!r}, not bools")
    dtype = _dtype_of([*choices, default])
    out = default
    for condition, choice in zip(reversed(conditions), reversed(choices)):
        out = made.where(condition, choice, out)
    return astype(out, dtype) if out.dtype != dtype else out


def _dtype_of(values):
    """NumPy's dtype of tensors and numbers; weak numbers stay so."""
    return np.result_type(*(v.dtype if isinstance(v, _tessera.Tensor) else v for v in values))


def choose(x, choices, /, mode="raise"):
    """choose(x, choices, /, mode='raise')

    Of several tensors the element of the one whose number x has there.

    x: a tensor of integers. choices: tensors or numbers, which are broadcast. mode: 'raise' waits for whether there are
    so many; 'wrap' counts on from the first, 'clip' takes the last."""
    x = _tensor_of("choose", x)
    given = [beside("choose", x, choice) for choice in choices]
    if not given:
        raise InvalidArgumentError("choose: choices is empty")
    number = bounded("choose", _indices("choose", x, x), len(given), mode, f"{len(given)} choices")
    number, *given = broadcast_arrays(number, *given)
    both = stack(given)
    return reshape(made.take_along_axis(both, reshape(number, (1, *number.shape)), axis=0), number.shape)


def piecewise(x, condlist, funclist, /, *args, **kwargs):
    """piecewise(x, condlist, funclist, /, *args, **kwargs)

    What the function of the last condition that is true gives of each element; in x's dtype. Functions of tensors are called
    once, with all of x.

    condlist: tensors of bools. funclist: as many functions or numbers, and one more for where no condition is true, by
    default 0. args, kwargs: are passed to the functions, too."""
    x = _tensor_of("piecewise", x)
    conditions = list(condlist) if isinstance(condlist, (list, tuple)) else [condlist]
    functions = list(funclist)
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise InvalidArgumentError(f"piecewise: {len(functions)} functions for {len(conditions)} conditions; as many, or one more")
    out = functions.pop() if len(functions) > len(conditions) else 0
    value_of = lambda f: f(x, *args, **kwargs) if callable(f) else f     # noqa: E731
    out = astype(broadcast_to(beside("piecewise", x, value_of(out)), x.shape), x.dtype)
    for condition, function in zip(conditions, functions):
        value = beside("piecewise", x, value_of(function))
        out = made.where(beside("piecewise", x, condition), astype(value, x.dtype), out)
    return out


def compress(condition, x, /, axis=None):
    """compress(condition, x, /, axis=None)

    The slices of x along an axis, by default the elements of the flattened tensor, where a condition is true. Returns at
    once; the shape waits for their number.

    condition: a vector of bools, no longer than the axis."""
    x = _tensor_of("compress", x)
    condition = beside("compress", x, condition)
    if condition.ndim != 1:
        raise InvalidArgumentError(f"compress: condition is {condition._spec}, no vector")
    y, dim = (reshape(x, (-1,)), 0) if axis is None else (x, axes_of("compress", axis, x.ndim)[0])
    missing = y.shape[dim] - condition.shape[0]
    if missing < 0 or not y.shape[dim]:     # an index that is outside tells of itself
        return take(y, nonzero(condition)[0], axis=dim)
    mask = condition if condition.dtype == np.bool_ else condition != 0
    if missing:
        mask = concat([mask, full((missing,), False, dtype=np.bool_, device_mesh=mask.device_mesh)])
    with named("compress"):
        return _tessera.filter(y, mask, dim)


def adaptive_avg_pool2d(x, /, output_size):
    """adaptive_avg_pool2d(x, /, output_size)

    The means of as many windows of the last two dims as are wanted, which lie side by side or overlap by an element, as
    torch has them.

    x: (N, C, H, W) or (C, H, W), of floats. output_size: rows and columns of the result, or one number for both; None keeps
    what x has."""
    x = _tensor_of("adaptive_avg_pool2d", x)
    if x.ndim not in (3, 4) or x.dtype.kind not in "f":
        raise InvalidArgumentError(f"adaptive_avg_pool2d: takes floats of 4 dims, or 3 without a batch: x is {x._spec}")
    wanted = [output_size] * 2 if output_size is None or np.ndim(output_size) == 0 else list(output_size)
    if len(wanted) != 2:
        raise InvalidArgumentError(f"adaptive_avg_pool2d: output_size is {output_size!r}; it is a number, or two")
    for dim, count in zip((x.ndim - 2, x.ndim - 1), wanted):
        if count is not None:
            x = _means(x, dim, integers(count, "output_size", "adaptive_avg_pool2d")[0])
    return x


def _means(x, dim: int, count: int):
    """The means along a dim of windows [floor(i n / count), ceil((i + 1) n / count)): elements by their windows."""
    n = x.shape[dim]
    if count < 0 or n == 0:
        raise InvalidArgumentError(f"adaptive_avg_pool2d: {count} windows of dim {dim} of {x._spec}")
    numbers = np.arange(count, dtype=np.int64)
    starts, stops = numbers * n // builtins.max(count, 1), -(-(numbers + 1) * n // builtins.max(count, 1))
    longest = int((stops - starts).max(initial=1))
    places = starts[:, None] + np.arange(longest)
    is_in = places < stops[:, None]
    shown = take(x, np.minimum(places, n - 1), axis=dim)
    shape = [count if d == dim else longest if d == dim + 1 else 1 for d in range(x.ndim + 1)]
    kept = made.where(beside("adaptive_avg_pool2d", x, is_in.reshape(shape)), shown, 0)
    lengths = (stops - starts).astype(x.dtype).reshape([count if d == dim else 1 for d in range(x.ndim)])
    return made.sum(kept, axis=dim + 1) / beside("adaptive_avg_pool2d", x, lengths)
