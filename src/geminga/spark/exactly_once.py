"""The streaming sink that publishes each row once.

A task's ``write`` never knows its micro-batch and may run twice, so it publishes nothing: it stages its
encoded batches. Spark's ``commit`` for micro-batch *n* then, on the driver,

1. writes down which staged files belong to *n*, once: a later attempt at *n*, whose tasks may have seen
   their rows in another order, publishes those same files;
2. publishes them, with the sink's own producer name and sequence ids ``n * 2^32 + row``: what an
   interrupted attempt has published already, the broker's deduplication drops;
3. marks *n* as done, and deletes the staged files.

It needs deduplication on the topic's namespace, and says so when it is off.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from geminga.errors import InvalidConfiguration, NotAllowedError, StoreDamaged
from geminga.spark.cluster import client_for
from geminga.spark.options import COMPRESSIONS, WriteOptions
from geminga.spark.schema import written_columns
from geminga.spark.staging import STAGED_SCHEMA, Staging
from geminga.spark.writing import by_topic, open_producer, tables

if TYPE_CHECKING:
    from geminga.client.columnar_producer import ReadyBatch
    from geminga.client.sync import Client

logger = logging.getLogger("geminga.spark")

EPOCH_BITS = 32
"""Sequence ids of a micro-batch and partition: 2^32 rows; 2^31 micro-batches fit into an id."""

STAGING_FOLDER = "geminga-sink"


@dataclass
class StagedCommit(WriterCommitMessage):
    """The staged file of one task attempt; empty for a task without rows."""

    name: str = ""
    rows: int = 0


def staging_of(options: WriteOptions) -> Staging:
    """The staging folder that the options name, or the one below the checkpoint."""
    if options.staging_location is not None:
        return Staging(options.staging_location)
    if options.checkpoint_location is None:
        raise InvalidConfiguration(
            "exactlyOnce=true needs a folder to stage in: set the option checkpointLocation or "
            "stagingLocation"
        )
    return Staging(f"{options.checkpoint_location.rstrip('/')}/{STAGING_FOLDER}")


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Stages in the tasks, publishes in the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        written_columns(schema, options.topic)
        staging_of(options)
        self.options = options
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        commit = StagedCommit()
        encoder = _Encoder(self.options, client_for(self.options.connection))
        columns = written_columns(self.schema, self.options.topic)
        staged = encoder.encoded(tables(iterator, columns), commit)
        first = next(staged, None)
        if first is not None:
            commit.name = staging_of(self.options).stage(_chain(first, staged))
        return commit

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        names = [message.name for message in messages if isinstance(message, StagedCommit) and message.name]
        staging = staging_of(self.options)
        if staging.is_done(batchId):
            # Spark died between our commit and its own: this attempt's files are not needed.
            staging.discard(names)
            return
        decided = staging.epoch(batchId)
        is_repeated = decided is not None
        if decided is None:
            staging.decide(batchId, names)
            decided = names
        elif decided != names:
            staging.discard([name for name in names if name not in decided])
        name = staging.sink_name(self.options.sink_name)
        _Publication(self.options, staging, name, batchId, is_repeated).publish(decided)
        staging.finish(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staging = staging_of(self.options)
        decided = staging.epoch(batchId) or []
        names = [message.name for message in messages if isinstance(message, StagedCommit) and message.name]
        staging.discard([name for name in names if name not in decided])


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


class _Encoder:
    """A task's rows as batches without sequence ids."""

    def __init__(self, options: WriteOptions, client: Client) -> None:
        self.options = options
        self.client = client
        self.compression = COMPRESSIONS.index(options.compression)
        self.partitions: dict[str, int] = {}
        self.turns: dict[str, int] = {}

    def encoded(self, found: Iterator[pa.Table], commit: StagedCommit) -> Iterator[pa.RecordBatch]:
        for table in found:
            commit.rows += table.num_rows
            for topic, part in by_topic(table, self.options.topic):
                yield self._encode(topic, part)

    def _encode(self, topic: str, table: pa.Table) -> pa.RecordBatch:
        from geminga.wire.checksum import crc32c
        from geminga.wire.columnar import encode_table
        from geminga.wire.compression import compress

        partitions = self._partitions(topic)
        batches = encode_table(
            table,
            partitions=partitions,
            hashing=self.options.hashing,
            first_partition=self.turns[topic],
            max_messages=self.options.batching_max_messages,
            max_bytes=self.options.batching_max_bytes,
        )
        self.turns[topic] += sum(not batch.keyed for batch in batches)
        bodies = [compress(self.compression, b.body) if self.compression else bytes(b.body) for b in batches]
        columns = [
            [topic] * len(batches),
            [batch.partition for batch in batches],
            [batch.count for batch in batches],
            [batch.uncompressed_size for batch in batches],
            [self.compression] * len(batches),
            [batch.partition_key for batch in batches],
            [batch.ordering_key for batch in batches],
            [crc32c(body) for body in bodies],
            bodies,
        ]
        arrays = [pa.array(c, field.type) for c, field in zip(columns, STAGED_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=STAGED_SCHEMA)

    def _partitions(self, topic: str) -> int:
        known = self.partitions.get(topic)
        if known is None:
            known = max(1, self.client.runtime.call(self.client.core.partitions(topic)))
            self.partitions[topic] = known
            # Tasks start at different partitions, so that small micro-batches reach all of them.
            from pyspark import TaskContext

            context = TaskContext.get()
            self.turns[topic] = context.partitionId() if context is not None else 0
        return known


class _Publication:
    """The publishing half of one commit."""

    def __init__(
        self, options: WriteOptions, staging: Staging, name: str, epoch: int, is_repeated: bool
    ) -> None:
        self.options = options
        self.staging = staging
        self.name = name
        self.base = epoch << EPOCH_BITS
        self.epoch = epoch
        self.is_repeated = is_repeated
        self.client = client_for(options.connection)

    def publish(self, names: list[str]) -> None:
        """Topic by topic, so that one producer is open at a time."""
        if self.options.topic is not None:
            topics = {self.options.topic}
        else:
            topics = {row["topic"] for name in names for row in self.staging.staged(name)}
        for topic in sorted(topics if names else ()):
            self._publish_topic(topic, names)

    def _publish_topic(self, topic: str, names: list[str]) -> None:
        with open_producer(self.client, self.options, topic, self.name) as producer:
            last = producer.last_sequence_id()
            self._check_before(topic, last)
            result = producer.publish_encoded(self._ready(topic, names))
        if result.duplicates and not self.is_repeated:
            raise StoreDamaged(
                f"{topic}: the broker takes {result.duplicates} of {result.rows} rows of micro-batch "
                f"{self.epoch} for duplicates, though it is published for the first time: another query uses "
                f"the sink name {self.name!r}, or its checkpoint was replaced. Choose another sinkName"
            )
        if last < 0:
            self._check_after(topic)

    def _ready(self, topic: str, names: list[str]) -> Iterator[ReadyBatch]:
        from geminga.client.columnar_producer import ReadyBatch

        rows: dict[int, int] = {}
        for name in names:
            for batch in self.staging.staged(name):
                if batch["topic"] != topic:
                    continue
                partition, count = batch["partition"], batch["count"]
                first = self.base + rows.get(partition, 0)
                rows[partition] = rows.get(partition, 0) + count
                yield ReadyBatch(
                    partition=partition,
                    body=batch["body"],
                    count=count,
                    sequence_id=first,
                    highest_sequence_id=first + count - 1,
                    uncompressed_size=batch["uncompressed_size"],
                    compression=batch["compression"],
                    partition_key=batch["partition_key"],
                    ordering_key=batch["ordering_key"],
                )

    def _check_before(self, topic: str, last_sequence_id: int) -> None:
        if last_sequence_id >= self.base + (1 << EPOCH_BITS):
            raise InvalidConfiguration(
                f"{topic}: the sink {self.name!r} has published micro-batch "
                f"{last_sequence_id >> EPOCH_BITS} already, and this checkpoint is at {self.epoch}: it was "
                "replaced. Choose another sinkName"
            )

    def _check_after(self, topic: str) -> None:
        """With deduplication on, the broker now remembers this producer's sequence ids."""
        with open_producer(self.client, self.options, topic, self.name) as producer:
            if producer.last_sequence_id() >= 0:
                return
        namespace = "/".join(topic.split("://")[1].split("/")[:2])
        raise NotAllowedError(
            f"{topic}: the broker does not deduplicate, so that exactlyOnce=true can't be kept. Turn it on "
            f"for the namespace ('pulsar-admin namespaces set-deduplication {namespace} --enable') before "
            f"the query starts; micro-batch {self.epoch} was published and may be published again"
        )
