"""The sink's tasks: Arrow batches from Spark go to the columnar producer as they are.

At least once: a task publishes what it is given and ends when every row has its receipt. A task that
Spark runs again publishes again; `geminga.spark.exactly_once` avoids that for streams.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from geminga.errors import InvalidMessage, InvalidTopicName
from geminga.ids import TopicName
from geminga.spark.cluster import client_for
from geminga.spark.options import WriteOptions
from geminga.spark.schema import to_messages, written_columns

if TYPE_CHECKING:
    from geminga.client.columnar_producer import TableResult
    from geminga.client.producer import Producer
    from geminga.client.sync import Client

logger = logging.getLogger("geminga.spark")

TABLE_ROWS = 50_000
"""Rows after which a table is handed to the producer: whole batches come out of it."""

TABLE_BYTES = 8 * 1024 * 1024

TOPICS_MAX = 1000
"""Topics that the rows of one task may name."""


@dataclass
class PulsarCommit(WriterCommitMessage):
    """What a task has published."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0


def tables(batches: Iterator[pa.RecordBatch], columns: dict[str, int]) -> Iterator[pa.Table]:
    """Message tables of a useful size; Spark's own batches may be small."""
    pending: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(to_messages(batch, columns))
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= TABLE_ROWS or size >= TABLE_BYTES:
            yield pa.concat_tables(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each topic, in their order. The option ``topic`` wins over the column."""
    if topic is not None or "topic" not in table.column_names:
        assert topic is not None
        yield topic, table
        return
    column = table.column("topic")
    if column.null_count:
        raise InvalidMessage("a row has no __topic, and there is no option topic to fill in")
    names = pc.unique(column).to_pylist()
    if len(names) > TOPICS_MAX:
        raise InvalidMessage(f"the rows of one task name {len(names)} topics; allowed: {TOPICS_MAX}")
    for name in names:
        try:
            full = str(TopicName.parse(name))
        except InvalidTopicName as error:
            raise InvalidMessage(f"column __topic: {error}") from None
        yield full, table if len(names) == 1 else table.filter(pc.equal(column, name))


def open_producer(client: Client, options: WriteOptions, topic: str, name: str | None = None) -> Producer:
    """A producer for the options; ``name`` fixes the producer's name for deduplication."""
    from geminga.client.enums import CompressionType, HashingScheme

    return client.create_producer(
        topic,
        producer_name=name,
        send_timeout_millis=options.send_timeout_ms,
        compression_type=CompressionType[options.compression],
        hashing_scheme=HashingScheme[options.hashing],
        batching_max_messages=options.batching_max_messages,
        batching_max_allowed_size_in_bytes=options.batching_max_bytes,
        block_if_queue_full=True,
    )


class _Publication:
    """One task's publishing: a producer a topic, results collected at the end."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.client = client_for(options.connection)
        self.producers: dict[str, Producer] = {}
        self.results: list[Future[TableResult]] = []
        self.commit = PulsarCommit()

    def publish(self, table: pa.Table) -> None:
        for topic, part in by_topic(table, self.options.topic):
            producer = self.producers.get(topic)
            if producer is None:
                producer = self.producers[topic] = open_producer(self.client, self.options, topic)
            self.results.append(producer.submit_table(part))
        self._collect(wait=False)

    def finish(self) -> PulsarCommit:
        self._collect(wait=True)
        return self.commit

    def _collect(self, *, wait: bool) -> None:
        while self.results and (wait or self.results[0].done()):
            result = self.results.pop(0).result()
            self.commit.rows += result.rows
            self.commit.batches += result.batches
            self.commit.bytes += result.bytes

    def close(self) -> None:
        for producer in self.producers.values():
            producer.close()


def publish(options: WriteOptions, schema: StructType, batches: Iterator[pa.RecordBatch]) -> PulsarCommit:
    """Publish a task's rows; returns when all have their receipts."""
    columns = written_columns(schema, options.topic)
    publication = _Publication(options)
    try:
        for table in tables(batches, columns):
            publication.publish(table)
        return publication.finish()
    finally:
        publication.close()


class PulsarWriter(DataSourceArrowWriter):
    """A batch write, at least once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        written_columns(schema, options.topic)
        self.options = options
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self.options, self.schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message for message in messages if isinstance(message, PulsarCommit)]
        logger.info("published %d rows in %d batches from %d tasks",
                    sum(c.rows for c in done), sum(c.batches for c in done), len(done))  # fmt: skip


class PulsarStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write, at least once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        written_columns(schema, options.topic)
        self.options = options
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return publish(self.options, self.schema, iterator)


def stream_writer(options: WriteOptions, schema: StructType) -> DataSourceStreamWriter:
    """The writer that the options ask for."""
    if not options.exactly_once:
        return PulsarStreamWriter(options, schema)
    from geminga.spark.exactly_once import ExactlyOnceWriter

    return ExactlyOnceWriter(options, schema)
