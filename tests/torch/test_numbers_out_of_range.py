"""Numbers that an op doesn't take are the errors that they are on the CPU. Values are on the workers and nobody waits for them, so the
error comes where what is computed of them is waited for; it is of torch's class, and names the number."""

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

# name: (function of a maker of tensors, the number that the message names). The maker has tensors on a device.
SCORES = torch.linspace(-1, 1, 32).reshape(4, 8)
IMAGE = torch.linspace(-1, 1, 96).reshape(2, 8, 2, 3)
WEIGHT = torch.linspace(0.5, 1.5, 8)
BAD = {
    "cross_entropy, a label above": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 8])), "8"),
    "cross_entropy, a label below": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, -1])), "-1"),
    "cross_entropy, far above": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 1000])), "1000"),
    "cross_entropy, -100 that isn't ignored": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, -100]), ignore_index=3), "-100"),
    "cross_entropy, weights": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 8]), weight=t(WEIGHT)), "8"),
    "cross_entropy, label smoothing": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 8]), label_smoothing=0.1), "8"),
    "cross_entropy, both": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, -1, 8]), weight=t(WEIGHT), label_smoothing=0.1), "-1"),
    "cross_entropy, sum": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 8]), reduction="sum"), "8"),
    "cross_entropy, none": (lambda t: F.cross_entropy(t(SCORES), t([0, 1, 2, 8]), reduction="none"), "8"),
    "cross_entropy, pixels": (lambda t: F.cross_entropy(t(IMAGE), t([[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 9]]])), "9"),
    "cross_entropy, one sample": (lambda t: F.cross_entropy(t(SCORES[0]), t(8)), "8"),
    "nll_loss": (lambda t: F.nll_loss(t(SCORES), t([0, 1, 2, 8])), "8"),
    "nll_loss, below": (lambda t: F.nll_loss(t(SCORES), t([0, -5, 2, 7])), "-5"),
    "nll_loss, pixels": (lambda t: F.nll_loss(t(IMAGE), t([[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, -2]]])), "-2"),
    "one_hot, above": (lambda t: F.one_hot(t([0, 9, 1]), 8), "9"),
    "one_hot, below": (lambda t: F.one_hot(t([0, -1, 1]), 8), "-1"),
    "embedding, above": (lambda t: F.embedding(t([0, 8]), t(SCORES.T)), "8"),
    "embedding, below": (lambda t: F.embedding(t([0, -1]), t(SCORES.T)), "-1"),
    "embedding_bag, above": (lambda t: F.embedding_bag(t([0, 8, 1]), t(SCORES.T), t([0, 2])), "8"),
    "embedding_bag, below": (lambda t: F.embedding_bag(t([0, -1, 1]), t(SCORES.T), t([0, 2])), "-1"),
    "index_select, above": (lambda t: torch.index_select(t(SCORES), 0, t([0, 4])), "4"),
    "index_select, below": (lambda t: torch.index_select(t(SCORES), 0, t([0, -1])), "-1"),
    "gather, above": (lambda t: torch.gather(t(SCORES), 1, t([[0], [1], [2], [8]])), "8"),
    "gather, below": (lambda t: torch.gather(t(SCORES), 1, t([[0], [1], [2], [-1]])), "-1"),
    "scatter, above": (lambda t: t(SCORES).scatter(1, t([[0], [1], [2], [8]]), 1.0), "8"),
    "scatter, below": (lambda t: t(SCORES).scatter(1, t([[0], [1], [2], [-1]]), 1.0), "-1"),
    "scatter_add, below": (lambda t: t(SCORES).scatter_add(1, t([[0], [1], [2], [-1]]), t(torch.ones(4, 1))), "-1"),
    "index_add, above": (lambda t: t(SCORES).index_add(0, t([0, 4]), t(SCORES[:2])), "4"),
    "index_add, below": (lambda t: t(SCORES).index_add(0, t([0, -1]), t(SCORES[:2])), "-1"),
    "an index, above": (lambda t: t(SCORES)[t([0, 4])], "4"),
    "an index, far below": (lambda t: t(SCORES)[t([0, -5])], "-5"),
    "take, above": (lambda t: torch.take(t(SCORES), t([0, 32])), "32"),
    "multinomial, zeros": (lambda t: torch.multinomial(t(torch.zeros(3)), 1), "0"),
    "multinomial, a row of zeros": (lambda t: torch.multinomial(t([[1.0, 0.0], [0.0, 0.0]]), 1), "0"),
    "multinomial, below 0": (lambda t: torch.multinomial(t([0.5, -0.5, 1.0]), 1), "-0.5"),
    "multinomial, infinite": (lambda t: torch.multinomial(t([0.5, float("inf"), 1.0]), 1), "inf"),
    "multinomial, NaN": (lambda t: torch.multinomial(t([0.5, float("nan"), 1.0]), 2, replacement=True), "nan"),
    "multinomial, zeros, replaced": (lambda t: torch.multinomial(t(torch.zeros(2, 3)), 2, replacement=True), "0"),
    "bernoulli, above": (lambda t: torch.bernoulli(t([0.5, 2.0])), "2"),
    "bernoulli, below": (lambda t: torch.bernoulli(t([0.5, -0.25])), "-0.25"),
    "bernoulli_, above": (lambda t: t(torch.zeros(3)).bernoulli_(2.0), "2"),
    "bernoulli_, of a tensor": (lambda t: t(torch.zeros(2)).bernoulli_(t([0.5, 2.0])), "2"),
    "binary_cross_entropy, above": (lambda t: F.binary_cross_entropy(t([0.5, 1.5]), t([0.0, 1.0])), "1.5"),
    "binary_cross_entropy, below": (lambda t: F.binary_cross_entropy(t([0.5, -0.5]), t([0.0, 1.0]), weight=t([1.0, 2.0])), "-0.5"),
    "binary_cross_entropy, none": (lambda t: F.binary_cross_entropy(t([0.5, float("nan")]), t([0.0, 1.0]), reduction="none"), "nan"),
    "binary_cross_entropy, a target": (lambda t: F.binary_cross_entropy(t([0.5, 0.5]), t([0.0, 1.5])), "1.5"),
    "// of integers": (lambda t: t([1, 2]) // t([1, 0]), "0"),
    "// by the number 0": (lambda t: t([1, 2]) // 0, "0"),
    "% of integers": (lambda t: t([1, 2]) % t([1, 0]), "0"),
    "% by the number 0": (lambda t: t([1, 2]) % 0, "0"),
    "fmod of integers": (lambda t: torch.fmod(t([1, 2]), t([1, 0])), "0"),
    "div, floor": (lambda t: torch.div(t([1, 2]), t([1, 0]), rounding_mode="floor"), "0"),
    "div, trunc": (lambda t: torch.div(t([1, 2]), t([1, 0]), rounding_mode="trunc"), "0"),
}
GOOD = {
    "ignored": lambda t: F.cross_entropy(t(SCORES), t([0, 1, -100, 7])), "another one ignored": lambda t: F.cross_entropy(t(SCORES), t([0, 1, 9, 7]), ignore_index=9),
    "ignored pixels": lambda t: F.cross_entropy(t(IMAGE), t([[[0, 1, 2], [3, 4, 255]], [[0, 1, 2], [3, 4, 7]]]), ignore_index=255),
    "nothing": lambda t: F.cross_entropy(t(SCORES[:0]), t(torch.zeros(0, dtype=torch.int64)), reduction="sum"),
    "narrow labels": lambda t: F.nll_loss(t(SCORES), t([0, 1, 2, 3])), "padding": lambda t: F.embedding(t([0, 7]), t(SCORES.T), padding_idx=-1),
    "an index from the end": lambda t: t(SCORES)[t([0, -4])], "take from the end": lambda t: torch.take(t(SCORES), t([0, -32])),
    "one_hot": lambda t: F.one_hot(t([0, 7, 1]), 8), "one_hot auto": lambda t: F.one_hot(t([0, 7, 1])), "bernoulli": lambda t: torch.bernoulli(t([0.0, 1.0])),
    "bce": lambda t: F.binary_cross_entropy(t([0.0, 1.0, 0.5]), t([0.0, 1.0, 1.0])), "multinomial": lambda t: torch.multinomial(t([0.0, 2.0]), 1),
    "// of floats": lambda t: t([1.0, -2.0]) // t([0.0, 3.0]), "// by a number": lambda t: t([7, -7]) // 2,
}


def on(device):
    def make(values):
        return torch.as_tensor(values).to(device)
    return make


@pytest.mark.parametrize("name", BAD)
def test_a_number_that_is_no_operand_is_an_error_as_on_the_cpu(mesh, name):
    function, number = BAD[name]
    with pytest.raises(Exception) as expected:
        function(on("cpu"))
    with pytest.raises(expected.type) as error:
        function(on("tessera")).cpu()
    assert isinstance(error.value, ts.TesseraError) or number in str(error.value)
    assert f" {number}" in f" {error.value}".replace(number + ".0", number), str(error.value)


@pytest.mark.parametrize("name", GOOD)
def test_numbers_at_the_ends_are_taken(mesh, name):
    torch.testing.assert_close(GOOD[name](on("tessera")).cpu(), GOOD[name](on("cpu")))


@pytest.mark.parametrize("placement", [tt.Shard(0), tt.Shard(1), tt.Replicate()] if hasattr(tt, "Shard") else [ts.Shard(0), ts.Shard(1), ts.Replicate()], ids=str)
def test_labels_of_shards_are_checked_and_nothing_is_waited_for(session, mesh, placement):
    """The loss and its gradients fail, and the session goes on."""
    scores = tt.distribute_tensor(SCORES.clone(), mesh, [placement]).requires_grad_()
    labels = tt.distribute_tensor(torch.tensor([0, 1, 2, 8]), mesh, [ts.Shard(0) if placement == ts.Shard(0) else ts.Replicate()])
    loss = F.cross_entropy(scores, labels)
    with pytest.raises(IndexError, match="label 8 is not from 0 to 7"):
        loss.item()
    with pytest.raises(IndexError, match="label 8 is not from 0 to 7"):
        (loss * 2).item()
    loss.backward()
    labels = tt.distribute_tensor(torch.tensor([0, 1, 2, 7]), mesh, [ts.Replicate()])
    expected = SCORES.clone().requires_grad_()
    F.cross_entropy(expected, labels.cpu()).backward()
    scores.grad = None
    F.cross_entropy(scores, labels).backward()
    torch.testing.assert_close(scores.grad.full_tensor(), expected.grad)
