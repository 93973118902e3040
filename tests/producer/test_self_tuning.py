"""Producers that tune themselves: the solution from receipts, its bounds, and what the core makes of it."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from producing import connect, producer_of, settings_of

from geminga.errors import InvalidConfiguration, MemoryBufferIsFull, ProducerQueueIsFull
from geminga.producer.batching import MARK_FACTOR, BatchTiming
from geminga.producer.message import simple_message
from geminga.producer.pending_limits import UNLIMITED, ByteBudget
from geminga.producer.self_tuning import JOINS_MEMORY, PartitionTuning, SelfTuning
from geminga.producer.settings import BatchingType, ProducerSettings
from geminga.wire.frames import FrameDecoder, SendFrame

BUDGET = 0.05


def run(
    tuning: SelfTuning,
    overhead: float,
    *,
    now: float = 0.0,
    batches: int = 400,
    count: int = 500,
    fill: float = 1.0,
) -> float:
    """Batches one after the other, each with its receipt ``overhead`` after it closes; the time after them.

    Their messages come evenly within the first ``fill`` part of the delay.
    """
    for _ in range(batches):
        tuned = BatchTiming(now, tuning.delay_seconds)
        span = tuned.delay_seconds * fill
        number = MARK_FACTOR
        while number <= count:
            tuned.mark(number, now + span * number / count)
            number *= MARK_FACTOR
        tuning.receipted(tuned, tuned.deadline, count, count * 100, tuned.deadline + overhead)
        now = tuned.deadline + overhead
    return now


@pytest.mark.parametrize("overhead", [0.001, 0.005, 0.02, 0.04])
def test_a_steady_stream_uses_what_the_overhead_leaves_of_the_budget(overhead):
    tuning = SelfTuning(BUDGET, UNLIMITED)
    run(tuning, overhead)
    # Hardly any message waits for the whole delay: a little more than the rest of the budget is right.
    assert 0.96 * (BUDGET - overhead) - 0.001 <= tuning.delay_seconds <= 1.02 * (BUDGET - overhead)


def test_when_messages_come_at_the_start_of_a_batch_all_of_them_count():
    steady, burst = SelfTuning(BUDGET, UNLIMITED), SelfTuning(BUDGET, UNLIMITED)
    for tuning, fill in ((steady, 1.0), (burst, 0.01)):
        now = run(tuning, 0.002, fill=fill)
        # One receipt in fifty is late: harmless where waits are spread evenly, not where all are long.
        for _ in range(10):
            now = run(tuning, 0.002, fill=fill, now=now, batches=49)
            now = run(tuning, 0.012, fill=fill, now=now, batches=1)
    assert steady.delay_seconds > 0.9 * BUDGET
    assert burst.delay_seconds <= BUDGET - 0.0115


def test_the_delay_falls_at_once_and_rises_again_within_1500_batches():
    tuning = SelfTuning(BUDGET, UNLIMITED)
    now = run(tuning, 0.002)
    fast = tuning.delay_seconds
    worse = run(tuning, 0.03, now=now, batches=10)
    assert tuning.delay_seconds < 0.025
    run(tuning, 0.002, now=worse, batches=1500)
    assert tuning.delay_seconds > 0.95 * fast


def test_measurements_from_before_an_idle_time_lose_weight():
    tuning = SelfTuning(BUDGET, UNLIMITED)
    now = run(tuning, 0.03)
    assert tuning.delay_seconds < 0.025
    run(tuning, 0.002, now=now + 600.0, batches=30)
    assert tuning.delay_seconds > 0.9 * (BUDGET - 0.002)


def test_overheads_beyond_the_budget_do_not_shorten_the_delay():
    tuning = SelfTuning(BUDGET, UNLIMITED)
    now = 0.0
    for _ in range(100):
        now = run(tuning, 0.002, now=now, batches=7)
        now = run(tuning, 2.0, now=now, batches=1)  # one of eight partitions hangs
    assert tuning.delay_seconds > 0.9 * BUDGET
    overloaded = SelfTuning(BUDGET, UNLIMITED)
    run(overloaded, 0.2)
    assert overloaded.delay_seconds == pytest.approx(BUDGET, rel=0.01), "crumbs for a broker that is late"


def test_open_batches_and_what_is_in_flight_take_half_of_the_memory_limit():
    tuning = SelfTuning(BUDGET, 1_000_000)
    run(tuning, 0.005, count=10_000)  # 1 MB a batch
    bytes_per_second = 1_000_000 / (tuning.delay_seconds + 0.005)
    assert tuning.delay_seconds < 0.1 * BUDGET
    assert tuning.bytes_max == 250_000
    assert bytes_per_second > 0


operations = st.lists(
    st.tuples(
        st.floats(0.0, 100.0),  # since the last one
        st.floats(0.0, 5.0),  # overhead
        st.integers(1, 5000),
        st.floats(0.0, 1.0),
    ),
    max_size=60,
)


@given(st.floats(0.002, 60.0), st.integers(1, 1 << 40), operations)
def test_the_delay_stays_within_the_budget_and_is_deterministic_for_any_calls(budget, memory, calls):
    tuning, twin = SelfTuning(budget, memory), SelfTuning(budget, memory)
    for one in (tuning, twin):
        now = 0.0
        for elapsed, overhead, count, fill in calls:
            now += elapsed
            tuned = BatchTiming(now, one.delay_seconds)
            if count > MARK_FACTOR:
                tuned.mark(MARK_FACTOR, now + fill * one.delay_seconds)
            one.receipted(tuned, tuned.deadline, count, count * 10, tuned.deadline + overhead)
            assert 0.0 < one.delay_seconds <= budget
            assert 1 <= one.bytes_max <= max(1, memory // 4)
    assert tuning.delay_seconds == twin.delay_seconds


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.floats(0.001, 10.0), st.booleans())
def test_a_batch_never_gets_more_messages_than_permits(permits, count, seconds, more_follow):
    tuning = PartitionTuning(SelfTuning(BUDGET, UNLIMITED))
    tuning.opened(0.0, permits, keyed=False, more_follow=more_follow)
    assert 1 <= tuning.messages_max <= permits
    if more_follow:
        assert tuning.messages_max >= permits // 2


# --- through the core ---
class World:
    """A producer that tunes itself; receipts come ``round_trip`` after each entry."""

    def __init__(
        self, partitions: int = 4, *, memory: int = 0, round_trip: float = 0.004, **settings: Any
    ) -> None:
        self.memory = ByteBudget(memory)
        tuned = settings_of(latency_budget_seconds=BUDGET, **settings)
        self.producer = producer_of(partitions, tuned, memory=self.memory)
        self.now = 0.0
        self.round_trip = round_trip
        self.receipts: list[tuple[float, Any, Any]] = []
        self.latencies: list[float] = []
        self.fills: list[int] = []
        self.refused = 0
        connect(*self.producer.partitions)

    @property
    def tuning(self) -> SelfTuning:
        assert self.producer.tuning is not None
        return self.producer.tuning

    def send(self, payload: bytes = bytes(100), key: str | None = None) -> None:
        producer = self.producer
        message = None if key is None else simple_message(payload, key)
        partition = None if message is None else producer.choose(message, self.now)
        if producer.add_many([payload], [self.now], [message], 0, self.now, partition):
            return
        try:
            producer.add(payload, self.now, message, self.now)
        except (ProducerQueueIsFull, MemoryBufferIsFull):
            self.refused += 1

    def until(self, when: float) -> None:
        """Everything that is due until then, at its time."""
        while True:
            due = min(self.producer.next_deadline(), self.receipts[0][0] if self.receipts else float("inf"))
            if due > when:
                break
            self.now = max(self.now, due)
            self.run()
        self.now = when
        self.check()

    def run(self) -> None:
        producer, ready_set = self.producer, self.producer.ready_set
        while self.receipts and self.receipts[0][0] <= self.now:
            _, partition, send = self.receipts.pop(0)
            partition.receipt(send.sequence_id, send.highest_sequence_id, 1, 1, self.now)
        producer.tick(self.now)
        for partition in list(ready_set.writable):
            data = b"".join(bytes(piece) for piece in partition.take_output(self.now, 1))
            for frame in FrameDecoder(1 << 26).feed(data):
                assert isinstance(frame, SendFrame)
                self.receipts.append((self.now + self.round_trip, partition, frame))
                self.fills.append(frame.num_messages)
        for operation in ready_set.take_settled():
            assert operation.error is None
            self.latencies += [self.now - sent_at for sent_at in operation.tokens]
        self.check()

    def check(self) -> None:
        """Never above what it was given, and no batch open for longer than the budget."""
        producer = self.producer
        assert producer.shared.used <= producer.shared.limit
        assert self.memory.used <= self.memory.limit
        for partition in producer.partitions:
            assert partition.limits.own.used <= partition.limits.own.limit
            if partition.batch is not None:
                assert partition.batch.deadline <= partition.batch.opened_at + BUDGET

    def stream(self, rate: int, seconds: float, keys: int = 0) -> None:
        numbers = itertools.count()
        for _ in range(round(seconds * 1000)):
            for _ in range(rate // 1000):
                self.send(key=None if not keys else f"k{next(numbers) % keys}")
            self.run()
            self.until(self.now + 0.001)

    def percentile(self, part: float) -> float:
        return sorted(self.latencies)[int(part * (len(self.latencies) - 1))]


def test_a_producer_fills_its_batches_as_far_as_the_budget_lets_it():
    world = World(partitions=60)
    world.stream(20_000, 3.0)
    world.latencies.clear()
    world.fills.clear()
    world.stream(20_000, 3.0)
    assert world.percentile(0.99) <= BUDGET
    assert sum(world.fills) / len(world.fills) >= 0.9 * 20_000 * (BUDGET - world.round_trip) * 0.98
    assert world.refused == 0


def test_keyed_messages_wait_in_their_own_partitions():
    world = World(partitions=4)
    world.stream(4_000, 4.0, keys=50)
    world.latencies.clear()
    world.stream(4_000, 3.0, keys=50)
    assert 0.8 * BUDGET < world.percentile(0.99) <= BUDGET


@pytest.mark.parametrize(
    "settings", [{"batching_type": BatchingType.KeyBased}, {"batching_max_messages": 1000}]
)
def test_permits_and_memory_are_never_exceeded(settings):
    world = World(partitions=3, memory=60_000, max_pending_messages=300, round_trip=0.02, **settings)
    world.stream(20_000, 1.0, keys=7)
    world.stream(20_000, 1.0)
    assert world.refused > 0, "the run is meant to reach the limits"
    world.round_trip = 0.001
    world.until(world.now + 1.0)
    world.refused = 0
    world.stream(2_000, 1.0)
    assert world.refused == 0
    world.producer.close_batches()
    world.run()
    world.until(world.now + 1.0)
    assert world.producer.shared.used == world.memory.used == 0


def test_a_batch_leaves_permits_for_messages_during_its_round_trip():
    """On one partition a batch that takes all permits would stop everything until its receipt."""
    world = World(partitions=0, max_pending_messages=1000, round_trip=0.01)
    world.stream(50_000, 1.0)
    world.refused = 0
    world.stream(50_000, 1.0)
    assert world.refused == 0
    assert max(world.fills[-20:]) <= 500


def test_lone_messages_are_sent_without_delay_until_others_join():
    world = World(partitions=4)
    for _ in range(JOINS_MEMORY * 6):
        world.send()
        world.run()
        world.until(world.now + 1.0)
    world.latencies.clear()
    world.send()
    world.run()
    world.until(world.now + 1.0)
    assert world.latencies == [pytest.approx(world.round_trip)]
    world.fills.clear()
    world.stream(5_000, 2.0)
    assert world.fills[-1] > 100


def test_an_urgent_message_is_sent_without_delay():
    world = World(partitions=4)
    world.producer.add(b"x", world.now, None, world.now, urgent=True)
    world.run()
    world.until(world.now + world.round_trip)
    assert world.latencies == [pytest.approx(world.round_trip)]


def test_without_a_latency_budget_a_producer_does_not_tune_itself():
    producer = producer_of(2, settings_of())
    assert producer.tuning is None
    assert producer.table_limits == (1000, 128 * 1024)
    producer.add(b"x", None, None, 1.0)
    (batch,) = (p.batch for p in producer.partitions if p.batch is not None)
    assert batch.tuned is None
    assert batch.deadline == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latency_budget_seconds": 0.001}, "latency_budget_seconds=0.001"),
        ({"latency_budget_seconds": 61.0}, "latency_budget_seconds=61.0"),
        ({"latency_budget_seconds": float("nan")}, "latency_budget_seconds=nan"),
        ({"latency_budget_seconds": 0.05, "batching_enabled": False}, "batching_enabled=True"),
        ({"latency_budget_seconds": 2.0, "send_timeout_seconds": 1.0}, "send_timeout_seconds=1"),
        ({"latency_budget_seconds": 0.05, "batching_max_messages": 500}, "batching_max_messages=500"),
        (
            {"latency_budget_seconds": 0.05, "batching_max_publish_delay_seconds": 0.02},
            "batching_max_publish_delay_seconds=0.02",
        ),
    ],
)
def test_settings_that_contradict_a_budget_are_refused(settings, words):
    with pytest.raises(InvalidConfiguration) as caught:
        ProducerSettings(**{"batching_enabled": True, **settings})
    assert words in str(caught.value)
