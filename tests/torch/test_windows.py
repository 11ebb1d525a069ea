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


# ---- transposed and grouped ones -----------------------------------------------------------------------------------------

def same_with_gradients(mesh, placements, function, *values):
    """The function's result and gradients, with the first value placed so and the others replicated."""
    here = [v.clone().requires_grad_() for v in values]
    there = [tt.distribute_tensor(v, mesh, placements if i == 0 else [R()] * len(placements)).requires_grad_() for i, v in enumerate(values)]
    outs = []
    for operands in (here, there):
        out = function(*operands)
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).to(out.device)).sum().backward()
        outs.append(out)
    for want, got in zip([outs[0], *(v.grad for v in here)], [outs[1], *(v.grad for v in there)]):
        torch.testing.assert_close(got.detach().cpu(), want.detach())


IMAGES = [[R(), R()], [S(0), R()], [S(1), R()], [S(2), S(3)], [S(0), S(2)], [S(1), S(2)]]


@pytest.mark.parametrize("placements", IMAGES, ids=str)
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1}, {"padding": 2, "dilation": 2},
                                     {"stride": (3, 1), "padding": (0, 1), "output_padding": (2, 0)}, {"groups": 2, "stride": 2},
                                     {"groups": 4, "padding": 3}, {"dilation": 3, "output_padding": 2}], ids=str)
def test_transposed_convolutions(mesh22, placements, options):
    outs = 6 // {1: 1, 2: 2, 4: 2}[options.get("groups", 1)]
    values = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 4, 6, 8), (4, outs, 3, 3), (outs * options.get("groups", 1),)))
    same_with_gradients(mesh22, placements, lambda *v: functional.conv_transpose2d(*v, **options), *values)


@pytest.mark.parametrize("placements", IMAGES, ids=str)
@pytest.mark.parametrize("groups, outs", [(2, 6), (4, 4), (4, 8)])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 1)}], ids=str)
def test_gradients_of_grouped_convolutions(mesh22, placements, groups, outs, options):
    values = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 4, 8, 8), (outs, 4 // groups, 3, 3), (outs,)))
    same_with_gradients(mesh22, placements, lambda *v: functional.conv2d(*v, groups=groups, **options), *values)


@pytest.mark.parametrize("dims", [1, 3])
def test_other_numbers_of_dims(mesh22, dims):
    conv, transposed = (getattr(functional, f"{name}{dims}d") for name in ("conv", "conv_transpose"))
    for placements in ([R(), R()], [S(0), S(2)]):
        for groups in (1, 2):
            x, bias = torch.randn(2, 4, *[4] * dims, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
            same_with_gradients(mesh22, placements, lambda *v: conv(*v, padding=1, groups=groups), x,
                                torch.randn(6, 4 // groups, *[3] * dims, dtype=torch.float64), bias)
            same_with_gradients(mesh22, placements, lambda *v: transposed(*v, stride=2, groups=groups), x,
                                torch.randn(4, 6 // groups, *[2] * dims, dtype=torch.float64), bias)


def test_gradients_of_gradients(mesh):
    x, weight = (torch.randn(*shape, dtype=torch.float64) for shape in ((1, 2, 5, 5), (2, 2, 2, 2)))
    grads = []
    for bring in (lambda v: v.clone(), lambda v: tt.distribute_tensor(v, mesh)):
        a, b = (bring(v).requires_grad_() for v in (x, weight))
        first, = torch.autograd.grad(functional.conv_transpose2d(a, b, stride=2).pow(3).sum(), a, create_graph=True)
        grads.append([one.cpu() for one in torch.autograd.grad(first.pow(2).sum(), (a, b))])
    for got, want in zip(grads[1], grads[0]):
        torch.testing.assert_close(got, want)


def test_a_transposed_convolution_that_does_not_fit_is_refused(mesh):
    x, weight = (tt.distribute_tensor(torch.randn(*shape), placements=[R()]) for shape in ((1, 4, 2, 2), (3, 2, 3, 3)))
    with pytest.raises((RuntimeError, ts.InvalidArgumentError), match="first dim|channels"):
        functional.conv_transpose2d(x, weight)
    with pytest.raises((RuntimeError, ts.InvalidArgumentError), match=r"\[-?\d+, -?\d+\]|size"):
        functional.conv_transpose2d(x, tt.distribute_tensor(torch.randn(4, 2, 1, 1)), padding=3)


# ---- means of windows ----------------------------------------------------------------------------------------------------

POOLS = [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
         {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
         {"kernel_size": 3, "padding": 1, "stride": 1, "count_include_pad": False}, {"kernel_size": 2, "stride": 3, "ceil_mode": True},
         {"kernel_size": 2, "ceil_mode": True}]


@pytest.mark.parametrize("placements", IMAGES, ids=str)
@pytest.mark.parametrize("options", [*POOLS, {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0), "divisor_override": 5},
                                     {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "divisor_override": 7}], ids=str)
def test_means_of_windows(mesh22, placements, options):
    same_with_gradients(mesh22, placements, lambda x: functional.avg_pool2d(x, **options), torch.randn(2, 4, 8, 9, dtype=torch.float64))


@pytest.mark.parametrize("options", POOLS, ids=str)
@pytest.mark.parametrize("dims", [1, 3])
def test_means_of_windows_of_other_numbers_of_dims(mesh22, dims, options):
    pool = getattr(functional, f"avg_pool{dims}d")
    for placements in ([R(), R()], [S(0), S(2)]):
        for sizes in ([7] * dims, [6] * dims):
            same_with_gradients(mesh22, placements, lambda x: pool(x, **options), torch.randn(2, 2, *sizes, dtype=torch.float64))
    same_with_gradients(mesh22, [S(0), R()], lambda x: pool(x, **options), torch.randn(2, *[6] * dims, dtype=torch.float64))     # one image


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_as_many_means_as_are_wanted(mesh22, dims):
    pool = getattr(functional, f"adaptive_avg_pool{dims}d")
    for placements in ([R(), R()], [S(0), S(2)]):
        for counts in ([1] * dims, [3] * dims, [4, 2, 3][:dims], [5, 7, 1][:dims], [8] * dims):
            same_with_gradients(mesh22, placements, lambda x: pool(x, counts), torch.randn(2, 2, *[6] * dims, dtype=torch.float64))
    same_with_gradients(mesh22, [S(0), R()], lambda x: pool(x, [4] * dims), torch.randn(2, *[6] * dims, dtype=torch.float64))
    with pytest.raises((RuntimeError, ts.InvalidArgumentError)):
        pool(tt.distribute_tensor(torch.ones(2, 2, *[0] * dims)), [3] * dims)


def test_means_of_halves(mesh22):
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(1, 2, 9, 9).to(dtype)
        here, there = x.clone().requires_grad_(), tt.distribute_tensor(x, mesh22, [S(2), R()]).requires_grad_()
        for one in (here, there):
            out = functional.avg_pool2d(one, 3, 2, padding=1, count_include_pad=False)
            assert out.dtype == dtype
            out.sum().backward()
        torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=0.02, atol=0.02)


def test_a_network_of_all_of_them_is_trained(mesh22):
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 4, 3, padding=1, groups=4),
                         nn.ConvTranspose2d(4, 1, 2, stride=2))
    there = tt.distribute_module(copy.deepcopy(here))
    x = torch.randn(4, 2, 8, 8)
    losses = []
    for model, data in ((here, x), (there, tt.distribute_tensor(x, placements=[S(0), S(2)]))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = (model(data) - data[:, :1]).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("function, rows", [
    (lambda x, w: functional.avg_pool2d(x, 2), 0), (lambda x, w: functional.avg_pool2d(x, 3, 1, 1), 12),
    (lambda x, w: functional.avg_pool2d(x, 3, 2, 1), 12), (lambda x, w: functional.conv_transpose2d(x, w[:, :, :2, :2], stride=2), 6),
    (lambda x, w: functional.conv_transpose2d(x, w, stride=2, padding=1), 32), (lambda x, w: functional.conv2d(x, w[:, :1], groups=4), 18)],
    ids=["side by side", "overlapping", "with stride", "transposed", "transposed, overlapping", "grouped"])
def test_a_sharded_image_gives_some_rows_alone(session, mesh, function, rows):
    """In rows of the image, which has 64, forward and backward."""
    x = tt.distribute_tensor(torch.randn(1, 4, 64, 64), placements=[S(2)]).requires_grad_()
    weight = tt.distribute_tensor(torch.randn(4, 4, 4, 4), placements=[R()])
    with session.comm_debug() as comm:
        out = function(x, weight)
        out.backward(torch.ones_like(out))
        x.grad.cpu()
    assert out.placements == x.grad.placements == (S(2),)
    assert sum(comm.bytes_received) <= rows * 4 * 64 * 4, comm.bytes_received
