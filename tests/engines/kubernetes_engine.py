"""A real Kubernetes on this machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and two nodes that a test's
kubelet keeps (kubelet.py), joined by a bridge.

    with KubernetesEngine(folder) as kubernetes:
        kubernetes.kubectl("get", "nodes")

The programs are those of tools/kubernetes. It takes root, since pods have namespaces. NotHere says what is missing.
"""

import http.client
import ipaddress
import itertools
import json
import os
import pathlib
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import time

from engine_checks import processes_with
from engine_checks import NotHere
from slurm_engine import free_ports
from two_hosts import BINARIES

START_S = 60
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
TOOLS = ("kubectl", "ip", "unshare", "nsenter", "setpriv", "openssl")
CACHE = pathlib.Path(os.environ.get("TESSERA_KUBERNETES", "~/.cache/tessera/kubernetes")).expanduser()
BRIDGE = "tesskube0"
PODS, SERVICES = "10.78.0.0/16", "10.79.0.0/24"
VOLUMES = 4
KUBELET = pathlib.Path(__file__).with_name("kubelet.py")


def volume(number, folder):
    """A volume that claims of 10 GiB are bound to, as a provisioner would make it."""
    path = folder / "volumes" / str(number)
    path.mkdir(parents=True)
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{number}"},
            "spec": {"capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(path)}}}


class KubernetesEngine:
    def __init__(self, folder, nodes=2):
        missing = [name for name in PROGRAMS if not (CACHE / name).exists()]
        if missing:
            raise NotHere(f"Kubernetes is not there: there is no {CACHE / missing[0]} (tools/kubernetes makes it)")
        missing = [name for name in TOOLS if shutil.which(name) is None]
        if missing:
            raise NotHere(f"there is no {missing[0]} in PATH")
        if os.geteuid() != 0:
            raise NotHere("pods have namespaces, which takes root")
        if not os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK):
            raise NotHere("pods have a memory limit, which takes control groups of version 1 (/sys/fs/cgroup/memory)")
        if processes_with("tests/engines/kubelet.py"):
            raise NotHere("another test's Kubernetes runs here")
        self.folder, self.processes = pathlib.Path(folder).absolute(), []
        self.nodes = [f"n{number + 1}" for number in range(nodes)]
        self.token = secrets.token_hex(16)
        self.environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}

    def _start(self, *words, **options):
        with open(self.folder / f"{pathlib.Path(str(words[0])).name}.log", "ab") as log:
            # They end with this program, however that ends.
            self.processes.append(subprocess.Popen(["setpriv", "--pdeathsig=TERM", "--", *map(str, words)], env=self.environment, stdin=subprocess.PIPE, stdout=log,
                                                   stderr=log, start_new_session=True, **options))

    def kubectl(self, *words, **options):
        done = subprocess.run(["kubectl", *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=120, **options)
        assert done.returncode == 0, f"kubectl {words}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def apply(self, *objects):
        return self.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def __enter__(self):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in ("tls", "programs"):
                (self.folder / name).mkdir()
            for name in ("client/cli/tessera", "server/coordinator/tessera-coordinator", "server/worker/tessera-worker"):
                shutil.copy(BINARIES / name, self.folder / "programs")      # for users who can't look into root's folders
            self._bridge()
            self._control_plane()
            self._kubelet()
            self.apply(*(volume(number, self.folder) for number in range(VOLUMES)))
            self.wait_until(lambda: self.kubectl("get", "nodes").count(" Ready ") == len(self.nodes), "all nodes to be ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _bridge(self):
        gateway = next(ipaddress.ip_network(PODS).hosts())
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)      # of one that was killed
        for words in (f"link add {BRIDGE} type bridge forward_delay 0", f"address add {gateway}/16 dev {BRIDGE}", f"link set {BRIDGE} up",
                      f"route add {SERVICES} dev {BRIDGE}"):
            subprocess.run(["ip", *words.split()], check=True)

    def _control_plane(self):
        of_clients, of_peers, self.port, of_manager, of_scheduler = free_ports(5)
        tls, gateway = self.folder / "tls", next(ipaddress.ip_network(PODS).hosts())
        self.server, key = f"https://127.0.0.1:{self.port}", tls / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{self.token},admin,1,system:masters\n")
        etcd = f"http://127.0.0.1:{of_clients}"
        # Files that live as long as the test: they need not be on a disk.
        self._start(CACHE / "etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
                    f"--listen-peer-urls=http://127.0.0.1:{of_peers}", "--unsafe-no-fsync")
        self._start(CACHE / "kube-apiserver", f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={self.port}",
                    f"--advertise-address={gateway}", f"--cert-dir={tls}", f"--token-auth-file={self.folder}/tokens.csv",
                    f"--service-cluster-ip-range={SERVICES}", "--service-account-issuer=https://kubernetes.default.svc",
                    f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}", "--authorization-mode=RBAC")
        self.wait_until(self.is_ready, "the API server")
        self.ca = str(tls / "apiserver.crt")
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {"token": self.token}}],
                  "clusters": [{"name": "k", "cluster": {"server": self.server, "certificate-authority": self.ca}}],
                  "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}]}
        (self.folder / "kubeconfig").write_text(json.dumps(config))
        for name, port, more in (("kube-controller-manager", of_manager, [f"--service-account-private-key-file={key}", "--node-monitor-period=1s"]),
                                 ("kube-scheduler", of_scheduler, [])):
            self._start(CACHE / name, f"--kubeconfig={self.folder}/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1",
                        "--port=0", f"--secure-port={port}", f"--cert-dir={tls}", *more)

    def is_ready(self):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=ssl._create_unverified_context(), timeout=5)
        try:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {self.token}"})
            return connection.getresponse().status == 200
        except OSError:
            return False

    def _kubelet(self):
        addresses = [str(address) for address in itertools.islice(ipaddress.ip_network(PODS).hosts(), 10, 1000)]
        configuration = {"server": self.server, "token": self.token, "ca": self.ca, "folder": str(self.folder / "kubelet"), "nodes": self.nodes,
                         "bridge": BRIDGE, "node_address": str(next(ipaddress.ip_network(PODS).hosts())), "service_range": SERVICES, "pod_addresses": addresses, "programs": str(self.folder / "programs"),
                         "certificate": self.ca, "key": str(self.folder / "tls/apiserver.key")}
        (self.folder / "kubelet").mkdir()
        (self.folder / "kubelet.json").write_text(json.dumps(configuration))
        self._start(sys.executable, KUBELET, self.folder / "kubelet.json")
        self.kubelet = self.processes[-1]

    def pids_of(self, pod):
        """Processes of the pod, or of all pods whose names begin so, by the host name that they have."""
        found = []
        for variables in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"\0HOSTNAME={pod}".encode() in b"\0" + variables.read_bytes():
                    found.append(int(variables.parent.name))
            except OSError:
                continue
        return found

    def logs(self):
        """The ends of all logs, those of pods first."""
        paths = [*sorted(self.folder.glob("kubelet/logs/*/*.log")), *sorted(self.folder.glob("*.log"))]
        return "".join(f"== {path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in paths)

    def wait_until(self, true, what, seconds=START_S):
        deadline = time.monotonic() + seconds
        while not true():
            ended = [process.args[3] for process in self.processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {'ended: ' + ended[0] if ended else f'not in {seconds} s'}\n{self.logs()}")
            time.sleep(0.05)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.stdin.close()       # the kubelet ends its pods then
            if process is not getattr(self, "kubelet", None):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
        shutil.rmtree(self.folder / "programs", ignore_errors=True)
