"""The time of from_ray: NumPy blocks on two nodes of a Ray cluster become a sharded tensor, beside one copy of their bytes.

    ~/.cache/tessera/engines/bin/python tests/bench/from_ray.py [--mib 512] [--blocks 8] [--rounds 5] [--json]

Two nodes on this machine, with an object store each; half of the blocks lies on each, as do a worker and its shard. `copy_s` is one
np.copyto of all bytes by one thread between arrays that have been touched, `from_ray_s` the call until its tensor is ready, both the
best of the rounds; `elsewhere_s`: the same where each block lies on the other node, so that Ray brings it. `through_s`: the blocks
are read by the program, and go from there to the workers, as without a pool's actors.
"""

import argparse
import json
import time

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import tessera as ts
import tessera.ray


@ray.remote(num_cpus=0)
def make(rows, columns):
    return np.ones((rows, columns))


def best(rounds, run):
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bytes_ = options.mib << 20
    store = bytes_ * 2 + (64 << 20)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": store, "include_dashboard": False})
    cluster.add_node(num_cpus=2, object_store_memory=store)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    columns = 1 << 10
    rows = bytes_ // 8 // columns // options.blocks
    with tessera.ray.start(workers=2, memory=f"{2 * options.mib}MiB", strategy="STRICT_SPREAD") as pool, pool.session() as session:
        mesh = session.init_device_mesh((2,))
        nodes = [ray.get(actor.node.remote()) for actor in pool._workers]

        def blocks(order):
            there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in order]
            refs = [make.options(scheduling_strategy=there[2 * n // options.blocks]).remote(rows, columns) for n in range(options.blocks)]
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
            return refs

        def bring(refs):
            tessera.ray.from_ray(refs, mesh, [ts.Shard(0)]).wait()

        source, target = np.ones(bytes_ // 8), np.zeros(bytes_ // 8)
        result = {"bytes": bytes_, "copy_s": best(options.rounds, lambda: np.copyto(target, source))}
        del source, target
        refs = blocks(nodes)
        result["from_ray_s"] = best(options.rounds, lambda: bring(refs))
        del refs
        result["elsewhere_s"] = min(best(1, lambda refs=blocks(nodes[::-1]): bring(refs)) for _ in range(2))
        session._ray_pool = lambda: None
        result["through_s"] = min(best(1, lambda refs=blocks(nodes): bring(refs)) for _ in range(2))
        result["ratio"] = result["from_ray_s"] / result["copy_s"]
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value:.4g}" for name, value in result.items()))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
