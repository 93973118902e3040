"""Values have the types of their schemas: ``mypy --strict`` reads this file (``make lint``), pytest runs it.

`assert_type` is what the type checker holds; the assertions beside it are what Python does.
"""

from __future__ import annotations

import datetime as dt
import enum
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, assert_type

import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import geminga
import geminga.asyncio
from geminga.schema import (
    Array,
    AutoConsumeSchema,
    AvroSchema,
    BooleanSchema,
    BytesSchema,
    CustomEnum,
    DoubleSchema,
    InstantSchema,
    Int64Schema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    LocalDateSchema,
    ProtobufNativeSchema,
    Record,
    String,
    StringSchema,
)

if TYPE_CHECKING:
    from geminga import EmbeddedBroker


class Kind(enum.Enum):
    LONG = 1


@dataclass
class Job:
    name: str
    tries: int = 0


class Order(pydantic.BaseModel):
    number: int


class Line(TypedDict):
    text: str


class Point(NamedTuple):
    x: int
    y: int


class Old(Record):
    name = String()
    number = Integer(default=1)
    job_kind = CustomEnum(Kind)
    tags = Array(String())


@pytest.fixture
def client(pulsar_module_broker: EmbeddedBroker) -> Any:
    with pulsar_module_broker.client() as client:
        yield client


def test_attributes_of_a_record_have_the_types_of_their_fields() -> None:
    record = Old(name="a", job_kind=Kind.LONG)
    assert_type(record.name, str)
    assert_type(record.number, int)
    assert_type(record.job_kind, Kind)
    record.name = "b"
    record.tags = ["x"]
    assert (record.name, record.number + 1, [*record.tags, "y"]) == ("b", 2, ["x", "y"])


def test_a_class_gives_its_values(client: geminga.Client, pulsar_topic: str) -> None:
    consumer = client.subscribe(pulsar_topic, "s", schema=Job)
    assert_type(consumer, geminga.Consumer[Job])
    producer = client.create_producer(pulsar_topic, schema=Job)
    assert_type(producer, geminga.Producer[Job])
    producer.send(Job("a"), partition_key="k")
    producer.send_many([Job("b"), Job("c")])
    message = consumer.receive(60_000)
    assert_type(message, geminga.Message[Job])
    assert_type(message.value(), Job)
    assert message.value().name == "a"
    for received in consumer:
        assert_type(received.value(), Job)
        break
    assert_type(consumer.batch_receive(), list[geminga.Message[Job]])
    reader = client.create_reader(pulsar_topic, geminga.MessageId.earliest, schema=Job)
    assert_type(reader, geminga.Reader[Job])
    assert_type(reader.read_next(60_000).value(), Job)
    view = client.create_table_view(pulsar_topic, schema=Job)
    assert_type(view, geminga.TableView[Job])
    assert_type(view.get("k"), Job | None)
    assert view.get("k") == Job("a")
    view.for_each(lambda key, value: assert_type(value, Job))
    with consumer as same:
        assert_type(same, geminga.Consumer[Job])


def test_what_is_sent_must_be_of_the_schema(client: geminga.Client, pulsar_topic: str) -> None:
    producer = client.create_producer(pulsar_topic, schema=Job)
    with pytest.raises(TypeError):
        producer.send(b"bytes")  # type: ignore[arg-type]
    plain = client.create_producer(f"{pulsar_topic}-plain")
    with pytest.raises(TypeError):
        plain.send("text")  # type: ignore[arg-type]
    producer.send(None)  # a tombstone
    assert_type(producer.with_schema(JsonSchema(Job)), geminga.Producer[Job])


def test_without_a_schema_values_are_bytes(client: geminga.Client, pulsar_topic: str) -> None:
    consumer = client.subscribe(pulsar_topic, "s")
    assert_type(consumer, geminga.Consumer[bytes])
    producer = client.create_producer(pulsar_topic)
    assert_type(producer, geminga.Producer[bytes])
    producer.send(b"a")
    assert_type(consumer.receive(60_000).value(), bytes)
    assert_type(client.create_reader(pulsar_topic, geminga.MessageId.earliest), geminga.Reader[bytes])
    assert_type(client.create_table_view(pulsar_topic), geminga.TableView[bytes])


def types_of_schemas(client: geminga.Client) -> None:
    """Never called: what a type checker says of each."""
    assert_type(client.subscribe("t", "s", schema=StringSchema()), geminga.Consumer[str])
    assert_type(client.subscribe("t", "s", schema=BytesSchema()), geminga.Consumer[bytes])
    assert_type(client.subscribe("t", "s", schema=Order), geminga.Consumer[Order])
    assert_type(client.subscribe("t", "s", schema=Line), geminga.Consumer[Line])
    assert_type(client.subscribe("t", "s", schema=Point), geminga.Consumer[Point])
    assert_type(client.subscribe("t", "s", schema=JsonSchema(Job)), geminga.Consumer[Job])
    assert_type(client.subscribe("t", "s", schema=JsonSchema(Line)), geminga.Consumer[Line])
    assert_type(client.subscribe("t", "s", schema=AvroSchema(Job)), geminga.Consumer[Job])
    assert_type(client.subscribe("t", "s", schema=AvroSchema(None, {})), geminga.Consumer[dict[str, Any]])
    assert_type(
        client.subscribe("t", "s", schema=ProtobufNativeSchema(Timestamp)), geminga.Consumer[Timestamp]
    )
    assert_type(client.subscribe("t", "s", schema=Int64Schema()), geminga.Consumer[int])
    assert_type(client.subscribe("t", "s", schema=DoubleSchema()), geminga.Consumer[float])
    assert_type(client.subscribe("t", "s", schema=BooleanSchema()), geminga.Consumer[bool])
    assert_type(client.subscribe("t", "s", schema=InstantSchema()), geminga.Consumer[dt.datetime])
    assert_type(client.subscribe("t", "s", schema=LocalDateSchema()), geminga.Consumer[dt.date])
    assert_type(client.subscribe("t", "s", schema=AutoConsumeSchema()), geminga.Consumer[Any])
    pairs = client.subscribe("t", "s", schema=KeyValueSchema(StringSchema(), JsonSchema(Job)))
    assert_type(pairs, geminga.Consumer[KeyValue[str, Job]])
    assert_type(pairs.receive().value().value.name, str)


def types_of_views(producer: geminga.Producer[Job]) -> None:
    """Never called: another schema on the same producer."""
    assert_type(producer.with_schema(AvroSchema(Order)), geminga.Producer[Order])


def types_of_callables(client: geminga.Client) -> None:
    """Never called: listeners know what they are given."""

    def heard(consumer: geminga.Consumer[Job], message: geminga.Message[Job]) -> None:
        consumer.acknowledge(message)

    def heard_bytes(consumer: geminga.Consumer, message: geminga.Message) -> None:
        assert_type(message.value(), bytes)

    client.subscribe("t", "s", schema=Job, message_listener=heard)
    client.subscribe("t", "s", message_listener=heard_bytes)
    client.subscribe("t", "s", schema=Order, message_listener=heard)  # type: ignore[arg-type]
    anything: geminga.Consumer[object] = client.subscribe("t", "s", schema=Job)
    producer: geminga.Producer[Job] = client.create_producer("t", schema=AutoConsumeSchema())
    anything.acknowledge(geminga.MessageId.earliest)
    producer.send(Order(number=1))  # type: ignore[arg-type]


async def test_the_same_under_asyncio(pulsar_module_broker: EmbeddedBroker, pulsar_topic: str) -> None:
    async with geminga.asyncio.Client(pulsar_module_broker.service_url) as client:
        consumer = await client.subscribe(pulsar_topic, "s", schema=Job)
        assert_type(consumer, geminga.asyncio.Consumer[Job])
        producer = await client.create_producer(pulsar_topic, schema=Job)
        assert_type(producer, geminga.asyncio.Producer[Job])
        await producer.send(Job("a"), partition_key="k")
        reader = await client.create_reader(pulsar_topic, geminga.MessageId.earliest, schema=Job)
        assert_type(reader, geminga.asyncio.Reader[Job])
        view = await client.create_table_view(pulsar_topic, schema=Job)
        assert_type(view, geminga.asyncio.TableView[Job])
        assert_type(view.get("k"), Job | None)
        plain = await client.subscribe(f"{pulsar_topic}-plain", "s")
        assert_type(plain, geminga.asyncio.Consumer[bytes])
        async for message in consumer:
            assert_type(message, geminga.Message[Job])
            assert message.value().name == "a"
            return
    raise AssertionError


@pytest.mark.parametrize("name", ["Message", "Consumer", "Producer", "Reader", "TableView"])
@pytest.mark.parametrize("module", ["geminga", "geminga.asyncio"])
def test_types_may_be_written_at_run_time(module: str, name: str) -> None:
    if (module, name) != ("geminga.asyncio", "Message"):
        assert getattr(importlib.import_module(module), name)[Job].__args__ == (Job,)
