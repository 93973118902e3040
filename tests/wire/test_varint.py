"""Varints: the tables against protobuf's own encoder, and the reader's refusals."""

import pytest
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given
from hypothesis import strategies as st

from geminga.wire.varint import MINUS_ONE, SHORT, U64_MASK, read_varint, varint, varints

EDGES = [n for bits in range(0, 64, 7) for n in ((1 << bits) - 1, 1 << bits)] + [16383, 16384, U64_MASK]


@pytest.mark.parametrize("value", EDGES)
def test_varints_at_the_edges_of_their_lengths_round_trip(value):
    assert varint(value) == SHORT[value] == _VarintBytes(value)
    assert read_varint(b"\xff" + varint(value) + b"\xff", 1) == (value, 1 + len(varint(value)))


@given(st.integers(0, U64_MASK))
def test_any_number(value):
    assert varint(value) == _VarintBytes(value)
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


@given(st.one_of(st.sampled_from(EDGES), st.integers(0, 1 << 62)), st.integers(1, 400))
def test_many_that_follow_each_other(first, count):
    assert varints(first, count) == [varint(value) for value in range(first, first + count)]


def test_negative_numbers_take_ten_bytes():
    assert varint(-1) == SHORT[-1] == MINUS_ONE
    assert varint(-(1 << 63)) == _VarintBytes(1 << 63)


@pytest.mark.parametrize("value", EDGES)
def test_data_that_ends_inside_a_varint(value):
    data = varint(value)
    for end in range(len(data)):
        with pytest.raises(IndexError):
            read_varint(data[:end], 0)


@pytest.mark.parametrize("data", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 100])
def test_overlong_varints_are_refused(data):
    with pytest.raises(ValueError, match="varint"):
        read_varint(data, 0)


def test_the_tables_stay_small():
    for value in range(20000):
        varint(value)
    assert len(SHORT) <= 16384
