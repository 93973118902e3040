"""Subscriptions: creation, deletion, position, and reading their backlog."""

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any

from geminga.client.admin.aio.calls import AdminSection
from geminga.client.admin.aio.tenants import Brokers
from geminga.client.admin.aio.topics import Topic, Topics
from geminga.client.admin.exchange import make_request, part, topic_name, topic_path
from geminga.client.admin.messages import (
    EntriesToSkip,
    Moment,
    PeekedEntry,
    entry_of,
    id_json,
    messages_of,
    milliseconds,
    seconds,
)
from geminga.client.admin.types import Explanation, Explanations, Messages, Names
from geminga.config import check_choice, check_int
from geminga.diagnosis.conclude import explanation
from geminga.diagnosis.pulsar import facts_from_stats
from geminga.errors import AdminNotFound, AdminSubscriptionNotFound
from geminga.ids import MessageId
from geminga.records import decode


class Subscriptions(AdminSection):
    """Subscriptions of topics."""

    # --- creation and deletion ---
    async def list(self, topic: Topic) -> Names:
        """Return the subscriptions of a topic."""
        return list(await self._calls.get_any(tuple[str, ...], f"{topic_path(topic)}/subscriptions") or ())

    async def create(
        self,
        topic: Topic,
        subscription: str,
        *,
        position: MessageId = MessageId.latest,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a subscription that starts at ``position``: a message, or an end of the topic. Raises
        `AdminConflict`."""
        body = {**id_json(position), "properties": dict(properties or {})}
        await self._calls.call("PUT", _path(topic, subscription), body)

    async def delete(self, topic: Topic, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription; with ``force`` also while consumers are connected, which are closed."""
        await self._calls.call("DELETE", _path(topic, subscription), query={"force": force})

    async def properties(self, topic: Topic, subscription: str) -> Mapping[str, str]:
        """Return the subscription's properties."""
        path = f"{_path(topic, subscription)}/properties"
        return await self._calls.get_any(Mapping[str, str], path) or {}

    async def set_properties(self, topic: Topic, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace all properties of the subscription."""
        await self._calls.call("PUT", f"{_path(topic, subscription)}/properties", dict(properties))

    # --- position ---
    async def clear(self, topic: Topic, subscription: str) -> None:
        """Acknowledge all messages that the topic holds now."""
        await self._calls.call("POST", f"{_path(topic, subscription)}/skip_all")

    async def skip(self, topic: Topic, subscription: str, count: int, *, unit: str = "messages") -> int:
        """Acknowledge the next ``count`` messages of an unpartitioned topic or one partition; return their
        number.

        Apache Pulsar counts ``entries``, and a batch is one entry: there the entries are read first, and
        `OperationNotSupported` is raised if the last message would be inside a batch.
        """
        check_int("count", count, 1)
        check_choice("unit", unit, ("messages", "entries"))
        path = f"{_path(topic, subscription)}/skip"
        if unit == "entries":
            await self._calls.call("POST", f"{path}/{count}")
            return count
        if await Brokers(self._calls).is_geminga():
            found = await self._calls.call("POST", f"{path}/{count}", query={"unit": "messages"})
            return int(found["skippedMessages"])
        await self._check_exists(topic, subscription)
        to_skip = EntriesToSkip(count)
        while to_skip.wants_more():
            to_skip.add(await self._entry(topic, subscription, to_skip.entries + 1))
        if to_skip.entries:
            await self._calls.call("POST", f"{path}/{to_skip.entries}")
        return to_skip.messages

    async def skip_entry(self, topic: Topic, subscription: str, message_id: MessageId) -> None:
        """Geminga only: skip one entry by its id, for example a damaged one."""
        position = f"{int(message_id.ledger_id)}/{int(message_id.entry_id)}"
        await self._calls.call("POST", f"{_path(topic, subscription)}/skip/{position}")

    async def reset_to_time(self, topic: Topic, subscription: str, when: Moment) -> None:
        """Move to the first message published at a time or later, in every partition; later messages are
        redelivered. ``when``: a datetime with a time zone, milliseconds since 1970, or a timedelta back from
        now."""
        moment = milliseconds("when", when, time.time_ns() // 1_000_000)
        await self._calls.call("POST", f"{_path(topic, subscription)}/resetcursor/{moment}")

    async def reset_to_id(
        self, topic: Topic, subscription: str, message_id: MessageId, *, exclusive: bool = False
    ) -> None:
        """Move to a message, the next one delivered; after it, with ``exclusive``. On a partitioned topic the
        id names its partition, or is an end of the topic: then every partition moves there."""
        name = topic_name(topic)
        names = [name]
        if name.partition < 0 and message_id.partition >= 0:
            names = [name.partition_name(int(message_id.partition))]
        elif message_id in (MessageId.earliest, MessageId.latest):
            names = [topic_name(one) for one in await Topics(self._calls).names(name)]
        body = id_json(message_id, excluded=exclusive)
        for each in names:
            await self._calls.call("POST", f"{_path(each, subscription)}/resetcursor", body)

    async def expire(self, topic: Topic, subscription: str | None, older_than: dt.timedelta | float) -> None:
        """Acknowledge messages older than a timedelta or a number of seconds; None: in all subscriptions."""
        whole = seconds("older_than", older_than)
        all_of_them = f"{topic_path(topic)}/all_subscription"
        path = all_of_them if subscription is None else _path(topic, subscription)
        await self._calls.call("POST", f"{path}/expireMessages/{whole}")

    async def expire_to_id(
        self, topic: Topic, subscription: str, message_id: MessageId, *, exclusive: bool = False
    ) -> None:
        """Acknowledge all messages up to a message of an unpartitioned topic or one partition; that message
        too, unless ``exclusive``."""
        body = id_json(message_id, excluded=exclusive)
        await self._calls.call("POST", f"{_path(topic, subscription)}/expireMessages", body)

    # --- backlog ---
    async def peek(self, topic: Topic, subscription: str, count: int = 1) -> Messages:
        """Return the next messages in a subscription's backlog, oldest first; of a partitioned topic, those
        of each partition in turn. Nothing is consumed. Batches are split; their individually acknowledged
        messages are included. Raises `AdminSubscriptionNotFound`, `AdminTopicNotFound`."""
        check_int("count", count, 1)
        found: Messages = []
        for name in await Topics(self._calls).names(topic):
            # Apache Pulsar creates a subscription that is peeked into: check first that it exists.
            await self._check_exists(name, subscription)
            nth = 1
            while len(found) < count:
                entry = await self._entry(name, subscription, nth)
                if entry is None:
                    break
                found += messages_of(entry)
                nth += 1
        return found[:count]

    async def _check_exists(self, topic: Topic, subscription: str) -> None:
        if subscription not in await self.list(topic):
            raise AdminSubscriptionNotFound(f"{topic} has no subscription {subscription}", status=404)

    async def _entry(self, topic: Topic, subscription: str, nth: int) -> PeekedEntry | None:
        """Return the nth entry of the backlog, None after the last."""
        try:
            request = make_request("GET", f"{_path(topic, subscription)}/position/{nth}")
            return entry_of(await self._calls.send(request), topic_name(topic).partition)
        except AdminSubscriptionNotFound:
            raise
        except AdminNotFound as error:
            if "essage" in str(error):
                return None
            raise

    async def explain(self, topic: Topic, subscription: str) -> Explanations:
        """Return why the subscription's messages are not delivered, with advice; for each partition.

        For Apache Pulsar the explanation is derived from its statistics, which report less.
        """
        if await Brokers(self._calls).is_geminga():
            found: Any = await self._calls.call("GET", f"{_path(topic, subscription)}/explain")
            return [decode(Explanation, one, "the explanation") for one in found]
        explanations: Explanations = []
        topics = Topics(self._calls)
        for name in await topics.names(topic):
            stats = await topics.stats(name)
            if subscription not in stats.subscriptions:
                continue
            inside = await topics.internal_stats(name)
            facts = facts_from_stats(name, subscription, stats.raw, inside.raw, int(time.time() * 1000))
            explanations.append(decode(Explanation, explanation(facts)))
        if not explanations:
            raise AdminSubscriptionNotFound(
                f"Subscription {subscription} not found on topic {topic}", status=404
            )
        return explanations


def _path(topic: Topic, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{part('subscription', subscription)}"
