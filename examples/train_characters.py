"""A character GPT, trained by data and tensor parallelism on four workers: the text is this repository's documentation.

    tools/python --torch examples/train_characters.py [--steps 60]

Prints the loss now and then, and in the end how much of it is left: it starts at the logarithm of the number of characters.
"""

import argparse
import functools
import math
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTH, WIDTH, HEADS, LAYERS, BATCH = 32, 64, 4, 2, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, vocabulary, bias=False)
        self.apply(self._start)
        self.output.weight = self.characters.weight     # tied

    @staticmethod
    def _start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, numbers):
        x = self.characters(numbers) + self.positions(torch.arange(numbers.shape[1], device=numbers.device))
        return self.output(self.norm(functools.reduce(lambda y, layer: layer(y), self.layers, x)))


def parallelize(model, mesh):
    """Attention by heads, MLP by features, what is between them by positions."""
    rows = {"output_layouts": ts.Shard(1)}
    plan = {"characters": RowwiseParallel(**rows), "positions": RowwiseParallel(output_layouts=ts.Shard(0)),
            "norm": SequenceParallel(), "output": ColwiseParallel(output_layouts=ts.Replicate())}
    for name in ("attention", "mlp"):
        plan[f"layers.*.{name}_norm"] = SequenceParallel()
        plan[f"layers.*.{name}"] = PrepareModuleInput(input_layouts=ts.Shard(1), desired_input_layouts=ts.Replicate())
    plan |= {"layers.*.attention.w[qkv]": ColwiseParallel(), "layers.*.attention.wo": RowwiseParallel(**rows),
             "layers.*.mlp.0": ColwiseParallel(), "layers.*.mlp.2": RowwiseParallel(**rows)}
    return parallelize_module(model, mesh, plan)


def main(steps: int) -> float:
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    vocabulary = sorted(set(text))
    numbers = torch.tensor([vocabulary.index(one) for one in text])
    torch.manual_seed(1)
    with ts.local_cluster(workers=4, memory="256MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize(Gpt(len(vocabulary)), mesh["tp"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
        losses = []
        for step in range(steps):
            starts = torch.randint(len(numbers) - LENGTH - 1, (BATCH,)).tolist()
            batch = torch.stack([numbers[i:i + LENGTH + 1] for i in starts])
            x, y = (tt.distribute_tensor(one, mesh, [ts.Shard(0), ts.Replicate()]) for one in (batch[:, :-1], batch[:, 1:]))
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if step % 20 == 0:
                print(f"step {step}: loss {loss:.3f}", flush=True)
        first, last = losses[0].item(), sum(one.item() for one in losses[-5:]) / 5
        print(f"{steps} steps: loss {first:.3f} to {last:.3f}; {len(vocabulary)} characters, ln {math.log(len(vocabulary)):.3f}")
        return last


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=120)
    main(parser.parse_args().steps)
