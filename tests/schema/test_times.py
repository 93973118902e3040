"""Dates and times, judged by what Java's classes printed."""

import datetime as dt
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga import schema
from geminga.errors import CorruptPayload

UTC = dt.UTC
VECTORS = Path(__file__).parent.parent / "vectors" / "schemas.jsonl"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


def moment(text):
    return EPOCH + dt.timedelta(milliseconds=int(text))


def time_of_day(text):
    return (EPOCH + dt.timedelta(milliseconds=int(text) % 86_400_000)).time()


KINDS = {
    "date": (schema.DateSchema, moment),
    "timestamp": (schema.TimestampSchema, moment),
    "time": (schema.TimeSchema, time_of_day),
    "instant": (schema.InstantSchema, dt.datetime.fromisoformat),
    "local_date": (schema.LocalDateSchema, dt.date.fromisoformat),
    "local_time": (schema.LocalTimeSchema, dt.time.fromisoformat),
    "local_date_time": (schema.LocalDateTimeSchema, dt.datetime.fromisoformat),
}


def test_payloads_equal_those_of_java():
    found = set()
    for line in VECTORS.read_text().splitlines():
        vector = json.loads(line)
        if vector["case"] not in KINDS:
            continue
        found.add(vector["case"])
        kind, parse = KINDS[vector["case"]]
        codec, value, payload = kind(), parse(vector["value"]), bytes.fromhex(vector["payload"])
        assert codec.decode(payload) == value
        # java.sql.Time may hold a day, too; a time of day is written without.
        whole = vector["case"] != "time" or 0 <= int(vector["value"]) < 86_400_000
        assert not whole or codec.encode(value) == payload
        info = codec.schema_info()
        assert (info.type, info.name, info.data.hex()) == (vector["type"], vector["name"], vector["data"])
    assert found == set(KINDS)


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


@pytest.mark.parametrize("case", sorted(KINDS))
def test_invalid_payloads_are_refused(case):
    codec = KINDS[case][0]()
    size = codec._layout.size
    for data in (b"", bytes(size - 1), bytes(size + 1)):
        with pytest.raises(CorruptPayload, match=f"takes {size} bytes"):
            codec.decode(data)
    if case != "time":  # every number of milliseconds has a time of day
        with pytest.raises(CorruptPayload):
            codec.decode(b"\x7f" + b"\xff" * (size - 1))
