"""The cost of single attacks: the coordinator's time and memory, an upload beside a thin load, clients that connect during a flood.

    tools/python tests/bench/hostile_figures.py [--only calls isolation thin flood]

`calls`: tests/system/hostile/figures_main.cc, two numbers for each attack. `isolation`: how long answers take that name another tenant's
things, and absent ones (tests/system/hostile/isolation_figures_main.cc). `thin`: uploads of 16 MiB, alone and beside a load of 15 million
elements that lie 4 KiB apart in a file. `flood`: as many TLS connections as two processes make, which say nothing, while clients whose
bytes take 100 ms each way connect from another address. Prints JSON.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin"))
THIN_ELEMENTS, APART = 15_000_000, 4096
UPLOAD_BYTES, UPLOADS = 16 << 20, 12
CLIENTS, DELAY_S, FLOODERS, KEPT = 32, 0.1, 2, 5000
FLOOD_FROM, CLIENTS_FROM = "127.0.0.5", "127.0.0.6"


def printed_by(program):
    done = subprocess.run([BINARIES / "tests/system/hostile" / program, BINARIES], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def calls():
    return printed_by("tessera-hostile-figures")


def isolation():
    return printed_by("tessera-isolation-figures")


def thin():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-thin-"))
    try:
        np.lib.format.open_memmap(folder / "thin.npy", mode="w+", dtype="u1", shape=(THIN_ELEMENTS, APART)).flush()   # sparse
        with ts.local_cluster(2, memory="256MiB", files=[folder]) as cluster, cluster.connect() as other, cluster.connect() as session:
            array, mesh = np.ones(UPLOAD_BYTES // 8), session.init_device_mesh((2,))

            def upload_ms():
                began = time.perf_counter()
                session.distribute_tensor(array, mesh, [ts.Shard(0)]).wait()
                return (time.perf_counter() - began) * 1e3

            upload_ms()
            quiet = [upload_ms() for _ in range(UPLOADS)]
            loading = ts.open(folder / "thin.npy", session=other)[:, 0]
            beside = [upload_ms() for _ in range(UPLOADS)]
            try:
                loading.wait(0.05)
            except ts.DeadlineExceededError:
                pass
            else:
                raise SystemExit("the load was over before the uploads were")
        return {"quiet_ms": round(max(quiet), 1), "beside_ms": round(max(beside), 1), "median_quiet_ms": round(statistics.median(quiet), 1),
                "median_beside_ms": round(statistics.median(beside), 1)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def flooder(port, made, stop):
    kept = []
    while not stop.is_set():
        for _ in range(100):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((FLOOD_FROM, 0))
                one.connect(("127.0.0.1", port))
            except OSError:
                one.close()
                continue
            kept.append(one)
        with made.get_lock():
            made.value += 100
        for old in kept[:-KEPT]:
            old.close()
        del kept[:-KEPT]


class FarAway:
    """A proxy whose bytes arrive DELAY_S later, both ways, and that connects from an address of its own."""

    def __init__(self, port):
        self._target, self._server = port, socket.create_server(("localhost", 0), backlog=128)
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self._server.accept()
            threading.Thread(target=self._open, args=(near,), daemon=True).start()

    def _open(self, near):
        time.sleep(DELAY_S)
        far = socket.create_connection(("127.0.0.1", self._target), source_address=(CLIENTS_FROM, 0))
        for source, to in ((near, far), (far, near)):
            threading.Thread(target=self._pass, args=(source, to), daemon=True).start()

    @staticmethod
    def _pass(source, to):
        try:
            while data := source.recv(1 << 16):
                time.sleep(DELAY_S)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            to.close()


def flood():
    from tls_cluster import TlsCluster
    with TlsCluster(workers=1) as cluster:
        port = int(cluster.clients.rpartition(":")[2])
        made, stop = multiprocessing.Value("q", 0), multiprocessing.Event()
        processes = [multiprocessing.Process(target=flooder, args=(port, made, stop)) for _ in range(FLOODERS)]
        for process in processes:
            process.start()
        proxy, connected, failures = FarAway(port), [], []
        time.sleep(1)
        first, began = made.value, time.monotonic()

        def connect():
            start = time.monotonic()
            try:
                with cluster.connect(address=f"tls://localhost:{proxy.port}", timeout=30):
                    connected.append(time.monotonic() - start)
            except ts.TesseraError as error:
                failures.append(str(error))

        threads = [threading.Thread(target=connect) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        rate = (made.value - first) / (time.monotonic() - began)
        stop.set()
        for process in processes:
            process.join(5)
            process.kill()
        return {"connections_per_s": round(rate), "clients": CLIENTS, "connected": len(connected),
                "slowest_s": round(max(connected), 2) if connected else None, "failures": failures[:2]}


FIGURES = {"calls": calls, "isolation": isolation, "thin": thin, "flood": flood}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(FIGURES), default=list(FIGURES))
    options = parser.parse_args()
    print(json.dumps({"load": os.getloadavg()[0]} | {name: FIGURES[name]() for name in options.only}))


if __name__ == "__main__":
    main()
