"""``.../partitioned`` and ``.../partitions``: partitioned topics."""

from __future__ import annotations

from functools import partial
from typing import Any

from aiohttp import web

from geminga.broker.admin.errors import AdminError
from geminga.broker.admin.http import (
    answer,
    answer_names,
    body,
    done_answer,
    message_id_json,
    part,
    query_flag,
    stepwise,
    topic_of,
    whole_number,
)
from geminga.broker.admin.stats import UNKNOWN
from geminga.broker.admin.topics import DOMAIN, PATH, TopicResource
from geminga.ids import TopicName


class PartitionedTopics(TopicResource):
    """A partitioned topic is a number under a name; its partitions are topics of their own."""

    def register(self, router: web.UrlDispatcher) -> None:
        router.add_get(f"{DOMAIN}/partitioned", self.names)
        path = f"{PATH}/partitions"
        router.add_get(path, self.get)
        router.add_put(path, self.create)
        router.add_post(path, self.grow)
        router.add_delete(path, self.delete)
        router.add_get(f"{PATH}/partitioned-stats", self.stats)
        router.add_get(f"{PATH}/partitioned-internalStats", self.internal_stats)
        router.add_post(f"{PATH}/createMissedPartitions", self.create_missed)
        router.add_post(f"{PATH}/terminate/partitions", self.terminate)

    async def names(self, request: web.Request) -> web.StreamResponse:
        """Names of the partitioned topics."""
        tenant, namespace, domain = (part(request, p) for p in ("tenant", "namespace", "domain"))
        self.namespaces.policies(tenant, namespace)
        persistent = domain == "persistent"
        walk = self.topics.walk_partitioned(f"{tenant}/{namespace}", persistent=persistent)
        return await answer_names(request, self.walk_names(walk))

    async def get(self, request: web.Request) -> web.Response:
        """How many partitions a topic has; 0: it is not partitioned. With ``?checkAllowAutoCreation=true`` it
        is made if policies allow it."""
        topic = topic_of(request)
        policies = self.namespaces.policies(topic.tenant, topic.namespace)
        if self.actions.exists(topic):
            count = self.actions.partitions(topic)
        elif query_flag(request, "checkAllowAutoCreation") and policies.auto_create_topics:
            count = policies.auto_create_partitions
            if count and topic.partition < 0:
                await self.durable(lambda done: self.actions.create_partitioned(topic, count, done))
        else:
            raise AdminError(404, f"Topic {topic} not found")
        return answer({"partitions": count, "deleted": False})

    async def create(self, request: web.Request) -> web.Response:
        """Make a partitioned topic. Body: the number, or ``partitions`` and ``properties``."""
        topic = topic_of(request)
        properties: dict[str, str] = {}
        wanted = await body(request)
        if isinstance(wanted, dict):
            # Newer clients send the number together with properties.
            properties = wanted.get("properties") or {}
            wanted = wanted.get("partitions")
        count = self._checked_count(wanted, 1)
        await self.durable(
            lambda done: self.actions.create_partitioned(topic, count, done, properties=properties)
        )
        return done_answer()

    async def grow(self, request: web.Request) -> web.Response:
        """Give it more partitions. Body: their number. Fewer are refused, and keys move."""
        topic = topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic):
            raise AdminError(409, f"Topic {topic} is not a partitioned topic")
        count = self._checked_count(await body(request), 1)
        await self.durable(lambda done: self.actions.update_partitions(topic, count, done))
        return done_answer()

    def _checked_count(self, wanted: Any, minimum: int) -> int:
        count = whole_number(wanted, "partitions", minimum)
        limit = self.server.settings.partitions_max
        if count > limit:
            raise AdminError(406, f"partitions={count} is not allowed; allowed: at most {limit}")
        return count

    async def delete(self, request: web.Request) -> web.Response:
        """Delete it with its partitions; with ``?force=true`` although clients are connected."""
        topic, force = self._partitioned(request), query_flag(request, "force")
        await self.durable(lambda done: self.actions.delete(topic, force, done))
        return done_answer()

    async def create_missed(self, request: web.Request) -> web.Response:
        """Nothing to do: partitions are never missing."""
        # Partitions are made together with the number, or at first use: none can be missed.
        self._partitioned(request)
        return done_answer()

    async def terminate(self, request: web.Request) -> web.Response:
        """End it: nothing can be published any more. Answers with the last message of each partition."""
        topic = topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic) or not self.actions.partitions(topic):
            raise AdminError(405, f"{topic} is no partitioned topic: it is terminated without partitions")
        found = {}
        for index in range(self.actions.partitions(topic)):
            name = topic.partition_name(index)
            await self.durable(partial(self.actions.terminate, name))
            found[str(index)] = message_id_json(self.now(partial(self.actions.last_message_id, name)))
        return answer(found)

    # --- stats ---
    async def stats(self, request: web.Request) -> web.Response:
        """Stats, added up, and with ``?perPartition=true`` (the default) of each partition."""
        topic = self._partitioned(request)
        count = self.actions.partitions(topic)
        by_partition = {}
        async for index in stepwise(range(count)):
            name = topic.partition_name(index)
            if self.actions.exists(name):
                by_partition[str(name)] = self.asked_stats(request, name)
        merged = merge_stats(list(by_partition.values()))
        merged["metadata"] = {"partitions": count, "deleted": False}
        merged["partitions"] = by_partition if query_flag(request, "perPartition", True) else {}
        return answer(merged)

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Ledgers and cursors of each partition."""
        topic = self._partitioned(request)
        count = self.actions.partitions(topic)
        found = {}
        async for index in stepwise(range(count)):
            name = topic.partition_name(index)
            if self.actions.exists(name):
                found[str(name)] = self.actions.internal_stats(name)
        return answer({"metadata": {"partitions": count, "deleted": False}, "partitions": found})

    def _partitioned(self, request: web.Request) -> TopicName:
        topic = topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic) or not self.actions.partitions(topic):
            raise AdminError(404, f"Partitioned Topic not found: {topic} has zero partitions")
        return topic


_NOT_ADDED = frozenset(
    {
        "averageMsgSize", "backlogQuotaLimitSize", "backlogQuotaLimitTime", "lastExpireTimestamp",
        "lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp",
        "lastMarkDeleteAdvancedTimestamp", "earliestMsgPublishTimeInBacklog",
        "redeliverUnackedAfterSeconds", "lastPushedAgainTimestamp",
        "earliestMsgPublishTimeInBacklogs", "oldestBacklogMessageAgeSeconds",
        "lastOffloadLedgerId", "lastOffloadSuccessTimeStamp", "lastOffloadFailureTimeStamp",
    }
)  # fmt: skip


_UNKNOWN_WITH_ANY = frozenset({"messagesInBacklog", "bytesInBacklog"})
"""Not known of the whole while it is not known of a part."""


def merge_stats(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Stats of a whole from those of its parts: counts and rates are added, limits and times are the largest.

    Publishers are merged by name of their place in the list, subscriptions and consumers by name.
    """
    merged: dict[str, Any] = {}
    for stats in parts:
        for key, value in stats.items():
            merged[key] = _merge_value(key, merged.get(key), value)
    if "oldestBacklogMessageSubscriptionName" in merged:
        oldest = max(parts, key=lambda part: part.get("oldestBacklogMessageAgeSeconds", -1))
        merged["oldestBacklogMessageSubscriptionName"] = oldest["oldestBacklogMessageSubscriptionName"]
    sizes, messages = merged.get("bytesInCounter", 0), merged.get("msgInCounter", 0)
    if "averageMsgSize" in merged and messages:
        merged["averageMsgSize"] = sizes / messages
    merged.pop("ownerBroker", None)
    merged.setdefault("subscriptions", {})
    merged.setdefault("publishers", [])
    return merged


def _merge_value(key: str, old: Any, new: Any) -> Any:
    if old is None:
        return _merge_value(key, type(new)(), new) if isinstance(new, (dict, list)) else new
    if isinstance(new, bool) or isinstance(old, bool):
        return bool(old) or bool(new)
    if isinstance(new, (int, float)) and isinstance(old, (int, float)):
        if key in _UNKNOWN_WITH_ANY and UNKNOWN in (old, new):
            return UNKNOWN
        return max(old, new) if key in _NOT_ADDED else old + new
    if isinstance(new, dict) and isinstance(old, dict):
        return {**old, **{name: _merge_value(name, old.get(name), item) for name, item in new.items()}}
    if key in ("publishers", "consumers"):
        name_key = "producerName" if key == "publishers" else "consumerName"
        return _merge_members(name_key, old, new)
    return new


def _merge_members(name_key: str, old: list[Any], new: list[Any]) -> list[Any]:
    by_name = {member.get(name_key): member for member in old}
    for member in new:
        name = member.get(name_key)
        known = by_name.get(name)
        by_name[name] = member if known is None else _merge_member(known, member)
    return list(by_name.values())


def _merge_member(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """One producer or consumer over several partitions: its counters are added, who it is stays."""
    identity = {"producerId", "availablePermits", "address", "connectedSince", "avgMessagesPerEntry"}
    return {**old, **{k: _merge_value(k, old.get(k), v) for k, v in new.items() if k not in identity}}
