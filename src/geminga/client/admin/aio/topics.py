"""Topics: their life, what they hold, and statistics."""

from __future__ import annotations

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
    """Topics, partitioned or not. Where nothing else is said, a partitioned topic is meant as a whole."""

    # --- life ---
    async def list(self, namespace: str, *, persistent: bool = True) -> Names:
        """The topics of ``tenant/namespace`` that hold messages: single partitions, not what they make up."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}"
        return list(await self._calls.get_any(tuple[str, ...], path) or ())

    async def list_partitioned(self, namespace: str, *, persistent: bool = True) -> Names:
        """The partitioned topics of ``tenant/namespace``."""
        path = f"{_domain(persistent)}/{namespace_path(namespace)}/partitioned"
        return list(await self._calls.get_any(tuple[str, ...], path) or ())

    async def create(
        self, topic: Topic, *, partitions: int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic; ``partitions`` 0 makes a plain one. Raises `AdminConflict`."""
        check_int("partitions", partitions, 0)
        if not partitions:
            await self._calls.call("PUT", topic_path(topic), dict(properties or {}))
            return
        await self._calls.call("PUT", f"{topic_path(topic)}/partitions", partitions)
        if properties:
            await self.update_properties(topic, properties)

    async def delete(self, topic: Topic, *, force: bool = False) -> None:
        """With its messages and subscriptions; ``force``: also with clients connected."""
        suffix = "/partitions" if await self.partitions(topic) else ""
        await self._calls.call("DELETE", f"{topic_path(topic)}{suffix}", query={"force": force})

    async def partitions(self, topic: Topic) -> int:
        """How many partitions a topic has; 0: it is not partitioned, or does not exist."""
        found = await self._calls.call("GET", f"{topic_path(topic)}/partitions")
        return int((found or {}).get("partitions", 0))

    async def update_partitions(self, topic: Topic, partitions: int) -> None:
        """Grow to so many partitions. Raises `AdminError` for fewer than there are."""
        check_int("partitions", partitions, 1)
        await self._calls.call("POST", f"{topic_path(topic)}/partitions", partitions)

    async def create_missed_partitions(self, topic: Topic) -> None:
        """Make those partitions of a partitioned topic that do not exist."""
        await self._calls.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    async def names(self, topic: Topic) -> Names:
        """The names of a topic's partitions, its own when it is not partitioned."""
        name, count = topic_name(topic), await self.partitions(topic)
        return [str(name.partition_name(index)) for index in range(count)] if count else [str(name)]

    async def unload(self, topic: Topic) -> None:
        """Have it closed; clients find it again, where it is loaded next."""
        await self._calls.call("PUT", f"{topic_path(topic)}/unload")

    async def terminate(self, topic: Topic) -> Mapping[str, MessageId]:
        """Take nothing in any more. The last message of the topic, or of each of its partitions."""
        name, path = topic_name(topic), topic_path(topic)
        if not await self.partitions(name):
            return {str(name): id_of(await self._calls.call("POST", f"{path}/terminate"))}
        found = await self._calls.call("POST", f"{path}/terminate/partitions")
        return {str(name.partition_name(int(index))): id_of(last) for index, last in found.items()}

    async def truncate(self, topic: Topic) -> None:
        """Delete all messages, acknowledged or not."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/truncate")

    async def trim(self, topic: Topic) -> None:
        """Delete now what is acknowledged by all and beyond its retention."""
        await self._calls.call("POST", f"{topic_path(topic)}/trim")

    # --- what it holds ---
    async def stats(self, topic: Topic) -> TopicStats:
        """Rates, sizes, producers and subscriptions; of a partitioned topic the sums and each partition."""
        path = topic_path(topic)
        if await self.partitions(topic):
            return await self._calls.get(TopicStats, f"{path}/partitioned-stats", perPartition=True)
        return await self._calls.get(
            TopicStats, f"{path}/stats", getPreciseBacklog=True, subscriptionBacklogSize=True
        )

    async def internal_stats(self, topic: Topic) -> InternalStats:
        """Ledgers and cursors of a plain topic, or of one partition."""
        return await self._calls.get(InternalStats, f"{topic_path(topic)}/internalStats")

    async def last_message_id(self, topic: Topic) -> MessageId:
        """The newest message of a plain topic or one partition."""
        return id_of(await self._calls.call("GET", f"{topic_path(topic)}/lastMessageId"))

    async def message_id_at(self, topic: Topic, when: Moment) -> MessageId:
        """The first message that was published at a time or later: a datetime with a time zone, milliseconds
        since 1970, or a timedelta back from now."""
        moment = milliseconds("when", when, time.time_ns() // 1_000_000)
        return id_of(await self._calls.call("GET", f"{topic_path(topic)}/messageid/{moment}"))

    async def messages_at(self, topic: Topic, message_id: MessageId) -> Messages:
        """The entry of an id: one message, or all of a batch."""
        path = f"{topic_path(topic)}/ledger/{int(message_id.ledger_id)}/entry/{int(message_id.entry_id)}"
        return await self._look(topic, path)

    async def examine(self, topic: Topic, nth: int = 1, *, start: str = "latest") -> Messages:
        """The nth entry counted from ``start``, the ``earliest`` or the ``latest``: one message, or all of a
        batch."""
        check_choice("start", start, ("earliest", "latest"))
        check_int("nth", nth, 1)
        query = {"initialPosition": start, "messagePosition": nth}
        return await self._look(topic, f"{topic_path(topic)}/examinemessage", query)

    async def _look(self, topic: Topic, path: str, query: Mapping[str, Any] | None = None) -> Messages:
        answer = await self._calls.send(make_request("GET", path, query=query))
        return messages_of(entry_of(answer, topic_name(topic).partition))

    async def backlog_size(self, topic: Topic, message_id: MessageId) -> int:
        """Bytes from a message on to the end."""
        found = await self._calls.call("PUT", f"{topic_path(topic)}/backlogSize", id_json(message_id))
        return int(found)

    # --- compaction ---
    async def compact(self, topic: Topic) -> None:
        """Begin to compact. Raises `AdminConflict` when that is under way."""
        await self._calls.call("PUT", f"{topic_path(topic)}/compaction")

    async def compaction_status(self, topic: Topic) -> LongRunningProcessStatus:
        """What became of the last compaction of a plain topic, or of one partition."""
        return await self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/compaction")

    async def offload(self, topic: Topic, up_to: MessageId) -> None:
        """Begin to move the closed ledgers before a message to the broker's cheap storage; of a plain topic,
        or of one partition. Raises `AdminConflict` when that is under way."""
        await self._calls.call("PUT", f"{topic_path(topic)}/offload", id_json(up_to))

    async def offload_status(self, topic: Topic) -> LongRunningProcessStatus:
        """What became of the last offload of a plain topic, or of one partition."""
        return await self._calls.get(LongRunningProcessStatus, f"{topic_path(topic)}/offload")

    # --- properties and permissions ---
    async def properties(self, topic: Topic) -> Mapping[str, str]:
        """What the topic was labelled with."""
        return await self._calls.get_any(Mapping[str, str], f"{topic_path(topic)}/properties") or {}

    async def update_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Add or change these; the others stay."""
        await self._calls.call("PUT", f"{topic_path(topic)}/properties", dict(properties))

    async def remove_property(self, topic: Topic, key: str) -> None:
        """Take one away."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/properties", query={"key": key})

    async def permissions(self, topic: Topic) -> Mapping[str, tuple[str, ...]]:
        """What each role may do, by grants to the topic and to its namespace."""
        path = f"{topic_path(topic)}/permissions"
        return await self._calls.get_any(Mapping[str, tuple[str, ...]], path) or {}

    async def grant(self, topic: Topic, role: str, actions: Iterable[str]) -> None:
        """Let a role do these (``produce``, ``consume``, ...) in the topic."""
        await self._calls.call("POST", f"{topic_path(topic)}/permissions/{part('role', role)}", list(actions))

    async def revoke(self, topic: Topic, role: str) -> None:
        """Take from a role what it was granted in the topic."""
        await self._calls.call("DELETE", f"{topic_path(topic)}/permissions/{part('role', role)}")

    async def ensure(self, topic: Topic, *, partitions: int = 0) -> bool:
        """Make a topic unless it is there; whether it was made. What is there stays as it is."""
        try:
            await self.create(topic, partitions=partitions)
        except AdminConflict:
            return False
        return True


def _domain(persistent: bool) -> str:
    return "persistent" if persistent else "non-persistent"
