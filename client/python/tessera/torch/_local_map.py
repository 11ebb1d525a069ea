"""tt.local_map: a function of CPU tensors, run on every shard in this process.

For what has no ops of torch inside: a kernel for CPU tensors, NumPy, another library. Shards come here and results go back, so it waits;
ts.local_map runs functions of ops on the workers, and moves nothing.
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch.utils import _pytree

from .._errors import InvalidArgumentError
from .._mesh import DeviceMesh
from .._placements import Partial, Replicate
from .._session import session_of
from ._moving import from_local, redistribute
from ._tensor import Tensor, handle_of


def local_map(func, out_placements, in_placements=None, in_grad_placements=None, device_mesh: DeviceMesh | None = None, *,
              redistribute_inputs: bool = False):
    """A function of global tensors that runs `func` on the shards of each position, as CPU tensors in this process, with gradients.

    out_placements: of the result, or a tuple of them for a tuple of results; None for one that is no tensor. in_placements: of each
    argument (None for what is no tensor); one that lies otherwise is an error, or is brought there with redistribute_inputs. Not given:
    shards are what they are. in_grad_placements: of the gradients that func's backward gives; by default those of the arguments, and
    pending sums where an argument is whole beside others in shards. func runs once for positions that have the same of all arguments.

    >>> hottest = tt.local_map(my_cpu_kernel, [ts.Shard(0)])(x)
    """
    @functools.wraps(func)
    def mapped(*args):
        flat, tree = _pytree.tree_flatten(args)
        mesh = device_mesh or next((_mesh_of(one) for one in flat if isinstance(one, Tensor)), None)
        if mesh is None:
            raise InvalidArgumentError(f"local_map: no argument of {_name(func)} is a tensor on tessera, and device_mesh is None")
        flat = [_placed(func, i, one, mesh, in_placements, redistribute_inputs) for i, one in enumerate(flat)]
        several = isinstance(out_placements, tuple)
        wanted = out_placements if several else (out_placements,)
        return _run(func, flat, tree, mesh, wanted, in_grad_placements, several)
    return mapped


def _name(func) -> str:
    return getattr(func, "__name__", None) or repr(func)


def _mesh_of(tensor: Tensor) -> DeviceMesh:
    handle = handle_of(tensor)
    return DeviceMesh._wrap(session_of(handle), handle._mesh)


def _placed(func, i, value, mesh, in_placements, may_move):
    if not isinstance(value, Tensor):
        return value
    given = None if in_placements is None else in_placements[i]
    wanted = value.placements if given is None else tuple(given)
    if value.placements == wanted and handle_of(value)._mesh.same(mesh._raw):
        return value
    if not may_move:
        raise InvalidArgumentError(f"local_map: argument {i} of {_name(func)} is {value!r}, and in_placements says {list(wanted)} on {mesh}; "
                                   "redistribute it, or give redistribute_inputs=True")
    return redistribute(value, mesh, list(wanted))


def _run(func, flat, tree, mesh, wanted, in_grad_placements, several):
    shape = mesh._raw.shape
    tensors = [one for one in flat if isinstance(one, Tensor)]
    cut = {m for m in range(len(shape)) if any(not one.placements[m].is_replicate() for one in tensors)}
    cut |= {m for m in range(len(shape)) if any(places is not None and not places[m].is_replicate() for places in wanted)}
    computed = [p for p in itertools.product(*(range(n) for n in shape)) if all(p[m] == 0 for m in range(len(shape)) if m not in cut)]
    local = {}      # by the number of the argument: its shards, in the order of `computed`
    for i, one in enumerate(flat):
        if isinstance(one, Tensor):
            given = None if in_grad_placements is None else in_grad_placements[i]
            local[i] = _Shards.apply(one, mesh, computed, cut, given)
    results = []
    for k in range(len(computed)):
        args = _pytree.tree_unflatten([local[i][k] if i in local else one for i, one in enumerate(flat)], tree)
        out = func(*args)
        results.append(tuple(out) if several else (out,))
        if len(results[-1]) != len(wanted):
            raise InvalidArgumentError(f"local_map: {_name(func)} gives {len(results[-1])} results, and out_placements are {len(wanted)}")
    outs = []
    for number, places in enumerate(wanted):
        if places is None:
            outs.append(results[0][number])
            continue
        own = {p: results[k][number] for k, p in enumerate(computed)}
        whole = {p: own[q] if p == q else own[q].detach() for p, q in
                 ((p, tuple(n if m in cut else 0 for m, n in enumerate(p))) for p in itertools.product(*(range(n) for n in shape)))}
        outs.append(from_local(whole, mesh, list(places)))
    return tuple(outs) if several else outs[0]


class _Shards(torch.autograd.Function):
    """The shards of a tensor as CPU tensors; their gradients are put together again."""

    @staticmethod
    def forward(ctx, x, mesh, positions, cut, given):
        ctx.mesh, ctx.positions, ctx.cut, ctx.given = mesh, positions, cut, given
        ctx.placements = handle_of(x)._placements
        return tuple(x.to_local(p) for p in positions)

    @staticmethod
    def backward(ctx, *grads):
        places = ctx.given
        if places is None:      # a whole argument of several shards: each has a term. The gradient of a sum's term is the sum's.
            places = [Partial("sum") if one.is_replicate() and m in ctx.cut else Replicate() if one.is_partial() else one
                      for m, one in enumerate(ctx.placements)]
        own = dict(zip(ctx.positions, grads))
        shape = ctx.mesh._raw.shape
        whole = {p: own[tuple(n if m in ctx.cut else 0 for m, n in enumerate(p))] for p in itertools.product(*(range(n) for n in shape))}
        return from_local(whole, ctx.mesh, list(places)), None, None, None, None


local_map.__module__ = "tessera.torch"
