"""A token of `generate`: transformers' Llama on this CPU by torch, and on a worker by tessera.torch.

    "$(tools/setup_ecosystem --path)" tests/bench/torch_generate.py [--json] [--tokens 64] [--rounds 5] [--beams 1] [--ops]

Needs the Python of tools/setup_ecosystem. Greedy or by beams, one sequence, torch on one thread; in turns, the least of several rounds. `ops` are
those of a token; `waits` are values that the program reads for one. --ops shows which ops a token asks torch for, of the most first.
"""

import argparse
import collections
import json
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import tessera as ts
import tessera.torch as tt  # noqa: F401 - the device

SIZES = {
    "2 layers of 64": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128},
    "4 layers of 64": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 128},
    "4 layers of 512": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "vocab_size": 2000},
}
WAYS = {"dynamic": {}, "static": {"cache_implementation": "static"}}


class Count(TorchDispatchMode):
    """The ops that reach the device."""

    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def llama(size: dict) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512, **size)).eval()


def timed(model, prompt, tokens: int, options: dict) -> tuple:
    """Seconds of wall and of this thread for a token, and the sequence."""
    wall, own = time.perf_counter(), time.thread_time()
    out = model.generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=None, **options).cpu()
    return (time.perf_counter() - wall) / tokens, (time.thread_time() - own) / tokens, out


def counted(model, prompt, tokens: int, options: dict) -> collections.Counter:
    """Ops of a token: the difference of two lengths."""
    seen = []
    for n in (tokens, 2 * tokens):
        with Count() as count:
            timed(model, prompt, n, options)
        seen.append(count.seen)
    return collections.Counter({name: (n - seen[0][name]) / tokens for name, n in seen[1].items() if n > seen[0][name]})


def measure(session, name: str, tokens: int, rounds: int, beams: int, with_ops: bool) -> list:
    here = llama(SIZES[name])
    there = llama(SIZES[name]).to("tessera")
    prompt = torch.randint(1, 100, (1, 8), generator=torch.Generator().manual_seed(1))
    rows = []
    best = {way: [float("inf"), float("inf")] for way in ("torch", *WAYS)}
    outs = {}
    for _ in range(rounds + 1):     # the first round compiles plans and captures
        for way in best:
            model, x, options = (here, prompt, {}) if way == "torch" else (there, prompt.to("tessera"), WAYS[way])
            options = {**options, "num_beams": beams}
            wall, own, outs[way] = timed(model, x, tokens, options)
            best[way] = [min(best[way][0], wall), min(best[way][1], own)]
    for way in WAYS:
        assert torch.equal(outs[way], outs["torch"]), f"{name}, {way}: other tokens than torch's"
        ops = counted(there, prompt.to("tessera"), 8, {**WAYS[way], "num_beams": beams})
        rows.append({"model": name, "cache": way, "torch_ms": 1e3 * best["torch"][0], "wall_ms": 1e3 * best[way][0], "thread_ms": 1e3 * best[way][1],
                     "ratio": best[way][0] / best["torch"][0], "ops": sum(ops.values()),
                     "waits": ops["aten._local_scalar_dense.default"] + ops["aten.is_nonzero.default"]})
        if with_ops:
            rows[-1]["by_op"] = dict(ops.most_common(40))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--size", choices=SIZES, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with ts.local_cluster(workers=1, memory="512MiB") as cluster, cluster.connect() as session:
        for name in given.size or SIZES:
            rows += measure(session, name, given.tokens, given.rounds, given.beams, given.ops)
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{'model':16s} {'cache':8s} {'torch ms':>9s} {'here ms':>9s} {'thread ms':>10s} {'ratio':>6s} {'ops':>6s} {'waits':>6s}")
    for one in rows:
        print(f"{one['model']:16s} {one['cache']:8s} {one['torch_ms']:9.2f} {one['wall_ms']:9.2f} {one['thread_ms']:10.2f} {one['ratio']:6.2f} "
              f"{one['ops']:6.0f} {one['waits']:6.1f}")
        for op, n in one.get("by_op", {}).items():
            print(f"    {op:50s} {n:6.1f}")


if __name__ == "__main__":
    main()
