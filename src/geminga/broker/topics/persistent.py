"""A persistent topic: its entries, who produces to it and who is subscribed to it."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.dispatchers import count_of, message_count
from geminga.broker.delivery.subscription import Subscription, cursor_prefix
from geminga.broker.refusal import Refused, storage_refusal
from geminga.broker.topics import maintenance
from geminga.broker.topics.access import ProducerAccess
from geminga.broker.topics.dedup import Deduplication, Verdict
from geminga.broker.topics.managed_ledger import LedgerLimits, ManagedLedger
from geminga.errors import CorruptPayload, StoreDamaged, StoreError
from geminga.ids import TopicName
from geminga.ledger.api import Done
from geminga.wire.frames import SendFrame
from geminga.wire.metadata import peek_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.core import Broker
    from geminga.broker.topics.producer import Producer

log = logging.getLogger("geminga.broker")

Json = dict[str, Any]


class Topic:
    """A loaded topic. What is durable of it is under ``topic/``, ``ledgers/``, ``cursor/``, ``dedup/``."""

    __slots__ = (
        "_appended", "_pending", "access", "broker", "bytes_in", "bytes_out_gone", "consumers_connected",
        "dedup", "deleted", "last_used", "ledger", "limits", "messages_in", "messages_out_gone", "name",
        "policies", "quota_exceeded", "record", "restricted", "subscriptions", "text",
    )  # fmt: skip

    persistent = True

    def __init__(self, broker: Broker, name: TopicName, record: Json) -> None:
        self.broker = broker
        self.name = name
        self.text = str(name)
        self.record = record
        settings = broker.settings
        self.limits = LedgerLimits(
            settings.ledger_entries_max, settings.ledger_bytes_max, settings.ledger_seconds_max
        )
        self.policies = broker.namespaces.topic_policies(name)
        self.ledger = ManagedLedger(broker.store, self.text, broker.cache)
        self.access = ProducerAccess(record.get("epoch"), self._save_epoch)
        self.subscriptions: dict[str, Subscription] = {}
        self.dedup: Deduplication | None = None
        self.consumers_connected = 0
        self.quota_exceeded = ""
        self.deleted = False
        self.last_used = broker.now
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out_gone = 0
        self.bytes_out_gone = 0
        self._pending: deque[tuple[Producer, int, int, int, int, int]] = deque()
        self._appended = self._entry_done
        self._load_cursors()
        self.policies_changed()

    def __repr__(self) -> str:
        return f"Topic({self.text!r})"

    def _load_cursors(self) -> None:
        prefix = cursor_prefix(self.text)
        for key, value in self.broker.store.scan(prefix):
            name = key[len(prefix) :]
            cursor = Cursor.load(value, f"cursor of subscription {name!r} on {self.text}")
            cursor.clamp(self.ledger.start, self.ledger.end)
            self.subscriptions[name] = Subscription(self, name, cursor)

    # --- durable properties ---
    @property
    def terminated(self) -> bool:
        return bool(self.record.get("terminated"))

    def save_record(self, done: Done | None = None) -> None:
        """Write the topic's own properties."""
        self.broker.store.put(topic_key(self.text), encode_record(self.record), done)

    def _save_epoch(self, epoch: int, done: Done) -> None:
        self.record["epoch"] = epoch
        try:
            self.save_record(done)
        except StoreError as error:
            done(error)

    def policies_changed(self) -> None:
        """Take over what the namespace or the topic's own policies say now."""
        self.policies = policies = self.broker.namespaces.topic_policies(self.name)
        self.restricted = bool(
            policies.encryption_required
            or policies.delayed_delivery_seconds_max
            or 0 < policies.max_message_size < self.broker.settings.max_message_size
        )
        if policies.deduplication and self.dedup is None:
            self.dedup = Deduplication.load(
                self.broker.store, self.text, self.ledger, self.broker.settings.deduplication_producers_max
            )
        elif not policies.deduplication and self.dedup is not None:
            self.dedup.forget()
            self.dedup = None
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                if not consumer.send_epoch:
                    consumer.unacked_messages_max = policies.unacked_messages_per_consumer_max

    # --- publishing ---
    def publish(self, producer: Producer, frame: SendFrame) -> None:
        """Take an entry in. Its receipt or error is written when the store reports."""
        entry = frame.entry
        sequence_id = frame.sequence_id
        highest = frame.highest_sequence_id
        if self.record.get("terminated"):
            producer.error(highest or sequence_id, pb.TopicTerminatedError, "Topic was already terminated")
            return
        checked = -1
        size = len(entry)
        if self.restricted and not self._is_allowed(producer, frame):
            return
        if self.dedup is not None:
            checked = self._check_duplicate(producer, frame)
            if checked == -2:
                return
        messages = frame.num_messages
        try:
            offset = self.ledger.append(
                entry,
                messages,
                now_ms=self.broker.now_ms,
                limits=self.limits,
                keep=self.consumers_connected > 0,
                done=self._appended,
            )
        except StoreError as error:
            if self.dedup is not None and checked >= 0:
                self.dedup.failed(producer.name)
            producer.error(highest or sequence_id, pb.PersistenceError, str(error))
            return
        self.messages_in += messages
        self.bytes_in += size
        producer.taken(messages, size, chunk=frame.is_chunk)
        self._pending.append((producer, sequence_id, highest, checked, offset, size))

    def _is_allowed(self, producer: Producer, frame: SendFrame) -> bool:
        """What policies demand of an entry; one that does not comply is answered here."""
        policies = self.policies
        sequence_id = frame.highest_sequence_id or frame.sequence_id
        limit = policies.max_message_size
        if limit and len(frame.entry) > limit:
            producer.error(
                sequence_id,
                pb.NotAllowedError,
                f"The message of {len(frame.entry)} bytes exceeds the topic's limit of {limit}",
            )
            return False
        try:
            head = peek_entry(frame.entry)
        except CorruptPayload as error:
            producer.error(sequence_id, pb.MetadataError, str(error))
            return False
        if policies.encryption_required and not head.encrypted:
            producer.error(
                sequence_id, pb.MetadataError, "Messages must be encrypted: the namespace requires it"
            )
            return False
        delay_ms = head.deliver_at_time - self.broker.now_ms
        if 0 < policies.delayed_delivery_seconds_max * 1000 < delay_ms:
            producer.error(
                sequence_id,
                pb.NotAllowedError,
                f"Exceeds max allowed delivery delay of {policies.delayed_delivery_seconds_max:g} s",
            )
            return False
        return True

    def _check_duplicate(self, producer: Producer, frame: SendFrame) -> int:
        """The sequence id to record when the entry is durable, -1 for none; -2: answered already."""
        assert self.dedup is not None
        sequence_id, highest = frame.sequence_id, max(frame.sequence_id, frame.highest_sequence_id)
        if frame.is_chunk:
            try:
                head = peek_entry(frame.entry)
            except CorruptPayload:
                head = None
            if head is not None and head.chunk_id != head.num_chunks - 1:
                return -1
        verdict = self.dedup.check(producer.name, sequence_id, highest)
        if verdict is Verdict.NEW:
            return highest
        if verdict is Verdict.DUPLICATE:
            self._duplicate(producer, frame)
        else:
            producer.error(
                highest,
                pb.PersistenceError,
                "Cannot determine whether the message is a duplicate at this time",
            )
        return -2

    def _duplicate(self, producer: Producer, frame: SendFrame) -> None:
        """Receipt a duplicate as -1:-1, behind the receipts of what was sent before it."""
        if producer.pending:
            # The store runs callbacks in the order of the calls: an empty slot in our own queue keeps
            # the place, and the entry before it answers for both.
            self._pending.append((producer, frame.sequence_id, frame.highest_sequence_id, -2, -1, 0))
        else:
            producer.receipt(frame.sequence_id, frame.highest_sequence_id, -1, -1)

    def _entry_done(self, error: StoreError | None) -> None:
        """The store reports on the oldest pending entry."""
        producer, sequence_id, highest, checked, offset, size = self._pending.popleft()
        ledger = self.ledger
        if error is None:
            ledger.confirmed = offset + 1
            self.broker.ready_topics[self] = None
        if self.dedup is not None and checked >= 0:
            if error is None:
                self.dedup.stored(producer.name, checked)
            else:
                self.dedup.failed(producer.name)
        if error is None:
            ledger_id, entry_id = ledger.position(offset)
            producer.receipt(sequence_id, highest, ledger_id, entry_id)
        else:
            producer.error(highest or sequence_id, pb.PersistenceError, str(error))
        producer.settled(size)
        pending = self._pending
        while pending and pending[0][3] == -2:
            waiting = pending.popleft()
            waiting[0].receipt(waiting[1], waiting[2], -1, -1)

    @property
    def last_sequence_id(self) -> Callable[[str], int]:
        """What PRODUCER_SUCCESS tells a producer of that name: -1 unless deduplication knows better."""
        dedup = self.dedup
        return (lambda name: -1) if dedup is None else dedup.last_sequence_id

    def dispatch(self) -> None:
        """New entries are durable: hand them out."""
        for subscription in list(self.subscriptions.values()):
            subscription.dispatch()

    # --- subscriptions ---
    def subscription(
        self, name: str, *, offset: int, properties: dict[str, str], replicated: bool, done: Done
    ) -> Subscription:
        """Create a durable subscription at ``offset``; ``done`` reports when it is durable."""
        cursor = Cursor(offset, durable=True, properties=properties)
        subscription = Subscription(self, name, cursor, replicated=replicated)
        self.subscriptions[name] = subscription
        subscription.writer.write_snapshot(done)
        return subscription

    def reader(self, name: str, offset: int) -> Subscription:
        """A subscription of a reader: it lives in memory, as long as it has consumers."""
        subscription = Subscription(self, name, Cursor(offset, durable=False))
        self.subscriptions[name] = subscription
        return subscription

    def forget_subscription(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            for consumer in subscription.consumers:
                self.messages_out_gone += consumer.messages_out
                self.bytes_out_gone += consumer.bytes_out
            self.messages_out_gone += subscription.messages_out_gone
            self.bytes_out_gone += subscription.bytes_out_gone

    def delete_subscription(self, subscription: Subscription, done: Done | None) -> None:
        """Remove a subscription with its cursor; its consumers are disconnected."""
        subscription.fenced = True
        subscription.disconnect_all()
        self.forget_subscription(subscription)
        subscription.writer.delete(done)

    # --- positions ---
    @property
    def last_position(self) -> tuple[int, int]:
        """Ids of the newest durable entry, -1:-1 when there is none."""
        ledger = self.ledger
        if ledger.confirmed <= ledger.start:
            return -1, -1
        return ledger.position(ledger.confirmed - 1)

    def last_batch_index(self) -> int:
        """Index of the last message in the newest entry if it is a batch, else -1."""
        ledger = self.ledger
        last = ledger.confirmed - 1
        if last < ledger.start:
            return -1
        found = ledger.read(last, last + 1, entries_max=1, bytes_max=1 << 30)
        if not found:
            return -1
        try:
            head = peek_entry(found[0][0])
        except CorruptPayload:
            return -1
        return count_of(head) - 1 if head.is_batch else -1

    def offset_by_time(self, publish_time_ms: int) -> int:
        """The first entry that was published at ``publish_time_ms`` or later (by its own claim)."""
        low, high = self.ledger.start, self.ledger.confirmed
        while low < high:
            middle = (low + high) // 2
            if self.publish_time(middle) < publish_time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def publish_time(self, offset: int) -> int:
        """When an entry was published, in milliseconds since 1970; 0 when it does not say."""
        found = self.ledger.read(offset, offset + 1, entries_max=1, bytes_max=1 << 30)
        if not found:
            return 0
        try:
            return peek_entry(found[0][0]).publish_time
        except CorruptPayload:
            return 0

    def messages_in_entry(self, offset: int) -> int:
        found = self.ledger.read(offset, offset + 1, entries_max=1, bytes_max=1 << 30)
        return message_count(found[0][0]) if found else 1

    # --- housekeeping ---
    def housekeeping(self) -> None:
        """Expire old messages, look at the backlog quota, delete what nobody needs any more."""
        try:
            maintenance.forget_unused_subscriptions(self)
            maintenance.expire(self)
            maintenance.check_quota(self)
            self.trim()
        except StoreError as error:
            log.error("%r: housekeeping failed: %s", self, error)

    def trim(self) -> int:
        """Delete ledgers that neither subscriptions nor retention need; returns how many."""
        return maintenance.trim(self)

    # --- life ---
    @property
    def idle(self) -> bool:
        """Nobody is connected and nothing is under way."""
        return not (self.access.producers or self.access.waiting or self.consumers_connected or self._pending)

    def terminate(self, done: Done) -> None:
        """No more entries, ever. Producers are closed, consumers are told when they have read all."""
        self.record["terminated"] = True
        self.save_record(done)
        for producer in self.access.everyone():
            producer.session.close_producer(producer)
        for subscription in list(self.subscriptions.values()):
            subscription.topic_terminated()

    def disconnect_all(self) -> None:
        """CLOSE_PRODUCER and CLOSE_CONSUMER to everybody: they look the topic up again."""
        for producer in self.access.everyone():
            producer.session.close_producer(producer)
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()

    def delete(self, done: Done | None) -> None:
        """Forget everything that is durable of the topic."""
        self.deleted = True
        self.disconnect_all()
        store = self.broker.store
        for subscription in self.subscriptions.values():
            subscription.fenced = True
            subscription.writer.delete(None)
        self.subscriptions.clear()
        if self.dedup is not None:
            self.dedup.forget()
            self.dedup = None
        self.ledger.delete_all()
        store.delete(topic_key(self.text), done)

    def close(self) -> None:
        """Leave memory: what is not written yet is written."""
        if self.dedup is not None:
            self.dedup.save()
        for subscription in self.subscriptions.values():
            subscription.flush()


def topic_key(text: str) -> str:
    return f"topic/{text}"


def encode_record(record: Json) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def decode_record(data: bytes, what: str) -> Json:
    """The JSON object of a record; raises `StoreDamaged`."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StoreDamaged(f"{what} is no JSON object: {data[:80]!r}")
    return found


def refuse_storage(error: StoreError | None) -> Refused | None:
    """The refusal for a store's report; None when all is well."""
    return None if error is None else storage_refusal(error)
