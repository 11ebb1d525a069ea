"""Limits of time that hold on a machine that others fill: who is late may try again, twice."""

import functools
import time

_TRIES = 3


class Late(AssertionError):
    pass


def check(seconds: float, limit: float) -> None:
    if seconds >= limit:
        raise Late(f"it took {seconds:.2f} s, not below {limit}")


class Limit:
    """with in_time.Limit(2): ... raises Late where the block takes so many seconds or more."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __enter__(self):
        self.start = time.monotonic()

    def __exit__(self, kind, *_):
        if kind is None:
            check(time.monotonic() - self.start, self.seconds)


def tried_again(test):
    """A test whose code is in time passes when the machine is slow once or twice; one whose code isn't never does."""
    @functools.wraps(test)
    def run(*arguments, **named):
        for left in reversed(range(_TRIES)):
            try:
                return test(*arguments, **named)
            except Late:
                if left == 0:
                    raise
    return run
