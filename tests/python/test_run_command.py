"""tessera run: ranks as torchrun starts them, in whole processes."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from test_plan_command import TESSERA
from test_processes import runs, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOWHERE = "unix:/nowhere#token=00"      # an address that no rank uses: the run then starts no cluster


# say() prints a line in one piece, also if the rank is ended in the middle of it: print does so in several under -u.
HEAD = """\
import os, signal, sys, time
rank = int(os.environ["RANK"])
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


@pytest.fixture
def script(tmp_path):
    """Makes a script of its text."""
    def make(text, name="script.py"):
        path = tmp_path / name
        path.write_text(HEAD + textwrap.dedent(text))
        return str(path)
    return make


def environment(**changes):
    kept = {name: value for name, value in os.environ.items() if name not in ("TESSERA_ADDRESS", "OMP_NUM_THREADS")}
    return {**kept, "HOME": "/nonexistent", "TESSERA_PYTHON": sys.executable, "TESSERA_TEST_RUNS": "1", **changes}


def run(*arguments, address=NOWHERE, **changes):
    where = ["--address", address] if address else []
    return subprocess.run([TESSERA, "run", *where, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=environment(**changes))


def start(*arguments, **changes):
    return subprocess.Popen([TESSERA, "run", "--address", NOWHERE, *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=environment(**changes))


def pids_of(folder, count):
    """The processes that wrote their number to files of the folder, when there are so many."""
    def pids():
        return [int(path.read_text()) for path in folder.glob("pid_*") if path.read_text().endswith("\n")]
    wait_until(lambda: len(pids()) == count)
    return pids()


WRITE_PID = """
    def write_pid(name):
        with open(os.path.join(os.path.dirname(__file__), f"pid_{name}"), "w") as file:
            file.write(f"{os.getpid()}\\n")
"""


# ---- what a rank knows -------------------------------------------------------------------------


def test_a_rank_has_torchruns_environment(script):
    out = run("--nproc", 3, "--max-restarts", 2, "--no-prefix", script("""
        import json
        names = ["LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_", "RANK", "TESSERA_ADDRESS"]
        print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(tuple(names))} | {"argv": sys.argv[1:]}))
    """), "--lr", "1", "--nproc", "7")
    assert out.returncode == 0 and out.stderr == ""
    ranks = sorted(map(json.loads, out.stdout.splitlines()), key=lambda known: int(known["RANK"]))
    ports, ids = {known["MASTER_PORT"] for known in ranks}, {known["TORCHELASTIC_RUN_ID"] for known in ranks}
    assert len(ports) == len(ids) == 1
    for rank, known in enumerate(ranks):
        assert known.pop("TORCHELASTIC_ERROR_FILE").endswith(f"/attempt_0/rank_{rank}/error.json")
        assert known == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "3", "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports.copy().pop(), "TORCHELASTIC_RUN_ID": ids.copy().pop(),
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "2", "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": "1", "TESSERA_ADDRESS": NOWHERE, "argv": ["--lr", "1", "--nproc", "7"]}


def test_what_the_user_says_wins(script):
    out = run("--nproc-per-node", 1, "--master-addr", "here", "--master-port", 29511, "--run-id", "mine", script("""
        print(*(os.environ[name] for name in ("OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")))
    """), OMP_NUM_THREADS="3", RANK="9", MASTER_PORT="1")
    assert out.stdout == "[rank 0] 3 here 29511 mine\n"


@pytest.mark.parametrize("word", ["auto", "cpu"])
def test_there_may_be_a_rank_for_each_core(script, word):
    out = run("--nproc", word, "--no-prefix", script("print(os.environ['WORLD_SIZE'])"))
    cores = len(os.sched_getaffinity(0))
    assert out.stdout.split() == [str(cores)] * cores


def test_a_module_or_a_program_may_be_run(tmp_path, script):
    path = script("print(__name__, sys.argv[1:])", "some_module.py")
    assert run("-m", "some_module", "-x", PYTHONPATH=str(tmp_path)).stdout == "[rank 0] __main__ ['-x']\n"
    assert run("--no-python", "printenv", "WORLD_SIZE").stdout == "[rank 0] 1\n"
    assert run("--no-python", sys.executable, path, "-c").stdout == "[rank 0] __main__ ['-c']\n"


def test_every_rank_reaches_the_cluster_that_the_run_starts(script):
    out = run("--nproc", 2, "--memory", "32MiB", "--no-prefix", script("""
        import numpy as np, tessera as ts
        with ts.connect() as session:
            workers = len(session.status()["workers"])
            mesh = session.init_device_mesh((1,), workers=[rank])
            x = session.distribute_tensor(np.full(3, rank + 1.0), mesh, [ts.Replicate()])
            print(workers, rank, x.full_tensor(), os.environ["TESSERA_ADDRESS"])
    """), address=None)
    assert out.returncode == 0, out.stderr
    lines = sorted(out.stdout.splitlines())
    assert lines[0].startswith("2 0 [1. 1. 1.] unix:/") and lines[1].startswith("2 1 [2. 2. 2.] unix:/")
    folder = os.path.dirname(lines[0].split("unix:")[1].split("#")[0])
    assert not os.path.exists(folder)


# ---- output ------------------------------------------------------------------------------------


def test_lines_of_ranks_do_not_mix(script):
    out = run("--nproc", 3, script("""
        for i in range(300):
            for piece in ("line ", str(i), " of ", str(rank), "\\n"):
                os.write(1 + i % 2, piece.encode())
        os.write(1, b"no end")
    """))
    lines = out.stdout.splitlines() + out.stderr.splitlines()
    assert sorted(lines) == sorted([f"[rank {rank}] line {i} of {rank}" for rank in range(3) for i in range(300)] +
                                   [f"[rank {rank}] no end" for rank in range(3)])


def test_much_output_comes_whole(script):
    out = run("--no-prefix", script("for i in range(200_000): print(i, file=sys.stdout if i % 2 else sys.stderr)"))
    assert out.stdout.split() == [str(i) for i in range(1, 200_000, 2)]
    assert out.stderr.split() == [str(i) for i in range(0, 200_000, 2)]


def test_logs_are_by_attempt_and_rank(tmp_path, script):
    path = script("""
        say("out", rank)
        os.write(2, f"err {rank}\\n".encode())
        sys.exit(rank if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
    """)
    out = run("--nproc", 2, "--log-dir", tmp_path / "logs", "--max-restarts", 1, path)
    assert out.returncode == 0 and set(out.stdout.splitlines()) == {"[rank 0] out 0"}
    assert "[rank 1]" not in out.stderr and "rank 1 failed: exit code 1" in out.stderr
    assert (tmp_path / "logs/attempt_0/rank_1/stderr.log").read_text() == "err 1\n"
    for rank in range(2):
        assert (tmp_path / f"logs/attempt_1/rank_{rank}/stdout.log").read_text() == f"out {rank}\n"
        assert (tmp_path / f"logs/attempt_1/rank_{rank}/stderr.log").read_text() == f"err {rank}\n"
    out = run("--nproc", 2, "--log-dir", tmp_path / "logs", "--tee", script("print('out', rank)"))
    assert sorted(out.stdout.splitlines()) == ["[rank 0] out 0", "[rank 1] out 1"]


def test_logs_that_can_not_be_written_are_an_error(tmp_path, script):
    (tmp_path / "logs").write_text("a file")
    out = run("--log-dir", tmp_path / "logs", script("print(1)"))
    assert out.returncode == 1 and str(tmp_path / "logs") in out.stderr and out.stderr.count("\n") == 1


# ---- failures ----------------------------------------------------------------------------------


def test_the_first_failure_ends_the_others_and_is_told(tmp_path, script):
    out = run("--nproc", 3, script(WRITE_PID + """
    def stop(*_):
        print("told to end"); sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    write_pid(rank)
    if rank == 2:
        while len([n for n in os.listdir(os.path.dirname(__file__)) if n.startswith("pid_")]) < 3: time.sleep(0.01)
        raise ValueError("bad batch")
    time.sleep(600)
"""))
    pid = int((tmp_path / "pid_2").read_text())
    assert out.returncode == 1
    assert sorted(out.stdout.splitlines()) == ["[rank 0] told to end", "[rank 1] told to end"]
    summary = out.stderr[out.stderr.index("tessera run: rank 2 failed: exit code 1\n"):].splitlines()
    assert re.fullmatch(rf"  pid {pid} on host {re.escape(os.uname().nodename)}, at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC", summary[1])
    assert summary[2] == "  Traceback (most recent call last):" and summary[-1] == "  ValueError: bad batch"


@pytest.mark.parametrize("how, status, text", [
    ("sys.exit(7)", 7, "exit code 7"), ("os.kill(os.getpid(), 9)", 137, "signal 9 (SIGKILL)"),
    ("os.abort()", 134, "signal 6 (SIGABRT)"), ("os.kill(os.getpid(), 15)", 143, "signal 15 (SIGTERM)")])
def test_the_exit_status_is_the_first_failures(script, how, status, text):
    out = run("--nproc", 2, script(f"if rank == 1: {how}\ntime.sleep(600)"))
    assert out.returncode == status and f"tessera run: rank 1 failed: {text}\n" in out.stderr


def test_a_rank_that_stays_is_killed_after_the_grace(script):
    began = time.monotonic()
    out = run("--nproc", 2, "--grace", 0.5, script("""
        if rank == 1:
            while not os.path.exists(__file__ + ".ready"): time.sleep(0.01)
            sys.exit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(__file__ + ".ready", "w").close()
        time.sleep(600)
    """))
    assert out.returncode == 3 and time.monotonic() - began < 100


def test_the_error_file_is_the_reason(script):
    out = run(script("""
        import json
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "RuntimeError: x", "extraInfo": {"py_callstack": "the recorded stack", "timestamp": "1"}}}, file)
        print("noise", file=sys.stderr)
        sys.exit(1)
    """))
    assert out.returncode == 1 and out.stderr.endswith(" UTC\n  the recorded stack\n")


def test_the_oldest_error_file_is_the_first_failure(tmp_path, script):
    """A rank that has recorded why it fails may be slow to end, and its peers, whom it left alone, quick."""
    out = run("--nproc", 2, script("""
        import json
        def record(message):
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file: json.dump({"message": message}, file)
        recorded = __file__ + ".recorded"
        if rank == 0:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
            record("the cause")
            open(recorded, "w").close()
            time.sleep(600)
        while not os.path.exists(recorded): time.sleep(0.05)
        time.sleep(0.05)
        record("the peer is gone")
        sys.exit(1)
    """))
    assert out.returncode == 5 and "tessera run: rank 0 failed: exit code 5\n" in out.stderr and out.stderr.endswith("\n  the cause\n")


def test_restarts_start_all_ranks_anew(script):
    path = script("""
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        say(attempt, rank, os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RUN_ID"])
        if rank == 0 and attempt != "2": sys.exit(int(attempt) + 4)
    """)
    out = run("--nproc", 2, "--max-restarts", 2, "--no-prefix", path)
    assert out.returncode == 0
    seen = [line.split() for line in out.stdout.splitlines()]
    assert [line[1] for line in seen if line[0] == "2"] in (["0", "1"], ["1", "0"])
    assert len({line[2] for line in seen}) == 3 and len({line[3] for line in seen}) == 1
    for text in ("rank 0 failed: exit code 4\n", "restart 1 of 2\n", "rank 0 failed: exit code 5\n", "restart 2 of 2\n"):
        assert f"tessera run: {text}" in out.stderr
    out = run("--nproc", 1, "--max-restarts", 1, path)
    assert out.returncode == 5 and "restart 1 of 1\n" in out.stderr and "restart 2" not in out.stderr


def test_a_restart_has_all_workers_of_its_cluster(script):
    out = run("--nproc", 2, "--memory", "32MiB", "--max-restarts", 1, script("""
        import tessera as ts
        with ts.connect() as session:
            workers = session.status()["workers"]
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 0:
                pid = next(worker["pid"] for worker in workers if worker["index"] == 1)
                os.kill(pid, 9)
                sys.exit(1)
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": time.sleep(600)
            while [worker["state"] for worker in session.status()["workers"]] != ["alive"] * 2: time.sleep(0.01)
            print("all are here")
    """), address=None)
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("all are here\n") == 2 and "tessera run: worker 1: killed by signal 9 (SIGKILL)\n" in out.stderr


# ---- signals and ends --------------------------------------------------------------------------


WAIT = WRITE_PID + """
    def stop(number, _):
        print("got", number); sys.exit(0)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    write_pid(rank)
    while True: time.sleep(1)
"""


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_go_to_the_ranks(tmp_path, script, number, status):
    process = start("--nproc", 2, "--max-restarts", 3, script(WAIT))
    pids = pids_of(tmp_path, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status and err == ""
    assert sorted(out.splitlines()) == [f"[rank {rank}] got {number.value}" for rank in range(2)]
    assert not any(map(runs, pids))


def test_a_second_signal_kills(tmp_path, script):
    process = start("--grace", 3600, script(WRITE_PID + """
    def stop(*_): open(__file__ + ".told", "w").close()
    signal.signal(signal.SIGINT, stop)
    write_pid(rank)
    while True: time.sleep(1)
"""))
    pids_of(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: (tmp_path / "script.py.told").exists())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


CHILD = WRITE_PID + """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    child = os.fork() == 0
    write_pid(f"{rank}_{child}")
    time.sleep(600)
"""


def test_no_orphan_is_left_when_the_run_is_killed(tmp_path, script):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start("--nproc", 2, script(CHILD), TMPDIR=str(temporary))
    pids = pids_of(tmp_path, 4)
    assert list(temporary.iterdir()) != []
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(runs, pids)))
    wait_until(lambda: list(temporary.iterdir()) == [])


def test_what_a_rank_leaves_running_ends_with_the_run(tmp_path, script):
    process = start(script(WRITE_PID + """
    if os.fork() == 0:
        write_pid("child")
        time.sleep(600)
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "pid_child")): time.sleep(0.01)
"""))
    pids = pids_of(tmp_path, 1)
    process.communicate(timeout=60)
    assert process.returncode == 0 and not any(map(runs, pids))


def test_a_reader_that_goes_ends_the_run(tmp_path, script):
    process = start("--nproc", 2, script("while True: print('x' * 1000)"))
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    process.stderr.close()


# ---- several hosts -----------------------------------------------------------------------------


@pytest.fixture
def ssh(tmp_path):
    """Stands in for ssh: it runs the command here, in an environment that has little of the caller's."""
    path = tmp_path / "ssh"
    path.write_text("#!/bin/sh\n"
                    f"echo \"$1: $2\" >> {tmp_path}/ssh.log\n"
                    "exec env -i HOME=/nonexistent ON_HOST=\"$1\" sh -c \"$2\"\n")
    path.chmod(0o755)
    return str(path)


def test_hosts_have_their_ranks_in_order(tmp_path, script, ssh):
    secret = "unix:/nowhere#token=5ec7e7"
    out = run("--nproc", 2, "--hosts", "a,b:3", script("""
        names = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "ON_HOST",
                 "TESSERA_ADDRESS")
        print(*(os.environ[name] for name in names), sys.argv[1:])
    """), "it's", "$HOME", address=secret, TESSERA_SSH=ssh)
    assert out.returncode == 0, out.stderr
    assert sorted(out.stdout.splitlines()) == [
        f"[rank {rank}] {local} 5 {size} {node} 2 a {host} {secret} [\"it's\", '$HOME']"
        for rank, local, size, node, host in [(0, 0, 2, 0, "a"), (1, 1, 2, 0, "a"), (2, 0, 3, 1, "b"), (3, 1, 3, 1, "b"), (4, 2, 3, 1, "b")]]
    assert "5ec7e7" not in (tmp_path / "ssh.log").read_text()


def test_a_failure_on_one_host_ends_the_others_and_restarts_all(script, ssh):
    out = run("--hosts", "a,b", "--max-restarts", 1, script("""
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        say(attempt, rank, os.environ["TORCHELASTIC_MAX_RESTARTS"])
        if attempt == "1": sys.exit(0)
        if rank == 1: sys.exit(9)
        time.sleep(600)
    """), TESSERA_SSH=ssh)
    assert out.returncode == 0, out.stderr
    assert {"[rank 0] 1 0 1", "[rank 1] 1 1 1"} <= set(out.stdout.splitlines())
    for text in ("rank 1 failed: exit code 9\n", "node 1 (b) failed: exit code 9\n", "restart 1 of 1\n"):
        assert f"tessera run: {text}" in out.stderr


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_go_to_the_ranks_of_all_hosts(tmp_path, script, ssh, number, status):
    process = start("--hosts", "a,b", script(WAIT), TESSERA_SSH=ssh)
    pids = pids_of(tmp_path, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status and err == ""
    assert sorted(out.splitlines()) == [f"[rank {rank}] got {number.value}" for rank in range(2)]
    assert not any(map(runs, pids))


def test_no_orphan_is_left_on_any_host(tmp_path, script, ssh):
    process = start("--hosts", "a,b", "--grace", 0.5, script(CHILD), TESSERA_SSH=ssh)
    pids = pids_of(tmp_path, 4)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not any(map(runs, pids)))


def test_ranks_end_with_the_connection_to_their_host(tmp_path, script):
    """As a node sees it: its stdin ends, and nobody signals it."""
    process = subprocess.Popen([TESSERA, "run", "--control-stdin", script(WAIT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True, env=environment())
    process.stdin.write(f"TESSERA_ADDRESS={NOWHERE}\0\0")
    process.stdin.flush()
    pids_of(tmp_path, 1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and out == "[rank 0] got 15\n"


def test_nodes_may_be_started_one_by_one(script):
    path = script("print(os.environ['WORLD_SIZE'], os.environ['GROUP_RANK'], os.environ['TORCHELASTIC_RUN_ID'])")
    shared = ("--nnodes", 2, "--nproc", "2,1", "--master-addr", "a", "--master-port", 29500)
    assert sorted(run(*shared, path).stdout.splitlines()) == ["[rank 0] 3 0 a:29500", "[rank 1] 3 0 a:29500"]
    assert run(*shared, "--node-rank", 1, path).stdout == "[rank 2] 3 1 a:29500\n"


# ---- wrong usage -------------------------------------------------------------------------------


@pytest.mark.parametrize("flags, words", [
    (["--nproc", "0", "SCRIPT"], "--nproc is \"0\""), (["--nproc", "-1", "SCRIPT"], "--nproc is \"-1\""),
    (["--nproc", "gpu", "SCRIPT"], "--nproc is \"gpu\""), (["--nproc", "1025", "SCRIPT"], "[1, 1024]"),
    (["/no/such.py"], "no script /no/such.py"), (["--no-python", "SCRIPT"], "script.py is not executable"),
    (["--no-python", "/no/such"], "no program /no/such"), (["--no-python", "no-such-program"], "no-such-program is not in PATH"),
    (["README"], "README does not end in .py"), (["--max-restarts", "-1", "SCRIPT"], "--max-restarts is -1"),
    (["--foo", "3", "SCRIPT"], "unknown option \"--foo\""), (["--grace", "-1", "SCRIPT"], "--grace is -1"),
    (["--nnodes", "2", "--node-rank", "2", "SCRIPT"], "--node-rank is 2"), (["--nnodes", "0", "SCRIPT"], "--nnodes is 0"),
    (["--nnodes", "2", "SCRIPT"], "--master-addr"), (["--master-port", "65536", "SCRIPT"], "--master-port is 65536"),
    (["--hosts", "a,", "SCRIPT"], "--hosts has \"\""), (["--hosts", "a", "--nnodes", "2", "SCRIPT"], "--hosts counts the nodes"),
    (["--hosts", "a", "--nproc", "auto", "SCRIPT"], "--nproc must be a number"),
    (["--workers", "2", "SCRIPT"], "--workers"), (["-m", "--no-python", "SCRIPT"], "exclude each other"), ([], "no script")])
def test_wrong_usage_is_told_in_one_line(script, flags, words):
    path = script("print('ran')")
    out = run(*[path if word == "SCRIPT" else word for word in flags])
    assert (out.returncode, out.stdout, out.stderr.count("\n")) == (2, "", 1), out
    assert words in out.stderr and out.stderr.startswith("tessera: run: ")


def test_several_hosts_need_an_address(script):
    for flags in (["--hosts", "a,b"], ["--nnodes", "2", "--master-addr", "a", "--master-port", "1"]):
        out = run(*flags, script("print(1)"), address=None)
        assert out.returncode == 2 and "give --address, or set TESSERA_ADDRESS" in out.stderr


def test_a_python_that_is_not_there_is_an_error(script):
    out = run(script("print(1)"), TESSERA_PYTHON="/no/python")
    assert out.returncode == 1 and out.stderr == "tessera: run: /no/python does not start: No such file or directory\n"


def test_help_says_the_exit_status():
    text = run("--help").stdout
    for words in ("exit status", "128 + the signal", "torchrun has 1", "--hosts", "--max-restarts", "--log-dir"):
        assert words in text
    assert "control-stdin" not in text
