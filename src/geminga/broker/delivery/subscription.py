"""Subscription: a cursor, a dispatcher, and the consumers that share them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from geminga.broker.delivery.compensation import Compensation
from geminga.broker.delivery.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Consumer,
    LastMessage,
    close_detached,
    type_name,
)
from geminga.broker.delivery.cursor import Cursor, CursorFull, without_lowest_ones, words_from_bits
from geminga.broker.delivery.cursor_writer import CursorWriter, cursor_key
from geminga.broker.delivery.dispatcher import Dispatcher, SubscribedTopic
from geminga.broker.delivery.key_shared import KeySharedDispatcher
from geminga.broker.delivery.limits import RateLimit, TopicLimits, in_force, with_rate
from geminga.broker.delivery.pending_acks import WHOLE, Acknowledgements, PendingAcks
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.single_active import SingleActiveDispatcher
from geminga.broker.entries import position_lookup
from geminga.broker.entries.compacted_view import CompactedLedger, Position
from geminga.broker.entries.entry_counts import Tally
from geminga.broker.entries.entry_facts import message_count
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.runtime.cooperative import CooperativeScheduler
from geminga.broker.runtime.refusal import HolderBusy, Refused
from geminga.errors import StoreError
from geminga.ids import TopicName, to_signed
from geminga.ledger.api import Done, EntryStore
from geminga.wire.proto import pulsar_wire_pb2 as pb

COMPACTION = "__compaction"
"""Subscription that retains a topic's entries until compaction has read them."""
LOOKS_PER_ACK_MAX = 100
"""Entries that are read for their batch size per ACK; acknowledgements of further ones are refused."""
SKIP_ENTRIES = 4096
"""Entries that are counted together when messages are skipped."""


class BatchSizes:
    """Batch sizes of entries that a client acknowledges in part.
    A publisher's SEND may omit the size of a batch: if the count is 1, the entry itself is read, so that the
    other messages are not taken for acknowledged."""

    __slots__ = ("_ledger", "_looks_left")

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self._looks_left = LOOKS_PER_ACK_MAX

    def of(self, offset: int) -> int:
        """Return the number of messages of an entry. Raises `Refused` if it is unknown."""
        messages = self._ledger.counts.of(offset)[0]
        if messages > 1:
            return messages
        self._looks_left -= 1
        try:
            entry = self._ledger.read_one(offset) if self._looks_left >= 0 else None
        except StoreError:
            entry = None
        if entry is None:
            raise Refused(pb.NotAllowedError, "the broker cannot tell how many messages the batch holds")
        return message_count(entry)


class OwningTopic(SubscribedTopic, Protocol):
    """Interface of a topic for its subscriptions, in addition to `SubscribedTopic`."""

    name: TopicName
    rate_limits: TopicLimits

    @property
    def store(self) -> EntryStore: ...

    @property
    def slices(self) -> CooperativeScheduler: ...

    @property
    def terminated(self) -> bool: ...

    def is_behind(
        self, offset: int, *, position: Position | None = None, moment_ms: int | None = None
    ) -> bool: ...

    def consumer_joined(self, subscription: str) -> None: ...

    def consumer_left(self) -> None: ...

    def sample_ack(self, offset: int) -> None:
        """Count how long the entry at ``offset`` waited for its acknowledgement; once a second is enough."""

    def touch(self) -> None:
        """Queue the topic for maintenance: acknowledged entries may be deleted."""

    def rearm(self) -> None:
        """Recompute the expiry time: acknowledged entries were reopened and may expire sooner."""

    def forget_subscription(self, subscription: PersistentSubscription) -> None: ...

    def skip_aborted(self, cursor: Cursor) -> None:
        """Acknowledge the entries of aborted transactions in a cursor that was just placed."""


class PersistentSubscription:
    """Subscription. ``type`` is that of the connected consumers, or of the last one; None before the first.

    ``start_position`` is the start of a reader of compacted data that has not acknowledged any of the topic's
    own entries: it may be before those. None is the beginning."""

    __slots__ = (
        "_dispatch_limit", "_holes_told", "_oldest", "bytes_out_gone", "compensation", "consumers",
        "cursor", "dispatch_limits", "dispatcher", "expiry_logged_ms", "fenced", "harmed",
        "last_acked_ms", "last_active_ms", "last_consumed_ms", "last_expired_ms", "last_flow_ms",
        "last_left_ms", "last_mark_ms", "messages_expired", "messages_out_gone", "name", "partition",
        "pending", "replicated", "resetting", "scheduler", "start_position", "topic",
        "type", "writer",
    )  # fmt: skip

    def __init__(self, topic: OwningTopic, name: str, cursor: Cursor, *, replicated: bool = False) -> None:
        self.topic = topic
        self.scheduler = topic.scheduler
        self.name = name
        self.partition = topic.name.partition
        self.cursor = cursor
        self.pending: PendingAcks | None = None
        """Acknowledgements in transactions, if any are pending."""
        self.writer = CursorWriter(cursor, topic.store, cursor_key(topic.text, name))
        self.type: int | None = None
        self.dispatcher: Dispatcher | None = None
        self.consumers: dict[Consumer, None] = {}
        self.replicated = replicated
        self.fenced = False
        self.harmed = ""
        self.resetting = False
        self.last_active_ms = topic.scheduler.now_ms
        self.last_flow_ms = 0
        self.last_left_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.last_mark_ms = 0
        self.last_expired_ms = self.expiry_logged_ms = 0
        self.messages_expired = 0
        self.messages_out_gone = 0
        self.bytes_out_gone = 0
        self._oldest = (-1, 0)
        self._holes_told = (-float("inf"), 0)
        self._dispatch_limit: RateLimit | None = None
        self.dispatch_limits: tuple[RateLimit, ...] = ()
        self.start_position: Position | None = None
        self.compensation = Compensation(self)

    @property
    def topic_text(self) -> str:
        return self.topic.text

    def __repr__(self) -> str:
        return f"Subscription({self.topic.text!r}, {self.name!r})"

    @property
    def durable(self) -> bool:
        return self.cursor.durable

    # --- consumers ---
    def add(self, consumer: Consumer) -> None:
        """Attach a consumer; raises `Refused` ConsumerBusy or ConsumerAssignError."""
        if self.harmed:
            raise Refused(
                pb.PersistenceError,
                f"Subscription {self.name} cannot be read from the store: {self.harmed}; reset or delete it",
            )
        if self.fenced:
            raise Refused(pb.ServiceNotReady, f"Subscription {self.name} is being reset or deleted")
        if self.consumers and self.type != consumer.type:
            active = type_name(self.type or 0)
            raise Refused(
                pb.ConsumerBusy,
                f"Subscription is of different type. Active subscription type of '{active}' is different "
                f"than the connecting consumer's type '{consumer.type_name}'.",
            )
        if consumer.type == EXCLUSIVE and self.consumers:
            holder = next(iter(self.consumers)).peer
            raise HolderBusy(pb.ConsumerBusy, "Exclusive consumer is already connected", holder)
        self._apply_limits()
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            dispatcher = self._new_dispatcher(consumer)
        dispatcher.add(consumer)
        self.type = consumer.type
        self.dispatcher = dispatcher
        self.consumers[consumer] = None
        self.topic.consumer_joined(self.name)
        self._apply_compensation()

    def _new_dispatcher(self, consumer: Consumer) -> Dispatcher:
        if consumer.type in (EXCLUSIVE, FAILOVER):
            return SingleActiveDispatcher(self, failover=consumer.type == FAILOVER)
        if consumer.type == SHARED:
            return SharedDispatcher(self)
        return KeySharedDispatcher(self, consumer.key_shared or pb.KeySharedMeta())

    def started(self, consumer: Consumer) -> None:
        """Allow notices to a consumer whose SUCCESS was sent; delivery may begin with its FLOW."""
        if self.dispatcher is not None and consumer in self.consumers:
            self.dispatcher.started(consumer)
            self.notify_end((consumer,))

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; its unacknowledged messages go to the others."""
        if consumer not in self.consumers:
            return
        del self.consumers[consumer]
        self._left(consumer)
        if self.dispatcher is not None:
            try:
                self.dispatcher.remove(consumer)
            finally:
                # The next consumer starts with a new dispatcher, even if closing this one fails.
                if not self.consumers:
                    self.dispatcher.close()
                    self.dispatcher = None
                    self.compensation.stop()
                else:
                    self.dispatcher.dispatch_soon()
        if not self.consumers and not self.durable and not self.resetting:
            self.topic.forget_subscription(self)

    def _left(self, consumer: Consumer) -> None:
        """Keep what a detached consumer adds to the statistics."""
        self.topic.consumer_left()
        self.last_active_ms = self.last_left_ms = self.scheduler.now_ms
        self.messages_out_gone += consumer.messages_out
        self.bytes_out_gone += consumer.bytes_out

    def policies_changed(self) -> None:
        """Apply changed policies of the topic, or changed properties of the subscription."""
        for consumer in self.consumers:
            if not consumer.send_epoch:
                consumer.limit_unacked(self.topic.policies.unacked_messages_per_consumer_max)
        self._apply_compensation()
        self._apply_limits()
        if isinstance(self.dispatcher, SharedDispatcher):
            self.dispatcher.limits_changed()

    @property
    def dispatch_limit(self) -> RateLimit | None:
        """The subscription's own dispatch limit."""
        return self._dispatch_limit

    def _apply_limits(self) -> None:
        """Apply the limits of the topic (its own, the broker's) and of the subscription."""
        rate = self.topic.policies.subscription_dispatch_rate
        self._dispatch_limit = with_rate(self._dispatch_limit, rate, self.scheduler.now)
        self.dispatch_limits = in_force(*self.topic.rate_limits.dispatch, self._dispatch_limit)

    def _apply_compensation(self) -> None:
        self.compensation.apply(self.topic.policies.redeliver_unacked, self.cursor.properties)

    def leave_memory(self) -> None:
        """Cancel timers when the topic leaves memory."""
        self.compensation.close()

    def disconnect_all(self) -> None:
        """Send CLOSE_CONSUMER to every consumer: their clients look the topic up again."""
        close_detached(self.detach_all(), self.topic.slices, self)

    def detach_all(self) -> Collection[Consumer]:
        """Detach and return every consumer; their clients are still to be notified."""
        consumers, self.consumers = self.consumers, {}
        dispatcher, self.dispatcher = self.dispatcher, None
        if dispatcher is not None:
            # Nothing is redelivered to consumers that are about to be disconnected.
            dispatcher.close()
            self.compensation.stop()
        for consumer in consumers:
            self._left(consumer)
        if consumers and not self.durable and not self.resetting:
            self.topic.forget_subscription(self)
        return consumers

    # --- commands of consumers ---
    def flow(self, consumer: Consumer, permits: int) -> None:
        now_ms = self.scheduler.now_ms
        consumer.add_permits(permits, now_ms)
        self.last_flow_ms = now_ms
        if self.dispatcher is not None:
            self.dispatcher.flowed(consumer)
            self.dispatcher.dispatch()

    def writable_again(self, consumer: Consumer) -> None:
        if self.dispatcher is not None and consumer in self.consumers:
            self.dispatcher.flowed(consumer)

    def dispatch(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    def acknowledge(self, consumer: Consumer | None, ids: Iterable[pb.MessageIdData]) -> None:
        """Acknowledge individual ids. Ids that are foreign, trimmed or not yet stored are ignored.

        Raises `Refused` if some were not accepted; the others are acknowledged."""
        topic = self.topic
        ledger = topic.ledger
        cursor = self.cursor
        confirmed = ledger.confirmed
        mark = cursor.mark
        by_index = topic.settings.batch_index_ack
        refused: Refused | None = None
        sizes = BatchSizes(ledger)
        whole: list[tuple[int, int]] = []
        try:
            for message_id in ids:
                key = message_id.ledgerId, message_id.entryId  # not signed: -1 names no entry
                words = message_id.ack_set
                if not words:
                    whole.append(key)
                    continue
                offset = ledger.offset(*key)
                if offset is None or offset >= confirmed or not by_index:
                    continue
                try:
                    still_open = cursor.acknowledge_part(offset, words, sizes.of(offset))
                except CursorFull as full:
                    refused = Refused(pb.NotAllowedError, str(full))
                except Refused as unknown:
                    refused = unknown
                else:
                    if still_open is not None:
                        self._settle(consumer, (offset,), still_open)
            for start, stop in ledger.runs_of(whole):
                self._settle(consumer, cursor.acknowledge_run(start, stop), 0)
        finally:
            # Write what the cursor accepted even after a failure: requests may wait for it.
            self._acknowledged(consumer, mark)
        if refused is not None:
            raise refused

    def acknowledge_one(self, consumer: Consumer, ledger_id: int, entry_id: int) -> None:
        """Acknowledge one whole entry."""
        ledger, cursor = self.topic.ledger, self.cursor
        mark = cursor.mark
        offset = ledger.offset(ledger_id, entry_id)
        if offset is not None and offset < ledger.confirmed and cursor.acknowledge(offset):
            self._settle(consumer, (offset,), 0)
        self._acknowledged(consumer, mark)

    def acknowledge_cumulative(self, consumer: Consumer | None, message_id: pb.MessageIdData) -> None:
        """Acknowledge everything up to an id, which may be the one before a ledger's first (entry -1).

        Raises `Refused` if a part of the last batch was not accepted."""
        if self.type in (SHARED, KEY_SHARED):
            return
        ledger = self.topic.ledger
        cursor = self.cursor
        mark = cursor.mark
        ledger_id, entry_id = to_signed(message_id.ledgerId), to_signed(message_id.entryId)
        if entry_id < 0:
            segment = ledger.segment(ledger_id)
            if segment is None:
                return
            cursor.acknowledge_below(min(segment.base, ledger.confirmed))
        else:
            offset = ledger.offset(ledger_id, entry_id)
            if offset is None or offset >= ledger.confirmed:
                return
            words = message_id.ack_set
            cursor.acknowledge_below(offset if words else offset + 1)
            if consumer is not None:
                consumer.messages_acked += (cursor.mark - mark) * consumer.batch_average
            if words and self.topic.settings.batch_index_ack:
                try:
                    cursor.acknowledge_part(offset, words, BatchSizes(ledger).of(offset))
                except CursorFull as full:
                    raise Refused(pb.NotAllowedError, str(full)) from full
                finally:
                    self._acknowledged(consumer, mark)
                return
        self._acknowledged(consumer, mark)

    def _settle(self, consumer: Consumer | None, offsets: Sequence[int], still_open: int) -> None:
        if self.dispatcher is not None:
            self.dispatcher.settle(consumer, offsets, still_open)

    def _acknowledged(self, consumer: Consumer | None, mark_before: int) -> None:
        now_ms = self.scheduler.now_ms
        self.last_acked_ms = now_ms
        if consumer is not None:
            consumer.acknowledged(now_ms)
        cursor = self.cursor
        if cursor.mark != mark_before:
            if consumer is not None and now_ms // 1000 != self.last_mark_ms // 1000:
                self.topic.sample_ack(mark_before)
            self.last_mark_ms = now_ms
            self.topic.touch()
            self.notify_end(self.consumers)
        if cursor.changed:
            self.scheduler.mark_cursor(self)
        if self.dispatcher is not None:
            self.dispatcher.acknowledged()

    def redeliver(self, consumer: Consumer, ids: Sequence[pb.MessageIdData], epoch: int | None) -> None:
        """Redeliver ids (negative acknowledgement), or without ids everything that the consumer holds."""
        dispatcher = self.dispatcher
        if dispatcher is None or consumer not in self.consumers:
            return
        if epoch is not None and consumer.send_epoch:
            consumer.epoch = max(consumer.epoch, epoch)
        if not ids:
            dispatcher.redeliver_all((consumer,))
            return
        find = self.topic.ledger.offset
        found = (find(to_signed(each.ledgerId), to_signed(each.entryId)) for each in ids)
        dispatcher.redeliver(consumer, (offset for offset in found if offset is not None))

    def notify_end(self, consumers: Iterable[Consumer]) -> None:
        """Notify consumers of a terminated topic that all messages are acknowledged."""
        topic = self.topic
        if topic.terminated and self.cursor.backlog(topic.ledger.end) == 0:
            for consumer in consumers:
                consumer.notify_end_of_topic()

    # --- as a whole ---
    def last_message(self, ready: Done, *, compacted: bool = False) -> LastMessage | None:
        """Return the newest durable entry, and the mark-delete position.

        ``compacted``: the newest entry that compaction kept, if it has read the whole topic."""
        topic = self.topic
        view = topic.compacted
        if compacted and view is not None and topic.ledger.confirmed <= view.horizon:
            ledger_id, entry_id, batch_index = view.seal.last
            mark = topic.ledger.position_before(self.cursor.mark)
            return LastMessage((ledger_id, entry_id), batch_index, mark)
        if not position_lookup.last_at_hand(topic.ledger, ready):
            return None
        mark = topic.ledger.position_before(self.cursor.mark)
        return LastMessage(
            position_lookup.last_position(topic.ledger), position_lookup.last_batch_index(topic.ledger), mark
        )

    def delete(self, done: Done | None) -> None:
        """Remove the subscription with its cursor; its consumers are disconnected."""
        self.fenced = True
        self.disconnect_all()
        self.topic.forget_subscription(self)
        self.writer.delete(self._guarded(done))

    # --- moving the cursor ---
    def seek(self, target: pb.CommandSeek, done: Done) -> None:
        """Move to a message id, also inside a batch, or to a publish time. Raises `StoreError`."""
        ledger = self.topic.ledger
        self.start_position = None
        if not target.HasField("message_id"):
            moment_ms = target.message_publish_time
            offset = position_lookup.offset_by_time(ledger, moment_ms, self.scheduler.now_ms)
            self.reset(offset, done, is_behind=self.topic.is_behind(offset, moment_ms=moment_ms))
            return
        ledger_id, entry_id = to_signed(target.message_id.ledgerId), to_signed(target.message_id.entryId)
        offset = ledger.offset_from(ledger_id, entry_id)
        self.start_position = ledger_id, entry_id
        inside = self.topic.settings.batch_index_ack and ledger.offset(ledger_id, entry_id) == offset
        is_behind = self.topic.is_behind(offset, position=self.start_position)
        self.reset(offset, done, target.message_id.ack_set if inside else (), is_behind=is_behind)

    def reset(self, offset: int, done: Done, words: Sequence[int] = (), *, is_behind: bool = False) -> None:
        """Reset the cursor to ``offset``. Consumers are disconnected first and reconnect.

        ``words`` are the open messages of the batch at ``offset``; empty: all. ``is_behind``: older compacted
        entries are not wanted, even if the topic itself starts here. ``done`` is called when the new position
        is durable."""
        self.resetting = True
        self.disconnect_all()
        self.resetting = False
        self.cursor.reset(offset)
        self.cursor.is_behind = is_behind or offset > self.topic.ledger.start
        self.topic.skip_aborted(self.cursor)
        self.topic.rearm()
        self.harmed = ""
        if words:
            # A batch of unknown size is redelivered as a whole.
            with contextlib.suppress(Refused):
                self.cursor.acknowledge_part(offset, words, BatchSizes(self.topic.ledger).of(offset))
        self.write_snapshot(done)

    def skip_to(self, offset: int, done: Done | None = None) -> int:
        """Skip everything below ``offset`` (TTL, eviction, skip); return the number of skipped entries."""
        cursor = self.cursor
        before = cursor.backlog(self.topic.ledger.confirmed)
        mark = cursor.mark
        moved = cursor.acknowledge_below(min(offset, self.topic.ledger.confirmed))
        if moved:
            if self.dispatcher is not None:
                self.dispatcher.skipped_below(cursor.mark)
            self._acknowledged(None, mark)
        if done is not None:
            self.flush()
            self.when_durable(done)
        return before - cursor.backlog(self.topic.ledger.confirmed)

    def skip_messages(self, count: int, done: Done) -> int:
        """Skip the next ``count`` open messages, counting those of a batch individually.

        Returns how many were skipped."""
        cursor, end, mark = self.cursor, self.topic.ledger.confirmed, self.cursor.mark
        offset, left = self.behind_messages(count)
        self.skip_to(offset)
        if left and offset < end:
            words = words_from_bits(without_lowest_ones(cursor.open_bits(offset), left))
            still_open = cursor.acknowledge_part(offset, words, self.topic.ledger.counts.of(offset)[0])
            self._settle(None, (offset,), still_open or 0)
            self._acknowledged(None, mark)
            left = 0
        self.flush()
        self.writer.when_durable(done)
        return count - left

    def behind_messages(self, count: int) -> tuple[int, int]:
        """Return the entry in which the next ``count`` open messages end, and how many of them are in it."""
        cursor, end = self.cursor, self.topic.ledger.confirmed
        left, offset, entries, are_too_many = count, cursor.mark, SKIP_ENTRIES, False
        # Twice as many at each step until they are too many, then half as many.
        while offset < end and entries:
            stop = min(offset + entries, end)
            held = cursor.messages_open(offset, stop)
            if held <= left:
                left, offset = left - held, stop
            else:
                are_too_many = True
            entries = entries // 2 if are_too_many else entries * 2
        return offset, left

    def redeliver_unacknowledged(self, consumer_name: str = "") -> int:
        """Redeliver the pending messages of all consumers, or of one; return their number."""
        if self.dispatcher is None:
            return 0
        meant = [each for each in self.consumers if consumer_name in ("", each.name)]
        messages = sum(map(self.held_by, meant))
        self.dispatcher.redeliver_all(meant)
        return messages

    def held_by(self, consumer: Consumer) -> int:
        """Return the number of unacknowledged messages of a consumer."""
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, SingleActiveDispatcher):
            return consumer.unacked_messages
        if consumer is not dispatcher.active:
            return 0
        # Behind the read position next to nothing is acknowledged.
        unread = self.cursor.counts.between(dispatcher.read_offset, self.topic.ledger.confirmed)[0]
        withheld = 0 if self.pending is None else self.pending.messages_withheld
        return max(0, self.backlog_tally()[0] - unread - withheld)

    @property
    def compacted(self) -> CompactedLedger | None:
        """The compacted ledger that is being read for it: the topic may have a newer one, or none."""
        dispatcher = self.dispatcher
        return dispatcher.compacted if isinstance(dispatcher, SingleActiveDispatcher) else None

    def give_up(self, start: int, stop: int) -> int:
        """Skip entries that were lost, were aborted or have expired; return how many were open."""
        mark = self.cursor.mark
        skipped = self.cursor.acknowledge_run(start, stop)
        self._settle(None, skipped, 0)
        self._acknowledged(None, mark)
        return len(skipped)

    # --- acknowledgements in transactions ---
    def hold(self, pending: PendingAcks | None) -> None:
        """Keep the dispatcher from delivering messages whose acknowledgement is pending."""
        self.pending = pending
        if self.dispatcher is not None:
            self.dispatcher.cursor = pending or self.cursor

    def take_over(self, acks: Acknowledgements) -> list[int]:
        """Acknowledge durably what a committed transaction acknowledged; return the entries that are not
        wholly acknowledged."""
        open_parts = []
        cursor, mark = self.cursor, self.cursor.mark
        cursor.acknowledge_below(acks.below)
        for offset, bits, messages in acks.parts.values():
            words = () if bits == WHOLE else words_from_bits(((1 << messages) - 1) & ~bits)
            left = cursor.acknowledge_part(offset, words, messages, is_limited=False)
            self._settle(None, (offset,), left or 0)
            open_parts += [offset] if left else []
        self._acknowledged(None, mark)
        self.flush()
        return open_parts

    def reopen(self, offsets: Iterable[int]) -> None:
        """Redeliver entries that a transaction had acknowledged, wholly or in part."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(None, sorted(offsets))

    def skip_entry(self, offset: int, done: Done) -> None:
        """Skip one entry at any position."""
        mark = self.cursor.mark
        if self.cursor.acknowledge(offset):
            self._settle(None, (offset,), 0)
            self._acknowledged(None, mark)
        self.flush()
        self.writer.when_durable(done)

    def expire(self, offset: int, done: Done | None = None, *, start: int = 0) -> int:
        """Expire the entries from ``start`` to below ``offset``; return the number of expired entries."""
        expired = self.skip_to(offset, done) if start <= self.cursor.mark else self.give_up(start, offset)
        if expired:
            self.messages_expired += expired
            self.last_expired_ms = self.scheduler.now_ms
        return expired

    # --- durable state ---
    def when_durable(self, done: Done) -> None:
        """Call ``done`` when everything acknowledged so far is durable: at once if it is."""
        if self.cursor.changed:
            self.scheduler.mark_cursor(self)
        self.writer.when_durable(self.scheduler.guarded("store", self, done))

    def write_snapshot(self, done: Done | None) -> None:
        """Write the whole cursor; ``done`` is called when it is durable."""
        self.writer.write_snapshot(self._guarded(done))

    def _guarded(self, done: Done | None) -> Done | None:
        return None if done is None else self.scheduler.guarded("store", self, done)

    def flush(self) -> None:
        """Write what was acknowledged since the last flush."""
        self.writer.flush()

    @property
    def wanted_from(self) -> int:
        """Offset of the first open entry that was not lost to damage."""
        return self.wanted_behind(self.cursor.mark)

    def wanted_behind(self, offset: int) -> int:
        """Return the first open entry from ``offset`` on that was not lost to damage."""
        ledger, cursor = self.topic.ledger, self.cursor
        offset = cursor.next_open(offset)
        while ledger.damaged:
            behind = cursor.next_open(ledger.skip_gap(offset))
            if behind == offset:
                break
            offset = behind
        return offset

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries."""
        return self.cursor.backlog(self.topic.ledger.confirmed)

    def ack_holes(self, now: float) -> int:
        """Return the number of runs of open messages before an acknowledged one; recounted once a second."""
        if now >= self._holes_told[0] + 1.0:
            self._holes_told = now, self.cursor.hole_count()
        return self._holes_told[1]

    @property
    def oldest_age_seconds(self) -> int:
        """Return the age of the oldest open message by its publish time; -1 without one."""
        return self.age_seconds_of(self.wanted_from)

    def age_seconds_of(self, offset: int) -> int:
        """Return the age of an entry by its publish time; -1 without one."""
        if offset >= self.topic.ledger.confirmed:
            return -1
        if self._oldest[0] != offset:
            try:
                self._oldest = offset, self._published_ms(offset)
            except StoreError:
                return -1
        published_ms = self._oldest[1]
        return max(0, self.scheduler.now_ms - published_ms) // 1000 if published_ms else -1

    def published_before(self, offset: int, moment_ms: int) -> bool:
        """Return whether an entry's publish time is earlier than ``moment_ms``."""
        try:
            return 0 < self._published_ms(offset) < moment_ms
        except StoreError:
            return False

    def _published_ms(self, offset: int) -> int:
        return position_lookup.publish_time(self.topic.ledger, offset, self.scheduler.now_ms)

    @property
    def acknowledged_behind(self) -> int:
        """Return the acknowledged messages behind the oldest open one."""
        ledger = self.topic.ledger
        return ledger.counts.between(self.cursor.mark, ledger.confirmed)[0] - self.backlog_tally()[0]

    def backlog_tally(self) -> Tally:
        """Return the unacknowledged messages, and the bytes of their entries."""
        return self.cursor.open_tally(self.topic.ledger.confirmed)
