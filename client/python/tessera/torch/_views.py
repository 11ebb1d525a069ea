"""Views: a shard moves with the leading dim of its group, else the tensor is gathered, which the service reports."""

from __future__ import annotations

import math

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._ops import MAX_OPERANDS
from .._placements import REPLICATE
from .._catalog import OPS
from ._cell import Diagonal, Expand, Index, Permute, Reshape, Strided
from ._dtypes import CODES
from ._operands import cast, operand
from ._placing import full_like, settled
from ._table import row, run
from ._tensor import Tensor, alias, handle_of, wrap, wrap_view

_call = _tessera.call
_CONCAT = OPS["concat"]
_SLICE, _INTEGER, _NEW = 0, 1, 2


def _dim(op: str, x, dim: int, extra: int = 0) -> int:
    ndim = x.ndim + extra
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(f"{op}: Dimension out of range (expected to be in range of [{-max(ndim, 1)}, {max(ndim, 1) - 1}], "
                         f"but got {dim}): {x!r}")
    return dim % max(ndim, 1)


def _whole(x) -> list:
    return [(_SLICE, 0, n, 1) for n in x.shape]


def _show(x, step, strides, offset=None) -> Tensor:
    if offset is None:
        offset = 0 if x._view is None else x.storage_offset()
    return wrap_view(x, step.take(handle_of(x)), step, strides, offset)


# ---- shapes ------------------------------------------------------------------------------------------------

def _inferred(op: str, x, shape) -> list[int]:
    shape = list(shape)
    if -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        if shape.count(-1) > 1 or (x.numel() % rest if rest else True):
            raise RuntimeError(f"{op}: shape '{shape}' is invalid for input of size {x.numel()}: {x!r}")
        shape[shape.index(-1)] = x.numel() // rest
    if math.prod(shape) != x.numel():
        raise RuntimeError(f"{op}: shape '{shape}' is invalid for input of size {x.numel()}: {x!r}")
    return shape


@row("view.default", "_unsafe_view.default", how="view")
def view(x, shape):
    shape = _inferred("view", x, shape)
    if x.is_contiguous():
        strides = None
    else:       # torch says whether this is a view, and which
        strides = torch.empty_strided(x.shape, x.stride(), device="meta").view(shape).stride()
    return _show(x, Reshape(shape), strides)


@row("_reshape_alias.default", how="view")
def reshape_alias(x, shape, strides):
    return _show(x, Reshape(_inferred("reshape", x, shape)), strides)


@row("unsqueeze.default", how="view")
def unsqueeze(x, dim):
    dim = _dim("unsqueeze", x, dim, 1)
    strides = list(x.stride())
    strides.insert(dim, x.shape[dim] * strides[dim] if dim < x.ndim else 1)
    items = _whole(x)
    items.insert(dim, (_NEW, 0, 1, 1))
    return _show(x, Index(items), strides)


def _squeezed(x, dims):
    dims = {d for d in dims if x.ndim and x.shape[d] == 1}
    if not dims:
        return alias(x)
    items = [(_INTEGER, 0, 1, 1) if d in dims else item for d, item in enumerate(_whole(x))]
    return _show(x, Index(items), [s for d, s in enumerate(x.stride()) if d not in dims])


row("squeeze.default", how="view")(lambda x: _squeezed(x, range(x.ndim)))
row("squeeze.dim", how="view")(lambda x, dim: _squeezed(x, [_dim("squeeze", x, dim)]))
row("squeeze.dims", how="view")(lambda x, dims: _squeezed(x, [_dim("squeeze", x, dim) for dim in dims]))


@row("expand.default", how="view")
def expand(x, shape, *, implicit=False):
    extra = len(shape) - x.ndim
    if extra < 0:
        raise RuntimeError(f"expand: the number of sizes provided ({len(shape)}) must be at least the number of dims of {x!r}")
    shape = [x.shape[d - extra] if n == -1 else int(n) for d, n in enumerate(shape)]
    for d, n in enumerate(x.shape):
        if n not in (1, shape[d + extra]):
            raise RuntimeError(f"expand: size {shape[d + extra]} at dim {d + extra} doesn't fit extent {n} of {x!r}")
    strides = [0] * extra + [0 if n == 1 and shape[d + extra] != 1 else s for d, (n, s) in enumerate(zip(x.shape, x.stride()))]
    return _show(x, Expand(shape), strides)


# ---- order of dims --------------------------------------------------------------------------------------------

def _permuted(x, order):
    strides = x.stride()
    return _show(x, Permute(order), [strides[d] for d in order])


@row("permute.default", how="view")
def permute(x, dims):
    order = [_dim("permute", x, dim) for dim in dims]
    if sorted(order) != list(range(x.ndim)):
        raise InvalidArgumentError(f"permute: {tuple(dims)} is no permutation of the dims of {x!r}")
    return _permuted(x, order)


@row("transpose.int", how="view")
def transpose(x, a, b):
    a, b = _dim("transpose", x, a), _dim("transpose", x, b)
    if a == b:
        return alias(x)
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return _permuted(x, order)


@row("t.default", "numpy_T.default", how="view")
def t(x):
    if x.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x!r}")
    return _permuted(x, [1, 0]) if x.ndim == 2 else alias(x)


# ---- parts ---------------------------------------------------------------------------------------------------

@row("slice.Tensor", how="view")
def slice_(x, dim=0, start=None, end=None, step=1):
    dim, shape = _dim("slice", x, dim), x.shape
    first, last, step = slice(start, end, step).indices(shape[dim])
    size = len(range(first, last, step))
    if size == shape[dim] and step == 1:
        return alias(x)
    items, strides = [(_SLICE, 0, n, 1) for n in shape], list(x.stride())
    items[dim] = (_SLICE, first, size, step if size > 1 else 1)
    offset = x.storage_offset() + first * strides[dim]
    strides[dim] *= step
    return _show(x, Index(items), strides, offset)


@row("select.int", how="view")
def select(x, dim, index):
    dim, extent = _dim("select", x, dim), x.shape[dim]
    if not -extent <= index < extent:
        raise IndexError(f"select(): index {index} out of range for dim {dim} of {x!r}")
    index %= extent
    items = _whole(x)
    items[dim] = (_INTEGER, index, 1, 1)
    strides = list(x.stride())
    return _show(x, Index(items), strides[:dim] + strides[dim + 1:], x.storage_offset() + index * strides[dim])


@row("split.Tensor", "unsafe_split.Tensor", how="view")
def split(x, size, dim=0):
    extent = x.shape[_dim("split", x, dim)]
    return [slice_(x, dim, i, i + size) for i in range(0, max(extent, 1), max(size, 1))]


@row("split_with_sizes.default", "unsafe_split_with_sizes.default", how="view")
def split_with_sizes(x, sizes, dim=0):
    if sum(sizes) != x.shape[_dim("split", x, dim)]:
        raise RuntimeError(f"split_with_sizes expects split_sizes to sum exactly to {x.shape[dim]}, but got {list(sizes)}: {x!r}")
    out, at = [], 0
    for size in sizes:
        out.append(slice_(x, dim, at, at + size))
        at += size
    return out


@row("unbind.int", how="view")
def unbind(x, dim=0):
    return [select(x, dim, i) for i in range(x.shape[_dim("unbind", x, dim)])]


row("detach.default", "alias.default", "lift_fresh.default", "lift.default", how="client")(alias)


def _diagonal(x, offset, dim1, dim2):
    first, second = _dim("diagonal", x, dim1), _dim("diagonal", x, dim2)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}: {x!r}")
    rest = [d for d in range(x.ndim) if d not in (first, second)]
    return Diagonal([*rest, first, second], int(offset)), rest, first, second


@row("diagonal.default", how="view")
def diagonal(x, offset=0, dim1=0, dim2=1):
    step, rest, first, second = _diagonal(x, offset, dim1, dim2)
    strides = x.stride()
    begin = x.storage_offset() + (offset * strides[second] if offset >= 0 else -offset * strides[first])
    return _show(x, step, [*(strides[d] for d in rest), strides[first] + strides[second]], begin)


@row("diagonal_scatter.default")
def diagonal_scatter(x, source, offset=0, dim1=0, dim2=1):
    return wrap(_diagonal(x, offset, dim1, dim2)[0].put(handle_of(x), handle_of(source)))


@row("view_as_real.default")
def view_as_real(x):
    """No view: real and imaginary parts side by side are other memory here."""
    h = handle_of(x)
    return wrap(_call(OPS["stack"], (_call(OPS["real"], (h,)), _call(OPS["imag"], (h,))), dims=[h.ndim]))


@row("view_as_complex.default")
def view_as_complex(x):
    h = handle_of(x)
    if not h.ndim or h.shape[-1] != 2:
        raise RuntimeError(f"view_as_complex: the last dim of {x!r} must have 2 elements")
    return wrap(_call(OPS["complex"], (h[..., 0], h[..., 1])))


def _is_row_major(size, stride) -> bool:
    step = 1
    for n, one in zip(reversed(size), reversed(stride)):
        if n != 1 and one != step:
            return False
        step *= n
    return True


@row("as_strided.default", how="view")
def as_strided(x, size, stride, storage_offset=None):
    """Elements of the cell's tensor by their numbers in row-major order."""
    first = storage_offset or 0
    base = x._cell.get()
    if first == 0 and tuple(size) == tuple(base.shape) and _is_row_major(size, stride):
        out = alias(x)
        out._view = None
        return out
    numbers = torch.zeros(tuple(size), dtype=torch.int64) + first
    for d, (n, s) in enumerate(zip(size, stride)):
        numbers += (torch.arange(n) * s).reshape([n if i == d else 1 for i in range(len(size))])
    if numbers.numel() and int(numbers.max()) >= base.size:
        raise RuntimeError(f"as_strided: element {int(numbers.max())} is beyond the {base.size} of {x!r}")
    step = Strided(numbers.reshape(-1).numpy(), list(size))
    whole = alias(x)
    whole._view = None
    return wrap_view(whole, step.take(base), step, tuple(stride), first)


@row("as_strided_scatter.default")
def as_strided_scatter(x, source, size, stride, storage_offset=None):
    """x, of which as_strided shows the source."""
    out = wrap(handle_of(x))
    run("copy_.default")(as_strided(out, size, stride, storage_offset), source)
    return out


# ---- the gradients of parts: zeros around them ---------------------------------------------------------------------

def _within(grad, shape, items):
    """Zeros of the shape with the gradient at the index."""
    h = settled(handle_of(grad))
    shown = [d for d, item in enumerate(items) if item[0] == _SLICE]
    placements = []
    for one in h._placements:
        if one.is_shard():
            dim = shown[one.dim]
            one = one.on_dim(dim) if items[dim] == (_SLICE, 0, shape[dim], 1) else REPLICATE
        placements.append(one)
    return wrap(_call(OPS["assign"], (full_like(h, shape, h._dtype, 0, placements), h), index=items))


@row("select_backward.default", how="composed")
def select_backward(grad, sizes, dim, index):
    items = [(_SLICE, 0, n, 1) for n in sizes]
    dim %= len(sizes)
    items[dim] = (_INTEGER, index % sizes[dim], 1, 1)
    return _within(grad, list(sizes), items)


@row("slice_backward.default", how="composed")
def slice_backward(grad, sizes, dim, start, end, step):
    items = [(_SLICE, 0, n, 1) for n in sizes]
    dim %= len(sizes)
    first, last, step = slice(start, end, step).indices(sizes[dim])
    size = len(range(first, last, step))
    items[dim] = (_SLICE, first, size, step if size > 1 else 1)
    return _within(grad, list(sizes), items)


# ---- joined ------------------------------------------------------------------------------------------------------

def _common(op: str, tensors) -> list:
    """The handles in one dtype."""
    kind = tensors[0].dtype
    if all(type(one) is Tensor and one.dtype is kind for one in tensors):
        return [settled(handle_of(one)) for one in tensors]
    first = next((one for one in tensors if isinstance(one, Tensor)), None)
    for one in tensors[1:]:
        kind = torch.promote_types(kind, one.dtype)
    return [cast(settled(operand(op, one, first)), CODES[kind]) for one in tensors]


def _of_one_dtype(tensors):
    """The handles of tensors of one dtype, none of them pending; None of others."""
    handles, kind = [], None
    for one in tensors:
        if type(one) is not Tensor:
            return None
        handle = one._cell.handle if one._view is None else handle_of(one)
        if handle is None or handle._has_partial or (kind is not None and handle._dtype != kind):
            return None
        kind = handle._dtype
        handles.append(handle)
    return tuple(handles)


@row("cat.default")
def cat(tensors, dim=0):
    handles = _of_one_dtype(tensors) if 0 < len(tensors) <= MAX_OPERANDS and dim >= 0 else None
    if handles is not None:     # the usual case, in as few steps as it takes
        try:
            return wrap(_call(_CONCAT, handles, dims=[dim]))
        except InvalidArgumentError:    # empty vectors, which don't count, or an error that names torch's arguments
            pass
    tensors = [one for one in tensors if one.ndim != 1 or one.numel()] or list(tensors[:1])
    return wrap(_join(_CONCAT, _common("cat", tensors), _dim("cat", tensors[0], dim)))


def _join(op: int, handles: list, dim: int):
    while len(handles) > MAX_OPERANDS:
        handles = [_call(op, tuple(handles[i:i + MAX_OPERANDS]), dims=[dim]) for i in range(0, len(handles), MAX_OPERANDS)]
    return _call(op, tuple(handles), dims=[dim])


@row("stack.default")
def stack(tensors, dim=0):
    dim = _dim("stack", tensors[0], dim, 1)
    return cat([unsqueeze(one, dim) for one in tensors], dim)


@row("flip.default")
def flip(x, dims):
    if not dims:
        return wrap(handle_of(x))
    return wrap(_call(OPS["flip"], (handle_of(x),), dims=sorted(_dim("flip", x, d) for d in dims)))


@row("roll.default")
def roll(x, shifts, dims=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    return wrap(_call(OPS["roll"], (handle_of(x),), shift=shifts, dims=[_dim("roll", x, d) for d in dims]))


@row("repeat.default")
def repeat(x, repeats):
    return wrap(_call(OPS["tile"], (settled(handle_of(x)),), repeats=[int(n) for n in repeats]))


def _triangle(name: str):
    return lambda x, diagonal=0: wrap(_call(OPS[name], (handle_of(x),), k=int(diagonal)))


row("tril.default")(_triangle("tril"))
row("triu.default")(_triangle("triu"))


@row("constant_pad_nd.default")
def constant_pad(x, pad, value=0):
    flat = [0] * (2 * x.ndim)
    for i in range(len(pad) // 2):
        dim = x.ndim - 1 - i
        flat[2 * dim], flat[2 * dim + 1] = int(pad[2 * i]), int(pad[2 * i + 1])
    h = handle_of(x)
    if any(n < 0 for n in flat):        # cuts off, as the gradient of a pad does
        ends = [(max(0, -flat[2 * d]), n - max(0, -flat[2 * d + 1])) for d, n in enumerate(h.shape)]
        if any(start > stop for start, stop in ends):
            raise RuntimeError(f"constant_pad_nd: pads {list(pad)} of {x!r} leave a negative extent")
        h = h[tuple(slice(start, stop) for start, stop in ends)]
        flat = [max(0, n) for n in flat]
    if not any(flat):
        return wrap(h)
    return wrap(_call(OPS["pad"], (h,), pad_width=flat, mode="constant", scalars=[value]))


