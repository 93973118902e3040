"""Queues of messages that wait for permits or bytes; on the loop's thread.

Order is kept: a message queues behind earlier ones that wait for the same resource, however little it needs.
Messages that wait for a full partition delay only others of that partition; one that waits for bytes, which
all partitions share, delays all. The first of each queue is tried whenever permits or bytes may have been
released, in order of arrival.
"""

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from geminga.client.publish.submit_queue import QueuedOperation, QueuedSend, WaitingSend
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.partition import PartitionProducer

TABLES = "tables"
"""Target of the operations of tables, which wait for bytes."""

Target = PartitionProducer | str | None
"""Resource that a message waits for: a partition, or any partition with permits (None)."""

Queued = QueuedSend | QueuedOperation


class PermitWaitQueue:
    """Wait queues. ``add`` accepts a message or raises the refusal; ``target_of`` returns its target;
    ``fail`` completes an accepted message with its error."""

    def __init__(
        self,
        add: Callable[[Queued], None],
        target_of: Callable[[Queued], Target],
        fail: Callable[[Queued, Exception], None],
    ) -> None:
        self._add = add
        self._target_of = target_of
        self._fail = fail
        self.queues: dict[Target, deque[tuple[int, Queued]]] = {}
        """Waiting messages with their arrival numbers; if there are any, a new message must check if it has
        to wait."""
        self._came = 0
        self._wants_bytes: Queued | None = None

    def __len__(self) -> int:
        """Return the number of waiting messages, without those whose sender left."""
        return sum(not queued.gone for queued in self._waiting())

    @property
    def standing(self) -> int:
        """Number of queued messages, including those whose sender left and that were not removed yet."""
        return sum(map(len, self.queues.values())) if self.queues else 0

    def _waiting(self) -> Iterator[Queued]:
        return (queued for queue in self.queues.values() for _, queued in queue)

    def holds(self, token: Any) -> bool:
        """Return whether the message with this token waits here and will be sent."""
        return any(queued.token is token for queued in self._waiting() if not queued.gone)

    def accepted(self) -> list[Target]:
        """Return the targets of waiting messages whose send call has returned."""
        return [
            target
            for target, queue in self.queues.items()
            if any(type(queued) is QueuedSend for _, queued in queue)
        ]

    @property
    def wants_bytes(self) -> bool:
        """Whether a message waits for bytes, which other producers may release."""
        return self._wants_bytes is not None and not self._wants_bytes.gone

    def answer(self, queued: Queued) -> None:
        """Accept the message, refuse it, or queue it; once queued, it waits for what it needs.

        An operation of a table that must wait for earlier messages does so even if it may not wait for bytes.
        """
        if queued.gone:
            return
        target = self._target_of(queued)
        behind = self._refusal(target)
        refusal = self._try(queued) if behind is None else behind
        if refusal is None:
            return
        is_behind = behind is not None and isinstance(queued, QueuedOperation)
        if not is_behind and not _may_wait(queued, refusal):
            self._settle(queued, refusal)
            return
        if behind is None and isinstance(refusal, MemoryBufferIsFull):
            self._wants_bytes = queued
        self._came += 1
        self.queues.setdefault(target, deque()).append((self._came, queued))

    def check(self, send: QueuedSend) -> None:
        """Raise `ProducerQueueIsFull` or `MemoryBufferIsFull` if this message, whose sender cannot wait,
        would overtake a waiting one."""
        if self.queues:
            refusal = self._refusal(self._target_of(send))
            if refusal is not None:
                raise refusal

    def _refusal(self, target: Target) -> Exception | None:
        """Return the error for a new message that must wait for earlier ones, else None."""
        if self.wants_bytes:
            return MemoryBufferIsFull("an earlier message waits for bytes of the client's memory_limit")
        queue = self.queues.get(target)
        if queue is None or not self._skip_gone(target, queue):
            return None
        return ProducerQueueIsFull("an earlier message waits for permits")

    def _skip_gone(self, target: Target, queue: deque[tuple[int, Queued]]) -> bool:
        """Remove messages whose sender left from the front; return False if the queue is empty then."""
        while queue and queue[0][1].gone:
            queue.popleft()
        if not queue:
            del self.queues[target]
        return bool(queue)

    def serve(self) -> None:
        """Try the first of each queue after permits or bytes were released, or at the end."""
        if not self.queues:
            return
        self._wants_bytes = None
        # The arrival numbers differ, so targets are never compared.
        fronts = [(queue[0][0], target) for target, queue in self.queues.items()]
        heapify(fronts)
        while fronts:
            _, target = heappop(fronts)
            queue = self.queues[target]
            if not self._skip_gone(target, queue):
                continue
            refusal = self._try(queue[0][1])
            if isinstance(refusal, MemoryBufferIsFull):
                self._wants_bytes = queue[0][1]
                return
            if refusal is not None:
                continue
            queue.popleft()
            if queue:
                heappush(fronts, (queue[0][0], target))
            else:
                del self.queues[target]

    def _try(self, queued: Queued) -> Exception | None:
        """Try to add the message; return None if it has the outcome, else the resource error it waits for."""
        try:
            self._add(queued)
        except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
            return error
        except Exception as error:
            self._settle(queued, error)
        else:
            self._settle(queued, None)
        return None

    def _settle(self, queued: Queued, error: Exception | None) -> None:
        if isinstance(queued, (WaitingSend, QueuedOperation)):
            queued.settle(error)
        elif error is not None:
            self._fail(queued, error)


def _may_wait(queued: Queued, refusal: Exception) -> bool:
    if isinstance(queued, QueuedOperation):
        return queued.may_wait(refusal)
    return not isinstance(queued, WaitingSend) or queued.waits
