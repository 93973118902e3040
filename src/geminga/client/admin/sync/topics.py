"""Topics: their life, what they hold, and statistics.

Made of ``client/admin/aio/topics.py`` by ``tools/generate_sync.py``: do not edit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from geminga.client.admin.exchange import make_request, namespace_path, part, topic_name, topic_path
from geminga.client.admin.messages import Moment, entry_of, id_json, id_of, messages_of, milliseconds
from geminga.client.admin.sync.calls import AdminSection
from geminga.client.admin.types import InternalStats, LongRunningProcessStatus, Messages, Names, TopicStats
from geminga.config import check_choice, check_int
from geminga.errors import AdminConflict
from geminga.ids import MessageId, TopicName

Topic = str | TopicName


class Topics(AdminSection):
    """Topics, partitioned or not. Where nothing else is said, a partitioned topic is meant as a whole."""

    def list(self, namespace: str, *, persistent: bool = True) -> Names:
        """The topics of ``tenant/namespace`` that hold messages: single partitions, not what they make up."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}"
        return list(self._calls.get_any(tuple[str, ...], path) or ())

    def list_partitioned(self, namespace: str, *, persistent: bool = True) -> Names:
        """The partitioned topics of ``tenant/namespace``."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}/partitioned"
        return list(self._calls.get_any(tuple[str, ...], path) or ())

    def create(
        self, topic: Topic, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic; ``partitions`` 0 makes a plain one. Raises `AdminConflict`."""
        check_int("partitions", partitions, 0)
        if not partitions:
            self._calls.call("PUT", topic_path(topic), dict(properties or {}))
            return
        self._calls.call("PUT", f"{topic_path(topic)}/partitions", partitions)
        if properties:
            self.update_properties(topic, properties)

    def delete(self, topic: Topic, *, force: bool = False) -> None:
        """With its messages and subscriptions; ``force``: also with clients connected."""
        suffix = "/partitions" if self.partitions(topic) else ""
        self._calls.call("DELETE", f"{topic_path(topic)}{suffix}", query={"force": force})

    def partitions(self, topic: Topic) -> int:
        """How many partitions a topic has; 0: it is not partitioned, or does not exist."""
        found = self._calls.call("GET", f"{topic_path(topic)}/partitions")
        return int((found or {}).get("partitions", 0))

    def update_partitions(self, topic: Topic, partitions: int) -> None:
        """Grow to so many partitions. Raises `AdminError` for fewer than there are."""
        check_int("partitions", partitions, 1)
        self._calls.call("POST", f"{topic_path(topic)}/partitions", partitions)

    def create_missed_partitions(self, topic: Topic) -> None:
        """Make those partitions of a partitioned topic that do not exist."""
        self._calls.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    def names(self, topic: Topic) -> Names:
        """The names of a topic's partitions, its own when it is not partitioned."""
        name, count = (topic_name(topic), self.partitions(topic))
        return [str(name.partition_name(index)) for index in range(count)] if count else [str(name)]

    def unload(self, topic: Topic) -> None:
        """Have it closed; clients find it again, where it is loaded next."""
        self._calls.call("PUT", f"{topic_path(topic)}/unload")

    def terminate(self, topic: Topic) -> Mapping[str, MessageId]:
        """Take nothing in any more. The last message of the topic, or of each of its partitions."""
        name, path = (topic_name(topic), topic_path(topic))
        if not self.partitions(name):
            return {str(name): id_of(self._calls.call("POST", f"{path}/terminate"))}
        found = self._calls.call("POST", f"{path}/terminate/partitions")
        return {str(name.partition_name(int(index))): id_of(last) for index, last in found.items()}

    def truncate(self, topic: Topic) -> None:
        """Delete all messages, acknowledged or not."""
        self._calls.call("DELETE", f"{topic_path(topic)}/truncate")

    def trim(self, topic: Topic) -> None:
        """Delete now what is acknowledged by all and beyond its retention."""
        self._calls.call("POST", f"{topic_path(topic)}/trim")

    def stats(self, topic: Topic) -> TopicStats:
        """Rates, sizes, producers and subscriptions; of a partitioned topic the sums and each partition."""
        path = topic_path(topic)
        if self.partitions(topic):
            return self._calls.get(TopicStats, f"{path}/partitioned-stats", perPartition=True)
        return self._calls.get(
            TopicStats, f"{path}/stats", getPreciseBacklog=True, subscriptionBacklogSize=True
        )

    def internal_stats(self, topic: Topic) -> InternalStats:
        """Ledgers and cursors of a plain topic, or of one partition."""
        return self._calls.get(InternalStats, f"{topic_path(topic)}/internalStats")

    def last_message_id(self, topic: Topic) -> MessageId:
        """The newest message of a plain topic or one partition."""
        return id_of(self._calls.call("GET", f"{topic_path(topic)}/lastMessageId"))

    def message_id_at(self, topic: Topic, when: Moment) -> MessageId:
        """The first message that was published at a time or later: a datetime with a time zone, milliseconds
        since 1970, or a timedelta back from now."""
        moment = milliseconds("when", when, time.time_ns() // 1000000)
        return id_of(self._calls.call("GET", f"{topic_path(topic)}/messageid/{moment}"))

    def messages_at(self, topic: Topic, message_id: MessageId) -> Messages:
        """The entry of an id: one message, or all of a batch."""
        path = f"{topic_path(topic)}/ledger/{int(message_id.ledger_id)}/entry/{int(message_id.entry_id)}"
        return self._look(topic, path)

    def examine(self, topic: Topic, nth: int = 1, *, start: str = "latest") -> Messages:
        """The nth entry counted from ``start``, the ``earliest`` or the ``latest``: one message, or all of a
        batch."""
        check_choice("start", start, ("earliest", "latest"))
        check_int("nth", nth, 1)
        query = {"initialPosition": start, "messagePosition": nth}
        return self._look(topic, f"{topic_path(topic)}/examinemessage", query)

    def _look(self, topic: Topic, path: str, query: Mapping[str, Any] | None = None) -> Messages:
        answer = self._calls.send(make_request("GET", path, query=query))
        return messages_of(entry_of(answer, topic_name(topic).partition))

    def backlog_size(self, topic: Topic, message_id: MessageId) -> int:
        """Bytes from a message on to the end."""
        found = self._calls.call("PUT", f"{topic_path(topic)}/backlogSize", id_json(message_id))
        return int(found)

    def compact(self, topic: Topic) -> None:
        """Begin to compact. Raises `AdminConflict` when that is under way."""
        self._calls.call("PUT", f"{topic_path(topic)}/compaction")

    def compaction_status(self, topic: Topic) -> LongRunningProcessStatus:
        """What became of the last compaction of a plain topic, or of one partition."""
        return self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/compaction")

    def offload(self, topic: Topic, up_to: MessageId) -> None:
        """Begin to move the closed ledgers before a message to the broker's cheap storage; of a plain topic,
        or of one partition. Raises `AdminConflict` when that is under way."""
        self._calls.call("PUT", f"{topic_path(topic)}/offload", id_json(up_to))

    def offload_status(self, topic: Topic) -> LongRunningProcessStatus:
        """What became of the last offload of a plain topic, or of one partition."""
        return self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/offload")

    def properties(self, topic: Topic) -> Mapping[str, str]:
        """What the topic was labelled with."""
        return self._calls.get_any(Mapping[str, str], f"{topic_path(topic)}/properties") or {}

    def update_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Add or change these; the others stay."""
        self._calls.call("PUT", f"{topic_path(topic)}/properties", dict(properties))

    def remove_property(self, topic: Topic, key: str) -> None:
        """Take one away."""
        self._calls.call("DELETE", f"{topic_path(topic)}/properties", query={"key": key})

    def permissions(self, topic: Topic) -> Mapping[str, tuple[str, ...]]:
        """What each role may do, by grants to the topic and to its namespace."""
        path = f"{topic_path(topic)}/permissions"
        return self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    def grant(self, topic: Topic, role: str, actions: Iterable[str]) -> None:
        """Let a role do these (``produce``, ``consume``, ...) in the topic."""
        self._calls.call("POST", f"{topic_path(topic)}/permissions/{part('role', role)}", list(actions))

    def revoke(self, topic: Topic, role: str) -> None:
        """Take from a role what it was granted in the topic."""
        self._calls.call("DELETE", f"{topic_path(topic)}/permissions/{part('role', role)}")

    def ensure(self, topic: Topic, *, partitions: int = 0) -> bool:
        """Make a topic unless it is there; whether it was made. What is there stays as it is."""
        try:
            self.create(topic, partitions=partitions)
        except AdminConflict:
            return False
        return True


def _domain(persistent: bool) -> str:
    return "persistent" if persistent else "non-persistent"
