"""Messages published from the console, encoded by the schema of their topic."""

import base64
import json
from typing import Any

import pytest
import web_requests
from cases import cases
from google.protobuf import descriptor_pb2

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.broker.settings import BrokerSettings
from geminga.console.site import attach
from geminga.schema import AutoConsumeSchema, ProtobufNativeSchema
from geminga.schema.from_json import json_encoder
from geminga.schema.protobuf import message_class_of
from geminga.schema_info import SchemaInfo, SchemaType

SETTINGS = BrokerSettings(memory=True, port=0, web_port=0)
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "lines", "default": [], "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "price", "type": "double"}]}}},
    ],
}  # fmt: skip
GOOD = {"id": 7, "city": "Bern", "kind": "NEW", "lines": [{"price": 1.5}]}


@pytest.fixture(scope="module")
def broker():
    running = EmbeddedBroker(SETTINGS, site=attach)
    yield running
    running.close()


def publish(url: str, topic: str, payload: str, **more: Any) -> tuple[int, Any]:
    found = web_requests.ask(
        f"{url}/console/api/publish", "POST", {"topic": topic, "payload": payload, **more}
    )
    return found.status, found.document if found.status == 200 else found.document["reason"]


def register(broker: EmbeddedBroker, topic: str, kind: str, definition: object) -> None:
    body = {"type": kind, "schema": definition if isinstance(definition, str) else json.dumps(definition)}
    path = f"{broker.admin_url}/admin/v2/schemas/public/default/{topic}/schema"
    assert web_requests.ask(path, "POST", body | {"properties": {}}).status == 200


def read(broker: EmbeddedBroker, topic: str) -> list[tuple[Any, Any]]:
    """Return the messages of a topic and their values, decoded with the schema version that they name."""
    with broker.client() as client:
        reader = client.create_reader(topic, geminga.MessageId.earliest, schema=AutoConsumeSchema())
        found = []
        while reader.has_message_available():
            message = reader.read_next(60_000)
            found.append((message, message.value()))
        return found


def test_text_is_published_with_key_and_properties(broker):
    assert publish(broker.admin_url, "plain", "5", preview=True) == (200, {"id": None, "type": None})
    status, found = publish(broker.admin_url, "plain", "it's", key="k", properties={"trace": "a=b"})
    assert status == 200
    ((message, _),) = read(broker, "plain")
    assert found["id"] == f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}"
    assert (message.data(), message.partition_key()) == (b"it's", "k")
    assert message.properties() == {"trace": "a=b"}


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_json_is_checked_and_encoded_by_the_topics_schema(broker, kind):
    topic = f"orders-{kind.lower()}"
    register(broker, topic, kind, ORDER)
    assert publish(broker.admin_url, topic, json.dumps(GOOD))[0] == 200
    ((message, value),) = read(broker, topic)
    assert value == GOOD
    assert message.schema_version() == "\0" * 8


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"id": "seven"}, 'shop.Order.id="seven" is not allowed; allowed: long'),
        ({"id": None}, "shop.Order.id=null is not allowed; allowed: long"),
        ({"id": 2**70}, f"shop.Order.id={2**70} is not allowed; allowed: long"),
        ({"city": 5}, "shop.Order.city=5 is not allowed; allowed: null, string"),
        ({"kind": "X"}, 'shop.Order.kind="X" is not allowed; allowed: NEW or OLD'),
        ({"lines": [{"price": "x"}]}, 'shop.Line.price="x" is not allowed; allowed: double'),
        ({"ciyt": "Bern"}, "ciyt is no field of shop.Order; allowed: id, city, kind, lines"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field(broker, kind, changed, reason):
    topic = f"refused-{kind.lower()}"
    register(broker, topic, kind, ORDER)
    for preview in (True, False):
        assert publish(broker.admin_url, topic, json.dumps(GOOD | changed), preview=preview) == (412, reason)
    assert read(broker, topic) == []


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        ("AVRO", {"lines": [{"price": 1, "pirce": 2}]}, "lines.0.pirce is no field there; allowed: price"),
        ("AVRO", {"lines": [{"price": 10**400}]}, "int too large to convert to float"),
        ("JSON", {"lines": [{"price": float("nan")}]}, "Out of range float values are not JSON compliant"),
        ("JSON", {"lines": [{"price": float("inf")}]}, "Out of range float values are not JSON compliant"),
    ],
)
def test_what_could_not_be_read_again_is_refused(broker, kind, changed, reason):
    topic = f"lost-{kind.lower()}"
    register(broker, topic, kind, ORDER)
    status, said = publish(broker.admin_url, topic, json.dumps(GOOD | changed))
    assert (status, said[: len(reason)]) == (412, reason)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("Bern", "the value must be JSON (AVRO schema): Expecting value"),
        ("5", "the value=5 is not allowed; allowed: shop.Order"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
    ],
)
def test_what_is_no_record_is_refused(broker, payload, reason):
    register(broker, "records", "AVRO", ORDER)
    status, said = publish(broker.admin_url, "records", payload)
    assert (status, said[: len(reason)]) == (412, reason)


def test_protobuf_messages_are_written_as_json(broker):
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    fields = file.message_type.add(name="Order").field
    fields.add(name="id", number=1, type=3, label=1, json_name="id")
    fields.add(name="city", number=2, type=9, label=1, json_name="city")
    fields.add(name="kind", number=3, type=14, label=1, json_name="kind", type_name=".shop.Kind")
    file.enum_type.add(name="Kind").value.add(name="NEW", number=0)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    definition = {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": "shop.Order", "rootFileDescriptorName": "order.proto",
    }  # fmt: skip
    schema = ProtobufNativeSchema(message_class_of(json.dumps(definition).encode()))
    with broker.client() as client:
        client.create_producer("proto", schema=schema).close()
    assert publish(broker.admin_url, "proto", '{"id": 7, "city": "Bern"}')[0] == 200
    ((_, value),) = read(broker, "proto")
    assert (value.id, value.city) == (7, "Bern")
    status, said = publish(broker.admin_url, "proto", '{"id": 7, "ciyt": "Bern"}')
    assert (status, '"ciyt"' in said) == (412, True)
    for wrong in ('{"kind": 1e400}', '{"kind": "\\ud800"}', '{"id": 1e400}'):
        assert publish(broker.admin_url, "proto", wrong)[0] == 412
    assert publish(broker.admin_url, "proto", "5") == (412, "the value=5 is not allowed; allowed: shop.Order")


def test_numbers_are_encoded_and_texts_stay_texts(broker):
    register(broker, "numbers", "INT32", "")
    register(broker, "texts", "STRING", "")
    assert publish(broker.admin_url, "numbers", "258")[0] == 200
    assert publish(broker.admin_url, "texts", '{"a": 1}')[0] == 200
    assert [message.data() for message, _ in read(broker, "numbers")] == [b"\0\0\1\2"]
    assert [value for _, value in read(broker, "texts")] == ['{"a": 1}']
    assert publish(broker.admin_url, "numbers", '"x"')[0] == 412


@pytest.mark.parametrize(("body", "reason"), cases("console_texts_refused"))
def test_what_is_no_text_is_refused(broker, body, reason):
    status, said = publish(broker.admin_url, **({"topic": "t", "payload": "x"} | body))
    assert (status, said[: len(reason)]) == (412, reason)


def test_a_json_schema_that_is_not_avro_takes_any_json():
    info = SchemaInfo(type=SchemaType.JSON, data=b'{"type": "object", "properties": {"a": {}}}')
    assert json.loads(json_encoder(info)({"b": [1]})) == {"b": [1]}


@pytest.mark.parametrize("kind", ["bytes", ["null", "bytes"]])
def test_text_stands_for_bytes_in_json_values(kind):
    definition = {"type": "record", "name": "R", "fields": [{"name": "raw", "type": kind}]}
    info = SchemaInfo(type=SchemaType.JSON, data=json.dumps(definition).encode())
    encode = json_encoder(info)
    assert json.loads(encode({"raw": "aGk="})) == {"raw": "aGk="}
    with pytest.raises(ValueError, match=r"R\.raw=5 is not allowed; allowed: "):
        encode({"raw": 5})


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_value_that_takes_too_long_to_check_is_refused(broker, kind):
    """Checking tries every record of a union, at each level; nothing else runs in the broker meanwhile."""
    topic = f"unions-{kind.lower()}"
    tree = {"type": "record", "name": "B", "fields": [{"name": "n", "type": ["null", "A", "B", "int"]}]}
    fields = [{"name": "n", "type": ["null", tree, "A", "int"]}]
    register(broker, topic, kind, {"type": "record", "name": "A", "fields": fields})
    for depth in (15, 40):
        status, said = publish(broker.admin_url, topic, '{"n": ' * depth + '"x"' + "}" * depth, preview=True)
        assert (status, said[:22]) == (412, "the value is too large")
    assert publish(broker.admin_url, topic, '{"n": ' * 8 + "5" + "}" * 8)[0] == 200


def test_defaults_count_for_the_time_that_a_check_takes(broker):
    kind: Any = "int"
    for at in range(18):
        fields = [{"name": "n", "type": kind, "default": {} if at else 5}]
        names = [each["name"] for each in kind] if at else kind
        kind = [
            {"type": "record", "name": f"A{at}", "fields": [*fields, {"name": "needed", "type": "int"}]},
            {"type": "record", "name": f"B{at}", "fields": [{**fields[0], "type": names}]},
        ]
    register(
        broker, "defaults", "AVRO", {"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]}
    )
    status, said = publish(broker.admin_url, "defaults", '{"n": {}}', preview=True)
    assert (status, said[:22]) == (412, "the value is too large")


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_default_without_end_is_refused(broker, kind):
    """fastavro's compiled modules end the process there."""
    endless = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R", "default": {}}]}
    empty = {"type": "record", "name": "S", "fields": []}
    chosen = {"type": "record", "name": "T", "fields": [{"name": "u", "type": [empty, endless]}]}
    for topic, definition, value in (("endless", endless, "{}"), ("chosen", chosen, '{"u": {}}')):
        register(broker, f"{topic}-{kind}", kind, definition)
        status, said = publish(broker.admin_url, f"{topic}-{kind}", value, preview=True)
        assert (status, said[:22]) == (412, "the value is too large")


def test_a_long_value_is_checked_unless_it_is_deep_too(broker):
    node = [
        {"name": "n", "type": ["null", "N"], "default": None},
        {"name": "a", "type": {"type": "array", "items": "int"}, "default": []},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ]
    register(broker, "long", "AVRO", {"type": "record", "name": "N", "fields": node})
    numbers = '{"a": [' + "1," * 100_000 + "1]}"
    assert publish(broker.admin_url, "long", numbers)[0] == 200
    status, said = publish(broker.admin_url, "long", '{"n": ' * 100 + numbers + "}" * 100)
    assert (status, said[:22]) == (412, "the value is too large")
