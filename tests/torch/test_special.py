"""Special functions, and gradients through samples, against the CPU: far out, at the seams of their series, at poles."""

import itertools

import mpmath
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


# ---- beside 30 digits: torch's own have fewer of these ----------------------------------------------------------------------------------

def beside_digits(mesh, function, expected, *arrays, rtol, atol=0.0):
    """The function's values against mpmath's; and torch's on the CPU, of which single precision is right."""
    with mpmath.workdps(30):
        whole = torch.tensor([float(expected(*(mpmath.mpf(v) for v in values))) for values in zip(*(one.tolist() for one in arrays))],
                             dtype=torch.float64)
    for place in (R, S(0)):
        got = function(*(tt.distribute_tensor(one, mesh, [place]) for one in arrays))
        torch.testing.assert_close(got.cpu(), whole, rtol=rtol, atol=atol, equal_nan=True)
        assert got.placements == (place,)
    compare(mesh, function, *(one.float() for one in arrays), rtol=1e-4, atol=1e-5)


SPREAD = torch.cat([torch.linspace(-25, 60, 171).double() + 1e-3, torch.tensor([1e-8, 1e3, 8.0, 2.0, 2.5, -4.0]).double()])
AIRY = torch.cat([SPREAD, torch.linspace(-5, 5, 101).double()])
RATES = {"bessel_j0": (lambda v: mpmath.besselj(0, v), SPREAD), "bessel_j1": (lambda v: mpmath.besselj(1, v), SPREAD),
         "bessel_y0": (lambda v: mpmath.bessely(0, v), SPREAD[SPREAD > 0]), "bessel_y1": (lambda v: mpmath.bessely(1, v), SPREAD[SPREAD > 0]),
         "modified_bessel_k0": (lambda v: mpmath.besselk(0, v), SPREAD[SPREAD > 0]), "modified_bessel_k1": (lambda v: mpmath.besselk(1, v), SPREAD[SPREAD > 0]),
         "scaled_modified_bessel_k0": (lambda v: mpmath.exp(v) * mpmath.besselk(0, v), SPREAD[SPREAD > 0]),
         "scaled_modified_bessel_k1": (lambda v: mpmath.exp(v) * mpmath.besselk(1, v), SPREAD[SPREAD > 0]),
         "airy_ai": (mpmath.airyai, AIRY), "spherical_bessel_j0": (mpmath.sinc, SPREAD)}


@pytest.mark.parametrize("name", RATES)
def test_bessel_and_airy_functions(mesh, name):
    expected, x = RATES[name]
    function = getattr(torch.special, name)
    beside_digits(mesh, function, expected, x, rtol=1e-13, atol=0.0 if "modified" in name else 2e-14)
    ends = torch.tensor([0.0, -0.0, -1.0, float("nan"), *([] if name == "airy_ai" else [float("inf")])]).double()
    compare(mesh, function, ends, rtol=1e-6)
    assert function(tt.distribute_tensor(torch.tensor([1, 2]), mesh)).dtype == torch.float32


@pytest.mark.parametrize("name", ["bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1"])
def test_gradients_of_bessel_functions(mesh, name):
    x = torch.linspace(0.5, 20, 16).double().requires_grad_()
    there = tt.distribute_tensor(x.detach(), mesh, [S(0)]).requires_grad_()
    for one in (x, there):
        getattr(torch.special, name)(one).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)      # torch's Y1 is this far off


def lower_and_upper(a, x):
    """By the series of positive terms, with digits enough for the difference from 1."""
    with mpmath.workdps(330):
        term = total = mpmath.mpf(1)
        k = 1
        while term > total * mpmath.mpf(10) ** -325:
            term = term * x / (a + k)
            total += term
            k += 1
        lower = mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + 1)) * total
        return lower, 1 - lower


SHAPES = [1e-10, 0.1, 0.5, 1.0, 1.5, 3.0, 7.9, 8.0, 15.0, 19.9, 20.0, 50.0, 150.0]
AT = [(a, a * r) for a in SHAPES for r in (1e-3, 0.3, 0.49, 0.51, 0.9, 1.0, 1.1, 1.69, 1.71, 3.0)] + [(a, x) for a in SHAPES for x in (0.1, 1.99, 2.01, 5.0)]


@pytest.mark.parametrize("which", [0, 1])
def test_incomplete_gamma_functions(mesh, which):
    a, x = (torch.tensor(one, dtype=torch.float64) for one in zip(*AT))
    function = (torch.igamma, torch.igammac)[which]
    beside_digits(mesh, function, lambda *at: lower_and_upper(*at)[which], a, x, rtol=2e-13, atol=1e-300)
    many, wide = torch.logspace(-3, 6, 60).double().repeat_interleave(20), torch.logspace(-4, 0.8, 20).double().repeat(60)
    compare(mesh, function, many, many * wide, rtol=1e-6, atol=1e-8)        # torch's f64 has 8 digits here
    ends = torch.tensor([0.0, 1.0, float("inf"), -1.0, 2.0]).double()
    nan = torch.tensor([[1.0, float("nan")], [float("nan"), 1.0], [float("inf"), float("nan")]])
    assert function(*(tt.distribute_tensor(one.contiguous(), mesh) for one in nan.unbind(1))).cpu().isnan().all()
    compare(mesh, function, *(one.reshape(-1) for one in torch.meshgrid(ends, ends, indexing="ij")), rtol=1e-12)
    for ours in (torch.special.gammainc, torch.special.gammaincc)[which:which + 1]:
        compare(mesh, ours, torch.tensor([[0.5], [2.0], [3.0], [9.0]]), torch.tensor([[0.3, 4.0]]).expand(4, 2).contiguous(), rtol=1e-5)


def test_the_distribution_function_of_gamma_has_gradients(mesh):
    values = torch.linspace(0.1, 9, 12)
    here, there = values.clone().requires_grad_(), tt.distribute_tensor(values, mesh, [S(0)]).requires_grad_()
    for one in (here, there):
        torch.distributions.Gamma(torch.as_tensor(2.0).to(one.device), torch.as_tensor(0.7).to(one.device)).cdf(one).square().sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-5, atol=1e-6)


CHEBYSHEV = [f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
OTHERS = ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]
POINTS = torch.cat([torch.linspace(-2.97, 2.99, 61), torch.tensor([1.0, -1.0, 0.0, 0.5, float("nan")])]).double()


@pytest.mark.parametrize("name", CHEBYSHEV + OTHERS)
def test_orthogonal_polynomials(mesh, name):
    function = getattr(torch.special, name)
    for degree in (-1, 0, 1, 2, 5, 8, 9, 12, 33):
        compare(mesh, lambda x: function(x, degree), POINTS, rtol=1e-11, atol=1e-11)
    x, n = (one.contiguous() for one in torch.meshgrid(POINTS, torch.arange(-1.0, 13).double(), indexing="ij"))
    compare(mesh, function, x, n + 0.3 * n.sign(), rtol=1e-11, atol=1e-11)
    compare(mesh, lambda n: function(0.3, n), torch.arange(4), rtol=1e-5, atol=1e-5)
    compare(mesh, lambda x: function(x, torch.tensor(3)), POINTS.float(), rtol=1e-5, atol=1e-4)
    assert function(tt.distribute_tensor(torch.tensor([1, 2]), mesh), 2).dtype == torch.float32


def test_a_high_degree(mesh):
    x = torch.linspace(-0.9, 0.9, 8).double()
    there = tt.distribute_tensor(x, mesh, [S(0)])
    compare(mesh, lambda one: torch.special.legendre_polynomial_p(one, 1024), x, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(torch.special.chebyshev_polynomial_t(there, 10**6).cpu(), torch.cos(10**6 * torch.acos(x)), rtol=0, atol=1e-9)
    with pytest.raises(ts.InvalidArgumentError, match="legendre_polynomial_p: a degree is 1025, above polynomial_degree, which is 1024"):
        torch.special.legendre_polynomial_p(there, 1025)


@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_histograms_of_points(mesh, place, density):
    values, weights = torch.rand(8, 5, 3, generator=torch.Generator().manual_seed(1)), torch.rand(8, 5, generator=torch.Generator().manual_seed(2))
    x, w = (tt.distribute_tensor(one, mesh, [place]) for one in (values, weights))
    edges = [torch.tensor(one) for one in ([0.0, 0.1, 0.6], [0.2, 0.9], [-1.0, 0.3, 0.5, 2.0])]
    for bins, options in (([2, 3, 4], {}), (3, {"range": [0.1, 0.9, 0.0, 1.0, 0.5, 0.5]}), (edges, {})):
        there = [tt.distribute_tensor(one, mesh) for one in bins] if bins is edges else bins
        for weighted in (False, True):
            got = torch.histogramdd(x, there, weight=w if weighted else None, density=density, **options)
            expected = torch.histogramdd(values, bins, weight=weights if weighted else None, density=density, **options)
            torch.testing.assert_close(got.hist.cpu(), expected.hist, equal_nan=True)
            for one, other in zip(got.bin_edges, expected.bin_edges, strict=True):
                torch.testing.assert_close(one.cpu(), other)
    with pytest.raises(ts.InvalidArgumentError, match="bins of 2 dims, and .* has points of 3 coordinates"):
        torch.histogramdd(x, [2, 2])
    with pytest.raises(ts.InvalidArgumentError, match="a range of 2 numbers for 3 dims"):
        torch.histogramdd(x, 2, range=[0.0, 1.0])
    with pytest.raises(ts.InvalidArgumentError, match="histogramdd: takes floats"):
        torch.histogramdd(x.to(torch.int64), 2)
