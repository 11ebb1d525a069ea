"""The modules that the tests train, and the loops that train them."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard


class Attention(nn.Module):
    def __init__(self, width, heads, shared=1):
        super().__init__()
        self.heads, self.features = heads, width // heads
        self.kept = heads // shared
        self.wq = nn.Linear(width, width)
        self.wk, self.wv = (nn.Linear(width, self.kept * self.features) for _ in range(2))
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, heads, self.features).transpose(1, 2)
                   for w, heads in ((self.wq, self.heads), (self.wk, self.kept), (self.wv, self.kept)))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kept != self.heads)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, width):
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class Block(nn.Module):
    def __init__(self, width, heads, norm, gated, shared, dropout):
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(width), norm(width)
        self.attention = Attention(width, heads, shared)
        self.mlp = GatedMlp(width) if gated else Mlp(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Gpt(nn.Module):
    """A character model with tied embeddings."""

    def __init__(self, vocabulary=16, length=8, width=16, heads=4, layers=2, norm=nn.LayerNorm, gated=False, shared=1, dropout=0.0,
                 checkpoint=False):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads, norm, gated, shared, dropout) for _ in range(layers))
        self.norm = norm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.checkpoint = checkpoint
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.1)
        self.output.weight = self.tokens.weight

    def forward(self, numbers):
        x = self.tokens(numbers) + self.positions(torch.arange(numbers.shape[1], device=numbers.device))
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        return self.output(self.norm(x))


def batches(count=3, rows=8, length=8, vocabulary=16):
    draw = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(0, vocabulary, (rows, length), generator=draw) for _ in range(2)) for _ in range(count)]


def train(model, data, make_optimizer, steps=5, clip=1.0, amp=False):
    """Losses and norms of gradients by step; nothing is read before the last step is asked for."""
    optimizer = make_optimizer(model.parameters())
    out = []
    for step in range(steps):
        numbers, labels = data[step % len(data)]
        with torch.autocast(numbers.device.type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(model(numbers).flatten(0, 1), labels.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        out.append((loss.detach(), norm.detach()))
    return [(loss.item(), norm.item()) for loss, norm in out]


def on(mesh, data, placements):
    return [tuple(tt.distribute_tensor(one, mesh, placements) for one in pair) for pair in data]


def plan_of(styles, replicate, shard, is_sequence, model, **options):
    """Attention and MLP cut by heads and features; with is_sequence the rest by positions. styles: the classes by name, ours
    or torch's; options: of what goes into attention."""
    column, row = styles["ColwiseParallel"], styles["RowwiseParallel"]
    out = shard(1) if is_sequence else replicate
    plan = {"tokens": row(input_layouts=replicate, output_layouts=out), "output": column(input_layouts=out, output_layouts=replicate),
            "positions": row(input_layouts=replicate, output_layouts=shard(0) if is_sequence else replicate)}
    if is_sequence:
        plan["norm"] = styles["SequenceParallel"]()
    for name in ("wq", "wk", "wv"):
        plan[f"layers.*.attention.{name}"] = column(**options)
    plan.update({"layers.*.attention.wo": row(output_layouts=out), "layers.*.mlp.w1": column(), "layers.*.mlp.w2": row(output_layouts=out)})
    if isinstance(model.layers[0].mlp, GatedMlp):
        plan["layers.*.mlp.w3"] = column()
    if is_sequence:
        for name in ("attention", "mlp"):
            plan[f"layers.*.{name}"] = styles["PrepareModuleInput"](input_layouts=shard(1), desired_input_layouts=replicate)
            plan[f"layers.*.{name}_norm"] = styles["SequenceParallel"]()
    return plan


def tensor_parallel(model, mesh, is_sequence=False):
    from tessera.torch import parallel
    return parallel.parallelize_module(model, mesh, plan_of(vars(parallel), R, S, is_sequence, model))


def close(a, b, tolerance=1e-5):
    """Whether the numbers are close: relative above 1, absolute below."""
    return all(abs(x - y) <= tolerance * max(1.0, abs(y)) for x, y in zip(a, b))


def assert_same_training(got, expected, tolerance=1e-5):
    for step, (one, other) in enumerate(zip(got, expected)):
        assert close(one, other, tolerance), f"step {step}: (loss, norm) {one}, torch {other}"


def same_start(make):
    """A model and its copy, with shared parameters shared."""
    torch.manual_seed(0)
    first = make()
    return first, copy.deepcopy(first)
