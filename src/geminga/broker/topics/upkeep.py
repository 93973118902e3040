"""Upkeep: what becomes due for topics by itself is done, in rounds and in slices of a round.

A round looks at the topics in memory that something happened to (`looks`), at those that are not in memory
and are due (`due`), and goes on walking over those whose policies have changed. It costs what is due, not
how many topics there are, and it leaves most of the time to others, however much is due.

To look at a topic is to expire, trim and check it (`maintenance`). One that nobody uses is deleted if that
is wanted, or leaves memory after a while; then the index knows when it is to be looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from itertools import chain
from typing import Final

from geminga.broker.refusal import Refused
from geminga.broker.rules.namespaces import Namespaces
from geminga.broker.rules.policies import Policies
from geminga.broker.topics import deadlines, maintenance
from geminga.broker.topics.loaded import LoadedTopics
from geminga.broker.topics.looks import MANY_TOPICS, ROUND_SECONDS, UNUSED_SECONDS, UNUSED_SECONDS_OF_MANY
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.ids import TopicName

log = logging.getLogger("geminga.broker")

SLICE_SECONDS: Final = 0.005
SLICE_TOPICS_MAX: Final = 500
"""A slice of a round ends at the first of these ..."""
PAUSE_SECONDS: Final = 0.01
"""... and the next one comes so much later: upkeep takes a third of the time at most."""
WALK_SAVED_TOPICS: Final = 1000
"""After a crash a walk goes on at most so many topics before where it was."""
_DAMAGED_AGAIN_MS: Final = 3_600_000
"""A topic that cannot be loaded is tried again after this."""
_INDEXED_KEY = "broker/due-index"

Steps = Generator[None, None, None]


class Upkeep:
    """See the module. It sets its own timers."""

    def __init__(self, services: TopicServices, topics: LoadedTopics, namespaces: Namespaces) -> None:
        self._services = services
        self._agenda = services.agenda
        self._due = services.due
        self._topics = topics
        self._namespaces = namespaces
        self._round: Steps | None = None
        self._walks = self._unfinished_walks()
        namespaces.watch(self._policies_changed)
        self._agenda.after(ROUND_SECONDS, self._slice, self)

    # --- rounds ---
    def _slice(self) -> None:
        """Go on with the round, or begin one."""
        clock = self._services.turns.clock
        end, left, pause = clock() + SLICE_SECONDS, SLICE_TOPICS_MAX, ROUND_SECONDS
        steps, self._round = self._round or self._begin_round(), None
        try:
            for _ in steps:
                left -= 1
                if not left or clock() >= end:
                    self._round, pause = steps, PAUSE_SECONDS
                    break
        finally:
            self._agenda.after(pause, self._slice, self)

    def _begin_round(self) -> Steps:
        """A step is a topic."""
        isolated = self._agenda.isolated
        for topic in self._services.looks.begin_round():
            isolated("housekeeping", topic, self._look, topic)
            yield
        for when_ms, text in self._due.due(self._agenda.now_ms):
            isolated("housekeeping", text, self._visit, text, when_ms)
            yield
        yield from self._walk()

    # --- topics in memory ---
    def _look(self, topic: Topic) -> None:
        try:
            self._keep(topic)
        finally:
            if self._topics.in_memory(topic.name) is topic and not topic.look_round:
                self._services.looks.plan(topic, UNUSED_SECONDS)  # it failed: once more

    def _keep(self, topic: Topic) -> None:
        agenda, looks = self._agenda, self._services.looks
        if isinstance(topic, PersistentTopic):
            maintenance.keep(topic)
        if not topic.idle:
            topic.last_used_ms = agenda.now_ms
            looks.plan(topic, self._seconds_until_due(topic))
            return
        unused_ms = agenda.now_ms - topic.last_used_ms
        loaded_seconds = agenda.now - topic.loaded_at
        if maintenance.is_inactive(topic):
            log.info("%r: deleted, it has been inactive for %d s", topic, unused_ms // 1000)
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
        """When the topic, which is in use, is to be looked at even if nothing happens."""
        if not isinstance(topic, PersistentTopic):
            return UNUSED_SECONDS
        due_ms = min(deadlines.settle(topic, leaving=False), maintenance.readers_due(topic))
        return (due_ms - self._agenda.now_ms) / 1000

    # --- topics that are not in memory ---
    def _visit(self, text: str, when_ms: int) -> None:
        """The index says that a topic is due."""
        name = TopicName.parse(text)
        if self._topics.in_memory(name) is not None:
            return  # it is looked after already; its key is for the next start
        topic: Topic | None = None
        try:
            topic = self._load(name)
        finally:
            if topic is None and self._topics.is_stored(name):
                self._due.postpone(text, when_ms, self._agenda.now_ms + _DAMAGED_AGAIN_MS)
            elif topic is None or topic.record.due_ms != when_ms:
                self._due.disarm(text, when_ms)  # of a topic that was deleted, or left by a crash
        if topic is not None:
            self._care_for(topic)

    def _load(self, name: TopicName) -> Topic | None:
        try:
            return self._topics.find(name)
        except Refused as refused:
            log.error("topic %s cannot be looked after: %s", name, refused)
            return None

    def _care_for(self, topic: Topic) -> None:
        """Look at a topic that was loaded for this, and let it go."""
        if isinstance(topic, PersistentTopic):
            maintenance.keep(topic)
        if maintenance.is_inactive(topic):
            log.info("%r: deleted, it has been inactive", topic)
            self._topics.delete_topic(topic.name, None)
        elif topic.idle:
            self._topics.let_go(topic)

    # --- policies that changed ---
    def _policies_changed(self, namespace: str, base: TopicName | None, before: Policies | None) -> None:
        """See that the topics are looked at for which something may be due now that was not."""
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

    def _unfinished_walks(self) -> dict[str, str]:
        walks = dict(self._due.walks())
        store = self._services.store
        if store.get(_INDEXED_KEY) is None:
            # Topics of before there was an index are not in it.
            for namespace in self._namespaces.all_namespaces():
                self._due.begin_walk(namespace)
                walks[namespace] = ""
            store.put(_INDEXED_KEY, b"1")
        return walks

    def _walk(self) -> Steps:
        """Look at the topics under policies that changed."""
        while self._walks:
            what, last = next(iter(self._walks.items()))
            del self._walks[what]
            yield from self._walk_over(what, last)

    def _walk_over(self, what: str, last: str) -> Steps:
        for number, text in enumerate(self._under(what, last), 1):
            self._agenda.isolated("housekeeping", text, self._walk_to, text)
            yield
            if what in self._walks:
                return  # the policies changed once more
            if number % WALK_SAVED_TOPICS == 0:
                self._due.begin_walk(what, text)
        self._due.end_walk(what)

    def _under(self, what: str, last: str) -> Iterator[str]:
        """The persistent topics of a namespace, behind ``last``, or a topic with its partitions."""
        if "://" not in what:
            return self._topics.walk(what, persistent=True, after=last)
        name = TopicName.parse(what)
        partitions = (str(name.partition_name(index)) for index in range(self._topics.partition_count(name)))
        return chain((what,), partitions)

    def _walk_to(self, text: str) -> None:
        name = TopicName.parse(text)
        if self._topics.in_memory(name) is None:
            topic = self._load(name)
            if topic is not None:
                self._care_for(topic)
