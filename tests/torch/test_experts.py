"""Experts on several workers: what the dense layer gives, with the fewest bytes."""

import math

import pytest
import torch
from models import R, S, same_start
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ExpertParallel, MixtureOfExperts, parallelize_module


def dense(layer, x):
    """The layer token by token: nothing is dispatched."""
    groups = x.reshape(layer.groups, -1, x.shape[-1])
    out = []
    for group in groups:
        room, used, said = layer.capacity(len(group)), [0] * layer.experts, [0.0] * len(group)
        probabilities = torch.softmax(layer.router(group), -1)
        values, chosen = probabilities.topk(layer.top_k, -1)
        for k in range(layer.top_k):
            for t, token in enumerate(group):
                e = int(chosen[t, k])
                if used[e] < room:
                    used[e] += 1
                    expert = torch.nn.functional.gelu(token @ layer.up[e]) @ layer.down[e]
                    said[t] = said[t] + expert * values[t, k] / values[t].sum()
        out.append(torch.stack([one if isinstance(one, torch.Tensor) else torch.zeros_like(group[0]) for one in said]))
    return torch.cat(out).reshape(x.shape)


def layers(**options):
    return same_start(lambda: MixtureOfExperts(8, 16, 8, **options))


def gradients_of(layer, x, forward=None):
    out = (layer if forward is None else forward)(x)
    out.square().sum().backward()
    return out.detach(), {name: p.grad for name, p in layer.named_parameters()}


@pytest.mark.parametrize("factor, top_k", [(8.0, 2), (1.0, 2), (0.5, 1), (1.25, 3)])
def test_the_layer_is_the_dense_one(factor, top_k):
    layer, other = layers(groups=2, capacity_factor=factor, top_k=top_k)
    x = torch.randn(4, 6, 8)
    got, grads = gradients_of(layer, x)
    expected, wanted = gradients_of(other, x, lambda x: dense(other, x))
    torch.testing.assert_close(got, expected)
    for name, one in grads.items():
        torch.testing.assert_close(one, wanted[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("shape, names", [((4,), ("ep",)), ((2, 2), ("dp", "ep")), ((2, 2), ("ep", "tp"))])
@pytest.mark.parametrize("factor", [4.0, 0.75])
def test_expert_parallel_gives_the_same_outputs_and_gradients(session, shape, names, factor):
    mesh = session.init_device_mesh(shape, mesh_dim_names=names)
    layer, other = layers(groups=4, capacity_factor=factor)
    x = torch.randn(8, 6, 8)
    expected, wanted = gradients_of(other, x.requires_grad_())
    parallelize_module(layer, mesh["ep"], ExpertParallel())
    assert layer.up.placements[names.index("ep")] == S(0)
    place = [S(0) if name in ("dp", "ep") else R for name in names]
    there = tt.distribute_tensor(x.detach(), mesh, place).requires_grad_()
    got, grads = gradients_of(layer, there)
    assert got.placements == tuple(place)
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=1e-5, atol=1e-5)
    for name, one in grads.items():
        torch.testing.assert_close(one.cpu(), wanted[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert abs(layer.balance.item() - other.balance.item()) < 1e-5


@pytest.mark.parametrize("shape, names", [((4,), ("ep",)), ((2, 2), ("dp", "ep"))])
@pytest.mark.parametrize("top_k", [1, 3])
def test_without_a_capacity_nothing_is_dropped(session, shape, names, top_k):
    mesh = session.init_device_mesh(shape, mesh_dim_names=names)
    layer, other = layers(capacity_factor=None, top_k=top_k)
    full = layers(capacity_factor=100.0, top_k=top_k)[0]
    x = torch.randn(8, 6, 8, requires_grad=True)
    expected, wanted = gradients_of(other, x)
    dropless, slopes = gradients_of(full, x.detach())
    torch.testing.assert_close(expected, dropless)
    for name, one in wanted.items():
        torch.testing.assert_close(one, slopes[name])
    parallelize_module(layer, mesh["ep"], ExpertParallel())
    place = [S(0) for _ in names]
    there = tt.distribute_tensor(x.detach(), mesh, place).requires_grad_()
    with session.comm_debug() as comm:
        got, grads = gradients_of(layer, there)
    assert got.placements == tuple(place) and sum(comm.bytes_received) > 0
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=1e-5, atol=1e-5)
    for name, one in grads.items():
        torch.testing.assert_close(one.cpu(), wanted[name], rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert abs(layer.balance.item() - other.balance.item()) < 1e-5


def test_forward_moves_two_all_to_alls_and_nothing_else(session):
    mesh = session.init_device_mesh((4,), mesh_dim_names=("ep",))
    layer = MixtureOfExperts(8, 16, 8, groups=4)
    parallelize_module(layer, mesh, ExpertParallel())
    x = tt.distribute_tensor(torch.randn(8, 6, 8), mesh, [S(0)])
    with torch.no_grad(), session.comm_debug() as comm:
        layer(x)
    slots = layer.groups * layer.experts * layer.capacity(12) * 8 * 4
    assert comm.collective_counts.pop("all_to_all") == 2
    bound = 2 * slots * 3 // 4       # each worker has a quarter of what it wants, there and back
    balance = 2 * (8 + 8) * 4 * 3    # the two means of the balance, over all tokens
    assert bound <= sum(comm.bytes_received) <= bound + balance, (bound, comm.bytes_received, comm.collective_counts)


def test_dropped_tokens_pass_by_the_residual(session):
    mesh = session.init_device_mesh((4,), mesh_dim_names=("ep",))
    layer = MixtureOfExperts(8, 16, 8, top_k=1, capacity_factor=0.01, groups=4)
    parallelize_module(layer, mesh, ExpertParallel())
    x = torch.randn(4, 32, 8)
    with torch.no_grad():
        said = layer(tt.distribute_tensor(x, mesh, [S(0)])).cpu()
    dropped = (said == 0).all(-1)
    assert layer.capacity(32) == 1 and 4 * (32 - 8) <= int(dropped.sum()) < 128
    assert torch.equal((x + said)[dropped], x[dropped])


def test_a_block_with_experts_trains_as_torch_alone(mesh22):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.moe, self.head = nn.LayerNorm(8), MixtureOfExperts(8, 16, 4, groups=4), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(x + self.moe(self.norm(x)))
    model, other = same_start(Block)
    parallelize_module(model, mesh22["tp"], {"moe": ExpertParallel()})
    x, y = torch.randn(8, 4, 8), torch.randn(8, 4, 4)
    out = []
    for m, a, b in ((other, x, y), (model, *(tt.distribute_tensor(one, mesh22, [S(0), S(0)]) for one in (x, y)))):
        optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True)
        losses = []
        for _ in range(5):
            loss = torch.nn.functional.mse_loss(m(a), b) + 0.01 * m.moe.balance
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        out.append([loss.item() for loss in losses])
    assert all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(*out)), out


def test_what_does_not_fit_is_refused(session):
    mesh = session.init_device_mesh((4,), mesh_dim_names=("ep",))
    with pytest.raises(ts.InvalidArgumentError, match="3 groups .* 4 workers .*groups=12"):
        parallelize_module(MixtureOfExperts(8, 16, 8, groups=3), mesh, ExpertParallel())
    with pytest.raises(ts.InvalidArgumentError, match="takes MixtureOfExperts, not Linear"):
        parallelize_module(nn.Linear(8, 8), mesh, ExpertParallel())
    with pytest.raises(ts.InvalidArgumentError, match="9 of 8"):
        MixtureOfExperts(8, 16, 8, top_k=9)
    with pytest.raises(ts.InvalidArgumentError, match="6 tokens .* 4 groups"):
        MixtureOfExperts(8, 16, 8, groups=4)(torch.randn(6, 8))
