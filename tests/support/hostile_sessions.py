"""A neighbour's delays while one session does what no honest client does, and what servers hold of it.

    python hostile_sessions.py --rounds 15 --seconds 3

Each round has one attack; its number is that of docs/performance.md's table, and 0 is none, but as many loops that use no Tessera as there
are workers. A neighbour makes tiny ops and transfers of 1 MiB,
first alone (quiet) and then beside the attack. A round fails if a value is wrong, an op fails, a server ends, or a server's
memory grows by more than the attack's limit. The p99 are reported, and fail a round with --timed: ops above 2x quiet + 5 ms,
transfers above 2x quiet + 50 ms."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tessera as ts
from slow_disk import SLOW_DISK, Disk

BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))
ATTACK = BINARIES / "tests/system/hostile/tessera-attack"
MIB = 1 << 20
END_SECONDS = 30
WORKERS = 3
SAMPLE_SECONDS = 0.05


class Wrong(Exception):
    """A round's findings."""


# ---- attacks, each in a process of its own, until its stdin ends


def forever(step):
    """Until there is nobody to attack any more; what is refused is tried again."""
    print("ready", flush=True)
    while True:
        try:
            step()
        except (ts.TesseraError, OSError):
            time.sleep(0.001)


def with_session(address, step):
    session = ts.connect(address, lease=1)
    with session:
        forever(lambda: step(session))


def hogs(address, folder):
    """[0] No attack: as many loops as there are workers, which use nothing but the processors."""
    loops = [subprocess.Popen([sys.executable, "-c", "import ctypes; ctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"]) for _ in range(WORKERS)]
    try:
        forever(lambda: time.sleep(0.1))
    finally:
        for loop in loops:
            loop.kill()


def decoded_blocks(address, folder):
    """[5] Chunks of zeros, which are small in the file and large in a decoder."""
    import zarr
    path = folder / "zeros.zarr"
    if not path.exists():
        zarr.create_group(path).create_array("x", shape=(1 << 23,), chunks=(1 << 23,), dtype="f8", fill_value=1)[:] = 0
    with_session(address, lambda session: ts.open(path, session=session)["x"][:1000].wait())


def far_apart(address, folder):
    """[6] Elements of which each is a read."""
    path = folder / "thin.npy"
    if not path.exists():
        np.lib.format.open_memmap(path, mode="w+", dtype="u1", shape=(1 << 20, 4096)).flush()
    with_session(address, lambda session: ts.open(path, session=session)[:, 0].wait())


def away(address, folder):
    """[7, 8] Loads and saves on a disk that is away."""
    path = folder / "slow" / "x.npy"
    np.save(path, np.zeros(1000))

    def step(session):
        ts.save(folder / "slow" / "y.npy", ts.load(path, session.default_mesh))

    with_session(address, step)


def questions(address, folder):
    """[9] Questions about a file in which there is much to say."""
    import h5py
    path = folder / "many.h5"
    if not path.exists():
        with h5py.File(path.with_suffix(".new"), "w") as file:
            for number in range(3000):
                file.create_dataset(f"g/{number}", data=np.zeros(1))
        path.with_suffix(".new").rename(path)

    def ask():
        session = ts.connect(address, lease=1)
        with contextlib.suppress(ts.TesseraError):
            while True:
                ts.open(path, session=session)
                os.utime(path)

    for _ in range(3):
        threading.Thread(target=ask, daemon=True).start()
    forever(lambda: time.sleep(0.1))


def open_files(address, folder):
    """[12] Loads of a thousand files each."""
    paths = [folder / "files" / f"{number}.npy" for number in range(1000)]
    if not paths[0].parent.exists():
        paths[0].parent.mkdir()
        for path in paths:
            np.save(path, np.zeros(10))
    with_session(address, lambda session: [ts.open(path, session=session)[:] for path in paths])


def silent(address, folder):
    """[15] Connections that say nothing."""
    path = address.partition("#")[0].removeprefix("unix:")
    kept = []

    def step():
        kept.append(socket.socket(socket.AF_UNIX))
        kept[-1].connect(path)
        del kept[:-500]

    forever(step)


def refused(address, folder):
    """[16] Connections that are refused, each with a line in the log."""
    wrong = address.partition("#")[0] + "#token=wrong"
    forever(lambda: ts.connect(wrong))


PYTHON = {"0": hogs, "5": decoded_blocks, "6": far_apart, "7": away, "9": questions, "12": open_files, "15": silent, "16": refused}
WIRE = {"1": "meshes", "2": "unread", "3": "events", "4": "halves", "13": "connections", "14": "sessions"}
ATTACKS = sorted([*PYTHON, *WIRE, "10"], key=int)
# MiB by which the coordinator, a worker and its decoder may grow, by docs/limits.md: what a session may have under way, and what
# allocators keep. [5]: max_decoder_kept_bytes, and a block while it is decoded. [3]: max_pending_event_bytes of a session.
GROWTH = {"5": 1024}
MOST_GROWTH = 200


def attack(number, address, folder):
    sys.stdin.close()
    PYTHON[number](address, folder)


# ---- the neighbour, and what servers hold


def median_and_p99(seconds):
    return tuple(round(float(np.percentile(seconds, at)) * 1e3, 2) for at in (50, 99))


def measure(session, seconds):
    """ms: the median and p99 of tiny ops with their values, and of transfers of 1 MiB there and back."""
    mesh, ops, transfers = session.init_device_mesh((2,), workers=[0, 1]), [], []
    tiny, large = np.arange(8.0), np.arange(MIB // 8, dtype="f8")
    x = session.distribute_tensor(tiny, mesh)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            began = time.perf_counter()
            value = float((x + 1).sum())
            ops.append(time.perf_counter() - began)
            if value != 36.0:
                raise Wrong(f"a sum is {value}, not 36")
        began = time.perf_counter()
        back = session.distribute_tensor(large, mesh).full_tensor()
        transfers.append(time.perf_counter() - began)
        if not np.array_equal(back, large):
            raise Wrong("a transfer has other bytes")
    return {"op_ms": median_and_p99(ops), "transfer_ms": median_and_p99(transfers), "ops": len(ops), "transfers": len(transfers)}


def resident_mib(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0.0


def children_of(pid):
    """The children of all its threads."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return []


class Growth(threading.Thread):
    """The most that each server, with its decoder, held beside what it held first. Pages of the arena that are touched
    late are not growth: the neighbour's measuring before has touched its own."""

    def __init__(self, pids):
        super().__init__(daemon=True)
        self.before = {name: self.held(pid) for name, pid in pids.items()}
        self.pids, self.most, self.stopped = pids, dict.fromkeys(pids, 0.0), threading.Event()
        self.start()

    @staticmethod
    def held(pid):
        return resident_mib(pid) + sum(map(resident_mib, children_of(pid)))

    def run(self):
        while not self.stopped.wait(SAMPLE_SECONDS):
            for name, pid in self.pids.items():
                self.most[name] = max(self.most[name], self.held(pid) - self.before[name])

    def end(self):
        self.stopped.set()
        self.join()
        return {name: round(mib, 1) for name, mib in self.most.items()}


# ---- a round


@contextlib.contextmanager
def attacking(number, cluster, folder, disk):
    if number == "10":      # It is in no mesh of the neighbour. It doesn't breathe either; tests/simulation has one that does.
        os.kill(cluster.worker_pids[2], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(cluster.worker_pids[2], signal.SIGCONT)
        return
    command = [ATTACK, cluster.address, WIRE[number]] if number in WIRE else [sys.executable, __file__, "--attack", number, "--address", cluster.address,
                                                                              "--folder", folder]
    with disk.away() if number == "7" else contextlib.nullcontext():
        process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            if process.stdout.readline() != "ready\n":
                raise Wrong("the attack didn't begin")
            yield
            if process.poll() is not None:
                raise Wrong(f"the attack ended with status {process.returncode}")
        finally:
            process.kill()
            process.communicate()


def run_round(number, seconds, is_timed):
    """A cluster of its own, so that nothing is left of another attack."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-hostile-"))
    try:
        disk = Disk(folder)
        # A disk that may be away makes each call about a file slower.
        made = disk.cluster(folder, count=WORKERS) if number == "7" else ts.local_cluster(WORKERS, memory="64MiB", files=[folder])
        with made as cluster, cluster.connect(stall_timeout=END_SECONDS) as neighbour:
            pids = {"coordinator": cluster.coordinator_pid, **{f"worker {i}": pid for i, pid in enumerate(cluster.worker_pids)}}
            quiet = measure(neighbour, seconds)
            growth = Growth(pids)
            with attacking(number, cluster, folder, disk):
                beside = measure(neighbour, seconds)
            grown = growth.end()
            after = measure(neighbour, 0.2)
            del after
            ended = [name for name, pid in pids.items() if resident_mib(pid) == 0]
            if ended:
                raise Wrong(f"{', '.join(ended)} ended")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    allowed = GROWTH.get(number, MOST_GROWTH)
    is_quick = beside["op_ms"][1] <= 2 * quiet["op_ms"][1] + 5 and beside["transfer_ms"][1] <= 2 * quiet["transfer_ms"][1] + 50
    result = {"attack": number, "quiet": quiet, "beside": beside, "grown_mib": grown, "allowed_mib": allowed, "is_quick": is_quick}
    if max(grown.values()) > allowed:
        raise Wrong(f"servers grew by {grown} MiB, {allowed} are allowed")
    if is_timed and not is_quick:
        raise Wrong(f"p99 of ops {quiet['op_ms'][1]} ms became {beside['op_ms'][1]}, of transfers {quiet['transfer_ms'][1]} became {beside['transfer_ms'][1]}")
    return result


def run(attacks, seconds, is_timed=False, told=lambda result: None):
    results = []
    for number in attacks:
        try:
            results.append(run_round(number, seconds, is_timed))
        except (Wrong, ts.TesseraError) as error:
            raise Wrong(f"tools/faults --memory-cap --attacks {number}: {type(error).__name__}: {error}") from error
        told(results[-1])
    return results


def row(result):
    quiet, beside = result["quiet"], result["beside"]
    return (f"[{result['attack']}]".ljust(6) + f"ops {quiet['op_ms'][1]:7.2f} -> {beside['op_ms'][1]:7.2f} ms   transfers {quiet['transfer_ms'][1]:7.2f} -> "
            f"{beside['transfer_ms'][1]:7.2f} ms   {'' if result['is_quick'] else 'SLOW '}  grown {max(result['grown_mib'].values()):6.1f} of {result['allowed_mib']} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory-cap", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=len(ATTACKS), help="each has the next attack")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="numbers with commas")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--timed", action="store_true", help="a p99 above its bound fails a round")
    parser.add_argument("--json", action="store_true")
    for name in ("--attack", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        return attack(options.attack, options.address, options.folder)
    attacks = options.attacks.split(",")
    try:
        results = run([attacks[i % len(attacks)] for i in range(options.rounds)], options.seconds, options.timed,
                      lambda result: None if options.json else print(row(result), flush=True))
    except Wrong as error:
        print(error)
        return 1
    if options.json:
        print(json.dumps({"rounds": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
