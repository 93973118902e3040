"""Streams as PySpark 4.0 and 4.1 drive them: without the start and limit of a micro-batch, and in rows."""

from typing import Any

import pyarrow as pa
import pytest
from driven_query import SCHEMA, OlderQuery, numbers, publish
from pyspark.sql import Row
from pyspark.sql.types import LongType, StructType, TimestampType

from geminga.client.admin import admin
from geminga.errors import InvalidConfiguration, OperationNotSupported, Timeout
from geminga.spark import releases
from geminga.spark.datasource import PulsarDataSource
from geminga.spark.source.data_loss import DataLossError

pytestmark = pytest.mark.usefixtures("older_release")


def test_a_restarted_stream_reads_each_row_once(pulsar_broker, client, pulsar_topic):
    publish(client, pulsar_topic, 0, 5)
    query = OlderQuery(pulsar_broker, pulsar_topic, startingOffsets="earliest")
    assert query.batch() == numbers(0, 5)
    publish(client, pulsar_topic, 5, 5)
    assert query.batch() == numbers(5, 5)
    query.restart()
    publish(client, pulsar_topic, 10, 5)
    assert query.batch() == numbers(10, 5)
    end = query.latest()
    assert end == query.log[-1]


def test_a_stream_from_latest_loses_no_row_between_its_first_end_and_its_start(
    pulsar_broker, client, pulsar_topic
):
    publish(client, pulsar_topic, 0, 5)
    query = OlderQuery(pulsar_broker, pulsar_topic, startingOffsets="latest")
    end = query.latest()
    publish(client, pulsar_topic, 5, 5)
    start = query.reader.initialOffset()
    for _ in range(2):  # Spark may plan a micro-batch twice
        assert query.rows(query.reader.partitions(start, end)) == []
    query.restart()  # killed before the first micro-batch has run
    assert query.run(end) == []
    assert query.batch() == numbers(5, 5)


def test_a_new_stream_with_a_subscription_starts_at_the_option_and_keeps_its_place(
    pulsar_broker, client, pulsar_topic
):
    publish(client, pulsar_topic, 0, 5)
    options = {"predefinedSubscription": "s", "startingOffsets": "earliest"}
    query = OlderQuery(pulsar_broker, pulsar_topic, **options)
    assert query.batch() == numbers(0, 5)
    query.restart()
    publish(client, pulsar_topic, 5, 5)
    assert query.batch() == numbers(5, 5)
    publish(client, pulsar_topic, 10, 5)
    assert query.batch() == numbers(10, 5)
    assert list(query.stats()) == ["s"]


@pytest.mark.parametrize("fails", [False, True])
def test_topics_deleted_while_a_stream_was_stopped_are_reported_at_its_restart(
    pulsar_broker, client, pulsar_topic, fails
):
    kept, gone = f"{pulsar_topic}-kept", f"{pulsar_topic}-gone"
    publish(client, kept, 0, 5)
    publish(client, gone, 5, 5)
    query = OlderQuery(pulsar_broker, gone, startingOffsets="earliest", failOnDataLoss=fails)
    del query.options["topic"]
    query.options["topicsPattern"] = f"{pulsar_topic}-.*"
    query.restart()
    assert sorted(query.batch()) == numbers(0, 10)
    admin(pulsar_broker.admin_url, "DELETE", gone.replace("://", "/") + "?force=true")
    publish(client, kept, 10, 5)
    query.restart()
    if not fails:
        assert sorted(query.batch()) == numbers(10, 5)
        return
    with pytest.raises(DataLossError, match=r"not in the query's topics: .*-gone .*no longer name them"):
        query.batch()


@pytest.mark.parametrize("option", [{"maxOffsetsPerTrigger": "5"}, {"durableSubscription": "true"}])
def test_options_that_need_a_newer_release_are_refused_at_the_start(option):
    options = {"service.url": "pulsar://localhost:1", "topic": "t", **option}
    reader = PulsarDataSource(options).streamReader(SCHEMA)
    with pytest.raises(OperationNotSupported, match=r"needs PySpark 4\.2 or newer; this is PySpark 4"):
        reader.initialOffset()


def test_errors_of_the_options_are_raised_by_the_first_call():
    """PySpark hides an error of `streamReader` behind an error of its own."""
    options = {"service.url": "pulsar://localhost:1", "topic": "t", "endingTime": f"{10**12}"}
    reader: Any = PulsarDataSource(options).streamReader(SCHEMA)
    for call in (reader.initialOffset, reader.latestOffset):
        with pytest.raises(InvalidConfiguration, match="a stream has no end"):
            call()


def test_a_stream_that_starts_waits_for_a_third_of_the_time_out():
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "operationTimeoutMs": "600"}
    reader = PulsarDataSource(options).streamReader(SCHEMA)
    with pytest.raises(Timeout, match=r"no broker came up within 0\.2 s"):
        reader.latestOffset()


def test_rows_are_written_as_arrow_batches(monkeypatch):
    class Writer:
        def write(self, batches: Any) -> list[Any]:
            return list(batches)

    monkeypatch.setattr(releases, "ROWS_AT_ONCE", 2)
    schema = StructType().add("a", LongType()).add("t", TimestampType())
    writer = releases.RowsToArrowWriter(Writer(), schema)
    written: Any = writer.write(iter([Row(a=number, t=None) for number in range(5)]))
    assert [batch.num_rows for batch in written] == [2, 2, 1]
    assert written[0].schema.types == [pa.int64(), pa.timestamp("us", "UTC")]
