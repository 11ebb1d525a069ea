"""Sequences of several lengths: the loss of connectionist temporal classification, and packed sequences.

The loss is one scan over time of all sequences and all places of their labels at once, in log space and f64: Graves, Fernandez,
Gomez, Schmidhuber, "Connectionist temporal classification" (2006). A sequence's label is lengthened by a blank before, between
and behind its classes: L = 2 S + 1 places. alpha[t, n, s] is the log probability of all that ends at place s at time t, beta of all
that begins there; both count time t. What stands behind the length of a label or a sequence is never seen: alpha runs from lower places
to higher ones, and beta begins at the last ones that count. Batches stay in shards.
"""

from __future__ import annotations

import torch

import _tessera
import _tessera_ops as made
from .._errors import InvalidArgumentError
from .._ops import broadcast_to, concat, pad, permute_dims, reshape, stack
from .._placements import replicated
from .._catalog import OPS
from .._mesh import DeviceMesh
from .._session import session_of
from ._create import _library
from ._dtypes import F64, INT64
from ._moving import upload
from ._operands import cast
from ._placing import full_like, iota, settled_dims
from ._table import row
from ._tensor import Tensor, handle_of, wrap

_call = _tessera.call
_NONE = float("-inf")
_MEAN, _SUM = 1, 2      # torch's numbers of reductions


def _taken(x, at, dim: int):
    return _call(OPS["take_along_axis"], (x, at), dims=[dim])


# ---- lengths and labels ------------------------------------------------------------------------------------------------------

def _known(lengths) -> list[int] | None:
    """Lengths that this process has; None where they lie on workers."""
    if isinstance(lengths, Tensor):
        return None
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def _lengths(name: str, lengths, count: int, most: int, like):
    """A vector of them on the workers; checked where this process has them."""
    known = _known(lengths)
    if known is None:
        if tuple(lengths.shape) != (count,):
            raise InvalidArgumentError(f"ctc_loss: {name} are {lengths!r}, and there are {count} sequences")
        return cast(handle_of(lengths), INT64)
    if len(known) != count:
        raise InvalidArgumentError(f"ctc_loss: {len(known)} {name} of {count} sequences")
    if any(not 0 <= n <= most for n in known):
        raise InvalidArgumentError(f"ctc_loss: {name} are {known}; each is at least 0, and at most {most}")
    return _brought(torch.tensor(known), like)


def _brought(values, like):
    return upload(values, DeviceMesh._wrap(session_of(like), like._mesh), replicated(like._mesh_ndim))


class _Labels:
    """A batch's labels as a scan sees them."""

    def __init__(self, scores, targets, input_lengths, target_lengths, blank: int):
        steps, count, classes = scores.shape
        if not 0 <= blank < classes:
            raise InvalidArgumentError(f"ctc_loss: blank is {blank}, of {classes} classes")
        given = cast(handle_of(targets), INT64)
        known = _known(target_lengths)
        if given.ndim not in (1, 2) or (given.ndim == 2 and given.shape[0] != count):
            raise InvalidArgumentError(f"ctc_loss: targets are {targets!r}, of {count} sequences: they have a row each, or are one vector")
        most = given.shape[-1] if given.ndim == 2 else given.size
        self.lengths = _lengths("target_lengths", target_lengths, count, most, scores)
        self.steps = _lengths("input_lengths", input_lengths, count, steps, scores)
        if given.ndim == 1:     # one behind the other
            known = known if known is not None else [int(n) for n in wrap(self.lengths).tolist()]
            if sum(known) != given.size:
                raise InvalidArgumentError(f"ctc_loss: target_lengths are {known}, and targets are {targets!r}")
            most = max(known, default=0)
            first = made.cumulative_sum(self.lengths, axis=0) - self.lengths
            at = made.minimum(first[:, None] + iota(scores, most), max(given.size - 1, 0))
            given = reshape(_taken(given, reshape(at, (-1,)), 0), (count, most)) if given.size else full_like(scores, (count, most), INT64, blank)
        is_in = iota(scores, most) < self.lengths[:, None]
        given = made.where(is_in, given, blank)
        blanks = full_like(given, given.shape, INT64, blank)
        self.places = 2 * most + 1
        self.classes = concat([reshape(stack([blanks, given], axis=2), (count, 2 * most)), full_like(scores, (count, 1), INT64, blank)], axis=1)
        # Where a place may be reached from the last but one: from a class to another class, over the blank between.
        before = pad(self.classes, [(0, 0), (2, 0)], constant_values=blank)[:, :self.places]
        self.skips = made.where(made.logical_and(made.not_equal(self.classes, blank), made.not_equal(self.classes, before)), 0.0, _NONE)
        self.skips = cast(self.skips, F64)
        self.at = broadcast_to(self.classes[None], (steps, count, self.places))
        self.picks = cast(_taken(scores, self.at, 2), F64)

    def last(self, values):
        """The log of the sum of what stands at the two places that a label may end at, of [n, L]."""
        end = 2 * self.lengths[:, None]
        both = made.logaddexp(_taken(values, end, 1), made.where(end > 0, _taken(values, made.maximum(end - 1, 0), 1), _NONE))
        return reshape(both, (values.shape[0],))


def _stacked(parts):
    return concat([one[None] for one in parts], axis=0)


def _forward(labels: _Labels):
    """alpha, [T, n, L]."""
    n, places = labels.classes.shape
    first = made.where(iota(labels.picks, places) < 2, labels.picks[0], _NONE)
    alphas = [first]
    for t in range(1, labels.picks.shape[0]):
        wider = pad(alphas[-1], [(0, 0), (2, 0)], constant_values=_NONE)
        near = made.logaddexp(alphas[-1], wider[:, 1:places + 1])
        alphas.append(made.logaddexp(near, wider[:, :places] + labels.skips) + labels.picks[t])
    return _stacked(alphas)


def _backward(labels: _Labels):
    """beta, [T, n, L]."""
    steps, n, places = labels.picks.shape
    at = iota(labels.picks, places)
    end = 2 * labels.lengths[:, None]
    ends = made.logical_or(made.equal(at, end), made.logical_and(made.equal(at, end - 1), end > 0))
    is_last = made.equal(iota(labels.picks, steps)[:, None], labels.steps - 1)
    begins = made.where(made.logical_and(is_last[:, :, None], ends), labels.picks, _NONE)
    skips = pad(labels.skips, [(0, 0), (0, 2)], constant_values=_NONE)[:, 2:]
    betas = [begins[steps - 1]]
    for t in reversed(range(steps - 1)):
        wider = pad(betas[-1], [(0, 0), (0, 2)], constant_values=_NONE)
        near = made.logaddexp(betas[-1], wider[:, 1:places + 1])
        out = made.logaddexp(near, wider[:, 2:] + skips) + labels.picks[t]
        betas.append(made.maximum(out, begins[t]))      # one of the two is nothing
    return _stacked(betas[::-1])


def _scores(log_probs):
    if log_probs.ndim != 3 or not log_probs.shape[0]:
        raise InvalidArgumentError(f"ctc_loss: takes log probabilities of (time, batch, classes), not {log_probs!r}")
    return settled_dims(handle_of(log_probs), [0, 2])


@row("_ctc_loss.default", "_ctc_loss.Tensor", how="composed")
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """(loss of each sequence, alpha); infinite where a sequence is too short for its label."""
    scores = _scores(log_probs)
    labels = _Labels(scores, targets, input_lengths, target_lengths, blank)
    alpha = _forward(labels)
    at = broadcast_to(made.maximum(labels.steps - 1, 0)[None, :, None], (1, *alpha.shape[1:]))
    out = labels.last(_taken(alpha, at, 0)[0])
    # Without any time there is only a label without classes.
    out = made.where(labels.steps > 0, out, made.where(made.equal(labels.lengths, 0), 0.0, _NONE))
    return wrap(cast(-out, scores._dtype)), wrap(alpha)


@row("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor", how="composed")
def ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, losses, alpha, blank, zero_infinity=False):
    """exp(score) without what of it goes through each class at each time, exp(alpha + beta - score + loss)."""
    scores = _scores(log_probs)
    labels = _Labels(scores, targets, input_lengths, target_lengths, blank)
    through = handle_of(alpha) + _backward(labels)
    loss = cast(handle_of(losses), F64)
    is_there = made.not_equal(through, _NONE)
    parts = made.where(is_there, made.exp(through - labels.picks + loss[:, None]), 0.0)
    zeros = full_like(scores, scores.shape, F64, 0)
    through = _call(OPS["scatter"], (zeros, labels.at, parts), dims=[2], mode="add")
    is_impossible = made.isinf(loss)
    factor = made.where(is_impossible, 0.0 if zero_infinity else float("nan"), cast(handle_of(grad), F64))
    out = (made.exp(cast(scores, F64)) - through) * factor[:, None]
    is_in = iota(scores, scores.shape[0])[:, None] < labels.steps
    return wrap(cast(made.where(is_in[:, :, None], out, 0.0), scores._dtype))


def _whole_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=_MEAN, zero_infinity=False):
    """torch's own, but that lengths may be in this process while scores are on workers."""
    if not isinstance(target_lengths, Tensor):
        lengths = [one.tolist() if isinstance(one, torch.Tensor) and not isinstance(one, Tensor) else one for one in (input_lengths, target_lengths)]
        if all(isinstance(one, list) for one in lengths):
            return torch.ops.aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)
        target_lengths = wrap(_brought(torch.as_tensor(target_lengths), handle_of(log_probs)))
    is_batch = log_probs.ndim == 3
    out = torch._ctc_loss(log_probs if is_batch else log_probs[:, None], targets if is_batch or targets.ndim == 2 else targets[None],
                          *(one if is_batch or one.ndim else one[None] for one in (input_lengths, target_lengths)), blank, zero_infinity)[0]
    if zero_infinity:
        out = torch.where(out == float("inf"), 0.0, out)
    if reduction == _MEAN:
        return (out / target_lengths.clamp_min(1)).mean()
    return out.sum() if reduction == _SUM else out if is_batch else out[0]


row("ctc_loss.Tensor", how="composed")(_whole_loss)
_library.impl("ctc_loss.Tensor", _whole_loss, "AutogradPrivateUse1")


# ---- packed sequences: of each time those that are so long, one time after the other ------------------------------------------

def _runs(batch_sizes) -> list[tuple[int, int, int]]:
    """(first time, behind the last, sequences) of times that have as many."""
    out: list = []
    for t, count in enumerate(batch_sizes):
        if out and out[-1][2] == count:
            out[-1] = (out[-1][0], t + 1, count)
        else:
            out.append((t, t + 1, count))
    return out


@row("_pack_padded_sequence.default", how="view")
def pack_padded_sequence(x, lengths, batch_first):
    """(the sequences' elements, how many there are at each time); the lengths are in this process, the longest first."""
    h = handle_of(x)
    if batch_first:
        h = permute_dims(h, (1, 0, *range(2, h.ndim)))
    sizes = lengths.tolist()
    if len(sizes) != h.shape[1]:
        raise InvalidArgumentError(f"pack_padded_sequence: {len(sizes)} lengths of the {h.shape[1]} sequences of {x!r}")
    if any(a < b for a, b in zip(sizes, sizes[1:])):
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
                           "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement if you do "
                           "not need ONNX exportability.")
    if not sizes or sizes[-1] < 1 or sizes[0] > h.shape[0]:
        raise InvalidArgumentError(f"pack_padded_sequence: the lengths {sizes} of {x!r}: each is at least 1, and none is beyond it")
    counts = [sum(n > t for n in sizes) for t in range(sizes[0])]
    parts = [reshape(h[start:end, :count], ((end - start) * count, *h.shape[2:])) for start, end, count in _runs(counts)]
    return wrap(concat(parts, axis=0)), torch.tensor(counts)


@row("_pack_padded_sequence_backward.default", how="view")
def pack_padded_sequence_backward(grad, input_size, batch_sizes, batch_first):
    g = handle_of(grad)
    size = [input_size[1], input_size[0], *input_size[2:]] if batch_first else list(input_size)
    parts, at = [], 0
    for start, end, count in _runs(batch_sizes.tolist()):
        part = reshape(g[at:at + (end - start) * count], (end - start, count, *size[2:]))
        at += (end - start) * count
        parts.append(pad(part, [(0, 0), (0, size[1] - count), *[(0, 0)] * (len(size) - 2)]))
    out = concat(parts, axis=0)
    if out.shape[0] < size[0]:
        out = pad(out, [(0, size[0] - out.shape[0]), *[(0, 0)] * (len(size) - 1)])
    return wrap(permute_dims(out, (1, 0, *range(2, out.ndim))) if batch_first else out)
