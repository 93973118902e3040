"""Masked fields: what the console shows of messages."""

import base64
import json
from typing import Any

import pytest
from entries import batch_entry, in_batch, single_entry
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from web_requests import ask

import geminga
from geminga.broker.admin.masking import NOT_SHOWN, Masks
from geminga.broker.admin.payload_values import DEPTH_MAX, Budget, Undecodable, decoder_of
from geminga.broker.admin.tailing import MessageFilter, messages_of, payload_messages
from geminga.broker.settings import BrokerSettings
from geminga.errors import InvalidConfiguration
from geminga.schema.protobuf import ProtobufNativeSchema
from geminga.schema_info import SchemaInfo, SchemaType
from geminga.wire.proto import pulsar_wire_pb2 as pb

HIDDEN = frozenset({"card", "key"})
PROPERTIES = [pb.KeyValue(key="card", value="4111"), pb.KeyValue(key="n", value="1")]
VALUE = {"id": 1, "card": "4111", "lines": [{"card": {"number": "4111"}, "price": 2.5}], "city": "Zürich"}
SHOWN = {"id": 1, "card": "•••", "lines": [{"card": "•••", "price": 2.5}], "city": "Zürich"}


def seen(entry: bytes, **wanted: str) -> list[dict[str, Any]]:
    found = list(messages_of(entry, 3, 4, MessageFilter(**wanted, masked=HIDDEN)))
    assert b"4111" not in json.dumps(found).encode()
    assert all(b"4111" not in base64.b64decode(each.get("payload", "")) for each in found)
    return found


def value_of(message: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["payload"]))


def test_fields_at_any_depth_properties_and_the_key_are_masked():
    entry = single_entry(json.dumps(VALUE).encode(), partition_key="4111", properties=PROPERTIES)
    (message,) = seen(entry)
    assert value_of(message) == SHOWN
    assert (message["key"], message["properties"]) == ("•••", {"card": "•••", "n": "1"})
    assert message["masked"]


def test_the_messages_of_a_batch_are_masked_one_by_one():
    payloads = (json.dumps(VALUE).encode(), b"4111", b"")
    parts = [in_batch(each, sequence_id=at) for at, each in enumerate(payloads)]
    first, second, third = seen(batch_entry(parts))
    assert value_of(first) == SHOWN
    assert (second["problem"], second["payload"]) == (NOT_SHOWN, "")
    assert "problem" not in third


@pytest.mark.parametrize(
    "payload", [b"4111", b'"4111"', b"\x02\x084111", b'{"card": "4111"', b"[" * 100_000 + b"4111"]
)
def test_what_is_no_json_object_is_not_shown(payload):
    (message,) = seen(single_entry(payload))
    assert (message["problem"], message["payload"]) == (NOT_SHOWN, "")


def test_entries_that_take_too_long_to_mask_are_not_shown():
    value = json.dumps(["4111"] * 80_000).encode()
    (message,) = seen(single_entry(b"[" + value + b"," + value + b"]"))
    assert (message["problem"].partition(" ")[2], message["payload"]) == ("bytes: too many to mask", "")
    (first,) = seen(batch_entry([in_batch(value), in_batch(value)]))
    assert first["problem"].endswith("bytes: too many to mask")


def test_parts_of_larger_messages_are_not_shown():
    (message,) = seen(single_entry(b'{"card": "4111"', num_chunks_from_msg=2, chunk_id=0, uuid="u"))
    assert (message["problem"], message["payload"]) == ("part 1 of 2 of a larger message", "")


def test_the_size_of_a_masked_message_is_its_own():
    value = json.dumps(VALUE | {"card": "4" * 500}).encode()
    for entry in (single_entry(value), batch_entry([in_batch(value)])):
        (message,) = seen(entry)
        assert (message["size"], "cut" in message) == (len(value), False)
    unknown = b"no JSON"
    assert seen(single_entry(unknown))[0]["size"] == len(unknown)


def test_a_filter_does_not_find_what_is_masked():
    entry = single_entry(json.dumps(VALUE).encode(), partition_key="4111", properties=PROPERTIES)
    assert seen(entry, text="4111") == seen(entry, key="4111") == []
    assert len(seen(entry, text="Zürich")) == 1


def test_entries_of_another_broker_are_masked_too():
    headers = {"X-Pulsar-PROPERTY": '{"card": "4111"}', "X-Pulsar-partition-key": "4111"}
    wanted = MessageFilter(masked=HIDDEN)
    (message,) = payload_messages(headers, json.dumps(VALUE).encode(), wanted)
    assert value_of(message) == SHOWN
    assert (message["key"], message["properties"]) == ("•••", {"card": "•••"})


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("persistent://shop/web/orders", {"card", "email"}),
        ("persistent://shop/web/orders-partition-3", {"card", "email"}),
        ("persistent://shop/web/orders-2025", {"email"}),
        ("persistent://shop/other/orders", set()),
    ],
)
def test_rules_choose_topics_by_their_pattern(topic, names):
    rules = Masks(("shop/web/orders=card", "shop/web/*=email"))
    assert rules.of(topic) == names


@pytest.mark.parametrize(
    "rule",
    ["orders=card", "persistent://shop/web/orders=card", "a/b/c", "a/b/c=", "a/b/c=x,", "a/b/c=x y", "", 5],
)
def test_a_rule_of_another_form_is_refused(rule):
    with pytest.raises(InvalidConfiguration, match="masked_fields="):
        BrokerSettings(memory=True, masked_fields=(rule,))


def test_the_brokers_console_routes_mask():
    with geminga.embedded(masked_fields=("public/default/t=card",)) as running, running.client() as client:
        client.subscribe("t", "s").close()
        client.create_producer("t").send(json.dumps(VALUE).encode())
        base = f"{running.admin_url}/admin/v2/persistent/public/default/t"
        (message,) = ask(f"{base}/messages?from=earliest").document["messages"]
        opened = f"{base}/message/{message['id']}?batch={message.get('batchIndex', '')}"
        others = [
            *ask(f"{base}/tail").document["messages"], *ask(f"{base}/subscription/s/open").document,
            ask(opened).document,
        ]  # fmt: skip
        assert [value_of(each) for each in (message, *others)] == [SHOWN] * 4
        assert ask(f"{base}/messages?from=earliest&text=4111").document["messages"] == []


# --- Avro and Protobuf ---
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "card", "type": ["null", "string"]},
        {"name": "paid", "type": "boolean"}, {"name": "price", "type": "double"},
        {"name": "rate", "type": "float"}, {"name": "raw", "type": "bytes"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "parts", "type": {"type": "array", "items": "Order"}},
    ],
}  # fmt: skip
PART = {
    "id": -7, "card": None, "paid": False, "price": 0.5, "rate": 0.25, "raw": b"", "state": "NEW",
    "code": b"ab", "tags": {}, "parts": [],
}  # fmt: skip
WHOLE = PART | {
    "id": 1 << 40, "card": "4111", "paid": True, "raw": b"\x01\xff", "state": "SENT",
    "tags": {"card": "4111", "city": "Zürich"}, "parts": [PART, PART | {"card": "4111"}],
}  # fmt: skip


def avro(definition: Any) -> SchemaInfo:
    return SchemaInfo(type=SchemaType.AVRO, data=json.dumps(definition).encode())


def decoded(schema: SchemaInfo, payload: bytes, items: int = 10_000) -> Any:
    decode = decoder_of(schema)
    assert decode is not None
    return decode(payload, Budget(items))


def test_avro_is_decoded_as_fastavro_wrote_it():
    payload = geminga.schema.AvroSchema(None, ORDER).encode(WHOLE)
    shown = {"raw": "", "code": "61 62"}
    parts = [PART | shown, PART | shown | {"card": "4111"}]
    assert decoded(avro(ORDER), payload) == WHOLE | shown | {"raw": "01 ff", "parts": parts}


def every_field() -> Any:
    """A Protobuf message with a field of each type, singular and repeated, a map and itself."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    file.enum_type.add(name="E").value.extend(
        [descriptor_pb2.EnumValueDescriptorProto(name=name, number=at) for at, name in enumerate(("A", "B"))]
    )
    message = file.message_type.add(name="M")
    types = descriptor_pb2.FieldDescriptorProto
    for kind in range(1, 19):
        if kind == types.TYPE_GROUP:
            continue
        of = {types.TYPE_MESSAGE: ".p.M", types.TYPE_ENUM: ".p.E"}.get(kind)
        for at, label in ((kind, types.LABEL_OPTIONAL), (kind + 20, types.LABEL_REPEATED)):
            message.field.add(name=f"f{at}", number=at, type=kind, label=label, type_name=of)
    fields = {"type": types.TYPE_MESSAGE, "label": types.LABEL_REPEATED, "type_name": ".p.M.TagsEntry"}
    message.field.add(name="tags", number=50, **fields)
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    for number, name in ((1, "key"), (2, "value")):
        entry.field.add(name=name, number=number, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.M"))


def protobuf(kind: Any) -> SchemaInfo:
    return ProtobufNativeSchema(kind).schema_info()


def test_protobuf_is_decoded_as_its_library_wrote_it():
    kind = every_field()
    numbers = {1: 1.5, 2: -2.5, 4: 1 << 63} | {at: at for at in (6, 7, 13)}
    numbers |= {at: -at for at in (3, 5, 15, 16, 17, 18)}
    found = {f"f{at}": value for at, value in numbers.items()}
    found |= {"f8": True, "f9": "ü", "f12": b"\x01\xff", "f14": 1}
    value = found | {f"f{int(name[1:]) + 20}": [each, each] for name, each in found.items()}
    payload = kind(**value, f11=kind(f9="inner"), f31=[kind(), kind(f3=1)], tags={"card": "4111"})
    shown = {"f12": "01 ff", "f32": ["01 ff"] * 2, "f14": "B", "f34": ["B", "B"]}
    inner = {"f11": {"f9": "inner"}, "f31": [{}, {"f3": 1}], "tags": {"card": "4111"}}
    assert decoded(protobuf(kind), payload.SerializeToString()) == value | shown | inner


DEEP = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}
NULLS = {"type": "array", "items": "null"}


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        (DEEP, b""), (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"), (NULLS, b"\x02"),
        ("string", b"\xfe\xff\xff\x7fx"), ("string", b"\x01x"), ("string", b"\x02\xff"),
        ("long", b"\xff" * 11), ("int", b"\x02\x02"), (["null"], b"\x01"), (["null"], b"\x02"),
        ({"type": "fixed", "name": "F", "size": -1}, b"x"), ("double", b"1234567"),
    ],
)  # fmt: skip
def test_avro_that_would_take_long_or_does_not_fit_is_refused(definition, payload):
    with pytest.raises(Undecodable):
        decoded(avro(definition), payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x5a\xff\xff\xff\x7fx", b"\x4a\x01\xff", b"\x09\x01", b"\x19" + b"8" * 8, b"\x0b\x0c", b"\x80",
        b"\x4d1234", b"\x18\x01\x1a\x01\x02",
    ],
)  # fmt: skip
def test_protobuf_that_does_not_fit_is_refused(payload):
    with pytest.raises(Undecodable):
        decoded(protobuf(every_field()), payload)


def test_protobuf_is_decoded_up_to_a_depth_and_a_number_of_items():
    kind, schema = every_field(), protobuf(every_field())
    message, numbers = kind(), kind(f23=range(1_000))
    for _ in range(DEPTH_MAX + 2):
        message = kind(f11=message)
    assert decoded(schema, numbers.SerializeToString())["f23"] == list(range(1_000))
    for payload, items in ((message, 10_000), (numbers, 1_000)):
        with pytest.raises(Undecodable):
            decoded(schema, payload.SerializeToString(), items)


LONG = "n" * 50_000


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "record", "name": "R", "fields": [{"name": LONG, "type": "null"}]},
        {"type": "enum", "name": "E", "symbols": [LONG]},
    ],
)
def test_a_small_payload_does_not_repeat_a_long_name(kind):
    items = 100
    payload = bytes((2 * items & 127 | 128, 2 * items >> 7)) + bytes(items if kind["type"] == "enum" else 0)
    with pytest.raises(Undecodable):
        decoded(avro({"type": "array", "items": kind}), payload + b"\0", 50_000)


def test_the_names_of_nested_protobuf_messages_take_little_memory():
    file = descriptor_pb2.FileDescriptorProto(name="m.proto")
    outer = file.message_type.add(name=LONG)
    for at in range(100):
        outer.nested_type.add(name=str(at))
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    definition = {"fileDescriptorSet": base64.b64encode(files).decode(), "rootMessageTypeName": LONG}
    with pytest.raises(Undecodable):
        decoder_of(SchemaInfo(type=SchemaType.PROTOBUF_NATIVE, data=json.dumps(definition).encode()))


@pytest.mark.parametrize(
    "schema",
    [
        avro({"type": "record"}),
        avro(5),
        avro({"type": "fixed", "size": 1, "name": "F", "namespace": LONG}),
        SchemaInfo(type=SchemaType.AVRO, data=b"["),
        SchemaInfo(type=SchemaType.PROTOBUF_NATIVE, data=b"[]"),
        SchemaInfo(
            type=SchemaType.PROTOBUF_NATIVE, data=b'{"fileDescriptorSet": "AAAA", "rootMessageTypeName": "x"}'
        ),
    ],
)
def test_a_definition_of_another_form_decodes_nothing(schema):
    with pytest.raises(Undecodable):
        decoded(schema, b"\x00")


def test_fields_of_avro_are_masked_and_cannot_be_found():
    entry = single_entry(geminga.schema.AvroSchema(None, ORDER).encode(WHOLE), schema_version=bytes(8))
    wanted = MessageFilter(masked=HIDDEN, schema_of=lambda version: avro(ORDER) if version == 0 else None)
    (message,) = messages_of(entry, 3, 4, wanted)
    value = value_of(message)
    assert b"4111" not in base64.b64decode(message["payload"])
    assert (value["card"], value["tags"]) == ("•••", {"card": "•••", "city": "Zürich"})
    assert (value["parts"][1]["card"], value["state"], message["masked"]) == ("•••", "SENT", True)
    wanted.text = "4111"
    assert list(messages_of(entry, 3, 4, wanted)) == []
    wanted.text = "Zürich"
    assert len(list(messages_of(entry, 3, 4, wanted))) == 1


@pytest.mark.parametrize("version", [None, bytes(7) + b"\x01"])
def test_avro_of_an_unknown_version_is_not_shown(version):
    payload = geminga.schema.AvroSchema(None, ORDER).encode(WHOLE)
    entry = single_entry(payload, **{} if version is None else {"schema_version": version})
    wanted = MessageFilter(masked=HIDDEN, schema_of=lambda number: avro(ORDER) if number == 0 else None)
    (message,) = messages_of(entry, 3, 4, wanted)
    assert (message["problem"], message["payload"]) == (NOT_SHOWN, "")


@pytest.mark.parametrize("native", [False, True])
def test_the_broker_masks_values_by_the_schema_of_their_version(native):
    kind = every_field()
    schema = ProtobufNativeSchema(kind) if native else geminga.schema.AvroSchema(None, ORDER)
    value = kind(f9="4111", f3=1) if native else WHOLE
    with geminga.embedded(masked_fields=("public/default/t=card,f9",)) as running, running.client() as client:
        client.create_producer("t", schema=schema).send(value)
        base = f"{running.admin_url}/admin/v2/persistent/public/default/t"
        (message,) = ask(f"{base}/messages?from=earliest").document["messages"]
        shown = value_of(message)
        assert "4111" not in json.dumps(shown)
        text = "%22f3%22:%201" if native else "SENT"  # not among the stored bytes
        assert ask(f"{base}/messages?from=earliest&text={text}").document["messages"] == [message]
        whole = json.loads(json_format.MessageToJson(value)) if native else shown
        assert shown == whole | ({"f9": "•••", "f3": 1} if native else {"card": "•••"})
