"""Pods and containers of the tests' kubelet: namespaces, a root, volumes, and process 1.

    with Sandbox(pod, folder, volumes, hosts, "10.78.0.5", ["10.79.0.9"], configuration) as sandbox:
        container = Container(sandbox, pod, spec, log, find)
        container.poll()        # None while it runs, else its exit status; 137 for a SIGKILL
"""

import base64
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time

import kubelet_policies

START_S = 20
VETH = "tk"
# Process 1's namespaces but for those of the pod; it ends when the kubelet's process for it does.
NEW = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--"]
MEMORY_GROUPS = pathlib.Path("/sys/fs/cgroup/memory")
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

ROOT = r"""
mount --make-rprivate /
mount -t tmpfs -o mode=755,size=64m tmpfs $R
cd $R; mkdir -p usr etc proc sys dev tmp run var/lib old
mount --bind /usr usr; mount -o remount,bind,ro usr
for link in bin sbin lib lib64; do ln -s usr/$link $link; done
for file in passwd group nsswitch.conf ld.so.cache host.conf; do [ ! -e /etc/$file ] || cp /etc/$file etc; done
cp -a /etc/alternatives etc
touch etc/hosts; mount --bind $HOSTS etc/hosts
mount --bind $PROGRAMS usr/local/bin
mount -t proc proc proc; mount -t sysfs -o ro sysfs sys
if [ -n "$GROUP" ]; then mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup; mkdir sys/fs/cgroup/memory; mount --bind $GROUP sys/fs/cgroup/memory; fi
mount -t tmpfs -o mode=755 tmpfs dev; mkdir dev/shm; mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
for device in null zero full random urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
ln -s /proc/self/fd dev/fd; ln -s /proc/self/fd/2 dev/stderr; ln -s /proc/self/fd/1 dev/stdout
chmod 1777 tmp
"""


class MissingError(Exception):
    """A Secret, a ConfigMap or a claim that the pod names isn't there yet."""


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(\w*)", str(quantity)).groups()
    return int(number) * UNITS[unit]


def group_of(pod):
    return pod["spec"].get("securityContext", {}).get("fsGroup")


def _write_items(folder, volume, pod, items, data, default_mode):
    group = group_of(pod)
    for key, path, mode in items:
        if key not in data:
            raise MissingError(f'references non-existent key: "{key}"')
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data[key]))
        os.chown(file, 0, group or 0)
        file.chmod(mode or default_mode)


def write_volume(folder, volume, pod, find):
    """The volume's folder. `find("secret", name)` looks an object up. A claim's folder is that of its hostPath volume."""
    path = pathlib.Path(folder) / volume["name"]
    group = group_of(pod)
    if "persistentVolumeClaim" in volume:
        claim = find("persistentvolumeclaim", volume["persistentVolumeClaim"]["claimName"])
        if not claim["spec"].get("volumeName"):
            raise MissingError(f'persistentvolumeclaim "{claim["metadata"]["name"]}" not bound')
        path = pathlib.Path(find("persistentvolume", claim["spec"]["volumeName"])["spec"]["hostPath"]["path"])
        if group and path.stat().st_gid != group:       # fsGroupChangePolicy: OnRootMismatch
            os.chown(path, 0, group)
            path.chmod(0o2775)
        return path
    path.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        os.chown(path, 0, group or 0)
        path.chmod(0o2777 if group else 0o777)
    elif "secret" in volume or "configMap" in volume:
        kind = "secret" if "secret" in volume else "configmap"
        spec = volume.get("secret") or volume["configMap"]
        found = find(kind, spec.get("secretName") or spec["name"])
        data = found.get("data", {}) if kind == "secret" else {key: base64.b64encode(value.encode()) for key, value in found.get("data", {}).items()}
        items = [(item["key"], item["path"], item.get("mode")) for item in spec.get("items", ())] or [(key, key, None) for key in data]
        _write_items(path, volume, pod, items, data, spec.get("defaultMode", 0o644))
    else:
        raise NotImplementedError(f"volume {volume}")
    return path


class Network:
    """The pods' bridge, and where the Services' addresses are: in a pod, or else here, where nothing listens at them."""

    def __init__(self, configuration):
        self.configuration, self.lock, self.sandboxes, self.here = configuration, threading.Lock(), set(), set()

    def _forget(self, addresses):
        """Nobody keeps in mind who had them."""
        for enter in [[], *(sandbox.enter for sandbox in self.sandboxes)]:
            subprocess.run([*enter, "sh", "-c", ";".join(f"ip neighbour flush to {address}" for address in addresses)], capture_output=True)

    def give(self, sandbox, addresses):
        with self.lock:
            for address in self.here & set(addresses):
                run("ip", "address", "delete", f"{address}/32", "dev", self.configuration["bridge"])
            self.here -= set(addresses)
            self.sandboxes.add(sandbox)
            # A pod that was deleted by force and ends: it keeps them for connections that are there, and nobody is told of it any more.
            for former in self.sandboxes - {sandbox}:
                if set(former.more_addresses) & set(addresses):
                    run(*former.enter, "sh", "-c", "echo 8 >/proc/sys/net/ipv4/conf/eth0/arp_ignore")
            for address in addresses:
                run(*sandbox.enter, "ip", "address", "add", f"{address}/32", "dev", "eth0")
            self._forget(addresses)

    def take(self, sandbox, addresses):
        """The sandbox ends; its addresses come here, unless another pod has them by now."""
        with self.lock:
            self.sandboxes.remove(sandbox)
            free = [address for address in addresses if all(address not in other.more_addresses for other in self.sandboxes)]
            for address in free:
                run("ip", "address", "replace", f"{address}/32", "dev", self.configuration["bridge"])
            self.here |= set(free)
            self._forget(free)


class Sandbox:
    """The pod's network, host name and control group, which stay while its containers end and start again."""

    def __init__(self, pod, folder, volumes, hosts, address, more_addresses, network):
        self.pod, self.folder, self.volumes, self.hosts, self.address = pod, pathlib.Path(folder), volumes, hosts, address
        self.more_addresses, self.network, self.configuration, self.group = more_addresses, network, network.configuration, None
        self.rules, self.former_rules, self.former_base = None, [], None

    def __enter__(self):
        name = self.pod["metadata"]["name"]
        (self.folder / "root").mkdir(parents=True, exist_ok=True)
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--", "sh", "-c", "echo made; exec cat >/dev/null"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "made\n", "unshare"
        self.enter = ["nsenter", f"--target={self.holder.pid}", "--net", "--uts", "--ipc", "--"]
        self._memory_group()
        bridge, outside = self.configuration["bridge"], f"{VETH}{self.holder.pid}"
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        run("ip", "link", "set", outside, "master", bridge, "up")
        commands = [f"hostname {shlex.quote(name)}", "ip link set lo up", f"ip address add {self.address}/16 dev eth0", "ip link set eth0 up",
                    f"ip route add {self.configuration['service_range']} dev eth0 src {self.address}",
                    "ip rule add pref 32000 lookup local", "ip rule delete pref 0"]     # room for policies before it
        run(*self.enter, "sh", "-ec", "\n".join(commands))
        self.network.give(self, self.more_addresses)
        return self

    def allow(self, rules):
        """The peers that may reach the pod, and its ports for them (kubelet_policies.py)."""
        if rules == self.rules:
            return
        base = kubelet_policies.BASES[self.former_base == kubelet_policies.BASES[0]]
        added = kubelet_policies.commands(rules, self.configuration["node_address"], base)
        # The new ones first. The lower numbers rule as long as both are there, and either allow what both do.
        removed = [line.split("iif")[0].replace("add", "delete") for line in self.former_rules]
        done = subprocess.run([*self.enter, "ip", "-batch", "-"], input="\n".join([*added, *removed, ""]), capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"ip -batch: {done.stderr}")
        self.rules, self.former_rules, self.former_base = rules, added, base

    def _memory_group(self):
        limits = [container.get("resources", {}).get("limits", {}).get("memory") for container in self.pod["spec"]["containers"]]
        if not MEMORY_GROUPS.is_dir() or None in limits:
            return
        self.group = MEMORY_GROUPS / f"{self.configuration['bridge']}-{self.pod['metadata']['uid']}"
        self.group.mkdir()
        (self.group / "memory.limit_in_bytes").write_text(str(sum(map(bytes_of, limits))))

    def __exit__(self, *_):
        self.network.take(self, self.more_addresses)
        self.holder.stdin.close()
        self.holder.wait()
        subprocess.run(["ip", "link", "delete", f"{VETH}{self.holder.pid}"], capture_output=True)       # the kernel takes its time with it
        deadline = time.monotonic() + START_S
        while self.group is not None:
            try:
                self.group.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        shutil.rmtree(self.folder)


class Container:
    """Starts process 1. `find("secret", name)` looks up what its variables name; MissingError where that isn't there."""

    def __init__(self, sandbox, pod, spec, log, find):
        self.spec, self.sandbox, self.end = spec, sandbox, None
        context = {**pod["spec"].get("securityContext", {}), **spec.get("securityContext", {})}
        variables = self._variables(pod, find)
        words = [re.sub(r"\$\((\w+)\)", lambda found: variables.get(found[1], found[0]), word) for word in [*spec["command"], *spec.get("args", ())]]
        self.as_user = ["setpriv", f"--reuid={context.get('runAsUser', 0)}", f"--regid={context.get('runAsGroup', 0)}",
                        f"--groups={group_of(pod)}" if group_of(pod) else "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod["metadata"]["name"], "HOME": "/", **variables}
        environment = ["env", "-i", *(f"{name}={value}" for name, value in variables.items())]
        into = f"echo $$ >{sandbox.group}/cgroup.procs; " if sandbox.group else ""
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "--", "sh", "-ec", into + 'exec "$@"', "sh", *sandbox.enter, *NEW, "sh", "-ec", self._script(context), "sh",
                 *environment, *self.as_user, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.one = None

    def _variables(self, pod, find):
        variables = {}
        for source in self.spec.get("envFrom", ()):
            kind = "secret" if "secretRef" in source else "configmap"
            data = find(kind, (source.get("secretRef") or source["configMapRef"])["name"]).get("data", {})
            variables.update({key: base64.b64decode(value).decode() if kind == "secret" else value for key, value in data.items()})
        for one in self.spec.get("env", ()):
            source = one.get("valueFrom", {})
            if "secretKeyRef" in source:
                data = find("secret", source["secretKeyRef"]["name"]).get("data", {})
                if source["secretKeyRef"]["key"] not in data:
                    raise MissingError(f"couldn't find key {source['secretKeyRef']['key']} in Secret {source['secretKeyRef']['name']}")
                variables[one["name"]] = base64.b64decode(data[source["secretKeyRef"]["key"]]).decode()
            elif "fieldRef" in source:
                fields = {"status.podIP": self.sandbox.address, **{f"metadata.{key}": pod["metadata"][key] for key in ("name", "namespace", "uid")}}
                variables[one["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                variables[one["name"]] = one.get("value", "")
        return variables

    def _script(self, context):
        """Makes the root, enters it, and becomes "$@"."""
        lines = [f"R={shlex.quote(str(self.sandbox.folder / 'root'))} HOSTS={shlex.quote(str(self.sandbox.hosts))} "
                 f"PROGRAMS={shlex.quote(self.sandbox.configuration['programs'])} GROUP={self.sandbox.group or ''}", ROOT]
        for mount in self.spec.get("volumeMounts", ()):
            at, source = shlex.quote(mount["mountPath"].lstrip("/")), shlex.quote(str(self.sandbox.volumes[mount["name"]]))
            lines.append(f"mkdir -p {at}; mount --bind {source} {at}")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {at}")
        if context.get("readOnlyRootFilesystem"):
            lines.append("mount -o remount,ro $R")
        return "\n".join([*lines, "pivot_root . old; umount -l old; cd /", 'exec "$@"'])

    def _pid(self):
        """Process 1, as this machine numbers it."""
        if self.one is None:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            try:
                self.one = int(children.read_text().split()[0])
            except (OSError, IndexError):
                return None
        return self.one

    def port(self, port):
        return port if isinstance(port, int) else next(one["containerPort"] for one in self.spec.get("ports", ()) if one["name"] == port)

    def execute(self, command, seconds):
        """The exit status of a command in the container; subprocess.TimeoutExpired."""
        if self._pid() is None:
            return 1
        words = ["nsenter", f"--target={self.one}", "--mount", "--net", "--uts", "--ipc", "--pid", "--root", "--wd", "--", *self.as_user, *command]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds).returncode

    def pre_stop(self, seconds):
        command = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if command:
            try:
                self.execute(command, seconds)
            except subprocess.TimeoutExpired:
                pass

    def signal(self, number):
        if self.poll() is None and self._pid() is not None:
            try:
                os.kill(self.one, number)
            except ProcessLookupError:
                pass

    def poll(self):
        if self.end is None and (status := self.process.poll()) is not None:
            self.end = status if status >= 0 else 128 - status
        return self.end

    def stop(self, grace_s):
        """SIGTERM, SIGKILL once the time is over, and the exit status."""
        if grace_s:
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(grace_s or 0.001)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            try:
                self.process.wait(START_S)
            except subprocess.TimeoutExpired:
                self.process.kill()     # it had no process 1 yet
                self.process.wait()
        return self.poll()
