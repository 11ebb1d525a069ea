"""torch's DTensor on gloo: two ranks of one thread that measure what each line of standard input asks for
(JSON), and answer with a line {variant: [seconds]}. They end when standard input does."""

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

RANKS = 2
WARM_UPS = 2
PLACEMENTS = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1)}


def seconds_of(run, repetitions):
    """The time of each repetition, from a barrier to when the last rank has ended."""
    samples = []
    for i in range(WARM_UPS + repetitions):
        dist.barrier()
        start = time.perf_counter()
        kept = run()
        dist.barrier()
        if i >= WARM_UPS:
            samples.append(time.perf_counter() - start)
        del kept
    return samples


def operand(mesh, extents, dtype, placement):
    values = torch.arange(extents[0] * extents[1], dtype=dtype).remainder_(97).reshape(extents)
    if placement == "P":
        return DTensor.from_local(values, mesh, [Partial()]), values * RANKS
    return distribute_tensor(values, mesh, [PLACEMENTS[placement]]), values


def redistribute(mesh, question):
    dtype, wanted = getattr(torch, question["dtype"]), [PLACEMENTS[question["destination"]]]
    x, values = operand(mesh, question["extents"], dtype, question["source"])
    if not torch.equal(x.redistribute(placements=wanted).full_tensor(), values):
        raise SystemExit("DTensor: wrong values")
    return seconds_of(lambda: x.redistribute(placements=wanted), question["repetitions"])


def product(mesh, question):
    m, n, k = question["extents"]
    a, left = operand(mesh, [m, k], torch.float64, question["source"])
    b, right = operand(mesh, [k, n], torch.float64, question["destination"])
    if not torch.equal((a @ b).full_tensor(), left @ right):
        raise SystemExit("DTensor: wrong values")
    return seconds_of(lambda: a @ b, question["repetitions"])


def serve(rank, rendezvous, standard_input):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    lines = os.fdopen(standard_input) if rank == 0 else None
    while True:
        asked = [json.loads(lines.readline() or "null") if rank == 0 else None]
        dist.broadcast_object_list(asked, src=0)
        if asked[0] is None:
            break
        samples = {"redistribute": redistribute, "product": product}[asked[0]["work"]](mesh, asked[0])
        if rank == 0:
            print(json.dumps({"gloo": samples}), flush=True)
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        # torch's way to start processes leaves them no standard input: rank 0 is this one.
        other = processes.get_context("spawn").Process(target=serve, args=(1, rendezvous, -1))
        other.start()
        serve(0, rendezvous, sys.stdin.fileno())
        other.join()


if __name__ == "__main__":
    main()
