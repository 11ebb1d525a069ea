"""Random programs against NumPy: any mesh, placements and ops, hundreds of ops in flight, memory reused all the time.

Values are small integers, so every sum is exact whatever its order. What is not an integer (quotients, means, roots)
is compared, but never an operand.
"""

import itertools

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
DTYPES = [np.dtype(name) for name in ("bool", "i4", "i8", "f4", "f8")]
MAX_ELEMENTS = 1 << 13
EXACT_LIMIT = 1 << 22  # sums of absolute values stay below it, so f32 holds them


def split(interval, parts):
    """torch.chunk: ceil(n/parts) each, the last ones short or empty."""
    start, stop = interval
    size = -(-(stop - start) // parts)
    return [(min(start + size * i, stop), min(start + size * (i + 1), stop)) for i in range(parts)]


def box_of(shape, placements, mesh_shape, position):
    box = [(0, n) for n in shape]
    for placement, parts, at in zip(placements, mesh_shape, position):
        if placement.is_shard():
            box[placement.dim] = split(box[placement.dim], parts)[at]
    return [(n, n) if start == stop else (start, stop) for n, (start, stop) in zip(shape, box)]  # empty ones at the end


def reduce_terms(terms, mesh_shape, placements):
    """The value of a grid of terms; all pending dims have one reduce op."""
    kinds = [p.reduce_op for p in placements if p.is_partial()]
    grid = np.stack(terms).reshape(tuple(mesh_shape) + terms[0].shape)
    index = tuple(slice(None) if p.is_partial() else 0 for p in placements)
    dims = tuple(range(len(kinds)))
    return {"sum": np.sum, "max": np.max, "min": np.min, "product": np.prod}[kinds[0]](grid[index], axis=dims).astype(grid.dtype)


class Program:
    """A pool of (tensor, its value in NumPy), to which random ops are applied."""

    def __init__(self, session, mesh, rng, extents, pool_size=8):
        self.session, self.mesh, self.rng, self.extents, self.pool_size = session, mesh, rng, extents, pool_size
        self.pool, self.leaves, self.log = [], [], []
        for _ in range(3):
            self.upload()

    # ---- choices ----

    def choose(self, options):
        return options[int(self.rng.integers(len(options)))]

    def shape(self, rank=None):
        rank = self.choose([0, 1, 1, 2, 2, 2, 2, 3]) if rank is None else rank
        extents = [int(self.choose(self.extents)) for _ in range(rank)]
        return tuple(extents) if np.prod(extents) <= MAX_ELEMENTS else self.shape(min(rank, 2))

    def placements(self, rank):
        return [self.choose([R()] + [S(d) for d in range(rank)]) for _ in self.mesh.shape]

    def values(self, shape, dtype, low=-3, high=4):
        if dtype == np.bool_:
            return self.rng.integers(0, 2, shape).astype(bool)
        return self.rng.integers(low, high, shape).astype(dtype)

    def any(self, fits=lambda value: True):
        fitting = [one for one in self.pool if fits(one[1])]
        return self.choose(fitting) if fitting else None

    # ---- what comes and goes ----

    def keep(self, tensor, value, text, exact=True):
        value = np.asarray(value)
        assert tensor.shape == value.shape and tensor.dtype == value.dtype, (text, tensor, value.shape, value.dtype)
        self.log.append(f"{text} = {tensor!r}")
        if not exact:
            self.leaves.append((tensor, value, len(self.log)))
            if len(self.leaves) > 4:
                del self.leaves[int(self.rng.integers(4))]
            return
        if value.dtype != np.bool_ and value.size and np.abs(value.astype("f8")).sum() > EXACT_LIMIT:
            return
        self.pool.append((tensor, value, len(self.log)))
        while len(self.pool) > self.pool_size:
            del self.pool[int(self.rng.integers(self.pool_size))]

    def upload(self, rank=None):
        shape, dtype = self.shape(rank), self.choose(DTYPES)
        value, placements = self.values(shape, dtype), self.placements(len(shape))
        self.keep(self.session.distribute_tensor(value, self.mesh, placements), value, "distribute")

    def pending(self):
        dtype, shape = self.choose(DTYPES[1:]), self.shape()
        kind = self.choose(["sum", "max", "min", "product"])
        placements = [P(kind) if self.rng.random() < 0.6 else p for p in self.placements(len(shape))]
        if not any(p.is_partial() for p in placements):
            placements[0] = P(kind)
        low, high = (-1, 3) if kind == "product" else (-3, 4)
        positions = self.mesh.positions()
        coordinates = [tuple(c if p.is_partial() else 0 for c, p in zip(position, placements)) for position in positions]
        terms = {c: self.values(shape, dtype, low, high) for c in set(coordinates)}
        locals_ = {}
        for position, c in zip(positions, coordinates):
            box = box_of(shape, placements, self.mesh.shape, position)
            locals_[position] = terms[c][tuple(slice(*i) for i in box)]
        value = reduce_terms([terms[c] for c in coordinates], self.mesh.shape, placements)
        tensor = self.session.from_local(locals_, self.mesh, placements, shape=shape)
        self.keep(tensor, value, f"from_local {placements}")

    def create(self):
        shape, dtype = self.shape(), self.choose(DTYPES[1:])
        options = {"device_mesh": self.mesh, "placements": self.placements(len(shape)), "dtype": dtype}
        fill = int(self.rng.integers(-3, 4))
        self.keep(ts.full(shape, fill, **options), np.full(shape, fill, dtype), "full")
        n = int(self.choose(self.extents))
        options["placements"] = self.placements(1)
        self.keep(ts.arange(2, 2 + 3 * n, 3, **options), np.arange(2, 2 + 3 * n, 3, dtype=dtype), "arange")
        options["placements"] = self.placements(2)
        m, k = int(self.choose(self.extents)), int(self.rng.integers(-2, 3))
        self.keep(ts.eye(n, m, k=k, **options), np.eye(n, m, k=k, dtype=dtype), "eye")

    # ---- ops ----

    def binary(self):
        x, a, _ = self.any()
        other = self.any(lambda b: self.broadcasts(a, b))
        if other is None or self.rng.random() < 0.2:
            other = (number := self.choose([2, -1, 3, 0]), number, 0)
        y, b, _ = other
        if np.asarray(a).dtype == np.bool_ and np.asarray(b).dtype == np.bool_:
            name = self.choose(["equal", "not_equal", "less", "greater_equal"])
        else:
            name = self.choose(["add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "greater", "less_equal"])
        if self.rng.random() < 0.5:
            x, a, y, b = y, b, x, a
        self.keep(getattr(ts, name)(x, y), getattr(np, name)(a, b), f"{name}({x!r}, {y!r})")

    @staticmethod
    def broadcasts(a, b):
        try:
            return np.prod(np.broadcast_shapes(a.shape, b.shape)) <= MAX_ELEMENTS
        except ValueError:
            return False

    def in_place(self):
        x, a, number = self.any()
        other = self.any(lambda b: self.broadcasts(a, b) and np.broadcast_shapes(a.shape, b.shape) == a.shape
                         and np.promote_types(a.dtype, b.dtype) == a.dtype and a.dtype != np.bool_)
        if other is None:
            return
        x = x.copy() if x._shares_elements else x   # the arrays beside the tensors share none
        kept, before = x[...].copy(), a
        y, b, _ = other
        at = next(i for i, one in enumerate(self.pool) if one[2] == number)
        del self.pool[at]
        after = a + b
        placements = x.placements
        x += y
        assert x.placements == placements or any(p.is_partial() for p in placements)
        self.keep(x, after, f"x += {y!r}")
        self.keep(kept, before, "slice before +=")

    def unary(self):
        x, a, _ = self.any()
        if a.dtype != np.bool_:
            self.keep(-x, -a, f"-{x!r}")
            self.keep(ts.relu(x), np.maximum(a, 0).astype(a.dtype), f"relu({x!r})")
        if a.dtype.kind == "f":
            self.keep(ts.sqrt(x * x), np.sqrt(a * a), "sqrt", exact=False)
            self.keep(ts.exp(ts.minimum(x, 3)), np.exp(np.minimum(a, 3)), "exp", exact=False)
            self.keep(x / 4, a / 4, "quotient", exact=False)

    def where(self):
        condition = self.any(lambda c: c.dtype == np.bool_)
        x, a, _ = self.any()
        if condition is None or not self.broadcasts(condition[1], a):
            x, a, _ = self.any()
            condition = (x > 0, a > 0, 0) if a.dtype != np.bool_ else (x, a, 0)
        shape = np.broadcast_shapes(condition[1].shape, a.shape)
        other = self.any(lambda b: self.broadcasts(np.empty(shape, "?"), b) and b.dtype == a.dtype)
        self.keep(ts.where(condition[0], x, other[0]) if other else ts.where(condition[0], x, x),
                  np.where(condition[1], a, other[1] if other else a), f"where({condition[0]!r}, {x!r}, {other and other[0]!r})")

    def axes(self, rank):
        options = [None] + list(range(-rank, rank)) + list(itertools.combinations(range(rank), 2))
        return self.choose(options)

    def reduction(self):
        x, a, _ = self.any(lambda a: True)
        axis, keepdims = self.axes(a.ndim), bool(self.rng.integers(2))
        want = np.sum(a, axis=axis, keepdims=keepdims)
        self.keep(ts.sum(x, axis=axis, keepdims=keepdims), want, f"sum({x!r}, {axis})")
        if a.size == 0 or a.dtype == np.bool_:
            return
        for name in ("max", "min"):
            self.keep(getattr(ts, name)(x, axis=axis, keepdims=keepdims),
                      getattr(np, name)(a, axis=axis, keepdims=keepdims), f"{name}({x!r}, {axis})")
        if a.dtype.kind == "f":
            self.keep(ts.mean(x, axis=axis, keepdims=keepdims), np.mean(a, axis=axis, keepdims=keepdims),
                      f"mean({x!r}, {axis})", exact=False)

    def arg_reduction(self):
        one = self.any(lambda a: a.ndim and a.size and a.dtype != np.bool_)
        if one is None:
            return
        x, a, _ = one
        axis, keepdims = self.choose(list(range(-a.ndim, a.ndim))), bool(self.rng.integers(2))
        name = self.choose(["argmin", "argmax"])
        self.keep(getattr(ts, name)(x, axis=axis, keepdims=keepdims),
                  getattr(np, name)(a, axis=axis, keepdims=keepdims), f"{name}({x!r}, {axis})")

    def matmul(self):
        x = self.any(lambda a: a.ndim == 2 and a.dtype != np.bool_)
        if x is None:
            return self.upload(rank=2)
        x, a, _ = x
        y = self.any(lambda b: b.ndim == 2 and b.shape[0] == a.shape[1] and b.dtype == a.dtype)
        if y is None:
            value = self.values((a.shape[1], int(self.choose(self.extents))), a.dtype)
            y = (self.session.distribute_tensor(value, self.mesh, self.placements(2)), value, 0)
        y, b, _ = y
        if (np.abs(a.astype("f8")) @ np.abs(b.astype("f8"))).sum() <= EXACT_LIMIT:
            self.keep(x @ y, a @ b, f"{x!r} @ {y!r}")

    def permute(self):
        x, a, _ = self.any()
        order = tuple(int(i) for i in self.rng.permutation(a.ndim))
        self.keep(ts.permute_dims(x, order), a.transpose(order), f"permute({x!r}, {order})")

    def index(self):
        x, a, _ = self.any()
        key = []
        for n in a.shape:
            kind = self.rng.random()
            if kind < 0.15 and n:
                key.append(int(self.rng.integers(-n, n)))
            elif kind < 0.7:
                start, stop = (self.choose([None, *range(-n - 1, n + 2)]) for _ in range(2))
                key.append(slice(start, stop, self.choose([None, 1, 2, 3, -1, -2])))
            else:
                key.append(slice(None))
            if self.rng.random() < 0.1 and a.ndim < 4:
                key.append(None)
        self.keep(x[tuple(key)], a[tuple(key)], f"{x!r}[{key}]")

    def reshape(self):
        x, a, _ = self.any()
        shapes = [(-1,), (1,) + a.shape, a.shape + (1,)]
        if a.ndim == 2:
            shapes += [(a.shape[0] * a.shape[1],), (a.shape[0], 1, a.shape[1])]
        for n in (2, 4):
            if a.ndim and a.shape[-1] % n == 0 and a.size:
                shapes.append(a.shape[:-1] + (n, a.shape[-1] // n))
        shape = self.choose(shapes)
        if a.size == 0 and -1 in shape:
            return
        self.keep(ts.reshape(x, shape), a.reshape(shape), f"reshape({x!r}, {shape})")

    def astype(self):
        x, a, _ = self.any()
        dtype = self.choose(DTYPES)
        self.keep(x.astype(dtype), a.astype(dtype), f"{x!r}.astype({dtype})")

    def redistribute(self):
        x, a, _ = self.any()
        placements = self.placements(a.ndim)
        self.keep(x.redistribute(placements), a, f"{x!r} -> {placements}")

    def move(self):
        """To a mesh of other workers, some work there, and back."""
        x, a, _ = self.any()
        other = self.choose(meshes(self.session))
        there = x.redistribute(other, [self.choose([R()] + [S(d) for d in range(a.ndim)]) for _ in other.shape])
        if a.dtype != np.bool_:
            there, a = there + 1, a + 1
        self.leaves.append((there, a, len(self.log)))
        self.keep(there.redistribute(self.mesh, self.placements(a.ndim)), a, f"{x!r} by {other}")

    def same_workers(self):
        """An operand on another arrangement of the same workers."""
        x, a, _ = self.any()
        turned = self.session.init_device_mesh((self.mesh.size(),), workers=sorted(self.mesh.workers))
        placement = [self.choose([R()] + [S(d) for d in range(a.ndim)])]
        y = x.redistribute(turned, placement)
        z = ts.where(x == y, y, x)      # on the mesh of either
        self.leaves.append((z, a, len(self.log)))
        self.keep(z.redistribute(self.mesh, self.placements(a.ndim)), a, f"{x!r} with {y!r}")

    def drop(self):
        if len(self.pool) > 2:
            del self.pool[int(self.rng.integers(len(self.pool)))]

    def look(self):
        """A value in the middle of everything, or one shard."""
        x, a, number = self.any()
        if self.rng.random() < 0.5 or any(p.is_partial() for p in x.placements):
            self.check(x, a, number)
            return
        position = self.choose(self.mesh.positions())
        box = box_of(a.shape, x.placements, self.mesh.shape, position)
        assert x.box(position) == box
        np.testing.assert_array_equal(x.to_local(position), a[tuple(slice(*i) for i in box)], err_msg=self.text(number))

    # ---- the run ----

    STEPS = ["binary"] * 4 + ["redistribute"] * 4 + ["matmul"] * 3 + ["index"] * 3 + ["reduction"] * 2 + ["permute"] * 2 + [
        "in_place", "unary", "where", "arg_reduction", "reshape", "astype", "upload", "pending", "create", "move", "move", "same_workers", "drop", "drop"]

    def text(self, number):
        return f"line {number} of:\n" + "\n".join(self.log[max(0, number - 12):number])

    def check(self, tensor, value, number, exact=True):
        got = tensor.full_tensor()
        assert got.dtype == value.dtype and got.shape == value.shape
        if exact:
            np.testing.assert_array_equal(got, value, err_msg=self.text(number))
        else:
            np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=self.text(number))

    def step(self):
        if len(self.pool) < 2:
            self.upload()
        getattr(self, self.choose(self.STEPS))()

    def run(self, steps, look_every=0):
        for step in range(steps):
            self.step()
            if look_every and step % look_every == 0 and self.pool:
                self.look()
        self.check_all()

    def check_all(self):
        for tensor, value, number in self.pool:
            self.check(tensor, value, number)
        for tensor, value, number in self.leaves:
            self.check(tensor, value, number, exact=False)


def meshes(session):
    return [session.init_device_mesh((1,), workers=[2]), session.init_device_mesh((2,)),
            session.init_device_mesh((2,), workers=[3, 1]), session.init_device_mesh((4,)),
            session.init_device_mesh((4,), workers=[2, 0, 3, 1]), session.init_device_mesh((2, 2)),
            session.init_device_mesh((2, 2), mesh_dim_names=("a", "b"), workers=[3, 0, 1, 2])]


@pytest.mark.parametrize("seed", range(14))
def test_random_programs(session, seed):
    mesh = meshes(session)[seed % 7]
    Program(session, mesh, np.random.default_rng(seed), extents=[0, 1, 2, 3, 5, 7, 16]).run(150, look_every=0 if seed < 7 else 9)


@pytest.fixture(scope="module")
def small_cluster():
    import conftest
    with ts.local_cluster(workers=4, memory="2MiB", transport=conftest.TRANSPORT) as cluster:
        yield cluster


@pytest.mark.whole_system
@pytest.mark.parametrize("seed", range(100, 106))
def test_ranges_are_reused_while_ops_are_in_flight(small_cluster, seed):
    with small_cluster.connect() as session:
        mesh = meshes(session)[3 + seed % 4]
        Program(session, mesh, np.random.default_rng(seed), extents=[1, 48, 64, 80], pool_size=5).run(200)


@pytest.mark.whole_system
def test_sessions_share_the_memory(small_cluster):
    with small_cluster.connect() as one, small_cluster.connect() as other:
        programs = [Program(session, meshes(session)[number], np.random.default_rng(number), [1, 16, 48], pool_size=4)
                    for session, number in ((one, 4), (other, 6), (other, 2))]
        for _ in range(100):
            for program in programs:
                program.step()
        for program in programs:
            program.check_all()
