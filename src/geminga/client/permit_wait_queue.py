"""Queues of senders that wait for permits or bytes; on the loop's thread.

Order is kept: a sender queues after earlier ones that wait for the same resource, however little it needs.
Senders that wait for a full partition delay only others of that partition; one that waits for bytes, which
all partitions share, delays all. The first of each queue is tried whenever permits or bytes may have been
released, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from geminga.client.submit_queue import OptimisticSend, QueuedSend, WaitingSend
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.partition import PartitionProducer

Target = PartitionProducer | None
"""Resource that a sender waits for: a partition, or any partition with permits."""


class PermitWaitQueue:
    """Wait queues; ``add`` accepts a message or raises the refusal; ``place_of`` returns its target."""

    def __init__(self, add: Callable[[WaitingSend], None], place_of: Callable[[QueuedSend], Target]) -> None:
        self._add = add
        self._place_of = place_of
        self._queues: dict[Target, deque[tuple[int, WaitingSend]]] = {}
        self._came = 0
        self._wants_bytes: WaitingSend | None = None

    def __len__(self) -> int:
        """Return the number of waiting senders, without those that left."""
        return sum(not asked.gone for asked in self._senders())

    def __bool__(self) -> bool:
        """Return whether a new sender must check if it has to wait."""
        return bool(self._queues)

    @property
    def standing(self) -> int:
        """Number of queued senders, including those that left and were not removed yet."""
        return sum(map(len, self._queues.values()))

    def _senders(self) -> Iterator[WaitingSend]:
        return (asked for queue in self._queues.values() for _, asked in queue)

    def holds(self, token: Any) -> bool:
        """Return whether the message with this token waits here and will be sent."""
        return any(asked.token is token for asked in self._senders() if not asked.gone)

    @property
    def promised(self) -> bool:
        """Whether an optimistic send waits here, whose call has already returned."""
        return any(True for _ in self.promises())

    def promises(self) -> Iterator[tuple[Target, OptimisticSend]]:
        """Yield the optimistic sends with their targets."""
        for target, queue in self._queues.items():
            for _, asked in queue:
                if isinstance(asked, OptimisticSend):
                    yield target, asked

    @property
    def wants_bytes(self) -> bool:
        """Whether a sender waits for bytes, which other producers may release."""
        return self._wants_bytes is not None and not self._wants_bytes.gone

    def answer(self, asked: WaitingSend) -> None:
        """Accept the message, refuse it, or queue its sender."""
        if asked.gone:
            return
        target = self._place_of(asked)
        refusal = self._refusal(target)
        if refusal is None:
            refusal = self._try(asked)
        if refusal is None:
            return
        if not asked.waits:
            asked.settle(refusal)
            return
        self._came += 1
        self._queues.setdefault(target, deque()).append((self._came, asked))

    def check(self, send: QueuedSend) -> None:
        """Raise `ProducerQueueIsFull` or `MemoryBufferIsFull` if this message, whose sender cannot wait,
        would overtake a waiting one."""
        if self._queues:
            refusal = self._refusal(self._place_of(send))
            if refusal is not None:
                raise refusal

    def _refusal(self, target: Target) -> Exception | None:
        """Return the error for a new sender that must wait for earlier ones, else None."""
        if self.wants_bytes:
            return MemoryBufferIsFull("an earlier message waits for bytes of the client's memory_limit")
        queue = self._queues.get(target)
        if queue is None or not self._skip_gone(target, queue):
            return None
        return ProducerQueueIsFull("an earlier message waits for permits")

    def _skip_gone(self, target: Target, queue: deque[tuple[int, WaitingSend]]) -> bool:
        """Remove senders that left from the front; return False if the queue is empty then."""
        while queue and queue[0][1].gone:
            queue.popleft()
        if not queue:
            del self._queues[target]
        return bool(queue)

    def serve(self) -> None:
        """Try the first of each queue after permits or bytes were released, or at the end."""
        if not self._queues:
            return
        self._wants_bytes = None
        # The arrival numbers differ, so targets are never compared.
        fronts = [(queue[0][0], target) for target, queue in self._queues.items()]
        heapify(fronts)
        while fronts:
            _, target = heappop(fronts)
            queue = self._queues[target]
            if not self._skip_gone(target, queue):
                continue
            if self._try(queue[0][1]) is not None:
                if self._wants_bytes is not None:
                    return
                continue
            queue.popleft()
            if queue:
                heappush(fronts, (queue[0][0], target))
            else:
                del self._queues[target]

    def _try(self, asked: WaitingSend) -> Exception | None:
        """Try to add the message; return None if its sender has the outcome, else the resource error it waits
        for."""
        try:
            self._add(asked)
        except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
            if asked.waits and isinstance(error, MemoryBufferIsFull):
                self._wants_bytes = asked
            return error
        except Exception as error:
            asked.settle(error)
        else:
            asked.settle(None)
        return None
