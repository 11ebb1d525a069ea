"""Ops under sharding whose bytes test_bytes.py compares with DTensor's: run as a program, prints what DTensor moves, as JSON.

A case is what goes in (a shape, and where it lies; "n" of integers below n) and a function. Both sides run the function, sum its
result up, go backward, and bring each gradient to where its tensor lies. DTensor runs on torch's fake process group, of which this
process is the first of four ranks.
"""

import json

import torch
import torch.nn.functional as F

R, S0, S1, S2 = "R", 0, 1, 2
B, T, D, E = 8, 4, 16, 32       # batch, sequence, width, inner width

CASES = {
    # contractions
    "linear by columns": ([((B, D), R), ((E, D), S0)], F.linear),
    "linear by columns of sharded rows": ([((B, T, D), S1), ((E, D), S0)], F.linear),
    "linear by rows": ([((B, E), S1), ((D, E), S1)], F.linear),
    "linear by rows of a sequence": ([((B, T, E), S2), ((D, E), S1)], F.linear),
    "linear of a batch in shards": ([((B, D), S0), ((E, D), R), ((E,), R)], F.linear),
    "two linears, columns then rows": ([((B, D), R), ((E, D), S0), ((D, E), S1)], lambda x, a, b: F.linear(F.relu(F.linear(x, a)), b)),
    "a gated layer": ([((B, D), R), ((E, D), S0), ((E, D), S0), ((D, E), S1)],
                      lambda x, a, b, c: F.linear(F.silu(F.linear(x, a)) * F.linear(x, b), c)),
    "mm of contracted shards": ([((B, D), S1), ((D, E), S0)], torch.mm),
    "mm of rows": ([((B, D), S0), ((D, E), R)], torch.mm),
    "mm of columns": ([((B, D), R), ((D, E), S1)], torch.mm),
    "bmm of a batch in shards": ([((B, T, D), S0), ((B, D, T), S0)], torch.bmm),
    "matmul of weights": ([((B, T, D), S0), ((D, E), R)], torch.matmul),
    # rows
    "layer norm of a batch": ([((B, T, D), S0), ((D,), R), ((D,), R)], lambda x, w, b: F.layer_norm(x, (D,), w, b)),
    "layer norm of a sequence": ([((B, T, D), S1), ((D,), R), ((D,), R)], lambda x, w, b: F.layer_norm(x, (D,), w, b)),
    "rms norm of a sequence": ([((B, T, D), S1), ((D,), R)], lambda x, w: F.rms_norm(x, (D,), w)),
    "softmax of sharded rows": ([((B, D), S0)], lambda x: F.softmax(x, -1).square()),
    "softmax along the shards": ([((B, D), S1)], lambda x: F.softmax(x, -1).square()),
    "log softmax of sharded rows": ([((B, D), S0)], lambda x: F.log_softmax(x, -1).square()),
    "cross-entropy of sharded rows": ([((B, D), S0), ((B,), S0, D)], lambda x, t: F.cross_entropy(x, t)),
    "squared error of sharded rows": ([((B, D), S0), ((B, D), S0)], F.mse_loss),
    # elements
    "gelu": ([((B, D), S1)], F.gelu),
    "silu times another": ([((B, D), S1), ((B, D), S1)], lambda a, b: F.silu(a) * b),
    "a sum with a bias": ([((B, D), S0), ((D,), R)], torch.add),
    "a product with a scale": ([((B, D), S0), ((D,), R)], torch.mul),
    "shards of two kinds": ([((B, D), S0), ((B, D), S1)], torch.mul),
    # reductions
    "sum over the shards": ([((B, D), S0)], lambda x: x.sum(0).square()),
    "mean over the shards": ([((B, D), S1)], lambda x: x.mean(1).square()),
    "maximum beside the shards": ([((B, D), S0)], lambda x: x.amax(1)),
    "norm of shards": ([((B, D), S0)], torch.linalg.vector_norm),
    # lookups
    "embedding by columns": ([((E, D), S1), ((B, T), R, E)], lambda w, n: F.embedding(n, w)),
    "embedding by rows": ([((E, D), S0), ((B, T), R, E)], lambda w, n: F.embedding(n, w)),
    "embedding of tokens in shards": ([((E, D), R), ((B, T), S0, E)], lambda w, n: F.embedding(n, w)),
    # attention and views
    "attention by heads": ([((2, 4, T, D), S1)] * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "attention by batch": ([((4, 2, T, D), S0)] * 3, F.scaled_dot_product_attention),
    "heads of a projection": ([((B, T, D), R), ((D, D), S0)], lambda x, w: F.linear(x, w).view(B, T, 4, 4).transpose(1, 2).square()),
    "a transpose": ([((B, D), S0)], lambda x: x.t().contiguous().square()),
}


def tensors(case):
    """A case's operands (values, where each lies)."""
    draw = torch.Generator().manual_seed(0)
    for shape, place, *top in CASES[case][0]:
        yield (torch.randint(0, top[0], shape, generator=draw) if top else torch.randn(shape, generator=draw)), place


def run(case, make, whole, home):
    """The function and its backward pass, of tensors that `make` made; home brings a gradient to where its tensor lies."""
    values = [make(value, place) for value, place in tensors(case)]
    leaves = [one.requires_grad_() for one in values if one.is_floating_point()]
    yield
    loss = whole(CASES[case][1](*values).sum())
    yield
    loss.backward()
    for one in leaves:
        home(one)
    yield


def main() -> None:
    import torch.distributed as dist
    from dtensor_bytes import RANKS, Bytes
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))

    def make(value, place):
        own = value if place == R else value.chunk(RANKS, place)[0].contiguous()
        return DTensor.from_local(own, mesh, [Replicate() if place == R else Shard(place)], run_check=False)

    out = {}
    with sdpa_kernel(SDPBackend.MATH), implicit_replication():
        for case in CASES:
            found = []
            steps = run(case, make, lambda one: one.redistribute(placements=[Replicate()]),
                        lambda leaf: leaf.grad.redistribute(placements=leaf.placements))
            next(steps)
            try:
                for _ in range(2):
                    with Bytes() as moved:
                        next(steps)
                    found.append([moved.bytes, sum(moved.counts.values())])
            except (RuntimeError, NotImplementedError) as error:
                found = str(error)[:200]        # DTensor has no rule for it
            out[case] = found
    print(json.dumps(out))


if __name__ == "__main__":
    main()
