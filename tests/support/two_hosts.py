"""Two hosts on one machine: network and mount namespaces of their own, joined by a veth pair, and a cluster with
workers in both. Workers of different hosts can't tell that they could map each other, so they exchange messages.

    with TwoHosts() as hosts, Cluster(hosts, workers=(2, 2)) as cluster:
        session = tessera.connect(cluster.address)

More hosts are names alone: their workers don't try to map each other, and exchange messages over the loopback interface.

    with Cluster(named_hosts(6), workers=6 * (2,)) as cluster:

Everything ends with the blocks: a namespace lives as long as its holder. NotPermitted says what is missing where
namespaces can't be made (they take root, `unshare`, `nsenter` and `ip`).
"""

import contextlib
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

import tessera as ts

INTERFACE = "tess0"  # the name of both ends, each in its own namespace
START_SECONDS = 60
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))


class NotPermitted(Exception):
    """Why two hosts can't be made here."""


def wait_until(true, what):
    deadline = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


class NamedHost:
    interface, address = "lo", "127.0.0.1"

    def __init__(self, name):
        self.options = ["--host-id", name]

    def command(self, *words):
        return [*map(str, words)]


def named_hosts(count):
    return [NamedHost(f"host {number}") for number in range(count)]


class Host:
    """A network and a mount namespace, held by a process that ends with its standard input."""

    interface, options = INTERFACE, []

    def __init__(self, number):
        self.address = f"10.77.0.{number}"
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--", "sh", "-c", "echo made; exec cat >/dev/null"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "made\n":
            raise NotPermitted(f"unshare: {self.holder.stderr.read().strip()}")
        self.run("mount", "-t", "sysfs", "sysfs", "/sys")  # UCX looks for interfaces there

    def command(self, *words):
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--", *map(str, words)]

    def run(self, *words):
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        if done.returncode != 0:
            raise NotPermitted(f"{words[0]}: {done.stderr.strip()}")
        return done.stdout

    def received_bytes(self):
        """Bytes that came in by the interface, all protocols' headers included."""
        lines = [line.split(":") for line in self.run("cat", "/proc/net/dev").splitlines()]
        return next(int(line[1].split()[0]) for line in lines if line[0].strip() == INTERFACE)

    def close(self):
        for pipe in (self.holder.stdin, self.holder.stdout, self.holder.stderr):
            pipe.close()
        self.holder.wait()


class TwoHosts:
    def __init__(self):
        for program in ("unshare", "nsenter", "ip"):
            if shutil.which(program) is None:
                raise NotPermitted(f"{program} is not installed")
        self.hosts = []

    def __enter__(self):
        try:
            self.hosts = [Host(1)]
            self.hosts.append(Host(2))
            self.hosts[0].run("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns",
                              self.hosts[1].holder.pid)
            for host in self.hosts:
                host.run("ip", "address", "add", f"{host.address}/24", "dev", INTERFACE)
                host.run("ip", "link", "set", INTERFACE, "up")
                host.run("ip", "link", "set", "lo", "up")
            for host in self.hosts:
                wait_until(lambda: host.run("cat", f"/sys/class/net/{INTERFACE}/operstate") == "up\n", "the link between them")
        except BaseException:
            self.__exit__()
            raise
        return self

    def break_connections(self):
        """Ends all TCP connections between them, as when what carries them fails; False where the kernel can't."""
        return self.hosts[0].run("ss", "--kill", "--no-header", "state", "established", "dst", "10.77.0.0/24").strip() != ""

    def limit_rate(self, rate):
        """Slows the link between them down, each way, to a rate like "1gbit" (tc's words; NotPermitted where the kernel can't)."""
        for host in self.hosts:
            host.run("tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", rate, "burst", "256k", "latency", "400ms")

    @contextlib.contextmanager
    def link_down(self):
        """Nothing gets from one to the other in the block, and nobody says so."""
        self.hosts[0].run("ip", "link", "set", INTERFACE, "down")
        try:
            yield
        finally:
            self.hosts[0].run("ip", "link", "set", INTERFACE, "up")

    def __exit__(self, *_):
        for host in self.hosts:
            host.close()

    def __getitem__(self, number):
        return self.hosts[number]


def make_certificates(folder, *hosts):
    """The certificates that `tessera certs` makes for the hosts, in the folder."""
    words = [word for host in hosts for word in ("--host", host)]
    done = subprocess.run([*map(str, (BINARIES / "client/cli/tessera", "certs", folder)), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Cluster:
    """A coordinator on the first host, workers[h] workers on host h, numbered in this order. Messages between hosts go by
    UCX, or over TLS; `certificates`: of each host the folder of its workers' certificate, else one is made for all."""

    def __init__(self, hosts, workers=(2, 2), memory="64MiB", worker_options=(), transport="shm+ucx", certificates=None):
        self.folder = tempfile.mkdtemp(prefix="tessera-hosts-")
        self.processes, self.worker_options, self.transport = [], worker_options, transport
        if transport.endswith("tls") and certificates is None:
            certificates = [f"{self.folder}/tls"] * len(workers)
            make_certificates(certificates[0], *{hosts[h].address for h in range(len(workers))})
        token, join_token = secrets.token_hex(16), secrets.token_hex(16)
        environment = {**os.environ, "TESSERA_TOKEN": token, "TESSERA_JOIN_TOKEN": join_token}
        self.join_token = join_token
        listen = f"unix:{self.folder}/coordinator.sock"
        self.address = f"{listen}#token={token}"
        try:
            coordinator = self._start(hosts[0].command(BINARIES / "server/coordinator/tessera-coordinator", "--listen", listen),
                                      environment, "coordinator", stdout=subprocess.PIPE)
            coordinator.stdout.readline()  # it listens
            numbers = iter(range(sum(workers)))
            self.workers = [self._start_worker(hosts[h], next(numbers), count, memory, listen, environment,
                                               self._between_hosts(hosts[h], certificates and certificates[h]))
                            for h, count in enumerate(workers) for _ in range(count)]
            self._await_workers()
        except BaseException:
            self.stop()
            raise

    def _start(self, command, environment, name, **more):
        with open(f"{self.folder}/{name}.log", "wb") as log:
            process = subprocess.Popen(command, env=environment, stderr=log, **more)
        self.processes.append(process)
        return process

    def _between_hosts(self, host, certificates):
        if self.transport.endswith("tls"):
            return ["--message-listen", host.address, "--tls-cert", f"{certificates}/worker.crt", "--tls-key",
                    f"{certificates}/worker.key", "--tls-ca", f"{certificates}/ca.crt"]
        return ["--trusted-network", "--net-devices", host.interface]

    def _start_worker(self, host, number, on_host, memory, listen, environment, between_hosts):
        command = host.command(BINARIES / "server/worker/tessera-worker", "--coordinator", listen, "--index", number, "--memory",
                               memory, "--threads", 1, "--transport", self.transport, *between_hosts,
                               "--workers-on-host", on_host, "--socket-dir", self.folder, *host.options, *self.worker_options)
        return self._start(command, environment, f"worker{number}")

    def _await_workers(self):
        with ts.connect(self.address) as session:
            alive = lambda: sum(worker["state"] == "alive" for worker in session.status()["workers"])  # noqa: E731
            ended = lambda: any(process.poll() is not None for process in self.processes)  # noqa: E731
            wait_until(lambda: ended() or alive() == len(self.workers), "workers did not join")
            if ended():
                raise RuntimeError(f"a process ended:\n{self.logs()}")

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(pathlib.Path(self.folder).glob("*.log")))

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
