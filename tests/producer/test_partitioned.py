"""Many partitions: shares, growth, joining open batches, and permits that never leak (stateful)."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from producing import connect, producer_of, settings_of

from geminga.errors import MemoryBufferIsFull, MessageTooBig, ProducerQueueIsFull, PulsarException, Timeout
from geminga.producer.message import OutgoingMessage, simple_message
from geminga.producer.operation import SendOperation
from geminga.producer.pending_limits import ByteBudget
from geminga.producer.settings import BatchingType, ProducerSettings
from geminga.producer.states import ProducerState


def joins(producer, payload):
    """Whether the message joins an open batch."""
    return producer.add_many([payload], [payload], None, 0, 0.0) == 1


def test_partitions_have_their_names_and_fair_shares():
    producer = producer_of(
        4, settings_of(max_pending_messages=1000, max_pending_messages_across_partitions=100)
    )
    assert [p.topic for p in producer.partitions][3] == "persistent://public/default/t-partition-3"
    assert [p.limits.own.limit for p in producer.partitions] == [25] * 4
    fresh = producer.grow(5)
    assert [p.index for p in fresh] == [4]
    assert [p.limits.own.limit for p in producer.partitions] == [20] * 5
    assert producer.grow(3) == []


def test_an_added_partition_ends_at_what_ends_the_others():
    producer = producer_of(2, settings_of())
    for partition in producer.partitions:
        partition.gives_up, partition.stops_at_failure = (KeyError,), True
    (added,) = producer.grow(3)
    assert added.gives_up == (KeyError,)
    assert added.stops_at_failure


def test_an_open_batch_takes_simple_messages_until_it_is_full():
    producer = producer_of(0, settings_of(batching_max_messages=5))
    connect(producer.partitions[0])
    assert not joins(producer, b"0")
    producer.add(b"0", b"0", None, 0.0)
    numbers = [b"%d" % number for number in range(1, 9)]
    assert producer.add_many(numbers, numbers, None, 0, 0.0) == 3  # the next one fills the batch
    producer.add(b"4", b"4", None, 0.0)
    assert producer.joined is None
    (operation,) = producer.partitions[0].pending
    assert operation.tokens == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "message", [OutgoingMessage(b"x", schema_version=b"1"), OutgoingMessage(b"x", sequence_id=5)]
)
def test_messages_without_metadata_do_not_join_a_batch_with_its_own(message):
    producer = producer_of(0, settings_of())
    connect(producer.partitions[0])
    producer.add(b"x", None, message, 0.0)
    assert not joins(producer, b"y")
    producer.add(b"y", None, None, 0.0)
    assert joins(producer, b"z")


def test_a_batch_that_the_round_robin_leaves_is_sent_before_its_delay():
    """A message that does not fit moves on after its partition's time: nothing else would join that batch."""
    settings = settings_of(
        batching_max_allowed_size_in_bytes=100, batching_max_publish_delay_seconds=0.01,
        batching_partition_switch_frequency=1,
    )  # fmt: skip
    producer = producer_of(3, settings)
    connect(*producer.partitions)
    producer.add(bytes(60), None, None, 0.0)
    first = next(partition for partition in producer.partitions if partition.batch is not None)
    producer.add(bytes(60), None, None, 0.008)
    assert first.batch is not None, "it opened the next batch where it was"
    producer.add(bytes(60), None, None, 0.0105)
    assert first.batch is None
    assert len(first.pending) == 2


def test_a_message_with_a_key_joins_the_open_batch_of_its_partition():
    producer = producer_of(3, settings_of(batching_max_messages=4))
    connect(*producer.partitions)
    messages = [simple_message(b"x", "k", (("a", "b"),))] * 4
    home = producer.choose(messages[0], 0.0)
    arguments = [b"x"] * 4, [1, 2, 3, 4], messages, 0, 0.0, home
    assert not producer.add_many(*arguments)  # no batch is open
    producer.add(b"x", 0, OutgoingMessage(b"x", partition_key="k"), 0.0)
    assert producer.add_many(*arguments) == 2  # the next one fills the batch
    assert home.batch.tokens == [0, 1, 2]


# --- permits never leak ---
class Permits(RuleBasedStateMachine):
    """Any order of sends, receipts, errors, reconnects and closes keeps the counts exact."""

    @initialize(
        partitions=st.sampled_from([0, 1, 3]),
        max_pending=st.sampled_from([0, 3, 20]),
        across=st.sampled_from([0, 4, 50]),
        memory=st.sampled_from([0, 100, 2000]),
        batching=st.booleans(),
        keyed=st.booleans(),
        count=st.sampled_from([1, 2, 5, 100]),
        size=st.sampled_from([5, 60, 1000]),
    )
    def begin(self, partitions, max_pending, across, memory, batching, keyed, count, size):
        self.memory = ByteBudget(memory)
        settings = ProducerSettings(
            max_pending_messages=max_pending,
            max_pending_messages_across_partitions=across,
            batching_enabled=batching,
            chunking_enabled=not batching,
            chunk_max_message_size=None if batching else 600,
            batching_type=BatchingType.KeyBased if keyed else BatchingType.Default,
            batching_max_messages=count,
            batching_max_allowed_size_in_bytes=size,
            send_timeout_seconds=30,
            producer_name="p",
        )
        self.producer = producer_of(partitions, settings, memory=self.memory, random=lambda: 0.3)
        self.now = 0.0
        self.handed_over = 0
        self.outcomes = 0
        for partition in self.producer.partitions:
            partition.start()
        self.refused = 0

    def pick(self, index):
        return self.producer.partitions[index % len(self.producer.partitions)]

    @rule(size=st.integers(0, 40), times=st.integers(1, 6))
    def send_plain(self, size, times):
        for _ in range(times):
            payload = b"x" * size
            if self.producer.add_many([payload], [payload], None, 0, self.now):
                self.handed_over += 1
            else:
                self.send(payload, None)

    @rule(
        size=st.sampled_from([0, 10, 40, 700, 3000]),
        key=st.sampled_from([None, "a", "b"]),
        sequence_id=st.sampled_from([-1, -1, -1, 7, 10_000]),
        deliver_at=st.sampled_from([0, 0, 5]),
        urgent=st.booleans(),
    )
    def send_rich(self, size, key, sequence_id, deliver_at, urgent):
        payload = b"y" * size
        message = OutgoingMessage(
            payload, partition_key=key, sequence_id=sequence_id, deliver_at_time=deliver_at
        )
        self.send(payload, message, urgent)

    def send(self, payload, message, urgent=False):
        before = self.used()
        try:
            self.producer.add(payload, payload, message, self.now, urgent=urgent)
            self.handed_over += 1
        except (ProducerQueueIsFull, MemoryBufferIsFull, MessageTooBig):
            self.refused += 1
            assert self.used()[1] <= max(before[1], self.memory.limit)
        except PulsarException:
            assert any(
                p.failure is not None or p.state is ProducerState.CLOSED for p in self.producer.partitions
            )

    @rule(index=st.integers(0, 5))
    def connect(self, index):
        partition = self.pick(index)
        if partition.state in (ProducerState.CONNECTING, ProducerState.RECONNECTING):
            connect(partition, max_message_size=2000, now=self.now)

    @rule(index=st.integers(0, 5))
    def disconnect(self, index):
        partition = self.pick(index)
        if partition.connected:
            partition.disconnected(None)

    @rule(index=st.integers(0, 5))
    def write(self, index):
        self.pick(index).take_output(self.now, 1)

    @rule(index=st.integers(0, 5), count=st.integers(1, 10))
    def receipts(self, index, count):
        partition = self.pick(index)
        for _ in range(count):
            head = partition.pending.head
            if head is not None and partition.pending.in_flight:
                partition.receipt(head.sequence_id, head.highest_sequence_id, 1, 1, self.now)

    @rule(index=st.integers(0, 5), code=st.sampled_from([2, 9, 22, 22, 22]))
    def error(self, index, code):
        partition = self.pick(index)
        head = partition.pending.head
        if head is not None:
            partition.send_error(code, head.highest_sequence_id, "x", self.now)

    @rule(seconds=st.sampled_from([0.001, 0.02, 31.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.producer.tick(self.now)

    @rule()
    def flush(self):
        self.producer.close_batches()

    @rule()
    def grow(self):
        if self.producer.partitioned and len(self.producer.partitions) < 6:
            for partition in self.producer.grow(len(self.producer.partitions) + 1):
                partition.start()

    @rule(index=st.integers(0, 5), chance=st.integers(0, 9))
    def end_one(self, index, chance):
        if chance == 0 and self.pick(index).state is not ProducerState.CLOSED:
            self.pick(index).fail(MessageTooBig("any"), self.now)

    def used(self):
        return self.producer.shared.used, self.memory.used

    @invariant()
    def counts_are_exact(self):
        if not hasattr(self, "producer"):
            return
        self.outcomes += sum(len(o.tokens) for o in self.producer.ready_set.take_settled())
        total_count = total_size = 0
        for partition in self.producer.partitions:
            batch = partition.batch
            count = sum(o.permits for o in partition.pending)
            size = sum(o.size for o in partition.pending)
            if batch is not None:
                count += len(batch)
                size += batch.size
            assert partition.limits.own.used == count
            total_count += count
            total_size += size
        assert self.producer.shared.used == total_count <= self.producer.shared.limit
        if self.memory.limited:
            assert self.memory.used == total_size <= self.memory.limit
        assert self.handed_over == self.outcomes + self.producer.pending_messages

    def teardown(self):
        if not hasattr(self, "producer"):
            return
        for partition in self.producer.partitions:
            partition.close(self.now)
            if partition.state is ProducerState.CLOSING:
                partition.closed(self.now)
        self.counts_are_exact()
        assert self.used() == (0, 0)
        assert self.handed_over == self.outcomes


TestPermits = Permits.TestCase
TestPermits.settings = settings(stateful_step_count=60, suppress_health_check=list(HealthCheck))


NEVER = float("inf")


def test_a_topic_without_partitions_has_one_with_index_minus_one():
    producer = producer_of(0, settings_of())
    assert [(each.index, each.topic) for each in producer.partitions] == [(-1, producer.topic)]
    assert not producer.partitioned


def test_an_urgent_message_sets_attention_and_its_batch_is_sent():
    producer = producer_of(0, settings_of())
    connect(*producer.partitions)
    producer.ready_set.timer_at = 0.0
    producer.ready_set.attention = False
    producer.add(b"x", None, None, 0.0)
    assert not producer.ready_set.attention
    producer.add(b"y", None, None, 0.0, urgent=True)
    assert producer.ready_set.attention
    producer.tick(0.0)
    assert producer.partitions[0].batch is None


def test_take_due_returns_only_partitions_that_are_due():
    producer = producer_of(1000, settings_of(batching_max_publish_delay_seconds=0.01))
    connect(*producer.partitions)
    for step, index in enumerate((700, 3, 999)):
        producer.add(b"x", None, None, step / 1000, partition=producer.partitions[index])
    assert producer.next_deadline() == pytest.approx(0.010)
    assert [p.index for p in producer.ready_set.take_due(0.0115)] == [700, 3]
    assert producer.next_deadline() == pytest.approx(0.012), "these have been taken"


def test_send_time_outs_come_in_their_order():
    producer = producer_of(3, settings_of(batching_enabled=False, send_timeout_seconds=1.0))
    for partition in producer.partitions:
        partition.start()
    for index, at in enumerate((0.0, 0.4, 0.2)):
        producer.add(b"x", None, None, at, partition=producer.partitions[index])
    assert producer.next_deadline() == pytest.approx(1.0)
    producer.tick(1.1)
    assert [p.counters.timeouts for p in producer.partitions] == [1, 0, 0]
    assert producer.next_deadline() == pytest.approx(1.2)
    producer.tick(1.5)
    assert [p.counters.timeouts for p in producer.partitions] == [1, 1, 1]
    assert {type(o.error) for o in producer.ready_set.take_settled()} == {Timeout}
    assert producer.next_deadline() == NEVER
    assert not producer.ready_set.busy


def test_a_tables_batch_times_out_after_the_receipt_before_it():
    """Any number of them wait: a slow broker that gives receipts all the time fails none."""
    producer = producer_of(1, settings_of(send_timeout_seconds=1.0))
    connect(*producer.partitions)
    (partition,) = producer.partitions
    for _ in range(4):
        partition.submit(SendOperation.of_encoded(b"x", 1, (-1, -1), compression=0, uncompressed_size=1), 0.0)
    partition.take_output(0.0, 0)
    for number, at in enumerate((0.9, 1.8, 2.7)):
        partition.receipt(number, 0, 1, number, at)
        producer.tick(at + 0.2)
        assert partition.counters.timeouts == 0
    assert producer.next_deadline() == pytest.approx(3.7)
    producer.tick(3.7)
    assert partition.counters.timeouts == 1


def test_a_message_behind_a_table_times_out_after_the_tables_last_receipt():
    producer = producer_of(1, settings_of(send_timeout_seconds=1.0, batching_enabled=False))
    connect(*producer.partitions)
    (partition,) = producer.partitions
    partition.submit(SendOperation.of_encoded(b"x", 1, (-1, -1), compression=0, uncompressed_size=1), 0.0)
    for token in "ab":
        partition.add(b"m", token, None, 0.1)
    partition.take_output(0.2, 0)
    partition.receipt(0, 0, 1, 0, 0.9)
    producer.tick(1.8)
    partition.receipt(1, 0, 1, 1, 1.8)
    producer.tick(1.85)
    assert partition.counters.timeouts == 0
    producer.tick(1.9)
    assert partition.counters.timeouts == 1


def test_a_partition_with_all_receipts_is_not_busy():
    producer = producer_of(1, settings_of(batching_enabled=False))
    (partition,) = producer.partitions
    connect(partition)
    producer.add(b"x", None, None, 0.0, partition=partition)
    partition.take_output(0.0, 0)
    assert list(producer.ready_set.busy) == [partition]
    partition.receipt(0, 0, 1, 1, 0.5)
    assert not producer.ready_set.busy
    assert producer.next_deadline() == NEVER
