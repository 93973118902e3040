"""Dates and times; test_generic.py compares their payloads with Java's."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga import schema
from geminga.errors import CorruptPayload

UTC = dt.UTC
KINDS = [
    schema.DateSchema, schema.TimestampSchema, schema.TimeSchema, schema.InstantSchema,
    schema.LocalDateSchema, schema.LocalTimeSchema, schema.LocalDateTimeSchema,
]  # fmt: skip


@given(st.datetimes(timezones=st.just(UTC)))
def test_moments_are_decoded_as_encoded(value):
    assert schema.InstantSchema().decode(schema.InstantSchema().encode(value)) == value
    cut = value.replace(microsecond=value.microsecond // 1000 * 1000)
    assert schema.DateSchema().decode(schema.DateSchema().encode(value)) == cut


@given(st.datetimes())
def test_local_times_are_decoded_as_encoded(value):
    for kind, part in (
        (schema.LocalDateTimeSchema, value),
        (schema.LocalDateSchema, value.date()),
        (schema.LocalTimeSchema, value.time()),
    ):
        assert kind().decode(kind().encode(part)) == part


def test_times_of_other_zones_are_converted():
    value = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    for kind in (schema.InstantSchema, schema.DateSchema, schema.TimestampSchema):
        decoded = kind().decode(kind().encode(value))
        assert decoded == value
        assert decoded.tzinfo is UTC


NAIVE, AWARE = dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (schema.InstantSchema, NAIVE), (schema.DateSchema, NAIVE), (schema.DateSchema, NAIVE.date()),
        (schema.LocalDateTimeSchema, AWARE), (schema.LocalDateSchema, NAIVE), (schema.LocalDateSchema, 5),
        (schema.LocalTimeSchema, AWARE.timetz()), (schema.TimeSchema, AWARE.timetz()),
        (schema.TimeSchema, NAIVE), (schema.TimestampSchema, 1.5),
    ],
)  # fmt: skip
def test_ambiguous_times_are_refused(kind, value):
    with pytest.raises(TypeError, match=kind.__name__):
        kind().encode(value)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_payloads_are_refused(kind):
    codec = kind()
    size = codec._layout.size
    for data in (b"", bytes(size - 1), bytes(size + 1)):
        with pytest.raises(CorruptPayload, match=f"takes {size} bytes"):
            codec.decode(data)
    if kind is not schema.TimeSchema:  # every number of milliseconds has a time of day
        with pytest.raises(CorruptPayload):
            codec.decode(b"\x7f" + b"\xff" * (size - 1))
