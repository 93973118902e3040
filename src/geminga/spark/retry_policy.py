"""Retries while the cluster is unreachable, so that a restarted broker does not end a query."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from geminga.errors import ConsumerBusy, PulsarException

T = TypeVar("T")

logger = logging.getLogger("geminga.spark")

DELAY_SECONDS = 0.1
"""Seconds before the second attempt; doubled for each further one, up to `DELAY_SECONDS_MAX`."""
DELAY_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries calls that fail with a retriable error, for up to ``seconds``."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def call(self, what: str, attempt: Callable[[], T]) -> T:
        """Return ``attempt()``, retried while its errors are retriable.

        An unreachable service URL is retriable: brokers restart. ``what`` names the work in the log and in a
        note on the final error.
        """
        begin = self.clock()
        delay = DELAY_SECONDS
        while True:
            try:
                return attempt()
            except PulsarException as error:
                # Another consumer has the subscription: perhaps one of our own killed process.
                is_busy = isinstance(error, ConsumerBusy)
                if not (error.retriable or is_busy):
                    raise
                seconds = self.seconds / 3 if is_busy else self.seconds
                if self.clock() + delay > begin + seconds:
                    advice = "; each source of a query needs a predefinedSubscription of its own"
                    option = f"option operationTimeoutMs{advice if is_busy else ''}"
                    error.add_note(f"{what} failed for {seconds:g} s ({option})")
                    raise
                if delay == DELAY_SECONDS:
                    logger.warning("%s failed, trying again for %g s: %s", what, self.seconds, error)
            self.sleep(delay)
            delay = min(2 * delay, DELAY_SECONDS_MAX)
