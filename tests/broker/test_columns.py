"""Columns of numbers against plain lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.entries.columns import IntegerColumn
from geminga.broker.entries.records import RecordReader
from geminga.errors import StoreDamaged

NUMBERS = st.lists(
    st.one_of(st.integers(0, 255), st.integers(1000, 1100), st.integers(0, (1 << 64) - 1)), max_size=50
)


@given(NUMBERS, st.data())
def test_a_column_is_the_list_it_was_made_from(numbers, data):
    out = bytearray()
    IntegerColumn(numbers).encode(out)
    reader = RecordReader(bytes(out), "r")
    for column in (IntegerColumn(numbers), IntegerColumn.decode(reader)):
        assert list(column) == numbers
        assert len(column) == len(numbers)
        assert [column[index] for index in range(len(numbers))] == numbers
        start = data.draw(st.integers(0, len(numbers)))
        stop = data.draw(st.integers(start, len(numbers)))
        assert column.sum(start, stop) == sum(numbers[start:stop])
        chosen = data.draw(st.sets(st.integers(0, max(0, len(numbers) - 1)), max_size=len(numbers)))
        assert column.sum_where(sum(1 << index for index in chosen)) == sum(numbers[at] for at in chosen)
    assert not reader


@pytest.mark.parametrize(
    ("numbers", "width"),
    [([7] * 100, 0), ([130, 140] * 50, 1), ([0, 256] * 50, 2), ([0, 65_536] * 50, 4), ([0, 1 << 32] * 50, 8)],
)
def test_a_column_is_as_narrow_as_its_numbers_allow(numbers, width):
    out = bytearray()
    IntegerColumn(numbers).encode(out)
    assert len(out) <= 4 + 100 * width
    assert IntegerColumn(numbers).held_bytes <= 200 + 100 * width


def test_damaged_columns_are_named():
    with pytest.raises(StoreDamaged, match="a column of 3 bytes a number"):
        IntegerColumn.decode(RecordReader(b"\x01\x00\x03", "r"))
    with pytest.raises(StoreDamaged, match="8 bytes are announced but missing"):
        IntegerColumn.decode(RecordReader(b"\x01\x00\x08", "r"))


def test_columns_of_equal_numbers_are_recognised():
    for numbers in ([1, 1, 1, 1], [1, 1, 2, 1], [0, 1, 1, 1], [5, 1 << 40, 1, 1]):
        column = IntegerColumn(numbers)
        for start in range(4):
            for stop in range(start + 1, 5):
                for number in (0, 1, 2):
                    expected = set(numbers[start:stop]) == {number}
                    assert column.all_are(number, start, stop) == expected
