"""Topics with schemas inside a real Spark session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import geminga.spark
from geminga import Client
from geminga.schema import AvroSchema, BytesSchema

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
