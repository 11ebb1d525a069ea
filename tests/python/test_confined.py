"""The process that decodes files: what it may open, and that it reaches nobody."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts
from tessera import _confined

landlock = pytest.mark.skipif(not _confined.landlock_version(), reason="this kernel has no Landlock")


@pytest.fixture
def tried(tmp_path):
    """What becomes of statements in a process that may read `in` and write `out`: "done", or the class of the error."""
    for name in ("in", "out", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("here")

    def run(*statements):
        program = f"""
import os, sys, socket, json, subprocess, signal, threading, ctypes
folder = {str(tmp_path)!r}
ends = socket.socketpair()
beside = open(folder + "/other/file")
from tessera._confined import confine, of_python
confine([*of_python(), folder + "/in"], [folder + "/out"])
def tried(statement):
    try:
        exec(statement, globals())
        return "done"
    except Exception as error:
        return type(error).__name__
sys.stdout.write(json.dumps([tried(one) for one in {list(statements)!r}]))
"""
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_no_socket_no_program_no_other_process(tried):
    refused = ["socket.socket()", "socket.socket(socket.AF_UNIX)", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
               "ends[0].bind('/tmp/x')", "ends[0].sendmsg([b'x'])", "ends[0].sendto(b'x', '/run/x')",
               "subprocess.run(['/bin/true'])", "os.execv('/bin/true', ['true'])", "os.kill(os.getppid(), 0)", "os.pidfd_open(os.getppid())",
               "assert ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) == 0 or ctypes.get_errno() != 1"]
    assert tried(*refused) == ["PermissionError"] * 10 + ["AssertionError"]
    # What decoders need: threads, pairs of sockets (event loops have them), the socket that is there, and their own end.
    assert tried("threading.Thread(target=print).start()", "socket.socketpair()", "ends[0].send(b'x')", "assert ends[1].recv(9) == b'x'",
                 "signal.raise_signal(0)") == ["done"] * 5


def test_no_other_process_and_no_rights_of_files(tried, tmp_path):
    own = str(tmp_path / "out" / "file")
    libc = "ctypes.CDLL(None, use_errno=True)"
    refused = ["os.fork()", f"os.chmod({own!r}, 0o777)", f"os.chown({own!r}, 0, 0)", f"os.setxattr({own!r}, 'user.x', b'x')",
               "os.setpriority(os.PRIO_PROCESS, os.getppid(), 10)", "os.sched_setaffinity(os.getppid(), {0})",
               f"os.fchmod(os.open({own!r}, os.O_RDWR), 0o777)", f"os.utime({own!r})", "os.setsid()", "os.setpgid(0, 0)",
               "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
               "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))"]
    errors = tried(*refused)
    assert set(errors) <= {"PermissionError", "ValueError"} and "done" not in errors, errors
    # vfork, and clone without CLONE_THREAD (SIGCHLD alone), which would be a process of its own.
    assert tried(f"assert {libc}.syscall(58 if os.uname().machine == 'x86_64' else 220, 17, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1",
                 f"assert {libc}.syscall(56 if os.uname().machine == 'x86_64' else 220, 17, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1"
                 ) == ["done"] * 2
    assert tried(f"assert {libc}.shmget(0, 4096, 0o1600) == -1 and ctypes.get_errno() == 1") == ["done"]
    assert tried("import resource; resource.getrlimit(resource.RLIMIT_NOFILE)", "threading.Thread(target=print).start()") == ["done"] * 2


@landlock
def test_no_file_but_those_it_is_here_for(tried, tmp_path):
    (tmp_path / "in" / "link").symlink_to(tmp_path / "other" / "file")
    for statement in ("open(folder + '/other/file')", "open(folder + '/in/link')", "open(folder + '/in/../other/file')", "os.listdir(folder + '/other')",
                      "open('/etc/shadow')", "open('/proc/1/environ')", "open(f'/proc/{os.getppid()}/environ')", "open(f'/proc/self/fd/{beside.fileno()}')",
                      "open(folder + '/in/file', 'r+')", "open(folder + '/in/new', 'w')", "os.unlink(folder + '/in/file')", "os.mkdir(folder + '/other/new')",
                      "os.symlink('/etc', folder + '/out/link')", "os.rename(folder + '/in/file', folder + '/out/moved')", "os.mkfifo(folder + '/out/pipe')",
                      "os.truncate(folder + '/in/file', 0)"):
        assert tried(statement)[0] in ("PermissionError", "OSError"), statement
    assert (tmp_path / "in" / "file").read_text() == (tmp_path / "other" / "file").read_text() == "here"
    assert tried("assert open(folder + '/in/file').read() == 'here'", "assert beside.read() == 'here'", "os.listdir(folder + '/in')",
                 "open(folder + '/out/new', 'w').write('x')", "os.rename(folder + '/out/new', folder + '/out/file')", "os.mkdir(folder + '/out/below')",
                 "os.unlink(folder + '/out/file')", "os.urandom(8)", "import decimal, numpy.fft, email.message") == ["done"] * 9


@landlock
def test_the_decoder_of_a_worker_is_confined_to_what_it_serves(new_cluster, tmp_path):
    """It is told where, and the kernel has it so."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "data").mkdir()
    (tmp_path / "results").mkdir()
    with h5py.File(tmp_path / "data" / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(9.0), chunks=(3,))
    cluster = new_cluster(1, files=[f"{tmp_path}/data:ro", f"{tmp_path}/results"])
    with cluster.connect() as session:
        np.testing.assert_array_equal(ts.load("x.h5", session=session)["x"].full_tensor(), np.arange(9.0))
        pids = [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if _is_decoder_of(pid, cluster.worker_pids[0])]
        assert len(pids) == 1
        status = dict(line.split(":", 1) for line in open(f"/proc/{pids[0]}/status"))
        assert status["Seccomp"].strip() == "2" and status["NoNewPrivs"].strip() == "1"
        flags = open(f"/proc/{pids[0]}/cmdline").read().split("\0")
        assert flags[-3:-1] == [f"{tmp_path}/data:ro", f"{tmp_path}/results"]


def _is_decoder_of(pid, worker):
    try:
        return b"tessera.decoder" in open(f"/proc/{pid}/cmdline", "rb").read() and int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) == worker
    except OSError:
        return False
