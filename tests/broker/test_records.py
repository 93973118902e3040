"""Durable records: what is written is read back, what is cut is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.entries.records import RecordReader, put_bytes, put_varint
from geminga.errors import StoreDamaged


@given(st.lists(st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=50))))
def test_records_are_decoded_as_encoded(items):
    out = bytearray()
    for item in items:
        put_varint(out, item) if isinstance(item, int) else put_bytes(out, item)
    reader = RecordReader(bytes(out), "r")
    assert [reader.varint() if isinstance(item, int) else reader.blob() for item in items] == items
    assert not reader


def test_truncated_records_are_named():
    out = bytearray()
    put_bytes(out, b"12345")
    with pytest.raises(StoreDamaged, match="the thing: 5 bytes are announced but missing at byte 1 of 4"):
        RecordReader(bytes(out[:4]), "the thing").blob()
    with pytest.raises(StoreDamaged, match="a number does not end"):
        RecordReader(b"\x80", "the thing").varint()
