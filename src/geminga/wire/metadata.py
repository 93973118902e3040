"""Entries: what the broker stores and hands out (framing.md section 1.2).

An entry is what follows the command in a SEND or MESSAGE frame::

    [0x0e02  size  BrokerEntryMetadata]      MESSAGE only, optional
    [0x0e01  crc32c]                         optional; covers all that follows
    metadata_size  MessageMetadata  payload

`parse_entry` gives a consumer everything, `peek_entry` gives a broker what it decides by, out of the metadata
alone. Both read the metadata by protobuf.

Text that is not UTF-8 is read with replacement characters, as the Java client does; `strict.text` does
that for the strings of a parsed protobuf message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from geminga.errors import CorruptPayload
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse, text

MAGIC_CHECKSUM = 0x0E01
MAGIC_BROKER_ENTRY_METADATA = 0x0E02

_MAGIC = Struct(">H")
_SIZE = Struct(">I")
_MAGIC_AND_SIZE = Struct(">HI")
_CHECKED_HEAD = Struct(">HII").unpack_from

_SMALL_BYTES_MAX = 4096


class RawEntry(NamedTuple):
    """An entry with its position, as the broker delivered it; nothing is decoded yet.

    ``ack_set``: 64-bit words, a set bit is an unacknowledged index of the batch; empty = all are.
    """

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    entry: Buffer
    redelivery_count: int = 0
    ack_set: Sequence[int] = ()


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """A parsed entry, without the broker's entry metadata. ``payload`` is as on the wire: compressed,
    encrypted, one chunk, or a batch."""

    metadata: pb.MessageMetadata
    payload: Buffer


class _RareFields:
    """Defaults of the metadata fields that most entries lack."""

    __slots__ = ()

    deliver_at_time: int = 0
    chunk_id: int = -1
    num_chunks: int = 0
    uuid: str = ""
    marker_type: int | None = None
    encrypted: bool = False
    null_value: bool = False
    txnid_least_bits: int | None = None
    txnid_most_bits: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class EntryHead(_RareFields):
    """The metadata fields that a broker needs; an entry that has rare ones gets a `_FullEntryHead`.

    ``num_messages`` is 1 for an entry that is no batch. Times are milliseconds since 1970, 0 when absent;
    so is ``highest_sequence_id``.
    """

    num_messages: int
    is_batch: bool
    publish_time: int
    producer_name: str
    sequence_id: int
    highest_sequence_id: int
    partition_key: str | None
    partition_key_b64: bool
    ordering_key: bytes | None
    event_time: int

    def __repr__(self) -> str:
        return (
            f"EntryHead(producer_name={self.producer_name!r}, sequence_id={self.sequence_id}, "
            f"num_messages={self.num_messages}, publish_time={self.publish_time})"
        )


class _FullEntryHead(EntryHead):
    """Has an instance dictionary, where the rare fields shadow the class's defaults."""


# --- layout -----------------------------------------------------------------------------------------


def _cut_broker_metadata(entry: Buffer) -> int:
    """Return the end of the broker entry metadata; 0 without any."""
    if len(entry) < 6 or _MAGIC.unpack_from(entry)[0] != MAGIC_BROKER_ENTRY_METADATA:
        return 0
    end: int = 6 + _MAGIC_AND_SIZE.unpack_from(entry)[1]
    if end > len(entry):
        raise CorruptPayload(f"broker entry metadata ends at byte {end} of an entry of {len(entry)} bytes")
    return end


def _layout(entry: Buffer) -> tuple[int, int, int, int | None]:
    """Return start of the checksum's region, start and end of the metadata, and the checksum or None."""
    if len(entry) >= 10:
        magic, checksum, size = _CHECKED_HEAD(entry)
        if magic == MAGIC_CHECKSUM and 10 + size <= len(entry):
            return 6, 10, 10 + size, checksum
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
    """Return whether the entry's CRC32C is correct; None when the entry has no checksum.

    Raises `CorruptPayload` when the entry ends before its checksum does.
    """
    start = 0
    if len(entry) < 6 or _MAGIC_AND_SIZE.unpack_from(entry)[0] != MAGIC_CHECKSUM:
        start = _cut_broker_metadata(entry)
        if len(entry) < start + 2 or _MAGIC.unpack_from(entry, start)[0] != MAGIC_CHECKSUM:
            return None
        if len(entry) < start + 6:
            raise CorruptPayload(f"entry of {len(entry)} bytes ends inside its checksum")
    announced: int = _SIZE.unpack_from(entry, start + 2)[0]
    # Copying a small ``bytes`` costs less than a view of it.
    region = entry if len(entry) <= _SMALL_BYTES_MAX else memoryview(entry)
    return crc32c(region[start + 6 :]) == announced


def metadata_size(entry: Buffer) -> int:
    """Return the bytes of an entry's metadata. Raises `CorruptPayload` for an entry that ends before."""
    _, first, end, _ = _layout(entry)
    return end - first


def parse_entry(entry: Buffer, *, verify: bool = True) -> Entry:
    """Return the metadata and the payload of an entry; a large payload is a view into it.

    ``verify``: check the CRC32C. Raises `CorruptPayload` for a wrong checksum, an entry that ends too early,
    and metadata that protobuf rejects or that lacks a required field.
    """
    start, first, end, announced = _layout(entry)
    # Copying parts of small ``bytes`` costs less than views of them.
    view = entry if type(entry) is bytes and len(entry) <= _SMALL_BYTES_MAX else memoryview(entry)
    if verify and announced is not None:
        found = crc32c(view[start:])
        if found != announced:
            raise CorruptPayload(
                f"entry of {len(entry)} bytes has the checksum {found:08x} and announces {announced:08x}"
            )
    metadata = parse(pb.MessageMetadata, bytes(view[first:end]), "the metadata", CorruptPayload)
    return Entry(metadata, view[end:])


def build_entry(metadata: bytes, payload: Buffer) -> bytes:
    """Return magic, CRC32C, metadata size, metadata and payload in one piece."""
    head = _SIZE.pack(len(metadata)) + metadata
    return b"".join((_MAGIC_AND_SIZE.pack(MAGIC_CHECKSUM, crc32c(payload, crc32c(head))), head, payload))


# --- reading by brokers -----------------------------------------------------------------------------


ORIGIN_FIELD: Final = 7413
"""Geminga's own field of MessageMetadata: the origin of a mirrored entry (`geminga.mirror.entries`)."""


def peek_entry(entry: Buffer) -> EntryHead:
    """Return the fields that a broker needs, from the metadata alone; the payload is not read.

    The checksum is not verified (see `checksum_matches`). Raises `CorruptPayload` like `parse_entry`.
    """
    return _head_of(metadata_of(entry))


def metadata_of(entry: Buffer) -> pb.MessageMetadata:
    """Return the parsed metadata: for single fields, in half of the time of `peek_entry`, with its errors."""
    _, first, end, _ = _layout(entry)
    data = entry[first:end]
    if type(data) is not bytes:
        data = bytes(data)
    return parse(pb.MessageMetadata, data, "the metadata", CorruptPayload)


def _head_of(metadata: pb.MessageMetadata) -> EntryHead:
    """Return the fields of a parsed metadata that a broker needs."""
    has = metadata.HasField
    has_marker, has_chunk, has_uuid = has("marker_type"), has("chunk_id"), has("uuid")
    has_least, has_most = has("txnid_least_bits"), has("txnid_most_bits")
    deliver_at_time, num_chunks = metadata.deliver_at_time, metadata.num_chunks_from_msg
    encrypted, null_value = len(metadata.encryption_keys) > 0, metadata.null_value
    is_rare = (
        has_marker or has_chunk or has_uuid or has_least or has_most
        or deliver_at_time or num_chunks or encrypted or null_value
    )  # fmt: skip
    head = (_FullEntryHead if is_rare else EntryHead)(
        metadata.num_messages_in_batch, has("num_messages_in_batch"), metadata.publish_time,
        text(metadata.producer_name), metadata.sequence_id, metadata.highest_sequence_id,
        text(metadata.partition_key) if has("partition_key") else None,
        metadata.partition_key_b64_encoded, metadata.ordering_key if has("ordering_key") else None,
        metadata.event_time,
    )  # fmt: skip
    if isinstance(head, _FullEntryHead):
        head.deliver_at_time, head.num_chunks = deliver_at_time, num_chunks
        head.encrypted, head.null_value = encrypted, null_value
        head.uuid = text(metadata.uuid)
        if has_chunk:
            head.chunk_id = metadata.chunk_id
        if has_marker:
            head.marker_type = metadata.marker_type
        if has_least:
            head.txnid_least_bits = metadata.txnid_least_bits
        if has_most:
            head.txnid_most_bits = metadata.txnid_most_bits
    return head
