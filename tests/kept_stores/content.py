"""Content of a kept store: what a program publishes, acknowledges and sets, and what must be there later.

`fill` returns the expectation from what it did, never from what the broker says; `check` compares a broker's
answers with it. Names and values stay as they are: stores of earlier releases hold them.
"""

from dataclasses import dataclass
from typing import Any

import geminga
from geminga.broker.serving.embedded import EmbeddedBroker
from geminga.policies import Retention
from geminga.schema import JsonSchema
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {"ledger_entries_max": 20, "offload_deletion_lag_seconds": 0}
"""Settings of the broker, the same for filling and checking: ledgers are small, offloaded ones deleted."""
RECEIVE_MILLIS = 30_000
Expected = dict[str, Any]


@dataclass
class Reading:
    """First version of the schema of the topic ``readings``."""

    sensor: str
    celsius: float


@dataclass
class LocatedReading:
    """Second version: a field more."""

    sensor: str
    celsius: float
    room: str = "hall"


def fill(broker: EmbeddedBroker) -> Expected:
    """Fill an empty broker; return the values of each topic, and those that each subscription still has."""
    with broker.client() as client, geminga.Admin(broker.admin_url) as admin:
        expected: Expected = {"topics": {}, "subscriptions": {}}
        for write in (
            _rows,
            _batches,
            _partitions,
            _compacted,
            _offloaded,
            _deduplicated,
            _readings,
            _delayed,
        ):
            write(client, admin, expected)
        admin.namespaces.create("public/other")
        admin.namespaces.retention.set("public/other", Retention(minutes=90, megabytes=7))
        admin.namespaces.grant("public/other", "reporter", ["consume"])
        admin.topic_policies.message_ttl.set("rows", 86_400)
        admin.topics.update_properties("rows", {"owner": "kept"})
        admin.topics.create("ended")
        admin.topics.terminate("ended")
    return expected


def _rows(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    """Unbatched messages with keys and properties; a subscription with holes, one that is cumulative."""
    holes = client.subscribe("rows", "holes", consumer_type=geminga.ConsumerType.Shared)
    admin.subscriptions.create("rows", "half", properties={"team": "kept"})
    half = client.subscribe("rows", "half")
    with client.create_producer("rows") as producer:
        for number in range(50):
            producer.send(
                b"row %d" % number, partition_key=f"key {number % 5}", properties={"n": f"{number}"}
            )
    left = []
    for number in range(50):
        message = holes.receive(RECEIVE_MILLIS)
        if number % 3:
            holes.acknowledge(message)
        else:
            left.append(message.data().decode())
    for _ in range(25):
        message = half.receive(RECEIVE_MILLIS)
    half.acknowledge_cumulative(message)
    values = [f"row {number}" for number in range(50)]
    expected["topics"]["rows"] = values
    expected["subscriptions"]["rows"] = {"holes": left, "half": values[25:]}
    holes.close()
    half.close()


def _batches(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    """Compressed batches of ten, acknowledged in part."""
    consumer = client.subscribe(
        "batches", "parts", consumer_type=geminga.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    producer = client.create_producer(
        "batches", batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=60_000,
        compression_type=geminga.CompressionType.ZLib,
    )  # fmt: skip
    for number in range(60):
        producer.send_async(b"part %d" % number, None)
    producer.flush()
    producer.close()
    left = []
    for number in range(60):
        message = consumer.receive(RECEIVE_MILLIS)
        if number < 10 or number % 4 == 0:
            consumer.acknowledge(message)
        else:
            left.append(message.data().decode())
    consumer.close()
    expected["topics"]["batches"] = [f"part {number}" for number in range(60)]
    expected["subscriptions"]["batches"] = {"parts": left}


def _partitions(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    admin.topics.create("partitions", partitions=3)
    admin.subscriptions.create("partitions", "all", position=geminga.MessageId.earliest)
    with client.create_producer("partitions") as producer:
        for number in range(30):
            producer.send(b"keyed %d" % number, partition_key=f"key {number % 7}")
    values = [f"keyed {number}" for number in range(30)]
    expected["topics"]["partitions"] = values
    expected["subscriptions"]["partitions"] = {"all": values}


def _compacted(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    with client.create_producer("compacted") as producer:
        for number in range(40):
            producer.send(b"state %d" % number, partition_key=f"key {number % 4}")
    admin.topics.compact("compacted")
    _wait_for(lambda: admin.topics.compaction_status("compacted").status == "SUCCESS")
    expected["topics"]["compacted"] = [f"state {number}" for number in range(40)]
    expected["compacted"] = [f"state {number}" for number in range(36, 40)]


def _offloaded(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    """Two closed ledgers in files outside the store, and an open one in it."""
    admin.subscriptions.create("offloaded", "all", position=geminga.MessageId.earliest)
    with client.create_producer("offloaded") as producer:
        for number in range(50):
            newest = producer.send(b"old %d" % number)
    admin.topics.offload("offloaded", newest)
    _wait_for(lambda: admin.topics.offload_status("offloaded").status == "SUCCESS")
    values = [f"old {number}" for number in range(50)]
    expected["topics"]["offloaded"] = values
    expected["subscriptions"]["offloaded"] = {"all": values}


def _deduplicated(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    admin.topics.create("deduplicated")
    admin.topic_policies.deduplication.set("deduplicated", True)
    with client.create_producer("deduplicated", producer_name="numbered") as producer:
        for number in range(20):
            producer.send(b"once %d" % number, sequence_id=number)
    expected["topics"]["deduplicated"] = [f"once {number}" for number in range(20)]


def _readings(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    with client.create_producer("readings", schema=JsonSchema(Reading)) as producer:
        producer.send(Reading(sensor="north", celsius=3.5))
    with client.create_producer("readings", schema=JsonSchema(LocatedReading)) as producer:
        producer.send(LocatedReading(sensor="south", celsius=21.25, room="kitchen"))
    expected["readings"] = [["north", 3.5, "hall"], ["south", 21.25, "kitchen"]]


def _delayed(client: geminga.Client, admin: geminga.Admin, expected: Expected) -> None:
    """A message that is due in the year 2255, before one for now."""
    admin.subscriptions.create("delayed", "due", position=geminga.MessageId.earliest)
    with client.create_producer("delayed") as producer:
        producer.send(b"later", deliver_at=9_000_000_000_000)
        producer.send(b"now")
    expected["topics"]["delayed"] = ["later", "now"]
    expected["subscriptions"]["delayed"] = {"due": ["now"]}


def _wait_for(holds: Any) -> None:
    eventually(holds, detail="the broker did not finish within 60 s")


def check(broker: EmbeddedBroker, expected: Expected) -> None:
    """Compare a broker with what `fill` has returned. Changes nothing that a second check would notice."""
    with broker.client() as client, geminga.Admin(broker.admin_url) as admin:
        for topic, values in expected["topics"].items():
            found = _read(client, topic)
            ordered = sorted(found) if topic == "partitions" else found
            assert ordered == (sorted(values) if topic == "partitions" else values), topic
        assert sorted(_read(client, "compacted", is_read_compacted=True)) == sorted(expected["compacted"])
        for topic, subscriptions in expected["subscriptions"].items():
            for name, values in subscriptions.items():
                assert sorted(_pending(client, topic, name, len(values))) == sorted(values), (topic, name)
        for reading, (sensor, celsius, room) in zip(_located(client), expected["readings"], strict=True):
            assert (reading.sensor, reading.celsius, reading.room) == (sensor, celsius, room)
        with client.create_producer("deduplicated", producer_name="numbered") as producer:
            assert producer.last_sequence_id() == 19
            producer.send(b"once 19", sequence_id=19)
        assert _read(client, "deduplicated") == expected["topics"]["deduplicated"]
        assert admin.namespaces.retention.get("public/other") == Retention(minutes=90, megabytes=7)
        assert admin.namespaces.permissions("public/other") == {"reporter": ("consume",)}
        assert admin.topic_policies.message_ttl.get("rows") == 86_400
        assert admin.topics.properties("rows") == {"owner": "kept"}
        assert admin.subscriptions.properties("rows", "half") == {"team": "kept"}
        assert admin.topics.internal_stats("ended").state == "Terminated"
        first = admin.topics.internal_stats("offloaded").ledgers[0]
        assert first.offloaded, "the oldest ledger is no longer offloaded"


def _read(client: geminga.Client, topic: str, **options: Any) -> list[str]:
    with client.create_reader(topic, geminga.MessageId.earliest, **options) as reader:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(RECEIVE_MILLIS).data().decode())
        return found


def _pending(client: geminga.Client, topic: str, name: str, count: int) -> list[str]:
    """Return what a subscription still has, without acknowledging it."""
    with client.subscribe(topic, name, consumer_type=geminga.ConsumerType.Shared) as consumer:
        return [consumer.receive(RECEIVE_MILLIS).data().decode() for _ in range(count)]


def _located(client: geminga.Client) -> list[LocatedReading]:
    schema = JsonSchema(LocatedReading)
    with client.create_reader("readings", geminga.MessageId.earliest, schema=schema) as reader:
        return [reader.read_next(RECEIVE_MILLIS).value() for _ in range(2)]
