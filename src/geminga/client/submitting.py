"""Distribution of submitted messages to the partitions, on the loop's thread.

Submitted messages are passed to the partitions in order, many at a time where none needs individual handling.
A message without a permit or bytes waits in the wait queue, and no later one for the same resource overtakes
it.
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
    """Worker of one producer. ``line`` is the queue of waiting senders."""

    def __init__(self, state: PartitionedProducer, submit_queue: SubmitQueue, credits: SendCredits) -> None:
        self.line = PermitWaitQueue(self._add, self._target_of)
        self._state = state
        self._submit_queue = submit_queue
        self._credits = credits
        self._failures: list[tuple[Any, Exception]] = []
        """Refused messages to be notified: token and error."""

    def take_in(self) -> None:
        """Pass all messages submitted so far to the partitions, in order."""
        items, tokens = self._submit_queue.take()
        if not items:
            return
        kinds = set(map(type, items))
        state, keyed = self._state, KeyedMessage in kinds
        if kinds != {bytes}:
            if keyed and (state.takes_singles or state.joins_by_the_run):
                if kinds == {KeyedMessage} and max(map(len, map(_key_of, items))) <= KEY_SIZE_MAX:
                    self._take_plain(items, tokens)  # none needs individual handling
                    return
                self._take_runs(items, tokens, map(_is_rich, items))
                return
            self._take_runs(items, tokens, map(is_not, map(type, items), repeat(bytes)))
            return
        self._take_plain(items, tokens)

    def _take_runs(self, items: list[Any], tokens: list[Any], rich: Any) -> None:
        """Pass on plain items many at a time, and ``rich`` ones individually."""
        start = 0
        for index in list(compress(range(len(items)), rich)):
            self._take_plain(items[start:index], tokens[start:index])
            self._take_rich(items[index], tokens[index])
            start = index + 1
        self._take_plain(items[start:], tokens[start:])

    def take_now(self, send: QueuedSend) -> None:
        """Accept a message of the loop's own thread, which does not wait. Raises the refusal and keeps
        nothing then."""
        self.line.check(send)
        self._add(send)

    def holds(self, token: Any) -> bool:
        """Return whether the message with this token waits here, or for its notification."""
        return any(each is token for each, _ in self._failures) or self.line.holds(token)

    def run_failures(self) -> None:
        """Complete the refused messages. Their callbacks are application code, so this runs outside of other
        work."""
        failures, self._failures = self._failures, []
        for token, error in failures:
            fail_completion(token, error)
            forks.returned()

    # --- many at a time ---------------------------------------------------------------------------

    def _take_plain(self, items: list[Any], tokens: list[Any]) -> None:
        """Add plain messages, some with keys if those make no difference, to the open batch, or send them
        unbatched in runs; handle others individually."""
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
            self._credits.note_sizes(payloads)

    def _take_singly(
        self, items: list[Any], payloads: list[bytes], tokens: list[Any], keys: list[str] | None
    ) -> None:
        """Send messages unbatched, in runs."""
        state, line = self._state, self.line
        now = time.monotonic()
        index, count = 0, len(payloads)
        while index < count:
            if not line:  # none may overtake a waiting one
                index = state.add_singles(payloads, tokens, index, now, keys)
            if index < count:
                self._take_one(items[index], tokens[index])
                index += 1

    def _take_bare(self, payloads: list[bytes], tokens: list[Any]) -> None:
        """Add messages without keys to the open batch."""
        state, line = self._state, self.line
        index, count = 0, len(payloads)
        while index < count:
            if not line:  # none may overtake a waiting one
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
        """Append while the batch's bytes allow; return the first index that did not fit."""
        size, limit = batch.size, batch.size_limit
        while size + len(payloads[index]) < limit:
            size += len(payloads[index])
            batch.payloads.append(payloads[index])
            batch.tokens.append(tokens[index])
            index += 1
        batch.size = size
        return index

    def _take_keyed(self, items: list[Any], payloads: list[bytes], tokens: list[Any]) -> None:
        """Add messages of which some have keys to the open batch of the only partition."""
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
        """Handle bytes, or a message with a key."""
        if type(item) is bytes:
            self._take(QueuedSend(item, token, None, None, False))
        else:
            self._take(QueuedSend(item.payload, token, item, None, False))

    def _take(self, send: QueuedSend) -> None:
        """Accept a message whose send call has returned."""
        try:
            if not self.line:
                self._add(send)
                return
        except (ProducerQueueIsFull, MemoryBufferIsFull):
            pass
        except Exception as error:
            self._fail_later(send.token, error)
            return
        self.line.answer(OptimisticSend(send, self._fail_later))

    def _fail_later(self, token: Any, error: Exception) -> None:
        self._failures.append((token, error))

    def _do(self, work: QueuedWork) -> None:
        try:
            work.run()
        except Exception:
            logger.exception("%s: unexpected error", self._state.topic)

    def _add(self, send: QueuedSend) -> None:
        """Add a message to its partition. Raises the refusal and keeps nothing then."""
        state = self._state
        message, partition, urgent = send.message, send.partition, send.urgent
        if message is not None and not urgent and state.join(send.payload, send.token, message, partition):
            return
        state.add(send.payload, send.token, message, time.monotonic(), partition=partition, urgent=urgent)

    def _target_of(self, send: QueuedSend) -> PartitionProducer | None:
        """Return the partition of a message; None for any with permits.

        If full partitions are not skipped, a message that must wait does so for the next partition in turn.
        """
        state, message = self._state, send.message
        if send.partition is None and not state.router.steps_over and not state.router.custom:
            send.partition = state.choose(message, time.monotonic())
        if send.partition is None and message is not None and message.partition_key is not None:
            return state.choose(message, 0.0)
        return send.partition


_key_of = attrgetter("partition_key")
_payload_of = attrgetter("payload")


def _is_rich(item: Any) -> bool:
    """Return whether an item needs individual handling."""
    kind = type(item)
    return kind is not bytes and (kind is not KeyedMessage or len(item.partition_key) > KEY_SIZE_MAX)
