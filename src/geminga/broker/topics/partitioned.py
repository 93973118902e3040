"""Partitioned topics: their records, and making and deleting their partitions.

A partitioned topic has a record in the store under ``partitioned/<name>``; each partition is a topic.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.cooperative import Job
from geminga.broker.runtime.refusal import Refused, storage_refusal
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import PARTITIONED, partitioned_key
from geminga.broker.topics.record import Json, decode_json, encode_json
from geminga.broker.topics.topic import Topic, TopicServices
from geminga.broker.topics.topic_names import TopicNames
from geminga.errors import StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, StoredValue
from geminga.transactions import COORDINATORS_TOPIC
from geminga.wire.proto import pulsar_wire_pb2 as pb

_FRESH: Final = "fresh"
"""Field in the record of a partitioned topic: the first partition that lacks subscriptions, their names."""
DELETED_AT_ONCE: Final = 32
"""Partitions that are read ahead together for deletion."""


class PartitionedTopics:
    """Partitioned topics of a broker."""

    def __init__(
        self,
        services: TopicServices,
        policies: Callable[[TopicName], Policies],
        find: Callable[[TopicName], Topic | None],
        add: Callable[[TopicName, Policies], None],
        delete: Callable[[TopicName, Done | None], None],
        prepare_all: Callable[[Sequence[TopicName], Callable[[set[TopicName]], None]], None],
    ) -> None:
        """``policies`` raises `Refused` where no topics may be; ``find`` returns a partition, ``add`` stores
        a new one, ``delete`` deletes one, and ``prepare_all`` loads several."""
        self._services = services
        self._scheduler = services.scheduler
        self._store = services.store
        self._policies = policies
        self._find = find
        self._add = add
        self._delete_topic = delete
        self._prepare_all = prepare_all
        self._leaving: dict[str, list[Done]] = {}
        """Partitioned topics that are being deleted, and callbacks waiting for that."""

    def count(self, name: TopicName) -> int:
        """Return the partitions of a partitioned topic; 0 if it is not partitioned."""
        value = self._store.keys.get(partitioned_key(name))
        if value is None:
            return 0
        count = int(_partitioned(name, value).get("partitions", 0))
        return count if value.lost is None else max(count, self._partitions_stored(name))

    def coordinators(self, name: TopicName) -> int | None:
        """Return the partitions of the topic of transaction coordinators, which is not stored; None for other
        topics."""
        if name.base.text != COORDINATORS_TOPIC:
            return None
        return int(name.partition < 0 and self._services.settings.transactions)

    def _partitions_stored(self, name: TopicName) -> int:
        """Return the lower bound of a topic's partitions, by the stored ones."""
        prefix = topic_key(f"{name}-partition-")
        numbers = [key[len(prefix) :] for key in self._store.keys.names(prefix)]
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def walk(self, namespace: str, *, persistent: bool) -> TopicNames:
        """Return the partitioned topics of ``tenant/namespace``, in order."""
        domain = "persistent" if persistent else "non-persistent"
        return TopicNames(self._store, PARTITIONED, f"{domain}://{namespace}/")

    def check_stays(self, name: TopicName) -> None:
        """Raise `Refused` if the partitioned topic is being deleted."""
        if self._leaving and str(name.base) in self._leaving:
            raise Refused(pb.TopicNotFound, f"Topic {name.base} is being deleted")

    def create(
        self, name: TopicName, count: int, properties: dict[str, str] | None, done: Done | None
    ) -> None:
        """Store a partitioned topic and its partitions; raises `Refused` if the store refuses."""
        self._policies(name)
        self.check_stays(name)
        self._check_partitions(count)
        record: Json = {"partitions": count, "created_ms": self._scheduler.now_ms}
        if properties:
            record["properties"] = properties
        self._write(name, record, 0, done)

    def grow(self, name: TopicName, count: int, subscriptions: Sequence[str], done: Done | None) -> None:
        """Add partitions to a partitioned topic; raises `Refused`.

        New partitions, created here or at their first use, get these subscriptions from their first message
        on. Until that is done the record lists them. After a crash the call can be repeated.
        """
        self.check_stays(name)
        self._check_partitions(count)
        value = self._store.keys.get(partitioned_key(name))
        assert value is not None
        record = _partitioned(name, value)
        first = before = self.count(name)
        wanted = {*subscriptions}
        if _FRESH in record:
            first = min(before, record[_FRESH]["first"])
            wanted.update(record[_FRESH]["subscriptions"])
        if wanted:
            record[_FRESH] = {"first": first, "subscriptions": sorted(wanted)}
        self._write(name, record | {"partitions": count}, first, done)

    def subscribe_fresh(self, partition: TopicName) -> None:
        """Create the subscriptions that a new partition lacks. Raises `StoreError`, `Refused`."""
        value = self._store.keys.get(partitioned_key(partition.base))
        fresh = None if value is None else _partitioned(partition.base, value).get(_FRESH)
        if fresh is None or partition.partition < fresh["first"]:
            return
        topic = self._find(partition)
        if isinstance(topic, PersistentTopic):
            for subscription in fresh["subscriptions"]:
                if subscription not in topic.subscriptions:
                    topic.subscription(subscription, offset=topic.ledger.start)

    def _check_partitions(self, count: int) -> None:
        limit = self._services.settings.partitions_max
        if count > limit:
            raise Refused(
                pb.NotAllowedError, f"{count} partitions are not allowed: at most {limit} (partitions_max)"
            )

    def _write(self, name: TopicName, record: Json, before: int, done: Done | None) -> None:
        """Write the record first: a missing partition is then created at its first use."""
        if not name.persistent or record["partitions"] <= before:
            self._store_record(name, record, done)
            return
        self._store_record(name, record, None)
        making = self._make(name, before, record["partitions"], done)
        self._services.slices.start(making, name, done)

    def _store_record(self, name: TopicName, record: Json, done: Done | None) -> None:
        try:
            self._store.keys.put(partitioned_key(name), encode_json(record), done)
        except StoreError as error:
            raise storage_refusal(error) from error

    def _make(self, name: TopicName, first: int, count: int, done: Done | None) -> Job:
        """Return a job that writes the partitions' records, then the topic's again, which reports for all."""
        slices, store = self._services.slices, self._store
        tell = done or (lambda error: None)
        try:
            for index in range(first, count):
                if str(name) in self._leaving or self.count(name) < count:
                    break  # deleted meanwhile
                partition = name.partition_name(index)
                if self._store.keys.get(topic_key(str(partition))) is None:
                    self._add(partition, self._policies(name))
                self.subscribe_fresh(partition)
                if slices.should_yield:
                    yield None
            value = store.keys.get(partitioned_key(name))
            if value is None:
                tell(None)
                return
            record = _partitioned(name, value)
            if record["partitions"] == count and str(name) not in self._leaving:
                record.pop(_FRESH, None)
            store.keys.put(partitioned_key(name), encode_json(record), done)
        except StoreError as error:
            tell(error)
        except Refused as refused:
            tell(StoreError(refused.reason))

    def delete(
        self, name: TopicName, count: int, done: Done, forget: Callable[[], None] = lambda: None
    ) -> None:
        """Delete a partitioned topic: its partitions, in steps, then its record. Its creation is refused
        meanwhile.

        ``forget`` is called at the end to delete its other data: once the record is deleted a new topic of
        its name may exist. ``done`` is called when all is durable. A crash half-way leaves the topic with
        fewer messages. Another deletion meanwhile waits for this one.
        """
        text = str(name)
        if text in self._leaving:
            self._leaving[text].append(done)
            return
        waiting = self._leaving[text] = [done]

        def deleted(error: StoreError | None) -> None:
            for each in waiting:
                self._scheduler.isolated("job", text, each, error)

        self._services.slices.start(self._delete(name, count, deleted, forget), name, deleted)

    def _delete(self, name: TopicName, count: int, done: Done, forget: Callable[[], None]) -> Job:
        slices = self._services.slices
        try:
            for start in range(0, count, DELETED_AT_ONCE):
                stop = min(start + DELETED_AT_ONCE, count)
                part = [name.partition_name(index) for index in range(start, stop)]
                yield from slices.wait(partial(self._prepare_all, part))
                for partition in part:
                    self._delete_topic(partition, None)
                    if slices.should_yield:
                        yield None
            forget()
            self._store.keys.delete(partitioned_key(name), done)
        except StoreError as error:
            done(error)
        except Refused as refused:
            done(StoreError(refused.reason))
        finally:
            del self._leaving[str(name)]


def _partitioned(name: TopicName, value: StoredValue) -> Json:
    return decode_json(value, f"record of partitioned topic {name}")
