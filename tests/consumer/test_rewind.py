"""A broker that does not really move back is requested to redeliver once more."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.consumer.rewind import RESTS_SECONDS, TRIES_MAX, Rewind
from geminga.consumer.settings import ConsumerType
from geminga.wire.proto import pulsar_wire_pb2 as pb

Make = Callable[..., Any]


def asked(commands: list[pb.BaseCommand]) -> list[int]:
    """The epochs of those that ask for everything."""
    kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return [c.redeliverUnacknowledgedMessages.consumer_epoch for c in commands if c.type == kind]


def pass_time(consumer: Any, seconds: float) -> None:
    consumer.now += seconds
    consumer.core.tick(consumer.now)


def rest(consumer: Any) -> None:
    """Advance the time to the next repeated request, if there is one."""
    if consumer.core.unsettled.rewind.is_resting:
        pass_time(consumer, consumer.core.next_deadline() - consumer.now)


def values(consumer: Any) -> list[bytes]:
    return [message.data() for message in consumer.take()]


@pytest.mark.parametrize("jump", [1, 2, 4, 7])
def test_redelivery_is_requested_again_for_skipped_entries(subscribed, make, jump):
    consumer = subscribed()
    consumer.receive_numbers(4)
    consumer.core.acknowledge_through([consumer.take()[0]], consumer.now)
    consumer.core.redeliver_unacknowledged()
    assert asked(make.sent(consumer.core)) == [1]
    for number in [*range(1, jump), jump + 1]:
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=1)
    if jump == 7:  # an entry that was never delivered here may be gone for good
        assert asked(make.sent(consumer.core)) == []
        return
    assert asked(make.sent(consumer.core)) == [2]
    assert values(consumer) == []
    consumer.receive_numbers(7, 1, consumer_epoch=2)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"%d" % number for number in range(1, 8)]


def test_an_entry_that_is_gone_is_not_asked_for_without_end(subscribed, make):
    consumer = subscribed()
    consumer.receive_numbers(3)
    consumer.core.redeliver_unacknowledged()
    for epoch in range(1, TRIES_MAX + 1):
        assert asked(make.sent(consumer.core)) == [epoch]
        consumer.receive(make.single(b"2"), 2, consumer_epoch=epoch)
        rest(consumer)
    assert asked(make.sent(consumer.core)) == [TRIES_MAX + 1]
    consumer.receive_numbers(2, 2, consumer_epoch=TRIES_MAX + 1)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"2", b"3"]


def test_what_was_acknowledged_late_is_not_waited_for(subscribed, make):
    consumer = subscribed()
    consumer.receive_numbers(4)
    held = consumer.take()
    consumer.core.redeliver_unacknowledged()
    consumer.core.acknowledge_messages(held[1:2], consumer.now)
    consumer.core.acknowledge_through([held[0]], consumer.now)
    make.sent(consumer.core)
    consumer.receive_numbers(2, 2, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"2", b"3"]


def test_a_refused_message_that_stays_away_is_requested_again(subscribed, make):
    consumer = subscribed(negative_ack_redelivery_delay_ms=100)
    consumer.receive_numbers(3)
    first, *others = consumer.take()
    consumer.core.negative_acknowledge([first], consumer.now)
    consumer.core.acknowledge_messages(others, consumer.now)
    assert asked(consumer.advance(1.0)) == [1]
    consumer.receive(make.single(b"3"), 3, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == [2]


def test_other_epochs_brokers_and_kinds_are_not_compared(subscribed, make):
    for settings, epoch in (({}, -1), ({}, 0), ({"consumer_type": ConsumerType.Shared}, -1)):
        consumer = subscribed(**settings)
        consumer.receive(make.single(b"0"), 0)
        consumer.core.redeliver_unacknowledged()
        make.sent(consumer.core)
        consumer.receive(make.single(b"9"), 9, consumer_epoch=epoch)
        assert asked(make.sent(consumer.core)) == []


def test_a_new_connection_resets_the_state(subscribed, make):
    consumer = subscribed()
    consumer.receive(make.single(b"0"), 0)
    consumer.core.redeliver_unacknowledged()
    consumer.reconnect()
    consumer.receive(make.single(b"9"), 9, consumer_epoch=1)
    assert values(consumer) == [b"9"]


def test_the_entry_after_the_newest_may_lie_in_another_ledger():
    rewind = Rewind()
    rewind.begin([(1, 4), (1, 5)], (1, 5))
    assert not rewind.skipped((1, 3), 0.0), "acknowledged, and the broker did not know it yet"
    assert not rewind.skipped((1, 4), 0.0)
    assert not rewind.skipped((1, 5), 0.0)
    assert not rewind.skipped((2, 0), 0.0)
    assert not rewind.awaited
    rewind.begin([(1, 4)], (1, 5))
    assert rewind.skipped((2, 0), 0.0)


class HonestBroker:
    """Broker that moves back as requested, and delivers entries neither acknowledged nor ``gone``."""

    def __init__(self, consumer: Any, make: SimpleNamespace, gone: set[int]) -> None:
        self.consumer, self.make, self.gone = consumer, make, gone
        self.end = self.read = self.epoch = 0
        self.asked = 0

    def deliver(self, end: int, rounds_max: int = 100) -> None:
        """Deliver everything below ``end``; expect a limited number of requests."""
        self.end = end
        for _ in range(rounds_max):
            self.listen()
            if self.read >= self.end:
                rest(self.consumer)
                self.listen()
            if self.read >= self.end:
                return
            while self.read < self.end:
                # One frame, and what the consumer says to it comes when the next is on its way.
                number, self.read = self.read, self.read + 1
                if number not in self.gone:
                    self.consumer.receive(self.make.single(b"%d" % number), number, consumer_epoch=self.epoch)
        raise AssertionError(f"asked {rounds_max} times to deliver the same again")

    def listen(self) -> None:
        for command in self.make.sent(self.consumer.core):
            if command.type == pb.BaseCommand.ACK:
                self.gone.update(one.entryId for one in command.ack.message_id)
            if command.type == pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                self.epoch = command.redeliverUnacknowledgedMessages.consumer_epoch
                self.read = 0
                self.asked += 1


def test_a_message_that_fails_repeatedly_does_not_block_others(subscribed, make):
    """All behind it is acknowledged: what follows the newest of a redelivery is long done."""
    consumer = subscribed(negative_ack_redelivery_delay_ms=100, ack_grouping_time_ms=0)
    broker = HonestBroker(consumer, make, set())
    got: list[bytes] = []
    for end in range(10, 40, 2):
        broker.deliver(end)
        for message in consumer.take():
            got.append(message.data())
            if message.data() == b"0":
                consumer.core.negative_acknowledge([message], consumer.now)
            else:
                consumer.core.acknowledge_messages([message], consumer.now)
        broker.listen()
        consumer.now += 1.0
        consumer.core.tick(consumer.now)
    broker.listen()
    assert set(got) == {b"%d" % number for number in range(38)}
    assert (got.count(b"0"), len(got)) == (15, 15 + 37)
    assert broker.asked == 15, "once for each time that it was refused"


@pytest.mark.parametrize("end", [2, 3])
def test_what_brokers_keep_for_themselves_is_not_waited_for_without_end(subscribed, make, end):
    """Markers of transactions and what was compacted away never come, and what is unsettled always does."""
    gone = set(range(1, 3000, 3))
    consumer = subscribed(receiver_queue_size=5000)
    broker = HonestBroker(consumer, make, gone)
    broker.deliver(end)
    consumer.core.redeliver_unacknowledged()
    broker.deliver(3000)
    assert broker.asked <= 1 + TRIES_MAX
    assert values(consumer) == [b"%d" % number for number in range(3000) if number not in gone]


def test_each_redelivery_request_counts_its_own_tries(subscribed, make):
    consumer = subscribed()
    consumer.receive_numbers(3)
    for wish in range(2):
        consumer.core.redeliver_unacknowledged()
        first = wish * (TRIES_MAX + 1) + 1
        for epoch in range(first, first + TRIES_MAX):
            assert asked(make.sent(consumer.core)) == [epoch]
            consumer.receive(make.single(b"0"), 0, consumer_epoch=epoch)
            consumer.receive(make.single(b"2"), 2, consumer_epoch=epoch)
            rest(consumer)
        assert asked(make.sent(consumer.core)) == [first + TRIES_MAX]
        consumer.receive_numbers(3, consumer_epoch=first + TRIES_MAX)
        assert asked(make.sent(consumer.core)) == []


def test_a_second_skip_delays_the_redelivery_request(subscribed, make):
    """Apache Pulsar skips again as long as it has something to read when requested: it gets no permits."""
    consumer = subscribed(receiver_queue_size=8)
    consumer.receive_numbers(8)
    consumer.core.redeliver_unacknowledged()
    make.sent(consumer.core)
    consumer.receive(make.single(b"5"), 5, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == [2], "at once, the first time"
    consumer.receive_numbers(3, consumer_epoch=2)
    consumer.receive_numbers(6, 6, consumer_epoch=2)
    assert values(consumer) == [b"0", b"1", b"2"]
    assert make.sent(consumer.core) == [], "neither a question nor permits"
    assert 0 < consumer.core.next_deadline() - consumer.now <= RESTS_SECONDS[1]
    rest(consumer)
    sent = make.sent(consumer.core)
    assert asked(sent) == [3]
    assert sum(c.flow.messagePermits for c in sent if c.type == pb.BaseCommand.FLOW) == 1 + 3 + 6
    consumer.receive_numbers(12, consumer_epoch=3)
    assert values(consumer) == [b"%d" % number for number in range(12)]


@pytest.mark.parametrize("ending", ["wish", "seek", "reconnect", "drain"])
def test_a_new_request_or_seek_ends_the_delay(subscribed, make, ending):
    consumer = subscribed(receiver_queue_size=8)
    core = consumer.core
    consumer.receive_numbers(3)
    core.redeliver_unacknowledged()
    for epoch in (1, 2):
        consumer.receive(make.single(b"2"), 2, consumer_epoch=epoch)
    assert core.unsettled.rewind.is_resting
    make.sent(core)
    if ending == "wish":
        core.redeliver_unacknowledged()
        assert asked(make.sent(core)) == [3]
    elif ending == "seek":
        core.begin_seek(0, 7)
        pass_time(consumer, 1.0)
        core.seek_done()
    elif ending == "reconnect":
        core.disconnected(consumer.now)
        assert sum(c.flow.messagePermits for c in consumer.attach()) == 8
    else:
        core.begin_drain()
    assert core.next_deadline() == float("inf")
    pass_time(consumer, 1.0)
    assert asked(make.sent(core)) == []


def test_an_active_consumer_change_settles_awaited_entries(subscribed, make):
    consumer = subscribed(consumer_type=ConsumerType.Failover)
    consumer.receive_numbers(3)
    consumer.core.redeliver_unacknowledged()
    for is_active in (False, True):
        consumer.change_active(is_active)
    make.sent(consumer.core)
    consumer.receive(make.single(b"9"), 9, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"9"]


def test_many_that_are_awaited_are_settled_in_one_pass():
    """Acknowledge one by one up to an entry: each is checked once."""
    count = 100_000
    rewind = Rewind()
    rewind.begin(((1, number) for number in range(count)), (1, count - 1))
    looked = 0
    for number in range(count):
        before = len(rewind._order)
        rewind.settled_through((1, number))
        looked += before - len(rewind._order)
    assert (looked, rewind.awaited) == (count, {(1, count)})
