"""``.../subscriptions`` and ``.../subscription/{name}``: cursors of topics.

On a partitioned topic an operation applies to every partition, if it has a meaning for several.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import body, message_id_of, object_body, query_flag, topic_of, whole_number
from geminga.broker.admin.routes import ADMINISTRATOR, CONSUME, route
from geminga.broker.admin.topics import PATH, TopicResourceBase
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.rules.policies import flag, one_of, properties_map
from geminga.ids import MessageId, TopicName

_SUBSCRIPTION = PATH + "/subscription/{subscription}"


class SubscriptionsResource(TopicResourceBase):
    """Subscriptions and their cursors."""

    @route("GET", PATH + "/subscriptions", needs=CONSUME)
    async def names(self, request: web.Request) -> object:
        """Names of a topic's subscriptions."""
        found: dict[str, None] = {}
        for name in self.actions.parts(self.existing(request)):
            if self.actions.exists(name):
                found.update(dict.fromkeys(self.actions.subscriptions(name)))
        return list(found)

    def _with_subscription(self, request: web.Request) -> tuple[list[TopicName], str]:
        """Return the topics or partitions of the path that have the subscription; 404 if none has it."""
        name = request.match_info["subscription"]
        topics = [t for t in self.parts(request) if self.actions.exists(t)]
        having = [t for t in topics if name in self.actions.subscriptions(t)]
        if not having:
            raise AdminRefusal(404, f"Subscription {name} not found on topic {topic_of(request)}")
        return having, name

    def _one_with_subscription(self, request: web.Request) -> tuple[TopicName, str]:
        topic, name = self.stored(request), request.match_info["subscription"]
        if name not in self.actions.subscriptions(topic):
            raise AdminRefusal(404, f"Subscription {name} not found on topic {topic}")
        return topic, name

    async def _change_each(self, request: web.Request, change: Callable[..., None], **options: Any) -> None:
        """Make a change of the subscription durable, on each topic or partition that has it."""
        topics, name = self._with_subscription(request)
        for topic in topics:
            await self.durable(partial(change, topic, name, **options))

    # --- life ---
    @route("PUT", _SUBSCRIPTION, needs=CONSUME)
    async def create(self, request: web.Request, subscription: str) -> None:
        """Create a subscription. Body: the message id it starts behind, with optional ``properties``; empty:
        at the end. A missing topic is created if policies allow it."""
        topic = topic_of(request)
        if not topic.persistent:
            raise AdminRefusal(
                400, f"A subscription to a non-persistent topic is made by its consumer: {topic}"
            )
        policies = self.namespaces.policies(topic.tenant, topic.namespace)
        document = await body(request, None)
        properties: dict[str, str] = {}
        if isinstance(document, dict) and "properties" in document:
            properties = properties_map("properties", document["properties"] or {})
        position = MessageId.latest if document is None else message_id_of(document)
        if not self.actions.exists(topic):
            if not policies.auto_create_topics:
                raise AdminRefusal(404, f"Topic {topic} not found")
            await self._auto_create(topic, policies.auto_create_partitions)
        topics = self.parts(request)
        lacking = [each for each in topics if subscription not in self.actions.subscriptions(each)]
        if not lacking:
            raise AdminRefusal(409, f"Subscription {subscription} already exists for topic {topic}")
        create = self.actions.cursors.create
        for target in lacking:
            await self.durable(partial(create, target, subscription, position, properties=properties))

    async def _auto_create(self, topic: TopicName, partitions: int) -> None:
        if partitions and topic.partition < 0:
            await self.durable(lambda done: self.actions.create_partitioned(topic, partitions, done))
        else:
            await self.durable(lambda done: self.actions.create(topic, done))

    @route("DELETE", _SUBSCRIPTION, needs=CONSUME)
    async def delete(self, request: web.Request) -> None:
        """Delete it; with ``?force=true`` also while consumers are connected."""
        await self._change_each(request, self.actions.cursors.delete, force=query_flag(request, "force"))

    # --- positions ---
    @route("POST", _SUBSCRIPTION + "/resetcursor", needs=CONSUME)
    async def reset_to_position(self, request: web.Request) -> None:
        """Move the cursor to a message id (body), forward or back; ``excluded`` starts behind it."""
        document = await object_body(request)
        position = message_id_of(document)
        excluded = bool(document.get("excluded", False))
        special = position.ledger_id in (MessageId.earliest.ledger_id, MessageId.latest.ledger_id)
        if special:
            topics, name = self._with_subscription(request)
        else:
            topic, name = self._one_with_subscription(request)
            topics = [topic]
        for target in topics:
            await self.durable(
                partial(self.actions.cursors.reset, target, name, position=position, excluded=excluded)
            )

    @route("POST", _SUBSCRIPTION + "/resetcursor/{timestamp}", needs=CONSUME)
    async def reset_to_time(self, request: web.Request, timestamp: int) -> None:
        """Move the cursor to the first message published at a time (ms since 1970) or later."""
        await self._change_each(request, self.actions.cursors.reset, timestamp_ms=timestamp)

    @route("POST", _SUBSCRIPTION + "/skip/{count}", needs=CONSUME)
    async def skip(self, request: web.Request, count: int) -> dict[str, int] | None:
        """Skip the next entries of the backlog by count; with ``?unit=messages`` messages of batches count
        individually, and the answer is how many were skipped."""
        topic, name = self._one_with_subscription(request)
        if one_of(("entries", "messages"))("unit", request.query.get("unit", "entries")) == "entries":
            # Apache Pulsar's meaning of messages here: a batch counts as one.
            await self.durable(lambda done: self.actions.cursors.skip(topic, name, count, done))
            return None
        skip = partial(self.actions.cursors.skip_messages, topic, name, count)
        return {"skippedMessages": await self.durable(skip)}

    @route("POST", _SUBSCRIPTION + "/skip/{ledger}/{entry}", needs=CONSUME)
    async def skip_entry(self, request: web.Request, ledger: int, entry: int) -> None:
        """Geminga's own: skip a single entry by its ids."""
        topic, name = self._one_with_subscription(request)
        position = MessageId(topic.partition, ledger, entry)
        await self.durable(lambda done: self.actions.cursors.skip_entry(topic, name, position, done))

    @route("GET", _SUBSCRIPTION + "/explain", needs=CONSUME)
    async def explain(self, request: web.Request) -> object:
        """Geminga's own: why the subscription makes no progress; a list with one item per partition."""
        topics, name = self._with_subscription(request)
        return [self.actions.cursors.explain(topic, name) for topic in topics]

    @route("POST", _SUBSCRIPTION + "/skip_all", needs=CONSUME)
    async def skip_all(self, request: web.Request) -> None:
        """Acknowledge everything."""
        await self._change_each(request, self.actions.cursors.skip_all)

    @route("POST", _SUBSCRIPTION + "/expireMessages/{seconds}", needs=CONSUME)
    async def expire(self, request: web.Request, seconds: int) -> None:
        """Acknowledge messages that are older than a number of seconds."""
        await self._change_each(request, self.actions.cursors.expire, seconds=seconds)

    @route("POST", PATH + "/all_subscription/expireMessages/{seconds}", needs=ADMINISTRATOR)
    async def expire_all(self, request: web.Request, seconds: int) -> None:
        """Acknowledge messages older than a number of seconds, for all subscriptions of the topic."""
        topics = [t for t in self.parts(request) if self.actions.exists(t)]
        found = [(t, s) for t in topics for s in self.actions.subscriptions(t)]
        await self.change_each(found, partial(self.actions.cursors.expire, seconds=seconds))

    @route("POST", _SUBSCRIPTION + "/expireMessages", needs=CONSUME)
    async def expire_to_position(self, request: web.Request) -> None:
        """Expire everything up to a message: the cursor moves behind it, and never back."""
        topic, name = self._one_with_subscription(request)
        document = await object_body(request)
        position, excluded = message_id_of(document), bool(document.get("excluded", False))
        await self.durable(
            lambda done: self.actions.cursors.expire_to(topic, name, position, done, excluded=excluded)
        )

    @route("GET", _SUBSCRIPTION + "/position/{nth}", needs=CONSUME)
    async def peek(self, request: web.Request, nth: str) -> web.StreamResponse:
        """The nth unacknowledged entry: payload as body, metadata as headers."""
        topic, name = self._one_with_subscription(request)
        position = whole_number(nth, "messagePosition", 1)

        def find(ledger: ManagedLedger) -> int:
            cursor = self.actions.cursors.found(topic, name)[1].cursor
            return cursor.next_open(cursor.behind_open(position - 1, ledger.confirmed))

        return await self.entry_at(request, topic, find)

    @route("POST", _SUBSCRIPTION + "/analyzeBacklog", needs=CONSUME)
    async def analyze(self, request: web.Request) -> object:
        """Numbers of entries and messages in the backlog."""
        topic, name = self._one_with_subscription(request)
        entries, messages = self.actions.cursors.backlog(topic, name)
        counts: dict[str, Any] = {"entries": entries, "messages": messages, "aborted": False}
        for kind in ("Rejected", "Accepted", "Rescheduled"):
            accepted = kind == "Accepted"
            counts[f"filter{kind}Entries"] = entries if accepted else 0
            counts[f"filter{kind}Messages"] = messages if accepted else 0
        cursor, ledger = self.actions.cursors.found(topic, name)[1].cursor, self.actions.topic(topic).ledger
        last = cursor.last_open(ledger.confirmed)
        if last >= 0:
            for end, offset in (("first", cursor.next_open(cursor.mark)), ("last", last)):
                counts[f"{end}MessageId"] = "{}:{}".format(*ledger.position(offset))
        return counts

    # --- properties and replication flag ---
    @route("GET", _SUBSCRIPTION + "/properties", needs=CONSUME)
    async def properties(self, request: web.Request) -> object:
        """Properties of the subscription."""
        topics, name = self._with_subscription(request)
        return dict(self.actions.cursors.found(topics[0], name)[1].cursor.properties)

    @route("PUT", _SUBSCRIPTION + "/properties", needs=CONSUME)
    async def set_properties(self, request: web.Request) -> None:
        """Replace the properties."""
        topics, name = self._with_subscription(request)
        properties = properties_map("properties", await object_body(request, optional=True))
        for topic in topics:
            await self.durable(partial(self.actions.cursors.set_properties, topic, name, properties))

    @route("GET", _SUBSCRIPTION + "/replicatedSubscriptionStatus", needs=CONSUME)
    async def replicated(self, request: web.Request) -> object:
        """Whether it is replicated: false."""
        topics, _name = self._with_subscription(request)
        return {str(topic): False for topic in topics}

    @route("POST", _SUBSCRIPTION + "/replicatedSubscriptionStatus", needs=CONSUME)
    async def set_replicated(self, request: web.Request) -> None:
        """False is accepted; true is refused with 501: a single broker does not replicate."""
        topics, name = self._with_subscription(request)
        if flag("replicated", await body(request)):
            raise AdminRefusal(501, f"one broker replicates no subscriptions: {name} on {topics[0]}")
