"""Steps 5 and 6 for one partition: from a message to an operation in the pending queue.

Decides whether a message joins the open batch, opens another, is sent alone or is split into chunks; takes
its permits and bytes first, and assigns the automatic sequence ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geminga.errors import MessageTooBig
from geminga.producer.batching import Batch, KeyedBatches
from geminga.producer.chunking import (
    CHUNK_FIELDS_SIZE_MAX,
    CHUNKS_MAX,
    ChunkedMessage,
    ChunkPart,
    chunk_count,
)
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import SendOperation
from geminga.producer.self_tuning import BatchTiming, PartitionTuning
from geminga.producer.settings import BatchingType, ProducerSettings
from geminga.wire.compression import compress
from geminga.wire.encryption import TAG_SIZE

if TYPE_CHECKING:
    from geminga.producer.partition import PartitionProducer

MEMORY_LEASE_PART = 8
"""Inverse of the largest share of the client's free bytes that a batch leases ahead."""

PRODUCER_NAME_SIZE_GUESS = 128
"""Bytes reserved in chunks that are split before the broker has named the producer."""

IDS_AND_TIME_SIZE_MAX = 2 * 11 + 2 * 6
"""Maximum bytes of sequence id, publish time, compression and size in the outer metadata."""


class Assembler:
    """Open batch of a partition, and handling of the messages that do not join it."""

    __slots__ = (
        "_alone",
        "_bytes_max",
        "_chunking",
        "_compression",
        "_compression_level",
        "_delay_seconds",
        "_keyed",
        "_messages_max",
        "_partition",
        "_seal",
        "_settings",
        "_tuning",
        "next_sequence_id",
    )

    def __init__(
        self,
        partition: PartitionProducer,
        settings: ProducerSettings,
        next_sequence_id: int,
        tuning: PartitionTuning | None = None,
    ) -> None:
        self.next_sequence_id = next_sequence_id
        self._partition = partition
        self._tuning = tuning
        self._settings = settings
        self._alone = not settings.batching_enabled
        self._keyed = settings.batching_type is BatchingType.KeyBased
        self._messages_max = settings.batching_max_messages
        self._bytes_max = settings.batching_max_allowed_size_in_bytes
        self._delay_seconds = settings.batching_max_publish_delay_seconds
        self._compression = int(settings.compression_type)
        self._compression_level = settings.compression_level
        self._seal = None if settings.encryptor is None else settings.encryptor.seal
        # Only persistent topics have stored chunks that a consumer can assemble (seed 001).
        self._chunking = settings.chunking_enabled and not partition.topic.startswith("non-persistent://")

    # --- messages in ------------------------------------------------------------------------------

    def add(self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float) -> bool:
        """See `PartitionProducer.add`."""
        partition = self._partition
        size = len(payload)
        if not self._compression and not self._chunking and size > partition.max_message_size:
            raise MessageTooBig(
                f"{partition.topic}: a message of {size} bytes exceeds the broker's max_message_size="
                f"{partition.max_message_size}; split it, or switch compression or chunking on"
            )
        partition.backlog.check_possible(1, size, partition.topic)
        if self._alone or (message is not None and message.deliver_at_time):
            partition.close_batch()  # keeps the order: earlier messages are sent first
            self._add_alone(payload, token, message, now)
            return False
        return self._add_to_batch(payload, token, message, now)

    def _add_to_batch(self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float) -> bool:
        partition = self._partition
        bytes_max = min(self._bytes_max, partition.max_message_size)
        batch = partition.batch
        size = len(payload)
        if batch is not None and (
            batch.size + size > bytes_max or len(batch) >= self._messages_max or not batch.accepts(message)
        ):
            self.close_batch()
            batch = None
        fresh = batch is None
        if batch is None:
            tuned = None if self._tuning is None else self._tune(self._tuning, message, now)
            deadline = now + self._delay_seconds
            batch = KeyedBatches(now, deadline) if self._keyed else Batch(now, deadline)
            batch.tuned = tuned
        self._lease(batch, size, bytes_max)
        if fresh:
            partition.open_batch(batch)
        self._append(batch, payload, token, message)
        if batch.tuned is not None and len(batch) >= batch.tuned.next_mark:
            batch.tuned.mark(len(batch), now)
            self._set_limits(batch, bytes_max)
        filled = len(batch) >= self._messages_max or batch.size >= bytes_max
        if filled:
            self.close_batch()
        elif len(batch) >= batch.leased_count:
            # The last permit is used up: no other message can join, so there is no reason to wait.
            self._lease_ahead(batch, bytes_max)
            if len(batch) >= batch.leased_count:
                self.close_batch()
        return filled

    def _tune(self, tuning: PartitionTuning, message: OutgoingMessage | None, now: float) -> BatchTiming:
        """Return the limits of the batch that is about to open."""
        partition = self._partition
        keyed = message is not None and message.partition_key is not None
        tuned = tuning.opened(
            now,
            partition.backlog.own.limit,
            keyed=keyed,
            more_follow=keyed or partition.index < 0 or partition.pending.head is not None,
        )
        self._delay_seconds = tuned.delay_seconds
        self._messages_max = tuning.messages_max
        self._bytes_max = tuning.producer.bytes_max
        return tuned

    def _append(
        self, batch: Batch | KeyedBatches, payload: bytes, token: Any, message: OutgoingMessage | None
    ) -> None:
        explicit = message is not None and message.sequence_id >= 0
        if isinstance(batch, KeyedBatches):
            sequence_id = message.sequence_id if message is not None and explicit else self._count_one()
            batch.append(payload, token, message, sequence_id)
            return
        if explicit:
            assert message is not None
            if batch.sequence_ids is None:
                batch.sequence_ids = []
                batch.explicit = True
            batch.sequence_ids.append(message.sequence_id)
        batch.append(payload, token, message)

    def _count_one(self) -> int:
        sequence_id = self.next_sequence_id
        self.next_sequence_id = sequence_id + 1
        return sequence_id

    def _add_alone(self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float) -> None:
        if self._chunking:
            kind, level = self._compression, self._compression_level
            body = compress(kind, payload, level) if kind else payload
            room = self._chunk_room(message)
            if len(body) > room:
                self._add_chunks(body, len(payload), token, message, room, now)
                return
        self._take(1, len(payload))
        automatic = message is None or message.sequence_id < 0
        sequence_id = self._count_one() if automatic else message.sequence_id  # type: ignore[union-attr]
        self._enqueue_one(payload, token, message, sequence_id, automatic, now)

    def _enqueue_one(
        self,
        payload: bytes,
        token: Any,
        message: OutgoingMessage | None,
        sequence_id: int,
        automatic: bool,
        opened_at: float,
    ) -> None:
        partition = self._partition
        partition.enqueue(
            SendOperation(
                [payload],
                [token],
                sequence_id=sequence_id,
                highest_sequence_id=sequence_id,
                size=len(payload),
                permits=1,
                opened_at=opened_at,
                deadline=partition.send_deadline(opened_at),
                is_batch=False,
                compression=self._compression,
                compression_level=self._compression_level,
                messages=None if message is None else {0: message},
                automatic=automatic,
                seal=self._seal,
            )
        )

    # --- chunks -----------------------------------------------------------------------------------

    def _chunk_room(self, message: OutgoingMessage | None) -> int:
        """Return the payload bytes that fit into one chunk beside its metadata."""
        partition = self._partition
        limit = partition.max_message_size
        if self._settings.chunk_max_message_size is not None:
            limit = min(limit, self._settings.chunk_max_message_size)
        name = partition.producer_name
        name_size = PRODUCER_NAME_SIZE_GUESS if name is None else len(name.encode())
        room = limit - IDS_AND_TIME_SIZE_MAX - CHUNK_FIELDS_SIZE_MAX - 2 * (name_size + 3) - 20
        encryptor = self._settings.encryptor
        if encryptor is not None:
            room -= encryptor.metadata_size + TAG_SIZE
        if message is not None:
            probe = SendOperation(
                None, [None], sequence_id=0, highest_sequence_id=0, size=0, permits=0, opened_at=0.0,
                deadline=0.0, is_batch=False, messages={0: message},
            )  # fmt: skip
            room -= probe.metadata_size()
        if room < 1:
            raise MessageTooBig(
                f"{partition.topic}: properties and keys leave no room for a chunk of {limit} bytes"
            )
        return room

    def _add_chunks(
        self,
        body: bytes,
        uncompressed_size: int,
        token: Any,
        message: OutgoingMessage | None,
        room: int,
        now: float,
    ) -> None:
        partition = self._partition
        count = chunk_count(len(body), room)
        if count > CHUNKS_MAX:
            raise MessageTooBig(
                f"{partition.topic}: {len(body)} bytes need {count} chunks; at most {CHUNKS_MAX}"
            )
        partition.backlog.check_possible(count, len(body), partition.topic)
        self._take(count, len(body))
        automatic = message is None or message.sequence_id < 0
        sequence_id = self._count_one() if automatic else message.sequence_id  # type: ignore[union-attr]
        whole = ChunkedMessage(count, len(body))
        view = memoryview(body)
        for index in range(count):
            piece = view[index * room : (index + 1) * room]
            part = ChunkPart(whole, index)
            operation = SendOperation(
                None,
                [token] if part.last else [],
                sequence_id=sequence_id,
                highest_sequence_id=sequence_id,
                size=len(piece),
                permits=1,
                opened_at=now,
                deadline=partition.send_deadline(now),
                is_batch=False,
                compression=self._compression,
                compression_level=self._compression_level,
                messages=None if message is None else {0: message},
                automatic=automatic,
                count=1 if part.last else 0,
                chunk=part,
                seal=self._seal,
            )
            operation.body = piece
            operation.uncompressed_size = uncompressed_size
            partition.enqueue(operation)

    # --- permits ----------------------------------------------------------------------------------

    def _take(self, count: int, size: int) -> None:
        partition = self._partition
        backlog = partition.backlog
        if backlog.take(count, size):
            return
        if partition.wants_reclaim() and backlog.take(count, size):
            return
        raise backlog.refusal(count, size, partition.topic)

    def _lease(self, batch: Batch | KeyedBatches, size: int, bytes_max: int) -> None:
        """Ensure that the batch holds a permit and bytes for one more message; raise if it can't."""
        partition = self._partition
        for last_try in (False, True):
            # Computed again after a reclaim, which takes from this batch too.
            count = 1 if len(batch) >= batch.leased_count else 0
            missing = max(0, batch.size + size - batch.leased_size)
            if not count and not missing and not last_try:
                return
            if partition.backlog.take(count, missing):
                batch.leased_count += count
                batch.leased_size += missing
                self._lease_ahead(batch, bytes_max)
                return
            if last_try or not partition.wants_reclaim():
                raise partition.backlog.refusal(count, missing, partition.topic)

    def _lease_ahead(self, batch: Batch | KeyedBatches, bytes_max: int) -> None:
        """Lease permits and bytes for the next messages, as far as available."""
        backlog = self._partition.backlog
        count = min(self._messages_max - batch.leased_count, backlog.own.free, backlog.shared.free)
        size = bytes_max - batch.leased_size
        if backlog.memory.limited:
            size = min(size, backlog.memory.free // MEMORY_LEASE_PART)
        if self._tuning is not None:
            likely_count, likely_size = self._tuning.ahead()
            count, size = min(count, likely_count), min(size, likely_size)
        count, size = max(0, count), max(0, size)
        if backlog.take(count, size):
            batch.leased_count += count
            batch.leased_size += size
        self._set_limits(batch, bytes_max)

    def _set_limits(self, batch: Batch | KeyedBatches, bytes_max: int) -> None:
        if isinstance(batch, Batch) and not batch.explicit:
            batch.last = min(batch.leased_count, self._messages_max) - 1
            if batch.tuned is not None:
                batch.last = min(batch.last, batch.tuned.next_mark - 1)
            batch.size_limit = min(batch.leased_size, bytes_max)

    def trim_lease(self) -> bool:
        """Return the unused leases of the open batch; report whether there were any."""
        batch = self._partition.batch
        if batch is None:
            return False
        count = batch.leased_count - len(batch)
        size = batch.leased_size - batch.size
        batch.leased_count -= count
        batch.leased_size -= size
        batch.last = batch.size_limit = 0
        self._partition.backlog.give(count, size)
        return count > 0 or size > 0

    # --- batches out ------------------------------------------------------------------------------

    def close_batch(self) -> SendOperation | None:
        """Close the open batch and append its operations to the pending queue. Return the last of them."""
        partition = self._partition
        batch = partition.batch
        if batch is None:
            return None
        self.trim_lease()
        partition.batch_closed()
        if self._tuning is not None and len(batch):
            keyed = isinstance(batch, KeyedBatches) or (
                batch.first is not None and batch.first.partition_key is not None
            )
            self._tuning.closed(len(batch), batch.size, batch.opened_at, keyed=keyed)
        if isinstance(batch, KeyedBatches):
            operation = None
            for part in batch.in_order():
                operation = self._operation(
                    part.payloads, part.tokens, part.messages, part.sequence_ids, keyed=True,
                    opened_at=batch.opened_at, automatic=True,
                )  # fmt: skip
                operation.tuned = batch.tuned
                partition.enqueue(operation)
            return operation
        if not batch.payloads:
            return None
        first = self.next_sequence_id
        if batch.sequence_ids is None:
            self.next_sequence_id = first + len(batch.payloads)
        operation = self._operation(
            batch.payloads, batch.tokens, batch.messages, batch.sequence_ids, keyed=False,
            opened_at=batch.opened_at, automatic=batch.sequence_ids is None, first=first,
        )  # fmt: skip
        operation.tuned = batch.tuned
        partition.enqueue(operation)
        return operation

    def _operation(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: dict[int, OutgoingMessage] | None,
        sequence_ids: list[int] | None,
        *,
        keyed: bool,
        opened_at: float,
        automatic: bool,
        first: int = 0,
    ) -> SendOperation:
        """Return a batch of these messages, or a plain message if it is only one."""
        if sequence_ids is None:
            lowest, highest = first, first + len(payloads) - 1
        else:
            lowest, highest = sequence_ids[0], sequence_ids[-1]
            if keyed:
                lowest = highest = max(sequence_ids)
        return SendOperation(
            payloads,
            tokens,
            sequence_id=lowest,
            highest_sequence_id=highest,
            size=sum(map(len, payloads)),
            permits=len(payloads),
            opened_at=opened_at,
            deadline=self._partition.send_deadline(opened_at),
            is_batch=len(payloads) > 1,
            compression=self._compression,
            compression_level=self._compression_level,
            messages=messages,
            sequence_ids=sequence_ids,
            automatic=automatic,
            seal=self._seal,
        )

    def split(self, operation: SendOperation) -> Sequence[SendOperation] | None:
        """Return two halves of a batch that is too big for the broker; None for one message."""
        payloads = operation.payloads
        if payloads is None or len(payloads) < 2:
            return None
        middle = len(payloads) // 2
        keyed = operation.sequence_ids is not None and operation.sequence_id == operation.highest_sequence_id
        halves = []
        for start, end in ((0, middle), (middle, len(payloads))):
            messages = operation.messages
            ids = operation.sequence_ids
            halves.append(
                self._operation(
                    payloads[start:end],
                    operation.tokens[start:end],
                    None
                    if messages is None
                    else {i - start: m for i, m in messages.items() if start <= i < end} or None,
                    None if ids is None else ids[start:end],
                    keyed=keyed,
                    opened_at=operation.opened_at,
                    automatic=operation.automatic,
                    first=operation.sequence_id + start,
                )
            )
        for half in halves:
            half.deadline = operation.deadline
            half.resent = operation.resent
            half.watchers = operation.watchers
        halves[0].watchers = None
        return halves
