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

# The system calls that a decoder makes, by their numbers on x86_64 and on aarch64; all others are refused.
_ALLOWED = {
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233), "msync": (26, 227),
    "mincore": (27, 232), "membarrier": (324, 283),
    # its threads, and its end
    "futex": (202, 98), "futex_waitv": (449, 449), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293),
    "set_tid_address": (218, 96), "arch_prctl": (158, None), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "exit": (60, 93), "exit_group": (231, 94), "restart_syscall": (219, 128),
    # signals that come to it
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132),
    # time
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    # files, which Landlock keeps to some folders
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "close": (3, 57), "close_range": (436, 436), "read": (0, 63), "readv": (19, 65),
    "pread64": (17, 67), "preadv": (295, 69), "preadv2": (327, 286), "write": (1, 64), "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70),
    "pwritev2": (328, 287), "lseek": (8, 62), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getcwd": (79, 17), "getdents": (78, None), "getdents64": (217, 61), "mkdir": (83, None), "mkdirat": (258, 34),
    "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47), "fadvise64": (221, 223), "fsync": (74, 82), "fdatasync": (75, 83),
    "copy_file_range": (326, 285), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "umask": (95, 166),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd2": (290, 19), "pipe": (22, None),
    "pipe2": (293, 59),
    # the socket that is there
    "recvfrom": (45, 207), "recvmsg": (47, 212), "getsockname": (51, 204), "getsockopt": (55, 209), "shutdown": (48, 210),
    # the host
    "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278), "getrlimit": (97, 163), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177),
}
# Calls with an argument, by its place, that must be one of some numbers: of terminals and flags of descriptors, of copies and flags of
# descriptors (no lease, no owner of signals), names of threads and of memory, and AF_UNIX.
_ALLOWED_WITH = {
    "ioctl": ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 1030)),
    "prctl": ((157, 167), 0, (15, 16, 0x53564D41)),
    "socketpair": ((53, 199), 0, (1,)),
}
# sendto has no address (send() is such a call). tgkill reaches the own process, as abort() does. A clone makes a thread of this process.
# prlimit64 reads the own limits.
_SENDTO, _TGKILL, _CLONE, _PRLIMIT, _CLONE_THREAD = (44, 206), (234, 131), (56, 220), (302, 261), 0x00010000
# clone3, whose flags no filter can read, isn't there, so libc takes clone. Nor are the calls of Linux 5.17 and later, without which libraries
# do as on an older kernel; the same holds for x86_64's second set of numbers (x32).
_CLONE3, _FIRST_NEW = 435, 450
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _REFUSE, _NOT_THERE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000


def landlock_version() -> int:
    """0: the kernel has none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def of_python() -> list[str]:
    """The folders that Python and its packages are read from."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, *os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/opt", "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types"]
    # The kernel's files: the own process, how many cores and how much memory there is.
    return found + [f"/proc/{os.getpid()}", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup", "/dev/urandom", "/dev/null"]


def confine(readable, writable) -> list[str]:
    """Files below these folders alone; no socket that isn't open, no other program, no other process. Says what of it the kernel has not."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = landlock_version()
    if version:
        _restrict_files(version, readable, writable)
    return ([] if version else ["Landlock"]) + ([] if _restrict_calls() else ["seccomp filters"])


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


def _restrict_calls() -> bool:
    """False where the kernel has no filters, or this machine's calls aren't known."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or sys.byteorder != "little":
        return False
    code = _filter(machine, os.getpid())
    program = _Program(len(code) // 8, code)
    if not _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0):
        return True
    if ctypes.get_errno() != errno.EINVAL:      # of a kernel without filters
        raise OSError(ctypes.get_errno(), "seccomp")
    return False


def _filter(machine: str, own: int) -> bytes:
    """BPF of struct seccomp_data: the call's number at 0, the machine at 4, and 8 bytes for each argument from 16 on."""
    place = list(_ARCHITECTURES).index(machine)
    load, equal, at_least, has_bits, give = 0x20, 0x15, 0x35, 0x45, 0x06
    step = lambda what, value, then=0, otherwise=0: struct.pack("=HBBI", what, then, otherwise, value)     # noqa: E731

    def call(numbers, *checks) -> list:
        """Allowed where all checks hold: (offset, how, one of these values)."""
        body = []
        for offset, how, values in checks:
            body.append(step(load, offset))
            body += [step(how, value, len(values) - at) for at, value in enumerate(values)] + [step(give, _REFUSE)]
        body.append(step(give, _ALLOW))
        return [step(equal, numbers[place], 0, len(body)), *body]

    out = [step(load, 4), step(equal, _ARCHITECTURES[machine], 1, 0), step(give, _KILL), step(load, 0)]
    for numbers in _ALLOWED.values():
        if numbers[place] is not None:
            out += call(numbers)
    for numbers, argument, values in _ALLOWED_WITH.values():
        out += call(numbers, (16 + 8 * argument, equal, values))
    pointer_is_null = lambda argument: [(16 + 8 * argument + half, equal, (0,)) for half in (0, 4)]     # noqa: E731
    out += call(_SENDTO, *pointer_is_null(4)) + call(_TGKILL, (16, equal, (own,))) + call(_CLONE, (16, has_bits, (_CLONE_THREAD,)))
    out += call(_PRLIMIT, (16, equal, (0, own)), *pointer_is_null(2))
    out += [step(equal, _CLONE3, 1, 0), step(at_least, _FIRST_NEW, 0, 1), step(give, _NOT_THERE)]
    return b"".join([*out, step(give, _REFUSE)])
