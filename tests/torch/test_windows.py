"""Convolutions and their gradients where the image, also its rows and columns, is sharded."""

import copy

import pytest
import tessera as ts
import tessera.torch as tt
import torch
from torch import nn
from torch.nn import functional

R, S = ts.Replicate, ts.Shard
PLACEMENTS = [[R(), R()], [S(0), R()], [S(2), R()], [S(2), S(3)], [S(3), S(2)], [S(0), S(2)], [S(1), S(2)], [S(2), S(2)]]


def gradients(x, weight, bias, **options):
    out = functional.conv2d(x, weight, bias, **options)
    out.pow(2).sum().backward()
    return out, x.grad, weight.grad, bias.grad


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 1)}, {"padding": 4}],
                         ids=str)
def test_gradients_of_sharded_images(mesh22, placements, options):
    values = torch.randn(2, 2, 8, 8, dtype=torch.float64), torch.randn(4, 2, 3, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    want = gradients(*(v.clone().requires_grad_() for v in values), **options)
    there = [tt.distribute_tensor(v, placements=p).requires_grad_()
             for v, p in zip(values, (placements, [R(), R()], [R(), R()]))]
    for got, expected in zip(gradients(*there, **options), want):
        torch.testing.assert_close(got.detach().cpu(), expected.detach())


def test_a_sharded_image_gives_its_neighbours_rows_alone(session, mesh):
    """Forward: 2 rows from neighbours; backward, of the image, as many of the gradient. Nothing gathers the image."""
    x = tt.distribute_tensor(torch.randn(1, 4, 64, 64), placements=[S(2)]).requires_grad_()
    weight = tt.distribute_tensor(torch.randn(4, 4, 3, 3), placements=[R()])
    with session.comm_debug() as comm:
        out = functional.conv2d(x, weight, padding=1)
        out.backward(torch.ones_like(out))
        x.grad.cpu()
    row = 4 * 64 * 4
    assert sum(comm.bytes_received) <= 2 * 6 * row, comm.bytes_received


def test_a_layer_is_trained(mesh22):
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 1, 3, stride=2, padding=1))
    there = tt.distribute_module(copy.deepcopy(here))
    x = torch.randn(4, 1, 8, 8)
    for model, data in ((here, x), (there, tt.distribute_tensor(x, placements=[S(0), S(2)]))):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).pow(2).mean().backward()
            optimizer.step()
    for got, want in zip(there.parameters(), here.parameters()):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


def test_what_has_no_row_says_so(mesh):
    x, weight = (tt.distribute_tensor(torch.randn(*shape), placements=[R()]) for shape in ((1, 4, 5, 5), (4, 2, 3, 3)))
    with pytest.raises(NotImplementedError, match="transposed convolutions have no row"):
        functional.conv_transpose2d(x, weight)
    y = functional.conv2d(x.requires_grad_(), weight, groups=2)
    with pytest.raises(NotImplementedError, match="groups=2: the gradient"):
        y.sum().backward()
