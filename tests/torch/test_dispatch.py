"""Ops go from torch's dispatcher to their rows at once where all tensors are of this device; all else goes torch's way."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tessera as ts
import tessera.torch as tt

ADD = torch.ops.aten.add.Tensor


@pytest.fixture
def x(mesh):
    return tt.distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [ts.Replicate()])


@pytest.fixture
def seen(monkeypatch):
    """The ops that came to __torch_dispatch__ of this device's class."""
    ops, own = [], tt.Tensor.__torch_dispatch__
    monkeypatch.setattr(tt.Tensor, "__torch_dispatch__",
                        classmethod(lambda cls, func, types, args=(), kwargs=None: ops.append(func) or own(func, types, args, kwargs)))
    return ops


@pytest.mark.parametrize("call", [
    lambda x: x + x, lambda x: x * 2.0, lambda x: 3 - x, lambda x: torch.add(x, x, alpha=2), lambda x: x.sum(dim=1, keepdim=True),
    lambda x: torch.cat([x, x], dim=1), lambda x: torch.nn.functional.layer_norm(x, (4,)), lambda x: x.max(dim=0).values, lambda x: x.view(2, 6),
    lambda x: x.clone().add_(1), lambda x: x.clone().add_(x).mul_(2.0).sub_(x).div_(3), lambda x: torch.where(x > 2, x, 0.0), lambda x: torch.nn.functional.gelu(x, approximate="none")])
def test_an_op_goes_to_its_row_at_once(x, seen, call):
    got = call(x)
    assert not [func for func in seen if func in (ADD, torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor, torch.ops.aten.cat.default,
                                                  torch.ops.aten.native_layer_norm.default)]
    torch.testing.assert_close(got.cpu(), call(x.cpu()))


def test_dtypes_and_formats_of_memory_among_the_arguments_go_to_the_row_at_once(x, seen):
    got = x.sum(dtype=torch.float64)
    assert got.dtype == torch.float64 and got.item() == 66
    ones = torch.ones_like(x, memory_format=torch.preserve_format)      # as backward() makes its first gradient
    assert torch.equal(ones.cpu(), torch.ones(3, 4)) and x.to(torch.float64).dtype == torch.float64
    assert torch.ones_like(x, dtype=torch.int32, memory_format=torch.contiguous_format).dtype == torch.int32
    assert not [func for func in seen if func in (torch.ops.aten.sum.default, torch.ops.aten.ones_like.default)]


def test_flags_among_the_arguments_go_to_the_row_at_once(x, seen):
    """Flags of backward say whose gradients are wanted."""
    weight = tt.distribute_tensor(torch.ones(2, 4), x.device_mesh).requires_grad_()
    torch.nn.functional.layer_norm(torch.nn.functional.linear(x, weight), (2,)).sum().backward()
    assert not [func for func in seen if func in (torch.ops.aten.linear_backward.default, torch.ops.aten.native_layer_norm_backward.default)]
    assert weight.grad.shape == (2, 4)


def test_a_device_among_the_arguments_goes_torchs_way(x, seen):
    assert torch.ones_like(x, device="cpu").tolist() == [[1.0] * 4] * 3 and torch.ops.aten.ones_like.default in seen


def test_a_mode_sees_the_op(x):
    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ops.append(func)
            return func(*args, **(kwargs or {}))

    ops = []
    with Log():
        got = x + x
    assert ops == [ADD] and torch.equal(got.cpu(), x.cpu() * 2)


def test_other_classes_have_their_own_way():
    class Other(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            ops.append((func, args[1:], kwargs))
            return torch.zeros(2)

    ops = []
    assert torch.equal(torch.Tensor._make_subclass(Other, torch.ones(2)) + 1, torch.zeros(2))
    assert ops == [(ADD, (1,), {})]


def test_a_class_of_others_over_a_tensor_here_takes_the_op_apart(x):
    class Doubled(torch.Tensor):
        """Shows a tensor times two."""

        @staticmethod
        def __new__(cls, held):
            out = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
            out.held = held
            return out

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*(one.held * 2 if isinstance(one, cls) else one for one in args), **(kwargs or {}))

    for got in (x + Doubled(x), Doubled(x) + x):        # whichever comes first
        assert type(got) is tt.Tensor and torch.equal(got.cpu(), x.cpu() * 3)


def test_a_refusal_is_asked_again(x):
    """A number of another mesh, and a CPU tensor with dims: as in __torch_dispatch__."""
    with pytest.raises((ts.InvalidArgumentError, RuntimeError), match="cpu"):
        x + torch.ones(3, 4)
    with pytest.raises(ts.InvalidArgumentError, match="^(matmul|mm): inner dims"):
        x @ x
