"""``.../partitioned`` and ``.../partitions``: partitioned topics."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from geminga.broker.admin import http
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.routes import ADMINISTRATOR, LIST, LOOK, route
from geminga.broker.admin.stats import IS_NAME_GENERATED
from geminga.broker.admin.topics import DOMAIN, PATH, TopicResourceBase
from geminga.ids import TopicName


class PartitionedTopicsResource(TopicResourceBase):
    """Partitioned topics: a number of partitions under a name; each partition is a topic."""

    @route("GET", DOMAIN + "/partitioned", needs=LIST)
    async def names(
        self, request: web.Request, tenant: str, namespace: str, domain: str
    ) -> web.StreamResponse:
        """Names of the partitioned topics."""
        self.namespaces.policies(tenant, namespace)
        persistent = domain == "persistent"
        walk = self.topics.partitioned.walk(f"{tenant}/{namespace}", persistent=persistent)
        return await http.answer_names(request, self.walk_names(walk))

    @route("GET", PATH + "/partitions", needs=LOOK)
    async def get(self, request: web.Request) -> object:
        """Number of partitions of a topic; 0 if it is not partitioned. With ``?checkAllowAutoCreation=true``
        the topic is created if policies allow it."""
        topic = http.topic_of(request)
        policies = self.namespaces.policies(topic.tenant, topic.namespace)
        coordinators = self.topics.partitioned.coordinators(topic)
        if coordinators is not None:
            count = coordinators
        elif self.actions.exists(topic):
            count = self.actions.partitions(topic)
        elif http.query_flag(request, "checkAllowAutoCreation") and policies.auto_create_topics:
            count = policies.auto_create_partitions
            if count and topic.partition < 0:
                await self.durable(lambda done: self.actions.create_partitioned(topic, count, done))
        else:
            raise AdminRefusal(404, f"Topic {topic} not found")
        return {"partitions": count, "deleted": False}

    @route("PUT", PATH + "/partitions", needs=ADMINISTRATOR)
    async def create(self, request: web.Request) -> None:
        """Make a partitioned topic. Body: the number, or ``partitions`` and ``properties``."""
        topic = http.topic_of(request)
        properties: dict[str, str] = {}
        wanted = await http.body(request)
        if isinstance(wanted, dict):
            # Newer clients send the number together with properties.
            properties = wanted.get("properties") or {}
            wanted = wanted.get("partitions")
        count = self._checked_count(wanted)
        await self.durable(
            lambda done: self.actions.create_partitioned(topic, count, done, properties=properties)
        )

    @route("POST", PATH + "/partitions", needs=ADMINISTRATOR)
    async def grow(self, request: web.Request) -> None:
        """Add partitions. Body: the new number. Fewer are refused; keys move to other partitions."""
        topic = http.topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic):
            raise AdminRefusal(409, f"Topic {topic} is not a partitioned topic")
        count = self._checked_count(await http.body(request))
        await self.durable(lambda done: self.actions.update_partitions(topic, count, done))

    def _checked_count(self, wanted: Any) -> int:
        count = http.whole_number(wanted, "partitions", 1)
        limit = self.server.settings.partitions_max
        if count > limit:
            raise AdminRefusal(406, f"partitions={count} is not allowed; allowed: at most {limit}")
        return count

    @route("DELETE", PATH + "/partitions", needs=ADMINISTRATOR)
    async def delete(self, request: web.Request) -> None:
        """Delete the topic with its partitions; with ``?force=true`` also while clients are connected."""
        topic, force = self._partitioned(request), http.query_flag(request, "force")
        await self.durable(lambda done: self.actions.delete(topic, force, done))

    @route("POST", PATH + "/createMissedPartitions", needs=ADMINISTRATOR)
    async def create_missed(self, request: web.Request) -> None:
        """No effect: partitions are never missing."""
        # Partitions are made together with the number, or at first use: none can be missed.
        self._partitioned(request)

    @route("POST", PATH + "/terminate/partitions", needs=ADMINISTRATOR)
    async def terminate(self, request: web.Request) -> object:
        """Terminate the topic: publishing is refused. Answers with the last message of each partition."""
        topic = http.topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic) or not self.actions.partitions(topic):
            raise AdminRefusal(405, f"{topic} is no partitioned topic: it is terminated without partitions")
        found = {}
        for index in range(self.actions.partitions(topic)):
            name = topic.partition_name(index)
            await self.durable(self.actions.topic(name).terminate)
            found[str(index)] = http.message_id_json(self.now(partial(self.actions.last_message_id, name)))
        return found

    # --- stats ---
    @route("GET", PATH + "/partitioned-stats", needs=LOOK)
    async def stats(self, request: web.Request) -> web.StreamResponse:
        """Stats, added up, and with ``?perPartition=true`` (the default) of each partition."""
        topic = self._partitioned(request)
        is_listed = http.query_flag(request, "perPartition", True)
        merged = MergedStats()

        async def stats_of(name: TopicName) -> dict[str, Any]:
            found = await self.asked_stats(request, name)
            merged.add(found)
            return found

        return await http.answer_pieces(request, self._pieces(topic, stats_of, merged.finish, is_listed))

    @route("GET", PATH + "/partitioned-internalStats", needs=LOOK)
    async def internal_stats(self, request: web.Request) -> web.StreamResponse:
        """Ledgers and cursors of each partition."""
        topic = self._partitioned(request)

        async def stats_of(name: TopicName) -> dict[str, Any]:
            return await self.in_steps(self.actions.internal_stats(name))

        return await http.answer_pieces(request, self._pieces(topic, stats_of, dict, True))

    async def _pieces(
        self,
        topic: TopicName,
        stats_of: Callable[[TopicName], Awaitable[dict[str, Any]]],
        whole: Callable[[], dict[str, Any]],
        is_listed: bool,
    ) -> AsyncIterator[str]:
        """Yield an answer about each partition, then about the ``whole``; others are served in between."""
        count = self.actions.partitions(topic)
        separator = '{"partitions":{'
        async for index in http.stepwise(range(count)):
            name = topic.partition_name(index)
            if self.actions.exists(name):
                found = await stats_of(name)
                if is_listed:
                    yield f"{separator}{json.dumps(str(name))}:"
                    async for piece in http.stepwise(http.json_pieces(found)):
                        yield piece
                    separator = ","
        rest = {**whole(), "metadata": {"partitions": count, "deleted": False}}
        pieces = http.json_pieces(rest)
        yield f"{'' if separator == ',' else separator}}},{next(pieces)[1:]}"
        async for piece in http.stepwise(pieces):
            yield piece

    def _partitioned(self, request: web.Request) -> TopicName:
        topic = http.topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic) or not self.actions.partitions(topic):
            raise AdminRefusal(404, f"Partitioned Topic not found: {topic} has zero partitions")
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


_MEMBERS = {"publishers": "producerName", "consumers": "consumerName"}
"""Lists whose members are merged by name, and the field with the name."""
_OF_THE_FIRST = frozenset(
    {"producerId", "producerName", "availablePermits", "address", "connectedSince", "avgMessagesPerEntry"}
)
"""Fields of a producer or consumer that are not added over several partitions."""


class MergedStats:
    """Merged stats of several topics: counts and rates are added, limits and times are the largest.

    Publishers, subscriptions and consumers are merged by name, publishers without a name of their own by
    connection. ``partitions`` of a publisher or consumer is the number of parts that it is in.
    """

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}
        self._oldest: tuple[float, str] = (-1, "")

    def add(self, part: dict[str, Any]) -> None:
        """Add a part; the part is not modified."""
        _merge(self._found, part)
        age, name = part.get("oldestBacklogMessageAgeSeconds", -1), "oldestBacklogMessageSubscriptionName"
        if name in part and age > self._oldest[0]:
            self._oldest = age, part[name]

    def finish(self) -> dict[str, Any]:
        """Return the stats of the whole after all parts were added."""
        found = self._found
        if self._oldest[1]:
            found["oldestBacklogMessageSubscriptionName"] = self._oldest[1]
        sizes, messages = found.get("bytesInCounter", 0), found.get("msgInCounter", 0)
        if "averageMsgSize" in found and messages:
            found["averageMsgSize"] = sizes / messages
        found.pop("ownerBroker", None)
        found["publishers"] = list(found.get("publishers", {}).values())
        for subscription in found.setdefault("subscriptions", {}).values():
            subscription["consumers"] = list(subscription.get("consumers", {}).values())
        return found


def _merge(merged: dict[str, Any], part: dict[str, Any]) -> None:
    """Members of lists are kept by name until the end."""
    for key, new in part.items():
        old = merged.get(key)
        if isinstance(new, dict):
            _merge(merged.setdefault(key, {}), new)
        elif key in _MEMBERS and isinstance(new, list):
            members, seen = merged.setdefault(key, {}), Counter[str]()
            for member in new:
                name: Any = member.get(_MEMBERS[key], "")
                if member.get(IS_NAME_GENERATED):
                    address = member.get("address", "")
                    seen[address] += 1
                    name = address, seen[address]
                _merge(members.setdefault(name, {}), member | {"partitions": 1})
        elif old is None:
            merged[key] = new
        elif key not in _OF_THE_FIRST:
            merged[key] = _merged_value(key, old, new)


def _merged_value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, bool) or isinstance(old, bool):
        return bool(old) or bool(new)
    if isinstance(new, (int, float)) and isinstance(old, (int, float)):
        return max(old, new) if key in _NOT_ADDED else old + new
    return new
