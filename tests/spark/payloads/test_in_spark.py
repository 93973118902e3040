"""Topics with schemas inside a real Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import source_context_pb2
from waiting import eventually

import geminga.spark
from geminga import Client, MessageId
from geminga.schema import AvroSchema, BytesSchema, ProtobufNativeSchema

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.spark


@dataclass
class Reading:
    station: str
    celsius: float | None = None
    at: list[int] | None = None


@dataclass
class Later(Reading):
    height: int = 5


Later.__name__ = "Reading"


def publish(client: Client, topic: str, codec: Any, values: list[Any]) -> None:
    with client.create_producer(topic, schema=codec) as producer:
        for value in values:
            producer.send(value)


def test_batch_queries_read_with_sql_and_with_a_given_schema(
    spark, pulsar_broker, pulsar_client, pulsar_topic
):
    publish(
        pulsar_client, pulsar_topic, AvroSchema(Reading), [Reading("Oslo", -3.5, [1, 2]), Reading("Rome")]
    )
    publish(pulsar_client, pulsar_topic, BytesSchema(), [b"garbage"])
    url = pulsar_broker.service_url
    options = (
        f"OPTIONS ('service.url' '{url}', topic '{pulsar_topic}', valueSchema 'TOPIC', mode 'PERMISSIVE')"
    )
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW readings USING pulsar {options}")
    found = spark.sql(
        "SELECT station, celsius, at[1] AS second, _corrupt_record AS bad FROM readings"
    ).collect()
    assert [tuple(row) for row in found] == [
        ("Oslo", -3.5, 2, None), ("Rome", None, None, None), (None, None, None, b"garbage"),
    ]  # fmt: skip
    given = (
        spark.read.format("pulsar")
        .options(**{"service.url": url, "valueSchema": "TOPIC", "mode": "DROPMALFORMED"})
        .schema("station STRING, at ARRAY<BIGINT>, __partition INT")
        .load(pulsar_topic)
    )
    assert [tuple(row) for row in given.collect()] == [("Oslo", [1, 2], -1), ("Rome", None, -1)]


def test_a_restarted_stream_reads_the_columns_of_a_grown_schema(
    spark, pulsar_broker, pulsar_client, pulsar_topic, tmp_path
):
    publish(pulsar_client, pulsar_topic, AvroSchema(Reading), [Reading("Oslo")])

    def run() -> None:
        source = spark.readStream.format("pulsar").option("service.url", pulsar_broker.service_url)
        source = source.option("valueSchema", "TOPIC").option("startingOffsets", "earliest")
        source = source.option("schemaEvolutionMode", "failOnNewColumns")
        query = (
            source.load(pulsar_topic)
            .drop("__messageProperties")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "lake"))
        )
        query.awaitTermination()

    run()
    publish(pulsar_client, pulsar_topic, AvroSchema(Later), [Later("Bergen", height=12)])
    run()
    found = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "lake"))
    assert {row.station: row.height for row in found.collect()} == {"Oslo": None, "Bergen": 12}


def test_progress_reports_malformed_messages(spark, pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    import geminga.spark

    publish(pulsar_client, pulsar_topic, AvroSchema(Reading), [Reading("Oslo"), Reading("Rome")])
    publish(pulsar_client, pulsar_topic, BytesSchema(), [b"garbage"])
    canary = {"auth.plugin": "basic", "auth.params": '{"username": "u", "password": "canary"}'}
    given = {"service.url": pulsar_broker.service_url, "valueSchema": "TOPIC", "mode": "PERMISSIVE", **canary}
    frame = (
        spark.readStream.format("pulsar")
        .options(**given)
        .option("startingOffsets", "earliest")
        .load(pulsar_topic)
    )
    query = (
        geminga.spark.observed(frame)
        .where("_corrupt_record IS NULL")
        .writeStream.format("memory")
        .queryName("kept_readings")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (found,) = [each["observedMetrics"]["pulsar"] for each in query.recentProgress if each["numInputRows"]]
    assert (found["rows"], found["malformed"]) == (3, 1)
    assert spark.table("kept_readings").count() == 2
    # No secret where plans and checkpoints are shown and kept.
    shown = [str(progress) for progress in query.recentProgress]
    shown.append(spark._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "extended"))
    shown += [
        path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()
    ]
    assert not [text for text in shown if "canary" in text]


def test_progress_reports_left_out_messages(spark, pulsar_broker, pulsar_client, pulsar_topic, tmp_path):
    publish(pulsar_client, pulsar_topic, AvroSchema(Reading), [Reading("Oslo")])
    publish(pulsar_client, pulsar_topic, BytesSchema(), [b"bad"] * 3)
    given = {
        "service.url": pulsar_broker.service_url, "valueSchema": "TOPIC", "startingOffsets": "earliest",
        "mode": "DROPMALFORMED", "columns": "station",
    }  # fmt: skip
    # An idle query tells no sooner than this; Spark's default is 10 seconds.
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100ms")
    with geminga.spark.serve_metrics(spark) as server:
        source = spark.readStream.format("pulsar").options(**given).load(pulsar_topic)
        writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            wanted = f'topic="{pulsar_topic}",reason="malformed"}} 3\n'
            eventually(lambda: wanted in server.listener.text())
            assert geminga.spark.query_skipped(query.lastProgress) == {pulsar_topic: {"malformed": 3}}
        finally:
            query.stop()
            spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")


def test_a_frame_written_as_protobuf_is_read_back(spark, pulsar_broker, pulsar_client, pulsar_topic):
    """With a message type that Protobuf brings along: ``file_name`` is its one field."""
    message = source_context_pb2.SourceContext
    pulsar_client.create_producer(pulsar_topic, schema=ProtobufNativeSchema(message)).close()
    frame = spark.sql("SELECT cast(id AS STRING) AS file_name, cast(id AS STRING) AS __key FROM range(1000)")
    given = {"service.url": pulsar_broker.service_url, "valueSchema": "TOPIC", "topic": pulsar_topic}
    frame.write.format("pulsar").options(**given).mode("append").save()
    found = spark.read.format("pulsar").options(**given).load()
    assert found.schema.simpleString().startswith("struct<file_name:string,__key:")
    assert sorted(int(row.file_name) for row in found.collect()) == list(range(1000))
    # As any other client has them.
    with pulsar_client.create_reader(pulsar_topic, MessageId.earliest) as reader:
        assert message.FromString(reader.read_next(20_000).data()).file_name.isdigit()
