"""Shards to shards, beside plain copy loops of as many processes."""

import dataclasses
import math

import numpy as np

import tessera as ts

from . import measure, peers
from .measure import Goal

TWO_WORKERS = Goal("limit", 1.3)
OVERSUBSCRIBED = Goal("limit", 1.5)
WHOLE = -1


@dataclasses.dataclass(frozen=True)
class Case:
    """`source` and `destination`: the tensor dim that each mesh dim shards."""
    extents: tuple
    mesh: tuple
    source: tuple
    destination: tuple
    goal: Goal
    dtype: str = "f8"
    peers: tuple = ()


CASES = {
    "rows_to_columns_8192_f64": Case((8192, 8192), (2,), (0,), (1,), TWO_WORKERS, peers=("scalapack", "dtensor")),
    "rows_to_columns_8191x8193_f64": Case((8191, 8193), (2,), (0,), (1,), TWO_WORKERS),
    "rows_to_columns_4096_f32": Case((4096, 4096), (2,), (0,), (1,), TWO_WORKERS, "f4", peers=("open_mpi", "dtensor")),
    "rows_to_columns_8192_f32": Case((8192, 8192), (2,), (0,), (1,), TWO_WORKERS, "f4"),
    "rows_to_columns_16384_u8": Case((16384, 16384), (2,), (0,), (1,), TWO_WORKERS, "u1"),
    "first_to_last_512x384x320_f64": Case((512, 384, 320), (2,), (0,), (2,), TWO_WORKERS),
    "first_to_middle_511x383x321_f32": Case((511, 383, 321), (2,), (0,), (1,), TWO_WORKERS, "f4"),
    "columns_to_rows_8192_f64": Case((8192, 8192), (2,), (1,), (0,), TWO_WORKERS),
    "rows_to_columns_8192_f64_4_workers": Case((8192, 8192), (4,), (0,), (1,), OVERSUBSCRIBED),
    "blocks_swapped_8191x8193_f64_4_workers": Case((8191, 8193), (2, 2), (0, 1), (1, 0), OVERSUBSCRIBED),
    "36_blocks_8191x8193_f64_6_workers": Case((8191, 8193), (6,), (0,), (1,), OVERSUBSCRIBED),
}


def placements(dims):
    return [ts.Replicate() if dim == WHOLE else ts.Shard(dim) for dim in dims]


def values_of(case):
    count = math.prod(case.extents)
    return np.arange(count, dtype=np.int64).astype(case.dtype).reshape(case.extents)


def peers_of(case, total_bytes):
    """From rows to columns; Open MPI's all-to-all is of the bytes alone, which it would still have to arrange."""
    dtype = {"f8": "float64", "f4": "float32"}.get(case.dtype)
    known = {"scalapack": lambda: peers.scalapack("redistribute", 2, m=case.extents[0], n=case.extents[1]),
             "open_mpi": lambda: peers.open_mpi("all_to_all", total_bytes, 2),
             "dtensor": lambda: peers.dtensor("redistribute", extents=case.extents, dtype=dtype, source="S0", destination="S1")}
    return {name: known[name]() for name in case.peers}


def run(options, name):
    case = CASES[name]
    itemsize = np.dtype(case.dtype).itemsize
    total = math.prod(case.extents) * itemsize
    workers = math.prod(case.mesh)
    references = {"limit": measure.limit("redistribute", extents=case.extents, mesh=case.mesh, source=case.source,
                                         destination=case.destination, element_bytes=itemsize)}
    if options.peers:
        references |= peers_of(case, total)
    with measure.running(workers, total * 2.5 / workers + 64 * measure.MIB) as session:
        mesh = session.init_device_mesh(case.mesh)
        values = values_of(case)
        x = session.distribute_tensor(values, mesh, placements(case.source)).wait()
        wanted = placements(case.destination)
        turned = x.redistribute(placements=wanted)
        for position in mesh.positions():
            box = tuple(slice(*interval) for interval in turned.box(position))
            measure.check(np.array_equal(turned.to_local(position), values[box]), name)
        del turned, values
        return measure.beside(options, lambda: x.redistribute(placements=wanted).wait(), references, [case.goal],
                              bytes=total, workers=workers)
