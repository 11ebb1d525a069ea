"""Ops of torch's database against the CPU in f64, the halves, integers, bools and complex numbers: of each dtype every seventh op."""

import warnings

import pytest
import torch

import tessera as ts
import tessera.torch as tt
from op_names import NO_ROW, OTHER_MEANING
from test_ops import FAMILIES, brought, call, mapped, name_of, op_db, tensors_in

SAMPLES = 3
DTYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
# (rtol, atol) by the dtype of the samples, for results that are no integers. torch's CPU rounds halves on the way, too.
TOLERANCE = {torch.float64: (1e-7, 1e-7), torch.bfloat16: (6e-2, 6e-2), torch.float16: (2e-2, 2e-2)}
# Ops that are left out, for all dtypes, where one differs.
APART = frozenset([
    *"argsort kthvalue sort topk".split(),      # places of equal elements are in any order
    *"complex polar view_as_complex".split(),   # of halves torch makes complex32, which the catalog has not
    *"nn.functional.interpolate.bilinear nn.functional.interpolate.bicubic nn.functional.upsample_bilinear _upsample_bilinear2d_aa".split(),     # of u8 torch rounds twice
    *"nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.local_response_norm".split(),     # no means of windows of integers
    *"addbmm grid_sampler_2d grid_sampler_3d nn.functional.conv_transpose3d nn.functional.soft_margin_loss".split(),    # sums in halves on the CPU
    "native_layer_norm",        # statistics are f32, as on CUDA
    *"special.bessel_j0 special.bessel_y1".split(),     # torch's have 5 digits (test_special.py)
    # No complex numbers in these, or in the dtype that is asked for.
    *"logaddexp logcumsumexp logsumexp masked.logsumexp log_softmax.with_dtype softmax.with_dtype".split(),
    "nn.functional.softmin.with_dtype",
])
OPS = {name_of(op): op for op in op_db
       if not name_of(op).startswith(FAMILIES) and name_of(op) not in OTHER_MEANING | NO_ROW | APART}
CASES = [(name, dtype) for k, dtype in enumerate(DTYPES) for name in sorted(OPS)[k::len(DTYPES)] if dtype in OPS[name].dtypes]


def samples_of(op, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if i == SAMPLES:
                return
            yield [sample.input, list(sample.args), sample.kwargs]


def test_each_dtype_has_twenty_ops():
    for dtype in DTYPES:
        assert sum(kind == dtype for _, kind in CASES) >= 20, dtype


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda one: str(one).removeprefix("torch."))
def test_an_op_is_what_it_is_on_the_cpu(mesh, name, dtype):
    for sample in samples_of(OPS[name], dtype):
        expected = tensors_in([call(OPS[name], mapped(sample, torch.clone))])
        for placements in ([ts.Replicate()], [ts.Shard(0)]):
            got = tensors_in([call(OPS[name], mapped(sample, lambda x: brought(x, mesh, placements)))])
            assert [(one.dtype, one.shape) for one in got] == [(one.dtype, one.shape) for one in expected]
            for one, other in zip(got, expected):
                exact = not (other.is_floating_point() or other.is_complex())
                rtol, atol = (0, 0) if exact else TOLERANCE.get(dtype, (1e-3, 1e-4))
                torch.testing.assert_close(one.cpu(), other, rtol=rtol, atol=atol, equal_nan=True)


# ---- numbers beside narrow integers --------------------------------------------------------------------------------------------------

X = torch.tensor([[0, 1, 2], [50, 99, 255]], dtype=torch.uint8)
NARROW = {
    "x * -1": lambda x: x * -1, "x + -1": lambda x: x + -1, "x % -3": lambda x: x % -3, "1 - x": lambda x: 1 - x, "x + 300": lambda x: x + 300,
    "add": lambda x: torch.add(x, x, alpha=-1), "addcmul": lambda x: torch.addcmul(x, x, x, value=-1), "where": lambda x: torch.where(x > 50, x, -1),
    "full_like": lambda x: torch.full_like(x, -1), "fill_": lambda x: x.clone().fill_(-1), "masked_fill": lambda x: x.masked_fill(x > 50, -1),
    "threshold": lambda x: torch.nn.functional.threshold(x, 3, -1), "clamp": lambda x: torch.clamp(x, -1, 5), "clamp_min": lambda x: x.clamp_min(-1),
    "clamp_max": lambda x: x.clamp_max(300), "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -1, 5),
    "index_add": lambda x: x.index_add(0, torch.tensor([1, 0], device=x.device), x, alpha=-1),
}


@pytest.mark.parametrize("name", NARROW)
def test_numbers_that_a_narrow_dtype_does_not_have_are_what_they_are_on_the_cpu(mesh, name):
    for x in (X, X.to(torch.int8)):
        got, expected = NARROW[name](tt.distribute_tensor(x, mesh, [ts.Shard(0)])), NARROW[name](x)
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)


def test_numbers_that_do_not_fit_are_refused_where_torch_does(mesh):
    x = tt.distribute_tensor(X, mesh)
    for function in (lambda: torch.full_like(x, 300), lambda: x.masked_fill(x > 50, 300)):
        with pytest.raises(ts.DTypeError, match="300 doesn't fit dtype u8"):
            function()


def test_bools_are_not_subtracted(mesh):
    x = tt.distribute_tensor(torch.tensor([True, False]), mesh)
    for function in (lambda: x - x, lambda: 1 - x, lambda: x - 1.0, lambda: torch.ones_like(x, dtype=torch.float32) - x):
        with pytest.raises(ts.InvalidArgumentError, match="sub: .*bools are not subtracted"):
            function()
    assert x.clamp(0, 5).dtype == torch.int64 and x.clamp(0, 5).tolist() == [1, 0]
    y = torch.tensor([[True, False], [False, False]])
    for alpha in (True, False):
        add = [one.index_add(0, torch.tensor([1, 0], device=one.device), one, alpha=alpha) for one in (y, tt.distribute_tensor(y, mesh))]
        assert torch.equal(add[1].cpu(), add[0])


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.int64])
def test_sums_of_integers_are_in_the_dtype_that_is_asked_for(mesh, kind):
    x = torch.tensor([[1, 2], [3, 100]], dtype=torch.int8)
    there = tt.distribute_tensor(x, mesh, [ts.Shard(0)])
    for function in (lambda v: v.sum(0, dtype=kind), lambda v: v.sum(dtype=kind), lambda v: v.prod(0, dtype=kind), lambda v: v.cumsum(0, dtype=kind),
                     lambda v: v[0, 0].cumsum(0), lambda v: v[0, 0].cumprod(0, dtype=kind), lambda v: torch.tensordot(v, v, 2)):
        assert function(there).dtype == function(x).dtype and torch.equal(function(there).cpu(), function(x))


def test_of_complex_numbers_their_real_parts_become_real_ones(mesh):
    x = torch.tensor([1.5 + 2j, -3j])
    there = tt.distribute_tensor(x, mesh, [ts.Shard(0)])
    for kind in (torch.float32, torch.float64, torch.int64, torch.bool):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = x.to(kind)
            if kind == torch.bool:
                assert torch.equal(there.to(kind).cpu(), expected)
        if kind != torch.bool:
            with pytest.warns(UserWarning, match="discards the imaginary part"):
                assert torch.equal(there.to(kind).cpu(), expected)


def test_of_a_matrix_that_is_said_to_be_hermitian_the_lower_triangle_counts(mesh):
    x = torch.randn(4, 4, dtype=torch.complex128)
    torch.testing.assert_close(torch.linalg.pinv(tt.distribute_tensor(x, mesh), hermitian=True).cpu(), torch.linalg.pinv(x, hermitian=True))


def test_activations_of_complex_numbers(mesh):
    x = torch.randn(8, dtype=torch.complex128)
    here, there = x.clone().requires_grad_(), tt.distribute_tensor(x, mesh, [ts.Shard(0)]).requires_grad_()
    for one in (here, there):
        (torch.sigmoid(one).abs() * one.abs()).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)
    torch.testing.assert_close(torch.nn.functional.silu(there.detach()).cpu(), torch.nn.functional.silu(x))
