"""Registry of the topics that exist, and of those in memory.

Every topic has a record in the store under ``topic/<name>``; a partitioned topic has one under
``partitioned/<name>`` besides those of its partitions. A topic is loaded when it is first used and leaves
memory when it was unused for a while, so that idle topics cost nothing but their records.
"""

import logging
from collections.abc import Callable, Generator
from functools import partial

from geminga.broker.rules.effective_policies import Policies
from geminga.broker.rules.namespaces import NamespaceRegistry
from geminga.broker.runtime.cooperative import Job, at_once
from geminga.broker.runtime.refusal import Refused, storage_refusal
from geminga.broker.topics import deadlines
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.nonpersistent import NonPersistentTopic
from geminga.broker.topics.partitioned import PartitionedTopics
from geminga.broker.topics.persistent import PersistentTopic, topic_key
from geminga.broker.topics.policy_updates import PolicyUpdates
from geminga.broker.topics.record import TopicRecord
from geminga.broker.topics.resting import RestingTopics, traffic_of
from geminga.broker.topics.topic import UNUSED_SECONDS, Topic, TopicServices
from geminga.broker.topics.topic_counts import TopicCounts
from geminga.broker.topics.topic_loading import TopicLoader
from geminga.broker.topics.topic_names import ListedTopicNames, TopicNames
from geminga.errors import InvalidTopicName, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done, PrefetchRequest
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
        self.changes: list[TopicChange] = []
        """Called after each change."""
        self.counts = TopicCounts(services, lambda each: self.walk(each, persistent=True), self.turn_page)
        """Numbers of persistent topics by namespace."""
        self.resting = RestingTopics(services, self.bring, self.in_memory)
        self.loader = TopicLoader(services, namespaces, self._loaded, self._enter, self.bring, self.counts)
        self.partitioned = PartitionedTopics(
            services, self.policies, self.find, self._add_stored, self.delete_topic, self.loader.prepare_all
        )
        self.policy_updates = PolicyUpdates(services, namespaces, self._loaded)
        self.no_room: Callable[[], str] = lambda: ""
        """Reason why topics are not auto-created now; empty if they are. Administrators still may."""

    # --- existing topics, in memory and stored ---
    def _changed(self, name: TopicName, exists: bool) -> None:
        if name.persistent:
            self.counts.changed(name, 1 if exists else -1)
        for change in list(self.changes):
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

    def in_memory(self, name: TopicName | str) -> Topic | None:
        """Return the topic if it is loaded."""
        return self._loaded.get(str(name))

    def is_stored(self, name: TopicName) -> bool:
        """Return whether the topic exists; a partitioned topic itself does not, only its partitions do."""
        return str(name) in self._loaded or (
            name.persistent and self._store.keys.get(topic_key(str(name))) is not None
        )

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

    def prefetch(self, wanted: PrefetchRequest) -> Job:
        """Wait, as a part of a job, until the wanted keys are in memory. Raises `StoreError`."""
        error = yield from self._services.slices.wait(partial(self.bring, wanted))
        if error is not None:
            raise error

    def turn_page(self, walk: TopicNames) -> Generator[bool | None, None, list[str]]:
        """Return the next page of a walk, as a part of a job, after reading it ahead. Raises `StoreError`."""
        yield from self.prefetch(walk.wanted)
        return walk.page()

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
            topic = PersistentTopic(self._services, name, record)
            at_once(topic.load(self._namespaces.topic_policies(name)))
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

    def _enter(self, topic: Topic) -> None:
        self.loader.entered(topic)
        self._loaded[topic.text] = topic
        self.resting.entered(topic)
        self._services.due.plan(topic, self._scheduler.now_ms + int(UNUSED_SECONDS * 1000))

    def find_or_create(self, name: TopicName, *, may_create: bool = True) -> Topic:
        """Return the topic, created if that is allowed; raises `Refused`."""
        policies = self.policies(name)
        topic = self.find(name)
        if topic is not None:
            return topic
        self.partitioned.check_stays(name)
        if name.partition >= 0:
            partitions = self.partitioned.count(name.base)
            if partitions > 0:
                if name.partition >= partitions:
                    raise Refused(
                        pb.TopicNotFound,
                        f"Topic {name} does not exist: {name.base} has {partitions} partitions",
                    )
                self.check_room(name)
                topic = self.make(name)
                try:
                    self.partitioned.subscribe_fresh(name)
                except StoreError as error:
                    raise storage_refusal(error) from error
                return topic
        elif self.partitioned.count(name):
            raise Refused(pb.NotAllowedError, f"{name} is a partitioned topic: use its partitions")
        if not (may_create and policies.auto_create_topics):
            raise Refused(pb.TopicNotFound, f"Topic {name} does not exist")
        self.check_room(name)
        if policies.auto_create_partitions and name.partition < 0 and name.persistent:
            # A non-persistent topic is not stored: its clients return to it after a restart.
            raise Refused(pb.NotAllowedError, f"{name} is created with partitions: ask for their number")
        return self.make(name)

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
                topic = PersistentTopic(self._services, name, record)
                at_once(topic.load(policies))
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
            self._add_stored(name, policies, properties, done)
        except StoreError as error:
            raise storage_refusal(error) from error

    def _add_stored(
        self,
        name: TopicName,
        policies: Policies,
        properties: dict[str, str] | None = None,
        done: Done | None = None,
    ) -> None:
        """Write a new topic's record; the topic is loaded at its first use. Raises `StoreError`."""
        self._store_topic(name, policies, properties, done)
        self._changed(name, True)

    def _checked_policies(self, name: TopicName) -> Policies:
        """Return the policies of a new topic; raises `Refused` if there are too many topics."""
        policies = self.policies(name)
        self.partitioned.check_stays(name)
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
        self.resting.keep_traffic(name.namespace_name, traffic_of(topic))
        topic.delete(done)
        self._changed(name, False)

    def let_go(self, topic: Topic) -> None:
        """Unload a topic without clients. Raises `StoreError`: then it stays in memory."""
        if self._loaded.get(topic.text) is not topic:
            return  # it left before; another one may have its name now
        figures, traffic = self.resting.figures_of(topic), traffic_of(topic)
        topic.close()
        self._services.due.drop(topic)
        del self._loaded[topic.text]
        self.resting.left(topic.text, *figures)
        self.resting.keep_traffic(topic.name.namespace_name, traffic)

    def close(self) -> None:
        """Write pending changes of loaded topics."""
        for topic in self._loaded.values():
            self._scheduler.isolated("housekeeping", topic, topic.close)
            self._services.due.drop(topic)
        self._loaded.clear()


TOPIC_NAME_MAX = 1024
"""Longest complete name of a topic in characters."""
SUBSCRIPTION_NAME_MAX = 4096
"""Longest name of a subscription in characters."""


def check_length(what: str, text: str, limit: int) -> None:
    """Raise `Refused` NotAllowedError for a name that is too long."""
    if len(text) > limit:
        raise Refused(
            pb.NotAllowedError, f"The {what} has {len(text)} characters; at most {limit} are allowed"
        )


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
