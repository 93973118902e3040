"""Many messages in one call: the implementation of `send_many`.

Plain messages are submitted in large pieces, each by one atomic step (`SubmitQueue.offer_many`). With one
callback for all of them no object is created per message: a whole number stands for each (its index in the
call, above the call's base number), and receipts are stored per batch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from geminga.client.callbacks import callback_raised
from geminga.client.waiter import Waiter
from geminga.errors import (
    AlreadyClosed,
    InvalidConfiguration,
    InvalidMessage,
    MessageTooBig,
    PulsarException,
    SendManyFailed,
)
from geminga.ids import MessageId
from geminga.producer.message import OutgoingMessage, keyed_message

if TYPE_CHECKING:
    from geminga.client.message_building import MessageBuilder
    from geminga.client.publisher import Publisher

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


def fail(token: Any, error: Exception) -> None:
    from geminga.client.completions import fail_completion

    fail_completion(token, error)


class Rows:
    """The messages of one call, checked and ready to be submitted.

    ``done`` messages are submitted or refused. ``callbacks``: one for each, or None.
    """

    def __init__(
        self,
        publisher: Publisher,
        builder: MessageBuilder,
        values: Sequence[Any],
        keys: Sequence[str | None] | None,
        properties: Any,
        callbacks: Sequence[Any] | None,
        done: Callable[[ManySent], object] | None,
    ) -> None:
        publisher.check_process()
        # Copy the arguments once and use only the copies: another thread may still extend them.
        values = _row("values", values)
        keys = None if keys is None else _row("keys", keys)
        callbacks = None if callbacks is None else _row("callback", callbacks)
        count = len(values)
        for name, given in (("keys", keys), ("callback", callbacks)):
            if given is not None and len(given) != count:
                raise InvalidConfiguration(
                    f"{name} has {len(given)} items for {count} values; allowed: one for each"
                )
        of_each = None
        if properties is not None and not isinstance(properties, dict):
            of_each = _row("properties", properties)
        if of_each is not None and len(of_each) != count:
            raise InvalidConfiguration(
                f"properties has {len(of_each)} items for {count} values; allowed: a dict for all, or one "
                "for each"
            )
        for index, each in enumerate(callbacks or ()):
            if each is not None and not callable(each):
                raise TypeError(f"callback[{index}] must be callable or None, not {type(each).__name__}")
        self._publisher = publisher
        self.done = 0
        self.payloads: list[bytes]
        self.items: list[Any] | None = None
        """Items to submit, if these are not the payloads: keyed messages."""
        self.messages: list[OutgoingMessage | None] | None = None
        self._many: Many | None = None
        plain = keys is None and properties is None and builder.takes_plain
        if plain and set(map(type, values)) <= {bytes}:
            self.payloads = values
        elif (
            keys is not None
            and properties is None
            and builder.takes_plain
            and publisher.takes_keys_plainly
            and set(map(type, values)) <= {bytes}
            and _are_plain(keys)
        ):
            builder.note_keys()
            self.payloads = values
            self.items = [
                value if key is None else keyed_message(value, key)
                for value, key in zip(values, keys, strict=True)
            ]
        else:
            # Raise for invalid messages before any is sent.
            self.payloads, self.messages = [], []
            prepared = builder.prepare_many(values, keys, properties if of_each is None else of_each)
            try:
                for payload, message in prepared:
                    self.payloads.append(payload)
                    self.messages.append(message)
            except (InvalidMessage, TypeError) as error:
                where = f"values[{len(self.payloads)}], with its key and its properties"
                kind = InvalidMessage if isinstance(error, InvalidMessage) else TypeError
                raise kind(f"{where}: {error}") from error
        self.tokens: list[Any]
        if done is not None:
            self._many = Many(count, done)
            self.tokens = self._many.tokens
        else:
            self.tokens = [None] * count if callbacks is None else callbacks
        if builder.interceptors:
            assert self.messages is not None
            for index, message in enumerate(self.messages):
                assert message is not None
                self.tokens[index] = builder.intercepted(message, self.tokens[index])
        self._begun = False

    def begin(self) -> None:
        """Start submitting. From here on every message gets an outcome, even if the caller is interrupted;
        see `give_up`."""
        if self._many is not None:
            self._many.open()
        self._begun = True
        if not self.payloads and self._many is not None:
            self._on_loop(self._many.finish_empty)

    def offer(self) -> bool:
        """Submit the messages that need no permit check; return True if those were all. May run on any
        thread."""
        count = len(self.payloads)
        if self.messages is None and self._publisher.state.plain_path:
            self._publisher.submit_queue.offer_many(self)
        return self.done >= count

    def next(self) -> tuple[bytes, Any, OutgoingMessage | None]:
        """Return the first message that was not submitted."""
        index = self.done
        message = None if self.messages is None else self.messages[index]
        if self.items is not None and type(self.items[index]) is not bytes:
            message = self.items[index]
        return self.payloads[index], self.tokens[index], message

    def refuse(self, error: Exception) -> None:
        """Refuse the first message that was not submitted; and all after it, unless only this one is at
        fault: a later message must not be sent without the earlier ones."""
        alone = isinstance(error, (MessageTooBig, InvalidMessage))
        start, end = self.done, self.done + 1 if alone else len(self.payloads)
        self.done = end
        tokens = self.tokens[start:end]

        def notify() -> None:
            raised: BaseException | None = None
            for token in tokens:
                try:
                    fail(token, error)
                except BaseException as end:  # the end of the program: raised when all are notified
                    raised = raised or end
            if raised is not None:
                raise raised

        self._on_loop(notify)

    def _on_loop(self, run: Callable[[], None]) -> None:
        """Run a function on the loop, where callbacks of receipts run too."""
        try:
            self._publisher.work(run, run)
        except PulsarException:  # the loop has ended and every caller was notified
            run()

    def give_up(self, error: BaseException) -> None:
        """Fail the remaining messages after the caller was interrupted or cancelled; submitted ones are sent.

        Only the loop knows whether the message being submitted just then was accepted.
        """
        if not self._begun or self.done >= len(self.payloads):
            return
        reason = AlreadyClosed(f"the call of send_many ended before: {type(error).__name__}")
        reason.__cause__ = error
        publisher, many, token, index = self._publisher, self._many, self.tokens[self.done], self.done
        self.done += 1
        if many is not None:

            def fail_if_open() -> None:
                if not many.has_outcome(index) and not publisher.holds(token):
                    fail(token, reason)

            self._on_loop(fail_if_open)
        if self.done < len(self.payloads):
            self.refuse(reason)


def _row(name: str, given: Any) -> list[Any]:
    """Return the items of a list, a tuple or an array in order. Raises `TypeError`."""
    several = hasattr(given, "__len__") and hasattr(given, "__iter__")
    if not several or isinstance(given, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise TypeError(f"{name} must be a list, with one for each message, not {type(given).__name__}")
    return list(given)


def _are_plain(keys: Sequence[str | None]) -> bool:
    """Return whether `is_plain_key` holds for all keys, checked at once."""
    kinds = set(map(type, keys))
    if kinds - {str, type(None)} or "" in keys:
        return False
    return "".join(keys if type(None) not in kinds else filter(None, keys)).isascii()  # type: ignore[arg-type]


class ManyWaiter(Waiter):
    """Wait of a thread for all messages of a call."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        super().__init__()
        self.sent: ManySent | None = None

    def done(self, sent: ManySent) -> None:
        self.sent = sent
        self.wake()


def callbacks_of(callback: Any) -> tuple[Callable[[ManySent], object] | None, Sequence[Any] | None]:
    """Return the callback for all messages, or one for each. Raises `TypeError`."""
    if callback is None or callable(callback):
        return callback, None
    if isinstance(callback, Sequence) and not isinstance(callback, (str, bytes)):
        return None, callback
    raise TypeError(
        f"callback must be callable, a sequence of callables, or None, not {type(callback).__name__}"
    )


def set_outcome(future: asyncio.Future[ManySent], sent: ManySent) -> None:
    if not future.done():
        future.set_result(sent)


__all__ = [
    "Many",
    "ManySent",
    "ManyWaiter",
    "Rows",
    "callbacks_of",
    "many_of",
    "set_outcome",
    "stored_together",
]
