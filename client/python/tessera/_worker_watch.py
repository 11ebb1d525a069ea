"""session.on_worker: a thread that tells which workers came and went."""

from __future__ import annotations

import threading
import warnings
import weakref
from typing import NamedTuple

from ._errors import InvalidArgumentError, TesseraError

LOOK = 0.25     # seconds between looks


class WorkerChange(NamedTuple):
    """A change that `session.on_worker` tells. `change` is "came" or "went"; `worker` is the entry of `session.status()["workers"]`,
    of one that went the last that was seen."""

    change: str
    worker: dict


class WorkerWatch:
    """The watch that `session.on_worker` begins. `stop()` ends it, as do a `with` block's end and the session's."""

    def __init__(self, session, callback):
        self._callback = callback
        self._stopped = threading.Event()
        self._session = weakref.ref(session)    # a watch keeps no session open
        self._seen = _there(session)
        self._thread = threading.Thread(target=self._watch, name="tessera-workers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch: when it returns, no call of the callback is under way, but one that stops the watch itself."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK):
            session = self._session()
            if session is None or session._closed:
                return
            try:
                now = _there(session)
            except TesseraError:    # of a session that has ended; its calls say why
                return
            finally:
                del session
            went = [WorkerChange("went", worker) for key, worker in self._seen.items() if key not in now]
            came = [WorkerChange("came", worker) for key, worker in now.items() if key not in self._seen]
            self._seen = now
            for change in went + came:
                if not self._stopped.is_set():
                    self._tell(change)

    def _tell(self, change: WorkerChange) -> None:
        try:
            self._callback(change)
        except Exception as error:      # the next change is told all the same
            warnings.warn(f"on_worker: the callback raised {type(error).__name__}: {error}", RuntimeWarning, stacklevel=1)


def _there(session) -> dict:
    """By number and process. A worker that is silent for some seconds is there until it is lost."""
    return {(worker["index"], worker["host"], worker["pid"]): worker for worker in session._status()["workers"] if worker["state"] != "dead"}


def watch_workers(session, callback) -> WorkerWatch:
    if not callable(callback):
        raise InvalidArgumentError(f"on_worker: callback is {callback!r}; it must be a function of one WorkerChange")
    return WorkerWatch(session, callback)
