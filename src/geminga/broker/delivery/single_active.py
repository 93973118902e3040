"""Exclusive and Failover: one active consumer gets everything, in order."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence

from geminga.broker.delivery.compensation import DeliveryMarks
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.dispatcher import (
    ENTRIES_PER_READ_MAX,
    DispatchedSubscription,
    Dispatcher,
    RedeliveryRound,
    TooOld,
)
from geminga.broker.entries.compacted_view import CompactedLedger, CompactedScan
from geminga.broker.entries.entry_facts import message_count
from geminga.broker.runtime.scheduler import Timer
from geminga.errors import StoreError
from geminga.wire.hashing import MURMUR3_SIZE, murmur3_32, murmur3_32_numbered

_RING_POINTS = 100
_Rank = tuple[int, int, str, int, Consumer]
"""Priority, distance on the hash ring, name, number in the order of arrival, consumer."""
_NEVER = float("inf")
PUSHED_REMEMBERED_MAX = 100_000
"""Redelivered entries whose time and count are kept; the oldest are dropped."""


class SingleActiveDispatcher(Dispatcher):
    """Dispatcher of Exclusive and Failover: one active consumer gets everything, in order."""

    def __init__(self, subscription: DispatchedSubscription, *, failover: bool) -> None:
        super().__init__(subscription)
        self._failover = failover
        self._ranks: dict[Consumer, _Rank] = {}
        self._ranked: list[_Rank] = []
        self._arrivals = 0
        self._started: set[Consumer] = set()
        self.active: Consumer | None = None
        self._switch: Timer | None = None
        self._marks: DeliveryMarks | None = None
        self._again: dict[int, tuple[float, int]] = {}
        self._compacted: CompactedScan | None = None
        self._is_placed = False

    @property
    def compacted(self) -> CompactedLedger | None:
        """The compacted ledger that is being read, if any."""
        return None if self._compacted is None else self._compacted.ledger

    @property
    def is_switching(self) -> bool:
        """Whether the next active consumer has not taken over yet."""
        return self._switch is not None

    def add(self, consumer: Consumer) -> None:
        distance = 0
        if self._failover and self.subscription.partition < 0:
            distance = _ring_distance(consumer.name, self.topic.text)
        self._arrivals += 1
        rank = self._ranks[consumer] = (
            consumer.priority, distance, consumer.name, self._arrivals, consumer,
        )  # fmt: skip
        insort(self._ranked, rank)
        self._pick(consumer)

    def started(self, consumer: Consumer) -> None:
        self._started.add(consumer)
        if consumer is not self.active:
            consumer.notify_active(False)
        elif self._switch is None:
            consumer.notify_active(True)

    def remove(self, consumer: Consumer) -> None:
        del self._ranked[bisect_left(self._ranked, self._ranks.pop(consumer))]
        self._started.discard(consumer)
        self._pick(None)

    def _pick(self, newcomer: Consumer | None) -> None:
        """Choose the active consumer; a failover switch takes effect after the settings' delay."""
        chosen = _first_of(self._ranked, self.subscription.partition)
        if chosen is self.active:
            return
        previous, self.active = self.active, chosen
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
        if previous is not None and previous in self._started and previous in self._ranks:
            previous.notify_active(False)
        self._rewind()
        if chosen is None:
            return
        # No delay for the first consumer: no other one has acknowledgements in flight.
        delay = self.topic.settings.failover_delay_seconds
        if self._failover and delay > 0 and not (previous is None and chosen is newcomer):
            self._switch = self.scheduler.after(delay, self._switched, self.subscription)
        elif chosen in self._started:
            chosen.notify_active(True)

    def _switched(self) -> None:
        self._switch = None
        if self.active is not None:
            # Entries that the previous consumer has acknowledged meanwhile are not sent again.
            self._rewind()
            for consumer in self._ranks:
                if consumer in self._started:
                    consumer.notify_active(consumer is self.active)
            self.dispatch()

    def _dispatch(self) -> None:
        consumer = self.active
        if consumer is None or self._switch is not None or not consumer.ready:
            return
        if consumer.read_compacted and not self._send_compacted(consumer):
            return
        while consumer.permits > 0 and consumer.output.writable and not self._exhausted:
            offset, found = self._read(self.read_offset, min(ENTRIES_PER_READ_MAX, consumer.entries_wanted))
            self.read_offset = offset
            if not found:
                break
            if not self._send_run(consumer, offset, found, consumer.permits):
                self._send_each(consumer, offset, found)
            self._entries_left -= self.read_offset - offset
            if self._marks is not None:
                self._marks.note(self.scheduler.now, self.read_offset)
            self.subscription.last_consumed_ms = self.scheduler.now_ms
            consumer.delivered(self.scheduler.now_ms)

    # --- reading a compacted topic ---
    def _send_compacted(self, consumer: Consumer) -> bool:
        """Send compacted entries, if wanted; return whether the topic's own entries are next."""
        if self._retry is not None:
            return False
        try:
            if not self._is_placed:
                self._compacted = self._open_compacted()
                self._is_placed = True
            while self._compacted is not None:
                if not self._send_from(self._compacted, consumer):
                    return False
                self._behind_compacted(self._compacted)
        except StoreError as error:
            self._reading_failed(error)
            return False
        return True

    def _open_compacted(self) -> CompactedScan | None:
        """Return a scan of the compacted ledger from this subscription's start; None behind its end."""
        view, mark = self.topic.compacted, self.cursor.mark
        if view is None:
            return None
        ledger, start = self.topic.ledger, self.subscription.start_position
        is_behind = self.cursor.durable and self.cursor.is_behind  # readers are moved by trimming, too
        if (
            is_behind
            or mark > ledger.skip_gap(ledger.start)
            or (start is not None and ledger.offset_from(*start) > mark)
        ):
            # A start behind the mark was the topic's end ("latest"): newer entries are not behind it.
            return CompactedScan(view, offset=mark) if mark < view.horizon else None
        if start is None:
            return CompactedScan(view) if mark < view.horizon else None
        return CompactedScan(view, position=start)

    def _send_from(self, reading: CompactedScan, consumer: Consumer) -> bool:
        """Send from the compacted ledger; return whether its end is reached."""
        cursor = self.cursor
        while consumer.permits > 0 and consumer.output.writable and not self._exhausted:
            found = reading.next(lambda error: self._fetched(-1, error))
            if found is None:
                return reading.is_over
            reading.take()
            offset, ledger_id, entry_id, entry = found
            if offset in cursor.holes:
                continue
            ack_set = cursor.ack_words(offset) if cursor.batches else ()
            messages = cursor.open_messages(offset) if ack_set else message_count(entry)
            consumer.send(ledger_id, entry_id, entry, messages, 0, ack_set)
            self._entries_left -= 1
            self._bytes_left -= len(entry)
            self.subscription.last_consumed_ms = self.scheduler.now_ms
            consumer.delivered(self.scheduler.now_ms)
        return False

    def _behind_compacted(self, reading: CompactedScan) -> None:
        """Continue with the topic's own entries, or with a newer compacted ledger if those are deleted."""
        horizon, newer = reading.ledger.horizon, self.topic.compacted
        self._leave_compacted()
        self.read_offset = max(self.read_offset, self.cursor.next_open(horizon))
        if newer is not None and newer.horizon > horizon and self.topic.ledger.start > horizon:
            self._compacted = CompactedScan(newer, offset=horizon)

    def _leave_compacted(self) -> None:
        reading, self._compacted = self._compacted, None
        if reading is not None:
            reading.close()

    def _send_each(self, consumer: Consumer, offset: int, found: list[bytes]) -> None:
        """Send entries one after the other, while the consumer takes them."""
        ledger, cursor = self.topic.ledger, self.cursor
        for entry in found:
            if consumer.permits <= 0 or not consumer.output.writable:
                return
            ack_set = cursor.ack_words(offset) if cursor.batches else ()
            messages = cursor.open_messages(offset) if ack_set else message_count(entry)
            ledger_id, entry_id = ledger.position(offset)
            consumer.send(ledger_id, entry_id, entry, messages, 0, ack_set)
            offset += 1
            self.read_offset = offset
            self._bytes_left -= len(entry)

    def settle(self, consumer: Consumer | None, offsets: Sequence[int], still_open: int) -> None:
        if consumer is not None and not still_open:
            consumer.messages_acked += consumer.batch_average * len(offsets)

    def skipped_below(self, offset: int) -> None:
        behind, view = self.read_offset, self.topic.compacted
        self.read_offset = max(behind, offset)
        if self.active is not None and offset >= behind:
            self.active.unacked_since_ms = 0
        is_reader = self.active is not None and self.active.read_compacted and self._is_placed
        if is_reader and self._compacted is None and view is not None and behind < min(offset, view.horizon):
            # Unread entries were trimmed; the compacted ledger has the newest of each key.
            self._compacted = CompactedScan(view, offset=behind)

    def redeliver(self, consumer: Consumer | None, offsets: Iterable[int]) -> None:
        self.redeliver_all((consumer or self.active,))

    def redeliver_all(self, consumers: Collection[Consumer | None]) -> None:
        if self.active in consumers:
            self._rewind()
            self.dispatch()

    def _rewind(self) -> None:
        """Set the read position back to the mark-delete position."""
        self.read_offset = self.cursor.next_open(self.cursor.mark)
        self._leave_compacted()
        self._is_placed = False
        self._again.clear()
        if self._marks is not None:
            self._marks.clear()

    # --- redelivery of unacknowledged messages ---
    def note_deliveries(self, seconds: float) -> None:
        if seconds <= 0:
            self._marks = None
        elif self._marks is None:
            self._marks = DeliveryMarks(seconds)
            self._marks.note(self.scheduler.now, self.read_offset)

    def push_again(self, delivered_before: float, messages_max: int, too_old: TooOld) -> RedeliveryRound:
        pushed, consumer, cursor = RedeliveryRound(), self.active, self.cursor
        if self._marks is None or consumer is None or self._switch is not None:
            return pushed
        for offset in [at for at in self._again if cursor.is_acknowledged(at)]:
            del self._again[offset]
        stop = min(self._marks.sent_before(delivered_before), self.read_offset)
        offset = cursor.next_open(cursor.mark)
        while offset < stop and consumer.permits > 0 and consumer.output.writable:
            sent_at, count = self._again.get(offset, (0.0, 0))
            if sent_at <= delivered_before:
                if too_old(offset):
                    pushed.given_up += 1
                    self._again[offset] = (_NEVER, count)
                elif not self._push(consumer, offset, count + 1, messages_max, pushed):
                    break
            offset = cursor.next_open(offset + 1)
        return pushed

    def _push(
        self, consumer: Consumer, offset: int, count: int, messages_max: int, pushed: RedeliveryRound
    ) -> bool:
        """Redeliver an entry; False if it cannot be read now, or the round has sent enough."""
        place, found = self._read(offset, 1)
        if not found or place != offset:
            return False
        entry = found[0]
        ack_set = self.cursor.ack_words(offset)
        messages = self.cursor.open_messages(offset) if ack_set else message_count(entry)
        if pushed.messages and pushed.messages + messages > messages_max:
            return False
        consumer.send(*self.topic.ledger.position(offset), entry, messages, count, ack_set)
        pushed.messages += messages
        self._again.pop(offset, None)
        self._again[offset] = (self.scheduler.now, count)
        if len(self._again) > PUSHED_REMEMBERED_MAX:
            del self._again[next(iter(self._again))]
        return True

    def close(self) -> None:
        super().close()
        self._leave_compacted()
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None


def _first_of(ranked: list[_Rank], partition: int) -> Consumer | None:
    """Return the consumer to be active, of all consumers in order; None without one."""
    if not ranked:
        return None
    # The consumers of the best priority with the nearest points on the ring: mostly one.
    best = bisect_right(ranked, ranked[0][:2], key=lambda rank: rank[:2])
    return ranked[partition % best if partition >= 0 else best - 1][-1]


def _ring_distance(name: str, topic: str) -> int:
    """Return the distance on the hash ring from a topic without partitions to the next of a consumer's points
    (algorithms.md section 4). The consumer with the shortest is active; of several at one point, the last."""
    start = murmur3_32(topic.encode())
    return min((point - start) % MURMUR3_SIZE for point in murmur3_32_numbered(name.encode(), _RING_POINTS))
