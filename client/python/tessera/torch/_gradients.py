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
from .._placements import kept
from .._catalog import OPS
from ._tensor import Tensor, handle_of, wrap

BUCKET_BYTES = 25 << 20     # docs/limits.md: gradient_bucket
MAX_BACKWARDS = 64          # docs/limits.md: max_backwards
_MOVE = OPS["redistribute"]
_state = threading.local()


def watch(leaf: Tensor) -> Tensor:
    """Has the gradient of a leaf reduced when backward has it; once, however often it is called."""
    if not hasattr(leaf, "_bucket"):
        leaf._bucket = leaf.register_post_accumulate_grad_hook(_collect)
    return leaf


class _Bucket:
    """Leaves of one backward pass whose gradients are to be reduced."""

    def __init__(self):
        self.leaves: list = []
        self.bytes = 0

    def flush(self) -> None:
        leaves, self.leaves, self.bytes = self.leaves, [], 0
        reduce(leaves)


_buckets: dict = {}     # by the number of the backward pass, whose hooks may run on a thread of its own


def is_held() -> bool:
    """Whether this thread is within no_sync."""
    return getattr(_state, "holds", 0) > 0


def _collect(leaf: Tensor) -> None:
    grad = leaf.grad
    if not isinstance(grad, Tensor) or is_held() or getattr(leaf, "_is_held", False):
        return
    if not _differs(leaf):
        return
    task = torch._C._current_graph_task_id()
    bucket = _buckets.get(task)
    if bucket is None:
        while len(_buckets) >= MAX_BACKWARDS:       # of passes that failed, whose end nobody was told
            _buckets.pop(next(iter(_buckets)), None)
        bucket = _buckets[task] = _Bucket()
        torch.autograd.Variable._execution_engine.queue_callback(lambda: _buckets.pop(task, bucket).flush())
    bucket.leaves.append(leaf)
    bucket.bytes += leaf.grad.numel() * leaf.grad.element_size()
    if bucket.bytes >= getattr(leaf, "_bucket_bytes", BUCKET_BYTES):
        bucket.flush()


def _differs(leaf: Tensor) -> bool:
    grad, own = handle_of(leaf.grad), handle_of(leaf)
    return list(grad._placements) != _wanted(leaf) or not grad._mesh.same(own._mesh)


def _wanted(leaf: Tensor) -> list:
    return kept(handle_of(leaf)._placements)


def reduce(leaves) -> None:
    """Brings gradients to their leaves' placements, in one op for each mesh and session."""
    groups: dict = {}
    for leaf in leaves:
        if isinstance(leaf.grad, Tensor) and _differs(leaf):
            handle, mesh = handle_of(leaf.grad), handle_of(leaf)._mesh
            if not handle._mesh.same(mesh):     # made beside a tensor of another mesh
                leaf.grad = wrap(_tessera.call(_MOVE, (handle,), mesh=mesh, placements=_wanted(leaf)))
                continue
            narrow = getattr(leaf, "_moves_in", None)
            groups.setdefault((handle._session_key, handle._mesh.hash(), narrow), []).append((leaf, handle))
    for (*_, narrow), group in groups.items():
        handles = bring([handle for _, handle in group], [_wanted(leaf) for leaf, _ in group], narrow)
        for (leaf, own), handle in zip(group, handles):
            handle = handle if handle._dtype == own._dtype else _tessera.call(OPS["astype"], (handle,), dtype=own._dtype)
            if leaf.grad._view is None:
                leaf.grad._cell.bind(handle)
            else:
                leaf.grad = wrap(handle)


def bring(handles: list, placements: list, dtype: int | None = None) -> list:
    """Handles with these placements on their meshes, in that dtype: by one op for each mesh, as far as the catalog's
    number of operands allows."""
    if any(not one._mesh.same(handles[0]._mesh) for one in handles):
        groups: dict = {}
        for i, one in enumerate(handles):
            groups.setdefault(one._mesh.hash(), []).append(i)
        moved = {}
        for numbers in groups.values():
            moved.update(zip(numbers, bring([handles[i] for i in numbers], [placements[i] for i in numbers], dtype)))
        return [moved[i] for i in range(len(handles))]
    out = []
    options = {} if dtype is None else {"dtype": dtype}
    for i in range(0, len(handles), 64):
        part, wanted = handles[i:i + 64], placements[i:i + 64]
        if len(part) == 1:
            out.append(_tessera.call(_MOVE, (part[0],), placements=wanted[0], **options))
        else:
            out.extend(_tessera.call_all(_MOVE, tuple(part), placements_each=wanted, **options))
    return out


@contextlib.contextmanager
def no_sync():
    """Within the block gradients are added up where they are, and not reduced: for steps of several backward passes. The
    backward after the block reduces them."""
    _state.holds = getattr(_state, "holds", 0) + 1
    try:
        with torch.autograd.set_multithreading_enabled(False):      # hooks see what this thread is within
            yield
    finally:
        _state.holds -= 1


no_sync.__module__ = "tessera.torch"
