"""Stands for `kubectl port-forward`, which needs a kubelet that streams: a port of this machine's that leads to one of a pod's. And
a host that has no other way to the pods."""

import asyncio
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


class PortForward:
    """with PortForward("10.78.0.12", 7421) as port: ...     # localhost:port; `listener`: of another host, else a free port of this one"""

    def __init__(self, address, port, listener=None):
        self.address, self.port = address, port
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.loop = asyncio.new_event_loop()

    async def _pump(self, reader, writer):
        try:
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def _carry(self, reader, writer):
        try:
            there = await asyncio.wait_for(asyncio.open_connection(self.address, self.port), 5)
        except (OSError, asyncio.TimeoutError):
            writer.close()
            return
        await asyncio.gather(self._pump(reader, there[1]), self._pump(there[0], writer))

    def __enter__(self):
        self.server = self.loop.run_until_complete(asyncio.start_server(self._carry, sock=self.listener))
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        return self.server.sockets[0].getsockname()[1]

    async def _end(self):
        self.server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
