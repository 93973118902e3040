"""Entries: what the broker stores and hands out (framing.md section 1.2).

An entry is what follows the command in a SEND or MESSAGE frame::

    [0x0e02  size  BrokerEntryMetadata]      MESSAGE only, optional
    [0x0e01  crc32c]                         optional; covers all that follows
    metadata_size  MessageMetadata  payload

`parse_entry` gives a consumer everything. `peek_entry` gives a broker what it decides by, out of the
metadata alone: a hand-written reader for the fields in the order in which clients write them, which
hands anything unusual to protobuf and gives the same result.

Text that is not UTF-8 is read with replacement characters, as the Java client does; `strict.text` does
that for the strings of a parsed protobuf message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from geminga.errors import CorruptPayload
from geminga.wire.cache import Cache
from geminga.wire.checksum import Buffer, crc32c
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse, text
from geminga.wire.varint import read_varint, varint

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


# --- the broker's reader ----------------------------------------------------------------------------


_NAMES = Cache[bytes, str](lambda data: data.decode("utf-8", "replace"))
"""Producer names."""
_INT32_MAX = (1 << 31) - 1

# Tags of MessageMetadata: field number << 3 | wire type.
_PROPERTIES = 0x22
_REPLICATED_FROM = 0x2A
_PARTITION_KEY = 0x32
_COMPRESSION = 0x40
_UNCOMPRESSED_SIZE = 0x48
_NUM_MESSAGES = 0x58
_EVENT_TIME = 0x60
# The first byte of those of two bytes, the second of which is 01.
_SCHEMA_VERSION = 0x82
_PARTITION_KEY_B64 = 0x88
_ORDERING_KEY = 0x92
_HIGHEST_SEQUENCE_ID = 0xC0

ORIGIN_FIELD: Final = 7413
"""Geminga's own field of MessageMetadata: the origin of a mirrored entry (`geminga.mirror.entries`)."""
_ORIGIN = varint(ORIGIN_FIELD << 3 | 2)
_ORIGIN_FIRST = _ORIGIN[0]

_SKIPPED_NUMBERS = frozenset((_COMPRESSION, _UNCOMPRESSED_SIZE))
_TEXTS = frozenset((_PROPERTIES, _REPLICATED_FROM, _PARTITION_KEY))
_BYTES = frozenset((_ORDERING_KEY, _SCHEMA_VERSION))


def peek_entry(entry: Buffer) -> EntryHead:
    """Return the fields that a broker needs, from the metadata alone; the payload is not read.

    The checksum is not verified (see `checksum_matches`), and skipped fields, such as properties, are not
    parsed. Raises `CorruptPayload` like `parse_entry`.
    """
    if len(entry) > 10:
        magic, _, size = _CHECKED_HEAD(entry)
        if magic == MAGIC_CHECKSUM:
            data = entry[10 : 10 + size]
            if type(data) is not bytes:
                data = bytes(data)
            if len(data) == size:
                try:
                    head = _read_head(data)
                except (IndexError, ValueError):
                    head = None
                if head is not None:
                    return head
    _, first, end, _ = _layout(entry)
    data = bytes(memoryview(entry)[first:end])
    return _full_head(parse(pb.MessageMetadata, data, "the metadata", CorruptPayload))


def _read_head(data: bytes) -> EntryHead | None:
    """Read the metadata by hand; None, `IndexError` or `ValueError` for anything unusual."""
    if data[0] != 0x0A or data[1] > 127:
        return None
    position = data[1] + 2
    name = _NAMES[data[2:position]]
    if data[position] != 0x10:
        return None
    sequence_id, position = read_varint(data, position + 1)
    if data[position] != 0x18:
        return None
    publish_time, position = read_varint(data, position + 1)
    if position == len(data):
        return EntryHead(1, False, publish_time, name, sequence_id, 0, None, False, None, 0)
    return _read_options(data, position, publish_time, name, sequence_id)


def _read_options(
    data: bytes, position: int, publish_time: int, name: str, sequence_id: int
) -> EntryHead | None:
    """The optional fields that usual entries have; one-byte sizes and flags only."""
    end = len(data)
    num_messages = 1
    is_batch = partition_key_b64 = False
    highest_sequence_id = event_time = 0
    partition_key = ordering_key = None
    while position < end:
        tag = data[position]
        if tag in _SKIPPED_NUMBERS:
            _, position = read_varint(data, position + 1)
        elif tag == _NUM_MESSAGES:
            num_messages, position = read_varint(data, position + 1)
            if num_messages > _INT32_MAX:
                return None
            is_batch = True
        elif tag in _TEXTS:
            size, start = read_varint(data, position + 1)
            position = start + size
            if tag == _PARTITION_KEY:
                partition_key = data[start:position].decode("utf-8", "replace")
        elif tag == _EVENT_TIME:
            event_time, position = read_varint(data, position + 1)
        elif tag == _ORIGIN_FIRST and data.startswith(_ORIGIN, position):
            size, start = read_varint(data, position + len(_ORIGIN))
            position = start + size
        elif tag < 128 or data[position + 1] != 0x01:
            return None
        elif tag == _HIGHEST_SEQUENCE_ID:
            highest_sequence_id, position = read_varint(data, position + 2)
        elif tag == _PARTITION_KEY_B64:
            partition_key_b64 = data[position + 2] == 1
            if data[position + 2] > 1:
                return None
            position += 3
        elif tag in _BYTES:
            size, start = read_varint(data, position + 2)
            position = start + size
            if tag == _ORDERING_KEY:
                ordering_key = data[start:position]
        else:
            return None
    if position != end:
        return None
    return EntryHead(
        num_messages, is_batch, publish_time, name, sequence_id, highest_sequence_id,
        partition_key, partition_key_b64, ordering_key, event_time,
    )  # fmt: skip


def _full_head(metadata: pb.MessageMetadata) -> EntryHead:
    has = metadata.HasField
    head = _FullEntryHead(
        metadata.num_messages_in_batch, has("num_messages_in_batch"), metadata.publish_time,
        text(metadata.producer_name), metadata.sequence_id, metadata.highest_sequence_id,
        text(metadata.partition_key) if has("partition_key") else None,
        metadata.partition_key_b64_encoded, metadata.ordering_key if has("ordering_key") else None,
        metadata.event_time,
    )  # fmt: skip
    head.deliver_at_time = metadata.deliver_at_time
    if has("chunk_id"):
        head.chunk_id = metadata.chunk_id
    head.num_chunks = metadata.num_chunks_from_msg
    head.uuid = text(metadata.uuid)
    if has("marker_type"):
        head.marker_type = metadata.marker_type
    head.encrypted = len(metadata.encryption_keys) > 0
    head.null_value = metadata.null_value
    if has("txnid_least_bits"):
        head.txnid_least_bits = metadata.txnid_least_bits
    if has("txnid_most_bits"):
        head.txnid_most_bits = metadata.txnid_most_bits
    return head
