"""tt.save and tt.load: what is in the files, other meshes and placements, and checkpoints that don't fit."""

import json
import os
import signal

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from models import Gpt, R, S, batches, on, same_start, tensor_parallel, train
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch import parallel

INDEX = "model.safetensors.index.json"


def two_layers():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 3))


def index_of(path):
    return json.loads((path / INDEX).read_text())


def whole(state):
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(whole(value) for value in state)
    return state.cpu() if isinstance(state, torch.Tensor) else state


def assert_same(got, expected):
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same(got[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert type(got) is type(expected) and len(got) == len(expected)
        for one, other in zip(got, expected):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected.cpu())
    else:
        assert type(got) is type(expected) and (got == expected or got != got)


def test_a_state_comes_back_as_it_was(mesh22, tmp_path):
    generator = torch.Generator().manual_seed(3)
    state = {"shards": tt.distribute_tensor(torch.randn(5, 7, generator=generator), mesh22, [S(0), S(1)]),
             "twice": tt.distribute_tensor(torch.randn(9, 3, generator=generator), mesh22, [S(0), S(0)]),
             "half": tt.distribute_tensor(torch.randn(4, 3, generator=generator).bfloat16(), mesh22, [R, S(0)]),
             "flags": tt.distribute_tensor(torch.arange(6) % 2 == 0, mesh22, [S(0), R]),
             "number": tt.distribute_tensor(torch.tensor(3), mesh22), "empty": tt.distribute_tensor(torch.empty(0, 4), mesh22, [S(0), R]),
             "cpu": [torch.arange(3), (1, 2.5, None, True, "name", float("inf"))], 7: {0: {"a": torch.tensor(2.0)}}, "nothing": {}}
    tt.save(tmp_path / "c", state)
    got = tt.load(tmp_path / "c", device_mesh=None)
    assert_same(whole(got), whole(state))
    assert got["shards"].placements == (S(0), S(1)) and got["half"].placements == (R, S(0)) and not isinstance(got["cpu"][0], tt.Tensor)
    assert os.listdir(tmp_path) == ["c"]


def test_each_distinct_shard_is_fetched_once_and_nothing_moves(session, mesh22, tmp_path, monkeypatch):
    state = {"a": tt.distribute_tensor(torch.randn(8, 8), mesh22, [S(0), S(1)]), "b": tt.distribute_tensor(torch.randn(8, 4), mesh22, [S(0), R]),
             "c": tt.distribute_tensor(torch.randn(6, 4), mesh22), "d": tt.distribute_tensor(torch.randn(6, 4), mesh22)}
    state["tied"] = state["c"]
    fetched = []
    original = type(tt.to_handle(state["a"])).to_local
    monkeypatch.setattr(type(tt.to_handle(state["a"])), "to_local", lambda self, position: fetched.append(self.shape) or original(self, position))
    with session.comm_debug() as comm:
        tt.save(tmp_path / "c", state)
    assert sum(comm.bytes_received) == 0
    assert sorted(fetched) == sorted([(8, 8)] * 4 + [(8, 4)] * 2 + [(6, 4)] * 2)
    index = index_of(tmp_path / "c")
    assert index["metadata"]["total_size"] == 4 * (64 + 32 + 24 + 24)
    assert len(set(index["weight_map"].values())) == 4 and index["weight_map"]["c"] != index["weight_map"]["d"]
    assert index["weight_map"].keys() >= {"a[0:4,4:8]", "b[4:8,0:4]", "c", "d"} and "tied" not in index["weight_map"]


def test_whole_tensors_are_read_by_safetensors_itself(mesh, tmp_path):
    model = tt.distribute_module(two_layers(), mesh)
    tt.save(tmp_path / "c", model)
    found = {}
    for file in set(index_of(tmp_path / "c")["weight_map"].values()):
        found.update(safetensors.torch.load_file(tmp_path / "c" / file))
    assert_same({key: found[key] for key in model.state_dict()}, {k: v.cpu() for k, v in model.state_dict().items()})


@pytest.mark.parametrize("placements", [[R], [S(0)], [S(1)], [S(-1)]])
def test_a_checkpoint_of_four_workers_is_loaded_on_three(session, mesh22, tmp_path, placements):
    x, vector = torch.randn(7, 11), torch.randn(5)
    tt.save(tmp_path / "c", {"x": tt.distribute_tensor(x, mesh22, [S(1), S(0)]), "v": tt.distribute_tensor(vector, mesh22, [S(0), R])})
    three = session.init_device_mesh((3,), workers=[3, 0, 1])
    got = tt.load(tmp_path / "c", device_mesh=three, placements=placements)
    assert torch.equal(got["x"].cpu(), x) and torch.equal(got["v"].cpu(), vector)
    assert got["x"].placements == tuple(S(one.dim % 2) if one.is_shard() else one for one in placements)
    assert got["v"].placements == ((R,) if placements == [S(1)] else (S(0),) if placements[0].is_shard() else (R,))
    by_name = tt.load(tmp_path / "c", device_mesh=three, placements=lambda name, shape: [S(1)] if name == "x" else None)
    assert by_name["x"].placements == (S(1),) and by_name["v"].placements == (R,)


def test_a_pending_sum_is_summed_up(mesh, tmp_path):
    x = tt.distribute_tensor(torch.randn(8, 6), mesh, [S(0)]).sum(0)
    assert x.placements == (ts.Partial(),)
    tt.save(tmp_path / "c", x)
    got = tt.load(tmp_path / "c")
    assert got.placements == (S(0),)
    torch.testing.assert_close(got.cpu(), x.cpu())


@pytest.mark.parametrize("fused", [False, True])
def test_training_goes_on_on_another_mesh_as_if_it_had_not_stopped(session, mesh22, tmp_path, fused):
    model, other = same_start(Gpt)
    make = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=fused)  # noqa: E731
    expected = train(other, batches(), make, steps=6)
    tensor_parallel(model, mesh22["tp"])
    optimizer = make(model.parameters())
    first = train(model, on(mesh22, batches(), [S(0), R]), lambda _: optimizer, steps=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    tt.save(tmp_path / "c", {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 3})

    line = session.init_device_mesh((4,), mesh_dim_names=("dp",))
    torch.manual_seed(5)
    again = Gpt()
    for layer in again.layers:
        tt.fully_shard(layer, mesh=line["dp"])
    tt.fully_shard(again, mesh=line["dp"])
    optimizer = make(again.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    state = tt.load(tmp_path / "c", {"model": again, "optimizer": optimizer, "schedule": schedule, "step": 0})
    assert state["step"] == 3 and schedule.step_size == 5
    assert all(p.placements == (S(0),) for p in again.parameters())
    assert optimizer.state[again.norm.weight]["exp_avg"].placements == (S(0),)
    got = first + train(again, on(line, batches(), [S(0)]), lambda _: optimizer, steps=3)
    for one, wanted in zip(got, expected):
        assert one == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_it_is_loaded_into_a_module_of_torch_alone(mesh, tmp_path):
    model, _ = same_start(two_layers)
    parallel.parallelize_module(model, mesh, {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})
    tt.save(tmp_path / "c", {"model": model.state_dict()})
    plain = two_layers()
    tt.load(tmp_path / "c", {"model": plain})
    assert_same(plain.state_dict(), whole(model.state_dict()))
    tt.save(tmp_path / "d", {"model": plain})       # and back
    torch.nn.init.zeros_(model[0].weight)
    tt.load(tmp_path / "d", {"model": model})
    assert torch.equal(model[0].weight.cpu(), plain[0].weight) and model[0].weight.placements == (S(0),)


def test_only_needed_boxes_are_read(session, mesh, tmp_path, monkeypatch):
    from tessera.torch import _restore
    tt.save(tmp_path / "c", {"x": tt.distribute_tensor(torch.randn(8, 6), mesh, [S(0)])})
    read = []
    original = _restore._Folder.read
    monkeypatch.setattr(_restore._Folder, "read", lambda self, tensor, box: read.append(tuple(box)) or original(self, tensor, box))
    mesh22 = session.init_device_mesh((2, 2))
    tt.load(tmp_path / "c", device_mesh=mesh22, placements=[S(1), R])
    assert read == [((0, 8), (0, 3)), ((0, 8), (3, 6))]
    read.clear()
    tt.load(tmp_path / "c", device_mesh=mesh22, placements=[R, R])
    assert read == [((0, 8), (0, 6))]


def test_a_checkpoint_of_another_model_names_the_differences_and_loads_nothing(mesh, tmp_path):
    model = tt.distribute_module(two_layers(), mesh)
    tt.save(tmp_path / "c", {"model": model})
    other = tt.distribute_module(nn.Sequential(nn.Linear(6, 10), nn.LayerNorm(10), nn.Linear(10, 4), nn.Linear(2, 2)), mesh)
    before = whole(other.state_dict())
    with pytest.raises(ts.InvalidArgumentError) as error:
        tt.load(tmp_path / "c", {"model": other})
    for part in ("another model", "missing in the checkpoint: model.3.weight, model.3.bias", "unexpected in it: model.1.running_mean",
                 "model.2.weight is (3, 10) in the checkpoint, (4, 10) here"):
        assert part in str(error.value)
    assert_same(whole(other.state_dict()), before)
    with pytest.raises(ts.InvalidArgumentError, match="model is 9 entries in the checkpoint, 3 here"):
        tt.load(tmp_path / "c", {"model": 3})


def test_an_optimizer_of_another_model_is_refused(mesh, tmp_path):
    def made(width):
        model = tt.distribute_module(nn.Linear(4, width), mesh)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model(tt.distribute_tensor(torch.ones(2, 4), mesh)).sum().backward()
        optimizer.step()
        return optimizer

    tt.save(tmp_path / "c", made(3))
    with pytest.raises(ts.InvalidArgumentError, match=r"state.0.momentum_buffer is \(3, 4\) in the checkpoint, its parameter \(5, 4\)"):
        tt.load(tmp_path / "c", made(5))
    with pytest.raises(ts.InvalidArgumentError, match=r"param_groups have \[2\] parameters in the checkpoint, \[1\] here"):
        tt.load(tmp_path / "c", torch.optim.SGD([nn.Parameter(torch.ones(3, 4))], 0.1))


@pytest.mark.parametrize("file", ["model-00002-of-00004.safetensors", INDEX])
def test_a_cut_checkpoint_is_refused(mesh, tmp_path, file):
    x = tt.distribute_tensor(torch.randn(8, 6), mesh, [S(0)])
    tt.save(tmp_path / "c", {"x": x})
    path = tmp_path / "c" / file
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    with pytest.raises(ts.InvalidArgumentError, match=f"{file}.*cut|cut.*{file}"):
        tt.load(tmp_path / "c")
    path.unlink()
    with pytest.raises(ts.NotFoundError, match=file):
        tt.load(tmp_path / "c")
    path.write_bytes(b"\x00" * len(data))
    with pytest.raises(ts.InvalidArgumentError, match=file):
        tt.load(tmp_path / "c")


def test_an_index_that_leaves_its_folder_or_its_boxes_is_refused(mesh, tmp_path):
    tt.save(tmp_path / "c", {"x": tt.distribute_tensor(torch.randn(8, 6), mesh, [S(0)])})
    index = index_of(tmp_path / "c")

    def with_change(change, match):
        changed = json.loads(json.dumps(index))
        change(changed)
        (tmp_path / "c" / INDEX).write_text(json.dumps(changed))
        with pytest.raises(ts.TesseraError, match=match):
            tt.load(tmp_path / "c", placements=[R])

    with_change(lambda one: one["metadata"]["file_bytes"].update({"../x": 3}), "not in its folder")
    with_change(lambda one: one["weight_map"].update({"x[0:2,0:6]": "/etc/passwd"}), "damaged")
    with_change(lambda one: one["tensors"]["x"]["pieces"].pop(), "36 of 48 elements of x")
    with_change(lambda one: one["tensors"]["x"].update(dtype="F64"), "float32.*float64")
    with_change(lambda one: one["tensors"]["x"].pop("shape"), "damaged")
    with_change(lambda one: one["metadata"].update(version=9), "version 9")
    with_change(lambda one: one.update(state={"tensor": "y"}), "damaged")


def test_a_file_of_another_save_of_the_same_size_is_refused(mesh, tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        tt.save(tmp_path / name, {"x": tt.full((8, 6), value, device_mesh=mesh, placements=[S(0)]), "y": torch.full((3,), value)})
    files = sorted(one.name for one in (tmp_path / "a").glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        kept = (tmp_path / "a" / file).read_bytes()
        (tmp_path / "a" / file).write_bytes((tmp_path / "b" / file).read_bytes())
        with pytest.raises(ts.InvalidArgumentError, match=f"{file} is of another save than"):
            tt.load(tmp_path / "a")
        (tmp_path / "a" / file).write_bytes(kept)
    assert tt.load(tmp_path / "a")["y"].tolist() == [1.0] * 3


@pytest.mark.parametrize("change", [
    lambda x: x["pieces"].append(dict(x["pieces"][0])),
    lambda x: x["pieces"][0].update(box=[[0, 2], [0, 9]]),
    lambda x: x["pieces"][0].update(box=[[0, 2]]),
    lambda x: x["pieces"][0].update(box=[[0.5, 2], [0, "six"]]),
    lambda x: x["pieces"][0].update(box=[[0, 2, 4], [0, 6]]),
    lambda x: x.update(shape=[8, -6]), lambda x: x.update(shape=["8", 6]), lambda x: x.update(shape=8),
    lambda x: x.update(dtype="F31"), lambda x: x.update(pieces=None), lambda x: x.update(pieces=[3]),
])
def test_pieces_that_are_none_of_the_tensor_are_a_damaged_index(mesh, tmp_path, change):
    tt.save(tmp_path / "a", {"x": tt.ones((8, 6), device_mesh=mesh, placements=[S(0)])})
    index = index_of(tmp_path / "a")
    change(index["tensors"]["x"])
    (tmp_path / "a" / INDEX).write_text(json.dumps(index))
    with pytest.raises(ts.InvalidArgumentError, match="is damaged"):
        tt.load(tmp_path / "a")


def test_paths_and_values_that_cannot_be_saved(mesh, tmp_path):
    (tmp_path / "there").mkdir()
    x = tt.distribute_tensor(torch.ones(3), mesh)
    with pytest.raises(ts.FailedPreconditionError, match="exists already"):
        tt.save(tmp_path / "there", {"x": x})
    with pytest.raises(ts.NotFoundError, match="doesn't exist"):
        tt.save(tmp_path / "no" / "c", {"x": x})
    with pytest.raises(ts.NotFoundError, match="no checkpoint"):
        tt.load(tmp_path / "there")
    for state, match in (({"a": [x, object()]}, "a.1 is object"), ({1.5: x}, "key 1.5"), ({"z": torch.ones(2, dtype=torch.complex128)}, "complex128"),
                         ({"m": torch.ones(2, device="meta")}, "meta")):
        with pytest.raises(ts.InvalidArgumentError, match=match):
            tt.save(tmp_path / "c", state)
    nested = x
    for _ in range(200):
        nested = [nested]
    with pytest.raises(ts.InvalidArgumentError, match="limit is 100"):
        tt.save(tmp_path / "c", nested)
    assert os.listdir(tmp_path) == ["there"]


def test_a_worker_that_is_lost_leaves_no_checkpoint(tmp_path):
    with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = tt.distribute_tensor(torch.randn(4, 4), mesh, [S(0)]).wait()
        os.kill(cluster.worker_pids[1], signal.SIGKILL)
        with pytest.raises(ts.TesseraError, match="worker 1"):
            tt.save(tmp_path / "c", {"x": x})
    assert os.listdir(tmp_path) == []


def test_steps_that_follow_do_not_change_what_was_loaded_twice(mesh, tmp_path):
    model = tt.distribute_module(nn.Linear(2, 2), mesh)
    tt.save(tmp_path / "c", {"a": model.weight, "b": model.weight})
    got = tt.load(tmp_path / "c")
    got["a"].add_(1)
    assert F.mse_loss(got["a"].cpu() - 1, got["b"].cpu()) < 1e-12
