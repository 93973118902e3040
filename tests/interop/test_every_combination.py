"""Messages published by Geminga with each combination of settings, read by the Java client and pulsar-client.

Compression × batching type or chunks × key × schema × encryption: 160 topics on a real Apache Pulsar. The
Java client's tool reads them all in one process, by pattern.
"""

import itertools
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

import geminga
from geminga import schema
from geminga.client.options.crypto import CryptoKeyReader

pytest.importorskip("cryptography")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KEYS = Path(__file__).parent.parent / "vectors" / "keys"
PUBLIC, PRIVATE = KEYS / "k1_public.pem", KEYS / "k1_private_pkcs1.pem"
MESSAGES = 3
WAYS: dict[str, dict[str, Any]] = {
    "default batches": {},
    "key-based batches": {"batching_type": geminga.BatchingType.KeyBased},
    "unbatched": {"batching_enabled": False},
    "chunks": {"chunking_enabled": True, "chunk_max_message_size": 4_000},
}


@dataclass(frozen=True, slots=True)
class Published:
    """A topic and its published messages."""

    topic: str
    key: str | None
    contents: list[str]


@pytest.fixture(scope="module")
def prefix():
    return f"persistent://public/default/combination-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def published(apache_pulsar, prefix):
    chance = random.Random(1)
    reader = CryptoKeyReader(str(PUBLIC), str(PRIVATE))
    everything = []
    with geminga.Client(apache_pulsar.service_url) as client:
        combinations = itertools.product(
            geminga.CompressionType, WAYS.items(), (None, "the key"), (False, True), (False, True)
        )
        for number, (compression, (way, options), key, typed, sealed) in enumerate(combinations):
            topic = f"{prefix}-{number}"
            # Chunked messages must not shrink to one chunk when they are compressed.
            padding = "".join(chance.choices("abcdefghijklmnop", k=16_000 if way == "chunks" else 20))
            contents = [f"<{number}/{index}>{padding}" for index in range(MESSAGES)]
            producer = client.create_producer(
                topic,
                schema=schema.StringSchema() if typed else schema.BytesSchema(),
                compression_type=compression,
                **options,
                **({"encryption_key": "k1", "crypto_key_reader": reader} if sealed else {}),
            )
            for content in contents:
                producer.send_async(content if typed else content.encode(), None, partition_key=key)
            producer.flush()
            producer.close()
            everything.append(Published(topic, key, contents))
        yield everything


def test_the_java_client_reads_all_variants(apache_pulsar, published, prefix):
    output = apache_pulsar.tool(
        "pulsar-client", "consume", f"{prefix}-.*", "--regex", "-s", "java", "-p", "Earliest",
        "-n", str(len(published) * MESSAGES), "-ekv", PRIVATE.as_uri(),
        timeout_seconds=300,
    )  # fmt: skip
    assert output.returncode == 0, output.stderr[-2000:]
    seen = re.findall(r"content:(<\d+/\d+>[a-p]+)", output.stdout)
    assert sorted(seen) == sorted(content for one in published for content in one.contents)


def test_pulsar_client_reads_all_variants(apache_pulsar, published):
    client = pulsar.Client(apache_pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = pulsar.CryptoKeyReader(str(PUBLIC), str(PRIVATE))
    for one in published:
        consumer = client.subscribe(
            one.topic, "witness", initial_position=pulsar.InitialPosition.Earliest, crypto_key_reader=reader
        )
        messages: list[Any] = [consumer.receive(60_000) for _ in range(MESSAGES)]
        assert [m.data().decode() for m in messages] == one.contents, one.topic
        assert {m.partition_key() for m in messages} == {one.key or ""}
        consumer.close()
    client.close()
