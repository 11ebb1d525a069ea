"""The bytes that DTensor moves in a step of a tensor-parallel transformer: run as a program, prints JSON.

Four ranks of torch's fake process group, of which this process is the first. Bytes are those that all ranks receive together,
by the cheapest algorithm of each collective: what the counters of Tessera's workers count.
"""

import collections
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Gpt, batches, plan_of
from torch.distributed.tensor import DTensor, Replicate, Shard, parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

RANKS = 4


class Bytes(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.bytes, self.counts = 0, collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented       # DTensor's own dispatch comes first, so that what it moves by itself is seen
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if "c10d" in name and args and isinstance(args[0], torch.Tensor):
            size = args[0].numel() * args[0].element_size()
            factors = {"all_reduce": 2 * (RANKS - 1), "reduce_scatter": RANKS - 1, "all_gather": RANKS * (RANKS - 1),
                       "all_to_all": RANKS - 1}
            for kind, factor in factors.items():
                if kind in name:
                    self.bytes += factor * size
                    self.counts[kind] += 1
        return out


def main(is_sequence: bool) -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    torch.manual_seed(0)
    model = Gpt()
    styles = {name: getattr(parallel, name) for name in ("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput")}
    plan = plan_of(styles, Replicate(), Shard, is_sequence, model, use_local_output=False)
    parallel.parallelize_module(model, mesh, plan)
    model.output.weight = model.tokens.weight
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    (numbers, labels), = batches(1)
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.nn.attention import SDPBackend, sdpa_kernel
    out = {}
    with sdpa_kernel(SDPBackend.MATH), implicit_replication():
        for phase in ("forward", "backward", "optimizer"):
            with Bytes() as moved:
                if phase == "forward":
                    loss = F.cross_entropy(model(numbers).flatten(0, 1), labels.flatten())
                elif phase == "backward":
                    loss.backward()
                else:
                    optimizer.step()
            out[phase] = {"bytes": moved.bytes, "collectives": sum(moved.counts.values()), **moved.counts}
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1:] == ["sequence"])
