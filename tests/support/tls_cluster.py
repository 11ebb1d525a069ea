"""A cluster that clients reach by TLS alone: its workers say that they are of another host. And a proxy that cuts."""

import os
import pathlib
import secrets
import selectors
import shutil
import socket
import subprocess
import tempfile
import threading

BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin"))


def make_certificates(folder, *hosts):
    """The files of `tessera certs`; where they are."""
    flags = [flag for host in hosts or ("localhost",) for flag in ("--host", host)]
    subprocess.run([BINARIES / "client/cli/tessera", "certs", str(folder), *flags], check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(folder)


def held_port():
    """A socket with a port of this host. It doesn't listen: nobody else is given the port, and a server may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Here:
    """Where programs run, and by which name they are reached: as two_hosts.Host."""

    address = "localhost"

    @staticmethod
    def command(*words):
        return [*map(str, words)]


class TlsCluster:
    """Coordinator and workers with addresses of TLS; the workers join by TLS, too. `host`: where all of them run."""

    def __init__(self, workers=2, memory="64MiB", proxied=False, flags=(), host=Here):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-tls-", dir="/tmp"))
        self.host = host
        self.certificates = make_certificates(self.folder / "certs", *{host.address, "localhost"})
        self.token, self.join_token = secrets.token_hex(8), secrets.token_hex(8)
        self.processes, self.proxies, self.held = [], [], []
        own = self._files("server")
        command = host.command(BINARIES / "server/coordinator/tessera-coordinator", f"--listen=unix:{self.folder}/socket",
                               f"--listen=tls://{host.address}:0", f"--listen-workers=tls://{host.address}:0", *own, *flags)
        environment = {**os.environ, "TESSERA_TOKEN": self.token, "TESSERA_JOIN_TOKEN": self.join_token}
        self.log = open(self.folder / "coordinator.log", "wb")
        coordinator = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.processes.append(coordinator)
        told = [coordinator.stdout.readline().split()[-1] for _ in range(3)]
        self.unix, self.clients, self.workers = told
        self.address = self._through_proxy(self.clients) if proxied else self.clients
        for index in range(workers):
            self.start_worker(index, memory, proxied)
        self.wait_for_workers(workers)

    def _files(self, who):
        return [f"--tls-cert={self.certificates}/{who}.crt", f"--tls-key={self.certificates}/{who}.key", f"--tls-ca={self.certificates}/ca.crt"]

    def _through_proxy(self, address):
        self.proxies.append(CutProxy(int(address.rpartition(":")[2])))
        return f"tls://localhost:{self.proxies[-1].port}"

    def start_worker(self, index, memory="64MiB", proxied=False, coordinator=None, who="worker", address="own", flags=(), data_port=0, sockets=None):
        """`address`: where clients are told to bring bytes; None: nowhere."""
        flags = [*flags] if address in ("own", None) else [*flags, f"--data-advertise={address}"]
        name, port = self.host.address, data_port
        if proxied:
            self.held.append(held_port())
            port = self.held[-1].getsockname()[1]
            flags += [f"--data-advertise=localhost:{self._through_proxy(f'tls://localhost:{port}').rpartition(':')[2]}"]
        command = self.host.command(
            BINARIES / "server/worker/tessera-worker", f"--coordinator={coordinator or self.workers}", f"--index={index}",
            f"--memory={memory}", "--host-id=another host", f"--socket-dir={sockets or self.folder}", "--threads=1",
            *([f"--data-listen=tls://{name}:{port}"] if address else []), *self._files(who), *flags)
        environment = {**os.environ, "TESSERA_JOIN_TOKEN": self.join_token}
        log = self.folder / f"worker{index}-{len(self.processes)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(command, env=environment, stderr=out)
        process.stderr = open(log, errors="replace")   # in a file: a pipe that nobody reads holds its writer up
        self.processes.append(process)
        return process

    def wait_for_workers(self, count):
        import time
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with self.connect(address=self.unix) as session:
                if sum(worker["state"] == "alive" for worker in session.status()["workers"]) >= count:
                    return
            time.sleep(0.02)
        raise AssertionError(f"{count} workers have not joined; {self.coordinator_log()}")

    def connect(self, address=None, **options):
        import tessera as ts
        options = {"timeout": 60, **options}   # a handshake takes long where others keep the cores
        return ts.connect(address or self.address, token=self.token, ca=self.certificates / "ca.crt", **options)

    def coordinator_log(self):
        return (self.folder / "coordinator.log").read_text(errors="replace")

    def stop(self):
        for proxy in self.proxies:
            proxy.stop()
        for process in reversed(self.processes):
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        for held in self.held:
            held.close()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class CutProxy:
    """Passes bytes between connections to its port and `port`; cut() ends all that there are, wherever they are."""

    def __init__(self, port, host="localhost", own_port=0, server=None):
        """`server`: a socket that listens, else one of this host."""
        self._host, self._target = host, port
        self._server = server or socket.create_server(("localhost", own_port))
        self.port = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs = []
        self._cut_after = None   # bytes until the next cut; None: not so
        self.cuts = self.passed = 0
        self._stopped = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self._stopped:
            try:
                near, _ = self._server.accept()
            except OSError:
                continue
            try:
                far = socket.create_connection((self._host, self._target))
            except OSError:     # else whoever is there would wait for an answer
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near, far):
        selector = selectors.DefaultSelector()
        try:
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    allowed = self._allow(len(data))
                    key.data.sendall(data[:allowed])
                    if allowed < len(data):
                        self.cut()
                        return
        except (OSError, ValueError):
            pass
        finally:
            selector.close()
            self._end(near, far)

    def _allow(self, count):
        with self._lock:
            self.passed += count
            if self._cut_after is None or count <= self._cut_after:     # with nothing left the next byte is the cut
                if self._cut_after is not None:
                    self._cut_after -= count
                return count
            allowed, self._cut_after = self._cut_after, None
            return allowed

    def _end(self, *ends):
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def cut_after(self, count):
        """The next cut comes within a message, after so many bytes."""
        with self._lock:
            self._cut_after = count

    def cut(self):
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self.cuts += 1
        for pair in pairs:
            self._end(*pair)

    def stop(self):
        self._stopped = True
        self._server.close()
        self.cut()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
