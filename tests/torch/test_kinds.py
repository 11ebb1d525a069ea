"""Models of the kinds that people train (kinds.py), forward and backward beside torch's own, with the batch whole and in shards."""

import warnings

import pytest
import torch
from kinds import KINDS, LOSSES
from models import R, S, same_start

import tessera.torch as tt

OPTIONS = {"rtol": 1e-3, "atol": 2e-5}


def loss_of(out):
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return sum((one * one).mean() for one in outs)


@pytest.mark.parametrize("place", [R, S(0)], ids=["whole", "shards"])
@pytest.mark.parametrize("name", KINDS)
def test_a_model_gives_what_it_gives_on_one_process(mesh, name, place):
    make, make_inputs = KINDS[name]
    inputs = make_inputs()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # lazy modules are new
        lazy = make()
        lazy.eval()(*inputs)                # extents of lazy modules
    model, other = same_start(lambda: lazy.train())
    tt.distribute_module(model, mesh)
    there = [tt.distribute_tensor(one, mesh, [place if one.shape[0] == inputs[0].shape[0] else R]) for one in inputs]
    got, expected = model(*there), other(*inputs)
    for one, two in zip(*(out if isinstance(out, tuple) else (out,) for out in (got, expected))):
        torch.testing.assert_close(one.detach().cpu(), two.detach(), **OPTIONS)
    loss_of(got).backward()
    loss_of(expected).backward()
    for (at, one), two in zip(model.named_parameters(), other.parameters()):
        assert (one.grad is None) == (two.grad is None), at
        if two.grad is not None:
            torch.testing.assert_close(one.grad.cpu(), two.grad, msg=lambda text, at=at: f"{at}: {text}", **OPTIONS)
    for (at, one), two in zip(model.named_buffers(), other.buffers()):
        torch.testing.assert_close(one.cpu(), two, msg=lambda text, at=at: f"{at}: {text}", **OPTIONS)


@pytest.mark.parametrize("place", [R, S(0)], ids=["whole", "shards"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_one_process(mesh, name, place):
    torch.manual_seed(1)
    x, y, z = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6), torch.randint(0, 6, (4,))
    there = [tt.distribute_tensor(one, mesh, [place]) for one in (x, y, z)]
    got, expected = LOSSES[name](*there), LOSSES[name](x, y, z)
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), **OPTIONS)
    got.backward()
    expected.backward()
    torch.testing.assert_close(there[0].grad.cpu(), x.grad, **OPTIONS)
