"""A bar for a wait: ops done of those that were queued. Shown by tqdm; without it there is no bar, and no error."""

from __future__ import annotations

import contextlib
import threading
import warnings

from ._errors import TesseraError

_LOOK = 0.2     # docs/limits.md: progress_look


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
    while not ended.wait(_LOOK):
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
