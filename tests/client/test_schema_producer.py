"""Schemas through a broker: several versions on one producer, every kind of schema, both shells."""

import asyncio
import datetime as dt

import pytest

import geminga
from geminga import schema
from geminga.client.admin import admin
from geminga.schema import KeyValueEncodingType, KeyValueSchema

pytest.importorskip("fastavro")


class Old(schema.Record):
    x = schema.Integer(required=True)


class New(schema.Record):
    x = schema.Integer(required=True)
    y = schema.String(default="none", required_default=True)


New.__name__ = Old.__name__ = "Reading"
OLD, NEW = schema.AvroSchema(Old), schema.AvroSchema(New)


def partitioned(broker, topic, count):
    admin(broker.admin_url, "PUT", f"persistent/public/default/{topic.rsplit('/', 1)[1]}/partitions", count)


def values(consumer, count):
    return [consumer.receive(30_000) for _ in range(count)]


@pytest.mark.parametrize("batching_type", list(geminga.BatchingType))
def test_versions_on_one_producer_keep_their_order(client, topic, batching_type):
    producer = client.create_producer(topic, schema=OLD, batching_enabled=True, batching_type=batching_type)
    consumer = client.subscribe(topic, "s", schema=schema.AvroSchema(New))
    newer = producer.with_schema(NEW)
    assert newer.with_schema(OLD).topic() == producer.topic() == newer.topic()
    for x in range(20):
        if x % 4 < 2:
            producer.send_async(Old(x=x), None, partition_key="k")
        else:
            newer.send_async(New(x=x, y="y"), None, partition_key="k")
    producer.flush()
    newer.send(New(x=20, y="last"), partition_key="k")
    messages = values(consumer, 21)
    assert [m.value().x for m in messages] == list(range(21))
    assert [m.int_schema_version() for m in messages] == [int(x % 4 >= 2) for x in range(20)] + [1]
    # Entries never mix versions.
    entries = {}
    for message in messages:
        place = (message.message_id().ledger_id(), message.message_id().entry_id())
        entries.setdefault(place, set()).add(message.int_schema_version())
    assert all(len(versions) == 1 for versions in entries.values())
    newer.close()
    with pytest.raises(geminga.AlreadyClosed):
        producer.send(Old(x=1))
    with pytest.raises(geminga.AlreadyClosed):
        producer.with_schema(NEW)


def test_partitions_and_lazy_starts(pulsar_broker, client, topic):
    partitioned(pulsar_broker, topic, 3)
    producer = client.create_producer(topic, schema=OLD, lazy_start_partitioned_producers=True)
    consumer = client.subscribe(topic, "s", schema=schema.AvroSchema(New))
    newer = producer.with_schema(NEW)
    for x in range(9):
        (newer if x % 2 else producer).send((New if x % 2 else Old)(x=x), partition_key=str(x))
    assert sorted((m.value().x, m.int_schema_version()) for m in values(consumer, 9)) == [
        (x, x % 2) for x in range(9)
    ]


def test_bytes_through_a_view_name_the_version(client, topic):
    consumer = client.subscribe(topic, "s", schema=schema.AutoConsumeSchema())
    client.create_producer(topic, schema=OLD).close()
    producer = client.create_producer(topic)
    encoded = producer.with_schema(schema.AutoProduceBytesSchema())
    producer.send(b"raw")
    encoded.send(OLD.encode(Old(x=1)))
    encoded.send_async(OLD.encode(Old(x=2)), None)
    producer.send_async(b"raw", None)
    producer.flush()
    assert [m.value() for m in values(consumer, 4)] == [b"raw", {"x": 1}, {"x": 2}, b"raw"]
    with pytest.raises(geminga.errors.CorruptPayload):
        encoded.send(b"")


def test_auto_produce_is_a_producer_of_the_topics_schema(client, topic):
    free = client.create_producer(topic, schema=schema.AutoProduceBytesSchema())
    free.send(b"anything")
    free.close()
    client.create_producer(topic, schema=OLD).close()
    client.create_producer(topic, schema=NEW).close()
    reader = client.create_reader(topic, geminga.MessageId.latest, schema=schema.AvroSchema(New))
    bound = client.create_producer(topic, schema=schema.AutoProduceBytesSchema())
    bound.send(NEW.encode(New(x=1, y="y")))
    assert (reader.read_next(30_000).value().y, bound.topic()) == ("y", topic)
    with pytest.raises(geminga.errors.CorruptPayload):
        bound.send(b"\xff\xff")
    with pytest.raises(TypeError):
        bound.send("text")


UTC = dt.UTC
KINDS = [
    (schema.BooleanSchema(), True), (schema.Int8Schema(), -1), (schema.Int64Schema(), 1 << 40),
    (schema.DoubleSchema(), 0.5), (schema.StringSchema(), "grüß"),
    (schema.TimestampSchema(), dt.datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=UTC)),
    (schema.LocalTimeSchema(), dt.time(1, 2, 3, 456789)),
    (KeyValueSchema(schema.StringSchema(), OLD), ("k", Old(x=1))),
    (KeyValueSchema(OLD, schema.Int32Schema(), KeyValueEncodingType.SEPARATED), (Old(x=1), 2)),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "value"), KINDS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("batching", [True, False])
def test_each_kind_of_schema_sends_and_receives_its_values(client, topic, codec, value, batching):
    consumer = client.subscribe(topic, "s", schema=codec)
    producer = client.create_producer(topic, schema=codec, batching_enabled=batching)
    for _ in range(3):
        producer.send_async(value, None)
    producer.flush()
    assert [m.value() for m in values(consumer, 3)] == [value] * 3
    info = client.get_schema_info(topic)
    assert (info.type, info.data) == (codec.schema_info().type, codec.schema_info().data)
    assert dict(info.properties) == dict(codec.schema_info().properties)


def test_a_separated_key_routes_and_compacts_like_a_partition_key(pulsar_broker, client, topic):
    partitioned(pulsar_broker, topic, 4)
    codec = KeyValueSchema(schema.StringSchema(), schema.Int32Schema(), KeyValueEncodingType.SEPARATED)
    consumer = client.subscribe(topic, "s", schema=codec)
    producer = client.create_producer(topic, schema=codec)
    ids = [producer.send(("same", n)) for n in range(5)]
    assert len({message_id.partition() for message_id in ids}) == 1
    producer.send(("same", None))
    messages = values(consumer, 6)
    assert [m.value() for m in messages] == [("same", n) for n in range(5)] + [("same", None)]
    assert messages[0].partition_key() == "c2FtZQ=="
    assert messages[0].partition_key_is_base64()
    assert messages[-1].has_null_value()
    with pytest.raises(geminga.InvalidMessage, match="partition_key"):
        producer.send(("same", 1), partition_key="another")
    with pytest.raises(TypeError):
        producer.send((None, 1))


async def test_asyncio(pulsar_broker, topic):
    async with geminga.asyncio.Client(pulsar_broker.service_url) as client:
        producer = await client.create_producer(topic, schema=OLD)
        consumer = await client.subscribe(topic, "s", schema=schema.AvroSchema(New))
        newer = await producer.with_schema(NEW)
        again = await newer.with_schema(OLD)
        await asyncio.gather(
            *(p.send(kind(x=1)) for p, kind in ((producer, Old), (newer, New), (again, Old)))
        )
        newer.send_async(New(x=2, y="y"), None)
        await newer.flush()
        found = [await consumer.receive(30_000) for _ in range(4)]
        with pytest.raises(geminga.IncompatibleSchema):
            await producer.with_schema(schema.StringSchema())
        with pytest.raises(geminga.InvalidConfiguration, match="schema"):
            await producer.with_schema(Old)
        await newer.close()
        with pytest.raises(geminga.AlreadyClosed):
            await producer.send(Old(x=1))
        values = sorted((m.value().x, m.value().y, m.int_schema_version()) for m in found)
        assert values == [(1, "none", 0), (1, "none", 0), (1, "none", 1), (2, "y", 1)]


def test_tables_carry_the_producers_version(client, topic):
    pa = pytest.importorskip("pyarrow")
    consumer = client.subscribe(topic, "s", schema=OLD)
    producer = client.create_producer(topic, schema=OLD)
    producer.send_table(pa.table({"value": [OLD.encode(Old(x=x)) for x in range(100)]}))
    messages = values(consumer, 100)
    assert [m.value().x for m in messages] == list(range(100))
    assert {m.int_schema_version() for m in messages} == {0}


@pytest.mark.parametrize(
    ("codec", "value"),
    [(NEW, New(x=1, y="y")), (KINDS[-1][0], KINDS[-1][1]), (KINDS[-2][0], KINDS[-2][1])],
    ids=["avro", "separated", "inline"],
)
def test_dead_letters_keep_schema_and_key(client, topic, codec, value):
    policy = geminga.ConsumerDeadLetterPolicy(1, initial_subscription_name="kept")
    consumer = client.subscribe(
        topic, "s", geminga.ConsumerType.Shared, schema=codec, dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=1,
    )  # fmt: skip
    client.create_producer(topic, schema=codec).send(value)
    dead = client.subscribe(f"{topic}-s-DLQ", "kept", geminga.ConsumerType.Shared, schema=codec)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(30_000))
    message = dead.receive(30_000)
    assert message.value() == value
    assert message.int_schema_version() == 0
    assert client.get_schema_info(f"{topic}-s-DLQ").data == codec.schema_info().data
