"""Views: a shard moves with the leading dim of its group, else the tensor is gathered, which the service reports."""

from __future__ import annotations

import torch

import _tessera
from .._errors import InvalidArgumentError
from .._ops import MAX_OPERANDS
from .._placements import REPLICATE
from .._catalog import OPS
from ._cell import Diagonal, Strided
from ._dtypes import CODES
from ._one_call import Settled, one_call
from ._operands import cast, operand
from ._placing import full_like, settled
from ._table import row, run
from ._tensor import VIEWS, Tensor, alias, handle_of, wrap, wrap_view

_call = _tessera.call
_CONCAT = OPS["concat"]
_SLICE, _INTEGER = 0, 1


def _dim(op: str, x, dim: int, extra: int = 0) -> int:
    ndim = x.ndim + extra
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(f"{op}: Dimension out of range (expected to be in range of [{-max(ndim, 1)}, {max(ndim, 1) - 1}], "
                         f"but got {dim}): {x!r}")
    return dim % max(ndim, 1)


# ---- shapes ------------------------------------------------------------------------------------------------

row("view.default", "_unsafe_view.default", how="view")(VIEWS["view"])
row("_reshape_alias.default", how="view")(VIEWS["reshape_alias"])
row("squeeze.default", "squeeze.dim", "squeeze.dims", how="view")(VIEWS["squeeze"])
row("expand.default", how="view")(VIEWS["expand"])
row("permute.default", how="view")(VIEWS["permute"])
row("transpose.int", how="view")(VIEWS["transpose"])
row("t.default", "numpy_T.default", how="view")(VIEWS["t"])
unsqueeze = row("unsqueeze.default", how="view")(VIEWS["unsqueeze"])
slice_ = row("slice.Tensor", how="view")(VIEWS["slice"])
select = row("select.int", how="view")(VIEWS["select"])


# ---- parts ---------------------------------------------------------------------------------------------------

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
    return wrap_view(x, step.take(handle_of(x)), step, [*(strides[d] for d in rest), strides[first] + strides[second]], begin)


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


@row("cat.default", one_call=one_call("concat", settled=Settled.REDUCED, dim="dims"))
def cat(tensors, dim=0):
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


for _name in ("tril", "triu"):
    row(f"{_name}.default", one_call=one_call(_name, diagonal="k"))(_triangle(_name))


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


