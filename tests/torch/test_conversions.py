"""module.to and its like: tied parameters stay tied, and an optimizer that was made before goes on, as on torch's own devices."""

import copy
import operator
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LETTERS, WIDTH = 16, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.rise = nn.Linear(WIDTH, 4 * WIDTH)
        self.fall = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.fall(F.gelu(self.rise(self.norm(x))))


class Tied(nn.Module):
    """The shape of nanoGPT: the head's weight is the embedding's; a block and a buffer stand in two places."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        shared = Block()
        self.blocks = nn.ModuleList([shared, Block(), shared])
        self.head = nn.Linear(WIDTH, LETTERS, bias=False)
        self.head.weight = self.embed.weight
        for block in self.blocks[:2]:
            block.register_buffer("scale", None)
        self.blocks[0].scale = self.blocks[1].scale = torch.full((WIDTH,), 0.5)

    def forward(self, letters):
        x = self.embed(letters)
        for block in self.blocks:
            x = block(x) * block.scale
        return self.head(x)


def batch():
    letters = torch.randint(0, LETTERS, (4, 6), generator=torch.Generator().manual_seed(1))
    return letters, letters.roll(-1, 1)


def step(model, optimizer, where="cpu") -> float:
    letters, labels = (one.to(where) for one in batch())
    optimizer.zero_grad()
    loss = F.cross_entropy(model(letters).flatten(0, 1).float(), labels.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def to_workers(model, mesh):
    return model.to("tessera")


def distributed(model, mesh):
    return tt.distribute_module(model, mesh)


def sharded(model, mesh):
    for block in model.blocks[:2]:
        tt.fully_shard(block, mesh=mesh)
    return tt.fully_shard(model, mesh=mesh)


def parallel(model, mesh):
    return parallelize_module(model, mesh, {"blocks.*.rise": ColwiseParallel(), "blocks.*.fall": RowwiseParallel(),
                                            "embed": RowwiseParallel(), "head": ColwiseParallel(output_layouts=ts.Replicate())})


WAYS = [to_workers, distributed, sharded, parallel]


def is_tied(model) -> bool:
    return (model.head.weight is model.embed.weight and model.blocks[0] is model.blocks[2]
            and len(list(model.parameters())) == 1 + 2 * 6)


@pytest.mark.parametrize("bring", WAYS)
@pytest.mark.parametrize("options", [{"lr": 0.05}, {"lr": 0.05, "fused": True}, {"lr": 0.05, "momentum": 0.9}],
                         ids=["adamw", "fused adamw", "sgd"])
def test_an_optimizer_made_before_trains_the_same_model_as_on_the_cpu(mesh, bring, options):
    reference, model = Tied(), None
    model = copy.deepcopy(reference)
    kind = torch.optim.SGD if "momentum" in options else torch.optim.AdamW
    optimizers = [kind(one.parameters(), **options) for one in (reference, model)]
    assert step(reference, optimizers[0]) == step(model, optimizers[1])     # there is a state by then, and there are gradients
    parameters = dict(model.named_parameters())
    bring(model, mesh)
    assert is_tied(model) and all(one is parameters[name] for name, one in model.named_parameters())
    assert all(one.device.type == one.grad.device.type == "tessera" for one in model.parameters())
    for _ in range(6):
        torch.testing.assert_close(step(reference, optimizers[0]), step(model, optimizers[1], "tessera"), rtol=2e-6, atol=0)


def test_a_model_goes_to_the_workers_and_back_between_steps(mesh):
    reference = Tied()
    model = copy.deepcopy(reference)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.05) for one in (reference, model)]
    for where in ("cpu", "tessera", "tessera", "cpu", "tessera", "cpu"):
        model.to(where)
        assert is_tied(model)
        assert all(type(one) is nn.Parameter for one in model.parameters()) or where == "tessera"
        torch.testing.assert_close(step(reference, optimizers[0]), step(model, optimizers[1], where), rtol=2e-6, atol=0)


@pytest.mark.parametrize("convert", [lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.double(), lambda m: m.to(torch.float16),
                                     lambda m: m.to("tessera", torch.bfloat16), lambda m: m.cpu(), lambda m: m.to_empty(device="tessera"),
                                     lambda m: m.to_empty(device="cpu"), lambda m: m.to("meta"), lambda m: m.type(torch.float64)])
@pytest.mark.parametrize("where", ["cpu", "tessera"])
def test_conversions_keep_parameters_and_what_ties_them(mesh, convert, where):
    model = Tied().to(where)
    model.embed.weight.grad = torch.ones(LETTERS, WIDTH, device=where)
    model.embed.weight.note = "mine"
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = copy.deepcopy(Tied())
    convert(model), convert(reference)
    if where == "tessera" or is_tied(reference):        # torch itself makes new parameters on the device meta
        assert is_tied(model) and all(one is parameters[name] for name, one in model.named_parameters())
        assert all(map(operator.is_, optimizer.param_groups[0]["params"], model.parameters()))
        assert model.embed.weight.note == "mine"
    assert {one.dtype for one in model.parameters()} == {one.dtype for one in reference.parameters()}
    assert model.embed.weight.grad.dtype == model.embed.weight.dtype
    assert model.embed.weight.grad.device == model.embed.weight.device


def test_a_module_that_came_back_is_pickled_as_if_it_had_never_left(mesh, tmp_path):
    model = Tied()
    model.to("tessera")
    tt.DistributedDataParallel(model, mesh)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), "tessera")
    model.cpu()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert is_tied(again) and b"tessera" not in (tmp_path / "model.pt").read_bytes()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(one.__dict__ for one in model.parameters())


def test_hooks_and_attributes_of_a_parameter_go_along(mesh):
    layer, seen = nn.Linear(4, 3), []
    layer.weight.register_hook(lambda grad: seen.append("hook"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    loss = layer(torch.ones(2, 4)).sum()        # a graph of before holds the node that adds up the CPU's gradients
    layer.to("tessera")
    layer(torch.ones(2, 4, device="tessera")).sum().backward()
    assert seen == ["hook", "after"] and layer.weight.grad.device.type == "tessera"
    del loss


def test_what_watches_a_parameter_doesnt_keep_it_from_moving(mesh):
    layer = nn.Linear(4, 3)
    watcher, view = weakref.ref(layer.weight), layer.weight[0]
    layer.to("tessera")
    assert watcher() is layer.weight and layer.weight.device.type == "tessera" and view.device.type == "cpu"


def test_a_meta_module_comes_to_the_workers_tied(mesh):
    with torch.device("meta"):
        model = Tied()
        model.head.weight = model.embed.weight
    model.to_empty(device="tessera")
    assert is_tied(model)
    model.load_state_dict(Tied().state_dict())
    assert step(model, torch.optim.SGD(model.parameters(), lr=0.1), "tessera") > 0


def test_a_buffer_with_two_names_stays_one(mesh):
    for bring in (to_workers, distributed, parallel, lambda model, mesh: tt.fully_shard(model, mesh=mesh)):
        model = Tied()
        bring(model, mesh)
        assert model.blocks[0].scale is model.blocks[1].scale and model.blocks[0].scale.device.type == "tessera", bring.__name__


def test_a_lazy_module_says_that_it_needs_a_batch_first(mesh):
    lazy = nn.LazyLinear(3)
    with pytest.raises(RuntimeError, match="UninitializedParameter has no shape yet; call the module on one batch"):
        lazy.to("tessera")
    lazy(torch.ones(2, 5))
    assert lazy.to("tessera")(torch.ones(2, 5, device="tessera")).shape == (2, 3)


def test_recurrent_and_frozen_modules_move_as_they_are(mesh):
    cell = nn.LSTM(4, 4)
    reference, x = copy.deepcopy(cell), torch.randn(3, 2, 4)
    torch.testing.assert_close(cell.to("tessera")(x.to("tessera"))[0].cpu(), reference(x)[0])
    frozen = nn.Linear(4, 4).requires_grad_(False).to("tessera")
    assert not frozen.weight.requires_grad and isinstance(frozen.weight, nn.Parameter)


def test_cpu_models_of_the_process_are_converted_as_torch_does_it(mesh):
    nn.Linear(4, 4).to("tessera")
    model = Tied()
    parameters, data = list(model.parameters()), model.embed.weight.data_ptr()
    buffer = model.blocks[0].scale
    model.half()
    assert [id(one) for one in model.parameters()] == [id(one) for one in parameters]
    assert model.embed.weight.data_ptr() != data and model.blocks[0].scale is not buffer
    model.float().share_memory()
    assert model.embed.weight.is_shared()


def test_a_checkpointed_model_follows_too(mesh):
    reference = Tied()
    model = copy.deepcopy(reference)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.05) for one in (reference, model)]
    model.to("tessera")
    forward = model.blocks[1].forward
    model.blocks[1].forward = lambda x: checkpoint(forward, x, use_reentrant=False)
    for _ in range(3):
        torch.testing.assert_close(step(reference, optimizers[0]), step(model, optimizers[1], "tessera"), rtol=2e-6, atol=0)
