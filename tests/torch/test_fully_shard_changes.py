"""After fully_shard: parameters that are put in anew are used, sharded and trained; a model that is deleted is freed at once."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt

S = ts.Shard


def model_of(layers=3, width=8):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)), nn.Linear(width, 4))


def sharded(model, mesh, **options):
    for layer in list(model)[:-1]:
        tt.fully_shard(layer, mesh=mesh, **options)
    return tt.fully_shard(model, mesh=mesh, **options)


def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def step(model, optimizer, where="cpu") -> float:
    x, y = (one.to(where) for one in batch())
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train_alike(reference, model, steps=3):
    """Both with new optimizers; the parameters of the model are in shards, but for those without dims to cut."""
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in (reference, model)]
    for _ in range(steps):
        torch.testing.assert_close(step(reference, optimizers[0]), step(model, optimizers[1], "tessera"), rtol=2e-6, atol=0)
    for name, one in model.named_parameters():
        assert one.placements == (S(0),), name
        torch.testing.assert_close(one.full_tensor(), dict(reference.named_parameters())[name].detach(), rtol=1e-5, atol=1e-6)


def used(model, mesh, reshard):
    reference = model_of()
    model = sharded(copy.deepcopy(reference), mesh, reshard_after_forward=reshard)
    step(model, torch.optim.SGD(model.parameters(), lr=0.0), "tessera")       # units are gathered, and know their order
    return reference, model


def assigned(reference, model, mesh):
    state = {name: torch.randn_like(one) for name, one in reference.state_dict().items()}
    reference.load_state_dict(state)
    model.load_state_dict(state, assign=True)


def assigned_in_shards(reference, model, mesh):
    state = {name: torch.randn_like(one) for name, one in reference.state_dict().items()}
    reference.load_state_dict(state)
    model.load_state_dict({name: tt.distribute_tensor(one, mesh, [S(0)]) for name, one in state.items()}, assign=True)


def a_new_weight(reference, model, mesh):
    for i, where in ((0, "cpu"), (1, "tessera")):
        weight = torch.randn(8, 8)
        reference[i][0].weight = nn.Parameter(weight)
        model[i][0].weight = nn.Parameter(weight.clone().to(where))


def no_bias(reference, model, mesh):
    for one in (reference, model):
        one[1][0].bias = None
        one[3].bias = None


def a_new_layer(reference, model, mesh):
    layer = nn.Linear(8, 8)
    reference[1][0], model[1][0] = layer, copy.deepcopy(layer)


def a_layer_less(reference, model, mesh):
    for one in (reference, model):
        del one[1][1]
        del one[2]


def a_new_parameter(reference, model, mesh):
    weight = torch.randn(4)
    for one in (reference, model):
        one[3].register_parameter("scale", nn.Parameter(weight.clone()))
        one[3].forward = lambda x, own=one[3]: F.linear(x, own.weight, own.bias) * own.scale


def on_the_cpu_for_a_while(reference, model, mesh):
    model.cpu()
    with torch.no_grad():
        for one in (reference, model):
            one[0][0].weight.mul_(0.5)


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("change", [assigned, assigned_in_shards, a_new_weight, no_bias, a_new_layer, a_layer_less, a_new_parameter,
                                    on_the_cpu_for_a_while])
def test_what_is_put_in_anew_is_used_sharded_and_trained(mesh, change, reshard):
    reference, model = used(None, mesh, reshard)
    change(reference, model, mesh)
    train_alike(reference, model)


def test_an_optimizer_made_after_the_change_and_before_the_forward_trains_what_was_put_in(mesh):
    reference, model = used(None, mesh, True)
    assigned(reference, model, mesh)
    weights = list(model.parameters())
    train_alike(reference, model)
    assert all(a is b for a, b in zip(weights, model.parameters(), strict=True))


def test_a_backward_goes_to_the_parameters_of_its_forward(mesh):
    _, model = used(None, mesh, True)
    former = model[0][0].weight
    x, y = (one.to("tessera") for one in batch())
    loss = F.cross_entropy(model(x), y)
    model[0][0].weight = nn.Parameter(torch.zeros(8, 8))
    loss.backward()
    assert former.grad.abs().sum().item() > 0 and model[0][0].weight.grad is None
    torch.testing.assert_close(model[0](x).cpu(), F.gelu(model[0][0].bias.full_tensor()).expand(8, 8))


def test_a_sharded_meta_model_resumes_from_its_checkpoint(mesh, tmp_path):
    """The pattern of pytorch/examples' FSDP2: made on meta, sharded, loaded by assign=True."""
    reference = model_of()
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.05)
    for _ in range(3):
        step(reference, optimizer)
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    with torch.device("meta"):
        model = model_of()
    sharded(model, mesh)
    own = model.state_dict()
    full = torch.load(tmp_path / "model.pt", mmap=True, weights_only=True, map_location="cpu")
    model.load_state_dict({name: nn.Parameter(tt.distribute_tensor(one, own[name].device_mesh, own[name].placements))
                           for name, one in full.items()}, strict=False, assign=True)
    train_alike(reference, model)


def used_bytes(session) -> int:
    session.sync()
    return sum(one["bytes_per_worker"] for one in session.status()["tensors"])


@pytest.mark.parametrize("trained", [False, True])
def test_a_deleted_model_is_freed_without_the_collector(session, mesh, trained):
    before = used_bytes(session)
    gc.collect()
    gc.disable()
    try:
        model = sharded(model_of(width=64), mesh)
        tt.register_fsdp_forward_method(model[0], "extra_repr")
        model[0].set_modules_to_forward_prefetch([model[1]])
        model[1].set_modules_to_backward_prefetch([model[0]])
        if trained:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            x, y = torch.randn(8, 64, device="tessera"), torch.zeros(8, dtype=torch.int64, device="tessera")
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            del optimizer, x, y
        watcher = weakref.ref(model)
        assert used_bytes(session) > before
        del model
        assert watcher() is None
        assert used_bytes(session) == before
    finally:
        gc.enable()


def test_a_method_that_gathers_runs_as_the_modules_own(mesh):
    class Two(nn.Linear):
        def twice(self, x, *, scale=1):
            return self(self(x)) * scale

    layer = Two(8, 8)
    reference = copy.deepcopy(layer)
    tt.fully_shard(layer, mesh=mesh)
    tt.register_fsdp_forward_method(layer, "twice")
    x, _ = batch()
    torch.testing.assert_close(layer.twice(x.to("tessera"), scale=3).cpu(), reference.twice(x, scale=3).detach())
