"""Metrics, health and the page over TLS: whoever reads from another host shows a viewer's or an admin's token."""

import base64
import contextlib
import hashlib
import http.client
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import textwrap

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from test_server_faults import BINARIES, wait_until  # noqa: E402
from tls_cluster import make_certificates  # noqa: E402

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
OWN = {"TESSERA_TOKEN": "client", "TESSERA_JOIN_TOKEN": "rack", "TESSERA_ADMIN_TOKEN": "root", "TESSERA_VIEWER_TOKEN": "eyes"}

TENANT = '[[tenant]]\nname = "ops"\n'


def listed(name, role):
    return f'[[token]]\nid = "{name}"\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\nrole = "{role}"\ntenant = "ops"\n'


class Served:
    """A coordinator without workers that listens for HTTP on all addresses of the host, by TLS."""

    def __init__(self, folder, *flags, environment=OWN):
        self.certificates = make_certificates(folder / "certs")
        self.log = open(folder / "log", "wb")
        self.process = subprocess.Popen(
            [BINARIES / "server/coordinator/tessera-coordinator", "--listen", f"unix:{folder}/socket", "--listen-http", "tls://0.0.0.0:0",
             "--tls-cert", self.certificates / "server.crt", "--tls-key", self.certificates / "server.key", *flags],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.process.stdout.readline()
        self.port = int(re.search(r"https://0.0.0.0:(\d+)", self.process.stdout.readline())[1])

    def get(self, path, authorization=None):
        """The status, the headers and the body."""
        context = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        with contextlib.closing(http.client.HTTPSConnection("localhost", self.port, context=context, timeout=60)) as connection:
            connection.request("GET", path, headers={"Authorization": authorization} if authorization else {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()

    def status(self, token, path="/metrics"):
        return self.get(path, f"Bearer {token}")[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()
        self.log.close()


@contextlib.contextmanager
def serving(folder, *flags, **more):
    served = Served(folder, *flags, **more)
    try:
        yield served
    finally:
        served.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("https")) as one:
        yield one


def test_viewers_and_admins_read_metrics_and_others_hear_what_to_show(served):
    assert served.status("eyes") == 200 and served.status("root") == 200
    assert "tessera_build_info" in served.get("/metrics", "Bearer eyes")[2]
    for authorization in (None, "Bearer ", "Digest eyes"):
        status, headers, text = served.get("/metrics", authorization)
        assert status == 401 and "Authorization: Bearer TOKEN" in text and "tessera_" not in text
        assert headers.get_all("WWW-Authenticate") == ['Bearer realm="tessera"', 'Basic realm="tessera"']
    for token in ("client", "rack", "guess"):   # none of them reads, and none is told apart
        assert served.get("/metrics", f"Bearer {token}")[::2] == (401, "the token is wrong\n")
    assert served.get("/no/such/path")[0] == 401


def test_probes_need_no_token(served):
    assert served.get("/healthz")[::2] == (200, "ok\n")
    status, _, text = served.get("/readyz")
    assert status == 503 and '"ready":false' in text


def test_a_browser_shows_the_token_as_a_password(served):
    def shown(pair):
        return "Basic " + base64.b64encode(pair.encode()).decode()
    assert served.get("/", shown("anybody:eyes"))[0] == 200 and served.get("/page.js", shown(":eyes"))[0] == 200
    assert served.get("/")[0] == 401 and served.get("/events", shown("eyes:guess"))[0] == 401


def test_what_is_no_tls_is_answered_nothing_and_harms_nobody(served):
    held = []
    for said in (b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer eyes\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"", os.urandom(4096)):
        connection = socket.create_connection(("localhost", served.port), timeout=60)
        held.append(connection)
        connection.sendall(said)
    held[0].settimeout(60)
    with contextlib.suppress(ConnectionError):
        assert b"tessera_" not in held[0].recv(1 << 16)
    assert served.status("eyes") == 200
    for connection in held:
        connection.close()


def test_refused_tokens_stand_in_the_log_by_no_letter(tmp_path):
    with serving(tmp_path) as served:
        assert served.status("a-guessed-secret") == 401
        wait_until(lambda: "the token is wrong" in (tmp_path / "log").read_text())
    assert "a-guessed-secret" not in (tmp_path / "log").read_text()


def test_tokens_of_the_tenants_file_come_and_go(tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(TENANT + listed("first", "viewer") + listed("user", "client"))
    with serving(tmp_path, "--tenants", tenants, environment={}) as served:
        assert served.status("first") == 200 and served.status("user") == 401
        tenants.write_text(TENANT + listed("second", "admin") + listed("user", "client"))
        served.process.send_signal(signal.SIGHUP)
        wait_until(lambda: served.status("second") == 200)
        assert served.status("first") == 401


@pytest.mark.parametrize("flags, without, why", [
    (["--listen-http=0.0.0.0:0"], [], "or tls://host:port"),
    (["--listen-http=tls://0.0.0.0:0"], [], "--tls-cert and --tls-key"),
    (["--listen-http=tls://0.0.0.0:0"], ["TESSERA_VIEWER_TOKEN", "TESSERA_ADMIN_TOKEN"], "nobody could read it"),
    (["--listen-http=tls://0.0.0.0:0", "--viewer-token=root"], [], "TESSERA_VIEWER_TOKEN is another one's token, too")])
def test_what_could_not_work_is_refused_at_the_start(tmp_path, flags, without, why):
    environment = {**os.environ, **{name: value for name, value in OWN.items() if name not in without}}
    ended = subprocess.run([BINARIES / "server/coordinator/tessera-coordinator", "--listen", f"unix:{tmp_path}/socket", *flags],
                           env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and why in ended.stderr, ended.stderr


def test_the_scrape_configuration_of_the_docs_is_one_of_this_server():
    yaml = pytest.importorskip("yaml")
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "operate.md").read_text(), re.S)
    job, = [job for block in blocks for job in yaml.safe_load(textwrap.dedent(block))["scrape_configs"] if job.get("scheme") == "https"]
    assert job["authorization"] == {"credentials_file": "/etc/prometheus/tessera.token"}   # its type is Bearer where none is named
    assert job["tls_config"]["ca_file"] and job["static_configs"]
