"""Producers or consumers of one connection by the ids that the client assigned."""

from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

from geminga.broker.runtime.memory_backpressure import NAMED_BYTES_SMALL, MemoryBackpressure

H = TypeVar("H")


class PendingHandle(Generic[H]):
    """Handle that is being created. ``entered`` is the handle once its topic has it.

    ``is_waiting``: it is queued by the topic (WaitForExclusive), and its client was notified.
    """

    __slots__ = ("entered", "is_waiting")

    def __init__(self) -> None:
        self.entered: H | None = None
        self.is_waiting = False


class Handles(dict[int, H]):
    """Open handles by id; ``attempts`` are those that are being created.

    An id is free, being created, or open. A later step of an attempt checks `is_current` first: the client
    may have closed or reused the id meanwhile. ``closing`` are handles whose ids are free, and which have
    work to finish.
    """

    __slots__ = ("_backpressure", "_named", "attempts", "closing")

    def __init__(self, backpressure: MemoryBackpressure) -> None:
        super().__init__()
        self._backpressure = backpressure
        self._named: dict[int, int] = {}
        """Bytes of the names and metadata that are counted, by id."""
        self.attempts: dict[int, PendingHandle[H]] = {}
        self.closing: dict[H, None] = {}

    def begin(self, handle_id: int, named_bytes: int) -> PendingHandle[H]:
        """Reserve the id for a handle with names and metadata of this size."""
        if named_bytes > NAMED_BYTES_SMALL:
            self._named[handle_id] = named_bytes
            self._backpressure.named_bytes += named_bytes
        attempt = self.attempts[handle_id] = PendingHandle()
        return attempt

    def is_current(self, handle_id: int, attempt: PendingHandle[H]) -> bool:
        return self.attempts.get(handle_id) is attempt

    def opened(self, handle_id: int, handle: H) -> None:
        """Record that the attempt has succeeded."""
        del self.attempts[handle_id]
        self[handle_id] = handle

    def abandon(self, handle_id: int) -> None:
        """Free the id: the attempt has failed."""
        self.attempts.pop(handle_id, None)
        self._freed(handle_id)

    def _freed(self, handle_id: int) -> None:
        if self._named:
            self._backpressure.named_bytes -= self._named.pop(handle_id, 0)

    def drop(self, handle_id: int, handle: object) -> bool:
        """Remove this handle, open or waiting; False if its id is not assigned to it any more."""
        if self.get(handle_id) is handle:
            del self[handle_id]
            self._freed(handle_id)
            return True
        attempt = self.attempts.get(handle_id)
        if attempt is not None and attempt.is_waiting and attempt.entered is handle:
            self.abandon(handle_id)
            return True
        return False

    def take(self, handle_id: int) -> H | None:
        """Remove and return the handle of an id that the client closes, open or being created."""
        attempt = self.attempts.pop(handle_id, None)
        found = self.pop(handle_id, None)
        self._freed(handle_id)
        return found if found is not None or attempt is None else attempt.entered

    def all(self) -> list[H]:
        """Return every handle that is open or waiting."""
        found = list(self.values())
        return found + [each.entered for each in self.attempts.values() if each.is_waiting and each.entered]

    def take_all(self) -> Iterator[H]:
        """Remove and yield every handle when the connection ends.

        One by one, the last first: to drop 100,000 at once takes 50 ms.
        """
        attempts, self.attempts = self.attempts, {}
        closing, self.closing = self.closing, {}
        self._backpressure.named_bytes -= sum(self._named.values())
        self._named = {}
        entered = (each.entered for each in attempts.values() if each.entered is not None)
        return chain(closing, entered, self._let_go())

    def _let_go(self) -> Iterator[H]:
        while self:
            yield self.popitem()[1]

    @property
    def count(self) -> int:
        """Return the number of ids in use."""
        return len(self) + len(self.attempts)
