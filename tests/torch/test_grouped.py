"""Experts by products of groups (torch._grouped_mm): the layers that models of others are made of, on any placement."""

import pytest
import torch
import torch.nn.functional as F
from models import R, S, same_start
from torch import nn

import tessera as ts
import tessera.torch as tt


def by_hand(x, y, offs):
    """grouped_mm, group by group."""
    if offs is None:
        return x @ y
    parts, start = [], 0
    for g, end in enumerate(offs.tolist()):
        if x.ndim == 2:
            parts.append(x[start:end] @ y[g] if y.ndim == 3 else x[:, start:end] @ y[start:end])
        else:
            parts.append(x[g] @ y[:, start:end])
        start = end
    if x.ndim == 2 and y.ndim == 2:
        return torch.stack(parts)
    dim = 0 if x.ndim == 2 else 1
    rest = x.shape[0] - start if dim == 0 else y.shape[1] - start
    return torch.cat([*parts, torch.zeros(*([rest, y.shape[-1]] if dim == 0 else [x.shape[1], rest]))], dim)


SHAPES = {"2x3": ((12, 8), (4, 8, 16)), "3x2": ((4, 8, 16), (16, 12)), "2x2": ((8, 12), (12, 16)), "3x3": ((4, 8, 16), (4, 16, 8))}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("ends", [[3, 3, 9, 12], [0, 4, 8, 8]], ids=str)
def test_each_kind_of_product_and_its_gradients(mesh22, kind, ends):
    x, y = (torch.randn(shape, requires_grad=True) for shape in SHAPES[kind])
    offs = None if kind == "3x3" else torch.tensor(ends, dtype=torch.int32)
    expected = by_hand(x, y, offs)
    g = torch.randn_like(expected)
    expected.backward(g)
    for of_x, of_y in (([R, R], [R, R]), ([S(0), R], [R, S(0)]), ([S(1), R], [S(0), R]), ([R, S(1)], [S(1), R]), ([S(0), S(0)], [S(0), S(0)])):
        a, b = (tt.distribute_tensor(one.detach(), mesh22, place).requires_grad_() for one, place in ((x, of_x), (y, of_y)))
        got = F.grouped_mm(a, b, offs=None if offs is None else offs.to("tessera"))
        torch.testing.assert_close(got.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
        got.backward(g.to("tessera"))
        for mine, other in ((a, x), (b, y)):
            torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-5, atol=1e-5)


def test_halves_and_other_arguments(mesh):
    x, y = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    offs = torch.tensor([2, 8], dtype=torch.int32)
    got = F.grouped_mm(x.to("tessera"), y.to("tessera"), offs=offs.to("tessera"), out_dtype=torch.bfloat16)
    assert got.dtype is torch.bfloat16
    torch.testing.assert_close(got.cpu(), F.grouped_mm(x, y, offs=offs), rtol=2e-2, atol=2e-2)
    with pytest.raises(NotImplementedError, match="grouped_mm: bias is not None"):
        F.grouped_mm(x.to("tessera"), y.to("tessera"), offs=offs.to("tessera"), bias=torch.ones(8).bfloat16().to("tessera"))
    with pytest.raises(ts.InvalidArgumentError, match="grouped_mm: offs is None beside"):
        F.grouped_mm(x.to("tessera"), y.to("tessera"))
    with pytest.raises(IndexError, match="offset 9 of group 1 is not from 2 to 8, at .*test_grouped.py"):
        F.grouped_mm(x.to("tessera"), y.to("tessera"), offs=torch.tensor([2, 9], dtype=torch.int32).to("tessera")).wait()


class Experts(nn.Module):
    """As others write it: tokens in the order of their experts, gated MLPs by groups, and back."""

    def __init__(self, experts=8, width=16, inner=24, top_k=2, normalized=True):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inner, width) * 0.2)
        self.down = nn.Parameter(torch.randn(experts, width, inner) * 0.2)
        self.top_k, self.normalized = top_k, normalized

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = F.softmax(self.router(tokens), -1).topk(self.top_k, -1)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        experts, order = chosen.reshape(-1).sort()
        of_device = experts.int() if isinstance(x, tt.Tensor) else experts.float()      # of others than floats the CPU has none
        counts = torch.histc(of_device, bins=len(self.down), min=0, max=len(self.down) - 1)
        offs = counts.cumsum(0, dtype=torch.int32)
        gate, up = self.product(tokens[order // self.top_k], self.gate_up, offs).chunk(2, -1)
        said = self.product(F.silu(gate) * up, self.down, offs) * weights.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return said[inverse].reshape(len(tokens), self.top_k, -1).sum(1).reshape(x.shape)

    def product(self, x, weights, offs):
        weights = weights.transpose(-2, -1)
        return F.grouped_mm(x, weights, offs=offs) if isinstance(x, tt.Tensor) else by_hand(x, weights, offs)


class Block(nn.Module):
    """The experts of a Mixtral (weights that add up to one) or a Qwen3 with experts (an expert beside the routed ones)."""

    def __init__(self, kind):
        super().__init__()
        self.norm, self.moe = nn.RMSNorm(16), Experts(normalized=kind == "mixtral")
        self.shared = nn.Linear(16, 16) if kind == "qwen3" else None

    def forward(self, x):
        h = self.norm(x)
        out = x + self.moe(h)
        return out if self.shared is None else out + self.shared(h)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3"])
@pytest.mark.parametrize("experts, batch", [(S(0), R), (S(0), S(0)), (R, S(0)), (S(1), R)], ids=str)
def test_blocks_of_experts_are_those_of_the_cpu(session, workers, kind, experts, batch):
    mesh = session.init_device_mesh((workers,), workers=list(range(workers))) if workers < 4 else session.init_device_mesh((4,))
    model, other = same_start(lambda: Block(kind))
    x = torch.randn(4, 6, 16)
    with tt.default_placement(mesh):
        tt.distribute_module(model, mesh)
        for name in ("gate_up", "down"):
            # Columns of the first, and as many of the inner elements of the second.
            place = S(2) if experts == S(1) and name == "down" else experts
            p = getattr(model.moe, name)
            setattr(model.moe, name, nn.Parameter(p.detach().redistribute(placements=[place])))
        loss = model(tt.distribute_tensor(x, mesh, [batch])).square().mean()
        loss.backward()
    expected = other(x).square().mean()
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-5
    for (name, one), wanted in zip(model.named_parameters(), other.parameters()):
        assert one.grad.placements == one.placements
        torch.testing.assert_close(one.grad.cpu(), wanted.grad, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_experts_in_shards_stay_where_they_are(session):
    """Nothing moves for a product, forward or backward, but what a sum is asked for; no value comes to this process."""
    mesh = session.init_device_mesh((4,))
    w = tt.distribute_tensor(torch.randn(8, 16, 32), mesh, [S(0)]).requires_grad_()
    x = tt.distribute_tensor(torch.randn(40, 16), mesh, [R]).requires_grad_()
    offs = tt.distribute_tensor(torch.arange(5, 45, 5, dtype=torch.int32), mesh, [R])
    with session.comm_debug() as comm:
        out = F.grouped_mm(x, w, offs=offs)
    assert comm.total_bytes == 0 and out.placements == (ts.Partial("sum"),)
    g = tt.distribute_tensor(torch.randn(40, 32), mesh, [R])
    with session.comm_debug() as comm:
        out.backward(g)
    assert comm.total_bytes == 0 and w.grad.placements == (S(0),) and x.grad.placements == (ts.Partial("sum"),)
    with session.comm_debug() as comm:
        x.grad.redistribute(placements=[S(0)]).wait()
    assert sum(comm.bytes_received) == 3 * 40 * 16 * 4      # each worker has three terms of its rows to add
