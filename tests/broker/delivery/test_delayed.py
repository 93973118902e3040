"""Delayed delivery: never early, and not lost by a restart."""

import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.delivery import delayed
from geminga.broker.delivery.dispatcher import ENTRIES_PER_CALL_MAX
from tests.broker.conftest import NAME, TOPIC


def test_delayed_messages_are_never_early_and_survive_a_restart(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    producer.send(1, make_entry(b"later", deliver_at_time=harness.now_ms + 9000))
    producer.send(2, make_entry(b"now"))
    assert peer.payloads() == [b"now"]
    harness.advance(4.999)
    assert peer.payloads() == []
    harness.advance(0.001)
    assert peer.payloads() == [b"late"]
    peer.ack((0, 0), (0, 2))
    harness.restart()
    peer = harness.consumer(TOPIC, kind="Shared")
    assert peer.payloads() == []
    harness.advance(4)
    assert peer.payloads() == [b"later"]


@pytest.mark.parametrize("size", [1, 300])
def test_a_backlog_with_a_delayed_message_is_delivered_without_it(harness, producer, make_entry, size):
    producer.publish(5)
    producer.send(5, make_entry(b"late", deliver_at_time=harness.now_ms + 5000, partition_key="k" * size))
    producer.publish(5, first=6)
    peer = harness.consumer(TOPIC, kind="Shared")
    assert peer.entry_ids() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    harness.advance(5)
    assert peer.entry_ids() == [5]


def test_the_wall_clock_decides_about_delays_not_the_timer(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send(0, make_entry(b"late", deliver_at_time=due_ms))
    harness.broker.tick(harness.now + 2, due_ms - 1)
    assert peer.payloads() == []
    harness.broker.tick(harness.now + 2.1, due_ms)
    assert peer.payloads() == [b"late"]


def test_a_message_is_not_late_when_the_wall_clock_is_set_forward(harness, producer, make_entry):
    peer = harness.consumer(TOPIC, kind="Shared")
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 3_600_000))
    harness.advance(30)
    assert peer.payloads() == []
    harness.start_ms += 3_600_000
    harness.advance(delayed.LOOK_SECONDS)
    assert peer.payloads() == [b"late"]


def test_entries_due_at_one_moment_are_delivered_in_slices(harness, producer, make_entry, monkeypatch):
    monkeypatch.setattr(delayed, "DUE_AT_ONCE_MAX", 10)
    peer = harness.consumer(TOPIC, kind="Shared")
    due_ms = harness.now_ms + 1000
    producer.send_all(make_entry(b"%d" % sequence_id, deliver_at_time=due_ms) for sequence_id in range(35))
    for offsets in (range(10), range(10, 20), range(20, 30), range(30, 35)):
        harness.broker.tick(harness.now + 1, due_ms)
        assert peer.entry_ids() == list(offsets)


def test_exclusive_consumers_do_not_wait_for_delays(harness, producer, make_entry):
    peer = harness.consumer(TOPIC)
    producer.send(0, make_entry(b"late", deliver_at_time=harness.now_ms + 5000))
    assert peer.payloads() == [b"late"]


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("how", ["skip", "ttl"])
def test_expired_or_skipped_delayed_messages_are_not_delivered(make_harness, make_entry, kind, how):
    # With Key_Shared this raised in the timer, which then dropped the timers of other topics too.
    harness = make_harness(message_ttl_seconds=20 if how == "ttl" else 0)
    peer, producer = harness.peer(), harness.peer()
    producer.producer(TOPIC)
    producer.producer("other", producer_id=2)
    peer.subscribe(TOPIC, kind=kind)
    for number in range(4):
        entry = make_entry(
            b"%d" % number, deliver_at_time=harness.now_ms + 40_000, partition_key=str(number),
            publish_time=harness.now_ms,
        )  # fmt: skip
        producer.send(number, entry)
    other = harness.consumer("other", kind=kind)
    producer.send(0, make_entry(b"other", deliver_at_time=harness.now_ms + 40_000), producer_id=2)
    if how == "skip":
        harness.actions.cursors.skip(NAME, "s", 3, lambda error: None)
        assert peer.session.consumers[1].subscription.dispatcher.delayed_size == 1
    else:
        harness.advance(31)
        assert peer.session.consumers[1].subscription.backlog == 0
    harness.advance(60)
    assert peer.payloads() == ([b"3"] if how == "skip" else [])
    if how == "skip":
        assert other.payloads() == [b"other"]
    assert not any(harness.broker.scheduler.failures.values())


def test_skipped_replayed_messages_are_not_delivered(harness, producer, make_entry):
    first, second = harness.peer(), harness.peer()
    first.subscribe(TOPIC, kind="Key_Shared", permits=20)
    producer.send_all(make_entry(b"%d" % number, partition_key=str(number % 7)) for number in range(20))
    second.subscribe(TOPIC, kind="Key_Shared", permits=0)
    first.command("redeliverUnacknowledgedMessages", consumer_id=1)
    subscription = first.session.consumers[1].subscription
    harness.actions.cursors.skip(NAME, "s", 15, lambda error: None)
    assert subscription.dispatcher.replay_size == 5
    first.frames.clear()
    second.command("flow", consumer_id=1, messagePermits=100)
    first.command("flow", consumer_id=1, messagePermits=100)
    assert sorted(int(each) for each in first.payloads() + second.payloads()) == [15, 16, 17, 18, 19]
    assert set(subscription.dispatcher._slots) == {15, 16, 17, 18, 19}


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_a_delayed_backlog_is_read_in_slices(harness, producer, make_entry, kind):
    count = 3 * ENTRIES_PER_CALL_MAX + 10
    for number in range(count):
        producer.send(number, make_entry(deliver_at_time=harness.now_ms + 5000, partition_key=str(number)))
    peer = harness.consumer(TOPIC, kind=kind, permits=0)
    harness.auto_poll = False
    peer.command("flow", consumer_id=1, messagePermits=1000)
    dispatcher = peer.session.consumers[1].subscription.dispatcher
    sizes = [dispatcher.delayed_size]
    while dispatcher.delayed_size < count:
        harness.broker.tick(harness.now, harness.now_ms)
        sizes.append(dispatcher.delayed_size)
    assert len(sizes) == 4
    assert max(after - before for before, after in pairwise([0, *sizes])) <= ENTRIES_PER_CALL_MAX + 20


class Clock:
    """A scheduler of one timer, with the wall clock beside its own."""

    def __init__(self) -> None:
        self.now, self.now_ms = 0.0, 1_700_000_000_000
        self.timer: Any = None

    def at(self, when: float, callback: Callable[[], None], about: object) -> Any:
        self.timer = SimpleNamespace(when=when, callback=callback, cancel=lambda: None)
        return self.timer

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds / 1000
        self.now_ms += milliseconds
        while self.timer is not None and self.timer.when <= self.now:
            timer, self.timer = self.timer, None
            timer.callback()


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_due_in_the_order_of_their_times_however_they_were_added(monkeypatch, seed):
    choice = random.Random(seed)
    monkeypatch.setattr(delayed, "SPAN_ENTRIES_MAX", choice.choice((1, 5, 1_000)))
    monkeypatch.setattr(delayed, "DUE_AT_ONCE_MAX", choice.choice((1, 7, 2_000)))
    clock, wanted = Clock(), dict[int, int]()

    def due(offsets: list[int]) -> None:
        times = [wanted.pop(offset) for offset in offsets]
        assert times == sorted(times)
        assert all(time <= clock.now_ms for time in times)

    entries = delayed.DelayedEntries(clock, due, "a test")
    for _ in range(300):
        action = choice.random()
        if action < 0.8:
            offset = choice.randrange(10_000)
            at_ms = clock.now_ms + choice.choice((1, 50, 300, 70_000, 3_600_000)) * choice.randrange(1, 4)
            wanted.setdefault(offset, at_ms)
            entries.add(offset, wanted[offset])
        elif action < 0.83:
            below = choice.randrange(6_000)
            entries.skip_below(below)
            wanted = {offset: at for offset, at in wanted.items() if offset >= below}
        else:
            clock.advance(choice.choice((1, 40, 5_000, 100_000)))
            assert all(at > clock.now_ms for at in wanted.values())
        assert len(entries) == len(wanted)
        assert all(offset in entries for offset in wanted)
    clock.advance(20_000_000)
    assert not wanted
    assert (len(entries), entries.next_ms) == (0, 0)


def test_delayed_entries_take_few_bytes_each():
    entries = delayed.DelayedEntries(Clock(), lambda offsets: None, "a test")
    choice = random.Random(1)
    tracemalloc.start()
    try:
        for offset in range(200_000):
            entries.add(offset, 1_700_000_000_000 + choice.randrange(1, 86_400_000))
        assert tracemalloc.get_traced_memory()[0] < 200_000 * 15
    finally:
        tracemalloc.stop()


def test_skipped_entries_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(delayed, "SPAN_ENTRIES_MAX", 100)
    clock, got, count = Clock(), list[int](), 20_000
    entries = delayed.DelayedEntries(clock, got.extend, "a test")
    tracemalloc.start()
    try:
        for offset in range(count):
            entries.add(offset, clock.now_ms + 1_000 + offset % 7_000)
            entries.skip_below(offset - 50)
        assert tracemalloc.get_traced_memory()[0] < 4 * count
    finally:
        tracemalloc.stop()
    clock.advance(10_000)
    assert sorted(got) == list(range(count - 51, count))
