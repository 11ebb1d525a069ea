"""Messages over TLS between workers of hosts that are names alone: what is refused, and how it is said."""

import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

S, R = ts.Shard, ts.Replicate
WORKER = two_hosts.BINARIES / "server/worker/tessera-worker"


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def expired(folder):
    """A worker's certificate of the folder's CA that has expired, in place of the one that is there."""
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(f"[ca]\ndefault_ca=it\n[it]\ndatabase={folder}/index.txt\nnew_certs_dir={folder}\nrand_serial=yes\n"
                                   "default_md=sha256\npolicy=any\nx509_extensions=names\n[any]\ncommonName=supplied\n"
                                   "organizationalUnitName=supplied\n[names]\nsubjectAltName=IP:127.0.0.1\n")
    openssl("req", "-new", "-key", folder / "worker.key", "-subj", "/OU=tessera-worker/CN=late", "-out", folder / "late.csr")
    openssl("ca", "-batch", "-notext", "-config", folder / "ca.cnf", "-cert", folder / "ca.crt", "-keyfile", folder / "ca.key",
            "-in", folder / "late.csr", "-out", folder / "worker.crt", "-startdate", "20200101000000Z", "-enddate", "20200201000000Z")


def self_signed(folder):
    openssl("req", "-x509", "-new", "-key", folder / "worker.key", "-subj", "/OU=tessera-worker/CN=own", "-addext",
            "subjectAltName=IP:127.0.0.1", "-out", folder / "worker.crt")


def a_servers(folder):
    for end in ("crt", "key"):
        (folder / f"worker.{end}").write_bytes((folder / f"server.{end}").read_bytes())


def of_another_ca(folder):
    os.rename(folder / "ca.crt", folder / "right.crt")
    os.rename(folder / "ca.key", folder / "right.key")
    two_hosts.make_certificates(folder, "127.0.0.1")
    os.rename(folder / "right.crt", folder / "ca.crt")


def of_another_host(folder):
    two_hosts.make_certificates(folder, "10.0.0.9")


@pytest.fixture(name="folders")
def folders_with_one_ca(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    two_hosts.make_certificates(folders[0], "127.0.0.1")
    subprocess.run(["cp", "-r", folders[0], folders[1]], check=True)
    return folders


def wait_for_log(cluster, worker, *words):
    """Each side writes its line when it ends the connection, the next one after a second."""
    log = pathlib.Path(cluster.folder, f"worker{worker}.log")
    two_hosts.wait_until(lambda: any(all(word in line for word in words) for line in log.read_text().splitlines()), f"{words} in the log")


def redistributed(session, values):
    mesh = session.init_device_mesh((2,))
    return session.distribute_tensor(values, mesh, [S(0)]).redistribute([S(1)])


@pytest.mark.parametrize("spoil, refusal", [
    (expired, "certificate has expired"), (self_signed, "self-signed certificate"), (of_another_ca, "unable to get local issuer certificate"),
    (a_servers, "its organizational unit is not tessera-worker"), (of_another_host, "IP address mismatch, it is not for 127.0.0.1")])
def test_a_wrong_certificate_is_named_in_the_ops_error_and_in_the_log(folders, spoil, refusal, rng):
    spoil(folders[1])
    values = rng.standard_normal((64, 64))
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(1, 1), transport="shm+tls", certificates=folders) as cluster, \
            ts.connect(cluster.address) as session:
        with pytest.raises(ts.UnavailableError) as failed:
            redistributed(session, values).wait(timeout=60)
        said = str(failed.value)
        assert "redistribute" in said and "worker 1: no connection: its certificate is refused: " in said and refusal in said
        wait_for_log(cluster, 0, "no connection with worker 1", refusal)
        wait_for_log(cluster, 1, "no connection with 127.0.0.1:")
        # Connections within a host need no certificate.
        alone = session.distribute_tensor(values, session.init_device_mesh((1,), workers=[1]), [R()])
        np.testing.assert_array_equal((alone + 1).full_tensor(), values + 1)


def test_a_worker_who_shows_a_wrong_certificate_is_told(folders, rng):
    expired(folders[0])
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(1, 1), transport="shm+tls", certificates=folders) as cluster, \
            ts.connect(cluster.address) as session:
        with pytest.raises(ts.UnavailableError, match="worker 1: no connection: the other side refused it: .*certificate expired"):
            redistributed(session, rng.standard_normal((64, 64))).wait(timeout=60)
        wait_for_log(cluster, 1, "no connection with 127.0.0.1:", "its certificate is refused: certificate has expired")


def port_of(process):
    """The port on which a process listens for messages."""
    inodes = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")}
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes)


def test_plaintext_is_closed_with_a_line_in_the_log_and_ops_go_on(rng):
    values = rng.standard_normal((512, 512))
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(1, 1), transport="shm+tls") as cluster, \
            ts.connect(cluster.address) as session:
        np.testing.assert_array_equal(redistributed(session, values).full_tensor(), values)
        port = port_of(cluster.workers[1])
        for said in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01", bytes(100)):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
                stranger.sendall(said)
                if len(said) > 3:
                    assert b"HTTP" not in stranger.makefile("rb").read()     # an alert at most; then it is closed
                np.testing.assert_array_equal(redistributed(session, values).full_tensor(), values)
        wait_for_log(cluster, 1, "no connection with 127.0.0.1:", "TLS: http request")


@pytest.mark.parametrize("options, said", [
    (["--transport", "shm+tls"], "needs --message-listen"),
    (["--transport", "shm+tls", "--message-listen", "127.0.0.1"], "there is no --tls-cert"),
    (["--transport", "shm+tls", "--message-listen", "127.0.0.1:x"], '--message-listen "127.0.0.1:x"'),
    (["--transport", "shm+tls", "--message-listen", "127.0.0.1", "--trusted-network"], "--trusted-network"),
    (["--transport", "tls", "--message-listen", "127.0.0.1", "--tls-cert", "/none", "--tls-key", "/none", "--tls-ca", "/none"], "--tls-cert /none"),
    (["--message-listen", "127.0.0.1"], "--transport tls or shm+tls")])
def test_options_that_do_not_fit_are_refused_before_it_joins(options, said, tmp_path):
    command = [WORKER, "--coordinator", f"unix:{tmp_path}/none", "--index", 0, "--memory", "1MiB", "--socket-dir", tmp_path, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, env={**os.environ, "TESSERA_JOIN_TOKEN": "b"})
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_messages_go_over_tls_between_all_workers_where_none_map_each_other(rng):
    values = rng.standard_normal((256, 256))
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(2, 2), transport="tls") as cluster, \
            ts.connect(cluster.address) as session:
        mesh = session.init_device_mesh((4,))
        x = session.distribute_tensor(values, mesh, [S(0)])
        plan = x.explain_redistribute([S(1)])
        with session.comm_debug() as comm:
            y = x.redistribute([S(1)]).wait()
        assert comm.bytes_received == plan.bytes_received
        np.testing.assert_array_equal((y @ y).full_tensor(), values @ values)


def refused_at_join(cluster, tmp_path, *options):
    command = [WORKER, "--coordinator", cluster.address.partition("#")[0], "--index", 7, "--memory", "1MiB", "--socket-dir", tmp_path, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TESSERA_JOIN_TOKEN": cluster.join_token})
    assert done.returncode == 4, done.stderr
    return done.stderr


def test_a_worker_that_can_not_reach_those_that_are_there_is_refused_when_it_joins(tmp_path):
    with two_hosts.Cluster(two_hosts.named_hosts(1), workers=(1,), transport="tls") as cluster:
        said = refused_at_join(cluster, tmp_path, "--host-id", "host 9", "--transport", "shm+ucx", "--trusted-network", "--net-devices", "lo")
        assert "worker 7 has --transport shm+ucx --trusted-network on host host 9" in said
        assert "worker 0 has --transport tls on host host 0" in said and "start each with --transport shm+tls" in said
        said = refused_at_join(cluster, tmp_path, "--host-id", "host 9")
        assert "worker 7 has --transport shm on host host 9" in said
        said = refused_at_join(cluster, tmp_path, "--host-id", "host 0")
        assert "one of them maps no memory and the other one has no messages" in said
        with ts.connect(cluster.address) as session:
            assert [worker["state"] for worker in session.status()["workers"]] == ["alive"]
