"""Early deletion of retained messages: while disk space is low, the oldest acknowledged messages are deleted.

The store numbers all ledgers in the order of their creation, over all topics: they are checked in this order,
also those of topics that are not in memory. A ledger is deleted when every durable subscription has passed
it, as in trimming, but before its retention is over; unacknowledged entries are never deleted, nor those that
a policy keeps forever.

A walk is background work. It deletes the requested amount and keeps its position. Ledgers that it passed are
checked again later: the longer a complete walk takes, the later.
"""

import logging
from functools import partial
from typing import Final

from geminga.broker.runtime.background_jobs import start_in_background
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics import expiry
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import TopicServices
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName
from geminga.ledger.api import PrefetchRequest, StoredLedger

log = logging.getLogger("geminga.broker")

TOPICS_AT_ONCE: Final = 32
"""Topics that are read ahead together."""
AGAIN_TIMES: Final = 3
AGAIN_SECONDS_MIN: Final = 1.0
AGAIN_SECONDS_MAX: Final = 60.0
"""The interval of complete walks is three times their duration, within these bounds."""
LOG_SECONDS: Final = 10.0
"""Interval of log lines about deleted ledgers."""


class RetentionEvictor:
    """Deletes retained ledgers to free space. ``ledgers`` and ``bytes`` count since the start."""

    def __init__(self, services: TopicServices, topics: TopicRegistry) -> None:
        self._services = services
        self._scheduler = services.scheduler
        self._topics = topics
        self._is_running = False
        self._passed: int | None = None
        self._began_at = 0.0
        self._again_at = float("-inf")
        self._wanted = 0
        self._freed = 0
        self._told = (0, 0)
        self._told_at = float("-inf")
        self.ledgers = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return "early deletion on a full disk"

    def go(self, wanted: int) -> None:
        """Delete the oldest acknowledged ledgers, about ``wanted`` bytes; no effect while it is running."""
        if self._is_running:
            return
        now = self._scheduler.now
        if now >= self._again_at:
            self._passed, self._began_at = -1, now
        if self._passed is None:
            return
        self._wanted, self._freed, self._is_running = wanted, 0, True
        start_in_background(self._scheduler, self._services.slices, self, self._walk(), self._over)

    def _walk(self) -> Job:
        """Return a job with a step per ledger."""
        store, topics, wait = self._services.store, self._topics, self._services.slices.wait
        while self._passed is not None and self._freed < self._wanted:
            yield from topics.prefetch(PrefetchRequest(ledgers_after=(self._passed,)))
            page, following = store.ledgers_page(self._passed)
            for start in range(0, len(page), TOPICS_AT_ONCE):
                part = page[start : start + TOPICS_AT_ONCE]
                names = {info.owner: name for info in part if (name := _name_of(info)) is not None}
                loaded = {name for name in names.values() if topics.in_memory(name) is None}
                failed = yield from wait(partial(topics.loader.prepare_all, [*loaded]))
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
        self._is_running = False
        now = self._scheduler.now
        rest = max(AGAIN_SECONDS_MIN, min(AGAIN_TIMES * (now - self._began_at), AGAIN_SECONDS_MAX))
        self._again_at = now + rest
        self._tell()

    def _tell(self) -> None:
        """Log the deleted ledgers, at most once per interval."""
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
                "gave-way", self._scheduler.now_ms, info.owner, count=info.entries, unit="entry",
                text="deleted before the end of their retention: the disk is nearly full",
            )  # fmt: skip

    def _let_go(self, name: TopicName) -> None:
        """Unload a topic that was loaded for this."""
        topic = self._topics.in_memory(name)
        if topic is not None and topic.persistent and topic.idle:
            self._topics.let_go(topic)


def _name_of(info: StoredLedger) -> TopicName | None:
    try:
        return TopicName.parse(info.owner)
    except InvalidTopicName:
        return None  # its owner is lost to damage
