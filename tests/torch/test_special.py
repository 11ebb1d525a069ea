"""Special functions, and gradients through samples, against the CPU: far out, at the seams of their series, at poles."""

import itertools

import pytest
import torch

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
ENDS = torch.tensor([0.0, 1e-8, -1e-8, float("inf"), -float("inf"), float("nan"), 0.5, -0.5, 20.0, -20.0, 500.0])


def compare(mesh, function, *arrays, rtol, atol=1e-300):
    for place in (R, S(0)):
        got = function(*(tt.distribute_tensor(one, mesh, [place]) for one in arrays))
        torch.testing.assert_close(got.cpu(), function(*arrays), rtol=rtol, atol=atol, equal_nan=True)


LINE = torch.cat([torch.linspace(-30, 30, 1001), ENDS]).double()


@pytest.mark.parametrize("function", [
    torch.i0, torch.special.i0e, torch.special.i1, torch.special.i1e, torch.special.modified_bessel_i0, torch.special.modified_bessel_i1,
    torch.erfc, torch.special.erfcx, torch.special.log_ndtr], ids=lambda one: one.__name__)
def test_functions_on_a_line(mesh, function):
    x = LINE.clamp(-25, 700) if function is torch.special.erfcx else LINE
    compare(mesh, function, x, rtol=1e-12)
    compare(mesh, function, x.float(), rtol=2e-5, atol=1e-37)


def test_the_normal_distribution_backwards(mesh):
    x = torch.cat([torch.linspace(0, 1, 501), torch.tensor([-0.1, 1.1, float("nan")]), torch.logspace(-37, -2, 100)]).double()
    compare(mesh, torch.special.ndtri, x, rtol=1e-12, atol=1e-13)
    compare(mesh, torch.special.ndtri, x.float(), rtol=1e-5, atol=1e-6)


POLES = torch.cat([torch.linspace(-15, 40, 1101), torch.tensor([0.0, -1, -2, 1, 2, 1e5, -0.5])]).double()


@pytest.mark.parametrize("s", [1.0, 0.5, 2.0, 2.5, 3.0, 9.0])
def test_zeta_on_both_sides_of_its_poles(mesh, s):
    compare(mesh, lambda q: torch.special.zeta(s, q), POLES, rtol=1e-9, atol=1e-12)
    compare(mesh, lambda q: torch.special.zeta(1 + q.abs(), s), POLES, rtol=1e-9, atol=1e-12)
    compare(mesh, torch.special.zeta, 1 + POLES.abs() / 5, POLES.flip(0).abs(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n", range(5))
def test_derivatives_of_the_digamma_function(mesh, n):
    x = POLES if n != 1 else POLES[(POLES != POLES.floor()) | (POLES >= 0)]    # torch's is finite at the poles of the first one
    compare(mesh, lambda one: torch.polygamma(n, one), x, rtol=1e-8, atol=1e-8)
    assert torch.polygamma(1, tt.distribute_tensor(torch.tensor([-1.0, -2.0, 0.0]), mesh)).cpu().isposinf().all()


def test_mantissas_and_exponents_are_exact(mesh):
    powers = torch.cat([2.0 ** torch.arange(-126.0, 128.0), torch.tensor([2.0 ** -140, 1 - 2.0 ** -24])])
    x = torch.cat([powers, -powers, torch.randn(100, generator=torch.Generator().manual_seed(1)) * torch.logspace(-30, 30, 100), ENDS])
    for kind, place in itertools.product([torch.float32, torch.float64], [R, S(0)]):
        values = x.to(kind) * (1e200 if kind == torch.float64 else 1)
        got, expected = torch.frexp(tt.distribute_tensor(values, mesh, [place])), torch.frexp(values)
        numbers = values.isfinite()
        assert got.exponent.dtype == torch.int32 and torch.equal(got.mantissa.cpu()[numbers], expected.mantissa[numbers])
        assert torch.equal(got.exponent.cpu()[numbers], expected.exponent[numbers])


def test_gradients_through_samples_of_gamma_distributions(mesh):
    alpha = torch.logspace(-2, 3, 60).double().repeat_interleave(20)
    torch.manual_seed(1)
    for samples in (torch._standard_gamma(alpha), alpha * torch.linspace(0.2, 3, 1200).double()):
        compare(mesh, torch._standard_gamma_grad, alpha, samples, rtol=1e-9)
        compare(mesh, torch._standard_gamma_grad, alpha.float(), samples.float(), rtol=2e-4, atol=1e-7)


def test_gradients_through_samples_of_dirichlet_distributions(mesh):
    one = torch.logspace(-1.5, 2.5, 40).double()
    a, b = (x.reshape(-1) for x in torch.meshgrid(one, one, indexing="ij"))
    torch.manual_seed(1)
    for samples in (torch.distributions.Beta(a, b).sample().clamp(1e-6, 1 - 1e-6), torch.rand_like(a).clamp(0.01, 0.99)):
        compare(mesh, torch._dirichlet_grad, samples, a, a + b, rtol=1e-6)


@pytest.mark.parametrize("make", [lambda t: torch.distributions.Gamma(t, 2 * t), lambda t: torch.distributions.Beta(t, 2 * t), torch.distributions.StudentT,
                                  lambda t: torch.distributions.Dirichlet(torch.stack([t, 2 * t], -1)), torch.distributions.Chi2])
def test_samples_of_distributions_have_gradients(mesh, make):
    t = tt.distribute_tensor(torch.linspace(0.5, 12, 5), mesh, [S(0)]).requires_grad_()
    make(t).rsample((3,)).square().sum().backward()
    assert t.grad.cpu().isfinite().all() and t.grad.cpu().abs().max() > 0


def test_extremes_of_bools(mesh):
    a, b = (torch.tensor(one) for one in ([False, False, True, True], [False, True, False, True]))
    for function in (torch.maximum, torch.minimum):
        compare(mesh, function, a, b, rtol=0, atol=0)
    values = torch.tensor([0.2, 0.4995, 0.8])
    compare(mesh, lambda p: torch.distributions.ContinuousBernoulli(p).entropy(), values, rtol=1e-4)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_histograms(mesh, place, density):
    values, weights = (torch.rand(4, 25, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    x, w = (tt.distribute_tensor(one, mesh, [place]) for one in (values, weights))
    edges = torch.tensor([-0.5, 0.1, 0.4, 0.9])
    for options in ({"bins": 7}, {"bins": 5, "range": (0.2, 0.7)}, {"bins": edges}):
        there = {key: tt.distribute_tensor(one, mesh) if isinstance(one, torch.Tensor) else one for key, one in options.items()}
        for got, expected in zip(torch.histogram(x, **there, weight=w, density=density), torch.histogram(values, **options, weight=weights, density=density)):
            torch.testing.assert_close(got.cpu(), expected)
    same = torch.full((4,), 2.0)
    for got, expected in zip(torch.histogram(tt.distribute_tensor(same, mesh), 3), torch.histogram(same, 3)):
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_places_that_are_not_zero_without_waiting(mesh, place):
    values = torch.randint(0, 2, (4, 5), generator=torch.Generator().manual_seed(1))
    for size, fill in ((3, -1), (30, 7), (0, 0)):
        got = torch.nonzero_static(tt.distribute_tensor(values, mesh, [place]), size=size, fill_value=fill)
        assert torch.equal(got.cpu(), torch.nonzero_static(values, size=size, fill_value=fill))
