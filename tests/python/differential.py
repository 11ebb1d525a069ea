"""Random programs of 1 to 12 ops on random meshes and placements, compared with what is known of their results.

Values are of every dtype, and of floats also 0, -0, infinities, NaN, subnormals and the largest; shards are uneven and
empty; operands lie where they lie, so that many ops redistribute; tensors are dropped in the middle. What is known is in
known_values.py. An op is a function here or in differential_ops.py, listed by `@op(weight)`: it picks operands from program.pool, and calls
program.keep(source text, Known), or returns where nothing fits.

    tools/fuzz --programs 10000 --seed 7      each program is that of its own number: seed, seed + 1, ...

A program that fails prints itself as a Python script that shows it.
"""

from __future__ import annotations

import argparse
import re
import sys

import numpy as np

import differential_ops
import known_values as kv
import tessera as ts

DTYPES = [np.dtype(name) for name in ("f8", "f8", "f4", "f4", "f2", "i8", "i4", "u1", "i1", "u8", "bool")] + [ts.bfloat16]
EXTENTS = [0, 1, 1, 2, 3, 4, 5, 7, 9]
MAX_ELEMENTS = 400
OPS = []
op = differential_ops.listed_in(OPS)


class Program:
    """Statements of Python, and what is known of each variable that they leave."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.seed, self.count = seed, 0
        self.lines: list[str] = []
        self.pool: dict[str, kv.Known] = {}
        shape, workers = self.choose([((1,), [2]), ((2,), [0, 1]), ((3,), [0, 1, 2]), ((4,), [0, 1, 2, 3]), ((4,), [2, 0, 3, 1]),
                                      ((2, 2), [0, 1, 2, 3]), ((2, 2), [3, 0, 1, 2])])
        self.mesh_shape = shape
        self.lines.append(f"mesh = session.init_device_mesh({shape}, workers={workers})")
        upload(self)
        steps = int(self.rng.integers(1, 13))
        while steps and len(self.lines) < 60:
            before = len(self.lines)
            self.choose(OPS)(self)
            steps -= len(self.lines) > before

    # ---- choices ----

    def choose(self, options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability) -> bool:
        return bool(self.rng.random() < probability)

    def any(self, fits=lambda known: True):
        """One of the operands that fit, most often the last one: then ops follow on one that may be pending."""
        names = [name for name, known in self.pool.items() if fits(known)]
        if names and self.chance(0.4):
            return names[-1]
        return self.choose(names) if names else None

    def shape(self, rank=None):
        rank = self.choose([0, 1, 1, 2, 2, 2, 3]) if rank is None else rank
        shape = tuple(int(self.choose(EXTENTS)) for _ in range(rank))
        return shape if np.prod(shape) <= MAX_ELEMENTS else self.shape(rank)

    def placements(self, rank, partial=None) -> str:
        options = ["ts.Replicate()"] + [f"ts.Shard({d})" for d in range(rank)]
        texts = [self.choose(options) for _ in self.mesh_shape]
        if partial is not None:
            for i in range(len(texts)):
                if self.chance(0.6):
                    texts[i] = f'ts.Partial("{partial}")'
        return f"[{', '.join(texts)}]"

    def number(self, dtype):
        """A Python number, as text, that stands beside a tensor of the dtype."""
        if dtype == bool:
            return self.choose(["True", "False"])
        if not kv.is_float(dtype):
            return str(int(self.choose([0, 1, 2, 3, 7])))
        return repr(self.choose([0.0, -0.0, 1.0, 2.0, -0.5, 3, 0.1, 100, float("inf"), float("-inf"), float("nan")]))

    def values(self, shape, dtype) -> np.ndarray:
        if not kv.is_float(dtype):
            low, high = (0, 2) if dtype == bool else (0, 7) if dtype.kind == "u" else (-6, 7)
            out = self.rng.integers(low, high, shape).astype(dtype)
            if dtype != bool and self.chance(0.3):
                info = np.iinfo(dtype)
                edge = self.rng.random(shape) < 0.3
                out = np.where(edge, self.rng.choice(np.array([info.min, info.max], dtype), shape), out)
            return np.asarray(out, dtype)
        small = self.rng.integers(-4, 5, shape).astype("f8")
        kind = self.rng.random()
        if kind < 0.3:
            small = self.rng.standard_normal(shape)
        out = np.asarray(small).astype(dtype)
        if self.chance(0.6):
            f = kv.format_of(dtype)
            specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, float(f.tiny), -float(f.tiny)] +
                                [float(f.most) * s for s in (0.2, -0.2, 0.2, -0.2, 0.9, 1)] * self.chance(0.4)).astype(dtype)
            few = self.rng.random(shape) < self.choose([0.1, 0.4, 1])
            out = np.where(few, self.rng.choice(specials, shape), out)
        return np.asarray(out, dtype)

    # ---- what a program says ----

    def keep(self, source: str, known: kv.Known) -> str:
        name = f"x{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {source}")
        self.pool[name] = known
        return name

    def needed(self, name: str) -> list[str]:
        """The lines that lead to a variable."""
        names, lines = {name}, []
        for line in reversed(self.lines):
            target = line.split(" = ")[0]
            if target in names or target == "mesh":
                names.update(re.findall(r"\bx\d+\b", line))
                lines.insert(0, line)
        return lines

    def script(self, name: str = "", what: str = "") -> str:
        body = "\n".join(f"    {line}" for line in (self.needed(name) if name else self.lines))
        show = f"    print({name}, {name}.full_tensor())    # {what}\n" if name else ""
        return ("import numpy as np, tessera as ts\nfrom numpy import inf, nan\n\n"
                'with ts.local_cluster(workers=4, memory="4MiB") as cluster:\n'
                f"    session = cluster.connect()\n{body}\n{show}")

    def run(self, session) -> str:
        """"" when all came out as it should; else what did not, and the script that shows it."""
        space = {"session": session, "ts": ts, "np": np, "inf": np.inf, "nan": np.nan}
        for number, line in enumerate(self.lines):
            try:
                exec(line, space)   # noqa: S102 - the script that a failure prints is what ran
            except Exception as error:
                return f"seed {self.seed}: line {number}: {type(error).__name__}: {error}\n{self.script()}"
        for name, known in self.pool.items():
            try:
                wrong = kv.mismatch(space[name].full_tensor(), known)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                return f"seed {self.seed}: {name} = {space[name]!r} {wrong}\n{self.script(name, wrong)}"
        return ""


def array_text(value: np.ndarray) -> str:
    if value.dtype == ts.bfloat16:
        return f"np.array({value.astype('f8').tolist()!r}).astype(ts.bfloat16).reshape({value.shape})"
    return f'np.array({value.tolist()!r}, dtype="{value.dtype}").reshape({value.shape})'


# ---- where tensors come from ---------------------------------------------------------------------

@op(2)
def upload(p, shape=None, dtype=None):
    shape = p.shape() if shape is None else shape
    value = p.values(shape, p.choose(DTYPES) if dtype is None else dtype)
    return p.keep(f"session.distribute_tensor({array_text(value)}, mesh, {p.placements(len(shape))})", kv.exactly(value))


@op(2)
def pending(p, dtype=None):
    """Terms of a sum, an average, an extreme or a product, by from_local."""
    dtype = p.choose([d for d in DTYPES if d != bool]) if dtype is None else dtype
    shape = p.shape(p.choose([0, 1, 2]))
    kind = p.choose(["sum", "sum", "avg", "max", "min"] if kv.is_float(dtype) else ["sum", "max", "min", "product"])
    placements = [kind if p.chance(0.7) else None for _ in p.mesh_shape]
    if not any(placements):
        placements[0] = kind
    grid = tuple(n if placement else 1 for n, placement in zip(p.mesh_shape, placements))
    terms = p.values(grid + shape, dtype)
    dims = list(range(len(grid)))
    full = np.broadcast_to(terms, p.mesh_shape + shape)
    positions = list(np.ndindex(*p.mesh_shape))
    locals_ = ", ".join(f"{position}: {array_text(np.asarray(full[position]))}" for position in positions)
    text = ", ".join(f'ts.Partial("{kind}")' if placement else "ts.Replicate()" for placement in placements)
    known = kv.exactly(terms)
    if kind in ("sum", "avg"):
        value = kv.total(known, dims, False, dtype)
        if kind == "avg":
            reach = value.reach
            value = kv.divide(value, kv.exactly(np.array(np.prod(grid), dtype)))
            value.reach = np.maximum(value.reach, reach)    # what is added to all terms counts as often as there are terms
            value.open = value.open | (reach * len(positions) > kv.format_of(dtype).most / 2) & ~value.nan
    elif kind == "product":
        value = kv.integers(dtype, np.prod(terms, axis=tuple(dims), dtype=dtype), False)
    else:
        value = kv.extreme_over(np.maximum if kind == "max" else np.minimum, known, dims, False)
    return p.keep(f"session.from_local({{{locals_}}}, mesh, [{text}], shape={shape})", value)


@op()
def create(p):
    shape, dtype = p.shape(), p.choose([d for d in DTYPES if d != bool])
    number = p.number(dtype)
    name = dtype.name
    value = np.full(shape, eval(number, {"inf": np.inf, "nan": np.nan}), dtype)     # noqa: S307 - our own text
    p.keep(f'ts.full({shape}, {number}, dtype="{name}", device_mesh=mesh, placements={p.placements(len(shape))})', kv.exactly(value))


# ---- elementwise ---------------------------------------------------------------------------------

BINARY = {"add": kv.add, "subtract": kv.subtract, "multiply": kv.multiply, "divide": kv.divide,
          "maximum": lambda a, b: kv.extreme(np.maximum, a, b), "minimum": lambda a, b: kv.extreme(np.minimum, a, b)}
COMPARISONS = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]


def broadcasts(a, b) -> bool:
    try:
        return np.prod(np.broadcast_shapes(a.shape, b.shape), dtype=int) <= MAX_ELEMENTS
    except ValueError:
        return False


@op(8)
def binary(p):
    x = p.any()
    a = p.pool[x]
    y = p.any(lambda b: b.dtype == a.dtype and broadcasts(a, b))
    if y is None:       # x alone is too large
        return
    b = p.pool[y]
    if p.chance(0.35):
        y = p.number(a.dtype)
        b = differential_ops.number_known(y, a.dtype)
    elif p.chance(0.5):
        y = upload(p, p.choose([a.shape, a.shape[1:], ()]), a.dtype)
        b = p.pool[y]
    if p.chance(0.5):
        x, a, y, b = y, b, x, a
    name = p.choose(list(BINARY) + COMPARISONS[:2]) if a.dtype != bool else p.choose(["equal", "not_equal"])
    if name in ("multiply", "divide") and x in p.pool and y in p.pool:
        a, b = kv.settled(a), kv.settled(b)     # what is pending is reduced beside a tensor of floats
    if name in COMPARISONS:
        known = kv.compare(name, a, b)
    elif name == "divide" and not kv.is_float(a.dtype):
        known = kv.divide(kv.cast(a, np.float64), kv.cast(b, np.float64))
    else:
        known = BINARY[name](a, b)
    p.keep(f"ts.{name}({x}, {y})", known)


@op(4)
def beside_specials(p):
    """A reduction, or given terms, beside all special values everywhere: where an identity, or a single term, would show."""
    dtype = p.choose([d for d in DTYPES if kv.is_float(d)])
    if p.chance(0.5):
        x = pending(p, dtype)
    else:
        source = upload(p, (int(p.choose([1, 2, 3, 5])), int(p.choose([1, 2, 3]))), dtype)
        name, fold = p.choose([("max", np.maximum), ("min", np.minimum), ("sum", None)])
        a = p.pool[source]
        known = kv.total(a, [0], False, dtype) if fold is None else kv.extreme_over(fold, a, [0], False)
        x = p.keep(f"ts.{name}({source}, axis=0)", known)
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 2.0]).astype(dtype)
    specials = specials.reshape((6,) + (1,) * p.pool[x].low.ndim)
    where_ = ", ".join(["ts.Replicate()"] * len(p.mesh_shape))
    y = p.keep(f"session.distribute_tensor({array_text(specials)}, mesh, [{where_}])", kv.exactly(specials))
    name = p.choose(list(BINARY))
    a, b = (kv.settled(p.pool[v]) if name in ("multiply", "divide") else p.pool[v] for v in (x, y))
    swapped = p.chance(0.3)
    p.keep(f"ts.{name}({y}, {x})" if swapped else f"ts.{name}({x}, {y})", BINARY[name](b, a) if swapped else BINARY[name](a, b))


@op(4)
def unary(p):
    x = p.any(lambda a: a.dtype != bool)
    if x is None:
        return
    a = p.pool[x]
    name = p.choose(["negative", "relu", "exp", "sqrt"])
    function = {"negative": kv.negative, "relu": kv.relu, "exp": kv.exp, "sqrt": kv.sqrt}[name]
    if name in ("exp", "sqrt") and not kv.is_float(a.dtype):
        a = kv.cast(a, np.float64)
    p.keep(f"ts.{name}({x})", function(a))


@op(2)
def where(p):
    x = p.any(lambda a: a.dtype != bool)
    if x is None:
        return
    a = p.pool[x]
    y = p.any(lambda b: b.dtype == a.dtype and broadcasts(a, b))
    if y is None:
        return
    condition = p.any(lambda c: c.dtype == bool and broadcasts(c, a) and broadcasts(c, p.pool[y]))
    if condition is None:
        condition = upload(p, a.shape, np.dtype(bool))
    if np.prod(np.broadcast_shapes(p.pool[condition].shape, a.shape, p.pool[y].shape), dtype=int) <= MAX_ELEMENTS:
        p.keep(f"ts.where({condition}, {x}, {y})", kv.where(p.pool[condition], a, p.pool[y]))


@op(3)
def astype(p):
    x = p.any()
    dtype = p.choose(DTYPES)
    p.keep(f'ts.astype({x}, "{dtype.name}")', kv.cast(p.pool[x], dtype))


# ---- reductions, products ------------------------------------------------------------------------

@op(6)
def reduction(p):
    x = p.any()
    a = p.pool[x]
    axes = p.choose([None] + list(range(a.low.ndim)) + [tuple(range(min(2, a.low.ndim)))])
    listed = list(range(a.low.ndim)) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    keepdims = p.chance(0.3)
    name = p.choose(["sum", "mean", "max", "min"])
    if name in ("max", "min"):
        if a.dtype == bool or any(a.shape[d] == 0 for d in listed):
            return
        known = kv.extreme_over(np.maximum if name == "max" else np.minimum, a, listed, keepdims)
    elif name == "sum":
        dtype = a.dtype if kv.is_float(a.dtype) else np.dtype("u8" if a.dtype.kind == "u" else "i8")
        known = kv.total(a, listed, keepdims, dtype)
    else:
        known = kv.mean(a, listed, keepdims, a.dtype if kv.is_float(a.dtype) else np.dtype("f8"))
    p.keep(f"ts.{name}({x}, axis={axes}, keepdims={keepdims})", known)
    if p.chance(0.6):
        binary(p)


@op(3)
def matmul(p):
    x = p.any(lambda a: a.low.ndim == 2 and a.dtype != bool)
    if x is None:
        x = upload(p, p.shape(2), p.choose(DTYPES[:6]))
    a = p.pool[x]
    y = p.any(lambda b: b.low.ndim == 2 and b.dtype == a.dtype and b.shape[0] == a.shape[1])
    if y is None or p.chance(0.3):
        y = upload(p, (a.shape[1], int(p.choose(EXTENTS))), a.dtype)
    p.keep(f"ts.matmul({x}, {y})", kv.matmul(kv.settled(a), kv.settled(p.pool[y])))


# ---- moves ---------------------------------------------------------------------------------------

@op(5)
def redistribute(p):
    x = p.any()
    p.keep(f"{x}.redistribute({p.placements(p.pool[x].low.ndim)})", p.pool[x].moved(lambda a: a))


@op(2)
def permute(p):
    x = p.any()
    order = tuple(int(i) for i in p.rng.permutation(p.pool[x].low.ndim))
    p.keep(f"ts.permute_dims({x}, {order})", p.pool[x].moved(lambda a: a.transpose(order)))


@op(3)
def index(p):
    x = p.any(lambda a: a.low.ndim)
    if x is None:
        return
    key = []
    for n in p.pool[x].shape:
        if p.chance(0.2) and n:
            key.append(str(int(p.rng.integers(-n, n))))
        else:
            start, stop = (p.choose(["", ""] + [str(i) for i in range(-n - 1, n + 2)]) for _ in range(2))
            key.append(f"{start}:{stop}:{p.choose(['', '', '2', '-1'])}")
    text = ", ".join(key)
    p.keep(f"{x}[{text}]", p.pool[x].moved(lambda a: eval(f"a[{text}]", {"a": a})))     # noqa: S307


@op(2)
def reshape(p):
    """Takes replicas: differential_ops has reshapes that move data between workers."""
    x = p.any()
    shape = p.choose([(-1,), (1,) + p.pool[x].shape, p.pool[x].shape[::-1], (2, -1)])
    if p.pool[x].low.size == 0 or (shape[:1] == (2,) and p.pool[x].low.size % 2):
        return
    everywhere = ", ".join(["ts.Replicate()"] * len(p.mesh_shape))
    p.keep(f"ts.reshape({x}.redistribute([{everywhere}]), {shape})", p.pool[x].moved(lambda a: a.reshape(shape)))


@op(2)
def drop(p):
    if len(p.pool) > 2:
        name = p.any()
        del p.pool[name]
        p.lines.append(f"del {name}")


OPS.extend(differential_ops.OPS)


# ---- the tool ------------------------------------------------------------------------------------

def run_programs(session, seeds) -> list[str]:
    with np.errstate(all="ignore"):
        return [failure for seed in seeds if (failure := Program(seed).run(session))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first; the others follow it")
    parser.add_argument("--show", action="store_true", help="print the program of the seed, and run nothing")
    options = parser.parse_args()
    if options.show:
        with np.errstate(all="ignore"):
            print(Program(options.seed).script())
        return 0
    failures = 0
    with ts.local_cluster(workers=4, memory="4MiB") as cluster:
        for start in range(options.seed, options.seed + options.programs, 100):
            with cluster.connect() as session:
                for failure in run_programs(session, range(start, min(start + 100, options.seed + options.programs))):
                    failures += 1
                    print(failure, flush=True)
    print(f"{options.programs} programs, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
