"""Compaction, the same on both brokers: what ``pulsar-client``'s readers are given, and what admin says."""

from typing import Any

import pulsar
import pytest
from readers import available
from waiting import eventually
from web_requests import ask

import geminga
from geminga.broker.serving.embedded import embedded
from geminga.spark.datasource import PulsarDataSource

pytestmark = pytest.mark.interop

Given = tuple[str, bytes, int]


class Admin:
    """The admin API of a broker."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str) -> tuple[int, Any]:
        found = ask(f"{self.url}/admin/v2/{path}", method)
        return found.status, found.document if found.status < 400 else None

    def compact(self, topic: str) -> None:
        path = f"{topic.replace('://', '/')}/compaction"
        assert self.call("PUT", path)[0] == 204

        def ended() -> Any:
            status, found = self.call("GET", path)
            assert status == 200
            return found["status"] != "RUNNING" and found

        found = eventually(ended, 120, "compaction does not end")
        assert found["status"] == "SUCCESS", found


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    with embedded(data_dir=tmp_path_factory.mktemp("store")) as broker:
        yield broker


def publish(client: pulsar.Client, topic: str) -> None:
    """Single messages, batches, deletions and messages without a key."""
    single = client.create_producer(topic, batching_enabled=False)
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=100, batching_max_publish_delay_ms=10_000,
        compression_type=pulsar.CompressionType.LZ4,
    )  # fmt: skip
    for number in range(12):
        single.send(b"s%d" % number, partition_key=f"k{number % 4}")
    single.send(b"no key")
    for number in range(8):
        key = None if number == 3 else f"b{number % 3}"
        batched.send_async(b"b%d" % number, lambda result, place: None, partition_key=key)
    batched.send_async(b"", lambda result, place: None, partition_key="b1")
    batched.send_async(b"again", lambda result, place: None, partition_key="k0")
    batched.flush()
    single.send(b"", partition_key="k1")
    single.send(b"", partition_key="never there")
    for producer in (single, batched):
        producer.close()


def given(client: pulsar.Client, topic: str, *, compacted: bool = True) -> list[Given]:
    """Return key, payload and batch index of the messages that a reader gets until none is available.

    Leave out empty values: ``pulsar-client`` returns messages marked as compacted out, and Apache Pulsar
    keeps its single deletions, as they do not give their size.
    """
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    for message in available(reader):
        if message.data():
            found.append((message.partition_key(), message.data(), message.message_id().batch_index()))
    reader.close()
    return found


def positions(client: pulsar.Client, topic: str, *, compacted: bool) -> list[tuple[int, int, int]]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=compacted)
    found = []
    while reader.has_message_available():
        place = reader.read_next(60_000).message_id()
        found.append((place.ledger_id(), place.entry_id(), place.batch_index()))
    reader.close()
    return found


def by_spark(service_url: str, topic: str) -> list[Given]:
    """The same by ``format("pulsar")``'s tasks."""
    options = {"service.url": service_url, "topic": topic, "readcompacted": "true"}
    source = PulsarDataSource({**options, "columns": "__key,value,__batchIndex"})
    reader = source.reader(source.schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return [
        ((row["__key"] or b"").decode(), row["value"], row["__batchIndex"]) for row in rows if row["value"]
    ]


def history(service_url: str, admin: Admin, topic: str) -> list[list[Given]]:
    client = pulsar.Client(service_url)

    def read(topic: str) -> list[Given]:
        found = given(client, topic)
        assert by_spark(service_url, topic) == found
        return found

    try:
        publish(client, topic)
        whole = positions(client, topic, compacted=False)
        admin.compact(topic)
        seen = [read(topic)]
        assert set(positions(client, topic, compacted=True)) <= set(whole)
        producer = client.create_producer(topic, batching_enabled=False)
        producer.send(b"live", partition_key="k2")
        seen.append(read(topic))
        producer.send(b"", partition_key="k3")
        admin.compact(topic)
        seen.append(read(topic))
        for key in ("k0", "k2", "b0", "b2"):
            producer.send(b"", partition_key=key)
        admin.compact(topic)
        seen.append(read(topic))
        seen.append([len(given(client, topic, compacted=False))])
        return seen
    finally:
        client.close()


def test_readers_of_a_compacted_topic_get_the_same_from_both_brokers(apache_pulsar, ours, topic):
    name = topic("compacted")
    theirs = history(apache_pulsar.service_url, Admin(apache_pulsar.admin_url), name)
    assert history(ours.service_url, Admin(ours.admin_url), name) == theirs
    assert [pair[1] for pair in theirs[0]] == [b"s10", b"s11", b"b5", b"b6", b"again"]


@pytest.mark.parametrize("batching", [False, True])
def test_compaction_removes_deletions_of_our_client(apache_pulsar, ours, topic, batching):
    name = topic("deletions")
    for broker in (apache_pulsar, ours):
        with geminga.Client(broker.service_url) as client:
            producer = client.create_producer(name, batching_enabled=batching)
            for key, value in (("a", b"1"), ("b", b"1"), ("b", b""), ("c", b"1"), ("c", None), ("d", b"")):
                producer.send_async(value, None, partition_key=key)
            producer.flush()
            Admin(broker.admin_url).compact(name)
            reader = client.create_reader(name, geminga.MessageId.earliest, is_read_compacted=True)
            assert reader.read_next(60_000).data() == b"1"
            assert not reader.has_message_available()


def test_both_brokers_give_the_same_answers_about_compaction(apache_pulsar, ours, topic):
    plain, parts = topic("plain"), topic("parts")
    answers = []
    for broker in (apache_pulsar, ours):
        admin = Admin(broker.admin_url)
        found: list[Any] = []
        with geminga.Client(broker.service_url) as client:
            client.create_producer(plain).send(b"1", partition_key="k")
        path = f"{plain.replace('://', '/')}/compaction"
        found.append(admin.call("GET", path))
        admin.compact(plain)
        found.append(admin.call("GET", path))
        ask(f"{broker.admin_url}/admin/v2/{parts.replace('://', '/')}/partitions", "PUT", 2)
        path = f"{parts.replace('://', '/')}/compaction"
        found.append(admin.call("PUT", path)[0])
        found.append(admin.call("GET", path)[0])
        found.append(admin.call("PUT", f"{plain.replace('://', '/')}-missing/compaction")[0])
        found.append(admin.call("GET", f"{plain.replace('://', '/')}-missing/compaction")[0])
        answers.append(found)
    assert answers[1] == answers[0]
