"""PipelineStage and schedules: torch's gradients, what each stage keeps, what moves, and compositions on one mesh."""

import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from models import Block, Gpt, R, S, assert_same_training, batches, same_start, train
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch import _schedules, parallel

ALL = {"gpipe": tt.ScheduleGPipe, "1f1b": tt.Schedule1F1B, "interleaved": tt.ScheduleInterleaved1F1B}


class Part(nn.Module):
    """A layer that counts, at each forward of it, how many of its activations live."""

    def __init__(self, width=8):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.living, self.most, self.mates = [], 0, [self]

    def forward(self, x):
        h = self.linear(x)
        if isinstance(h, tt.Tensor):
            self.living = [one for one in self.living if one() is not None] + [weakref.ref(h._cell)]
            self.most = max(self.most, sum(one() is not None for part in self.mates for one in part.living))
        return x + F.gelu(h)


def parts(count):
    return nn.Sequential(*(Part() for _ in range(count)))


def staged(model, mesh, **options):
    return [tt.PipelineStage(part, k, len(model), group=mesh, **options) for k, part in enumerate(model)]


def assert_same_gradients(model, other, tolerance=1e-5):
    ours, expected = dict(model.named_parameters()), dict(other.named_parameters())
    assert list(ours) == list(expected)
    for name, one in ours.items():
        torch.testing.assert_close(one.grad.cpu(), expected[name].grad, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("name, stages, ranks, microbatches", [
    ("gpipe", 4, 4, 8), ("gpipe", 3, 3, 1), ("1f1b", 4, 4, 8), ("1f1b", 3, 3, 6), ("1f1b", 4, 4, 2), ("1f1b", 1, 1, 3),
    ("interleaved", 4, 2, 4), ("interleaved", 8, 4, 8), ("interleaved", 6, 2, 6), ("interleaved", 4, 4, 8), ("interleaved", 4, 2, 1)])
def test_gradients_are_those_of_the_whole_and_activations_are_as_promised(session, name, stages, ranks, microbatches):
    mesh = session.init_device_mesh((ranks,), mesh_dim_names=("pp",))
    model, other = same_start(functools.partial(parts, stages))
    x, y = torch.randn(24, 8), torch.randn(24, 8)
    schedule = ALL[name](staged(model, mesh["pp"]), microbatches, F.mse_loss)
    for k, part in enumerate(model):
        part.mates = list(model)[k % ranks::ranks]      # what lives on a mesh is what its stages keep
    for step in range(2):       # gradients add up, as torch's
        losses = []
        out = schedule.step(x, target=y, losses=losses)
        expected = other(x)
        loss = F.mse_loss(expected, y)
        loss.backward()
        torch.testing.assert_close(out.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
        assert sum(one.item() for one in losses) / microbatches == pytest.approx(loss.item(), rel=1e-5)
        assert len(losses) == microbatches and not losses[0].requires_grad
    assert_same_gradients(model, other)
    most = [part.most for part in model]
    if name == "gpipe":
        assert most == [microbatches] * stages
    elif name == "1f1b":
        assert most == [min(stages - k, microbatches) for k in range(stages)]
    else:
        local, each = stages // ranks, microbatches // max(1, microbatches // ranks)
        for rank in range(ranks):
            limit = min((local - 1) * each + 2 * (ranks - 1 - rank) + 1, local * microbatches)
            assert max(most[rank::ranks]) == limit
    gc.collect()
    assert all(one() is None for part in model for one in part.living)


def test_the_orders_are_those_of_the_papers():
    def text(ranks):
        return [" ".join(map(str, actions)) for actions in ranks]

    assert text(_schedules.one_forward_one_backward(2, 3)) == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]
    assert text(_schedules.gpipe(2, 2)) == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"]
    assert text(_schedules.interleaved(4, 2, 4))[1] == "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"


@pytest.mark.parametrize("stages, ranks", [(4, 4), (4, 2), (6, 3), (12, 4), (8, 2)])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_the_interleaved_order_is_torchs(stages, ranks, rounds):
    from torch.distributed.pipelining import schedules as torchs
    theirs = object.__new__(torchs.ScheduleInterleaved1F1B)
    theirs.n_local_stages, theirs.pp_group_size, theirs._n_microbatches, theirs.microbatches_per_round = stages // ranks, ranks, ranks * rounds, ranks
    ours = _schedules.interleaved(stages, ranks, ranks * rounds)
    for rank in range(ranks):
        expected = [one for one in theirs._calculate_single_rank_operations(rank) if one is not None]
        assert [tuple(one) for one in ours[rank]] == [
            ("F" if one.computation_type == torchs._ComputationType.FORWARD else "B", one.stage_index, one.microbatch_index) for one in expected]


@pytest.mark.parametrize("ranks, stages, microbatches", [(3, 5, 7), (4, 4, 9)])
def test_the_order_of_all_keeps_what_each_waits_for(ranks, stages, microbatches):
    order = _schedules.merged(_schedules.one_forward_one_backward(stages, microbatches), stages)
    at = {action: i for i, action in enumerate(order)}
    assert len(at) == 2 * stages * microbatches
    for (kind, stage, m), i in at.items():
        if kind == "F" and stage:
            assert at["F", stage - 1, m] < i
        if kind == "B":
            assert at["F", stage, m] < i and (stage == stages - 1 or at["B", stage + 1, m] < i)


def test_only_activations_and_their_gradients_move(session):
    mesh = session.init_device_mesh((4,), mesh_dim_names=("pp",))
    model = parts(4)
    schedule = tt.Schedule1F1B(staged(model, mesh), 4, F.mse_loss)
    with session.comm_debug() as comm:
        schedule.step(torch.randn(8, 8), target=torch.randn(8, 8), return_outputs=False)
    assert sum(comm.bytes_received) == 2 * 3 * 8 * 8 * 4
    assert [part.linear.weight.device_mesh.workers for part in model] == [(0,), (1,), (2,), (3,)]


def test_it_trains_a_gpt_by_pipeline_and_data_parallel(session):
    """Embedding, blocks and head as two stages of (pp, dp), whose parameters fully_shard has in shards."""
    class Front(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.tokens, self.positions, self.block = whole.tokens, whole.positions, whole.layers[0]

        def forward(self, numbers):
            return self.block(self.tokens(numbers) + self.positions(torch.arange(numbers.shape[1], device=numbers.device)))

    class Back(nn.Module):
        def __init__(self, whole):
            super().__init__()
            self.block, self.norm, self.output = whole.layers[1], whole.norm, whole.output

        def forward(self, x):
            return self.output(self.norm(self.block(x)))

    def untied():
        whole = Gpt()
        whole.output.weight = nn.Parameter(whole.output.weight.detach().clone())
        return whole

    model, other = same_start(untied)
    expected = train(other, batches(), functools.partial(torch.optim.AdamW, lr=1e-2), clip=1e9)
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    stages = []
    for k, part in enumerate((Front(model), Back(model))):
        tt.fully_shard(part.block, mesh=mesh[k])
        tt.fully_shard(part, mesh=mesh[k])
        stages.append(tt.PipelineStage(part, k, 2, group=mesh["pp"]))
    optimizers = [torch.optim.AdamW(stage.submod.parameters(), lr=1e-2) for stage in stages]
    schedule = tt.Schedule1F1B(stages, 2, lambda scores, labels: F.cross_entropy(scores.flatten(0, 1), labels.flatten()))
    got = []
    for step in range(5):
        numbers, labels = batches()[step % 3]
        losses = []
        schedule.step(numbers, target=labels, losses=losses)
        squares = sum((p.grad ** 2).sum().item() for stage in stages for p in stage.submod.parameters())
        assert all(p.grad.placements == (S(0),) for stage in stages for p in stage.submod.parameters())
        for one in optimizers:
            one.step()
            one.zero_grad()
        got.append((sum(one.item() for one in losses) / 2, squares ** 0.5))
    assert_same_training(got, expected)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=lambda one: "-".join(f"{k}-{v}" for k, v in one.items()))
def test_one_optimizer_and_one_norm_for_all_stages(session, make, options):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    model, other = same_start(functools.partial(parts, 2))
    stages = staged(model, mesh)
    ours, theirs = (make(one.parameters(), lr=0.05, **options) for one in (model, other))
    schedule = tt.Schedule1F1B(stages, 4, F.mse_loss)
    for _ in range(3):
        x, y = torch.randn(8, 8), torch.randn(8, 8)
        ours.zero_grad()
        theirs.zero_grad()
        schedule.step(x, target=y)
        F.mse_loss(other(x), y).backward()
        norms = [nn.utils.clip_grad_norm_(one.parameters(), 0.3) for one in (model, other)]
        assert norms[0].item() == pytest.approx(norms[1].item(), rel=1e-5)
        ours.step()
        theirs.step()
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_scaled_losses_of_all_stages_are_unscaled(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    model, other = same_start(functools.partial(parts, 2))
    stages = staged(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    scaler = torch.amp.GradScaler("tessera", init_scale=1024.0)
    schedule = tt.Schedule1F1B(stages, 4, lambda out, y: scaler.scale(F.mse_loss(out, y)))
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    schedule.step(x, target=y)
    scaler.unscale_(optimizer)
    F.mse_loss(other(x), y).backward()
    assert_same_gradients(model, other)
    before = [one.cpu() for one in model.parameters()]
    scaler.update(1024.0)
    model.zero_grad()
    schedule.step(x, target=y)
    model[1].linear.bias.grad.fill_(float("inf"))       # on the second stage; the first one isn't stepped either
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(one.cpu(), kept) for one, kept in zip(model.parameters(), before)) and scaler.get_scale() == 512.0
    model.zero_grad()
    schedule.step(x, target=y)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(model[0].linear.weight.cpu(), before[0])


@pytest.mark.parametrize("name", list(ALL))
def test_with_tensor_parallel_in_each_stage(session, name):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "tp"))
    model, other = same_start(lambda: nn.Sequential(*(Block(16, 4, nn.LayerNorm, True, 1, 0.0) for _ in range(4 if name == "interleaved" else 2))))
    x, y = torch.randn(8, 4, 16), torch.randn(8, 4, 16)
    for k, block in enumerate(model):
        plan = {f"{a}.{b}": parallel.ColwiseParallel() for a, b in (("attention", "w[qkv]"), ("mlp", "w[13]"))}
        parallel.parallelize_module(block, mesh[k % 2], plan | {"attention.wo": parallel.RowwiseParallel(), "mlp.w2": parallel.RowwiseParallel()})
    ALL[name](staged(model, mesh["pp"]), 4, F.mse_loss).step(x, target=y)
    F.mse_loss(other(x), y).backward()
    assert model[0].attention.wq.weight.grad.placements == (S(0),)
    assert_same_gradients(model, other)


def test_with_distributed_data_parallel_gradients_are_reduced_once(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    model, other = same_start(functools.partial(parts, 2))
    x, y = torch.randn(16, 8), torch.randn(16, 8)
    stages = [tt.PipelineStage(tt.DistributedDataParallel(part, mesh[k]), k, 2, mesh[k]) for k, part in enumerate(model)]
    schedule = tt.ScheduleGPipe(stages, 4, F.mse_loss)
    with session.comm_debug() as comm:
        schedule.step(x, target=y, return_outputs=False)
    F.mse_loss(other(x), y).backward()
    assert_same_gradients(model, other)
    assert all(p.grad.placements == (R,) for p in model.parameters())
    gradients = 2 * 2 * (8 * 8 + 8) * 4     # an all-reduce on two workers: as much as the gradients to each
    assert sum(comm.bytes_received) <= gradients + 2 * 16 * 8 * 4 + 256


def test_stages_of_other_sizes_and_several_values_between_them(session):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 5)

        def forward(self, x, scale=None):
            return self.a(x) * scale, x.sum(1) > 0, self.b(x)

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Linear(9, 2)

        def forward(self, a, chosen, b):
            return torch.where(chosen[:, None], self.c(torch.cat([a, b], 1)), 0.0)

    first, other_first = same_start(First)
    second, other_second = same_start(Second)
    one, three = session.init_device_mesh((1,), workers=[2]), session.init_device_mesh((3,), workers=[3, 0, 1])
    stages = [tt.PipelineStage(first, 0, 2, one), tt.PipelineStage(second, 1, 2, three, input_placements=[S(0)])]
    x, y, scale = torch.randn(12, 6), torch.randn(12, 2), torch.rand(12, 1)
    schedule = tt.Schedule1F1B(stages[::-1], 3, F.mse_loss)
    schedule.step(x, scale=scale, target=y)
    out = other_second(*other_first(x, scale))
    F.mse_loss(out, y).backward()
    assert_same_gradients(first, other_first)
    assert_same_gradients(second, other_second)
    losses = []
    again = schedule.eval(x, scale=scale, target=y, losses=losses)
    torch.testing.assert_close(again.cpu(), out.detach(), rtol=1e-5, atol=1e-5)
    assert len(losses) == 3 and not again.requires_grad
    on_mesh = schedule.eval(tt.distribute_tensor(x, one), scale=scale)      # cut on the mesh
    torch.testing.assert_close(on_mesh.cpu(), out.detach(), rtol=1e-5, atol=1e-5)


def test_a_checkpoint_of_all_stages_is_read_by_torch_alone_and_by_other_stages(session, tmp_path):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    model = parts(2)
    for k, part in enumerate(model):
        tt.fully_shard(part, mesh=mesh[k])
    stages = staged(model, mesh["pp"])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tt.Schedule1F1B(stages, 2, F.mse_loss).step(torch.randn(8, 8), target=torch.randn(8, 8))
    optimizer.step()
    tt.save(tmp_path / "c", {"model": model, "optimizer": optimizer})
    plain, turned = parts(2), parts(2)
    staged(turned, session.init_device_mesh((2,), mesh_dim_names=("pp",), workers=[3, 2])["pp"])
    for other in (plain, turned):
        again = torch.optim.AdamW(other.parameters(), fused=True)
        tt.load(tmp_path / "c", {"model": other, "optimizer": again})
        for one, expected in zip(other.parameters(), model.parameters()):
            assert torch.equal(one.cpu(), expected.cpu())
            assert torch.equal(again.state[one]["exp_avg"].cpu(), optimizer.state[expected]["exp_avg"].cpu())
    assert turned[1].linear.weight.device_mesh.workers == again.state[turned[1].linear.weight]["exp_avg"].device_mesh.workers == (2,)


def test_sums_of_losses_are_not_scaled(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    model, other = same_start(functools.partial(parts, 2))
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    loss = functools.partial(F.mse_loss, reduction="sum")
    tt.ScheduleGPipe(staged(model, mesh), 4, loss, scale_grads=False).step(x, target=y)
    loss(other(x), y).backward()
    assert_same_gradients(model, other, 1e-4)


def test_a_step_that_fails_leaves_the_next_one_right(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    model, other = same_start(functools.partial(parts, 2))
    schedule = tt.Schedule1F1B(staged(model, mesh), 4, F.mse_loss)
    x, y = torch.randn(8, 8), torch.randn(8, 8)

    def fail(*_):
        if model[1].most >= 1 and len(model[1].living) >= 1:
            raise ValueError("in stage 1")

    hook = model[1].register_forward_hook(fail)
    with pytest.raises(ValueError, match="in stage 1"):
        schedule.step(x, target=y)
    hook.remove()
    model.zero_grad()
    schedule.step(x, target=y)
    F.mse_loss(other(x), y).backward()
    assert_same_gradients(model, other)


def test_what_does_not_fit_is_refused_by_name(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    mesh22 = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    stages = staged(parts(2), mesh)
    for f, match in (
            (lambda: tt.PipelineStage(Part(), 2, 2, mesh), "stage_index is 2, and num_stages 2"),
            (lambda: tt.PipelineStage(Part(), 0, 2), "device=None and group=None"),
            (lambda: tt.PipelineStage(Part(), 0, 2, group=mesh22), "one dim of a mesh"),
            (lambda: tt.PipelineStage(lambda x: x, 0, 1, mesh), "not a Module"),
            (lambda: tt.PipelineStage(stages[0].submod, 1, 2, mesh[1]), "the stage's mesh is"),
            (lambda: tt.ScheduleGPipe(stages[:1], 2), r"the stages are \[0\] of \[2\]"),
            (lambda: tt.ScheduleGPipe(stages, 0), "n_microbatches is 0"),
            (lambda: tt.ScheduleGPipe(stages, 3, F.mse_loss).step(torch.ones(8, 8), target=torch.ones(8, 8)), "8 rows in dim 0, which 3 microbatches"),
            (lambda: tt.ScheduleGPipe(stages, 2, F.mse_loss).step(torch.ones(8, 8), target=torch.ones(8, 8), mask=3), "no stage's forward takes 'mask'"),
            (lambda: tt.ScheduleGPipe(stages, 2).step(torch.ones(8, 8)), "needs loss_fn"),
            (lambda: tt.ScheduleInterleaved1F1B(staged(parts(3), mesh), 4), "mesh k modulo 2"),
            (lambda: tt.ScheduleInterleaved1F1B(staged(parts(4), mesh), 5), "5 microbatches are not a multiple of 2")):
        with pytest.raises(ts.TesseraError, match=match):
            f()


def test_a_parameter_of_two_stages_is_refused(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("pp",))
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    tt.PipelineStage(first, 0, 2, group=mesh["pp"])
    with pytest.raises(ts.InvalidArgumentError, match="'weight' of stage 1 is one of stage 0 too"):
        tt.PipelineStage(second, 1, 2, group=mesh["pp"])
