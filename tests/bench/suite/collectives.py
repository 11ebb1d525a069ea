"""Pending sums and gathers of f32, beside the direct algorithm of as many processes without the service."""

import dataclasses

import numpy as np

import tessera as ts

from . import measure, peers
from .measure import Goal, MIB

OVERSUBSCRIBED = (Goal("limit", 1.5),)
SHORT = (Goal("limit", 2.0, 100e-6),)
# The same by processes that sleep until they are asked: by whoever waits, or by one that is asked, as a coordinator is.
ASKED = {"asked": "directly", "asked through one": "through_one"}
LONE = (Goal("asked through one", 1.5),)


@dataclasses.dataclass(frozen=True)
class Case:
    kind: str  # all_reduce: P(sum) to R; reduce_scatter: P(sum) to S(0); all_gather: S(0) to R
    bytes: int
    workers: int
    goals: tuple
    in_a_row: int = 1  # issued without waiting; the time is of one


CASES = {
    "all_reduce_64MiB": Case("all_reduce", 64 * MIB, 2, (Goal("limit", 1.5),)),
    "all_reduce_1MiB": Case("all_reduce", MIB, 2, SHORT),
    "all_reduce_64KiB": Case("all_reduce", MIB // 16, 2, LONE),
    "all_reduce_1MiB_in_a_row": Case("all_reduce", MIB, 2, SHORT, in_a_row=50),
    "all_reduce_64KiB_in_a_row": Case("all_reduce", MIB // 16, 2, (), in_a_row=50),
    "reduce_scatter_64MiB": Case("reduce_scatter", 64 * MIB, 2, (Goal("limit", 1.3),)),
    "all_gather_64MiB": Case("all_gather", 64 * MIB, 2, (Goal("limit", 1.3),)),
    "all_reduce_64MiB_4_workers": Case("all_reduce", 64 * MIB, 4, OVERSUBSCRIBED),
    "all_reduce_1MiB_4_workers": Case("all_reduce", MIB, 4, LONE),
    "all_reduce_1MiB_in_a_row_4_workers": Case("all_reduce", MIB, 4, SHORT, in_a_row=50),
    "reduce_scatter_64MiB_4_workers": Case("reduce_scatter", 64 * MIB, 4, OVERSUBSCRIBED),
    "all_gather_64MiB_4_workers": Case("all_gather", 64 * MIB, 4, OVERSUBSCRIBED),
}

PLACEMENTS = {"all_reduce": ("P", "R"), "reduce_scatter": ("P", "S0"), "all_gather": ("S0", "R")}


def placement(text):
    return {"P": ts.Partial, "R": ts.Replicate, "S0": lambda: ts.Shard(0)}[text]()


def operand(session, mesh, case):
    """The tensor to be moved, and the values that it stands for."""
    rng = np.random.default_rng(3)
    shape = (case.bytes // 4 // 256, 256)
    terms = [rng.integers(-8, 9, shape).astype("f4") for _ in range(case.workers)]
    if case.kind == "all_gather":
        return session.distribute_tensor(terms[0], mesh, [ts.Shard(0)]).wait(), terms[0]
    return ts.from_local(lambda position: terms[position[0]], mesh, [ts.Partial()], shape=shape).wait(), sum(terms)


def check(case, name, moved, mesh, values):
    for position in mesh.positions():
        box = tuple(slice(*interval) for interval in moved.box(position))
        measure.check(np.array_equal(moved.to_local(position), values[box]), name)


def run(options, name):
    case = CASES[name]
    source, destination = PLACEMENTS[case.kind]
    references = {"limit": measure.limit("collective", kind=case.kind, elements=case.bytes // 4, processes=case.workers)}
    if options.peers:
        references["open_mpi"] = peers.open_mpi(case.kind, case.bytes, case.workers)
        if case.workers == 2:
            references["dtensor"] = peers.dtensor("redistribute", extents=[case.bytes // 1024, 256], dtype="float32",
                                                  source=source, destination=destination)
    if case.bytes <= MIB and case.in_a_row == 1:
        for reference, asked in ASKED.items():
            references[reference] = measure.limit("collective", kind=case.kind, elements=case.bytes // 4,
                                                  processes=case.workers, asked=asked)
    with measure.running(case.workers, case.bytes * 3 + 64 * MIB) as session:
        mesh = session.init_device_mesh((case.workers,))
        x, values = operand(session, mesh, case)
        if case.goals == LONE:
            tiny = ts.ones((8,), device_mesh=mesh, placements=[ts.Replicate()]).wait()
            references["tiny op"] = lambda repetitions: {"x + 1": measure.seconds_of(lambda: (tiny + 1).wait(), repetitions)}
        move = lambda: x.redistribute(placements=[placement(destination)])  # noqa: E731
        check(case, name, move(), mesh, values)

        def issue():
            for _ in range(case.in_a_row):
                moved = move()
            return moved.wait()

        return measure.beside(options, issue, references, case.goals, in_a_row=case.in_a_row, bytes=case.bytes,
                              workers=case.workers)
