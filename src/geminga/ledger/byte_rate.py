"""Limit of the bytes per second that a background thread works on."""

from __future__ import annotations

import threading
import time


class ByteRate:
    """Rate limit of one thread. That thread calls `wait`, its owner's thread the other methods."""

    def __init__(self, bytes_per_second: int) -> None:
        """-1: no limit."""
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0
        """Time at which the next bytes may follow."""
        self._is_off = threading.Event()
        self._is_over = bytes_per_second < 0
        self.lift(False)

    def wait(self, size_bytes: int) -> None:
        """Sleep until the thread may work on these bytes."""
        if not self._is_off.is_set():
            now = time.monotonic()
            if now < self._free_at:
                self._is_off.wait(self._free_at - now)
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_second

    def lift(self, is_lifted: bool) -> None:
        """Switch the limit off, or on again; ignored once `end` was called."""
        if is_lifted or self._is_over:
            self._is_off.set()
        else:
            self._is_off.clear()

    def end(self) -> None:
        """Switch the limit off for good, because the thread is to end."""
        self._is_over = True
        self._is_off.set()
