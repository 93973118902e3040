"""Publishing Arrow tables and ready-made batches, without a Python object per row.

A table is encoded in pieces on the calling thread; each piece becomes a few send operations, which are in
flight while the next piece is encoded. The bytes in flight are limited.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from geminga.client.io.waiter import Waiter
from geminga.client.publish.publisher import Publisher
from geminga.client.publish.submit_queue import QueuedOperation
from geminga.client.transactions import transaction_of
from geminga.errors import AlreadyClosed, InvalidMessage, MemoryBufferIsFull, OperationNotSupported
from geminga.extras import need
from geminga.ids import MessageId
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import Seal, SendOperation
from geminga.producer.settings import SEQUENCE_ID_MAX, BatchingType
from geminga.producer.states import ProducerState
from geminga.transactions import TransactionCore
from geminga.wire.checksum import Buffer
from geminga.wire.compression import compress

if TYPE_CHECKING:
    import pyarrow as pa

    from geminga.wire.columnar_encoding import EncodedBatch

PIECE_BYTES = 8 * 1024 * 1024
"""Approximate size of the pieces that a table is encoded in, so that sending overlaps with encoding."""

IN_FLIGHT_BYTES_MAX = 32 * 1024 * 1024
"""Limit on a producer's table operations without a receipt; at the limit the sender waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyBatch:
    """A batch that only needs its outer metadata and frame.

    ``body`` is the batch payload, compressed with ``compression`` (the protocol's number). The caller chooses
    ``sequence_id`` and ``highest_sequence_id``; ``partition`` is 0 for an unpartitioned topic.
    """

    partition: int
    body: Buffer
    count: int
    sequence_id: int
    highest_sequence_id: int
    uncompressed_size: int
    compression: int = 0
    partition_key: str | None = None
    ordering_key: bytes | None = None
    deliver_at_ms: int = 0
    schema_version: bytes | None = None
    """Version of the topic's schema; None: the producer's."""
    partition_key_b64: bool = False
    sealed: bytes | None = None
    """Metadata fields of an encrypted ``body``; None: the producer encrypts it, if it has keys."""

    def __post_init__(self) -> None:
        if not 0 <= self.sequence_id <= self.highest_sequence_id <= SEQUENCE_ID_MAX:
            raise InvalidMessage(
                f"sequence_id={self.sequence_id}, highest_sequence_id={self.highest_sequence_id}: "
                f"allowed: 0 <= sequence_id <= highest_sequence_id <= {SEQUENCE_ID_MAX}"
            )
        if self.count < 1:
            raise InvalidMessage(f"count={self.count} is not allowed; allowed: a whole number >= 1")

    def operation(self, seal: Seal | None) -> SendOperation:
        """Return the operation that sends the batch. Raises `CryptoError`."""
        operation = SendOperation.of_encoded(
            self.body,
            self.count,
            (self.sequence_id, self.highest_sequence_id),
            compression=self.compression,
            uncompressed_size=self.uncompressed_size,
            message=_outer(self, self.deliver_at_ms, self.schema_version),
            seal=seal if self.sealed is None else None,
        )
        if self.sealed is not None:
            operation.sealed = self.sealed
        return operation

    @staticmethod
    def of(
        encoded: EncodedBatch, *, sequence_id: int, compression: int = 0, compression_level: int = 0
    ) -> ReadyBatch:
        """Make one from a batch of `geminga.wire.columnar_encoding.encode_table`; compresses its body."""
        return ReadyBatch(
            partition=encoded.partition,
            body=compress(compression, encoded.body, compression_level) if compression else encoded.body,
            count=encoded.count,
            sequence_id=sequence_id,
            highest_sequence_id=sequence_id + encoded.count - 1,
            uncompressed_size=encoded.uncompressed_size,
            compression=compression,
            partition_key=encoded.partition_key,
            partition_key_b64=encoded.partition_key_b64,
            ordering_key=encoded.ordering_key,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TableResult:
    """Outcome of a table whose rows all have their receipts.

    ``ranges`` maps each partition (-1 for an unpartitioned topic) to the ids of its first and last message.
    ``duplicates``: rows that the broker had already stored (deduplication). ``sent_again``: the number of
    duplicates that were sent more than once because a connection ended before their receipts arrived; the
    broker may have stored their first copy.
    """

    rows: int
    batches: int
    bytes: int
    duplicates: int
    ranges: dict[int, tuple[MessageId, MessageId]]
    sent_again: int = 0


class _Job:
    """One table, or one list of batches, being sent. Used on the loop only, except ``submitted`` and
    ``submitted_bytes``, which the sending thread counts.

    ``refusal`` is the error of an operation that was not accepted, ``error`` that of an accepted one that
    failed; the first of them ends the job, and pending operations still settle.
    """

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[TableResult] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()
        self.accepted = Waiter()
        """Woken when all operations were accepted, or one was refused."""
        self.is_accepted = False
        self.submitted = self.decided = 0
        """Operations that were submitted, and those that were accepted, refused or dropped."""
        self.submitted_bytes = self.decided_bytes = 0
        self.operations = 0
        self.rows = 0
        self.bytes = 0
        self.duplicates = 0
        self.sent_again = 0
        self.outstanding = 0
        self.complete = False
        self.refusal: Exception | None = None
        self.error: Exception | None = None
        self.ranges: dict[int, tuple[MessageId, MessageId]] = {}

    @property
    def failed(self) -> bool:
        return self.error is not None or self.refusal is not None

    def add(self, operation: SendOperation) -> None:
        self.operations += 1
        self.outstanding += 1
        self.rows += operation.count
        self.bytes += operation.size

    def settled(self, operation: SendOperation) -> None:
        self.outstanding -= 1
        if operation.error is not None:
            self.error = self.error or operation.error
        elif operation.duplicate:
            self.duplicates += operation.count
            self.sent_again += operation.count if operation.resent else 0
        else:
            partition = operation.partition.index
            entry = partition, operation.ledger_id, operation.entry_id
            last = MessageId(*entry, operation.count - 1, batch_size=operation.count)
            known = self.ranges.get(partition)
            first = MessageId(*entry, 0, batch_size=operation.count) if known is None else known[0]
            self.ranges[partition] = (first, last)
        self.finish()

    def end(self) -> None:
        """Note that all operations were submitted."""
        self.complete = True
        self.finish()

    def decide(self, size: int) -> None:
        """Note that an operation of ``size`` bytes was accepted, refused or dropped."""
        self.decided += 1
        self.decided_bytes += size
        self.finish()

    def finish(self) -> None:
        """Wake the sender when all operations are decided; resolve the future when they are settled too."""
        if not self.complete or self.decided < self.submitted:
            return
        if not self.is_accepted:
            self.is_accepted = True
            self.accepted.wake()
        if self.outstanding or self.future.done():
            return
        error = self.refusal or self.error
        if error is not None:
            self.future.set_exception(error)
            return
        self.future.set_result(
            TableResult(
                rows=self.rows,
                batches=self.operations,
                bytes=self.bytes,
                duplicates=self.duplicates,
                ranges=self.ranges,
                sent_again=self.sent_again,
            )
        )


def fitting(
    table: pa.Table,
    encode: Callable[[pa.Table, int], list[EncodedBatch]],
    operation_of: Callable[[EncodedBatch], SendOperation],
    fits: Callable[[SendOperation], bool],
    first_partition: int = 0,
) -> Iterator[tuple[EncodedBatch, SendOperation]]:
    """Yield the batches of a table and the operations that send them.

    A batch of several rows that exceeds an entry is halved until it fits: `encode_table` counts payloads
    only. One row is yielded whether it fits or not. ``encode`` gets rows and the partition of the first batch
    without keys.
    """
    import pyarrow

    for batch in encode(table, first_partition):
        operation = operation_of(batch)
        if batch.count == 1 or fits(operation):
            yield batch, operation
            continue
        rows, half = table.take(pyarrow.array(batch.rows)), batch.count // 2
        for part in (rows.slice(0, half), rows.slice(half)):
            yield from fitting(part, encode, operation_of, fits, batch.partition)


class ColumnarProducer:
    """Columnar API of one producer; any thread but the loop's may call it."""

    def __init__(self, publisher: Publisher) -> None:
        need("publishing Arrow tables", "pyarrow", "numpy")
        self._publisher = publisher
        self._state = publisher.state
        self._settings = publisher.settings
        encryptor = publisher.settings.encryptor
        self._seal = None if encryptor is None else encryptor.seal
        self._in_flight_bytes = 0
        self._waiting: deque[tuple[_Job, int, Waiter]] = deque()
        """Threads that wait until fewer bytes are in flight, with the size of their operation."""
        publisher.at_end.append(self._serve)

    def submit_table(
        self, table: pa.Table | pa.RecordBatch, txn: Any = None
    ) -> concurrent.futures.Future[TableResult]:
        """Publish every row; the future gets the result when all have their receipts, or the first error.

        Columns: ``value`` (binary or text, required), ``key`` (text or binary), ``ordering_key`` (binary),
        ``properties`` (map of text to text), ``event_time`` and ``deliver_at`` (timestamps or milliseconds
        since 1970); others are ignored. Rows with the same delivery time are sent together, after those
        without one. Rows with a key go to the partition of its hash, the others skip blocked partitions,
        batch by batch. Rows of one table and partition keep their order, and follow what the calling thread
        sent before; tables that several threads send at once alternate batch by batch. With
        ``BatchingType.KeyBased`` a batch holds rows of one key, which keep their order. The rows of a batch
        share the sequence ids of its outer metadata. With ``txn`` they belong to that transaction. Waits
        while more than `IN_FLIGHT_BYTES_MAX` are in flight, and for bytes of the client's ``memory_limit``,
        in one queue with the producer's messages. Raises `InvalidMessage` for columns that cannot be sent,
        `CryptoError` if encryption fails, and `MemoryBufferIsFull` without ``block_if_queue_full`` if no rows
        of tables are in flight; rows before the bad piece may be sent. Raises `TypeError` for an object that
        is not a table.
        """
        import pyarrow

        if self._state.router.custom:
            raise OperationNotSupported("a table cannot be routed by message_router; use row sends")
        if isinstance(table, pyarrow.RecordBatch):
            table = pyarrow.Table.from_batches([table])
        elif not isinstance(table, pyarrow.Table):
            raise TypeError(
                f"table must be a pyarrow.Table or RecordBatch, not {type(table).__name__}; pyarrow.table({{"
                "'value': [...]}) makes one"
            )
        if txn is None:
            return self._submit(self._encoded(table, None))
        publisher, transaction = self._publisher, transaction_of(txn, self._publisher.context)
        transaction.senders[publisher.flush, publisher.schedule] = None
        try:
            return self._submit(self._encoded(table, transaction.core))
        except Exception as error:
            transaction.core.failed(error)  # rows before the bad piece may be sent
            raise

    def submit_encoded(self, batches: Iterable[ReadyBatch]) -> concurrent.futures.Future[TableResult]:
        """Publish ready-made batches with their sequence ids, in the given order.

        For exactly-once sinks: with a fixed producer name and deduplication on the broker, a repeated call is
        harmless and its rows are counted as duplicates. Ids must increase within a partition. Raises
        `TypeError` for an item that is not a `ReadyBatch`; those before it may be sent.
        """
        if not isinstance(batches, Iterable):
            raise TypeError(f"batches must be several ReadyBatch, not {type(batches).__name__}")
        return self._submit(self._ready(batches))

    # --- from batches to operations ---------------------------------------------------------------

    def _encoded(
        self, table: pa.Table, transaction: TransactionCore | None
    ) -> Iterator[tuple[SendOperation, int]]:
        """Yield operations without sequence ids, with their partition; -1 for unkeyed batches."""
        from geminga.wire.columnar_encoding import by_delivery

        for deliver_at_ms, part in by_delivery(table):
            yield from self._encoded_part(part, deliver_at_ms, transaction)

    def _encoded_part(
        self, table: pa.Table, deliver_at_ms: int, transaction: TransactionCore | None
    ) -> Iterator[tuple[SendOperation, int]]:
        from geminga.wire.columnar_encoding import encode_table, table_bytes

        settings = self._settings
        compression = int(settings.compression_type)
        partition = self._state.partitions[0]
        max_messages, max_bytes = self._state.table_limits
        room = partition.max_message_size - partition.metadata_room

        def encode(rows: pa.Table, _: int) -> list[EncodedBatch]:
            return encode_table(
                rows,
                partitions=len(self._state.partitions),
                hashing=settings.hashing_scheme.value,
                first_partition=0,
                max_messages=max_messages,
                max_bytes=min(max_bytes, partition.max_message_size),
                by_key=settings.batching_type is BatchingType.KeyBased,
            )

        def operation_of(batch: EncodedBatch) -> SendOperation:
            body = (
                compress(compression, batch.body, settings.compression_level) if compression else batch.body
            )
            return SendOperation.of_encoded(
                body,
                batch.count,
                (-1, -1),
                compression=compression,
                uncompressed_size=batch.uncompressed_size,
                message=_outer(batch, deliver_at_ms, transaction=transaction),
                seal=self._seal,
            )

        def fits(operation: SendOperation) -> bool:
            size = operation.size
            return size + operation.metadata_size() <= room and size <= self._state.memory.limit

        rows = max(1, min(table.num_rows, table.num_rows * PIECE_BYTES // max(1, table_bytes(table))))
        for first_row in range(0, table.num_rows, rows):
            for batch, operation in fitting(table.slice(first_row, rows), encode, operation_of, fits):
                yield operation, batch.partition if batch.keyed else -1

    def _ready(self, batches: Iterable[ReadyBatch]) -> Iterator[tuple[SendOperation, int]]:
        for index, batch in enumerate(batches):
            if not isinstance(batch, ReadyBatch):
                raise TypeError(f"batches[{index}] must be a ReadyBatch, not {type(batch).__name__}")
            if not 0 <= batch.partition < len(self._state.partitions):
                raise InvalidMessage(
                    f"partition={batch.partition} is not allowed; {self._state.topic} has the partitions "
                    f"0 to {len(self._state.partitions) - 1}"
                )
            yield batch.operation(self._seal), batch.partition

    # --- the sending thread -----------------------------------------------------------------------

    def _submit(
        self, operations: Iterator[tuple[SendOperation, int]]
    ) -> concurrent.futures.Future[TableResult]:
        publisher = self._publisher
        if publisher.on_loop_thread():
            raise OperationNotSupported(
                "tables cannot be sent from a callback: it would block its own thread"
            )
        if publisher.closed:
            raise AlreadyClosed("the producer is closed")
        job = _Job()
        try:
            for operation, index in operations:
                size = operation.size
                if self._bytes_of(job) + size > IN_FLIGHT_BYTES_MAX:
                    self._wait_for_bytes(job, size)
                job.submitted += 1
                job.submitted_bytes += size
                self._publisher.submit(self._queued(job, operation, index))
                if job.failed:
                    break
        finally:
            self._do(job.end)
        job.accepted.wait()
        if job.refusal is not None:
            raise job.refusal
        return job.future

    def _bytes_of(self, job: _Job) -> int:
        """Return the bytes in flight, and those of the job that may be soon."""
        return self._in_flight_bytes + job.submitted_bytes - job.decided_bytes

    def _wait_for_bytes(self, job: _Job, size: int) -> None:
        waiter = Waiter()
        self._do(partial(self._add_waiting, job, size, waiter), waiter.wake)
        waiter.wait()

    def _do(self, run: Callable[[], None], never: Callable[[], None] | None = None) -> None:
        """Run a function on the loop, in order with the messages; ``never`` runs instead if the loop has
        ended."""
        self._publisher.work(run, run if never is None else never)

    # --- the loop ---------------------------------------------------------------------------------

    def _queued(self, job: _Job, operation: SendOperation, index: int) -> QueuedOperation:
        """Return an operation to be submitted in order; it waits while memory is short."""

        def add() -> None:
            if not job.failed:
                operation.tokens = []
                operation.watchers = [lambda settled: self._settled(job, settled)]
                self._submit_one(operation, index)
                job.add(operation)
                self._in_flight_bytes += operation.size

        def may_wait(refusal: Exception) -> bool:
            blocks = self._settings.block_if_queue_full or self._in_flight_bytes > 0
            return blocks or not isinstance(refusal, MemoryBufferIsFull)

        def settle(error: Exception | None) -> None:
            job.refusal = job.refusal or error
            job.decide(operation.size)
            self._serve()

        return QueuedOperation(add, may_wait, settle)

    def _add_waiting(self, job: _Job, size: int, waiter: Waiter) -> None:
        self._waiting.append((job, size, waiter))
        self._serve()

    def _submit_one(self, operation: SendOperation, index: int) -> None:
        """Choose the partition, take the sequence ids and submit."""
        state = self._state
        now = time.monotonic()
        if index < 0:
            index = state.router.of_unkeyed(state.partitions, now)
            state.router.batch_filled(now)
        partition = state.partitions[index]
        if partition.state is ProducerState.NOT_STARTED:
            state.unstarted.append(partition)
            partition.start()
        partition.submit(operation, now)

    def _settled(self, job: _Job, operation: SendOperation) -> None:
        """Count a settled operation and continue with the waiting threads."""
        self._in_flight_bytes -= operation.size
        job.settled(operation)
        self._serve()

    def _serve(self) -> None:
        """Continue waiting threads after bytes in flight were released, or at the end."""
        while self._waiting:
            job, size, waiter = self._waiting[0]
            in_flight = self._bytes_of(job)
            if in_flight and in_flight + size > IN_FLIGHT_BYTES_MAX:
                break
            self._waiting.popleft()
            waiter.wake()


def _outer(
    batch: EncodedBatch | ReadyBatch,
    deliver_at_ms: int,
    schema_version: bytes | None = None,
    transaction: TransactionCore | None = None,
) -> OutgoingMessage | None:
    """Return the outer metadata of a batch: keys of its first message, and what all messages share."""
    key, ordering_key = batch.partition_key, batch.ordering_key
    is_plain = key is None and ordering_key is None and schema_version is None and transaction is None
    if is_plain and not deliver_at_ms:
        return None
    return OutgoingMessage(
        b"",
        partition_key=key,
        partition_key_b64=batch.partition_key_b64,
        ordering_key=ordering_key,
        deliver_at_time=deliver_at_ms,
        schema_version=schema_version,
        transaction=transaction,
    )
