"""Floats of 8 bits as torch has them: casts, moves, and products by torch._scaled_mm."""

import pytest
import torch

import tessera as ts
import tessera.torch as tt

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def bits(x):
    return x.cpu().contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_casts_and_moves(mesh, dtype):
    x = torch.randn(12, 8) * 20
    want = x.to(dtype)
    y = tt.distribute_tensor(x, mesh, [ts.Shard(0)]).to(dtype)
    assert y.dtype == dtype and y.element_size() == 1
    assert torch.equal(bits(y), bits(want))
    assert torch.equal(y.float().cpu(), want.float())
    assert torch.equal(y.to(torch.bfloat16).cpu(), want.to(torch.bfloat16))
    assert torch.equal(bits(tt.distribute_tensor(want, mesh, [ts.Shard(1)])), bits(want))
    assert torch.equal(bits(y.t()), bits(want.t()))
    assert torch.equal(bits(y[2:5]), bits(want[2:5]))
    assert torch.equal(bits(torch.cat([y, y])), bits(torch.cat([want, want])))
    assert torch.equal(bits(y.clone().view(8, 12)), bits(want.view(8, 12)))
    assert torch.equal(torch.zeros(3, dtype=dtype, device="tessera").float().cpu(), torch.zeros(3))


def factors(left=torch.float8_e4m3fn, right=torch.float8_e4m3fn):
    a, b = torch.randn(16, 32), torch.randn(48, 32)
    return a.to(left), b.to(right).t()


@pytest.mark.parametrize("right", FLOAT8, ids=str)
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32, None], ids=str)
def test_scaled_products(mesh, right, out_dtype):
    a, b = factors(right=right)
    bias = torch.randn(48).to(torch.bfloat16)
    for scales in ((torch.tensor(0.5), torch.tensor(0.25)), (torch.rand(16, 1), torch.rand(1, 48)), (torch.tensor([2.0]), torch.tensor([0.5]))):
        expected = (a.float() @ b.float()) * scales[0] * scales[1] + bias.float()
        x = tt.distribute_tensor(a, mesh, [ts.Shard(0)])
        w = tt.distribute_tensor(b.t(), mesh, [ts.Replicate()]).t()
        on = [scale.to("tessera") if scale.ndim else scale for scale in scales]
        out = torch._scaled_mm(x, w, on[0], on[1], bias=bias.to("tessera"), out_dtype=out_dtype)
        assert out.dtype == (out_dtype or torch.float8_e4m3fn)
        tolerance = 2.0**-3 if out_dtype is None else 2.0**-7 if out_dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.float().cpu(), expected, rtol=tolerance, atol=tolerance)


def test_what_torch_refuses(mesh):
    a, b = (one.to("tessera") for one in factors())
    one = torch.tensor(1.0)
    for call in (lambda: a @ b, lambda: torch.mm(a, b), lambda: torch.nn.functional.linear(a, b.t())):
        with pytest.raises(NotImplementedError, match="torch._scaled_mm multiplies floats of 8 bits"):
            call()
    with pytest.raises(Exception, match="cast by astype before or behind"):
        torch.add(a, a)
    with pytest.raises(Exception, match="takes two matrices of float8"):
        torch._scaled_mm(a.float(), b, one, one)
    with pytest.raises(Exception, match=r"scale_a is .*of shape \(16, 1\)"):
        torch._scaled_mm(a, b, torch.rand(3).to("tessera"), one)


def test_checkpoints(mesh, tmp_path):
    a, _ = factors()
    tt.save(tmp_path / "c", {"w": tt.distribute_tensor(a, mesh, [ts.Shard(0)])})
    assert torch.equal(bits(tt.load(tmp_path / "c")["w"]), bits(a))
