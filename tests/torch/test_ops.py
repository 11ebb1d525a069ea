"""Every op of torch's own database (OpInfo) against the CPU, forward and backward, on every kind of placement; or refused by
its name, where it has no row."""

import warnings

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

import tessera as ts
import tessera.torch as tt
from op_names import NO_ROW, OTHER_MEANING

SAMPLES = 2
PLACEMENTS = [[ts.Replicate()], [ts.Shard(0)], [ts.Shard(-1)], [ts.Partial()]]
FAMILIES = ("sparse", "_refs", "jiterator", "torch.ops.aten._flash", "torch.ops.aten._scaled", "to_sparse")


def name_of(op) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


OPS = {name_of(op): op for op in op_db
       if torch.float32 in op.dtypes and not name_of(op).startswith(FAMILIES) and name_of(op) not in OTHER_MEANING}


def mapped(x, function):
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)) and not hasattr(x, "_fields"):
        return type(x)(mapped(one, function) for one in x)
    if isinstance(x, dict):
        return {key: mapped(one, function) for key, one in x.items()}
    return x


def tensors_in(x) -> list:
    found: list = []
    mapped(list(x.values()) if isinstance(x, dict) else x, lambda one: found.append(one) or one)
    return found


def brought(x, mesh, placements):
    """A CPU tensor on the mesh; as a pending sum, of four equal terms, where it is of floats."""
    source = x.detach()
    if x.ndim == 0 and not placements[0].is_partial():
        placements = [ts.Replicate()]
    if placements[0].is_partial():
        out = tt.from_local(lambda position: source / 4, mesh, placements) if x.is_floating_point() else tt.distribute_tensor(source, mesh)
    else:
        out = tt.distribute_tensor(source, mesh, placements)
    return out.requires_grad_(x.requires_grad)


def samples_of(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
            if i == SAMPLES:
                return
            yield [sample.input, list(sample.args), sample.kwargs]


def call(op, sample):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op(sample[0], *sample[1], **sample[2])


def check(op, sample, mesh, placements):
    expected = tensors_in([call(op, sample)])
    pairs: list = []

    def bring(x):
        out = brought(x, mesh, placements)
        if x.requires_grad:
            pairs.append((x, out))
        return out

    got = tensors_in([call(op, mapped(sample, bring))])
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    ends = [(a, b) for a, b in zip(got, expected) if b.requires_grad and b.is_floating_point()]
    if not ends or not pairs:
        return
    torch.manual_seed(0)
    weights = [torch.randn_like(b) for _, b in ends]
    there = sum((a * tt.distribute_tensor(w, mesh)).sum() for (a, _), w in zip(ends, weights))
    here = sum((b * w).sum() for (_, b), w in zip(ends, weights))
    options = {"allow_unused": True, "retain_graph": True}
    for one, other in zip(torch.autograd.grad(there, [b for _, b in pairs], **options),
                          torch.autograd.grad(here, [a for a, _ in pairs], **options)):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in OPS if name not in NO_ROW])
def test_an_op_is_what_it_is_on_the_cpu(mesh, name):
    for sample in samples_of(OPS[name]):
        for placements in PLACEMENTS:
            check(OPS[name], sample, mesh, placements)


@pytest.mark.parametrize("name", [name for name in OPS if name not in NO_ROW])
def test_an_op_is_the_same_in_inference_mode(mesh, name):
    """Where no graph is recorded torch hands over ops whole that it takes apart elsewhere."""
    for sample in samples_of(OPS[name]):
        expected = tensors_in([call(OPS[name], mapped(sample, lambda x: x.detach().clone()))])
        with torch.inference_mode():
            here = mapped(sample, lambda x: tt.distribute_tensor(x.detach(), mesh, [ts.Shard(0) if x.ndim else ts.Replicate()]))
            got = tensors_in([call(OPS[name], here)])
        assert [x.shape for x in got] == [x.shape for x in expected]
        for one, other in zip(got, expected):
            torch.testing.assert_close(one.cpu(), other.detach(), rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in OPS if name in NO_ROW])
def test_an_op_without_a_row_is_refused_by_name(mesh, name):
    with pytest.raises(NotImplementedError, match="Tessera|tessera"):
        for sample in samples_of(OPS[name]):
            for placements in PLACEMENTS[:2]:
                check(OPS[name], sample, mesh, placements)
