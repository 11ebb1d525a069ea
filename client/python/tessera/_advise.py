"""advise: what about a tensor's placement costs time or memory, in sentences."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import _tessera
from ._display import boxes_of
from ._errors import ArgumentError, InvalidArgumentError, TesseraError
from ._html import bytes_text
from ._placements import Partial, Replicate, Shard
from ._plan import explain

_SMALL_SHARD = 128 << 10        # docs/limits.md: advise_small_shard
_LARGE_COPY = 1 << 20           # docs/limits.md: auto_replicate_below
_UNEVEN = 1.25                  # docs/limits.md: advise_uneven
_MAX_CANDIDATES = 32            # docs/limits.md: advise_candidates


class Finding(NamedTuple):
    """A finding of advise: its name, and a sentence with the numbers and what to write."""

    name: str
    text: str

    def __str__(self):
        return self.text


def _listed(placements) -> str:
    return f"[{', '.join(map(str, placements))}]"


def _written(placements) -> str:
    return f"[{', '.join(f'ts.{one!r}' for one in placements)}]"


def _shares(x) -> list[int]:
    """Bytes of each position."""
    item = x.dtype.itemsize
    return [item * math.prod(stop - start for start, stop in box) for box in boxes_of(x)]


def _about_sizes(x, shares):
    cut = [p for p in x.placements if p.is_shard()]
    most, mean = max(shares), sum(shares) / len(shares)
    if not cut or not x.size:
        return
    empty = [worker for worker, share in zip(x._mesh.workers, shares) if share == 0]
    if empty:
        yield Finding("empty shards", f"Workers {', '.join(map(str, empty))} have nothing of x: {_listed(x.placements)} of {list(x.shape)} gives shards to "
                      f"{len(shares) - len(empty)} of {len(shares)} positions. Shard a longer dim, or use a smaller mesh.")
    elif most > _UNEVEN * mean:
        yield Finding("uneven shards", f"The largest shard has {bytes_text(most)} and the average {bytes_text(mean)}: an op on x takes "
                      f"{most / mean:.1f} times as long as with even shards. Shard another dim, or leave out sizes=.")
    if most < _SMALL_SHARD:
        yield Finding("small shards", f"A shard has {bytes_text(most)}: below {bytes_text(_SMALL_SHARD)} an op is told and waited for longer than it "
                      f"computes. Replicate x, use a mesh of fewer workers, or do more in one op.")


def _about_copies(x, shares):
    if all(p.is_replicate() for p in x.placements) and len(shares) > 1 and x.nbytes >= _LARGE_COPY:
        dim = max(range(x.ndim), key=lambda d: x.shape[d]) if x.ndim else 0
        yield Finding("replicated", f"Each of {len(shares)} workers has all of x: {bytes_text(sum(shares))} in place of {bytes_text(x.nbytes)}. If ops don't "
                      f"need all of it everywhere, x.redistribute([ts.Shard({dim}){', ...' if x._mesh_ndim > 1 else ''}]) keeps a part on each.")


def _about_terms(x):
    if any(p.is_partial() for p in x.placements):
        places = [Replicate() if isinstance(p, Partial) else p for p in x.placements]
        moved = sum(x.explain_redistribute(places).bytes_received)
        yield Finding("pending", f"x is pending, {_listed(x.placements)}: each op that needs its values reduces it again, which moves {bytes_text(moved)} "
                      f"between workers. Used more than once, x = x.redistribute({_written(places)}) reduces it one time.")


def _candidates(x):
    """Other placements of x on its mesh."""
    each = [*(Shard(d) for d in range(x.ndim) if x.shape[d] > 1), Replicate()]
    for places in itertools.islice(itertools.product(each, repeat=x._mesh_ndim), _MAX_CANDIDATES):
        if places != x.placements:
            yield list(places)


def _moved(function, x, placements=None) -> tuple[int, int]:
    """Bytes that workers receive for bringing x to placements, and for the function of it there."""
    if placements is None:
        return 0, sum(explain(function, x).bytes_received)
    brought = sum(x.explain_redistribute(placements).bytes_received)
    both = sum(explain(lambda: function(x.redistribute(placements))).bytes_received)
    return brought, both - brought


def _about_ops(x, functions):
    for function in functions:
        name = getattr(function, "__name__", str(function))
        _, here = _moved(function, x)
        if here == 0:
            continue
        least = None
        for placements in _candidates(x):
            try:
                brought, there = _moved(function, x, placements)
            except TesseraError:        # the function doesn't take it so, or it doesn't fit
                continue
            if least is None or (there, brought) < least[:2]:
                least = there, brought, placements
        if least is not None and least[0] < here:
            there, brought, placements = least
            pays = "pays at once" if there + brought < here else f"pays from {math.ceil(brought / (here - there))} calls on" if brought else "costs nothing"
            yield Finding("placement", f"{name} moves {bytes_text(here)} with x as {_listed(x.placements)}, and {bytes_text(there)} with x as {_listed(placements)}. "
                          f"x.redistribute({_written(placements)}) moves {bytes_text(brought)} once, and {pays}.")


def advise(x, /, *functions) -> list[Finding]:
    """Findings about a tensor's placement that cost time or memory: a list, each with a name and a sentence that says
    what to write instead; nothing runs, and an empty list is good news.

    x: a tensor.
    functions: functions of x that it is used in, as ts.softmax or `lambda x: x @ w`; each is planned with x as it lies and
    as it might lie.

    Findings: "empty shards", "uneven shards", "small shards", "replicated", "pending"; of functions "placement".

    >>> x = ts.ones((64, 8), placements=[ts.Shard(0)])
    >>> [finding.name for finding in ts.advise(x, lambda x: x.sum(axis=1))]
    ['small shards']

    Errors:
    InvalidArgumentError (a TypeError, too): x is no Tensor, or a function is none.
    """
    if not isinstance(x, _tessera.Tensor):
        raise ArgumentError(f"advise: x is {type(x).__name__}, not a Tensor; make one with ts.asarray or distribute_tensor")
    for function in functions:
        if not callable(function):
            raise InvalidArgumentError(f"advise: {function!r} is no function; write ts.advise(x, lambda x: x @ w)")
    shares = _shares(x)
    return [*_about_sizes(x, shares), *_about_copies(x, shares), *_about_terms(x), *_about_ops(x, functions)]


Finding.__module__ = "tessera"
