"""Workers that have one address and one secret: real processes, whose certificates the coordinator signs."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from joined_pool import TOKENS, JoinedPool, pin_of, program  # noqa: E402
from test_plan_command import tessera  # noqa: E402
from two_hosts import make_certificates, wait_until  # noqa: E402


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    with JoinedPool(tmp_path_factory.mktemp("pool"), "--join-names=127.0.0.*", f"--join-names={os.uname().nodename}", "--max-workers=4") as pool:
        yield pool


def product_is_right(session):
    a, b = np.random.default_rng(3).standard_normal((2, 300, 300))
    mesh = session.init_device_mesh((len(session.workers()),), workers=[worker["index"] for worker in session.workers()])
    x = session.distribute_tensor(a, mesh, [ts.Shard(0)])
    np.testing.assert_allclose((x @ session.distribute_tensor(b, mesh, [ts.Shard(1)])).full_tensor(), a @ b)
    np.testing.assert_array_equal(x.redistribute([ts.Shard(1)]).full_tensor(), a)


def test_workers_of_two_hosts_join_by_an_address_and_a_token_and_exchange_messages(tmp_path):
    with JoinedPool(tmp_path) as pool:
        for host in ("one", "two"):
            pool.join(f"--host-id={host}")
        with pool.connect(workers=2) as session:
            assert [worker["index"] for worker in session.workers()] == [0, 1]
            product_is_right(session)
        # Nothing of a key lies in a file.
        assert not [name for name in os.listdir("/tmp") if name.startswith(f"worker-{pool.workers[0].pid}") and not name.endswith(".sock")]
        assert "the address that reaches the coordinator" in pool.log_of(0)


def test_workers_that_start_at_once_get_a_number_each(tmp_path):
    """A number is kept between the answer to `join` and the worker's link, too."""
    with JoinedPool(tmp_path) as pool:
        for _ in range(8):
            pool.join()
        with pool.connect(workers=8) as session:
            assert [worker["index"] for worker in session.workers()] == list(range(8))


def test_certificates_are_renewed_while_ops_run_and_connections_that_are_made_later_see_the_new_ones(tmp_path):
    with JoinedPool(tmp_path, "--leaf-lifetime=3s") as pool:
        for host in ("one", "two"):
            pool.join(f"--host-id={host}")
        with pool.connect(workers=2) as session:
            while min(pool.log_of(worker).count("is renewed") for worker in (0, 1)) < 3:
                product_is_right(session)
            assert "is gone" not in pool.logs() and "not taken" not in pool.logs()
        # By now the first certificates are over: a client and a worker that come now see later ones.
        pool.join("--host-id=three")
        with pool.connect(workers=3) as session:
            product_is_right(session)


def test_a_worker_that_was_killed_is_back_under_its_number_and_its_loss_is_named(tmp_path):
    with JoinedPool(tmp_path) as pool:
        for index in (0, 1):
            pool.join(f"--index={index}", f"--host-id=host{index}")
        with pool.connect(workers=2) as session:
            mesh = session.init_device_mesh((2,))
            x = session.distribute_tensor(np.ones((100, 100)), mesh, [ts.Shard(0)]).wait()
            pool.workers[1].kill()
            pool.workers[1].wait()
            pool.join("--index=1", "--host-id=host1")
            wait_until(lambda: len(session.workers()) == 2 and "worker 1: enrolled" in pool.log_of(2), "the worker to be back")
            with pytest.raises(ts.UnavailableError, match="worker 1"):
                x.full_tensor()
            product_is_right(session)


def test_workers_outlive_a_coordinator_that_is_started_again_and_join_it_with_the_certificates_of_the_moment(tmp_path):
    with JoinedPool(tmp_path, f"--state={tmp_path / 'state'}", "--leaf-lifetime=4s") as pool:
        for index in (0, 1):
            pool.join(f"--index={index}", f"--host-id=host{index}", "--outlive=60", f"--tls-ca={pool.tls}/ca.crt")
        with pool.connect(workers=2) as session:
            x = session.distribute_tensor(np.arange(10.0), session.init_device_mesh((2,)), [ts.Shard(0)]).wait()
            # Their first certificates are over by the time that they join again.
            wait_until(lambda: min(pool.log_of(worker).count("is renewed") for worker in (0, 1)) >= 2, "second certificates")
            pool.coordinator.kill()
            pool.coordinator.wait()
            pool.start_coordinator()
            np.testing.assert_array_equal(x.full_tensor(), np.arange(10.0))
            product_is_right(session)
            assert all("goes on with the coordinator of epoch" in pool.log_of(worker) for worker in (0, 1))


def test_who_comes_later_is_told_of_and_a_mesh_that_is_there_stays(tmp_path):
    with JoinedPool(tmp_path) as pool:
        pool.join()
        with pool.connect(workers=1) as session:
            mesh = session.init_device_mesh((1,))
            x = session.distribute_tensor(np.arange(10.0), mesh, [ts.Shard(0)])
            pool.join()
            wait_until(lambda: len(session.workers()) == 2, "the second worker")
            assert mesh.size() == 1 and float(x.sum().full_tensor()) == 45
            product_is_right(session)


@pytest.mark.parametrize("flags, environment, status, said", [
    ([], {"TESSERA_JOIN_TOKEN": "x" * 32}, 4, "the token is wrong"),
    (["--advertise=db.example.org"], {}, 4, r"the name db\.example\.org is none that workers may have here \(--join-names 127"),
    (["--advertise=127.0.0.1,db.example.org"], {}, 4, r"the name db\.example\.org is none that workers may have here"),
    (["--index=4"], {}, 4, "worker 4 is more than --max-workers 4"),
    (["--index-from=SLURM_PROCID"], {}, 2, "--index-from SLURM_PROCID: the variable is not set"),
    (["--memory=1.5"], {}, 2, "--memory 1.5: a share of the memory"),
    (["--memory=40000GiB"], {}, 2, "--memory 0.8"),
], ids=["token", "name", "second name", "number", "variable", "share", "limit"])
def test_a_worker_that_is_refused_says_what_to_write(pool, flags, environment, status, said):
    command = [word for word in pool.command(*flags) if not (word == "--memory=64MiB" and any(flag.startswith("--memory") for flag in flags))]
    ended = subprocess.run(command, env={**os.environ, "TESSERA_JOIN_TOKEN": TOKENS["TESSERA_JOIN_TOKEN"], **environment}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status and re.search(said, ended.stderr), ended.stderr


def test_nothing_is_sent_to_a_server_of_another_ca(pool, tmp_path):
    make_certificates(tmp_path / "other", "127.0.0.1")
    before = pool.log.read_text()
    status, said = pool.refused(pin=pin_of(tmp_path / "other/ca.crt"))
    assert status == 4 and f"the server's CA has the pin {pool.pin}" in said
    assert "enrol" not in pool.log.read_text().removeprefix(before)
    status, said = pool.refused(pin="sha256:12")
    assert status == 2 and "64 digits in hex" in said


def test_two_workers_that_claim_one_number_are_told_so(tmp_path):
    with JoinedPool(tmp_path) as pool:
        pool.join("--index=0")
        pool.connect(workers=1).close()
        status, said = pool.refused("--index=0", "--join-timeout=0.5")
        assert status == 4 and "worker 0 is here already; two processes claim the number" in said


def test_a_clock_that_is_off_is_named(pool):
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed")
    ended = subprocess.run(["faketime", "-f", "+3650d", *pool.command()], env={**os.environ, **TOKENS}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4 and "by this machine's clock it is" in ended.stderr, ended.stderr


def test_a_coordinator_without_the_cas_key_enrols_nobody_and_says_what_to_do(tmp_path):
    pool = JoinedPool(tmp_path)
    command = [program("coordinator"), "--listen=tls://127.0.0.1:0", f"--tls-cert={pool.tls}/server.crt", f"--tls-key={pool.tls}/server.key"]
    server = subprocess.Popen(list(map(str, command)), env={**os.environ, **TOKENS}, stdout=subprocess.PIPE, text=True)
    try:
        pool.address = server.stdout.readline().split()[-1]
        status, said = pool.refused()
        assert status == 4 and "it needs --ca-key" in said
    finally:
        server.kill()
        server.communicate()
    for flags, why in ((["--ca-key=/nowhere", f"--tls-ca={pool.tls}/ca.crt"], "--ca-key /nowhere: No such file"), ([f"--ca-key={pool.tls}/ca.key"], "--tls-ca, which is missing"),
                       ([f"--ca-key={pool.tls}/server.key", f"--tls-ca={pool.tls}/ca.crt"], "is not the key of ca.crt")):
        ended = subprocess.run([*map(str, command), "--listen-workers=tls://127.0.0.1:0", *flags], env={**os.environ, **TOKENS}, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and why in ended.stderr, ended.stderr


def test_a_port_that_is_taken_is_named_and_is_no_lost_coordinator(pool):
    port = pool.address.rpartition(":")[2]
    status, said = pool.refused(f"--data-listen=tls://127.0.0.1:{port}")
    assert status == 1 and f"can't listen on tls://127.0.0.1:{port}" in said, (status, said)
    status, said = pool.refused(f"--message-listen=127.0.0.1:{port}")
    assert status == 1 and f"--message-listen 127.0.0.1:{port}: Address already in use" in said, (status, said)


def test_no_coordinator_in_time_and_a_coordinator_that_ends_have_a_status_of_their_own(tmp_path):
    with JoinedPool(tmp_path) as pool:
        status, said = pool.refused("--join-timeout=0.2", address="tls://127.0.0.1:1")
        assert status == 3 and "Connection refused" in said and "(--join-timeout)" in said
        worker = pool.join()
        pool.connect(workers=1).close()
        pool.coordinator.kill()
        assert worker.wait(30) == 3 and "is gone" in pool.log_of(0)


DOWNLOADS = """
import numpy as np, sys, tessera as ts
session = ts.connect(sys.argv[1], token=sys.argv[2], ca=sys.argv[3])
a = np.random.default_rng(1).standard_normal((2000, 2000))
x = session.distribute_tensor(a, session.init_device_mesh((1,)), [ts.Shard(0)]).wait()
print("begins", flush=True)
while True:
    same = np.array_equal(x.full_tensor(), a)
    print(same, flush=True)
"""


def test_a_worker_that_is_told_to_end_lets_a_download_end_and_ends_with_success(tmp_path):
    with JoinedPool(tmp_path) as pool:
        for attempt in range(30):
            worker = pool.join("--grace=60")
            client = subprocess.Popen([sys.executable, "-c", DOWNLOADS, pool.address, TOKENS["TESSERA_TOKEN"], pool.tls / "ca.crt"], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)
            try:
                assert client.stdout.readline() == "begins\n"
                client.stdout.readline()
                # Somewhere in the next download; where it is held up in none, another one is tried, a little later in it.
                threading.Event().wait(0.003 * (attempt % 10))
                client.send_signal(signal.SIGSTOP)
                worker.send_signal(signal.SIGTERM)
                wait_until(lambda: worker.poll() is not None or "transfers under way" in pool.log_of(attempt), "the worker to end, or to wait")
                is_waiting = worker.poll() is None
                client.send_signal(signal.SIGCONT)
                assert worker.wait(60) == 0
                client.wait(60)
                assert "False" not in client.stdout.read()
            finally:
                client.kill()
                client.communicate()
            if is_waiting:
                return
        raise AssertionError("no download was ever under way")


def test_doctor_says_whether_a_pool_is_ready(tmp_path):
    with JoinedPool(tmp_path) as pool:
        pool.join()
        pool.connect(workers=1).close()
        where = ["--address", f"{pool.address}#token={TOKENS['TESSERA_TOKEN']}", "--ca", str(pool.tls / "ca.crt")]
        assert tessera("doctor", "--ready", *where).returncode == 0
        more = tessera("doctor", "--ready", "--workers", "2", *where)
        assert more.returncode == 1 and "not ready: 1 of 2 workers are there" in more.stdout
