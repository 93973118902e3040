"""How busy a thread is, as the operating system counts it, and stepping back behind it: for work that is to
leave room."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time

logger = logging.getLogger("geminga.ledger")

NICENESS = 5
"""Of a thread that has stepped back, where threads have one."""


def step_back() -> None:
    """The calling thread leaves the processor to others that want it: publishing comes first."""
    if sys.platform == "linux":
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        except OSError as error:
            logger.debug("a thread keeps its priority: %s", error)


class ThreadLoad:
    """Of the thread that makes it. `take` may be called on any other, but on one at a time."""

    def __init__(self) -> None:
        self._path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._at = time.monotonic()
        self._ran = self._seconds()

    def take(self) -> float | None:
        """The part of the time since the last call in which the thread ran, or would have if there had been a
        processor, 0 to 1; None where that is not known (not on Linux, or the thread has ended)."""
        at, ran = time.monotonic(), self._seconds()
        before_at, before = self._at, self._ran
        self._at, self._ran = at, ran
        if ran is None or before is None or at <= before_at:
            return None
        return min(1.0, max(0.0, (ran - before) / (at - before_at)))

    def _seconds(self) -> float | None:
        try:
            with open(self._path, "rb") as file:
                ran, waited, *_ = file.read().split()
                return (int(ran) + int(waited)) / 1e9
        except (OSError, ValueError):
            return None
