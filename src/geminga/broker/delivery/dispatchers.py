"""Who gets which entry: the dispatchers of Exclusive, Failover and Shared subscriptions.

A dispatcher reads entries that are durable and open from the topic's ledger and writes them to
consumers that have permits and whose connection takes more bytes. It is asked to go on (`dispatch`)
whenever one of these changes; it never waits and holds no entries, only offsets.

Key_Shared is in `key_shared`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from geminga.broker.timers import Timer
from geminga.errors import CorruptPayload, StoreError
from geminga.ledger.api import Buffer
from geminga.wire.hashing import murmur3_32
from geminga.wire.metadata import EntryHead, peek_entry

if TYPE_CHECKING:
    from geminga.broker.delivery.consumer import Consumer
    from geminga.broker.delivery.subscription import Subscription

log = logging.getLogger("geminga.broker")

ENTRIES_PER_READ_MAX = 100
BYTES_PER_READ_MAX = 4 * 1024 * 1024
ENTRIES_PER_CALL_MAX = 1_000
BYTES_PER_CALL_MAX = 4 * 1024 * 1024
"""A dispatcher sends at most this much in one go; then everybody else has a turn before it goes on."""
ENTRIES_PER_TURN_MAX = 20
"""A Shared consumer gets at most this many entries before the next one's turn."""
DELAYED_MAX = 1_000_000
"""Delayed entries that a subscription keeps track of; it reads no further until some are due."""
REDELIVERY_COUNTS_MAX = 1_000_000
"""Entries whose redelivery count is remembered; the counts of the oldest are forgotten."""
MESSAGES_MAX = 1 << 22
"""No entry holds more messages than this: each takes a byte at least, and entries are a few MiB."""
READ_RETRY_SECONDS = 5.0
"""After a failed read of the store a dispatcher tries again so much later."""
_RING_POINTS = 100


class Dispatcher(Protocol):
    """What a subscription asks of the way its type hands out entries."""

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in; raises `Refused` when its ranges clash with another's."""

    def started(self, consumer: Consumer) -> None:
        """The consumer knows that it is subscribed: it may be sent notices."""

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go; what it has pending is delivered again."""

    def dispatch(self) -> None:
        """Send what can be sent now."""

    def settle(self, consumer: Consumer | None, offset: int, still_open: int) -> None:
        """An entry was acknowledged, or all but ``still_open`` of its messages."""

    def acknowledged(self) -> None:
        """Acknowledgements were taken in: what they unblocked may go on."""

    def skipped_below(self, offset: int) -> None:
        """Everything below ``offset`` is no longer to be delivered."""

    def redeliver(self, consumer: Consumer, offsets: Iterable[int]) -> None:
        """The consumer wants these entries again."""

    def redeliver_all(self, consumer: Consumer) -> None:
        """The consumer wants everything again that it has not acknowledged."""

    def close(self) -> None:
        """The last consumer left."""


def head_of(entry: Buffer) -> EntryHead | None:
    """The metadata of an entry; None when it cannot be read (it is delivered as one message then)."""
    try:
        return peek_entry(entry)
    except CorruptPayload:
        return None


def count_of(head: EntryHead | None) -> int:
    """How many messages an entry holds by its metadata; 1 where that cannot be true.

    The number is the producer's claim and goes into the permits of consumers, so a lie is bounded.
    """
    return head.num_messages if head is not None and 1 <= head.num_messages <= MESSAGES_MAX else 1


def message_count(entry: Buffer) -> int:
    """How many messages are in an entry."""
    return count_of(head_of(entry))


class _Reading:
    """What all dispatchers share: a read position, and care for a store that fails to read."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.cursor = subscription.cursor
        self.read_offset = self.cursor.next_open(self.cursor.mark)
        self._retry: Timer | None = None
        self._continuation: Timer | None = None
        self._dispatching = False
        self._entries_left = 0
        self._bytes_left = 0

    def _read(self, offset: int, entries_max: int) -> tuple[int, list[tuple[bytes, int]]]:
        """The next open entries from ``offset`` on, and the offset of the first; empty at the end."""
        if self._retry is not None:
            return offset, []
        ledger = self.topic.ledger
        cursor = self.cursor
        while True:
            offset = cursor.next_open(offset)
            stop = cursor.open_run(offset, min(ledger.confirmed, offset + entries_max))
            if offset >= stop:
                return offset, []
            try:
                found = ledger.read(offset, stop, entries_max=entries_max, bytes_max=BYTES_PER_READ_MAX)
            except StoreError as error:
                self._reading_failed(error)
                return offset, []
            if found:
                return offset, found
            skipped = ledger.skip_gap(offset)
            if skipped == offset:
                return offset, []
            offset = skipped

    def _reading_failed(self, error: StoreError) -> None:
        broker = self.topic.broker
        log.error("%r: reading failed, next try in %g s: %s", self.subscription, READ_RETRY_SECONDS, error)
        self._retry = broker.timers.at(broker.now + READ_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.dispatch()

    def dispatch(self) -> None:
        # Sending may cause a flush, which may tell us that the connection is writable again.
        if self._dispatching:
            return
        self._dispatching = True
        self._entries_left, self._bytes_left = ENTRIES_PER_CALL_MAX, BYTES_PER_CALL_MAX
        try:
            self._dispatch()
            if self._exhausted and self._continuation is None:
                broker = self.topic.broker
                self._continuation = broker.timers.at(broker.now, self._go_on)
        finally:
            self._dispatching = False

    @property
    def _exhausted(self) -> bool:
        """Whether this call has sent as much as one call may."""
        return self._entries_left <= 0 or self._bytes_left <= 0

    def _go_on(self) -> None:
        self._continuation = None
        self.dispatch()

    def _dispatch(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for timer in (self._retry, self._continuation):
            if timer is not None:
                timer.cancel()
        self._retry = self._continuation = None


class SingleActiveDispatcher(_Reading):
    """Exclusive and Failover: one consumer at a time gets everything, in order."""

    def __init__(self, subscription: Subscription, *, failover: bool) -> None:
        super().__init__(subscription)
        self._failover = failover
        self._consumers: list[Consumer] = []
        self._started: set[Consumer] = set()
        self.active: Consumer | None = None
        self._switch: Timer | None = None

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self._pick(consumer)

    def started(self, consumer: Consumer) -> None:
        self._started.add(consumer)
        if consumer is not self.active:
            consumer.notify_active(False)
        elif self._switch is None:
            consumer.notify_active(True)

    def remove(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._started.discard(consumer)
        self._pick(None)

    def _pick(self, newcomer: Consumer | None) -> None:
        """Choose the active consumer anew; a failover switch takes effect after the settings' delay."""
        chosen = self._choice()
        if chosen is self.active:
            return
        previous, self.active = self.active, chosen
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
        if previous is not None and previous in self._started and previous in self._consumers:
            previous.notify_active(False)
        self.read_offset = self.cursor.next_open(self.cursor.mark)
        if chosen is None:
            return
        # The very first consumer has nobody whose last acknowledgements could still be on their way.
        broker = self.topic.broker
        delay = broker.settings.failover_delay_seconds
        if self._failover and delay > 0 and not (previous is None and chosen is newcomer):
            self._switch = broker.timers.at(broker.now + delay, self._switched)
        elif chosen in self._started:
            chosen.notify_active(True)

    def _choice(self) -> Consumer | None:
        if not self._consumers:
            return None
        best = min(consumer.priority for consumer in self._consumers)
        candidates = sorted(
            (consumer for consumer in self._consumers if consumer.priority == best),
            key=lambda consumer: consumer.name,
        )
        partition = self.subscription.partition
        if not self._failover or len(candidates) == 1:
            return candidates[0]
        if partition >= 0:
            return candidates[partition % len(candidates)]
        return _ring_choice(candidates, self.topic.text)

    def _switched(self) -> None:
        self._switch = None
        if self.active is not None:
            # What was acknowledged meanwhile by the one before is not sent again.
            self.read_offset = self.cursor.next_open(self.cursor.mark)
            for consumer in self._consumers:
                if consumer in self._started:
                    consumer.notify_active(consumer is self.active)
            self.dispatch()

    def _dispatch(self) -> None:
        consumer = self.active
        if consumer is None or self._switch is not None or not consumer.ready:
            return
        ledger = self.topic.ledger
        cursor = self.cursor
        while consumer.permits > 0 and consumer.session.output.writable and not self._exhausted:
            offset, found = self._read(self.read_offset, min(ENTRIES_PER_READ_MAX, consumer.entries_wanted))
            self.read_offset = offset
            if not found:
                break
            for entry, messages in found:
                if consumer.permits <= 0 or not consumer.session.output.writable:
                    return
                if messages < 0:
                    messages = message_count(entry)
                ack_set = cursor.ack_words(offset) if cursor.batches else ()
                if ack_set:
                    messages = cursor.open_messages(offset)
                ledger_id, entry_id = ledger.position(offset)
                consumer.send(ledger_id, entry_id, entry, messages, 0, ack_set)
                offset += 1
                self.read_offset = offset
                self._bytes_left -= len(entry)
            self._entries_left -= len(found)
            consumer.last_consumed_ms = self.subscription.last_consumed_ms = self.topic.broker.now_ms

    def settle(self, consumer: Consumer | None, offset: int, still_open: int) -> None:
        return

    def acknowledged(self) -> None:
        return

    def skipped_below(self, offset: int) -> None:
        self.read_offset = max(self.read_offset, offset)

    def redeliver(self, consumer: Consumer, offsets: Iterable[int]) -> None:
        self.redeliver_all(consumer)

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is self.active:
            self.read_offset = self.cursor.next_open(self.cursor.mark)
            self.dispatch()

    def close(self) -> None:
        super().close()
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None


def _ring_choice(candidates: list[Consumer], topic: str) -> Consumer:
    """The failover consumer of a topic without partitions: a hash ring (algorithms.md section 4)."""
    ring: dict[int, Consumer] = {}
    for consumer in candidates:
        for point in range(_RING_POINTS):
            ring[murmur3_32(f"{consumer.name}{point}".encode())] = consumer
    place = murmur3_32(topic.encode())
    return ring[min((point for point in ring if point >= place), default=min(ring))]


class SharedDispatcher(_Reading):
    """Shared: consumers in turn, those of the best priority that have permits first.

    Entries to be delivered again and delayed ones that are due come before new ones.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.consumers: list[Consumer] = []
        self._turn = 0
        self._replay: list[int] = []
        self._replaying: set[int] = set()
        self._delayed: list[tuple[int, int]] = []
        self._delayed_offsets: set[int] = set()
        self._delay_timer: Timer | None = None
        self._redeliveries: dict[int, int] = {}
        self.unacked_messages = 0
        self.blocked = False

    # --- questions for stats ---
    @property
    def replay_size(self) -> int:
        return len(self._replaying)

    @property
    def delayed_size(self) -> int:
        return len(self._delayed_offsets)

    # --- membership ---
    def add(self, consumer: Consumer) -> None:
        consumer.unacked_messages_max = self.topic.policies.unacked_messages_per_consumer_max
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda each: each.priority)

    def started(self, consumer: Consumer) -> None:
        return

    def remove(self, consumer: Consumer) -> None:
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._turn:
            self._turn -= 1
        self.unacked_messages -= consumer.unacked_messages
        self._check_unblocked()
        pending = consumer.forget_pending()
        for offset in pending:
            self._released(offset)
        self._give_back(pending)

    def close(self) -> None:
        super().close()
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None

    def _released(self, offset: int) -> None:
        """An entry is no longer pending on any consumer."""

    # --- again ---
    def _give_back(self, offsets: Iterable[int]) -> None:
        """These entries are to be delivered again."""
        for offset in offsets:
            if offset not in self._replaying:
                self._replaying.add(offset)
                heapq.heappush(self._replay, offset)

    def redeliver(self, consumer: Consumer, offsets: Iterable[int]) -> None:
        again = [offset for offset in offsets if offset in consumer.pending]
        for offset in again:
            self._count_redelivery(offset)
            self.unacked_messages -= consumer.settle(offset)
            self._released(offset)
        self._check_unblocked()
        self._give_back(again)
        self.dispatch()

    def redeliver_all(self, consumer: Consumer) -> None:
        self.redeliver(consumer, list(consumer.pending))

    def _count_redelivery(self, offset: int) -> None:
        counts = self._redeliveries
        counts[offset] = counts.get(offset, 0) + 1
        if len(counts) > REDELIVERY_COUNTS_MAX:
            del counts[next(iter(counts))]

    def settle(self, consumer: Consumer | None, offset: int, still_open: int) -> None:
        if not still_open and self._redeliveries:
            self._redeliveries.pop(offset, None)
        if consumer is None or offset not in consumer.pending:
            consumer = next((each for each in self.consumers if offset in each.pending), None)
            if consumer is None:
                return
        self.unacked_messages -= consumer.settle(offset, still_open)
        if not still_open:
            self._released(offset)

    def acknowledged(self) -> None:
        self._check_unblocked()
        self.dispatch()

    def skipped_below(self, offset: int) -> None:
        for consumer in self.consumers:
            for at in [at for at in consumer.pending if at < offset]:
                self.unacked_messages -= consumer.settle(at)
                self._released(at)
        for at in [at for at in self._redeliveries if at < offset]:
            del self._redeliveries[at]
        self.read_offset = max(self.read_offset, offset)
        self._check_unblocked()

    def _check_unblocked(self) -> None:
        if self.blocked and self.unacked_messages <= self._unacked_limit // 2:
            self.blocked = False

    @property
    def _unacked_limit(self) -> int:
        return self.topic.policies.unacked_messages_per_subscription_max

    # --- sending ---
    def _dispatch(self) -> None:
        while not self._exhausted:
            index = self._next_index()
            if index < 0:
                return
            consumer = self.consumers[index]
            before = consumer.messages_out
            offsets = self._next_replays(min(ENTRIES_PER_TURN_MAX, consumer.entries_wanted))
            if offsets:
                if not self._send_replays(consumer, offsets):
                    return
            elif not self._send_new(consumer):
                return
            if consumer.messages_out != before:
                self._turn = index + 1

    def _next_index(self) -> int:
        """The next one in turn among those of the best priority that can take entries; -1 for none."""
        if self.blocked:
            return -1
        consumers = self.consumers
        count = len(consumers)
        best: int | None = None
        chosen = -1
        for step in range(count):
            index = (self._turn + step) % count
            consumer = consumers[index]
            if (best is None or consumer.priority < best) and consumer.ready:
                best, chosen = consumer.priority, index
        return chosen

    def _next_replays(self, count: int) -> list[int]:
        """The lowest offsets that are to be delivered again and still need to be."""
        found: list[int] = []
        replay = self._replay
        while replay and len(found) < count:
            offset = heapq.heappop(replay)
            self._replaying.discard(offset)
            if not self.cursor.is_acknowledged(offset):
                found.append(offset)
        return found

    def _send_replays(self, consumer: Consumer, offsets: list[int]) -> bool:
        """Send again; False when nothing more can be read now."""
        at = 0
        while at < len(offsets):
            run = 1
            while at + run < len(offsets) and offsets[at + run] == offsets[at] + run:
                run += 1
            offset, found = self._read(offsets[at], run)
            if not found or offset != offsets[at]:
                # Unreadable now (kept for later), or trimmed away (gone).
                if self._retry is not None:
                    self._give_back(offsets[at:])
                    return False
                at += 1
                continue
            for entry, _ in found:
                if not consumer.ready or self.blocked:
                    self._give_back(offsets[at:])
                    return True
                head = head_of(entry)
                if not self._delay(offset, head):
                    self._send(consumer, offset, entry, count_of(head))
                offset, at = offset + 1, at + 1
        return True

    def _send_new(self, consumer: Consumer) -> bool:
        """Send entries that were not read before; False when there are none."""
        if len(self._delayed_offsets) >= DELAYED_MAX:
            return False
        offset, found = self._read(self.read_offset, min(ENTRIES_PER_TURN_MAX, consumer.entries_wanted))
        self.read_offset = offset
        for entry, _ in found:
            if not consumer.ready or self.blocked:
                return True
            if offset in self._replaying or offset in self._delayed_offsets:
                self.read_offset = offset = offset + 1
                continue
            head = head_of(entry)
            if not self._delay(offset, head):
                self._send(consumer, offset, entry, count_of(head))
            self.read_offset = offset = offset + 1
        return bool(found)

    def _send(self, consumer: Consumer, offset: int, entry: bytes, messages: int) -> None:
        cursor = self.cursor
        ack_set = cursor.ack_words(offset) if cursor.batches else ()
        if ack_set:
            messages = cursor.open_messages(offset)
        ledger_id, entry_id = self.topic.ledger.position(offset)
        redeliveries = self._redeliveries.get(offset, 0) if self._redeliveries else 0
        consumer.send(ledger_id, entry_id, entry, messages, redeliveries, ack_set)
        self._entries_left -= 1
        self._bytes_left -= len(entry)
        consumer.track(offset, messages)
        consumer.last_consumed_ms = self.subscription.last_consumed_ms = self.topic.broker.now_ms
        self.unacked_messages += messages
        if 0 < self._unacked_limit <= self.unacked_messages:
            self.blocked = True

    # --- delayed delivery ---
    def _delay(self, offset: int, head: EntryHead | None) -> bool:
        """Whether an entry's time has not come; it is then kept until it has, and never sent early."""
        if head is None or not head.deliver_at_time:
            return False
        broker = self.topic.broker
        if head.deliver_at_time <= broker.now_ms or not self.topic.policies.delayed_delivery:
            return False
        heapq.heappush(self._delayed, (head.deliver_at_time, offset))
        self._delayed_offsets.add(offset)
        self._arm_delay()
        return True

    def _arm_delay(self) -> None:
        timer = self._delay_timer
        broker = self.topic.broker
        when = broker.now + max(0.0, (self._delayed[0][0] - broker.now_ms) / 1000)
        if timer is not None and timer.callback is not None:
            if timer.when <= when:
                return
            timer.cancel()
        self._delay_timer = broker.timers.at(when, self._delays_due)

    def _delays_due(self) -> None:
        """Delayed entries that are due by the wall clock join those that are to be delivered again."""
        self._delay_timer = None
        now_ms = self.topic.broker.now_ms
        due = []
        while self._delayed and self._delayed[0][0] <= now_ms:
            offset = heapq.heappop(self._delayed)[1]
            self._delayed_offsets.discard(offset)
            due.append(offset)
        if self._delayed:
            self._arm_delay()
        if due:
            self._give_back(due)
            self.dispatch()
