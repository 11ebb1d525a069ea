"""A mixture of experts: tokens go to the experts that a router picks for them, and what these say comes back.

The layer is plain torch, and the same on one process. ExpertParallel puts each worker's experts on it; then tokens reach them by
one all-to-all, and come back by another one.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..._errors import InvalidArgumentError
from ..._placements import Placement, Shard
from .._tensor import Tensor, handle_of
from ._place import mesh_dim_of, place_parameter, placed
from ._styles import ParallelStyle


class MixtureOfExperts(nn.Module):
    """The weighted outputs of the experts of each token: gelu MLPs of which a router picks top_k for each token.

    width: of a token; inner: of an expert's hidden layer. Tokens are cut into `groups` in their order, and an expert takes up to
    capacity_factor * top_k * tokens / experts of each group, first choices before second ones, earlier tokens before later ones. What
    finds no room is dropped: zero is said of it, so in x + layer(x) the token passes as it is. With capacity_factor=None nothing is
    dropped: an expert takes all of its tokens, by products of groups (F.grouped_mm). `balance` is then the loss that keeps
    experts evenly busy (of the last forward: experts * sum of the share of tokens times the mean probability).

    >>> layer = MixtureOfExperts(64, 256, experts=8, top_k=2, groups=4)
    >>> x = x + layer(x)
    """

    def __init__(self, width: int, inner: int, experts: int, *, top_k: int = 2, capacity_factor: float | None = 1.25, groups: int = 1):
        super().__init__()
        if not 1 <= top_k <= experts:
            raise InvalidArgumentError(f"MixtureOfExperts: top_k is {top_k} of {experts} experts")
        if (capacity_factor is not None and not capacity_factor > 0) or groups < 1:
            raise InvalidArgumentError(f"MixtureOfExperts: capacity_factor is {capacity_factor}, groups is {groups}; both are above 0")
        self.experts, self.top_k, self.capacity_factor, self.groups = experts, top_k, capacity_factor, groups
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, inner))
        self.down = nn.Parameter(torch.empty(experts, inner, width))
        for weight in (self.up, self.down):
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)
        self.balance = None
        self._mesh = None       # (mesh, dim) of ExpertParallel

    def capacity(self, tokens: int) -> int:
        """How many of a group's tokens an expert takes; all of them without a capacity_factor."""
        if self.capacity_factor is None:
            return tokens
        return max(1, math.ceil(self.capacity_factor * self.top_k * tokens / self.experts))

    def forward(self, x):
        count = math.prod(x.shape[:-1])
        if count % self.groups:
            raise InvalidArgumentError(f"MixtureOfExperts: {count} tokens don't go into {self.groups} groups")
        if self.capacity_factor is None:
            said = self._ask_all(x.reshape(count, x.shape[-1])).reshape(x.shape)
            if not isinstance(x, Tensor) or any(one.is_partial() for one in x.placements):
                return said
            return said.redistribute(placements=list(x.placements))
        tokens = self._placed(x.reshape(self.groups, count // self.groups, x.shape[-1]), Shard(0))
        slots, weights = self._route(tokens)
        said = self._combined(self._ask(self._dispatched(tokens, slots)), slots, weights).reshape(x.shape)
        return said if self._mesh is None else self._as_it_came(said, x)

    def _ask_all(self, tokens):
        """The outputs of all chosen experts, each token's choices in the order of their experts; then added up again."""
        probabilities = F.softmax(self.router(tokens), -1)
        with torch.no_grad():
            chosen = probabilities.topk(self.top_k, -1).indices
            experts, order = chosen.reshape(-1).sort(stable=True)
            counts = torch.bincount(experts, minlength=self.experts)
            ends = counts.cumsum(0).to(torch.int32)
            place = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
        self.balance = self.experts * (counts.to(probabilities.dtype) / len(order) * probabilities.mean(0)).sum()
        said = _by_groups(F.gelu(_by_groups(tokens[order // self.top_k], self.up, ends)), self.down, ends)
        weights = probabilities.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        return (said[place].reshape(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)

    def _route(self, tokens):
        """The slot of each token and choice among those of all experts (the one after the last: none), and its weight."""
        groups, length, _ = tokens.shape
        probabilities = F.softmax(self.router(tokens), -1)
        with torch.no_grad():
            chosen = probabilities.topk(self.top_k, -1).indices                         # (groups, length, top_k)
            ranked = chosen.transpose(1, 2).reshape(groups, self.top_k * length)        # first choices first
            picks = (ranked.unsqueeze(-1) == torch.arange(self.experts, device=ranked.device)).to(torch.int64)
            place = ((picks.cumsum(1) - 1) * picks).sum(-1)
            room = self.capacity(length)
            slots = torch.where(place < room, ranked * room + place, self.experts * room)
            slots = slots.reshape(groups, self.top_k, length).transpose(1, 2)
            share = picks.to(probabilities.dtype).mean((0, 1))
        self.balance = self.experts * (share * probabilities.mean((0, 1))).sum()
        weights = probabilities.gather(-1, chosen)
        return slots, weights / weights.sum(-1, keepdim=True)

    def _dispatched(self, tokens, slots):
        """(groups, experts, capacity, width): the tokens in their slots, zero in those that are free."""
        groups, length, width = tokens.shape
        count = self.experts * self.capacity(length)
        with torch.no_grad():
            numbers = torch.arange(length, device=tokens.device).unsqueeze(-1).expand(length, self.top_k).reshape(1, -1)
            source = torch.full_like(slots[:, :1, 0].expand(groups, count + 1), length)
            source = source.scatter(1, slots.reshape(groups, -1), numbers.expand(groups, -1))[:, :count]
        padded = F.pad(tokens, (0, 0, 0, 1))
        taken = padded.gather(1, source.unsqueeze(-1).expand(groups, count, width))
        return taken.reshape(groups, self.experts, count // self.experts, width)

    def _ask(self, dispatched):
        """The experts' outputs for their slots. With expert parallelism slots go to their experts, and come back."""
        groups, experts, room, width = dispatched.shape
        there = self._placed(dispatched, Shard(1)).transpose(0, 1).reshape(experts, groups * room, width)
        said = F.gelu(there @ self.up) @ self.down
        return self._placed(said.reshape(experts, groups, room, width).transpose(0, 1), Shard(0))

    def _combined(self, said, slots, weights):
        groups, experts, room, width = said.shape
        _, length, choices = slots.shape
        padded = F.pad(said.reshape(groups, experts * room, width), (0, 0, 0, 1))
        each = padded.gather(1, slots.reshape(groups, -1, 1).expand(groups, length * choices, width))
        return (each.reshape(groups, length, choices, width) * weights.unsqueeze(-1)).sum(2)

    def _placed(self, x, placement: Placement):
        return x if self._mesh is None else placed("MixtureOfExperts", x, *self._mesh, placement)

    def _as_it_came(self, said, x):
        if not isinstance(x, Tensor):
            return said
        came = handle_of(x)._placements[self._mesh[1]]
        return said if came.is_partial() else self._placed(said, came)

    def extra_repr(self) -> str:
        return f"experts={self.experts}, top_k={self.top_k}, capacity_factor={self.capacity_factor}, groups={self.groups}"


def _by_groups(tokens, weights, ends):
    """Each expert's tokens by its matrix. On the CPU one by one: torch's own product takes rows of multiples of 16 bytes there."""
    if isinstance(tokens, Tensor):
        return F.grouped_mm(tokens, weights, offs=ends)
    starts = [0, *ends.tolist()]
    return torch.cat([tokens[a:b] @ weight for weight, a, b in zip(weights, starts, starts[1:])])


class ExpertParallel(ParallelStyle):
    """Cuts a MixtureOfExperts by its experts: each worker of the mesh dim has some, and a part of the groups of tokens.

    Tokens reach their experts by one all-to-all and come back by one, backward too. Its groups are a multiple of the mesh dim's
    workers (times those of the dims that cut the batch). The output lies as the input does. Without a capacity_factor tokens or experts
    are brought to the others, whichever is fewer bytes.

    >>> parallelize_module(model, mesh["ep"], {"layers.*.experts": ExpertParallel()})
    """

    def _apply(self, module: nn.Module, device_mesh):
        dim = mesh_dim_of("ExpertParallel", device_mesh)
        if not isinstance(module, MixtureOfExperts):
            raise InvalidArgumentError(f"ExpertParallel: takes MixtureOfExperts, not {type(module).__name__}")
        size = device_mesh.size()
        if module.groups % size and module.capacity_factor is not None:
            raise InvalidArgumentError(f"ExpertParallel: {module.groups} groups of tokens are not cut by {size} workers of {device_mesh}; give "
                                       f"MixtureOfExperts(groups={math.lcm(module.groups, size)})")
        for name in ("up", "down"):
            place_parameter("ExpertParallel", module, name, device_mesh, dim, Shard(0))
        module._mesh = (device_mesh, dim)
        return module
