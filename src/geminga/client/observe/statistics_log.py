"""Log of statistics: every ``stats_interval_in_seconds`` a line for each producer and consumer.

The lines have level INFO and go to the logger ``geminga.statistics``; idle handles log nothing.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

logger = logging.getLogger("geminga.statistics")


class HandleCounts(NamedTuple):
    """Counts of a handle since it was opened (``totals``), and current values (``present``)."""

    who: str
    totals: dict[str, int]
    present: dict[str, int | float]


class StatisticsLog:
    """Log of the counts of ``handles()`` every ``interval_seconds``, from `start` until `stop`; 0: never.
    Handles without ``counts()`` are skipped."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval_seconds: float, handles: Callable[[], Iterable[Any]]
    ) -> None:
        self._loop = loop
        self._interval_seconds = interval_seconds
        self._handles = handles
        self._timer: asyncio.TimerHandle | None = None
        self._before: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """Start the timer; may be called again."""
        if self._timer is None and self._interval_seconds:
            self._timer = self._loop.call_later(self._interval_seconds, self._log)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log(self) -> None:
        self._timer = None
        for handle in self._handles():
            counts: Callable[[], HandleCounts] | None = getattr(handle, "counts", None)
            if counts is not None:
                self._log_one(handle, counts())
        self.start()

    def _log_one(self, handle: Any, counts: HandleCounts) -> None:
        before = self._before.get(handle, {})
        did = {name: total - before.get(name, 0) for name, total in counts.totals.items()}
        self._before[handle] = counts.totals
        if any(did.values()):
            said = {**did, **counts.present}
            logger.info(
                "%s in %g s: %s",
                counts.who,
                self._interval_seconds,
                ", ".join(f"{name}={round(value, 6)}" for name, value in said.items()),
            )
