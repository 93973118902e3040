"""Complaints: what is wrong with peers is said in the log, but no peer fills it.

A line for each connection that is refused or dropped helps who looks for a reason. Whoever connects ten
thousand times a second would fill the disk with them: so in each while only some are written, and how many
were left out is said at its end.
"""

from __future__ import annotations

import logging
from typing import Final

from geminga.broker.scheduler import Scheduler

log = logging.getLogger("geminga.broker")

LINES_MAX: Final = 50
PERIOD_SECONDS: Final = 10.0
"""So many lines are written in so many seconds."""


class RateLimitedLogger:
    """One for all peers of a broker."""

    __slots__ = ("_left", "_left_out", "_scheduler", "_until", "total")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._until = float("-inf")
        self._left = 0
        self._left_out = 0
        self.total = 0
        """Those since the start, written or not."""

    def __repr__(self) -> str:
        return "complaints about peers"

    def tell(self, line: str, *values: object, level: int = logging.WARNING) -> None:
        """Write a line, as `logging` formats it, unless there were too many."""
        self.total += 1
        now = self._scheduler.now
        if now >= self._until:
            self._until, self._left = now + PERIOD_SECONDS, LINES_MAX
        if self._left:
            self._left -= 1
            log.log(level, line, *values)
            return
        if not self._left_out:
            self._scheduler.at(self._until, self._tell_left_out, self)
        self._left_out += 1

    def _tell_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        log.warning("%d more log lines of this kind were suppressed", count)
