"""Receive queue: messages that arrived and were not yet taken by the application.

Messages are queued as lots: an entry, and an iterator over the indexes of its messages that are not taken, or
a run of unbatched messages, and an iterator over their rows. A message object is created when it is taken, so
that queued messages cost the garbage collector one object per batch. Taking a message is a single atomic
step, ``next`` on the iterator: any thread may do it, without a lock, and no two get the same one. A used-up
lot is removed by the thread that finds it. CPython's own iterators guarantee this under the interpreter lock;
without the lock, the step is the removal from a list (`PopIndexes`).

One thread, the loop's, adds and takes back. The caller decides how a receiver sleeps while the queue is
empty: it makes ``waiting`` true, and ``wake`` is called after messages were added.

``lots`` come before ``entries``: entries are queued whole once a reader of columns has requested them, and
from then on always. Only the loop's thread opens an entry, and puts it in front as a lot.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set, Sized
from contextlib import suppress
from copy import copy
from itertools import chain, groupby, islice, repeat
from math import inf
from operator import itemgetter, length_hint
from typing import TYPE_CHECKING, Any, Self, TypeVar

from geminga.consumer.message import ConsumerOrigin, Message, ReceivedEntry, UnbatchedRun, place_of

if TYPE_CHECKING:
    Lot = tuple[ReceivedEntry | UnbatchedRun, Iterator[Any]]
    """The iterator is one of Python's own over a range or a list, or a `PopIndexes`: ``next`` runs no Python
    code, and its remaining length is available. At its end it stops, or raises `IndexError`."""

    _Map = map[Any]
else:
    _Map = map


T = TypeVar("T")

Taken = tuple[Any, list[Any]]
"""An entry or a run, and the indexes or rows of its messages that left the queue together."""


def _nobody() -> None:
    """Default of `wake`: no receiver sleeps."""


class PopIndexes(_Map):
    """Iterator that gives each index to one thread only, also without the interpreter lock: ``next`` is
    ``list.pop``, in C. `IndexError` at the end."""

    __slots__ = ("_left",)
    _left: list[Any]

    def __new__(cls, indexes: Sequence[Any]) -> Self:
        left = list(reversed(indexes))
        made = super().__new__(cls, list.pop, repeat(left))
        made._left = left
        return made

    def __length_hint__(self) -> int:
        return len(self._left)

    def __copy__(self) -> PopIndexes:
        return PopIndexes(self._left[::-1])


_for_each: Callable[[Sequence[Any]], Iterator[Any]] = iter
"""Creates a lot's iterator. The lock may be enabled later, but never disabled again."""
if hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled():
    _for_each = PopIndexes


class ReceiveQueue:
    """Queue shared by all consumers of a multi-topic consumer; bounded by the permits that they granted."""

    __slots__ = ("_by_origin", "entries", "lots", "waiting", "wake")

    def __init__(self) -> None:
        self.lots: deque[Lot] = deque()
        self.entries: deque[ReceivedEntry] = deque()
        self.waiting: Sized = ()
        """Receivers that sleep until messages are added."""
        self.wake: Callable[[], None] = _nobody
        """Called after messages were added, if a receiver waits."""
        self._by_origin: dict[ConsumerOrigin, list[Lot]] | None = None
        """Lots of each consumer; None after lots were added or dropped. The consumers of many topics, which
        take theirs back one after the other, look through the queue together once."""

    def __len__(self) -> int:
        """Return the number of messages plus that of unopened entries."""
        return self.messages + len(self.entries)

    def __bool__(self) -> bool:
        return self.has_messages or len(self.entries) > 0

    @property
    def messages(self) -> int:
        """Number of messages in lots."""
        return sum(length_hint(indexes) for _, indexes in _copy(self.lots))

    @property
    def has_messages(self) -> bool:
        """Whether a lot has a message."""
        try:
            if length_hint(self.lots[0][1]):
                return True
        except IndexError:
            return False
        return any(length_hint(indexes) for _, indexes in _copy(self.lots))

    def ready(self, count_max: int) -> int:
        """Return ``len``, but no more than ``count_max``."""
        if count_max <= 1:
            return 1 if count_max and self else 0
        count = len(self.entries)
        for _, indexes in _copy(self.lots):
            count += length_hint(indexes)
            if count >= count_max:
                return count_max
        return count

    def held_by_origin(self) -> dict[ConsumerOrigin, tuple[int, int]]:
        """Return the number of queued messages of each consumer, with their bytes."""
        held: dict[ConsumerOrigin, tuple[int, int]] = {}
        lots: Iterator[Taken] = ((entry, rest(copy(indexes))) for entry, indexes in _copy(self.lots))
        for entry, indexes in chain(lots, ((entry, range(entry.count)) for entry in _copy(self.entries))):
            messages, size = held.get(entry.origin, (0, 0))
            held[entry.origin] = messages + len(indexes), size + entry.held_bytes(indexes)
        return held

    # --- the loop's thread ------------------------------------------------------------------------

    def add(self, entry: ReceivedEntry | UnbatchedRun, indexes: Sequence[Any]) -> None:
        """Append messages of an entry, or rows of a run, in order. The index of an entry's only message is
        -1."""
        self._by_origin = None
        self.lots.append((entry, _for_each(indexes)))
        if self.waiting:
            self.wake()

    def add_entry(self, entry: ReceivedEntry) -> None:
        """Append an unopened entry."""
        self.entries.append(entry)
        if self.waiting:
            self.wake()

    def put_in_front(self, entry: ReceivedEntry, indexes: Sequence[int]) -> None:
        """Like `add`, but in front of all other lots."""
        self._by_origin = None
        self.lots.appendleft((entry, _for_each(indexes)))
        if self.waiting:
            self.wake()

    def put_back(self, messages: Sequence[Message[Any]]) -> None:
        """Put messages that were taken in front of all others, in order."""
        self.give_back(messages)
        if messages and self.waiting:
            self.wake()

    def put_back_entries(self, entries: Sequence[ReceivedEntry]) -> None:
        """Put entries in front of all others, in order."""
        self.entries.extendleft(reversed(entries))
        if entries and self.waiting:
            self.wake()

    def take_back(self, origin: ConsumerOrigin) -> tuple[list[Taken], list[ReceivedEntry]]:
        """Remove the queued messages of one consumer; return them in order.

        The consumer's lots are emptied in the queue, also for a thread that holds one, and dropped when lots
        were added or no other consumer has any. Unopened entries are removed from the right, one by one:
        receivers may take the oldest ones from the left meanwhile.
        """
        if not self.lots and not self.entries:
            return [], []
        entries, kept = _split(self.entries, lambda entry: entry.origin is origin)
        self.entries.extend(kept)
        is_kept = self._by_origin is None and self._drop_all_used_up()
        index = self._index()
        taken = [(entry, rest(indexes)) for entry, indexes in index.pop(origin, ())]
        if not index:
            is_kept |= self._drop_all_used_up()
        if self.waiting and (is_kept or kept):
            self.wake()
        return [each for each in taken if each[1]], entries

    def _index(self) -> dict[ConsumerOrigin, list[Lot]]:
        """Return the lots of each consumer. Lots that another thread adds meanwhile may be missing."""
        found = self._by_origin
        if found is None:
            found = self._by_origin = {}
            for lot in _copy(self.lots):
                found.setdefault(lot[0].origin, []).append(lot)
        return found

    def _drop_all_used_up(self) -> bool:
        """Remove all lots that are used up; return whether there are others."""
        _, kept = _split(self.lots, lambda lot: not length_hint(lot[1]))
        self.lots.extend(kept)
        return bool(kept)

    def take_out(
        self, origin: ConsumerOrigin, keys: Set[tuple[int, int]]
    ) -> tuple[list[Taken], list[ReceivedEntry]]:
        """Remove the queued messages of these entries of one consumer; all others keep their order."""
        taken: list[Taken] = []
        for lot in self._index().get(origin, ()):
            entry: Any = lot[0]
            if any(entry.key(index) in keys for index in rest(copy(lot[1]))):
                found = rest(lot[1])
                taken.append((entry, [index for index in found if entry.key(index) in keys]))
                self._replace(lot, [index for index in found if entry.key(index) not in keys])
        entries: list[ReceivedEntry] = []
        for each in _copy(self.entries):
            if each.origin is origin and each.key(-1) in keys:
                with suppress(ValueError):  # a reader has just taken it
                    self.entries.remove(each)
                    entries.append(each)
        return [each for each in taken if each[1]], entries

    def _replace(self, lot: Lot, kept: list[Any]) -> None:
        """Replace the used-up ``lot`` by ``kept``; put it in front if a receiver has removed the lot."""
        place = 0
        with suppress(ValueError):
            place = self.lots.index(lot)
        if kept:
            self.lots.insert(place, (lot[0], _for_each(kept)))
        self.drop(lot)

    # --- any thread -------------------------------------------------------------------------------

    def take(self) -> Message[Any] | None:
        """Return the first message; None if the queue is empty."""
        while True:
            try:
                lot = self.lots[0]
                for index in lot[1]:
                    return Message(lot[0], index)
            except IndexError:
                if not self.drop_used_up():
                    return None
            else:
                self.drop(lot)

    def take_many(self, count_max: int) -> list[Taken]:
        """Return the first messages, at most ``count_max``; other receivers may take some meanwhile."""
        taken: list[Taken] = []
        while count_max > 0 and (count := self.take_lot(taken, count_max)):
            count_max -= count
        return taken

    def take_lot(self, taken: list[Taken], count_max: int, bytes_max: float = inf) -> int:
        """Append messages of the first lot to ``taken``, at most ``count_max``; return their number: 0 if the
        queue is empty, or if the entry or run holds more than ``bytes_max``.

        They are appended before they are taken, so that an interrupt loses none."""
        while True:
            try:
                lot = self.lots[0]
            except IndexError:
                return 0
            if lot[0].total_bytes > bytes_max:
                return 0
            indexes: list[Any] = []
            taken.append((lot[0], indexes))
            with suppress(IndexError):
                indexes.extend(islice(lot[1], count_max))  # keeps the indexes before an error
            if indexes:
                return len(indexes)
            taken.pop()
            self.drop(lot)

    def drop(self, lot: Lot) -> None:
        """Remove a lot that is used up."""
        self._by_origin = None
        try:
            self.lots.remove(lot)
        except ValueError:
            pass  # another receiver did

    def drop_used_up(self) -> bool:
        """`drop` the first lot if it is used up; return whether there was one."""
        try:
            lot = self.lots[0]
        except IndexError:
            return False
        if length_hint(lot[1]):
            return False
        self.drop(lot)
        return True

    def give_back(self, messages: Iterable[Message[Any]]) -> None:
        """Like `put_back`, without waking a receiver."""
        lots: list[Lot] = [
            (entry, _for_each([index for _, index in group]))
            for entry, group in groupby(map(place_of, messages), itemgetter(0))
        ]
        self.lots.extendleft(reversed(lots))
        self._by_origin = None  # afterwards: the loop's thread may look through the queue meanwhile


def rest(indexes: Iterator[Any]) -> list[Any]:
    """Take all remaining indexes or rows."""
    rest: list[Any] = []
    with suppress(IndexError):
        rest.extend(indexes)  # keeps the indexes before an error
    return rest


def _copy(items: deque[T]) -> deque[T]:
    """Return a copy, consistent at one moment."""
    while True:
        try:
            return items.copy()
        except RuntimeError:
            # Another thread modified it meanwhile: in a free-threaded build copying is not atomic, even while
            # the lock is on.
            continue


def _split(items: deque[T], belongs: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Empty ``items`` from the right; return those for which ``belongs`` is true, and the rest, in order."""
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
