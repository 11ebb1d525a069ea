"""Which session a function means, and the policy of implicit redistribution."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sysconfig
import threading
import weakref

import _tessera
from ._errors import FailedPreconditionError, InvalidArgumentError, TesseraError

_local = threading.local()
_open: "weakref.WeakValueDictionary[int, object]" = weakref.WeakValueDictionary()
_clusters: "weakref.WeakSet" = weakref.WeakSet()

_tessera.add_own_folder(os.path.dirname(os.path.abspath(__file__)) + os.sep)
_tessera.add_own_folder(os.path.abspath(importlib.util.find_spec("_tessera_ops").origin))
_tessera.set_library_folder(sysconfig.get_path("stdlib") + os.sep)

POLICIES = ("allow", "warn", "forbid")


def register(session) -> None:
    _open[session._key] = session


def register_cluster(cluster) -> None:
    _clusters.add(cluster)


def session_of_key(key: int):
    return _open.get(key)


def open_sessions() -> list:
    return [session for session in list(_open.values()) if session._open]


def push_session(session) -> None:
    if not hasattr(_local, "sessions"):
        _local.sessions = []
    _local.sessions.append(session)


def pop_session(session) -> None:
    _local.sessions.remove(session)


def current_session():
    """The innermost `with session:`, else the only open one, else an error that names the candidates."""
    for session in reversed(getattr(_local, "sessions", [])):
        session._check()
        return session
    candidates = open_sessions()
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        _tell_lost_session()
        raise FailedPreconditionError("no session is open: connect with ts.connect(address) or ts.local_cluster()")
    names = ", ".join(f"session {session.id} ({session.address})" for session in candidates)
    raise FailedPreconditionError(f"{len(candidates)} sessions are open, say which with `with session:`: {names}")


def _tell_lost_session() -> None:
    """Raises the failure of a session that its user did not close: that its coordinator is gone, or ended it."""
    for session in list(_open.values()):
        if session._closed:
            continue
        try:
            session._check()
        except TesseraError as error:
            raise type(error)(f"session {session.id} at {session.address}: {error}; no other session is open") from None


def blocking():
    """Within the block, each op waits until its result is there: a failure is raised at the line that asked for the op, and a
    debugger stops there. The block holds for all threads, since torch's backward has threads of its own. TESSERA_BLOCKING=1 is a
    block around the whole program.

    >>> with ts.blocking():
    ...     train_step()
    """
    return _tessera.Blocking()


@contextlib.contextmanager
def implicit_redistribution(policy: str):
    """Within the block, ops whose operands must be redistributed are done ("allow"), told ("warn") or refused ("forbid").

    >>> with ts.implicit_redistribution("forbid"):
    ...     a @ b
    """
    before = _tessera.thread_policy()
    _tessera.set_thread_policy(policy_number(policy))
    try:
        yield
    finally:
        _tessera.set_thread_policy(before)


def policy_number(policy: str) -> int:
    if policy not in POLICIES:
        raise InvalidArgumentError(f"implicit_redistribution: policy is {policy!r}, it must be one of {', '.join(POLICIES)}")
    return POLICIES.index(policy)


@atexit.register
def _end() -> None:
    for session in open_sessions():
        try:
            session.detach()   # which closes one without a lease
        except Exception:  # the process ends; nobody can be told
            pass
    for cluster in list(_clusters):
        cluster.stop()
