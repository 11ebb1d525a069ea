"""A host that has no way to the pods but forwarded ports. CutProxy stands for `kubectl port-forward`, which needs a kubelet that streams."""

import ctypes
import socket
import subprocess
import threading

CLONE_NEWNET = 0x40000000


class Laptop:
    """A network namespace of a loopback interface alone."""

    def __enter__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "--", "sh", "-ec", "ip link set lo up; echo made; exec cat >/dev/null"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "made\n", "unshare"
        return self

    def command(self, *words):
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--", *map(str, words)]

    def join(self, bridge, address):
        """Has the address, like "10.78.200.1/16", in the bridge's network from now on."""
        outside = f"tk{self.holder.pid}"
        for words in (["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid)],
                      ["ip", "link", "set", outside, "master", bridge, "up"], self.command("ip", "address", "add", address, "dev", "eth0"),
                      self.command("ip", "link", "set", "eth0", "up")):
            subprocess.run(words, check=True)

    def listen(self, port):
        """A socket of this process that listens there."""
        made = []

        def make():     # a thread of its own, since it can't come back
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self.holder.pid}/ns/net") as namespace:
                assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
            made.append(socket.create_server(("127.0.0.1", port)))
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        return made[0]

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.holder.stdout.close()
        self.holder.wait()
        subprocess.run(["ip", "link", "delete", f"tk{self.holder.pid}"], capture_output=True)
