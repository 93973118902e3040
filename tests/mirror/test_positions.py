"""Positions: sequence ids that say them, and their text."""

import pytest

from geminga.errors import OperationNotSupported, ProtocolError
from geminga.mirror.positions import (
    ENTRIES_MAX,
    LEDGERS_MAX,
    NOWHERE,
    Position,
    parse_position,
    position_of,
    sequence_id_of,
)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (7, 49_999), (LEDGERS_MAX - 1, ENTRIES_MAX - 1)])
def test_a_sequence_id_says_its_position(place):
    position = Position(*place)
    assert position_of(sequence_id_of(position)) == position
    assert 0 <= sequence_id_of(position) < 1 << 63


def test_sequence_ids_grow_with_positions():
    places = [Position(0, 0), Position(0, ENTRIES_MAX - 1), Position(1, 0), Position(5, 3), Position(6, 0)]
    ids = [sequence_id_of(place) for place in places]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("place", [(LEDGERS_MAX, 0), (0, ENTRIES_MAX), (-1, 0), (0, -1)])
def test_a_position_that_fits_no_sequence_id_is_refused(place):
    with pytest.raises(OperationNotSupported, match="can be mirrored"):
        sequence_id_of(Position(*place))


def test_sequence_id_minus_one_is_nowhere():
    assert position_of(-1) == NOWHERE < Position(0, -1) < Position(0, 0)


def test_text():
    assert parse_position("12:-1") == Position(12, -1)
    assert str(Position(3, 4)) == "3:4"
    for text in ("", "3", "a:b", "3:"):
        with pytest.raises(ProtocolError, match="no position"):
            parse_position(text)
