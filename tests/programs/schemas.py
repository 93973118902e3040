"""Programs with schemas: records, versions, and what topics refuse."""

import enum
import json
from typing import Any

from place import TIMEOUT_MILLIS, Place, raised, take


class Colour(enum.Enum):
    red = 1
    green = 2


def _records(p: Any) -> Any:
    class Part(p.schema.Record):
        name = p.schema.String(required=True)
        weight = p.schema.Double()

    class Thing(p.schema.Record):
        _sorted_fields = True
        text = p.schema.String()
        count = p.schema.Integer(default=7)
        flag = p.schema.Boolean()
        raw = p.schema.Bytes()
        colour = Colour
        part = Part()
        parts = p.schema.Array(Part())
        table = p.schema.Map(p.schema.Long())

    return Thing, Part


def _plain(thing: Any) -> list[Any]:
    return [
        thing.text, thing.count, thing.flag, thing.colour and Colour(thing.colour).name, thing.part.name,
        [part.weight for part in thing.parts or []], thing.table,
    ]  # fmt: skip


def records(place: Place) -> Any:
    p, client = place.p, place.client()
    thing, part = _records(p)
    seen = []
    for kind in (p.schema.JsonSchema, p.schema.AvroSchema):
        topic = place.topic(kind.__name__)
        consumer = client.subscribe(topic, "s", schema=kind(thing))
        made = client.create_producer(topic, schema=kind(thing))
        one = part(name="wheel", weight=1.5)
        made.send(thing(text="grüß", flag=True, colour=Colour.green, part=one, parts=[one], table={"a": 5}))
        message = consumer.receive(TIMEOUT_MILLIS)
        seen.append([_plain(message.value()), message.schema_version()])
        seen.append(raised(lambda made=made: made.send({"text": "x"})))
    client.close()
    return [seen, thing.schema()]


def primitive_schemas(place: Place) -> Any:
    p, client = place.p, place.client()
    seen = []
    for schema, value in ((p.schema.StringSchema(), "grüß"), (p.schema.BytesSchema(), b"raw")):
        topic = place.topic("primitive")
        consumer = client.subscribe(topic, "s", schema=schema)
        client.create_producer(topic, schema=schema).send(value)
        seen.append(consumer.receive(TIMEOUT_MILLIS).value() == value)
        info = schema.schema_info()
        seen.append([info.name(), str(info.schema_type()), info.schema()])
    client.close()
    return seen


def schema_versions(place: Place) -> Any:
    """Two versions on one topic: each message is read by the schema that it was written with."""
    p, client, topic = place.p, place.client(), place.topic("versions")

    class Old(p.schema.Record):
        x = p.schema.Integer()

    class New(p.schema.Record):
        x = p.schema.Integer()
        y = p.schema.String(default="none", required_default=True, required=True)

    Old.__name__ = New.__name__ = "Reading"
    codec = p.schema.AvroSchema
    consumer = client.subscribe(topic, "s", schema=codec(Old))
    client.create_producer(topic, schema=codec(Old)).send(Old(x=1))
    client.create_producer(topic, schema=codec(New)).send(New(x=2, y="two"))
    seen = [message.value().x for message in take(consumer, 2)]
    client.close()
    return seen


def incompatible_schemas(place: Place) -> Any:
    p, client, topic = place.p, place.client(), place.topic("incompatible")

    class Number(p.schema.Record):
        x = p.schema.Integer(required=True)

    class Text(p.schema.Record):
        x = p.schema.String(required=True)

    client.create_producer(topic, schema=p.schema.JsonSchema(Number))
    refused = [
        raised(lambda: client.create_producer(topic, schema=p.schema.JsonSchema(Text))),
        raised(lambda: client.subscribe(topic, "s", schema=p.schema.StringSchema())),
        raised(lambda: client.subscribe(topic, "s", schema=p.schema.AvroSchema(Text))),
    ]
    client.close()
    return refused


def custom_avro(place: Place) -> Any:
    """A definition and dicts, without a record class."""
    p, client, topic = place.p, place.client(), place.topic("custom")
    definition = {
        "type": "record", "name": "Company", "namespace": "example",
        "fields": [{"name": "name", "type": ["null", "string"]},
                   {"name": "staff", "type": {"type": "array", "items": "string"}}],
    }  # fmt: skip
    codec = p.schema.AvroSchema(None, schema_definition=definition)
    consumer = client.subscribe(topic, "s", schema=codec)
    client.create_producer(topic, schema=codec).send({"name": "n", "staff": ["a", "b"]})
    value = consumer.receive(TIMEOUT_MILLIS).value()
    client.close()
    return json.loads(json.dumps(value))


def protobuf(place: Place) -> Any:
    from google.protobuf.timestamp_pb2 import Timestamp

    p, client, topic = place.p, place.client(), place.topic("protobuf")
    codec = p.schema.ProtobufNativeSchema(Timestamp)
    consumer = client.subscribe(topic, "s", schema=codec)
    client.create_producer(topic, schema=codec).send(Timestamp(seconds=5))
    value = consumer.receive(TIMEOUT_MILLIS).value()
    client.close()
    return [value.seconds, raised(lambda: p.schema.ProtobufNativeSchema(int))]


PROGRAMS = (records, primitive_schemas, schema_versions, incompatible_schemas, custom_avro, protobuf)
