"""Nested tensors in the jagged layout: values, offsets and gradients are the CPU's, on one worker and on four."""

import copy

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

LENGTHS = (3, 1, 4, 2)
R, S = ts.Replicate(), ts.Shard


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sequences(*rest, seed=1, lengths=LENGTHS):
    return [drawn(n, *rest, seed=seed + i) for i, n in enumerate(lengths)]


def nested(parts, device, **options):
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device, **options)


def heads(x, count=2):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attended(q, k, v, **options):
    return F.scaled_dot_product_attention(heads(q), heads(k), heads(v), **options).transpose(1, 2).flatten(-2)


class Parts:
    """The operands beside a nested tensor (4, ragged, 8), on a device."""

    def __init__(self, device):
        torch.manual_seed(0)
        self.linear, self.norm, self.table = (one.to(device) for one in (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Embedding(10, 8)))
        self.row, self.matrix, self.matrices, self.padded = (drawn(*shape, seed=9).to(device).requires_grad_() for shape in (
            (8,), (8, 5), (4, 8, 5), (4, 6, 8)))
        self.tokens = nested([torch.arange(n) * 3 % 10 for n in LENGTHS], device)
        self.mask = (drawn(4, 6) > 0).to(device)
        self.starts, self.lengths = (torch.tensor(one, device=device) for one in ([0, 1, 2, 0], [3, 2, 1, 4]))

    def gradients(self):
        held = (self.row, self.matrix, self.matrices, self.padded, *(p for one in (self.linear, self.norm, self.table) for p in one.parameters()))
        return [None if one.grad is None else one.grad.cpu() for one in held]


WITH_GRADIENTS = {
    "values": lambda x, p: x.values(),
    "to_padded_tensor": lambda x, p: x.to_padded_tensor(0.5),
    "to_padded_tensor longer": lambda x, p: x.to_padded_tensor(-1.0, output_size=(4, 6, 8)),
    "sum of padded": lambda x, p: x.to_padded_tensor(0.0).sum(1),
    "unbind": lambda x, p: torch.cat([one * i for i, one in enumerate(x.unbind())]),
    "arithmetic": lambda x, p: (x * 2 + x) / (x.abs() + 1) - x ** 2,
    "a dense row": lambda x, p: x + p.row,
    "a dense row first": lambda x, p: p.row * x,
    "activations": lambda x, p: F.silu(F.gelu(x)).tanh() + F.softplus(x) + F.elu(x),
    "clamp": lambda x, p: x.clamp(-0.5, 0.5).masked_fill(x > 0, 0.0),
    "where": lambda x, p: torch.where(x > 0, x, x * 2),
    "linear": lambda x, p: p.linear(x),
    "layer_norm": lambda x, p: p.norm(x),
    "rms_norm": lambda x, p: F.rms_norm(x, (8,)),
    "layer_norm of the ragged dim": lambda x, p: F.layer_norm(x.detach(), (x.shape[1], 8)),
    "softmax": lambda x, p: x.softmax(-1),
    "softmax of the ragged dim": lambda x, p: x.detach().softmax(1),
    "sum": lambda x, p: x.sum(),
    "mean": lambda x, p: x.mean(),
    "amax": lambda x, p: x.detach().amax(1),
    "any": lambda x, p: (x > 0).any(1),
    "a product with a matrix": lambda x, p: x @ p.matrix,
    "a product with matrices": lambda x, p: x @ p.matrices,
    "a product of two": lambda x, p: x.transpose(1, 2) @ x,
    "attention": lambda x, p: attended(x, p.linear(x), x * 0.5),
    "embedding": lambda x, p: p.table(p.tokens),
    "cross_entropy": lambda x, p: F.cross_entropy(p.linear(x).values(), torch.arange(10, device=x.device) % 8),
    "chunks": lambda x, p: torch.cat(x.chunk(2, -1)[::-1], -1),
    "a sequence": lambda x, p: x[2],
    "unflatten and flatten": lambda x, p: x.unflatten(-1, (2, 4)).flatten(-2),
    "transpose": lambda x, p: x.transpose(1, 2).contiguous(),
    "stack": lambda x, p: torch.stack([x, -x], -1),
    "likes": lambda x, p: torch.ones_like(x) * x + torch.zeros_like(x),
    "double": lambda x, p: x.double() * 2,
    "dropout": lambda x, p: F.dropout(x, 0.0),
    "masked_select": lambda x, p: torch.nested.masked_select(p.padded[:, :, 0].detach(), p.mask),
    "narrow": lambda x, p: torch.nested.narrow(p.padded.detach(), 1, p.starts, p.lengths, layout=torch.jagged).contiguous(),
}
# torch itself has no gradients of these, on any device.
OF_VALUES = {
    "sum of the ragged dim": lambda x, p: x.sum(1),
    "mean of the ragged dim": lambda x, p: x.mean(1),
    "sum of features": lambda x, p: x.sum(-1),
    "log_softmax": lambda x, p: F.log_softmax(x, -1),
    "max of the ragged dim": lambda x, p: x.max(1)[0],
    "min of the ragged dim": lambda x, p: x.min(1)[1],
    "argmax of the ragged dim": lambda x, p: x.argmax(1),
    "product of the ragged dim": lambda x, p: x.prod(1),
    "to_padded_tensor of heads": lambda x, p: heads(x).to_padded_tensor(0.0),
    "split": lambda x, p: x.split([3, 5], -1)[1],
    "select": lambda x, p: x.select(-1, 2),
    "leaky_relu": lambda x, p: F.leaky_relu(x),
    "narrow of features": lambda x, p: x.narrow(-1, 1, 3),
}


# Ops that the nested tensors of the oldest torch don't have, on the CPU neither.
NOT_OF_EVERY_TORCH = {"leaky_relu"} if torch.__version__ < "2.15" else set()


def dense(x):
    return x.values() if x.is_nested else x


def assert_same(case, device):
    """The case on both devices; the gradients, if there are, of all that stands in it."""
    said = []
    for where in (device, "cpu"):
        x, parts = nested(sequences(8), where, requires_grad=True), Parts(where)
        out = case(x, parts)
        value = dense(out)
        if value.requires_grad:
            (value * torch.linspace(-1, 1, value.numel()).reshape(value.shape).to(where, value.dtype)).sum().backward()
        grad = None if x.grad is None else dense(x.grad).cpu()
        said.append((out, value.detach().cpu(), [grad, *parts.gradients()]))
    (here, values, gradients), (there, expected, theirs) = said
    assert here.is_nested == there.is_nested and here.device.type == device and here.dtype == there.dtype
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    if here.is_nested:
        assert torch.equal(here.offsets().cpu(), there.offsets())
    for mine, its in zip(gradients, theirs):
        assert (mine is None) == (its is None)
        if mine is not None:
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)
    return gradients


@pytest.fixture(params=[1, 4], ids=lambda n: f"{n} workers")
def workers(session, request):
    mesh = session.init_device_mesh((request.param,))
    with tt.default_placement(mesh):
        yield mesh


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_values_and_gradients_are_the_cpus(workers, name):
    gradients = assert_same(WITH_GRADIENTS[name], "tessera")
    without = {"layer_norm of the ragged dim", "softmax of the ragged dim", "amax", "any", "masked_select", "narrow"}
    assert any(one is not None for one in gradients) == (name not in without)


@pytest.mark.parametrize("name", OF_VALUES)
def test_values_are_the_cpus(workers, name):
    with torch.no_grad():
        if name in NOT_OF_EVERY_TORCH:
            try:
                OF_VALUES[name](nested(sequences(8), "cpu"), Parts("cpu"))
            except NotImplementedError as error:
                pytest.skip(f"torch {torch.__version__} lacks it for nested tensors, on the CPU too: {error}")
        assert_same(OF_VALUES[name], "tessera")


def test_ways_to_make_one(workers):
    parts, values = sequences(8), drawn(10, 8)
    offsets = torch.tensor([0, 3, 4, 8, 10])
    leaves = [[one.clone().to(device).requires_grad_() for one in parts] for device in ("tessera", "cpu")]
    here, there = (torch.nested.as_nested_tensor(one, layout=torch.jagged) for one in leaves)
    for x in (here, there):
        (x * 2).values().square().sum().backward()
    for mine, its in zip(*leaves):
        torch.testing.assert_close(mine.grad.cpu(), its.grad)
    x = torch.nested.nested_tensor_from_jagged(values.to("tessera"), offsets.to("tessera"))
    assert x.is_nested and x.layout == torch.jagged and x.shape[0] == 4 and torch.equal(x.values().cpu(), values)
    assert torch.equal(x.offsets().cpu(), offsets) and x.lengths() is None
    assert [tuple(one.shape) for one in x.unbind()] == [(n, 8) for n in LENGTHS]
    brought = nested(parts, "cpu").to("tessera")
    assert brought.device.type == "tessera" and torch.equal(brought.cpu().values(), torch.cat(parts)) and "offsets=" in repr(brought)
    whole = torch.nested.as_nested_tensor(drawn(4, 3, 8).to("tessera"), layout=torch.jagged)
    assert torch.equal(whole.to_padded_tensor(0.0, output_size=(4, 3, 8)).cpu(), drawn(4, 3, 8))
    holes = torch.nested.nested_tensor_from_jagged(values.to("tessera"), offsets.to("tessera"), torch.tensor([2, 1, 3, 0], device="tessera"))
    assert [one.shape[0] for one in holes.unbind()] == [2, 1, 3, 0]


@pytest.mark.parametrize("place", [S(0), S(1)], ids=str)
def test_values_in_shards(mesh, place):
    values, offsets = drawn(12, 8), torch.tensor([0, 5, 6, 6, 12])
    layer = torch.nn.Linear(8, 8)
    said = []
    for device in ("tessera", "cpu"):
        model = copy.deepcopy(layer).to(device)
        own = tt.distribute_tensor(values, mesh, [place]) if device == "tessera" else values.clone()
        x = torch.nested.nested_tensor_from_jagged(own.requires_grad_(), offsets.to(device))
        out = model(x)
        if device == "tessera" and place == S(0):
            assert out.values().placements == (S(0),)       # a layer works on values, wherever sequences end
        out = out.to_padded_tensor(0.0, output_size=(4, 7, 8))
        out.square().sum().backward()
        said.append([out.detach().cpu(), own.grad.cpu(), model.weight.grad.cpu()])
    for mine, its in zip(*said):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)


def attention_by_sequences(parts, options):
    """Attention of each sequence by itself, on the CPU."""
    out = [F.scaled_dot_product_attention(*(one.unflatten(-1, (2, -1)).transpose(0, 1).unsqueeze(0) for one in three), **options)
           for three in zip(*parts)]
    return torch.cat([one[0].transpose(0, 1).flatten(-2) for one in out])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, (5, 2, 1, 3)])
def test_attention_between_sequences_of_different_lengths(workers, lengths, is_causal):
    """Queries of one length, keys of another; torch's CPU takes no mask of causes here, so each sequence is computed by itself."""
    queries, keys = sequences(8), sequences(16, seed=20, lengths=lengths)
    said = []
    for device in ("tessera", "cpu"):
        leaves = [[one.clone().to(device).requires_grad_() for one in parts] for parts in (queries, keys)]
        if device == "cpu":
            out = attention_by_sequences((leaves[0], [one[:, :8] for one in leaves[1]], [one[:, 8:] for one in leaves[1]]), {"is_causal": is_causal})
        else:
            q, both = (torch.nested.as_nested_tensor(one, layout=torch.jagged) for one in leaves)
            out = attended(q, *both.chunk(2, -1), is_causal=is_causal).values()
        out.square().sum().backward()
        said.append([out.detach().cpu(), *(one.grad.cpu() for parts in leaves for one in parts)])
    for mine, its in zip(*said):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-5)


class Encoder(torch.nn.Module):
    """A layer of a transformer, over tokens of sequences of any lengths."""

    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8)
        self.query, self.key, self.value = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 10)

    def forward(self, tokens):
        x = self.table(tokens)
        y = self.norm(x)
        x = x + self.out(attended(self.query(y), self.key(y), self.value(y)))
        return self.down(F.gelu(self.up(x)))


def test_a_transformer_trains_as_on_the_cpu(workers):
    torch.manual_seed(0)
    here, there = Encoder(), Encoder()
    there.load_state_dict(here.state_dict())
    tt.distribute_module(there, workers)
    losses = []
    for model, device in ((here, "cpu"), (there, "tessera")):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=device == "tessera")
        for step in range(4):
            tokens = nested([(torch.arange(n) * (step + 2)) % 10 for n in (3, 1, 4 + step, 2)], device)
            loss = F.cross_entropy(model(tokens).values(), (tokens.values() + 1) % 10)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[4:] == pytest.approx(losses[:4], rel=1e-5)


def test_a_sequence_without_values(workers):
    parts = [drawn(2, 8), drawn(0, 8), drawn(1, 8)]
    x = nested(parts, "tessera")
    assert torch.equal(x.to_padded_tensor(7.0).cpu(), nested(parts, "cpu").to_padded_tensor(7.0))
    out = attended(x, x, x).values().cpu()
    assert out.isfinite().all() and tuple(out.shape) == (3, 8)
    nothing = nested([drawn(0, 8), drawn(0, 8)], "tessera")
    assert tuple(nothing.to_padded_tensor(1.0).shape) == (2, 0, 8)


def test_least_and_largest_integers_of_sequences(mesh):
    """The CPU's least one is that of the padding, which it makes of infinity."""
    parts = [torch.tensor([5, -3, 9]), torch.tensor([7]), torch.tensor([2, 2])]
    for dtype in (torch.int64, torch.int32, torch.uint8):
        x = nested([one.abs().to(dtype) for one in parts], "tessera")
        assert x.amin(1).tolist() == [3, 7, 2] and x.amax(1).tolist() == [9, 7, 2]


def test_rows_of_a_padded_tensor_and_back(mesh):
    dense, ends = drawn(3, 4, 5), torch.tensor([0, 2, 2, 6])
    for total in (6, None):
        values = torch.ops.aten._padded_dense_to_jagged_forward(dense.to("tessera"), [ends.to("tessera")], total)
        assert torch.equal(values.cpu(), torch.cat([dense[0, :2], dense[2]]))
    back = torch.ops.aten._jagged_to_padded_dense_forward(values, [ends.to("tessera")], [3], 9.0).cpu()      # the last sequence is cut
    assert torch.equal(back[2], dense[2, :3]) and torch.equal(back[0, :2], dense[0, :2]) and (back[1] == 9).all() and (back[0, 2] == 9).all()


def test_what_is_not_taken_is_refused_by_name(mesh):
    parts = [one.to("tessera") for one in sequences(8)]
    for make in (lambda: torch.nested.nested_tensor(parts), lambda: torch.nested.as_nested_tensor(parts),
                 lambda: torch.nested.as_nested_tensor(torch.ones(2, 3, device="tessera"))):
        with pytest.raises(NotImplementedError, match="aten._nested.*strided layout are not built; use layout=torch.jagged"):
            make()
    x = nested(parts, None)
    with pytest.raises(ts.InvalidArgumentError, match="scaled_dot_product_attention: query is NestedTensor.*features"):
        F.scaled_dot_product_attention(x, x, x)
    values, ends = torch.ones(3, 2, device="tessera"), torch.tensor([0, 3], device="tessera")
    with pytest.raises(NotImplementedError, match="_jagged_to_padded_dense_forward.*sequences of sequences, which 2 vectors"):
        torch.ops.aten._jagged_to_padded_dense_forward(values, [ends, ends], [3, 3])
    with pytest.raises(ts.InvalidArgumentError, match=r"_padded_dense_to_jagged_forward: takes a tensor \(sequences, length, ...\) with 1 sequences"):
        torch.ops.aten._padded_dense_to_jagged_forward(torch.ones(2, 3, 2, device="tessera"), [ends], 3)
    beyond = torch.ops.aten._jagged_to_padded_dense_forward(values, [torch.tensor([0, 5], device="tessera")], [5])
    with pytest.raises(IndexError, match="index 4 is not from 0 to 2|index 3 is not from 0 to 2"):
        beyond.cpu()
