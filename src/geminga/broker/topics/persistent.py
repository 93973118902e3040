"""Persistent topic: its entries, producers and subscriptions."""

import logging

from geminga.broker.delivery.consumer import close_detached
from geminga.broker.delivery.cursor import Cursor
from geminga.broker.delivery.cursor_writer import cursor_prefix
from geminga.broker.delivery.delivery_times import DeliveryTimes
from geminga.broker.delivery.limits import TopicLimits
from geminga.broker.delivery.ranges import RangeSet
from geminga.broker.delivery.subscription import COMPACTION, PersistentSubscription
from geminga.broker.entries.compacted_view import EARLIEST, LATEST, CompactedLedger, Position
from geminga.broker.entries.entry_facts import backlog_count
from geminga.broker.entries.managed_ledger import ManagedLedger, Segment, ledger_limits
from geminga.broker.entries.position_lookup import offset_by_time, publish_time_in_memory
from geminga.broker.rules.effective_policies import Policies
from geminga.broker.runtime.cooperative import CooperativeScheduler, Steps
from geminga.broker.runtime.refusal import Refused, storage_refusal
from geminga.broker.settings import BrokerSettings
from geminga.broker.topics import compaction, deadlines, offloading, quota, topic_transactions
from geminga.broker.topics.access import SHARED, ProducerAccess
from geminga.broker.topics.admission import check_duplicate, is_allowed, is_restricted, lowers_limits
from geminga.broker.topics.dedup import Deduplication, DedupVerdict, forget_stale
from geminga.broker.topics.delivery_expiry import DeliveryExpiry
from geminga.broker.topics.expiry_index import NEVER
from geminga.broker.topics.histograms import TopicHistograms
from geminga.broker.topics.producer import Producer
from geminga.broker.topics.record import TopicRecord
from geminga.broker.topics.topic import QuotaExceeded, SubscriptionRequest, TopicServices
from geminga.broker.topics.topic_transactions import TopicTransactions
from geminga.broker.topics.transactions import TransactionRecord
from geminga.errors import StoreDamaged, StoreError, StoreFull
from geminga.ids import TopicName
from geminga.ledger.api import Done, EntryStore, StoredValue
from geminga.wire.frames import SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun

log = logging.getLogger("geminga.broker")

SUBSCRIPTIONS_AT_ONCE = 100
"""Maximum subscriptions that get a topic's new entries in one step."""
_UNCHECKED = DedupVerdict.UNCHECKED


class PersistentTopic:
    """Loaded topic. Its durable data is under ``topic/``, ``ledgers/``, ``cursor/``, ``dedup/``."""

    __slots__ = (
        "__weakref__", "_deleted", "_entries", "access", "bytes_in", "bytes_out_gone", "check_ms",
        "compacted", "compaction", "consumers_connected", "dedup", "delivery_expiry", "delivery_times",
        "histograms", "last_used_ms", "ledger", "limits", "loaded_at", "messages_in", "messages_out_gone",
        "name", "offload", "policies", "quota_exceeded", "rate_limits", "record", "restricted", "scheduler",
        "services", "subscriptions", "text", "transactions",
    )  # fmt: skip

    persistent = True

    def __init__(self, services: TopicServices, name: TopicName, record: TopicRecord) -> None:
        """The caller runs `load` before the topic is used."""
        self.scheduler = services.scheduler
        self.services = services
        self.check_ms = NEVER
        self.name = name
        self.text = name.text
        self.record = record
        self.rate_limits = TopicLimits(services.limits)
        self.ledger = ManagedLedger(
            services.store,
            self.text,
            services.cache,
            services.counts,
            now_ms=services.scheduler.now_ms,
            rolled=self._ledger_rolled,
        )
        self.delivery_times = DeliveryTimes(self.scheduler, services.store, self.text, self.ledger)
        self.delivery_expiry: DeliveryExpiry | None = None
        self.compacted: CompactedLedger | None = None
        self.compaction: compaction.Compaction | None = None
        tier = services.store.tier
        self.offload = None if tier is None else offloading.Offload(self, tier)
        self._deleted = False
        self.access = ProducerAccess(record.epoch, self)
        self.subscriptions: dict[str, PersistentSubscription] = {}
        self.dedup: Deduplication | None = None
        self.transactions: TopicTransactions | None = None
        self.consumers_connected = 0
        self.quota_exceeded: QuotaExceeded | None = None
        self.loaded_at = services.scheduler.now
        self.last_used_ms = services.scheduler.now_ms
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out_gone = 0
        self.bytes_out_gone = 0
        self.histograms: TopicHistograms | None = None
        self._entries = services.entries

    def load(self, policies: Policies) -> Steps[None]:
        """Load the stored state, one subscription per step: a cursor with millions of holes takes long."""
        prefix = cursor_prefix(self.text)
        for key in self.services.store.keys.names(prefix):
            value = self.services.store.keys.get(key)
            if value is not None:
                self._load_cursor(key[len(prefix) :], value)
            yield
        yield from self.delivery_times.load()
        deadlines.recall(self)
        compaction.recall(self)
        if not policies.deduplication:
            forget_stale(self.services.store, self.text)
        self.policies_changed(policies)
        self.transactions = topic_transactions.recall(self)  # deduplication knows aborted messages, too

    def __repr__(self) -> str:
        return f"PersistentTopic({self.text!r})"

    def _load_cursor(self, name: str, value: StoredValue) -> None:
        """Load a subscription from its cursor; after damage entries may be redelivered, none is skipped."""
        ledger = self.ledger
        what = f"cursor of subscription {name!r} on {self.text}"
        # A lost delta may have been a seek: the snapshot before it would hide entries.
        begins_anew = value.lost is not None and value.lost.values > 0
        harmed = ""
        cursor = Cursor(ledger.start, counts=ledger.counts, durable=True)
        try:
            cursor = cursor if begins_anew else Cursor.load(value, what, ledger.counts)
        except StoreDamaged as error:
            log.error("%s", error)
            harmed = str(error)
        cursor.clamp(ledger.start, ledger.end)
        for start, stop in ledger.gaps():
            cursor.step_over(start, stop)
        subscription = PersistentSubscription(self, name, cursor)
        subscription.harmed = harmed
        self.subscriptions[name] = subscription
        if begins_anew:
            log.error("%s was lost to damage: it restarts at the oldest entry, redelivering all", what)
            subscription.writer.write_snapshot(None)
        elif value.lost is not None:
            log.error("%s lost acknowledgements to damage: their entries are redelivered", what)

    # --- parts that subscriptions use ---
    @property
    def slices(self) -> CooperativeScheduler:
        return self.services.slices

    @property
    def store(self) -> EntryStore:
        return self.services.store

    @property
    def settings(self) -> BrokerSettings:
        return self.services.settings

    # --- durable properties ---
    @property
    def terminated(self) -> bool:
        return self.record.terminated

    def save_record(self, done: Done | None = None) -> None:
        """Write the topic's own properties."""
        if done is not None:
            done = self.scheduler.guarded("store", self, done)
        self.services.store.keys.put(topic_key(self.text), self.record.encode(), done)

    def save_epoch(self, epoch: int, done: Done) -> None:
        """Store a topic epoch; its owner is notified when it is durable."""
        self.record.epoch = epoch
        try:
            self.save_record(done)
        except StoreError as error:
            done(error)

    def policies_changed(self, policies: Policies) -> None:
        """Apply changed policies of the namespace or the topic."""
        is_stricter = self.dedup is not None and lowers_limits(policies, self.policies)
        self.policies: Policies = policies
        settings = self.services.settings
        self.limits = ledger_limits(
            settings.ledger_entries_max,
            settings.ledger_bytes_default,
            deadlines.ledger_seconds(policies, settings.ledger_seconds_max),
        )
        self.rate_limits.set(policies, self.scheduler.now)
        self.restricted = is_restricted(policies, self.rate_limits, settings.max_message_size)
        if policies.deduplication and self.dedup is None:
            self.dedup = Deduplication.load(
                self.services.store, self.text, self.ledger, settings.deduplication_producers_max
            )
        elif not policies.deduplication and self.dedup is not None:
            self.dedup.forget()
            self.dedup = None
        for subscription in self.subscriptions.values():
            subscription.policies_changed()
        for producer in list(self.access.producers.values()) if is_stricter else ():
            if producer.access_mode == SHARED:  # another mode would lose its exclusive access
                producer.hold()

    # --- publishing ---
    def publish(self, producer: Producer, frame: SendFrame, counted: int | None = None) -> None:
        """Store an entry. Its receipt or error is sent when the store reports."""
        entry = frame.entry
        sequence_id = frame.sequence_id
        highest = frame.highest_sequence_id
        if self.record.terminated:
            producer.error(highest or sequence_id, pb.TopicTerminatedError, "Topic was already terminated")
            return
        size = len(entry)
        if self.restricted and not is_allowed(self, producer, frame):
            return
        verdict = _UNCHECKED
        if self.dedup is not None:
            verdict = check_duplicate(self.dedup, producer, frame)
            if verdict is DedupVerdict.DUPLICATE:
                self._duplicate(producer, frame)
                return
            if verdict is DedupVerdict.UNKNOWN:
                return
        messages = frame.num_messages
        if counted is None:
            counted = backlog_count(entry) if messages > 1 or frame.is_chunk else 1
        entries, ledger, now = self._entries, self.ledger, self.scheduler.now
        entries.append((self, producer, sequence_id, highest, verdict, ledger.end, size, now))
        try:
            ledger.append(
                entry, counted, now_ms=self.scheduler.now_ms, limits=self.limits, done=entries.reported
            )
        except StoreError as error:
            entries.take_back()
            if self.dedup is not None and verdict is DedupVerdict.NEW:
                self.dedup.refused(producer.name)
            if isinstance(error, StoreFull):
                producer.hold()
            else:
                producer.send_retriable_error(highest or sequence_id, pb.PersistenceError, str(error))
            return
        self.messages_in += messages
        self.bytes_in += size
        if self.histograms is None:
            self.histograms = TopicHistograms(now)
        self.histograms.received(now, size)
        producer.taken(messages, size, chunk=frame.is_chunk)

    def publish_in(
        self, transaction: TransactionRecord, producer: Producer, frame: SendFrame, counted: int | None
    ) -> None:
        """Store an entry of an open transaction, as `publish` does. Raises `StoreError`."""
        records, ledger = self.services.transactions, self.ledger
        offset, position = ledger.end, ledger.next_position(self.scheduler.now_ms, self.limits)
        records.has_entry(transaction, self.text, *position)
        try:
            self.publish(producer, frame, counted)
        finally:
            if ledger.end > offset:
                self.in_transactions().has_entry(transaction.id, offset)
            else:
                records.take_back(transaction, self.text, *position)

    def in_transactions(self) -> TopicTransactions:
        """Return the topic's part in transactions, which begins now if it has none."""
        if self.transactions is None:
            self.transactions = TopicTransactions(self, RangeSet())
        return self.transactions

    def sample_ack(self, offset: int) -> None:
        """Count how long the entry at ``offset`` waited for its acknowledgement, if it is in memory."""
        published_ms = publish_time_in_memory(self.ledger, offset)
        if published_ms:
            now, waited_ms = self.scheduler.now, self.scheduler.now_ms - published_ms
            if self.histograms is None:
                self.histograms = TopicHistograms(now)
            self.histograms.acknowledged(now, max(0, waited_ms) / 1000)

    def end_transaction(self, transaction: TransactionRecord) -> None:
        """Let the end of a transaction, committed or aborted, take effect in the topic. Raises
        `StoreError`."""
        found = self.in_transactions()
        found.end_acks(transaction)
        found.end_entries(transaction)
        self.scheduler.ready[self] = None

    def skip_aborted(self, cursor: Cursor) -> None:
        """Acknowledge the entries of aborted transactions in a cursor that was just placed."""
        if self.transactions is not None:
            self.transactions.skip_aborted(cursor)

    def publish_run(self, producer: Producer, run: SendRun) -> None:
        """Store consecutive single messages at once, if none has to be checked."""
        run_entries, sequence_ids = run.entries, run.sequence_ids
        sizes = list(map(len, run_entries))
        count, size = len(sizes), sum(sizes)
        entries, ledger = self._entries, self.ledger
        now, now_ms = self.scheduler.now, self.scheduler.now_ms
        needs_checks = self.record.terminated or self.restricted or self.dedup is not None
        if needs_checks or not ledger.has_room(count, size, now_ms, self.limits):
            for frame in run.frames():
                self.publish(producer, frame)
            return
        entries.append((self, producer, sequence_ids, 0, _UNCHECKED, ledger.end, size, now))
        try:
            ledger.append_run(run_entries, sizes, size, now_ms=now_ms, done=entries.reported)
        except StoreError as error:
            entries.take_back()
            if isinstance(error, StoreFull):
                producer.hold()
                return
            for sequence_id in sequence_ids:
                producer.error(sequence_id, pb.PersistenceError, str(error))
            return
        self.messages_in += count
        self.bytes_in += size
        if self.histograms is None:
            self.histograms = TopicHistograms(now)
        self.histograms.received_run(now, sizes, size)
        producer.taken(count, size, chunk=False, entries=count)

    def _duplicate(self, producer: Producer, frame: SendFrame) -> None:
        """Send the receipt -1:-1 of a duplicate, after the receipts of earlier entries."""
        if producer.pending:
            # A slot without an entry reserves the position; the entry before it answers for both.
            sequence_id, highest = frame.sequence_id, frame.highest_sequence_id
            self._entries.append((self, producer, sequence_id, highest, DedupVerdict.DUPLICATE, -1, 0, 0.0))
        else:
            producer.receipt(frame.sequence_id, frame.highest_sequence_id, -1, -1)

    def settled(
        self,
        error: StoreError | None,
        producer: Producer,
        sequence_ids: int | range,
        highest: int,
        verdict: DedupVerdict,
        offset: int,
        size: int,
    ) -> None:
        """Handle the store's report on the oldest pending entry, or run of entries."""
        count = 1 if isinstance(sequence_ids, int) else len(sequence_ids)
        try:
            if error is None:
                if self.transactions is None:
                    self.ledger.confirmed = offset + count
                else:
                    self.transactions.stored_to(offset + count)
                self.scheduler.ready[self] = None  # dispatched at the end of this call into the core
            if isinstance(sequence_ids, int):
                last = max(sequence_ids, highest)
                # After an error the store has stopped: no repeat of the entry can be stored, nor asks for it.
                if self.dedup is not None and verdict is DedupVerdict.NEW and error is None:
                    self.dedup.stored(producer.name, last)
                if error is None:
                    producer.receipt(sequence_ids, highest, *self.ledger.position(offset))
                else:
                    producer.error(last, pb.PersistenceError, str(error))
            elif error is None:
                producer.receipt_run(sequence_ids, *self.ledger.position(offset))
            else:
                for each in sequence_ids:
                    producer.error(each, pb.PersistenceError, str(error))
            producer.settled(size, count)
        except Exception as failure:
            self.scheduler.failed("store", self, failure)

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the sequence id for PRODUCER_SUCCESS: -1 without deduplication."""
        return -1 if self.dedup is None else self.dedup.last_sequence_id(producer_name)

    def has_pending(self, producer_name: str) -> bool:
        return self.dedup is not None and self.dedup.has_pending(producer_name)

    def remove_producer(self, producer: Producer) -> None:
        self.access.remove(producer)
        self._left()

    def dispatch(self) -> None:
        """Dispatch new durable entries."""
        if self.check_ms:
            self.services.due.plan(self)
        subscriptions = list(self.subscriptions.values())
        if len(subscriptions) > SUBSCRIPTIONS_AT_ONCE:
            self.scheduler.ready.update(dict.fromkeys(subscriptions))  # a turn has no time for all
            return
        for subscription in subscriptions:
            self.scheduler.isolated("dispatch", subscription, subscription.dispatch)

    # --- subscriptions ---
    def subscribe(self, request: SubscriptionRequest) -> PersistentSubscription:
        """Return the subscription, created if it is new and may be; raises `Refused`."""
        existing = self.subscriptions.get(request.name)
        if existing is not None:
            if existing.durable != request.durable:
                kind = "durable" if existing.durable else "non-durable"
                raise Refused(pb.NotAllowedError, f"Subscription {existing.name} is {kind}")
            # A reader's subscription without consumers remains because of a seek, which set its position.
            return existing
        # Finding the start may take several tries (`StoreBusy`): nothing is created before.
        offset, is_behind = self._beginning(request)
        created = self._create_subscription(request, offset, is_behind=is_behind)
        created.start_position = request.start or (EARLIEST if request.earliest else LATEST)
        return created

    def _beginning(self, request: SubscriptionRequest) -> tuple[int, bool]:
        """Return the first entry of a new subscription, and whether older compacted entries are not wanted.

        Raises `StoreError` if it starts at a time within entries that cannot be read now.
        """
        ledger = self.ledger
        if request.rollback_seconds:
            now_ms = self.scheduler.now_ms
            moment_ms = now_ms - request.rollback_seconds * 1000
            offset = offset_by_time(ledger, moment_ms, now_ms)
            return offset, self.is_behind(offset, moment_ms=moment_ms)
        if request.start is not None and not request.durable:
            # The entry of a reader's start id is delivered; the client drops the messages it has read.
            return ledger.offset_from(*request.start), False
        if request.earliest:
            return ledger.start, False
        return ledger.end, request.durable

    def _create_subscription(
        self, request: SubscriptionRequest, offset: int, *, is_behind: bool
    ) -> PersistentSubscription:
        if not request.durable:
            reader = self.reader(request.name, offset)
            reader.cursor.is_behind = is_behind
            return reader
        if not self.policies.auto_create_subscriptions:
            raise Refused(pb.SubscriptionNotFound, f"Subscription {request.name} does not exist")
        try:
            return self.subscription(
                request.name, offset=offset, properties=request.properties, replicated=request.replicated,
                is_behind=is_behind,
            )  # fmt: skip
        except StoreError as error:
            raise storage_refusal(error) from error

    def initial_subscription(self, name: str) -> None:
        """Create the subscription of a dead letter topic before its first consumer, to retain messages."""
        if name == COMPACTION or name in self.subscriptions:
            return
        if not self.policies.auto_create_subscriptions:
            raise Refused(
                pb.NotAllowedError, f"The initial subscription {name} cannot be created: auto-creation is off"
            )
        self.subscription(name, offset=self.ledger.start)

    def is_behind(
        self, offset: int, *, position: Position | None = None, moment_ms: int | None = None
    ) -> bool:
        """Return whether a subscription that starts at ``offset``, by id or time, excludes compacted entries.

        If the topic has no entry before ``offset``, the id or time decides. Raises `StoreError`.
        """
        if offset > self.ledger.start:
            return True
        view = self.compacted
        if view is None:
            return position is not None and position >= LATEST
        return view.is_below(position=position, moment_ms=moment_ms)

    def subscription(
        self,
        name: str,
        *,
        offset: int,
        properties: dict[str, str] | None = None,
        replicated: bool = False,
        is_behind: bool = False,
        done: Done | None = None,
    ) -> PersistentSubscription:
        """Create a durable subscription at ``offset``; ``done`` is called when it is durable.

        ``is_behind``: older compacted entries are not wanted, even if the topic itself starts here.
        """
        cursor = Cursor(offset, counts=self.ledger.counts, durable=True, properties=properties or {})
        cursor.is_behind = is_behind or offset > self.ledger.start
        self.skip_aborted(cursor)
        subscription = PersistentSubscription(self, name, cursor, replicated=replicated)
        self.subscriptions[name] = subscription
        self.rearm()
        subscription.write_snapshot(done)
        return subscription

    def reader(self, name: str, offset: int) -> PersistentSubscription:
        """Return a reader's subscription: it exists in memory while it has consumers."""
        cursor = Cursor(offset, counts=self.ledger.counts, durable=False)
        self.skip_aborted(cursor)
        subscription = PersistentSubscription(self, name, cursor)
        self.subscriptions[name] = subscription
        return subscription

    def forget_subscription(self, subscription: PersistentSubscription) -> None:
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            if subscription.pending is not None:
                self.services.transactions.forget(self.text, subscription.name)
            for consumer in subscription.consumers:
                self.messages_out_gone += consumer.messages_out
                self.bytes_out_gone += consumer.bytes_out
            self.messages_out_gone += subscription.messages_out_gone
            self.bytes_out_gone += subscription.bytes_out_gone
            if subscription.name == COMPACTION:
                compaction.forget(self)

    def check_quota(self) -> QuotaExceeded | None:
        """Return the backlog quota that blocks producers now; the topic stays in memory for the next try."""
        found = quota.refresh(self)
        if found is not None:
            self._left()
        return found

    # --- use, and times of maintenance ---
    def touch(self) -> None:
        """Queue the topic for maintenance after a change."""
        self.services.due.plan(self)

    def rearm(self) -> None:
        """Reschedule the expiry check, durably, because reopened entries may expire sooner."""
        if self.delivery_expiry is not None:
            self.delivery_expiry.examined = 0
        deadlines.arm_by(self, self.scheduler.now_ms + deadlines.soonest_ms(self.policies))
        self.services.due.plan(self)

    def _ledger_rolled(self) -> None:
        deadlines.arm_by(self, self.scheduler.now_ms + deadlines.soonest_ms(self.policies))

    def used(self) -> None:
        """Record that a client connects: the topic is not unused any more."""
        deadlines.in_use(self)
        self.services.due.plan(self)

    def consumer_joined(self, subscription: str) -> None:
        self.consumers_connected += 1
        deadlines.in_use(self, subscription)
        self.services.due.plan(self)

    def consumer_left(self) -> None:
        self.consumers_connected -= 1
        self._left()

    def _left(self) -> None:
        self.last_used_ms = self.scheduler.now_ms
        self.services.due.plan(self)

    # --- deleting entries ---
    def truncate(self, done: Done) -> None:
        """Delete every message stored now; pending entries are awaited first."""
        self.ledger.close_current(self.scheduler.now_ms)
        stop = self.ledger.end
        if not self.ledger.is_writing:
            self._truncate_below(stop, done)
            return

        def arrived(error: StoreError | None) -> None:
            if error is not None or self._deleted:
                done(error)
                return
            try:
                self._truncate_below(stop, done)
            except StoreError as refused:
                done(refused)

        # Its report follows those of the entries.
        self.save_record(arrived)

    def _truncate_below(self, stop: int, done: Done) -> None:
        for subscription in list(self.subscriptions.values()):
            subscription.skip_to(stop)
            subscription.flush()
        stop = min(stop, self.ledger.confirmed)  # those of open transactions stay
        self.delete_ledgers(sum(1 for each in self.ledger.segments if each.entries and each.end <= stop))
        self.save_record(done)

    def delete_ledgers(self, count: int) -> None:
        """Delete the oldest ledgers; their entries are confirmed and all subscriptions are behind them."""
        if count and self.dedup is not None:
            self.dedup.cover(self.ledger.segments[count - 1].end)
        if self.offload is not None:
            self.offload.deleted([each.ledger_id for each in self.ledger.segments[:count]])
        self.ledger.forget(count)
        self.delivery_times.trimmed()
        if self.transactions is not None:
            self.transactions.trimmed()

    def cover(self, segment: Segment) -> None:
        """Store what only a ledger's entries contain, before they are remote. Raises `StoreError`."""
        if self.dedup is not None:
            self.dedup.cover(segment.end)
        self.ledger.counts.cover(segment)

    # --- life ---
    @property
    def pending_adds(self) -> int:
        """Number of entries that are not durable yet."""
        ledger, found = self.ledger, self.transactions
        return ledger.end - (ledger.confirmed if found is None else found.stored)

    @property
    def idle(self) -> bool:
        """Whether no client is connected and no work is pending."""
        jobs = self.offload, self.compaction, self.delivery_expiry
        works = self.ledger.is_writing or any(each is not None and each.is_running for each in jobs)
        return not (works or self.access.producers or self.access.waiting or self.consumers_connected)

    def terminate(self, done: Done) -> None:
        """Refuse further entries for good; consumers are notified when they have read all.

        Pending entries are stored and receipted, then their producers are closed. ``done`` is called after
        that: the newest entry is the last one.
        """
        was_terminated = self.record.terminated
        self.record.terminated = True

        def stored(error: StoreError | None) -> None:
            # The report follows those of all pending entries.
            self.record.terminated = was_terminated or error is None
            done(error)

        try:
            self.save_record(stored)
        except StoreError:
            self.record.terminated = was_terminated
            raise
        for producer in self.access.everyone():
            producer.hold()
        for subscription in list(self.subscriptions.values()):
            subscription.notify_end(subscription.consumers)

    def disconnect_all(self) -> None:
        """Send CLOSE_PRODUCER and CLOSE_CONSUMER to all clients: they look the topic up again."""
        for producer in self.access.everyone():
            producer.disconnect()
        consumers = [each for found in list(self.subscriptions.values()) for each in found.detach_all()]
        close_detached(consumers, self.services.slices, self)

    def delete(self, done: Done | None) -> None:
        """Delete the topic's durable data."""
        self._deleted = True
        self.disconnect_all()
        for subscription in self.subscriptions.values():
            subscription.fenced = True
            subscription.writer.delete(None)
        self._let_go()
        compaction.forget(self)
        if self.dedup is not None:
            self.dedup.forget()
            self.dedup = None
        self.services.transactions.forget(self.text)
        if self.transactions is not None:
            self.services.store.keys.delete(topic_transactions.aborted_key(self.text))
        self.delivery_times.delete()
        self.ledger.delete_all()
        self.services.due.disarm(self.text, self.record.due_ms)
        self.services.store.keys.delete(topic_key(self.text), done)

    def close(self) -> None:
        """Leave memory: pending changes are written, and references to the topic are dropped."""
        compaction.leave_memory(self)
        if self.dedup is not None:
            self.dedup.save()
        for subscription in self.subscriptions.values():
            subscription.flush()
        deadlines.settle(self, leaving=True)
        self._let_go()
        self.ledger.release()

    def _let_go(self) -> None:
        """Drop what refers to the topic, so that it is freed after its last use."""
        for subscription in self.subscriptions.values():
            subscription.leave_memory()
        self.subscriptions.clear()
        self.delivery_times.leave_memory()
        if self.offload is not None:
            self.offload.leave("the topic is deleted" if self._deleted else "the topic leaves memory")
        self.ledger.leave_memory()
        self.access.leave_memory()


def topic_key(text: str) -> str:
    return f"topic/{text}"
