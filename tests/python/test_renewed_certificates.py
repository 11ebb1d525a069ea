"""Certificates of a coordinator that are renewed while it runs: connections from then on are shown the new ones."""

import re
import signal
import ssl

import numpy as np
import pytest

import tessera as ts
from test_server_faults import wait_until
from tls_cluster import TlsCluster, make_certificates


def shown(port):
    return ssl.get_server_certificate(("localhost", int(port)), timeout=60)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("TESSERA_VIEWER_TOKEN", "eyes")
    with TlsCluster(flags=["--listen-http=tls://localhost:0"]) as one:
        one.http_port = re.search(r"https://localhost:(\d+)", one.processes[0].stdout.readline())[1]
        yield one


def log(cluster):
    return (cluster.folder / "coordinator.log").read_text()


def test_a_renewed_certificate_is_shown_by_each_door_and_cuts_nobody(cluster):
    doors = [address.rpartition(":")[2] for address in (cluster.clients, cluster.http_port)]
    before = [shown(port) for port in doors]
    with cluster.connect() as session:
        x = ts.asarray(np.arange(6.0), device_mesh=session.init_device_mesh((2,)))
        make_certificates(cluster.certificates)
        written = (cluster.certificates / "server.crt").read_text()
        wait_until(lambda: all(shown(port).strip() in written for port in doors))
        assert all(old.strip() not in written for old in before)
        assert (x + x).sum().item() == 30 and session.state == "open"
    with cluster.connect() as session:
        assert len(session.workers()) == 2
    cluster.start_worker(2)
    cluster.wait_for_workers(3)   # the door of workers, too, and by the CA that it was


def test_files_that_are_no_good_leave_what_was_there_and_are_told(cluster):
    before = shown(cluster.http_port)
    key = cluster.certificates / "server.key"
    good = key.read_text()
    key.write_text("half a key")
    wait_until(lambda: log(cluster).count("is left as it was") == 2)   # of the doors, and of HTTP
    assert "server.key" in log(cluster) and "half a key" not in log(cluster)
    assert shown(cluster.http_port) == before
    with cluster.connect() as session:
        assert len(session.workers()) == 2
    key.write_text(good)
    wait_until(lambda: "is shown from now on" in log(cluster))


def test_sighup_reads_them_at_once(cluster):
    cluster.processes[0].send_signal(signal.SIGHUP)
    wait_until(lambda: "is shown from now on" in log(cluster))
    assert cluster.processes[0].poll() is None
