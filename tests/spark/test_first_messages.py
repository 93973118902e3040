"""Partitions that a stream reads from their first message on: what retention removes before is a loss."""

import json
import logging
from dataclasses import replace

import pytest
from driven_query import SCHEMA, Query, numbers, publish, trim, values
from pyspark.sql.streaming.datasource import ReadAllAvailable
from scripted_cluster import TOPIC, ScriptedCluster

from geminga.broker.serving.embedded import embedded
from geminga.client.admin import admin
from geminga.errors import InvalidConfiguration
from geminga.ids import MessageId
from geminga.spark.cluster import clients as clusters
from geminga.spark.datasource import PulsarDataSource, PulsarStreamReader
from geminga.spark.offsets import Checkpoint, Offset
from geminga.spark.source.data_loss import DataLossError


@pytest.fixture(scope="module")
def broker():
    with embedded(ledger_entries_max=10, retention_minutes=0, retention_megabytes=0) as running:
        yield running


def test_a_repeated_first_micro_batch_reports_deleted_messages(broker, client, pulsar_topic, caplog):
    """The driver was killed, and the messages that it had planned are gone at its restart."""
    publish(client, pulsar_topic, 0, 25)
    query = Query(broker, pulsar_topic, startingOffsets="earliest", maxRowsPerTrigger=15)
    planned = query.latest()
    trim(broker, pulsar_topic)
    query.restart()
    with pytest.raises(DataLossError, match=r"the entry \d+:0 of .* is gone, the first one left is \d+:0"):
        query.run(planned)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    with caplog.at_level(logging.WARNING, "geminga.spark"):
        assert query.run(planned) == []
    assert "is gone, the first one left is" in caplog.text
    assert query.batch() == numbers(20, 5)


def test_first_offsets_make_deleted_messages_a_loss(broker, client, pulsar_topic):
    """Messages that a snapshot has found are gone when it is run."""
    publish(client, pulsar_topic, 0, 25)

    def read(**others: str) -> int:
        options = {"service.url": broker.service_url, "topic": pulsar_topic, **others}
        return len(values(PulsarDataSource(options).reader(SCHEMA)))

    first = client.create_reader(pulsar_topic, MessageId.earliest).read_next().message_id()
    found = {"firstOffsets": json.dumps({pulsar_topic: {"-1": f"{first.ledger_id()}:{first.entry_id()}"}})}
    assert read(**found) == 25
    trim(broker, pulsar_topic)
    assert read() < 25
    with pytest.raises(DataLossError, match=r"the entry \d+:0 of .* is gone, the first one left is \d+:0"):
        read(**found)
    for wrong in ("earliest", "5:1"):
        with pytest.raises(InvalidConfiguration, match="option firstOffsets="):
            read(firstOffsets=wrong)


def test_messages_deleted_before_a_partitions_first_turn_are_a_loss(broker, client, pulsar_topic):
    admin(broker.admin_url, "PUT", f"{pulsar_topic.replace('://', '/')}/partitions", 2)
    parts = [f"{pulsar_topic}-partition-{number}" for number in range(2)]
    for number, part in enumerate(parts):
        publish(client, part, 1000 * number, 25, 5)
    query = Query(broker, pulsar_topic, startingOffsets="earliest", maxRowsPerTrigger=5)
    assert query.batch() == numbers(0, 5)
    publish(client, parts[1], 1025, 100, 5)
    trim(broker, parts[1])
    with pytest.raises(DataLossError, match=r"-partition-1 is gone"):
        query.batch()
    query.options["failOnDataLoss"] = "false"
    query.restart()
    rows: list[bytes] = []
    while query.latest() != query.log[-1]:
        rows += query.batch()
    assert sorted(rows) == sorted([*numbers(1100, 25), *numbers(5, 20)])


A, B = (TOPIC, 0), (TOPIC, 1)


def reader(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, **options: str) -> PulsarStreamReader:
    monkeypatch.setattr(clusters, "connect", lambda _: cluster)
    given = {"service.url": "pulsar://h", "topic": TOPIC, "startingoffsets": "earliest", **options}
    source = PulsarDataSource(given)
    return source.streamReader(source.schema())


def test_first_messages_are_requested_once(monkeypatch):
    cluster = ScriptedCluster()
    for index in range(50):
        cluster.publish((TOPIC, index), 3 + index, [[b"v"]] * 4)
    stream = reader(cluster, monkeypatch, maxentriespertrigger="1")
    limit = stream.getDefaultReadLimit()
    place = stream.initialOffset()
    place = stream.latestOffset(place, limit)
    first = Checkpoint.from_json(place).first
    assert first == {(TOPIC, index): Offset(3 + index, -1) for index in range(50)}
    stream.partitions(stream.initialOffset(), place)
    asked = cluster.questions
    for _ in range(3):
        before, place = place, stream.latestOffset(place, limit)
        stream.partitions(before, place)
    assert cluster.questions <= asked + 10, "not all partitions at every trigger"
    assert set(Checkpoint.from_json(place).first) < set(first)


def test_messages_deleted_from_an_emptied_topic_are_a_loss(monkeypatch):
    """Nothing is left of it when the query looks again, and then new messages come."""
    cluster = ScriptedCluster()
    cluster.publish(A, 3, [[b"a"]] * 4)
    cluster.publish(B, 4, [[b"b"]] * 4)
    stream = reader(cluster, monkeypatch, maxentriespertrigger="2")
    limit = stream.getDefaultReadLimit()
    start = stream.initialOffset()
    end = stream.latestOffset(start, limit)
    assert Checkpoint.from_json(end).first == {A: Offset(3, -1), B: Offset(4, -1)}
    stuck = replace(Checkpoint.from_json(end), offsets={A: Offset(3, 1), B: Offset(-1, -1)}).to_json()
    cluster.trimmed[B] = (4, 3)
    again = reader(cluster, monkeypatch)
    nothing = again.latestOffset(stuck, limit)
    assert Checkpoint.from_json(nothing).first == {B: Offset(4, -1)}
    cluster.publish(B, 9, [[b"new"]])
    end = again.latestOffset(nothing, limit)
    part = again.partitions(nothing, end)[0]
    with pytest.raises(DataLossError, match=r"the entry 4:0 of .* is gone, the first one left is 9:0"):
        list(again.read(part))


def test_a_checkpoint_of_an_older_release_is_read(monkeypatch):
    cluster = ScriptedCluster()
    cluster.publish(A, 3, [[b"a"]] * 4)
    stream = reader(cluster, monkeypatch)
    planned = {TOPIC: {"0": "3:3"}, "query": {"start": {TOPIC: {"0": "-1:-1"}}}}
    (part,) = stream.partitions({TOPIC: {"0": "-1:-1"}}, planned)
    assert [batch.num_rows for batch in stream.read(part)] == [4]


def test_a_recreated_shorter_topic_is_read_from_its_first_message(monkeypatch):
    """After a change of cluster or a wiped store ids start from the beginning. Waiting until the topic is as
    long as the old one would skip its messages without an error."""
    cluster = ScriptedCluster()
    cluster.publish(A, 3, [[b"a"]] * 2)
    cluster.publish(B, 1, [[b"%d" % number] for number in range(5)])
    read_to = {TOPIC: {"0": "3:1", "1": "4:7"}}
    with pytest.raises(DataLossError, match=r"-partition-1 ends at 1:4, and this query has read up to 4:7"):
        reader(cluster, monkeypatch).latestOffset(read_to, ReadAllAvailable())
    limit = {"maxentriespertrigger": "2"}
    stream = reader(cluster, monkeypatch, failondataloss="false", **limit)
    rows: list[bytes] = []
    place: dict[str, object] = read_to
    while (end := stream.latestOffset(place, stream.getDefaultReadLimit())) != place:
        # A restart runs the same micro-batch.
        for again in (reader(cluster, monkeypatch, failondataloss="false", **limit), stream):
            parts = again.partitions(place, end)
            found = [
                v for part in parts for batch in again.read(part) for v in batch.column("value").to_pylist()
            ]
        rows, place = rows + found, end
    assert rows == [b"%d" % number for number in range(5)]
