"""Rows of int8: products, quantization and its inverse, and what training rounds, as the CPU has them."""

import itertools

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401 - defines torch.ops.quantized_decomposed
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
OPS = torch.ops.quantized_decomposed


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bytes_of(*shape, seed=1):
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


def test_products_of_bytes_are_exact_on_every_placement(mesh):
    a, b = bytes_of(20, 300), bytes_of(300, 24, seed=2)
    for one, other in itertools.product([R, S(0), S(1)], repeat=2):
        got = torch._int_mm(tt.distribute_tensor(a, mesh, [one]), tt.distribute_tensor(b, mesh, [other]))
        assert got.dtype == torch.int32 and torch.equal(got.cpu(), torch._int_mm(a, b))
    out = torch.zeros(20, 24, dtype=torch.int32, device="tessera")
    torch._int_mm(a.to("tessera"), b.to("tessera"), out=out)
    assert torch.equal(out.cpu(), torch._int_mm(a, b))


def test_the_largest_products_stay_exact(mesh):
    a, b = torch.full((17, 4096), -128, dtype=torch.int8), torch.full((4096, 8), -128, dtype=torch.int8)
    assert torch.equal(torch._int_mm(a.to("tessera"), b.to("tessera")).cpu(), torch.full((17, 8), 4096 * 128 * 128, dtype=torch.int32))


class Int8Linear(torch.nn.Module):
    """A linear layer whose weight is int8 by rows, and whose input is quantized by rows when it comes."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1) / 127
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        self.register_buffer("weight", OPS.quantize_per_channel(layer.weight.detach(), scale, zeros, 0, -127, 127, torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, x):
        scale, zero = OPS.choose_qparams_per_token(x, torch.int8)
        scale = scale.to(torch.float32)
        rows = OPS.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        return torch._int_mm(rows, self.weight.t()).to(torch.float32) * scale * self.scale + self.bias


@pytest.mark.parametrize("workers", [1, 4])
def test_a_linear_layer_of_bytes(session, workers):
    mesh = session.init_device_mesh((workers,))
    with tt.default_placement(mesh):
        torch.manual_seed(0)
        here = Int8Linear(torch.nn.Linear(32, 16))
        x = drawn(24, 32)
        expected = here(x)
        for place in (R, S(0)):
            there = tt.distribute_module(Int8Linear(torch.nn.Linear(32, 16)), mesh)
            there.load_state_dict(here.state_dict())
            torch.testing.assert_close(there(tt.distribute_tensor(x, mesh, [place])).detach().cpu(), expected.detach())


CASES = {
    "by tensor": lambda x, on: OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, 0.02, 3, -128, 127, torch.int8), 0.02, 3, -128, 127, torch.int8),
    "by tensors": lambda x, on: OPS.quantize_per_tensor.tensor(x, on(torch.tensor(0.02)), on(torch.tensor(3)), -128, 127, torch.int8),
    "by channel": lambda x, on: OPS.quantize_per_channel(x, on(drawn(8).abs() / 50), on(torch.arange(8)), 0, -128, 127, torch.int8),
    "back by channel": lambda x, on: OPS.dequantize_per_channel(x.to(torch.int8), on(drawn(8).abs()), on(torch.arange(8)), 0, -128, 127, torch.int8),
    "chosen": lambda x, on: OPS.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)[0],
    "chosen by row": lambda x, on: OPS.choose_qparams_per_token_asymmetric(x, torch.int8)[1],
}


@pytest.mark.parametrize("name", CASES)
def test_quantization_is_the_cpus(mesh, name):
    x = drawn(8, 16)
    expected = CASES[name](x, lambda one: one)
    for place in (R, S(0), S(1)):
        got = CASES[name](tt.distribute_tensor(x, mesh, [place]), lambda one: one.to("tessera"))
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_weights_of_bytes_by_rows(mesh):
    x, weight, scales = drawn(8, 16), bytes_of(24, 16), drawn(24, seed=3).abs()
    expected = torch._weight_int8pack_mm(x, weight, scales)
    rounding = 1e-6 * (x.abs() @ weight.abs().float().t()) * scales
    for place, other in itertools.product([R, S(0), S(1)], [R, S(0)]):
        got = torch._weight_int8pack_mm(tt.distribute_tensor(x, mesh, [place]), tt.distribute_tensor(weight, mesh, [other]), scales.to("tessera"))
        assert got.dtype == expected.dtype and ((got.cpu() - expected).abs() <= rounding).all()


FAKE = {
    "tensor": lambda x, on: torch.fake_quantize_per_tensor_affine(x, 0.013, 3, -20, 27),
    "tensors": lambda x, on: torch.fake_quantize_per_tensor_affine(x, on(torch.tensor(0.013)), on(torch.tensor(3, dtype=torch.int32)), -20, 27),
    "channels": lambda x, on: torch.fake_quantize_per_channel_affine(x, on(drawn(8).abs() / 50 + 0.01), on(torch.arange(8, dtype=torch.int32)), 0, -20, 27),
}


@pytest.mark.parametrize("name", FAKE)
def test_rounding_in_training_has_the_cpus_gradients(mesh, name):
    here = drawn(8, 16).requires_grad_()
    expected = FAKE[name](here, lambda one: one)
    (expected * drawn(8, 16, seed=2)).sum().backward()
    for place in (R, S(0), S(1)):
        there = tt.distribute_tensor(drawn(8, 16), mesh, [place]).requires_grad_()
        got = FAKE[name](there, lambda one: one.to("tessera"))
        (got * drawn(8, 16, seed=2).to("tessera")).sum().backward()
        torch.testing.assert_close(got.detach().cpu(), expected.detach())
        torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_quantized_dtypes_are_refused_with_what_to_write(mesh):
    x = drawn(4, 4).to("tessera")
    for call in (lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
                 lambda: torch.quantize_per_channel(x, torch.ones(4, device="tessera"), torch.zeros(4, device="tessera"), 0, torch.qint8)):
        with pytest.raises(NotImplementedError, match="quantize: tensors of quantized dtypes .*quantized_decomposed.quantize_per_tensor"):
            call()
    with pytest.raises(ts.InvalidArgumentError, match="_int_mm: takes matrices of torch.int8 and torch.int8"):
        torch._int_mm(x, x)
    with pytest.raises(ts.InvalidArgumentError, match="_weight_int8pack_mm: takes matrices"):
        torch._weight_int8pack_mm(x, x, x[0])
