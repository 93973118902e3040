"""Tables and views of Spark's catalog: rows go where the query's own options say, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from readers import available

from geminga import Client, MessageId
from geminga.broker.serving.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Catalog:
    """A table and a view in a session, and topics to read and write through them."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, client: Client, topic: str) -> None:
        self.spark = spark
        self.url = broker.service_url
        self.source, self.target = topic, f"{topic}-target"
        self.client = client
        with client.create_producer(self.source) as producer:
            producer.send(b"read")
        spark.sql("CREATE TABLE messages (value BINARY) USING pulsar")

    def options(self, topic: str, equals: str = " = ") -> str:
        return f"('service.url'{equals}'{self.url}', topic{equals}'{topic}')"

    def rows(self) -> DataFrame:
        """Rows of the source, read through the table: their columns are those of the table."""
        return self.spark.sql(f"SELECT value FROM messages WITH {self.options(self.source)}")

    def stream(self) -> DataFrame:
        return self.spark.sql(
            f"SELECT value FROM STREAM messages WITH ('service.url' = '{self.url}', topic = '{self.source}', "
            "startingOffsets = 'earliest')"
        )

    def values(self, topic: str) -> list[bytes]:
        with self.client.create_reader(topic, MessageId.earliest) as reader:
            return [message.data() for message in available(reader)]


@pytest.fixture
def catalog(spark, pulsar_broker, pulsar_client, pulsar_topic):
    try:
        yield Catalog(spark, pulsar_broker, pulsar_client, pulsar_topic)
    finally:
        for what in ("VIEW IF EXISTS flights", "VIEW IF EXISTS target", "TABLE IF EXISTS messages"):
            spark.sql(f"DROP {what}")


def test_a_table_with_options_is_refused(catalog):
    options = catalog.options(catalog.source, " ")
    with pytest.raises(Exception, match=r"(?s)can have no options \(service\.url, topic\).*TEMPORARY VIEW"):
        catalog.spark.sql(f"CREATE TABLE flights USING pulsar OPTIONS {options}")
    assert not catalog.spark.catalog.tableExists("flights")


def test_a_table_with_columns_and_options_fails_at_its_first_use(catalog):
    """Spark creates it without asking the source."""
    options = catalog.options(catalog.target, " ")
    catalog.spark.sql(f"CREATE TABLE target (value BINARY) USING pulsar OPTIONS {options}")
    try:
        for statement in ("INSERT INTO target VALUES (X'61')", "SELECT * FROM target"):
            with pytest.raises(Exception, match=r"service\.url is missing.*does not pass a table's options"):
                catalog.spark.sql(statement).collect()
    finally:
        catalog.spark.sql("DROP TABLE target")


def test_a_table_without_columns_has_those_of_messages(catalog):
    catalog.spark.sql("DROP TABLE messages")
    catalog.spark.sql("CREATE TABLE messages USING pulsar")
    assert catalog.spark.table("messages").columns[:2] == ["value", "__key"]
    assert [bytes(row.value) for row in catalog.rows().collect()] == [b"read"]


def insert(catalog: Catalog, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("flights")
    catalog.spark.sql("INSERT INTO messages SELECT value FROM flights")


def into_a_new_table(catalog: Catalog, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("flights")
    catalog.spark.sql("CREATE TABLE target USING pulsar AS SELECT value FROM flights")


@pytest.mark.rotating(2)
@pytest.mark.parametrize(
    "write",
    [
        insert,
        into_a_new_table,
        lambda catalog, rows: rows.write.insertInto("messages"),
        lambda catalog, rows: rows.writeTo("messages").append(),
    ],
    ids=["INSERT INTO", "CREATE TABLE AS", "insertInto", "writeTo"],
)
def test_a_write_without_options_is_refused(catalog, write):
    with pytest.raises(Exception, match=r"(?s)service\.url is missing.*INSERT INTO t WITH"):
        write(catalog, catalog.rows())
    assert catalog.values(catalog.source) == [b"read"]


def run(stream: DataFrame, folder: Path, start: Callable[[Any], Any]) -> None:
    writer = stream.writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    query = start(writer)
    query.processAllAvailable()
    query.stop()


def test_a_stream_into_a_table_needs_its_own_options(catalog, tmp_path):
    with pytest.raises(Exception, match=r"(?s)service\.url is missing"):
        run(catalog.stream(), tmp_path / "a", lambda writer: writer.toTable("messages"))
    assert catalog.values(catalog.source) == [b"read"]
    given = {"service.url": catalog.url, "topic": catalog.target}
    run(catalog.stream(), tmp_path / "b", lambda writer: writer.options(**given).toTable("messages"))
    assert (catalog.values(catalog.source), catalog.values(catalog.target)) == ([b"read"], [b"read"])


def insert_with(catalog: Catalog, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("flights")
    options = catalog.options(catalog.target)
    catalog.spark.sql(f"INSERT INTO messages WITH {options} SELECT value FROM flights")


def write_to(catalog: Catalog, rows: DataFrame) -> None:
    given = {"service.url": catalog.url, "topic": catalog.target}
    rows.writeTo("messages").options(**given).append()


def target_view(catalog: Catalog, columns: str) -> SparkSession:
    options = catalog.options(catalog.target, " ")
    catalog.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW target{columns} USING pulsar OPTIONS {options}")
    return catalog.spark


def insert_into_a_view(catalog: Catalog, rows: DataFrame) -> None:
    rows.createOrReplaceTempView("flights")
    target_view(catalog, " (value BINARY)").sql("INSERT INTO target SELECT value FROM flights")


def write_to_a_view(catalog: Catalog, rows: DataFrame) -> None:
    target_view(catalog, "")
    rows.selectExpr("value", "cast(null as binary) as __key").writeTo("target").append()


@pytest.mark.rotating(2)
@pytest.mark.parametrize("write", [insert_with, write_to, insert_into_a_view, write_to_a_view])
def test_rows_are_written_by_the_options_of_the_write(catalog, write):
    write(catalog, catalog.rows())
    assert (catalog.values(catalog.source), catalog.values(catalog.target)) == ([b"read"], [b"read"])


def test_a_persistent_view_keeps_the_options_of_its_query(catalog):
    options = catalog.options(catalog.source)
    catalog.spark.sql(f"CREATE VIEW flights AS SELECT value FROM messages WITH {options}")
    assert [bytes(row.value) for row in catalog.spark.table("flights").collect()] == [b"read"]
