"""Topics: creation, deletion, messages, and statistics."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.exchange import make_request, namespace_path, part, topic_name, topic_path
from geminga.client.admin.messages import Moment, entry_of, id_json, id_of, messages_of, milliseconds
from geminga.client.admin.types import InternalStats, LongRunningProcessStatus, Messages, Names, TopicStats
from geminga.config import check_choice, check_int
from geminga.errors import AdminConflict
from geminga.ids import MessageId, TopicName

Topic = str | TopicName


class Topics(AdminSection):
    """Topics, partitioned or not. Unless a method says otherwise, it acts on a partitioned topic as a
    whole."""

    # --- creation and deletion ---
    async def list(self, namespace: str, *, persistent: bool = True) -> Names:
        """Return the topics of ``tenant/namespace`` that hold messages: each partition, not the partitioned
        topic."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}"
        return list(await self._calls.get_any(tuple[str, ...], path) or ())

    async def list_partitioned(self, namespace: str, *, persistent: bool = True) -> Names:
        """Return the partitioned topics of ``tenant/namespace``."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}/partitioned"
        return list(await self._calls.get_any(tuple[str, ...], path) or ())

    async def create(
        self, topic: Topic, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, unpartitioned if ``partitions`` is 0. Raises `AdminConflict`."""
        check_int("partitions", partitions, 0)
        if not partitions:
            await self._calls.call("PUT", topic_path(topic), dict(properties or {}))
            return
        await self._calls.call("PUT", f"{topic_path(topic)}/partitions", partitions)
        if properties:
            await self.update_properties(topic, properties)

    async def delete(self, topic: Topic, *, force: bool = False) -> None:
        """Delete a topic with its messages and subscriptions; with ``force`` also while clients are
        connected."""
        suffix = "/partitions" if await self.partitions(topic) else ""
        await self._calls.call("DELETE", f"{topic_path(topic)}{suffix}", query={"force": force})

    async def partitions(self, topic: Topic) -> int:
        """Return the number of partitions; 0: the topic is not partitioned, or does not exist."""
        found = await self._calls.call("GET", f"{topic_path(topic)}/partitions")
        return int((found or {}).get("partitions", 0))

    async def update_partitions(self, topic: Topic, partitions: int) -> None:
        """Increase the number of partitions to ``partitions``. Raises `AdminError` for fewer than there
        are."""
        check_int("partitions", partitions, 1)
        await self._calls.call("POST", f"{topic_path(topic)}/partitions", partitions)

    async def create_missed_partitions(self, topic: Topic) -> None:
        """Create those partitions of a partitioned topic that do not exist."""
        await self._calls.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    async def names(self, topic: Topic) -> Names:
        """Return the names of a topic's partitions, or its own name if it is not partitioned."""
        name, count = topic_name(topic), await self.partitions(topic)
        return [str(name.partition_name(index)) for index in range(count)] if count else [str(name)]

    async def unload(self, topic: Topic) -> None:
        """Close a topic on its broker; clients look it up again and reconnect."""
        await self._calls.call("PUT", f"{topic_path(topic)}/unload")

    async def terminate(self, topic: Topic) -> Mapping[str, MessageId]:
        """Refuse further messages; return the last message of the topic, or of each of its partitions."""
        name, path = topic_name(topic), topic_path(topic)
        if not await self.partitions(name):
            return {str(name): id_of(await self._calls.call("POST", f"{path}/terminate"))}
        found = await self._calls.call("POST", f"{path}/terminate/partitions")
        return {str(name.partition_name(int(index))): id_of(last) for index, last in found.items()}

    async def truncate(self, topic: Topic) -> None:
        """Delete all messages, acknowledged or not."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/truncate")

    async def trim(self, topic: Topic) -> None:
        """Delete now the messages that all subscriptions acknowledged and that exceed the retention."""
        await self._calls.call("POST", f"{topic_path(topic)}/trim")

    # --- messages and statistics ---
    async def stats(self, topic: Topic) -> TopicStats:
        """Return rates, sizes, producers and subscriptions; of a partitioned topic the sums and each
        partition."""
        path = topic_path(topic)
        if await self.partitions(topic):
            return await self._calls.get(TopicStats, f"{path}/partitioned-stats", perPartition=True)
        return await self._calls.get(
            TopicStats, f"{path}/stats", getPreciseBacklog=True, subscriptionBacklogSize=True
        )

    async def internal_stats(self, topic: Topic) -> InternalStats:
        """Return ledgers and cursors of an unpartitioned topic, or of one partition."""
        return await self._calls.get(InternalStats, f"{topic_path(topic)}/internalStats")

    async def last_message_id(self, topic: Topic) -> MessageId:
        """Return the id of the newest message of an unpartitioned topic, or of one partition."""
        return id_of(await self._calls.call("GET", f"{topic_path(topic)}/lastMessageId"))

    async def message_id_at(self, topic: Topic, when: Moment) -> MessageId:
        """Return the id of the first message published at a time or later: a datetime with a time zone,
        milliseconds since 1970, or a timedelta back from now."""
        moment = milliseconds("when", when, time.time_ns() // 1_000_000)
        return id_of(await self._calls.call("GET", f"{topic_path(topic)}/messageid/{moment}"))

    async def messages_at(self, topic: Topic, message_id: MessageId) -> Messages:
        """Return the entry of an id: one message, or all of a batch."""
        path = f"{topic_path(topic)}/ledger/{int(message_id.ledger_id)}/entry/{int(message_id.entry_id)}"
        return await self._look(topic, path)

    async def examine(self, topic: Topic, nth: int = 1, *, start: str = "latest") -> Messages:
        """Return the nth entry counted from ``start``, ``earliest`` or ``latest``: one message, or all of a
        batch."""
        check_choice("start", start, ("earliest", "latest"))
        check_int("nth", nth, 1)
        query = {"initialPosition": start, "messagePosition": nth}
        return await self._look(topic, f"{topic_path(topic)}/examinemessage", query)

    async def _look(self, topic: Topic, path: str, query: Mapping[str, Any] | None = None) -> Messages:
        answer = await self._calls.send(make_request("GET", path, query=query))
        return messages_of(entry_of(answer, topic_name(topic).partition))

    async def backlog_size(self, topic: Topic, message_id: MessageId) -> int:
        """Return the number of bytes from a message to the end of the topic."""
        found = await self._calls.call("PUT", f"{topic_path(topic)}/backlogSize", id_json(message_id))
        return int(found)

    # --- compaction ---
    async def compact(self, topic: Topic) -> None:
        """Start compaction. Raises `AdminConflict` if it is running already."""
        await self._calls.call("PUT", f"{topic_path(topic)}/compaction")

    async def compaction_status(self, topic: Topic) -> LongRunningProcessStatus:
        """Return the status of the last compaction of an unpartitioned topic, or of one partition."""
        return await self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/compaction")

    async def offload(self, topic: Topic, up_to: MessageId) -> None:
        """Start to move the closed ledgers before a message to the broker's cheap storage; of an
        unpartitioned topic, or of one partition. Raises `AdminConflict` if that is running already."""
        await self._calls.call("PUT", f"{topic_path(topic)}/offload", id_json(up_to))

    async def offload_status(self, topic: Topic) -> LongRunningProcessStatus:
        """Return the status of the last offload of an unpartitioned topic, or of one partition."""
        return await self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/offload")

    # --- properties and permissions ---
    async def properties(self, topic: Topic) -> Mapping[str, str]:
        """Return the topic's properties."""
        return await self._calls.get_any(Mapping[str, str], f"{topic_path(topic)}/properties") or {}

    async def update_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Add or change properties; the others stay."""
        await self._calls.call("PUT", f"{topic_path(topic)}/properties", dict(properties))

    async def remove_property(self, topic: Topic, key: str) -> None:
        """Remove one property."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/properties", query={"key": key})

    async def permissions(self, topic: Topic) -> Mapping[str, tuple[str, ...]]:
        """Return the actions allowed to each role, by grants on the topic and its namespace."""
        path = f"{topic_path(topic)}/permissions"
        return await self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    async def grant(self, topic: Topic, role: str, actions: Iterable[str]) -> None:
        """Allow a role these actions (``produce``, ``consume``, ...) on the topic."""
        await self._calls.call("POST", f"{topic_path(topic)}/permissions/{part('role', role)}", list(actions))

    async def revoke(self, topic: Topic, role: str) -> None:
        """Remove a role's grants on the topic."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/permissions/{part('role', role)}")

    async def ensure(self, topic: Topic, *, partitions: int = 0) -> bool:
        """Create a topic if it does not exist; return whether it was created. An existing topic stays
        unchanged."""
        try:
            await self.create(topic, partitions=partitions)
        except AdminConflict:
            return False
        return True


def _domain(persistent: bool) -> str:
    return "persistent" if persistent else "non-persistent"
