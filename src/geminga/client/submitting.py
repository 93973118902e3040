"""Taking in: from the handover to the partitions, on the loop's thread.

What was handed over is given to the partitions in its order, many at a time where nothing has to be looked at
one by one. A message that finds no permit or no bytes stands in line, and none that wants the same passes it.
"""

from __future__ import annotations

import logging
import time
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any

from geminga.client import forks
from geminga.client.completions import fail_completion
from geminga.client.permit_wait_queue import PermitWaitQueue
from geminga.client.send_credits import SendCredits
from geminga.client.submit_queue import OptimisticSend, QueuedSend, QueuedWork, SubmitQueue, WaitingSend
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.batching import Batch
from geminga.producer.message import KeyedMessage
from geminga.producer.partition import PartitionProducer
from geminga.producer.partitioned import PartitionedProducer
from geminga.producer.unbatched_run import KEY_SIZE_MAX

logger = logging.getLogger("geminga.producer")


class SubmitWorker:
    """Of one producer. ``line`` are those who wait."""

    def __init__(self, state: PartitionedProducer, submit_queue: SubmitQueue, room: SendCredits) -> None:
        self.line = PermitWaitQueue(self._add, self._place_of)
        self._state = state
        self._submit_queue = submit_queue
        self._room = room
        self._failures: list[tuple[Any, Exception]] = []
        """Tokens of messages that were handed over and refused, not told yet."""

    def take_in(self) -> None:
        """Give everything that was handed over by now to the partitions, in order."""
        items, tokens = self._submit_queue.take()
        if not items:
            return
        kinds = set(map(type, items))
        state, keyed = self._state, KeyedMessage in kinds
        if kinds != {bytes}:
            if keyed and (state.takes_singles or state.joins_by_the_run):
                if kinds == {KeyedMessage} and max(map(len, map(_key_of, items))) <= KEY_SIZE_MAX:
                    self._take_plain(items, tokens)  # none needs a look of its own
                    return
                self._take_runs(items, tokens, map(_is_rich, items))
                return
            self._take_runs(items, tokens, map(is_not, map(type, items), repeat(bytes)))
            return
        self._take_plain(items, tokens)

    def _take_runs(self, items: list[Any], tokens: list[Any], rich: Any) -> None:
        """What needs no look of its own many at a time; the others are ``rich``."""
        start = 0
        for index in list(compress(range(len(items)), rich)):
            self._take_plain(items[start:index], tokens[start:index])
            self._take_rich(items[index], tokens[index])
            start = index + 1
        self._take_plain(items[start:], tokens[start:])

    def take_now(self, handed: QueuedSend) -> None:
        """A message of the loop's own thread, which does not wait. Raises the refusal; then nothing is
        kept."""
        self.line.check(handed)
        self._add(handed)

    def holds(self, token: Any) -> bool:
        """Whether the message with this token waits here, or for being told."""
        return any(each is token for each, _ in self._failures) or self.line.holds(token)

    def tell_failures(self) -> None:
        """Callbacks are the application's code: not in the middle of our own."""
        failures, self._failures = self._failures, []
        for token, error in failures:
            fail_completion(token, error)
            forks.returned()

    # --- many at a time ---------------------------------------------------------------------------

    def _take_plain(self, items: list[Any], tokens: list[Any]) -> None:
        """Plain messages, some with keys where that makes no difference, fill the open batch or go one by one
        in runs; whatever needs more than that takes the long way."""
        if not items:
            return
        payloads, keys = items, None
        kinds = set(map(type, items))
        if kinds == {KeyedMessage}:
            payloads, keys = list(map(_payload_of, items)), list(map(_key_of, items))
        elif KeyedMessage in kinds:
            payloads = [item if type(item) is bytes else item.payload for item in items]
            keys = ["" if type(item) is bytes else item.partition_key for item in items]
        if self._state.takes_singles:
            self._take_singly(items, payloads, tokens, keys)
        elif keys is None:
            self._take_bare(payloads, tokens)
        else:
            self._take_keyed(items, payloads, tokens)
        if self._state.memory.limited:
            self._room.note_sizes(payloads)

    def _take_singly(
        self, items: list[Any], payloads: list[bytes], tokens: list[Any], keys: list[str] | None
    ) -> None:
        """Messages that go one by one, in runs."""
        state, line = self._state, self.line
        now = time.monotonic()
        index, count = 0, len(payloads)
        while index < count:
            if not line:  # none may pass one that waits
                index = state.add_singles(payloads, tokens, index, now, keys)
            if index < count:
                self._take_one(items[index], tokens[index])
                index += 1

    def _take_bare(self, payloads: list[bytes], tokens: list[Any]) -> None:
        """Messages without keys join the open batch."""
        state, line = self._state, self.line
        index, count = 0, len(payloads)
        while index < count:
            if not line:  # none may pass one that waits
                batch = state.hot
                end = min(count, index + batch.last - len(batch.payloads))
                if end > index:
                    part = payloads[index:end]
                    size = batch.size + sum(map(len, part))
                    if size < batch.size_limit:
                        batch.payloads += part
                        batch.tokens += tokens[index:end]
                        batch.size = size
                        index = end
                        continue
                    index = self._fill(batch, payloads, tokens, index)
            if index < count:
                self._take_one(payloads[index], tokens[index])
                index += 1

    @staticmethod
    def _fill(batch: Batch, payloads: list[bytes], tokens: list[Any], index: int) -> int:
        """Append as long as the batch's bytes allow; returns the first index that did not fit."""
        size, limit = batch.size, batch.size_limit
        while size + len(payloads[index]) < limit:
            size += len(payloads[index])
            batch.payloads.append(payloads[index])
            batch.tokens.append(tokens[index])
            index += 1
        batch.size = size
        return index

    def _take_keyed(self, items: list[Any], payloads: list[bytes], tokens: list[Any]) -> None:
        """Messages of which some have keys join the open batch of the only partition."""
        (partition,) = self._state.partitions
        index, count = 0, len(items)
        while index < count:
            batch = partition.batch
            if not self.line and type(batch) is Batch and batch.takes_keyed:
                end = min(count, index + batch.last - len(batch.payloads))
                part = payloads[index:end]
                if end > index and batch.size + sum(map(len, part)) < batch.size_limit:
                    batch.append_keyed(items[index:end], part, tokens[index:end])
                    index = end
                    continue
            self._take_one(items[index], tokens[index])
            index += 1

    # --- one by one -------------------------------------------------------------------------------

    def _take_rich(self, item: Any, token: Any) -> None:
        if isinstance(item, WaitingSend):
            self.line.answer(item)
        elif isinstance(item, QueuedSend):
            self._take(item)
        elif isinstance(item, QueuedWork):
            self._do(item)
        elif self.line or not self._state.join(item.payload, token, item):
            self._take_one(item, token)

    def _take_one(self, item: Any, token: Any) -> None:
        """Bytes, or a message with a key."""
        if type(item) is bytes:
            self._take(QueuedSend(item, token, None, None, False))
        else:
            self._take(QueuedSend(item.payload, token, item, None, False))

    def _take(self, handed: QueuedSend) -> None:
        """A message whose sender went on."""
        try:
            if not self.line:
                self._add(handed)
                return
        except (ProducerQueueIsFull, MemoryBufferIsFull):
            pass
        except Exception as error:
            self._fail_later(handed.token, error)
            return
        self.line.answer(OptimisticSend(handed, self._fail_later))

    def _fail_later(self, token: Any, error: Exception) -> None:
        self._failures.append((token, error))

    def _do(self, work: QueuedWork) -> None:
        try:
            work.run()
        except Exception:
            logger.exception("%s: unexpected error", self._state.topic)

    def _add(self, handed: QueuedSend) -> None:
        """Raises the refusal; nothing is kept then."""
        state = self._state
        message, partition, urgent = handed.message, handed.partition, handed.urgent
        if (
            message is not None
            and not urgent
            and state.join(handed.payload, handed.token, message, partition)
        ):
            return
        state.add(handed.payload, handed.token, message, time.monotonic(), partition=partition, urgent=urgent)

    def _place_of(self, handed: QueuedSend) -> PartitionProducer | None:
        """Where a message will go; None for wherever there is room.

        Where nothing is stepped over, one that must wait does so for the partition whose turn it was.
        """
        state, message = self._state, handed.message
        if handed.partition is None and not state.router.steps_over and not state.router.custom:
            handed.partition = state.choose(message, time.monotonic())
        if handed.partition is None and message is not None and message.partition_key is not None:
            return state.choose(message, 0.0)
        return handed.partition


_key_of = attrgetter("partition_key")
_payload_of = attrgetter("payload")


def _is_rich(item: Any) -> bool:
    """Whether an item needs a look of its own."""
    kind = type(item)
    return kind is not bytes and (kind is not KeyedMessage or len(item.partition_key) > KEY_SIZE_MAX)
