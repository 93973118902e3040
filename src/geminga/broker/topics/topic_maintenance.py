"""Automatic maintenance of topics in rounds of background work.

A round checks the topics that are due (`expiry_index`), in memory and not, and continues walks over topics
whose policies have changed. Its cost depends on the topics that are due, not on all. Topics that are not in
memory are read ahead, many at a time.

A check expires, trims and compacts or offloads a topic (`expiry`). An unused topic is deleted if its policies
want it, or leaves memory after a while; then the index schedules its next check.

All topics are walked over if the settings with the defaults of policies are not those of the last start or
change.
"""

import logging
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from geminga.broker.rules.effective_policies import POLICY_SETTINGS, Policies
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.runtime.background_jobs import start_in_background
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics import deadlines, expiry
from geminga.broker.topics.expiry_index import PLANNED_MS_MAX, Due
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.record import encode_json
from geminga.broker.topics.topic import ROUND_SECONDS, UNUSED_SECONDS, Topic, TopicServices
from geminga.broker.topics.topic_names import ListedTopicNames, TopicNames
from geminga.broker.topics.topic_registry import TopicRegistry
from geminga.errors import StoreBusy, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import PrefetchRequest

log = logging.getLogger("geminga.broker")

UNUSED_SECONDS_OF_MANY: Final = 5.0
"""Time after which a topic without clients leaves memory, instead of `UNUSED_SECONDS`, while there are more
topics in memory than ..."""
MANY_TOPICS: Final = 10_000
"""... this number: topics that are used once, one after another, do not fill the memory."""
TOPICS_AT_ONCE: Final = 32
"""Topics that are read ahead together."""
WALK_SAVED_TOPICS: Final = 1000
"""Topics that a walk repeats at most after a crash."""
RULES_KEY: Final = "broker/rules"
"""Key of the last values of `POLICY_SETTINGS`."""
_ALL: Final = ""
"""Name of the walk over all topics."""
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
        self._walks = dict(services.due.walks())
        namespaces.watchers.append(self._policies_changed)
        namespaces.settings_watchers.append(self._settings_changed)
        self._settings_changed()
        self._plan_round()

    def __repr__(self) -> str:
        return "upkeep"

    # --- rounds ---
    def _plan_round(self) -> None:
        self._scheduler.after(ROUND_SECONDS, self._begin_round, self)

    def _begin_round(self) -> None:
        start_in_background(self._scheduler, self._services.slices, self, self._round(), self._plan_round)

    def _round(self) -> Job:
        """Return a job with a step per topic."""
        for topic in self._due.take_planned(self._scheduler.now_ms):
            self._scheduler.isolated("housekeeping", topic, self._check, topic)
            yield None
        yield from self._visit_due()
        yield from self._walk()

    # --- one topic ---
    def _check(self, topic: Topic, *, is_visit: bool = False) -> None:
        """Maintain a topic and plan its next check; ``is_visit``: it was loaded for this."""
        seconds = UNUSED_SECONDS  # if something fails
        try:
            if isinstance(topic, PersistentTopic):
                expiry.keep(topic)
            seconds = self._seconds_until_unloaded(topic, is_visit) if topic.idle else self._use(topic)
        finally:
            planned_ms = min(int(seconds * 1000), PLANNED_MS_MAX)
            self._due.plan(topic, self._scheduler.now_ms + planned_ms)

    def _use(self, topic: Topic) -> float:
        """Record that a topic is in use; return the time until it is checked even if nothing happens."""
        topic.last_used_ms = self._scheduler.now_ms
        if not isinstance(topic, PersistentTopic):
            return UNUSED_SECONDS
        due_ms = min(deadlines.settle(topic, leaving=False), expiry.readers_due(topic))
        return (due_ms - self._scheduler.now_ms) / 1000

    def _seconds_until_unloaded(self, topic: Topic, is_visit: bool) -> float:
        """Delete an inactive topic, or unload it when it is time; return the time until then."""
        unused_seconds = (self._scheduler.now_ms - topic.last_used_ms) / 1000
        if expiry.is_inactive(topic):
            log.info("%r: deleted after %d s of inactivity", topic, unused_seconds)
            self._topics.delete_topic(topic.name, None)
            return UNUSED_SECONDS
        seconds = UNUSED_SECONDS_OF_MANY if self._topics.loaded_count > MANY_TOPICS else UNUSED_SECONDS
        seconds -= min(unused_seconds, self._scheduler.now - topic.loaded_at)
        if is_visit or seconds <= 0:
            self._topics.let_go(topic)
        return seconds

    # --- topics that are not in memory ---
    def _visit_due(self) -> Job:
        """Check the topics that are due by the keys of the index."""
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
                    yield from self._topics.prefetch(each)
            yield from self._visit_all(part)

    def _visit_all(self, part: Sequence[Due]) -> Job:
        """Check the topics not in memory; the keys of those in memory are kept for the next start."""
        names = {text: TopicName.parse(text) for _, text in part}
        absent = yield from self._prepared([*names.values()])
        for when_ms, text in part:
            is_readable = absent.get(names[text])
            if is_readable:
                self._scheduler.isolated("housekeeping", text, self._visit, names[text], when_ms)
                yield None
            elif is_readable is False:
                self._due.postpone(text, when_ms, self._scheduler.now_ms + _BUSY_AGAIN_MS)

    def _prepared(self, names: Sequence[TopicName]) -> Generator[bool | None, None, dict[TopicName, bool]]:
        """Load the topics that are not in memory; return for each whether it could be read."""
        absent = [name for name in names if self._topics.in_memory(name) is None]
        failed = yield from self._services.slices.wait(partial(self._topics.loader.prepare_all, absent))
        return {name: name not in failed for name in absent}

    def _visit(self, name: TopicName, when_ms: int = 0) -> None:
        """Load, check and unload a topic; ``when_ms`` is the time of its key in the index if that is due."""
        text = str(name)
        topic: Topic | None = None
        try:
            topic = self._topics.find(name)
        except Refused as refused:
            log.error("topic %s: maintenance failed: %s", name, refused)
        finally:
            if when_ms and topic is None and self._topics.is_stored(name):
                self._due.postpone(text, when_ms, self._scheduler.now_ms + _DAMAGED_AGAIN_MS)
            elif topic is None or topic.record.due_ms != when_ms:
                self._due.disarm(text, when_ms)  # of a topic that was deleted, or left by a crash
        if topic is not None:
            self._check(topic, is_visit=True)

    # --- policies that changed ---
    def _settings_changed(self) -> None:
        """Schedule checks of all topics if the settings are not those of the last checks."""
        settings, is_sure = self._namespaces.settings, self._namespaces.is_sure
        values = {name: getattr(settings, name) for name in POLICY_SETTINGS}
        rules = encode_json({"is_sure": is_sure, **values})
        value = self._services.store.keys.get(RULES_KEY)
        if value is None or value.lost is not None or value.base != rules:
            self._begin_walk(_ALL)
            self._services.store.keys.put(RULES_KEY, rules)

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
            page = yield from self._topics.turn_page(walk)
            for start in range(0, len(page), TOPICS_AT_ONCE):
                names = [TopicName.parse(text) for text in page[start : start + TOPICS_AT_ONCE]]
                absent = yield from self._prepared(names)
                for name, is_readable in absent.items():
                    if not is_readable:
                        raise StoreBusy(f"topic {name} cannot be read")
                    self._scheduler.isolated("housekeeping", name, self._visit, name)
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
        """Return the topics behind ``last`` of a namespace, or all, or a topic with its partitions."""
        if "://" not in what:
            return self._topics.walk(what, persistent=True, after=last)
        name = TopicName.parse(what)
        partitions = (
            str(name.partition_name(index)) for index in range(self._topics.partitioned.count(name))
        )
        return ListedTopicNames([what, *partitions])
