"""Registry of the topics that exist, and of those in memory.

Every topic has a record in the store under ``topic/<name>``; a partitioned topic has one under
``partitioned/<name>`` besides those of its partitions. A topic is loaded when it is first used and leaves
memory when it was unused for a while, so that idle topics cost nothing but their records.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial

from geminga.broker.cooperative import Job
from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.rules.effective_policies import Policies, cautious
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.topics import deadlines
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.nonpersistent import NonPersistentTopic
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.prefetch import PARTITIONED, counts_of, partitioned_key, topic_of
from geminga.broker.topics.record import Json, TopicRecord, decode_json, encode_json
from geminga.broker.topics.resting import RestingTopics
from geminga.broker.topics.topic import UNUSED_SECONDS, Topic, TopicServices
from geminga.broker.topics.topic_counts import TopicCounts
from geminga.broker.topics.topic_names import ListedTopicNames, TopicNames
from geminga.errors import InvalidTopicName, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, PrefetchRequest, StoredValue
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

TopicChange = Callable[[TopicName, bool], None]
"""``change(name, exists)`` after a topic was created (True) or deleted (False)."""


class TopicRegistry:
    """Finds, creates, loads and unloads topics."""

    def __init__(self, services: TopicServices, namespaces: NamespaceRegistry) -> None:
        self._services = services
        self._scheduler = services.scheduler
        self._store = services.store
        self._namespaces = namespaces
        self._loaded: dict[str, Topic] = {}
        self._preparing: dict[str, _PendingLoad] = {}
        self._unprepared: deque[TopicName] = deque()
        self._under_way = 0
        self._is_beginning = False
        self._changes: list[TopicChange] = []
        self._leaving: dict[str, list[Done]] = {}
        """Partitioned topics that are being deleted, and callbacks waiting for that."""
        self.counts = TopicCounts(services, lambda each: self.walk(each, persistent=True), self.turn_page)
        """Numbers of persistent topics by namespace."""
        self.resting = RestingTopics(services, self.bring, self.in_memory_text)
        self._changed_policies: dict[tuple[str | None, TopicName | None], None] = {}
        """Changed policies not applied yet: of a namespace, of a topic in it, or of all."""
        self._is_telling = False
        self._wait_for_telling: list[Done] = []
        namespaces.watchers.append(lambda namespace, base, _: self.policies_changed(namespace, base))
        namespaces.settings_watchers.append(lambda: self.policies_changed(None, None))
        self.no_room: Callable[[], str] = lambda: ""
        """Reason why topics are not auto-created now; empty if they are. Administrators still may."""

    # --- what exists ---
    def watch(self, change: TopicChange) -> None:
        self._changes.append(change)

    def _changed(self, name: TopicName, exists: bool) -> None:
        if name.persistent:
            self.counts.changed(name, 1 if exists else -1)
        for change in list(self._changes):
            change(name, exists)

    def loaded(self) -> list[TopicName]:
        """Return the names of the topics in memory."""
        return [topic.name for topic in self._loaded.values()]

    def in_memory_now(self) -> list[Topic]:
        """Return the topics in memory; they may be unloaded while the caller uses the list."""
        return [*self._loaded.values()]

    @property
    def loaded_count(self) -> int:
        """Return the number of topics in memory."""
        return len(self._loaded)

    def in_memory_text(self, text: str) -> bool:
        """Return whether the topic of that full name is loaded."""
        return text in self._loaded

    def in_memory(self, name: TopicName) -> Topic | None:
        """Return the topic if it is loaded."""
        return self._loaded.get(str(name))

    def is_stored(self, name: TopicName) -> bool:
        """Return whether the topic exists; a partitioned topic itself does not, only its partitions do."""
        return str(name) in self._loaded or (
            name.persistent and self._store.keys.get(topic_key(str(name))) is not None
        )

    def partition_count(self, name: TopicName) -> int:
        """Return the partitions of a partitioned topic; 0 if it is not partitioned."""
        value = self._store.keys.get(partitioned_key(name))
        if value is None:
            return 0
        count = int(_partitioned(name, value).get("partitions", 0))
        return count if value.lost is None else max(count, self._partitions_stored(name))

    def _partitions_stored(self, name: TopicName) -> int:
        """Return the lower bound of a topic's partitions, by the stored ones."""
        prefix = topic_key(f"{name}-partition-")
        numbers = [key[len(prefix) :] for key in self._store.keys.names(prefix)]
        return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def walk(self, namespace: str, *, persistent: bool, after: str = "") -> TopicNames:
        """Return the topics of ``tenant/namespace`` behind ``after`` in order, each partition as a topic.

        Without a namespace: all topics.
        """
        if not persistent:
            prefix = f"non-persistent://{namespace}/"
            names = sorted(text for text in self._loaded if text.startswith(prefix) and text > after)
            return ListedTopicNames(names)
        prefix = f"persistent://{namespace}/" if namespace else ""
        return TopicNames(self._store, topic_key(""), prefix, after)

    def walk_partitioned(self, namespace: str, *, persistent: bool) -> TopicNames:
        """Return the partitioned topics of ``tenant/namespace``, in order."""
        domain = "persistent" if persistent else "non-persistent"
        return TopicNames(self._store, PARTITIONED, f"{domain}://{namespace}/")

    def prefetch(self, wanted: PrefetchRequest) -> Job:
        """Wait, as a part of a job, until the wanted keys are in memory. Raises `StoreError`."""
        error = yield from self._services.slices.wait(partial(self.bring, wanted))
        if error is not None:
            raise error

    def turn_page(self, walk: TopicNames) -> Generator[bool | None, None, list[str]]:
        """Return the next page of a walk, as a part of a job, after reading it ahead. Raises `StoreError`."""
        yield from self.prefetch(walk.wanted)
        return walk.page()

    def is_counted(self, name: TopicName) -> bool:
        """Return whether a topic can be created now: the namespace has no limit of topics, or its topics are
        counted. Otherwise the count starts, in slices, and the caller retries."""
        if not self._namespaces.exists(name.tenant, name.namespace):
            return True
        limit = self._namespaces.topic_policies(name).max_topics_per_namespace
        return not limit or self.counts.of(name.namespace_name).is_complete

    def _when_counted(self, name: TopicName, then: Callable[[None], None]) -> None:
        """Call ``then`` when the namespace's topic count is known, if its number of topics is limited."""
        if self.is_counted(name):
            then(None)
        else:
            self.counts.when_counted(name.namespace_name, then)

    # --- finding and creating ---
    def policies(self, name: TopicName) -> Policies:
        """Return the policies; raises `Refused` TopicNotFound if the namespace is missing or deleted."""
        if not self._namespaces.exists(name.tenant, name.namespace):
            raise Refused(pb.TopicNotFound, "Namespace not found")
        if self._namespaces.is_leaving(name.tenant, name.namespace):
            raise Refused(pb.TopicNotFound, "Namespace is being deleted")
        return self._namespaces.topic_policies(name)

    def find(self, name: TopicName) -> Topic | None:
        """Return the topic, loaded if needed; None if it does not exist. Raises `Refused` on damage."""
        text = str(name)
        topic = self._loaded.get(text)
        if topic is not None or not name.persistent:
            return topic
        value = self._store.keys.get(topic_key(text))
        if value is None:
            return None
        try:
            record = TopicRecord.decode(value, f"record of topic {text}")
            topic = PersistentTopic(self._services, name, record, self._namespaces.topic_policies(name))
        except StoreError as error:
            # The failed attempt is not cached: the next request tries again.
            log.error("topic %s cannot be loaded: %s", text, error)
            raise storage_refusal(error) from error
        self._enter(topic)
        return topic

    def bring(self, wanted: PrefetchRequest, then: Done) -> None:
        """Call ``then`` when the wanted keys can be read without waiting for the disk."""
        if self._store.bring(wanted, self._scheduler.guarded("store", "topics", then)):
            then(None)

    def prepare(self, name: TopicName, then: Done) -> None:
        """Call ``then`` when the topic, if it is stored, is in memory; at once if it is.

        ``then`` receives an error if the disk failed; damage shows when the topic is used. The topic is read
        on other threads, and loaded in steps, a subscription each: large cursors take long. Waiting callers
        are called one after the other, in slices, because many topics may be read at once and follow-up work,
        such as creating a topic, takes time, too. A caller that cannot wait uses `find`, which supersedes the
        load.
        """
        text = str(name)
        if not name.persistent or text in self._loaded:
            then(None)
            return
        preparation = self._preparing.get(text)
        if preparation is not None:
            preparation.waiting.append(then)
            return
        self._preparing[text] = _PendingLoad(then)
        self._unprepared.append(name)
        self._prepare_more()

    def prepare_all(self, names: Sequence[TopicName], then: Callable[[set[TopicName]], None]) -> None:
        """Load several topics; ``then`` receives those that the disk failed to read."""
        failed: set[TopicName] = set()
        left = len(names)
        if not left:
            then(failed)

        def prepared(name: TopicName, error: StoreError | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                log.warning("topic %s cannot be read: %s", name, error)
                failed.add(name)
            if not left:
                then(failed)

        for name in names:
            self.prepare(name, partial(prepared, name))

    def _prepare_more(self) -> None:
        """Start queued loads, `LOADS_AT_ONCE` at a time."""
        if self._is_beginning:
            return  # the running call continues with it
        self._is_beginning = True
        try:
            while self._unprepared and self._under_way < LOADS_AT_ONCE:
                name = self._unprepared.popleft()
                self._under_way += 1
                self._services.slices.start(self._prepare(name, self._preparing[str(name)]), name)
        finally:
            self._is_beginning = False

    def _prepare(self, name: TopicName, preparation: _PendingLoad) -> Job:
        """Return a job that reads a topic, loads it, and calls the waiting callers."""
        text, slices = str(name), self._services.slices
        error: StoreError | None = None
        try:
            error = yield from self._read(name)
            if slices.should_yield:
                yield None
            if error is None:
                yield from self._load_in_steps(name, preparation)
        except StoreError:
            pass  # the caller that uses the topic receives the error
        except Exception as problem:
            self._scheduler.failed("job", text, problem)
        waiting = self._preparing.pop(text).waiting
        for number, then in enumerate(waiting, 1):
            self._scheduler.isolated("job", text, then, error)
            if number < len(waiting) and slices.should_yield:
                yield None
        self._under_way -= 1
        self._prepare_more()

    def _read(self, name: TopicName) -> Generator[bool | None, None, StoreError | None]:
        """Prefetch what loading or creating a topic reads; return the error if that fails."""
        text, slices = str(name), self._services.slices
        error: StoreError | None = yield from slices.wait(partial(self.bring, topic_of(name)))
        if error is not None:
            return error
        try:
            if self._store.keys.get(topic_key(text)) is None:
                # Count first, so that creating the topic is not refused with a request to retry.
                yield from slices.wait(partial(self._when_counted, name))
                return None
            wanted = counts_of(text, self._store.ledgers(text))
        except StoreError as problem:
            return problem
        if wanted is None:
            return None
        error = yield from slices.wait(partial(self.bring, wanted))
        return error

    def _load_in_steps(self, name: TopicName, preparation: _PendingLoad) -> Job:
        text = str(name)
        value = self._store.keys.get(topic_key(text))
        if value is None or preparation.is_outdated:
            return
        record = TopicRecord.decode(value, f"record of topic {text}")
        policies = self._namespaces.topic_policies(name)
        topic = PersistentTopic(self._services, name, record, policies, in_steps=True)
        for _ in topic.load(policies):
            if self._services.slices.should_yield:
                yield None
                if preparation.is_outdated:
                    return  # it was loaded at once, and has perhaps changed since
        if self._namespaces.topic_policies(name) != policies:
            topic.policies_changed(self._namespaces.topic_policies(name))
        self._enter(topic)

    def _enter(self, topic: Topic) -> None:
        preparation = self._preparing.get(topic.text)
        if preparation is not None:
            preparation.is_outdated = True
        self._loaded[topic.text] = topic
        self.resting.entered(topic)
        self._services.due.plan(topic, self._scheduler.now_ms + int(UNUSED_SECONDS * 1000))

    def find_or_create(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """Return the topic, created if that is allowed; raises `Refused`."""
        policies = self.policies(name)
        topic = self.find(name)
        if topic is not None:
            return topic
        self._check_stays(name)
        if name.partition >= 0:
            partitions = self.partition_count(name.base)
            if partitions > 0:
                if name.partition >= partitions:
                    raise Refused(
                        pb.TopicNotFound,
                        f"Topic {name} does not exist: {name.base} has {partitions} partitions",
                    )
                self.check_room(name)
                topic = self.make(name)
                try:
                    self._subscribe_fresh(name)
                except StoreError as error:
                    raise storage_refusal(error) from error
                return topic
        elif self.partition_count(name):
            raise Refused(pb.NotAllowedError, f"{name} is a partitioned topic: use its partitions")
        if not (may_create and policies.auto_create_topics):
            raise Refused(pb.TopicNotFound, f"Topic {name} does not exist")
        self.check_room(name)
        return self.make(name)

    def _check_stays(self, name: TopicName) -> None:
        """Raise `Refused` if the partitioned topic is being deleted."""
        if self._leaving and str(name.base) in self._leaving:
            raise Refused(pb.TopicNotFound, f"Topic {name.base} is being deleted")

    def check_room(self, name: TopicName) -> None:
        """Raise `Refused` ServiceNotReady if no topic may be auto-created for lack of disk space.

        The space below the low-water mark is for acknowledging and deleting. A client that uses one new name
        after the other would fill it.
        """
        why = self.no_room() if name.persistent else ""
        if why:
            raise Refused(pb.ServiceNotReady, f"Cannot create topic {name}: {why}")

    def make(
        self, name: TopicName, properties: dict[str, str] | None = None, done: Done | None = None
    ) -> Topic:
        """Create a topic in memory; ``done`` is called when it is durable. Raises `Refused`."""
        policies = self._checked_policies(name)
        topic: Topic
        if name.persistent:
            try:
                record = self._store_topic(name, policies, properties, done)
                topic = PersistentTopic(self._services, name, record, policies)
            except StoreError as error:
                raise storage_refusal(error) from error
        else:
            topic = NonPersistentTopic(self._services, name, policies)
            if done is not None:
                done(None)
        self._enter(topic)
        self._changed(name, True)
        return topic

    def create(
        self, name: TopicName, properties: dict[str, str] | None = None, done: Done | None = None
    ) -> None:
        """Create a topic; a persistent one is loaded at its first use. Raises `Refused`."""
        if not name.persistent:
            self.make(name, properties, done)
            return
        policies = self._checked_policies(name)
        try:
            self._store_topic(name, policies, properties, done)
        except StoreError as error:
            raise storage_refusal(error) from error
        self._changed(name, True)

    def _checked_policies(self, name: TopicName) -> Policies:
        """Return the policies of a new topic; raises `Refused` if there are too many topics."""
        policies = self.policies(name)
        self._check_stays(name)
        limit = policies.max_topics_per_namespace
        if not limit:
            return policies
        count = self.counts.of(name.namespace_name)
        if not count.is_complete:
            raise Refused(
                pb.ServiceNotReady,
                f"The topics of namespace {name.namespace_name} are being counted: try again",
            )
        if count.topics >= limit:
            raise Refused(
                pb.NotAllowedError,
                f"Exceed maximum number of topics in namespace {name.namespace_name}: {limit}",
            )
        return policies

    def _store_topic(
        self, name: TopicName, policies: Policies, properties: dict[str, str] | None, done: Done | None
    ) -> TopicRecord:
        """Write a new topic's record, with its first maintenance time. Raises `StoreError`."""
        text, now_ms = str(name), self._scheduler.now_ms
        record = TopicRecord(now_ms, properties)
        soonest_ms = deadlines.soonest_ms(policies)
        if soonest_ms < NEVER:
            self._services.due.arm(text, record, now_ms + soonest_ms)
        self._store.keys.put(topic_key(text), record.encode(), done)
        return record

    def create_partitions(
        self, name: TopicName, count: int, properties: dict[str, str] | None, done: Done | None
    ) -> None:
        """Store a partitioned topic and its partitions; raises `Refused` if the store refuses."""
        self.policies(name)
        self._check_stays(name)
        self._check_partitions(count)
        record: Json = {"partitions": count, "created_ms": self._scheduler.now_ms}
        if properties:
            record["properties"] = properties
        self._write_partitions(name, record, 0, done)

    def grow_partitions(
        self, name: TopicName, count: int, subscriptions: Sequence[str], done: Done | None
    ) -> None:
        """Add partitions to a partitioned topic; raises `Refused`.

        New partitions, created here or at their first use, get these subscriptions from their first message
        on. Until that is done the record lists them. After a crash the call can be repeated.
        """
        self._check_stays(name)
        self._check_partitions(count)
        value = self._store.keys.get(partitioned_key(name))
        assert value is not None
        record = _partitioned(name, value)
        first = before = self.partition_count(name)
        wanted = {*subscriptions}
        if _FRESH in record:
            first = min(before, record[_FRESH]["first"])
            wanted.update(record[_FRESH]["subscriptions"])
        if wanted:
            record[_FRESH] = {"first": first, "subscriptions": sorted(wanted)}
        self._write_partitions(name, record | {"partitions": count}, first, done)

    def _subscribe_fresh(self, partition: TopicName) -> None:
        """Create the subscriptions that a new partition lacks. Raises `StoreError`, `Refused`."""
        value = self._store.keys.get(partitioned_key(partition.base))
        fresh = None if value is None else _partitioned(partition.base, value).get(_FRESH)
        if fresh is None or partition.partition < fresh["first"]:
            return
        topic = self.find(partition)
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

    def _write_partitions(self, name: TopicName, record: Json, before: int, done: Done | None) -> None:
        """Write the record first: a missing partition is then created at its first use."""
        if not name.persistent or record["partitions"] <= before:
            self._store_record(name, record, done)
            return
        self._store_record(name, record, None)
        making = self._make_partitions(name, before, record["partitions"], done)
        self._services.slices.start(making, name, done)

    def _store_record(self, name: TopicName, record: Json, done: Done | None) -> None:
        try:
            self._store.keys.put(partitioned_key(name), encode_json(record), done)
        except StoreError as error:
            raise storage_refusal(error) from error

    def _make_partitions(self, name: TopicName, first: int, count: int, done: Done | None) -> Job:
        """Return a job that writes the partitions' records, then the topic's again, which reports for all."""
        slices, store = self._services.slices, self._store
        tell = done or (lambda error: None)
        try:
            for index in range(first, count):
                if str(name) in self._leaving or self.partition_count(name) < count:
                    break  # deleted meanwhile
                partition = name.partition_name(index)
                if not self.is_stored(partition):
                    self._store_topic(partition, self._namespaces.topic_policies(name), None, None)
                    self._changed(partition, True)
                self._subscribe_fresh(partition)
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

    # --- leaving ---
    def delete_topic(self, name: TopicName, done: Done | None) -> None:
        """Delete a topic's data, cursors and record; its clients are disconnected."""
        topic = self.find(name)
        if topic is None:
            if done is not None:
                done(None)
            return
        # Unregister first: disconnected clients that reconnect find no topic, or create a new one.
        del self._loaded[str(name)]
        self._services.due.drop(topic)
        topic.delete(done)
        self._changed(name, False)

    def delete_partitions(
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

        self._services.slices.start(self._delete_partitions(name, count, deleted, forget), name, deleted)

    def _delete_partitions(self, name: TopicName, count: int, done: Done, forget: Callable[[], None]) -> Job:
        slices = self._services.slices
        try:
            for start in range(0, count, DELETED_AT_ONCE):
                stop = min(start + DELETED_AT_ONCE, count)
                part = [name.partition_name(index) for index in range(start, stop)]
                yield from slices.wait(partial(self.prepare_all, part))
                for partition in part:
                    self.delete_topic(partition, None)
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

    def unload_topic(self, topic: Topic) -> None:
        """Disconnect all clients and unload; the next use loads the topic again. Raises `StoreError`."""
        topic.disconnect_all()
        if topic.persistent and topic.idle:
            self.let_go(topic)

    def let_go(self, topic: Topic) -> None:
        """Unload a topic without clients. Raises `StoreError`: then it stays in memory."""
        if not self._is_here(topic):
            return  # it left before; another one may have its name now
        figures = self.resting.figures_of(topic)
        topic.close()
        self._services.due.drop(topic)
        del self._loaded[topic.text]
        self.resting.left(topic.text, *figures)

    def close(self) -> None:
        """Write pending changes of loaded topics."""
        for topic in self._loaded.values():
            self._scheduler.isolated("housekeeping", topic, topic.close)
            self._services.due.drop(topic)
        self._loaded.clear()

    def policies_changed(self, namespace: str | None, base: TopicName | None) -> None:
        """Apply changed policies to the topics in memory; changes during a run are applied in the next."""
        self._changed_policies[namespace, base] = None
        if not self._is_telling:
            self._is_telling = True
            self._services.slices.start(self._tell_policies(), "policies")

    def when_told(self, then: Done) -> None:
        """Call ``then`` when all earlier changes of policies are applied to the topics in memory."""
        if self._is_telling:
            self._wait_for_telling.append(then)
        else:
            then(None)

    def _tell_policies(self) -> Job:
        """Return a job that applies changed policies. Topics loaded meanwhile have them already."""
        slices = self._services.slices
        waiting: list[Done] = []
        try:
            while self._changed_policies:
                waiting, self._wait_for_telling = self._wait_for_telling, []
                changed, self._changed_policies = self._changed_policies, {}
                spaces = {namespace for namespace, base in changed if base is None}
                bases = {str(base) for _, base in changed if base is not None}
                for number, topic in enumerate([*self._loaded.values()], 1):
                    name = topic.name
                    is_meant = (
                        None in spaces
                        or (spaces and name.namespace_name in spaces)
                        or (bases and str(name.base) in bases)
                    )
                    exists = is_meant and self._namespaces.exists(name.tenant, name.namespace)
                    if exists and self._is_here(topic):
                        self._scheduler.isolated(
                            "job", topic, topic.policies_changed, self._policies_of(topic)
                        )
                        self._services.due.plan(topic)
                    if (is_meant or number % 64 == 0) and slices.should_yield:
                        yield None
                told, waiting = waiting, []
                self._go_on(told)
        finally:
            self._is_telling = False
            rest, self._wait_for_telling = self._wait_for_telling, []
            self._go_on([*waiting, *rest])

    def _go_on(self, waiting: Sequence[Done]) -> None:
        for then in waiting:
            self._scheduler.isolated("job", "policies", then, None)

    def _policies_of(self, topic: Topic) -> Policies:
        """Return the policies of a topic in memory; cautious ones if the disk fails to read its own."""
        try:
            return self._namespaces.topic_policies(topic.name)
        except StoreError as error:
            log.error("%r: cannot read its policies, and deletes nothing by them: %s", topic, error)
            return cautious(topic.policies)

    def _is_here(self, topic: Topic) -> bool:
        return self._loaded.get(topic.text) is topic


class _PendingLoad:
    """Topic that is being loaded, and its waiting callers. Outdated once it was loaded otherwise."""

    __slots__ = ("is_outdated", "waiting")

    def __init__(self, then: Done) -> None:
        self.waiting = [then]
        self.is_outdated = False


_FRESH = "fresh"
"""Field in the record of a partitioned topic: the first partition that lacks subscriptions, their names."""
DELETED_AT_ONCE = 32
"""Partitions that are read ahead together for deletion."""
LOADS_AT_ONCE = 256
"""Topics that are read from the disk at once; more are queued."""
TOPIC_NAME_MAX = 1024
"""Longest complete name of a topic in characters."""


def _partitioned(name: TopicName, value: StoredValue) -> Json:
    return decode_json(value, f"record of partitioned topic {name}")


def parse_topic(text: str) -> TopicName:
    """Parse a topic's name; raises `Refused` InvalidTopicName."""
    if len(text) > TOPIC_NAME_MAX:
        raise Refused(
            pb.InvalidTopicName,
            f"Invalid topic name: {len(text)} characters, at most {TOPIC_NAME_MAX} are allowed",
        )
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise Refused(pb.InvalidTopicName, f"Invalid topic name: {error}") from error
