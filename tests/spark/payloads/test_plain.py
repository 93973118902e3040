"""Primitive schemas against the schemas of `geminga.schema`, which write them."""

import datetime as dt

import pyarrow as pa
import pytest

from geminga import schema as schemas
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.plain import PlainReader, split_pairs

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=dt.UTC)
LOCAL = NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("schema", "values", "read"),
    [
        (schemas.StringSchema(), ["", "äö"], None),
        (schemas.BooleanSchema(), [True, False], None),
        (schemas.Int8Schema(), [-128, 127], None),
        (schemas.Int16Schema(), [-(1 << 15), 5], None),
        (schemas.Int32Schema(), [-(1 << 31), 5], None),
        (schemas.Int64Schema(), [-(1 << 63), 5], None),
        (schemas.FloatSchema(), [0.5, -2.0], None),
        (schemas.DoubleSchema(), [1 / 3, -2.0], None),
        (schemas.TimestampSchema(), [NOON], [NOON.replace(microsecond=123_000)]),
        (schemas.InstantSchema(), [NOON, dt.datetime(1901, 1, 1, tzinfo=dt.UTC)], None),
        (schemas.LocalDateSchema(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)], None),
        (schemas.LocalDateTimeSchema(), [LOCAL], None),
        (schemas.LocalTimeSchema(), [dt.time(0, 0, 1)], [1_000_000_000]),
    ],
    ids=lambda each: str(each) if isinstance(each, schemas.Schema) else "",
)
def test_plain_values_are_read(schema, values, read):
    reader = PlainReader(definition_of(schema.schema_info()).root)
    raw = [schema.encode(value) for value in values]
    found, damaged = reader.read(pa.array([*raw, None], pa.binary()))
    assert found.to_pylist() == [*(read or values), None]
    assert not damaged.any()
    if not isinstance(schema, schemas.StringSchema):
        found, damaged = reader.read(pa.array([raw[0] + b"x", b"", raw[0]], pa.binary()))
        assert damaged.tolist() == [True, True, False]
        assert found.to_pylist()[:2] == [None, None]


def test_invalid_utf_8_is_damage():
    reader = PlainReader(definition_of(schemas.StringSchema().schema_info()).root)
    found, damaged = reader.read(pa.array([b"a", b"\xff", None], pa.binary()))
    assert (found.to_pylist(), damaged.tolist()) == (["a", None, None], [False, True, False])


def test_pairs_are_split_and_damaged_ones_reported():
    pair = schemas.KeyValueSchema(schemas.StringSchema(), schemas.StringSchema())
    good = [pair.encode(("k", "v")), pair.encode((None, "v")), pair.encode(("", None))]
    bad = [b"", good[0][:-1], good[0] + b"x", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe\0\0\0\0", good[0][:6]]
    keys, values, damaged = split_pairs(pa.array([*good, *bad, None], pa.binary()))
    assert damaged.tolist() == [False] * 3 + [True] * len(bad) + [False]
    assert keys.to_pylist()[:3] == [b"k", None, b""]
    assert values.to_pylist()[:3] == [b"v", b"v", None]
    assert set(keys.to_pylist()[3:]) == {None}
