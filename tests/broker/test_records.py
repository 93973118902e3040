"""Durable records: what is written is read back, what is cut is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.records import RecordReader, put_bytes, put_numbers, put_varint
from geminga.errors import StoreDamaged


@given(st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=50))))
def test_what_is_written_is_read_back(items: list[int | bytes]) -> None:
    out = bytearray()
    for item in items:
        put_varint(out, item) if isinstance(item, int) else put_bytes(out, item)
    reader = RecordReader(bytes(out), "r")
    assert [reader.varint() if isinstance(item, int) else reader.blob() for item in items] == items
    assert not reader


def test_cut_records_are_named() -> None:
    out = bytearray()
    put_bytes(out, b"12345")
    with pytest.raises(StoreDamaged, match="the thing: 5 bytes are announced but missing at byte 1 of 4"):
        RecordReader(bytes(out[:4]), "the thing").blob()
    with pytest.raises(StoreDamaged, match="a number does not end"):
        RecordReader(b"\x80", "the thing").varint()


def test_a_bitmap_is_a_number() -> None:
    assert RecordReader(b"\x05\x01", "r").bitmap(2) == 0x105


@given(st.lists(st.one_of(st.integers(0, 255), st.integers(0, (1 << 64) - 1))))
def test_a_column_of_numbers_is_read_back(numbers: list[int]) -> None:
    out = bytearray()
    put_numbers(out, numbers)
    reader = RecordReader(bytes(out), "r")
    assert list(reader.numbers()) == numbers
    assert not reader


def test_a_column_is_as_narrow_as_its_numbers_allow() -> None:
    for highest, width in ((255, 1), (256, 2), (65_536, 4), (1 << 32, 8)):
        out = bytearray()
        put_numbers(out, [highest] * 100)
        assert len(out) == 2 + 100 * width


def test_damaged_columns_are_named() -> None:
    with pytest.raises(StoreDamaged, match="a column of 3 bytes a number"):
        RecordReader(b"\x03\x01\x00", "r").numbers()
    with pytest.raises(StoreDamaged, match="8 bytes are announced but missing"):
        RecordReader(b"\x08\x01\x00", "r").numbers()
