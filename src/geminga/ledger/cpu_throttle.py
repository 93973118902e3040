"""Rests of a thread that leaves the processor to others, and does not where there is reason to hurry."""

from __future__ import annotations

import threading


class CpuThrottle:
    """`rest` is for the thread that rests, the others for its owner's."""

    def __init__(self, *, threads: bool) -> None:
        """Without ``threads`` there is nobody to leave anything to."""
        self._hurries = threading.Event()
        self._is_over = not threads
        self.hurry(False)

    def rest(self, seconds: float) -> None:
        """Wait so long, or until there is reason to hurry."""
        if seconds > 0:
            self._hurries.wait(seconds)

    @property
    def hurries(self) -> bool:
        return self._hurries.is_set()

    def hurry(self, hurries: bool) -> None:
        """Whether there is reason to, as long as the thread is not to end."""
        if hurries or self._is_over:
            self._hurries.set()
        else:
            self._hurries.clear()

    def end(self) -> None:
        """The thread is to end: it does not rest any more."""
        self._is_over = True
        self._hurries.set()
