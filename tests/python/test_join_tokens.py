"""Join tokens that are good for so many workers, and until some time: real processes, with certificates and without."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from joined_pool import JoinedPool, program  # noqa: E402
from test_cli import tessera  # noqa: E402
from test_enrolment import product_is_right  # noqa: E402
from test_tenants import token  # noqa: E402
from two_hosts import wait_until  # noqa: E402

ASK = r"is used up: its uses are {uses}, for the workers {workers}; worker \d+ needs a token with a use left, which an operator makes by `tessera join-token`"


def limited(name, uses, more=""):
    return token(name, role="worker", more=f"uses = {uses}\n{more}")


def refused(pool, name, *flags):
    return pool.refused(*flags, environment={"TESSERA_JOIN_TOKEN": name})


def opened(tmp_path, text, *flags):
    (tmp_path / "tenants.toml").write_text(text)
    return JoinedPool(tmp_path, f"--tenants={tmp_path}/tenants.toml", *flags)


def used_up(uses, workers):
    return ASK.format(uses=uses, workers=workers)


def test_a_token_for_two_workers_admits_two_and_tells_a_third_what_to_ask_for(tmp_path):
    with opened(tmp_path, limited("pair", 2)) as pool:
        for _ in range(2):
            pool.join(token="pair")
        with pool.connect(workers=2) as session:
            product_is_right(session)
            status, said = refused(pool, "pair")
            assert status == 4 and re.search('enroll: the token "pair" ' + used_up(2, "0, 1"), said), said
            product_is_right(session)
        assert 'uses the token "pair": 2 of its 2 uses are taken' in pool.log.read_text()


def test_a_worker_that_comes_back_and_one_that_renews_use_up_nothing(tmp_path):
    with opened(tmp_path, limited("pair", 2), "--leaf-lifetime=3s") as pool:
        pool.join("--index=0", token="pair")
        pool.join("--index=4", token="pair")
        with pool.connect(workers=2) as session:
            for again in range(3):
                wait_until(lambda: min(pool.log_of(worker).count("is renewed") for worker in (0, len(pool.workers) - 1)) >= 1, "certificates to be renewed")
                pool.workers[-1].kill()
                pool.workers[-1].wait()
                # The number is its own by name, or since its token is used for it and nobody has it.
                pool.join(*(["--index=4"] if again != 1 else []), token="pair")
                wait_until(lambda: "worker 4: enrolled" in pool.log_of(len(pool.workers) - 1) and len(session.workers()) == 2, "the worker to be back")
            assert [worker["index"] for worker in session.workers()] == [0, 4]
            product_is_right(session)
        status, said = refused(pool, "pair", "--index=1")
        assert status == 4 and re.search(used_up(2, "0, 4"), said), said


def test_of_workers_that_race_for_the_last_use_one_gets_it(tmp_path):
    with opened(tmp_path, limited("one", 1)) as pool:
        for _ in range(4):
            pool.join(token="one")
        wait_until(lambda: sum(worker.poll() is not None for worker in pool.workers) == 3, "three to be refused")
        with pool.connect(workers=1) as session:
            assert [worker["index"] for worker in session.workers()] == [0]
            product_is_right(session)
        for number, worker in enumerate(pool.workers):
            if worker.poll() is not None:
                assert worker.returncode == 4 and re.search(used_up(1, "0"), pool.log_of(number)), pool.log_of(number)


def test_uses_survive_the_coordinator_and_go_with_the_tokens_lines(tmp_path):
    with opened(tmp_path, limited("pair", 2), f"--state={tmp_path}/state") as pool:
        pool.join("--index=3", "--outlive=60", token="pair")
        pool.connect(workers=1).close()
        pool.coordinator.kill()
        pool.coordinator.wait()
        pool.start_coordinator()
        wait_until(lambda: "goes on with the coordinator of epoch" in pool.log_of(0), "the worker to go on")
        pool.join("--index=1", token="pair")
        with pool.connect(workers=2) as session:
            product_is_right(session)
        status, said = refused(pool, "pair")
        assert status == 4 and re.search(used_up(2, "1, 3"), said), said
        # More of them by the file, at once.
        reread(pool, limited("pair", 3))
        pool.join("--index=7", token="pair")
        pool.connect(workers=3).close()
        # A token that has left the file is nobody's, and its uses are forgotten.
        reread(pool, token("eyes", role="viewer"))
        assert "the token is wrong" in refused(pool, "pair")[1]
        reread(pool, limited("pair", 1))
        pool.join("--index=8", token="pair")
        pool.connect(workers=4).close()


def reread(pool, text):
    told = pool.log.read_text().count("the tenants file has")
    (pool.folder / "tenants.new").write_text(text)
    os.rename(pool.folder / "tenants.new", pool.folder / "tenants.toml")
    pool.coordinator.send_signal(signal.SIGHUP)
    wait_until(lambda: pool.log.read_text().count("the tenants file has") > told, "the file to be read")


def test_a_token_that_ends_admits_nobody_new_and_leaves_who_is_there(tmp_path):
    """Its workers renew their certificates, and go on with the next coordinator."""
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 6))
    with opened(tmp_path, limited("short", 5, f"expires = {end}"), "--leaf-lifetime=4s", f"--state={tmp_path}/state") as pool:
        pool.join("--outlive=60", token="short")
        with pool.connect(workers=1) as session:
            def ended():
                status, said = refused(pool, "short")
                return status == 4 and 'enroll: the token "short" has expired' in said
            wait_until(lambda: time.time() > time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone, "the token's end")
            wait_until(ended, "the token to be refused")
            renewed = pool.log_of(0).count("is renewed")
            wait_until(lambda: pool.log_of(0).count("is renewed") > renewed + 1, "certificates after the token's end")
            pool.coordinator.kill()
            pool.coordinator.wait()
            pool.start_coordinator()
            product_is_right(session)
            # Its process is another one: that needs a token that is good.
            pool.workers[0].kill()
            pool.workers[0].wait()
            status, said = refused(pool, "short", "--index=0")
            assert status == 4 and "has expired" in said, said


def test_without_certificates_uses_are_counted_too(tmp_path):
    (tmp_path / "tenants.toml").write_text(limited("one", 1) + token("root", role="admin"))
    coordinator = subprocess.Popen([program("coordinator"), f"--listen=unix:{tmp_path}/socket", f"--tenants={tmp_path}/tenants.toml"], stdout=subprocess.PIPE, text=True)
    workers = []

    def join(*flags):
        workers.append(subprocess.Popen([program("worker"), f"--coordinator=unix:{tmp_path}/socket", "--memory=16MiB", *flags], env={**os.environ, "TESSERA_JOIN_TOKEN": "one"},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        return workers[-1]

    try:
        assert "listening" in coordinator.stdout.readline()
        first = join("--index=2")
        with ts.connect(f"unix:{tmp_path}/socket#token=root") as session:
            wait_until(lambda: len(session.workers()) == 1, "the worker")
            # A number that is taken costs no use, and says so.
            taken = join("--index=2")
            assert "worker 2 is here already" in taken.communicate(timeout=30)[1] and taken.returncode == 4
            late = join()
            said = late.communicate(timeout=30)[1]
            assert late.returncode == 4 and re.search('join: the token "one" ' + used_up(1, "2"), said), said
            first.kill()
            first.wait()
            wait_until(lambda: not session.workers(), "the worker to be gone")
            join()
            wait_until(lambda: [worker["index"] for worker in session.workers()] == [2], "another one under its number")
    finally:
        for process in [*workers, coordinator]:
            process.kill()
            process.communicate()


def test_the_command_makes_a_token_that_the_pool_takes(tmp_path):
    with opened(tmp_path, token("eyes", role="viewer").rstrip("\n")) as pool:
        file = tmp_path / "tenants.toml"
        os.chmod(file, 0o640)
        made = tessera("join-token", "--uses", "1", "--ttl", "1h", "--id", "racks-7", "--tenants", str(file))
        assert made.returncode == 0 and 'has the token "racks-7": good for 1 workers until ' in made.stderr, made.stderr
        secret = made.stdout.strip()
        assert re.fullmatch("[0-9a-f]{32}", secret) and secret not in file.read_text() and file.stat().st_mode & 0o777 == 0o640
        wait_until(lambda: "the tenants file has 0 tenants and 2 tokens" in pool.log.read_text(), "the file to be read")
        pool.join(token=secret)
        pool.connect(workers=1).close()
        status, said = refused(pool, secret)
        assert status == 4 and re.search('the token "racks-7" ' + used_up(1, "0"), said), said
        # Many at once: none is lost.
        many = [subprocess.Popen([program("x").parents[2] / "client/cli/tessera", "join-token", "--tenants", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)]
        tokens = {process.communicate()[0].strip() for process in many}
        assert len(tokens) == 8 and file.read_text().count("[[token]]") == 10 and [path.name for path in tmp_path.glob("tenants*")] == ["tenants.toml"]


@pytest.mark.parametrize("words, status, said", [
    (["--uses", "0"], 2, "--uses"),
    (["--uses", "-3"], 2, "--uses"),
    (["--uses", "two"], 2, "--uses"),
    (["--ttl", "0s"], 2, "--ttl"),
    (["--ttl", "soon"], 2, "--ttl"),
    (["--id", 'a"b'], 2, "letters, digits"),
    (["--tenants", "/nowhere/tenants.toml"], 1, "join-token: --tenants /nowhere/tenants.toml: No such file"),
], ids=["none", "negative", "word", "no time", "no number", "id", "file"])
def test_what_the_command_can_not_take_is_named(words, status, said):
    made = tessera("join-token", *words)
    assert made.returncode == status and said in made.stderr and not made.stdout, (made.returncode, made.stderr)


def test_without_a_file_the_command_shows_its_lines(tmp_path):
    made = tessera("join-token", "--uses", "2")
    (tmp_path / "tenants.toml").write_text(made.stderr.partition("\n")[2])
    assert "uses = 2" in made.stderr
    checked = subprocess.run([program("coordinator"), f"--listen=unix:{tmp_path}/socket", f"--tenants={tmp_path}/tenants.toml", "--check-config"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
