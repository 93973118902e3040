"""Operations of the admin API on topics.

Every method is synchronous. Methods with a durable change take ``done``, which is called when it is durable.
An impossible request raises `AdminRefusal` with Pulsar's HTTP status, or `Refused`.
"""

from collections.abc import Iterable
from typing import Any

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.facts import facts_of
from geminga.broker.admin.stats import internal_stats, stats_among_all, topic_stats
from geminga.broker.core import Broker
from geminga.broker.delivery.cursor import Properties
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries import position_lookup
from geminga.broker.runtime.background_jobs import JobStatus
from geminga.broker.runtime.cooperative import Steps, at_once
from geminga.broker.topics import compaction, expiry
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import partitioned_key
from geminga.broker.topics.record import Json, decode_json, encode_json
from geminga.broker.topics.topic import Topic
from geminga.diagnosis.conclude import explanation
from geminga.errors import StoreError
from geminga.ids import MessageId, TopicName
from geminga.ledger.api import Done


class JoinedCompletion:
    """One ``done`` for several writes: called after the last one has finished, with the first error."""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._error: StoreError | None = None
        if not count:
            done(None)

    def __call__(self, error: StoreError | None) -> None:
        self._error = self._error or error
        self._left -= 1
        if not self._left:
            self._done(self._error)


def _check_new(actions: "TopicActions", name: TopicName) -> None:
    """Raise `Refused` if the namespace does not allow a topic, and `AdminRefusal` if there is one."""
    actions.topics.policies(name)
    if actions.exists(name):
        raise AdminRefusal(409, f"This topic already exists: {name}")


class TopicActions:
    """Operations on topics. ``name`` is a plain topic, a partition, or a partitioned topic as a whole."""

    def __init__(self, broker: Broker) -> None:
        self.topics = broker.topics
        self._store = broker.store
        self._scheduler = broker.scheduler
        self._settings = broker.settings
        self._namespaces = broker.namespaces
        self._schemas = broker.schemas
        self.cursors = SubscriptionActions(self, broker)

    def exists(self, name: TopicName) -> bool:
        """Return whether there is such a topic, plain or partitioned."""
        return self.topics.is_stored(name) or self.topics.partitioned.count(name) > 0

    def partitions(self, name: TopicName) -> int:
        """Return the number of partitions; 0 for a plain topic. 404 if there is no such topic."""
        count = self.topics.partitioned.count(name)
        if not count and not self.topics.is_stored(name):
            raise AdminRefusal(404, f"Topic {name} not found")
        return count

    def parts(self, name: TopicName) -> list[TopicName]:
        """Return the partitions of a partitioned topic, or the plain topic. 404 if there is no such topic."""
        count = self.partitions(name)
        return [name.partition_name(index) for index in range(count)] if count else [name]

    # --- creating and deleting ---
    def create(self, name: TopicName, done: Done, *, properties: Properties | None = None) -> None:
        """Create a plain topic; 409 if it exists, 412 for an impossible partition name."""
        _check_new(self, name)
        self.topics.create(name, properties, done)

    def create_partitioned(
        self, name: TopicName, count: int, done: Done, *, properties: Properties | None = None
    ) -> None:
        """Create a partitioned topic with its partitions; 409 if it exists or has too many, 412 for a bad
        name."""
        if name.partition >= 0:
            raise AdminRefusal(412, "Partitioned Topic Name should not contain '-partition-'")
        _check_new(self, name)
        self.topics.partitioned.create(name, count, properties, done)

    def update_partitions(self, name: TopicName, count: int, done: Done) -> None:
        """Add partitions; 409 for a plain topic or too many, 422 if there would be fewer."""
        before = self.partitions(name)
        if not before:
            raise AdminRefusal(409, f"Topic {name} is not a partitioned topic")
        if count < before:
            raise AdminRefusal(422, f"number of partitions must be more than existing {before}")
        first = self.topics.find(name.partition_name(0)) if count > before and name.persistent else None
        # New partitions get the durable subscriptions of the first one.
        subscriptions = [] if first is None else [s.name for s in first.subscriptions.values() if s.durable]
        self.topics.partitioned.grow(name, count, subscriptions, done)

    def delete(self, name: TopicName, force: bool, done: Done) -> None:
        """Delete a topic, or a partitioned one with its partitions; 412 if it is in use and not ``force``."""
        count = self.partitions(name)
        if not force:
            for each in self.parts(name):
                topic = self.topics.in_memory(each)
                if topic is not None and (topic.access.producers or topic.consumers_connected):
                    raise AdminRefusal(412, "Topic has active producers/subscriptions")
        if count:
            self.topics.partitioned.delete(name, count, done, lambda: self._forget_partitioned(name))
        elif name.partition >= 0:
            self.topics.delete_topic(name, done)
        else:
            joined = JoinedCompletion(2, done)
            self.topics.delete_topic(name, joined)
            self._forget(name, joined)

    def _forget(self, name: TopicName, done: Done) -> None:
        """Delete policies and schemas of a deleted topic."""
        self._namespaces.forget_topic(name)
        self._schemas.delete(name, done)

    def _forget_partitioned(self, name: TopicName) -> None:
        """The same; topics with names of partitions that it did not have have followed its policies, too."""
        if self._namespaces.forget_topic(name):
            self.topics.policy_updates.changed(name.namespace_name, name)
        self._schemas.delete(name)

    def unload(self, name: TopicName) -> None:
        """Disconnect all clients and unload the topic from memory."""
        topic = self.topics.in_memory(name)
        if topic is not None:
            topic.disconnect_all()
            if topic.persistent and topic.idle:
                self.topics.let_go(topic)
        elif not self.exists(name):
            raise AdminRefusal(404, f"Topic {name} not found")

    def trim(self, name: TopicName) -> int:
        """Delete ledgers that subscriptions and retention no longer need; return their number."""
        return expiry.trim(self.topic(name))

    # --- properties ---
    def properties(self, name: TopicName) -> Properties:
        """Return the topic's own properties."""
        topic = self.topics.in_memory(name)
        if topic is not None:
            return dict(topic.record.properties or {})
        _, record = self._record(name)
        found: Properties = record.get("properties", {})
        return found

    def set_properties(self, name: TopicName, properties: Properties, done: Done) -> None:
        topic = self.topics.in_memory(name)
        if topic is not None:
            topic.record.properties = dict(properties)
            topic.save_record(done)
            return
        key, record = self._record(name)
        record["properties"] = dict(properties)
        self._store.keys.put(key, encode_json(record), done)

    def _record(self, name: TopicName) -> tuple[str, Json]:
        """Return the stored record of a topic that is not in memory, or of a partitioned one."""
        for key in (topic_key(str(name)), partitioned_key(name)):
            value = self._store.keys.get(key)
            if value is not None:
                return key, decode_json(value, f"record {key}")
        raise AdminRefusal(404, f"Topic {name} not found")

    # --- statistics ---
    def stats(self, name: TopicName, *, key_ranges: bool = True) -> dict[str, Any]:
        """``GET .../stats`` in one step."""
        return at_once(self.stats_steps(name, key_ranges=key_ranges))

    def stats_steps(self, name: TopicName, *, key_ranges: bool = True) -> Steps[dict[str, Any]]:
        """``GET .../stats``; see `topic_stats`."""
        topic = self._topic(name)
        return topic_stats(topic, self._scheduler.now, self._settings.broker_id, key_ranges=key_ranges)

    def stats_among_all(self, name: TopicName) -> Steps[dict[str, Any]]:
        """Return its part of ``GET broker-stats/topics``."""
        return stats_among_all(self._topic(name), self._scheduler.now, self._settings.broker_id)

    def internal_stats(self, name: TopicName) -> Steps[dict[str, Any]]:
        """``GET .../internalStats``"""
        return internal_stats(self._topic(name))

    def last_message_id(self, name: TopicName) -> MessageId:
        """Return the id of the newest entry; -1:-1 if there is no entry."""
        ledger_id, entry_id = position_lookup.last_position(self.topic(name).ledger)
        return MessageId(name.partition, ledger_id, entry_id)

    # --- compaction ---
    def compact(self, name: TopicName) -> None:
        """Start a compaction. Raises `Refused` while one is running."""
        compaction.start(self.topic(name))

    def compaction_status(self, name: TopicName) -> dict[str, str]:
        """Return the status of the last compaction since the topic was loaded, running or finished."""
        last = self.topic(name).compaction
        if last is None:
            return {"status": JobStatus.NOT_RUN, "lastError": ""}
        return {"status": last.status, "lastError": last.last_error}

    # --- subscriptions ---
    def subscriptions(self, name: TopicName) -> Iterable[str]:
        """Return the names of a topic's subscriptions, in order."""
        return sorted(self._topic(name).subscriptions)

    # --- inside ---
    def _topic(self, name: TopicName) -> Topic:
        topic = self.topics.find(name)
        if topic is None:
            raise AdminRefusal(404, f"Topic {name} not found")
        return topic

    def topic(self, name: TopicName) -> PersistentTopic:
        """Return a persistent topic; 404 and 405 otherwise."""
        topic = self._topic(name)
        if not isinstance(topic, PersistentTopic):
            raise AdminRefusal(405, f"not possible for a non-persistent topic: {name}")
        return topic


class SubscriptionActions:
    """Operations on the subscriptions of persistent topics."""

    def __init__(self, topics: TopicActions, broker: Broker) -> None:
        self._topics = topics
        self._scheduler = broker.scheduler
        self._disk = broker.disk

    def create(
        self,
        name: TopicName,
        subscription: str,
        position: MessageId,
        done: Done,
        *,
        properties: Properties | None = None,
    ) -> None:
        """Create a durable subscription at a position; 409 if it exists."""
        topic = self._topics.topic(name)
        if subscription in topic.subscriptions:
            raise AdminRefusal(409, f"Subscription {subscription} already exists for topic {name}")
        offset = topic.ledger.offset_from(position.ledger_id, position.entry_id)
        is_behind = topic.is_behind(offset, position=(position.ledger_id, position.entry_id))
        topic.subscription(subscription, offset=offset, properties=properties, is_behind=is_behind, done=done)

    def delete(self, name: TopicName, subscription: str, done: Done, *, force: bool = False) -> None:
        """Remove a subscription; 412 when it has consumers and not ``force``."""
        found = self._subscription(name, subscription)
        if found.consumers and not force:
            raise AdminRefusal(412, "Subscription has active connected consumers")
        found.delete(done)

    def reset(
        self,
        name: TopicName,
        subscription: str,
        done: Done,
        *,
        position: MessageId | None = None,
        timestamp_ms: int | None = None,
        excluded: bool = False,
    ) -> None:
        """Move a subscription to a position (behind it if ``excluded``) or to a publish time."""
        found = self._movable(name, subscription)
        topic = found.topic
        if timestamp_ms is not None:
            offset = position_lookup.offset_by_time(topic.ledger, timestamp_ms, self._scheduler.now_ms)
            is_behind = topic.is_behind(offset, moment_ms=timestamp_ms)
        elif position is not None:
            offset = topic.ledger.offset_from(position.ledger_id, position.entry_id)
            if excluded and topic.ledger.offset(position.ledger_id, position.entry_id) == offset:
                offset += 1
            first = position.ledger_id, position.entry_id + excluded
            is_behind = topic.is_behind(offset, position=first)
        else:
            raise AdminRefusal(412, "a position or a time is needed")
        found.reset(offset, done, is_behind=is_behind)

    def skip(self, name: TopicName, subscription: str, count: int, done: Done) -> None:
        """Skip the next ``count`` open entries."""
        found = self._movable(name, subscription)
        found.skip_to(found.cursor.behind_open(count, found.topic.ledger.confirmed), done)

    def skip_messages(self, name: TopicName, subscription: str, count: int, done: Done) -> int:
        """Skip the next ``count`` open messages, those of batches individually; return the number skipped."""
        found = self._movable(name, subscription)
        return found.skip_messages(count, done)

    def skip_entry(self, name: TopicName, subscription: str, position: MessageId, done: Done) -> None:
        """Skip one damaged or forgotten entry; 404 if the topic has no such entry."""
        found = self._movable(name, subscription)
        offset = found.topic.ledger.offset(position.ledger_id, position.entry_id)
        if offset is None or offset >= found.topic.ledger.confirmed:
            raise AdminRefusal(404, f"Message {position.ledger_id}:{position.entry_id} not found in {name}")
        found.skip_entry(offset, done)

    def explain(self, name: TopicName, subscription: str) -> dict[str, Any]:
        """Return why the subscription makes no progress, and how to fix it."""
        found = self._subscription(name, subscription)
        return explanation(facts_of(self._topics.topic(name), found, self._disk.refusal))

    def backlog(self, name: TopicName, subscription: str) -> tuple[int, int]:
        """Return the unacknowledged entries and messages."""
        found = self._subscription(name, subscription)
        return found.backlog, found.backlog_tally()[0]

    def skip_all(self, name: TopicName, subscription: str, done: Done) -> None:
        """Skip everything that is stored now."""
        found = self._movable(name, subscription)
        found.skip_to(found.topic.ledger.confirmed, done)

    def expire(self, name: TopicName, subscription: str, done: Done, *, seconds: int) -> None:
        """Skip entries published more than ``seconds`` ago."""
        found = self._movable(name, subscription)
        now_ms = self._scheduler.now_ms
        found.expire(
            position_lookup.offset_by_time(found.topic.ledger, now_ms - seconds * 1000, now_ms), done
        )

    def expire_to(
        self, name: TopicName, subscription: str, position: MessageId, done: Done, *, excluded: bool
    ) -> None:
        """Skip everything before a message, and the message itself unless ``excluded``; never moves back."""
        found = self._movable(name, subscription)
        ledger = found.topic.ledger
        offset = ledger.offset_from(position.ledger_id, position.entry_id)
        if not excluded and ledger.offset(position.ledger_id, position.entry_id) == offset:
            offset += 1
        found.expire(offset, done)

    def set_properties(self, name: TopicName, subscription: str, properties: Properties, done: Done) -> None:
        found = self._movable(name, subscription)
        found.cursor.properties = dict(properties)
        found.policies_changed()
        found.write_snapshot(done)

    def found(self, name: TopicName, subscription: str) -> tuple[PersistentTopic, PersistentSubscription]:
        """Return a topic and its subscription for reading; 404 if either does not exist."""
        return self._topics.topic(name), self._subscription(name, subscription)

    def _movable(self, name: TopicName, subscription: str) -> PersistentSubscription:
        """Return a subscription that administrators may move and change; compaction's own is refused."""
        found = self._subscription(name, subscription)
        if subscription == COMPACTION:
            raise AdminRefusal(
                412, f"{COMPACTION} keeps what compaction has not seen, it cannot be moved; it can be deleted"
            )
        return found

    def _subscription(self, name: TopicName, subscription: str) -> PersistentSubscription:
        found = self._topics.topic(name).subscriptions.get(subscription)
        if found is None:
            raise AdminRefusal(404, f"Subscription {subscription} not found for topic {name}")
        return found
