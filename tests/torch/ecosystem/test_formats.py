"""Files that others write are read by tt.load, by the workers where they see them; files that are written here are read by others."""

import json
import struct
import subprocess
import sys

import pytest

transformers = pytest.importorskip("transformers", reason="transformers isn't installed; tools/setup_ecosystem installs it")
import safetensors.torch
import torch
from transformers import LlamaForCausalLM, LlamaModel

import tessera as ts
import tessera.torch as tt
from tessera.torch import _restore
from tessera.torch.parallel import parallelize_module, tp_plan
from tiny import assert_equal_states, llama


@pytest.fixture(scope="module")
def cluster(served):
    with ts.local_cluster(workers=4, memory="256MiB", files=served) as cluster:
        yield cluster


def refuse(*_):
    raise AssertionError("values come through the client")


@pytest.mark.parametrize("size", ["50GB", "20KB"])
def test_workers_read_a_folder_of_hugging_face_each_its_own_shards(mesh, folder, monkeypatch, size):
    original = llama()
    original.save_pretrained(folder, max_shard_size=size)
    assert len(list(folder.glob("*.safetensors"))) == (1 if size == "50GB" else 6)
    model = llama(3)
    parallelize_module(model, mesh, tp_plan(model))
    with monkeypatch.context() as patch:
        patch.setattr(_restore, "upload", refuse)
        patch.setattr(_restore, "array_of", refuse)
        tt.load(folder, model)
    assert str(model.model.layers[0].mlp.up_proj.weight.placements) == "(Shard(0),)"
    assert_equal_states(model, original, 0)


def test_a_model_on_the_device_meta_is_loaded_without_a_copy_here(mesh, folder):
    original = llama()
    original.save_pretrained(folder)
    with torch.device("meta"):
        model = llama()
    for layer in model.model.layers:
        tt.fully_shard(layer, mesh=mesh)
    tt.fully_shard(model, mesh=mesh)
    tt.load(folder, model, strict=True)
    for name, value in original.state_dict().items():
        assert torch.equal(model.state_dict()[name].cpu(), value), name


def test_tied_parameters_and_the_base_of_a_model_are_found(mesh, folder):
    original = llama(tie_word_embeddings=True)
    original.save_pretrained(folder)
    with safetensors.safe_open(folder / "model.safetensors", framework="pt") as opened:
        assert "lm_head.weight" not in opened.keys()
    model = tt.distribute_module(llama(3, tie_word_embeddings=True), mesh)
    tt.load(folder, model)
    assert_equal_states(model, original, 0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    base = tt.distribute_module(LlamaModel(original.config), mesh)
    tt.load(folder, base)
    assert_equal_states(base, original.model, 0)


def test_a_folder_and_a_file_are_loaded_into_nothing(mesh, folder):
    original = llama()
    original.save_pretrained(folder)
    for path in (folder, folder / "model.safetensors"):
        state = tt.load(path, device_mesh=mesh, placements=[ts.Shard(0)])
        assert state.keys() == original.state_dict().keys() and str(state["lm_head.weight"].placements) == "(Shard(0),)"
        assert torch.equal(state["lm_head.weight"].cpu(), original.lm_head.weight)
    assert str(tt.load(folder)["lm_head.weight"].placements) == "(Replicate(),)"


def test_another_model_is_refused_with_all_differences_and_nothing_is_loaded(mesh, folder):
    llama(num_hidden_layers=3, intermediate_size=48).save_pretrained(folder)
    model = tt.distribute_module(llama(3), mesh)
    with pytest.raises(ts.InvalidArgumentError, match=r"unexpected in it: model.layers.2.*model.layers.0.mlp.gate_proj.weight is \(48, 32\) "
                                                      r"in the checkpoint, \(64, 32\) here"):
        tt.load(folder, model)
    assert_equal_states(model, llama(3), 0)
    del model.lm_head       # the rest of what both have
    llama(intermediate_size=64).save_pretrained(folder / "same")
    tt.load(folder / "same", model, strict=False)
    assert_equal_states(model.model, llama().model, 0)


@pytest.mark.parametrize("damage", ["cut", "head", "missing", "lacks", "dtype", "elsewhere"])
def test_a_folder_that_is_cut_is_an_error_that_names_the_file(mesh, folder, damage):
    llama().save_pretrained(folder, max_shard_size="20KB")
    file, index = sorted(folder.glob("*.safetensors"))[1], folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-100])
        said = f"{file.name} has [0-9]+ bytes, not"
    elif damage == "head":
        file.write_bytes(file.read_bytes()[:50])
        said = f"{file.name} can't be read, it may be cut"
    elif damage == "missing":
        file.unlink()
        said = f"the file {file.name} is missing"
    elif damage == "lacks":
        content["weight_map"]["extra"] = file.name
        said = f"its index names extra of {file.name}, which is not in that file"
    elif damage == "elsewhere":
        content["weight_map"]["extra"] = "../other.safetensors"
        said = "names the file '../other.safetensors', which is not in its folder"
    else:
        head = json.dumps({"x": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}}).encode()
        file.write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
        said = f"x of .*{file.name} is F8_E8M0; tessera has"
    index.write_text(json.dumps(content))
    with pytest.raises(ts.TesseraError, match=said):
        tt.load(folder, tt.distribute_module(llama(3), mesh))


def test_transformers_reads_what_the_workers_saved(mesh, folder):
    model = llama()
    parallelize_module(model, mesh, tp_plan(model))
    tt.save(folder / "model", model)
    read = LlamaForCausalLM.from_pretrained(folder / "model")
    assert_equal_states(read, model, 0)
    again = tt.load(folder / "model", tt.distribute_module(llama(3), mesh))
    assert again.keys() == model.state_dict().keys()


def test_safetensors_saves_and_loads_a_model(mesh, folder):
    model = tt.distribute_module(llama(tie_word_embeddings=True), mesh)
    safetensors.torch.save_model(model, str(folder / "model.safetensors"))
    other = llama(3, tie_word_embeddings=True)
    safetensors.torch.load_model(other, str(folder / "model.safetensors"))
    assert_equal_states(other, model, 0)
    safetensors.torch.load_model(model, str(folder / "model.safetensors"))
    assert model.lm_head.weight.device.type == "tessera"


def test_torch_alone_reads_what_torch_save_wrote_here(mesh, folder):
    model = tt.distribute_module(llama(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    x = torch.arange(8, device="tessera").reshape(1, 8)
    model(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, folder / "run.pt")
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, folder / "expected.pt")
    program = """
import sys, torch
state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
expected = torch.load(sys.argv[2], weights_only=True)
assert "tessera" not in sys.modules
assert state["step"] == 1 and state["model"].keys() == expected.keys()
assert all(type(value) is torch.Tensor and torch.equal(value, expected[name]) for name, value in state["model"].items())
assert all(one["exp_avg"].device.type == "cpu" for one in state["optimizer"]["state"].values())
"""
    subprocess.run([sys.executable, "-c", program, folder / "run.pt", folder / "expected.pt"], check=True, env={"PATH": "/usr/bin:/bin"})
