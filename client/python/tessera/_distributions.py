"""NumPy's distributions. Parameters are numbers, lists, arrays or tensors that broadcast with each other and with the size; samples are
keyed by the seed of ts.manual_seed as those of ts.rand are, the same on every mesh and placement, and not NumPy's.

Parameters that are known here are checked here, with NumPy's conditions; a bad one of a tensor gives NaN, or 0 where samples are counts.
"""

from __future__ import annotations

import math

import numpy as np

import _tessera
import _tessera_ops as made
from . import _samplers
from ._creation import asarray, full
from ._errors import ArgumentError, InvalidArgumentError
from ._indexing import searchsorted
from ._mesh import integers
from ._numpy_calls import as_tensor
from ._ops import astype, broadcast_to, reshape, stack
from ._placements import Replicate
from ._random import rand, randint, randn

_VON_MISES_TRIES = 40       # each is taken with a probability above 0.65
_ZIPF_TRIES = 60            # each is taken with a probability above 0.5


def _place_of(beside, shape) -> dict:
    """Samples are on a parameter's mesh, and in its shards where they have its shape."""
    if beside is None:
        return {}
    placements = [Replicate() if one.is_partial() else one for one in beside.placements] if tuple(beside.shape) == shape else None
    return {"device_mesh": beside.device_mesh, "placements": placements}


class _Draw:
    """The samples of one call: the shape and place of its samples, and its parameters as f64 tensors."""

    def __init__(self, op: str, size, **parameters):
        self.op, given = op, {}
        for name, value in parameters.items():
            if isinstance(value, str) or value is None:
                raise ArgumentError(f"{op}: {name} is {value!r}, not a number")
            given[name] = value if isinstance(value, _tessera.Tensor) else np.asarray(value, np.float64)
        together = np.broadcast_shapes(*(tuple(one.shape) for one in given.values()))
        self.shape = together if size is None else tuple(integers(size, "size", op))
        try:
            fits = np.broadcast_shapes(together, self.shape) == self.shape
        except ValueError:
            fits = False
        if not fits:
            raise InvalidArgumentError(f"{op}: size is {self.shape}, and the parameters' shapes are {', '.join(str(tuple(one.shape)) for one in given.values())}")
        self.known, beside = given, next((one for one in given.values() if isinstance(one, _tessera.Tensor)), None)
        self._place = _place_of(beside, self.shape)
        self.values = {name: float(one) if isinstance(one, np.ndarray) and one.ndim == 0 else astype(as_tensor(one, beside), np.float64)
                       for name, one in given.items()}

    def check(self, name: str, is_good, wanted: str):
        """Raises where a parameter that is known here has a value that is none of `wanted`. NaN never is."""
        value = self.known[name]
        if isinstance(value, np.ndarray) and not np.all(is_good(value)):
            bad = value[~is_good(value)].flat[0] if value.ndim else value.item()
            raise InvalidArgumentError(f"{self.op}: {name} is {bad}; it is {wanted}")
        return self

    def positive(self, *names: str):
        for name in names:
            self.check(name, lambda v: v > 0, "above 0")
        return self

    def not_negative(self, *names: str):
        for name in names:
            self.check(name, lambda v: v >= 0, "not negative")
        return self

    def chance(self, name: str, above: float | None = None):
        if above is None:
            return self.check(name, lambda v: (v >= 0) & (v <= 1), "in [0, 1]")
        return self.check(name, lambda v: (v > above) & (v <= 1), f"above {above:g} and at most 1")

    def __getitem__(self, name: str):
        return self.values[name]

    def full(self, name: str):
        """A parameter for each sample."""
        return self._each(self.values[name])

    def _each(self, value):
        return full(self.shape, value, dtype=np.float64, **self._place) if isinstance(value, float) else broadcast_to(value, self.shape)

    def uniform(self):
        """In [0, 1)."""
        return rand(self.shape, **self._place)

    def normal(self):
        return randn(self.shape, **self._place)

    def exponential(self):
        """Exponential numbers of mean 1, above 0: the logarithm of 1 less a uniform number, with its sign turned."""
        return -made.log1p(-made.maximum(self.uniform(), 2.0 ** -54))

    def gamma(self, alpha):
        return _samplers.gamma(self._each(alpha), self.uniform, self.normal)

    def poisson(self, mean):
        return _samplers.poisson(broadcast_to(mean, self.shape), self.uniform)


def _counts(x):
    """Whole numbers as i64; NaN, of a bad parameter, is 0."""
    return astype(made.where(made.isnan(x), 0.0, x), np.int64)


# ---- by a formula of one or two random numbers ----------------------------------------------------

def standard_exponential(size=None):
    """standard_exponential(size=None)

    Exponential numbers of mean 1, of shape size."""
    return _Draw("standard_exponential", size).exponential()


def standard_cauchy(size=None):
    """standard_cauchy(size=None)

    Numbers of Cauchy's distribution around 0, of shape size."""
    draw = _Draw("standard_cauchy", size)
    return draw.normal() / draw.normal()


def laplace(loc=0.0, scale=1.0, size=None):
    """laplace(loc=0.0, scale=1.0, size=None)

    Numbers of Laplace's distribution around loc, whose distance from it has the mean scale; of shape size."""
    draw = _Draw("laplace", size, loc=loc, scale=scale).not_negative("scale")
    u = draw.uniform() - 0.5
    return draw["loc"] - draw["scale"] * made.sign(u) * made.log1p(-2.0 * made.minimum(made.abs(u), 0.5 - 2.0 ** -54))


def logistic(loc=0.0, scale=1.0, size=None):
    """logistic(loc=0.0, scale=1.0, size=None)

    Numbers of the logistic distribution around loc with a scale; of shape size."""
    draw = _Draw("logistic", size, loc=loc, scale=scale).not_negative("scale")
    u = made.maximum(draw.uniform(), 2.0 ** -54)
    return draw["loc"] + draw["scale"] * (made.log(u) - made.log1p(-u))


def gumbel(loc=0.0, scale=1.0, size=None):
    """gumbel(loc=0.0, scale=1.0, size=None)

    Numbers of Gumbel's distribution with the mode loc and a scale; of shape size."""
    draw = _Draw("gumbel", size, loc=loc, scale=scale).not_negative("scale")
    return draw["loc"] - draw["scale"] * made.log(draw.exponential())


def lognormal(mean=0.0, sigma=1.0, size=None):
    """lognormal(mean=0.0, sigma=1.0, size=None)

    Numbers whose logarithms are normal, of a mean and a spread sigma; of shape size."""
    draw = _Draw("lognormal", size, mean=mean, sigma=sigma).not_negative("sigma")
    return made.exp(draw["mean"] + draw["sigma"] * draw.normal())


def rayleigh(scale=1.0, size=None):
    """rayleigh(scale=1.0, size=None)

    Numbers of Rayleigh's distribution with the mode scale; of shape size."""
    draw = _Draw("rayleigh", size, scale=scale).not_negative("scale")
    return draw["scale"] * made.sqrt(2.0 * draw.exponential())


def weibull(a, size=None):
    """weibull(a, size=None)

    Numbers of Weibull's distribution of shape a and scale 1; of shape size."""
    draw = _Draw("weibull", size, a=a).not_negative("a")
    if isinstance(draw["a"], float) and draw["a"] == 0:
        return 0.0 * draw.uniform()
    return made.pow(draw.exponential(), 1.0 / draw["a"])


def pareto(a, size=None):
    """pareto(a, size=None)

    Numbers of Pareto's second distribution (Lomax) of shape a; of shape size."""
    draw = _Draw("pareto", size, a=a).positive("a")
    return made.expm1(draw.exponential() / draw["a"])


def power(a, size=None):
    """power(a, size=None)

    Numbers in [0, 1] with the density a * x**(a - 1); of shape size."""
    draw = _Draw("power", size, a=a).positive("a")
    return made.pow(-made.expm1(-draw.exponential()), 1.0 / draw["a"])


def triangular(left, mode, right, size=None):
    """triangular(left, mode, right, size=None)

    Numbers from left to right, whose density goes up to mode and down from it; of shape size."""
    draw = _Draw("triangular", size, left=left, mode=mode, right=right)
    low, top, high = draw["left"], draw["mode"], draw["right"]
    if all(isinstance(one, float) for one in (low, top, high)) and not (low <= top <= high and low < high):
        raise InvalidArgumentError(f"triangular: left is {low}, mode {top} and right {high}; left <= mode <= right, and left < right")
    u, width = draw.uniform(), high - low
    rising, falling = made.sqrt(u * width * (top - low)), made.sqrt((1.0 - u) * width * (high - top))
    return made.where(u * width <= top - low, low + rising, high - falling)


def geometric(p, size=None):
    """geometric(p, size=None)

    How many tries there are up to the first that comes out, each with probability p; of shape size."""
    draw = _Draw("geometric", size, p=p).chance("p", above=0.0)
    return _counts(made.maximum(made.ceil(-draw.exponential() / made.log1p(-made.minimum(draw.full("p"), 1.0 - 2.0 ** -53))), 1.0))


def logseries(p, size=None):
    """logseries(p, size=None)

    Whole numbers k from 1 with probabilities in proportion to p**k / k; of shape size. Kemp, "Efficient generation of logarithmically
    distributed pseudo-random variables" (1981)."""
    draw = _Draw("logseries", size, p=p).check("p", lambda v: (v >= 0) & (v < 1), "in [0, 1)")
    p, v = draw.full("p"), 1.0 - draw.uniform()
    q = -made.expm1(made.log1p(-p) * (1.0 - draw.uniform()))
    larger = made.floor(1.0 + made.log(v) / made.log(made.maximum(q, 1e-300)))
    return _counts(made.where(v >= p, 1.0, made.where(v <= q * q, made.maximum(larger, 1.0), made.where(v >= q, 1.0, 2.0))))


# ---- by gamma ------------------------------------------------------------------------------------

def gamma(shape, scale=1.0, size=None):
    """gamma(shape, scale=1.0, size=None)

    Numbers of the gamma distribution with a shape and a scale; of shape size."""
    draw = _Draw("gamma", size, shape=shape, scale=scale).not_negative("shape", "scale")
    return draw["scale"] * draw.gamma(draw["shape"])


def standard_gamma(shape, size=None):
    """standard_gamma(shape, size=None)

    Numbers of the gamma distribution with a shape and scale 1; of shape size."""
    draw = _Draw("standard_gamma", size, shape=shape).not_negative("shape")
    return draw.gamma(draw["shape"])


def beta(a, b, size=None):
    """beta(a, b, size=None)

    Numbers of the beta distribution of a and b, in [0, 1]; of shape size."""
    draw = _Draw("beta", size, a=a, b=b).positive("a", "b")
    one, other = draw.gamma(draw["a"]), draw.gamma(draw["b"])
    return one / (one + other)


def chisquare(df, size=None):
    """chisquare(df, size=None)

    Numbers of the chi-square distribution with df degrees of freedom; of shape size."""
    draw = _Draw("chisquare", size, df=df).positive("df")
    return 2.0 * draw.gamma(draw["df"] * 0.5)


def f(dfnum, dfden, size=None):
    """f(dfnum, dfden, size=None)

    Numbers of Fisher's distribution with dfnum and dfden degrees of freedom; of shape size."""
    draw = _Draw("f", size, dfnum=dfnum, dfden=dfden).positive("dfnum", "dfden")
    above, below = draw.gamma(draw["dfnum"] * 0.5), draw.gamma(draw["dfden"] * 0.5)
    return above * draw["dfden"] / (below * draw["dfnum"])


def standard_t(df, size=None):
    """standard_t(df, size=None)

    Numbers of Student's distribution with df degrees of freedom; of shape size."""
    draw = _Draw("standard_t", size, df=df).positive("df")
    return draw.normal() * made.sqrt(draw["df"] * 0.5 / draw.gamma(draw["df"] * 0.5))


def dirichlet(alpha, size=None):
    """dirichlet(alpha, size=None)

    Vectors of numbers that add up to 1, of Dirichlet's distribution of a vector alpha; of shape size and that vector's."""
    count = np.shape(alpha)[-1:] if np.ndim(alpha) == 1 else None
    if count is None or count == (0,):
        raise InvalidArgumentError(f"dirichlet: alpha has the shape {np.shape(alpha)}; it is a vector")
    sizes = () if size is None else integers(size, "size", "dirichlet")
    draw = _Draw("dirichlet", (*sizes, *count), alpha=alpha).positive("alpha")
    parts = draw.gamma(draw["alpha"])
    return parts / made.sum(parts, axis=-1, keepdims=True)


def _noncentral(draw: _Draw, df, nonc):
    """Above 1 degree of freedom one less, and a square that is off by the root of nonc; else with a Poisson number of degrees more."""
    is_many = df > 1.0
    root = draw.normal() + made.sqrt(nonc)
    many = 2.0 * draw.gamma(made.where(is_many, df - 1.0, 1.0) * 0.5) + root * root
    few = 2.0 * draw.gamma(df * 0.5 + draw.poisson(nonc * 0.5))
    return made.where(is_many, many, few)


def noncentral_chisquare(df, nonc, size=None):
    """noncentral_chisquare(df, nonc, size=None)

    Numbers of the noncentral chi-square distribution with df degrees of freedom and noncentrality nonc; of shape size."""
    draw = _Draw("noncentral_chisquare", size, df=df, nonc=nonc).positive("df").not_negative("nonc")
    return _noncentral(draw, draw.full("df"), draw.full("nonc"))


def noncentral_f(dfnum, dfden, nonc, size=None):
    """noncentral_f(dfnum, dfden, nonc, size=None)

    Numbers of the noncentral Fisher distribution with dfnum and dfden degrees of freedom and noncentrality nonc; of shape size."""
    draw = _Draw("noncentral_f", size, dfnum=dfnum, dfden=dfden, nonc=nonc).positive("dfnum", "dfden").not_negative("nonc")
    above = _noncentral(draw, draw.full("dfnum"), draw.full("nonc"))
    return above * draw["dfden"] / (2.0 * draw.gamma(draw["dfden"] * 0.5) * draw["dfnum"])


# ---- counts --------------------------------------------------------------------------------------

def poisson(lam=1.0, size=None):
    """poisson(lam=1.0, size=None)

    How often what is expected lam times comes out; of shape size."""
    draw = _Draw("poisson", size, lam=lam).not_negative("lam")
    return _counts(draw.poisson(draw.full("lam")))


def binomial(n, p, size=None):
    """binomial(n, p, size=None)

    How many of n tries come out, each with probability p; of shape size."""
    draw = _Draw("binomial", size, n=n, p=p).not_negative("n").chance("p")
    return _counts(_samplers.binomial(draw.full("n"), draw.full("p"), draw.uniform))


def negative_binomial(n, p, size=None):
    """negative_binomial(n, p, size=None)

    How many tries don't come out before n have, each with probability p; of shape size."""
    draw = _Draw("negative_binomial", size, n=n, p=p).positive("n").chance("p", above=0.0)
    return _counts(draw.poisson(draw.gamma(draw["n"]) * ((1.0 - draw["p"]) / draw["p"])))


def multinomial(n, pvals, size=None):
    """multinomial(n, pvals, size=None)

    How many of n tries come out each way, with the probabilities of a vector pvals; of shape size and that vector's. The last
    probability is what the others leave."""
    pvals = pvals.full_tensor() if isinstance(pvals, _tessera.Tensor) else np.asarray(pvals, np.float64)
    if pvals.ndim != 1 or not pvals.size:
        raise InvalidArgumentError(f"multinomial: pvals has the shape {pvals.shape}; it is a vector")
    if not np.all((pvals >= 0) & (pvals <= 1)) or pvals[:-1].sum() > 1 + 1e-12:
        raise InvalidArgumentError(f"multinomial: pvals are {pvals.tolist()[:8]}; each is in [0, 1], and all but the last add up to 1 at most")
    draw = _Draw("multinomial", () if size is None else size, n=n).not_negative("n")
    rest, left, out = draw.full("n"), 1.0, []
    for chance in pvals[:-1].tolist():
        share = rest * 0.0 + (min(chance / left, 1.0) if left > 0 else 0.0)
        out.append(_samplers.binomial(rest, share, draw.uniform))
        rest, left = rest - out[-1], left - chance
    return _counts(stack([*out, rest], axis=-1))


def hypergeometric(ngood, nbad, nsample, size=None):
    """hypergeometric(ngood, nbad, nsample, size=None)

    How many of nsample that are taken of ngood and nbad are of the good ones; of shape size. The parameters are numbers."""
    good, bad, taken = (integers(value, name, "hypergeometric") for name, value in (("ngood", ngood), ("nbad", nbad), ("nsample", nsample)))
    (good,), (bad,), (taken,) = good, bad, taken
    if min(good, bad, taken) < 0 or taken > good + bad:
        raise InvalidArgumentError(f"hypergeometric: {taken} of {good} and {bad}; none is negative, and no more are taken than there are")
    least, most = max(0, taken - bad), min(good, taken)
    k = np.arange(least, most + 1)

    def log_choose(n, of):
        return math.lgamma(n + 1) - np.vectorize(math.lgamma)(of + 1.0) - np.vectorize(math.lgamma)(n - of + 1.0)

    logs = log_choose(good, k) + log_choose(bad, taken - k)
    sums = np.cumsum(np.exp(logs - logs.max()))
    draw = _Draw("hypergeometric", size)
    place = searchsorted(asarray(sums[:-1] / sums[-1]), draw.uniform(), side="right")
    return astype(place, np.int64) + least


# ---- by rejection ---------------------------------------------------------------------------------

def zipf(a, size=None):
    """zipf(a, size=None)

    Whole numbers k from 1 with probabilities in proportion to k**-a; of shape size. Devroye, "Non-uniform random variate generation" (1986),
    X.6.1."""
    draw = _Draw("zipf", size, a=a).check("a", lambda v: v > 1, "above 1")
    less = draw.full("a") - 1.0
    b = made.pow(2.0, less)
    out, is_found = less * 0.0 + 1.0, less * 0.0 > 1.0
    for _ in range(_ZIPF_TRIES):
        u, v = 1.0 - draw.uniform(), draw.uniform()
        x = made.floor(made.pow(u, -1.0 / less))
        t = made.pow(1.0 + 1.0 / x, less)
        is_taken = made.logical_and(x < 2.0 ** 63, v * x * (t - 1.0) / (b - 1.0) <= t / b)
        out = made.where(made.logical_and(is_taken, made.logical_not(is_found)), x, out)
        is_found = made.logical_or(is_found, is_taken)
    return _counts(out)


def vonmises(mu, kappa, size=None):
    """vonmises(mu, kappa, size=None)

    Angles in [-pi, pi] around mu, the closer the larger kappa is; of shape size. Best, Fisher, "Efficient simulation of the von Mises
    distribution" (1979)."""
    draw = _Draw("vonmises", size, mu=mu, kappa=kappa).not_negative("kappa")
    kappa = draw.full("kappa")
    is_flat = kappa < 1e-8
    k = made.where(is_flat, 1.0, kappa)
    r = 1.0 + made.sqrt(1.0 + 4.0 * k * k)
    rho = (r - made.sqrt(2.0 * r)) / (2.0 * k)
    s = made.where(k < 1e-5, 1.0 / k + k, (1.0 + rho * rho) / (2.0 * rho))
    s = made.where(k > 1e6, 1.0 + 0.5 / k, s)      # where rho has lost its digits
    w, is_found = k * 0.0 + 1.0, k * 0.0 > 1.0
    for _ in range(_VON_MISES_TRIES):
        z = made.cos(np.pi * draw.uniform())
        now = (1.0 + s * z) / (s + z)
        y, v = k * (s - now), 1.0 - draw.uniform()
        is_taken = made.logical_or(y * (2.0 - y) - v >= 0.0, made.log(y / v) + 1.0 - y >= 0.0)
        w = made.where(made.logical_and(is_taken, made.logical_not(is_found)), now, w)
        is_found = made.logical_or(is_found, is_taken)
    angle = made.acos(made.minimum(made.maximum(w, -1.0), 1.0)) * made.where(draw.uniform() < 0.5, -1.0, 1.0)
    angle = made.where(is_flat, np.pi * (2.0 * draw.uniform() - 1.0), angle) + draw["mu"]
    return made.remainder(angle + np.pi, 2.0 * np.pi) - np.pi


def wald(mean, scale, size=None):
    """wald(mean, scale, size=None)

    Numbers of the inverse Gaussian distribution with a mean and a scale; of shape size. Michael, Schucany, Haas, "Generating random variates
    using transformations with multiple roots" (1976)."""
    draw = _Draw("wald", size, mean=mean, scale=scale).positive("mean", "scale")
    n, mean, scale = draw.normal(), draw["mean"], draw["scale"]
    y = mean * n * n
    x = mean + mean / (2.0 * scale) * (y - made.sqrt(4.0 * scale * y + y * y))
    return made.where(draw.uniform() <= mean / (mean + x), x, mean * mean / x)


def multivariate_normal(mean, cov, size=None, check_valid="warn", tol=1e-8):
    """multivariate_normal(mean, cov, size=None, check_valid='warn', tol=1e-8)

    Normal vectors of a vector mean and a matrix cov of covariances; of shape size and that vector's. cov is read here. check_valid: 'warn',
    'raise' or 'ignore' where cov is not symmetric and positive, within tol."""
    cov = cov.full_tensor() if isinstance(cov, _tessera.Tensor) else np.asarray(cov, np.float64)
    mean = as_tensor(mean) + 0.0
    if mean.ndim != 1 or cov.shape != (mean.size, mean.size):
        raise InvalidArgumentError(f"multivariate_normal: mean is {mean._spec} and cov has the shape {cov.shape}; a vector and a square matrix of it")
    u, values, v = np.linalg.svd(cov)
    if check_valid != "ignore" and not np.allclose((v.T * values) @ v, cov, rtol=tol, atol=tol):
        if check_valid == "raise":
            raise InvalidArgumentError("multivariate_normal: cov is not symmetric and positive")
        import warnings
        warnings.warn("multivariate_normal: cov is not symmetric and positive", RuntimeWarning, stacklevel=2)
    draw = _Draw("multivariate_normal", (*(() if size is None else integers(size, "size", "multivariate_normal")), mean.size))
    flat = reshape(draw.normal(), (-1, mean.size))
    return reshape(flat @ asarray(np.sqrt(values)[:, None] * v), draw.shape) + mean


def bytes(length):  # noqa: A001 - NumPy's name
    """bytes(length)

    So many random bytes, length, as Python's."""
    (count,) = integers(length, "length", "bytes")
    return randint(0, 256, (count,), dtype=np.uint8).full_tensor().tobytes()


NAMES = ("beta", "binomial", "bytes", "chisquare", "dirichlet", "f", "gamma", "geometric", "gumbel", "hypergeometric", "laplace", "logistic", "lognormal",
         "logseries", "multinomial", "multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f", "pareto", "poisson", "power",
         "rayleigh", "standard_cauchy", "standard_exponential", "standard_gamma", "standard_t", "triangular", "vonmises", "wald", "weibull", "zipf")
__all__ = list(NAMES)
