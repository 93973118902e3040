"""Python's own classes as schemas, through a broker: producers, consumers, views, and older readers."""

from dataclasses import dataclass

import pytest

import geminga
from geminga import schema
from geminga.errors import IncompatibleSchema

pytest.importorskip("fastavro")
pydantic = pytest.importorskip("pydantic")


@dataclass
class Reading:
    station: str
    celsius: float | None = None


class Order(pydantic.BaseModel):
    number: int
    items: list[str] = pydantic.Field([])


@pytest.mark.parametrize(
    "value", [Reading("Oslo", -3.5), Order(number=5, items=["pen"])], ids=["dataclass", "model"]
)
@pytest.mark.parametrize("kind", [schema.JsonSchema, schema.AvroSchema, lambda cls: cls])
def test_models_are_received_as_sent(pulsar_client, pulsar_topic, kind, value):
    consumer = pulsar_client.subscribe(pulsar_topic, "s", schema=kind(type(value)))
    with pulsar_client.create_producer(pulsar_topic, schema=kind(type(value))) as producer:
        producer.send(value)
        producer.send(None)
        with pytest.raises(TypeError):
            producer.send({"station": "Oslo"})
    assert consumer.receive(30_000).value() == value
    assert consumer.receive(30_000).value() is None
    assert pulsar_client.get_schema_info(pulsar_topic).schema_type().name in ("JSON", "AVRO")


def test_a_field_with_a_default_may_be_added(pulsar_client, pulsar_topic):
    @dataclass
    class Later:
        station: str
        celsius: float | None = None
        wind: str = "calm"

    Later.__name__ = "Reading"
    pulsar_client.create_producer(pulsar_topic, schema=schema.AvroSchema(Reading)).send(Reading("Oslo", 1.0))
    newer = pulsar_client.create_producer(pulsar_topic, schema=schema.AvroSchema(Later))
    newer.send(Later("Bergen", None, "storm"))
    for cls, expected in (
        (Later, [Later("Oslo", 1.0, "calm"), Later("Bergen", None, "storm")]),
        (Reading, [Reading("Oslo", 1.0), Reading("Bergen", None)]),
    ):
        reader = pulsar_client.create_reader(
            pulsar_topic, geminga.MessageId.earliest, schema=schema.AvroSchema(cls)
        )
        assert [reader.read_next(30_000).value() for _ in expected] == expected


def test_a_field_without_a_default_may_not(pulsar_client, pulsar_topic):
    @dataclass
    class Reading:
        station: str
        wind: str

    pulsar_client.create_producer(pulsar_topic, schema=schema.AvroSchema(globals()["Reading"]))
    with pytest.raises(IncompatibleSchema):
        pulsar_client.create_producer(pulsar_topic, schema=schema.AvroSchema(Reading))
