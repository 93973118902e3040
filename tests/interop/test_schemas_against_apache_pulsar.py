"""Our schemas and encryption with a real Apache Pulsar: what it registers, takes and refuses."""

import datetime as dt
from pathlib import Path

import pytest

import geminga
from geminga import schema
from geminga.client.options.crypto import CryptoKeyReader
from geminga.schema import KeyValueEncodingType, KeyValueSchema

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]
pytest.importorskip("fastavro")
pytest.importorskip("cryptography")

WAIT_MS = 60_000
KEYS = Path(__file__).parent.parent / "vectors" / "keys"


@pytest.fixture
def client(apache_pulsar):
    with geminga.Client(apache_pulsar.service_url, operation_timeout_seconds=60) as client:
        yield client


class Old(schema.Record):
    x = schema.Integer(required=True)


class New(schema.Record):
    x = schema.Integer(required=True)
    # Without `required` the type would be ["null", "string"], and Avro allows no text as its default.
    y = schema.String(default="none", required=True, required_default=True)


class Other(schema.Record):
    z = schema.String(required=True)


Old.__name__ = New.__name__ = "Reading"

MOMENT = dt.datetime(2024, 2, 29, 1, 2, 3, 456000, tzinfo=dt.UTC)
KINDS = [
    (schema.BooleanSchema(), True), (schema.Int8Schema(), -1), (schema.Int16Schema(), 2),
    (schema.Int32Schema(), 3), (schema.Int64Schema(), 1 << 40), (schema.FloatSchema(), 1.5),
    (schema.DoubleSchema(), 0.5), (schema.StringSchema(), "grüß"), (schema.DateSchema(), MOMENT),
    (schema.TimestampSchema(), MOMENT), (schema.InstantSchema(), MOMENT), (schema.TimeSchema(), dt.time(1)),
    (schema.LocalDateSchema(), MOMENT.date()), (schema.LocalTimeSchema(), MOMENT.time()),
    (schema.LocalDateTimeSchema(), MOMENT.replace(tzinfo=None)),
    (schema.AvroSchema(New), New(x=1, y="y")), (schema.JsonSchema(New), New(x=1, y="y")),
    (KeyValueSchema(schema.StringSchema(), schema.AvroSchema(Old)), ("k", Old(x=1))),
    (KeyValueSchema(schema.JsonSchema(Old), schema.Int32Schema(), KeyValueEncodingType.SEPARATED),
     (Old(x=1), 2)),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "value"), KINDS, ids=lambda value: str(value)[:40])
def test_a_value_of_every_schema_type_is_read_back(client, topic, codec, value):
    name = topic("kind")
    consumer = client.subscribe(name, "s", schema=codec)
    client.create_producer(name, schema=codec).send(value)
    assert consumer.receive(WAIT_MS).value() == value
    info = client.get_schema_info(name)
    assert (info.type, info.data) == (codec.schema_info().type, codec.schema_info().data)
    auto = client.create_producer(name, schema=schema.AutoProduceBytesSchema())
    whole = codec.encode_message(value)
    if isinstance(whole, bytes):
        auto.send(whole)
        assert consumer.receive(WAIT_MS).value() == value


def test_one_producer_sends_several_schema_versions(client, topic):
    name = topic("versions")
    old, new = schema.AvroSchema(Old), schema.AvroSchema(New)
    producer = client.create_producer(name, schema=old)
    newer = producer.with_schema(new)
    consumer = client.subscribe(
        name, "s", schema=schema.AvroSchema(New), initial_position=geminga.InitialPosition.Earliest
    )
    for x in range(10):
        if x % 2:
            newer.send_async(New(x=x, y=str(x)), None)
        else:
            producer.send_async(Old(x=x), None)
    producer.flush()
    messages = [consumer.receive(WAIT_MS) for _ in range(10)]
    found = [(m.value().x, m.value().y, m.int_schema_version()) for m in messages]
    assert found == [(x, str(x) if x % 2 else "none", x % 2) for x in range(10)]
    with pytest.raises(geminga.IncompatibleSchema):
        producer.with_schema(schema.AvroSchema(Other))
    for wrong in (schema.AvroSchema(Other), schema.JsonSchema(Old), schema.StringSchema()):
        with pytest.raises(geminga.IncompatibleSchema):
            client.create_producer(name, schema=wrong)
    with pytest.raises(geminga.IncompatibleSchema):
        client.subscribe(name, "other", schema=schema.AvroSchema(Other))


def test_encrypted_messages_are_taken_where_encryption_is_required(apache_pulsar, client):
    for arguments in (("create", "public/secret"), ("set-encryption-required", "public/secret", "--enable")):
        done = apache_pulsar.tool("pulsar-admin", "namespaces", *arguments)
        assert done.returncode == 0, done.stderr
    name = "persistent://public/secret/t"
    reader = CryptoKeyReader(str(KEYS / "ec_p256_public.pem"), str(KEYS / "ec_p256_private.pem"))
    consumer = client.subscribe(name, "s", crypto_key_reader=reader)
    # The broker has the topic by now, and is soon done with refusing.
    with (
        geminga.Client(apache_pulsar.service_url, operation_timeout_seconds=4) as impatient,
        pytest.raises(geminga.BrokerMetadataError),
    ):
        impatient.create_producer(name)
    client.create_producer(name, encryption_key="k", crypto_key_reader=reader).send(b"secret")
    assert consumer.receive(WAIT_MS).data() == b"secret"
