"""Start position of a consumer on each connection."""

from __future__ import annotations

from geminga.consumer.message import ConsumerOrigin, ReceivedEntry
from geminga.consumer.seek import NO_FILTER, ConsumerPosition
from geminga.ids import MessageId

START = MessageId(-1, 4, 2)


def entry(ledger_id: int, entry_id: int) -> ReceivedEntry:
    return ReceivedEntry(ConsumerOrigin("persistent://public/default/t", -1), ledger_id, entry_id, None)


def test_a_durable_start_counts_once():
    place = ConsumerPosition(START, inclusive=True, is_durable=True)
    assert place.attach() == START
    assert place.filter is not NO_FILTER
    place.last_queued = entry(5, 1), -1
    place.detach((entry(5, 0), 0))
    assert place.attach() is None
    assert place.filter is NO_FILTER
    place.moved(START)
    assert place.attach() == START
    place.moved(1_700_000_000_000)
    assert place.attach() is None


def test_a_reader_resumes_at_the_position_of_the_application():
    place = ConsumerPosition(START, inclusive=True, is_durable=False)
    place.attach()
    place.last_queued = entry(5, 7), -1
    place.detach(None)
    assert (place.start, place.inclusive) == (MessageId(-1, 5, 7), False)
    place.detach((entry(5, 6), -1))
    assert (place.start, place.inclusive) == (MessageId(-1, 5, 6), True)


def test_pin_turns_latest_into_a_position_once():
    place = ConsumerPosition(MessageId.latest, inclusive=False, is_durable=False)
    assert place.attach() == MessageId.latest
    place.pin(MessageId(-1, 4, 2))
    assert place.attach() == MessageId(-1, 4, 3)
    place.pin(MessageId(-1, 9, 9))  # it is one already
    assert place.attach() == MessageId(-1, 4, 3)
    place.moved(1_700_000_000_000)
    assert (place.attach(), place.inclusive) == (MessageId.earliest, True)
    place.begin_anew()
    assert (place.attach(), place.inclusive) == (MessageId.latest, False)
    place.pin(MessageId.earliest)
    assert (place.attach(), place.inclusive) == (MessageId.earliest, True)
