"""Calls of Kubernetes' API by JSON, and watches, with the standard library alone.

    api = Api("https://127.0.0.1:6443", token, ca="apiserver.crt")
    api("GET", "/api/v1/namespaces/tessera/pods/tessera-worker-0")["status"]["podIP"]
    for kind, pod in api.watch("/api/v1/pods"): ...
"""

import datetime
import http.client
import json
import ssl
import threading
import time
import urllib.parse


class ApiError(Exception):
    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Api:
    def __init__(self, server, token, ca):
        self.address, self.headers = urllib.parse.urlparse(server).netloc, {"Authorization": f"Bearer {token}"}
        self.context, self.local = ssl.create_default_context(cafile=ca), threading.local()

    def _connection(self, timeout):
        return http.client.HTTPSConnection(self.address, context=self.context, timeout=timeout)

    def __call__(self, method, path, body=None, kind="application/json"):
        """The server's answer; ApiError with its status and words. A thread keeps its connection."""
        for is_last in (False, True):
            kept = getattr(self.local, "connection", None)
            self.local.connection = kept or self._connection(30)
            try:
                self.local.connection.request(method, path, body and json.dumps(body), {**self.headers, "Content-Type": kind})
                answer = self.local.connection.getresponse()
                said = json.loads(answer.read() or b"{}")
                break
            except (OSError, http.client.HTTPException):
                self.local.connection = None
                if is_last or kept is None:     # a connection that was kept may be over; a new one that fails is an error
                    raise
        if answer.status >= 300:
            raise ApiError(answer.status, said.get("message", ""))
        return said

    def watch(self, path):
        """("ADDED" or "MODIFIED" or "DELETED", object) for ever: first all that are there."""
        while True:
            listed = self("GET", path)
            for one in listed["items"]:
                yield "ADDED", one
            try:
                yield from self._changes(f"{path}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)

    def _changes(self, path):
        connection = self._connection(None)
        connection.request("GET", path, headers=self.headers)
        answer = connection.getresponse()
        while line := answer.readline():
            event = json.loads(line)
            if event["type"] == "ERROR":
                return
            yield event["type"], event["object"]
