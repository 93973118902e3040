"""The receive queue: what arrived and was not yet taken by the application.

One thread, the loop's, adds and takes back; any thread takes from the left. The queue is a
``collections.deque``, whose single operations are atomic, so that taking a message needs no lock. A
receiver that finds it empty registers as waiting, looks once more, and then sleeps; the adder looks for
waiting ones after it added and calls ``wake``. How a receiver sleeps is the shell's business.

An item is a `Message` or, for consumers that read whole entries, a `ReceivedEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


def _nobody(_added: int) -> None:
    """Nobody sleeps yet."""


class ReceiveQueue:
    """Shared by all consumers of a multi-topic consumer; bounded by the permits that they granted."""

    __slots__ = ("items", "waiting_tasks", "waiting_threads", "wake")

    def __init__(self) -> None:
        self.items: deque[Any] = deque()
        self.waiting_tasks = 0
        """Receivers that sleep on the loop; changed on its thread only."""
        self.waiting_threads = 0
        """Receivers that sleep on other threads; changed under the sync shell's lock only."""
        self.wake: Callable[[int], None] = _nobody
        """Called by the adder with the number of new items when somebody waits."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, items: Iterable[Any], count: int) -> None:
        """Append ``count`` items in order."""
        self.items.extend(items)
        if self.waiting_tasks or self.waiting_threads:
            self.wake(count)

    def put_back(self, items: list[Any]) -> None:
        """Put items in front of all others, in order."""
        self.items.extendleft(reversed(items))
        if items and (self.waiting_tasks or self.waiting_threads):
            self.wake(len(items))

    def take_back(self, belongs: Callable[[Any], bool]) -> list[Any]:
        """Remove the waiting items for which ``belongs`` is true; returns them in order.

        Items leave at the right end, one by one: receivers that take from the left meanwhile get the
        oldest ones, so that what is taken back is exactly the unread rest.
        """
        items = self.items
        taken: list[Any] = []
        kept: list[Any] = []
        try:
            while True:
                item = items.pop()
                (taken if belongs(item) else kept).append(item)
        except IndexError:
            pass
        taken.reverse()
        if kept:
            kept.reverse()
            self.add(kept, len(kept))
        return taken
