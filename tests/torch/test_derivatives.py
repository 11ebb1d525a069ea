"""Derivatives of products beyond the first one backward: forward, of derivatives, of complex numbers; torch.func's transforms."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def outs(x):
    return [one for part in x for one in outs(part)] if isinstance(x, (tuple, list)) else [x]


def compare(mesh, function, *arrays, places=(R, S(0))):
    for place in places:
        got = function(*(tt.distribute_tensor(one, mesh, [place]) for one in arrays))
        for one, other in zip(outs(got), outs(function(*arrays)), strict=True):
            torch.testing.assert_close(one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-4)


SHAPES = [((4, 4), (4, 4)), ((4,), (4, 4)), ((4, 4), (4,)), ((4,), (4,)), ((3, 4, 4), (4, 4)), ((4, 4), (3, 4, 4)), ((3, 4, 4), (4,)),
          ((4,), (3, 4, 4)), ((3, 4, 4), (3, 4, 4)), ((2, 1, 4, 4), (3, 4, 4))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_derivatives_of_products(mesh, shapes):
    a, b = drawn(*shapes[0]), drawn(*shapes[1], seed=2)
    compare(mesh, lambda x, y: torch.func.jvp(torch.matmul, (x, y), (2 * x, y - 1)), a, b)
    compare(mesh, lambda x, y: torch.func.jacrev(lambda x, y: (x @ y).tanh(), argnums=(0, 1))(x, y), a, b)
    compare(mesh, lambda x, y: torch.func.jacfwd(lambda x: (x @ y).tanh())(x), a, b)
    compare(mesh, lambda x, y: torch.func.hessian(lambda x: ((x @ y) ** 3).sum())(x), a, b)

    def twice(x, y):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        first = torch.autograd.grad(((x @ y) ** 3).sum(), (x, y), create_graph=True)
        return torch.autograd.grad(sum((one ** 2).sum() for one in first), (x, y))
    compare(mesh, twice, a, b)


def test_derivatives_of_linear_layers(mesh):
    x, weight, bias = drawn(4, 6), drawn(5, 6, seed=2), drawn(5, seed=3)
    compare(mesh, lambda x, w, b: torch.func.jvp(F.linear, (x, w, b), (2 * x, w - 1, 3 * b)), x, weight, bias)
    compare(mesh, lambda x, w: torch.func.jvp(F.linear, (x, w), (2 * x, w - 1)), x, weight)
    compare(mesh, lambda x, w, b: torch.func.hessian(lambda x: (F.linear(x, w, b) ** 3).sum())(x), x, weight, bias)
    compare(mesh, lambda x, w, b: torch.func.vmap(torch.func.grad(lambda w, y: (F.linear(y, w, b) ** 2).sum()), in_dims=(None, 0))(w, x), x, weight, bias)

    def dual(x, w):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(F.linear(forward_ad.make_dual(x, 2 * x), w).tanh()).tangent
    compare(mesh, dual, x, weight)


def test_the_third_derivative_of_a_product(mesh):
    def cube(x):
        return ((x @ x) ** 2).sum()
    once = torch.func.grad(cube)
    twice = torch.func.grad(lambda x: once(x).sum())
    compare(mesh, torch.func.grad(lambda x: twice(x).sum()), drawn(3, 3))


def test_derivatives_of_complex_products(mesh):
    def both(x, y):
        x, y = (one.detach().requires_grad_() for one in (x, y))
        first = torch.autograd.grad((torch.view_as_complex(x) @ torch.view_as_complex(y)).abs().square().sum(), (x, y), create_graph=True)
        return (*first, *torch.autograd.grad(sum(one.pow(3).sum() for one in first), (x, y)))
    compare(mesh, both, drawn(4, 3, 2), drawn(3, 4, 2, seed=2))


def test_a_step_backward_takes_whole_products(mesh, session):
    """A derivative that needs no second one is not taken apart: a product of four batches with a matrix takes one op for each side."""
    x, y = (tt.distribute_tensor(one, mesh).requires_grad_() for one in (drawn(4, 2, 3), drawn(3, 5)))
    out = x @ y
    assert out.grad_fn.name() == "MatmulBackward0"
    compare(mesh, lambda x, y: torch.autograd.grad((x.requires_grad_() @ y.requires_grad_()).square().sum(), (x, y)), drawn(4, 2, 3), drawn(3, 5))


def test_what_traces_ops_is_refused_by_name(mesh):
    x = tt.distribute_tensor(drawn(4, 3), mesh)
    with pytest.raises(NotImplementedError, match="linearize"):
        torch.func.linearize(lambda y: F.linear(y, x), x)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}], ids=str)
def test_attention_of_each_of_many(mesh, options):
    """vmap takes what it maps over as a part of the batch."""
    q, k, v = drawn(4, 2, 4, 5, 3), drawn(4, 2, 2 if "enable_gqa" in options else 4, 6, 3, seed=2), drawn(4, 2, 2 if "enable_gqa" in options else 4, 6, 3, seed=3)

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)
    compare(mesh, torch.func.vmap(attention), q, k, v)
    compare(mesh, torch.func.vmap(attention, in_dims=(1, None, None), out_dims=2), q.transpose(0, 1), k[0], v[0])
    gradients = torch.func.grad(lambda *x: (attention(*x) ** 2).sum(), argnums=(0, 1, 2))
    compare(mesh, torch.func.vmap(gradients), q, k, v)
    compare(mesh, torch.func.vmap(gradients, in_dims=(0, None, None)), q, k[0], v[0])


@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6), (1, 4, 1, 6)], ids=str)
def test_attention_with_a_bias_of_each_of_many(mesh, shape):
    q, k, v, bias = drawn(4, 2, 4, 5, 3), drawn(4, 2, 4, 6, 3, seed=2), drawn(4, 2, 4, 6, 3, seed=3), drawn(4, *shape, seed=4)

    def loss(q, k, v, m):
        return (F.scaled_dot_product_attention(q, k, v, attn_mask=m) ** 2).sum()
    gradients = torch.func.grad(loss, argnums=(0, 3))
    compare(mesh, torch.func.vmap(gradients), q, k, v, bias)
    compare(mesh, torch.func.vmap(gradients, in_dims=(0, 0, 0, None)), q, k, v, bias[0])
    compare(mesh, torch.func.vmap(lambda q, k, v, m: loss(q, k, v, m > 0), in_dims=(0, 0, 0, None)), q, k, v, bias[0])


def test_gradients_of_each_sample_of_a_transformer(mesh):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = drawn(4, 5, 8)

    def of_each(x, *values):
        named = dict(zip(dict(layer.named_parameters()), values))
        one = torch.func.grad(lambda p, y: (torch.func.functional_call(layer, p, (y[None],)) ** 2).sum())
        return list(torch.func.vmap(one, in_dims=(None, 0))(named, x).values())
    compare(mesh, of_each, x, *(one.detach() for one in layer.parameters()))
