"""The time of an upload by torch's ways beside the client's own: `.to("tessera")`, `copy_` and `load_state_dict` beside
ts.distribute_tensor, of one tensor in shards of its first dim.

    tools/python --torch tests/bench/torch_uploads.py [--mib 1024] [--workers 4] [--rounds N]

Rounds of all ways in turn; the least of each, as a ratio to the client's of the same run, with the bytes that the workers counted
and the most that one of them has in the end. Prints a table, and the same as JSON in the last line.
"""

import argparse
import json
import time

import numpy as np
import torch

import tessera as ts
import tessera.torch as tt

COLUMNS = 4096


class Holder(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)


def by_load_state_dict(values):
    with torch.device("meta"):
        holder = Holder(torch.empty(values.shape))
    holder.to_empty(device="tessera").load_state_dict({"weight": values})
    return holder.weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    nbytes = options.mib << 20
    array = np.ones((nbytes // 4 // COLUMNS, COLUMNS), np.float32)
    values = torch.from_numpy(array)
    memory = 2 * nbytes // options.workers + (64 << 20)
    with ts.local_cluster(workers=options.workers, memory=memory) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((options.workers,))
        ways = {
            "ts.distribute_tensor": lambda: ts.distribute_tensor(array, mesh, [ts.Shard(0)]),
            "tt.distribute_tensor": lambda: tt.distribute_tensor(values, mesh, [ts.Shard(0)]),
            "x.to": lambda: values.to("tessera"),
            "module.to": lambda: Holder(values).to("tessera").weight,
            "copy_": lambda: torch.empty(values.shape, device="tessera").copy_(values),
            "load_state_dict": lambda: by_load_state_dict(values),
        }
        least = dict.fromkeys(ways, float("inf"))
        moved = {}
        with tt.default_placement(mesh, [ts.Shard(0)]), torch.no_grad():
            for _ in range(options.rounds):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way().wait()
                    least[name] = min(least[name], time.perf_counter() - start)
                    session.sync()
            for name, way in ways.items():
                with session.comm_debug() as comm:
                    x = way().wait()
                used = max(one["used_bytes"] for one in session.status()["workers"])
                moved[name] = sum(comm.bytes_uploaded), sum(comm.bytes_received), used
                del x
    base = least["ts.distribute_tensor"]
    print(f"{options.mib} MiB in shards on {options.workers} workers")
    print(f"{'way':22s} {'seconds':>8s} {'ratio':>6s} {'uploaded':>9s} {'moved':>7s} {'most on a worker':>17s}")
    out = {}
    for name, seconds in least.items():
        uploaded, between, used = moved[name]
        out[name] = {"seconds": seconds, "ratio": seconds / base, "bytes_uploaded": uploaded, "bytes_received": between, "most_bytes_on_a_worker": used}
        print(f"{name:22s} {seconds:8.3f} {seconds / base:6.2f} {uploaded / nbytes:8.2f}n {between / nbytes:6.2f}n {used / nbytes:16.3f}n")
    print(json.dumps({"mib": options.mib, "workers": options.workers, "ways": out}))


if __name__ == "__main__":
    main()
