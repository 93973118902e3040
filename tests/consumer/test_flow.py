"""Permits: granted, earned by blocks, bounded by messages and by bytes, never lost."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.consumer.flow import FlowControl, Release

BIG = 1 << 40


def flow(queue_size: int, bytes_max: int = BIG) -> FlowControl:
    control = FlowControl(queue_size, bytes_max)
    control.reset()
    return control


def test_releases_of_an_earlier_connection_mean_nothing():
    control = flow(2)
    control.take_grant()
    ((_, release),) = control.arrived(1, 1)
    control.reset()
    assert control.take_grant() == 2
    control.released(release)
    assert control.take_grant() == 0


def test_large_messages_shrink_the_window():
    control = flow(1000, bytes_max=1_000_000)
    control.take_grant()
    for _ in range(100):
        for _, release in control.arrived(1, 100_000):
            control.released(release)
    # An average of 100 kB: ten of them fit.
    assert control.window == 10
    assert control.take_grant() == 0


def test_queue_size_zero_asks_again_for_a_dropped_message():
    control = flow(0)
    control.want_one()
    control.take_grant()
    control.dropped(1)
    assert control.take_grant() == 1


def test_queue_size_zero_asks_again_after_a_dead_letter():
    control = flow(0)
    control.want_one()
    control.take_grant()
    control.set_aside(1)
    control.want_one()
    assert control.take_grant() == 1


def test_resize_changes_what_may_be_granted():
    control = flow(10)
    control.take_grant()
    control.resize(30)
    assert control.take_grant() == 20


def test_permits_set_aside_return_with_their_release():
    control = flow(4)
    control.take_grant()
    release = control.set_aside(4)
    assert control.take_grant() == 0
    control.released(release)
    assert control.take_grant() == 4


@pytest.mark.parametrize("bytes_max", [BIG, 3_000])
@given(
    queue_size=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2000), st.booleans(), st.integers(0, 40))),
)
def test_a_broker_that_uses_its_permits_is_never_starved(bytes_max, queue_size, steps):
    """For any arrivals, drops and takes: when all messages are taken, the broker has permits."""
    control = flow(queue_size, bytes_max)
    granted = control.take_grant()
    queue: deque[Release | None] = deque()

    def take(count: int) -> None:
        for _ in range(min(count, len(queue))):
            release = queue.popleft()
            if release is not None:
                control.released(release)

    for messages, size, dropped, taken in steps:
        if granted > 0:
            granted -= messages
            if dropped:
                control.dropped(messages)
            else:
                marks = dict(control.arrived(messages, size * messages))
                queue.extend(marks.get(index) for index in range(messages))
        take(taken)
        granted += control.take_grant()
        assert granted <= queue_size
        assert granted == control.outstanding
    while granted <= 0:
        take(len(queue))
        grant = control.take_grant()
        assert grant > 0
        granted += grant


class _Sender:
    """A broker that looks at the permits after each read of ``read_max`` entries: 1 is Geminga's, 100
    Apache Pulsar's, which sends a whole read for the last permit."""

    def __init__(self, entries: list[int], read_max: int) -> None:
        self.entries = deque(entries)
        self.read_max = read_max
        self.permits = 0
        self.sent = 0

    def flow(self, permits: int) -> list[int]:
        self.permits += permits
        found = []
        while self.permits > 0 and self.entries:
            for _ in range(min(self.read_max, self.permits)):
                if self.entries:
                    found.append(self.entries.popleft())
                    self.permits -= found[-1]
        self.sent += len(found)
        return found


@given(
    wanted=st.lists(st.integers(1, 60), min_size=1, max_size=400),
    uniform=st.booleans(),
    read_max=st.sampled_from([1, 100]),
    queue_size=st.sampled_from([1, 2, 10, 1000, 20_000]),
    lazy=st.integers(0, 5),
)
def test_a_reader_that_stops_gets_every_entry_and_none_beyond(wanted, uniform, read_max, queue_size, lazy):
    if uniform:
        wanted = [wanted[0]] * len(wanted)
    broker = _Sender([*wanted, *[60] * 300], read_max)
    control = flow(queue_size)
    control.overshoot = read_max
    control.stop_after(len(wanted))
    wire: deque[int] = deque(broker.flow(control.take_grant()))
    arrived = 0
    queued: deque[Release] = deque()
    while wire:
        # Several entries lie on the wire when the first of them is seen.
        for _ in range(min(1 + lazy, len(wire))):
            count = wire.popleft()
            arrived += 1
            control.stop_after(max(0, len(wanted) - arrived))
            queued += [release for _, release in control.arrived(count, count)]
            wire += broker.flow(control.take_grant())
        while queued:
            control.released(queued.popleft())
            wire += broker.flow(control.take_grant())
    assert arrived >= len(wanted)
    if uniform:
        assert broker.sent == len(wanted)
    else:
        # The next entries may hold more messages than any before, and so bring the balance down faster.
        assert broker.sent >= len(wanted)
    assert control.outstanding <= max(0, len(wanted) - arrived)
