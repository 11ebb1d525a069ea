"""A coordinator that signs its workers' certificates, and workers that have an address and a secret alone.

    with JoinedPool(tmp_path, "--leaf-lifetime=3s") as pool:
        pool.join(); pool.join("--host-id=other")
        session = pool.connect(workers=2)
"""

import hashlib
import os
import re
import subprocess

import tessera as ts
from two_hosts import BINARIES, make_certificates, wait_until

TOKENS = {"TESSERA_TOKEN": "t" * 32, "TESSERA_JOIN_TOKEN": "j" * 32, "TESSERA_ADMIN_TOKEN": "a" * 32}


def program(name):
    return BINARIES / f"server/{name}/tessera-{name}"


def pin_of(ca):
    """By OpenSSL's command line: of the public key."""
    key = subprocess.run(["openssl", "x509", "-in", ca, "-noout", "-pubkey"], capture_output=True, check=True).stdout
    encoded = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "der"], input=key, capture_output=True, check=True).stdout
    return "sha256:" + hashlib.sha256(encoded).hexdigest()


class JoinedPool:
    def __init__(self, folder, *flags, host="127.0.0.1"):
        self.folder, self.host, self.flags, self.workers, self.coordinator = folder, host, flags, [], None
        self.tls = folder / "tls"
        make_certificates(self.tls, host)
        self.pin = pin_of(self.tls / "ca.crt")
        self.log = folder / "coordinator.log"
        self.address = self.workers_address = f"tls://{host}:0"

    def start_coordinator(self):
        """Again at the ports that it had, where it was started before."""
        command = [program("coordinator"), f"--listen={self.address}", f"--listen-workers={self.workers_address}", f"--tls-cert={self.tls}/server.crt",
                   f"--tls-key={self.tls}/server.key", f"--tls-ca={self.tls}/ca.crt", f"--ca-key={self.tls}/ca.key", *self.flags]
        with open(self.log, "ab") as log:
            self.coordinator = subprocess.Popen(list(map(str, command)), env={**os.environ, **TOKENS}, stdout=log, stderr=log)
        wait_until(lambda: "listening on" in self.log.read_text() or self.coordinator.poll() is not None, "the coordinator to listen")
        self.address, self.workers_address = re.findall(r"listening on (tls://\S+)", self.log.read_text())[:2]

    def __enter__(self):
        self.start_coordinator()
        return self

    def command(self, *flags, address=None, pin=None):
        """Flags name a CA by its file where they do, and else by its pin."""
        pins = [] if any(str(flag).startswith("--tls-ca") for flag in flags) else [f"--ca-pin={pin or self.pin}"]
        return list(map(str, [program("worker"), f"--join={address or self.address}", *pins, "--memory=64MiB", *flags]))

    def join(self, *flags, token=TOKENS["TESSERA_JOIN_TOKEN"], **options):
        """Starts a worker; its log is that of its number among those that were started."""
        log_path = self.folder / f"worker{len(self.workers)}.log"
        with open(log_path, "wb") as log:
            self.workers.append(subprocess.Popen(self.command(*flags, **options), env={**os.environ, "TESSERA_JOIN_TOKEN": token},
                                                 stdout=log, stderr=log))
        return self.workers[-1]

    def refused(self, *flags, environment=None, **options):
        """A worker's exit status and last words, once it ends."""
        done = subprocess.run(self.command(*flags, **options), env={**os.environ, "TESSERA_JOIN_TOKEN": TOKENS["TESSERA_JOIN_TOKEN"], **(environment or {})},
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    def log_of(self, worker):
        return (self.folder / f"worker{worker}.log").read_text()

    def logs(self):
        return self.log.read_text() + "".join(self.log_of(worker) for worker in range(len(self.workers)))

    def connect(self, workers, **options):
        session = ts.connect(self.address, token=TOKENS["TESSERA_TOKEN"], ca=self.tls / "ca.crt", **options)
        try:
            wait_until(lambda: len(session.workers()) >= workers, "the workers")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.logs()}") from None
        return session

    def __exit__(self, *_):
        for process in [*self.workers, self.coordinator]:
            if process is not None and process.poll() is None:
                process.kill()
            if process is not None:
                process.wait()
