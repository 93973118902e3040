"""Non-persistent topic: entries are sent to the connected consumers that can take them, and not stored."""

from __future__ import annotations

from bisect import insort

from geminga.broker.delivery.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, Consumer, LastMessage
from geminga.broker.delivery.limits import TopicLimits
from geminga.broker.delivery.selectors import ConsistentHashSelector, Selector, StickySelector
from geminga.broker.entries.entry_facts import head_of, sticky_key
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.refusal import Refused
from geminga.broker.topics.access import ProducerAccess
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.producer import Producer, slow_down
from geminga.broker.topics.record import TopicRecord
from geminga.broker.topics.topic import QuotaExceeded, SubscriptionRequest, TopicServices
from geminga.broker.topics.transactions import TransactionRecord
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.wire.frames import SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun


class NonPersistentSubscription:
    """Consumers that share the entries. An entry that no consumer can take now is dropped."""

    durable = False
    replicated = False
    backlog = 0

    def __init__(self, topic: NonPersistentTopic, name: str) -> None:
        self.topic = topic
        self.name = name
        self.partition = topic.name.partition
        self.type: int | None = None
        self.consumers: list[Consumer] = []
        self.dropped = 0
        self.messages_out_gone = 0
        self.bytes_out_gone = 0
        self._selector: Selector | None = None
        self._turn = 0
        self._active: Consumer | None = None

    @property
    def topic_text(self) -> str:
        return self.topic.text

    def ack_holes(self, now: float) -> int:
        """Return 0: entries are not stored."""
        return 0

    def add(self, consumer: Consumer) -> None:
        """Attach a consumer; raises `Refused`."""
        if self.consumers and self.type != consumer.type:
            raise Refused(pb.ConsumerBusy, "Subscription is of different type")
        if consumer.type == EXCLUSIVE and self.consumers:
            raise Refused(pb.ConsumerBusy, "Exclusive consumer is already connected")
        if consumer.type == KEY_SHARED:
            policy = consumer.key_shared or pb.KeySharedMeta()
            if not self.consumers or self._selector is None:
                sticky = policy.keySharedMode == pb.STICKY
                self._selector = StickySelector() if sticky else ConsistentHashSelector()
            self._selector.add(consumer, [(each.start, each.end) for each in policy.hashRanges])
        self.type = consumer.type
        insort(self.consumers, consumer, key=lambda each: (each.priority, each.name))
        self.topic.consumers_connected += 1
        self.topic.touch()

    def started(self, consumer: Consumer) -> None:
        if self.type == FAILOVER:
            self._notify()
            if consumer is not self._active:
                consumer.notify_active(False)

    def _notify(self) -> None:
        """Notify the consumer that became active and the one that was."""
        previous, self._active = self._active, self.consumers[0]
        if previous is not self._active:
            if previous is not None:
                previous.notify_active(False)
            self._active.notify_active(True)

    def remove(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if consumer is self._active:
            self._active = None
        self.topic.consumers_connected -= 1
        self.topic.touch()
        self.messages_out_gone += consumer.messages_out
        self.bytes_out_gone += consumer.bytes_out
        if self._selector is not None and consumer.type == KEY_SHARED:
            self._selector.remove(consumer)
        if not self.consumers:
            self.topic.subscriptions.pop(self.name, None)
            self.topic.messages_out_gone += self.messages_out_gone
            self.topic.bytes_out_gone += self.bytes_out_gone
        elif self.type == FAILOVER:
            self._notify()

    def disconnect_all(self) -> None:
        for consumer in list(self.consumers):
            consumer.disconnect()

    def offer(self, entry: bytes, messages: int) -> None:
        """Send an entry to the next consumer, or drop it."""
        consumer = self._choose(entry)
        if consumer is None or not consumer.ready:
            self.dropped += messages
            return
        consumer.send(0, 0, entry, messages, 0, ())

    def _choose(self, entry: bytes) -> Consumer | None:
        consumers = self.consumers
        if not consumers:
            return None
        if self.type in (EXCLUSIVE, FAILOVER):
            return consumers[0]
        if self.type == KEY_SHARED and self._selector is not None:
            return self._selector.select(self._selector.slot(sticky_key(head_of(entry))))
        for step in range(len(consumers)):
            index = (self._turn + step) % len(consumers)
            if consumers[index].ready:
                self._turn = index + 1
                return consumers[index]
        return None

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.add_permits(permits, self.topic.scheduler.now_ms)

    def _ignore(self, *arguments: object, **options: object) -> None:
        """Do nothing: nothing is stored, so there is nothing to acknowledge or to redeliver."""

    acknowledge = acknowledge_one = acknowledge_cumulative = redeliver = writable_again = dispatch = _ignore

    def when_durable(self, done: Done) -> None:
        done(None)

    def seek(self, target: pb.CommandSeek, done: Done) -> None:
        raise Refused(pb.MetadataError, "A non-persistent topic has no place to seek to")

    def last_message(self, ready: Done, *, compacted: bool = False) -> LastMessage | None:
        raise Refused(pb.MetadataError, "getLastMessageId is not supported on a non-persistent topic")

    def delete(self, done: Done) -> None:
        self.disconnect_all()
        done(None)


class NonPersistentTopic:
    """Non-persistent topic. It exists while it is in memory."""

    persistent = False
    terminated = False

    def __init__(self, services: TopicServices, name: TopicName, policies: Policies) -> None:
        self.scheduler = services.scheduler
        self.name = name
        self.text = str(name)
        self.policies = policies
        self.record = TopicRecord(services.scheduler.now_ms)
        self.access = ProducerAccess(None, self)
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.consumers_connected = 0
        self.quota_exceeded: QuotaExceeded | None = None
        self.loaded_at = services.scheduler.now
        self.last_used_ms = services.scheduler.now_ms
        self.check_ms = NEVER
        self._due = services.due
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out_gone = 0
        self.bytes_out_gone = 0
        self.rate_limits = TopicLimits(services.limits)
        self.policies_changed(policies)

    def __repr__(self) -> str:
        return f"NonPersistentTopic({self.text!r})"

    def save_epoch(self, epoch: int, done: Done) -> None:
        done(None)

    def save_record(self, done: Done | None = None) -> None:
        if done is not None:
            done(None)

    def last_sequence_id(self, producer_name: str) -> int:
        return -1

    def has_pending(self, producer_name: str) -> bool:
        return False

    def touch(self) -> None:
        """Record that a client has connected or disconnected."""
        self.last_used_ms = self.scheduler.now_ms
        self._due.plan(self)

    def used(self) -> None:
        self.touch()

    def remove_producer(self, producer: Producer) -> None:
        self.access.remove(producer)
        self.touch()

    @property
    def idle(self) -> bool:
        return not (self.access.producers or self.consumers_connected)

    def publish(self, producer: Producer, frame: SendFrame, counted: int | None = None) -> None:
        """Send an entry to every subscription and its receipt to the producer."""
        entry = bytes(frame.entry)
        messages = frame.num_messages
        self.messages_in += messages
        self.bytes_in += len(entry)
        producer.messages_in += messages
        producer.bytes_in += len(entry)
        if self.rate_limits.publish:
            slow_down(producer, self.rate_limits.publish, messages, len(entry), self.scheduler.now)
        for subscription in list(self.subscriptions.values()):
            subscription.offer(entry, messages)
        producer.receipt(frame.sequence_id, frame.highest_sequence_id, 0, 0)

    def publish_in(
        self, transaction: TransactionRecord, producer: Producer, frame: SendFrame, counted: int | None
    ) -> None:
        raise Refused(pb.NotAllowedError, "A topic that is not persistent has no transactions")

    def publish_run(self, producer: Producer, run: SendRun) -> None:
        for frame in run.frames():
            self.publish(producer, frame)

    def policies_changed(self, policies: Policies) -> None:
        self.policies = policies
        self.rate_limits.set(policies, self.scheduler.now)

    def subscribe(self, request: SubscriptionRequest) -> NonPersistentSubscription:
        """Return the subscription, created if it is new."""
        found = self.subscriptions.get(request.name)
        if found is None:
            found = self.subscriptions[request.name] = NonPersistentSubscription(self, request.name)
        return found

    def check_quota(self) -> None:
        return None

    def initial_subscription(self, name: str) -> None:
        return

    def dispatch(self) -> None:
        return

    def disconnect_all(self) -> None:
        for producer in self.access.everyone():
            producer.disconnect()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()

    def delete(self, done: Done | None) -> None:
        self.disconnect_all()
        if done is not None:
            done(None)

    def close(self) -> None:
        return
