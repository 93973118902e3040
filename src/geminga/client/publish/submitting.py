"""Distribution of submitted messages to the partitions, on the loop's thread.

Submitted messages are passed to the partitions in order, many at a time where none needs individual handling:
they take their permits and bytes together. A message without a permit or bytes waits in the wait queue, and
no later one for the same resource overtakes it.
"""

import logging
import time
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from geminga.client.publish.completions import fail_completion
from geminga.client.publish.permit_wait_queue import TABLES, PermitWaitQueue, Queued, Target
from geminga.client.publish.submit_queue import (
    QueuedOperation,
    QueuedSend,
    QueuedWork,
    SubmitQueue,
    TransactionRows,
    WaitingSend,
)
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.message import BoundMessage, RichMessage, SimpleMessage, bound_to, note_refusal
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.transactions import TransactionCore

logger = logging.getLogger("geminga.producer")

_SIMPLE = frozenset((bytes, SimpleMessage, RichMessage))


class SubmitWorker:
    """Worker of one producer. ``wait_queue`` holds messages that wait; ``largest`` the size of the largest
    payload so far."""

    def __init__(self, state: PartitionedProducer, submit_queue: SubmitQueue) -> None:
        self.wait_queue = PermitWaitQueue(self._add, self._target_of, self._fail_later)
        self.largest = 0
        self._state = state
        self._submit_queue = submit_queue
        self.failures: list[tuple[Any, Exception]] = []
        """Refused messages to be notified: token and error."""

    def take_in(self) -> None:
        """Pass all messages submitted so far to the partitions, in order."""
        items, tokens = self._submit_queue.take()
        if not items:
            return
        if len(items) == 1 and type(items[0]) is bytes:
            self._take_many(items, tokens, None, None)  # a lone message, whose sender probably waits
            return
        if set(map(type, items)) <= _SIMPLE:
            self._take_simple(items, tokens)
            return
        start = index = 0
        works: list[QueuedWork] = []
        while index < len(items):
            item = items[index]
            kind = type(item)
            index += 1
            if kind in _SIMPLE:
                continue
            self._take_simple(items[start : index - 1], tokens[start : index - 1])
            start = index
            if kind is TransactionRows:
                index += item.count
                if item.count > 1:
                    self._take_simple(items[start:index], tokens[start:index], item.transaction)
                else:  # single messages, each behind the same mark
                    while index < len(items) and items[index] is item:
                        index += 2
                    self._take_simple(items[start:index:2], tokens[start:index:2], item.transaction)
            elif kind is BoundMessage:
                start -= 1
                while index < len(items) and _is_of(items[index], item.transaction):
                    index += 1
                self._take_simple(items[start:index], tokens[start:index], item.transaction)
            elif isinstance(item, QueuedWork):
                works.append(item)
            else:
                self._take_item(item, tokens[start - 1])
            start = index
        self._take_simple(items[start:], tokens[start:])
        for work in works:  # last: the application's code in it may send messages, which come after these
            try:
                work.run()
            except Exception:
                logger.exception("%s: unexpected error", self._state.topic)

    def take_now(self, send: QueuedSend) -> None:
        """Accept a message of the loop's own thread, which does not wait. Raises the refusal and keeps
        nothing then."""
        self.wait_queue.check(send)
        self._add(send)

    def holds(self, token: Any) -> bool:
        """Return whether the message with this token waits here, or for its notification."""
        return any(each is token for each, _ in self.failures) or self.wait_queue.holds(token)

    def run_failures(self) -> None:
        """Complete the refused messages. Their callbacks are application code, so this runs outside of other
        work."""
        failures, self.failures = self.failures, []
        for token, error in failures:
            fail_completion(token, error)

    # --- many at a time ---------------------------------------------------------------------------

    def _take_simple(
        self, items: list[Any], tokens: list[Any], transaction: TransactionCore | None = None
    ) -> None:
        """Add bytes and simple messages, all of ``transaction``."""
        if not items:
            return
        if set(map(type, items)) == {bytes}:
            self._take_many(items, tokens, None, None, transaction)
        elif len(self._state.partitions) == 1 or self._state.sends_runs:
            self._take_mixed(items, tokens, None, transaction)
        else:
            for partition, theirs, of_them in self._by_partition(items, tokens):
                self._take_mixed(theirs, of_them, partition, transaction)

    def _take_mixed(
        self,
        items: list[Any],
        tokens: list[Any],
        partition: PartitionProducer | None,
        transaction: TransactionCore | None,
    ) -> None:
        messages = items
        if bytes in set(map(type, items)):
            messages = [None if type(item) is bytes else item for item in items]
            payloads = [item if type(item) is bytes else item.payload for item in items]
        else:
            payloads = list(map(_payload_of, items))
        self._take_many(payloads, tokens, messages, partition, transaction)

    def _by_partition(
        self, items: list[Any], tokens: list[Any]
    ) -> Iterator[tuple[PartitionProducer | None, list[Any], list[Any]]]:
        """Yield consecutive messages without keys together, and those with keys by their partitions."""
        state, start = self._state, 0
        of_key, count = state.router.of_key, len(state.partitions)
        for keyed, group in groupby(items, _has_key):
            theirs = list(group)
            of_them = tokens[start : start + len(theirs)]
            start += len(theirs)
            if not keyed:
                yield None, theirs, of_them
                continue
            found: dict[int, tuple[list[Any], list[Any]]] = {}
            for item, token in zip(theirs, of_them, strict=True):
                both = found.setdefault(of_key(item.partition_key, count), ([], []))
                both[0].append(item)
                both[1].append(token)
            for index, (chosen, whose) in found.items():
                yield state.partitions[index], chosen, whose

    def _take_many(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[Any] | None,
        partition: PartitionProducer | None,
        transaction: TransactionCore | None = None,
    ) -> None:
        """Add simple messages of ``partition``; None: of any, or of the only one."""
        state, wait_queue = self._state, self.wait_queue
        now = time.monotonic()
        index, count = 0, len(payloads)
        while index < count:
            if not wait_queue.queues:  # none may overtake a waiting one
                index += state.add_many(payloads, tokens, messages, index, now, partition, transaction)
            if index < count:
                payload, message = payloads[index], None if messages is None else messages[index]
                self._take(QueuedSend(payload, tokens[index], bound_to(transaction, payload, message)))
                index += 1
        if state.memory.limited:
            self.largest = max(self.largest, max(map(len, payloads)))

    # --- one by one -------------------------------------------------------------------------------

    def _take_item(self, item: Any, token: Any) -> None:
        if isinstance(item, (WaitingSend, QueuedOperation)):
            self.wait_queue.answer(item)
        elif isinstance(item, QueuedSend):
            self._take(item)
        else:
            self._take(QueuedSend(item.payload, token, item))

    def _take(self, send: QueuedSend) -> None:
        """Accept a message whose send call has returned."""
        if self.wait_queue.queues:
            self.wait_queue.answer(send)
            return
        try:
            self._add(send)
        except (ProducerQueueIsFull, MemoryBufferIsFull):
            self.wait_queue.answer(send)
        except Exception as error:
            self._fail_later(send, error)

    def _fail_later(self, queued: Queued, error: Exception) -> None:
        note_refusal(queued.message, error)
        self.failures.append((queued.token, error))

    def _add(self, queued: Queued) -> None:
        """Add a message to its partition. Raises the refusal and keeps nothing then."""
        if isinstance(queued, QueuedOperation):
            if self.wait_queue.accepted():
                raise ProducerQueueIsFull("earlier messages wait for permits")
            queued.add()
            return
        self._state.add(
            queued.payload,
            queued.token,
            queued.message,
            time.monotonic(),
            partition=queued.partition,
            urgent=queued.urgent,
        )

    def _target_of(self, queued: Queued) -> Target:
        """Return the partition of a message; None for any with permits.

        If full partitions are not skipped, a message that must wait does so for the next partition in turn.
        """
        if isinstance(queued, QueuedOperation):
            return TABLES
        state, message = self._state, queued.message
        if len(state.partitions) == 1:
            return state.partitions[0]
        if queued.partition is None and not state.router.steps_over and not state.router.custom:
            queued.partition = state.choose(message, time.monotonic())
        if queued.partition is None and message is not None and message.partition_key is not None:
            return state.choose(message, 0.0)
        return queued.partition


_payload_of = attrgetter("payload")


def _is_of(item: Any, transaction: TransactionCore | None) -> bool:
    return type(item) is BoundMessage and item.transaction is transaction


def _has_key(item: Any) -> bool:
    return type(item) is not bytes and item.partition_key is not None
