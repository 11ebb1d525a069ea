"""Checkpoints that the workers write and read themselves: no tensor comes through the client, and the format is the one that
the client writes elsewhere."""

import contextlib
import json
import os
import signal

import pytest
import safetensors.torch
import torch
from models import Gpt, R, S, batches, on, tensor_parallel, train
from test_checkpoint import INDEX, assert_same, index_of, whole
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch import _checkpoint, _restore, _worker_files


@pytest.fixture(scope="module")
def cluster(served):
    with ts.local_cluster(workers=4, memory="256MiB", files=served) as cluster:
        yield cluster


@pytest.fixture
def by_workers(monkeypatch):
    """The client may neither write nor read values of tensors that are on workers."""
    def refuse(*_):
        raise AssertionError("values come through the client")

    @contextlib.contextmanager
    def only():
        with monkeypatch.context() as patch:
            patch.setattr(_checkpoint._Plan, "by_shards", refuse)
            patch.setattr(_restore, "upload", refuse)
            patch.setattr(_restore, "array_of", refuse)
            yield
    return only


def state_of(mesh):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return {"shards": tt.distribute_tensor(draw(5, 7), mesh, [S(0), S(1)]), "twice": tt.distribute_tensor(draw(9, 3), mesh, [S(0), S(0)]),
            "half": tt.distribute_tensor(draw(4, 3).bfloat16(), mesh, [R, S(0)]), "double": tt.distribute_tensor(draw(3).double(), mesh),
            "flags": tt.distribute_tensor(torch.arange(6) % 2 == 0, mesh, [S(0), R]), "number": tt.distribute_tensor(torch.tensor(3), mesh),
            "bytes": tt.distribute_tensor(torch.arange(7, dtype=torch.uint8), mesh, [R, S(0)]),
            "empty": tt.distribute_tensor(torch.empty(0, 4), mesh, [S(0), R]), "last": tt.distribute_tensor(draw(6, 5), mesh, [S(1), R]),
            "cpu": [torch.arange(3), (1, 2.5, None, True, "name")], "pending": tt.distribute_tensor(draw(8, 4), mesh, [S(0), R]).sum(0)}


def test_a_state_comes_back_and_every_reader_finds_its_tensors_whole(mesh22, folder, by_workers):
    state = state_of(mesh22)
    assert any(one.is_partial() for one in state["pending"].placements)
    with by_workers():
        tt.save(folder / "c", state)
        got = tt.load(folder / "c")
    assert_same(whole(got), whole(state))
    for name, one in got.items():
        if isinstance(one, tt.Tensor) and name != "pending":
            assert one.placements == state[name].placements, name
    read = {}
    for file in (folder / "c").glob("*.safetensors"):
        read.update(safetensors.torch.load_file(file))
    index = index_of(folder / "c")
    assert sorted(read) == sorted(index["weight_map"]) == sorted([*(set(state) - {"cpu"}), "cpu.0"])
    for name in set(state) - {"cpu"}:
        torch.testing.assert_close(read[name], state[name].cpu(), rtol=0, atol=0)
    assert sorted(os.listdir(folder / "c")) == sorted([INDEX, *index["metadata"]["file_bytes"]])
    assert index["metadata"]["total_size"] == sum(one.numel() * one.element_size() for one in read.values())


def test_it_is_loaded_on_any_mesh_and_placement(session, mesh22, folder, by_workers):
    values = {name: torch.randn(7, 10) for name in "ab"}
    with by_workers():
        tt.save(folder / "c", {name: tt.distribute_tensor(one, mesh22, [S(0), S(1)]) for name, one in values.items()})
        for shape, workers, placements in (((3,), [2, 0, 1], [S(1)]), ((1,), [3], [R]), ((4,), None, [S(0)]), ((2, 2), None, [R, S(1)]),
                                           ((2, 2), None, [S(1), S(1)]), ((4,), None, [R])):
            mesh = session.init_device_mesh(shape, workers=workers)
            got = tt.load(folder / "c", device_mesh=mesh, placements=placements)
            for name, one in values.items():
                assert got[name].placements == tuple(placements) and torch.equal(got[name].cpu(), one), (shape, placements)
                assert got[name].box(mesh.positions()[0]) == tt.distribute_tensor(one, mesh, placements).box(mesh.positions()[0])


def test_training_goes_on_with_another_parallelism(session, mesh22, folder, by_workers):
    """Two steps tensor parallel and by workers to a file; three more by shards on three workers: five steps of the first."""
    def adamw(parameters):
        return torch.optim.AdamW(parameters, 1e-2, fused=True)

    def made(mesh):
        torch.manual_seed(0)
        return tensor_parallel(Gpt(), mesh)

    data = batches(5)
    expected = train(made(mesh22["tp"]), on(mesh22, data, [S(0), R]), adamw)
    model, optimizers = made(mesh22["tp"]), []
    got = train(model, on(mesh22, data[:2], [S(0), R]), lambda p: optimizers.append(adamw(p)) or optimizers[0], steps=2)
    with by_workers():
        tt.save(folder / "c", {"model": model, "optimizer": optimizers[0]})
        mesh = session.init_device_mesh((3,))
        again = Gpt()
        tt.fully_shard(again, mesh=mesh)
        optimizer = adamw(again.parameters())
        tt.load(folder / "c", {"model": again, "optimizer": optimizer})
    assert again.tokens.weight is again.output.weight and again.tokens.weight.placements == (S(0),)
    assert {one.placements for state in optimizer.state.values() for key, one in state.items() if key == "exp_avg"} == {(S(0),)}
    with tt.default_placement(mesh):
        got += train(again, on(mesh, data[2:], [R]), lambda p: optimizer, steps=3)
    for one, two in zip(got, expected):
        assert one == pytest.approx(two, rel=1e-5)


def test_stages_on_other_workers_are_one_checkpoint(cluster, session, folder, by_workers):
    """Tensors of two meshes without a worker in common, one of them in another session, and what several names share."""
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    state = {f"stage{k}": tt.distribute_tensor(torch.randn(5, 3), mesh[k], [S(0)]) for k in range(2)}
    state["tied"] = state["stage1"]
    with cluster.connect() as other:
        state["other"] = tt.distribute_tensor(torch.randn(4), other.init_device_mesh((3,)), [S(0)])
        with by_workers():
            tt.save(folder / "c", state)
        assert len(index_of(folder / "c")["metadata"]["file_bytes"]) == 2 and "tied" not in index_of(folder / "c")["weight_map"]
        with by_workers():
            got = tt.load(folder / "c", device_mesh=session.init_device_mesh((3,)), placements=[S(0)])
        assert_same(whole(got), whole(state))


def test_several_files_and_parts_of_replicated_tensors(mesh, folder, by_workers, monkeypatch):
    monkeypatch.setattr(_worker_files, "FILE_BYTES", 600_000)
    monkeypatch.setattr(_worker_files, "_CUT_BYTES", 100_000)
    state = {f"w{i}": tt.distribute_tensor(torch.randn(100 + i, 1000), mesh) for i in range(5)}
    with by_workers():
        tt.save(folder / "c", state)
        got = tt.load(folder / "c")
    assert_same(whole(got), whole(state))
    assert sorted(index_of(folder / "c")["metadata"]["file_bytes"]) == [f"model-0000{i}-of-00005.safetensors" for i in range(1, 6)]
    assert {one.placements for one in got.values()} == {(R,)}


def test_both_ways_read_what_the_other_wrote(mesh, folder, tmp_path, by_workers, monkeypatch):
    """A path out of the folders goes through the client, as does what it wrote in pieces."""
    state = {"w": tt.distribute_tensor(torch.randn(9, 4), mesh, [S(0)]), "b": tt.distribute_tensor(torch.randn(9), mesh)}
    tt.save(tmp_path / "c", state)
    assert "w[0:3,0:4]" in index_of(tmp_path / "c")["weight_map"]
    assert_same(whole(tt.load(tmp_path / "c")), whole(state))
    os.rename(tmp_path / "c", folder / "pieces")
    assert_same(whole(tt.load(folder / "pieces")), whole(state))
    with by_workers():
        tt.save(folder / "c", state)
    os.rename(folder / "c", tmp_path / "c")
    assert_same(whole(tt.load(tmp_path / "c")), whole(state))
    link = tmp_path / "link"
    link.symlink_to(folder)
    with by_workers():      # a link of the client's is followed
        tt.save(link / "d", state)
        assert_same(whole(tt.load(link / "d")), whole(state))
    # The workers of another host may have a file of that path.
    tt.save(folder / "other", state)
    seen = _worker_files.open_file

    def elsewhere(path, **options):
        found = seen(path, **options)
        for one in found.values():
            one._file.modified_ns += 1
        return found
    monkeypatch.setattr(_worker_files, "open_file", elsewhere)
    assert_same(whole(tt.load(folder / "other")), whole(state))


@pytest.mark.parametrize("files", ["none", "for reading alone"])
def test_a_cluster_that_serves_no_folder_to_write_in(tmp_path, by_workers, files):
    with ts.local_cluster(workers=2, memory="64MiB", files=() if files == "none" else f"{tmp_path}:ro") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        state = {"w": tt.distribute_tensor(torch.randn(4, 3), mesh, [S(0)]), "b": tt.distribute_tensor(torch.randn(3), mesh)}
        tt.save(tmp_path / "c", state)
        assert len(index_of(tmp_path / "c")["weight_map"]) == 3
        assert_same(whole(tt.load(tmp_path / "c", device_mesh=mesh, placements=[R])), whole(state))
    assert os.listdir(tmp_path) == ["c"]


# ---- what fails ------------------------------------------------------------------------------------------------------

def test_a_save_that_fails_leaves_the_old_checkpoint_and_nothing_else(folder):
    with ts.local_cluster(workers=2, memory="64MiB", files=folder) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2,))
        x = tt.distribute_tensor(torch.randn(4, 4), mesh, [S(0)]).wait()
        tt.save(folder / "c", {"x": x})
        old = {file.name: file.read_bytes() for file in (folder / "c").iterdir()}
        with pytest.raises(ts.FailedPreconditionError, match="exists already"):
            tt.save(folder / "c", {"x": x + 1})
        bad = tt.from_handle(ts.linalg.inv(ts.zeros((2, 2), device_mesh=mesh)))
        with pytest.raises(ts.TesseraError, match="inv|singular"):
            tt.save(folder / "d", {"x": x, "y": bad})
        assert os.listdir(folder) == ["c"]
        os.kill(cluster.worker_pids[1], signal.SIGKILL)
        with pytest.raises(ts.TesseraError, match="worker 1"):
            tt.save(folder / "d", {"x": x})
    assert os.listdir(folder) == ["c"] and {file.name: file.read_bytes() for file in (folder / "c").iterdir()} == old


def model_of(mesh, width=6):
    return tt.distribute_module(nn.Linear(4, width), mesh)


def test_a_cut_checkpoint_names_the_file_and_changes_nothing(mesh, folder, by_workers):
    model = model_of(mesh)
    with by_workers():
        tt.save(folder / "c", {"model": model})
    file, before = next((folder / "c").glob("*.safetensors")), whole(model.state_dict())
    data, index = file.read_bytes(), index_of(folder / "c")
    other = model_of(mesh)
    kept = whole(other.state_dict())

    def refused(match, error=ts.InvalidArgumentError):
        with pytest.raises(error, match=match):
            tt.load(folder / "c", {"model": other})
        assert_same(whole(other.state_dict()), kept)

    file.write_bytes(data[:-9])
    refused(f"is cut: the file {file.name} has {len(data) - 9} bytes, not {len(data)}")
    file.write_bytes(b"\xff" * len(data))
    refused(f"{file.name} can't be read, it may be cut")
    header = data.replace(b'"dtype":"F32","shape":[6,4]', b'"dtype":"F32","shape":[4,6]')
    assert header != data
    file.write_bytes(header)
    refused(r"model.weight is float32 \(4, 6\) in its file, and torch.float32 \(6, 4\) in the index")
    file.write_bytes(data.replace(b'"model.weight"', b'"model.height"'))
    refused("has no model.weight in its files")
    file.unlink()
    refused(file.name, ts.NotFoundError)
    file.write_bytes(data)
    index["metadata"]["file_bytes"][file.name] = 10
    (folder / "c" / INDEX).write_text(json.dumps(index))
    refused("is cut")
    index["metadata"]["file_bytes"][file.name] = len(data)
    (folder / "c" / INDEX).write_text(json.dumps(index)[:-30])
    refused("may be cut")
    (folder / "c" / INDEX).write_text(json.dumps(index))
    with by_workers():
        tt.load(folder / "c", {"model": other})
    assert_same(whole(other.state_dict()), before)


def test_a_checkpoint_of_another_model_is_refused_before_a_worker_reads(mesh, folder, monkeypatch):
    tt.save(folder / "c", {"model": model_of(mesh)})
    other = model_of(mesh, 7)
    before = whole(other.state_dict())
    monkeypatch.setattr(_worker_files, "open_file", lambda *_, **__: pytest.fail("a file is looked at"))
    with pytest.raises(ts.InvalidArgumentError, match=r"another model.*model.weight is \(6, 4\) in the checkpoint, \(7, 4\) here"):
        tt.load(folder / "c", {"model": other})
    assert_same(whole(other.state_dict()), before)


def test_a_file_that_changes_while_it_is_read_changes_nothing(mesh, folder, monkeypatch):
    """It changes between the look at it and the workers' reading."""
    model = model_of(mesh)
    tt.save(folder / "c", {"model": model})
    file = next((folder / "c").glob("*.safetensors"))
    load = _worker_files.Reader.load

    def late(self, *args):
        if not self.loading:
            self.files.update({(args[3]._session._key, args[0]): self._look(args[0], args[3]._session)})
            file.write_bytes(file.read_bytes()[:-4] + b"abcd")
        return load(self, *args)
    monkeypatch.setattr(_worker_files.Reader, "load", late)
    other = model_of(mesh)
    before = whole(other.state_dict())
    with pytest.raises(ts.FailedPreconditionError, match="changed"):
        tt.load(folder / "c", {"model": other})
    assert_same(whole(other.state_dict()), before)
