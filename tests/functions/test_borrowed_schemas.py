"""Schemas of pulsar-client's module in functions that were written for it."""

from typing import Any

import pytest

import geminga
from geminga.functions import FunctionRunner
from geminga.functions.loading import schema

pulsar = pytest.importorskip("pulsar")
theirs = pytest.importorskip("pulsar.schema")


class Thing(theirs.Record):
    number = theirs.Integer()
    text = theirs.String()


OURS = type(
    "Thing", (geminga.schema.Record,), {"number": geminga.schema.Integer(), "text": geminga.schema.String()}
)


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_a_function_receives_records_of_its_class(place, kind):
    pytest.importorskip("fastavro")

    def more(thing: Any) -> Any:
        assert type(thing) is Thing
        thing.number += 10
        return thing

    known = getattr(theirs, kind)(Thing)
    ours = getattr(geminga.schema, kind)(OURS)
    producer = place.client.create_producer(place.topic, schema=ours)
    with FunctionRunner(place.settings(more, input_schema=known, output_schema=known)) as runner:
        producer.send(OURS(number=1, text="a"))
        reader = place.client.subscribe(
            place.topic + "-out", "s", schema=ours, initial_position=geminga.InitialPosition.Earliest
        )
        message = reader.receive(30_000)
    assert (message.value().number, message.value().text) == (11, "a")
    assert runner.metrics.user_exceptions == 0


def test_schemas_are_given_by_class_or_by_name():
    assert schema("s", Thing).schema_info() == geminga.schema.JsonSchema(OURS).schema_info()
    assert schema("s", "tests.functions.test_borrowed_schemas:Thing").decode(b'{"number": 3}').number == 3
    assert schema("s", theirs.StringSchema).decode(b"x") == "x"
    assert schema("s", theirs.BytesSchema()).schema_info() == geminga.schema.BytesSchema().schema_info()


def test_messages_of_older_avro_versions_are_read(place):
    pytest.importorskip("fastavro")
    before = type("Thing", (geminga.schema.Record,), {"number": geminga.schema.Integer()})
    producer = place.client.create_producer(place.topic, schema=geminga.schema.AvroSchema(before))
    producer.send(before(number=5))
    fields = {"number": theirs.Integer(), "text": theirs.String(required_default=True)}
    longer = type("Thing", (theirs.Record,), fields)

    def told(thing: Any) -> str:
        assert type(thing) is longer
        return f"{thing.number} {thing.text}"

    with FunctionRunner(place.settings(told, input_schema=theirs.AvroSchema(longer))):
        assert place.values(1) == ["5 None"]


def test_compression_accepts_pulsar_clients_names(place):
    def aside(value: str, context: Any) -> None:
        context.publish(place.topic + "-aside", value, compression_type=pulsar.CompressionType.ZLib)

    with FunctionRunner(place.settings(aside)) as runner:
        place.send("a")
        assert place.values(1, "-aside") == ["a"]
    assert runner.metrics.user_exceptions == 0
