"""Work of one producer's partitions that is ready for their owner.

Deadlines are kept in order, so that a producer of thousands of partitions checks only the few that are due.
"""

import heapq
import itertools
from typing import Generic, Protocol, TypeVar

from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.operation import SendOperation
from geminga.producer.pending import PendingQueue


class ReadyPartition(Protocol):
    """Interface of a partition with work."""

    pending: PendingQueue

    @property
    def batch(self) -> Batch | KeyedBatches | None: ...


P = TypeVar("P", bound=ReadyPartition)


class ReadySet(Generic[P]):
    """Ready work of one producer's partitions.

    ``settled``: operations with an outcome, tokens not called yet; of a failed run, those after ``done``.
    ``writable``: partitions that may have output. ``busy``: partitions with an open batch or pending
    operations. ``urgent``: partitions with a batch that a sender waits for. ``timer_at``: when the owner's
    timer fires; ``attention`` is set when it would fire too late, or when there is work right now.
    """

    def __init__(self) -> None:
        self.settled: list[SendOperation] = []
        self.writable: dict[P, None] = {}
        self.busy: dict[P, None] = {}
        self.urgent: dict[P, None] = {}
        self.timer_at = float("inf")
        self.attention = False
        self._batches: list[tuple[float, int, P, Batch | KeyedBatches]] = []
        """Open batches by their deadlines, and some that closed earlier."""
        self._order = itertools.count()
        self._send_deadline = float("inf")
        """Lower bound of the pending operations' send time-outs."""

    def batch_opened(self, partition: P, batch: Batch | KeyedBatches) -> None:
        """Register an open batch, to be closed at its deadline."""
        self.busy[partition] = None
        deadline = batch.deadline
        heapq.heappush(self._batches, (deadline, next(self._order), partition, batch))
        if deadline < self.timer_at:
            self.attention = True

    def enqueued(self, partition: P, operation: SendOperation) -> None:
        """Register an operation to be written, which waits for its receipt up to its send time-out."""
        self.busy[partition] = self.writable[partition] = None
        if operation.deadline < self._send_deadline:
            self._send_deadline = operation.deadline
        self.attention = True

    def check_send_timeouts_at(self, deadline: float) -> None:
        """Check the send time-outs at ``deadline``, too."""
        self._send_deadline = min(self._send_deadline, deadline)

    def take_settled(self) -> list[SendOperation]:
        settled, self.settled = self.settled, []
        return settled

    def next_deadline(self) -> float:
        """Return the next time to check deadlines: perhaps a little early, never late."""
        batches = self._batches
        while batches and batches[0][2].batch is not batches[0][3]:
            heapq.heappop(batches)
        if not self.busy:
            self._send_deadline = float("inf")
        return min(batches[0][0], self._send_deadline) if batches else self._send_deadline

    def is_due(self, now: float) -> bool:
        """Return whether `take_due` may return partitions."""
        batches = self._batches
        if self.urgent or self._send_deadline <= now:
            return True
        return len(batches) > 0 and batches[0][0] <= now

    def take_due(self, now: float, *, expire: bool = True) -> list[P]:
        """Return the partitions with due work: an urgent batch, one at its deadline; with ``expire``, a send
        time-out."""
        due = self.urgent
        if due:
            self.urgent = {}
        else:
            due = {}
        batches = self._batches
        while batches and (batches[0][0] <= now or batches[0][2].batch is not batches[0][3]):
            _, _, partition, batch = heapq.heappop(batches)
            if partition.batch is batch:
                due[partition] = None
        if expire and self._send_deadline <= now:
            heads = [(p.pending.head.deadline, p) for p in self.busy if p.pending.head is not None]
            due.update((p, None) for deadline, p in heads if deadline <= now)
            self._send_deadline = min((d for d, _ in heads if d > now), default=float("inf"))
        return list(due)
