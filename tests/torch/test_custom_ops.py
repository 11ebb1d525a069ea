"""Ops of other libraries: a body of torch's ops runs on tensors of tessera, with the op's own gradient."""

import pytest
import torch
from models import R, S

import tessera as ts
import tessera.torch as tt


@torch.library.custom_op("tessera_tests::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return scale * x.sin()


@scaled_sin.register_fake
def _(x, scale=2.0):
    return torch.empty_like(x)


scaled_sin.register_autograd(lambda ctx, g: (g * ctx.scale * ctx.saved_tensors[0].cos(), None),
                             setup_context=lambda ctx, inputs, output: (ctx.save_for_backward(inputs[0]), setattr(ctx, "scale", inputs[1])))


@torch.library.custom_op("tessera_tests::count_", mutates_args={"counts"})
def count_(counts: torch.Tensor, x: torch.Tensor) -> None:
    counts.add_((x > 0).sum())


@torch.library.custom_op("tessera_tests::halves", mutates_args=())
def halves(x: torch.Tensor, wrong: str) -> tuple[torch.Tensor, torch.Tensor]:
    first, rest = x[:2].clone(), x[2:].clone()
    return first, {"": rest, "shape": rest.t().contiguous(), "dtype": rest.double()}[wrong]


@halves.register_fake
def _(x, wrong):
    return torch.empty_like(x[:2]), torch.empty_like(x[2:])


@torch.library.custom_op("tessera_tests::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x.cpu() > 0].clone() if x.ndim else x.clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


LIBRARY = torch.library.Library("tessera_tests", "FRAGMENT")
LIBRARY.define("only_cpu(Tensor x) -> Tensor")
LIBRARY.impl("only_cpu", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
LIBRARY.define("relu_(Tensor(a!) x) -> Tensor(a!)")     # not torch's
LIBRARY.impl("relu_", lambda x: x.mul_(-1), "CompositeExplicitAutograd")
LIBRARY.define("for_all(Tensor x) -> Tensor")
LIBRARY.impl("for_all", lambda x: x.exp() + 1, "CompositeExplicitAutograd")


@pytest.mark.parametrize("place", [[R, R], [S(0), S(1)]], ids=str)
def test_a_body_runs_and_has_its_own_gradient(mesh22, place):
    x = torch.randn(4, 6, requires_grad=True)
    (scaled_sin(x, 3.0) ** 2).sum().backward()
    there = tt.distribute_tensor(x.detach(), mesh22, place).requires_grad_()
    out = scaled_sin(there, 3.0)
    assert isinstance(out, tt.Tensor) and out.placements == there.placements and out.grad_fn is not None
    (out ** 2).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad)
    assert torch.allclose(torch.ops.tessera_tests.for_all(there).cpu(), x.exp() + 1)


def test_an_op_may_write_to_its_operands(mesh):
    counts, x = torch.zeros((), dtype=torch.int64, device="tessera"), torch.tensor([1.0, -1.0, 2.0]).to("tessera")
    before = counts._version
    count_(counts, x)
    count_(counts, x)
    assert counts.item() == 4 and counts._version > before
    assert torch.ops.tessera_tests.relu_(x).tolist() == x.tolist() == [-1.0, 1.0, -2.0]


def test_what_the_fake_denies_is_an_error_at_the_call(mesh):
    x = torch.ones(5, 3, device="tessera")
    first, rest = halves(x, "")
    assert first.shape == (2, 3) and rest.shape == (3, 3)
    y = torch.ones(4, 3, device="tessera")
    with pytest.raises(ts.InvalidArgumentError, match=r"tessera_tests::halves: its body gives float32\[3, 2\] for result 1, and its fake says float32\[2, 3\]"):
        halves(y, "shape")
    with pytest.raises(ts.InvalidArgumentError, match=r"halves: its body gives float64\[2, 3\] for result 1, and its fake says float32\[2, 3\]") as error:
        halves(y, "dtype")
    assert any(one.name.startswith("test_what_the_fake") for one in error.traceback)


def test_a_shape_that_values_decide_has_no_fake_to_be_compared_with(mesh):
    assert positive(torch.tensor([1.0, -1.0, 2.0]).to("tessera")).tolist() == [1.0, 2.0]


def test_a_kernel_of_another_device_is_refused_with_what_to_write(mesh):
    x = torch.arange(6.0).to("tessera")
    with pytest.raises(NotImplementedError, match=r"tessera_tests::only_cpu: has a kernel for CPU, .*register_kernel\(.*tt.local_map\("):
        torch.ops.tessera_tests.only_cpu(x)
    torch.library.register_kernel("tessera_tests::only_cpu", "tessera", lambda x: x * 2, lib=LIBRARY)
    assert torch.ops.tessera_tests.only_cpu(x).tolist() == (torch.arange(6.0) * 2).tolist()


@pytest.mark.parametrize("place", [[R, R], [S(0), R], [S(0), S(1)]], ids=str)
def test_local_map_runs_a_function_of_cpu_tensors_on_each_shard(mesh22, place):
    calls = []

    def outer(x, scale, w):
        calls.append(x)
        assert x.device.type == w.device.type == "cpu"
        return torch.exp(x) * scale * w
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn((), requires_grad=True)
    a, b = tt.distribute_tensor(x.detach(), mesh22, place).requires_grad_(), tt.distribute_tensor(w.detach(), mesh22, [R, R]).requires_grad_()
    out = tt.local_map(outer, place)(a, 3.0, b)
    assert len(calls) == 2 ** sum(one != R for one in place) and out.placements == tuple(place)
    expected = outer(x, 3.0, w)
    torch.testing.assert_close(out.cpu(), expected)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(a.grad.cpu(), x.grad)
    torch.testing.assert_close(b.grad.cpu(), w.grad)


def test_local_map_says_what_does_not_fit(mesh):
    x = tt.distribute_tensor(torch.arange(8.0), mesh, [S(0)])
    with pytest.raises(ts.InvalidArgumentError, match=r"local_map: argument 0 of <lambda> is .*in_placements says \[Replicate\(\)\]"):
        tt.local_map(lambda x: x, [R], in_placements=([R],))(x)
    assert tt.local_map(lambda x: x.flip(0), [R], in_placements=([R],), redistribute_inputs=True)(x).tolist() == list(range(7, -1, -1))
    largest, count = tt.local_map(lambda x: (x.max(), len(x)), ([ts.Partial("max")], None))(x)
    assert largest.item() == 7 and count == 2
    with pytest.raises(ts.InvalidArgumentError, match="local_map: no argument"):
        tt.local_map(lambda x: x, [R])(1)
