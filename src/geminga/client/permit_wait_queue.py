"""The line of senders that wait for permits or bytes; on the loop's thread.

Order is kept: whoever wants the same as one that waits stands behind it, however little it needs itself.
Senders that wait for a full partition hold up those who go there, and nobody else; one that wants bytes,
which all partitions share, holds up everybody. Those at the fronts have a try whenever something may have
come back, in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from geminga.client.submit_queue import OptimisticSend, QueuedSend, WaitingSend
from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.partition import PartitionProducer

Place = PartitionProducer | None
"""What a sender waits for: a partition, or whichever has room."""


class PermitWaitQueue:
    """``add`` takes a message or raises why not; ``place_of`` says where one will go."""

    def __init__(self, add: Callable[[WaitingSend], None], place_of: Callable[[QueuedSend], Place]) -> None:
        self._add = add
        self._place_of = place_of
        self._lines: dict[Place, deque[tuple[int, WaitingSend]]] = {}
        self._came = 0
        self._wants_bytes: WaitingSend | None = None

    def __len__(self) -> int:
        """How many wait and have not left."""
        return sum(not asked.gone for asked in self._everybody())

    def __bool__(self) -> bool:
        """Whether a newcomer has to look if it must wait."""
        return bool(self._lines)

    @property
    def standing(self) -> int:
        """How many are in line, with those that have left and were not come across yet."""
        return sum(map(len, self._lines.values()))

    def _everybody(self) -> Iterator[WaitingSend]:
        return (asked for line in self._lines.values() for _, asked in line)

    def holds(self, token: Any) -> bool:
        """Whether the message with this token waits here and will be sent for."""
        return any(asked.token is token for asked in self._everybody() if not asked.gone)

    @property
    def promised(self) -> bool:
        """Somebody in line has gone on already and counts on being sent for."""
        return any(True for _ in self.promises())

    def promises(self) -> Iterator[tuple[Place, OptimisticSend]]:
        """Those, and what each waits for."""
        for place, line in self._lines.items():
            for _, asked in line:
                if isinstance(asked, OptimisticSend):
                    yield place, asked

    @property
    def wants_bytes(self) -> bool:
        """One was refused for want of bytes: others may give some back."""
        return self._wants_bytes is not None and not self._wants_bytes.gone

    def answer(self, asked: WaitingSend) -> None:
        """Take the message, refuse it, or have its sender wait."""
        if asked.gone:
            return
        place = self._place_of(asked)
        refusal = self._refusal(place)
        if refusal is None:
            refusal = self._try(asked)
        if refusal is None:
            return
        if not asked.waits:
            asked.settle(refusal)
            return
        self._came += 1
        self._lines.setdefault(place, deque()).append((self._came, asked))

    def check(self, handed: QueuedSend) -> None:
        """For a message whose sender can't wait: raises `ProducerQueueIsFull` or `MemoryBufferIsFull` when it
        would pass one that waits."""
        if self._lines:
            refusal = self._refusal(self._place_of(handed))
            if refusal is not None:
                raise refusal

    def _refusal(self, place: Place) -> Exception | None:
        """Why a newcomer must stand behind others."""
        if self.wants_bytes:
            return MemoryBufferIsFull(
                "a message that came before waits for bytes of the client's memory_limit"
            )
        line = self._lines.get(place)
        if line is None or not self._skip_gone(place, line):
            return None
        return ProducerQueueIsFull("a message that came before waits for permits")

    def _skip_gone(self, place: Place, line: deque[tuple[int, WaitingSend]]) -> bool:
        """Let those at the front go that have left; False when nobody is there any more."""
        while line and line[0][1].gone:
            line.popleft()
        if not line:
            del self._lines[place]
        return bool(line)

    def serve(self) -> None:
        """Something may have come back, or the end has come."""
        if not self._lines:
            return
        self._wants_bytes = None
        # The number that each has is its own: places are never compared.
        fronts = [(line[0][0], place) for place, line in self._lines.items()]
        heapify(fronts)
        while fronts:
            _, place = heappop(fronts)
            line = self._lines[place]
            if not self._skip_gone(place, line):
                continue
            if self._try(line[0][1]) is not None:
                if self._wants_bytes is not None:
                    return
                continue
            line.popleft()
            if line:
                heappush(fronts, (line[0][0], place))
            else:
                del self._lines[place]

    def _try(self, asked: WaitingSend) -> Exception | None:
        """None when the sender has its answer; else what it has to wait for."""
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
