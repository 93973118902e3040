import pytest

from geminga.consumer.seek import (
    ALL_INDEXES,
    NO_FILTER,
    ConsumerPosition,
    is_after,
    seek_ack_set,
    start_filter,
)
from geminga.ids import MessageId

EMPTY = MessageId(-1, -1, -1)


def test_earliest_and_latest_filter_no_message():
    for position in (None, MessageId.earliest, MessageId.latest, MessageId(4, -1, -1)):
        assert start_filter(position, inclusive=False, below=True) is NO_FILTER
    assert NO_FILTER.first_wanted((0, 0)) == 0


@pytest.mark.parametrize(
    ("position", "inclusive", "first"),
    [
        (MessageId(-1, 5, 6), True, 0),
        (MessageId(-1, 5, 6), False, ALL_INDEXES),
        (MessageId(-1, 5, 6, 2, batch_size=10), True, 2),
        (MessageId(-1, 5, 6, 2, batch_size=10), False, 3),
        (MessageId(-1, 5, 6, 2), False, 3),
        (MessageId(-1, 5, 6, 9, batch_size=10), False, ALL_INDEXES),
    ],
)
def test_within_the_entry(position, inclusive, first):
    found = start_filter(position, inclusive=inclusive, below=True)
    assert found.first_wanted((5, 6)) == first
    assert found.first_wanted((5, 7)) == 0
    assert found.first_wanted((6, 0)) == 0
    assert found.first_wanted((5, 5)) == ALL_INDEXES
    assert start_filter(position, inclusive=inclusive, below=False).first_wanted((5, 5)) == 0


def test_chunked_messages():
    position = MessageId(-1, 5, 9, first_chunk=MessageId(-1, 5, 6))
    assert start_filter(position, inclusive=True, below=True).key == (5, 6)
    assert start_filter(position, inclusive=False, below=True).first_wanted((5, 9)) == ALL_INDEXES


@pytest.mark.parametrize(
    ("last", "position", "inclusive", "expected"),
    [
        (EMPTY, MessageId.earliest, True, False),
        (EMPTY, MessageId(-1, 1, 1), True, False),
        (MessageId(-1, 1, 5), MessageId.earliest, False, True),
        (MessageId(-1, 1, 5), MessageId.latest, False, False),
        (MessageId(-1, 1, 5), MessageId(-1, 1, 4), False, True),
        (MessageId(-1, 1, 5), MessageId(-1, 1, 5), False, False),
        (MessageId(-1, 1, 5), MessageId(-1, 1, 5), True, True),
        (MessageId(-1, 2, 0), MessageId(-1, 1, 5), False, True),
        (MessageId(-1, 1, 5, 9), MessageId(-1, 1, 5, 8), False, True),
        (MessageId(-1, 1, 5, 9), MessageId(-1, 1, 5, 9), False, False),
        (MessageId(-1, 1, 5, 9), MessageId(-1, 1, 5), False, False),
        (MessageId(2, 1, 5), MessageId(-1, 1, 6), False, False),
    ],
)
def test_a_position_is_compared_with_the_last_id(last, position, inclusive, expected):
    assert is_after(last, position, inclusive=inclusive) is expected


def test_ack_set_keeps_what_comes_from_the_position_on():
    assert seek_ack_set(MessageId(-1, 1, 1, 2, batch_size=5), 2) == [0b11100]
    assert seek_ack_set(MessageId(-1, 1, 1, 2), 2) == []
    assert seek_ack_set(MessageId(-1, 1, 1), 0) == []


def test_a_reader_that_was_moved_to_a_time_is_not_started_at_its_former_position():
    place = ConsumerPosition(MessageId(-1, 4, 2), inclusive=False, is_durable=False)
    place.attach()
    place.moved(1_700_000_000_000)
    assert (place.attach(), place.inclusive, place.filter) == (MessageId.earliest, True, NO_FILTER)
