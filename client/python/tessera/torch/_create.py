"""Factories, random numbers, and what writes whole tensors: empty, fill_, copy_, uniform_, dropout."""

from __future__ import annotations

import math

import torch

import _tessera
from .._mesh import DeviceMesh
from .._placements import replicated
from .._catalog import OPS
from . import _composed, _ranges
from ._cell import like
from ._device import next_call
from ._dtypes import F32, F64, HALVES, INT64, INTEGERS, TORCH, code
from ._operands import cast, filled, operand
from ._moving import create, default_place, download, replace, upload
from ._placing import create_like, full_like, kept, settled, settled_dims
from ._table import row, run
from ._tensor import Tensor, base_of, handle_of, rebind, wrap, wrap_unfilled

_call = _tessera.call
_library = torch.library.Library("aten", "IMPL")      # what has no tensor among its operands: the device says where


def _number(value, dtype: int):
    """A number that the dtype has, as torch converts it."""
    if dtype in INTEGERS:
        return filled(int(value), dtype)
    return value


# ---- beside a tensor ---------------------------------------------------------------------------------------

def _like(value):
    def function(x, *args, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        wanted = code(dtype, x.dtype)
        number = args[0] if value is None else value
        if device is not None and device.type != "tessera":
            return torch.full(x.shape, number, dtype=TORCH[wanted], device=device)
        return wrap(full_like(handle_of(x), x.shape, wanted, _number(number, wanted)))
    return function


def _new(value):
    def function(x, size, *args, dtype=None, layout=None, device=None, pin_memory=None):
        wanted = code(dtype, x.dtype)
        number = args[0] if value is None else value
        if device is not None and device.type != "tessera":
            return torch.full(tuple(size), number, dtype=TORCH[wanted], device=device)
        return wrap(full_like(handle_of(x), tuple(size), wanted, _number(number, wanted)))
    return function


for _name, _value in (("zeros", 0), ("ones", 1), ("full", None)):
    row(f"{_name}_like.default")(_like(_value))
    row(f"new_{_name}.default")(_new(_value))


@row("new_empty.default")
def new_empty(x, size, *, dtype=None, layout=None, device=None, pin_memory=None):
    if device is not None and device.type != "tessera":
        return torch.empty(tuple(size), dtype=dtype or x.dtype, device=device)
    base = base_of(x)
    placements = kept(base._placements) if tuple(size) == base.shape else replicated(base._mesh_ndim)
    return wrap_unfilled(base._session, base._mesh, placements, code(dtype, x.dtype), size)


@row("empty_like.default")
def empty_like(x, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return new_empty(x, x.shape, dtype=dtype, device=device)


row("new_empty_strided.default")(lambda x, size, stride, **options: new_empty(x, size, **options))


@row("_new_zeros_with_same_feature_meta.default")
def zeros_of_tangents(x, other, *, self_num_batch_dims=0):
    """Where a tangent is kept. torch.func.linearize traces how tangents are computed, and sees no ops of tensors on workers."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    if get_proxy_mode() is not None:
        raise NotImplementedError(f"linearize: traces ops, of which it sees none of {other!r}; torch.func.jvp computes them each time")
    return _new(0)(x, (*x.shape[:self_num_batch_dims], *other.shape), dtype=other.dtype)


def _random_like(name: str):
    def function(x, *args, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None, generator=None):
        numbers = [*([0.0, 1.0] if name == "normal" else ()), *next_call(generator)]
        return wrap(create_like(name, handle_of(x), x.shape, code(dtype, x.dtype), numbers))
    return function


row("rand_like.default")(_random_like("rand"))
row("randn_like.default")(_random_like("normal"))


@row("randint_like.default", "randint_like.low_dtype", "randint_like.generator", "randint_like.low_generator_dtype")
def randint_like(x, *bounds, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None, generator=None):
    """A tensor with another one's shape and placements, by a random number of each element, as rand_like has it."""
    low, high = (0, *bounds)[-2:]
    out = run("empty_like.default")(x, dtype=dtype or x.dtype)
    return run("random_.from")(out, low, high, generator=generator)


# ---- whole tensors -----------------------------------------------------------------------------------------------

def _bind_whole(op: str, x: Tensor, make) -> Tensor:
    """x becomes a new value, made with its dtype, shape and placements."""
    handle = make(base_of(x))
    if x._view is None:
        x._cell.bind(handle)
        return x
    return rebind(op, x, handle)


@row("fill.Scalar", "fill.Tensor")
def fill(x, value):
    return fill_(wrap(handle_of(x)), value)


@row("fill_.Scalar", "fill_.Tensor")
def fill_(x, value):
    value = operand("fill_", value, x)
    if isinstance(value, _tessera.Tensor):
        if value.ndim:
            raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got {value._spec}")
        return _bind_whole("fill_", x, lambda base: like(value, base) if not base._has_partial else _call(
            OPS["broadcast_to"], (_composed.as_dtype(value, base._dtype),), shape=list(base.shape)))
    return _bind_whole("fill_", x, lambda base: full_like(base, base.shape, base._dtype, _number(value, base._dtype)))


@row("zero_.default")
def zero_(x):
    return _bind_whole("zero_", x, lambda base: full_like(base, base.shape, base._dtype, 0))


@row("copy_.default")
def copy_(destination, source, non_blocking=False):
    if not isinstance(destination, Tensor):
        destination.copy_(download(source))
        return destination
    base = base_of(destination)
    if isinstance(source, Tensor):
        handle = handle_of(source)
    elif destination._view is None and tuple(source.size()) == base.shape:
        del base        # the value of before: it makes room for the new one where there is too little
        replace(destination, source)
        return destination
    else:
        wanted = TORCH[base._dtype]
        source = source if source.dtype == wanted else source.to(wanted)
        handle = upload(source, DeviceMesh._wrap(base._session, base._mesh), replicated(base._mesh_ndim))
    if base._has_partial:       # a new value with as many elements, not one that is pending as the old one was
        handle = _composed.as_dtype(settled(handle), base._dtype)
        if handle.shape != base.shape:
            handle = _call(OPS["broadcast_to"], (handle,), shape=list(base.shape))
        if destination._view is None:
            destination._cell.bind(handle)
            return destination
    return rebind("copy_", destination, handle)


@row("_local_scalar_dense.default", how="client")
def local_scalar(x):
    """The one element as a Python number; waits for it."""
    return handle_of(x).item()


@row("set_.source_Tensor", how="client")
def set_(x, source):
    x._cell, x._view, x._seen = source._cell, source._view, source._seen
    return x


@row("resize_.default", how="client")
def resize_(x, size, *, memory_format=None):
    """The first elements in row-major order; new ones are 0. A view goes on in the memory that it is a view of, as far as that goes."""
    count = math.prod(size)
    if x._view is not None and x.storage_offset() + count <= x._cell.get().size:
        x.data = run("as_strided.default")(x, size, torch.empty(size, device="meta").stride(), x.storage_offset())
        return x
    h = handle_of(x)
    flat = _call(OPS["reshape"], (h,), shape=[h.size])
    if count > h.size:
        flat = _call(OPS["concat"], (flat, full_like(flat, (count - h.size,), h._dtype, 0)), dims=[0])
    elif count < h.size:
        flat = flat[:count]
    x.data = wrap(_call(OPS["reshape"], (flat,), shape=[int(n) for n in size]))
    return x


@row("resize_as_.default", how="client")
def resize_as_(x, template, *, memory_format=None):
    return resize_(x, template.shape)


@row("_has_same_storage_numel.default", how="client")
def has_same_storage_numel(a, b):
    return a._cell.get().size == b._cell.get().size


row("is_pinned.default", how="client")(lambda x, device=None: False)
row("record_stream.default", how="client")(lambda x, stream: None)
row("is_same_size.default", how="client")(lambda a, b: tuple(a.shape) == tuple(b.shape))


# ---- random numbers: keyed by (seed, call, global index), the same on every mesh and placement -----------------------------

@row("uniform_.default")
def uniform_(x, low=0.0, high=1.0, *, generator=None):
    numbers = [float(low), float(high), *next_call(generator)]
    return _bind_whole("uniform_", x, lambda base: create_like("uniform", base, base.shape, base._dtype, numbers))


@row("normal_.default")
def normal_(x, mean=0.0, std=1.0, *, generator=None):
    if std < 0:
        raise RuntimeError(f"normal_ expects std >= 0.0, but found std {std}: {x!r}")
    numbers = [float(mean), float(std), *next_call(generator)]
    return _bind_whole("normal_", x, lambda base: create_like("normal", base, base.shape, base._dtype, numbers))


@row("exponential_.default")
def exponential_(x, lambd=1.0, *, generator=None):
    numbers = [1.0 / lambd, *next_call(generator)]
    return _bind_whole("exponential_", x, lambda base: create_like("exponential", base, base.shape, base._dtype, numbers))


def _drawn(base, numbers, dtype: int = F32):
    return create_like("rand", base, base.shape, dtype, numbers)


def _probability(op: str, p, base):
    if isinstance(p, torch.Tensor):
        return _ranges.probabilities(operand(op, p))
    if not 0 <= p <= 1:
        raise RuntimeError(f"{op}: p is {p}, not from 0 to 1")
    return float(p)


@row("bernoulli_.float", "bernoulli_.Tensor")
def bernoulli_(x, p=0.5, *, generator=None):
    numbers = next_call(generator)
    return _bind_whole("bernoulli_", x, lambda base: _composed.as_dtype(
        _call(OPS["less"], (_drawn(base, numbers), _probability("bernoulli_", p, base))), base._dtype))


@row("bernoulli.default", "bernoulli.p")
def bernoulli(x, p=None, *, generator=None):
    base = handle_of(x)
    hit = _call(OPS["less"], (_drawn(base, next_call(generator)), _probability("bernoulli", x if p is None else p, base)))
    return wrap(_composed.as_dtype(hit, base._dtype))


def _integers(base, low: int, high: int, numbers):
    if not low < high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    unit = _drawn(base, numbers, F64)
    whole = _call(OPS["floor"], (_composed.mul(unit, float(high - low)),))
    return _composed.as_dtype(_composed.add(whole, float(low)), base._dtype)


@row("random_.from")
def random_from_(x, low, high=None, *, generator=None):
    top = 2**53 if high is None else high
    numbers = next_call(generator)
    return _bind_whole("random_", x, lambda base: _integers(base, low, top, numbers))


@row("random_.to")
def random_to_(x, high, *, generator=None):
    return random_from_(x, 0, high, generator=generator)


@row("random_.default")
def random_(x, *, generator=None):
    bits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.bool: 1, torch.uint8: 8, torch.int8: 7, torch.int16: 15,
            torch.int32: 31}
    return random_from_(x, 0, 2**bits.get(x.dtype, 53), generator=generator)


@row("native_dropout.default", how="composed")
def native_dropout(x, p, train):
    h = handle_of(x)
    if train is False or p == 0:
        return wrap(h), wrap(full_like(h, x.shape, code(torch.bool), True))
    keep = _call(OPS["greater_equal"], (_drawn(h, next_call()), float(p)))
    scaled = _composed.mul(h, 1.0 / (1.0 - p) if p < 1 else 0.0)
    return wrap(_call(OPS["where"], (keep, scaled, 0))), wrap(keep)


@row("native_dropout_backward.default", how="composed")
def native_dropout_backward(grad, mask, scale):
    keep = handle_of(mask)
    g = handle_of(grad)
    return wrap(_call(OPS["where"], (keep, _composed.mul(g, float(scale)), 0)))


@row("multinomial.default", how="composed")
def multinomial(x, num_samples, replacement=False, *, generator=None):
    """Indices with probabilities as the rows say: by the largest log(p) + Gumbel noise; several with replacement each by where a
    random number lies among the sums of probabilities."""
    h = _ranges.weights(handle_of(x))
    if replacement and num_samples > 1:
        sums = _call(OPS["cumulative_sum"], (cast(settled_dims(h, [h.ndim - 1]), F64),), dims=[h.ndim - 1])
        total = sums[..., -1:]
        numbers = create_like("rand", sums, (*h.shape[:-1], num_samples), F64, next_call(generator), list(sums._placements))
        # Below the last sum, so that none of no probability is found.
        place = _call(OPS["minimum"], (numbers * total, _call(OPS["nextafter"], (total, 0.0))))
        beyond = _call(OPS["less_equal"], (sums[..., None, :], place[..., :, None]))
        return wrap(_call(OPS["sum"], (cast(beyond, INT64),), dims=[h.ndim]))
    drawn = create_like("rand", h, h.shape, h._dtype if h._dtype not in HALVES else F32, next_call(generator))
    noise = _call(OPS["negative"], (_call(OPS["log"], (_call(OPS["negative"], (_call(OPS["log"], (drawn,)),)),)),))
    return run("topk.default")(wrap(_composed.add(_call(OPS["log"], (h,)), noise)), num_samples)[1]


# ---- without a tensor ----------------------------------------------------------------------------------------------------

def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    mesh, placements = default_place(size)
    return wrap_unfilled(mesh._session, mesh._raw, placements, code(dtype), size)


def _full(size, value, *, dtype=None, layout=None, device=None, pin_memory=None):
    if dtype is None:
        dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.result_type(torch.empty(()), value)
    return create("full", size, dtype, [_number(value, code(dtype))])


def _arange(start, end, step=1, *, dtype=None, layout=None, device=None, pin_memory=None):
    is_whole = all(isinstance(one, int) for one in (start, end, step))
    if step == 0 or (end - start) / step < 0:
        raise RuntimeError(f"arange: upper bound and lower bound inconsistent with step sign: {start}, {end}, {step}")
    count = len(range(start, end, step)) if is_whole else math.ceil((end - start) / step)
    wanted = code(dtype, torch.int64 if is_whole else None)
    scalars = [int(start), int(step)] if wanted in INTEGERS else [float(start), float(step)]
    return create("arange", [count], TORCH[wanted], scalars)


def _from_cpu(function):
    """Small constants that torch makes in this process, brought to the mesh."""
    def run_(*args, device=None, **options):
        out = function(*args, **{k: v for k, v in options.items() if k not in ("layout", "pin_memory") and v is not None})
        return wrap(upload(out, *default_place(out.shape)))
    return run_


def _randperm(n, *, generator=None, dtype=None, layout=None, device=None, pin_memory=None):
    keys = create("rand", [n], torch.float64, next_call(generator))
    out = run("argsort.default")(keys)
    return out if dtype in (None, torch.int64) else run("_to_copy.default")(out, dtype=dtype)


def _copy_from(source, destination, non_blocking=False):
    return copy_(destination, source)


def _below(*args, **kwargs):
    raise AssertionError("a kernel of the device tessera was called below __torch_dispatch__")


for _name, _function in (
        ("empty.memory_format", _empty), ("empty_strided", lambda size, stride, **options: _empty(size, **options)),
        ("empty_permuted", lambda size, physical_layout, **options: _empty(size, **options)),
        ("_efficientzerotensor", _empty), ("full", _full), ("zeros", lambda size, *, dtype=None, **options: _full(size, 0, dtype=dtype or torch.get_default_dtype())),
        ("ones", lambda size, *, dtype=None, **options: _full(size, 1, dtype=dtype or torch.get_default_dtype())), ("arange", lambda end, **options: _arange(0, end, **options)), ("arange.start", _arange), ("arange.start_step", _arange),
        ("eye", lambda n, **options: _eye(n, n, **options)), ("eye.m", lambda n, m, **options: _eye(n, m, **options)),
        ("kaiser_window", _from_cpu(torch.kaiser_window)), ("kaiser_window.periodic", _from_cpu(torch.kaiser_window)),
        ("kaiser_window.beta", _from_cpu(torch.kaiser_window)), ("randperm", _randperm), ("randperm.generator", lambda n, *, generator=None, **options: _randperm(n, generator=generator, **options)),
        ("tril_indices", _from_cpu(torch.tril_indices)), ("triu_indices", _from_cpu(torch.triu_indices)), ("_copy_from", _copy_from)):
    _library.impl(_name, _function, "PrivateUse1")
# Kernels that are never called, which keep composite ops whole on their way to __torch_dispatch__.
for _name in ("linear", "linear_backward", "matmul", "matmul_backward", "silu_backward"):
    _library.impl(_name, _below, "PrivateUse1")


def _eye(n, m, *, dtype=None, layout=None, device=None, pin_memory=None):
    return create("eye", [n, m], dtype, [0])


@row("scalar_tensor.default")
def scalar_tensor(value, *, dtype=None, layout=None, device=None, pin_memory=None):
    return create("full", [], dtype, [value])
