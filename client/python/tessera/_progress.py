"""Bars: of a wait, ops done of those that were queued; of a large transfer, bytes that have arrived. Shown by tqdm;
without it there is no bar, and no error."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings

import _tessera
from ._errors import TesseraError

LOOK = 0.2              # docs/limits.md: progress_look
_LEAST = 256 << 20      # docs/limits.md: least_progress_bytes
BAR_AFTER = 2.0         # docs/limits.md: progress_after
_NO_BAR = contextlib.nullcontext()


def _bar_class():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")     # a notebook without widgets has a bar of text
            from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


def _left(session) -> int:
    """Ops of the session that have not run: those that are queued, and those that the busiest worker has to do."""
    status = session.status()
    queued = sum(one["queued"] for one in status["sessions"] if one["id"] == session.id)
    return queued + max((worker["outstanding"] for worker in status["workers"]), default=0)


def _watch(session, bar, ended: threading.Event) -> None:
    most = done = 0
    while not ended.wait(LOOK):
        try:
            left = _left(session)
        except TesseraError:        # who waits is told
            return
        most = max(most, left)
        done = max(done, most - left)
        bar.total, bar.n = most, done
        bar.refresh()


@contextlib.contextmanager
def progress_of(session, what: str):
    """Shows a bar while the block waits; it is complete when the block ends well."""
    bar_class = _bar_class()
    if bar_class is None:
        yield
        return
    bar, ended = bar_class(total=None, desc=what, unit="op"), threading.Event()
    watcher = threading.Thread(target=_watch, args=(session, bar, ended), daemon=True)
    watcher.start()
    try:
        yield
        ended.set()
        watcher.join()
        bar.total = bar.n = max(bar.total or 0, 1)
        bar.refresh()
    finally:
        ended.set()
        bar.close()


# ---- transfers ----------------------------------------------------------------------------------

def _is_shown() -> bool:
    """Whether there is somebody to look: TESSERA_PROGRESS says it by 0 or 1, else a terminal or a notebook does."""
    said = os.environ.get("TESSERA_PROGRESS", "")
    if said in ("0", "1"):
        return said == "1"
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return True
    return sys.stderr is not None and sys.stderr.isatty()


def has_bars() -> bool:
    return _is_shown() and _bar_class() is not None


class _Bar:
    """Counts the transfers that a thread begins in the block, and shows what has arrived until they have ended."""

    def __init__(self, what: str, nbytes: int, bar_class):
        self._meter, self._ended = _tessera.TransferMeter(), threading.Event()
        self._bar = bar_class(total=nbytes, desc=what, unit="B", unit_scale=True, unit_divisor=1024, leave=False)
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK) and self._meter.is_used:
            self._show()
        self._show()
        self._bar.close()

    def _show(self) -> None:
        self._bar.total = max(self._bar.total, self._meter.expected_bytes)
        self._bar.n = self._meter.moved_bytes
        self._bar.refresh()

    def __enter__(self):
        _tessera.set_thread_meter(self._meter)
        self._watcher.start()

    def __exit__(self, *exc):
        _tessera.set_thread_meter(None)
        self._ended.set()
        self._watcher.join()


class _BackgroundBar(_Bar):
    """Stays until the transfers have ended, for which nobody waits here."""

    def __exit__(self, kind, value, traceback):
        _tessera.set_thread_meter(None)
        if kind is not None:
            self._ended.set()


def bar_of(what: str, nbytes: int, kind=_Bar):
    """A context that shows a bar of the bytes that are moved in the block, where they are many."""
    if nbytes < _LEAST or not _is_shown():
        return _NO_BAR
    bar_class = _bar_class()
    return _NO_BAR if bar_class is None else kind(what, nbytes, bar_class)


def background_bar_of(what: str, nbytes: int):
    """The same of transfers that go on behind the block."""
    return bar_of(what, nbytes, _BackgroundBar)
