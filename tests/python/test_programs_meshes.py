"""Random programs over many meshes that overlap, with hundreds of ops in flight: everything ends, with NumPy's values."""

import numpy as np
import pytest

import tessera as ts

from test_programs import Program

WORKERS = 6
ALL_END_SECONDS = 120


@pytest.fixture(scope="module")
def six_workers():
    import conftest
    with ts.local_cluster(workers=WORKERS, memory="16MiB", transport=conftest.TRANSPORT) as cluster:
        yield cluster


def overlapping_meshes(session):
    def mesh(shape, workers):
        return session.init_device_mesh(shape, workers=workers)

    named = session.init_device_mesh((2, 2), workers=[1, 3, 2, 0], mesh_dim_names=("x", "y"))
    return [*(mesh((1,), [worker]) for worker in range(WORKERS)),
            mesh((2,), [0, 1]), mesh((2,), [1, 0]), mesh((2,), [5, 0]), mesh((2,), [2, 3]), mesh((2,), [4, 5]),
            mesh((3,), [0, 2, 1]), mesh((3,), [3, 1, 2]), mesh((3,), [5, 3, 4]), mesh((4,), [4, 2, 0, 5]),
            mesh((6,), list(range(WORKERS))), mesh((6,), [5, 4, 3, 2, 1, 0]), mesh((2, 2), [3, 0, 1, 2]),
            mesh((2, 2), [5, 4, 1, 0]), mesh((3, 2), [5, 0, 1, 4, 2, 3]), mesh((1, 2), [1, 3]), mesh((2, 1), [2, 0]),
            named[0], named[:, 1], named["y", "x"], named.flatten("z")]


class ManyMeshes(Program):
    """Each step is on a mesh of its own, to which its operands come."""

    STEPS = Program.STEPS + ["several"] * 4 + ["swap"] * 3 + ["convert"] * 2

    def __init__(self, session, rng, extents, **options):
        self.meshes = overlapping_meshes(session)
        super().__init__(session, self.meshes[0], rng, extents, **options)

    def any(self, fits=lambda value: True):
        one = super().any(fits)
        if one is None or one[0].device_mesh == self.mesh:
            return one
        tensor, value, number = one
        return tensor.redistribute(self.mesh, self.placements(value.ndim)), value, number

    def placements_on(self, mesh, rank):
        self.mesh = mesh
        return self.placements(rank)

    def several(self):
        """By one op; those on several meshes stay there, or all come to one."""
        some = [self.choose(self.pool) for _ in range(int(self.rng.integers(2, 5)))]
        mesh = self.choose([None, self.choose(self.meshes)])
        placements = [self.placements_on(mesh or x.device_mesh, value.ndim) for x, value, _ in some]
        for y, (x, value, _) in zip(ts.redistribute([x for x, _, _ in some], mesh, placements), some):
            self.keep(y, value, f"{x!r} among {len(some)}")

    def swap(self):
        """Two tensors change places, each while the other is on its way."""
        for _ in range(2):
            (x, a, _), (y, b, _) = self.choose(self.pool), self.choose(self.pool)
            here, there = x.device_mesh, y.device_mesh
            self.keep(x.redistribute(there, self.placements_on(there, a.ndim)), a, f"swap {x!r}")
            self.keep(y.redistribute(here, self.placements_on(here, b.ndim)), b, f"swap {y!r}")

    def convert(self):
        """On the way to another mesh, and back."""
        x, value, _ = self.choose(self.pool)
        if value.dtype == np.bool_ or (value.size and np.abs(value).max() > 255):
            return
        for dtype in (self.choose(["int16", "float16", "float32", "float64", "int64"]), value.dtype):
            mesh = self.choose(self.meshes)
            x = x.redistribute(mesh, self.placements_on(mesh, value.ndim), dtype=dtype)
        self.keep(x, value, f"converted to {dtype}")

    def step(self):
        self.mesh = self.choose(self.meshes)
        super().step()

    def check_all(self):
        ts.wait(*(one[0] for one in self.pool + self.leaves), timeout=ALL_END_SECONDS)
        super().check_all()


@pytest.mark.whole_system
@pytest.mark.parametrize("seed", range(200, 208))
def test_random_programs_over_overlapping_meshes(six_workers, seed):
    with six_workers.connect() as session:
        program = ManyMeshes(session, np.random.default_rng(seed), [0, 1, 2, 3, 5, 16], pool_size=10)
        program.run(150, look_every=0 if seed % 2 else 25)


@pytest.mark.whole_system
def test_sessions_over_overlapping_meshes(six_workers):
    with six_workers.connect() as one, six_workers.connect() as other, six_workers.connect() as third:
        programs = [ManyMeshes(session, np.random.default_rng(300 + number), [1, 16, 40], pool_size=8)
                    for number, session in enumerate((one, other, third))]
        for _ in range(80):
            for program in programs:
                program.step()
        for program in programs:
            program.check_all()
