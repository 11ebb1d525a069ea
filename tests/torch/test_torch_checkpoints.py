"""Checkpoints of torch.distributed.checkpoint: what two ranks wrote of DTensors is loaded here, on another mesh."""

import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as checkpoint

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard

# Each rank ends without Python's way out: gloo's threads, which DTensor's mesh still holds there, now and then end the
# process by std::terminate. What it wrote is whole by then: save() returns once rank 0 has written the metadata. They wait
# for each other by the file, since the first to go closes gloo's connections.
RANKS = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + ".store", 2)
dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
mesh = init_device_mesh("cpu", (2,))
w = torch.arange(35.0).reshape(7, 5)
model = {"w": distribute_tensor(w, mesh, [Shard(0)]), "b": distribute_tensor(torch.arange(5.0), mesh, [Replicate()])}
checkpoint.save({"model": model, "optimizer": {"step": 3, "m": distribute_tensor(w * 2, mesh, [Shard(1)])}}, checkpoint_id=folder)
store.set(f"saved/{rank}", "")
store.wait(["saved/0", "saved/1"])
os._exit(0)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("ranks") / "checkpoint")
    ranks = [subprocess.Popen([sys.executable, "-c", RANKS, str(rank), folder]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return folder


def zeros(mesh, shape, *placements):
    return tt.distribute_tensor(torch.zeros(shape), mesh, list(placements))


def load(state, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")     # it says that it takes one process for all
        checkpoint.load(state, checkpoint_id=folder, no_dist=True)


def test_what_ranks_wrote_is_loaded_on_another_mesh(mesh22, written):
    state = {"model": {"w": zeros(mesh22, (7, 5), S(0), S(1)), "b": zeros(mesh22, (5,), R, R)},
             "optimizer": {"step": 0, "m": zeros(mesh22, (7, 5), S(1), R)}}
    load(state, written)
    w = torch.arange(35.0).reshape(7, 5)
    assert torch.equal(state["model"]["w"].cpu(), w) and state["model"]["w"].placements == (S(0), S(1))
    assert torch.equal(state["model"]["b"].cpu(), torch.arange(5.0))
    assert torch.equal(state["optimizer"]["m"].cpu(), w * 2) and state["optimizer"]["m"].placements == (S(1), R)
    assert state["optimizer"]["step"] == 3


def test_of_another_model_it_is_refused(mesh22, written):
    w = zeros(mesh22, (7, 5), S(0), R)
    with pytest.raises(checkpoint.CheckpointException, match="Missing key .*model.other"):
        load({"model": {"other": w}}, written)
    with pytest.raises(checkpoint.CheckpointException, match="(?i)size"):
        load({"model": {"w": zeros(mesh22, (7, 6), S(0), R)}}, written)
    assert w.sum().item() == 0


@pytest.mark.filterwarnings("ignore")
def test_async_save_writes_the_values_of_the_call(mesh, tmp_path):
    model = tt.distribute_module(torch.nn.Linear(6, 3), mesh)
    tt.redistribute(model.weight, placements=[R])
    before = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    writing = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=str(tmp_path / "c"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0)
    writing.result(timeout=300)
    state = {"model": {"weight": zeros(mesh, (3, 6), S(1)), "bias": zeros(mesh, (3,), R)}}
    load(state, str(tmp_path / "c"))
    assert all(torch.equal(value.cpu(), before[name]) for name, value in state["model"].items())


def test_the_only_program_is_rank_0_and_broadcasts_to_nobody(mesh):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    model, other = (tt.distribute_module(torch.nn.Linear(6, 3), mesh) for _ in range(2))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in (model, other)]
    model(torch.ones(2, 6, device="tessera")).sum().backward()
    optimizers[0].step()
    options = {"full_state_dict": True, "cpu_offload": True}
    weights, states = get_state_dict(model, optimizers[0], options=StateDictOptions(**options))
    assert all(value.device.type == "cpu" for value in weights.values())
    set_state_dict(other, optimizers[1], model_state_dict=weights, optim_state_dict=states,
                   options=StateDictOptions(**options, broadcast_from_rank0=True))
    for one, another in zip(model.parameters(), other.parameters()):
        assert torch.equal(one.cpu(), another.cpu())
        assert torch.equal(optimizers[0].state[one]["exp_avg"].cpu(), optimizers[1].state[another]["exp_avg"].cpu())
