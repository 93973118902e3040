"""Tasks of the sink: they pass Spark's Arrow batches to the columnar producer unchanged.

At least once: a task ends when every row has its receipt. A task that Spark runs again publishes its rows
again; `geminga.spark.sink.exactly_once` avoids that.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from geminga.errors import InvalidConfiguration, MessageTooBig
from geminga.spark import releases
from geminga.spark.options import WriteOptions
from geminga.spark.sink.frames import OutgoingFrame, by_topic
from geminga.spark.sink.producers import kept

if TYPE_CHECKING:
    from geminga.client.publish.columnar_producer import TableResult
    from geminga.client.publish.producer import Producer


def publish(options: WriteOptions, schema: StructType, batches: Iterator[pa.RecordBatch]) -> None:
    """Publish a task's rows; return when all have their receipts."""
    frame = OutgoingFrame(options, schema)
    producers: dict[str, Producer[Any]] = {}
    results: deque[Future[TableResult]] = deque()
    with contextlib.ExitStack() as borrowed:
        for table in frame.tables(batches):
            for topic, part in by_topic(table, options.topic):
                if topic not in producers:
                    producers[topic] = borrowed.enter_context(kept.borrowed(options, topic, info=frame.info))
                results.append(producers[topic].submit_table(part))
            while results and results[0].done():
                results.popleft().result()
        for result in results:
            result.result()


class _TaskWriter:
    """The part of a write that tasks do, at least once."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        OutgoingFrame(options, schema)
        self.options = options
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        try:
            publish(self.options, self.schema, iterator)
        except MessageTooBig as error:
            topic = self.options.topic or "a topic of the rows"
            error.add_note(f"{topic}: the sink makes no chunks: filter such rows, cut or compress them")
            raise
        return WriterCommitMessage()


class PulsarWriter(_TaskWriter, DataSourceArrowWriter):
    """A batch write, at least once."""


class PulsarStreamWriter(_TaskWriter, releases.DataSourceStreamArrowWriter):
    """A streaming write, at least once."""


def batch_writer(options: WriteOptions, schema: StructType) -> DataSourceWriter:
    """Return the writer of a batch query for the options."""
    if not options.exactly_once:
        return PulsarWriter(options, schema)
    from geminga.spark.sink.exactly_once import NumberedWriter

    return NumberedWriter(options, schema)


def stream_writer(options: WriteOptions, schema: StructType) -> DataSourceStreamWriter:
    """Return the writer of a stream for the options."""
    if options.batch_id is not None:
        raise InvalidConfiguration(
            "option batchId is for batch writes: Spark numbers a stream's micro-batches"
        )
    if not options.exactly_once:
        return releases.stream_writer(PulsarStreamWriter(options, schema), schema)
    from geminga.spark.sink.exactly_once import ExactlyOnceWriter

    return releases.stream_writer(ExactlyOnceWriter(options, schema), schema)
