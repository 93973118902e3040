"""Topics: creation, deletion, messages, and statistics.

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
    """Topics, partitioned or not. Unless a method says otherwise, it acts on a partitioned topic as a
    whole."""

    def list(self, namespace: str, *, persistent: bool = True) -> Names:
        """Return the topics of ``tenant/namespace`` that hold messages: each partition, not the partitioned
        topic."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}"
        return list(self._calls.get_any(tuple[str, ...], path) or ())

    def list_partitioned(self, namespace: str, *, persistent: bool = True) -> Names:
        """Return the partitioned topics of ``tenant/namespace``."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}/partitioned"
        return list(self._calls.get_any(tuple[str, ...], path) or ())

    def create(
        self, topic: Topic, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, unpartitioned if ``partitions`` is 0. Raises `AdminConflict`."""
        check_int("partitions", partitions, 0)
        if not partitions:
            self._calls.call("PUT", topic_path(topic), dict(properties or {}))
            return
        self._calls.call("PUT", f"{topic_path(topic)}/partitions", partitions)
        if properties:
            self.update_properties(topic, properties)

    def delete(self, topic: Topic, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions; with ``force`` also while clients are
        connected."""
        suffix = "/partitions" if self.partitions(topic) else ""
        self._calls.call("DELETE", f"{topic_path(topic)}{suffix}", query={"force": force})

    def partitions(self, topic: Topic) -> int:
        """Return the number of partitions; 0: the topic is not partitioned, or does not exist."""
        found = self._calls.call("GET", f"{topic_path(topic)}/partitions")
        return int((found or {}).get("partitions", 0))

    def update_partitions(self, topic: Topic, partitions: int) -> None:
        """Increase the number of partitions to ``partitions``. Raises `AdminError` for fewer than there
        are."""
        check_int("partitions", partitions, 1)
        self._calls.call("POST", f"{topic_path(topic)}/partitions", partitions)

    def create_missed_partitions(self, topic: Topic) -> None:
        """Create those partitions of a partitioned topic that do not exist."""
        self._calls.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    def names(self, topic: Topic) -> Names:
        """Return the names of a topic's partitions, or its own name if it is not partitioned."""
        name, count = (topic_name(topic), self.partitions(topic))
        return [str(name.partition_name(index)) for index in range(count)] if count else [str(name)]

    def unload(self, topic: Topic) -> None:
        """Close a topic on its broker; clients look it up again and reconnect."""
        self._calls.call("PUT", f"{topic_path(topic)}/unload")

    def terminate(self, topic: Topic) -> Mapping[str, MessageId]:
        """Refuse further messages; return the last message of the topic, or of each of its partitions."""
        name, path = (topic_name(topic), topic_path(topic))
        if not self.partitions(name):
            return {str(name): id_of(self._calls.call("POST", f"{path}/terminate"))}
        found = self._calls.call("POST", f"{path}/terminate/partitions")
        return {str(name.partition_name(int(index))): id_of(last) for index, last in found.items()}

    def truncate(self, topic: Topic) -> None:
        """Delete all messages, acknowledged or not."""
        self._calls.call("DELETE", f"{topic_path(topic)}/truncate")

    def trim(self, topic: Topic) -> None:
        """Delete now the messages that all subscriptions acknowledged and that exceed the retention."""
        self._calls.call("POST", f"{topic_path(topic)}/trim")

    def stats(self, topic: Topic) -> TopicStats:
        """Return rates, sizes, producers and subscriptions; of a partitioned topic the sums and each
        partition."""
        path = topic_path(topic)
        if self.partitions(topic):
            return self._calls.get(TopicStats, f"{path}/partitioned-stats", perPartition=True)
        return self._calls.get(
            TopicStats, f"{path}/stats", getPreciseBacklog=True, subscriptionBacklogSize=True
        )

    def internal_stats(self, topic: Topic) -> InternalStats:
        """Return ledgers and cursors of an unpartitioned topic, or of one partition."""
        return self._calls.get(InternalStats, f"{topic_path(topic)}/internalStats")

    def last_message_id(self, topic: Topic) -> MessageId:
        """Return the id of the newest message of an unpartitioned topic, or of one partition."""
        return id_of(self._calls.call("GET", f"{topic_path(topic)}/lastMessageId"))

    def message_id_at(self, topic: Topic, when: Moment) -> MessageId:
        """Return the id of the first message published at a time or later: a datetime with a time zone,
        milliseconds since 1970, or a timedelta back from now."""
        moment = milliseconds("when", when, time.time_ns() // 1000000)
        return id_of(self._calls.call("GET", f"{topic_path(topic)}/messageid/{moment}"))

    def messages_at(self, topic: Topic, message_id: MessageId) -> Messages:
        """Return the entry of an id: one message, or all of a batch."""
        path = f"{topic_path(topic)}/ledger/{int(message_id.ledger_id)}/entry/{int(message_id.entry_id)}"
        return self._look(topic, path)

    def examine(self, topic: Topic, nth: int = 1, *, start: str = "latest") -> Messages:
        """Return the nth entry counted from ``start``, ``earliest`` or ``latest``: one message, or all of a
        batch."""
        check_choice("start", start, ("earliest", "latest"))
        check_int("nth", nth, 1)
        query = {"initialPosition": start, "messagePosition": nth}
        return self._look(topic, f"{topic_path(topic)}/examinemessage", query)

    def _look(self, topic: Topic, path: str, query: Mapping[str, Any] | None = None) -> Messages:
        answer = self._calls.send(make_request("GET", path, query=query))
        return messages_of(entry_of(answer, topic_name(topic).partition))

    def backlog_size(self, topic: Topic, message_id: MessageId) -> int:
        """Return the number of bytes from a message to the end of the topic."""
        found = self._calls.call("PUT", f"{topic_path(topic)}/backlogSize", id_json(message_id))
        return int(found)

    def compact(self, topic: Topic) -> None:
        """Start compaction. Raises `AdminConflict` if it is running already."""
        self._calls.call("PUT", f"{topic_path(topic)}/compaction")

    def compaction_status(self, topic: Topic) -> LongRunningProcessStatus:
        """Return the status of the last compaction of an unpartitioned topic, or of one partition."""
        return self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/compaction")

    def offload(self, topic: Topic, up_to: MessageId) -> None:
        """Start to move the closed ledgers before a message to the broker's cheap storage; of an
        unpartitioned topic, or of one partition. Raises `AdminConflict` if that is running already."""
        self._calls.call("PUT", f"{topic_path(topic)}/offload", id_json(up_to))

    def offload_status(self, topic: Topic) -> LongRunningProcessStatus:
        """Return the status of the last offload of an unpartitioned topic, or of one partition."""
        return self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/offload")

    def properties(self, topic: Topic) -> Mapping[str, str]:
        """Return the topic's properties."""
        return self._calls.get_any(Mapping[str, str], f"{topic_path(topic)}/properties") or {}

    def update_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Add or change properties; the others stay."""
        self._calls.call("PUT", f"{topic_path(topic)}/properties", dict(properties))

    def remove_property(self, topic: Topic, key: str) -> None:
        """Remove one property."""
        self._calls.call("DELETE", f"{topic_path(topic)}/properties", query={"key": key})

    def permissions(self, topic: Topic) -> Mapping[str, tuple[str, ...]]:
        """Return the actions allowed to each role, by grants on the topic and its namespace."""
        path = f"{topic_path(topic)}/permissions"
        return self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    def grant(self, topic: Topic, role: str, actions: Iterable[str]) -> None:
        """Allow a role these actions (``produce``, ``consume``, ...) on the topic."""
        self._calls.call("POST", f"{topic_path(topic)}/permissions/{part('role', role)}", list(actions))

    def revoke(self, topic: Topic, role: str) -> None:
        """Remove a role's grants on the topic."""
        self._calls.call("DELETE", f"{topic_path(topic)}/permissions/{part('role', role)}")

    def ensure(self, topic: Topic, *, partitions: int = 0) -> bool:
        """Create a topic if it does not exist; return whether it was created. An existing topic stays
        unchanged."""
        try:
            self.create(topic, partitions=partitions)
        except AdminConflict:
            return False
        return True


def _domain(persistent: bool) -> str:
    return "persistent" if persistent else "non-persistent"
