"""Schema compatibility: Avro's reading rules under each strategy."""

import json
from pathlib import Path
from typing import Any

import pytest

from geminga.broker.rules.compatibility import check_compatible, check_definition, meaning
from geminga.broker.runtime.refusal import Refused
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
def test_each_strategy_checks_its_directions(new, old, backward, forward, full):
    for suffix in ("", "_TRANSITIVE"):
        assert fits(new, old, strategy=f"BACKWARD{suffix}") == backward
        assert fits(new, old, strategy=f"FORWARD{suffix}") == forward
        assert fits(new, old, strategy=f"FULL{suffix}") == full
    assert fits(new, old, strategy="UNDEFINED") == full
    assert fits(new, old, strategy="ALWAYS_COMPATIBLE")
    assert not fits(new, old, strategy="ALWAYS_INCOMPATIBLE")
    assert fits(new, strategy="ALWAYS_INCOMPATIBLE")


def test_transitive_strategies_check_every_version():
    history = [record(A), record(A, B_DEFAULT)]
    new = record(B, A)
    assert fits(new, *history, strategy="BACKWARD")
    assert not fits(new, *history, strategy="BACKWARD_TRANSITIVE")


def test_consumers_need_only_read_compatibility():
    assert fits(record(A), record(A, B), strategy="FORWARD", for_consumer=True)
    assert not fits(record(A, B), record(A), strategy="FORWARD", for_consumer=True)


def test_invalid_json_does_not_fit():
    good = avro(record(A))
    with pytest.raises(Refused, match="no JSON"):
        check_compatible(pb.Schema(name="", schema_data=b"{", type=pb.Schema.Avro), [good], "FULL")
    check_compatible(good, [pb.Schema(name="", schema_data=b"{", type=pb.Schema.Avro)], "FULL")


def test_a_schemas_type_cannot_change():
    text = pb.Schema(name="", schema_data=b"", type=pb.Schema.String)
    with pytest.raises(Refused, match="exists schema type AVRO, new schema type STRING"):
        check_compatible(text, [avro(record(A))], "BACKWARD")
    check_compatible(text, [text], "FULL")


def test_equal_schemas_are_recognised():
    spaced = pb.Schema(name="x", schema_data=json.dumps(record(A), indent=4).encode(), type=pb.Schema.Avro)
    assert meaning(spaced) == meaning(avro(record(A)))
    assert meaning(spaced) != meaning(avro(record(A, B)))
    cpp = pb.Schema(name="", schema_data=b"null", type=pb.Schema.Int32)
    java = pb.Schema(name="", schema_data=b"", type=pb.Schema.Int32)
    assert meaning(cpp) == meaning(java)
    assert meaning(java) != meaning(pb.Schema(name="", schema_data=b"", type=pb.Schema.Int64))


VECTORS = json.loads((Path(__file__).parent.parent.parent / "vectors" / "compatibility.json").read_text())
PART_TYPES = {
    "string": ("STRING", ""), "int32": ("INT32", ""), "bytes": ("BYTES", ""),
    "avro_int": ("AVRO", record(field("x", "int"))), "avro_long": ("AVRO", record(field("x", "long"))),
    "json_int": ("JSON", record(field("x", "int"))), "json_long": ("JSON", record(field("x", "long"))),
}  # fmt: skip


def pair(text: str) -> pb.Schema:
    key, value, encoding = text.split("|")
    schema = pb.Schema(name="KeyValue", type=pb.Schema.KeyValue)
    data = b""
    for part, name in (("key", key), ("value", value)):
        kind, definition = PART_TYPES[name]
        own = json.dumps(definition).encode() if definition else b""
        data += len(own).to_bytes(4, "big") + own
        schema.properties.add(key=f"{part}.schema.type", value=kind)
    schema.properties.add(key="kv.encoding.type", value=encoding)
    schema.schema_data = data
    return schema


def test_pairs_are_compared_part_by_part_as_in_java():
    wrong = []
    for line in VECTORS["key_value"]:
        old, new, answers = line.split()
        check_definition(pair(new))
        for strategy, answer in zip(("BACKWARD", "FORWARD", "FULL"), answers, strict=True):
            try:
                check_compatible(pair(new), [pair(old)], strategy)
            except Refused:
                fitting = "n"
            else:
                fitting = "y"
            if fitting != answer:
                wrong.append((line, strategy))
    assert wrong == []


def protobuf(name: str) -> pb.Schema:
    data = json.dumps({"fileDescriptorSet": "", "rootMessageTypeName": name, "rootFileDescriptorName": "f"})
    return pb.Schema(name="", type=pb.Schema.ProtobufNative, schema_data=data.encode())


def test_the_root_message_of_protobuf_cannot_change():
    check_compatible(protobuf("a.B"), [protobuf("a.B")], "FULL")
    with pytest.raises(Refused, match=r"the root message was a\.B and is a\.C"):
        check_compatible(protobuf("a.C"), [protobuf("a.B")], "BACKWARD")


DEFINITIONS = [
    # type, data, is it one: the answers of Apache Pulsar's validator
    (pb.Schema.String, b"", True), (pb.Schema.String, b"null", True), (pb.Schema.String, b'"string"', False),
    (pb.Schema.Int32, b"", True), (pb.Schema.Int32, b"null", False), (pb.Schema.Timestamp, b"{}", False),
    (pb.Schema.Avro, b"", False), (pb.Schema.Avro, b"null", False), (pb.Schema.Avro, b'"string"', True),
    (pb.Schema.Avro, b'{"type": "string"}', True), (pb.Schema.Avro, b"{}", False),
    (pb.Schema.Avro, b'{"type": "record", "name": "R-1", "fields": []}', False),
    (pb.Schema.Avro, b'{"type": "record", "name": "R", "fields": [{"name": "x", "type": "no"}]}', False),
    (pb.Schema.Avro, b'{"type": "enum", "name": "E", "symbols": ["A"], "default": "no"}', True),
    (pb.Schema.Json, b"null", True), (pb.Schema.Json, b"not json", False),
    (pb.Schema.Json, b'{"type": "object", "id": "urn:x", "properties": {}}', True),
    (pb.Schema.Avro, b'{"type": "object", "id": "urn:x", "properties": {}}', False),
    (pb.Schema.Protobuf, b'{"type": "record", "name": "R", "fields": []}', True),
    (pb.Schema.ProtobufNative, b"{}", False), (pb.Schema.ProtobufNative, b"", False),
    (pb.Schema.KeyValue, b"", False), (pb.Schema.KeyValue, bytes(8), False),
    (getattr(pb.Schema, "None"), b"anything", True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "valid"), DEFINITIONS)
def test_definitions_are_checked(kind, data, valid):
    schema = pb.Schema(name="", type=kind, schema_data=data)
    if valid:
        check_definition(schema)
    else:
        with pytest.raises(Refused, match="Invalid schema definition data"):
            check_definition(schema)


def test_definitions_of_pairs_and_protobuf_are_checked():
    check_definition(protobuf("a.B"))
    broken = pair("avro_int|string|INLINE")
    broken.schema_data = broken.schema_data.replace(b'"int"', b'"not"')
    with pytest.raises(Refused, match="no type"):
        check_definition(broken)
    cut = pair("avro_int|string|INLINE")
    cut.schema_data = cut.schema_data[:-1]
    with pytest.raises(Refused, match="no pair"):
        check_definition(cut)


def test_old_style_json_can_be_replaced_by_avro():
    old = pb.Schema(name="", type=pb.Schema.Json, schema_data=b'{"type": "object", "properties": {}}')
    new = pb.Schema(name="", type=pb.Schema.Json, schema_data=json.dumps(record(A)).encode())
    check_compatible(new, [old], "FULL")
    with pytest.raises(Refused, match="old-style"):
        check_compatible(old, [new], "FULL")


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (b'{"a": 1, "b": [1.5, "x"]}', b'{"b":[1.5,"\\u0078"],"a":1.0}', True),
        (b'{"a": 1}', b'{"a": true}', False),
        (b'{"a": 1}', b'{"a": "1"}', False),
        (b"", b"null", True),
        (b"{", b"{", True),
        (b"{", b"{ ", False),
        (b"[" * 100_000, b"[" * 100_000 + b" ", False),
        (b"[1e999]", b"[ 1e999]", True),
    ],
)
def test_schemas_are_equal_regardless_of_their_formatting(left, right, same):
    one, other = (pb.Schema(name="", schema_data=each, type=pb.Schema.Avro) for each in (left, right))
    assert (meaning(one) == meaning(other)) == same
    assert meaning(one) != meaning(pb.Schema(name="", schema_data=left, type=pb.Schema.Int64))
