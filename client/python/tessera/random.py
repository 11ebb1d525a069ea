"""NumPy's names of random numbers: ts.random.rand(3), ts.random.default_rng(7).normal(size=(2, 3)). The numbers are those of ts.rand,
ts.randn and the others, the same on every mesh and placement for a seed (ts.manual_seed), and not NumPy's."""

from __future__ import annotations

import numpy as np

from . import _distributions, _random
from ._creation import asarray
from ._distributions import *  # noqa: F403 - NAMES
from ._random import choice, permutation, rand, randn, shuffle

__all__ = ["Generator", "RandomState", *_distributions.NAMES, "choice", "default_rng", "exponential", "integers", "normal", "permutation", "rand", "randint", "randn", "get_state", "random",
           "random_sample", "ranf", "sample", "seed", "set_state", "shuffle", "standard_normal", "uniform"]


def seed(seed):
    """seed(seed)

    The next random calls of this process start over from this seed."""
    _random.manual_seed(seed)


def _shape(size):
    return () if size is None else size if isinstance(size, (tuple, list)) else (size,)


def random(size=None):
    """random(size=None)

    Uniform numbers in [0, 1)."""
    return rand(*_shape(size))


random_sample = ranf = sample = random


def get_state(legacy=True):
    """get_state(legacy=True)

    The state of the random calls of this process, for set_state. legacy: taken as NumPy's callers give it."""
    return ("tessera", *_random.state())


def set_state(state):
    """set_state(state)

    The next random calls of this process go on from a state that get_state gave."""
    _random.set_state(*state[1:])


def standard_normal(size=None):
    """standard_normal(size=None)

    Normal numbers of mean 0 and spread 1."""
    return randn(*_shape(size))


def uniform(low=0.0, high=1.0, size=None):
    """uniform(low=0.0, high=1.0, size=None)

    Uniform numbers in [low, high)."""
    return _random.uniform(low, high, _shape(size))


def normal(loc=0.0, scale=1.0, size=None):
    """normal(loc=0.0, scale=1.0, size=None)

    Normal numbers of a mean and a spread."""
    return _random.normal(loc, scale, _shape(size))


def exponential(scale=1.0, size=None):
    """exponential(scale=1.0, size=None)

    Exponential numbers of a mean."""
    return _random.exponential(scale, _shape(size))


def integers(low, high=None, size=None, dtype=np.int64, endpoint=False):
    """integers(low, high=None, size=None, dtype=int64, endpoint=False)

    Integers in [low, high), or with endpoint in [low, high]; of one bound in [0, low)."""
    low, high = (0, low) if high is None else (low, high)
    return _random.randint(low, high + bool(endpoint), _shape(size), dtype=dtype)


def randint(low, high=None, size=None, dtype=np.int64):
    """randint(low, high=None, size=None, dtype=int64)

    Integers in [low, high); of one bound in [0, low)."""
    return integers(low, high, size, dtype)


class Generator:
    """A random generator, as default_rng gives it: the functions of this module as methods. A seed is one for the whole process, as ts.manual_seed's."""

    random = staticmethod(random)
    standard_normal = staticmethod(standard_normal)
    uniform = staticmethod(uniform)
    normal = staticmethod(normal)
    exponential = staticmethod(exponential)
    integers = staticmethod(integers)
    choice = staticmethod(choice)
    shuffle = staticmethod(shuffle)

    @staticmethod
    def permutation(x, axis=0):
        return permutation(x if isinstance(x, int) or hasattr(x, "_spec_now") else asarray(x))


for _name in _distributions.NAMES:
    setattr(Generator, _name, staticmethod(getattr(_distributions, _name)))


class RandomState(Generator):
    """NumPy's older generator. With a seed the next random calls of this process start over from it."""

    rand, randn, randint, random_sample, ranf, sample = (staticmethod(one) for one in (rand, randn, randint, random, random, random))
    seed, get_state, set_state = staticmethod(seed), staticmethod(get_state), staticmethod(set_state)

    def __init__(self, seed=None):
        if seed is not None:
            _random.manual_seed(seed)


def default_rng(seed=None):  # noqa: A002 - NumPy's name
    """default_rng(seed=None)

    A Generator; with a seed the next random calls of this process start over from it."""
    if seed is not None:
        _random.manual_seed(seed)
    return Generator()
