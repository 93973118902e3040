"""Limit of the bytes per second that are offloaded."""

from __future__ import annotations

import time
from collections.abc import Callable


class ByteRate:
    """Rate limit, used by one thread. An idle limit saves nothing for later."""

    def __init__(self, bytes_per_second: int, clock: Callable[[], float] | None = None) -> None:
        """0 or -1: no limit."""
        self.is_lifted = False
        """Whether the limit does not apply for now."""
        self._bytes_per_second = bytes_per_second
        self._clock = clock or time.monotonic
        self._free_at = 0.0

    def wait_seconds(self) -> float:
        """Return the time until the next bytes may follow; 0 if they may now."""
        return 0.0 if self.is_lifted else max(0.0, self._free_at - self._clock())

    def take(self, size_bytes: int) -> None:
        """Count bytes that follow now."""
        if self._bytes_per_second > 0 and not self.is_lifted:
            self._free_at = max(self._free_at, self._clock()) + size_bytes / self._bytes_per_second
