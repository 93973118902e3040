"""Conversion of a frame's rows to messages: the message's own columns and those of its payload."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from geminga.errors import IncompatibleSchema, InvalidMessage, InvalidTopicName
from geminga.ids import TopicName
from geminga.schema_info import SchemaInfo
from geminga.spark.cluster.clients import client_for
from geminga.spark.options import WriteOptions
from geminga.spark.schema import FrameLayout, to_messages, written_columns

if TYPE_CHECKING:
    from geminga.spark.payloads.writing import PayloadWriter

TOPICS_MAX = 1000
"""Maximum topics in the rows of one task."""
TABLE_ROWS = 50_000
"""Rows after which a table is handed to the producer, which makes whole batches of it."""

TABLE_BYTES = 8 * 1024 * 1024


class OutgoingFrame:
    """Encoder of one frame's rows. Created at planning time, which checks the frame, and again in each task.

    ``info``: the payloads' schema; None for bytes. Raises `InvalidConfiguration` for columns that can't be
    written and `IncompatibleSchema` for those that don't fit the schema.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        by_schema = options.value_schema != "BYTES"
        self.layout: FrameLayout = written_columns(schema, options.topic, by_schema=by_schema)
        self.info = _schema_of(options, self.layout.payload) if by_schema else None
        self._payloads: PayloadWriter | None = None
        if self.info is not None:
            from geminga.spark.payloads.writing import PayloadWriter

            try:
                self._payloads = PayloadWriter(self.info, self.layout.payload)
            except IncompatibleSchema as error:
                raise IncompatibleSchema(f"valueSchema={options.value_schema}: {error}") from None

    def messages(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the message table of a record batch. Raises `InvalidMessage` naming the fault."""
        arrays = to_messages(batch, self.layout, int(time.time() * 1000))
        if self._payloads is not None:
            columns = [batch.column(number) for number in self.layout.payload_columns]
            arrays["value"] = self._payloads.write(columns, batch.num_rows)
        return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))

    def tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield message tables of a useful size; Spark's own batches may be small. A thread receives the next
        batch meanwhile."""
        pending: list[pa.Table] = []
        rows = size = 0
        for batch in taken_ahead(batches):
            if not batch.num_rows:
                continue
            pending.append(self.messages(batch))
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= TABLE_ROWS or size >= TABLE_BYTES:
                yield pa.concat_tables(pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield pa.concat_tables(pending)


def taken_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches in order, while a thread computes the next one. Raises the iterator's errors.

    Between the JVM and a Python worker a batch goes through a socket that holds a fraction of it: while
    Python works on one batch, the JVM can't send the next one, and is idle.
    """
    with ThreadPoolExecutor(1, "geminga ahead") as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch


def _schema_of(options: WriteOptions, payload: StructType) -> SchemaInfo:
    if options.value_schema != "TOPIC":
        from geminga.spark.payloads.writing import frame_schema

        return frame_schema(payload, options.value_schema, options.record_name, options.record_namespace)
    client, topic = client_for(options.connection), options.topic
    assert topic is not None
    info = options.connection.retry_policy.call(
        f"asking for the schema of {topic}", lambda: client.get_schema_info(topic)
    )
    if info is None:
        raise IncompatibleSchema(
            f"{topic} has no schema, which valueSchema=TOPIC requires: valueSchema=JSON or AVRO registers one"
        )
    return info


def by_topic(table: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each topic, in their order. The option ``topic`` overrides the column."""
    if topic is not None or "topic" not in table.column_names:
        assert topic is not None
        yield topic, table
        return
    column = table.column("topic")
    if column.null_count:
        raise InvalidMessage("a row has no __topic, and the option topic is not set")
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) > TOPICS_MAX:
        raise InvalidMessage(f"the rows of one task name {len(names)} topics; allowed: {TOPICS_MAX}")
    full = [_full_name(name) for name in names]
    if len(names) == 1:
        yield full[0], table
        return
    codes = coded.indices.to_numpy()
    # One pass for all topics: rows are grouped by topic, in their order.
    ordered = table.take(np.argsort(codes, kind="stable"))
    first = 0
    for topic, count in zip(full, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
        if count:
            yield topic, ordered.slice(first, count)
        first += count


def _full_name(name: str) -> str:
    try:
        return str(TopicName.parse(name))
    except InvalidTopicName as error:
        raise InvalidMessage(f"column __topic: {error}") from None
