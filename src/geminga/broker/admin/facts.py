"""Figures of a subscription of a loaded topic, for `geminga.diagnosis`.

Nothing is changed. Without ``detailed`` no entry is read, so that a scan of all subscriptions is cheap: the
level of trouble is the same, only the texts have fewer details.
"""

from dataclasses import asdict
from heapq import nsmallest

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.dispatcher import Dispatcher
from geminga.broker.delivery.key_shared import KeySharedDispatcher
from geminga.broker.delivery.shared import SharedDispatcher
from geminga.broker.delivery.single_active import SingleActiveDispatcher
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.entries import position_lookup
from geminga.broker.entries.entry_facts import head_of, sticky_key
from geminga.broker.topics import quota
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.topic import Topic
from geminga.broker.topics.transactions import TransactionRecord
from geminga.diagnosis.conclude import CONSUMERS_NAMED_MAX, HELD_SECONDS, QUIET_SECONDS, Trouble, diagnose
from geminga.diagnosis.facts import (
    ConsumerFacts,
    HoleFacts,
    KeyFacts,
    QuotaFacts,
    Relief,
    SubscriptionFacts,
    TransactionFacts,
)
from geminga.errors import StoreError
from geminga.wire.metadata import EntryHead

KEYS_SHOWN_MAX = 5
"""Blocked keys and damaged runs that are described individually."""


def trouble(topic: PersistentTopic, subscription: PersistentSubscription) -> Trouble:
    """Return only the level of trouble, which is cheap."""
    # Most subscriptions have no backlog: they need no figures.
    waits = subscription.backlog or (topic.transactions is not None and topic.transactions.open)
    if not (waits or subscription.harmed or subscription.fenced or subscription.resetting):
        return Trouble.NOTHING_WAITS
    return diagnose(facts_of(topic, subscription, detailed=False)).level


def rate_published(topic: Topic, now: float) -> float:
    """Return the messages a second that are published."""
    return sum(
        each.rates.read(now, each.messages_in, each.bytes_in)[0] for each in topic.access.producers.values()
    )


def consumer_type(subscription: PersistentSubscription) -> str:
    """Return ``Shared``, ``Failover`` and so on; empty before the first consumer."""
    return next((each.type_name for each in subscription.consumers), "")


def consumer_text(consumer: Consumer) -> str:
    return f"consumer {consumer.name or str(consumer.consumer_id)!r} at {consumer.peer.address}"


def facts_of(
    topic: PersistentTopic, subscription: PersistentSubscription, disk: str = "", *, detailed: bool = True
) -> SubscriptionFacts:
    """Return all figures; ``disk`` is the reason why publishing is refused, empty if it is not."""
    return _Facts(topic, subscription).read(disk, detailed)


def _transaction(transaction: TransactionRecord, messages: int, others: int = 0) -> TransactionFacts:
    return TransactionFacts(
        id=str(transaction.id),
        began_ms=transaction.began_ms,
        ends_ms=transaction.began_ms + transaction.timeout_ms,
        messages=messages,
        is_open=transaction.is_open,
        others=others,
    )


class _Facts:
    def __init__(self, topic: PersistentTopic, subscription: PersistentSubscription) -> None:
        self.topic = topic
        self.subscription = subscription
        self.ledger = topic.ledger
        self.cursor = subscription.cursor
        self.now_ms = topic.scheduler.now_ms
        self.dispatcher = subscription.dispatcher
        self.shared = self.dispatcher if isinstance(self.dispatcher, SharedDispatcher) else None
        self.keyed = self.dispatcher if isinstance(self.dispatcher, KeySharedDispatcher) else None
        self.single = self.dispatcher if isinstance(self.dispatcher, SingleActiveDispatcher) else None

    def read(self, disk: str, detailed: bool) -> SubscriptionFacts:
        subscription, cursor, dispatcher = self.subscription, self.cursor, self.dispatcher
        shared, keyed, single = self.shared, self.keyed, self.single
        topic, ledger = self.topic, self.ledger
        receiving = [single.active] if single is not None and single.active else list(subscription.consumers)
        ready = [each for each in receiving if each.ready]
        messages, size = subscription.backlog_tally() if detailed else (-1, -1)
        read = dispatcher.read_offset if dispatcher is not None else cursor.mark
        waiting = self._waiting(dispatcher) if dispatcher is not None else 0
        held = shared.unacked_messages if shared is not None else sum(map(subscription.held_by, receiving))
        now = topic.scheduler.now
        return SubscriptionFacts(
            topic=topic.text, subscription=subscription.name, now_ms=self.now_ms,
            type=consumer_type(subscription), durable=subscription.durable,
            backlog=subscription.backlog,
            messages=messages, bytes=size,
            oldest_seconds=subscription.oldest_age_seconds if detailed else -1,
            waiting=waiting,
            waiting_since_ms=self._waiting_since(read) if waiting and ready else 0,
            unread=max(0, ledger.confirmed - read),
            held=held, held_limit=topic.policies.unacked_messages_per_subscription_max,
            blocked=shared is not None and shared.blocked,
            delivered_ms=subscription.last_consumed_ms,
            acked_ms=subscription.last_acked_ms,
            published_ms=ledger.segments[-1].written_ms if ledger.segments else 0,
            rate_in=rate_published(topic, now),
            consumers=self._consumers(receiving, now),
            consumer_count=len(subscription.consumers),
            any_ready=bool(ready),
            left_ms=0 if subscription.consumers else subscription.last_left_ms,
            harmed=subscription.harmed,
            fenced=subscription.fenced or subscription.resetting, terminated=topic.terminated,
            quota=self._quota(detailed),
            disk=disk,
            damaged=self._damaged(),
            reading_fails=dispatcher is not None and dispatcher.reading_fails,
            switching_to=consumer_text(single.active)
            if single is not None and single.active and single.is_switching else "",
            throttled=any(limit.wait(now) > 0 for limit in subscription.dispatch_limits),
            delayed=0 if shared is None else shared.delayed_size,
            delayed_next_ms=0 if shared is None else shared.next_delayed_ms,
            keys=self._keys(keyed) if detailed and keyed is not None else (),
            draining=0 if keyed is None else keyed.draining_slots,
            unowned=0 if keyed is None else keyed.unowned_size,
            look_ahead=keyed.replay_size if keyed is not None and keyed.look_ahead_full else 0,
            transaction=self._transaction(detailed),
            pending_acks=self._pending_acks(detailed),
            holes=self._holes(detailed),
            mark_ms=subscription.last_mark_ms,
            hole=self._hole() if detailed else None,
            redeliveries=0 if shared is None else shared.redelivery_count(subscription.wanted_from),
            expired=subscription.messages_expired, expired_ms=subscription.last_expired_ms,
            oldest_open=self._position(subscription.wanted_from) if detailed else "",
            read_position=self._position(read) if detailed else "",
            redeliver_after=subscription.compensation.after_seconds,
            pushed_again=subscription.compensation.messages,
        )  # fmt: skip

    # --- delivery ---
    def _waiting(self, dispatcher: Dispatcher) -> int:
        """Return the number of entries that are due and not delivered, or to be redelivered."""
        unread = self._next_open(dispatcher.read_offset)
        shared = self.shared
        again, known = (0, 0) if shared is None else (shared.replay_size, shared.known_ahead)
        return max(0, self.ledger.confirmed - unread - known) + again

    def _next_open(self, offset: int) -> int:
        """Return the first entry from ``offset`` on that is acknowledged neither for good nor in an open
        transaction."""
        pending = self.subscription.pending
        return self.cursor.next_open(offset) if pending is None else pending.first_deliverable(offset)

    def _waiting_since(self, read: int) -> int:
        """Return since when the next entry waits; called only if nothing was delivered for some time."""
        delivered_ms = self.subscription.last_consumed_ms
        if self.now_ms - delivered_ms < QUIET_SECONDS * 1000:
            return 0
        offset = self._next_open(read)
        if offset >= self.ledger.confirmed:
            return delivered_ms
        try:
            return position_lookup.arrived_ms(self.ledger, offset, self.now_ms)
        except StoreError:
            return 0

    def _consumers(self, receiving: list[Consumer], now: float) -> tuple[ConsumerFacts, ...]:
        """Return the consumers: first those that are not ready, then those that hold messages for longest."""
        consumers = list(self.subscription.consumers)
        if len(consumers) > CONSUMERS_NAMED_MAX:
            consumers = nsmallest(
                CONSUMERS_NAMED_MAX, consumers, key=lambda each: (each.ready, self._held_since(each))
            )
        standby = set() if self.single is None else {each for each in consumers if each not in receiving}
        return tuple(
            ConsumerFacts(
                name=each.name or str(each.consumer_id),
                address=each.peer.address,
                permits=each.permits,
                held=self.subscription.held_by(each),
                held_since_ms=self._held_since(each),
                held_limit=each.unacked_messages_max,
                blocked=each.blocked,
                reads=each.output.writable,
                standby=each in standby,
                asked_ms=each.last_flow_ms,
                delivered_ms=each.last_consumed_ms,
                acked_ms=each.last_acked_ms,
                acks_per_second=each.rates_now(now)[3],
                queued=self.keyed.queued_for(each) if self.keyed is not None else 0,
            )
            for each in consumers
        )

    @staticmethod
    def _held_since(consumer: Consumer) -> int:
        return consumer.unacked_since_ms or consumer.last_acked_ms

    def _keys(self, dispatcher: KeySharedDispatcher) -> tuple[KeyFacts, ...]:
        return tuple(
            KeyFacts(
                key=self._key(each.first_waiting), slot=each.slot, holder=each.holder.name,
                holder_text=consumer_text(each.holder), held=each.held, waiting=each.waiting,
                first=self._position(each.first_waiting),
            )
            for each in dispatcher.blocked_keys(KEYS_SHOWN_MAX)
        )  # fmt: skip

    def _head(self, offset: int) -> EntryHead | None:
        try:
            entry = self.ledger.read_one(offset)
        except StoreError:
            entry = None
        return None if entry is None else head_of(entry)

    def _key(self, offset: int) -> str:
        head = self._head(offset)
        return "?" if head is None else sticky_key(head).decode(errors="backslashreplace")

    # --- transactions ---
    def _transaction(self, detailed: bool) -> TransactionFacts | None:
        """Return the transaction that holds back messages of others, if one does; without ``detailed`` not
        all of them are counted."""
        topic, ledger = self.topic, self.ledger
        part = topic.transactions
        if part is None or not part.open or ledger.confirmed >= part.stored:
            return None
        first, runs = next(iter(part.open.items()))
        messages, end = 0, ledger.confirmed
        for start, stop in (*runs, (part.stored, part.stored)):
            begin, start = part.aborted.next_missing(end), min(start, part.stored)
            if begin < start:
                messages += ledger.counts.between(begin, start)[0]
                messages -= ledger.counts.held(part.aborted, begin, start)[0] if part.aborted else 0
                if not detailed:
                    break
            end = stop
        return _transaction(topic.services.transactions.by_id[first], messages) if messages else None

    def _pending_acks(self, detailed: bool) -> TransactionFacts | None:
        """Return the oldest transaction with acknowledgements, and the messages acknowledged in all, which
        are not counted for a young one without ``detailed``."""
        pending = self.subscription.pending
        if not pending:
            return None
        oldest = self.topic.services.transactions.by_id[min(pending.owners)]
        counted = detailed or self.now_ms - oldest.began_ms >= HELD_SECONDS * 1000
        return _transaction(oldest, pending.messages if counted else -1, len(pending.owners) - 1)

    # --- backlog ---
    def _holes(self, detailed: bool) -> int:
        """Return the runs of open messages before an acknowledged one; without ``detailed`` 0 or 1."""
        if detailed:
            return self.cursor.hole_count()
        return int(bool(self.cursor.holes) or bool(self.cursor.batches))

    def _hole(self) -> HoleFacts | None:
        subscription, cursor, single = self.subscription, self.cursor, self.single
        offset = subscription.wanted_from
        if offset >= self.ledger.confirmed or not (cursor.holes or cursor.batches):
            return None
        holder = next((each for each in subscription.consumers if offset in each.pending), None)
        ranges = cursor.open_ranges(offset)[:5] if offset in cursor.batches else []
        return HoleFacts(
            message=self._position(offset),
            acknowledged_behind=subscription.acknowledged_behind,
            open_in_batch=", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges),
            holder="" if holder is None else holder.name,
            holder_text="" if holder is None else consumer_text(holder),
            delivered=holder is not None or (single is not None and offset < single.read_offset),
            delayed=holder is None and self._is_delayed(offset),
            transaction=self._acknowledged_in(offset),
            age_seconds=subscription.oldest_age_seconds,
            frees=self._frees(subscription.wanted_behind(offset + 1)),
        )

    def _is_delayed(self, offset: int) -> bool:
        """Return whether the delivery time of an entry has not come. Its dispatcher knows those that it has
        read, which it does for consumers with permits only."""
        if self.single is not None or not self.topic.policies.delayed_delivery:
            return False
        if self.shared is not None and self.shared.is_delayed(offset):
            return True
        head = self._head(offset)
        return head is not None and head.deliver_at_time > self.now_ms

    def _acknowledged_in(self, offset: int) -> str:
        """Return the open transaction in which an entry is acknowledged, wholly or in part; else empty."""
        pending = self.subscription.pending
        owners = {} if pending is None else pending.owners
        return next((str(id_) for id_, acks in owners.items() if acks.has(offset)), "")

    def _frees(self, offset: int) -> int:
        """Return the bytes that are no longer retained once everything before ``offset`` is acknowledged."""
        return self.ledger.size_from(self.subscription.wanted_from) - self.ledger.size_from(offset)

    def _damaged(self) -> tuple[tuple[str, str], ...]:
        runs = [run for run in self.ledger.damaged if run[1] > self.cursor.mark]
        return tuple(
            (self._position(start), self._position(stop - 1)) for start, stop in runs[:KEYS_SHOWN_MAX]
        )

    def _quota(self, detailed: bool) -> QuotaFacts | None:
        exceeded, name = self.topic.quota_exceeded, self.subscription.name
        if exceeded is None:
            return None
        if (held := quota.held_by(self.topic, self.subscription)) is not None:
            exceeded = held
        elif detailed or exceeded.subscription == name:
            # It was noted some seconds ago; messages may have been acknowledged since.
            exceeded = quota.would_hold(self.topic)
        if exceeded is None:
            return None
        own = exceeded.subscription == name
        first = enough = None
        if own and detailed:
            first = self._relief(self.subscription.wanted_behind(self.subscription.wanted_from + 1))
            enough = self._relief(quota.enough_from(self.topic, exceeded))
        return QuotaFacts(
            text=str(exceeded),
            subscription=exceeded.subscription,
            oldest=f"{exceeded.oldest[0]}:{exceeded.oldest[1]}",
            details=tuple(asdict(exceeded).items()),
            first=first,
            enough=enough,
        )

    def _relief(self, offset: int) -> Relief:
        """Return the effect of skipping everything before ``offset``."""
        subscription = self.subscription
        offset = min(max(offset, self.cursor.mark), self.ledger.confirmed)
        begins = subscription.wanted_behind(offset)
        over = quota.would_hold(self.topic, (subscription, begins))
        return Relief(
            up_to=self._position(offset - 1) if offset > self.ledger.start else "",
            messages=self.cursor.messages_open(self.cursor.mark, offset),
            frees=self._frees(begins),
            still_over="" if over is None else over.subscription,
        )  # fmt: skip

    def _position(self, offset: int) -> str:
        if offset >= self.ledger.end:
            return "end"
        ledger_id, entry_id = self.ledger.position(offset)
        return f"{ledger_id}:{entry_id}"
