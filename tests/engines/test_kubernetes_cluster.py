"""A pool that a real Kubernetes places on two nodes: docs/kubernetes.md. Skipped by name where there is no control plane."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tessera as ts
from engine_checks import figure, hosts, numbers, right_product, seconds_until, started
from kubernetes_engine import BRIDGE, KubernetesEngine
from laptop import Laptop
from tls_cluster import CutProxy
from two_hosts import BINARIES

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/kubernetes.md").read_text()

# Kubernetes 1.20 has a PodDisruptionBudget by an older name, and no ranges of ports. And less memory than the manifests ask for.
CHANGES = [
    ("PodDisruptionBudget", "tessera-worker", [("/apiVersion", "policy/v1beta1")]),
    ("NetworkPolicy", "tessera-worker", [(f"/spec/ingress/{rule}/ports", [{"port": port} for port in ports])
                                         for rule, ports in enumerate(([7440, 7441, 7450, 7451], [7440, 7441]))]),
    ("StatefulSet", "tessera-worker", [(f"/spec/template/spec/containers/0/resources/{kind}/memory", "1Gi") for kind in ("requests", "limits")]),
]


def overlay(base):
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": [base],
            "patches": [{"target": {"kind": kind, "name": name}, "patch": json.dumps([{"op": "replace", "path": path, "value": value} for path, value in changes])} for kind, name, changes in CHANGES]}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory):
    yield from started(KubernetesEngine, tmp_path_factory.mktemp("kubernetes"))
    assert not pathlib.Path(f"/sys/class/net/{BRIDGE}").exists()


class Pool:
    """The pool of docs/kubernetes.md, in its namespace, and this program as a client outside."""

    def __init__(self, kubernetes, folder):
        self.kubernetes, self.folder = kubernetes, folder
        (folder / "overlay").mkdir(parents=True)
        base = os.path.relpath(ROOT / "deploy/kubernetes/overlays/cpu", folder / "overlay")
        (folder / "overlay/kustomization.yaml").write_text(json.dumps(overlay(base)))
        (folder / "bin").mkdir()
        (folder / "bin/tessera").symlink_to(BINARIES / "client/cli/tessera")

    def kubectl(self, *words, **options):
        return self.kubernetes.kubectl("-n", "tessera", *words, **options)

    def make_secrets(self):
        """The lines of the page's second step, as they stand there."""
        script, = re.findall(r"^2\. .*?```\n(.*?)^   ```", PAGE, re.S | re.M)
        environment = {**self.kubernetes.environment, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-ec", script.replace("deploy/", f"{ROOT}/deploy/")], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def apply(self):
        self.kubectl("apply", "-k", self.folder / "overlay")

    def token(self, name):
        return self.kubectl("get", "secret", "tessera-tokens", "-o", f"go-template={{{{.data.{name} | base64decode}}}}")

    @contextlib.contextmanager
    def session(self, **options):
        address = self.kubectl("get", "service", "tessera", "-o", "jsonpath={.spec.clusterIP}")
        with CutProxy(7421, address) as forward:
            connect = lambda: ts.connect(f"tls://localhost:{forward.port}", token=self.token("TESSERA_TOKEN"), ca=str(self.folder / "tls/ca.crt"), **options)   # noqa: E731
            deadline = time.monotonic() + 60
            while True:
                try:
                    session = connect()
                    break
                except ts.UnavailableError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            with session:
                yield session

    def wait_for(self, session, wanted, what="all workers", seconds=60):
        return seconds_until(lambda: numbers(session) == wanted, what, seconds, tell=self.tell)

    def worker_pids(self, pod):
        return {pid: words for pid in self.kubernetes.pids_of(pod)
                if (words := pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))[0].endswith(b"tessera-worker")}

    def tell(self):
        return self.kubectl("get", "pods,events", "-o", "wide") + self.kubernetes.logs()

    def delete(self):
        self.kubernetes.kubectl("delete", "namespace", "tessera", "--ignore-not-found", "--timeout=100s")


@pytest.fixture
def pool(kubernetes, tmp_path):
    made = Pool(kubernetes, tmp_path / "pool")
    yield made
    made.delete()


def things_of(kubernetes):
    """Memory groups, shared memory and folders of pods. Other tests of this machine may have left some."""
    return {path for folder in ("/sys/fs/cgroup/memory", "/dev/shm", str(kubernetes.folder / "kubelet/pods")) for path in pathlib.Path(folder).glob("*")
            if BRIDGE in path.name or "tessera" in path.name or "kubelet" in folder}


def test_a_pool_on_two_nodes_is_right_loses_workers_grows_is_drained_and_leaves_nothing(kubernetes, pool):
    before = things_of(kubernetes)
    pool.make_secrets()
    began = time.monotonic()
    pool.apply()
    with pool.session() as session:
        pool.wait_for(session, [0, 1, 2, 3])
        assert right_product(session) == [0, 1, 2, 3] and len(hosts(session)) == 2
        figure("kubernetes", "from a running engine to a right product over two nodes, s", time.monotonic() - began)

        # A worker's process: its pod stays, and the pod's other worker does.
        x = session.distribute_tensor(np.ones((100, 100)), session.init_device_mesh((4,)), [ts.Shard(0)]).wait()
        victim = next(pid for pid, words in pool.worker_pids("tessera-worker-1").items() if b"hostname-ordinal*2+1" in b"".join(words))
        os.kill(victim, signal.SIGKILL)
        pool.wait_for(session, [0, 1, 2], "the loss to be seen")
        figure("kubernetes", "a killed worker is back, s after its loss was seen", pool.wait_for(session, [0, 1, 2, 3], "worker 3 to be back"))
        with pytest.raises(ts.UnavailableError, match="worker 3"):
            x.full_tensor()
        assert right_product(session) == [0, 1, 2, 3]
        assert "signal 9" in pool.kubectl("logs", "tessera-worker-1")

        began = time.monotonic()
        pool.kubectl("scale", "statefulset/tessera-worker", "--replicas=3")
        pool.wait_for(session, [0, 1, 2, 3, 4, 5], "a third pod's workers")
        figure("kubernetes", "a pod of two workers is added, s", time.monotonic() - began)
        assert right_product(session) == [0, 1, 2, 3, 4, 5]
        pool.kubectl("scale", "statefulset/tessera-worker", "--replicas=2")
        pool.wait_for(session, [0, 1, 2, 3], "the third pod to end")

        # A pod, by force: its next one begins while the processes of the former may still end.
        pool.kubectl("delete", "pod", "tessera-worker-0", "--force", "--grace-period=0")
        pool.wait_for(session, [2, 3], "the pod's loss to be seen")
        figure("kubernetes", "a pod deleted by force is back, s after its loss was seen", pool.wait_for(session, [0, 1, 2, 3], "the pod to be back"))
        assert right_product(session) == [0, 1, 2, 3]

        # A node: the budget lets the workers' pods go one by one, and they come on the other node, as the coordinator's does.
        node = pool.kubectl("get", "pod", "tessera-worker-1", "-o", "jsonpath={.spec.nodeName}")
        began = time.monotonic()
        kubernetes.kubectl("drain", node, "--delete-emptydir-data", "--timeout=100s")
        seconds_until(lambda: is_right(session, [0, 1, 2, 3]), "a right product without the drained node", tell=pool.tell)
        figure("kubernetes", "a right product after a node was drained, s", time.monotonic() - began)
        assert node not in pool.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")
        kubernetes.kubectl("uncordon", node)

    began = time.monotonic()
    pool.kubectl("delete", "-k", pool.folder / "overlay", "--timeout=100s")
    figure("kubernetes", "deleted, s", time.monotonic() - began)
    assert not kubernetes.pids_of("tessera-")
    assert things_of(kubernetes) <= before
    assert not list(pathlib.Path("/sys/class/net").glob("tk*"))


def is_right(session, wanted):
    """Whether all workers have a right product. A coordinator that has read its log lists workers that may not come back, until it has waited for them."""
    try:
        return right_product(session) == wanted
    except ts.UnavailableError:
        return False


def whom_policies_allow(kubernetes, pool):
    """A host of the pods' network that no policy names reaches no worker; one worker's port is enough for the bytes of all."""
    pods = [pool.kubectl("get", "pod", f"tessera-worker-{n}", "-o", "jsonpath={.status.podIP}") for n in (0, 1)]
    service = pool.kubectl("get", "service", "tessera", "-o", "jsonpath={.spec.clusterIP}")
    opened = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "one-door", "namespace": "tessera"},
              "spec": {"podSelector": {"matchLabels": {"statefulset.kubernetes.io/pod-name": "tessera-worker-0"}},
                       "ingress": [{"from": [{"ipBlock": {"cidr": "10.78.200.1/32"}}], "ports": [{"port": 7440}]}]}}
    with Laptop() as laptop, CutProxy(7421, service, server=laptop.listen(7421)):
        laptop.join(BRIDGE, "10.78.200.1/16")
        reaches = lambda address, port: subprocess.run(laptop.command(   # noqa: E731
            sys.executable, "-c", f"import socket; socket.create_connection(('{address}', {port}), 1)"), capture_output=True).returncode == 0
        assert not any(reaches(address, port) for address in pods for port in (7440, 7450))
        kubernetes.apply(opened)
        seconds_until(lambda: reaches(pods[0], 7440), "the port that a policy opens", tell=pool.tell)
        assert not reaches(pods[0], 7450) and not reaches(pods[1], 7440)
        computes(pool, laptop, f"session = ts.connect('tls://localhost:7421', token='...', ca='tls/ca.crt', door='tls://{pods[0]}:7440')\n")
    pool.kubectl("delete", "networkpolicy", "one-door")


def a_notebook_outside_computes(pool):
    """The lines of the page's fourth step, on a host that reaches the cluster by forwarded ports alone."""
    program, = re.findall(r"   ```python\n(.*?)   ```", PAGE, re.S)
    of_worker = pool.kubectl("get", "pod", "tessera-worker-0", "-o", "jsonpath={.status.podIP}")
    of_service = pool.kubectl("get", "service", "tessera", "-o", "jsonpath={.spec.clusterIP}")
    with Laptop() as laptop, CutProxy(7421, of_service, server=laptop.listen(7421)), CutProxy(7440, of_worker, server=laptop.listen(7440)):
        computes(pool, laptop, re.sub("^   ", "", program, flags=re.M))


def computes(pool, laptop, program):
    """A program of the laptop that connects has right values of tensors whose bytes go to all workers."""
    program = "import numpy as np\nimport tessera as ts\n" + re.sub("""['"]\\.\\.\\.['"]""", f"'{pool.token('TESSERA_TOKEN')}'", program) + (
        "a = np.random.default_rng(1).standard_normal((800, 900))\nx = ts.distribute_tensor(a, session.init_device_mesh((4,)), [ts.Shard(0)])\n"
        "print(np.array_equal((x + x).full_tensor(), a + a))\n")
    done = subprocess.run(laptop.command(sys.executable, "-c", program), cwd=pool.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("True\n"), done.stderr + done.stdout


def test_what_outlives_the_coordinator_and_who_waits_for_what_is_missing(kubernetes, pool):
    # The Secrets come last: pods wait for them, and an event says for which.
    kubernetes.kubectl("apply", "-f", ROOT / "deploy/kubernetes/base/namespace.yaml")
    pool.apply()
    seconds_until(lambda: 'secret "tessera-tls" not found' in pool.kubectl("get", "events"), "the missing secret to be named", tell=pool.tell)
    pool.make_secrets()
    with pool.session(name="training") as session:
        pool.wait_for(session, [0, 1, 2, 3])
        a = np.random.default_rng(7).standard_normal((5000, 4000))      # 40 MB a worker, and /dev/shm has 64 MiB
        x = session.distribute_tensor(a, session.init_device_mesh((4,)), [ts.Shard(0)]).wait()
        y = session.distribute_tensor(a, session.init_device_mesh((4,)), [ts.Shard(1)]).wait()
        np.testing.assert_array_equal((x + y.redistribute([ts.Shard(0)])).full_tensor(), a + a)

        a_notebook_outside_computes(pool)
        whom_policies_allow(kubernetes, pool)

        # The engine kills the coordinator's pod: the next one reads the log on the volume, workers and this client wait for it.
        before = pool.kubectl("get", "pod", "tessera-coordinator-0", "-o", "jsonpath={.metadata.uid}")
        began = time.monotonic()
        pool.kubectl("delete", "pod", "tessera-coordinator-0", "--force", "--grace-period=0")
        seconds_until(lambda: pool.kubectl("get", "pod", "tessera-coordinator-0", "--ignore-not-found", "-o", "jsonpath={.metadata.uid}") not in ("", before),
                      "another coordinator's pod", tell=pool.tell)
        np.testing.assert_array_equal((x - y).full_tensor(), np.zeros_like(a))
        figure("kubernetes", "a product after the coordinator's pod was deleted by force, s", time.monotonic() - began)
        assert right_product(session) == [0, 1, 2, 3]

        # Workers of another StatefulSet claim the numbers of these: refused by name, and nobody here is the worse.
        spec = json.loads(pool.kubectl("get", "statefulset", "tessera-worker", "-o", "json").replace('component": "worker"', 'component": "more"'))["spec"]
        kubernetes.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "more-worker", "namespace": "tessera"}, "spec": spec})
        seconds_until(lambda: "two processes claim the number" in pool.kubectl("logs", "more-worker-0"), "the line of two that claim a number", tell=pool.tell)
        pool.kubectl("delete", "statefulset", "more-worker")
        assert right_product(session) == [0, 1, 2, 3]

    # The engine ends the coordinator before the workers: they need no longer than their grace to end.
    pool.kubectl("delete", "statefulset", "tessera-coordinator", "--timeout=60s")
    seconds_until(lambda: not kubernetes.pids_of("tessera-coordinator"), "the coordinator to end", tell=pool.tell)
    began = time.monotonic()
    pool.kubectl("delete", "statefulset", "tessera-worker", "--timeout=60s")
    seconds_until(lambda: not kubernetes.pids_of("tessera-worker"), "the workers to end", tell=pool.tell)
    figure("kubernetes", "workers without a coordinator have ended, s after they were told", time.monotonic() - began)
