"""Entries of all topics that were passed to the store and are not confirmed yet.

The store reports in the order of the calls, for all ledgers: so one queue serves all topics, and idle topics
have none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Protocol

from geminga.broker.topics.producer import Producer
from geminga.errors import StoreError


class DedupRecord(Enum):
    """Action of deduplication on an entry."""

    NONE = "none"
    """Nothing is recorded."""
    SEQUENCE_ID = "sequence id"
    """Its sequence id is recorded when the entry is durable."""
    DUPLICATE = "duplicate"
    """It is not stored; its receipt waits for those of earlier entries."""
    ANSWERED = "answered"
    """It was refused, or its duplicate receipt was sent."""


_DUPLICATE: Final = DedupRecord.DUPLICATE


class StoringTopic(Protocol):
    """Interface of a topic for reports of the store."""

    def entry_settled(
        self,
        error: StoreError | None,
        producer: Producer,
        sequence_id: int,
        highest: int,
        record: DedupRecord,
        offset: int,
        size: int,
    ) -> None:
        """Handle the report on the topic's oldest pending entry. Must not raise: others wait behind it."""

    def run_settled(
        self,
        error: StoreError | None,
        producer: Producer,
        sequence_ids: Sequence[int],
        offset: int,
        size: int,
    ) -> None:
        """Handle the report on a run of consecutive entries, the first at ``offset``. Must not raise."""


UnderWay = tuple[StoringTopic, Producer, Any, int, DedupRecord, int, int]
"""``(topic, producer, sequence_id, highest, record, offset, size)``; for a run, its sequence ids.

A plain tuple: a class would cost 6 % of the core's time per message.
"""


class PendingAdds:
    """Queue of pending entries. ``reported`` is passed to the store as ``done`` of every entry.

    ``run_reported`` is passed for every run (`geminga.wire.send_runs`), which is one item of the queue.
    """

    __slots__ = ("_queue", "append", "reported", "run_reported")

    def __init__(self) -> None:
        self._queue: deque[UnderWay] = deque()
        self.append = self._queue.append
        self.reported = self._reported
        self.run_reported = self._run_reported

    def take_back(self) -> None:
        """Remove the last entry, which the store refused."""
        self._queue.pop()

    def _reported(self, error: StoreError | None) -> None:
        queue = self._queue
        topic, producer, sequence_id, highest, record, offset, size = queue.popleft()
        topic.entry_settled(error, producer, sequence_id, highest, record, offset, size)
        self._answer_duplicates()

    def _run_reported(self, error: StoreError | None) -> None:
        topic, producer, sequence_ids, _, _, offset, size = self._queue.popleft()
        topic.run_settled(error, producer, sequence_ids, offset, size)
        self._answer_duplicates()

    def _answer_duplicates(self) -> None:
        """Send receipts of duplicates after that of the entry before them."""
        queue = self._queue
        while queue and queue[0][4] is _DUPLICATE:
            _, producer, sequence_id, highest, _, _, _ = queue.popleft()
            producer.receipt(sequence_id, highest, -1, -1)
