"""Mistakes that people make when they train: each is an error of its own at the line that did it, and training goes on after."""

import os
import re
import signal
import traceback

import pytest
import torch
import torch.nn.functional as F
from models import R, S, same_start
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera import _context
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module


def lines_of(error) -> list[str]:
    """The lines of this file that the error came through, the outermost first."""
    return [frame.line for frame in traceback.extract_tb(error.tb) if frame.filename == __file__]


def mlp(width=7):
    return nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 3))


# ---- parameters that don't divide ------------------------------------------------------------------------------------

@pytest.mark.parametrize("way", ["tensor parallel", "fully_shard", "both"])
def test_parameters_that_do_not_divide_are_trained_as_on_one_process(session, way):
    """7 features and 5 rows on 4 workers, or 2 by 2; one worker of four has no row of the last layer's 3."""
    mesh = session.init_device_mesh((2, 2) if way == "both" else (4,), mesh_dim_names=("dp", "tp") if way == "both" else ("dp",))
    model, other = same_start(mlp)
    if way != "fully_shard":
        parallelize_module(model, mesh["tp"] if way == "both" else mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if way != "tensor parallel":
        for layer in (model[0], model[2], model):
            tt.fully_shard(layer, mesh=mesh["dp"] if way == "both" else mesh)
    x, labels = torch.randn(6, 5), torch.randint(0, 3, (6,))
    there = tt.distribute_tensor(x, mesh), tt.distribute_tensor(labels, mesh)
    for module, (images, classes) in ((model, there), (other, (x, labels))):
        optimizer = torch.optim.AdamW(module.parameters(), 1e-2, fused=True)
        for _ in range(3):
            F.cross_entropy(module(images), classes).backward()
            optimizer.step()
            optimizer.zero_grad()
    for got, expected in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(got.detach().full_tensor(), expected.detach(), rtol=1e-5, atol=1e-6)


# ---- what does not fit -----------------------------------------------------------------------------------------------

def test_a_plan_with_one_wrong_entry_says_which_and_at_which_line(mesh):
    for plan, what in (({"0": ColwiseParallel(), "1": RowwiseParallel()}, "RowwiseParallel: takes .* not Tanh"),
                       ({"2": SequenceParallel()}, "SequenceParallel: takes .* not Linear")):
        with pytest.raises(ts.InvalidArgumentError, match=what) as error:
            parallelize_module(mlp(), mesh, plan)
        assert lines_of(error) == ["parallelize_module(mlp(), mesh, plan)"]
    with pytest.warns(UserWarning, match="matches 'layers") as warnings:
        parallelize_module(mlp(), mesh, {"layers.*": ColwiseParallel()})
    assert [one.filename for one in warnings] == [__file__]


def test_layouts_of_another_rank_fail_where_the_module_is_called(mesh):
    for style in (ColwiseParallel(output_layouts=S(2)), ColwiseParallel(input_layouts=S(2)), RowwiseParallel(output_layouts=S(3))):
        model = parallelize_module(nn.Linear(4, 4), mesh, style)
        with pytest.raises(ts.InvalidArgumentError, match=r"Shard\([23]\).*2 dims") as error:
            model(torch.ones(2, 4))
        assert lines_of(error)[0] == "model(torch.ones(2, 4))"
    with pytest.raises(ts.TesseraError, match="2 placements|mesh of 1|1 dim") as error:
        tt.distribute_tensor(torch.ones(4, 4), mesh, [S(0), R])
    assert lines_of(error) == ["tt.distribute_tensor(torch.ones(4, 4), mesh, [S(0), R])"]


def test_modules_of_another_device_or_session_are_refused_where_they_are_called(cluster, mesh):
    model = tt.distribute_module(mlp(), mesh)
    with pytest.raises((RuntimeError, ts.InvalidArgumentError), match="device.*cpu|cpu.*device") as error:
        model(torch.ones(2, 5))
    assert lines_of(error) == ["model(torch.ones(2, 5))"]
    with cluster.connect() as session:
        other = tt.distribute_tensor(torch.ones(2, 5), session.default_mesh)
        with pytest.raises(ts.InvalidArgumentError, match="session") as error:
            model(other)
        assert lines_of(error) == ["model(other)"]
        with pytest.raises(ts.InvalidArgumentError, match="session"):
            nn.utils.clip_grad_norm_([given_grad(next(model.parameters())), given_grad(nn.Parameter(other))], 1.0)
    assert model(tt.distribute_tensor(torch.ones(2, 5), mesh)).shape == (2, 3)


def given_grad(parameter):
    parameter.grad = torch.ones_like(parameter)
    return parameter


# ---- a lost worker ---------------------------------------------------------------------------------------------------

def test_training_goes_on_from_a_checkpoint_on_the_workers_that_are_left(tmp_path):
    """The step that needs the lost worker names it; the model lets go of its gradients and is loaded on the rest."""
    with ts.local_cluster(workers=3, memory="64MiB", files=tmp_path) as cluster, cluster.connect() as session:
        mesh, (model, other) = session.init_device_mesh((3,)), same_start(mlp)
        tt.fully_shard(model, mesh=mesh)
        optimizer, expected = (torch.optim.AdamW(one.parameters(), 1e-2, fused=True) for one in (model, other))
        x = torch.randn(6, 5)

        def step(module, optimizer, images):
            loss = module(images).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        for _ in range(2):
            assert step(model, optimizer, tt.distribute_tensor(x, mesh, [S(0)])) == pytest.approx(step(other, expected, x), rel=1e-5)
        tt.save(tmp_path / "c", {"model": model, "optimizer": optimizer})
        os.kill(cluster.worker_pids[2], signal.SIGKILL)
        with pytest.raises(ts.UnavailableError, match=r"worker 2 was lost.*(went \[|lost parameters: [02]\.(weight|bias))") as error:
            for _ in range(100):
                step(model, optimizer, tt.distribute_tensor(x, mesh, [S(0)]))
        assert lines_of(error)[0].startswith("step(model, optimizer")
        model.zero_grad()
        assert all(one.grad is None for one in model.parameters())
        with pytest.raises(ts.UnavailableError, match=r"worker 2 was lost \("):
            model[0].weight.cpu()
        rest = session.init_device_mesh((2,), workers=[0, 1])
        again = mlp()
        tt.fully_shard(again, mesh=rest)
        optimizer = torch.optim.AdamW(again.parameters(), 1e-2, fused=True)
        tt.load(tmp_path / "c", {"model": again, "optimizer": optimizer})
        for _ in range(2):
            assert step(again, optimizer, tt.distribute_tensor(x, rest, [S(0)])) == pytest.approx(step(other, expected, x), rel=1e-5)


def of_ddp(model, mesh):
    return tt.DistributedDataParallel(model, mesh)


def of_fsdp(model, mesh):
    for part in (model[0], model[2], model):
        tt.fully_shard(part, mesh=mesh)
    return model


def of_tensor_parallel(model, mesh):
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def of_device(model, mesh):
    with tt.default_placement(mesh):
        return model.to("tessera")


def of_pipeline(model, mesh):
    """The second of two stages lies on the worker that is lost."""
    first, second = nn.Sequential(model[0]), nn.Sequential(model[1], model[2])
    tt.distribute_module(first, _context.current_session().init_device_mesh((1,), workers=[0]))
    tt.distribute_module(second, _context.current_session().init_device_mesh((1,), workers=[2]))
    return nn.ModuleList([first, second])


def of_sharded_module(model, mesh):
    return tt.distribute_module(model, mesh, lambda name, module, mesh: [
        module.register_parameter(key, torch.nn.Parameter(tt.distribute_tensor(value.detach(), mesh, [S(0)])))
        for key, value in list(module.named_parameters(recurse=False))] and None)


@pytest.mark.parametrize("make", [tt.distribute_module, of_device, of_ddp], ids=lambda one: one.__name__)
def test_a_model_with_copies_trains_on_without_a_lost_worker(make):
    with ts.local_cluster(workers=3, memory="64MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((3,))
        model = make(mlp(), mesh)
        other = mlp()
        other.load_state_dict({name.removeprefix("module."): value.cpu() for name, value in model.state_dict().items()})
        optimizer, expected = (torch.optim.AdamW(one.parameters(), 1e-2) for one in (model, other))
        data = torch.randn(6, 5)
        x = tt.distribute_tensor(data, mesh, [R])

        def losses(model, optimizer, x):
            out = []
            for _ in range(3):
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                out.append(loss.item())
            return out

        assert losses(model, optimizer, x) == pytest.approx(losses(other, expected, data), rel=1e-5)
        os.kill(cluster.worker_pids[2], signal.SIGKILL)
        while session.status()["workers"][2]["state"] != "dead":
            pass
        assert losses(model, optimizer, x) == pytest.approx(losses(other, expected, data), rel=1e-5)
        assert all(2 not in one.device_mesh.workers for one in model.parameters())


@pytest.mark.parametrize("step_lost", ["before", "within"])
@pytest.mark.parametrize("make, names", [
    (of_fsdp, ["0.weight", "0.bias", "2.weight", "2.bias"]), (of_tensor_parallel, ["0.weight", "0.bias", "2.weight"]),
    (of_sharded_module, ["0.weight", "0.bias", "2.weight", "2.bias"]), (of_pipeline, ["1.1.weight", "1.1.bias"])],
    ids=lambda one: getattr(one, "__name__", ""))
def test_a_step_without_a_lost_worker_fails_by_the_names_of_the_parameters(make, names, step_lost):
    """As named_parameters() has them, whether the worker goes between two steps or while steps are on their way."""
    with ts.local_cluster(workers=3, memory="64MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((3,))
        model = make(mlp(), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, fused=True)
        parts = list(model) if isinstance(model, nn.ModuleList) else [model]
        home = parts[0][0].weight.device_mesh if len(parts) > 1 else mesh
        x = tt.distribute_tensor(torch.randn(6, 5), home)

        def step():
            out = x
            for part in parts:
                out = part(out if out is x else out.redistribute(next(part.parameters()).device_mesh, [R]))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            return out.sum()

        step().item()
        if step_lost == "within":
            for _ in range(20):
                step()
        os.kill(cluster.worker_pids[2], signal.SIGKILL)
        with pytest.raises(ts.UnavailableError, match="worker 2 was lost") as error:
            for _ in range(100):
                step().item()
        assert lines_of(error)[0] == "step().item()"
        text = str(error.value)
        root, lost = re.search(r"; lost parameters: (.*) of (\w+)$", text).group(2, 1)
        # A parameter that had copies may be updated by a gradient that is lost.
        assert root == type(model).__name__ and set(names) <= set(lost.split(", "))
        for name, parameter in model.named_parameters():
            if name in lost.split(", "):       # what each of them says is of itself first
                with pytest.raises(ts.UnavailableError, match=f"; lost parameters: .*{name}"):
                    parameter.detach().wait()


def test_an_error_names_some_of_many_lost_parameters_and_none_that_is_there():
    with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
        lost, kept = (session.init_device_mesh((1,), workers=[worker]) for worker in (1, 0))
        model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(12)))
        for number, layer in enumerate(model):
            tt.distribute_module(layer, kept if number == 5 else lost)
        other = tt.distribute_tensor(torch.ones(3), lost)
        session.sync()
        os.kill(cluster.worker_pids[1], signal.SIGKILL)
        with pytest.raises(ts.UnavailableError, match="worker 1 was lost") as error:
            for _ in range(100):
                (other + 1).wait()
        named = re.search(r"; lost parameters: (.*) of Sequential and 3 more$", str(error.value))[1].split(", ")
        assert len(named) == 8 and set(named) <= {f"{i}.weight" for i in range(12) if i != 5}
        assert model[5].weight.full_tensor().shape == (3, 3)
        del model, layer
        with pytest.raises(ts.UnavailableError) as error:
            (other + 1).wait()
        assert "parameters" not in str(error.value)


# ---- losses that are no numbers --------------------------------------------------------------------------------------

@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW], ids=lambda one: one.__name__)
def test_a_loss_of_nan_is_skipped_by_the_scaler_as_torch_does(mesh, make, fused):
    """Sharded gradients: one worker's alone are NaN, and all skip."""
    model, other = same_start(lambda: nn.Linear(4, 4))
    tt.fully_shard(model, mesh=mesh)
    x = torch.randn(8, 4)
    bad = x.clone()
    bad[7, 2] = float("nan")
    runs = []
    for module, device in ((model, "tessera"), (other, "cpu")):
        optimizer = make(module.parameters(), 0.1, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=16.0, growth_interval=2)
        scales = []
        for images in (x, bad, x, x, bad):
            given = images if module is other else tt.distribute_tensor(images, mesh, [S(0)])
            scaler.scale(module(given).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        runs.append((scales, [one.detach().cpu() for one in module.parameters()]))
    (scales, got), (expected_scales, expected) = runs
    assert scales == expected_scales == [16, 8, 8, 16, 8]
    for one, two in zip(got, expected):
        assert two.isfinite().all()
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_without_a_scaler_a_norm_of_nan_can_be_an_error(mesh):
    model = tt.distribute_module(nn.Linear(4, 4), mesh)
    (model(tt.distribute_tensor(torch.full((2, 4), float("nan")), mesh))).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite") as error:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    assert lines_of(error) == ["nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)"]


# ---- a checkpoint of another kind of thing ---------------------------------------------------------------------------

def test_a_checkpoint_that_is_cut_or_of_another_model_keeps_model_and_optimizer(mesh, tmp_path):
    model = tt.distribute_module(mlp(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model(tt.distribute_tensor(torch.ones(2, 5), mesh)).sum().backward()
    optimizer.step()
    tt.save(tmp_path / "of-9", {"model": tt.distribute_module(mlp(9), mesh), "optimizer": optimizer})
    tt.save(tmp_path / "cut", {"model": model, "optimizer": optimizer})
    file = next((tmp_path / "cut").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    before = [one.detach().cpu() for one in model.parameters()], optimizer.state_dict()["state"][0]["exp_avg"].cpu()
    for name, what in (("of-9", r"of another model.*model.0.weight is \(9, 5\) in the checkpoint, \(7, 5\) here"),
                       ("cut", f"cut: the file {file.name} has")):
        with pytest.raises(ts.InvalidArgumentError, match=what) as error:
            tt.load(tmp_path / name, {"model": model, "optimizer": optimizer})
        assert lines_of(error) == ['tt.load(tmp_path / name, {"model": model, "optimizer": optimizer})']
    after = [one.detach().cpu() for one in model.parameters()], optimizer.state_dict()["state"][0]["exp_avg"].cpu()
    assert all(torch.equal(a, b) for a, b in zip([*before[0], before[1]], [*after[0], after[1]]))
