"""Metrics and health over HTTP: what a scrape reads, and that nothing that a client of HTTP does holds up the coordinator."""

import contextlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import tessera as ts
from test_server_faults import BINARIES, wait_until


class Served:
    """A coordinator that tells metrics, and a worker."""

    def __init__(self, folder, stderr=None):
        self.environment = {**os.environ, "TESSERA_TOKEN": secrets.token_hex(8), "TESSERA_JOIN_TOKEN": secrets.token_hex(8)}
        self.listen = f"unix:{folder}/socket"
        self.coordinator = subprocess.Popen(
            [BINARIES / "server/coordinator/tessera-coordinator", "--listen", self.listen, "--listen-http", "127.0.0.1:0"],
            env=self.environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.coordinator.stdout.readline()
        self.port = int(re.search(r"http://127.0.0.1:(\d+)", self.coordinator.stdout.readline())[1])
        self.worker = subprocess.Popen(
            [BINARIES / "server/worker/tessera-worker", "--coordinator", self.listen, "--memory", "64MiB", "--socket-dir", folder],
            env=self.environment)

    def connect(self):
        return ts.connect(f"{self.listen}#token={self.environment['TESSERA_TOKEN']}")

    def get(self, path):
        """The status and the body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def raw(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return contextlib.closing(connection)

    def stop(self):
        for process in (self.worker, self.coordinator):
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        self.coordinator.stdout.close()


@pytest.fixture
def served(tmp_path):
    one = Served(tmp_path)
    yield one
    one.stop()


def test_a_scrape_counts_what_was_done(served):
    wait_until(lambda: served.get("/readyz")[0] == 200)
    with served.connect() as session:
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,)))
        for _ in range(5):
            np.testing.assert_array_equal((x + 1).full_tensor(), np.arange(8.0) + 1)
        wait_until(lambda: 'op="add"} 5\n' in served.get("/metrics")[1])  # a snapshot may be 0.1 s old
        status, text = served.get("/metrics")
        assert status == 200
        assert 'tessera_sessions{tenant="default",connected="true"} 1' in text
        assert re.search(r'tessera_ops_total\{tenant="default",op="add"\} 5\n', text), text
        assert re.search(r'tessera_tenant_device_seconds_total\{tenant="default",worker="0",lane="light"\} \d', text)
        for line in text.splitlines():
            assert re.fullmatch(r'# (HELP|TYPE) tessera_\w+ .+|tessera_\w+(\{.*\})? [-+.\deInf]+', line), line


def test_health_names_a_worker_that_answers_nothing(served):
    assert served.get("/healthz") == (200, "ok\n")
    wait_until(lambda: served.get("/readyz")[0] == 200)
    served.worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: served.get("/readyz")[0] == 503)
    answer = json.loads(served.get("/readyz")[1])
    assert not answer["ready"] and [one["worker"] for one in answer["workers"]] == [0]
    assert served.get("/healthz")[0] == 200


def test_what_is_no_request_of_ours_is_refused(served):
    assert served.get("/nothing")[0] == 404 and served.get("/metrics/../secret")[0] == 404
    for garbage in (b"\xff" * 64 + b"\r\n\r\n", b"GET\r\n\r\n", b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
                    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n"):
        with served.raw() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(garbage)
            answer = connection.recv(1000)
            assert not answer or re.match(rb"HTTP/1.1 [45]\d\d", answer), (garbage[:40], answer)
    assert served.get("/metrics")[0] == 200


def test_what_a_client_of_http_sends_never_stands_in_the_log(tmp_path):
    """A body that breaks behind its answer: nothing of it goes to stderr."""
    with open(tmp_path / "log", "wb") as log:
        one = Served(tmp_path, stderr=log)
    try:
        with one.raw() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nsmuggled \x1b[31m\r\nx\r\n0\r\n\r\n")
            while connection.recv(1000):
                pass
        assert one.get("/healthz")[0] == 200
    finally:
        one.stop()
    said = (tmp_path / "log").read_bytes()
    assert b"smuggled" not in said and b"kj/" not in said and b"\x1b" not in said, said


def test_promtool_finds_nothing_wrong(served):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool of Debian's prometheus is not installed")
    wait_until(lambda: served.get("/readyz")[0] == 200)
    with served.connect() as session:
        float(session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,))).sum())
        checked = subprocess.run([promtool, "check", "metrics"], input=served.get("/metrics")[1], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture
def prometheus(served, tmp_path):
    """Debian's Prometheus with the configuration of the docs; `ask(query)` gives its answer."""
    if shutil.which("prometheus") is None:
        pytest.skip("Debian's prometheus is not installed")
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs"
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", (docs / "operate.md").read_text(), re.S) if "9464" in block and "https" not in block)
    for written, own in (("127.0.0.1:9464", f"127.0.0.1:{served.port}"), ("scrape_interval: 5s", "scrape_interval: 200ms"),
                         ("[tessera_alerts.yml]", f"[{docs / 'operate/tessera_alerts.yml'}]")):
        assert written in text
        text = text.replace(written, own)
    (tmp_path / "prometheus.yml").write_text("global: {evaluation_interval: 200ms}\n" + text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    with open(tmp_path / "prometheus.log", "w") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                                    f"--web.listen-address={at}"], stdout=log, stderr=log)

    def ask(query):
        assert process.poll() is None, (tmp_path / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://{at}/api/v1/{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None     # it is starting
    yield ask
    process.terminate()
    process.wait(timeout=60)


def test_debians_prometheus_scrapes_it_and_takes_the_alerts(served, prometheus):
    wait_until(lambda: served.get("/readyz")[0] == 200)
    with served.connect() as session:
        float(session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,))).sum())
        wait_until(lambda: any(float(one["value"][1]) >= 1 for one in (prometheus("query?query=tessera_ops_total") or {"result": []})["result"]))
    target, = prometheus("targets")["activeTargets"]
    assert target["health"] == "up" and target["lastError"] == "" and target["labels"]["job"] == "tessera"
    rules = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 8
    wait_until(lambda: all(rule["health"] == "ok" for group in prometheus("rules")["groups"] for rule in group["rules"]), seconds=90)


# ---- the page -------------------------------------------------------------------------------------


def events_of(served, count):
    """The first states that a stream of the page tells."""
    with served.raw() as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        text = b""
        while text.count(b"data: ") < count or not text.endswith(b"\n\r\n"):
            part = connection.recv(1 << 16)
            assert part, text
            text += part
    assert b"text/event-stream" in text
    return [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: ")]


def test_the_page_tells_who_holds_what_and_names_stay_text(served):
    wait_until(lambda: served.get("/readyz")[0] == 200)
    name = "<script>alert('x')</script> \"q\"\n\u65e5\u672c"
    with ts.connect(f"{served.listen}#token={served.environment['TESSERA_TOKEN']}", name=name) as session:
        kept = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,)))
        kept.wait()
        wait_until(lambda: events_of(served, 1)[0]["sessions"])
        first, second = events_of(served, 2)
        held, = second["sessions"]
        assert held["name"].startswith("<script>alert(") and "\n" not in held["name"] and held["tensors"] == 1 and held["bytes"] == 64
        assert [one["name"] for one in second["tenants"]] == ["default"] and second["workers"][0]["state"] == "alive"
        assert second["now_s"] > first["now_s"]
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/", timeout=60) as page:
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
        assert b"innerHTML" not in page.read()
    status, script = served.get("/page.js")
    assert status == 200 and "innerHTML" not in script and served.get("/page.css")[0] == 200


def test_a_stream_ends_by_itself_and_readers_that_never_read_leave_room(served):
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            with contextlib.suppress(ConnectionError):
                stack.enter_context(served.raw()).sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        assert served.get("/healthz")[0] == 200
        assert len(os.listdir(f"/proc/{served.coordinator.pid}/fd")) < 200
        with served.raw() as connection:
            connection.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert 1 < text.count(b"data: ") < 12 and text.endswith(b"0\r\n\r\n")


def test_a_request_of_a_gigabyte_is_not_read(served):
    with served.raw() as connection:
        connection.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 1 << 30:
                sent += connection.send(b"x" * (1 << 20))
        assert sent < 64 << 20
    assert served.get("/metrics")[0] == 200


def test_scrapers_that_never_read_hold_up_nobody(served):
    wait_until(lambda: served.get("/readyz")[0] == 200)
    with contextlib.ExitStack() as stack, served.connect() as session:
        for _ in range(1000):
            with contextlib.suppress(ConnectionError):
                connection = stack.enter_context(served.raw())
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        x = session.distribute_tensor(np.arange(8.0), session.init_device_mesh((1,)))
        began = time.monotonic()
        for _ in range(20):
            (x + 1).full_tensor()
        assert time.monotonic() - began < 10
        assert served.get("/metrics")[0] == 200
        open_files = len(os.listdir(f"/proc/{served.coordinator.pid}/fd"))
        assert open_files < 200


@pytest.mark.parametrize("address, why", [("0.0.0.0:0", "loopback"), ("127.0.0.1", "port"), ("example.com:80", "loopback"),
                                          ("unix:/tmp/x", "--listen-http")])
def test_an_address_that_others_reach_is_refused(tmp_path, address, why):
    command = [BINARIES / "server/coordinator/tessera-coordinator", "--listen", f"unix:{tmp_path}/socket", "--listen-http", address]
    environment = {**os.environ, "TESSERA_TOKEN": "a", "TESSERA_JOIN_TOKEN": "b"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and why in ended.stderr, ended.stderr
