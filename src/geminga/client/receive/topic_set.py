"""Topics that a consumer reads: a topic, a list, or all that match a pattern, with their partitions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from geminga.client.handles.context import ClientContext
from geminga.consumer.settings import RegexSubscriptionMode
from geminga.errors import InvalidTopicName
from geminga.ids import TopicName
from geminga.wire.proto import pulsar_wire_pb2 as pb

_MODES = {
    RegexSubscriptionMode.PersistentOnly: pb.CommandGetTopicsOfNamespace.PERSISTENT,
    RegexSubscriptionMode.NonPersistentOnly: pb.CommandGetTopicsOfNamespace.NON_PERSISTENT,
    RegexSubscriptionMode.AllTopics: pb.CommandGetTopicsOfNamespace.ALL,
}


class SubscribedPart(NamedTuple):
    """A topic to subscribe to: a partition, or an unpartitioned topic (-1)."""

    topic: str
    partition: int


class TopicPattern(NamedTuple):
    """A pattern over the local names of one namespace.

    The text is ``[domain://][tenant/namespace/]regular expression``; it must match a topic's whole local
    name, without the partition suffix.
    """

    namespace: str
    local: re.Pattern[str]

    @staticmethod
    def parse(pattern: re.Pattern[str]) -> TopicPattern:
        """Parse a pattern. Raises `InvalidTopicName` if tenant and namespace are not plain text."""
        _, separator, rest = pattern.pattern.partition("://")
        rest = rest if separator else pattern.pattern
        parts = rest.split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) != 3:
            raise InvalidTopicName(
                f"pattern {pattern.pattern!r} needs the form [persistent://]tenant/namespace/expression"
            )
        tenant, namespace, local = parts
        TopicName.parse(f"{tenant}/{namespace}/x")
        return TopicPattern(f"{tenant}/{namespace}", re.compile(local, pattern.flags))

    def matches(self, topic: TopicName) -> bool:
        return self.local.fullmatch(topic.base.local) is not None


class TopicSet:
    """Set of topics; `current` returns the existing parts, including partitions and topics added later."""

    def __init__(
        self,
        context: ClientContext,
        topics: str | Sequence[str] | re.Pattern[str],
        mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
    ) -> None:
        self._context = context
        self._mode = mode
        self.pattern: TopicPattern | None = None
        self.topics: list[str] = []
        if isinstance(topics, re.Pattern):
            self.pattern = TopicPattern.parse(topics)
            self.text = topics.pattern
        else:
            names = [topics] if isinstance(topics, str) else list(topics)
            self.topics = list(dict.fromkeys(str(TopicName.parse(name)) for name in names))
            self.text = ", ".join(self.topics)
        self.partition_counts: dict[str, int] = {}

    @property
    def can_grow(self) -> bool:
        """False for a single unpartitioned topic: there is nothing to look for again."""
        return self.pattern is not None or any(self.partition_counts.values())

    def unasked(self) -> list[SubscribedPart]:
        """Return the only topic, where it may be opened as if it had no partitions; else nothing."""
        if self.pattern or len(self.topics) != 1 or not self._context.opens_unasked(self.topics[0]):
            return []
        return [SubscribedPart(self.topics[0], TopicName.parse(self.topics[0]).partition)]

    async def current(self) -> list[SubscribedPart]:
        """Return the parts in the order of topics and partitions."""
        if self.pattern is not None:
            return await self._matching(self.pattern)
        parts: list[SubscribedPart] = []
        for topic in self.topics:
            name = TopicName.parse(topic)
            count, is_new = 0, topic not in self.partition_counts
            if name.partition < 0:
                count = await self._context.partitions(topic, opening=is_new)
            # Partitions never become fewer; a smaller number is a temporary error.
            count = self.partition_counts[topic] = max(count, self.partition_counts.get(topic, 0))
            if count == 0:
                parts.append(SubscribedPart(topic, name.partition))
            else:
                parts += [SubscribedPart(str(name.partition_name(index)), index) for index in range(count)]
        return parts

    async def _matching(self, pattern: TopicPattern) -> list[SubscribedPart]:
        answer = await self._context.topics_of_namespace(pattern.namespace, _MODES[self._mode])
        names = [TopicName.parse(text) for text in answer.topics]
        matching = [name for name in names if not name.local.startswith("__") and pattern.matches(name)]
        return [SubscribedPart(str(name), name.partition) for name in sorted(matching, key=str)]
