"""Which topics exist, and which of them are in memory.

Every topic has a record in the store under ``topic/<name>``; a partitioned topic has one under
``partitioned/<name>`` besides those of its partitions. A topic is loaded when it is first used and
leaves memory when nobody has used it for a while, so that idle topics cost nothing but their records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.rules.namespaces import Namespaces
from geminga.broker.rules.policies import Policies
from geminga.broker.topics import maintenance
from geminga.broker.topics.nonpersistent import NonPersistentTopic
from geminga.broker.topics.persistent import PersistentTopic, decode_record, encode_record, topic_key
from geminga.broker.topics.topic import Json, Topic, TopicServices
from geminga.broker.turns import Job
from geminga.errors import InvalidTopicName, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

TopicChange = Callable[[TopicName, bool], None]
"""``change(name, exists)`` after a topic was created (True) or deleted (False)."""

TOPICS_LOADED_IDLE_SECONDS = 60.0
"""A topic that nobody is connected to leaves memory after this."""
TOPICS_KEPT_MAX = 500
"""Loaded topics that one slice of housekeeping looks at."""
TOPICS_SWEPT_MAX = 50
"""Topics that are not in memory and are looked after in one round of housekeeping."""


class LoadedTopics:
    """Finds, creates, loads and unloads topics."""

    def __init__(self, services: TopicServices, namespaces: Namespaces) -> None:
        self._services = services
        self._agenda = services.agenda
        self._store = services.store
        self._namespaces = namespaces
        self._loaded: dict[str, Topic] = {}
        self._changes: list[TopicChange] = []
        self._counts: dict[str, int] = {}
        self._unkept: list[str] = []
        self._unswept: list[str] = []
        self._unswept_namespaces: list[str] = []
        namespaces.watch(self._policies_changed)

    # --- what exists ---
    def watch(self, change: TopicChange) -> None:
        self._changes.append(change)

    def _changed(self, name: TopicName, exists: bool) -> None:
        if name.persistent and name.namespace_name in self._counts:
            self._counts[name.namespace_name] += 1 if exists else -1
        for change in list(self._changes):
            change(name, exists)

    def loaded(self) -> list[TopicName]:
        """The topics that are in memory now."""
        return [topic.name for topic in self._loaded.values()]

    def in_memory(self, name: TopicName) -> Topic | None:
        """The topic if it is loaded; it is not loaded for this."""
        return self._loaded.get(str(name))

    def is_stored(self, name: TopicName) -> bool:
        """Whether the topic exists; of a partitioned one only the partitions do."""
        return str(name) in self._loaded or (
            name.persistent and self._store.get(topic_key(str(name))) is not None
        )

    def partition_count(self, name: TopicName) -> int:
        """Partitions of a partitioned topic; 0 when it is not one."""
        value = self._store.get(partitioned_key(name))
        if value is None:
            return 0
        record = decode_record(value, f"record of partitioned topic {name}")
        count = int(record.get("partitions", 0))
        return count if value.lost is None else max(count, self._partitions_stored(name))

    def _partitions_stored(self, name: TopicName) -> int:
        """How many partitions a topic has at least, by those that are there."""
        prefix = topic_key(f"{name}-partition-")
        numbers = [key[len(prefix) :] for key, _ in self._store.scan(prefix)]
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def walk(self, namespace: str, *, persistent: bool) -> Iterator[str]:
        """Topics of ``tenant/namespace`` in order, partitions as topics of their own.

        They may be read in steps: what is created or deleted meanwhile may be among them or not.
        """
        if not persistent:
            prefix = f"non-persistent://{namespace}/"
            return iter(sorted(text for text in self._loaded if text.startswith(prefix)))
        return self._walk(topic_key(f"persistent://{namespace}/"), len(topic_key("")))

    def walk_partitioned(self, namespace: str, *, persistent: bool) -> Iterator[str]:
        """Partitioned topics of ``tenant/namespace``, in order."""
        domain = "persistent" if persistent else "non-persistent"
        return self._walk(f"{_PARTITIONED}{domain}://{namespace}/", len(_PARTITIONED))

    def _count(self, namespace: str) -> int:
        """Persistent topics of ``tenant/namespace``: read once, and followed from then on."""
        count = self._counts.get(namespace)
        if count is None:
            count = self._counts[namespace] = sum(1 for _ in self.walk(namespace, persistent=True))
        return count

    def _walk(self, prefix: str, skip: int) -> Iterator[str]:
        return (key[skip:] for key, _ in self._store.scan(prefix))

    # --- finding and creating ---
    def policies(self, name: TopicName) -> Policies:
        """Raises `Refused` TopicNotFound when the namespace is missing."""
        if not self._namespaces.exists(name.tenant, name.namespace):
            raise Refused(pb.TopicNotFound, "Namespace not found")
        return self._namespaces.topic_policies(name)

    def find(self, name: TopicName) -> Topic | None:
        """The topic, loaded if need be; None when it does not exist. Raises `Refused` on damage."""
        text = str(name)
        topic = self._loaded.get(text)
        if topic is not None or not name.persistent:
            return topic
        value = self._store.get(topic_key(text))
        if value is None:
            return None
        try:
            record = decode_record(value, f"record of topic {text}")
            topic = PersistentTopic(self._services, name, record, self._namespaces.topic_policies(name))
        except StoreError as error:
            # Nothing is kept of the attempt: the next request tries again.
            log.error("topic %s cannot be loaded: %s", text, error)
            raise storage_refusal(error) from error
        self._loaded[text] = topic
        return topic

    def find_or_create(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """The topic, created if that is allowed; raises `Refused`."""
        policies = self.policies(name)
        topic = self.find(name)
        if topic is not None:
            return topic
        if name.partition >= 0:
            partitions = self.partition_count(name.base)
            if partitions > 0:
                if name.partition >= partitions:
                    raise Refused(
                        pb.TopicNotFound,
                        f"Topic {name} does not exist: {name.base} has {partitions} partitions",
                    )
                return self.make(name)
        elif self.partition_count(name):
            raise Refused(pb.NotAllowedError, f"{name} is a partitioned topic: use its partitions")
        if not (may_create and policies.auto_create_topics):
            raise Refused(pb.TopicNotFound, f"Topic {name} does not exist")
        return self.make(name)

    def make(
        self, name: TopicName, properties: dict[str, str] | None = None, done: Done | None = None
    ) -> Topic:
        """A new topic, loaded; ``done`` reports when it is durable. Raises `Refused`."""
        policies = self.policies(name)
        namespace = name.namespace_name
        limit = policies.max_topics_per_namespace
        if limit and self._count(namespace) >= limit:
            raise Refused(
                pb.NotAllowedError, f"Exceed maximum number of topics in namespace {namespace}: {limit}"
            )
        text = str(name)
        topic: Topic
        if name.persistent:
            record: Json = {"created_ms": self._agenda.now_ms}
            if properties:
                record["properties"] = properties
            try:
                self._store.put(topic_key(text), encode_record(record), done)
                topic = PersistentTopic(self._services, name, record, policies)
            except StoreError as error:
                raise storage_refusal(error) from error
        else:
            topic = NonPersistentTopic(self._services, name, policies)
            if done is not None:
                done(None)
        self._loaded[text] = topic
        self._changed(name, True)
        return topic

    def create_partitions(
        self, name: TopicName, count: int, properties: dict[str, str] | None, done: Done | None
    ) -> None:
        """Record a partitioned topic and its partitions; raises `Refused` when the store refuses."""
        self.policies(name)
        self._check_partitions(count)
        record: Json = {"partitions": count, "created_ms": self._agenda.now_ms}
        if properties:
            record["properties"] = properties
        self._write_partitions(name, record, 0, done)

    def grow_partitions(self, name: TopicName, count: int, done: Done | None) -> None:
        """More partitions for a partitioned topic."""
        self._check_partitions(count)
        value = self._store.get(partitioned_key(name))
        assert value is not None
        record = decode_record(value, f"record of partitioned topic {name}")
        before = self.partition_count(name)
        self._write_partitions(name, record | {"partitions": count}, before, done)

    def _check_partitions(self, count: int) -> None:
        limit = self._services.settings.partitions_max
        if count > limit:
            raise Refused(
                pb.NotAllowedError, f"{count} partitions are not allowed: at most {limit} (partitions_max)"
            )

    def _write_partitions(self, name: TopicName, record: Json, before: int, done: Done | None) -> None:
        """The record first: a partition that is not there yet when it is used is made then."""
        if not name.persistent or record["partitions"] <= before:
            self._store_record(name, record, done)
            return
        self._store_record(name, record, None)
        self._services.turns.start(self._make_partitions(name, before, record["partitions"], done), name)

    def _store_record(self, name: TopicName, record: Json, done: Done | None) -> None:
        try:
            self._store.put(partitioned_key(name), encode_record(record), done)
        except StoreError as error:
            raise storage_refusal(error) from error

    def _make_partitions(self, name: TopicName, first: int, count: int, done: Done | None) -> Job:
        """A job: the partitions' own records, and that of them all once more, which reports for the rest."""
        turns, store = self._services.turns, self._store
        try:
            for index in range(first, count):
                partition = name.partition_name(index)
                if not self.is_stored(partition):
                    store.put(topic_key(str(partition)), encode_record({"created_ms": self._agenda.now_ms}))
                    self._changed(partition, True)
                if turns.enough:
                    yield None
                    if self.partition_count(name) < count:
                        break  # deleted meanwhile
            value = store.get(partitioned_key(name))
            if value is not None:
                store.put(partitioned_key(name), value.base, done)
            elif done is not None:
                done(None)
        except StoreError as error:
            if done is not None:
                done(error)

    # --- leaving ---
    def delete_topic(self, name: TopicName, done: Done | None) -> None:
        """Delete a topic's data, cursors and record; whoever is connected is disconnected."""
        topic = self.find(name)
        if topic is None:
            if done is not None:
                done(None)
            return
        # Out of the map first: who is disconnected and comes back finds no topic, or makes a new one.
        del self._loaded[str(name)]
        topic.delete(done)
        self._changed(name, False)

    def delete_partition_record(self, name: TopicName, done: Done | None) -> None:
        self._store.delete(partitioned_key(name), done)

    def unload_topic(self, topic: Topic) -> None:
        """Disconnect everybody and leave memory; the next use loads the topic again."""
        topic.disconnect_all()
        if topic.persistent and topic.idle:
            topic.close()
            self._loaded.pop(topic.text, None)

    def housekeeping(self, now: float) -> bool:
        """Expire, trim, look at quotas, and let go of topics that nobody has used for a while.

        A round is made in slices of `TOPICS_KEPT_MAX` loaded topics; True when the round is not over.
        """
        if not self._unkept:
            self._sweep()
            self._unkept = list(self._loaded)
        for _ in range(min(TOPICS_KEPT_MAX, len(self._unkept))):
            topic = self._loaded.get(self._unkept.pop())
            if topic is not None:
                self._agenda.isolated("housekeeping", topic, self._keep, topic, now)
        return bool(self._unkept)

    def _keep(self, topic: Topic, now: float) -> None:
        if isinstance(topic, PersistentTopic):
            maintenance.keep(topic)
        if not topic.idle:
            topic.last_used = now
            return
        unused = now - topic.last_used
        if maintenance.is_inactive(topic, unused):
            log.info("%r: deleted, it has been inactive for %d s", topic, unused)
            self.delete_topic(topic.name, None)
        elif unused >= TOPICS_LOADED_IDLE_SECONDS:
            topic.close()
            del self._loaded[topic.text]

    def _sweep(self) -> None:
        """Housekeeping of topics that are not in memory, some at a time, namespace after namespace."""
        if not self._unswept:
            if not self._unswept_namespaces:
                self._unswept_namespaces = self._namespaces.all_namespaces()
            self._unswept = list(self.walk(self._unswept_namespaces.pop(), persistent=True))
        for _ in range(min(TOPICS_SWEPT_MAX, len(self._unswept))):
            text = self._unswept.pop()
            if text in self._loaded or not self._store.ledgers(text):
                continue
            self._agenda.isolated("housekeeping", text, self._sweep_one, text)

    def _sweep_one(self, text: str) -> None:
        try:
            topic = self.find(TopicName.parse(text))
        except (Refused, InvalidTopicName) as error:
            log.error("topic %s cannot be looked after: %s", text, error)
            return
        if isinstance(topic, PersistentTopic):
            try:
                maintenance.keep(topic)
                topic.close()
            finally:
                del self._loaded[text]

    def close(self) -> None:
        """Write what loaded topics have not written."""
        for topic in self._loaded.values():
            self._agenda.isolated("housekeeping", topic, topic.close)
        self._loaded.clear()

    def _policies_changed(self, namespace: str, base: TopicName | None) -> None:
        for topic in list(self._loaded.values()):
            name = topic.name
            meant = name.namespace_name == namespace and (base is None or name.base == base)
            if meant and self._namespaces.exists(name.tenant, name.namespace):
                topic.policies_changed(self._namespaces.topic_policies(name))


_PARTITIONED = "partitioned/"


def partitioned_key(name: TopicName) -> str:
    return f"{_PARTITIONED}{name}"


TOPIC_NAME_MAX = 1024
"""Characters of a topic's complete name."""


def parse_topic(text: str) -> TopicName:
    """The topic's name; raises `Refused` InvalidTopicName."""
    if len(text) > TOPIC_NAME_MAX:
        raise Refused(
            pb.InvalidTopicName,
            f"Invalid topic name: {len(text)} characters, at most {TOPIC_NAME_MAX} are allowed",
        )
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise Refused(pb.InvalidTopicName, f"Invalid topic name: {error}") from error
