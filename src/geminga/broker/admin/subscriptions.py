"""``.../subscriptions`` and ``.../subscription/{name}``: cursors of topics.

On a partitioned topic an operation applies to every partition, if it has a meaning for several.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import (
    answer,
    body,
    done_answer,
    message_id_of,
    object_body,
    part,
    query_flag,
    topic_of,
    whole_number,
)
from geminga.broker.admin.routes import ADMINISTRATOR, CONSUME, route
from geminga.broker.admin.topics import PATH, TopicResourceBase
from geminga.broker.managed_ledger import ManagedLedger
from geminga.broker.rules.policies import flag, one_of, properties_map
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import Done

_SUBSCRIPTION = PATH + "/subscription/{subscription}"


class SubscriptionsResource(TopicResourceBase):
    """Subscriptions and their cursors."""

    @route("GET", PATH + "/subscriptions", needs=CONSUME)
    async def names(self, request: web.Request) -> web.Response:
        """Names of a topic's subscriptions."""
        topic = self.existing(request)
        count = self.actions.partitions(topic)
        parts = [topic.partition_name(i) for i in range(count)] if count else [topic]
        found: dict[str, None] = {}
        for name in parts:
            if self.actions.exists(name):
                found.update(dict.fromkeys(self.actions.subscriptions(name)))
        return answer(list(found))

    def _with_subscription(self, request: web.Request) -> tuple[list[TopicName], str]:
        """Return the topics or partitions of the path that have the subscription; 404 if none has it."""
        name = part(request, "subscription")
        topics = [t for t in self.parts(request) if self.actions.exists(t)]
        having = [t for t in topics if name in self.actions.subscriptions(t)]
        if not having:
            raise AdminRefusal(404, f"Subscription {name} not found on topic {topic_of(request)}")
        return having, name

    def _one_with_subscription(self, request: web.Request) -> tuple[TopicName, str]:
        topic, name = self.stored(request), part(request, "subscription")
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
    async def create(self, request: web.Request) -> web.Response:
        """Create a subscription. Body: the message id it starts behind, with optional ``properties``; empty:
        at the end. A missing topic is created if policies allow it."""
        topic, name = topic_of(request), part(request, "subscription")
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
        if all(name in self.actions.subscriptions(t) for t in topics):
            raise AdminRefusal(409, f"Subscription {name} already exists for topic {topic}")
        for target in topics:
            if name not in self.actions.subscriptions(target):
                await self.durable(
                    partial(self.actions.cursors.create, target, name, position, properties=properties)
                )
        return done_answer()

    async def _auto_create(self, topic: TopicName, partitions: int) -> None:
        if partitions and topic.partition < 0:
            await self.durable(lambda done: self.actions.create_partitioned(topic, partitions, done))
        else:
            await self.durable(lambda done: self.actions.create(topic, done))

    @route("DELETE", _SUBSCRIPTION, needs=CONSUME)
    async def delete(self, request: web.Request) -> web.Response:
        """Delete it; with ``?force=true`` also while consumers are connected."""
        await self._change_each(request, self.actions.cursors.delete, force=query_flag(request, "force"))
        return done_answer()

    # --- where it stands ---
    @route("POST", _SUBSCRIPTION + "/resetcursor", needs=CONSUME)
    async def reset_to_position(self, request: web.Request) -> web.Response:
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
        return done_answer()

    @route("POST", _SUBSCRIPTION + "/resetcursor/{timestamp}", needs=CONSUME)
    async def reset_to_time(self, request: web.Request) -> web.Response:
        """Move the cursor to the first message published at a time (ms since 1970) or later."""
        moment = whole_number(part(request, "timestamp"), "timestamp")
        await self._change_each(request, self.actions.cursors.reset, timestamp_ms=moment)
        return done_answer()

    @route("POST", _SUBSCRIPTION + "/skip/{count}", needs=CONSUME)
    async def skip(self, request: web.Request) -> web.Response:
        """Skip the next entries of the backlog by count; with ``?unit=messages`` messages of batches count
        individually."""
        topic, name = self._one_with_subscription(request)
        count = whole_number(part(request, "count"), "numMessages")
        if one_of(("entries", "messages"))("unit", request.query.get("unit", "entries")) == "entries":
            # Apache Pulsar's meaning of messages here: a batch counts as one.
            await self.durable(lambda done: self.actions.cursors.skip(topic, name, count, done))
            return done_answer()
        skipped = 0

        def skip(done: Done) -> None:
            nonlocal skipped
            skipped = self.actions.cursors.skip_messages(topic, name, count, done)

        await self.durable(skip)
        return answer({"skippedMessages": skipped})

    @route("POST", _SUBSCRIPTION + "/skip/{ledger}/{entry}", needs=CONSUME)
    async def skip_entry(self, request: web.Request) -> web.Response:
        """Geminga's own: skip a single entry by its ids."""
        topic, name = self._one_with_subscription(request)
        ledger = whole_number(part(request, "ledger"), "ledgerId")
        entry = whole_number(part(request, "entry"), "entryId")
        position = MessageId(topic.partition, ledger, entry)
        await self.durable(lambda done: self.actions.cursors.skip_entry(topic, name, position, done))
        return done_answer()

    @route("GET", _SUBSCRIPTION + "/explain", needs=CONSUME)
    async def explain(self, request: web.Request) -> web.Response:
        """Geminga's own: why the subscription makes no progress; a list with one item per partition."""
        topics, name = self._with_subscription(request)
        return answer([self.actions.cursors.explain(topic, name) for topic in topics])

    @route("POST", _SUBSCRIPTION + "/skip_all", needs=CONSUME)
    async def skip_all(self, request: web.Request) -> web.Response:
        """Acknowledge everything."""
        await self._change_each(request, self.actions.cursors.skip_all)
        return done_answer()

    @route("POST", _SUBSCRIPTION + "/expireMessages/{seconds}", needs=CONSUME)
    async def expire(self, request: web.Request) -> web.Response:
        """Acknowledge messages that are older than a number of seconds."""
        seconds = whole_number(part(request, "seconds"), "expireTimeInSeconds")
        await self._change_each(request, self.actions.cursors.expire, seconds=seconds)
        return done_answer()

    @route("POST", PATH + "/all_subscription/expireMessages/{seconds}", needs=ADMINISTRATOR)
    async def expire_all(self, request: web.Request) -> web.Response:
        """Acknowledge messages older than a number of seconds, for all subscriptions of the topic."""
        topics = [t for t in self.parts(request) if self.actions.exists(t)]
        found = [(t, s) for t in topics for s in self.actions.subscriptions(t)]
        seconds = whole_number(part(request, "seconds"), "expireTimeInSeconds")
        await self.change_each(found, partial(self.actions.cursors.expire, seconds=seconds))
        return done_answer()

    @route("POST", _SUBSCRIPTION + "/expireMessages", needs=CONSUME)
    async def expire_to_position(self, request: web.Request) -> web.Response:
        """Expire everything up to a message: the cursor moves behind it, and never back."""
        topic, name = self._one_with_subscription(request)
        document = await object_body(request)
        position, excluded = message_id_of(document), bool(document.get("excluded", False))
        await self.durable(
            lambda done: self.actions.cursors.expire_to(topic, name, position, done, excluded=excluded)
        )
        return done_answer()

    @route("GET", _SUBSCRIPTION + "/position/{nth}", needs=CONSUME)
    async def peek(self, request: web.Request) -> web.Response:
        """The nth unacknowledged entry: payload as body, metadata as headers."""
        topic, name = self._one_with_subscription(request)
        nth = whole_number(part(request, "nth"), "messagePosition", 1)

        def find(ledger: ManagedLedger) -> int:
            cursor = self.actions.cursors.found(topic, name)[1].cursor
            return cursor.next_open(cursor.behind_open(nth - 1, ledger.confirmed))

        return await self.entry_at(topic, find)

    @route("POST", _SUBSCRIPTION + "/analyzeBacklog", needs=CONSUME)
    async def analyze(self, request: web.Request) -> web.Response:
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
        return answer(counts)

    # --- properties and replication flag ---
    @route("GET", _SUBSCRIPTION + "/properties", needs=CONSUME)
    async def properties(self, request: web.Request) -> web.Response:
        """Properties of the subscription."""
        topics, name = self._with_subscription(request)
        return answer(dict(self.actions.cursors.found(topics[0], name)[1].cursor.properties))

    @route("PUT", _SUBSCRIPTION + "/properties", needs=CONSUME)
    async def set_properties(self, request: web.Request) -> web.Response:
        """Replace the properties."""
        topics, name = self._with_subscription(request)
        properties = properties_map("properties", await object_body(request, optional=True))
        for topic in topics:
            await self.durable(partial(self.actions.cursors.set_properties, topic, name, properties))
        return done_answer()

    @route("GET", _SUBSCRIPTION + "/replicatedSubscriptionStatus", needs=CONSUME)
    async def replicated(self, request: web.Request) -> web.Response:
        """Whether it is replicated: false."""
        topics, _name = self._with_subscription(request)
        return answer({str(topic): False for topic in topics})

    @route("POST", _SUBSCRIPTION + "/replicatedSubscriptionStatus", needs=CONSUME)
    async def set_replicated(self, request: web.Request) -> web.Response:
        """False is accepted; true is refused with 501: a single broker does not replicate."""
        topics, name = self._with_subscription(request)
        if flag("replicated", await body(request)):
            raise AdminRefusal(501, f"one broker replicates no subscriptions: {name} on {topics[0]}")
        return done_answer()
