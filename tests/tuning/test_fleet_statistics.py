"""Statistics of a fleet: codec and uncompressed size of each topic's messages."""

import contextlib
from typing import Any

import pytest
from waiting import repeating

import geminga
from geminga.errors import InvalidConfiguration
from geminga.tuning.fleet_statistics import gather

PAYLOAD = b'{"level": "INFO", "text": "door open, reading may drift"}' * 4


@pytest.mark.parametrize("partitions", [0, 3])
def test_codec_and_size_are_read_from_the_newest_entry(partitions):
    with geminga.embedded() as broker, geminga.Client(broker.service_url) as client:
        admin = geminga.Admin(broker.admin_url)
        codecs = {"packed": geminga.CompressionType.ZSTD, "plain": geminga.CompressionType.NONE}
        producers: list[Any] = []
        for name, codec in codecs.items():
            admin.topics.create(name, partitions=partitions)
            producers.append(
                client.create_producer(
                    name, compression_type=codec, batching_enabled=True, batching_max_publish_delay_ms=5
                )
            )
        with repeating(lambda _: [each.send_async(PAYLOAD, None) for each in producers], 0.001):
            for _ in range(60):  # a busy machine may let nothing flow for a second
                with contextlib.suppress(InvalidConfiguration):
                    rows = gather(broker.admin_url, watch_seconds=1.0).to_pylist()
                    found = {row["topic"].rpartition("/")[2]: row for row in rows}
                    if set(found) == set(codecs):
                        break
    assert found["packed"]["compression"] == "ZSTD"
    assert found["packed"]["message_bytes"] == pytest.approx(len(PAYLOAD), abs=1)
    assert found["plain"]["compression"] == "NONE"
    assert found["plain"]["message_bytes"] >= len(PAYLOAD)
    assert {row["partitions"] for row in rows} == {max(1, partitions)}
    assert "partitioned" not in found["plain"]
