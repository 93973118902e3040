"""Retention gives way: while the disk has little room, the oldest acknowledged messages go first.

The store numbers all ledgers in the order in which they were begun, whatever topic they are for: they are
looked at in this order, over all topics, also those that are not in memory. A ledger goes when every durable
subscription is past it, as in trimming, but before retention lets it go; what nobody has acknowledged never
does, and what a policy keeps for ever does not either.

A walk works in slices, as upkeep does, deletes as much as was asked for and remembers where it was. What it
passed over is looked at again later: the longer it takes to walk over all, the later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from geminga.broker.refusal import Refused
from geminga.broker.topics import maintenance
from geminga.broker.topics.loaded import LoadedTopics
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import TopicServices
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName
from geminga.ledger.api import LedgerInfo

log = logging.getLogger("geminga.broker")

SLICE_SECONDS: Final = 0.005
PAUSE_SECONDS: Final = 0.01
"""A slice of a walk, and how much later the next one comes: a third of the time at most."""
AGAIN_TIMES: Final = 10
AGAIN_SECONDS_MIN: Final = 1.0
AGAIN_SECONDS_MAX: Final = 60.0
"""A walk begins anew ten times as long after it began as it has been walking, within these."""


LOG_SECONDS: Final = 10.0
"""What went is logged this far apart."""


class GivingWay:
    """See the module. ``ledgers`` and ``bytes`` count what went since the start."""

    def __init__(self, services: TopicServices, topics: LoadedTopics) -> None:
        self._services = services
        self._agenda = services.agenda
        self._topics = topics
        self._steps: Iterator[LedgerInfo] | None = None
        self._walked_seconds = 0.0
        self._again_at = float("-inf")
        self._wanted = 0
        self._freed = 0
        self._told = (0, 0)
        self._told_at = float("-inf")
        self._is_running = False
        self.ledgers = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return "retention that gives way"

    def go(self, wanted: int) -> None:
        """Delete the oldest acknowledged ledgers, of about so many bytes; does nothing while it does."""
        if self._is_running:
            return
        if self._agenda.now >= self._again_at:
            self._steps, self._walked_seconds = self._services.store.oldest_ledgers(), 0.0
        if self._steps is None:
            return
        self._wanted, self._freed = wanted, 0
        self._is_running = True
        self._slice()

    def _slice(self) -> None:
        clock = self._services.turns.clock
        began = clock()
        assert self._steps is not None
        try:
            for info in self._steps:
                self._agenda.isolated("housekeeping", info.owner, self._give_up, info)
                if self._freed >= self._wanted:
                    break
                if clock() - began >= SLICE_SECONDS:
                    self._walked_seconds += clock() - began
                    self._agenda.after(PAUSE_SECONDS, self._slice, self)
                    return
            else:
                self._steps = None
        except BaseException:
            self._steps, self._is_running = None, False
            raise
        self._is_running = False
        self._walked_seconds += clock() - began
        rest = max(AGAIN_SECONDS_MIN, min(AGAIN_TIMES * self._walked_seconds, AGAIN_SECONDS_MAX))
        self._again_at = self._agenda.now + rest
        self._tell()

    def _tell(self) -> None:
        """Say what went, once in a while."""
        if self.ledgers == self._told[0] or self._agenda.now - self._told_at < LOG_SECONDS:
            return
        ledgers, size = self.ledgers - self._told[0], self.bytes - self._told[1]
        self._told, self._told_at = (self.ledgers, self.bytes), self._agenda.now
        log.warning(
            "retention gives way to lack of room: the %d oldest acknowledged ledgers are deleted, %d bytes",
            ledgers, size,
        )  # fmt: skip

    def _give_up(self, info: LedgerInfo) -> None:
        try:
            name = TopicName.parse(info.owner)
        except InvalidTopicName:
            return  # its owner is lost to damage
        was_loaded = self._topics.in_memory(name) is not None
        try:
            topic = self._topics.find(name)
        except Refused as refused:
            log.debug("topic %s cannot give way: %s", info.owner, refused)
            return
        if not isinstance(topic, PersistentTopic):
            return
        if maintenance.give_up(topic, info.ledger_id):
            self._freed += info.size_bytes
            self.ledgers += 1
            self.bytes += info.size_bytes
            self._agenda.happenings.tell(
                "gave-way", self._agenda.now_ms, info.owner, count=info.entries, unit="entries",
                text="deleted before retention let them go: the disk has little room",
            )  # fmt: skip
        if not was_loaded and topic.idle:
            self._topics.let_go(topic)
