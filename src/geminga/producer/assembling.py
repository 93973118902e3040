"""Step 6 of publishing for one partition: from a message with its permits to send operations.

Decides whether a message joins the open batch, opens another, is sent alone or is split into chunks, and
assigns the automatic sequence ids. `BatchBuilder` returns operations; the partition appends them to its
pending queue.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from geminga.errors import MessageTooBig
from geminga.producer.batching import Batch, BatchTiming, KeyedBatches, by_index
from geminga.producer.chunking import (
    CHUNK_FIELDS_SIZE_MAX,
    CHUNKS_MAX,
    ChunkedMessage,
    ChunkPart,
    chunk_count,
)
from geminga.producer.message import OutgoingMessage
from geminga.producer.operation import RUN_BYTES_MAX, RUN_MESSAGES_MAX, RUN_PAYLOAD_BYTES_MAX, SendOperation
from geminga.producer.pending_limits import PendingLimits
from geminga.producer.self_tuning import PartitionTuning
from geminga.producer.settings import BatchingType, CompressionType, ProducerSettings
from geminga.transactions import TransactionCore
from geminga.wire.compression import compress
from geminga.wire.encryption import TAG_SIZE
from geminga.wire.frames import MAX_MESSAGE_SIZE

PRODUCER_NAME_SIZE_GUESS = 128
"""Bytes reserved in chunks that are split before the broker has named the producer."""

IDS_AND_TIME_SIZE_MAX = 2 * 11 + 2 * 6
"""Maximum bytes of sequence id, publish time, compression and size in the outer metadata."""


def sends_runs(settings: ProducerSettings) -> bool:
    """Return whether simple messages are sent unbatched as they are, so that consecutive ones form runs."""
    return (
        not settings.batching_enabled
        and not settings.chunking_enabled
        and settings.compression_type is CompressionType.NONE
        and settings.encryptor is None
    )


class BatchBuilder:
    """Open batch of a partition, and handling of the messages that do not join it.

    Takes the permits and bytes of every message from ``limits`` before anything else, so that a refused
    message changes nothing. ``producer_name`` and ``max_message_size`` are updated when the broker has
    created the producer.
    """

    def __init__(
        self,
        topic: str,
        settings: ProducerSettings,
        limits: PendingLimits,
        next_sequence_id: int,
        tuning: PartitionTuning | None = None,
    ) -> None:
        self.batch: Batch | KeyedBatches | None = None
        self.next_sequence_id = next_sequence_id
        self.highest_sequence_id = next_sequence_id - 1
        """Highest sequence id that the broker may have, except for automatic ones after it."""
        self._repeated = False
        """Whether the broker may have the last of the caller's sequence ids."""
        self.knows_last_id = settings.producer_name is None
        """Whether the broker's last sequence id is known; a name from the broker is new and has none."""
        self.max_message_size = MAX_MESSAGE_SIZE
        self.producer_name = settings.producer_name
        self._topic = topic
        self._limits = limits
        self._tuning = tuning
        self._settings = settings
        self._send_timeout_seconds = settings.send_timeout_seconds or float("inf")
        self._runs = sends_runs(settings)
        self._keyed = settings.batching_type is BatchingType.KeyBased
        self._messages_max = settings.batching_max_messages
        self._bytes_max = settings.batching_max_allowed_size_in_bytes
        self._delay_seconds = settings.batching_max_publish_delay_seconds
        self._compression = int(settings.compression_type)
        self._compression_level = settings.compression_level
        self._seal = None if settings.encryptor is None else settings.encryptor.seal
        # Only persistent topics have stored chunks that a consumer can assemble (seed 001).
        self._chunking = settings.chunking_enabled and not topic.startswith("non-persistent://")

    # --- one message ------------------------------------------------------------------------------

    def add(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float, *, more_follow: bool
    ) -> tuple[list[SendOperation], bool]:
        """Add one message. Return the operations to send now, in order, and whether it filled its batch.

        ``more_follow``: the next messages go to this partition too. Raises `MessageTooBig`,
        `ProducerQueueIsFull` or `MemoryBufferIsFull`; the message is not kept then.
        """
        size = len(payload)
        if not self._compression and not self._chunking and size > self.max_message_size:
            raise MessageTooBig(
                f"{self._topic}: a message of {size} bytes exceeds the broker's max_message_size="
                f"{self.max_message_size}; split it, or switch compression or chunking on"
            )
        self._limits.check_possible(1, size, self._topic)
        if not self._settings.batching_enabled or (message is not None and message.deliver_at_time):
            return self._add_alone(payload, token, message, now), False
        self._limits.require(1, size, self._topic)
        return self._add_to_batch(payload, token, message, now, more_follow)

    def _add_to_batch(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float, more_follow: bool
    ) -> tuple[list[SendOperation], bool]:
        batch = self.batch
        closed: list[SendOperation] = []
        bytes_max = min(self._bytes_max, self.max_message_size)
        splits = message is not None and message.sequence_id >= 0 and self._starts_batch(message.sequence_id)
        if batch is not None and (
            splits
            or batch.size + len(payload) > bytes_max
            or len(batch) >= self._messages_max
            or not batch.accepts(message)
        ):
            closed = self.close()
            batch = None
        if batch is None:
            tuned = None if self._tuning is None else self._tune(self._tuning, message, now, more_follow)
            deadline = now + self._delay_seconds
            batch = self.batch = KeyedBatches(now, deadline) if self._keyed else Batch(now, deadline)
            batch.tuned = tuned
        self._append(batch, payload, token, message)
        if batch.tuned is not None and len(batch) >= batch.tuned.next_mark:
            batch.tuned.mark(len(batch), now)
        filled = len(batch) >= self._messages_max or batch.size >= bytes_max
        # Without a permit no other message can join, so there is no reason to wait.
        if filled or not self._limits.free:
            closed += self.close()
        return closed, filled

    def _tune(
        self, tuning: PartitionTuning, message: OutgoingMessage | None, now: float, more_follow: bool
    ) -> BatchTiming:
        """Return the limits of the batch that is about to open."""
        keyed = message is not None and message.partition_key is not None
        tuned = tuning.opened(now, self._limits.own.limit, keyed=keyed, more_follow=keyed or more_follow)
        self._delay_seconds = tuned.delay_seconds
        self._messages_max = tuning.messages_max
        self._bytes_max = tuning.producer.bytes_max
        return tuned

    def _append(
        self, batch: Batch | KeyedBatches, payload: bytes, token: Any, message: OutgoingMessage | None
    ) -> None:
        explicit = message is not None and message.sequence_id >= 0
        if isinstance(batch, KeyedBatches):
            sequence_id = message.sequence_id if message is not None and explicit else self.reserve(1)
            batch.explicit = explicit
            batch.append(payload, token, message, sequence_id)
            return
        if explicit:
            assert message is not None
            if batch.sequence_ids is None:
                batch.sequence_ids = []
                batch.explicit = True
            batch.sequence_ids.append(message.sequence_id)
        batch.append(payload, token, message)

    def _starts_batch(self, sequence_id: int) -> bool:
        """Record a caller's sequence id; return whether its message starts a new batch.

        Deduplication ignores a batch as a whole by its first id, so that new messages behind a repeated one
        would be lost. As in Java, a message with an id that the broker may have shares no batch.
        """
        batch = self.batch
        unnumbered = len(batch) if type(batch) is Batch and not batch.explicit else 0
        was_repeated = self._repeated
        highest = max(self.highest_sequence_id, self.next_sequence_id + unnumbered - 1)
        self._repeated = sequence_id <= highest or not self.knows_last_id
        self.highest_sequence_id = max(highest, sequence_id)
        return was_repeated or self._repeated

    def reserve(self, count: int) -> int:
        """Return the first of ``count`` new sequence ids."""
        sequence_id = self.next_sequence_id
        self.next_sequence_id = sequence_id + count
        return sequence_id

    def deadline(self, opened_at: float) -> float:
        """Return the time of the send time-out."""
        return opened_at + self._send_timeout_seconds

    def _add_alone(
        self, payload: bytes, token: Any, message: OutgoingMessage | None, now: float
    ) -> list[SendOperation]:
        """Return the operations of the open batch, which is sent first, and of the message."""
        body, room = payload, 0
        if self._chunking:
            kind, level = self._compression, self._compression_level
            body = compress(kind, payload, level) if kind else payload
            room = self._chunk_room(message)
        if self._chunking and len(body) > room:
            return self._chunks(body, len(payload), token, message, room, now)
        self._limits.require(1, len(payload), self._topic)
        operations = self.close()
        alone = self._make_alone(message, now)
        operations.append(alone([payload], [token], count=1, size=len(payload)))
        return operations

    def _make_alone(self, message: OutgoingMessage | None, now: float) -> Callable[..., SendOperation]:
        """Return the function that makes the operation of a message that is sent alone, or of its chunks."""
        automatic = message is None or message.sequence_id < 0
        sequence_id = self.reserve(1) if automatic else message.sequence_id  # type: ignore[union-attr]
        if not automatic:
            self._starts_batch(sequence_id)
        return partial(
            SendOperation,
            sequence_id=sequence_id,
            highest_sequence_id=sequence_id,
            permits=1,
            opened_at=now,
            deadline=self.deadline(now),
            is_batch=False,
            compression=self._compression,
            compression_level=self._compression_level,
            messages=None if message is None else {0: message},
            automatic=automatic,
            seal=self._seal,
            transaction=None if message is None else message.transaction,
        )

    # --- many messages ----------------------------------------------------------------------------

    def add_many(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        start: int,
        now: float,
        transaction: TransactionCore | None = None,
    ) -> tuple[int, SendOperation | None]:
        """Add simple messages from ``start`` on, as far as nothing is needed but their permits and bytes: to
        the open batch, or as a run. Return their number, and the run to send now. ``messages`` None: all
        are only payloads. Those of a ``transaction`` form no runs.
        """
        batch = self.batch
        count = len(payloads) - start
        if count > 1:
            count = min(count, self._limits.free, RUN_MESSAGES_MAX)
        if self._runs and transaction is None:
            room, largest = RUN_BYTES_MAX, min(RUN_PAYLOAD_BYTES_MAX, self.max_message_size)
        elif type(batch) is Batch and batch.accepts_simple(transaction):
            # `add` takes the message that closes the batch, or whose time is noted.
            limit = self._messages_max if batch.tuned is None else batch.tuned.next_mark
            count = min(count, self._limits.free - 1, min(limit, self._messages_max) - 1 - len(batch))
            largest = min(self._bytes_max, self.max_message_size)
            room = largest - batch.size - 1
        else:
            return 0, None
        if count < 1:
            return 0, None
        chosen = payloads[start : start + count]
        sizes = list(map(len, chosen))
        size = sum(sizes)
        if size > room or max(sizes) > largest:
            count = size = 0
            for each in sizes:
                if each > largest or size + each > room:
                    break
                size += each
                count += 1
            chosen = chosen[:count]
        if not count or not self._limits.take(count, size):
            return 0, None
        end = start + count
        theirs = None if messages is None else messages[start:end]
        if not self._runs:
            assert type(batch) is Batch
            batch.append_many(chosen, tokens[start:end], theirs, size)
            return count, None
        return count, self.run(chosen, tokens[start:end], theirs, size, now)

    def run(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: list[OutgoingMessage | None] | None,
        size: int,
        now: float,
    ) -> SendOperation:
        """Return a run of simple messages, which have their permits and bytes."""
        count = len(payloads)
        first = self.next_sequence_id
        self.next_sequence_id = first + count
        found = None if messages is None else by_index(messages, 0)
        # By position: for names CPython builds a dictionary, a tenth of the cost of a lone message here.
        return SendOperation(
            payloads, tokens, count, first, first + count - 1, size, count, now,
            now + self._send_timeout_seconds, False, count > 1, found,
        )  # fmt: skip

    def until_full(self) -> tuple[int, int]:
        """Return how many more messages, and payload bytes, fill the open batch or use up the permits."""
        batch = self.batch
        assert batch is not None
        left = min(self._messages_max - len(batch), self._limits.free)
        return left, min(self._bytes_max, self.max_message_size) - batch.size

    # --- chunks -----------------------------------------------------------------------------------

    def _chunk_room(self, message: OutgoingMessage | None) -> int:
        """Return the payload bytes that fit into one chunk beside its metadata."""
        limit = self.max_message_size
        if self._settings.chunk_max_message_size is not None:
            limit = min(limit, self._settings.chunk_max_message_size)
        name = self.producer_name
        name_size = PRODUCER_NAME_SIZE_GUESS if name is None else len(name.encode())
        room = limit - IDS_AND_TIME_SIZE_MAX - CHUNK_FIELDS_SIZE_MAX - 2 * (name_size + 3) - 20
        encryptor = self._settings.encryptor
        if encryptor is not None:
            room -= encryptor.metadata_size + TAG_SIZE
        if message is not None:
            probe = SendOperation(
                None, [None], 1, sequence_id=0, highest_sequence_id=0, size=0, permits=0, opened_at=0.0,
                deadline=0.0, is_batch=False, messages={0: message}, transaction=message.transaction,
            )  # fmt: skip
            room -= probe.metadata_size()
        if room < 1:
            raise MessageTooBig(
                f"{self._topic}: properties and keys leave no room for a chunk of {limit} bytes"
            )
        return room

    def _chunks(
        self,
        body: bytes,
        uncompressed_size: int,
        token: Any,
        message: OutgoingMessage | None,
        room: int,
        now: float,
    ) -> list[SendOperation]:
        count = chunk_count(len(body), room)
        if count > CHUNKS_MAX:
            raise MessageTooBig(f"{self._topic}: {len(body)} bytes need {count} chunks; at most {CHUNKS_MAX}")
        self._limits.check_possible(count, len(body), self._topic)
        self._limits.require(count, len(body), self._topic)
        operations = self.close()
        alone = self._make_alone(message, now)
        whole = ChunkedMessage(count, len(body))
        view = memoryview(body)
        for index in range(count):
            piece = view[index * room : (index + 1) * room]
            part = ChunkPart(whole, index)
            tokens = [token] if part.last else []
            operations.append(
                alone(
                    None, tokens, count=len(tokens), size=len(piece), chunk=part, body=piece,
                    uncompressed_size=uncompressed_size,
                )
            )  # fmt: skip
        return operations

    # --- batches out ------------------------------------------------------------------------------

    def close(self) -> list[SendOperation]:
        """Close the open batch, if any, and return its operations."""
        batch, self.batch = self.batch, None
        if batch is None:
            return []
        if self._tuning is not None:
            keyed = isinstance(batch, KeyedBatches) or (
                batch.first is not None and batch.first.partition_key is not None
            )
            self._tuning.closed(len(batch), batch.opened_at, keyed=keyed)
        if isinstance(batch, KeyedBatches):
            operations = [
                self._operation(
                    part.payloads, part.tokens, part.messages, part.sequence_ids, batch.opened_at,
                    automatic=not batch.explicit, first=None,
                )
                for part in batch.in_order()
            ]  # fmt: skip
            for operation, part in zip(operations, batch.in_order(), strict=True):
                operation.transaction = _transaction_of(part)
        else:
            first = self.next_sequence_id
            if batch.sequence_ids is None:
                self.next_sequence_id = first + len(batch.payloads)
            operations = [
                self._operation(
                    batch.payloads, batch.tokens, batch.messages, batch.sequence_ids, batch.opened_at,
                    automatic=batch.sequence_ids is None, first=first,
                )
            ]  # fmt: skip
            operations[0].transaction = _transaction_of(batch)
        for operation in operations:
            operation.tuned = batch.tuned
        return operations

    def _operation(
        self,
        payloads: list[bytes],
        tokens: list[Any],
        messages: dict[int, OutgoingMessage] | None,
        sequence_ids: list[int] | None,
        opened_at: float,
        *,
        automatic: bool,
        first: int | None,
    ) -> SendOperation:
        """Return a batch of these messages, or a plain message if it is only one. ``first``: the first of
        consecutive sequence ids; None: a batch by key, which has the highest id of ``sequence_ids``."""
        if first is None:
            assert sequence_ids is not None
            lowest = highest = max(sequence_ids)
        elif sequence_ids is None:
            lowest, highest = first, first + len(payloads) - 1
        else:
            lowest, highest = sequence_ids[0], sequence_ids[-1]
        return SendOperation(
            payloads,
            tokens,
            count=len(payloads),
            sequence_id=lowest,
            highest_sequence_id=highest,
            size=sum(map(len, payloads)),
            permits=len(payloads),
            opened_at=opened_at,
            deadline=self.deadline(opened_at),
            is_batch=len(payloads) > 1,
            compression=self._compression,
            compression_level=self._compression_level,
            messages=messages,
            sequence_ids=sequence_ids,
            automatic=automatic,
            seal=self._seal,
        )

    def split(self, operation: SendOperation) -> Sequence[SendOperation] | None:
        """Return two halves of a batch that is too big for the broker, or the messages of a run; None for one
        message."""
        if operation.is_run:
            return operation.singles()
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
                    operation.opened_at,
                    automatic=operation.automatic,
                    first=None if keyed else operation.sequence_id + start,
                )
            )
        for half in halves:
            half.deadline = operation.deadline
            half.resent = operation.resent
            half.watchers = operation.watchers
            half.transaction = operation.transaction
        halves[0].watchers = None
        return halves


def _transaction_of(batch: Batch) -> TransactionCore | None:
    """Return the transaction of all messages of a batch."""
    return None if batch.first is None else batch.first.transaction
