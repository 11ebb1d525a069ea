"""Sequences of several lengths: the loss of connectionist temporal classification and packed sequences, beside the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from models import same_start

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
STEPS, BATCH, CLASSES = 12, 4, 6
DRAWN = torch.Generator().manual_seed(1)
SCORES = torch.randn(STEPS, BATCH, CLASSES, generator=DRAWN).log_softmax(2)
LABELS = torch.randint(1, CLASSES, (BATCH, 5), generator=DRAWN)
LABELS[1, 1:3] = LABELS[1, 0]           # equal neighbours need a blank between
LABELS[1, 3:] = -7                      # behind the label: not looked at
INPUTS, TARGETS = torch.tensor([12, 10, 3, 4]), torch.tensor([5, 3, 5, 0])      # the third is too short for its label


def compare_losses(mesh, place, scores, labels, inputs, targets, bring=lambda x, mesh: x, **options):
    here, there = scores.clone().requires_grad_(), tt.distribute_tensor(scores, mesh, [place]).requires_grad_()
    expected = F.ctc_loss(here, labels, inputs, targets, **options)
    got = F.ctc_loss(there, tt.distribute_tensor(labels, mesh), bring(inputs, mesh), bring(targets, mesh), **options)
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    weights = torch.linspace(0.5, 1.5, expected.numel()).reshape(expected.shape)
    (expected * weights).sum().backward()
    (got * tt.distribute_tensor(weights, mesh)).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-5, equal_nan=True)


def on_workers(x, mesh):
    return tt.distribute_tensor(x, mesh)


@pytest.mark.parametrize("bring", [lambda x, mesh: x, lambda x, mesh: x.tolist(), on_workers], ids=["CPU", "numbers", "workers"])
@pytest.mark.parametrize("is_one_vector", [False, True])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_loss_of_sequences_on_every_placement(mesh, zero_infinity, is_one_vector, bring):
    labels = torch.cat([one[:n] for one, n in zip(LABELS, TARGETS)]) if is_one_vector else LABELS
    for place, reduction in itertools.product([R, S(0), S(1), S(2)], ["mean", "sum", "none"]):
        compare_losses(mesh, place, SCORES, labels, INPUTS, TARGETS, bring, reduction=reduction, zero_infinity=zero_infinity)


def test_another_blank_and_one_sequence(mesh):
    compare_losses(mesh, S(1), SCORES, LABELS.abs() - 1, [12, 12, 5, 9], [5, 2, 1, 3], blank=5)
    one = SCORES[:, 0]
    for reduction, bring in itertools.product(["mean", "none"], [lambda x, mesh: x, on_workers]):
        compare_losses(mesh, R, one, torch.tensor([1, 2, 2]), torch.tensor(7), torch.tensor(3), bring, reduction=reduction)


def test_a_batch_in_shards_stays_in_shards(mesh, session):
    scores = tt.distribute_tensor(SCORES, mesh, [S(1)]).requires_grad_()
    labels, inputs, targets = (tt.distribute_tensor(one, mesh, [S(0)]) for one in (LABELS, INPUTS, TARGETS))
    with session.comm_debug() as comm:
        loss = F.ctc_loss(scores, labels, inputs, targets, reduction="none", zero_infinity=True)
        loss.backward(torch.ones_like(loss))
        scores.grad.wait()
    assert sum(comm.bytes_received) == 0 and scores.grad.placements == (S(1),)


@pytest.mark.parametrize("inputs, targets, text", [
    ([13, 10, 3, 4], [5, 3, 5, 0], "at most 12"), ([12, 10, 3, -1], [5, 3, 5, 0], "input_lengths"), ([12, 10, 3, 4], [5, 3, 6, 0], "at most 5"),
    ([12, 10, 3], [5, 3, 5, 0], "3 input_lengths of 4")], ids=str)
def test_lengths_that_do_not_fit_are_refused(mesh, inputs, targets, text):
    with pytest.raises((ts.InvalidArgumentError, RuntimeError), match=text):
        F.ctc_loss(tt.distribute_tensor(SCORES, mesh), tt.distribute_tensor(LABELS, mesh), inputs, targets)
    with pytest.raises(ts.InvalidArgumentError, match="blank"):
        F.ctc_loss(tt.distribute_tensor(SCORES, mesh), tt.distribute_tensor(LABELS, mesh), INPUTS, TARGETS, blank=6)


@pytest.mark.parametrize("is_sorted, lengths", [(True, [6, 4, 4, 1]), (False, [3, 6, 1, 4])])
@pytest.mark.parametrize("place", [R, S(0), S(1)])
@pytest.mark.parametrize("kind, options", [("RNN", {"num_layers": 2, "bidirectional": True}), ("LSTM", {"batch_first": True, "proj_size": 3}),
                                           ("LSTM", {"num_layers": 2, "bidirectional": True}), ("GRU", {"batch_first": True})], ids=str)
def test_recurrent_layers_of_packed_sequences(mesh, kind, options, place, is_sorted, lengths):
    batch_first = options.get("batch_first", False)
    layer, other = same_start(lambda: getattr(torch.nn, kind)(4, 5, **options))
    tt.distribute_module(layer, mesh)
    x = torch.randn(4, 7, 4) if batch_first else torch.randn(7, 4, 4)
    inputs = [tt.distribute_tensor(x, mesh, [place]).requires_grad_(), x.clone().requires_grad_()]
    outs = []
    for one, module in zip(inputs, (layer, other)):
        packed = torch.nn.utils.rnn.pack_padded_sequence(one, torch.tensor(lengths), batch_first=batch_first, enforce_sorted=is_sorted)
        out, states = module(packed)
        padded, sizes = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=batch_first, padding_value=0.5, total_length=8)
        assert sizes.tolist() == lengths
        outs.append([padded, *(states if isinstance(states, tuple) else (states,))])
        sum((one * one).sum() for one in outs[-1]).backward()
    for got, expected in zip(*outs):
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    for got, expected in zip([inputs[0], *layer.parameters()], [inputs[1], *other.parameters()]):
        torch.testing.assert_close(got.grad.cpu(), expected.grad, rtol=1e-3, atol=1e-4)


def test_sequences_are_packed_and_unpacked(mesh):
    sequences = [torch.randn(n, 2) for n in (5, 3, 3)]
    there = [tt.distribute_tensor(one, mesh, [S(0)]) for one in sequences]
    got, expected = (torch.nn.utils.rnn.pack_sequence(one) for one in (there, sequences))
    assert torch.equal(got.data.cpu(), expected.data) and torch.equal(got.batch_sizes, expected.batch_sizes)
    for one, other in zip(torch.nn.utils.rnn.unpack_sequence(got), sequences):
        assert torch.equal(one.cpu(), other)
    with pytest.raises(RuntimeError, match="sorted in decreasing order"):
        torch.nn.utils.rnn.pack_padded_sequence(tt.distribute_tensor(torch.ones(5, 2, 3), mesh), torch.tensor([2, 5]))
    with pytest.raises((ts.InvalidArgumentError, RuntimeError), match="at least 1|greater than 0"):
        torch.nn.utils.rnn.pack_padded_sequence(tt.distribute_tensor(torch.ones(5, 2, 3), mesh), torch.tensor([5, 0]))


def test_a_step_with_the_loss_of_sequences_is_captured(mesh):
    """Padded labels, and lengths on workers: nothing is read or brought."""
    model, other = same_start(lambda: torch.nn.Linear(8, CLASSES))
    x, inputs, targets = (tt.distribute_tensor(one, mesh) for one in (torch.randn(STEPS, BATCH, 8), INPUTS, TARGETS))
    labels = tt.distribute_tensor(LABELS, mesh, [S(0)])
    steps = []
    for one in (model, other):
        tt.distribute_module(one, mesh)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, fused=True)

        def step(x, labels, inputs, targets, one=one, optimizer=optimizer):
            loss = F.ctc_loss(one(x).log_softmax(2), labels, inputs, targets, zero_infinity=True)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        steps.append(step)
    captured = tt.capture(steps[0])
    losses = [(captured(x, labels, inputs, targets).item(), steps[1](x, labels, inputs, targets).item()) for _ in range(4)]
    assert captured.replays == 2 and all(a == b for a, b in losses) and losses[-1][0] < losses[0][0]
