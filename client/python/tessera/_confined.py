"""A process that can open no file but those it is here for, and reach no other process: by Landlock, as far as the kernel
has it, and by a seccomp filter. Both last until its end, for all of its threads from then on, and can't be undone.

  confine(readable=["/usr"], writable=["/data"])

What it has open stays open. Landlock: https://docs.kernel.org/userspace-api/landlock.html; it has one number for each of
its calls on all machines. `tessera doctor` says whether a kernel has it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _VERSION, _PATH_BENEATH = 444, 445, 446, 1, 1

# Rights to files, by their bits, and how many of them each version of Landlock knows.
_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = (1 << n for n in (1, 2, 3, 4, 5, 7, 8, 14))
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_OF_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE
_FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}       # 16 from 5 on
_TCP = 3                # bind and connect, from 4 on
_SCOPED = 3             # abstract Unix sockets, and signals, from 6 on

# System calls that start a program or a process, make or reach a socket, touch another process, or change whose a file is; by machine. What comes on a socket
# that is there is answered by `send`, which is sendto without an address.
_DENIED = {
    "x86_64": (0xC000003E, {"socket": 41, "connect": 42, "accept": 43, "accept4": 288, "bind": 49, "listen": 50, "sendmsg": 46, "sendmmsg": 307,
                            "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kill": 62,
                            "tkill": 200, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_open": 434, "pidfd_getfd": 438,
                            "pidfd_send_signal": 424, "io_uring_setup": 425, "bpf": 321, "unshare": 272, "setns": 308, "mount": 165,
                            "keyctl": 250, "perf_event_open": 298, "fork": 57, "vfork": 58, "sched_setparam": 142, "sched_setscheduler": 144,
                            "sched_setaffinity": 203, "sched_setattr": 314, "setpriority": 141, "ioprio_set": 251, "chmod": 90, "chown": 92,
                            "fchown": 93, "lchown": 94, "fchownat": 260, "fchmodat": 268, "fchmodat2": 452, "setxattr": 188, "lsetxattr": 189,
                            "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "setxattrat": 463, "removexattrat": 466, "fchmod": 91,
                            "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "setpgid": 109, "setsid": 112, "shmget": 29, "shmat": 30,
                            "semget": 64, "msgget": 68, "mq_open": 240, "userfaultfd": 323, "add_key": 248, "request_key": 249, "chroot": 161,
                            "personality": 135, "fanotify_init": 300, "open_by_handle_at": 304, "kcmp": 312, "process_madvise": 440,
                            "process_mrelease": 448}),
    "aarch64": (0xC00000B7, {"socket": 198, "connect": 203, "accept": 202, "accept4": 242, "bind": 200, "listen": 201, "sendmsg": 211,
                             "sendmmsg": 269, "execve": 221, "execveat": 281, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
                             "kill": 129, "tkill": 130, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "pidfd_open": 434, "pidfd_getfd": 438,
                             "pidfd_send_signal": 424, "io_uring_setup": 425, "bpf": 280, "unshare": 97, "setns": 268, "mount": 40,
                             "keyctl": 219, "perf_event_open": 241, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
                             "sched_setattr": 274, "setpriority": 140, "ioprio_set": 30, "fchown": 55, "fchownat": 54, "fchmodat": 53,
                             "fchmodat2": 452, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
                             "fremovexattr": 16, "setxattrat": 463, "removexattrat": 466, "fchmod": 52, "utimensat": 88, "setpgid": 154, "setsid": 157,
                             "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186, "mq_open": 180, "userfaultfd": 282, "add_key": 217,
                             "request_key": 218, "chroot": 51, "personality": 92, "fanotify_init": 262, "open_by_handle_at": 265, "kcmp": 272,
                             "process_madvise": 440, "process_mrelease": 448}),
}
_SENDTO, _TGKILL = {"x86_64": 44, "aarch64": 206}, {"x86_64": 234, "aarch64": 131}
# A clone is for a thread of this process; clone3, whose flags no filter can read, isn't there, and libc takes clone.
_CLONE, _CLONE3, _CLONE_THREAD, _NOT_THERE = {"x86_64": 56, "aarch64": 220}, 435, 0x00010000, 0x00050000 | errno.ENOSYS
# Limits of other processes; its own ones are read by it.
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000        # refused with EPERM
_X32_BIT = 0x40000000


def landlock_version() -> int:
    """0: the kernel has none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def of_python() -> list[str]:
    """What Python and its packages are read from."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/opt", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"]
    # Of the kernel: the own process, how many cores and how much memory there is.
    return found + [f"/proc/{os.getpid()}", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup", "/dev/urandom", "/dev/null"]


def confine(readable, writable) -> None:
    """Files below these folders alone; no socket that isn't open, no other program, no other process."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = landlock_version()
    if version:
        _restrict_files(version, readable, writable)
    _restrict_calls()


def _restrict_files(version: int, readable, writable) -> None:
    known = (1 << _FILE_BITS.get(version, 16)) - 1
    attributes = struct.pack("=QQQ", known, _TCP if version >= 4 else 0, _SCOPED if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        for paths, rights in ((readable, _READ), (writable, _READ | _WRITE)):
            for path in dict.fromkeys(filter(None, paths)):
                _allow(rules, path, rights & known)
        if _libc.syscall(_RESTRICT_SELF, rules, 0):
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:     # what isn't there needs no rule
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        if _libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0):
            raise OSError(ctypes.get_errno(), f"landlock_add_rule: {path}")
    finally:
        os.close(fd)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _restrict_calls() -> None:
    machine = os.uname().machine
    if machine not in _DENIED or sys.byteorder != "little":
        return
    code = _filter(machine, os.getpid())
    program = _Program(len(code) // 8, code)
    # A kernel without filters says EINVAL.
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "seccomp")


def _filter(machine: str, own: int) -> bytes:
    """BPF of struct seccomp_data: the call's number at 0, the machine at 4, and 8 bytes for each argument from 16 on."""
    architecture, denied = _DENIED[machine]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    step = lambda what, value, then=0, otherwise=0: struct.pack("=HBBI", what, then, otherwise, value)     # noqa: E731
    out = [step(load, 4), step(equal, architecture, 1, 0), step(give, _KILL), step(load, 0)]
    out += [step(at_least, _X32_BIT, 0, 1), step(give, _REFUSE)]       # the same calls by other numbers
    # sendto: the address, in two halves, is null.
    out += [step(equal, _SENDTO[machine], 0, 6), step(load, 48), step(equal, 0, 0, 3), step(load, 52), step(equal, 0, 0, 1), step(give, _ALLOW), step(give, _REFUSE)]
    # tgkill: of itself, as abort() does.
    out += [step(equal, _TGKILL[machine], 0, 4), step(load, 16), step(equal, own, 0, 1), step(give, _ALLOW), step(give, _REFUSE)]
    has_bits = 0x45
    out += [step(equal, _CLONE3, 0, 1), step(give, _NOT_THERE)]
    out += [step(equal, _CLONE[machine], 0, 4), step(load, 16), step(has_bits, _CLONE_THREAD, 0, 1), step(give, _ALLOW), step(give, _REFUSE)]
    # prlimit64: of the process 0, which is itself, and without new limits (the third argument, in two halves, is null).
    out += [step(equal, _PRLIMIT[machine], 0, 8), step(load, 16), step(equal, 0, 0, 5), step(load, 32), step(equal, 0, 0, 3), step(load, 36), step(equal, 0, 0, 1), step(give, _ALLOW),
            step(give, _REFUSE)]
    for number in sorted(denied.values()):
        out += [step(equal, number, 0, 1), step(give, _REFUSE)]
    return b"".join([*out, step(give, _ALLOW)])
