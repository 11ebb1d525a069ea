"""Random numbers: counter-based, keyed by (seed, number of the call, index of the element in the whole tensor). The same
seed gives the same bits on every mesh and placement, and no server keeps a state."""

from __future__ import annotations

import builtins
import os
import threading

import numpy as np

import _tessera
from ._filled import create, extents_of
from ._dtypes import code_of, is_floating, numpy_of
from ._errors import ArgumentError, InvalidArgumentError, named
from ._indexing import take
from ._mesh import integers
from ._ops import astype, reshape
from ._placements import Partial, Replicate, Shard
from ._calls import as_operand, axes_of, call, no_dim
from _tessera_ops import argsort, cumulative_sum, less, searchsorted

_lock = threading.Lock()
_state = {"seed": int.from_bytes(os.urandom(8), "little") >> 1, "stream": 0}


def manual_seed(seed: int) -> None:
    """The next random calls of this process start over from this seed; the same on every mesh and placement."""
    (number,) = integers(seed, "seed", "manual_seed")
    with _lock:
        _state.update(seed=number, stream=0)


def state() -> tuple[int, int]:
    """The seed and the number of the next call, for set_state."""
    with _lock:
        return _state["seed"], _state["stream"]


def set_state(seed: int, stream: int) -> None:
    with _lock:
        _state.update(seed=seed, stream=stream)


def _next_call() -> list[int]:
    """The numbers of the next call: its seed and stream."""
    with _lock:
        _state["stream"] += 1
        return [_state["seed"], _state["stream"] - 1]


def _place_of(x, options: dict) -> dict:
    """Beside a tensor, if nothing else is asked for: on its mesh, cut as it is."""
    if options["device"] is None and options["device_mesh"] is None and options["placements"] is None:
        places = [Replicate() if isinstance(p, Partial) else p for p in x.placements]
        return {"device": None, "device_mesh": x.device_mesh, "placements": places}
    return options


def _no_size(name: str, unknown: dict) -> None:
    if "size" in unknown:
        raise ArgumentError(f"{name}: got size=; write {name}(..., shape={unknown['size']!r})")
    no_dim(name, unknown, ("shape", "dtype", "device", "device_mesh", "placements"))


def _number(name: str, key: str, value) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float)):
        raise ArgumentError(f"{name}: {key} is {value!r}, not a number; scale a tensor of them: {name}(shape=...) * scales")
    return float(value)


def _drawn(name: str, shape, dtype, numbers: list, device, device_mesh, placements):
    dtype = np.float64 if dtype is None else dtype
    if not is_floating(dtype, name):
        raise InvalidArgumentError(f"{name}: dtype {numpy_of(code_of(dtype, name))} is no float")
    return create(name, extents_of(name, shape), dtype, [*numbers, *_next_call()], device, device_mesh, placements)


def _extents(name: str, shape: tuple, unknown: dict):
    """The extents of f(3, 4) and of f((3, 4))."""
    _no_size(name, unknown)
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], (int, np.integer)) else shape


def rand(*shape, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """Uniform random numbers in [0, 1): rand(3, 4) or rand((3, 4))."""
    return _drawn("rand", _extents("rand", shape, unknown), dtype, [], device, device_mesh, placements)


def randn(*shape, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """Random numbers of the normal distribution around 0, with standard deviation 1: randn(3, 4) or randn((3, 4))."""
    extents = _extents("randn", shape, unknown)
    with named("randn"):
        return _drawn("normal", extents, dtype, [0.0, 1.0], device, device_mesh, placements)


def normal(loc=0.0, scale=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """normal(loc=0.0, scale=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None)

    Random numbers of the normal distribution around loc, with standard deviation scale (not below 0)."""
    _no_size("normal", unknown)
    numbers = [_number("normal", "loc", loc), _number("normal", "scale", scale)]
    if numbers[1] < 0:
        raise InvalidArgumentError(f"normal: scale is {scale}, below 0")
    return _drawn("normal", shape, dtype, numbers, device, device_mesh, placements)


def uniform(low=0.0, high=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """uniform(low=0.0, high=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None)

    Random numbers in [low, high), each as likely as another. high itself may come by rounding."""
    _no_size("uniform", unknown)
    numbers = [_number("uniform", "low", low), _number("uniform", "high", high)]
    return _drawn("uniform", shape, dtype, numbers, device, device_mesh, placements)


def exponential(scale=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """exponential(scale=1.0, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None)

    Random numbers of the exponential distribution, whose mean is scale (not below 0)."""
    _no_size("exponential", unknown)
    number = _number("exponential", "scale", scale)
    if number < 0:
        raise InvalidArgumentError(f"exponential: scale is {scale}, below 0")
    return _drawn("exponential", shape, dtype, [number], device, device_mesh, placements)


def bernoulli(p=0.5, shape=None, *, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """bernoulli(p=0.5, shape=None, *, dtype=None, device=None, device_mesh=None, placements=None)

    True with probability p, else False: p is a number, or a tensor of them, whose shape the result has. With a dtype 1
    and 0 of it."""
    _no_size("bernoulli", unknown)
    options = {"device": device, "device_mesh": device_mesh, "placements": placements}
    if isinstance(p, _tessera.Tensor):
        if shape is not None and tuple(extents_of("bernoulli", shape)) != tuple(p.shape):
            raise InvalidArgumentError(f"bernoulli: shape is {shape!r}, and p is {p._spec}")
        shape, options = p.shape, _place_of(p, options)
    else:
        p = _number("bernoulli", "p", p)
        if not 0 <= p <= 1:
            raise InvalidArgumentError(f"bernoulli: p is {p}, no probability")
    with named("bernoulli"):
        drawn = less(_drawn("rand", () if shape is None else shape, np.float64, [], **options), p)
        return drawn if dtype is None else astype(drawn, dtype)


def _check_bounds(op: str, low: int, high: int, dtype: np.dtype) -> None:
    """That each integer in [low, high) is one of a dtype of integers or bool; floats round."""
    if dtype.kind not in "iub":
        return
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if low < least:
        raise InvalidArgumentError(f"{op}: low is out of bounds for {dtype}: {low} is below {least}")
    if high - 1 > most:
        raise InvalidArgumentError(f"{op}: high is out of bounds for {dtype}: {high} is above {most + 1}")


def randint(low, high=None, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None, **unknown):
    """randint(low, high=None, shape=(), *, dtype=None, device=None, device_mesh=None, placements=None)

    Random integers in [low, high), which the dtype must have; of one bound in [0, low)."""
    _no_size("randint", unknown)
    low, high = (0, low) if high is None else (low, high)
    low, high = integers([low, high], "low and high", "randint")
    if not low < high or high - low > 2**53:
        raise InvalidArgumentError(f"randint: [{low}, {high}) must hold 1 to 2^53 integers")
    _check_bounds("randint", low, high, numpy_of(code_of(np.int64 if dtype is None else dtype, "randint")))
    with named("randint"):
        unit = rand(shape, device=device, device_mesh=device_mesh, placements=placements)
        return astype(astype(unit * float(high - low), np.int64) + low, np.int64 if dtype is None else dtype)


def _order(name: str, count: int, options: dict):
    """The numbers 0 to count - 1, each once, in random order: as random keys sort them."""
    with named(name):
        return argsort(rand((count,), **options))


def permutation(x, /, *, axis=0, device=None, device_mesh=None, placements=None):
    """permutation(x, /, *, axis=0, device=None, device_mesh=None, placements=None)

    The integers 0 to x - 1 in random order; of a tensor its slices along the axis in random order."""
    options = {"device": device, "device_mesh": device_mesh, "placements": placements}
    if not isinstance(x, _tessera.Tensor):
        (count,) = integers(x, "x", "permutation")
        if count < 0:
            raise InvalidArgumentError(f"permutation: x is {count}, below 0")
        return _order("permutation", count, options)
    (dim,) = axes_of("permutation", axis, x.ndim)
    keys = {"device": None, "device_mesh": x.device_mesh, "placements": [Replicate()] * x.device_mesh.ndim}
    return take(x, _order("permutation", x.shape[dim], keys), axis=dim)


def shuffle(x, /, *, axis=0):
    """shuffle(x, /, *, axis=0)

    The slices of a tensor along an axis in random order: a new tensor; x stays as it is."""
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"shuffle: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    return permutation(x, axis=axis)


def choice(a, shape=(), *, replace=True, p=None, axis=0, device=None, device_mesh=None, placements=None, **unknown):
    """choice(a, shape=(), *, replace=True, p=None, axis=0, device=None, device_mesh=None, placements=None)

    Random elements of a tensor along an axis, or of the integers 0 to a - 1; without replacement each at most once.
    p: a vector of probabilities of the elements, whose sum is 1; only with replacement."""
    _no_size("choice", unknown)
    options = {"device": device, "device_mesh": device_mesh, "placements": placements}
    is_tensor = isinstance(a, _tessera.Tensor)
    dim = axes_of("choice", axis, a.ndim)[0] if is_tensor else 0
    count = a.shape[dim] if is_tensor else integers(a, "a", "choice")[0]
    extents = extents_of("choice", shape)
    wanted = 1
    for extent in extents:
        wanted *= extent
    if count < 1 and wanted > 0:
        raise InvalidArgumentError(f"choice: takes {wanted} of {count} elements")
    if is_tensor:
        cut_alike = a.ndim == 1 and len(extents) == 1 and not any(isinstance(p, Shard) and p.sizes for p in a.placements)
        options = _place_of(a, options) if cut_alike else {
            "device": None, "device_mesh": a.device_mesh, "placements": [Replicate()] * a.device_mesh.ndim}
    if not replace:
        if p is not None:
            raise InvalidArgumentError("choice: p is for choices with replacement")
        if wanted > count:
            raise InvalidArgumentError(f"choice: takes {wanted} of {count} elements, each at most once")
        places = reshape(_order("choice", count, options)[:wanted], extents)
    elif p is None:
        places = randint(0, builtins.max(count, 1), extents, **options)
    else:
        places = _by_weight(p, count, extents, options)
    return take(a, places, axis=dim) if is_tensor else places


def _by_weight(p, count: int, extents: list[int], options: dict):
    with named("choice"):
        drawn = rand(extents, **options)
        weights = as_operand("choice", drawn, np.asarray(p, np.float64) if not isinstance(p, _tessera.Tensor) else p)
        if tuple(weights.shape) != (count,):
            raise InvalidArgumentError(f"choice: p is {weights._spec}, for {count} elements")
        edges = cumulative_sum(astype(weights, np.float64), axis=0)
        return searchsorted(edges, drawn * edges[-1], side="right")


def dropout(x, /, p=0.5, *, training=True):
    """dropout(x, /, p=0.5, *, training=True)

    Zero with probability p, else x / (1 - p), so that the mean stays; x itself where it isn't training."""
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"dropout: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    p = _number("dropout", "p", p)
    if not 0 <= p <= 1:
        raise InvalidArgumentError(f"dropout: p is {p}, no probability")
    return call("dropout", x, p=p, scalars=_next_call()) if training and p > 0 else x._copy()


for _function in (rand, randn):
    _function.__doc__ = (f"{_function.__name__}(*shape, dtype=None, device=None, device_mesh=None, placements=None)\n\n    "
                         + _function.__doc__)
