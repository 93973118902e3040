"""Pauses of a background thread that leaves the processor to others, unless its work is urgent."""

from __future__ import annotations

import threading


class CpuThrottle:
    """Pauses of one thread. That thread calls `rest`, its owner's thread the other methods."""

    def __init__(self, *, threads: bool) -> None:
        """Without ``threads`` there are no pauses."""
        self._hurries = threading.Event()
        self._is_over = not threads
        self.hurry(False)

    def rest(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until the work is urgent."""
        if seconds > 0:
            self._hurries.wait(seconds)

    @property
    def hurries(self) -> bool:
        return self._hurries.is_set()

    def hurry(self, hurries: bool) -> None:
        """Set whether the work is urgent; ignored once `end` was called."""
        if hurries or self._is_over:
            self._hurries.set()
        else:
            self._hurries.clear()

    def end(self) -> None:
        """Stop all pauses, because the thread is to end."""
        self._is_over = True
        self._hurries.set()
