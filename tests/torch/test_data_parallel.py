"""DistributedDataParallel and fully_shard: torch's steps, what moves, and how much is gathered at a time."""

import copy
import functools
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from models import Gpt, R, S, assert_same_training, batches, on, same_start, tensor_parallel, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera as ts
import tessera.torch as tt

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def sharded(model, mesh, **options):
    for layer in model.layers:
        tt.fully_shard(layer, mesh=mesh, **options)
    return tt.fully_shard(model, mesh=mesh, **options)


def test_ddp_trains_as_torch_alone(mesh):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    assert_same_training(train(tt.DistributedDataParallel(model, mesh), on(mesh, batches(), [S(0)]), ADAMW), expected)


def test_ddp_reduces_by_buckets_and_leaves_unused_parameters_alone(session, mesh):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            return self.used(x)

    model = tt.DistributedDataParallel(Two(), mesh)
    loss = model(torch.randn(8, 8)).square().mean()     # the CPU batch goes in shards
    with session.comm_debug() as comm:
        loss.backward()
    assert model.module.unused.weight.grad is None and model.module.used.weight.grad.placements == (R,)
    gradients = 8 * 4 * 4 + 4 * 4
    assert sum(comm.bytes_received) <= 2 * 3 * gradients + 64       # and the loss
    model.zero_grad()
    with model.no_sync():
        model(torch.randn(8, 8)).square().mean().backward()
    assert model.module.used.weight.grad.placements == (ts.Partial(),)


def test_small_buckets_give_the_same(mesh):
    model, other = same_start(mlp)
    tt.DistributedDataParallel(model, mesh, bucket_cap_mb=1e-5)
    x = torch.randn(8, 8)
    model(tt.distribute_tensor(x, mesh, [S(0)])).square().mean().backward()
    other(x).square().mean().backward()
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6)


def test_ddp_with_tensor_parallel(mesh22):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    tensor_parallel(model, mesh22["tp"])
    got = train(tt.DistributedDataParallel(model, mesh22["dp"]), on(mesh22, batches(), [S(0), R]), ADAMW)
    assert_same_training(got, expected)


@pytest.mark.parametrize("reshard", [True, False])
def test_fully_shard_trains_as_torch_alone(mesh, reshard):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    sharded(model, mesh, reshard_after_forward=reshard)
    assert all(p.placements == (S(0),) for p in model.parameters())
    assert_same_training(train(model, on(mesh, batches(), [S(0)]), ADAMW), expected)
    assert all(p.placements == (S(0),) for p in model.parameters())


def test_fully_shard_with_tensor_parallel(mesh22):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    tensor_parallel(model, mesh22["tp"])
    sharded(model, mesh22["dp"])
    assert_same_training(train(model, on(mesh22, batches(), [S(0), R]), ADAMW), expected)


def test_gathered_parameters_are_let_go(mesh):
    """At most two of four layers and the whole's own parameters are gathered at a time; none after backward."""
    model, _ = same_start(functools.partial(Gpt, layers=4))
    sharded(model, mesh)
    (numbers, labels), = on(mesh, batches(1), [S(0)])
    units = [layer._fully_sharded for layer in model.layers]
    gathered = []

    def count(*_):
        gathered.append(sum(any(one() is not None and one().handle is not None for _, cells in unit.shown for one in cells)
                            or unit.gathered is not None for unit in units))

    for layer in model.layers:
        layer.mlp.w2.register_forward_hook(count)
        layer.mlp.w2.register_full_backward_hook(count)
    for _ in range(2):
        F.cross_entropy(model(numbers).flatten(0, 1), labels.flatten()).backward()
    gc.collect()
    assert gathered and max(gathered) <= 2
    count()
    assert gathered[-1] == 0


def test_gradients_and_mixed_precision(session, mesh):
    model, other = same_start(mlp)
    tt.fully_shard(model, mesh=mesh, mp_policy=tt.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32,
                                                                       output_dtype=torch.float32))
    x = torch.randn(8, 8)
    with session.comm_debug() as comm:
        out = model(tt.distribute_tensor(x, mesh, [S(0)]))
    assert sum(comm.bytes_received) == 3 * sum(p.numel() for p in other.parameters()) * 2
    assert out.dtype == torch.float32
    out.square().mean().backward()
    other(x).square().mean().backward()
    for one, expected in zip(model.parameters(), other.parameters()):
        assert one.grad.dtype == torch.float32 and one.grad.placements == (S(0),)
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=0.05, atol=0.02)


def test_a_fully_sharded_module_adds_gradients_up_without_reducing_them(session, mesh):
    model, other = same_start(mlp)
    tt.fully_shard(model[0], mesh=mesh)
    tt.fully_shard(model, mesh=mesh)
    parts = torch.randn(3, 8, 8).unbind()
    for k, part in enumerate(parts):
        model.set_requires_gradient_sync(k == 2)
        model(tt.distribute_tensor(part, mesh, [S(0)])).square().sum().backward()
        other(part).square().sum().backward()
        assert {p.grad.placements for p in model.parameters()} == {(S(0),) if k == 2 else (ts.Partial(),)}
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-5)


def test_a_fully_sharded_module_is_gathered_and_let_go_when_it_is_told(session, mesh):
    model, other = same_start(functools.partial(nn.Linear, 8, 4))
    assert tt.fully_shard(model, mesh=mesh) is model and isinstance(model, tt.FSDPModule) and type(model).__mro__[2] is nn.Linear
    x = torch.randn(8, 8)
    here = tt.distribute_tensor(x, mesh, [S(0)]).wait()
    model.unshard(async_op=True).wait()
    session.sync()
    with session.comm_debug() as comm:
        out = model(here).wait()
    assert sum(comm.bytes_received) == 0        # nothing was left to gather
    torch.testing.assert_close(out.cpu(), other(x))
    model.unshard()
    model.reshard()
    with session.comm_debug() as comm:
        model(here).wait()
    assert sum(comm.bytes_received) > 0


def test_the_units_that_are_asked_for_early_can_be_said(mesh):
    model, other = same_start(functools.partial(Gpt, layers=4))
    sharded(model, mesh)
    layers = list(model.layers)
    layers[0].set_modules_to_forward_prefetch(layers[1:3])
    layers[3].set_modules_to_backward_prefetch([layers[2], layers[1]])
    early = []
    layers[0].mlp.w2.register_forward_hook(lambda *_: early.append([one._fully_sharded.gathered is not None for one in layers[1:]]))
    model.set_reshard_after_forward(True)
    got, expected = train(model, on(mesh, batches(), [S(0)]), ADAMW), train(other, batches(), ADAMW)
    assert early and all(one == [True, True, False] for one in early)
    assert_same_training(got, expected)
    with pytest.raises(ts.InvalidArgumentError, match="Linear is not fully sharded"):
        layers[0].set_modules_to_forward_prefetch([nn.Linear(2, 2)])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("policy", [None, tt.MixedPrecisionPolicy(param_dtype=torch.bfloat16)])
def test_activation_checkpoints_within_a_unit_use_the_gathered_parameters(session, mesh, policy, reentrant):
    """Two parts of one unit that are computed again: with the dtypes of the first time, and gathered as one, not op by op."""
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.last = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8)) for _ in range(2)), nn.Linear(8, 4)
            self.again = True

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=reentrant) if self.again else part(x)
            return self.last(x)

    model, other = same_start(Parts)
    other.again = False
    tt.fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    x = torch.randn(8, 8)
    there = tt.distribute_tensor(x, mesh, [S(0)]).requires_grad_()
    for _ in range(2):
        loss = model(there).float().square().sum().wait()
        session.sync()
        with session.comm_debug() as comm:
            loss.backward()
            session.sync()
        other(x).square().sum().backward()
        tensors = len(list(model.parameters()))
        assert comm.collective_counts["all_gather"] <= tensors * (3 if reentrant else 1) + 1       # once for all of backward, or for each of its own
        assert all(isinstance(p, nn.Parameter) and p.placements == (S(0),) for p in model.parameters())
    exact = policy is None
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-4 if exact else 0.1, atol=1e-4 if exact else 0.3)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_a_fully_sharded_module_are_refused_by_name(mesh, copied):
    with pytest.raises(ts.FailedPreconditionError, match="FSDPLinear is fully sharded"):
        copied(tt.fully_shard(nn.Linear(4, 4), mesh=mesh))


def test_fully_shard_twice_or_on_a_mesh_of_three_dims_is_refused(session, mesh22):
    with pytest.raises(ts.InvalidArgumentError, match="mesh of one dim.*or of two"):
        tt.fully_shard(mlp(), mesh=session.init_device_mesh((2, 1, 2)))
    model = tt.fully_shard(mlp(), mesh=mesh22["dp"])
    with pytest.raises(ts.InvalidArgumentError, match="sharded already"):
        tt.fully_shard(model, mesh=mesh22["dp"])
    with pytest.raises(ts.InvalidArgumentError, match="mesh of one dim"):
        tt.DistributedDataParallel(mlp(), mesh22)


def test_threads_train_side_by_side(mesh):
    import threading
    x = torch.randn(8, 8)
    models = [same_start(mlp) for _ in range(3)]
    for ours, _ in models:
        tt.distribute_module(ours, mesh)

    def work(ours):
        ours(tt.distribute_tensor(x, mesh, [S(0)])).square().mean().backward()

    threads = [threading.Thread(target=work, args=(ours,)) for ours, _ in models]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for ours, other in models:
        other(x).square().mean().backward()
        for one, expected in zip(ours.parameters(), other.parameters()):
            assert one.grad.placements == (R,)
            torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6)


def test_a_backward_that_fails_leaves_nothing_behind(mesh):
    from tessera.torch import _gradients
    model, other = same_start(mlp)
    tt.distribute_module(model, mesh)
    x = tt.distribute_tensor(torch.randn(8, 8), mesh, [S(0)])
    before = set(_gradients._buckets)       # other tests' backwards may have failed

    def fail(grad):
        raise ValueError("in backward")

    handle = model[0].weight.register_hook(fail)
    with pytest.raises(ValueError, match="in backward"):
        model(x).square().mean().backward()
    handle.remove()
    model.zero_grad()
    model(x).square().mean().backward()
    other(x.cpu()).square().mean().backward()
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-6)
    assert len(set(_gradients._buckets) - before) <= 1


def ways_to_have_parameters(mesh):
    import copy
    import io
    plain = mlp()
    yield copy.deepcopy(plain).to("tessera")
    yield copy.deepcopy(tt.distribute_module(copy.deepcopy(plain), mesh))
    file = io.BytesIO()
    torch.save(tt.distribute_module(copy.deepcopy(plain), mesh), file)
    file.seek(0)
    yield torch.load(file, weights_only=False)
    with torch.device("tessera"):
        yield mlp()
    assigned = mlp()
    assigned.load_state_dict({k: v.to("tessera") for k, v in plain.state_dict().items()}, assign=True)
    yield assigned


def test_gradients_are_reduced_however_a_parameter_was_made(mesh):
    x = tt.distribute_tensor(torch.randn(8, 8), mesh, [S(0)])
    for module in ways_to_have_parameters(mesh):
        module(x).square().mean().backward()
        assert all(p.grad.placements == (R,) and isinstance(p, nn.Parameter) for p in module.parameters())
