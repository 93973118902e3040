"""Shared: consumers in turn, redelivered entries before new ones."""

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.delayed import DelayedEntries
from geminga.broker.delivery.dispatcher import (
    ENTRIES_PER_READ_MAX,
    DispatchedSubscription,
    Dispatcher,
    RedeliveryRound,
    TooOld,
)
from geminga.broker.delivery.ranges import take_lowest
from geminga.broker.entries.entry_facts import count_of, head_of, may_be_delayed_or_chunk
from geminga.wire.metadata import EntryHead

ENTRIES_PER_TURN_MAX = 20
"""Entries that a Shared consumer gets before the next one's turn."""
RETURNED_AT_ONCE_MAX = 2_000
"""Entries that are taken from a consumer, to be redelivered, in one step."""
ASSEMBLING_MAX = 10_000
"""Chunked messages whose consumer is kept; that of the oldest is dropped."""
DUE_QUEUED_MAX = 2_000
"""Delayed entries that are due are queued for redelivery up to this length, when the queue is half of it."""
REDELIVERY_COUNTS_MAX = 1_000_000
"""Entries whose redelivery count is kept; the counts of the oldest are dropped."""


class ReadyConsumers:
    """Consumers that may be able to take entries: a queue for each priority.

    A consumer that turns out to be unable to take an entry is dropped. It is added again at the event that
    changes that: permits, an acknowledgement, or a connection that takes more bytes. So consumers that wait
    for one of these cost nothing, however many there are.
    """

    __slots__ = ("_priorities", "_queues")

    def __init__(self) -> None:
        self._priorities: list[int] = []
        self._queues: dict[int, OrderedDict[Consumer, None]] = {}

    def add(self, consumer: Consumer) -> None:
        """Append a consumer, unless it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is None:
            queue = self._queues[consumer.priority] = OrderedDict()
            insort(self._priorities, consumer.priority)
        queue[consumer] = None

    def discard(self, consumer: Consumer) -> None:
        """Drop a consumer, if it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is not None:
            queue.pop(consumer, None)
            if not queue:
                del self._queues[consumer.priority]
                del self._priorities[bisect_left(self._priorities, consumer.priority)]

    def first(self) -> Consumer | None:
        """Return the first consumer of the best priority that can take an entry now."""
        while self._priorities:
            consumer = next(iter(self._queues[self._priorities[0]]))
            if consumer.ready:
                return consumer
            self.discard(consumer)
        return None

    def move_to_end(self, consumer: Consumer) -> None:
        """Make a consumer the last one of its priority, if it is queued."""
        queue = self._queues.get(consumer.priority)
        if queue is not None and consumer in queue:
            queue.move_to_end(consumer)


class SharedDispatcher(Dispatcher):
    """Dispatcher of Shared: consumers in turn, those with permits and the best priority first.

    Entries to be redelivered and delayed entries that are due come before new ones. The chunks of a message
    go to one consumer, which could not assemble it otherwise: they wait for it while it can take nothing.
    """

    def __init__(self, subscription: DispatchedSubscription) -> None:
        super().__init__(subscription)
        self.consumers: dict[Consumer, None] = {}
        self._ready = ReadyConsumers()
        self._replay: list[int] = []
        self._replaying: set[int] = set()
        self._delayed = DelayedEntries(
            self.topic.delivery_times,
            self.cursor,
            self._delays_due,
            are_delayed=self.topic.policies.delayed_delivery,
        )
        self._not_due = self._delayed.waiting
        self.read_offset = self._delayed.unknown_from(self.read_offset, self.cursor)
        self._returning: deque[tuple[Consumer | None, Iterator[int]]] = deque()
        """Entries to be redelivered that are still to be taken from their consumer; None: it has left."""
        self._redeliveries: dict[int, int] = {}
        self._assembling: dict[str, tuple[Consumer, int]] = {}
        """Consumers that hold the first chunks of messages, and the newest chunk's offset, by uuid."""
        self._waiting_chunks: dict[Consumer, list[int]] = {}
        """Offsets of chunks that wait until their consumer is ready; each list is a heap."""
        self._sent_at: dict[int, float] | None = None
        self._holders: dict[int, Consumer] | None = None
        """Consumers of all pending entries, once an acknowledgement came from another consumer."""
        self.unacked_messages = 0
        self.blocked = False

    # --- questions for stats ---
    @property
    def replay_size(self) -> int:
        return len(self._replaying) + len(self._delayed.due)

    @property
    def delayed_size(self) -> int:
        return len(self._delayed.waiting)

    @property
    def known_ahead(self) -> int:
        """Entries behind the read position that are not read any more: they are delayed or acknowledged."""
        return self._delayed.known_behind(self.read_offset)

    @property
    def next_delayed_ms(self) -> int:
        return self._delayed.next_ms

    def is_delayed(self, offset: int) -> bool:
        """Return whether the entry is delayed and not due."""
        return offset in self._delayed.waiting

    def is_again(self, offset: int) -> bool:
        """Return whether the entry waits for redelivery."""
        return offset in self._replaying or offset in self._delayed.due

    def redelivery_count(self, offset: int) -> int:
        """Return how often the entry was redelivered, as far as the count is kept."""
        return self._redeliveries.get(offset, 0)

    # --- membership ---
    def add(self, consumer: Consumer) -> None:
        consumer.unacked_messages_max = self.topic.policies.unacked_messages_per_consumer_max
        self.consumers[consumer] = None
        if consumer.permits > 0:
            self.flowed(consumer)

    def flowed(self, consumer: Consumer) -> None:
        """Append a consumer that may take entries to the queue of consumers, unless it is queued."""
        self._ready.add(consumer)

    def started(self, consumer: Consumer) -> None:
        return

    def remove(self, consumer: Consumer) -> None:
        del self.consumers[consumer]
        self._ready.discard(consumer)
        self._assembling = {uuid: each for uuid, each in self._assembling.items() if each[0] is not consumer}
        self._give_back(self._waiting_chunks.pop(consumer, ()))
        self.unacked_messages -= consumer.unacked_messages
        self._check_unblocked()
        self._returning.append((None, iter(consumer.forget_pending())))

    def close(self) -> None:
        super().close()
        self._delayed.close()
        self._returning.clear()

    def _released(self, offset: int) -> None:
        """Record that an entry is no longer pending on any consumer."""
        if self._holders is not None:
            self._holders.pop(offset, None)

    # --- again ---
    def _give_back(self, offsets: Iterable[int]) -> None:
        """Queue entries for redelivery."""
        for offset in offsets:
            if offset not in self._replaying:
                self._replaying.add(offset)
                heapq.heappush(self._replay, offset)

    def redeliver(self, consumer: Consumer | None, offsets: Iterable[int]) -> None:
        if consumer is not None:
            self._returning.append((consumer, iter(offsets)))
        else:
            read = filter(self.was_read, offsets)
            self._returning += [(self.holder_of(offset), iter((offset,))) for offset in read]
        self.dispatch()

    def was_read(self, offset: int) -> bool:
        """Return whether the entry is not read as a new one any more."""
        return offset < self.read_offset or offset in self._delayed.known

    def redeliver_all(self, consumers: Collection[Consumer]) -> None:
        self._returning += [(consumer, iter(list(consumer.pending))) for consumer in consumers]
        self.dispatch()

    def _return_some(self, count: int) -> int:
        """Take the next entries of a redelivery, at most ``count``, from their consumer and queue them;
        return their number."""
        holder, offsets = self._returning[0]
        again = []
        some = list(islice(offsets, count))
        if len(some) < count:
            self._returning.popleft()
        try:
            for offset in some:
                if holder is not None:
                    if offset not in holder.pending:
                        continue
                    self._count_redelivery(offset)
                    self._free(holder, offset)
                self._not_sent(offset)
                again.append(offset)
                self._released(offset)
        finally:
            # Even after a failure: no consumer holds these entries any more, and they must not be lost.
            self._check_unblocked()
            self._give_back(again if holder is not None else some)
        return len(some)

    def _count_redelivery(self, offset: int) -> None:
        counts = self._redeliveries
        counts[offset] = counts.get(offset, 0) + 1
        if len(counts) > REDELIVERY_COUNTS_MAX:
            del counts[next(iter(counts))]

    def settle(self, consumer: Consumer | None, offsets: Sequence[int], still_open: int) -> None:
        if self._delayed.is_active and not still_open:
            self._delayed.discard(offsets)
        for offset in offsets:
            self._settle(consumer, offset, still_open)

    def _settle(self, consumer: Consumer | None, offset: int, still_open: int) -> None:
        if not still_open and self._redeliveries:
            self._redeliveries.pop(offset, None)
        holder = consumer
        if holder is None or offset not in holder.pending:
            holder = self.holder_of(offset)
            if holder is None:
                return
        freed = self._free(holder, offset, still_open)
        if consumer is not None:
            consumer.messages_acked += freed
        if not still_open:
            self._not_sent(offset)
            self._released(offset)

    def _free(self, holder: Consumer, offset: int, still_open: int = 0) -> int:
        """Remove acknowledged messages of an entry from its holder; return their number."""
        was_blocked = holder.blocked
        freed = holder.settle(offset, still_open)
        self.unacked_messages -= freed
        if was_blocked and not holder.blocked:
            self.flowed(holder)
        return freed

    def holder_of(self, offset: int) -> Consumer | None:
        """Return the consumer that holds an entry, if any."""
        if self._holders is None:
            self._holders = {at: consumer for consumer in self.consumers for at in consumer.pending}
        holder = self._holders.get(offset)
        # One that has left is listed until its entries are given back.
        return holder if holder is not None and offset in holder.pending else None

    def _track(self, consumer: Consumer, offsets: Sequence[int], messages: int) -> None:
        """Record entries of ``messages`` each that were sent to a consumer."""
        consumer.track(offsets, messages)
        if self._holders is not None:
            self._holders.update(dict.fromkeys(offsets, consumer))

    def acknowledged(self) -> None:
        self._check_unblocked()
        self.dispatch()

    def skipped_below(self, offset: int) -> None:
        while self._returning:
            self._return_some(RETURNED_AT_ONCE_MAX)
        for consumer in self.consumers:
            for at in [at for at in consumer.pending if at < offset]:
                self._free(consumer, at)
                self._not_sent(at)
                self._released(at)
        for at in [at for at in self._redeliveries if at < offset]:
            del self._redeliveries[at]
        self._delayed.skip_below(offset)
        if self._replaying:
            self._replaying = {at for at in self._replaying if at >= offset}
            self._replay = [at for at in self._replay if at >= offset]
            heapq.heapify(self._replay)
        self.read_offset = max(self.read_offset, offset)
        self._check_unblocked()

    def _check_unblocked(self) -> None:
        if self.blocked and self.unacked_messages <= self._unacked_limit // 2:
            self.blocked = False

    def limits_changed(self) -> None:
        """Apply changed limits of unacknowledged messages."""
        self.blocked = 0 < self._unacked_limit <= self.unacked_messages
        for consumer in self.consumers:
            if consumer.permits > 0:
                self.flowed(consumer)
        self.dispatch_soon()

    @property
    def _unacked_limit(self) -> int:
        return self.topic.policies.unacked_messages_per_subscription_max

    # --- sending ---
    def dispatch(self) -> None:
        left = RETURNED_AT_ONCE_MAX
        while self._returning and left > 0:
            left -= 1 + self._return_some(left)
        if self._returning:
            # Nothing is sent before older entries of the same keys are queued.
            self._continue_in(0.0)
        else:
            super().dispatch()

    def _dispatch(self) -> None:
        while not self._exhausted:
            if not self._replaying:
                self._resume_chunks()
            consumer = self._next_in_line()
            if consumer is None:
                return
            before = consumer.messages_out
            queued = len(self._replaying)
            if self._delayed.due and queued <= DUE_QUEUED_MAX // 2:
                self._give_back(take_lowest(self._delayed.due, DUE_QUEUED_MAX - queued))
            offsets = self._next_replays(min(ENTRIES_PER_TURN_MAX, consumer.entries_wanted))
            if offsets:
                if not self._send_replays(consumer, offsets):
                    return
            elif not self._send_new(consumer):
                return
            if consumer.messages_out != before:
                self._ready.move_to_end(consumer)

    def _next_in_line(self) -> Consumer | None:
        """Return the first queued consumer of the best priority that can take entries."""
        return None if self.blocked else self._ready.first()

    def _next_replays(self, count: int) -> list[int]:
        """Return the lowest offsets that wait for redelivery and are still open."""
        found: list[int] = []
        replay = self._replay
        while replay and len(found) < count:
            offset = heapq.heappop(replay)
            self._replaying.discard(offset)
            if not self.cursor.is_acknowledged(offset):
                found.append(offset)
        return found

    def _send_replays(self, consumer: Consumer, offsets: list[int]) -> bool:
        """Redeliver entries; False if nothing more can be read now."""
        at = 0
        try:
            while at < len(offsets):
                run = 1
                while at + run < len(offsets) and offsets[at + run] == offsets[at] + run:
                    run += 1
                offset, found = self._read(offsets[at], run)
                if not found or offset != offsets[at]:
                    # Unreadable now (kept for later), or trimmed.
                    if self._waits:
                        return False
                    at += 1
                    continue
                for entry in found:
                    if not consumer.ready or self.blocked:
                        return True
                    head = head_of(entry)
                    if not self._delay(offset, head):
                        self._send_or_hold(consumer, offset, entry, head)
                    offset, at = offset + 1, at + 1
            return True
        finally:
            # Also when sending fails: entries taken from the queue and not sent are queued again.
            self._give_back(offset for offset in offsets[at:] if offset not in consumer.pending)

    def _send_new(self, consumer: Consumer) -> bool:
        """Send new entries; False if there are no more."""
        turn = ENTRIES_PER_TURN_MAX if len(self.consumers) > 1 else ENTRIES_PER_READ_MAX
        offset, found = self._read_new(min(turn, consumer.entries_wanted))
        if count := self._send_new_run(consumer, offset, found):
            self._entries_left -= count
            return True
        for entry in found:
            if not consumer.ready or self.blocked:
                return True
            if offset in self._replaying or offset in self._delayed:
                self.read_offset = offset = offset + 1
                continue
            head = head_of(entry)
            if not self._delay(offset, head):
                self._send_or_hold(consumer, offset, entry, head)
            self.read_offset = offset = offset + 1
        return bool(found)

    def _read_new(self, entries_max: int) -> tuple[int, list[bytes]]:
        """Read new entries from the read position on, and move it to the first of them."""
        delayed = self._delayed
        while True:
            start, count = self.read_offset, entries_max
            if delayed.is_active:
                start = delayed.unknown_from(start, self.cursor)
                count = delayed.known.next_present(start, start + count) - start
            self.read_offset, found = self._read(start, count)
            if not found or self.read_offset == start or not delayed.known:
                return self.read_offset, found
            # There was a gap, and entries behind it may be known.

    def _send_new_run(self, consumer: Consumer, offset: int, found: list[bytes]) -> int:
        """Send new entries with one write; return their number: 0 if they are to be sent one by one."""
        if self._replaying or self._delayed.is_active or self._redeliveries or self._sent_at is not None:
            return 0
        if any(map(may_be_delayed_or_chunk, found)):
            return 0
        count_max, limit = min(consumer.permits, consumer.unacked_left), self._unacked_limit
        if limit:
            count_max = min(count_max, limit - self.unacked_messages)
        count = self._send_run(consumer, offset, found, count_max)
        if count:
            self._track(consumer, range(offset, offset + count), 1)
            self._sent(consumer, count)
        return count

    def _sent(self, consumer: Consumer, messages: int) -> None:
        self.subscription.last_consumed_ms = self.scheduler.now_ms
        consumer.delivered(self.scheduler.now_ms)
        self.unacked_messages += messages
        if 0 < self._unacked_limit <= self.unacked_messages:
            self.blocked = True

    def _send_or_hold(self, consumer: Consumer, offset: int, entry: bytes, head: EntryHead | None) -> None:
        """Send an entry; a chunk goes to the consumer of the message's other chunks, once that is ready."""
        if head is not None and head.num_chunks > 1:
            first, newest = self._assembling.get(head.uuid, (consumer, -1))
            if offset > newest:
                # Also a first chunk: the producer sent the message again, perhaps before it was complete.
                consumer = first
            elif first is not consumer:
                self._give_back(self._waiting_chunks.pop(first, ()))
            waiting = self._waiting_chunks.get(consumer)
            if not consumer.ready or (waiting and waiting[0] < offset):
                heapq.heappush(self._waiting_chunks.setdefault(consumer, []), offset)
                self._entries_left -= 1
                self._unsent += 1
                return
            self._assembling[head.uuid] = consumer, offset
            if head.chunk_id == head.num_chunks - 1:
                del self._assembling[head.uuid]
            elif len(self._assembling) > ASSEMBLING_MAX:
                del self._assembling[next(iter(self._assembling))]
        self._send(consumer, offset, entry, count_of(head))

    def _resume_chunks(self) -> None:
        """Queue chunks that wait for a consumer for redelivery, as many as it can take now."""
        for consumer in [each for each in self._waiting_chunks if each.ready]:
            waiting = self._waiting_chunks[consumer]
            count = min(len(waiting), consumer.entries_wanted)
            self._give_back([heapq.heappop(waiting) for _ in range(count)])
            if not waiting:
                del self._waiting_chunks[consumer]

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
        self._track(consumer, (offset,), messages)
        if self._sent_at is not None:
            self._sent_at[offset] = self.scheduler.now
        self._sent(consumer, messages)

    # --- redelivery of unacknowledged messages ---
    def note_deliveries(self, seconds: float) -> None:
        if seconds <= 0:
            self._sent_at = None
        elif self._sent_at is None:
            now = self.scheduler.now
            self._sent_at = {offset: now for consumer in self.consumers for offset in consumer.pending}

    def _not_sent(self, offset: int) -> None:
        if self._sent_at:
            self._sent_at.pop(offset, None)

    def push_again(self, delivered_before: float, messages_max: int, too_old: TooOld) -> RedeliveryRound:
        pushed = RedeliveryRound()
        if not self._sent_at or not any(each.permits > 0 and each.output.writable for each in self.consumers):
            return pushed
        again: dict[Consumer, list[int]] = {}
        left: list[int] = []
        # In the order of the deliveries: redelivered entries move to the end.
        for offset, sent_at in self._sent_at.items():
            if sent_at > delivered_before:
                break
            holder = self.holder_of(offset)
            if holder is None:
                continue
            if too_old(offset):
                left.append(offset)
                continue
            messages = holder.pending[offset]
            if pushed.messages and pushed.messages + messages > messages_max:
                break
            pushed.messages += messages
            again.setdefault(holder, []).append(offset)
        for offset in left:
            del self._sent_at[offset]
        pushed.given_up = len(left)
        for consumer, offsets in again.items():
            self.redeliver(consumer, offsets)
        return pushed

    # --- delayed delivery ---
    def _delay(self, offset: int, head: EntryHead | None) -> bool:
        """Return whether an entry is not due; it is then kept until it is, and never sent early."""
        if head is None or not head.deliver_at_time:
            return False
        if head.deliver_at_time <= self.scheduler.now_ms or not self.topic.policies.delayed_delivery:
            if self._delayed.is_active:
                self._delayed.discard((offset,))  # its timer may be late: it is not sent again then
            return False
        self._delayed.add(offset, head.deliver_at_time)
        self._entries_left -= 1
        self._unsent += 1
        return True

    def _delays_due(self) -> None:
        """Send delayed entries that are due, after those of the topic's other subscriptions became due."""
        self._continue_in(0.0)
