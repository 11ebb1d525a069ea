"""Whatever a client may call, as one of another make might: rows of the catalog with operands, attributes and numbers that are
drawn. A call gives tensors or an error, soon, and all servers stay. TESSERA_SEED and TESSERA_ROUNDS search further."""

import os
import random

import numpy as np

import _tessera
import tessera as ts
from tessera._dtypes import code_of

SEED, ROUNDS = int(os.environ.get("TESSERA_SEED", 1)), int(os.environ.get("TESSERA_ROUNDS", 1500))
ATTRIBUTES = dict(_tessera.attributes())
DTYPES = "bool int8 uint8 int32 int64 uint64 float32 float64 complex64".split()
TEXTS = ("sum mean none add max edge reflect wrap ij,jk->ik ij->ji 1 2 inf -inf fro nuc forward ortho right left tanh constant scalar "
         "input nonsense").split()
MAX_SECONDS = 60    # of one call, on a busy machine


class AnyCall:
    def __init__(self, session, draw: random.Random):
        self.draw = draw
        self.meshes = [session.init_device_mesh((4,)), session.init_device_mesh((2, 2)), session.init_device_mesh((3,), workers=[0, 1, 2])]

    def chance(self, part: float) -> bool:
        return self.draw.random() < part

    def integer(self) -> int:
        """Mostly small; sometimes what no dim, length or count may be."""
        if self.chance(0.03):
            return self.draw.choice([-2 ** 63, 2 ** 63 - 1])
        return self.draw.randint(-500, 500) if self.chance(0.1) else self.draw.randint(-1, 4)

    def tensor(self, mesh, shape=None):
        draw = self.draw
        if shape is None:
            shape = tuple(0 if self.chance(0.08) else draw.randint(1, 5) for _ in range(draw.randint(0, 4)))
        dtype = np.dtype(draw.choice(DTYPES))
        values = np.random.default_rng(draw.randint(0, 999)).normal(size=shape) * 3
        values = values > 0 if dtype == bool else (np.abs(values) if dtype.kind == "u" else values).astype(dtype)
        placements = [draw.choice([ts.Replicate(), *map(ts.Shard, range(len(shape)))]) for _ in range(mesh.ndim)]
        return ts.distribute_tensor(values, mesh, placements)

    def attribute(self, kind: str):
        draw = self.draw
        if kind == "flag":
            return self.chance(0.5)
        if kind == "integer":
            return self.integer()
        if kind == "number":
            return draw.choice([0.0, 0.5, -1.0, 2.0, float("inf"), 1e-5])
        if kind == "text":
            return draw.choice(TEXTS)
        if kind == "integers":
            return [self.integer() for _ in range(draw.randint(0, 4))]
        if kind == "shape":
            return [draw.randint(0, 5) for _ in range(draw.randint(0, 4))]
        return code_of(np.dtype(draw.choice(DTYPES)), "any") if kind == "dtype" else None

    def attributes(self, signature: str) -> dict:
        given = {}
        for name, kind in ATTRIBUTES.items():
            likely = 0.6 if name in signature else 0.35 if name == "dims" else 0.02
            value = self.attribute(kind) if self.chance(likely) else None
            if value is not None:
                given[name] = value
        if "dims" in given and self.chance(0.5):
            given["dims"] = [self.draw.randint(0, 2)]
        if self.chance(0.4):
            given["scalars"] = [self.draw.choice([0, 1, 2.5, -1, 7, True]) for _ in range(self.draw.randint(0, 6))]
        return given

    def operands(self, most: int) -> tuple:
        mesh = self.draw.choice(self.meshes)
        like = self.tensor(mesh)
        count = most if most < 6 and self.chance(0.8) else self.draw.randint(min(1, most), min(most, 6))
        out = []
        for _ in range(count):
            part = self.draw.random()
            out.append(self.draw.choice([1, 2.5, True, -3]) if part < 0.1 else
                       like if part < 0.55 else self.tensor(mesh, like.shape if part < 0.8 else None))
        return tuple(out)


def test_any_call_gives_tensors_or_an_error_and_ends_no_server(new_cluster):
    cluster = new_cluster(workers=4, memory="128MiB")
    session = cluster.connect()
    any_call = AnyCall(session, random.Random(SEED))
    given = refused = 0
    for _ in range(ROUNDS):
        number, name, _, most, signature, _ = any_call.draw.choice(_tessera.catalog())
        operands, attributes = any_call.operands(most), any_call.attributes(signature)
        said = f"{name} {attributes} of {[getattr(operand, '_spec', operand) for operand in operands]}"
        try:
            results = _tessera.call(number, operands, **attributes)
            for result in results if isinstance(results, tuple) else (results,):
                result.wait(timeout=MAX_SECONDS)
                result.full_tensor()
            given += 1
        except (ts.UnavailableError, ts.InternalError, ts.DeadlineExceededError) as error:
            raise AssertionError(f"{said}: {error}") from error
        except (ts.TesseraError, TypeError, ValueError, OverflowError):
            refused += 1
    assert given > ROUNDS / 4 and refused > ROUNDS / 10
    assert len(session.status()["workers"]) == 4
