"""Between two hosts (network namespaces made for it): beside a TCP connection that carries the same bytes."""

import dataclasses
import subprocess
import sys

import numpy as np

import tessera as ts

from . import measure
from .measure import BINARIES, HERE, MIB, Unavailable

sys.path.insert(0, str(HERE.parent / "support"))
import two_hosts  # noqa: E402

PORT = 7007
TOTAL = 64 * MIB  # of the tensor, f32
SHAPE = (4096, 4096)


@dataclasses.dataclass(frozen=True)
class Case:
    """`crossing` is the part of the tensor that must cross each way."""
    source: object
    destination: object
    crossing: float
    on_each_host: int = 1


@dataclasses.dataclass(frozen=True)
class Product:
    """Half of the right operand crosses each way, once for all of a host's workers."""
    on_each_host: int
    extent: int = 2048
    rate: str = ""  # of the link, each way; else what the machine can do
    columns: int = 1  # of the mesh: of several both operands lie in blocks, and each worker multiplies rows by columns

    @property
    def mesh(self):
        rows = 2 * self.on_each_host // self.columns
        return (rows, self.columns) if self.columns > 1 else (rows,)

    @property
    def placements(self):
        """The placements of both operands, and of each as it is multiplied."""
        if self.columns > 1:
            return [ts.Shard(0), ts.Shard(1)], [ts.Shard(0), ts.Replicate()], [ts.Replicate(), ts.Shard(1)]
        return [ts.Shard(0)], [ts.Shard(0)], [ts.Replicate()]


CASES = {
    "two_hosts_rows_to_columns_64MiB": Case(ts.Shard(0), ts.Shard(1), 0.25),
    "two_hosts_all_reduce_64MiB": Case(ts.Partial(), ts.Replicate(), 1.0),
    "two_hosts_all_gather_64MiB": Case(ts.Shard(0), ts.Replicate(), 0.5),
    "two_hosts_matmul_2048_f64": Product(1),
    "two_hosts_matmul_2048_f64_4_workers": Product(2),
    "two_hosts_matmul_1024_f64_4_workers_1gbit": Product(2, 1024, "1gbit"),
    "two_hosts_matmul_1024_f64_1gbit": Product(1, 1024, "1gbit"),
    "two_hosts_matmul_1024_f64_blocks_8_workers_1gbit": Product(4, 1024, "1gbit", columns=2),
}


def socket_limit(hosts, total_bytes):
    def run(repetitions):
        program = [BINARIES / "tests/bench/limits/limits_bench", "sockets", f"--port={PORT}", f"--bytes={total_bytes}",
                   f"--repetitions={repetitions}"]
        listener = subprocess.Popen(hosts[1].command(*program, "--listen=10.77.0.2"), stdout=subprocess.DEVNULL)
        try:
            return measure.run_program(hosts[0].command(*program, "--connect=10.77.0.2"))["variants"]
        finally:
            listener.wait(measure.PROGRAM_SECONDS)
    return run


def run(options, name):
    case = CASES[name]
    try:
        with two_hosts.TwoHosts() as hosts, two_hosts.Cluster(hosts, (case.on_each_host,) * 2, "256MiB") as cluster, \
                ts.connect(cluster.address) as session:
            if isinstance(case, Product):
                if case.rate:
                    hosts.limit_rate(case.rate)
                return run_product(options, name, session, case)
            return run_on(options, name, case, hosts, session)
    except two_hosts.NotPermitted as reason:
        raise Unavailable(f"two network namespaces are not permitted here: {reason}") from reason


def run_on(options, name, case, hosts, session):
    mesh = session.init_device_mesh((2,))
    values = np.random.default_rng(3).integers(-8, 9, SHAPE).astype("f4")
    pending = case.source == ts.Partial()
    x = ts.from_local(lambda position: values if position[0] == 0 else np.ones_like(values), mesh, [case.source], shape=SHAPE) \
        if pending else session.distribute_tensor(values, mesh, [case.source])
    expected = values + 1 if pending else values
    move = lambda: x.redistribute(placements=[case.destination])  # noqa: E731
    measure.check(np.array_equal(move().full_tensor(), expected), name)
    return measure.beside(options, lambda: move().wait(), {"limit": socket_limit(hosts, int(TOTAL * case.crossing))},
                          (), bytes=TOTAL, bytes_each_way=int(TOTAL * case.crossing))


def run_product(options, name, session, case):
    """Beside the same product where nothing crosses, and beside gathering first and multiplying then."""
    n = case.extent
    mesh = session.init_device_mesh(case.mesh)
    own, *multiplied = case.placements
    values = [np.random.default_rng(seed).integers(-8, 9, (n, n)).astype("f8") for seed in (1, 2)]
    operands = [session.distribute_tensor(value, mesh, own) for value in values]
    gather = lambda: [x.redistribute(placements=there) for x, there in zip(operands, multiplied)]  # noqa: E731
    gathered = gather()
    measure.check(np.array_equal(ts.matmul(*operands).full_tensor(), values[0] @ values[1]), name)
    timed = lambda run: lambda repetitions: {"service": measure.seconds_of(run, repetitions)}  # noqa: E731
    references = {"nothing crosses": timed(lambda: ts.matmul(*gathered).wait()),
                  "gather, then multiply": timed(lambda: ts.matmul(*gather()).wait())}
    return measure.beside(options, lambda: ts.matmul(*operands).wait(), references, (), bytes_each_way=n * n * 4)
