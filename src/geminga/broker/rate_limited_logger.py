"""Rate-limited log of peers' faults.

A line for each refused or dropped connection helps to find a cause. A client that connects ten thousand times
a second would fill the disk with them: so each period has a limit of lines, and the number of suppressed
lines is logged at its end.
"""

from __future__ import annotations

import logging
from typing import Final

from geminga.broker.scheduler import Scheduler

log = logging.getLogger("geminga.broker")

LINES_MAX: Final = 50
PERIOD_SECONDS: Final = 10.0
"""At most LINES_MAX lines are written in PERIOD_SECONDS."""


class RateLimitedLogger:
    """Logger for the faults of all peers of a broker."""

    __slots__ = ("_left", "_left_out", "_scheduler", "_until", "total")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._until = float("-inf")
        self._left = 0
        self._left_out = 0
        self.total = 0
        """Lines since the start, written or not."""

    def __repr__(self) -> str:
        return "complaints about peers"

    def tell(self, line: str, *values: object, level: int = logging.WARNING) -> None:
        """Write a line, as `logging` formats it, unless the limit is reached."""
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
