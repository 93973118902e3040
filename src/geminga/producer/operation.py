"""Steps 7 to 9 of publishing: the send operation, one SEND frame with its messages, or a run of frames.

An operation is created when a batch closes or a message is sent alone. It is encoded in two parts, so that
they can happen at different times and on different threads:

* the *body* (`encode_body`): the payload serialised, compressed and encrypted, as soon as the sequence ids
  are final;
* the *frame head* (`frame`): command, checksum and outer metadata, when it is first written to a connection.

A resend after a reconnect writes the same bytes again.

Without batching every message has a frame and a receipt, which differ only in payload, the message's own
fields, sequence id and entry id. So simple messages that were accepted together form one operation, a *run*:
its frames are encoded in one pass (`wire.send_runs`), and receipts that arrive together settle as many
messages as they name (`split_off`). An event that concerns one message alone (the broker rejects it, or it is
too big for a new connection) replaces the run by an operation for each message (`singles`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from struct import Struct
from typing import Any

from geminga.errors import MessageTooBig
from geminga.producer.batching import BatchTiming
from geminga.producer.chunking import ChunkPart
from geminga.producer.message import BoundMessage, OutgoingMessage, RichMessage, SimpleMessage
from geminga.transactions import TransactionCore
from geminga.wire.batch import (
    append_full_message,
    append_message,
    encode_plain_batch,
    encode_rich_batch,
    metadata_fields,
)
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.compression import compress
from geminga.wire.encryption import Sealed
from geminga.wire.frames import encode_send
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import encode_sends
from geminga.wire.varint import varint

_SIZE = Struct(">I")
_CHECKSUM_HEAD = Struct(">HII")
_MAGIC = 0x0E01
_CHECKSUM_HEAD_SIZE = 2 + 4 + 4
_NO_BYTES = b"\x48\0"
"""``uncompressed_size`` 0: without it, compaction by Apache Pulsar keeps a single message without payload."""

Seal = Callable[[Buffer], "Sealed | None"]
"""Encrypts a payload (`geminga.wire.encryption.PayloadEncryptor.seal`); None: no encryption."""

_SIMPLE = frozenset((SimpleMessage, BoundMessage, RichMessage))

NO_RECEIPT = -2
"""``ledger_id`` of an operation that is not settled; that of a duplicate's receipt is -1."""


RUN_MESSAGES_MAX = 1024
"""Maximum messages of one run."""
RUN_BYTES_MAX = 256 * 1024
"""Maximum payload bytes of one run: its frames are one piece of memory."""
RUN_PAYLOAD_BYTES_MAX = 16 * 1024
"""Maximum payload bytes of a message in a run; larger ones are sent without copying."""


@dataclass(slots=True, eq=False, repr=False)
class SendOperation:
    """One entry to be sent to the broker, or a run of entries with one simple message each (``is_run``).

    ``count`` messages with the ids ``sequence_id`` to ``highest_sequence_id`` and one ``token`` each, an
    opaque value that the caller gets back with the receipt. ``sequence_ids`` is None when they are
    consecutive; ``automatic`` when they were assigned here, so that they may still be moved before the first
    transmission. ``messages`` holds, by index, those that are more than a payload. ``permits`` and ``size``
    (payload bytes) return to the `PendingLimits` when it settles. ``deadline`` is the send time-out's.
    The first ``done`` messages of a run have their receipts; ids, ``permits`` and ``size`` are those of the
    others. ``claimed``: it is not to be written yet, since another thread is encoding the body, or the
    coordinator of its ``transaction`` does not know its partition. ``seal`` encrypts it, once; ``sealed`` are
    the metadata fields that belong to the encrypted body.
    """

    payloads: list[bytes] | None
    tokens: list[Any]
    count: int
    sequence_id: int
    highest_sequence_id: int
    size: int
    permits: int
    opened_at: float
    deadline: float
    is_batch: bool
    is_run: bool = False
    messages: dict[int, OutgoingMessage] | None = None
    compression: int = 0
    compression_level: int = 0
    sequence_ids: list[int] | None = None
    automatic: bool = True
    chunk: ChunkPart | None = None
    seal: Seal | None = None
    sealed: bytes = b""
    body: Buffer | None = None
    uncompressed_size: int = 0
    transaction: TransactionCore | None = None
    head: bytes | None = field(default=None, init=False)
    done: int = field(default=0, init=False)
    publish_time: int = field(default=0, init=False)
    claimed: bool = field(default=False, init=False)
    resent: bool = field(default=False, init=False)
    sent_at: float = field(default=0.0, init=False)
    partition: Any = field(default=None, init=False)
    ledger_id: int = field(default=NO_RECEIPT, init=False)
    entry_id: int = field(default=NO_RECEIPT, init=False)
    error: Exception | None = field(default=None, init=False)
    watchers: list[Callable[[Any], None]] | None = field(default=None, init=False)
    tuned: BatchTiming | None = field(default=None, init=False)
    """Timing notes about the batch of a producer that tunes itself."""

    @classmethod
    def of_encoded(
        cls,
        body: Buffer,
        count: int,
        ids: tuple[int, int],
        *,
        compression: int,
        uncompressed_size: int,
        message: OutgoingMessage | None = None,
        seal: Seal | None = None,
    ) -> SendOperation:
        """Return an operation for an encoded batch: ``body`` is its compressed payload, ``ids`` its lowest
        and highest sequence id. ``message`` has the outer metadata; ``seal`` encrypts the body at once.
        Raises `CryptoError`.
        """
        operation = cls(
            None, [None], count, *ids, size=len(body), permits=0, opened_at=0.0, deadline=float("inf"),
            is_batch=True, messages=None if message is None else {0: message}, compression=compression,
            automatic=False, seal=seal, body=body, uncompressed_size=uncompressed_size,
            transaction=None if message is None else message.transaction,
        )  # fmt: skip
        operation.encode_body()
        return operation

    @property
    def entries(self) -> int:
        """Number of entries that it adds to the topic."""
        return self.count if self.is_run else 1

    @property
    def entry_size(self) -> int:
        """Size of the entry in bytes, after `frame`; 0 for a run."""
        if self.head is None or self.body is None:
            return 0
        return len(self.head) - 8 - int.from_bytes(self.head[4:8], "big") + len(self.body)

    @property
    def open_tokens(self) -> list[Any]:
        """Tokens of the messages without an outcome."""
        return self.tokens[self.done :] if self.done else self.tokens

    @property
    def settled(self) -> bool:
        return self.error is not None or self.ledger_id != NO_RECEIPT

    @property
    def duplicate(self) -> bool:
        """Whether the broker had these messages already and kept its own copy (receipt -1:-1)."""
        return self.error is None and self.ledger_id == -1 and self.entry_id == -1

    def shift(self, offset: int) -> None:
        """Move automatic sequence ids by ``offset``, after the broker has sent the producer's last id."""
        self.sequence_id += offset
        self.highest_sequence_id += offset
        if self.sequence_ids is not None:
            self.sequence_ids = [sequence_id + offset for sequence_id in self.sequence_ids]

    # --- the body ---------------------------------------------------------------------------------

    def encode_body(self) -> None:
        """Serialise, compress and encrypt the payload; no effect the second time.

        Raises `CryptoError` when it cannot be encrypted.
        """
        body = self.body
        if body is None:
            payloads = self.payloads
            if payloads is None:
                return  # settled meanwhile
            data = self._batch_payload(payloads) if self.is_batch else payloads[0]
            self.uncompressed_size = len(data)
            body = compress(self.compression, data, self.compression_level) if self.compression else data
        if self.seal is not None:
            sealed = self.seal(body)
            if sealed is not None:
                body, self.sealed = sealed
            self.seal = None
        self.body = body

    def _batch_payload(self, payloads: list[bytes]) -> bytes | bytearray:
        if self.messages is None and self.sequence_ids is None:
            return encode_plain_batch(payloads, self.sequence_id)
        messages = self.messages or {}
        kinds = set(map(type, messages.values()))
        if self.sequence_ids is None and kinds <= _SIMPLE:
            further = self._further(_further_in_batch) if RichMessage in kinds else None
            if not further and not any(each.properties or each.partition_key for each in messages.values()):
                return encode_plain_batch(payloads, self.sequence_id)
            return encode_rich_batch(payloads, self._fields(b"\x0a", b"\x12"), self.sequence_id, further)
        buffer: list[bytes] = []
        ids = self.sequence_ids or range(self.sequence_id, self.sequence_id + len(payloads))
        for index, (payload, sequence_id) in enumerate(zip(payloads, ids, strict=True)):
            message = messages.get(index)
            if message is None:
                append_message(buffer, payload, sequence_id)
            else:
                append_full_message(buffer, payload, _single_metadata(message, sequence_id))
        return b"".join(buffer)

    def _fields(self, property_tag: bytes, key_tag: bytes) -> list[bytes]:
        """Return the encoded key and properties of each simple message without an outcome."""
        messages = self.messages or {}
        if len(messages) == len(self.tokens) and not self.done:  # each message has one, in order
            return metadata_fields(property_tag, key_tag, messages.values())
        return metadata_fields(property_tag, key_tag, map(messages.get, range(self.done, len(self.tokens))))

    def _further(self, encode: Callable[[OutgoingMessage], bytes]) -> list[bytes]:
        """Return the fields that `_fields` leaves out of each message without an outcome, by ``encode``: only
        a `RichMessage` has any."""
        messages = self.messages or {}
        pending = map(messages.get, range(self.done, len(self.tokens)))
        return [encode(each) if type(each) is RichMessage else b"" for each in pending]

    # --- a run ------------------------------------------------------------------------------------

    def split_off(self, count: int, ledger_id: int, entry_id: int) -> SendOperation:
        """Return the next ``count`` messages as a settled operation; itself when those are all."""
        if count == len(self.tokens):
            self.ledger_id, self.entry_id = ledger_id, entry_id
            return self
        assert self.payloads is not None
        start, end = self.done, self.done + count
        part = SendOperation(
            None, self.tokens[start:end], count, sequence_id=self.sequence_id,
            highest_sequence_id=self.sequence_id + count - 1, size=sum(map(len, self.payloads[start:end])),
            permits=count, opened_at=self.opened_at, deadline=self.deadline, is_batch=False, is_run=True,
        )  # fmt: skip
        part.partition, part.sent_at, part.resent = self.partition, self.sent_at, self.resent
        part.ledger_id, part.entry_id = ledger_id, entry_id
        self.done = end
        self.sequence_id += count
        self.count -= count
        self.permits -= count
        self.size -= part.size
        if not self.count:
            part.watchers = self.watchers
        return part

    def singles(self) -> list[SendOperation]:
        """Return an operation for each message of the run without a receipt."""
        assert self.payloads is not None
        operations = []
        for offset, payload in enumerate(self.payloads[self.done :]):
            message = None if self.messages is None else self.messages.get(self.done + offset)
            sequence_id = self.sequence_id + offset
            operation = SendOperation(
                [payload], [self.tokens[self.done + offset]], 1, sequence_id=sequence_id,
                highest_sequence_id=sequence_id, size=len(payload), permits=1, opened_at=self.opened_at,
                deadline=self.deadline, is_batch=False, messages=None if message is None else {0: message},
            )  # fmt: skip
            operation.partition, operation.resent = self.partition, self.resent
            operation.publish_time = self.publish_time
            operations.append(operation)
        operations[-1].watchers = self.watchers
        return operations

    def _run_frames(
        self, producer_id: int, producer_name: bytes, now_ms: int, max_message_size: int, schema: bytes
    ) -> bytes:
        """Return the frames of messages without a receipt. Raises `MessageTooBig` when one may be too big."""
        assert self.payloads is not None
        payloads = self.payloads[self.done :] if self.done else self.payloads
        fields = None if self.messages is None else self._fields(b"\x22", b"\x32")
        if fields is not None and b"" in payloads:
            fields = [f if p or not f else f + _NO_BYTES for f, p in zip(fields, payloads, strict=True)]
        if fields is not None and self.messages and RichMessage in set(map(type, self.messages.values())):
            fields = list(map(add, fields, self._further(_further_alone)))
        fixed = len(producer_name) + len(schema) + 64 + (0 if fields is None else max(map(len, fields)))
        if max(map(len, payloads)) + fixed > max_message_size:
            raise MessageTooBig(f"a message of {self!r} may exceed max_message_size={max_message_size}")
        if not self.publish_time:
            self.publish_time = now_ms
        before, time = producer_name + b"\x10", b"\x18" + varint(self.publish_time)
        return encode_sends(producer_id, self.sequence_id, payloads, fields, before, time, schema)

    # --- the frame --------------------------------------------------------------------------------

    def frame(
        self,
        producer_id: int,
        producer_name: bytes,
        now_ms: int,
        max_message_size: int,
        schema_version: bytes = b"",
    ) -> tuple[Buffer, ...]:
        """Return the two pieces of the SEND frame, or the frames of a run in one piece. ``producer_name`` and
        ``schema_version`` are already tagged (`name_field`, `schema_version_field`); a message's own schema
        version overrides the producer's.

        ``now_ms`` becomes the publish time at the first call; later calls repeat its bytes. Raises
        `MessageTooBig` when metadata and body exceed ``max_message_size``, `CryptoError`.
        """
        if self.is_run:
            return (self._run_frames(producer_id, producer_name, now_ms, max_message_size, schema_version),)
        if self.body is None or self.seal is not None:
            self.encode_body()
        if self.head is None:
            metadata = self.metadata(producer_name, now_ms, max_message_size, schema_version)
            self.head = self._head(producer_id, metadata)
        assert self.body is not None
        return self.head, self.body

    def metadata(
        self, producer_name: bytes, now_ms: int, max_message_size: int, schema_version: bytes = b""
    ) -> bytes:
        """Return the entry's ``MessageMetadata``; the arguments are those of `frame`. Raises `MessageTooBig`
        when the entry exceeds ``max_message_size``.
        """
        assert self.body is not None
        if not self.publish_time:
            self.publish_time = now_ms
        if self.chunk is not None:
            self._name_chunk(producer_name)
        head = producer_name + b"\x10" + varint(self.sequence_id) + b"\x18" + varint(self.publish_time)
        metadata = head + self._fields_behind(schema_version)
        if len(metadata) + len(self.body) > max_message_size:
            what = f"a batch of {self.count} messages from" if self.is_batch else "the message with"
            raise MessageTooBig(
                f"{what} sequence id {self.sequence_id} takes {len(metadata)} bytes of metadata and "
                f"{len(self.body)} of {'compressed ' if self.compression else ''}payload; the broker's "
                f"max_message_size is {max_message_size}. Send less in one message, or enable chunking"
            )
        return metadata

    def checksum_is_intact(self) -> bool:
        """Return whether our own copy still matches the checksum that was sent with it."""
        if self.head is None or self.body is None:
            return True
        # The head ends with: magic, checksum, metadata size, metadata.
        end = len(self.head)
        start = end + len(self.body) - self.entry_size
        expected = int.from_bytes(self.head[start + 2 : start + 6], "big")
        return crc32c(self.body, crc32c(self.head[start + 6 : end])) == expected

    def _name_chunk(self, producer_name: bytes) -> None:
        """Set uuid and publish time of a chunk, which all chunks of a message share."""
        assert self.chunk is not None
        whole = self.chunk.message
        if not whole.uuid:
            # The name follows its tag and its length, which takes two bytes from 128 on.
            size_bytes = 1 if producer_name[1] < 128 else 2
            whole.uuid = producer_name[1 + size_bytes :] + b"-%d" % self.sequence_id
            whole.publish_time = self.publish_time
        self.publish_time = whole.publish_time

    def _head(self, producer_id: int, metadata: bytes) -> bytes:
        body = self.body
        assert body is not None
        size = len(metadata)
        checksum = crc32c(body, crc32c(metadata, crc32c(_SIZE.pack(size))))
        command = encode_send(
            producer_id,
            self.sequence_id,
            self.count if self.is_batch else 1,
            self.highest_sequence_id if self.is_batch else None,
            _CHECKSUM_HEAD_SIZE + size + len(body),
            is_chunk=self.chunk is not None,
            transaction=None if self.transaction is None else self.transaction.id,
        )
        return command + _CHECKSUM_HEAD.pack(_MAGIC, checksum, size) + metadata

    def _first_message(self) -> OutgoingMessage | None:
        return None if self.messages is None else self.messages.get(0)

    def _fields_behind(self, schema_version: bytes) -> bytes:
        """Return the fields of ``MessageMetadata`` after ``publish_time``."""
        first = self._first_message()
        compressed = b""
        if self.compression:
            compressed = b"\x40" + varint(self.compression) + b"\x48" + varint(self.uncompressed_size)
        if first is not None:
            fields = self._rich_metadata(first, compressed, schema_version)
        elif self.is_batch:
            highest = b"\xc0\x01" + varint(self.highest_sequence_id)
            fields = compressed + b"\x58" + varint(self.count) + self.sealed + schema_version
            fields += self._transaction_fields() + highest
        else:
            fields = compressed + self.sealed + schema_version + self._transaction_fields()
        return fields if self.chunk is None else fields + self.chunk.metadata()

    def _transaction_fields(self) -> bytes:
        if self.transaction is None:
            return b""
        most, least = self.transaction.id
        return b"\xb0\x01" + varint(least) + b"\xb8\x01" + varint(most)

    def _rich_metadata(self, first: OutgoingMessage, compressed: bytes, schema_version: bytes) -> bytes:
        """Return all fields after ``publish_time``; for a batch, only the shared ones."""
        alone = not self.is_batch
        parts: list[bytes] = []
        if alone:
            for name, value in first.properties:
                pair = _text(b"\x0a", name) + _text(b"\x12", value)
                parts += (b"\x22", varint(len(pair)), pair)
        if first.partition_key is not None:
            parts.append(_text(b"\x32", first.partition_key))
        if alone and parts and not (compressed or self.uncompressed_size or self.chunk):
            compressed = _NO_BYTES
        parts.append(compressed)
        # As in `_run_frames`: a message of a run that is sent again alone keeps its bytes.
        parts += (_further_alone(first),) if alone else (_further_shared(first), b"\x58", varint(self.count))
        parts.append(self.sealed)
        own = first.schema_version
        parts.append(schema_version if own is None else _bytes(b"\x82\x01", own))
        parts.append(self._transaction_fields())
        if not alone:
            parts += (b"\xc0\x01", varint(self.highest_sequence_id))
        return b"".join(parts)

    def metadata_size(self) -> int:
        """Return the bytes of the outer metadata beyond ids, times, name and chunk fields."""
        first = self._first_message()
        return len(self.sealed) if first is None else len(self._rich_metadata(first, b"", b""))

    def __repr__(self) -> str:
        return f"<SendOperation {self.sequence_id}..{self.highest_sequence_id} count={self.count}>"


def deliver_at_time(operation: SendOperation) -> int:
    """Return the delivery time of the entry in milliseconds since 1970; 0 for none."""
    first = None if operation.messages is None else operation.messages.get(0)
    return 0 if first is None else first.deliver_at_time


def name_field(producer_name: str) -> bytes:
    """Return ``MessageMetadata.producer_name`` with its tag and length: the start of every metadata."""
    return _text(b"\x0a", producer_name)


def schema_version_field(schema_version: bytes) -> bytes:
    """Return ``MessageMetadata.schema_version`` with its tag and length; empty for an empty version."""
    return _bytes(b"\x82\x01", schema_version) if schema_version else b""


def _text(tag: bytes, value: str) -> bytes:
    return _bytes(tag, value.encode())


def _bytes(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value


def _further_shared(message: OutgoingMessage) -> bytes:
    """Return the fields of ``MessageMetadata`` that a batch has from its first message, but for the key."""
    parts = [_text(b"\x3a", cluster) for cluster in message.replicate_to]
    if message.partition_key_b64:
        parts.append(b"\x88\x01\x01")
    if message.ordering_key is not None:
        parts.append(_bytes(b"\x92\x01", message.ordering_key))
    if message.deliver_at_time:
        parts += (b"\x98\x01", varint(message.deliver_at_time))
    return b"".join(parts)


def _further_alone(message: OutgoingMessage) -> bytes:
    """Return the fields of ``MessageMetadata`` of a single message, but for key and properties."""
    event_time = b"\x60" + varint(message.event_time) if message.event_time else b""
    return event_time + _further_shared(message) + (b"\xc8\x01\x01" if message.null_value else b"")


def _further_in_batch(message: OutgoingMessage) -> bytes:
    """Return the fields of ``SingleMessageMetadata``, but for key and properties."""
    fields = b"\x28" + varint(message.event_time) if message.event_time else b""
    if message.partition_key_b64:
        fields += b"\x30\x01"
    if message.ordering_key is not None:
        fields += _bytes(b"\x3a", message.ordering_key)
    return fields + b"\x48\x01" if message.null_value else fields


def _single_metadata(message: OutgoingMessage, sequence_id: int) -> bytes:
    pairs = dict(message.properties).items()
    fields: dict[str, Any] = {
        "payload_size": len(message.payload),
        "sequence_id": sequence_id,
        "partition_key": message.partition_key,
        "partition_key_b64_encoded": message.partition_key_b64 or None,
        "ordering_key": message.ordering_key,
        "properties": [pb.KeyValue(key=key, value=value) for key, value in pairs],
        "event_time": message.event_time or None,
        "null_value": message.null_value or None,
    }
    return pb.SingleMessageMetadata(**fields).SerializeToString()
