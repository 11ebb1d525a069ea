"""Training steps beside torch's own: the same losses and norms, on every mesh and with every way to cut the work."""

import functools

import pytest
import torch
import torch.nn.functional as F
from models import Gpt, R, S, assert_same_training, batches, on, same_start, tensor_parallel, train
from torch import nn

import tessera.torch as tt

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
    "sgd momentum nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "adam": functools.partial(torch.optim.Adam, lr=1e-2),
    "adam for": functools.partial(torch.optim.Adam, lr=1e-2, foreach=False, amsgrad=True),
    "adam fused": functools.partial(torch.optim.Adam, lr=1e-2, fused=True, weight_decay=0.01),
    "adamw": ADAMW,
    "adamw fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "adamw fused amsgrad": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True, amsgrad=True),
}
MODELS = {
    "layer norm": Gpt,
    "rms norm, gated, grouped heads": functools.partial(Gpt, norm=nn.RMSNorm, gated=True, shared=2),
}


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@functools.lru_cache(maxsize=None)
def reference(model: str, optimizer: str, amp: bool = False):
    ours, _ = same_start(MODELS[model])
    return train(ours, batches(), OPTIMIZERS[optimizer], amp=amp)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_step_as_torchs(mesh22, optimizer):
    model, _ = same_start(lambda: Gpt(layers=1))
    expected = train(_, batches(), OPTIMIZERS[optimizer])
    tt.distribute_module(model, mesh22)
    got = train(model, on(mesh22, batches(), [S(0), R]), OPTIMIZERS[optimizer])
    assert_same_training(got, expected)


WAYS = ["replicated", "data", "tensor", "sequence"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 1), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_transformer_trains_as_torchs(session, name, shape, way):
    mesh = session.init_device_mesh(shape, mesh_dim_names=("dp", "tp")[-len(shape):])
    model, _ = same_start(MODELS[name])
    with tt.default_placement(mesh):
        placements = [R] * len(shape)
        if way in ("tensor", "sequence"):
            tensor_parallel(model, mesh["tp"], way == "sequence")
        else:
            tt.distribute_module(model, mesh)
        if way == "data" or (way != "replicated" and len(shape) == 2):
            placements[0] = S(0)
        got = train(model, on(mesh, batches(), placements), ADAMW)
    assert_same_training(got, reference(name, "adamw"))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw fused"])
def test_an_mlp_on_data_times_tensor(mesh22, optimizer):
    model, other = same_start(mlp)
    data = [(torch.randn(8, 8), torch.randn(8, 4)) for _ in range(2)]

    def run(module, pairs):
        steps = OPTIMIZERS[optimizer](module.parameters())
        losses = []
        for x, y in pairs:
            loss = F.mse_loss(module(x), y)
            loss.backward()
            steps.step()
            steps.zero_grad()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    parallelize_module(model, mesh22["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert model[0].weight.placements == (R, S(0)) and model[2].weight.placements == (R, S(1))
    got = run(model, on(mesh22, data, [S(0), R]))
    assert got == pytest.approx(run(other, data), abs=1e-6)


def test_gradients_are_torchs_and_lie_where_their_parameters_do(mesh22):
    model, other = same_start(Gpt)
    tensor_parallel(model, mesh22["tp"], is_sequence=True)
    (numbers, labels), = batches(1)
    F.cross_entropy(other(numbers).flatten(0, 1), labels.flatten()).backward()
    (n, y), = on(mesh22, [(numbers, labels)], [S(0), R])
    F.cross_entropy(model(n).flatten(0, 1), y.flatten()).backward()
    for (name, one), (_, expected) in zip(model.named_parameters(), other.named_parameters()):
        assert one.grad.placements == one.placements, name
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_autocast_in_bf16(mesh22):
    model, _ = same_start(Gpt)
    tensor_parallel(model, mesh22["tp"])
    got = train(model, on(mesh22, batches(), [S(0), R]), ADAMW, amp=True)
    assert_same_training(got, reference("layer norm", "adamw", amp=True), tolerance=0.02)


def test_activation_checkpoint_gives_the_same_steps(mesh):
    model, _ = same_start(functools.partial(Gpt, checkpoint=True))
    tensor_parallel(model, mesh)
    assert_same_training(train(model, on(mesh, batches(), [R]), ADAMW), reference("layer norm", "adamw"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_dropout_again(mesh, reentrant):
    from torch.utils.checkpoint import checkpoint
    x = tt.distribute_tensor(torch.arange(64.0), mesh).requires_grad_()
    y = checkpoint(lambda one: F.dropout(one, 0.5) * one, x, use_reentrant=reentrant)
    y.sum().backward()
    kept = (y.detach().cpu() != 0).float()
    assert torch.equal(x.grad.cpu()[1:], (kept * 4 * torch.arange(64.0))[1:])


def test_dropout_is_the_same_on_every_placement(mesh22):
    ones = torch.ones(8, 8)
    drawn = []
    for placements in ([R, R], [S(0), R], [S(0), S(1)]):
        torch.manual_seed(3)
        drawn.append(F.dropout(tt.distribute_tensor(ones, mesh22, placements), 0.5).cpu())
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    assert 0 < (drawn[0] == 0).sum() < 64


def test_grad_scaler_skips_a_step_with_infinities(mesh):
    model = tt.distribute_module(nn.Linear(3, 2), mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("tessera", init_scale=8.0)
    before = model.weight.detach().cpu()
    x = tt.distribute_tensor(torch.ones(4, 3), mesh, [S(0)])
    for factor in (1.0, float("inf")):
        scaler.scale(model(x).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert scaler.get_scale() == 4.0
    assert torch.allclose(model.weight.detach().cpu(), before - 0.1 * 4.0)


def test_grad_scaler_with_a_fused_optimizer_waits_for_nothing(mesh):
    model, other = same_start(mlp)
    tt.distribute_module(model, mesh)
    fused = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    plain = torch.optim.AdamW(other.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("tessera", init_scale=1024.0)
    x = torch.randn(4, 8)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(model(tt.distribute_tensor(x, mesh)).square().mean() * factor).backward()
        scaler.step(fused)
        scaler.update()
        fused.zero_grad()
        if factor == 1.0:
            other(x).square().mean().backward()
            plain.step()
            plain.zero_grad()
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_several_backward_passes_without_sync_reduce_once(mesh):
    model, other = same_start(mlp)
    tt.distribute_module(model, mesh)
    first, second = torch.randn(8, 8), torch.randn(8, 8)
    with tt.no_sync():
        model(tt.distribute_tensor(first, mesh, [S(0)])).square().mean().backward()
    assert any(one.grad.placements[0].is_partial() for one in model.parameters())
    model(tt.distribute_tensor(second, mesh, [S(0)])).square().mean().backward()
    for x in (first, second):
        other(x).square().mean().backward()
    for one, expected in zip(model.parameters(), other.parameters()):
        assert one.grad.placements == (R,)
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6)


def test_a_step_waits_for_nothing(mesh, monkeypatch):
    """Reading a loss later gives the same as reading it at once; within the steps nothing is downloaded."""
    model = tt.distribute_module(mlp(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
    x = tt.distribute_tensor(torch.randn(8, 8), mesh, [S(0)])

    def refuse(self):
        raise AssertionError("a step reads values")

    monkeypatch.setattr(type(tt.to_handle(x)), "item", refuse)
    monkeypatch.setattr(type(tt.to_handle(x)), "full_tensor", refuse)
    for _ in range(2):
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    monkeypatch.undo()
    assert loss.item() > 0


def test_a_step_asks_for_few_ops(mesh):
    """Each backward pass is one op, but for products; an optimizer's step is one for a parameter, and one that counts it."""
    from tessera.torch._capture import _Recorder
    model, ((numbers, labels),) = tensor_parallel(Gpt(), mesh), on(mesh, batches(1), [R])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    asked = []
    for _ in range(2):
        optimizer.zero_grad()
        with _Recorder() as forward:
            loss = F.cross_entropy(model(numbers).flatten(0, 1), labels.flatten())
        with _Recorder() as backward:
            loss.backward()
        with _Recorder() as step:
            optimizer.step()
        asked = [one.recording.call_count for one in (forward, backward, step)]
    count = len(list(model.parameters()))
    assert asked[0] <= 75 and asked[1] <= 90 and asked[2] <= 2 * count + 1, asked
