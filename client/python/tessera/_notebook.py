"""`%load_ext tessera`: a cluster of this machine for a notebook, and `%tessera status`, which shows it."""

from __future__ import annotations

from . import _context
from ._errors import InvalidArgumentError
from ._session import local_cluster

_started: dict = {}     # "cluster" and "session", of the extension's own
_USAGE = "%tessera status | start [WORKERS [MEMORY]] | stop"


def _start(shell, *options) -> None:
    if len(options) > 2:
        raise InvalidArgumentError(f"%tessera: {_USAGE}")
    if options and not options[0].isdigit():
        raise InvalidArgumentError(f"%tessera start: WORKERS is {options[0]!r}, not a number")
    _stop(shell)
    cluster = local_cluster(int(options[0]) if options else None, *options[1:])
    _started.update(cluster=cluster, session=cluster.connect())
    # Names that the user has already stay his.
    shell.push({name: value for name, value in _started.items() if name not in shell.user_ns})


def _stop(shell) -> None:
    for name, value in _started.items():
        if shell.user_ns.get(name) is value:
            shell.drop_by_id({name: value})
    if cluster := _started.pop("cluster", None):
        cluster.stop()
    _started.clear()


def _show(things) -> None:
    from IPython.display import display
    for thing in things:
        display(thing)
    if not things:
        print("No session is open. %tessera start, or ts.connect(address)")


def _cluster() -> list:
    return [_started["cluster"]] if _started else []


def _magic(shell, line: str) -> None:
    word, *options = line.split() or ["status"]
    if word == "start":
        _start(shell, *options)
        _show(_cluster())
    elif word == "stop" and not options:
        _stop(shell)
    elif word == "status" and not options:
        _show([*_cluster(), *_context.open_sessions()])
    else:
        raise InvalidArgumentError(f"%tessera: {line!r} is not known: {_USAGE}")


def load_ipython_extension(ipython) -> None:
    """%load_ext tessera calls it: starts a cluster on this machine if no session is open, as `cluster` and `session`, and
    shows it.

    >>> %load_ext tessera
    >>> %tessera status

    ipython: the shell. The magic %tessera knows status, start [WORKERS [MEMORY]] and stop; what %load_ext started ends with
    %tessera stop, %unload_ext tessera, or the kernel."""
    ipython.register_magic_function(lambda line: _magic(ipython, line), "line", "tessera")
    if not _context.open_sessions():
        _start(ipython)
    _show(_cluster() or _context.open_sessions())


def unload_ipython_extension(ipython) -> None:
    """%unload_ext tessera calls it: ends the cluster that %load_ext started, if it did.

    >>> %unload_ext tessera

    ipython: the shell."""
    _stop(ipython)
    ipython.magics_manager.magics["line"].pop("tessera", None)
