"""`tessera certs`, whose certificates OpenSSL's own command line judges."""

import os
import pathlib
import socket
import stat
import subprocess

import pytest

from test_plan_command import tessera

FILES = ["ca.crt", "ca.key", "server.crt", "server.key", "worker.crt", "worker.key"]


def openssl(*arguments):
    return subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.fixture(name="folder")
def folder_with_certificates(tmp_path):
    folder = tmp_path / "tls"
    done = tessera("certs", "--host", "node7", "--host", "10.1.2.3", "--host", "fd00::7", str(folder), "--days", "30")
    assert done.returncode == 0, done.stderr
    return folder


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_certs_makes_a_ca_and_two_leaves_that_openssl_verifies(folder):
    assert sorted(os.listdir(folder)) == FILES and mode(folder) == 0o700
    assert [mode(folder / name) for name in FILES] == [0o644, 0o600] * 3
    for name, purpose, word in [("server", "sslserver", "OK"), ("worker", "sslserver", "OK"), ("worker", "sslclient", "OK"),
                                ("server", "sslclient", "unsuitable certificate purpose")]:
        done = openssl("verify", "-x509_strict", "-purpose", purpose, "-CAfile", folder / "ca.crt", folder / f"{name}.crt")
        assert word in done.stdout + done.stderr, (name, purpose, done)
    for host in (["-verify_hostname", "node7"], ["-verify_ip", "10.1.2.3"], ["-verify_ip", "fd00::7"]):
        assert openssl("verify", *host, "-CAfile", folder / "ca.crt", folder / "worker.crt").returncode == 0, host
    wrong = openssl("verify", "-verify_hostname", "node8", "-CAfile", folder / "ca.crt", folder / "worker.crt")
    assert "ostname mismatch" in wrong.stdout + wrong.stderr


def test_units_say_whose_a_certificate_is_and_keys_are_theirs(folder):
    for name in ("server", "worker"):
        subject = openssl("x509", "-in", folder / f"{name}.crt", "-noout", "-subject").stdout
        assert f"OU = tessera-{name}" in subject
        of_certificate = openssl("x509", "-in", folder / f"{name}.crt", "-noout", "-pubkey").stdout
        assert of_certificate == openssl("pkey", "-in", folder / f"{name}.key", "-pubout").stdout != ""


def test_a_second_run_keeps_the_ca_and_renews_the_leaves(folder):
    before = {name: (folder / name).read_bytes() for name in FILES}
    done = tessera("certs", str(folder), "--host", "node8")
    assert done.returncode == 0 and "the CA that was there" in done.stdout
    after = {name: (folder / name).read_bytes() for name in FILES}
    assert [name for name in FILES if before[name] == after[name]] == ["ca.crt", "ca.key"]
    assert openssl("verify", "-verify_hostname", "node8", "-CAfile", folder / "ca.crt", folder / "server.crt").returncode == 0
    assert sorted(os.listdir(folder)) == FILES


def test_hosts_are_this_machine_where_none_is_named(tmp_path):
    done = tessera("certs", str(tmp_path / "tls"))
    assert done.returncode == 0, done.stderr
    shown = tessera("certs", "--show", str(tmp_path / "tls/worker.crt")).stdout
    names = next(line for line in shown.splitlines() if line.startswith("hosts")).removeprefix("hosts").strip().split(", ")
    assert names == list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname()]))
    assert "--tls-cert" in done.stdout and "tessera certs --show" in done.stdout


def test_show_says_subject_names_use_and_expiry(folder):
    shown = tessera("certs", "--show", str(folder / "worker.crt")).stdout
    for part in ["OU = tessera-worker", "node7, 10.1.2.3, fd00::7", "server and client", "days left)"]:
        assert part in shown, shown
    assert "for      CA" in tessera("certs", "--show", str(folder / "ca.crt")).stdout


def test_an_expired_certificate_is_shown_as_one(folder):
    request, late = folder / "late.csr", folder / "late.crt"
    assert openssl("req", "-new", "-key", folder / "worker.key", "-subj", "/CN=late", "-out", request).returncode == 0
    index = folder / "index.txt"
    index.write_text("")
    (folder / "ca.cnf").write_text(f"[ca]\ndefault_ca=it\n[it]\ndatabase={index}\nnew_certs_dir={folder}\nrand_serial=yes\n"
                                   "default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n")
    signed = openssl("ca", "-batch", "-config", folder / "ca.cnf", "-cert", folder / "ca.crt", "-keyfile", folder / "ca.key",
                     "-in", request, "-out", late, "-startdate", "20200101000000Z", "-enddate", "20200201000000Z")
    assert signed.returncode == 0, signed.stderr
    assert "2020-02-01 00:00 UTC (it has expired)" in tessera("certs", "--show", str(late)).stdout


def refused(status, *arguments):
    done = tessera("certs", *map(str, arguments))
    assert done.returncode == status and done.stderr.startswith("tessera: certs: "), done
    return done.stderr


def test_half_a_ca_is_refused_and_nothing_is_written(folder):
    for lost, there in (("ca.key", "ca.crt"), ("ca.crt", "ca.key")):
        kept = (folder / lost).read_bytes()
        (folder / lost).unlink()
        before = {name: (folder / name).read_bytes() for name in os.listdir(folder)}
        message = refused(1, folder)
        assert f"{folder / lost} is missing, {folder / there} is there" in message
        assert {name: (folder / name).read_bytes() for name in os.listdir(folder)} == before
        (folder / lost).write_bytes(kept)


def test_what_is_no_authority_is_refused_by_name(folder, tmp_path):
    tessera("certs", str(tmp_path / "other"))
    for text, message in [((tmp_path / "other/ca.key").read_bytes(), "ca.key is not the key of ca.crt"),
                          (b"hello", "ca.key is no key in PEM")]:
        (folder / "ca.key").write_bytes(text)
        assert message in refused(1, folder)
    openssl("pkey", "-aes256", "-passout", "pass:x", "-in", tmp_path / "other/ca.key", "-out", folder / "ca.key")
    assert "it has a passphrase" in refused(1, folder)
    (folder / "ca.key").write_bytes((folder / "worker.key").read_bytes())
    (folder / "ca.crt").write_bytes((folder / "worker.crt").read_bytes())
    assert "ca.crt is no CA's certificate" in refused(1, folder)


@pytest.mark.parametrize("host", ["a b", "-x", "node7,DNS:evil", "1.2.3", "x" * 254, "a..b", "ü", "*.example.org"])
def test_a_host_that_is_none_is_refused_before_anything_is_made(host, tmp_path):
    assert "neither a host's name nor an IP address" in refused(2, tmp_path / "tls", f"--host={host}")
    assert not (tmp_path / "tls").exists()


def test_a_folder_where_others_may_write_and_a_file_without_certificates_are_refused(folder, tmp_path):
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    assert f"others may write to {wide}" in refused(1, wide)
    assert os.listdir(wide) == []
    assert "is no folder" in refused(1, folder / "ca.crt")
    assert "has no certificate in PEM" in refused(2, "--show", folder / "ca.key")
    assert "No such file" in refused(1, "--show", folder / "none")
    assert "a folder, or --show FILE" in refused(2)


@pytest.mark.parametrize("days", ["0", "-1", "3651", "nan"])
def test_days_that_can_not_be_are_wrong_usage(days, tmp_path):
    assert tessera("certs", str(tmp_path / "tls"), "--days", days).returncode == 2
    assert not pathlib.Path(tmp_path / "tls").exists()
