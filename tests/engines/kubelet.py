"""A kubelet for tests: two nodes of one machine, whose pods are processes in namespaces of their own. No images, no runtime.

    python kubelet.py CONFIGURATION.json        # ends, with all pods, when its standard input does

A pod has what a container has where the pool would notice: an address and a name of its own, process 1, a root that it may not
write to, /dev/shm of 64 MiB, a memory limit (cgroup v1, where this machine has it), its user and no capabilities. Its root is this
machine's /usr, with the programs of the configuration in /usr/local/bin. A Service's address is a second address of the pod that it
selects, or refuses connections where there is none, and its name stands in the pods' /etc/hosts: no kube-proxy, no DNS. NetworkPolicies of
ingress are enforced (kubelet_policies.py). Containers that end are started
again at once, then after 10, 20, 40 s, as a kubelet does it. `kubectl logs` works; `exec` and `port-forward` do not.
"""

import http.server
import json
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse

from kubelet_api import Api, ApiError, now
from kubelet_container import Container, MissingError, Network, Sandbox, write_volume
from kubelet_policies import Policies

TICK_S = 0.02
ORPHAN_GRACE_S = 2          # a pod that was deleted by force, as in the kubelet
BACKOFF_S, MAX_BACKOFF_S = 10, 300


class Services:
    """Names and addresses of the Services, and the hosts file of each namespace."""

    def __init__(self, folder):
        self.folder, self.lock, self.all = folder, threading.Lock(), {}

    def follow(self, api):
        for kind, service in api.watch("/api/v1/services"):
            with self.lock:
                key = (service["metadata"]["namespace"], service["metadata"]["name"])
                self.all.pop(key, None)
                if kind != "DELETED" and service["spec"].get("clusterIP", "None") != "None":
                    self.all[key] = service["spec"]
                self._write(key[0])

    def _write(self, namespace):
        lines = ["127.0.0.1 localhost"]
        for (of, name), spec in sorted(self.all.items()):
            short = [name] if of == namespace else []
            lines.append(" ".join([spec["clusterIP"], *short, f"{name}.{of}", f"{name}.{of}.svc", f"{name}.{of}.svc.cluster.local"]))
        self.hosts(namespace).write_text("\n".join(lines) + "\n")       # the same inode: pods have it mounted

    def hosts(self, namespace):
        path = self.folder / f"hosts-{namespace}"
        path.touch()
        return path

    def addresses_of(self, pod):
        labels = pod["metadata"].get("labels", {}).items()
        with self.lock:
            return [spec["clusterIP"] for (namespace, _), spec in self.all.items()
                    if namespace == pod["metadata"]["namespace"] and spec.get("selector") and spec["selector"].items() <= labels]


class Probe:
    """When the next try is due, and how many came out alike in a row."""

    def __init__(self, spec):
        self.spec, self.alike, self.last, self.due = spec, 0, None, time.monotonic() + spec.get("initialDelaySeconds", 0)

    def outcome(self, container, address):
        """True or False once the threshold is reached, None before."""
        if time.monotonic() < self.due:
            return None
        self.due = time.monotonic() + self.spec.get("periodSeconds", 10)
        good = self._try(container, address)
        self.alike = self.alike + 1 if good == self.last else 1
        self.last = good
        needed = self.spec.get("successThreshold", 1) if good else self.spec.get("failureThreshold", 3)
        return good if self.alike >= needed else None

    def _try(self, container, address):
        seconds = self.spec.get("timeoutSeconds", 1)
        try:
            if "exec" in self.spec:
                return container.execute(self.spec["exec"]["command"], seconds) == 0
            action = self.spec.get("httpGet") or self.spec["tcpSocket"]
            with socket.create_connection((address, container.port(action["port"])), timeout=seconds) as plain:
                if "httpGet" not in self.spec:
                    return True
                secure = action.get("scheme") == "HTTPS"
                link = ssl._create_unverified_context().wrap_socket(plain) if secure else plain     # a kubelet doesn't verify, either
                link.sendall(f"GET {action['path']} HTTP/1.0\r\n\r\n".encode())
                return 200 <= int(link.recv(64).split()[1]) < 400
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return False


class Life:
    """One container of a pod over its starts: what it is now, and when it may start again."""

    def __init__(self, spec):
        self.spec, self.container, self.restarts, self.state, self.last = spec, None, 0, {"waiting": {"reason": "ContainerCreating"}}, {}
        self.ready = self.started = False
        self.backoff, self.not_before = 0, 0

    def start(self, sandbox, pod, log, find):
        self.container = Container(sandbox, pod, self.spec, log, find)
        self.began = now()
        self.state = {"running": {"startedAt": self.began}}
        self.probes = {kind: Probe(self.spec[kind]) for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in self.spec}
        self.started, self.ready = "startupProbe" not in self.probes, False

    def ended(self, status):
        ended = {"terminated": {"exitCode": status, "reason": "Completed" if status == 0 else "Error", "startedAt": self.began, "finishedAt": now()}}
        self.container, self.ready, self.started, self.last = None, False, False, ended
        self.restarts += 1
        self.not_before = time.monotonic() + self.backoff
        self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {self.backoff}s"}} if self.backoff else ended
        self.backoff = min(MAX_BACKOFF_S, max(BACKOFF_S, 2 * self.backoff))

    def probe(self, address):
        if not self.started:
            outcome = self.probes["startupProbe"].outcome(self.container, address)
            self.started = outcome is True
            return outcome is not False
        if "readinessProbe" not in self.probes:
            self.ready = True
        elif (outcome := self.probes["readinessProbe"].outcome(self.container, address)) is not None:
            self.ready = outcome
        return "livenessProbe" not in self.probes or self.probes["livenessProbe"].outcome(self.container, address) is not False

    def status(self):
        return {"name": self.spec["name"], "image": self.spec["image"], "imageID": "", "ready": self.ready, "started": self.started,
                "restartCount": self.restarts, "state": self.state, "lastState": self.last}


class Pod(threading.Thread):
    """A pod's life, from its binding to its end."""

    def __init__(self, kubelet, pod):
        super().__init__(daemon=True)
        self.kubelet, self.pod, self.meta = kubelet, pod, pod["metadata"]
        self.path = f"/api/v1/namespaces/{self.meta['namespace']}/pods/{self.meta['name']}"
        self.folder = kubelet.folder / "pods" / self.meta["uid"]
        self.log = kubelet.folder / "logs" / self.meta["namespace"] / f"{self.meta['name']}.log"
        self.lives = [Life(spec) for spec in pod["spec"]["containers"]]
        self.grace, self.is_gone, self.address, self.said, self.began = None, False, None, None, now()
        self.sandbox = None

    def find(self, kind, name):
        """An object of the pod's namespace, or a volume of the cluster; MissingError where there is none."""
        within = "" if kind == "persistentvolume" else f"namespaces/{self.meta['namespace']}/"
        try:
            return self.kubelet.api("GET", f"/api/v1/{within}{kind}s/{name}")
        except ApiError as error:
            raise MissingError(f'{kind} "{name}" not found') from error

    def run(self):
        try:
            self._live()
        except Exception as error:      # noqa: BLE001: a bug here must be seen in the kubelet's log, and not stop other pods
            print(f"{self.meta['name']}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise

    def _live(self):
        self.log.parent.mkdir(parents=True, exist_ok=True)
        volumes = self._volumes()
        if volumes is not None:
            hosts = self.kubelet.services.hosts(self.meta["namespace"])
            with Sandbox(self.pod, self.folder, volumes, hosts, self.kubelet.new_address(), self.kubelet.services.addresses_of(self.pod),
                         self.kubelet.network) as sandbox:
                self.address, self.sandbox = sandbox.address, sandbox
                self.kubelet.enforce()
                while self.grace is None:
                    self._tick(sandbox)
                    time.sleep(TICK_S)
                self._stop()
                self.sandbox = None
            self.kubelet.enforce()
        if not self.is_gone:
            try:
                self.kubelet.api("DELETE", self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.meta["uid"]}})
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

    def _volumes(self):
        """Folders of the pod's volumes, once all that they name is there; None where the pod ends before."""
        said = ""
        while self.grace is None:
            try:
                return {volume["name"]: write_volume(self.folder / "volumes", volume, self.pod, self.find) for volume in self.pod["spec"].get("volumes", ())}
            except MissingError as error:
                if str(error) != said:
                    self._event("FailedMount", f"MountVolume.SetUp failed: {error}")
                    said = str(error)
                self._tell("Pending")
                time.sleep(10 * TICK_S)
        return None

    def _tick(self, sandbox):
        for life in self.lives:
            if life.container is None:
                if time.monotonic() >= life.not_before:
                    try:
                        life.start(sandbox, self.pod, self.log, self.find)
                    except MissingError as error:
                        life.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
                        life.not_before = time.monotonic() + 10 * TICK_S
            elif (status := life.container.poll()) is not None:
                life.ended(status)
            elif not life.probe(self.address):
                self._event("Killing", f"Container {life.spec['name']} failed a probe, will be restarted")
                life.container.stop(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        self._tell("Running")

    def _stop(self):
        self._tell("Running")
        deadline = time.monotonic() + self.grace
        living = [life.container for life in self.lives if life.container]
        for container in living:
            container.pre_stop(deadline - time.monotonic())
            container.signal(signal.SIGTERM)
        while any(container.poll() is None for container in living) and time.monotonic() < deadline:
            time.sleep(TICK_S)
            if self.is_gone:
                deadline = min(deadline, time.monotonic() + ORPHAN_GRACE_S)
        for container in living:
            status = container.stop(0)
            print(f"{self.meta['namespace']}/{self.meta['name']}: ended with {status}", file=sys.stderr, flush=True)

    def _tell(self, phase):
        all_ready = all(life.ready for life in self.lives)
        conditions = [{"type": name, "status": "True" if good else "False", "lastTransitionTime": self.began}
                      for name, good in (("Initialized", True), ("Ready", all_ready), ("ContainersReady", all_ready), ("PodScheduled", True))]
        status = {"phase": phase, "conditions": conditions, "hostIP": "127.0.0.1", "startTime": self.began,
                  "containerStatuses": [life.status() for life in self.lives]}
        if self.address:
            status.update(podIP=self.address, podIPs=[{"ip": self.address}])
        if status == self.said or self.is_gone:
            return
        try:
            self.kubelet.api("PATCH", f"{self.path}/status", {"metadata": {"uid": self.meta["uid"]}, "status": status}, "application/merge-patch+json")
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self.said = json.loads(json.dumps(status))

    def _event(self, reason, message):
        about = {"kind": "Pod", "apiVersion": "v1", **{key: self.meta[key] for key in ("namespace", "name", "uid")}}
        self.kubelet.api("POST", f"/api/v1/namespaces/{self.meta['namespace']}/events", {
            "metadata": {"generateName": self.meta["name"] + "."}, "involvedObject": about, "reason": reason, "message": message, "type": "Warning",
            "source": {"component": "kubelet"}, "firstTimestamp": now(), "lastTimestamp": now(), "count": 1})


class Kubelet:
    def __init__(self, configuration):
        self.configuration, self.folder = configuration, pathlib.Path(configuration["folder"])
        self.api = Api(configuration["server"], configuration["token"], configuration["ca"])
        self.network, self.policies, self.enforcing = Network(configuration), Policies(), threading.Lock()
        self.services, self.pods, self.lock, self.addresses = Services(self.folder), {}, threading.Lock(), iter(configuration["pod_addresses"])

    def new_address(self):
        with self.lock:
            return next(self.addresses)

    def enforce(self):
        """Has each pod let in whom policies allow now."""
        with self.enforcing:
            there = [(pod, sandbox) for pod in list(self.pods.values()) if (sandbox := pod.sandbox) is not None]
            for pod, sandbox in there:
                try:
                    sandbox.allow(self.policies.rules_of(pod.pod, [(other.pod, its.address) for other, its in there]))
                except OSError as error:
                    if pod.sandbox is not None:     # else it has just ended
                        print(f"{pod.meta['name']}: {error}", file=sys.stderr, flush=True)

    def register(self, name, port):
        """The node, and its heartbeat for ever."""
        room = {"cpu": "32", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        self.api("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}}})
        while True:
            ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}]
            self.api("PATCH", f"/api/v1/nodes/{name}/status", {"status": {
                "capacity": room, "allocatable": room, "conditions": ready, "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}, "application/strategic-merge-patch+json")
            time.sleep(10)

    def follow_pods(self):
        for kind, pod in self.api.watch("/api/v1/pods"):
            uid, mine = pod["metadata"]["uid"], pod["spec"].get("nodeName") in self.configuration["nodes"]
            if mine and uid not in self.pods and kind != "DELETED":
                self.pods[uid] = Pod(self, pod)
                self.pods[uid].start()
            if uid not in self.pods:
                continue
            if kind == "DELETED":
                self.pods[uid].is_gone = True
                self.pods[uid].grace = ORPHAN_GRACE_S if self.pods[uid].grace is None else self.pods[uid].grace
            elif "deletionTimestamp" in pod["metadata"] and self.pods[uid].grace is None:
                self.pods[uid].grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)

    def serve_logs(self):
        """A port over TLS that gives `kubectl logs` what the containers have written."""
        folder = self.folder / "logs"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):       # /containerLogs/NAMESPACE/POD/CONTAINER?...
                _, what, namespace, pod, _ = urllib.parse.urlparse(self.path).path.split("/")
                path = folder / namespace / f"{pod}.log"
                self.send_response(200 if what == "containerLogs" else 404)
                self.end_headers()
                self.wfile.write(path.read_bytes() if path.exists() else b"")

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.configuration["certificate"], self.configuration["key"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1]

    def run(self):
        port = self.serve_logs()
        targets = [lambda: self.services.follow(self.api), lambda: self.policies.follow(self.api, self.enforce),
                   lambda: self.policies.follow_namespaces(self.api, self.enforce), self.follow_pods, *(lambda name=name: self.register(name, port) for name in self.configuration["nodes"])]
        for target in targets:
            threading.Thread(target=target, daemon=True).start()
        sys.stdin.read()
        pods = list(self.pods.values())
        for pod in pods:
            pod.is_gone, pod.grace = True, 0
        for pod in pods:
            pod.join(10)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)       # where the test is killed, it ends its pods first
    Kubelet(json.loads(pathlib.Path(sys.argv[1]).read_text())).run()
