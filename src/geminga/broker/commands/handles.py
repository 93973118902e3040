"""The producers, or the consumers, of one connection by the ids that the client gave them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

H = TypeVar("H")


class PendingHandle(Generic[H]):
    """A handle that is being created. ``entered`` is it as soon as its topic has it.

    ``is_waiting``: it waits there for its turn (WaitForExclusive), and its client knows.
    """

    __slots__ = ("entered", "is_waiting")

    def __init__(self) -> None:
        self.entered: H | None = None
        self.is_waiting = False


class Handles(dict[int, H]):
    """The open handles; ``attempts`` are those that are being created.

    An id is free, being created, or open. Whoever goes on with an attempt later asks `is_current`
    first: the client may have closed the id, or used it anew, meanwhile. ``closing`` are handles whose ids
    are free, and which are still to do something before they end.
    """

    __slots__ = ("attempts", "closing")

    def __init__(self) -> None:
        super().__init__()
        self.attempts: dict[int, PendingHandle[H]] = {}
        self.closing: dict[H, None] = {}

    def begin(self, handle_id: int) -> PendingHandle[H]:
        """The id is taken from now on."""
        attempt = self.attempts[handle_id] = PendingHandle()
        return attempt

    def is_current(self, handle_id: int, attempt: PendingHandle[H]) -> bool:
        return self.attempts.get(handle_id) is attempt

    def opened(self, handle_id: int, handle: H) -> None:
        """The attempt has succeeded."""
        del self.attempts[handle_id]
        self[handle_id] = handle

    def abandon(self, handle_id: int) -> None:
        """The attempt has failed: the id is free."""
        self.attempts.pop(handle_id, None)

    def drop(self, handle_id: int, handle: object) -> bool:
        """Forget this very handle, open or waiting; False when the id is not its any more."""
        if self.get(handle_id) is handle:
            del self[handle_id]
            return True
        attempt = self.attempts.get(handle_id)
        if attempt is not None and attempt.is_waiting and attempt.entered is handle:
            del self.attempts[handle_id]
            return True
        return False

    def take(self, handle_id: int) -> H | None:
        """The client closes the id: the handle that was open or being created; any attempt ends."""
        attempt = self.attempts.pop(handle_id, None)
        found = self.pop(handle_id, None)
        return found if found is not None or attempt is None else attempt.entered

    def all(self) -> list[H]:
        """Every handle that is open or waits to be."""
        found = list(self.values())
        return found + [each.entered for each in self.attempts.values() if each.is_waiting and each.entered]

    def take_all(self) -> Iterator[H]:
        """The connection ends: every handle that its topic has.

        They are let go of one by one, the last first: to drop 100,000 at once takes 50 ms.
        """
        attempts, self.attempts = self.attempts, {}
        closing, self.closing = self.closing, {}
        entered = (each.entered for each in attempts.values() if each.entered is not None)
        return chain(closing, entered, self._let_go())

    def _let_go(self) -> Iterator[H]:
        while self:
            yield self.popitem()[1]

    @property
    def count(self) -> int:
        """Ids in use."""
        return len(self) + len(self.attempts)
