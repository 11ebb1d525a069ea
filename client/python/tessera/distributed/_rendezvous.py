"""How the ranks of a program find one coordinator: rank 0 says where it is, through a file or a port of this host."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
import uuid

from .._errors import DeadlineExceededError, InvalidArgumentError

POLL_S = 0.05


class Meeting:
    """Rank 0's word to the others: the coordinator's address, and a key that no other run has."""

    def __init__(self, address: str, key: str):
        self.address, self.key = address, key

    def text(self) -> str:
        return json.dumps({"address": self.address, "key": self.key})

    @staticmethod
    def of(text: str) -> "Meeting":
        known = json.loads(text)
        return Meeting(known["address"], known["key"])


def new_key() -> str:
    return uuid.uuid4().hex


def _until(deadline: float, what: str, attempt):
    """Tries until the attempt gives something, and returns that."""
    while True:
        found = attempt()
        if found is not None:
            return found
        if time.monotonic() >= deadline:
            raise DeadlineExceededError(f"init_process_group: {what} in time")
        time.sleep(POLL_S)


def by_file(path: str, meeting: Meeting | None, deadline: float) -> Meeting:
    """`meeting`: what rank 0 tells; None for the others, who wait for it. The file is of one run: an old one misleads."""
    if meeting is not None:
        folder = os.path.dirname(path) or "."
        handle, new = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as file:
            file.write(meeting.text())
        os.replace(new, path)
        return meeting

    def read():
        try:
            with open(path) as file:
                return Meeting.of(file.read())
        except (OSError, ValueError, KeyError):
            return None

    return _until(deadline, f"rank 0 did not write {path}", read)


def by_port(host: str, port: int, meeting: Meeting | None, readers: int, deadline: float) -> Meeting:
    """The same by a TCP port of this host, on which rank 0 answers `readers` others."""
    if meeting is not None:
        if readers > 0:
            _serve(port, meeting.text().encode(), readers)
        return meeting

    def read():
        try:
            with socket.create_connection((host, port), timeout=1) as connection:
                connection.settimeout(5)
                text = b""
                while chunk := connection.recv(4096):
                    text += chunk
            return Meeting.of(text.decode())
        except (OSError, ValueError, KeyError):
            return None

    return _until(deadline, f"rank 0 did not answer at {host}:{port}", read)


def _serve(port: int, text: bytes, readers: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))      # the cluster that rank 0 starts is of this host
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InvalidArgumentError(f"init_process_group: rank 0 can't listen on port {port}: {error.strerror}") from None

    def answer():
        with listener:
            for _ in range(readers):
                try:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(text)
                except OSError:
                    return

    threading.Thread(target=answer, name="tessera-rendezvous", daemon=True).start()
