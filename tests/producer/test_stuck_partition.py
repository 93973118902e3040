"""One of eight partitions answers no more: what unkeyed publishing loses by it, in virtual time.

The application offers messages at a fixed rate, as a thread does that is busy making them, and stands
still whenever it is refused (``block_if_queue_full``). Receipts come 5 ms after each entry, except from the
stuck partition. Beside our way runs the official clients': ``step_over_blocked_partitions=False``, where a
message waits for the partition whose turn it is.
"""

import heapq
import itertools
from functools import cache
from typing import Any

import pytest
from producing import connect, producer_of, settings_of

from geminga.errors import MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.partition import PartitionProducer
from geminga.producer.pending_limits import ByteBudget
from geminga.wire.frames import FrameDecoder

PARTITIONS = 8
STUCK = 3
RECEIPT_SECONDS = 0.005
TICK_SECONDS = 0.001
PAYLOAD = bytes(100)


class World:
    """A producer, its brokers, and an application that offers ``rate`` messages a virtual second."""

    def __init__(self, *, rate: int, memory: int = 0, **settings: Any) -> None:
        self.settings = settings_of(**settings)
        self.memory = ByteBudget(memory)
        self.producer = producer_of(PARTITIONS, self.settings, memory=self.memory)
        self.now = 0.0
        self.per_tick = round(rate * TICK_SECONDS)
        self.receipts: list[tuple[float, int, PartitionProducer, Any]] = []
        self.withheld: list[tuple[PartitionProducer, Any]] = []
        self.stuck = False
        self.handed_over = self.published = self.failed = 0
        self.most_pending = self.most_pending_stuck = self.most_bytes = 0
        self._order = itertools.count()
        self._numbers: dict[PartitionProducer, int] = dict.fromkeys(self.producer.partitions, 0)
        self._receipted: dict[PartitionProducer, int] = dict.fromkeys(self.producer.partitions, 0)
        self._waits_for: PartitionProducer | None = None
        for partition in self.producer.partitions:
            self.connect(partition)

    def connect(self, partition: PartitionProducer) -> None:
        connect(partition, now=self.now)
        self._numbers[partition] = self._receipted[partition]  # messages without a receipt are resent

    def disconnect(self, partition: PartitionProducer) -> None:
        """The connection is lost, and with it the receipts on their way."""
        partition.disconnected(None)
        self.receipts = [receipt for receipt in self.receipts if receipt[2] is not partition]
        heapq.heapify(self.receipts)

    @property
    def stuck_partition(self) -> PartitionProducer:
        return self.producer.partitions[STUCK]

    # --- the brokers ---
    def write(self, partition: PartitionProducer) -> None:
        """Frames arrive at once; their receipts come later, or not."""
        data = b"".join(bytes(piece) for piece in partition.take_output(self.now, 1_700_000_000_000))
        for send in FrameDecoder(1 << 26).feed(data):
            assert send.sequence_id == self._numbers[partition], "lost, repeated, or out of order"
            self._numbers[partition] = max(send.sequence_id, send.highest_sequence_id) + 1
            if self.stuck and partition is self.stuck_partition:
                self.withheld.append((partition, send))
            else:
                at = self.now + RECEIPT_SECONDS
                heapq.heappush(self.receipts, (at, next(self._order), partition, send))

    def answer_until(self, until: float) -> None:
        while self.receipts and self.receipts[0][0] <= until:
            self.now, entry_id, partition, send = heapq.heappop(self.receipts)
            self._receipted[partition] = max(send.sequence_id, send.highest_sequence_id) + 1
            partition.receipt(send.sequence_id, send.highest_sequence_id, 1, entry_id, self.now)
            self.run()
        self.now = until

    # --- the shell ---
    def run(self) -> None:
        ready_set = self.producer.ready_set
        self.producer.tick(self.now)
        while ready_set.writable:
            for partition in list(ready_set.writable):
                if partition.connected:
                    self.write(partition)
                else:
                    del ready_set.writable[partition]
        for operation in ready_set.take_settled():
            if operation.error is None:
                self.published += operation.count
            else:
                self.failed += operation.count

    def send(self) -> bool:
        """One message; False when the application has to wait."""
        producer = self.producer
        if not producer.add_many([PAYLOAD], [None], None, 0, self.now):
            partition = self._waits_for or producer.choose(None, self.now)
            try:
                producer.add(PAYLOAD, None, None, self.now, partition=partition)
            except (ProducerQueueIsFull, MemoryBufferIsFull):
                producer.close_batches()
                if not self.settings.step_over_blocked_partitions:
                    self._waits_for = partition
                return False
            self._waits_for = None
        self.handed_over += 1
        return True

    # --- time ---
    def play(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            for _ in range(self.per_tick):
                if not self.send():
                    break
            self.run()
            self.answer_until(self.now + TICK_SECONDS)
            self.run()
            self.most_pending = max(self.most_pending, self.producer.pending_messages)
            self.most_pending_stuck = max(self.most_pending_stuck, self.stuck_partition.pending.messages)
            self.most_bytes = max(self.most_bytes, self.memory.used)

    def finish(self) -> None:
        """The stuck partition answers again; everything comes to rest."""
        self.stuck = False
        if not self.stuck_partition.connected:
            self.connect(self.stuck_partition)
        for partition, send in self.withheld:
            heapq.heappush(self.receipts, (self.now + RECEIPT_SECONDS, next(self._order), partition, send))
        self.producer.close_batches()
        self.run()
        self.answer_until(self.now + 1.0)


def measure(stuck: str | None, *, seconds: float = 2.0, **settings: Any) -> World:
    """A run with half a healthy second first, then ``seconds`` that count."""
    world = World(**settings)
    world.play(0.5)
    world.published = world.handed_over = 0
    if stuck == "receipts withheld":
        world.stuck = True
    elif stuck == "connection lost":
        world.disconnect(world.stuck_partition)
    world.play(seconds)
    return world


RUNS: dict[str, dict[str, Any]] = {
    "batched": {"rate": 20_000},
    "batched, permits scarce": {"rate": 20_000, "max_pending_messages": 200},
    "batched, bytes only": {"rate": 20_000, "max_pending_messages": 0, "memory": 1 << 20, "seconds": 5.0},
    "unbatched": {"rate": 4_000, "batching_enabled": False, "max_pending_messages": 300},
}


@cache
def healthy_run(run: str) -> World:
    return measure(None, **RUNS[run])


@pytest.mark.rotating(2)
@pytest.mark.parametrize("stuck", ["receipts withheld", "connection lost"])
@pytest.mark.parametrize("run", RUNS)
def test_unkeyed_publishing_goes_round_a_stuck_partition(run, stuck):
    settings = RUNS[run]
    seconds = settings.get("seconds", 2.0)
    healthy = healthy_run(run)
    ours = measure(stuck, **settings)
    stock = measure(stuck, step_over_blocked_partitions=False, **settings)

    assert healthy.published >= 0.99 * settings["rate"] * seconds
    assert ours.published >= 0.95 * healthy.published
    assert ours.handed_over == healthy.handed_over, "the application was held up"
    # The missing messages wait in the stuck partition, and their number is limited.
    missing = healthy.published - ours.published
    held = ours.stuck_partition.pending.messages
    in_flight = 2 * round(settings["rate"] * 0.02)  # open batches and entries on their way, in both runs
    assert missing <= held + in_flight
    permits = settings.get("max_pending_messages", 1000) or settings["rate"] // 2
    assert ours.most_pending_stuck <= permits
    assert ours.most_pending <= permits + in_flight
    assert ours.most_bytes <= settings.get("memory", 0)
    # The official clients' way stands still as soon as the stuck partition's permits are used up.
    assert stock.published < 0.5 * healthy.published

    for world in (ours, stock):
        world.finish()
        assert world.failed == 0
        assert world.producer.pending_messages == 0
        assert world.memory.used == 0
        statistics = world.producer.statistics()
        assert statistics.acknowledged_messages == statistics.sent_messages
    counted = ours.producer.statistics()
    assert counted.stepped_over > 0
    assert stock.producer.statistics().stepped_over == 0


def test_the_partition_is_used_again_when_it_answers():
    world = measure("receipts withheld", seconds=3.0, rate=20_000)
    before = world.stuck_partition.counters.sent_messages
    world.finish()
    world.play(2.0)
    share = world.stuck_partition.counters.sent_messages - before
    assert share >= 0.5 * 2.0 * 20_000 / PARTITIONS
