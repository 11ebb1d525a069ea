"""fully_shard and DistributedDataParallel as torch's scripts call them: every argument and method, and what it means here."""

import copy
import functools
import inspect

import pytest
import torch
import torch.distributed.fsdp as fsdp
from models import Gpt, R, S, assert_same_training, batches, on, same_start, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.tensor import Partial, Replicate, Shard

import tessera as ts
import tessera.torch as tt

ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def gradients_are_those_of(model, other, rtol=1e-5, atol=1e-6):
    for one, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad.cpu(), expected.grad, rtol=rtol, atol=atol)


def both_backward(model, other, mesh, placements, x):
    model(tt.distribute_tensor(x, mesh, placements)).square().mean().backward()
    other(x).square().mean().backward()


def test_signatures_are_torchs():
    assert list(inspect.signature(tt.fully_shard).parameters) == list(inspect.signature(fsdp.fully_shard).parameters)
    assert list(inspect.signature(tt.DistributedDataParallel).parameters) == list(inspect.signature(nn.parallel.DistributedDataParallel).parameters)
    assert list(inspect.signature(tt.MixedPrecisionPolicy).parameters) == list(inspect.signature(fsdp.MixedPrecisionPolicy).parameters)
    for name in dir(fsdp.FSDPModule):
        assert name.startswith("_") or callable(getattr(tt.FSDPModule, name)), name


# ---- fully_shard -----------------------------------------------------------------------------------------------------

def test_ignored_parameters_stay_as_they_are(mesh):
    model, other = same_start(mlp)
    model[0].bias = nn.Parameter(tt.distribute_tensor(model[0].bias.detach(), mesh))
    ignored = {model[0].bias}
    tt.fully_shard(model, mesh=mesh, ignored_params=ignored)
    assert model[0].bias in ignored and model[0].bias.placements == (R,) and model[0].weight.placements == (S(0),)
    both_backward(model, other, mesh, [S(0)], torch.randn(8, 8))
    gradients_are_those_of(model, other)
    assert model[0].bias.grad.placements == (R,)


@pytest.mark.parametrize("shard", [Shard, ts.Shard])
def test_a_function_says_which_dim_of_a_parameter_is_cut(mesh, shard):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    for layer in (*model.layers, model):
        tt.fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: shard(p.ndim - 1) if p.ndim == 2 else None)
    assert {p.placements for p in model.parameters()} == {(S(0),), (S(1),)}
    assert_same_training(train(model, on(mesh, batches(), [S(0)]), ADAMW), expected)


def test_dims_that_do_not_divide_may_be_cut(mesh):
    model, other = same_start(functools.partial(nn.Linear, 7, 6))
    tt.fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: ts.Shard(-1))
    assert model.weight.placements == (S(1),)
    both_backward(model, other, mesh, [S(0)], torch.randn(8, 7))
    gradients_are_those_of(model, other)


def test_what_a_function_says_wrong_is_refused_with_the_parameter(mesh):
    with pytest.raises(ts.InvalidArgumentError, match=r"Shard\(dim=1\) for float32\[4\]"):
        tt.fully_shard(nn.Linear(8, 4), mesh=mesh, shard_placement_fn=lambda p: Shard(1))
    with pytest.raises(ts.InvalidArgumentError, match=r"Replicate\(\) for float32\[4, 8\]"):
        tt.fully_shard(nn.Linear(8, 4), mesh=mesh, shard_placement_fn=lambda p: ts.Replicate())


def test_a_mesh_of_two_dims_copies_on_the_first(session, mesh22):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    for layer in (*model.layers, model):
        tt.fully_shard(layer, mesh=mesh22)
    assert all(p.placements == (R, S(0)) for p in model.parameters())
    assert_same_training(train(model, on(mesh22, batches(), [S(0), S(0)]), ADAMW), expected)
    model.zero_grad()
    (numbers, labels), = on(mesh22, batches(1), [S(0), S(0)])
    model.set_requires_all_reduce(False)
    nn.functional.cross_entropy(model(numbers).flatten(0, 1), labels.flatten()).backward()
    assert {p.grad.placements[1] for p in model.parameters()} == {S(0)} and model.layers[0].mlp.w1.weight.grad.placements[0].is_partial()
    model.set_requires_all_reduce(True)
    nn.functional.cross_entropy(model(numbers).flatten(0, 1), labels.flatten()).backward()
    (numbers, labels), = batches(1)
    other.load_state_dict({name: one.cpu() for name, one in model.state_dict().items()})
    other.zero_grad()
    (2 * nn.functional.cross_entropy(other(numbers).flatten(0, 1), labels.flatten())).backward()
    assert all(p.grad.placements == (R, S(0)) for p in model.parameters())
    gradients_are_those_of(model, other, rtol=1e-4, atol=1e-5)


def test_dims_of_a_larger_mesh_are_named(session):
    mesh = session.init_device_mesh((2, 1, 2), mesh_dim_names=("dp", "tp", "cp"))
    model, other = same_start(mlp)
    tt.fully_shard(model, mesh=mesh, dp_mesh_dims=fsdp.DataParallelMeshDims(shard=("dp", "cp")))
    assert model[0].weight.placements == (S(0), R, S(0))
    both_backward(model, other, mesh, [S(0), R, S(0)], torch.randn(8, 8))
    gradients_are_those_of(model, other)


def test_modules_of_a_list_are_one_unit(session, mesh):
    model, other = same_start(mlp)
    assert tt.fully_shard([model[0], model[2]], mesh=mesh, reshard_after_forward=False) == [model[0], model[2]]
    assert model[0]._fully_sharded is model[2]._fully_sharded and isinstance(model[2], tt.FSDPModule)
    x = torch.randn(8, 8)
    here = tt.distribute_tensor(x, mesh, [S(0)]).wait()
    for module, one in ((model, here), (other, x)):
        module(one).square().mean().backward()
    gradients_are_those_of(model, other)
    session.sync()
    with session.comm_debug() as comm, torch.no_grad():
        model(here).wait()
    assert comm.collective_counts["all_gather"] == 4 and sum(comm.bytes_received) == 3 * 4 * sum(p.numel() for p in other.parameters())
    assert all(p.placements == (S(0),) for p in model.parameters())
    with torch.no_grad():       # one of them alone, and its parameters are those in shards after it
        model[0](here)
    assert isinstance(model[2].weight, nn.Parameter) and model[2].weight.placements == (S(0),)


def test_the_outermost_unit_is_kept_for_backward_where_nothing_is_said(session, mesh):
    model = mlp()
    tt.fully_shard(model[0], mesh=mesh)
    assert not model[0]._fully_sharded.reshard
    tt.fully_shard(model, mesh=mesh)
    assert model[0]._fully_sharded.reshard and not model._fully_sharded.reshard
    for gathered in (2, 4):     # weights and biases of one layer, or of both
        loss = model(tt.distribute_tensor(torch.randn(8, 8), mesh, [S(0)])).square().mean().wait()
        session.sync()
        with session.comm_debug() as comm:
            loss.backward()
            session.sync()
        assert comm.collective_counts["all_gather"] == gathered
        model.set_reshard_after_forward(True)
    with pytest.raises(ts.InvalidArgumentError, match="takes a bool, not 2"):
        model.set_reshard_after_forward(2)


@pytest.mark.parametrize("number", [1, 3, 4, "2"])
def test_a_number_of_workers_that_is_no_divisor_is_refused(mesh, number):
    with pytest.raises(ts.InvalidArgumentError, match="a divisor of 4"):
        tt.fully_shard(mlp(), mesh=mesh, reshard_after_forward=number)
    assert tt.fully_shard(mlp(), mesh=mesh, reshard_after_forward=2)._fully_sharded.reshard


@pytest.mark.parametrize("policies", [fsdp, tt])
def test_parameters_are_offloaded_where_workers_are_cpus(mesh, monkeypatch, policies):
    for policy in (policies.OffloadPolicy(), policies.CPUOffloadPolicy(), policies.CPUOffloadPolicy(pin_memory=False)):
        assert tt.fully_shard(mlp(), mesh=mesh, offload_policy=policy)[0].weight.placements == (S(0),)
    monkeypatch.setattr(type(mesh), "device_type", "cuda")
    tt.fully_shard(mlp(), mesh=mesh, offload_policy=policies.OffloadPolicy())
    with pytest.raises(ts.UnimplementedError, match="CPUOffloadPolicy.*are cuda devices"):
        tt.fully_shard(mlp(), mesh=mesh, offload_policy=policies.CPUOffloadPolicy())
    with pytest.raises(ts.InvalidArgumentError, match="offload_policy is 'cpu'"):
        tt.fully_shard(mlp(), mesh=mesh, offload_policy="cpu")


@pytest.mark.parametrize("policies", [fsdp, tt])
def test_some_parameters_keep_their_dtype(mesh, policies):
    model, other = same_start(lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)))
    seen = []
    model[1].register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, model[0].weight.dtype)))
    norm = {model[1].weight, model[1].bias}
    tt.fully_shard(model, mesh=mesh, mp_policy=policies.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, param_dtype_override_fn=lambda p: torch.float32 if p in norm else None))
    both_backward(model, other, mesh, [S(0)], torch.randn(8, 8))
    assert seen == [(torch.float32, torch.bfloat16)] and all(p.grad.dtype == torch.float32 for p in model.parameters())
    gradients_are_those_of(model, other, rtol=0.05, atol=0.02)
    with pytest.raises(ts.InvalidArgumentError, match="param_dtype_override_fn gives torch.float16 for torch.float32"):
        tt.fully_shard(mlp(), mesh=mesh, mp_policy=policies.MixedPrecisionPolicy(param_dtype=torch.bfloat16, param_dtype_override_fn=lambda p: torch.float16))


def test_what_backward_gathered_is_there_for_the_next_forward(session, mesh):
    model, other = same_start(mlp)
    tt.fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    x = torch.randn(8, 8)
    here = tt.distribute_tensor(x, mesh, [S(0)]).wait()
    model.set_requires_gradient_sync(False)
    for step in range(2):
        session.sync()
        with session.comm_debug() as comm:
            loss = model(here).square().mean()
            loss.backward()
            session.sync()
        assert (sum(comm.bytes_received) > 0) == (step == 0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.zero_grad()
    model.set_requires_gradient_sync(True)
    both_backward(model, other, mesh, [S(0)], x)
    optimizer.step()
    torch.optim.SGD(other.parameters(), 0.1).step()
    torch.testing.assert_close(model(here).detach().cpu(), other(x).detach())        # of the new parameters


def test_another_method_gathers_as_forward_does(mesh):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def generate(self, x, scale=1.0):
            return scale * self.linear(x), self.linear.weight.placements

    model, other = same_start(Model)
    tt.register_fsdp_forward_method(model, "generate")       # before fully_shard it stays as it is
    tt.fully_shard(model, mesh=mesh)
    tt.register_fsdp_forward_method(model, "generate")
    x = torch.randn(4, 8)
    out, placements = model.generate(tt.distribute_tensor(x, mesh, [S(0)]), scale=2.0)
    assert placements == (R,) and model.linear.weight.placements == (S(0),)
    torch.testing.assert_close(out.detach().cpu(), 2 * other.linear(x).detach())
    with pytest.raises(ts.InvalidArgumentError, match="Model has no method 'sample'"):
        tt.register_fsdp_forward_method(model, "sample")


def test_methods_without_a_meaning_are_taken_or_refused_by_name(mesh):
    model = tt.fully_shard(mlp(), mesh=mesh)
    model.set_is_last_backward(True)
    model.set_unshard_in_backward(False)
    model.set_gradient_divide_factor(1.0)
    for name in ("set_custom_all_gather", "set_custom_reduce_scatter", "set_all_reduce_hook"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(model, name)(None)
    with pytest.raises(ts.InvalidArgumentError, match="factor is 4.*divide the loss"):
        model.set_gradient_divide_factor(4)


# ---- DistributedDataParallel -----------------------------------------------------------------------------------------

def test_ddp_as_torchs_scripts_call_it(mesh):
    model, other = same_start(Gpt)
    expected = train(other, batches(), ADAMW)
    copy_of = copy.deepcopy(model)
    wrapped = tt.DistributedDataParallel(model, device_ids=[0], output_device=0, broadcast_buffers=False, find_unused_parameters=True,
                                         gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=None, process_group=mesh)
    with wrapped.join():
        assert_same_training(train(wrapped, on(mesh, batches(), [S(0)]), ADAMW), expected)
    assert_same_training(train(tt.DistributedDataParallel(copy_of, None, device_mesh=mesh), on(mesh, batches(), [S(0)]), ADAMW), expected)


def test_ddp_cuts_the_dim_of_batches_that_it_is_told(mesh):
    seen = []
    model = nn.Linear(8, 4)
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].placements))
    tt.DistributedDataParallel(model, [0], None, 1)(torch.randn(3, 8, 8))
    assert seen == [(S(1),)]


def test_ddp_refuses_by_name_what_has_no_meaning(mesh, mesh22):
    for options, what in (({"device_ids": [0, 1]}, r"device_ids is \[0, 1\]"), ({"device_mesh": mesh22}, "device_mesh is mesh.*one dim"),
                          ({"process_group": "nccl"}, "process_group is 'nccl'"), ({"mixed_precision": 1}, "mixed_precision is 1.*autocast"),
                          ({"device_mesh": mesh, "bucket_cap_mb": 0}, "bucket_cap_mb is 0")):
        with pytest.raises(ts.TesseraError, match=what):
            tt.DistributedDataParallel(mlp(), **options)


@pytest.mark.parametrize("hook", [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook])
def test_hooks_say_how_gradients_move(session, mesh, hook):
    model, other = same_start(functools.partial(nn.Linear, 256, 64))
    wrapped = tt.DistributedDataParallel(model, mesh)
    wrapped.register_comm_hook(None, hook)
    x = torch.randn(16, 256)
    other(x).square().sum().backward()
    loss = wrapped(x).square().sum().wait()
    with session.comm_debug() as comm:
        loss.backward()
        session.sync()
    is_whole = hook is default_hooks.allreduce_hook
    assert all(p.grad.dtype == torch.float32 and p.grad.placements == (R,) for p in model.parameters())
    gradients_are_those_of(model, other, rtol=1e-4 if is_whole else 0.02, atol=1e-3 if is_whole else 0.5)
    numbers = 3 * (256 * 64 + 64)       # of each term each worker's quarter, and of the sums the other three
    assert sum(comm.bytes_received) == numbers * (8 if is_whole else 6)


def test_hooks_of_other_kinds_are_refused_by_name(mesh):
    model = tt.DistributedDataParallel(mlp(), mesh)
    with pytest.raises(NotImplementedError, match="powerSGD_hook works on a bucket's memory.*bf16_compress_hook"):
        model.register_comm_hook(None, powerSGD_hook.powerSGD_hook)


# ---- placements ------------------------------------------------------------------------------------------------------

def test_placements_of_dtensor_are_placements(mesh22):
    x = torch.randn(8, 6)
    there = tt.distribute_tensor(x, mesh22, [Shard(1), Replicate()])
    assert there.placements == (S(1), R)
    assert there.redistribute(placements=(Replicate(), Shard(0))).placements == (R, S(0))
    assert tt.from_local(lambda position: x, mesh22, [Partial("max"), Replicate()]).placements == (ts.Partial("max"), R)
    assert tt.distribute_tensor(x, mesh22["tp"], Shard(0)).placements == (R, S(0))
