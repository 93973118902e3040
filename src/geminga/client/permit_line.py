"""The line of senders that wait for permits or bytes; on the loop's thread.

Everybody has a try, in order, whenever some have come back. One that waits for a full partition holds up
those behind who wait for the same, and nobody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from geminga.client.handover import Asked, Promised
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.partition import PartitionProducer

Place = PartitionProducer | None
"""What a sender waits for: a partition, or whichever has room."""


class PermitLine:
    """``add`` takes a message or raises why not; ``place_of`` says where one will go."""

    def __init__(self, add: Callable[[Asked], None], place_of: Callable[[Asked], Place]) -> None:
        self._add = add
        self._place_of = place_of
        self._line: deque[tuple[Place, Asked]] = deque()
        self.wants_bytes = False
        """The first in line was refused for want of bytes: others may give some back."""

    def __len__(self) -> int:
        """How many wait and have not left."""
        return sum(not asked.gone for _, asked in self._line)

    def holds(self, token: Any) -> bool:
        """Whether the message with this token waits here and will be sent for."""
        return any(asked.token is token for _, asked in self._line if not asked.gone)

    @property
    def promised(self) -> bool:
        """Somebody in line has gone on already and counts on being sent for."""
        return any(isinstance(asked, Promised) for _, asked in self._line)

    def answer(self, asked: Asked) -> None:
        """Take the message, refuse it, or have its sender wait."""
        if asked.gone:
            return
        place = self._place_of(asked)
        if asked.waits and any(place is other for other, _ in self._line):
            self._line.append((place, asked))
        else:
            self._try(place, asked, self._line)

    def serve(self) -> None:
        """Something may have come back, or the end has come."""
        if not self._line:
            return
        self.wants_bytes = False
        line, self._line = self._line, deque()
        full: set[Place] = set()
        for place, asked in line:
            if asked.gone:
                continue
            if self.wants_bytes or place in full:
                self._line.append((place, asked))
            elif not self._try(place, asked, self._line):
                full.add(place)

    def _try(self, place: Place, asked: Asked, line: deque[tuple[Place, Asked]]) -> bool:
        """Whether the sender has its answer; it stands at the end of ``line`` otherwise."""
        try:
            self._add(asked)
        except (ProducerQueueIsFull, MemoryBufferIsFull) as error:
            if asked.waits:
                self.wants_bytes = self.wants_bytes or isinstance(error, MemoryBufferIsFull)
                line.append((place, asked))
                return False
            asked.settle(error)
        except Exception as error:
            asked.settle(error)
        else:
            asked.settle(None)
        return True
