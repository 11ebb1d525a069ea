"""The service's own cost: small ops, bytes up and down, memory for each tensor."""

import os
import pathlib

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, seconds_of

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def up_and_down(options):
    """Upload and download of one array by rows, 2 workers, beside a copy of the same bytes: of plain arrays, into an array
    that is there, and of one that workers map."""
    total = 256 * MIB if options.quick else 1024 * MIB
    with measure.running(2, total) as session:
        mesh = session.init_device_mesh((2,))
        source = np.arange(total // 8, dtype=np.float64).reshape(-1, 1024)
        target = np.zeros_like(source)
        copy = lambda: np.copyto(target, source)  # noqa: E731
        touched = seconds_of(copy, 5)
        fresh = seconds_of(source.copy, 5)
        up = lambda array: session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait()  # noqa: E731
        uploads = seconds_of(lambda: up(source), options.repetitions)
        x = up(source)
        downloads = seconds_of(x.full_tensor, options.repetitions)
        into = seconds_of(lambda: x.full_tensor(out=target), options.repetitions)
        measure.check(np.array_equal(x.full_tensor(), source) and np.array_equal(target, source), "up_and_down")
        touched += seconds_of(copy, 5)
        del target, x
        mapped = ts.host_empty(source.shape, source.dtype)
        mapped[...] = source
        mapped_uploads = seconds_of(lambda: up(mapped), options.repetitions)
        x = up(mapped)
        mapped[...] = 0
        mapped_downloads = seconds_of(lambda: x.full_tensor(out=mapped), options.repetitions)
        measure.check(np.array_equal(mapped, source), "up_and_down of host_empty")
    memcpy = {"memcpy": {"touched": touched}}
    staged, direct = measure.Goal("memcpy", 1 / 0.55), measure.Goal("memcpy", 1 / 0.7)
    return {"upload": measure.figure(uploads, memcpy, (staged,), bytes=total),
            "download": measure.figure(downloads, memcpy | {"copy to fresh memory": {"fresh": fresh}}, bytes=total),
            "download_out": measure.figure(into, memcpy, (staged,), bytes=total),
            "upload_host_empty": measure.figure(mapped_uploads, memcpy, (direct,), bytes=total),
            "download_host_empty": measure.figure(mapped_downloads, memcpy, (direct,), bytes=total)}


def tiny_ops(options):
    """Chained tiny ops a second from Python, and one tiny op with its fetch; 2 workers."""
    count = 5_000 if options.quick else 50_000
    with measure.running(2, 64 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)]).wait()
        pids = {"client": os.getpid(), "coordinator": session.cluster_of_bench.coordinator_pid,
                "worker": session.cluster_of_bench.worker_pids[0]}

        def issue():
            y = x
            for _ in range(count):
                y = y + 1
            return y

        before = {who: cpu_seconds(pid) for who, pid in pids.items()}
        chained = seconds_of(lambda: issue().wait(), 3, warm_ups=1)
        spent = {who: (cpu_seconds(pid) - before[who]) / (4 * count) * 1e6 for who, pid in pids.items()}
        issued = []
        for _ in range(3):
            issued += seconds_of(issue, 1, warm_ups=0)
            session.sync()
        assigned = assignments(session, mesh, count // 5)
        singles = 200 if options.quick else 2000
        fetched = seconds_of(lambda: (x + 1).full_tensor(), singles, warm_ups=50)
        waited = seconds_of(lambda: (x + 1).wait(), singles, warm_ups=50)
        eight = np.arange(8.0)
        brought = seconds_of(lambda: session.distribute_tensor(eight, mesh).wait(), singles, warm_ups=50)

        def bring_and_add():
            y = x
            for _ in range(singles):
                y = y + session.distribute_tensor(eight, mesh, [ts.Shard(0)])
            return y

        chained_uploads = seconds_of(lambda: bring_and_add().wait(), 3, warm_ups=1)
        measure.check(np.array_equal(issue().full_tensor(), np.full(8, float(count))), "tiny_ops")
    percentile = lambda samples, p: float(np.percentile(samples, p)) * 1e6  # noqa: E731
    return {"ops": count,
            "chained_ops_per_second": count / min(chained),
            "chained_assignments_per_second": assigned,
            "issue_us_per_op": min(issued) / count * 1e6,
            "cpu_us_per_op": spent,
            "op_and_fetch_us": {"median": percentile(fetched, 50), "p99": percentile(fetched, 99)},
            "op_and_wait_us": {"median": percentile(waited, 50), "p99": percentile(waited, 99)},
            "small_upload_and_wait_us": {"median": percentile(brought, 50), "p99": percentile(brought, 99)},
            "chained_small_uploads_per_second": singles / min(chained_uploads)}


def chained_maps(options):
    """Six ops on each element of f32, 2 workers, beside one loop that two processes share."""
    total = 64 * MIB if options.quick else 256 * MIB
    limit = measure.limit("chain", elements=total // 4, processes=2)
    with measure.running(2, 2 * total) as session:
        mesh = session.init_device_mesh((2,))
        values = (np.arange(total // 4) % 97 - 40).astype(np.float32)
        x = session.distribute_tensor(values, mesh, [ts.Shard(0)]).wait()
        chain = lambda: ts.maximum((x * 2 + 1) * 0.5 - 3, 0.0) * 1.5  # noqa: E731
        expected = np.maximum((values * np.float32(2) + 1) * np.float32(0.5) - 3, 0) * np.float32(1.5)
        measure.check(np.array_equal(chain().full_tensor(), expected), "chained_maps")
        return measure.beside(options, lambda: chain().wait(), {"limit": limit}, [measure.Goal("limit", 1.2)],
                              bytes=total, workers=2)


def assignments(session, mesh, count):
    """Chained x[i] = v a second."""
    def assign():
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)])
        for i in range(count):
            x[i % 8] = 2.0
        return x.wait()
    measure.check(np.array_equal(assign().full_tensor(), np.full(8, 2.0)), "assignments")
    return count / min(seconds_of(assign, 3, warm_ups=1))


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def live_tensors(options):
    """Memory of the coordinator for each live tensor."""
    count = 20_000 if options.quick else 100_000
    with measure.running(2, 128 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)]).wait()
        ts.wait(*[x + 1 for _ in range(1000)])
        session.sync()
        pid = session.cluster_of_bench.coordinator_pid
        before = resident_bytes(pid)
        held = [x + 1 for _ in range(count)]
        ts.wait(held[-1])
        session.sync()
        grown = resident_bytes(pid) - before
        del held
        session.sync()
    return {"tensors": count, "coordinator_bytes_per_tensor": grown / count}
