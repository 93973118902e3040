"""JSON payloads: parsed at once where they can be, one by one where one of them is damaged."""

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from geminga.schema_info import SchemaInfo, SchemaType
from geminga.spark.payloads.definitions import definition_of
from geminga.spark.payloads.json_text import JsonReader
from geminga.spark.payloads.nodes import SchemaField, SchemaNode


def node(*fields: tuple[str, Any]) -> SchemaNode:
    definition = {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]}
    data = json.dumps(definition).encode()
    return definition_of(SchemaInfo(type=int(SchemaType.JSON), data=data)).root


FLAT = node(
    ("id", "long"), ("name", ["null", "string"]),
    ("sub", ["null", {"type": "record", "name": "S", "fields": [{"name": "x", "type": "double"}]}]),
    ("tags", {"type": "array", "items": "int"}),
)  # fmt: skip


def payloads(*values: Any) -> pa.Array:
    raw = [v if v is None or isinstance(v, bytes) else json.dumps(v).encode() for v in values]
    return pa.array(raw, pa.binary())


ROW = {"id": 1, "name": "ä\n", "sub": {"x": 1.5}, "tags": [1, 2]}


def test_nan_and_infinity_are_read_as_numbers():
    reader = JsonReader(node(("x", "double")))
    found, damaged = reader.read(payloads(b'{"x":NaN}', {"x": "NaN"}, {"x": "Infinity"}, {"x": "-INF"}))
    assert not damaged.any()
    assert list(map(str, found.field("x").to_pylist())) == ["nan", "nan", "inf", "-inf"]


def test_payloads_are_parsed_together():
    reader = JsonReader(FLAT)
    indented = json.dumps(ROW, indent=True).encode()
    given = payloads(ROW, indented, {"id": 2, "more": [{}]}, None, b"  {}\n", {"sub": {"x": 3}, "name": None})
    assert reader._at_once(given) is not None
    found, damaged = reader.read(given)
    assert not damaged.any()
    empty = {"id": None, "name": None, "sub": None, "tags": None}
    assert found.to_pylist() == [
        ROW, ROW, {**empty, "id": 2}, None, empty, {**empty, "sub": {"x": 3.0}},
    ]  # fmt: skip


def test_a_byte_order_mark_is_skipped():
    found, damaged = JsonReader(FLAT).read(payloads(b"\xef\xbb\xbf" + json.dumps(ROW).encode()))
    assert (found.to_pylist(), damaged.tolist()) == ([ROW], [False])


def test_a_number_is_no_base64_text_where_a_text_field_has_the_same_name():
    sub = SchemaNode("record", fields=(SchemaField("key", SchemaNode("bytes")),))
    reader = JsonReader(
        SchemaNode("record", fields=(SchemaField("key", SchemaNode("text")), SchemaField("sub", sub)))
    )
    _, damaged = reader.read(payloads({"key": 5}, {"sub": {"key": 1234}}, {"sub": {"key": "1234"}}))
    assert damaged.tolist() == [False, True, False]


BAD = [
    b"", b" ", b"{", b"}", b'{"id":1', b"{}{}",
    b'{"id":1}}{"v":{"id":2}', b"[1]", b"3", b'{"id":"x"}', b'{"id":1.5}',
    b'{"id":9223372036854775808}', b'{"id":true}', b'{"name":5}', b'{"name":"\xff"}', b'{"name":"\\ud800"}',
    b'{"tags":[2147483648]}', b'{"sub":{"x":1e9999999999999999999}}', b'{"sub":[]}',
    b'{"sub":{"x":"1"}}', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad[:30]))
def test_a_damaged_payload_does_not_affect_others(bad):
    for given, expected in (
        (payloads(ROW, bad, ROW), [False, True, False]),
        (payloads(bad, ROW), [True, False]),
        (payloads(bad), [True]),
    ):
        found, damaged = JsonReader(FLAT).read(given)
        assert damaged.tolist() == expected
        assert found.to_pylist() == [None if is_bad else ROW for is_bad in expected]


def test_damaged_payloads_that_parse_together_are_all_found():
    """As many values as payloads, but not one of each."""
    for pair in (
        (b"{}{}", b""),
        (b'{"id":', b"1}"),
        (b'{"id":1}}\n{"v":{"id":2}', b" "),
        (b'{"name":"', b'"}'),
    ):
        found, damaged = JsonReader(FLAT).read(payloads(ROW, *pair, ROW))
        assert damaged.tolist() == [False, True, True, False]
        assert found.to_pylist() == [ROW, None, None, ROW]


def test_types_that_arrow_cannot_parse_are_read():
    root = node(
        ("raw", "bytes"), ("marks", {"type": "map", "values": "long"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("day", {"type": "int", "logicalType": "date"}), ("any", ["null", "long", "string"]),
    )  # fmt: skip
    found, damaged = JsonReader(root).read(
        payloads(
            {"raw": "YWI=", "marks": {"a": 1}, "price": 12.5, "at": 1000, "day": 1, "any": "w"},
            {"at": "1970-01-01T00:00:01Z", "day": "1970-01-02", "price": "3"},
            {"day": [1970, 1, 2], "any": 5},
            {"price": 12.345},
            {"raw": "?"},
        )
    )
    assert damaged.tolist() == [False, False, False, True, True]
    moment, day = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), dt.date(1970, 1, 2)
    first, second, third, *_ = found.to_pylist()
    assert first == {
        "raw": b"ab", "marks": [("a", 1)], "price": decimal.Decimal("12.50"), "at": moment, "day": day,
        "any": {"member0": None, "member1": "w"},
    }  # fmt: skip
    assert (second["at"], second["day"], second["price"]) == (moment, day, decimal.Decimal("3.00"))
    assert (third["day"], third["any"]) == (day, {"member0": 5, "member1": None})


@pytest.mark.parametrize("bad", [b"{", b'{"id":"x"}', b'{"name":5}', b'{"name":"\\ud800"}'])
@pytest.mark.parametrize("place", [0, 1_500, 4_095])
def test_the_payloads_around_a_damaged_one_are_parsed_together(bad, place, monkeypatch):
    """Parse 4,096 payloads: Python's parser gets 64, Arrow's gets each three times at most, on average."""
    reader = JsonReader(FLAT)
    given = payloads(*[bad if number == place else b'{"id":%d}' % number for number in range(4_096)])
    counts = {"_at_once": 0, "exactly": 0}

    def counting(name: str, real: Any) -> Any:
        def call(piece: pa.Array) -> Any:
            counts[name] += len(piece)
            return real(piece)

        return call

    for name in counts:
        monkeypatch.setattr(reader, name, counting(name, getattr(reader, name)))
    found, damaged = reader.read(given)
    assert damaged.nonzero()[0].tolist() == [place]
    assert [row["id"] for row in found.to_pylist() if row] == [n for n in range(4_096) if n != place]
    assert counts["exactly"] <= 64
    assert counts["_at_once"] <= 3 * len(given)


def test_a_payload_of_many_lines_does_not_stop_the_reader():
    """Arrow names a row behind the last payload, since it takes the lines for values."""
    lines = b"{}}\n" + b'{"v":{"id":1}}\n' * 150 + b'{"v":{"id":"x"}'
    found, damaged = JsonReader(FLAT).read(payloads(*[ROW] * 50, lines, *[ROW] * 50))
    assert damaged.tolist() == [False] * 50 + [True] + [False] * 50
    assert found.to_pylist() == [ROW] * 50 + [None] + [ROW] * 50
