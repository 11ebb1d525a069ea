"""More ops of random programs (differential.py): what moves elements, assigns, scans, sorts and looks up."""

from __future__ import annotations

import dataclasses

import numpy as np

import known_values as kv

OPS = []


def listed_in(ops):
    """The decorator `@op(weight)` that lists a function among `ops`, as often as its weight says."""
    def op(weight=1):
        def add(function):
            ops.extend([function] * weight)
            return function
        return add
    return op


op = listed_in(OPS)


def number_known(text: str, dtype) -> kv.Known:
    with np.errstate(over="ignore"):
        return kv.exactly(np.array(eval(text, {"inf": np.inf, "nan": np.nan})).astype(dtype))   # noqa: S307


def is_sure(known: kv.Known) -> bool:
    """Whether each element is one number."""
    return not known.open.any() and not known.nan.any() and bool((known.low == known.high).all())


def some_axis(p, known: kv.Known) -> int:
    return int(p.rng.integers(-known.low.ndim, known.low.ndim))


def has_dims(known: kv.Known) -> bool:
    return known.low.ndim > 0


def unsigned_zeros(known: kv.Known) -> kv.Known:
    return known if not kv.is_float(known.dtype) else dataclasses.replace(known, signed=np.zeros(known.shape, bool))


# ---- moves ---------------------------------------------------------------------------------------

@op(2)
def join(p):
    x = p.any(lambda k: 0 < k.low.ndim and k.low.size <= 100)
    if x is None:
        return
    a = p.pool[x]
    axis = some_axis(p, a)
    others = [y for y, b in p.pool.items() if b.dtype == a.dtype and b.low.ndim == a.low.ndim and
              np.delete(b.shape, axis).tolist() == np.delete(a.shape, axis).tolist() and b.low.size <= 100]
    names = [x] + [p.choose(others) for _ in range(int(p.choose([0, 1, 2])))]
    parts = [p.pool[name] for name in names]
    arrays = {f: np.concatenate([getattr(part, f) for part in parts], axis=axis) for f in kv.FIELDS}
    p.keep(f"ts.concat([{', '.join(names)}], axis={axis})", kv.Known(a.dtype, **arrays))


@op()
def stack(p):
    x = p.any(lambda k: k.low.size <= 200)
    if x is None:
        return
    a = p.pool[x]
    y = p.choose([y for y, b in p.pool.items() if b.dtype == a.dtype and b.shape == a.shape])
    axis = int(p.rng.integers(-a.low.ndim - 1, a.low.ndim + 1))
    arrays = {f: np.stack([getattr(a, f), getattr(p.pool[y], f)], axis=axis) for f in kv.FIELDS}
    p.keep(f"ts.stack([{x}, {y}], axis={axis})", kv.Known(a.dtype, **arrays))


@op(4)
def turn(p):
    x = p.any(has_dims)
    if x is None:
        return
    a = p.pool[x]
    axis, other, times = some_axis(p, a), some_axis(p, a), int(p.choose([-7, -1, 0, 1, 2, 3]))
    text, move = p.choose([
        (f"ts.flip({x}, axis={axis})", lambda v: np.flip(v, axis)),
        (f"ts.roll({x}, {times}, axis={axis})", lambda v: np.roll(v, times, axis)),
        (f"ts.roll({x}, {times})", lambda v: np.roll(v, times)),
        (f"ts.moveaxis({x}, {axis}, {other})", lambda v: np.moveaxis(v, axis, other)),
        (f"ts.expand_dims({x}, axis={axis})", lambda v: np.expand_dims(v, axis)),
        (f"ts.reshape({x}, {a.shape[::-1]})", lambda v: v.reshape(a.shape[::-1])),
        (f"ts.reshape({x}, (-1,))", lambda v: v.reshape(-1)) if a.low.size else (f"{x}.T" if a.low.ndim == 2 else f"{x}[...]",
                                                                                 lambda v: v.T if a.low.ndim == 2 else v),
    ])
    p.keep(text, a.moved(move))


@op(2)
def grow(p):
    x = p.any(lambda k: 0 < k.low.ndim and k.low.size <= 100)
    if x is None:
        return
    a = p.pool[x]
    axis, times = some_axis(p, a), int(p.choose([0, 1, 2, 3]))
    padding = [(int(p.choose([0, 1])), int(p.choose([0, 2]))) for _ in a.shape]
    zero = kv.exactly(np.zeros(a.shape, a.dtype))       # what stands around it
    filled = {f: np.pad(getattr(a, f), padding, constant_values=getattr(zero, f).ravel()[0] if zero.low.size else 0)
              for f in kv.FIELDS}
    text, known = p.choose([
        (f"ts.repeat({x}, {times}, axis={axis})", a.moved(lambda v: np.repeat(v, times, axis))),
        (f"ts.tile({x}, ({times}, 1))", a.moved(lambda v: np.tile(v, (times, 1)))),
        (f"ts.broadcast_to({x}, {(2, *a.shape)})", a.moved(lambda v: np.broadcast_to(v, (2, *a.shape)))),
        (f"ts.pad({x}, {padding})", kv.Known(a.dtype, **filled)) if a.low.size else (f"{x}[None]", a.moved(lambda v: v[None])),
    ])
    p.keep(text, known)


@op()
def triangle(p):
    x = p.any(lambda k: k.low.ndim >= 2)
    if x is None:
        return
    a, k = p.pool[x], int(p.choose([-2, -1, 0, 1, 3]))
    name = p.choose(["tril", "triu"])
    kept = getattr(np, name)(np.ones(a.shape, bool), k)
    zero = kv.exactly(np.zeros(a.shape, a.dtype))
    arrays = {f: np.where(kept, getattr(a, f), getattr(zero, f)) for f in kv.FIELDS}
    p.keep(f"ts.{name}({x}, k={k})", kv.Known(a.dtype, **arrays))


# ---- lookups and assignments ---------------------------------------------------------------------

@op(2)
def take(p):
    x = p.any(lambda k: k.low.ndim and k.low.size)
    if x is None:
        return
    a = p.pool[x]
    axis = some_axis(p, a)
    places = p.rng.integers(-a.shape[axis], a.shape[axis], int(p.choose([0, 1, 3, 8]))).tolist()
    if p.chance(0.5):
        p.keep(f"ts.take({x}, np.array({places}, 'i8'), axis={axis})",
               a.moved(lambda v: np.take(v, np.array(places, "i8"), axis)))
    else:
        along = p.rng.integers(0, a.shape[axis], a.shape)
        p.keep(f"ts.take_along_axis({x}, np.array({along.tolist()}, 'i8').reshape({along.shape}), axis={axis})",
               a.moved(lambda v: np.take_along_axis(v, along, axis)))


@op(2)
def mask(p):
    x = p.any(has_dims)
    if x is None:
        return
    a = p.pool[x]
    chosen = p.rng.random(a.shape) < p.choose([0.0, 0.3, 0.9])
    text = f"np.array({chosen.tolist()}, bool).reshape({chosen.shape})"
    if p.chance(0.5):
        text = f"session.distribute_tensor({text}, mesh, {p.placements(chosen.ndim)})"
    p.keep(f"{x}[{text}]", a.moved(lambda v: v[chosen]))


@op()
def nonzero(p):
    x = p.any(lambda k: k.low.ndim and is_sure(k))
    if x is None:
        return
    a = p.pool[x]
    dim = int(p.rng.integers(a.low.ndim))
    p.keep(f"ts.nonzero({x})[{dim}]", kv.exactly(np.nonzero(a.low)[dim]))


@op()
def unique(p):
    x = p.any(is_sure)
    if x is None:
        return
    known = unsigned_zeros(p.pool[x])
    values, indices, inverse, counts = np.unique(known.low, return_index=True, return_inverse=True, return_counts=True)
    field, found = p.choose([("indices", indices), ("inverse_indices", inverse.reshape(known.shape)), ("counts", counts)])
    p.keep(f"ts.unique_all({x}).{field}", kv.exactly(np.asarray(found, "i8")))


@op(4)
def assign(p):
    x = p.any(has_dims)
    if x is None:
        return
    a = p.pool[x]
    keys = [":", "...", "1:", "::2", "::-1", "-1:"] + ["-1", "0"] * (a.shape[0] > 0)
    if a.low.ndim > 1:
        keys += [":, 1:", "..., ::2", "None, :, :2"]
    key = p.choose(keys)
    whole = eval(f"a[{key}]", {"a": a.low})     # noqa: S307 - our own text
    fitting = [y for y, b in p.pool.items() if b.dtype == a.dtype and b.shape in (whole.shape, whole.shape[1:], ())]
    if fitting and p.chance(0.6):
        value, known = (lambda y: (y, p.pool[y]))(p.choose(fitting))
    else:
        value = p.number(a.dtype)
        known = number_known(value, a.dtype)
    arrays = {}
    for f in kv.FIELDS:
        array = np.array(getattr(a, f))
        exec(f"a[{key}] = v", {"a": array, "v": getattr(known, f)})     # noqa: S102
        arrays[f] = array
    name = f"x{p.count}"
    p.keep(f"ts.asarray({x}, copy=True); {name}[{key}] = {value}", kv.Known(a.dtype, **arrays))


# ---- elementwise, along a dim --------------------------------------------------------------------

@op(3)
def rounded(p):
    x = p.any(lambda k: k.dtype != bool)
    if x is None:
        return
    a = p.pool[x]
    if not kv.is_float(a.dtype):
        if a.dtype.kind == "i" and p.chance(0.5):
            p.keep(f"ts.abs({x})", kv.integers(a.dtype, np.abs(a.low), a.open))
        else:
            p.keep(f"ts.bitwise_invert({x})", kv.integers(a.dtype, np.invert(a.low), a.open))
        return
    name = p.choose(["floor", "ceil", "trunc", "isnan", "isfinite"])
    if name in ("isnan", "isfinite"):
        sure = np.isfinite(a.low) == np.isfinite(a.high)
        value = a.nan if name == "isnan" else np.isfinite(a.low) & ~a.nan
        p.keep(f"ts.{name}({x})", kv.integers(np.dtype(bool), value, a.open | ~(sure | a.nan)))
        return
    function = getattr(np, name)
    low, high = function(a.low), function(a.high)
    p.keep(f"ts.{name}({x})", kv.Known(a.dtype, low, high, np.where(np.isfinite(high), np.maximum(abs(low), abs(high)), 0), a.nan,
                                       a.open, a.whole, np.zeros(a.shape, bool)))


def lines(known: kv.Known, axis: int, function) -> kv.Known:
    """Each line along the axis by itself: function(Known of a vector) -> Known of a vector."""
    moved = known.moved(lambda v: np.moveaxis(v, axis, -1))
    out = {f: np.empty(moved.shape, getattr(moved, f).dtype) for f in kv.FIELDS}
    for at in np.ndindex(*moved.shape[:-1]):
        line = function(moved.moved(lambda v, at=at: v[at]))
        for f in kv.FIELDS:
            out[f][at] = getattr(line, f)
    return kv.Known(known.dtype, **out).moved(lambda v: np.moveaxis(v, -1, axis))


def sorted_line(descending: bool):
    """The k-th of the numbers lies between the k-th lower and the k-th upper bound; NaN is above all."""
    def of(line: kv.Known) -> kv.Known:
        numbers = ~line.nan
        count = int(numbers.sum())
        low, high = np.zeros(len(line.low), line.low.dtype), np.zeros(len(line.low), line.low.dtype)
        low[:count], high[:count] = np.sort(line.low[numbers]), np.sort(line.high[numbers])
        nan = np.arange(len(line.low)) >= count
        if descending:
            low, high, nan = low[::-1], high[::-1], nan[::-1]
        none = np.zeros(len(line.low), bool)
        reach = np.full(len(line.low), line.reach.max() if line.reach.size else 0, line.reach.dtype)
        whole = none | line.whole.all()
        return kv.Known(line.dtype, low, high, reach, nan, none | line.open.any(), whole, none)
    return of


@op(3)
def sort(p):
    x = p.any(has_dims)
    if x is None:
        return
    a, descending = p.pool[x], p.chance(0.4)
    axis = some_axis(p, a)
    if is_sure(a) and p.chance(0.4):
        # Zeros of both signs are equal; from the largest on, equal ones stay in their order.
        key = np.where(a.low == 0, 0, a.low) if kv.is_float(a.dtype) else a.low
        ranks = np.unique(key, return_inverse=True)[1].reshape(a.shape)
        order = np.argsort(-ranks if descending else ranks, axis=axis, kind="stable")
        p.keep(f"ts.argsort({x}, axis={axis}, descending={descending})", kv.exactly(order.astype("i8")))
        return
    known = lines(a, axis, sorted_line(descending))
    p.keep(f"ts.sort({x}, axis={axis}, descending={descending})", kv.settled(unsigned_zeros(known)))


@op(3)
def scan(p):
    x = p.any(lambda k: k.low.ndim and k.dtype != bool)
    if x is None:
        return
    a = p.pool[x]
    axis = some_axis(p, a)
    name, function = p.choose([("cumulative_max", np.maximum), ("cumulative_min", np.minimum), ("cumulative_sum", None)])
    if function is None:
        if kv.is_float(a.dtype):
            if not (is_sure(a) and a.whole.all() and np.abs(a.low).sum() < 256):
                return
            known = kv.exactly(np.cumsum(a.low, axis=axis).astype(a.dtype))
        else:
            dtype = np.dtype("u8" if a.dtype.kind == "u" else "i8")
            known = kv.integers(dtype, np.cumsum(a.low, axis=axis, dtype=dtype), np.logical_or.accumulate(a.open, axis=axis))
    else:
        after = lambda v: np.logical_or.accumulate(v, axis=axis)      # noqa: E731
        nan, open_ = after(a.nan), after(a.open)
        if kv.is_float(a.dtype) and (open_.any() and nan.any()):
            return
        arrays = [function.accumulate(v, axis=axis) for v in (a.low, a.high)]
        known = kv.Known(a.dtype, *arrays, np.maximum.accumulate(a.reach, axis=axis) if kv.is_float(a.dtype) else a.reach, nan, open_,
                         ~after(~a.whole), np.zeros(a.shape, bool))
    p.keep(f"ts.{name}({x}, axis={axis})", kv.settled(unsigned_zeros(known)))


@op(2)
def arg(p):
    x = p.any(lambda k: k.low.size and k.dtype != bool and is_sure(k))
    if x is None:
        return
    a = p.pool[x]
    name = p.choose(["argmax", "argmin"])
    axis = p.choose([None] + list(range(a.low.ndim)))
    p.keep(f"ts.{name}({x}, axis={axis})", kv.exactly(np.asarray(getattr(np, name)(a.low, axis=axis), "i8")))


@op()
def found(p):
    x = p.any(lambda k: k.low.ndim == 1 and k.dtype != bool and is_sure(k))
    if x is None:
        return
    a = p.pool[x]
    y = p.choose([name for name, b in p.pool.items() if b.dtype == a.dtype and is_sure(b)])
    side = p.choose(["left", "right"])
    p.keep(f'ts.searchsorted(ts.sort({x}), {y}, side="{side}")',
           kv.exactly(np.asarray(np.searchsorted(np.sort(a.low), p.pool[y].low, side), "i8")))


@op()
def tests(p):
    x = p.any(lambda k: k.dtype == bool)
    if x is None:
        return
    a = p.pool[x]
    name, axis = p.choose(["any", "all"]), p.choose([None] + list(range(a.low.ndim)))
    fold = getattr(np, name)
    p.keep(f"ts.{name}({x}, axis={axis})", kv.integers(np.dtype(bool), np.asarray(fold(a.low, axis=axis)), np.any(a.open, axis=axis)))
