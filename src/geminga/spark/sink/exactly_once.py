"""Sinks that publish each row exactly once.

A task's ``write`` never knows whether it runs again, so it publishes nothing: it stages its encoded batches.
Spark's ``commit``, on the driver, publishes them. A stream's commit for micro-batch *n*

1. records the staged files of *n*, once: a later attempt at *n*, whose tasks may have seen their rows in
   another order, publishes those same files. A different micro-batch with the number *n*, from a checkpoint
   that was set back, is rejected, since its rows would be lost;
2. publishes them, with the sink's own producer name and sequence ids ``n * 2^32 + row``: the broker's
   deduplication drops rows that an interrupted attempt has published already; a later attempt also searches
   the topics for them, since a broker forgets a producer after hours of silence;
3. marks *n* as done, and deletes the staged files.

Deduplication must be on for the topic's namespace; otherwise the sink fails with instructions. A batch query
is one micro-batch: nothing is published before every task has succeeded.

A staging folder belongs to one query and one target. Only tasks know the query: they send its id to the
commit with their messages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from geminga.errors import (
    IncompatibleSchema,
    InvalidConfiguration,
    MessageTooBig,
    NotAllowedError,
    StoreDamaged,
    TopicNotFound,
)
from geminga.ids import MessageId
from geminga.producer.assembling import PRODUCER_NAME_SIZE_GUESS
from geminga.producer.operation import SendOperation, name_field
from geminga.producer.settings import SEQUENCE_ID_MAX
from geminga.schema_info import SchemaInfo
from geminga.spark.cluster.clients import client_for, connect
from geminga.spark.options import COMPRESSIONS, WriteOptions
from geminga.spark.releases import DataSourceStreamArrowWriter
from geminga.spark.sink.deduplication import command_for, ensure_deduplication
from geminga.spark.sink.frames import OutgoingFrame, by_topic
from geminga.spark.sink.producers import kept, named, public_keys
from geminga.spark.sink.published import TopicTails, later
from geminga.spark.sink.staging import (
    STAGED_SCHEMA,
    Epoch,
    Staging,
    job_folder,
    planned,
    remove_abandoned_jobs,
)
from geminga.spark.tasks import query_of_task

if TYPE_CHECKING:
    from geminga.client.api.sync import Client
    from geminga.client.publish.columnar_producer import ReadyBatch, TableResult
    from geminga.client.publish.producer import Producer
    from geminga.wire.columnar_encoding import EncodedBatch

logger = logging.getLogger("geminga.spark")

EPOCH_BITS = 32
"""Bits for the row in a sequence id: 2^32 rows per micro-batch and partition, and 2^31 micro-batches."""

STAGING_FOLDER = "geminga-sink"

FORGETTING_SECONDS = 3600.0
"""Silence after which the broker may forget a sink; Apache Pulsar does so after six hours by default."""

GROUP_BYTES = 4 * 1024 * 1024
"""Approximate size of the groups in which staged batches of one topic are handed to its producer."""


@dataclass
class StagedCommit(WriterCommitMessage):
    """The staged file of one task attempt; empty for a task without rows. ``query``: the id of its query;
    ``topics``: those of its rows."""

    name: str = ""
    rows: int = 0
    query: str = ""
    topics: tuple[str, ...] = ()


def location_of(options: WriteOptions) -> str:
    """Return the staging folder that the options name, or the one below the checkpoint."""
    if options.staging_location is not None:
        return options.staging_location
    if options.checkpoint_location is None:
        raise InvalidConfiguration(
            "exactlyOnce=true needs a folder to stage in: set the option checkpointLocation (streams) or "
            "stagingLocation. (Spark does not pass the setting spark.sql.streaming.checkpointLocation to a "
            "sink in Python)"
        )
    return f"{options.checkpoint_location.rstrip('/')}/{STAGING_FOLDER}"


def staging_of(options: WriteOptions, query: str) -> Staging:
    """Return the staging folder of one query and target."""
    return Staging(location_of(options), query, options.topic or "topics-of-rows")


def _sink_of(options: WriteOptions, query: str) -> str:
    """Return the default name of a stream's sink, used if its staging folder keeps no other."""
    return options.sink_name or f"geminga-sink-{query}"


def query_id(options: WriteOptions) -> str:
    """Return, in a task, its streaming query; outside of Spark the checkpoint. The batch writes of
    ``batchId`` have their sink's name in common."""
    if options.batch_id is not None and options.sink_name is not None:
        return options.sink_name
    return query_of_task(options.checkpoint_location or "")


class ExactlyOnceWriter(DataSourceStreamArrowWriter):
    """Streams: stages in the tasks, publishes in the commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.info = OutgoingFrame(options, schema).info
        Staging(location_of(options))
        if options.topic is not None:
            ensure_deduplication(options, options.topic)
        self.options = options
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query = query_id(self.options)
        return _stage(self.options, self.schema, iterator, query, _sink_of(self.options, query))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        found = _staged(messages)
        if not found:
            return  # a micro-batch without tasks
        names = [message.name for message in found if message.name]
        query = found[0].query
        staging = staging_of(self.options, query)
        mine = Epoch(
            files=tuple(names),
            rows=sum(message.rows for message in found),
            plan=planned(self.options.checkpoint_location, batchId),
        )
        decided = staging.epoch(batchId)
        if decided is not None and not decided.is_same(mine):
            raise _another(self.options, batchId, decided, mine)
        if staging.is_done(batchId):
            # Spark died between our commit and its own: the files of this attempt are not needed.
            logger.warning("%s: micro-batch %d was published before", self.options.topic, batchId)
            staging.discard(names)
            return
        name = staging.sink_name(self.options.sink_name, _sink_of(self.options, query))
        topics = sorted({topic for message in found for topic in message.topics})
        with contextlib.ExitStack() as opened:
            publication = _Publication(
                self.options, staging, name, batchId,
                info=self.info, topics=topics, is_repeated=decided is not None, opened=opened,
            )  # fmt: skip
            if decided is None:
                # From now on the decision counts as begun, and duplicates as this micro-batch's own.
                publication.check_unused()
                staging.keep_name(name)
                since = publication.places(staging.places(batchId - 1))
                decided = replace(mine, since=since, decided_ms=int(time.time() * 1000))
                staging.decide(batchId, decided)
            elif decided.files != mine.files:
                staging.discard([each for each in names if each not in decided.files])
            places = publication.publish(decided)
        staging.finish(batchId, places)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for message in _staged(messages):
            staging = staging_of(self.options, message.query)
            decided = staging.epoch(batchId)
            if decided is None or message.name not in decided.files:
                staging.discard([message.name] if message.name else [])


def _another(options: WriteOptions, number: int, decided: Epoch, mine: Epoch) -> StoreDamaged:
    """Return the error for a number that already belongs to another micro-batch of the checkpoint."""
    rows = "" if decided.rows is None else f" of {decided.rows} rows"
    cause = (
        f"Spark's checkpoint {options.checkpoint_location} was replaced by an older one, and has planned it "
        "anew. Put the checkpoint back; or, to publish everything from here on whatever was published, "
        "choose another sinkName and stagingLocation"
    )
    if options.batch_id is not None:
        cause = f"give each write and each checkpoint a sinkName of its own, not {options.sink_name!r}"
    what = f"micro-batch {number}{rows} was published before, and this one of {mine.rows} rows is another"
    return StoreDamaged(f"{what}: {cause}")


class NumberedWriter(DataSourceArrowWriter):
    """Exactly-once writer of batch queries: publishes after every task has succeeded.

    A write with a ``batchId`` is that micro-batch of its sink, and is published once however often it runs. A
    write without one is micro-batch 0 of a new sink, with a staging folder of its own.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        # Spark sends this object, in its present state, to the tasks and to the commit.
        self.own_folder: str | None = None
        self.number = options.batch_id or 0
        if options.batch_id is None:
            self.location = location_of(options)
            self.own_folder = job_folder(self.location)
            name = options.sink_name or f"geminga-{self.own_folder.rpartition('/')[2]}"
            options = replace(options, sink_name=name, batch_id=0, staging_location=self.own_folder)
        self.stream = ExactlyOnceWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stream.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.stream.commit(messages, self.number)
        self._remove_own_folder()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.stream.abort(messages, self.number)
        self._remove_own_folder()

    def _remove_own_folder(self) -> None:
        if self.own_folder is None:
            return
        try:
            Staging(self.own_folder).remove()
            remove_abandoned_jobs(self.location)
        except OSError as error:  # the rows are published: a failed query would be repeated
            logger.warning("%s: a staging folder was not deleted: %s", self.location, error)


def _staged(messages: Iterable[WriterCommitMessage | None]) -> list[StagedCommit]:
    return [message for message in messages if isinstance(message, StagedCommit)]


def _stage(
    options: WriteOptions, schema: StructType, batches: Iterator[pa.RecordBatch], query: str, sink: str
) -> StagedCommit:
    """Stage a task's rows as one file."""
    commit = StagedCommit(query=query)
    frame = OutgoingFrame(options, schema)
    encoder = _Encoder(options, client_for(options.connection), frame.info, sink)
    staged = encoder.encoded(frame.tables(batches), commit)
    first = next(staged, None)
    if first is not None:
        commit.name = staging_of(options, query).stage(itertools.chain([first], staged))
        commit.topics = tuple(encoder.partitions)
    return commit


class _Encoder:
    """Encodes a task's rows as batches without sequence ids: compressed, encrypted, and of a size that the
    broker takes. ``sink``: the name of the producer that will publish them.
    """

    def __init__(self, options: WriteOptions, client: Client, info: SchemaInfo | None, sink: str) -> None:
        from geminga.client.options.crypto import ProducerCryptoFailureAction, encryptor

        self.options = options
        self.client = client
        self.info = info
        self.versions: dict[str, bytes | None] = {}
        self.compression = COMPRESSIONS.index(options.compression)
        self.partitions: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        self.size_max: int | None = None
        # A checkpoint keeps its sink's name, which may be longer than the default.
        self.sink = name_field(sink.ljust(PRODUCER_NAME_SIZE_GUESS))
        reader = public_keys(options)
        found = encryptor(None, options.encryption_keys, reader, ProducerCryptoFailureAction.FAIL)
        if found is not None:
            found.renew()
        self.seal = None if found is None else found.seal

    def encoded(self, found: Iterator[pa.Table], commit: StagedCommit) -> Iterator[pa.RecordBatch]:
        from geminga.wire.columnar_encoding import by_delivery

        for table in found:
            commit.rows += table.num_rows
            for topic, part in by_topic(table, self.options.topic):
                for deliver_at_ms, rows in by_delivery(part):
                    yield self._encode(topic, rows, deliver_at_ms)

    def _encode(self, topic: str, table: pa.Table, deliver_at_ms: int) -> pa.RecordBatch:
        from geminga.client.publish.columnar_producer import ReadyBatch, fitting
        from geminga.wire.checksum import crc32c
        from geminga.wire.columnar_encoding import encode_table

        partitions = self._partitions(topic)
        version = self._version(topic)
        if self.size_max is None:
            self.size_max = self._size_max(topic)
        size_max = self.size_max

        def encode(rows: pa.Table, first_partition: int) -> list[EncodedBatch]:
            return encode_table(
                rows,
                partitions=partitions,
                hashing=self.options.hashing,
                first_partition=first_partition,
                max_messages=self.options.messages_in_a_batch,
                max_bytes=min(self.options.batching_max_bytes, size_max),
            )

        def operation_of(batch: EncodedBatch) -> SendOperation:
            ready = ReadyBatch.of(
                batch,
                sequence_id=SEQUENCE_ID_MAX - batch.count,
                compression=self.compression,
                compression_level=self.options.compression_level,
            )
            return replace(ready, deliver_at_ms=deliver_at_ms, schema_version=version).operation(self.seal)

        def fits(operation: SendOperation) -> bool:
            with contextlib.suppress(MessageTooBig):
                return bool(operation.metadata(self.sink, int(time.time() * 1000), size_max))
            return False

        staged = []
        for batch, operation in fitting(table, encode, operation_of, fits, self.turns[topic]):
            if batch.count == 1 and not fits(operation):
                raise _row_too_big(topic, batch, operation, size_max)
            self.turns[topic] += not batch.keyed
            assert operation.body is not None
            body = bytes(operation.body)
            staged.append((
                topic, batch.partition, batch.count, batch.uncompressed_size, self.compression,
                batch.partition_key, batch.partition_key_b64, batch.ordering_key, deliver_at_ms, version,
                operation.sealed if self.seal is not None else None, crc32c(body), body,
            ))  # fmt: skip
        columns = zip(zip(*staged, strict=True), STAGED_SCHEMA, strict=True)
        arrays = [pa.array(column, field.type) for column, field in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=STAGED_SCHEMA)

    def _version(self, topic: str) -> bytes | None:
        """Return the version of the payloads' schema on the topic; register a new schema there."""
        if self.info is not None and topic not in self.versions:
            try:
                self.versions[topic] = self._registered(topic, self.info)
            except TopicNotFound:
                # A producer creates the topic, where the broker allows it.
                with kept.borrowed(self.options, topic, info=self.info):
                    self.versions[topic] = self._registered(topic, self.info)
            except IncompatibleSchema as error:
                error.add_note(f"{topic} does not take the schema that the frame's columns give")
                raise
        return self.versions.get(topic)

    def _registered(self, topic: str, info: SchemaInfo) -> bytes:
        schemas = self.client.context.schemas
        (name, *_) = self.client.get_topic_partitions(topic)
        return self.options.connection.retry_policy.call(
            f"registering the schema of {topic}",
            lambda: self.client.runtime.call(schemas.register(name, info)),
        )

    def _partitions(self, topic: str) -> int:
        known = self.partitions.get(topic)
        if known is None:
            known = max(1, self.client.runtime.call(self.client.context.partitions(topic)))
            self.partitions[topic] = known
            # Tasks start at different partitions, so that small micro-batches reach all of them.
            from pyspark import TaskContext

            context = TaskContext.get()
            self.turns[topic] = context.partitionId() if context is not None else 0
        return known

    def _size_max(self, topic: str) -> int:
        """Return the largest entry that a broker accepts, in bytes; a cluster's brokers have one limit."""
        (name, *_) = self.client.get_topic_partitions(topic)
        return self.client.runtime.call(self.client.context.connection_to(name)).max_message_size


def _row_too_big(topic: str, row: EncodedBatch, operation: SendOperation, size_max: int) -> MessageTooBig:
    assert operation.body is not None
    return MessageTooBig(
        f"{topic}: the row with the key {row.partition_key!r} takes {len(operation.body)} bytes as a message "
        f"without its metadata; the broker takes {size_max} with it (max_message_size). No row of the "
        "micro-batch is published: filter such rows, cut or compress them, and start the query again"
    )


@dataclass
class _Target:
    """One topic of a publication: its producer, and the sequence ids assigned so far."""

    topic: str
    producer: Producer[Any]
    published: Callable[[int], int]
    """Highest sequence id already in a partition, when the broker does not remember it."""
    is_new: bool
    """The broker has no rows of this sink, or has forgotten the sink."""
    rows: dict[int, int] = field(default_factory=dict)
    group: list[ReadyBatch] = field(default_factory=list)
    size: int = 0
    results: list[Future[TableResult]] = field(default_factory=list)

    def add(self, batch: dict[str, Any], base: int) -> None:
        from geminga.client.publish.columnar_producer import ReadyBatch

        partition, count = batch["partition"], batch["count"]
        first = base + self.rows.get(partition, 0)
        self.rows[partition] = self.rows.get(partition, 0) + count
        if first + count - 1 <= self.published(partition):
            return
        fields = {name: batch[name] for name in STAGED_SCHEMA.names if name not in ("topic", "checksum")}
        last = first + count - 1
        self.group.append(ReadyBatch(**fields, sequence_id=first, highest_sequence_id=last))
        self.size += len(batch["body"])
        if self.size >= GROUP_BYTES:
            self.submit()

    def submit(self) -> None:
        if self.group:
            self.results.append(self.producer.submit_encoded(self.group))
        self.group, self.size = [], 0

    def settled(self) -> tuple[int, int]:
        """Wait for all receipts; return the number of rows, and how many of them another producer had
        published.

        A connection may end between a batch and its receipt: duplicates among batches sent again are our own.
        """
        self.submit()
        results = [future.result() for future in self.results]
        foreign = sum(result.duplicates - result.sent_again for result in results)
        return sum(result.rows for result in results), foreign

    def newest(self) -> dict[int, MessageId]:
        """Return the last message published now, by partition."""
        found: dict[int, MessageId] = {}
        for future in self.results:
            found.update({partition: last for partition, (_, last) in future.result().ranges.items()})
        return found


@dataclass
class _Publication:
    """Publishing half of one commit: all topics in one pass over the staged files."""

    options: WriteOptions
    staging: Staging
    name: str
    epoch: int
    """Number of the micro-batch."""
    info: SchemaInfo | None
    topics: Sequence[str]
    is_repeated: bool
    opened: contextlib.ExitStack
    """Closes the producers."""
    _producers: dict[str, Producer[Any]] = field(default_factory=dict)
    _partition_names: dict[str, list[str]] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """The first sequence id of the micro-batch."""
        return self.epoch << EPOCH_BITS

    def _producer(self, topic: str) -> Producer[Any]:
        """Return the topic's producer, which has the sink's name."""
        if topic not in self._producers:
            made = named(self.options, topic, self.name, self.info)
            self._producers[topic] = self.opened.enter_context(made)
        return self._producers[topic]

    def check_unused(self) -> None:
        """Raise if another producer used the sink's name: the broker would drop new rows as duplicates."""
        for topic in self.topics:
            last_sequence_id = self._producer(topic).last_sequence_id()
            ensure_deduplication(self.options, topic)
            self._check_before(topic, last_sequence_id)
            if last_sequence_id >= self.base:
                raise self._taken(topic, "has rows under the numbers")

    def places(self, known: Mapping[str, str]) -> dict[str, str]:
        """Return offsets after which all rows published now will be: the known ones, and the newest messages
        of the other partitions."""
        wanted = [name for topic in self.topics for name in self._names(topic)]
        new = [name for name in wanted if name not in known]
        return {**known, **(self._tails().places(new) if new else {})}

    def _tails(self) -> TopicTails:
        connection = self.options.connection
        return TopicTails(connect(connection), self.name, connection.retry_policy)

    def _names(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions."""
        if topic not in self._partition_names:
            self._partition_names[topic] = client_for(self.options.connection).get_topic_partitions(topic)
        return self._partition_names[topic]

    def _published(self, topic: str, producer: Producer[Any], decided: Epoch) -> Callable[[int], int]:
        """Return a function from a partition to the highest sequence id that an interrupted attempt published
        there; -1 if it published none, or if the broker remembers the sink and drops duplicates."""
        if not self.is_repeated:
            return lambda partition: -1
        remembered = [each.last_sequence_id for each in producer.statistics().partitions]
        names = self._names(topic)
        ids = range(self.base, self.base + (1 << EPOCH_BITS))
        age_ms = 0 if decided.decided_ms is None else abs(time.time() * 1000 - decided.decided_ms)
        is_old = age_ms > FORGETTING_SECONDS * 1000 and max(remembered) < 0

        @functools.cache
        def published(partition: int) -> int:
            since = decided.since.get(names[partition])
            if since is None or remembered[partition] >= 0:
                return -1  # None: decided by a release that stored no offsets
            through = self._tails().through(names[partition], since, ids, is_old=is_old)
            if through is None:
                raise StoreDamaged(
                    f"{names[partition]}: cannot determine how much of micro-batch {self.epoch} is published "
                    f"there: the broker does not remember the sink {self.name!r}, and the messages from "
                    f"{since} on, where it would lie, are gone or may be. To publish the micro-batch again, "
                    f"all of it, delete {self.staging.root}/epochs/{self.epoch}.json"
                )
            return through

        return published

    def publish(self, decided: Epoch) -> dict[str, str]:
        """Publish the staged rows that are not published yet; return offsets up to which all are."""
        targets: dict[str, _Target] = {}
        since = decided.since
        places = dict(since)
        for name in decided.files:
            for batch in self.staging.staged(name):
                topic = batch["topic"]
                target = targets.get(topic)
                if target is None:
                    producer = self._producer(topic)
                    last_sequence_id = producer.last_sequence_id()
                    self._check_before(topic, last_sequence_id)
                    published = self._published(topic, producer, decided)
                    target = _Target(topic, producer, published, is_new=last_sequence_id < 0)
                    targets[topic] = target
                with self._with_advice(topic):
                    target.add(batch, self.base)
        for target in targets.values():
            target.submit()
        for target in targets.values():
            with self._with_advice(target.topic):
                rows, duplicates = target.settled()
            self._check_duplicates(target.topic, rows, duplicates)
            if since:
                at = self._names(target.topic)
                newest = {at[partition]: last for partition, last in target.newest().items()}
                places = later(places, newest)
        self.opened.close()
        for target in targets.values():
            if target.is_new and target.results:
                self._check_after(target.topic)
        return places

    @contextlib.contextmanager
    def _with_advice(self, topic: str) -> Iterator[None]:
        """Add a note to errors about batches that the broker refuses: the ways out."""
        try:
            yield
        except (MessageTooBig, NotAllowedError) as error:
            error.add_note(
                f"{topic}: each attempt at micro-batch {self.epoch} publishes what is staged. Let the "
                "broker take it (for a size: max_message_size, Apache Pulsar's maxMessageSize, or the "
                "topic's policy) until it is published; or filter such rows and choose another sinkName and "
                "stagingLocation: then the whole micro-batch is staged and published once more, and rows "
                "that an attempt has published come a second time"
            )
            raise

    def _check_duplicates(self, topic: str, rows: int, duplicates: int) -> None:
        if duplicates and not self.is_repeated:
            # If it stayed decided, the next attempt would take the other's rows for its own.
            self.staging.revoke(self.epoch)
            raise self._taken(topic, f"takes {duplicates} of {rows} rows for duplicates: those")

    def _taken(self, topic: str, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"{topic}: the broker {what} of micro-batch {self.epoch}, though it is published for the first "
            f"time: another query uses the sink name {self.name!r}, its checkpoint was replaced, or its "
            f"staging folder {self.staging.root} was deleted. Choose another sinkName, or "
            "number the writes of foreachBatch with the option batchId"
        )

    def _check_before(self, topic: str, last_sequence_id: int) -> None:
        if last_sequence_id >= self.base + (1 << EPOCH_BITS):
            raise InvalidConfiguration(
                f"{topic}: the sink {self.name!r} has published micro-batch "
                f"{last_sequence_id >> EPOCH_BITS} already, and this checkpoint is at {self.epoch}: it was "
                "replaced. Choose another sinkName"
            )

    def _check_after(self, topic: str) -> None:
        """Check that the broker now remembers this producer's sequence ids: deduplication is on."""
        with named(self.options, topic, self.name, self.info) as producer:
            if producer.last_sequence_id() >= 0:
                return
        raise NotAllowedError(
            f"{topic}: the broker does not deduplicate, which exactlyOnce=true requires. Turn it on "
            f"for the namespace ({command_for(topic)}) before the query starts; micro-batch {self.epoch} was "
            "published and may be published again"
        )
