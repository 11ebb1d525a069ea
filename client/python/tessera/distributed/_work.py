"""Work: what async_op=True gives."""

from __future__ import annotations

import datetime

from .._errors import InvalidArgumentError


class Work:
    """A collective under way. Results may be used at once, whether or not it was waited for."""

    __slots__ = ("_results",)

    def __init__(self, results):
        self._results = list(results)

    def wait(self, timeout=None) -> bool:
        """Blocks until it is done, for so many seconds (or a timedelta) at most; raises what it failed with."""
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if seconds is not None and not isinstance(seconds, (int, float)):
            raise InvalidArgumentError(f"Work.wait: timeout is {timeout!r}; it is a number of seconds or a timedelta")
        for result in self._results:
            result.rows.wait(seconds)
        return True

    def is_completed(self) -> bool:
        return all(result.rows.is_ready() for result in self._results)

    def result(self) -> list:
        """The LocalTensors that it writes."""
        return list(self._results)


def ended(results, async_op: bool) -> Work | None:
    return Work(results) if async_op else None
