"""The process that decodes files: what it may open, and that it reaches nobody."""

import errno
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts
from tessera import _confined

landlock = pytest.mark.skipif(not _confined.landlock_version(), reason="this kernel has no Landlock")


@pytest.fixture
def tried(tmp_path):
    """The end of statements in a process that may read `in` and write `out`: "done", or the class of the error."""
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
    # Decoders need threads, pairs of sockets (event loops have them), the socket that is there, and their own end.
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


CALL_NUMBERS = {"x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
                "aarch64": ("/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)")}
NAMES = {"aarch64": {"newfstatat": "fstatat"}}      # as the header of all machines has them
ALLOW, REFUSED, NOT_THERE, KILLED = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000


def answer_of(code, machine, number, *arguments):
    """Decides on a call as the kernel does by such a filter: BPF has five kinds of steps in it."""
    data = struct.pack("=IIQ6Q", number, {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    at, value = 0, 0
    while True:
        what, then, otherwise, constant = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if what == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif what == 0x06:
            return constant
        else:
            at += then if {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant}[what] else otherwise


def test_calls_that_no_decoder_makes_are_refused(tried):
    """Also those that nobody thought of."""
    tables = ("import fcntl", "file = os.open(folder + '/out/file', os.O_RDWR)", "libc = ctypes.CDLL(None, use_errno=True)")
    refused = ["os.memfd_create('x')", "os.link(folder + '/out/file', folder + '/out/more')", "os.symlink('file', folder + '/out/link')",
               "fcntl.fcntl(file, 1024, 0)", "fcntl.flock(file, 2)", "fcntl.fcntl(file, 8, os.getppid())",
               "fcntl.ioctl(file, 0x40086602, bytes(8))", "os.chdir('/')", "os.nice(1)", "os.mkfifo(folder + '/out/pipe')",
               "socket.socketpair(socket.AF_TIPC)", "os.sendfile(file, file, 0, 1)"]
    answers = tried(*tables, *refused)
    assert answers[:3] == ["done"] * 3 and not set(answers[3:]) - {"PermissionError", "OSError"}, dict(zip(refused, answers[3:]))
    # The end with the worker can't be taken back (PR_SET_PDEATHSIG), and the kernel itself refuses, with EPERM or ENOSYS.
    assert tried(*tables[2:], "assert libc.prctl(1, 0) == -1 and ctypes.get_errno() == 1", "assert libc.inotify_init1(0) == -1 and ctypes.get_errno() == 1",
                 "assert libc.syscall(435, None, 0) == -1 and ctypes.get_errno() == 38", "assert libc.syscall(450, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 38"
                 ) == ["done"] * 5


@pytest.mark.parametrize("machine", CALL_NUMBERS)
def test_what_is_allowed_is_a_list_on_each_machine(machine):
    header, pattern = CALL_NUMBERS[machine]
    if not os.path.exists(header):
        pytest.skip(f"there is no {header}")
    numbers = {name: int(number) for name, number in re.findall(pattern, pathlib.Path(header).read_text())}
    allowed = {"sendto", "tgkill", "clone", "prlimit64", *_confined._ALLOWED_WITH}
    place = list(CALL_NUMBERS).index(machine)
    for name, own in [*_confined._ALLOWED.items(), *((name, one[0]) for name, one in _confined._ALLOWED_WITH.items())]:
        if own[place] is not None:
            assert numbers[NAMES.get(machine, {}).get(name, name)] == own[place], name
            allowed.add(NAMES.get(machine, {}).get(name, name))
    code = _confined._filter(machine, 77)
    for name, number in numbers.items():
        # Arguments that no check lets through.
        answer = answer_of(code, machine, number, 5, 99, 5 << 40, 0, 5 << 40)
        late = number == numbers["clone3"] or number >= 450
        assert answer == (ALLOW if name in _confined._ALLOWED or name == "fstatat" else NOT_THERE if late else REFUSED), name
        assert name in allowed or answer != ALLOW, name
    right = {"sendto": (3, 1, 1), "tgkill": (77, 78, 6), "clone": (0x3D0F00,), "prlimit64": (0, 9), "ioctl": (1, 0x5401), "fcntl": (1, 1030),
             "prctl": (15,), "socketpair": (1,)}
    assert {name: answer_of(code, machine, numbers[name], *arguments) for name, arguments in right.items()} == dict.fromkeys(right, ALLOW)
    assert answer_of(code, machine, numbers["clone"], 17) == answer_of(code, machine, numbers["tgkill"], 78, 78, 6) == REFUSED
    assert answer_of(code, machine, 0x40000000 + numbers["read"]) == NOT_THERE       # by another set of numbers
    other = "aarch64" if machine == "x86_64" else "x86_64"
    assert answer_of(code, other, numbers["read"]) == KILLED


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


# As on a kernel without one of them: the filter lasts in all processes that follow.
ON_A_KERNEL_WITHOUT = """
import ctypes, json, struct, sys
machine_filter, folder, flags = json.loads(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]
code = bytes.fromhex(machine_filter)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, code)), 0, 0) == 0
import tessera as ts
with ts.local_cluster(1, memory="16MiB", files=folder, worker_flags=flags) as cluster, cluster.connect() as session:
    try:
        said = ts.load("x.h5", session=session)["x"].full_tensor().tolist()
    except ts.FailedPreconditionError as error:
        said = str(error)
    print(json.dumps([said, cluster.log_tail(0)]))
"""


@pytest.mark.parametrize("what", ["Landlock", "seccomp filters"])
def test_a_worker_that_cant_confine_its_decoder_decodes_only_if_it_is_told_to(what, tmp_path):
    h5py = pytest.importorskip("h5py")
    if os.uname().machine not in CALL_NUMBERS:
        pytest.skip("no numbers of calls")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(9.0), chunks=(3,))
    step = lambda how, value, then=0, otherwise=0: struct.pack("=HBBI", how, then, otherwise, value)     # noqa: E731
    prctl = _confined._ALLOWED_WITH["prctl"][0][list(CALL_NUMBERS).index(os.uname().machine)]
    load, equal, give = 0x20, 0x15, 0x06
    code = {"Landlock": step(equal, 444, 0, 1) + step(give, NOT_THERE),
            "seccomp filters": step(equal, prctl, 0, 3) + step(load, 16) + step(equal, 22, 0, 1) + step(give, 0x50000 | errno.EINVAL)}[what]
    code = step(load, 0) + code + step(give, ALLOW)

    def run(*flags):
        done = subprocess.run([sys.executable, "-P", "-c", ON_A_KERNEL_WITHOUT, json.dumps([code.hex(), str(tmp_path), flags])],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    said, log = run()
    assert "decoder: this worker decodes nothing" in said and f"has no {what}" in said and "--decoder-unconfined" in said
    assert [line for line in log.splitlines() if f"has no {what}" in line and "--decoder-unconfined" in line], log
    values, log = run("--decoder-unconfined")
    assert values == list(range(9)) and f"has no {what}" in log
