"""Entries of all topics that were passed to the store and are not confirmed yet.

The store reports in the order of the calls, for all ledgers: so one queue serves all topics, and idle topics
have none. Besides the queue, a pending entry is in the ledger between ``confirmed`` and ``end``, in
``Producer.pending``, for which the closing of a producer waits, and in the bytes of its peer and of all
peers, which are limited (`runtime.memory_backpressure`).
"""

from collections import deque
from typing import Any, Final, Protocol

from geminga.broker.runtime.scheduler import Scheduler
from geminga.broker.topics.dedup import DedupVerdict
from geminga.broker.topics.histograms import TopicHistograms
from geminga.broker.topics.producer import Producer
from geminga.errors import StoreError

_DUPLICATE: Final = DedupVerdict.DUPLICATE


class StoringTopic(Protocol):
    """Interface of a topic for reports of the store."""

    scheduler: Scheduler
    histograms: TopicHistograms | None

    def settled(
        self,
        error: StoreError | None,
        producer: Producer,
        sequence_ids: int | range,
        highest: int,
        verdict: DedupVerdict,
        offset: int,
        size: int,
    ) -> None:
        """Handle the report on the topic's oldest pending entry, or on a run of consecutive entries, the
        first at ``offset``. Must not raise: others wait behind it.
        """


PendingAdd = tuple[StoringTopic, Producer, Any, int, DedupVerdict, int, int, float]
"""``(topic, producer, sequence_id, highest, verdict, offset, size, time)``; for a run, its sequence ids.

A plain tuple: a class would cost 6 % of the core's time per message.
"""


class PendingAdds:
    """Queue of pending entries and runs (`geminga.wire.send_runs`), each of which is one item.

    ``reported`` is passed to the store as ``done`` of every item.
    """

    def __init__(self) -> None:
        self._queue: deque[PendingAdd] = deque()
        self.append = self._queue.append
        self.reported = self._reported

    def take_back(self) -> None:
        """Remove the last item, which the store refused."""
        self._queue.pop()

    def _reported(self, error: StoreError | None) -> None:
        queue = self._queue
        topic, producer, sequence_ids, highest, verdict, offset, size, began = queue.popleft()
        if error is None and topic.histograms is not None:
            count = 1 if isinstance(sequence_ids, int) else len(sequence_ids)
            topic.histograms.stored(topic.scheduler.now - began, count)
        topic.settled(error, producer, sequence_ids, highest, verdict, offset, size)
        # Receipts of duplicates follow that of the entry before them.
        while queue and queue[0][4] is _DUPLICATE:
            _, producer, sequence_id, highest, *_ = queue.popleft()
            producer.receipt(sequence_id, highest, -1, -1)
