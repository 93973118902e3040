"""Overview of all topics, one row each, also of those without subscriptions; partitions share a row.

The scan is that of `subscription_overview`, which visits the topics in memory and the stored cursors,
followed by the names of the other stored topics. Cells of the rows shown are computed at each request.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from geminga.broker.admin.facts import facts_of, rate_published, trouble
from geminga.broker.admin.subscription_overview import (
    PARTITIONS_SUMMED_MAX,
    Json,
    OverviewCache,
    ScanPacing,
    SubscriptionOverview,
    SubscriptionRow,
    SubscriptionScan,
    rate_delivered,
)
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import PARTITIONED
from geminga.broker.topics.topic import Topic
from geminga.diagnosis.conclude import Trouble, diagnose
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

TOPIC_SORTS: Final = ("name", "trouble", "in", "out", "stored", "subscriptions")
DIAGNOSED_MAX: Final = 200
"""Subscriptions of a row that are read for its worst state."""
_NAMES_AT_ONCE: Final = 256
_PARTS_SEARCHED_MAX: Final = 8
"""Longest list of partitions that is searched without a set, which 100,000 topics would have each."""
_NO_NAMES: Final[set[str]] = set()
"""Empty set that all rows without subscriptions share; never modified."""


@dataclass(slots=True, eq=False)
class TopicRow(SubscriptionRow):
    """One topic with all partitions. ``stored`` is in bytes, of the partitions in memory."""

    names: set[str] = field(default_factory=lambda: _NO_NAMES)
    """Subscriptions."""
    published: float = 0.0
    stored: int = 0
    _seen: set[str] | None = None
    """``parts`` of a topic with many."""

    def add(self, topic: str, level: Trouble, entries: int, waiting: int) -> None:
        has_part = self.has(topic)
        SubscriptionRow.add(self, topic, level, entries, waiting)
        if has_part:
            self.parts.pop()
        elif self._seen is not None:
            self._seen.add(topic)
        elif len(self.parts) > _PARTS_SEARCHED_MAX:
            self._seen = set(self.parts)

    def has(self, topic: str) -> bool:
        """Return whether a partition is in ``parts``."""
        return topic in (self.parts if self._seen is None else self._seen)

    def name(self, subscription: str) -> None:
        """Add a subscription to ``names``."""
        if not self.names:
            self.names = set()
        self.names.add(subscription)


_KEYS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda row: row.topic,
    "trouble": lambda row: (-row.level, -row.waiting, row.topic),
    "in": lambda row: (-row.published, row.topic),
    "out": lambda row: (-row.rate_out, row.topic),
    "stored": lambda row: (-row.stored, row.topic),
    "subscriptions": lambda row: (-len(row.names), row.topic),
}


class TopicScans(OverviewCache):
    """The scans of topics for one search, which matches the topic's name only."""

    row_type = TopicRow

    def _is_wanted(self, topic: str, subscription: str, kind: str) -> bool:
        return super()._is_wanted(topic, "", "")

    def _line(self, survey: SubscriptionScan, topic: str, subscription: str) -> SubscriptionRow:
        row = super()._line(survey, topic, "")
        if subscription and isinstance(row, TopicRow):
            row.name(subscription)
        return row

    def _note(self, survey: SubscriptionScan, topic: str) -> TopicRow:
        """Return the row of a topic or partition, which may have no subscription."""
        row = self._line(survey, topic, "")
        assert isinstance(row, TopicRow)
        if not row.has(topic):
            row.add(topic, Trouble.NOTHING_WAITS, 0, 0)
        return row

    def _walk(self, survey: SubscriptionScan) -> Iterator[None]:
        yield from super()._walk(survey)
        now = self._broker.scheduler.now
        for number, topic in enumerate(self._broker.topics.in_memory_now(), 1):
            if self._is_wanted(topic.text, "", ""):
                row = self._note(survey, topic.text)
                row.published += rate_published(topic, now)
                row.stored += topic.ledger.size_bytes if isinstance(topic, PersistentTopic) else 0
            if number % _NAMES_AT_ONCE == 0:
                yield None
        for kind in (topic_key(""), PARTITIONED):
            for number, key in enumerate(self._broker.store.keys.names(kind), 1):
                if self._is_wanted(name := key[len(kind) :], "", ""):
                    self._note(survey, name)
                if number % _NAMES_AT_ONCE == 0:
                    yield None


class TopicOverview(SubscriptionOverview):
    """Cached overviews of topics by search."""

    keys = _KEYS

    def _cache(self, search: str, pace: ScanPacing | None) -> OverviewCache:
        return TopicScans(self._broker, search, pace)

    def _row(self, line: SubscriptionRow, survey: SubscriptionScan) -> Json:
        now = self._broker.scheduler.now
        base = TopicName.parse(line.topic)
        parts = [each for each in line.parts if each != line.topic] or [line.topic]
        found = [self._in_memory(text) for text in parts[:PARTITIONS_SUMMED_MAX]]
        awake = [each for each in found if each is not None]
        stored = 0
        for text, topic in zip(parts, found, strict=False):
            stored += self._stored_bytes(text, topic)
        names = line.names if isinstance(line, TopicRow) else set()
        row: Json = {
            "topic": line.topic,
            "partitions": self._partitions(base),
            "awake": bool(awake),
            "rateIn": sum(rate_published(topic, now) for topic in awake),
            "rateOut": sum(rate_delivered(each, now) for topic in awake for each in _consumers(topic)),
            "producers": len({each.name for topic in awake for each in topic.access.producers.values()}),
            "stored": stored,
            "subscriptions": len(names),
            "schema": self._schema(base),
            "compacted": any(isinstance(each, PersistentTopic) and each.compacted for each in awake),
            "trouble": line.level,
            "worst": "",
            "sentence": "",
        }
        return row | self._worst(awake)

    def _worst(self, awake: list[Topic]) -> Json:
        worst: tuple[Trouble, PersistentTopic, PersistentSubscription] | None = None
        left = DIAGNOSED_MAX
        for topic in awake:
            for subscription in [*topic.subscriptions.values()][:left]:
                left -= 1
                if not isinstance(topic, PersistentTopic) or subscription.name == COMPACTION:
                    continue
                if isinstance(subscription, PersistentSubscription):
                    level = trouble(topic, subscription)
                    if worst is None or level > worst[0]:
                        worst = level, topic, subscription
        if worst is None:
            return {}
        level, topic, subscription = worst
        sentence = diagnose(facts_of(topic, subscription, self._broker.disk.refusal)).sentence
        return {"trouble": level, "worst": subscription.name, "sentence": sentence}

    def _in_memory(self, text: str) -> Topic | None:
        return self._broker.topics.in_memory(TopicName.parse(text))

    def _stored_bytes(self, text: str, topic: Topic | None) -> int:
        if topic is not None:
            return topic.ledger.size_bytes if isinstance(topic, PersistentTopic) else 0
        try:
            return sum(each.size_bytes for each in self._broker.store.ledgers(text))
        except StoreError:
            return 0

    def _partitions(self, base: TopicName) -> int:
        try:
            return self._broker.topics.partitioned.count(base)
        except StoreError:
            return 0

    def _schema(self, base: TopicName) -> str:
        """Return the type of the topic's newest schema; empty without one."""
        try:
            found = self._broker.schemas.latest(base)
        except StoreError:
            return ""
        return "" if found is None else pb.Schema.Type.Name(found[1].type)


def _consumers(topic: Topic) -> Iterator[Any]:
    for subscription in topic.subscriptions.values():
        yield from subscription.consumers
