"""The inbox: what the application says about messages, on its way from any thread to the cores.

There is one way in, `Inbox.add`, and one order: a message is noted as taken before its acknowledgement, and
both are read in that order. Adding is one atomic operation on a ``collections.deque``; the loop's thread
empties the inbox once a grouping time, and at once when it is full or something urgent lies in it.

The type of an item is its tag. The most frequent one, the acknowledgement of a `Message`, is the message
itself: it costs nothing to make.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from geminga.consumer.message import Message
from geminga.ids import MessageId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TakenByApplication:
    """The application has the message: its acknowledgement time-out runs."""

    message: Message[Any]


@dataclass(frozen=True, slots=True)
class ReturnedToQueue:
    """The application has it no more: a call that had taken it was interrupted, and it waits in the queue."""

    message: Message[Any]


@dataclass(frozen=True, slots=True)
class AcknowledgedId:
    """The message with this id is done."""

    message_id: MessageId


@dataclass(frozen=True, slots=True)
class AcknowledgedThrough:
    """This message and all before it of its topic are done."""

    message: Message[Any] | MessageId


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """A reader's places: the newest message that it was given of each topic, when this item is read."""

    newest: Mapping[str, Message[Any]]


@dataclass(frozen=True, slots=True)
class NegativelyAcknowledged:
    """The application could not process the message: it is to come again later."""

    message: Message[Any] | MessageId


@dataclass(frozen=True, slots=True)
class ReceiptsWanted:
    """Somebody waits until everything before this is stored by the broker; ``token`` is told."""

    token: Any


Item = (
    Message
    | TakenByApplication
    | ReturnedToQueue
    | AcknowledgedId
    | AcknowledgedThrough
    | ReadThrough
    | NegativelyAcknowledged
    | ReceiptsWanted
)


class Inbox:
    """``arm`` and ``hurry`` have the loop empty the inbox soon, or now; both may be called on any thread,
    and more often than needed. ``full_at`` items are emptied without waiting for the grouping time.

    ``ended`` is None, or makes the error that says why nothing is taken any more.
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
        """The loop is going to empty the inbox."""
        return self._armed

    def add(self, item: Item) -> None:
        """Add one item, on any thread.

        Raises what `ended` makes. When the end came at the same moment, the item may have been read before.
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
            # Perhaps a signal's handler raised in here: whether the loop was told is not known.
            with suppress(Exception):
                self._arm()
            raise
        if self.ended is not None:
            raise self.ended()

    def add_urgent(self, item: Item) -> None:
        """`add`, and have the inbox emptied now."""
        self.add(item)
        if not self._hurried:
            self._hurried = True
            self._hurry()

    def take(self) -> list[Item]:
        """On the loop's thread: everything up to now, in order."""
        # First the flags: what is added from here on tells the loop again.
        self._armed = self._hurried = False
        take = self._items.popleft
        return [take() for _ in range(len(self._items))]
