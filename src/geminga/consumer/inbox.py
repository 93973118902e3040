"""Inbox: the application's calls about messages, passed from any thread to the cores.

All items pass `Inbox.add`, in one order: taking a message is noted before its acknowledgement, and both are
processed in that order. Adding is one atomic operation on a ``collections.deque``; the loop's thread empties
the inbox once a grouping time, and at once when it is full or has an urgent item.

Items are distinguished by type. The most frequent one, the acknowledgement of a `Message`, is the message
itself, which needs no further object.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from geminga.consumer.message import Message

T = TypeVar("T")


class Note:
    """A call of the application; ``about`` is the message, or as the subclass says."""

    __slots__ = ("about",)

    def __init__(self, about: Any) -> None:
        self.about = about


class TakenByApplication(Note):
    """The application took the message: its acknowledgement time-out starts."""

    __slots__ = ()


class ReturnedToQueue(Note):
    """A call that had taken the message was interrupted; the message is in the queue again."""


class AcknowledgedId(Note):
    """The message with this id is acknowledged."""


class AcknowledgedThrough(Note):
    """This message, or the one with this id, and all before it of its topic are acknowledged."""


class AcknowledgedIn(Note):
    """A message, or the one with this id, is acknowledged in a transaction; with ``through``, all before it
    of its topic too."""

    def __init__(self, about: Any, transaction: Any, *, through: bool) -> None:
        super().__init__(about)
        self.transaction = transaction
        self.through = through


class ReadThrough(Note):
    """A reader's positions: a mapping from each topic to the newest message that the reader was given, as of
    processing this item."""


class NegativelyAcknowledged(Note):
    """The application could not process the message, or the one with this id: it is redelivered later."""

    __slots__ = ()


class ReceiptsWanted(Note):
    """A caller waits until everything before this is stored by the broker; a token identifies it."""


Item = Message | Note


class Inbox:
    """``arm`` and ``hurry`` schedule emptying the inbox, soon or now; both may be called on any thread, and
    more often than needed. ``full_at`` items are processed without waiting for the grouping time.

    ``ended`` is None, or returns the error to raise for further items.
    """

    __slots__ = ("_arm", "_armed", "_full_at", "_hurried", "_hurry", "_items", "ended")

    def __init__(self, full_at: int, arm: Callable[[], None], hurry: Callable[[], None]) -> None:
        self.ended: Callable[[], Exception] | None = None
        self._items: deque[Item] = deque()
        self._full_at = full_at
        self._arm = arm
        self._hurry = hurry
        self._armed = False
        self._hurried = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def armed(self) -> bool:
        """Whether emptying the inbox is scheduled."""
        return self._armed

    def add(self, item: Item) -> None:
        """Add one item, on any thread.

        Raises the error of `ended`. If the end came at the same moment, the item may have been processed
        before.
        """
        items = self._items
        if self.ended is not None:
            raise self.ended()
        try:
            items.append(item)
            if not self._armed:
                self._armed = True
                self._arm()
            elif len(items) >= self._full_at and not self._hurried:
                self._hurried = True
                self._hurry()
        except BaseException:
            # A signal handler may have raised here: the loop may not be scheduled.
            with suppress(Exception):
                self._arm()
            raise
        if self.ended is not None:
            raise self.ended()

    def add_urgent(self, item: Item) -> None:
        """Call `add`, and have the inbox emptied now."""
        self.add(item)
        if not self._hurried:
            self._hurried = True
            self._hurry()

    def take(self) -> list[Item]:
        """Return all items so far, in order. Call on the loop's thread."""
        # Reset the flags first: items added from now on schedule the loop again.
        self._armed = self._hurried = False
        take = self._items.popleft
        return [take() for _ in range(len(self._items))]
