"""Outcome of many messages that were sent in one call, `send_many`.

With one callback for all of them no object is created per message: a whole number stands for each (its index
in the call, above the call's base number), and receipts are stored per batch.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from geminga.client.io.callbacks import callback_raised
from geminga.client.io.waiter import Waiter
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
        for start, count, make in self._spans:
            ids[start : start + count] = make()
        return ids

    def check(self) -> None:
        """Raise `SendManyFailed` if a message failed."""
        if self.failures:
            raise SendManyFailed(self._count, self.failures)

    def __repr__(self) -> str:
        return f"<ManySent {self._count} messages, {len(self.failures)} failed>"


_Span = tuple[int, int, Callable[[], Iterable[MessageId]]]
"""Consecutive messages of the call: index of the first, their number, and a function that makes their ids."""


def _ids_of(
    count: int, partition: int, ledger_id: int, entry_ids: Sequence[int], batch_index: int, batch_size: int
) -> Iterator[MessageId]:
    """Yield the ids of messages that were stored by one receipt, or by one run of receipts."""
    for offset in range(count):
        batched = batch_size > 0
        entry_id = entry_ids[0 if batched else offset]
        index = batch_index + offset if batched else -1
        yield MessageId(partition, ledger_id, entry_id, index, batch_size=batch_size)


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
        self._spans: list[_Span] = []

    def open(self) -> None:
        """Register the call; its messages are submitted next."""
        _open[self._number] = self

    @property
    def tokens(self) -> list[Any]:
        return list(range(self._base, self._base + self._count))

    def behind(self, token: int) -> int:
        """Return the number of messages from this one to the last."""
        return self._count - (token & _MASK)

    def stored(self, token: int, count: int, make_ids: Callable[[], Iterable[MessageId]]) -> None:
        """Note that ``count`` messages from ``token`` on are stored."""
        self._spans.append((token & _MASK, count, make_ids))
        self._settle(count)

    def failed(self, token: int, error: Exception) -> None:
        self._failures[token & _MASK] = error
        self._settle(1)

    def has_outcome(self, index: int) -> bool:
        return index in self._failures or any(s <= index < s + count for s, count, _ in self._spans)

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
        make_ids = partial(_ids_of, length, partition, ledger_id, ids, index, batch_size)
        many.stored(first, length, make_ids)
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
