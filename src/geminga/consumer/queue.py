"""The receive queue: what arrived and was not yet taken by the application.

One thread, the loop's, adds and takes back; any thread takes messages from the left. Both parts are a
``collections.deque``, whose single operations are atomic, so that taking a message needs no lock. How a
receiver sleeps that finds nothing is the shell's business: it makes ``waiting`` true and is called by
``wake`` after something was added.

``messages`` go before ``entries``: entries are queued whole once a reader of columns has asked for them,
and never before a message again. Only the loop's thread opens one, and puts its messages in front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from geminga.consumer.message import Message, Origin, ReceivedEntry

T = TypeVar("T")


def _nobody() -> None:
    """Nobody sleeps yet."""


class ReceiveQueue:
    """Shared by all consumers of a multi-topic consumer; bounded by the permits that they granted."""

    __slots__ = ("entries", "messages", "waiting", "wake")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.entries: deque[ReceivedEntry] = deque()
        self.waiting: Sized = ()
        """Those who sleep until something is added."""
        self.wake: Callable[[], None] = _nobody
        """Called by the adder after it added, when somebody waits."""

    def __len__(self) -> int:
        return len(self.messages) + len(self.entries)

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages in order."""
        self.messages.extend(messages)
        if self.waiting:
            self.wake()

    def add_entry(self, entry: ReceivedEntry) -> None:
        """Append an entry that nobody has opened."""
        self.entries.append(entry)
        if self.waiting:
            self.wake()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put messages in front of everything, in order."""
        self.messages.extendleft(reversed(messages))
        if messages and self.waiting:
            self.wake()

    def put_back_entries(self, entries: Sequence[ReceivedEntry]) -> None:
        """Put entries in front of all others, in order."""
        self.entries.extendleft(reversed(entries))
        if entries and self.waiting:
            self.wake()

    def take_back(self, origin: Origin) -> tuple[list[Message], list[ReceivedEntry]]:
        """Remove what waits of one consumer; returns it in order.

        Items leave at the right end, one by one: receivers that take from the left meanwhile get the
        oldest ones, so that what is taken back is exactly the unread rest.
        """
        entries, kept_entries = _split(self.entries, lambda entry: entry.origin is origin)
        messages, kept_messages = _split(self.messages, lambda message: message._entry.origin is origin)
        self.entries.extend(kept_entries)
        self.messages.extend(kept_messages)
        if self.waiting and (kept_entries or kept_messages):
            self.wake()
        return messages, entries


def _split(items: deque[T], belongs: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Empty ``items`` from the right: those that belong, and the others, each in order."""
    taken: list[T] = []
    kept: list[T] = []
    try:
        while True:
            item = items.pop()
            (taken if belongs(item) else kept).append(item)
    except IndexError:
        pass
    taken.reverse()
    kept.reverse()
    return taken, kept
