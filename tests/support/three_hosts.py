"""The two machines and the laptop of docs/deploy.md on one machine: three network and mount namespaces, the programs started
by the very lines of that page.

    with ThreeHosts(tmp_path) as hosts, Deployed(hosts, tmp_path):
        hosts.laptop.check(sys.executable, "-c", "...")

node1 has an address in the network of the laptop and one in that of node2. `reach` says how the laptop gets to node2:
"forwarded" by node1, "dropped" on the way without a word, or "none": it knows no way.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from two_hosts import BINARIES, INTERFACE, Host, NotPermitted, wait_until

NODES = {"node1": "10.78.0.1", "node2": "10.78.0.2"}
OUTSIDE = "tess1"   # node1's end of the link to the laptop
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/deploy.md"
TOKEN, JOIN_TOKEN = "11" * 16, "22" * 16


class ThreeHosts:
    def __init__(self, folder, reach):
        for program in ("unshare", "nsenter", "ip", "sysctl", "mount"):
            if shutil.which(program) is None:
                raise NotPermitted(f"{program} is not installed")
        self.folder, self.reach, self.hosts = folder, reach, []

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        for number in (1, 2, 3):
            self.hosts.append(Host(number))
        self.node1, self.node2, self.laptop = self.hosts
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{number} {name}\n" for name, number in NODES.items()))
        for host in self.hosts:
            host.run("ip", "link", "set", "lo", "up")
            host.run("mount", "--bind", self.folder / "hosts", "/etc/hosts")
        self._link(self.node1, INTERFACE, NODES["node1"], self.node2, INTERFACE, NODES["node2"])
        self._link(self.node1, OUTSIDE, "10.77.0.1", self.laptop, INTERFACE, "10.77.0.2")
        self.node2.run("ip", "route", "add", "10.77.0.0/24", "via", NODES["node1"])
        network = f"{NODES['node1']}/32" if self.reach == "none" else "10.78.0.0/24"
        self.laptop.run("ip", "route", "add", network, "via", "10.77.0.1")
        self.node1.run("sysctl", "-w", f"net.ipv4.ip_forward={int(self.reach == 'forwarded')}")
        # A folder of node1's own for the coordinator's socket.
        self.node1.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.node1.run("mkdir", "/run/tessera")

    def _link(self, one, one_name, one_address, other, other_name, other_address):
        one.run("ip", "link", "add", one_name, "type", "veth", "peer", "name", other_name, "netns", other.holder.pid)
        for host, name, address in ((one, one_name, one_address), (other, other_name, other_address)):
            host.run("ip", "address", "add", f"{address}/24", "dev", name)
            host.run("ip", "link", "set", name, "up")
        for host, name in ((one, one_name), (other, other_name)):
            wait_until(lambda h=host, n=name: h.run("cat", f"/sys/class/net/{n}/operstate") == "up\n", "the link between them")

    def break_connections(self):
        """Ends what node1 has connected to node2's address for clients; whether there was anything."""
        return self.node1.run("ss", "--kill", "--no-header", "state", "established", "dst", NODES["node2"], "dport", "=", ":7431").strip() != ""

    def __exit__(self, *_):
        for host in self.hosts:
            host.close()


def blocks_of_page():
    """The shell's and Python's blocks of the first chapter, in order."""
    chapter = PAGE.read_text().partition("## Two machines and a laptop")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w*)\n(.*?)^```", chapter, re.S | re.M)


class Deployed:
    """The processes that the page's lines start, with memory of a test's size and tokens that the test knows."""

    def __init__(self, hosts, folder, without=()):
        """`without`: flags of node2's worker that are left out."""
        self.hosts, self.folder, self.processes = hosts, folder, []
        (folder / "bin").mkdir()
        for name, program in (("tessera", "client/cli/tessera"), ("tessera-coordinator", "server/coordinator/tessera-coordinator"),
                              ("tessera-worker", "server/worker/tessera-worker")):
            (folder / "bin" / name).symlink_to(BINARIES / program)
        (self.coordinator, self.worker1, self.worker2), self.laptop = self._blocks()
        for flag in without:
            self.worker2 = re.sub(rf"{flag} \S+ ?", "", self.worker2)

    def _blocks(self):
        shell = [text.replace("16GiB", "384MiB") for kind, text in blocks_of_page() if not kind]
        python = [text.replace('token="..."', f'token="{TOKEN}"').replace('"ca.crt"', f'"{self.folder}/tls/ca.crt"')
                  for kind, text in blocks_of_page() if kind == "python"]
        assert len(shell) == 3 and len(python) == 2, blocks_of_page()
        return shell, python

    @property
    def connected(self):
        """The first lines of a program on the laptop."""
        return ("import numpy as np, tessera as ts\n"
                f"session = ts.connect('tls://node1:7421', token={TOKEN!r}, ca='{self.folder}/tls/ca.crt')\n")

    def environment(self):
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder), "XDG_STATE_HOME": str(self.folder / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(self, host, lines, name):
        for token in (TOKEN, JOIN_TOKEN):
            lines = lines.replace("$(openssl rand -hex 16)", token, 1)
        lines = re.sub(r"^(?=tessera-)", "exec ", lines, flags=re.M)
        log = open(self.folder / f"{name}.log", "wb")
        command = host.command("bash", "-ec", f"cd {self.folder}\n{lines}")
        self.processes.append(subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log))
        log.close()
        return self.processes[-1]

    def on_laptop(self, code, timeout=120):
        """A Python program's output there; its error where it fails."""
        done = subprocess.run(self.hosts.laptop.command(sys.executable, "-c", code), env=self.environment(), capture_output=True, text=True,
                              timeout=timeout)
        assert done.returncode == 0, f"{done.stderr[-3000:]}\n{self.logs()}"
        return done.stdout

    def start_on_laptop(self, code):
        with open(self.folder / "laptop.log", "wb") as log:
            command = self.hosts.laptop.command(sys.executable, "-c", code)
            self.processes.append(subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log))
        return self.processes[-1]

    def logs(self):
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def _said(self, name, words):
        def said():
            assert all(process.poll() is None for process in self.processes), self.logs()
            return words in (self.folder / f"{name}.log").read_text()
        return said

    def __enter__(self):
        try:
            self.start(self.hosts.node1, self.coordinator, "coordinator")
            wait_until(self._said("coordinator", "listening on tls://node1:7422"), "the coordinator")
            self.start(self.hosts.node1, self.worker1, "node1")
            self.start(self.hosts.node2, self.worker2, "node2")
            self.on_laptop(self.connected + "import time\n"
                           "while [w['state'] for w in session.status()['workers']] != ['alive'] * 2: time.sleep(0.05)\n", timeout=60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

