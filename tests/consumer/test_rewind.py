"""A broker that does not really go back is asked once more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.consumer.rewind import TRIES_MAX, Rewind
from geminga.consumer.settings import ConsumerType
from geminga.wire.proto import pulsar_wire_pb2 as pb

Make = Callable[..., Any]


def asked(commands: list[pb.BaseCommand]) -> list[int]:
    """The epochs of those that ask for everything."""
    kind = pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES
    return [c.redeliverUnacknowledgedMessages.consumer_epoch for c in commands if c.type == kind]


def values(consumer: Any) -> list[bytes]:
    return [message.data() for message in consumer.take()]


@pytest.mark.parametrize("jump", [1, 2, 4, 7])
def test_what_is_stepped_over_is_asked_for_once_more(
    subscribed: Make, make: SimpleNamespace, jump: int
) -> None:
    consumer = subscribed()
    for number in range(4):
        consumer.receive(make.single(b"%d" % number), number)
    consumer.core.acknowledge_through(consumer.take()[0], consumer.now)
    consumer.core.redeliver_unacknowledged()
    assert asked(make.sent(consumer.core)) == [1]
    for number in [*range(1, jump), jump + 1]:
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=1)
    if jump == 7:  # whatever was never here may be gone for good
        assert asked(make.sent(consumer.core)) == []
        return
    assert asked(make.sent(consumer.core)) == [2]
    assert values(consumer) == []
    for number in range(1, 8):
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=2)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"%d" % number for number in range(1, 8)]


def test_an_entry_that_is_gone_is_not_asked_for_without_end(subscribed: Make, make: SimpleNamespace) -> None:
    consumer = subscribed()
    for number in range(3):
        consumer.receive(make.single(b"%d" % number), number)
    consumer.core.redeliver_unacknowledged()
    for epoch in range(1, TRIES_MAX + 1):
        assert asked(make.sent(consumer.core)) == [epoch]
        consumer.receive(make.single(b"2"), 2, consumer_epoch=epoch)
    assert asked(make.sent(consumer.core)) == [TRIES_MAX + 1]
    for number in (2, 3):
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=TRIES_MAX + 1)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"2", b"3"]


def test_what_was_acknowledged_late_is_not_waited_for(subscribed: Make, make: SimpleNamespace) -> None:
    consumer = subscribed()
    for number in range(4):
        consumer.receive(make.single(b"%d" % number), number)
    held = consumer.take()
    consumer.core.redeliver_unacknowledged()
    consumer.core.acknowledge_messages(held[1:2], consumer.now)
    consumer.core.acknowledge_through(held[0], consumer.now)
    make.sent(consumer.core)
    for number in (2, 3):
        consumer.receive(make.single(b"%d" % number), number, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == []
    assert values(consumer) == [b"2", b"3"]


def test_a_refused_message_and_what_came_after_it(subscribed: Make, make: SimpleNamespace) -> None:
    consumer = subscribed(negative_ack_redelivery_delay_ms=100)
    for number in range(3):
        consumer.receive(make.single(b"%d" % number), number)
    first, *others = consumer.take()
    consumer.core.negative_acknowledge(first, consumer.now)
    consumer.core.acknowledge_messages(others, consumer.now)
    assert asked(consumer.advance(1.0)) == [1]
    consumer.receive(make.single(b"3"), 3, consumer_epoch=1)
    assert asked(make.sent(consumer.core)) == [2]


def test_other_epochs_brokers_and_kinds_are_not_compared(subscribed: Make, make: SimpleNamespace) -> None:
    for settings, epoch in (({}, -1), ({}, 0), ({"consumer_type": ConsumerType.Shared}, -1)):
        consumer = subscribed(**settings)
        consumer.receive(make.single(b"0"), 0)
        consumer.core.redeliver_unacknowledged()
        make.sent(consumer.core)
        consumer.receive(make.single(b"9"), 9, consumer_epoch=epoch)
        assert asked(make.sent(consumer.core)) == []


def test_a_new_connection_begins_anew(subscribed: Make, make: SimpleNamespace) -> None:
    consumer = subscribed()
    consumer.receive(make.single(b"0"), 0)
    consumer.core.redeliver_unacknowledged()
    consumer.core.disconnected(consumer.now)
    consumer.attach()
    consumer.receive(make.single(b"9"), 9, consumer_epoch=1)
    assert values(consumer) == [b"9"]


def test_the_entry_after_the_newest_may_lie_in_another_ledger() -> None:
    rewind = Rewind()
    rewind.begin([(1, 4), (1, 5)], (1, 5))
    assert not rewind.skipped((1, 3)), "acknowledged, and the broker did not know it yet"
    assert not rewind.skipped((1, 4))
    assert not rewind.skipped((1, 5))
    assert not rewind.skipped((2, 0))
    assert not rewind.awaited
    rewind.begin([(1, 4)], (1, 5))
    assert rewind.skipped((2, 0))
