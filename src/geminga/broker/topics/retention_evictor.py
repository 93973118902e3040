"""Retention gives way: while the disk has little room, the oldest acknowledged messages go first.

The store numbers all ledgers in the order in which they were begun, whatever topic they are for: they are
looked at in this order, over all topics, also those that are not in memory. A ledger goes when every durable
subscription is past it, as in trimming, but before retention lets it go; what nobody has acknowledged never
does, and what a policy keeps for ever does not either.

A walk is background work. It deletes as much as was asked for and remembers where it was. What it passed over
is looked at again later: the longer it takes to walk over all, the later.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from geminga.broker.background_jobs import BackgroundJobs
from geminga.broker.cooperative import Job
from geminga.broker.refusal import Refused
from geminga.broker.topics import expiry
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import TopicServices
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName
from geminga.ledger.api import PrefetchRequest, StoredLedger

log = logging.getLogger("geminga.broker")

TOPICS_AT_ONCE: Final = 32
"""So many topics are read ahead together."""
AGAIN_TIMES: Final = 10
AGAIN_SECONDS_MIN: Final = 1.0
AGAIN_SECONDS_MAX: Final = 60.0
"""A walk begins anew ten times as long after it began as it has been walking, within these."""
LOG_SECONDS: Final = 10.0
"""What went is logged this far apart."""


class RetentionEvictor:
    """See the module. ``ledgers`` and ``bytes`` count what went since the start."""

    def __init__(self, services: TopicServices, topics: TopicRegistry) -> None:
        self._services = services
        self._scheduler = services.scheduler
        self._topics = topics
        self._background = BackgroundJobs(services.scheduler, services.slices, self)
        self._passed: int | None = None
        self._began_seconds = 0.0
        self._again_at = float("-inf")
        self._wanted = 0
        self._freed = 0
        self._told = (0, 0)
        self._told_at = float("-inf")
        self.ledgers = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return "retention that gives way"

    def go(self, wanted: int) -> None:
        """Delete the oldest acknowledged ledgers, of about so many bytes; does nothing while it does."""
        if self._background.is_busy:
            return
        if self._scheduler.now >= self._again_at:
            self._passed, self._began_seconds = -1, self._background.worked_seconds
        if self._passed is None:
            return
        self._wanted, self._freed = wanted, 0
        self._background.start(self._walk(), self._over)

    def _walk(self) -> Job:
        """A step is a ledger."""
        store, topics, wait = self._services.store, self._topics, self._background.wait
        while self._passed is not None and self._freed < self._wanted:
            error = yield from wait(partial(topics.bring, PrefetchRequest(ledgers_after=(self._passed,))))
            if error is not None:
                raise error
            page, following = store.ledgers_page(self._passed)
            for start in range(0, len(page), TOPICS_AT_ONCE):
                part = page[start : start + TOPICS_AT_ONCE]
                names = {info.owner: name for info in part if (name := _name_of(info)) is not None}
                loaded = {name for name in names.values() if topics.in_memory(name) is None}
                failed = yield from wait(partial(topics.prepare_all, [*loaded]))
                for info in part:
                    name = names.get(info.owner)
                    if name is not None and name not in failed and self._freed < self._wanted:
                        self._scheduler.isolated("housekeeping", info.owner, self._give_up, name, info)
                        self._passed = info.ledger_id
                        yield None
                for name in loaded:
                    self._scheduler.isolated("housekeeping", name, self._let_go, name)
                if self._freed >= self._wanted:
                    return
            self._passed = following

    def _over(self) -> None:
        walked = self._background.worked_seconds - self._began_seconds
        rest = max(AGAIN_SECONDS_MIN, min(AGAIN_TIMES * walked, AGAIN_SECONDS_MAX))
        self._again_at = self._scheduler.now + rest
        self._tell()

    def _tell(self) -> None:
        """Say what went, once in a while."""
        if self.ledgers == self._told[0] or self._scheduler.now - self._told_at < LOG_SECONDS:
            return
        ledgers, size = self.ledgers - self._told[0], self.bytes - self._told[1]
        self._told, self._told_at = (self.ledgers, self.bytes), self._scheduler.now
        log.warning(
            "disk space is low: deleted the %d oldest acknowledged ledgers, %d bytes, before their retention",
            ledgers, size,
        )  # fmt: skip

    def _give_up(self, name: TopicName, info: StoredLedger) -> None:
        try:
            topic = self._topics.find(name)
        except Refused as refused:
            log.debug("topic %s cannot free space: %s", name, refused)
            return
        if isinstance(topic, PersistentTopic) and expiry.give_up(topic, info.ledger_id):
            self._freed += info.size_bytes
            self.ledgers += 1
            self.bytes += info.size_bytes
            self._scheduler.event_log.tell(
                "gave-way", self._scheduler.now_ms, info.owner, count=info.entries, unit="entries",
                text="deleted before retention let them go: the disk has little room",
            )  # fmt: skip

    def _let_go(self, name: TopicName) -> None:
        """A topic was loaded for this."""
        topic = self._topics.in_memory(name)
        if topic is not None and topic.persistent and topic.idle:
            self._topics.let_go(topic)


def _name_of(info: StoredLedger) -> TopicName | None:
    try:
        return TopicName.parse(info.owner)
    except InvalidTopicName:
        return None  # its owner is lost to damage
