"""Entries: what the broker stores and hands out (framing.md section 1.2).

An entry is what follows the command in a SEND or MESSAGE frame::

    [0x0e02  size  BrokerEntryMetadata]      MESSAGE only, optional
    [0x0e01  crc32c]                         optional; covers all that follows
    metadata_size  MessageMetadata  payload

`parse_entry` gives a consumer everything. `peek_entry` gives a broker what it decides by, out of the
metadata alone: a hand-written reader for the fields in the order in which clients write them, which
hands anything unusual to protobuf and gives the same result.

Text that is not UTF-8 is read with replacement characters, as the Java client does: `text` does that
for strings of parsed protobuf messages, which show such text as ``bytes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError

from geminga.errors import CorruptPayload
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import read_varint

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_ENTRY_METADATA = 0x0E02

_MAGIC = Struct(">H")
_SIZE = Struct(">I")
_MAGIC_AND_SIZE = Struct(">HI")
_CHECKED_HEAD = Struct(">HII")

REMEMBERED_NAMES_MAX = 4096
"""Producer names and high bits of publish times that `peek_entry` remembers; then it forgets all."""


class RawEntry(NamedTuple):
    """An entry with its place, as the broker delivered it; nothing is decoded yet.

    ``ack_set``: 64-bit words, bit set = position of the batch still unacknowledged; empty = all are.
    """

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    entry: Buffer
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()


class Entry:
    """A parsed entry. ``payload`` is as it travels: compressed, encrypted, one chunk, or a batch."""

    __slots__ = ("broker_metadata", "metadata", "payload")

    def __init__(
        self,
        metadata: pb.MessageMetadata,
        payload: memoryview,
        broker_metadata: pb.BrokerEntryMetadata | None,
    ) -> None:
        self.metadata = metadata
        self.payload = payload
        self.broker_metadata = broker_metadata


class EntryHead:
    """The metadata fields that a broker decides by.

    Fields that most entries lack are class attributes that hold the default; an entry that has them
    gets a `_FullEntryHead`. ``num_messages`` is 1 for an entry that is no batch. Times are milliseconds
    since 1970, 0 when absent.
    """

    __slots__ = (
        "highest_sequence_id",
        "is_batch",
        "num_messages",
        "ordering_key",
        "partition_key",
        "partition_key_b64",
        "producer_name",
        "publish_time",
        "sequence_id",
    )

    event_time: int = 0
    deliver_at_time: int = 0
    chunk_id: int = -1
    num_chunks: int = 0
    total_chunk_size: int = 0
    uuid: str = ""
    marker_type: int | None = None
    encrypted: bool = False
    null_value: bool = False
    schema_version: bytes | None = None
    replicated_from: str | None = None
    replicate_to: Sequence[str] = ()
    txnid_least_bits: int | None = None
    txnid_most_bits: int | None = None

    def __init__(
        self,
        num_messages: int,
        is_batch: bool,
        publish_time: int,
        producer_name: str,
        sequence_id: int,
        highest_sequence_id: int,
        partition_key: str | None,
        partition_key_b64: bool,
        ordering_key: bytes | None,
    ) -> None:
        self.num_messages = num_messages
        self.is_batch = is_batch
        self.publish_time = publish_time
        self.producer_name = producer_name
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        """0 when absent."""
        self.partition_key = partition_key
        self.partition_key_b64 = partition_key_b64
        self.ordering_key = ordering_key

    def __repr__(self) -> str:
        return (
            f"EntryHead(producer_name={self.producer_name!r}, sequence_id={self.sequence_id}, "
            f"num_messages={self.num_messages}, publish_time={self.publish_time})"
        )


class _FullEntryHead(EntryHead):
    """Has an instance dictionary, where the rare fields shadow the class's defaults."""


# --- layout -----------------------------------------------------------------------------------------


def text(value: str | bytes) -> str:
    """A protobuf string field's value as text; protobuf hands out ``bytes`` when it is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _cut_broker_metadata(entry: Buffer) -> int:
    """Where the broker entry metadata ends; 0 without any."""
    if len(entry) < 6 or _MAGIC.unpack_from(entry)[0] != MAGIC_BROKER_ENTRY_METADATA:
        return 0
    end: int = 6 + _MAGIC_AND_SIZE.unpack_from(entry)[1]
    if end > len(entry):
        raise CorruptPayload(f"broker entry metadata ends at byte {end} of an entry of {len(entry)} bytes")
    return end


def _layout(entry: Buffer) -> tuple[int, int, int, int | None]:
    """Start of the checksum's region, start and end of the metadata, and the checksum or None."""
    start = _cut_broker_metadata(entry)
    checksum = None
    if len(entry) >= start + 6:
        magic, announced = _MAGIC_AND_SIZE.unpack_from(entry, start)
        if magic == MAGIC_CHECKSUM:
            checksum = announced
            start += 6
    if len(entry) < start + 4:
        raise CorruptPayload(f"entry of {len(entry)} bytes ends before its metadata size")
    first = start + 4
    end = first + _SIZE.unpack_from(entry, start)[0]
    if end > len(entry):
        raise CorruptPayload(f"metadata ends at byte {end} of an entry of {len(entry)} bytes")
    return start, first, end, checksum


def checksum_matches(entry: Buffer) -> bool | None:
    """Whether the entry's CRC32C is right; None when the entry carries none.

    Raises `CorruptPayload` when the entry ends before its checksum does.
    """
    start = _cut_broker_metadata(entry)
    if len(entry) < start + 2 or _MAGIC.unpack_from(entry, start)[0] != MAGIC_CHECKSUM:
        return None
    if len(entry) < start + 6:
        raise CorruptPayload(f"entry of {len(entry)} bytes ends inside its checksum")
    announced: int = _SIZE.unpack_from(entry, start + 2)[0]
    return crc32c(memoryview(entry)[start + 6 :]) == announced


def parse_entry(entry: Buffer, *, verify: bool = True) -> Entry:
    """The metadata and the payload of an entry; the payload is a view into it.

    ``verify``: check the CRC32C. Raises `CorruptPayload` for a wrong checksum, an entry that ends too
    early, and metadata that protobuf refuses or that lacks a required field.
    """
    start, first, end, announced = _layout(entry)
    view = memoryview(entry)
    if verify and announced is not None:
        found = crc32c(view[start:])
        if found != announced:
            raise CorruptPayload(
                f"entry of {len(entry)} bytes has the checksum {found:08x} and announces {announced:08x}"
            )
    broker_metadata = None
    if start >= 6 and _MAGIC.unpack_from(entry)[0] == MAGIC_BROKER_ENTRY_METADATA:
        size = _MAGIC_AND_SIZE.unpack_from(entry)[1]
        try:
            broker_metadata = pb.BrokerEntryMetadata.FromString(bytes(view[6 : 6 + size]))
        except DecodeError as error:
            raise CorruptPayload(f"broker entry metadata is no protobuf: {error}") from error
    return Entry(_parse_metadata(bytes(view[first:end])), view[end:], broker_metadata)


def _parse_metadata(data: bytes) -> pb.MessageMetadata:
    try:
        metadata = pb.MessageMetadata.FromString(data)
    except DecodeError as error:
        raise CorruptPayload(
            f"message metadata is no protobuf: {error}; it starts {data[:32].hex()}"
        ) from error
    if not metadata.IsInitialized():
        missing = ", ".join(metadata.FindInitializationErrors())
        raise CorruptPayload(f"message metadata lacks {missing}")
    return metadata


def build_entry(metadata: bytes, payload: Buffer) -> bytes:
    """Magic, CRC32C, metadata size, metadata and payload in one piece."""
    head = _SIZE.pack(len(metadata)) + metadata
    return b"".join((_MAGIC_AND_SIZE.pack(MAGIC_CHECKSUM, crc32c(payload, crc32c(head))), head, payload))


# --- the broker's look ------------------------------------------------------------------------------


def peek_entry(entry: Buffer) -> EntryHead:
    """What a broker decides by, from the metadata alone; the payload is not touched.

    The checksum is not verified: see `checksum_matches`. Raises `CorruptPayload` like `parse_entry`.
    """
    _, first, end, _ = _layout(entry)
    return _head_of(_parse_metadata(bytes(entry[first:end])))


def _head_of(metadata: pb.MessageMetadata) -> EntryHead:
    has = metadata.HasField
    head = _FullEntryHead(
        metadata.num_messages_in_batch,
        has("num_messages_in_batch"),
        metadata.publish_time,
        text(metadata.producer_name),
        metadata.sequence_id,
        metadata.highest_sequence_id,
        text(metadata.partition_key) if has("partition_key") else None,
        metadata.partition_key_b64_encoded,
        metadata.ordering_key if has("ordering_key") else None,
    )
    head.event_time = metadata.event_time
    head.deliver_at_time = metadata.deliver_at_time
    if has("chunk_id"):
        head.chunk_id = metadata.chunk_id
    head.num_chunks = metadata.num_chunks_from_msg
    head.total_chunk_size = metadata.total_chunk_msg_size
    head.uuid = text(metadata.uuid)
    if has("marker_type"):
        head.marker_type = metadata.marker_type
    head.encrypted = len(metadata.encryption_keys) > 0
    head.null_value = metadata.null_value
    if has("schema_version"):
        head.schema_version = metadata.schema_version
    if has("replicated_from"):
        head.replicated_from = text(metadata.replicated_from)
    if metadata.replicate_to:
        head.replicate_to = tuple(text(cluster) for cluster in metadata.replicate_to)
    if has("txnid_least_bits"):
        head.txnid_least_bits = metadata.txnid_least_bits
    if has("txnid_most_bits"):
        head.txnid_most_bits = metadata.txnid_most_bits
    return head
