"""Topics in memory by the round of maintenance in which they are checked next.

A topic is checked when something happened to it (`MaintenanceQueue.soon`) or at a time that it planned
(`MaintenanceQueue.plan`), and not otherwise: a round costs what it checks, not what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

ROUND_SECONDS: Final = 15.0
"""Interval of rounds."""
UNUSED_SECONDS: Final = 60.0
"""Time after which a topic without clients leaves memory."""
UNUSED_SECONDS_OF_MANY: Final = 5.0
"""... or after this while there are more topics in memory than ..."""
MANY_TOPICS: Final = 10_000
"""... this number: topics that are used once, one after another, do not fill the memory."""
PLANNED_ROUNDS_MAX: Final = 40
"""Most rounds between two checks of a topic in memory."""


class MaintainedTopic(Protocol):
    """Interface of a topic for this module."""

    look_round: int
    """The round in which it is checked next; 0 if none is planned, `GONE` if none ever will be."""


GONE: Final = -1
"""``look_round`` of a topic that has left memory. Pending operations may still report to it, and another
topic with its name may exist, which maintenance of the old one would harm."""

T = TypeVar("T", bound=MaintainedTopic)


class MaintenanceQueue(Generic[T]):
    """Future rounds and the topics of each, in the order in which they were planned."""

    __slots__ = ("_rounds", "next_round")

    def __init__(self) -> None:
        self._rounds: dict[int, dict[T, None]] = {}
        self.next_round = 1

    def soon(self, topic: T) -> None:
        """Check the topic in the next round."""
        if topic.look_round != self.next_round:
            self._plan(topic, self.next_round)

    def plan(self, topic: T, seconds: float) -> None:
        """Check the topic within ``seconds``."""
        rounds = min(max(1, -int(-seconds // ROUND_SECONDS)), PLANNED_ROUNDS_MAX)
        self._plan(topic, self.next_round - 1 + rounds)

    def _plan(self, topic: T, number: int) -> None:
        planned = topic.look_round
        if planned:
            if planned <= number:  # as for `GONE`
                return
            self._drop(topic)
        topic.look_round = number
        self._rounds.setdefault(number, {})[topic] = None

    def drop(self, topic: T) -> None:
        """Remove a topic that leaves memory: it is never checked again."""
        self._drop(topic)
        topic.look_round = GONE

    def _drop(self, topic: T) -> None:
        number, topic.look_round = topic.look_round, 0
        topics = self._rounds.get(number)
        if topics is not None:
            topics.pop(topic, None)
            if not topics:
                del self._rounds[number]

    def begin_round(self) -> Iterator[T]:
        """Start a round and yield its topics, which may be read in steps. Their plans are cleared."""
        number = self.next_round
        self.next_round += 1
        topics = [*reversed(self._rounds.get(number, {}))]
        while topics:
            topic = topics.pop()
            if topic.look_round == number:
                self._drop(topic)
                yield topic
