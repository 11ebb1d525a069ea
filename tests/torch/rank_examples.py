"""Training programs in the style of pytorch/examples, on ranks: the same program on the backend that is named.

    python rank_examples.py tessera tensor_parallel 2     # a line of JSON: the losses of rank 0

Layers split by columns and rows, layers between whose inputs rows are in shards, and FSDP2 with mixed precision, prefetch and a
checkpoint from which a second model goes on.
"""

import faulthandler
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 6
LONGEST_S = 150


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


def mean_of_ranks(loss):
    total = loss.detach().clone()
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return total.item()


def train(model, optimizer, batch_of, first=0, steps=STEPS):
    losses = []
    for step in range(first, first + steps):
        x, wanted = batch_of(step)
        loss = nn.functional.mse_loss(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_of_ranks(loss))
    return losses


def batch(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 10, generator=generator), torch.rand(rows, 5, generator=generator)


def tensor_parallel(rank, ranks, folder):
    """All ranks have the whole batch."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    model = parallelize_module(Two(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True), lambda step: batch(step, 20))


def sequence_parallel(rank, ranks, folder):
    """Each rank has its rows, which are gathered before the first layer, and sums of which are scattered behind the second."""
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
    model = parallelize_module(Two(), mesh, plan)
    return train(model, torch.optim.AdamW(model.parameters(), lr=0.05, foreach=True), lambda step: batch(100 * step + rank, 20 // ranks))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.wide = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.wide(x)


class Transformer(nn.Module):
    def __init__(self, words=31, width=16, layers=3):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def sharded_transformer(seed):
    torch.manual_seed(seed)
    model = Transformer()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for layer, following in zip(model.layers, model.layers[1:]):
        layer.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([layer])
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def language_steps(model, optimizer, rank, first, steps):
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        tokens = torch.randint(0, 31, (4, 12), generator=generator)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean_of_ranks(loss))
    return losses


def fsdp2(rank, ranks, folder):
    """Six steps; three, a checkpoint, and three more by a model that was made with other values, are the same six."""
    model, optimizer = sharded_transformer(seed=0)
    losses = language_steps(model, optimizer, rank, 0, STEPS // 2)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(parts, checkpoint_id=folder / "parts")
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(whole, folder / "whole.pt")
    losses += language_steps(model, optimizer, rank, STEPS // 2, STEPS // 2)
    again, its_optimizer = sharded_transformer(seed=1)
    wanted = {"model": get_model_state_dict(again), "optimizer": get_optimizer_state_dict(again, its_optimizer)}
    dcp.load(wanted, checkpoint_id=folder / "parts")
    set_state_dict(again, its_optimizer, model_state_dict=wanted["model"], optim_state_dict=wanted["optimizer"])
    if rank == 0:
        known = torch.load(folder / "whole.pt")
        assert set(known) == set(whole) and all(not tensor.is_meta for tensor in known.values())
    assert language_steps(again, its_optimizer, rank, STEPS // 2, STEPS // 2) == losses[STEPS // 2:]
    return losses


PROGRAMS = {program.__name__: program for program in (tensor_parallel, sequence_parallel, fsdp2)}


def run(backend, name, rank, ranks, folder, told):
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if backend == "tessera":
        import tessera.torch_ranks  # noqa: F401
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    losses = PROGRAMS[name](rank, ranks, folder)
    if rank == 0:
        told.send(losses)
    dist.destroy_process_group()


def main():
    backend, name, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        taken, given = context.Pipe(duplex=False)
        processes = [context.Process(target=run, args=(backend, name, rank, ranks, pathlib.Path(folder), given)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes = [process.exitcode for process in processes]
        if any(codes):
            sys.exit(f"{name} on {backend}: exit codes {codes}")
        print(json.dumps(taken.recv()))


if __name__ == "__main__":
    main()
