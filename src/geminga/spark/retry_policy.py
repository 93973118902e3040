"""Going on while the cluster can't be reached: a restarted broker must not end a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from geminga.errors import ConsumerBusy, PulsarException

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

DELAY_SECONDS = 0.1
"""Before the second attempt; it doubles with each further one, up to `DELAY_SECONDS_MAX`."""
DELAY_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Repeats what failed for a reason that passes, until ``seconds`` after it was begun."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def call(self, what: str, attempt: Callable[[], T]) -> T:
        """``attempt()``, again as long as its errors are passing ones.

        An unreachable service URL counts as one: brokers restart. ``what`` names the work in the log and in
        a note on the error that is raised in the end.
        """
        deadline = self.clock() + self.seconds
        delay = DELAY_SECONDS
        while True:
            try:
                return attempt()
            except PulsarException as error:
                # Another consumer has the subscription: perhaps our own, of a process that was killed.
                if not (error.retriable or isinstance(error, ConsumerBusy)):
                    raise
                if self.clock() + delay > deadline:
                    error.add_note(f"{what} failed for {self.seconds:g} s (option operationTimeoutMs)")
                    raise
                if delay == DELAY_SECONDS:
                    logger.warning("%s failed, trying again for %g s: %s", what, self.seconds, error)
            self.sleep(delay)
            delay = min(2 * delay, DELAY_SECONDS_MAX)
