"""ts.random's distributions: samples beside NumPy's by the largest distance of their distribution functions, the same on every mesh, and
parameters that are none."""

import numpy as np
import pytest

import tessera as ts

COUNT = 20_000
# For two samples of that size: the distance that one pair in 1e7 exceeds (Kolmogorov, Smirnov).
LIMIT = np.sqrt(-np.log(0.5e-7) / COUNT)

CONTINUOUS = {
    "beta": [(2.0, 5.0), (0.3, 0.7)], "chisquare": [(1.0,), (7.5,)], "f": [(3.0, 9.0)], "gamma": [(0.4, 2.0), (6.0, 0.5)], "gumbel": [(1.0, 2.0)],
    "laplace": [(1.0, 2.0)], "logistic": [(-1.0, 0.5)], "lognormal": [(0.2, 0.7)], "noncentral_chisquare": [(3.0, 2.0), (0.7, 5.0)],
    "noncentral_f": [(3.0, 12.0, 1.5)], "pareto": [(3.0,)], "power": [(2.5,)], "rayleigh": [(2.0,)], "standard_cauchy": [()], "standard_exponential": [()],
    "standard_gamma": [(2.2,)], "standard_t": [(4.0,)], "triangular": [(-1.0, 0.5, 3.0)], "vonmises": [(1.0, 2.0), (-2.0, 0.0), (0.5, 40.0)],
    "wald": [(1.0, 3.0)], "weibull": [(1.7,)],
}
COUNTS = {
    "binomial": [(10, 0.3), (400, 0.7)], "geometric": [(0.2,)], "hypergeometric": [(20, 30, 12)], "logseries": [(0.8,)], "negative_binomial": [(3.0, 0.3)],
    "poisson": [(2.5,), (60.0,)], "zipf": [(3.0,), (1.8,)],
}
CASES = [(name, parameters) for name, cases in {**CONTINUOUS, **COUNTS}.items() for parameters in cases]


def distance(one, other):
    points = np.concatenate([one, other])
    return np.abs(np.searchsorted(np.sort(one), points, "right") - np.searchsorted(np.sort(other), points, "right")).max() / len(one)


@pytest.mark.parametrize("name, parameters", CASES)
def test_samples_have_numpys_distribution(session, mesh4, name, parameters):
    ts.random.seed(7)
    got = getattr(ts.random, name)(*parameters, size=(100, COUNT // 100))
    wanted = getattr(np.random.default_rng(3), name)(*parameters, size=COUNT)
    assert got.shape == (100, COUNT // 100) and got.dtype == (np.int64 if name in COUNTS else np.float64)
    values = got.full_tensor().ravel()
    assert np.isfinite(values).all() and distance(values, wanted) < LIMIT


@pytest.mark.parametrize("name, parameters", [("gamma", (2.0,)), ("poisson", (3.0,)), ("vonmises", (0.0, 1.0))])
def test_the_same_seed_gives_the_same_numbers_on_every_mesh(session, mesh4, mesh22, name, parameters):
    def drawn(*given):
        ts.random.seed(5)
        return getattr(ts.random, name)(*given, size=(8, 6)).full_tensor()
    first = drawn(*parameters)
    for mesh, placements in ((mesh4, [ts.Shard(0)]), (mesh22, [ts.Shard(1), ts.Shard(0)])):
        as_tensors = [ts.distribute_tensor(np.full((8, 6), value), mesh, placements) for value in parameters]
        assert np.array_equal(drawn(*as_tensors), first)
        assert getattr(ts.random, name)(*as_tensors).placements == as_tensors[0].placements


def test_parameters_broadcast(session):
    x = ts.random.gamma(ts.asarray([[1.0], [50.0]]), [1.0, 2.0, 3.0])
    assert x.shape == (2, 3)
    assert ts.random.poisson([1.0, 100.0]).shape == (2,) and ts.random.beta(1, 2).shape == ()
    means = ts.random.normal(size=3).shape, ts.random.poisson(np.array([1.0, 200.0]), size=(500, 2)).full_tensor().mean(0)
    assert means[0] == (3,) and abs(means[1][0] - 1) < 0.3 and abs(means[1][1] - 200) < 5


def test_vectors(session):
    ts.random.seed(1)
    parts = ts.random.dirichlet([1.0, 2.0, 5.0], size=2000).full_tensor()
    assert parts.shape == (2000, 3) and np.allclose(parts.sum(-1), 1) and np.allclose(parts.mean(0), [1 / 8, 2 / 8, 5 / 8], atol=0.02)
    counts = ts.random.multinomial(50, [0.2, 0.3, 0.5], size=2000).full_tensor()
    assert counts.shape == (2000, 3) and (counts.sum(-1) == 50).all() and np.allclose(counts.mean(0), [10, 15, 25], atol=0.4)
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    pairs = ts.random.multivariate_normal([1.0, -1.0], cov, size=(100, 50)).full_tensor()
    assert pairs.shape == (100, 50, 2) and np.allclose(np.cov(pairs.reshape(-1, 2).T), cov, atol=0.15)
    assert ts.random.dirichlet([1.0, 1.0]).shape == (2,) and ts.random.multinomial(3, [0.5, 0.5]).shape == (2,)
    with pytest.warns(RuntimeWarning, match="not symmetric and positive"):
        ts.random.multivariate_normal([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]])


def test_generators_and_states(session):
    state = ts.random.get_state()
    first = ts.random.default_rng().gamma(2.0, size=4).tolist()
    ts.random.set_state(state)
    assert ts.random.gamma(2.0, size=4).tolist() == first
    old = ts.random.RandomState(3)
    assert old.rand(2, 2).shape == (2, 2) and old.randint(0, 5, 7).shape == (7,) and old.poisson(2.0, (3,)).dtype == np.int64
    assert isinstance(ts.random.bytes(5), bytes) and len(ts.random.bytes(5)) == 5


@pytest.mark.parametrize("call, said", [
    (lambda r: r.gamma(-1.0), "gamma: shape is -1.0; it is not negative"), (lambda r: r.beta(0.0, 1.0), "beta: a is 0.0; it is above 0"),
    (lambda r: r.binomial(3, 1.5), r"binomial: p is 1.5; it is in \[0, 1\]"), (lambda r: r.poisson([1.0, -2.0]), "poisson: lam is -2.0"),
    (lambda r: r.poisson(np.nan), "poisson: lam is nan"), (lambda r: r.geometric(0.0), "geometric: p is 0.0; it is above 0 and at most 1"),
    (lambda r: r.gamma([1.0, 2.0], size=3), r"gamma: size is \(3,\), and the parameters' shapes are \(2,\), \(\)"), (lambda r: r.zipf(1.0), "zipf: a is 1.0; it is above 1"),
    (lambda r: r.triangular(1.0, 0.0, 2.0), "left <= mode <= right"), (lambda r: r.hypergeometric(2, 3, 9), "9 of 2 and 3"),
    (lambda r: r.multinomial(3, [0.9, 0.9, 0.1]), "add up to 1 at most"), (lambda r: r.dirichlet(1.0), "it is a vector"),
    (lambda r: r.multivariate_normal([0.0], [[1.0, 0], [0, 1]]), "a vector and a square matrix")])
def test_parameters_that_are_none(session, call, said):
    with pytest.raises(ts.InvalidArgumentError, match=said):
        call(ts.random)
