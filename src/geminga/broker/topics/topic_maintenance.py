"""Automatic maintenance of topics in rounds of background work.

A round checks the topics in memory that changed (`maintenance_queue`) and those not in memory that are due
(`expiry_index`), and continues walks over topics whose policies have changed. Its cost depends on the topics
that are due, not on all. Topics that are not in memory are read ahead, many at a time.

A check expires, trims and compacts or offloads a topic (`expiry`). An unused topic is deleted if its policies
want it, or leaves memory after a while; then the index schedules its next check.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from geminga.broker.background_jobs import BackgroundJobs
from geminga.broker.cooperative import Job
from geminga.broker.refusal import Refused
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.topics import deadlines, expiry
from geminga.broker.topics.changed_settings import ChangedSettings
from geminga.broker.topics.expiry_index import Due
from geminga.broker.topics.maintenance_queue import (
    MANY_TOPICS,
    ROUND_SECONDS,
    UNUSED_SECONDS,
    UNUSED_SECONDS_OF_MANY,
)
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.broker.topics.topic_names import ListedTopicNames, TopicNames
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.errors import StoreBusy, StoreError
from geminga.ids import TopicName, forget_names
from geminga.ledger.api import PrefetchRequest
from geminga.wire.frame_encoding import forget_ids

log = logging.getLogger("geminga.broker")

TOPICS_AT_ONCE: Final = 32
"""Topics that are read ahead together."""
VERY_MANY_LEFT: Final = 5_000
"""Number of unloaded topics after which memory is returned to the system, if few topics are in memory."""
WALK_SAVED_TOPICS: Final = 1000
"""Topics that a walk repeats at most after a crash."""
_DAMAGED_AGAIN_MS: Final = 3_600_000
"""Delay after which a topic that cannot be loaded is tried again ..."""
_BUSY_AGAIN_MS: Final = 60_000
"""... and a topic that the disk does not return now."""


class TopicMaintenance:
    """Maintenance of all topics. It sets its own timers."""

    def __init__(self, services: TopicServices, topics: TopicRegistry, namespaces: NamespaceRegistry) -> None:
        self._services = services
        self._scheduler = services.scheduler
        self._due = services.due
        self._topics = topics
        self._namespaces = namespaces
        self._background = BackgroundJobs(services.scheduler, services.slices, self)
        self._walks = dict(services.due.walks())
        self._most_loaded = 0
        """The most topics in memory since memory was last returned."""
        namespaces.watch(self._policies_changed)
        ChangedSettings(services, namespaces, lambda name, before: self._policies_changed(name, None, before))
        self._plan_round()

    def __repr__(self) -> str:
        return "upkeep"

    # --- rounds ---
    def _plan_round(self) -> None:
        self._scheduler.after(ROUND_SECONDS, self._begin_round, self)

    def _begin_round(self) -> None:
        self._background.start(self._round(), self._plan_round)

    def _round(self) -> Job:
        """Return a job with a step per topic."""
        isolated = self._scheduler.isolated
        for topic in self._services.looks.begin_round():
            isolated("housekeeping", topic, self._look, topic)
            yield None
        yield from self._visit_due()
        yield from self._walk()
        self._give_memory_back()

    def _give_memory_back(self) -> None:
        """Return memory to the system after very many topics were unloaded.

        Little is left of each, but Python frees whole arenas, and the leftovers are spread over all of them.
        """
        loaded = self._topics.loaded_count
        self._most_loaded = max(self._most_loaded, loaded)
        if self._most_loaded - loaded >= VERY_MANY_LEFT and loaded <= self._most_loaded // 4:
            self._most_loaded = loaded
            forget_names()
            forget_ids()
            self._namespaces.forget_topics()

    def _bring(self, wanted: PrefetchRequest) -> Job:
        error = yield from self._background.wait(partial(self._topics.bring, wanted))
        if error is not None:
            raise error

    def _prepared(self, names: Sequence[TopicName]) -> Generator[bool | None, None, dict[TopicName, bool]]:
        """Load the topics that are not in memory; return for each whether it could be read."""
        absent = [name for name in names if self._topics.in_memory(name) is None]
        failed = yield from self._background.wait(partial(self._topics.prepare_all, absent))
        return {name: name not in failed for name in absent}

    # --- topics in memory ---
    def _look(self, topic: Topic) -> None:
        try:
            self._keep(topic)
        finally:
            if self._topics.in_memory(topic.name) is topic and not topic.look_round:
                self._services.looks.plan(topic, UNUSED_SECONDS)  # it failed: once more

    def _keep(self, topic: Topic) -> None:
        scheduler, looks = self._scheduler, self._services.looks
        if isinstance(topic, PersistentTopic):
            expiry.keep(topic)
        if not topic.idle:
            topic.last_used_ms = scheduler.now_ms
            looks.plan(topic, self._seconds_until_due(topic))
            return
        unused_ms = scheduler.now_ms - topic.last_used_ms
        loaded_seconds = scheduler.now - topic.loaded_at
        if expiry.is_inactive(topic):
            log.info("%r: deleted after %d s of inactivity", topic, unused_ms // 1000)
            self._topics.delete_topic(topic.name, None)
            return
        are_many = self._topics.loaded_count > MANY_TOPICS
        rest = (UNUSED_SECONDS_OF_MANY if are_many else UNUSED_SECONDS) - min(
            unused_ms / 1000, loaded_seconds
        )
        if rest <= 0:
            self._topics.let_go(topic)
        else:
            looks.plan(topic, rest)

    def _seconds_until_due(self, topic: Topic) -> float:
        """Return the time until a topic in use is checked even if nothing happens."""
        if not isinstance(topic, PersistentTopic):
            return UNUSED_SECONDS
        due_ms = min(deadlines.settle(topic, leaving=False), expiry.readers_due(topic))
        return (due_ms - self._scheduler.now_ms) / 1000

    # --- topics that are not in memory ---
    def _visit_due(self) -> Job:
        """Check the topics that are due by the index."""
        part: list[Due] = []
        with closing(self._due.due(self._scheduler.now_ms)) as due:
            for each in due:
                if not isinstance(each, PrefetchRequest):
                    part.append(each)
                if len(part) == TOPICS_AT_ONCE or isinstance(each, PrefetchRequest):
                    # Before the next page: keys read here are not read again in this run.
                    yield from self._visit_all(part)
                    part = []
                if isinstance(each, PrefetchRequest):
                    yield from self._bring(each)
            yield from self._visit_all(part)

    def _visit_all(self, part: Sequence[Due]) -> Job:
        """Check the topics not in memory; the keys of those in memory are kept for the next start."""
        names = {text: TopicName.parse(text) for _, text in part}
        absent = yield from self._prepared([*names.values()])
        for when_ms, text in part:
            is_readable = absent.get(names[text])
            if is_readable is not None:
                self._scheduler.isolated("housekeeping", text, self._visit, names[text], when_ms, is_readable)
                yield None

    def _visit(self, name: TopicName, when_ms: int, is_readable: bool) -> None:
        """Check a topic that is due by the index."""
        text = str(name)
        if not is_readable:
            self._due.postpone(text, when_ms, self._scheduler.now_ms + _BUSY_AGAIN_MS)
            return
        topic: Topic | None = None
        try:
            topic = self._load(name)
        finally:
            if topic is None and self._topics.is_stored(name):
                self._due.postpone(text, when_ms, self._scheduler.now_ms + _DAMAGED_AGAIN_MS)
            elif topic is None or topic.record.due_ms != when_ms:
                self._due.disarm(text, when_ms)  # of a topic that was deleted, or left by a crash
        if topic is not None:
            self._care_for(topic)

    def _load(self, name: TopicName) -> Topic | None:
        try:
            return self._topics.find(name)
        except Refused as refused:
            log.error("topic %s: maintenance failed: %s", name, refused)
            return None

    def _care_for(self, topic: Topic) -> None:
        """Check a topic that was loaded for this, and unload it."""
        if isinstance(topic, PersistentTopic):
            expiry.keep(topic)
        if expiry.is_inactive(topic):
            log.info("%r: deleted because of inactivity", topic)
            self._topics.delete_topic(topic.name, None)
        elif topic.idle:
            self._topics.let_go(topic)

    # --- policies that changed ---
    def _policies_changed(self, namespace: str, base: TopicName | None, before: Policies | None) -> None:
        """Schedule checks of the topics for which changed policies may make maintenance due earlier."""
        tenant, _, local = namespace.partition("/")
        if not self._namespaces.exists(tenant, local):
            return
        after = (
            self._namespaces.policies(tenant, local)
            if base is None
            else self._namespaces.topic_policies(base)
        )
        if before is None or deadlines.acts_earlier(before, after):
            self._begin_walk(namespace if base is None else str(base))

    def _begin_walk(self, what: str) -> None:
        self._due.begin_walk(what)
        self._walks[what] = ""

    def _walk(self) -> Job:
        """Check the topics under changed policies."""
        while self._walks:
            what, last = next(iter(self._walks.items()))
            del self._walks[what]
            try:
                yield from self._walk_over(what, last)
            except StoreError:
                self._walks.setdefault(what, last)
                raise

    def _walk_over(self, what: str, last: str) -> Job:
        number = 0
        walk = self._under(what, last)
        while not walk.is_over:
            yield from self._bring(walk.wanted)
            page = walk.page()
            for start in range(0, len(page), TOPICS_AT_ONCE):
                names = [TopicName.parse(text) for text in page[start : start + TOPICS_AT_ONCE]]
                absent = yield from self._prepared(names)
                for name, is_readable in absent.items():
                    if not is_readable:
                        raise StoreBusy(f"topic {name} cannot be read")
                    self._scheduler.isolated("housekeeping", name, self._walk_to, name)
                    yield None
                if what in self._walks:
                    return  # the policies changed once more
                number += len(names)
                if number >= WALK_SAVED_TOPICS:
                    number = 0
                    self._due.begin_walk(what, str(names[-1]))
                yield None
        self._due.end_walk(what)

    def _under(self, what: str, last: str) -> TopicNames:
        """Return the persistent topics of a namespace, behind ``last``, or a topic with its partitions."""
        if "://" not in what:
            return self._topics.walk(what, persistent=True, after=last)
        name = TopicName.parse(what)
        partitions = (str(name.partition_name(index)) for index in range(self._topics.partition_count(name)))
        return ListedTopicNames([what, *partitions])

    def _walk_to(self, name: TopicName) -> None:
        topic = self._load(name)
        if topic is not None:
            self._care_for(topic)
