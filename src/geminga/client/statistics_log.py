"""Every ``stats_interval_in_seconds`` each producer and consumer says in the log what it did meanwhile.

The lines are of level INFO, to the logger ``geminga.statistics``; who did nothing says nothing.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger("geminga.statistics")


@dataclass(frozen=True, slots=True)
class HandleCounts:
    """What a handle has done since it was opened (``totals``), and how it stands (``present``)."""

    who: str
    totals: dict[str, int]
    present: dict[str, int | float]


class StatisticsLog:
    """Looks at ``handles()`` every ``interval_seconds``, from `start` until `stop`; 0: never. Those without a
    ``counts()`` are passed over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval_seconds: float, handles: Callable[[], Iterable[Any]]
    ) -> None:
        self._loop = loop
        self._interval_seconds = interval_seconds
        self._handles = handles
        self._timer: asyncio.TimerHandle | None = None
        self._before: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()

    def start(self) -> None:
        """May be called again."""
        if self._timer is None and self._interval_seconds:
            self._timer = self._loop.call_later(self._interval_seconds, self._tell)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        for handle in self._handles():
            counts: Callable[[], HandleCounts] | None = getattr(handle, "counts", None)
            if counts is not None:
                self._tell_one(handle, counts())
        self.start()

    def _tell_one(self, handle: Any, counts: HandleCounts) -> None:
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
