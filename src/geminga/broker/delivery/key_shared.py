"""Key_Shared: all entries of a key go to one consumer, in order.

A key's slot is assigned to a consumer (`selectors`). A slot is bound to the consumer that holds
unacknowledged entries of it: when slots move to another consumer, entries of a bound slot wait (they are
*suspended*) until those are acknowledged or their consumer leaves. Entries whose consumer cannot take more
now are queued for it, so that a consumer without permits does not block the others.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from geminga.broker.delivery.consumer import Consumer
from geminga.broker.delivery.dispatcher import ENTRIES_PER_READ_MAX, DispatchedSubscription
from geminga.broker.delivery.ranges import take_lowest
from geminga.broker.delivery.selectors import (
    ConsistentHashSelector,
    Range,
    Selector,
    StickySelector,
    slots_in,
)
from geminga.broker.delivery.shared import ENTRIES_PER_TURN_MAX, SharedDispatcher
from geminga.broker.entries.entry_facts import count_of, head_of, sticky_key
from geminga.broker.runtime.refusal import Refused
from geminga.wire.hashing import SLOTS
from geminga.wire.metadata import EntryHead
from geminga.wire.proto import pulsar_wire_pb2 as pb

LOOK_AHEAD_PER_CONSUMER_MAX = 2_000
LOOK_AHEAD_MAX = 20_000
"""New entries are not read while this many wait for a consumer or a slot."""
DUE_AHEAD_MAX = 2 * LOOK_AHEAD_MAX
"""Due delayed entries are read until this many wait: those of other keys pass a full look-ahead."""


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """Entries of a slot that wait until ``holder`` has acknowledged its entries of that slot."""

    slot: int
    holder: Consumer
    held: int
    waiting: int
    first_waiting: int


class KeySharedDispatcher(SharedDispatcher):
    """Dispatcher of Key_Shared. ``policy`` is the first consumer's; all consumers must have the same mode."""

    def __init__(self, subscription: DispatchedSubscription, policy: pb.KeySharedMeta) -> None:
        super().__init__(subscription)
        self.mode = policy.keySharedMode
        self.out_of_order = policy.allowOutOfOrderDelivery
        self.selector: Selector
        if self.mode == pb.STICKY:
            self.selector = StickySelector()
        else:
            self.selector = ConsistentHashSelector()
        self._queues: dict[Consumer, list[int]] = {}
        self._sendable: OrderedDict[Consumer, None] = OrderedDict()
        """Consumers with queued entries that may be ready; dropped and added as in `ReadyConsumers`."""
        self._unowned: list[int] = []
        self.ahead: set[int] = set()
        """Read entries that wait for their first delivery."""
        self._reopened: list[int] = []
        """Entries to be redelivered that are still to be read for their keys, in order."""
        self._suspended: dict[int, list[int]] = {}
        self._slots: dict[int, int] = {}
        self._bound: dict[int, tuple[Consumer, int]] = {}
        self._incomplete: dict[int, set[str]] = {}
        """Chunked messages, by slot and uuid, whose first chunks the slot's holder has."""

    # --- questions for stats ---
    @property
    def draining_slots(self) -> int:
        """Slots whose entries wait for another consumer's acknowledgements."""
        return len(self._suspended)

    @property
    def unowned_size(self) -> int:
        """Entries whose slots are not assigned to a consumer."""
        return len(self._unowned)

    @property
    def look_ahead_full(self) -> bool:
        """Whether reading new entries is suspended because too many wait for a consumer or a slot."""
        limit = min(LOOK_AHEAD_MAX, LOOK_AHEAD_PER_CONSUMER_MAX * len(self.consumers))
        return len(self._replaying) >= limit

    def queued_for(self, consumer: Consumer) -> int:
        """Return the number of read entries that wait for the consumer."""
        return len(self._queues[consumer])

    def blocked_keys(self, count_max: int) -> list[BlockedKey]:
        """Return the slots whose entries have waited longest, and the consumers that they wait for."""
        oldest = heapq.nsmallest(
            count_max, ((min(waiting), slot) for slot, waiting in self._suspended.items())
        )
        found = []
        for first, slot in oldest:
            bound = self._bound.get(slot)
            if bound is not None:
                found.append(BlockedKey(slot, bound[0], bound[1], len(self._suspended[slot]), first))
        return found

    # --- membership ---
    def add(self, consumer: Consumer) -> None:
        policy = consumer.key_shared or pb.KeySharedMeta()
        if self.consumers and policy.keySharedMode != self.mode:
            raise Refused(
                pb.ConsumerBusy,
                "The subscription's consumers use another Key_Shared mode (AUTO_SPLIT or STICKY)",
            )
        ranges: list[Range] = [(each.start, each.end) for each in policy.hashRanges]
        try:
            self.selector.add(consumer, ranges)
        except Refused:
            if not self.consumers:
                self.close()  # it was made for this consumer
            raise
        self._queues[consumer] = []
        super().add(consumer)
        if self._replaying:
            self._route_moved(consumer)

    def flowed(self, consumer: Consumer) -> None:
        super().flowed(consumer)
        if self._queues.get(consumer):
            self._sendable[consumer] = None

    def remove(self, consumer: Consumer) -> None:
        moving = slots_in(self.selector.ranges_of(consumer), self._suspended) if self._suspended else ()
        self.selector.remove(consumer)
        self._sendable.pop(consumer, None)
        waiting = self._queues.pop(consumer, [])
        try:
            super().remove(consumer)
        finally:
            self._route_all(waiting)
        for slot in moving:
            bound = self._bound.get(slot)
            # The slot may have returned to the consumer that its entries wait for.
            if slot in self._suspended and (bound is None or self._owner(slot) in (None, bound[0])):
                self._route_all(self._suspended.pop(slot))

    def _route_moved(self, newcomer: Consumer) -> None:
        """Move queued entries whose slots have a new owner to the owner's queue."""
        moved, self._unowned = self._unowned, []
        # Each range of the newcomer was the lower part of the range that follows.
        ends = {high + 1 if high + 1 < SLOTS else 1 for _, high in self.selector.ranges_of(newcomer)}
        for owner in {self.selector.select(slot) for slot in ends}:
            if owner is None or owner is newcomer:
                continue
            queue = self._queues[owner]
            gone = [at for at in queue if self._owner(self._slots[at]) is not owner]
            if gone:
                moved += gone
                queue[:] = sorted(set(queue).difference(gone))
        self._route_all(moved)

    def _route_all(self, offsets: list[int]) -> None:
        for offset in sorted(offsets):
            self._route(offset, self._slots[offset])

    # --- waiting entries ---
    def _give_back(self, offsets: Iterable[int]) -> None:
        for offset in sorted(offsets):
            slot = self._slots.get(offset)  # None: it was acknowledged or skipped meanwhile
            if slot is not None and offset not in self._replaying:
                self._replaying.add(offset)
                self._route(offset, slot)

    def redeliver(self, consumer: Consumer | None, offsets: Iterable[int]) -> None:
        if consumer is None:
            read = list(filter(self.was_read, offsets))
            self._reopened = sorted({*self._reopened, *(at for at in read if at not in self._slots)})
            offsets = [at for at in read if at in self._slots]
        super().redeliver(consumer, offsets)

    def _read_reopened(self) -> None:
        while self._reopened:
            expected = self._reopened[0]
            offset, found = self._read(expected, 1)
            if self._waits:
                return
            del self._reopened[0]
            head = head_of(found[0]) if found and offset == expected else None
            if found and offset == expected and not self._delay(offset, head):
                slot = self._slots[offset] = self.selector.slot(sticky_key(head))
                self._replaying.add(offset)
                self._route(offset, slot)
                self._entries_left -= 1
                self._unsent += 1

    def _read_due(self) -> bool:
        """Read due entries for their keys; False if no delayed entry is due, or enough are waiting."""
        if self._reopened or len(self._replaying) >= DUE_AHEAD_MAX:
            return False
        self._reopened = take_lowest(self._delayed.due, ENTRIES_PER_READ_MAX)
        is_any = bool(self._reopened)
        self._read_reopened()
        return is_any and not self._reopened

    def _route(self, offset: int, slot: int) -> None:
        """Queue a waiting entry for its consumer, its slot or a new owner."""
        owner = self._owner(slot)
        if owner is None:
            self._unowned.append(offset)
        elif self._must_wait(owner, slot):
            self._suspended.setdefault(slot, []).append(offset)
        else:
            heapq.heappush(self._queues[owner], offset)
            if owner.ready:
                self._sendable[owner] = None

    def _owner(self, slot: int) -> Consumer | None:
        """Return the consumer of a slot: that with the first chunks of a message until it has all of them."""
        holder = self._bound[slot][0] if slot in self._incomplete else None
        return holder if holder in self._queues else self.selector.select(slot)

    def _must_wait(self, owner: Consumer, slot: int) -> bool:
        if self.out_of_order:
            return False
        bound = self._bound.get(slot)
        return slot in self._suspended or (bound is not None and bound[0] is not owner)

    def _released(self, offset: int) -> None:
        super()._released(offset)
        slot = self._slots.get(offset)
        bound = self._bound.get(slot) if slot is not None else None
        if slot is None or bound is None:
            return
        if self.cursor.is_acknowledged(offset):
            del self._slots[offset]
        if bound[1] > 1:
            self._bound[slot] = (bound[0], bound[1] - 1)
            return
        del self._bound[slot]
        self._incomplete.pop(slot, None)
        parked = self._suspended.pop(slot, None)
        if parked:
            for waiting in sorted(parked):
                self._route(waiting, slot)

    def skipped_below(self, offset: int) -> None:
        # Releasing an entry without a slot is cheap: it unblocks no other entry.
        self._slots = {at: slot for at, slot in self._slots.items() if at >= offset}
        super().skipped_below(offset)
        held = Counter(self._slots[at] for consumer in self.consumers for at in consumer.pending)
        self._bound = {slot: (self._bound[slot][0], count) for slot, count in held.items()}
        self._incomplete = {slot: each for slot, each in self._incomplete.items() if slot in held}
        for queue in self._queues.values():
            queue[:] = [at for at in queue if at >= offset]
            heapq.heapify(queue)
        self._unowned = [at for at in self._unowned if at >= offset]
        self.ahead = {at for at in self.ahead if at >= offset}
        suspended, self._suspended = self._suspended, {}
        for slot, parked in suspended.items():
            left = [at for at in parked if at >= offset]
            if slot not in held:
                self._route_all(left)
            elif left:
                self._suspended[slot] = left

    # --- sending ---
    def _dispatch(self) -> None:
        if self._reopened:
            self._read_reopened()
        progress = True
        while progress and not self.blocked and not self._exhausted:
            progress = False
            for consumer in list(self._sendable):
                if self._exhausted:
                    break
                if consumer.ready:
                    progress = self._send_queued(consumer) or progress
                if consumer.ready and self._queues[consumer]:
                    self._sendable.move_to_end(consumer)
                else:
                    self._sendable.pop(consumer, None)
            if self._retry is None and self._next_in_line() is not None:
                # New entries follow the due ones: those of a key keep their order.
                if self._delayed.due or self._reopened:
                    progress = self._read_due() or progress
                else:
                    progress = self._read_ahead() or progress

    def _send_queued(self, consumer: Consumer) -> bool:
        """Send the entries queued for a consumer; False if no entry left its queue."""
        queue = self._queues[consumer]
        moved = False
        for _ in range(ENTRIES_PER_TURN_MAX):
            if not queue or not consumer.ready or self.blocked:
                break
            expected = queue[0]
            is_open = not self.cursor.is_acknowledged(expected)
            offset, found = self._read(expected, 1) if is_open else (-1, [])
            if is_open and self._waits:
                break
            moved = True
            if not found or offset != expected:
                # Acknowledged meanwhile, or trimmed: further entries may follow any number of these.
                self._dequeue(queue)
                self._slots.pop(expected, None)
                self._entries_left -= 1
                continue
            entry = found[0]
            head = head_of(entry)
            slot = self._slots[expected]
            if self._must_wait(consumer, slot):
                heapq.heappop(queue)
                self._suspended.setdefault(slot, []).append(expected)
                self._entries_left -= 1
                continue
            if self._delay(expected, head):
                del self._slots[expected]  # found again when it is due
            else:
                self._send_bound(consumer, expected, slot, entry, head)
            # Only now: had sending failed, it would still be in the line.
            self._dequeue(queue)
        return moved

    def _dequeue(self, queue: list[int]) -> None:
        offset = heapq.heappop(queue)
        self._replaying.discard(offset)
        self.ahead.discard(offset)

    def _read_ahead(self) -> bool:
        """Read new entries and send or queue each; False if there are no more or enough are waiting."""
        if self.look_ahead_full:
            return False
        offset, found = self._read_new(ENTRIES_PER_TURN_MAX)
        for entry in found:
            head = head_of(entry)
            if not self._delay(offset, head):
                slot = self._slots[offset] = self.selector.slot(sticky_key(head))
                owner = self._owner(slot)
                if (
                    owner is not None
                    and owner.ready
                    and not self.blocked
                    and not self._queues[owner]
                    and not self._must_wait(owner, slot)
                ):
                    self._send_bound(owner, offset, slot, entry, head)
                else:
                    self._replaying.add(offset)
                    self.ahead.add(offset)
                    self._route(offset, slot)
                    self._entries_left -= 1
                    self._unsent += 1
            offset += 1
            self.read_offset = offset
        return bool(found)

    def _send_bound(
        self, consumer: Consumer, offset: int, slot: int, entry: bytes, head: EntryHead | None
    ) -> None:
        self._send(consumer, offset, entry, count_of(head))
        bound = self._bound.get(slot)
        self._bound[slot] = (consumer, bound[1] + 1 if bound is not None else 1)
        if head is not None and head.num_chunks > 1:
            messages = self._incomplete.setdefault(slot, set())
            messages.add(head.uuid)
            if head.chunk_id == head.num_chunks - 1:
                messages.discard(head.uuid)
            if not messages:
                del self._incomplete[slot]
