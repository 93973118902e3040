"""Consumers that may be able to take entries, by priority, each in its turn."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from geminga.broker.delivery.consumer import Consumer


class ReadyConsumers:
    """Queue of consumers for each priority.

    A consumer that turns out to be unable to take an entry is dropped. It is added again at the event that
    changes that: permits, an acknowledgement, or a connection that takes more bytes. So consumers that wait
    for one of these cost nothing, however many there are.
    """

    __slots__ = ("_priorities", "_queues")

    def __init__(self) -> None:
        self._priorities: list[int] = []
        self._queues: dict[int, OrderedDict[Consumer, None]] = {}

    def add(self, consumer: Consumer) -> None:
        """Append a consumer, unless it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is None:
            queue = self._queues[consumer.priority] = OrderedDict()
            insort(self._priorities, consumer.priority)
        queue[consumer] = None

    def discard(self, consumer: Consumer) -> None:
        """Drop a consumer, if it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is not None:
            queue.pop(consumer, None)
            if not queue:
                del self._queues[consumer.priority]
                del self._priorities[bisect_left(self._priorities, consumer.priority)]

    def first(self) -> Consumer | None:
        """Return the first consumer of the best priority that can take an entry now."""
        while self._priorities:
            consumer = next(iter(self._queues[self._priorities[0]]))
            if consumer.ready:
                return consumer
            self.discard(consumer)
        return None

    def move_to_end(self, consumer: Consumer) -> None:
        """Make a consumer the last one of its priority, if it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is not None and consumer in queue:
            queue.move_to_end(consumer)
