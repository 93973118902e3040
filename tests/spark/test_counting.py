import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from scripted_cluster import TOPIC, Outage, ScriptedCluster

from geminga.schema import AvroSchema, BytesSchema
from geminga.spark.counting import SkipCountCollector, SkipCounters, may_skip
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.observing import query_skipped
from geminga.spark.offsets import Offset
from geminga.spark.options import read_options
from geminga.spark.ranges import Range


def part(start: int, index: int = 0) -> Range:
    return Range((TOPIC, index), Offset(5, start), Offset(5, start + 10))


def tell(cluster: ScriptedCluster, to: str | None, where: Range, **counts: int) -> None:
    skip_counters = SkipCounters()
    for reason, count in counts.items():
        skip_counters.add(reason, count)
    skip_counters.tell(cluster, to, where)


def test_several_attempts_at_a_task_count_once():
    cluster = ScriptedCluster()
    collector = SkipCountCollector(cluster, TOPIC)
    assert collector.totals() == {}
    plan = collector.topic
    for _ in range(3):
        tell(cluster, plan, part(0), malformed=2)
    tell(cluster, plan, part(10), malformed=1, deadLetters=1)
    tell(cluster, plan, part(0, index=1), malformed=1)
    tell(cluster, plan, part(0, index=2))
    assert collector.totals() == collector.totals() == {TOPIC: {"deadLetters": 1, "malformed": 4}}


def test_old_reports_are_added_up_and_counted_once(monkeypatch):
    monkeypatch.setattr("geminga.spark.counting.REPORTS_KEPT", 3)
    cluster = ScriptedCluster()
    collector = SkipCountCollector(cluster, TOPIC)
    for number in range(50):
        for _ in range(2):
            tell(cluster, collector.topic, part(number), malformed=1)
        assert collector.totals() == {TOPIC: {"malformed": number + 1}}
    assert len(collector._reports) == 3


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"[]", b"1", b'{"topic": 1}', b"{" * 100_000, b'{"topic": 1, "part": 1, "counts": 3}'],
)
def test_invalid_reports_are_ignored(message):
    cluster = ScriptedCluster()
    collector = SkipCountCollector(cluster, TOPIC)
    plan = collector.topic
    assert plan is not None
    cluster.post(plan, message)
    tell(cluster, plan, part(0), malformed=1)
    assert collector.totals() == {TOPIC: {"malformed": 1}}


def test_without_a_broker_nothing_is_counted_and_nothing_fails():
    cluster = ScriptedCluster()
    cluster.down = Outage(1)
    collector = SkipCountCollector(cluster, TOPIC)
    assert collector.topic is None
    tell(cluster, None, part(0), malformed=1)
    collector = SkipCountCollector(cluster, TOPIC)
    plan = collector.topic
    cluster.down = Outage(1)
    tell(cluster, plan, part(0), malformed=1)
    assert collector.totals() == {}


def test_options_that_may_skip_messages_are_recognised():
    def options(**given: str) -> bool:
        return may_skip(read_options({"service.url": "pulsar://h", "topic": "t", **given}))

    assert not options()
    assert not options(valueSchema="TOPIC")
    assert options(valueSchema="TOPIC", mode="DROPMALFORMED")
    assert options(valueSchema="TOPIC", mode="PERMISSIVE", deadLetterPath="/x")
    assert options(failOnDataLoss="false")
    assert options(cryptoFailureAction="DISCARD")


@dataclass
class Reading:
    id: int


def test_a_stream_reports_left_out_messages(pulsar_broker, pulsar_client, pulsar_topic):
    def publish(good: int, bad: int) -> None:
        for codec, values in (
            (AvroSchema(Reading), map(Reading, range(good))),
            (BytesSchema(), [b"x"] * bad),
        ):
            with pulsar_client.create_producer(pulsar_topic, schema=codec) as producer:
                for value in values:
                    producer.send(value)

    def told() -> dict[str, Any]:
        return query_skipped({"sources": [{"latestOffset": json.dumps(reader.reportLatestOffset())}]})

    publish(3, 2)
    given = {"service.url": pulsar_broker.service_url, "topic": pulsar_topic, "valueSchema": "TOPIC",
             "mode": "DROPMALFORMED", "startingOffsets": "earliest"}  # fmt: skip
    source = PulsarDataSource({name.lower(): value for name, value in given.items()})
    reader = source.streamReader(source.schema())
    begin = reader.initialOffset()
    for _ in range(2):
        end = reader.latestOffset(begin, ReadAllAvailable())
        for _ in range(2):
            assert sum(b.num_rows for p in reader.partitions(begin, end) for b in reader.read(p)) == 3
        publish(3, 3)
        begin = end
    deadline = time.monotonic() + 60
    while told().get(pulsar_topic) != {"malformed": 5}:
        assert time.monotonic() < deadline, told()
        reader.latestOffset(begin, ReadAllAvailable())
    reader.stop()
