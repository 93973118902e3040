"""Schema compatibility: Avro's reading rules under each strategy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geminga.broker.compatibility import check_compatible, same_schema
from geminga.broker.refusal import Refused
from geminga.wire.proto import pulsar_wire_pb2 as pb


def avro(document: Any) -> pb.Schema:
    return pb.Schema(name="", schema_data=json.dumps(document).encode(), type=pb.Schema.Avro)


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name: str, kind: Any = "string", **extra: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **extra}


def fits(new: Any, *old: Any, strategy: str = "BACKWARD", for_consumer: bool = False) -> bool:
    try:
        check_compatible(avro(new), [avro(each) for each in old], strategy, for_consumer=for_consumer)
    except Refused:
        return False
    return True


A = field("a")
B_DEFAULT = field("b", default="")
B = field("b")

STRATEGIES = [
    # new, old, BACKWARD, FORWARD, FULL
    (record(A), record(A), True, True, True),
    (record(A, B_DEFAULT), record(A), True, True, True),
    (record(A, B), record(A), False, True, False),
    (record(A), record(A, B), True, False, False),
    (record(A), record(A, B_DEFAULT), True, True, True),
]


@pytest.mark.parametrize(("new", "old", "backward", "forward", "full"), STRATEGIES)
def test_strategies(new: Any, old: Any, backward: bool, forward: bool, full: bool) -> None:
    for suffix in ("", "_TRANSITIVE"):
        assert fits(new, old, strategy=f"BACKWARD{suffix}") == backward
        assert fits(new, old, strategy=f"FORWARD{suffix}") == forward
        assert fits(new, old, strategy=f"FULL{suffix}") == full
    assert fits(new, old, strategy="UNDEFINED") == full
    assert fits(new, old, strategy="ALWAYS_COMPATIBLE")
    assert not fits(new, old, strategy="ALWAYS_INCOMPATIBLE")
    assert fits(new, strategy="ALWAYS_INCOMPATIBLE")


def test_transitive_strategies_look_at_every_version() -> None:
    history = [record(A), record(A, B_DEFAULT)]
    new = record(B, A)
    assert fits(new, *history, strategy="BACKWARD")
    assert not fits(new, *history, strategy="BACKWARD_TRANSITIVE")


def test_consumers_only_read() -> None:
    assert fits(record(A), record(A, B), strategy="FORWARD", for_consumer=True)
    assert not fits(record(A, B), record(A), strategy="FORWARD", for_consumer=True)


READING = [
    # reader, writer, can it be read
    ("long", "int", True),
    ("int", "long", False),
    ("double", "float", True),
    ("bytes", "string", True),
    (["null", "string"], "string", True),
    ("string", ["null", "string"], False),
    (["null", "int"], "string", False),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, False),
    ({"type": "map", "values": "string"}, {"type": "map", "values": "string"}, True),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, False),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["A"]},
        True,
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        False,
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        True,
    ),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, False),
    (record(field("x", aliases=["old"])), record(field("old")), True),
]


@pytest.mark.parametrize(("reader", "writer", "readable"), READING)
def test_reading(reader: Any, writer: Any, readable: bool) -> None:
    assert fits(record(field("f", reader)), record(field("f", writer))) == readable


@pytest.mark.parametrize("fields", [["no object"], 5, [{"name": []}], None])
def test_malformed_records_do_not_fit(fields: Any) -> None:
    assert not fits({"type": "record", "name": "R", "fields": fields}, record(A))


def test_recursive_records_end() -> None:
    node = {"type": "record", "name": "Node", "fields": [field("next", ["null", "Node"], default=None)]}
    assert fits(node, node, strategy="FULL")


def test_a_schema_nested_without_end_is_refused() -> None:
    deep: Any = "string"
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    assert not fits(record(field("f", deep)), record(field("f", deep)))


def test_what_is_no_json_does_not_fit() -> None:
    good = avro(record(A))
    with pytest.raises(Refused, match="no JSON"):
        check_compatible(pb.Schema(name="", schema_data=b"{", type=pb.Schema.Avro), [good], "FULL")
    check_compatible(good, [pb.Schema(name="", schema_data=b"{", type=pb.Schema.Avro)], "FULL")


def test_types_do_not_change() -> None:
    text = pb.Schema(name="", schema_data=b"", type=pb.Schema.String)
    with pytest.raises(Refused, match="exists schema type AVRO, new schema type STRING"):
        check_compatible(text, [avro(record(A))], "BACKWARD")
    check_compatible(text, [text], "FULL")


def test_same() -> None:
    spaced = pb.Schema(name="x", schema_data=json.dumps(record(A), indent=4).encode(), type=pb.Schema.Avro)
    assert same_schema(spaced, avro(record(A)))
    assert not same_schema(spaced, avro(record(A, B)))
    cpp = pb.Schema(name="", schema_data=b"null", type=pb.Schema.Int32)
    java = pb.Schema(name="", schema_data=b"", type=pb.Schema.Int32)
    assert same_schema(cpp, java)
    assert not same_schema(java, pb.Schema(name="", schema_data=b"", type=pb.Schema.Int64))
