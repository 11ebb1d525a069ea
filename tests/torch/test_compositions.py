"""Ways to cut a model, on one mesh together: five steps with torch's losses and norms, on eight workers of one thread."""

import functools

import pytest
import torch
import torch.nn.functional as F
from models import Block, Gpt, R, S, assert_same_training, batches, close, on, plan_of, same_start, tensor_parallel, train
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch import parallel
from tessera.torch.parallel import ExpertParallel, MixtureOfExperts

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2, fused=True)


@pytest.fixture(scope="module")
def eight():
    with ts.local_cluster(workers=8, memory="48MiB") as cluster, cluster.connect() as session:
        yield session


def of_eight(eight, shape, *names):
    return eight.init_device_mesh(shape, mesh_dim_names=names)


def sharded(model, mesh):
    for layer in model.layers:
        tt.fully_shard(layer, mesh=mesh)
    return tt.fully_shard(model, mesh=mesh)


WAYS = {
    "data x tensor": ((4, 2), lambda model, mesh: tensor_parallel(model, mesh["tp"])),
    "data x sequence": ((2, 4), lambda model, mesh: tensor_parallel(model, mesh["tp"], is_sequence=True)),
    "fsdp x tensor": ((4, 2), lambda model, mesh: sharded(tensor_parallel(model, mesh["tp"]), mesh["dp"])),
    "fsdp x sequence": ((2, 4), lambda model, mesh: sharded(tensor_parallel(model, mesh["tp"], is_sequence=True), mesh["dp"])),
    "ddp x sequence": ((2, 4), lambda model, mesh: tt.DistributedDataParallel(tensor_parallel(model, mesh["tp"], is_sequence=True), mesh["dp"])),
}


@pytest.mark.parametrize("name", WAYS)
def test_two_ways_on_one_mesh(eight, name):
    shape, wrap = WAYS[name]
    mesh = of_eight(eight, shape, "dp", "tp")
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    with tt.default_placement(mesh):
        assert_same_training(train(wrap(model, mesh), on(mesh, batches(), [S(0), R]), ADAMW), expected)


def test_data_replicated_and_sharded_and_tensor(eight):
    """Three dims: replicas of shards of a model that is cut by features."""
    mesh = of_eight(eight, (2, 2, 2), "replicate", "shard", "tp")
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    sharded(tensor_parallel(model, mesh["tp"]), mesh["shard"])
    assert model.layers[0].mlp.w1.weight.placements == (R, S(0), S(0))
    with tt.default_placement(mesh):
        assert_same_training(train(model, on(mesh, batches(), [S(0), S(0), R]), ADAMW), expected)


class Embedded(nn.Module):
    """The first stage of a GPT: embeddings and a block; and its last: a block and scores."""

    def __init__(self, is_first, width=16, vocabulary=16, length=8):
        super().__init__()
        self.is_first = is_first
        self.layers = nn.ModuleList([Block(width, 4, nn.LayerNorm, False, 1, 0.0)])
        if is_first:
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        else:
            self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        if self.is_first:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x)
        return x if self.is_first else self.output(self.norm(x))


def plan(stage, is_sequence):
    styles = plan_of(vars(parallel), R, S, is_sequence, stage)
    return {path: style for path, style in styles.items() if path.split(".")[0] in dict(stage.named_children())}


def loss_of(scores, labels):
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("schedule", [tt.ScheduleGPipe, tt.Schedule1F1B])
@pytest.mark.parametrize("data", ["replicated", "fully sharded"])
@pytest.mark.parametrize("is_sequence", [False, True], ids=["tensor", "sequence"])
def test_pipeline_times_data_times_tensor(eight, schedule, data, is_sequence):
    mesh = of_eight(eight, (2, 2, 2), "pp", "dp", "tp")
    model, other = same_start(lambda: nn.Sequential(Embedded(True), Embedded(False)))
    expected = train(other, batches(), ADAMW)
    stages = []
    for k, part in enumerate(model):
        own = mesh[k]
        with tt.default_placement(own):
            parallel.parallelize_module(part, own["tp"], plan(part, is_sequence))
            if data == "fully sharded":
                sharded(part, own["dp"])
        stages.append(tt.PipelineStage(part, k, 2, group=mesh["pp"], **({} if data == "fully sharded" else {"input_placements": [S(0), R]})))
    optimizer, run, got = ADAMW(model.parameters()), schedule(stages, 4, loss_of), []
    for step in range(5):
        numbers, labels = batches()[step % 3]
        losses = []
        run.step(numbers, target=labels, losses=losses)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        got.append((losses, norm.detach()))
    assert_same_training([(sum(one.item() for one in losses) / 4, norm.item()) for losses, norm in got], expected)
    assert stages[1].submod.output.weight.device_mesh.workers == (4, 5, 6, 7)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.moe, self.head = MixtureOfExperts(8, 16, 4, groups=8, capacity_factor=1.0), nn.Linear(8, 4)

    def forward(self, x):
        x = torch.tanh(self.inner(x))
        return self.head(x + self.moe(self.norm(x)))


@pytest.mark.parametrize("data", ["replicated", "fully sharded"])
def test_data_times_experts(eight, data):
    mesh = of_eight(eight, (2, 4), "dp", "ep")
    model, other = same_start(Experts)
    parallel.parallelize_module(model, mesh["ep"], {"moe": ExpertParallel()})
    if data == "fully sharded":
        tt.fully_shard(model, mesh=mesh["dp"])
    x, y = torch.randn(16, 4, 8), torch.randn(16, 4, 4)
    out = []
    for one, a, b in ((other, x, y), (model, *(tt.distribute_tensor(t, mesh, [S(0), S(0)]) for t in (x, y)))):
        optimizer, losses = ADAMW(one.parameters()), []
        for _ in range(5):
            loss = F.mse_loss(one(a), b) + 0.01 * one.moe.balance
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        out.append([loss.item() for loss in losses])
    assert close(out[1], out[0]), out
