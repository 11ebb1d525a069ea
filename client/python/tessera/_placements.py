"""Placements: what one mesh dim does to a tensor."""

from __future__ import annotations

import operator

import _tessera
from ._errors import InvalidArgumentError

_set = object.__setattr__
_REDUCE_OPS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")


class Placement:
    """Shard(dim), Replicate() or Partial(reduce_op). A value: it never changes, and has equality, a hash, and a text form.
    Placements of torch's DTensor are equal to these, though their hashes are their own."""

    __slots__ = ()

    def __setattr__(self, name, value):
        raise AttributeError(f"{self!r}: a placement is a value, {name} can't be set; make another one")

    def __setstate__(self, state):
        for name, value in state[1].items():
            _set(self, name, value)

    def is_shard(self, dim: int | None = None) -> bool:
        return False

    def is_replicate(self) -> bool:
        return False

    def is_partial(self) -> bool:
        return False


class Shard(Placement):
    """Split along tensor dim `dim` as torch.chunk does: ceil(n/k) each, the last ones short or empty; or into pieces of
    the `sizes`: one for each coordinate of the mesh dim (where earlier mesh dims shard the same dim, for each of their
    coordinates together, in row-major order).

    >>> ts.Shard(0, sizes=[3, 1, 5])     # of 9 rows on 3 workers
    """

    __slots__ = ("dim", "sizes")

    def __init__(self, dim: int = 0, sizes=None):
        try:
            _set(self, "dim", operator.index(dim))
        except TypeError:
            raise InvalidArgumentError(f"Shard: dim must be an integer, not {dim!r}") from None
        try:
            _set(self, "sizes", None if sizes is None else tuple(operator.index(size) for size in sizes))
        except TypeError:
            raise InvalidArgumentError(f"Shard: sizes must be integers, not {sizes!r}") from None
        if self.sizes is not None and (not self.sizes or any(not 0 <= size < 2**63 for size in self.sizes)):
            raise InvalidArgumentError(f"Shard: sizes must be one or more numbers of elements, not {sizes!r}")

    def is_shard(self, dim: int | None = None) -> bool:
        return dim is None or dim == self.dim

    def on_dim(self, dim: int) -> Shard:
        """The same cuts of another tensor dim."""
        return Shard(dim, self.sizes)

    def __eq__(self, other):
        other = of_dtensor(other)
        return isinstance(other, Shard) and self.dim == other.dim and self.sizes == other.sizes

    def __hash__(self):
        return hash(("S", self.dim, self.sizes))

    def __repr__(self):
        return f"Shard({self.dim})" if self.sizes is None else f"Shard({self.dim}, sizes={list(self.sizes)})"

    def __str__(self):
        return f"S({self.dim})" if self.sizes is None else f"S({self.dim};{','.join(map(str, self.sizes))})"


class Replicate(Placement):
    """Every coordinate holds the same."""

    __slots__ = ()

    def is_replicate(self) -> bool:
        return True

    def __eq__(self, other):
        return isinstance(of_dtensor(other), Replicate)

    def __hash__(self):
        return hash("R")

    def __repr__(self):
        return "Replicate()"

    def __str__(self):
        return "R"


class Partial(Placement):
    """The value is the sum (avg, min, max, product) over the coordinates; of integers and bools band, bor and bxor, too: of each bit."""

    __slots__ = ("reduce_op",)

    def __init__(self, reduce_op: str = "sum"):
        if reduce_op not in _REDUCE_OPS:
            raise InvalidArgumentError(f"Partial: reduce_op is {reduce_op!r}, it must be one of {', '.join(_REDUCE_OPS)}")
        _set(self, "reduce_op", reduce_op)

    def is_partial(self) -> bool:
        return True

    def __eq__(self, other):
        other = of_dtensor(other)
        return isinstance(other, Partial) and self.reduce_op == other.reduce_op

    def __hash__(self):
        return hash(("P", self.reduce_op))

    def __repr__(self):
        return f"Partial({self.reduce_op!r})"

    def __str__(self):
        return f"P({self.reduce_op})"


for _class in (Placement, Shard, Replicate, Partial):
    _class.__module__ = "tessera"


def of_dtensor(placement):
    """A placement of torch's DTensor as ours; anything else as it is."""
    kind = type(placement)
    if kind.__module__ != "torch.distributed.tensor.placement_types":
        return placement
    if kind.__name__ == "Shard":
        return Shard(placement.dim)
    if kind.__name__ == "Replicate":
        return Replicate()
    return Partial(placement.reduce_op) if kind.__name__ == "Partial" else placement


def listed(placements, op: str) -> list:
    """A list of what was given: one placement, or anything that iterates over some."""
    placements = of_dtensor(placements)
    if isinstance(placements, Placement):
        return [placements]
    try:
        return [of_dtensor(one) for one in placements]
    except TypeError:
        raise InvalidArgumentError(f"{op}: placements is {placements!r}; it must be a list, one per mesh dim") from None


def checked(placements, op: str) -> list[Placement]:
    """A list of what was given, where each is a placement."""
    out = listed(placements, op)
    for placement in out:
        if not isinstance(placement, (Shard, Replicate, Partial)):
            raise InvalidArgumentError(
                f"{op}: {placement!r} is no placement; use ts.Shard(dim), ts.Replicate() or ts.Partial(reduce_op)")
        if placement.is_shard() and not -2**31 <= placement.dim < 2**31:
            raise InvalidArgumentError(f"{op}: {placement!r} is out of range")
    return out


REPLICATE = Replicate()


def replicated(ndim: int) -> list[Placement]:
    """Replicate on each dim of a mesh."""
    return [REPLICATE] * ndim


def kept(placements) -> list[Placement]:
    """With Replicate where there are pending terms: what is made like a tensor of these placements has them."""
    return [REPLICATE if one.is_partial() else one for one in placements]


def shards_of(placements, dims) -> list[Placement]:
    """The shards of these tensor dims alone; Replicate elsewhere."""
    return [one if one.is_shard() and one.dim in dims else REPLICATE for one in placements]


def counted(placements, ndim: int) -> list[Placement]:
    """With the dims of shards counted from the first one of ndim."""
    return [one.on_dim(one.dim + ndim) if one.is_shard() and one.dim < 0 else one for one in placements]


def is_within(placement: Placement, ndim: int) -> bool:
    """Whether a tensor of ndim dims has the dim that the placement cuts, if it cuts one."""
    return not placement.is_shard() or -ndim <= placement.dim < ndim


def fitting(placements, ndim: int) -> list[Placement]:
    """With Replicate in place of shards of dims that a tensor of ndim dims doesn't have."""
    return [one if is_within(one, ndim) else REPLICATE for one in placements]


def has_sizes_for(placement: Placement, workers: int, shape) -> bool:
    """Whether the sizes of its pieces, if it says any, are those of this shape on a mesh dim of so many workers."""
    if not placement.is_shard() or placement.sizes is None:
        return True
    return len(placement.sizes) == workers and sum(placement.sizes) == shape[placement.dim]


def of_older(placements) -> list[Placement]:
    """From the numbers (kind, dim, reduce op, sizes) of each one that files of older versions have; placements as they are."""
    out = []
    for one in placements:
        if not isinstance(one, Placement):
            kind, dim, reduce_op, *sizes = one
            one = REPLICATE if kind == 0 else Shard(dim, *sizes) if kind == 1 else Partial(_REDUCE_OPS[reduce_op])
        out.append(one)
    return out


_tessera.set_placements(REPLICATE, Shard, [Partial(one) for one in _REDUCE_OPS])
