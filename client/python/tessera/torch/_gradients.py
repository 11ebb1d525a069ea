"""Gradients of leaves: brought to the leaf's placements once, several in one message.

A gradient of a parameter is a pending sum where tokens are sharded. When backward has added it up it joins a bucket; a full
bucket, and the last one when backward ends, is one redistribute of the list: one message for each pair of workers. In
`with no_sync():` gradients stay as they are, and later ones add to them.
"""

from __future__ import annotations

import contextlib
import threading

import torch

import _tessera
from .._tensor import OPS
from ._tensor import Tensor, handle_of, wrap

BUCKET_BYTES = 25 << 20     # docs/limits.md: gradient_bucket
_MOVE = OPS["redistribute"]
_state = threading.local()


def watch(leaf: Tensor) -> Tensor:
    """Has the gradient of a leaf reduced when backward has it; once, however often it is called."""
    if not hasattr(leaf, "_bucket"):
        leaf._bucket = leaf.register_post_accumulate_grad_hook(_collect)
    return leaf


def _bucket() -> list:
    if not hasattr(_state, "leaves"):
        _state.leaves, _state.bytes, _state.waits, _state.holds = [], 0, False, 0
    return _state.leaves


def _collect(leaf: Tensor) -> None:
    leaves = _bucket()
    if _state.holds or not isinstance(leaf.grad, Tensor):
        return
    if not _differs(leaf):
        return
    leaves.append(leaf)
    _state.bytes += leaf.grad.numel() * leaf.grad.element_size()
    if _state.bytes >= getattr(leaf, "_bucket_bytes", BUCKET_BYTES):
        flush()
    elif not _state.waits:
        _state.waits = True
        torch.autograd.Variable._execution_engine.queue_callback(flush)


def _differs(leaf: Tensor) -> bool:
    return list(handle_of(leaf.grad)._placements) != _wanted(leaf)


def _wanted(leaf: Tensor) -> list:
    return [(0, 0, 0) if one[0] == 2 else one for one in handle_of(leaf)._placements]


def is_held() -> bool:
    """Whether this thread is within no_sync."""
    _bucket()
    return _state.holds > 0


def flush() -> None:
    """Reduces what is in the bucket."""
    leaves = _bucket()
    _state.leaves, _state.bytes, _state.waits = [], 0, False
    reduce(leaves)


def reduce(leaves) -> None:
    """Brings gradients to their leaves' placements, in one op for each mesh and session."""
    groups: dict = {}
    for leaf in leaves:
        if isinstance(leaf.grad, Tensor) and _differs(leaf):
            handle = handle_of(leaf.grad)
            groups.setdefault((handle._session_key, handle._mesh.hash()), []).append((leaf, handle))
    for group in groups.values():
        handles = bring([handle for _, handle in group], [_wanted(leaf) for leaf, _ in group])
        for (leaf, _), handle in zip(group, handles):
            if leaf.grad._view is None:
                leaf.grad._cell.bind(handle)
            else:
                leaf.grad = wrap(handle)


def bring(handles: list, placements: list) -> list:
    """Handles of one mesh with these encoded placements, by as few ops as the catalog's number of operands allows."""
    out = []
    for i in range(0, len(handles), 64):
        part, wanted = handles[i:i + 64], placements[i:i + 64]
        if len(part) == 1:
            out.append(_tessera.call(_MOVE, (part[0],), placements=wanted[0]))
        else:
            out.extend(_tessera.call_all(_MOVE, tuple(part), placements_each=wanted))
    return out


@contextlib.contextmanager
def no_sync():
    """Within the block gradients are added up where they are, and not reduced: for steps of several backward passes. The
    backward after the block reduces them."""
    _bucket()
    _state.holds += 1
    try:
        yield
    finally:
        _state.holds -= 1


no_sync.__module__ = "tessera.torch"
