"""torch's switch for TF32: which products of f32 it lets go by it, forward and backward."""

import pytest
import torch

import tessera as ts
import tessera.torch as tt


@pytest.fixture
def high():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


def products(mesh):
    """Functions of one handle, each with a product that torch would give to cuBLAS."""
    weight = tt.distribute_tensor(torch.ones(4, 4), mesh)

    def of(function):
        return lambda x: tt.to_handle(function(tt.from_handle(x)))

    def backward(x):
        own = tt.from_handle(x).requires_grad_()
        torch.nn.functional.linear(own, weight).sum().backward()
        return tt.to_handle(own.grad)

    return {"mm": of(lambda x: torch.mm(x, weight)), "matmul": of(lambda x: x.reshape(2, 2, 4) @ weight),
            "bmm": of(lambda x: torch.bmm(x.reshape(1, 4, 4), weight.reshape(1, 4, 4))), "addmm": of(lambda x: torch.addmm(weight, x, weight)),
            "linear": of(lambda x: torch.nn.functional.linear(x, weight, weight[0])), "linear's gradient": backward}


NAMES = ["mm", "matmul", "bmm", "addmm", "linear", "linear's gradient"]


@pytest.mark.parametrize("name", NAMES)
def test_products_have_all_bits_unless_torch_is_told_otherwise(mesh, name):
    x = tt.to_handle(tt.distribute_tensor(torch.ones(4, 4), mesh))
    assert "tf32" not in str(ts.explain(products(mesh)[name], x))


@pytest.mark.parametrize("name", NAMES)
def test_products_go_by_tf32_where_torch_is_told_that_they_may(mesh, name, high):
    x = tt.to_handle(tt.distribute_tensor(torch.ones(4, 4), mesh))
    assert "tf32" in str(ts.explain(products(mesh)[name], x))
