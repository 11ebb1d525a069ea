"""Rounds of faults under load. In each, a cluster of four workers has three clients that run random ops with NumPy as the
oracle, while workers are killed (and started again), stopped for a moment, clients killed and connections cut.

    python faults.py --rounds 150 --seed 7

A round holds if no client ever gets a wrong number, every error is one that a fault explains, nobody hangs, and in the
end the cluster has all its workers, computes, and has its memory back. Else it says its seed and what happened, and
`--rounds 1 --seed SEED` makes the same plan again (when each op meets a fault is up to the machine).

`--kill coordinator,worker,up,client` kills these alone. With the coordinator among them the cluster has a state folder, and
another coordinator goes on with it. With `up` it is `tessera up` that keeps the cluster: it starts the others again, and when it is
killed the next one goes on with all that it has left. Where no worker and no client is killed, no client may see an error at all."""

import argparse
import contextlib
import json
import os
import pathlib
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tessera as ts
from tls_cluster import held_port, make_certificates

BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))
WORKERS, CLIENTS = 4, 3
ROUNDS_PER_CLUSTER = 10
FAULT_SECONDS = 1.5
END_SECONDS = 60
# The errors with which a fault may end an op. A session whose connection is cut is closed from then on.
EXPLAINED = (ts.UnavailableError, ts.DeadlineExceededError, ts.CancelledError)
FAULTS = ("worker", "stop", "client", "cut")
UNSEEN = {"coordinator", "up"}  # no client sees an error where these alone are killed
KILLED = ("coordinator", "worker", "up", "client")
LEASE_SECONDS = 10  # of a client that is killed


class Wrong(Exception):
    """A round's findings."""


# ---- a client, in a process of its own


def placements(rng, ndim):
    return [rng.choice([ts.Replicate(), *(ts.Shard(d) for d in range(ndim))])]


def mesh_of(rng, session):
    return session.init_device_mesh((size,), workers=rng.sample(range(WORKERS), size)) if (size := rng.randint(1, WORKERS)) else None


def step(rng, session, values):
    """Values by handle: one of them becomes another, which is compared now and then."""
    if not values or rng.random() < 0.25:
        rows, columns = rng.randint(1, 200), rng.randint(1, 200)
        if rng.random() < 0.1:
            rows *= 40  # an upload in slabs
        made = np.random.default_rng(rng.getrandbits(32)).integers(-4, 5, (rows, columns)).astype("f8")
        values.append((session.distribute_tensor(made, mesh_of(rng, session), placements(rng, 2)), made))
        del values[:-6]
        return
    x, of_x = rng.choice(values)
    kind = rng.randrange(6)
    if kind == 0:
        made = x + 1, of_x + 1
    elif kind == 1:
        made = x.redistribute(placements(rng, 2)), of_x
    elif kind == 2:
        made = x.redistribute(mesh_of(rng, session), placements(rng, 2)), of_x
    elif kind == 3:
        made = x * 2 - x, of_x
    elif kind == 4 and max(of_x.shape) <= 200 and np.abs(of_x).max() < 1000:
        made = x @ x.T, of_x @ of_x.T
    else:
        compare(x.full_tensor(), of_x)
        return
    values.append(made)
    del values[:-6]


def compare(got, wanted):
    if not np.array_equal(got, wanted):
        differ = np.argwhere(got != wanted)
        raise Wrong(f"{len(differ)} of {wanted.size} elements differ, the first at {differ[0]}: {got[tuple(differ[0])]}, "
                    f"NumPy has {wanted[tuple(differ[0])]}")


def cut_connections(*_):
    """As when something between ends them: the process's own unix sockets, one half at random."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and stat.S_ISSOCK(os.fstat(fd).st_mode) and random.random() < 0.5:
                with socket.socket(fileno=os.dup(fd)) as own:
                    own.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def connect(address, ca, **options):
    return ts.connect(address, **({"ca": ca} if ca else {}), **options)


def client(address, ca, seed, explained=EXPLAINED):
    rng, stopping = random.Random(seed), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    signal.signal(signal.SIGUSR1, cut_connections)
    session, values, steps, failures = None, [], 0, 0
    print("ready", flush=True)
    while not stopping.is_set():
        try:
            if session is None:
                session = connect(address, ca, stall_timeout=20, lease=LEASE_SECONDS)
            step(rng, session, values)
            steps += 1
        except explained:
            failures += 1
            values.clear()
            session = None if rng.random() < 0.3 else session
            time.sleep(0.01)
        except ts.FailedPreconditionError as error:
            if "closed" not in str(error):
                raise
            session, values = None, []
    try:
        if session is not None:
            session.close()
    except (*explained, ts.FailedPreconditionError) if explained else ():  # a fault has ended it
        failures += 1
    print(f"done {steps} {failures}", flush=True)


# ---- clusters and their rounds


class Cluster:
    ca = None  # of an address of TLS

    def __init__(self, transport, kill=()):
        self.folder = tempfile.mkdtemp(prefix="tessera-faults-")
        self.transport, self.kill = transport, kill
        self.outlives = "coordinator" in kill
        if transport == "tls":
            make_certificates(f"{self.folder}/certs", "127.0.0.1")
        self.token, join_token = secrets.token_hex(16), secrets.token_hex(16)
        self.environment = {**os.environ, "TESSERA_JOIN_TOKEN": join_token}
        self.listen = f"unix:{self.folder}/coordinator.sock"
        self.address = f"{self.listen}#token={self.token}"
        self.start_coordinator()
        self.workers = [self.start_worker(index) for index in range(WORKERS)]
        with ts.connect(self.address) as self.session:
            wait_until(self.is_whole, "all workers have joined")
        self.session = ts.connect(self.address)  # which knows them all

    def start_coordinator(self):
        command = [BINARIES / "server/coordinator/tessera-coordinator", "--listen", self.listen]
        if self.outlives:  # with snapshots often, so that many a start is from one
            command += ["--state", f"{self.folder}/state", "--session-lease", str(LEASE_SECONDS), "--snapshot-after", "0.05"]
        with open(f"{self.folder}/coordinator.log", "ab") as log:
            self.coordinator = subprocess.Popen(command, env={**self.environment, "TESSERA_TOKEN": self.token}, stdout=subprocess.PIPE,
                                                stderr=log)
        if not self.coordinator.stdout.readline():
            raise Wrong("the coordinator does not start")

    def restart_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()
        self.coordinator.stdout.close()
        self.start_coordinator()

    def start_worker(self, index):
        command = [BINARIES / "server/worker/tessera-worker", "--coordinator", self.listen, "--index", str(index), "--memory", "256MiB",
                   "--transport", self.transport, "--threads", "1", "--workers-on-host", str(WORKERS), "--socket-dir", self.folder]
        command += ["--outlive", "60"] if self.outlives else []
        if self.transport == "tls":  # between the workers
            file = f"{self.folder}/certs"
            command += ["--message-listen=127.0.0.1", f"--tls-cert={file}/worker.crt", f"--tls-key={file}/worker.key", f"--tls-ca={file}/ca.crt"]
        with open(f"{self.folder}/worker{index}.log", "ab") as log:
            return subprocess.Popen(command, env=self.environment, stderr=log)

    def kill_worker(self, index):
        self.workers[index].kill()
        self.restart_worker(index)

    def restart_worker(self, index):
        """Once the coordinator knows that the old one is dead."""
        self.workers[index].wait()
        wait_until(lambda: self.states()[index] != "alive", f"worker {index} is known to be dead")
        self.workers[index] = self.start_worker(index)

    def status(self):
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                return self.session.status()
            except ts.UnavailableError:  # its line to the next coordinator is being made
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def states(self):
        known = {worker["index"]: worker["state"] for worker in self.status()["workers"]}
        return [known.get(index, "none") for index in range(WORKERS)]

    def is_whole(self):
        return all(worker.poll() is None for worker in self.workers) and self.states() == ["alive"] * WORKERS

    def check(self):
        wait_until(self.is_whole, "all workers are alive")
        wait_until(lambda: len(self.status()["sessions"]) == 1, "the clients' sessions are gone")
        try:
            wait_until(lambda: all(worker["used_bytes"] == 0 for worker in self.status()["workers"]), "their memory is free")
        except Wrong as error:
            left = {worker["index"]: (worker["used_bytes"], worker["outstanding"]) for worker in self.status()["workers"]}
            raise Wrong(f"{error}; used bytes and outstanding instructions by worker: {left}") from None
        made = np.arange(600.0).reshape(30, 20)
        mesh = self.session.init_device_mesh((WORKERS,), workers=list(range(WORKERS)))
        x = self.session.distribute_tensor(made, mesh, [ts.Shard(0)])
        compare((x.redistribute([ts.Shard(1)]) + 1).full_tensor(), made + 1)

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(pathlib.Path(self.folder).glob("*.log")))

    def stop(self):
        for process in [*self.workers, self.coordinator]:
            process.kill()
            process.wait()
        self.coordinator.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class UpCluster(Cluster):
    """One that `tessera up` keeps: it starts what is killed, and is started again when it is."""

    def __init__(self, transport, kill):
        self.folder = tempfile.mkdtemp(prefix="tessera-faults-")
        self.transport, self.kill = transport, kill
        if transport == "tls":  # also between clients and the pool
            with held_port() as held:
                self.port = held.getsockname()[1]
        self.start_up()
        self.session = connect(self.address, self.ca)

    def start_up(self):
        command = [BINARIES / "client/cli/tessera", "up", f"--workers={WORKERS}", "--memory=256MiB", f"--state={self.folder}/state",
                   f"--listen=unix:{self.folder}/coordinator.sock"]
        command += [f"--listen=tls://127.0.0.1:{self.port}"] if self.transport == "tls" else [f"--transport={self.transport}"]
        with open(f"{self.folder}/up.log", "ab") as log:
            self.up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "TESSERA_BIN_DIR": str(BINARIES)})
        self.address = self.up.stdout.readline().strip()
        if not self.address:
            raise Wrong(f"tessera up does not start: {pathlib.Path(f'{self.folder}/up.log').read_text()[-2000:]}")
        if self.transport == "tls":
            self.address = f"tls://127.0.0.1:{self.port}#{self.address.partition('#')[2]}"
            self.ca = f"{self.folder}/state/tls/ca.crt"

    def kill_process(self, worker):
        record = json.loads(pathlib.Path(f"{self.folder}/state/processes").read_text())
        pid, started = next((one["pid"], one["started"]) for one in record["processes"] if one["worker"] == worker)
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has been killed just now
            if int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) == started:
                os.kill(pid, signal.SIGKILL)

    def restart_coordinator(self):
        self.kill_process(-1)

    def kill_worker(self, index):
        self.kill_process(index)

    def restart_up(self):
        self.up.kill()
        self.up.wait()
        self.up.stdout.close()
        self.start_up()

    def is_whole(self):
        return self.states() == ["alive"] * WORKERS

    def stop(self):
        self.up.terminate()
        self.up.wait()
        self.up.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_until(true, what):
    deadline = time.monotonic() + END_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise Wrong(f"after {END_SECONDS} s it is not so that {what}")
        time.sleep(0.02)


def start_client(cluster, seed):
    command = [sys.executable, __file__, "--client", cluster.address, "--seed", str(seed)]
    command += ["--kill", ",".join(cluster.kill)] if cluster.kill else []
    command += ["--ca", cluster.ca] if cluster.ca else []
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started.stdout.readline()
    return started


def end_client(started, told):
    """The client's output, once it was told to end; it has END_SECONDS for it."""
    try:
        out, err = started.communicate(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        raise Wrong("a client hangs") from None
    if started.returncode != 0:
        raise Wrong(f"a client ended with status {started.returncode}:\n{err[-3000:]}")
    steps, failures = map(int, out.split()[1:])
    told.append(f"a client made {steps} steps, {failures} of them failed")
    return steps


def run_round(cluster, seed, told):
    rng = random.Random(seed)
    clients = [start_client(cluster, rng.getrandbits(32)) for _ in range(CLIENTS)]
    began = time.monotonic()
    stopped = []
    try:
        for at in sorted(rng.uniform(0.1, FAULT_SECONDS) for _ in range(rng.randint(2, 5))):
            time.sleep(max(0.0, began + at - time.monotonic()))
            fault, index, one = rng.choice(cluster.kill or FAULTS), rng.randrange(WORKERS), rng.randrange(CLIENTS)
            pause, new_seed = rng.uniform(0.05, 0.6), rng.getrandbits(32)
            if fault == "coordinator":
                told.append(f"{at:.2f} s: the coordinator is killed, and another goes on")
                cluster.restart_coordinator()
            elif fault == "worker":
                told.append(f"{at:.2f} s: worker {index} is killed, and starts again")
                cluster.kill_worker(index)
            elif fault == "up":
                told.append(f"{at:.2f} s: tessera up is killed, and starts again")
                cluster.restart_up()
            elif fault == "stop":
                told.append(f"{at:.2f} s: worker {index} is stopped for {pause:.2f} s")
                stopped.append(cluster.workers[index])
                stopped[-1].send_signal(signal.SIGSTOP)
                time.sleep(pause)
                stopped.pop().send_signal(signal.SIGCONT)
            elif fault == "client":
                told.append(f"{at:.2f} s: client {one} is killed, and another comes")
                clients[one].kill()
                clients[one].communicate()
                clients[one] = start_client(cluster, new_seed)
            else:
                told.append(f"{at:.2f} s: connections of client {one} are cut")
                clients[one].send_signal(signal.SIGUSR1)
        time.sleep(max(0.0, began + FAULT_SECONDS - time.monotonic()))
        steps = sum(end_client(one, told) for one in clients)
    finally:
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)
        for one in clients:
            if one.poll() is None:
                one.kill()
                one.communicate()
    cluster.check()
    return steps


def run(rounds, seed, transport, kill=()):
    """How many steps the clients made; raises Wrong, with the seed and what happened."""
    cluster, steps = None, 0
    try:
        for number in range(rounds):
            has_up = "up" in kill
            if cluster is None or has_up or number % ROUNDS_PER_CLUSTER == 0:  # up starts each a few times alone
                if cluster is not None:
                    cluster.stop()
                cluster = (UpCluster if has_up else Cluster)(transport, kill)
            told = []
            try:
                cluster.check()
                steps += run_round(cluster, seed + number, told)
            except (Wrong, ts.TesseraError) as error:
                again = f"tools/faults --rounds 1 --seed {seed + number} --transport {transport}" + (f" --kill {','.join(kill)}" if kill else "")
                raise Wrong("\n".join([f"round {number}, transport {transport}: {again}",
                                       *told, f"{type(error).__name__}: {error}", cluster.logs()])) from error
    finally:
        if cluster is not None:
            cluster.stop()
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--transport", choices=["shm", "ucx", "tls"], default="shm")
    parser.add_argument("--kill", type=lambda text: tuple(text.split(",")), default=(), metavar="coordinator,worker,up,client",
                        help="kill these alone")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--ca", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    if unknown := set(options.kill) - set(KILLED):
        parser.error(f"--kill: {', '.join(sorted(unknown))}; it is some of {', '.join(KILLED)}")
    if options.client:
        return client(options.client, options.ca, seed, () if options.kill and set(options.kill) <= UNSEEN else EXPLAINED)
    print(f"{options.rounds} rounds, seed {seed}, transport {options.transport}", flush=True)
    try:
        print(f"all held; {run(options.rounds, seed, options.transport, options.kill)} steps")
    except Wrong as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
