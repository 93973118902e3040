"""Entries that were taken in and are not settled, of all topics.

The store reports in the order of the calls, whatever ledger they are for: so one queue serves all topics,
and a topic that nobody publishes to has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Protocol

from geminga.broker.topics.producer import Producer
from geminga.errors import StoreError


class DedupRecord(Enum):
    """What deduplication makes of an entry."""

    NONE = "none"
    """Nothing is kept of it."""
    SEQUENCE_ID = "sequence id"
    """Its sequence id is kept when it is durable."""
    DUPLICATE = "duplicate"
    """It is not stored; its receipt waits behind those of what was sent before it."""
    ANSWERED = "answered"
    """It was refused, or receipted as a duplicate."""


_DUPLICATE: Final = DedupRecord.DUPLICATE


class StoringTopic(Protocol):
    """What is told to a topic."""

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
        """The store reports on the oldest entry of the topic. Must not raise: others wait behind it."""

    def run_settled(
        self,
        error: StoreError | None,
        producer: Producer,
        sequence_ids: Sequence[int],
        offset: int,
        size: int,
    ) -> None:
        """The same for entries that follow each other, the first at ``offset``. Must not raise."""


UnderWay = tuple[StoringTopic, Producer, Any, int, DedupRecord, int, int]
"""``(topic, producer, sequence_id, highest, record, offset, size)``; for a run, its sequence ids.

A plain tuple: a class for it costs 6 % of what the core spends on a message.
"""


class PendingAdds:
    """See the module. ``reported`` is what the store is given as ``done`` of every entry.

    ``run_reported`` is that of every run (`geminga.wire.send_runs`), which waits here as one.
    """

    __slots__ = ("_queue", "append", "reported", "run_reported")

    def __init__(self) -> None:
        self._queue: deque[UnderWay] = deque()
        self.append = self._queue.append
        self.reported = self._reported
        self.run_reported = self._run_reported

    def take_back(self) -> None:
        """The store did not take the entry that was appended last."""
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
        """Receipts of duplicates come behind that of the entry before them."""
        queue = self._queue
        while queue and queue[0][4] is _DUPLICATE:
            _, producer, sequence_id, highest, _, _, _ = queue.popleft()
            producer.receipt(sequence_id, highest, -1, -1)
