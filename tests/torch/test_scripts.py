"""Scripts written for torch.distributed, beside training, with the changed imports that docs/torch.md says."""

import copy

import pytest
import torch
import torch.distributed.tensor as dtensor
from models import R, S, same_start
from torch import nn
from torch.optim.swa_utils import AveragedModel

import tessera as ts
import tessera.torch as tt
from tessera.torch import parallel


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_placements_of_dtensor_are_equal_to_these(mesh22):
    x = tt.distribute_tensor(torch.ones(4, 4), mesh22, [dtensor.Shard(1), dtensor.Replicate()])
    assert x.placements == (dtensor.Shard(1), dtensor.Replicate()) and (dtensor.Shard(1), dtensor.Replicate()) == x.placements
    assert ts.Partial("max") == dtensor.Partial("max") != ts.Partial() and ts.Shard(0) != dtensor.Shard(1) and ts.Replicate() != dtensor.Shard(0)
    assert ts.Shard(0, sizes=[1, 3]) != dtensor.Shard(0)
    with pytest.raises(ts.InvalidArgumentError, match="_StridedShard.*is no placement"):
        tt.distribute_tensor(torch.ones(4, 4), mesh22, [dtensor.placement_types._StridedShard(0, split_factor=2), dtensor.Replicate()])


def test_styles_take_placements_of_dtensor(mesh):
    model, other = same_start(mlp)
    parallel.parallelize_module(model, mesh, {
        "": parallel.PrepareModuleInputOutput(input_layouts=dtensor.Shard(0), desired_input_layouts=(dtensor.Replicate(),),
                                              output_layouts=dtensor.Replicate(), desired_output_layouts=dtensor.Shard(0)),
        "0": parallel.ColwiseParallel(input_layouts=dtensor.Replicate(), output_layouts=dtensor.Shard(-1)),
        "2": parallel.RowwiseParallel(output_layouts=dtensor.Replicate())})
    x = torch.randn(8, 8)
    out = model(x)
    assert out.placements == (S(0),)
    torch.testing.assert_close(out.detach().cpu(), other(x).detach())
    norm = parallel.parallelize_module(nn.LayerNorm(8), mesh, parallel.PrepareModuleInput(
        input_kwarg_layouts={"input": dtensor.Shard(0)}, desired_input_kwarg_layouts={"input": dtensor.Replicate()}))
    assert norm(input=x).placements == (R,)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "full", "rand", "randn", "linspace", "logspace"])
def test_factories_have_placements(mesh, name):
    assert name in dtensor.__all__
    arguments = {"full": ((8, 4), 3.5), "linspace": (0, 1, 8), "logspace": (0, 1, 8)}.get(name, ((8, 4),))
    made = []
    for placement in (dtensor.Shard(0), ts.Replicate()):
        torch.manual_seed(3)
        made.append(getattr(tt, name)(*arguments, dtype=torch.float64, requires_grad=True, device_mesh=mesh, placements=[placement]))
        assert made[-1].placements == (placement,) and made[-1].dtype == torch.float64 and made[-1].requires_grad and made[-1].is_leaf
    if name != "empty":
        assert torch.equal(made[0].cpu(), made[1].cpu())
    if not name.startswith("rand") and name != "empty":
        torch.testing.assert_close(made[0].detach().cpu(), getattr(torch, name)(*arguments, dtype=torch.float64))
    with pytest.raises(ts.InvalidArgumentError, match=rf"{name}: Shard\(3\) of a tensor of"):
        getattr(tt, name)(*arguments, device_mesh=mesh, placements=[S(3)])
    with pytest.raises(ts.InvalidArgumentError, match="layout is torch.sparse_coo"):
        getattr(tt, name)(*arguments, layout=torch.sparse_coo)


def test_sizes_of_factories_may_stand_one_by_one(mesh):
    assert tt.zeros(3, 5).shape == tt.ones(3, 5, device_mesh=mesh).shape == (3, 5) and tt.rand(4, placements=[S(0)]).placements == (S(0),)


@pytest.mark.parametrize("placement", [S(0), S(1), R, ts.Partial()])
def test_local_tensors_get_their_gradients(mesh, placement):
    parts = [torch.randn(2, 8, requires_grad=k != 1) for k in range(4)] if placement != R else [torch.ones(2, 8, requires_grad=True)] * 4
    x = tt.Tensor.from_local(parts, mesh, [placement], run_check=False)
    weights = torch.randn(x.shape)
    (x.square() * tt.distribute_tensor(weights, mesh)).sum().backward()
    here = [one.detach().clone().requires_grad_() for one in parts]
    whole = torch.cat(here, placement.dim) if placement.is_shard() else sum(here) if placement.is_partial() else here[0]
    (whole.square() * weights).sum().backward()
    for k, (one, expected) in enumerate(zip(parts, here)):
        if placement == R:
            torch.testing.assert_close(one.grad, 4 * here[0].grad)      # it stands at four positions
        elif k == 1:
            assert one.grad is None
        else:
            torch.testing.assert_close(one.grad, expected.grad)


def test_local_tensors_of_a_dim_of_the_mesh_get_their_gradients(mesh22):
    parts = [torch.randn(2, 3, requires_grad=True) for _ in range(2)]
    x = tt.from_local(lambda position: parts[position[0]], mesh22["tp"], [S(0)])
    assert x.placements == (R, S(0))
    (x * tt.distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh22)).sum().backward()
    torch.testing.assert_close(torch.cat([one.grad for one in parts]), torch.arange(12.0).reshape(4, 3))
    with pytest.raises(ts.InvalidArgumentError, match=r"from_local: one tensor, \[2, 3\]; this process has all positions"):
        tt.from_local(parts[0], mesh22, [S(0), R])


@pytest.mark.parametrize("wrap", [tt.distribute_module, tt.DistributedDataParallel])
def test_averages_of_wrapped_modules(mesh, wrap):
    model, other = same_start(mlp)
    model = wrap(model, mesh)
    ours, theirs = AveragedModel(model), AveragedModel(other)
    for one, average in ((model, ours), (other, theirs)):
        with torch.no_grad():
            for p in one.parameters():
                p.mul_(2)
        average.update_parameters(one)
    x = torch.randn(8, 8)
    torch.testing.assert_close(ours(tt.distribute_tensor(x, mesh)).detach().cpu(), theirs(x).detach())
    assert copy.deepcopy({"mesh": mesh})["mesh"] == mesh


class Initialized(nn.Module):
    """As models do that are made on the device meta."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.register_buffer("table", torch.ones(4))
        self.init_weights()

    def init_weights(self):
        nn.init.normal_(self.embedding.weight)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        with torch.device(self.table.device):
            self.table = torch.arange(4.0)

    def forward(self, numbers):
        return self.linear(self.embedding(numbers)) + self.table[3]


def by_tensors(model, mesh):
    parallel.parallelize_module(model, mesh["tp"], {"embedding": parallel.RowwiseParallel(), "linear": parallel.ColwiseParallel()})


def by_shards(model, mesh):
    tt.fully_shard(model.linear, mesh=mesh["dp"])
    tt.fully_shard(model, mesh=mesh["dp"])


@pytest.mark.parametrize("ways", [[by_tensors], [by_shards], [by_tensors, by_shards], [tt.distribute_module], [tt.DistributedDataParallel], []])
def test_a_model_that_is_made_on_meta_gets_its_values_where_it_lies(mesh22, ways):
    with torch.device("meta"):
        model, alone = Initialized(), Initialized()
    for way in ways:
        way(model, mesh22 if way is not tt.DistributedDataParallel else mesh22["dp"])
    places = {name: p.placements for name, p in model.named_parameters()} if ways else {}
    for one in (model, alone):
        one.to_empty(device="tessera")
        torch.manual_seed(0)
        one.init_weights()
    for (name, p), q in zip(model.named_parameters(), alone.parameters()):
        assert not places or p.placements == places[name]
        assert torch.equal(p.cpu(), q.cpu()) and p.ndim == 1 or p.std().item() > 0.01
    numbers = tt.distribute_tensor(torch.arange(16).reshape(8, 2), mesh22, [S(0), R])
    out = model(numbers)
    out.square().sum().backward()
    torch.testing.assert_close(out.detach().cpu(), alone(numbers).detach().cpu())
    assert all(p.grad is not None for p in model.parameters())
