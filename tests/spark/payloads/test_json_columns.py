"""JSON payloads that are parsed at once have the values of payloads parsed one by one, to the last digit."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from geminga.spark.payloads.json_text import JsonReader
from geminga.spark.payloads.nodes import SchemaField, SchemaNode
from geminga.spark.payloads.writing import node_of_type

_TYPES: list[DataType] = [
    TimestampType(), TimestampNTZType(), DateType(), BinaryType(), DecimalType(20, 6), LongType(),
    StringType(), ArrayType(TimestampType()), StructType().add("t", TimestampType()).add("b", BinaryType()),
    StructType().add("t", StringType()).add("b", LongType()), ArrayType(StringType()), DoubleType(),
    MapType(StringType(), StringType()), MapType(StringType(), StructType().add("t", StringType())),
    MapType(StringType(), TimestampType()), MapType(StringType(), DecimalType(20, 6)),
]  # fmt: skip
_DAYS = st.sampled_from(
    ["2024-02-29", "2023-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "2024-03-31", "2024-10-27",
     "1883-11-18", "2038-01-01", "2024-5-6", "0000-01-01", "10000-01-01", "2024"]
)  # fmt: skip
_CLOCKS = st.sampled_from(
    ["T00:00:00", " 02:30:00", "T23:59:59.999999", " 12:00:00.1", "T12:00:00.1234567", "T24:00:00", "T1:2:3",
     "T12:00", "", "T12:00:60"]
)  # fmt: skip
_ZONES = st.sampled_from(["", "Z", "+01:00", " Europe/Rome", "ZZ", "z"])
_TIMES = st.builds("".join, st.tuples(_DAYS, _CLOCKS, _ZONES)) | st.integers(-(1 << 63), 1 << 63)
_VALUES = (
    st.none()
    | _TIMES
    | st.sampled_from(
        [
            "YWJj", "YWJ", "ü", "", "1.5", True, 1.5, -0.0, 1e-7, 1e22, 1700000000, " 2024-05-06",
            '{"v":1,"t":2}',
        ]
    )
)  # fmt: skip
_PAYLOADS = (
    _VALUES
    | st.lists(_VALUES, max_size=3)
    | st.fixed_dictionaries({}, optional={"t": _VALUES, "b": _VALUES, "u": st.just({})})
)


def fields(kind: DataType) -> SchemaNode:
    return node_of_type(StructType().add("v", kind))


@pytest.mark.parametrize("kind", _TYPES, ids=str)
@settings(max_examples=25)
@given(
    values=st.lists(_PAYLOADS, min_size=1, max_size=8),
    zone=st.sampled_from(["UTC", "Europe/Rome", "-02:30", ""]),
)
def test_payloads_parsed_at_once_equal_payloads_parsed_by_python(kind, values, zone):
    reader = JsonReader(fields(kind), zone=zone)
    payloads = pa.array([json.dumps({"v": value}).encode() for value in values], pa.binary())
    found, damaged = reader.read(payloads)
    expected, expected_damaged = reader.exactly(payloads)
    assert damaged.tolist() == expected_damaged.tolist()
    assert found.equals(expected), (found, expected)


_NESTED = node_of_type(
    StructType()
    .add("t", StringType())
    .add("m", MapType(StringType(), LongType()))
    .add("n", MapType(StringType(), MapType(StringType(), StringType())))
    .add("s", StructType().add("t", StringType()).add("m", MapType(StringType(), DoubleType())))
    .add("a", ArrayType(StructType().add("t", StringType()).add("i", LongType())))
)
_TOKENS = st.sampled_from(
    ["null", "true", "false", "0", "-0", "7", "-12.50", "0.0000001", "1e5", "NaN", "01", "1.", "tru", "1 2",
     '"x"', r'"\n\"\\"', r'"\u00e9"', r'"\/"', r'"\x"', '"\x01"', '"ü,]}"', '"', "[", "{", "]",
     "}", ",", "{}", "[]", "[1,]"]
)  # fmt: skip
_KEYS = st.sampled_from(['"t"', '"m"', '"n"', '"s"', '"a"', '"i"', '"u"', '""', r'"\u0074"', r'"\n"', "t"])
_BLANKS = st.sampled_from(["", "", "", " ", "\n\t"])


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON texts of objects and arrays, with duplicate keys and blanks."""
    pairs = st.builds("{0}{1}{0}:{0}{2}{0}".format, _BLANKS, _KEYS, values)
    return st.builds("{{{}}}".format, st.lists(pairs, max_size=3).map(",".join)) | st.builds(
        "[{}]".format, st.lists(values, max_size=3).map(",".join)
    )


_FITTING = st.fixed_dictionaries(
    {},
    optional={
        "t": st.recursive(_TOKENS, _containers, max_leaves=6),
        "m": st.recursive(_TOKENS, _containers, max_leaves=3),
        "n": st.recursive(_TOKENS, _containers, max_leaves=6),
        "s": st.recursive(_TOKENS, _containers, max_leaves=6),
        "a": st.recursive(_TOKENS, _containers, max_leaves=6),
    },
).map(lambda fields: "{{{}}}".format(", ".join(f'"{name}": {text}' for name, text in fields.items())))


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(_FITTING | _TOKENS, min_size=1, max_size=3))
def test_maps_and_values_as_text_equal_those_parsed_by_python(texts):
    reader = JsonReader(_NESTED)
    payloads = pa.array([text.encode() for text in texts], pa.binary())
    expected, expected_damaged = reader.exactly(payloads)
    found, damaged = reader.read(payloads)
    assert damaged.tolist() == expected_damaged.tolist()
    assert found.equals(expected), (found, expected)


@pytest.mark.parametrize("kind", _TYPES[:6], ids=str)
def test_columns_in_the_usual_notation_need_no_python_object_per_row(kind, monkeypatch):
    text = {
        "timestamp": "2024-05-06T07:08:09.5Z", "timestamp_ntz": "2024-05-06 07:08:09", "date": "2024-05-06",
    }  # fmt: skip
    value = text.get(kind.typeName(), "YWJj" if kind == BinaryType() else 17)
    reader = JsonReader(fields(kind), zone="Europe/Rome")
    expected, _ = reader.exactly(payloads := pa.array([json.dumps({"v": value}).encode()] * 200))
    monkeypatch.setattr(JsonReader, "exactly", None)
    found, damaged = reader.read(payloads)
    assert found.equals(expected)
    assert not damaged.any()


def test_maps_and_values_as_text_need_no_python_object_per_row(monkeypatch):
    value = {"t": {"t": [1, "ü", 2.5, {}]}, "m": {"a": 1}, "n": {"a": {"b": True}}, "a": [{"t": 7, "i": 1}]}
    reader = JsonReader(_NESTED)
    expected, _ = reader.exactly(payloads := pa.array([json.dumps(value, ensure_ascii=False).encode()] * 200))
    monkeypatch.setattr(JsonReader, "exactly", None)
    found, damaged = reader.read(payloads)
    assert found.equals(expected)
    assert not damaged.any()
    assert found[0].as_py()["t"] == '{"t":[1,"ü",2.5,{}]}'
    assert found[0].as_py()["n"] == [("a", [("b", "true")])]


def test_numbers_in_time_columns_are_read_in_the_unit_of_the_schema():
    node = SchemaNode("record", fields=(SchemaField("v", SchemaNode("long", "timestamp-millis")),))
    reader = JsonReader(node)
    payloads = pa.array([b'{"v":1700000000123}'] * 100 + [b'{"v":"2024-05-06T07:08:09Z"}'] * 100, pa.binary())
    found, damaged = reader.read(payloads)
    assert found.equals(reader.exactly(payloads)[0])
    assert not damaged.any()
    assert found[0].as_py()["v"].microsecond == 123_000
