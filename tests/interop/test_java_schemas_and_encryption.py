"""Encrypted and structured messages between the Java client (its command-line tool) and us, on our broker."""

import json
from functools import partial
from pathlib import Path

import pytest

import geminga
from geminga import schema
from geminga.client.options.crypto import CryptoKeyReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]
pytest.importorskip("cryptography")
pytest.importorskip("fastavro")

Earliest = geminga.InitialPosition.Earliest

KEYS = Path(__file__).parent.parent / "vectors" / "keys"
FILES = {
    "RSA": (KEYS / "k1_public.pem", KEYS / "k1_private_pkcs1.pem"),
    "P-256": (KEYS / "ec_p256_public.pem", KEYS / "ec_p256_private.pem"),
    "P-521": (KEYS / "ec_p521_public.pem", KEYS / "ec_p521_private.pem"),
}


@pytest.fixture
def tool(broker, tool_of):
    return partial(tool_of(broker), "pulsar-client")


@pytest.fixture
def as_file(tmp_path):
    """The tool takes a comma on its command line for the end of a message, in a file it does not."""

    def write(content: bytes) -> str:
        path = tmp_path / "message"
        path.write_bytes(content)
        return str(path)

    return write


@pytest.mark.parametrize("kind", sorted(FILES))
def test_messages_encrypted_by_java_are_decrypted(client, tool, topic, kind):
    name, (public, private) = topic("encrypted"), FILES[kind]
    consumer = client.subscribe(name, "s", crypto_key_reader=CryptoKeyReader("", str(private)))
    tool("produce", name, "-m", "a secret", "-n", "3", "-ekn", "orders", "-ekv", public.as_uri())
    for _ in range(3):
        message = consumer.receive(60_000)
        assert message.data() == b"a secret"
        context = message.encryption_context()
        assert context is not None
        assert [key.key for key in context.keys()] == ["orders"]  # noqa: SIM118


@pytest.mark.parametrize("kind", sorted(FILES))
def test_messages_encrypted_by_us_are_decrypted_by_java(client, tool, topic, kind):
    name, (public, private) = topic("encrypted"), FILES[kind]
    client.subscribe(name, "java", initial_position=Earliest).close()
    reader = CryptoKeyReader(str(public), "")
    for compression in (geminga.CompressionType.NONE, geminga.CompressionType.LZ4):
        producer = client.create_producer(
            name, encryption_key="orders", crypto_key_reader=reader, compression_type=compression
        )
        for index in range(5):  # one batch
            producer.send_async(f"secret {compression.name} {index}".encode(), None)
        producer.flush()
        producer.send(f"secret {compression.name} alone".encode())
    output = tool("consume", name, "-s", "java", "-n", "12", "-ekv", private.as_uri())
    for compression in ("NONE", "LZ4"):
        for which in (*range(5), "alone"):
            assert f"secret {compression} {which}" in output


RECORD = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "x", "type": "int"}, {"name": "text", "type": ["null", "string"], "default": None}],
}


class Reading(schema.Record):
    x = schema.Integer(required=True)
    text = schema.String(required_default=True)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_records_written_by_java_are_read(client, tool, topic, as_file, kind):
    name = topic(kind)
    content = b'{"x": 5, "text": "t"}'
    if kind == "avro":  # the tool takes encoded records, and checks that it can read them
        content = schema.AvroSchema(None, RECORD).encode({"x": 5, "text": "t"})
    tool("produce", name, "-vs", f"{kind}:{json.dumps(RECORD)}", "-f", as_file(content))
    ours = schema.AvroSchema(Reading) if kind == "avro" else schema.JsonSchema(Reading)
    consumer = client.subscribe(name, "s", schema=ours, initial_position=Earliest)
    auto = client.subscribe(name, "auto", schema=schema.AutoConsumeSchema(), initial_position=Earliest)
    assert consumer.receive(60_000).value() == Reading(x=5, text="t")
    assert auto.receive(60_000).value() == {"x": 5, "text": "t"}


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_our_records_are_read_by_java(client, tool, topic, kind):
    name = topic(kind)
    client.subscribe(name, "java", initial_position=Earliest).close()
    ours = schema.AvroSchema(Reading) if kind == "avro" else schema.JsonSchema(Reading)
    client.create_producer(name, schema=ours).send(Reading(x=5, text="t"))
    assert "{x=5, text=t}" in tool("consume", name, "-s", "java", "-n", "1", "-st", "auto_consume")


@pytest.mark.parametrize("encoding", list(schema.KeyValueEncodingType))
def test_key_value_pairs_written_by_java_are_read(client, tool, topic, as_file, encoding):
    name = topic("pairs")
    tool(
        "produce", name, "-ks", "string", "-vs", f"json:{json.dumps(RECORD)}",
        "-kvet", encoding.value.lower(), "-kvk", "the key", "-f", as_file(b'{"x": 5, "text": "t"}'),
    )  # fmt: skip
    pairs = schema.KeyValueSchema(schema.StringSchema(), schema.JsonSchema(Reading), encoding)
    for codec, expected in (
        (pairs, Reading(x=5, text="t")),
        (schema.AutoConsumeSchema(), {"x": 5, "text": "t"}),
    ):
        consumer = client.subscribe(name, str(codec)[:20], schema=codec, initial_position=Earliest)
        assert consumer.receive(60_000).value() == ("the key", expected)


@pytest.mark.parametrize("encoding", list(schema.KeyValueEncodingType))
def test_key_value_pairs_written_by_us_are_read_by_java(client, tool, topic, encoding):
    name = topic("pairs")
    client.subscribe(name, "java", initial_position=Earliest).close()
    pairs = schema.KeyValueSchema(schema.StringSchema(), schema.JsonSchema(Reading), encoding)
    client.create_producer(name, schema=pairs).send(("the key", Reading(x=5, text="t")))
    output = tool("consume", name, "-s", "java", "-n", "1", "-st", "auto_consume")
    assert "the key" in output
    assert "x=5" in output
