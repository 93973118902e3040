"""Which topics in memory are to be looked at in which round of upkeep.

A topic is looked at when something happened to it (`MaintenanceQueue.soon`) or when it planned that (`MaintenanceQueue.plan`),
and not otherwise: a round costs what it looks at, not what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

ROUND_SECONDS: Final = 15.0
"""Rounds are this far apart."""
UNUSED_SECONDS: Final = 60.0
"""A topic that nobody is connected to leaves memory after this."""
UNUSED_SECONDS_OF_MANY: Final = 5.0
"""... or after this while there are more of them in memory than ..."""
MANY_TOPICS: Final = 10_000
"""... so many: topics that are used once, one after another, do not fill the memory."""
PLANNED_ROUNDS_MAX: Final = 40
"""Every topic in memory is looked at once in so many rounds, whatever it planned."""


class MaintainedTopic(Protocol):
    """A topic, as far as this module knows one."""

    look_round: int
    """The round in which it is looked at next; 0 when none is planned, `GONE` when none ever will be."""


GONE: Final = -1
"""Of a topic that has left memory. What was under way then may still be reported to it, and there may be
another one of its name: to care for the one that is gone would be to harm that."""

T = TypeVar("T", bound=MaintainedTopic)


class MaintenanceQueue(Generic[T]):
    """Rounds to come and the topics of each, in the order in which they were planned."""

    __slots__ = ("_rounds", "next_round")

    def __init__(self) -> None:
        self._rounds: dict[int, dict[T, None]] = {}
        self.next_round = 1

    def soon(self, topic: T) -> None:
        """Look at the topic in the next round."""
        if topic.look_round != self.next_round:
            self._plan(topic, self.next_round)

    def plan(self, topic: T, seconds: float) -> None:
        """Look at the topic in so many seconds, or before."""
        rounds = min(max(1, -int(-seconds // ROUND_SECONDS)), PLANNED_ROUNDS_MAX)
        self._plan(topic, self.next_round - 1 + rounds)

    def _plan(self, topic: T, number: int) -> None:
        planned = topic.look_round
        if planned:
            if planned <= number:  # as `GONE` is
                return
            self._drop(topic)
        topic.look_round = number
        self._rounds.setdefault(number, {})[topic] = None

    def drop(self, topic: T) -> None:
        """The topic leaves memory: it is never looked at again, whoever asks for it."""
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
        """The topics of the round that begins; may be read in steps. Each is then planned for no round."""
        number = self.next_round
        self.next_round += 1
        topics = [*reversed(self._rounds.get(number, {}))]
        while topics:
            topic = topics.pop()
            if topic.look_round == number:
                self._drop(topic)
                yield topic
