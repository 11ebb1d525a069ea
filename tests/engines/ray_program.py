"""The program that tests/engines/test_ray.py runs in the Python that has Ray: a pool on two nodes of a real cluster."""

import os
import signal
import sys
import time

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

import tessera as ts
import tessera.ray
from engine_checks import figure, hosts, numbers, right_product, seconds_until


def worker_of(pool, number):
    keep = psutil.Process(ray.get(pool._workers[number].pid.remote()))
    return next(child for child in keep.children() if child.name() == "tessera-worker")


def pool_is_right():
    began = time.monotonic()
    pool = tessera.ray.start(workers=2, memory="64MiB", strategy="STRICT_SPREAD")
    session = pool.session()
    assert right_product(session) == [0, 1] and len(hosts(session)) == 2
    figure("ray", "from a running engine to a right product over two nodes, s", time.monotonic() - began)
    return pool, session


def killed_workers_come_back(pool, session):
    x = session.distribute_tensor(np.ones((100, 100)), session.init_device_mesh((2,)), [ts.Shard(0)]).wait()
    worker_of(pool, 1).kill()
    seconds_until(lambda: numbers(session) == [0], "the loss to be seen")
    figure("ray", "a killed worker is back, s after its loss was seen", seconds_until(lambda: numbers(session) == [0, 1], "worker 1 to be back"))
    try:
        x.full_tensor()
        raise AssertionError("a shard is lost, and nothing said so")
    except ts.UnavailableError as error:
        assert "worker 1" in str(error), error
    assert right_product(session) == [0, 1]
    # The actor's whole process: Ray makes it again, and the worker has its number.
    actor = psutil.Process(ray.get(pool._workers[1].pid.remote())).parent()
    actor.kill()
    seconds_until(lambda: numbers(session) == [0], "the actor's loss to be seen")
    figure("ray", "a killed actor's worker is back, s after its loss was seen", seconds_until(lambda: numbers(session) == [0, 1], "the actor's worker"))
    assert right_product(session) == [0, 1]


def pool_grows(pool, session):
    began = time.monotonic()
    pool.scale(3)
    seconds_until(lambda: numbers(session) == [0, 1, 2], "a third worker", tell=lambda: pool.log_tail(2))
    figure("ray", "a worker is added, s", time.monotonic() - began)
    assert right_product(session) == [0, 1, 2]
    pool.scale(2)
    seconds_until(lambda: numbers(session) == [0, 1], "the third worker to end")


def objects_become_a_tensor(session):
    blocks = [np.random.default_rng(n).standard_normal((1 + n % 3, 5)) for n in range(7)]
    whole, refs = np.concatenate(blocks), [ray.put(block) for block in blocks]
    mesh = session.init_device_mesh((2,))
    for placements in ([ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]):
        x = tessera.ray.from_ray(refs, mesh, placements)
        np.testing.assert_array_equal(x.full_tensor(), whole)
        np.testing.assert_array_equal(np.concatenate(ray.get(tessera.ray.to_ray(x))), whole)
    try:
        tessera.ray.from_ray([ray.put(np.ones(3)), ray.put(np.ones((3, 2)))], mesh)
        raise AssertionError("blocks of two ranks were taken")
    except ts.InvalidArgumentError as error:
        assert "block 1 is float64[3, 2], block 0 is float64[3]" in str(error), error


def blocks_on(node, shapes):
    """Objects that the node alone has, of drawn numbers; and these."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def make(seed, shape):
        return np.random.default_rng(seed).standard_normal(shape)

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    refs = [make.options(scheduling_strategy=there).remote(seed, shape) for seed, shape in enumerate(shapes)]
    ray.wait(refs, num_returns=len(refs), fetch_local=False)
    return refs, [np.random.default_rng(seed).standard_normal(shape) for seed, shape in enumerate(shapes)]


def blocks_are_brought_from_where_they_lie(pool, session):
    here = ray.get_runtime_context().get_node_id()
    nodes = [ray.get(actor.node.remote()) for actor in pool._workers]
    mesh = session.init_device_mesh((2,))
    # Each worker's half lies on its own node: no block goes anywhere.
    refs, values = [], []
    for node in nodes:
        more = blocks_on(node, [(1000, 640), (3000, 640), (1, 640)])
        refs, values = refs + more[0], values + more[1]
    whole = np.concatenate(values)
    x = tessera.ray.from_ray(refs, mesh, [ts.Shard(0)])
    np.testing.assert_array_equal(x.full_tensor(), whole)
    at = ray.experimental.get_object_locations(refs)
    large = [(ref, node) for number, (ref, node) in enumerate(zip(refs, np.repeat(nodes, 3))) if number % 3 < 2]  # the small ones travel in messages
    assert [at[ref]["node_ids"] for ref, _ in large] == [[node] for _, node in large], "a block has moved"
    assert here in nodes
    # Shards that blocks of both nodes have a part of; copies; more positions than rows; a conversion after it.
    for placements in ([ts.Shard(1)], [ts.Replicate()]):
        np.testing.assert_array_equal(tessera.ray.from_ray(refs, mesh, placements).full_tensor(), whole)
    one, its_values = blocks_on(nodes[1], [(1, 1 << 18)])
    y = tessera.ray.from_ray(one, mesh, [ts.Shard(0)])
    assert y.to_local((1,)).shape == (0, 1 << 18)
    np.testing.assert_array_equal(y.full_tensor(), its_values[0])

    # A worker's actor that can't bring its part: the tensor is given up, and the next one is none the worse.
    @ray.remote(num_cpus=0)
    class Broken:
        def node(self):
            return "none"

        def send(self, door, upload, parts):
            raise ValueError("a disk that burns")

    actors = list(pool._workers)
    pool._workers[1] = Broken.remote()
    try:
        tessera.ray.from_ray(refs, mesh, [ts.Shard(0)])
        raise AssertionError("half of the tensor was brought")
    except ValueError as error:
        assert "a disk that burns" in str(error), error
    finally:
        pool._workers[:] = actors
    np.testing.assert_array_equal(tessera.ray.from_ray(refs, mesh, [ts.Shard(0)]).full_tensor(), whole)
    assert right_product(session) == [0, 1]


def bad_input_is_named():
    for wrong, said in (({"workers": 0}, "workers is 0"), ({"resources": {"CPU": 0}}, "amounts above 0"),
                        ({"workers": 1, "resources": {"CPU": 1000}, "timeout": 1}, "no place for 1 workers")):
        try:
            tessera.ray.start(**wrong)
            raise AssertionError(wrong)
        except (ts.InvalidArgumentError, ts.ResourceExhaustedError) as error:
            assert said in str(error), error


def main():
    try:
        tessera.ray.start(workers=1)
        raise AssertionError("there is no Ray yet")
    except ts.FailedPreconditionError as error:
        assert "ray.init" in str(error), error
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False})
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        pool, session = pool_is_right()
        killed_workers_come_back(pool, session)
        pool_grows(pool, session)
        objects_become_a_tensor(session)
        blocks_are_brought_from_where_they_lie(pool, session)
        processes = [pid for number in (0, 1) for pid in (ray.get(pool._workers[number].pid.remote()), worker_of(pool, number).pid)]
        session.close()
        began = time.monotonic()
        pool.stop()
        seconds_until(lambda: not any(psutil.pid_exists(pid) for pid in processes), "the processes to end")
        figure("ray", "stopped, s", time.monotonic() - began)
        bad_input_is_named()
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("right")


if __name__ == "__main__":
    signal.alarm(400)
    main()
    sys.stdout.flush()
    os._exit(0)
