"""Rows that are composed of several ops ask for at most two records from their second call of a kind on; those that do otherwise
are listed with the reason. Samples are torch's own (OpInfo), forward and backward."""

import warnings

import numpy as np
import pytest
import torch
from test_ops import OPS, brought, call, mapped, samples_of, tensors_in

import tessera as ts
import tessera.torch as tt
from tessera.torch import _table

TIMES = 3
MOST = 2

AS_THEY_ARE = {
    "aten.unique_consecutive.default": "the shape of its result depends on values",
    **{f"aten.special_{name}.default": "of a tensor of degrees it reads the largest, which says how many steps there are"
       for name in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")},
}


def composed() -> dict:
    return {str(func): func for func, how in _table.KINDS.items() if how == "composed"}


class Counting:
    """While it is open, the rows count what they ask for. records[name][i]: the most in the i-th run of a sample."""

    def __init__(self, session):
        self.session, self.time, self.records, self.saved = session, 0, {}, {}

    def count(self) -> int:
        counts = self.session._counts()
        return counts["tessera_client_calls"] + counts["tessera_client_uploads"]

    def __enter__(self):
        for name, func in composed().items():
            self.saved[name] = func.tessera_row
            func.tessera_row = self.counted(name, func.tessera_row)
        return self

    def __exit__(self, *_):
        for name, func in composed().items():
            if name in self.saved:
                func.tessera_row = self.saved[name]

    def counted(self, name, row):
        def run(*args, **kwargs):
            before = self.count()
            out = row(*args, **kwargs)
            most = self.records.setdefault(name, [0] * TIMES)
            most[self.time] = max(most[self.time], self.count() - before)
            return out
        return run


def reasons_of(name) -> set:
    """Why its calls run as they are."""
    return {graph.why for graph in _table.TABLE[composed()[name]].graphs.values() if graph.notation is None}


def bits_of(x) -> list:
    return [(one.dtype, tuple(one.shape), getattr(one, "placements", None), np.asarray(one.detach().cpu().tolist()).tobytes() if one.numel() < 4096 else None)
            for one in tensors_in([x])]


def run_once(op, sample, mesh):
    leaves: list = []

    def bring(x):
        out = brought(x, mesh, [ts.Shard(0)])
        if x.requires_grad:
            leaves.append(out)
        return out
    there = [mapped(one, bring) for one in sample]
    out = call(op, there)
    found = [one for one in tensors_in([out]) if one.requires_grad]
    gradients = torch.autograd.grad([one.abs().sum() if one.is_complex() else one.sum() for one in found], leaves, allow_unused=True) if found and leaves else ()
    return bits_of([out, [one for one in gradients if one is not None]])


@pytest.fixture(scope="module")
def counted(cluster):
    """(records by row, samples whose results differ between their runs)."""
    differ = []
    with cluster.connect() as session:
        mesh = session.init_device_mesh((4,))
        with tt.default_placement(mesh), Counting(session) as counting, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, op in OPS.items():
                for sample in samples_of(op):
                    runs = []
                    try:
                        for counting.time in range(TIMES):
                            runs.append(run_once(op, sample, mesh))
                    except (NotImplementedError, RuntimeError, ValueError, TypeError, IndexError):
                        break       # test_ops.py says what is refused
                    if any(one != runs[0] for one in runs):
                        differ.append(name)
        yield counting.records, differ


def test_rows_ask_for_few_records(counted):
    records, _ = counted
    many = {name: most for name, most in records.items() if max(most[1:]) > MOST and name not in AS_THEY_ARE}
    assert not many, "\n".join(f"{name}: {most} records, as {reasons_of(name)}" for name, most in many.items())
    assert len(records) > 60


def test_a_row_that_is_listed_asks_for_more(counted):
    records, _ = counted
    assert not [name for name in AS_THEY_ARE if name in records and max(records[name][1:]) <= MOST]


def test_a_recorded_row_has_the_same_bits(counted):
    assert not counted[1]
