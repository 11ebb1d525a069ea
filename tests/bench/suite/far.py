"""The cost of TLS for a client of another host: bytes up and down, chained tiny ops, and a crowd at the door; over loopback."""

import os
import socket
import sys
import time

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, seconds_of

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "support"))
from tls_cluster import TlsCluster  # noqa: E402

def far_up_and_down(options):
    """Upload and download over TLS, one worker, beside a bare TLS stream of KJ with the same bytes."""
    total = 128 * MIB if options.quick else 1024 * MIB
    with TlsCluster(workers=1, memory=str(3 * total)) as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((1,))
        source = np.arange(total // 8, dtype=np.float64).reshape(-1, 1024)
        target = np.zeros_like(source)
        bare = measure.run_program([measure.BINARIES / "tests/bench/tls_stream_bench", cluster.certificates, total, 3])
        up = lambda: session.distribute_tensor(source, mesh, [ts.Shard(0)]).wait()  # noqa: E731
        uploads = seconds_of(up, 3)
        x = up()
        downloads = seconds_of(lambda: x.full_tensor(out=target), 3)
        measure.check(np.array_equal(target, source), "far_up_and_down")
    goal = measure.Goal("bare TLS stream", 1 / 0.8)
    return {"far_upload": measure.figure(uploads, {"bare TLS stream": {"kj": bare["up"]}}, (goal,), bytes=total),
            "far_download": measure.figure(downloads, {"bare TLS stream": {"kj": bare["down"]}}, (goal,), bytes=total)}


def far_tiny_ops(options):
    """Chained tiny ops through TLS beside the unix socket of the same coordinator; two workers."""
    count = 5_000 if options.quick else 50_000
    with TlsCluster(workers=2) as cluster:
        near, far = cluster.connect(address=cluster.unix), cluster.connect()
        samples = {"unix socket": [], "TLS": []}
        for _ in range(options.rounds + 1):
            for name, session in (("unix socket", near), ("TLS", far)):
                x = session.distribute_tensor(np.zeros(8), session.init_device_mesh((2,)), [ts.Shard(0)]).wait()

                def chain():
                    y = x
                    for _ in range(count):
                        y = y + 1
                    y.wait()
                samples[name] += seconds_of(chain, 2, warm_ups=1)
        near.close()
        far.close()
    return {"far_tiny_ops": measure.figure(samples["TLS"], {"unix socket": {"unix": samples["unix socket"]}},
                                           (measure.Goal("unix socket", 1 / 0.9),), ops=count)}


def crowd(options):
    """4,096 connections that show nothing: what the coordinator takes for them, and how long a client takes to connect."""
    with TlsCluster(workers=1, flags=["--max-connections=8192", "--handshake-timeout=60"]) as cluster:
        status = f"/proc/{cluster.processes[0].pid}/status"
        resident = lambda: next(int(line.split()[1]) << 10 for line in open(status) if line.startswith("VmRSS"))  # noqa: E731
        before, held = resident(), []
        port = int(cluster.address.rpartition(":")[2])
        for _ in range(256 if options.quick else 4096):
            held.append(socket.create_connection(("localhost", port)))
            held[-1].sendall(b"\x16\x03\x01")   # a handshake begins
        start = time.perf_counter()
        cluster.connect().close()
        seconds = time.perf_counter() - start
        taken = resident() - before
        for connection in held:
            connection.close()
    return {"connections": len(held), "seconds_to_connect": seconds, "resident_bytes": taken,
            "goals": [{"text": "a client connects in 1 s", "met": seconds <= 1},
                      {"text": "256 MiB for all", "met": taken <= 256 * MIB}]}
