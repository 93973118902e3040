"""Outcome of many messages that were sent in one call, `send_many`.

With one callback for all of them no object is created per message: a whole number stands for each (its index
in the call, above the call's base number), and receipts are stored per batch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from geminga.client.callbacks import callback_raised
from geminga.client.waiter import Waiter
from geminga.errors import SendManyFailed
from geminga.ids import MessageId

logger = logging.getLogger("geminga.producer")

_BITS = 32
_MASK = (1 << _BITS) - 1
_bases = itertools.count(1)
_open: dict[int, Many] = {}
"""Calls with messages that have no outcome yet, by their number."""


class ManySent:
    """Outcome of the messages of one `send_many`; ``len`` is their number.

    ``failures`` maps the index in ``values`` to the error of each message that was refused or failed. All
    others are stored.
    """

    def __init__(self, count: int, failures: dict[int, Exception], spans: list[_Span]) -> None:
        self.failures = failures
        self._count = count
        self._spans = spans

    def __len__(self) -> int:
        return self._count

    @property
    def ok(self) -> bool:
        """Whether every message is stored."""
        return not self.failures

    @property
    def message_ids(self) -> list[MessageId | None]:
        """The id of each message, in the order of the call; None for a failed one."""
        ids: list[MessageId | None] = [None] * self._count
        for span in self._spans:
            ids[span.start : span.start + span.count] = span.message_ids()
        return ids

    def check(self) -> None:
        """Raise `SendManyFailed` if a message failed."""
        if self.failures:
            raise SendManyFailed(self._count, self.failures)

    def __repr__(self) -> str:
        return f"<ManySent {self._count} messages, {len(self.failures)} failed>"


class _Span:
    """Consecutive messages of the call that were stored by one receipt, or by one run of receipts."""

    __slots__ = ("batch_index", "batch_size", "count", "entry_ids", "ledger_id", "partition", "start")

    def __init__(
        self,
        start: int,
        count: int,
        partition: int,
        ledger_id: int,
        entry_ids: Sequence[int],
        batch_index: int,
        batch_size: int,
    ) -> None:
        self.start = start
        self.count = count
        self.partition = partition
        self.ledger_id = ledger_id
        self.entry_ids = entry_ids
        self.batch_index = batch_index
        self.batch_size = batch_size

    def message_ids(self) -> Iterator[MessageId]:
        for offset in range(self.count):
            batched = self.batch_size > 0
            entry_id = self.entry_ids[0 if batched else offset]
            index = self.batch_index + offset if batched else -1
            yield MessageId(self.partition, self.ledger_id, entry_id, index, batch_size=self.batch_size)


class _One:
    """A `_Span` of one message with a ready id."""

    __slots__ = ("_message_id", "start")

    count = 1

    def __init__(self, start: int, message_id: MessageId) -> None:
        self.start = start
        self._message_id = message_id

    def message_ids(self) -> Iterator[MessageId]:
        yield self._message_id


class Many:
    """One call with one callback: ``done(ManySent)`` is called once, when every message has its outcome.

    ``tokens`` are whole numbers, one per message. Used on the loop's thread only, except the constructor.
    """

    def __init__(self, count: int, done: Callable[[ManySent], object]) -> None:
        number = next(_bases)
        self._base = number << _BITS
        self._number = number
        self._count = count
        self._left = count
        self._done = done
        self._failures: dict[int, Exception] = {}
        self._spans: list[Any] = []

    def open(self) -> None:
        """Register the call; its messages are submitted next."""
        _open[self._number] = self

    @property
    def tokens(self) -> list[Any]:
        return list(range(self._base, self._base + self._count))

    def behind(self, token: int) -> int:
        """Return the number of messages from this one to the last."""
        return self._count - (token & _MASK)

    def stored(
        self,
        token: int,
        count: int,
        partition: int,
        ledger_id: int,
        entry_ids: Sequence[int],
        batch_index: int,
        batch_size: int,
    ) -> None:
        """Note that ``count`` messages from ``token`` on are stored; a batch has one entry id, single
        messages one each."""
        start = token & _MASK
        self._spans.append(_Span(start, count, partition, ledger_id, entry_ids, batch_index, batch_size))
        self._settle(count)

    def stored_one(self, token: int, message_id: MessageId) -> None:
        self._spans.append(_One(token & _MASK, message_id))
        self._settle(1)

    def failed(self, token: int, error: Exception) -> None:
        self._failures[token & _MASK] = error
        self._settle(1)

    def has_outcome(self, index: int) -> bool:
        spans = self._spans
        return index in self._failures or any(s.start <= index < s.start + s.count for s in spans)

    def finish_empty(self) -> None:
        """Finish a call without messages."""
        self._settle(0)

    def _settle(self, count: int) -> None:
        self._left -= count
        if self._left:
            return
        del _open[self._number]
        try:
            self._done(ManySent(self._count, dict(sorted(self._failures.items())), self._spans))
        except BaseException as error:
            callback_raised(error)


def many_of(token: int) -> Many:
    """Return the call that a token belongs to. Raises `TypeError` for a number that the application passed as
    a callback."""
    many = _open.get(token >> _BITS)
    if many is None:
        raise TypeError(f"the callback of a message is {token}, which cannot be called")
    return many


def stored_together(
    tokens: list[Any], partition: int, ledger_id: int, entry_ids: Sequence[int], batch_size: int
) -> int:
    """Note the leading messages of ``tokens`` as stored, in their calls; return the index of the first token
    that belongs to no call, or is out of order.

    ``entry_ids`` has one id for all messages of a batch of ``batch_size``; with 0, one for each.
    """
    index, count = 0, len(tokens)
    while index < count:
        first = tokens[index]
        if type(first) is not int:
            break
        many = _open.get(first >> _BITS)
        if many is None:
            break
        length = min(count - index, many.behind(first))
        part = tokens if length == count else tokens[index : index + length]
        if part != list(range(first, first + length)):
            break
        ids = entry_ids if batch_size or length == count else entry_ids[index : index + length]
        many.stored(first, length, partition, ledger_id, ids, index, batch_size)
        index += length
    return index


class ManyWaiter(Waiter):
    """Wait of a thread for all messages of a call."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent: ManySent | None = None

    def done(self, sent: ManySent) -> None:
        self.sent = sent
        self.wake()


def set_outcome(future: asyncio.Future[ManySent], sent: ManySent) -> None:
    if not future.done():
        future.set_result(sent)


__all__ = [
    "Many",
    "ManySent",
    "ManyWaiter",
    "many_of",
    "set_outcome",
    "stored_together",
]
