"""Batch payloads by rows (framing.md section 1.4).

A batch is, for each message: a 4-byte size, that many bytes of ``SingleMessageMetadata``, and
``payload_size`` bytes of payload. Nothing follows the last one. `wire.columnar` does the same by columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from struct import Struct
from typing import Any

from geminga.errors import CorruptPayload
from geminga.wire.cache import Cache
from geminga.wire.checksum import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse, text
from geminga.wire.varint import SHORT, low_bits, read_varint, varint, varints

_SIZE = Struct(">I")
_SIZE_FROM = _SIZE.unpack_from

# Tags of SingleMessageMetadata: field number << 3 | wire type.
_PAYLOAD_SIZE = 0x18
_SEQUENCE_ID = 0x40


@dataclass(slots=True)
class SingleMessage:
    """One message of a batch.

    ``sequence_id`` is -1 when absent. ``event_time`` is in milliseconds since 1970, 0 when absent.
    ``compacted_out``: the message was removed by compaction, its position in the batch remains.
    """

    payload: bytes = field(repr=False)
    sequence_id: int
    partition_key: str | None = None
    partition_key_b64: bool = False
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time: int = 0
    null_value: bool = False
    compacted_out: bool = False
    null_partition_key: bool = False


# --- writing ----------------------------------------------------------------------------------------


def _tagged(tag: bytes, value: bytes) -> bytes:
    return tag + varint(len(value)) + value


_SIZE_FIELDS = Cache[int, bytes](lambda size: b"\x18" + varint(size) + b"\x40")
"""A payload's size to its field and the sequence id's tag."""


def _prefixes(number_size: int) -> Cache[int, bytes]:
    """Return a cache from a payload's size to the bytes before a sequence id of ``number_size`` bytes."""
    return Cache(lambda size: _SIZE.pack(len(_SIZE_FIELDS[size]) + number_size) + _SIZE_FIELDS[size])


_PREFIXES = tuple(map(_prefixes, range(11)))


def append_message(buffer: list[bytes], payload: bytes, sequence_id: int) -> None:
    """Append a message with only a payload and a sequence id: three pieces to be joined."""
    number = SHORT[sequence_id] if sequence_id < 16384 else varint(sequence_id)
    buffer += (_PREFIXES[len(number)][len(payload)], number, payload)


def append_full_message(buffer: list[bytes], payload: bytes, metadata: bytes) -> None:
    """Append a message with its encoded ``SingleMessageMetadata``."""
    buffer += (_SIZE.pack(len(metadata)), metadata, payload)


def encode_plain_batch(payloads: Sequence[bytes], first_sequence_id: int) -> bytes:
    """Return the batch payload of messages that have only consecutive sequence ids."""
    count, low, high = len(payloads), first_sequence_id & 0x3FFF, first_sequence_id >> 14
    if not high:
        return encode_rich_batch(payloads, [b""] * count, first_sequence_id)
    same = 16384 - low
    if count > same:
        following = encode_plain_batch(payloads[same:], first_sequence_id + same)
        return encode_plain_batch(payloads[:same], first_sequence_id) + following
    # Prefix, low bits of the id, its rest and payload, laid out by slices: a quarter of a Python loop's time.
    rest = varint(high)
    pieces = [rest] * (4 * count)
    pieces[0::4] = list(map(_PREFIXES[2 + len(rest)].__getitem__, map(len, payloads)))
    pieces[1::4] = low_bits()[low : low + count]
    pieces[3::4] = payloads
    return b"".join(pieces)


_KEYS = Cache[str, bytes](lambda key: _tagged(b"", key.encode()))
_PROPERTIES = Cache[tuple[str, str], bytes](
    lambda pair: _tagged(b"", _tagged(b"\x0a", pair[0].encode()) + _tagged(b"\x12", pair[1].encode()))
)


def metadata_fields(property_tag: bytes, key_tag: bytes, messages: Iterable[Any]) -> list[bytes]:
    """Return the properties and then the key of each message (None: neither), with the tags of
    ``MessageMetadata`` or ``SingleMessageMetadata``."""
    fields = []
    for message in messages:
        key = None if message is None else message.partition_key
        field = b"" if key is None else key_tag + _KEYS[key]
        if message is not None and message.properties:
            pairs = map(_PROPERTIES.__getitem__, message.properties)
            field = property_tag + property_tag.join(pairs) + field
        fields.append(field)
    return fields


def encode_rich_batch(payloads: Sequence[bytes], fields: Sequence[bytes], first_sequence_id: int) -> bytes:
    """Return the batch payload of messages with consecutive sequence ids, some with properties or a key:
    ``fields`` are those of each message (`metadata_fields`), empty for none."""
    numbers = varints(first_sequence_id, len(payloads))
    sizes = list(map(_SIZE_FIELDS.__getitem__, map(len, payloads)))
    metadata_sizes = map(add, map(add, map(len, fields), map(len, sizes)), map(len, numbers))
    pieces = zip(map(_SIZE.pack, metadata_sizes), fields, sizes, numbers, payloads, strict=True)
    return b"".join(chain.from_iterable(pieces))


# --- reading ----------------------------------------------------------------------------------------


def decode_batch(
    payload: Buffer, count: int, *, metadata_bytes_max: int | None = None
) -> list[SingleMessage]:
    """Return the messages of a batch, whose payload is decrypted and decompressed.

    ``count`` is ``MessageMetadata.num_messages_in_batch``. Raises `CorruptPayload` unless exactly that many
    messages fill the payload to its last byte, and for more than ``metadata_bytes_max`` bytes of keys,
    properties and the like.
    """
    data = payload if type(payload) is bytes else bytes(payload)
    room = 1 << 63 if metadata_bytes_max is None else metadata_bytes_max
    # A message takes at least 6 bytes: its size, and payload_size 0.
    if not 0 <= count <= len(data) // 6:
        raise CorruptPayload(f"a batch of {len(data)} bytes cannot hold {count} messages")
    messages: list[SingleMessage] = []
    total = len(data)
    position = 0
    for index in range(count):
        if position + 4 <= total:
            size = _SIZE_FROM(data, position)[0]
            found = _read_plain(data, position + 4, position + 4 + size)
            if found is not None:
                message, position = found
                messages.append(message)
                continue
            room -= size
            if room < 0:
                raise CorruptPayload(f"its messages have more than {metadata_bytes_max} bytes of metadata")
        message, position = _read_message(data, position, index)
        messages.append(message)
    if position != total:
        raise CorruptPayload(
            f"the {count} messages of a batch end at byte {position}; its payload has {total} bytes"
        )
    return messages


def _read_plain(data: bytes, position: int, end: int) -> tuple[SingleMessage, int] | None:
    """Read a message that has only a payload and a sequence id; return it and the position after it. None for
    any other. Most messages are such, and protobuf takes several times as long."""
    try:
        if data[position] != _PAYLOAD_SIZE:
            return None
        payload_size, position = read_varint(data, position + 1)
        sequence_id = -1
        if position < end and data[position] == _SEQUENCE_ID:
            sequence_id, position = read_varint(data, position + 1)
    except (IndexError, ValueError):
        return None
    after = end + payload_size
    if position != end or after > len(data):
        return None
    return SingleMessage(data[end:after], sequence_id), after


def _read_message(data: bytes, position: int, index: int) -> tuple[SingleMessage, int]:
    """Read any message by protobuf; return it and the position after it."""
    if position + 4 > len(data):
        raise CorruptPayload(f"a batch of {len(data)} bytes ends before its message {index}")
    start = position + 4
    end = start + _SIZE.unpack_from(data, position)[0]
    if end > len(data):
        raise CorruptPayload(
            f"the metadata of message {index} ends at byte {end} of a batch of {len(data)} bytes"
        )
    what = f"the metadata of message {index}"
    single = parse(pb.SingleMessageMetadata, data[start:end], what, CorruptPayload)
    size = single.payload_size
    if size < 0 or end + size > len(data):
        raise CorruptPayload(
            f"message {index} announces {size} bytes; {len(data) - end} are left in the batch"
        )
    has = single.HasField
    message = SingleMessage(
        data[end : end + size],
        single.sequence_id if has("sequence_id") else -1,
        text(single.partition_key) if has("partition_key") else None,
        single.partition_key_b64_encoded,
        single.ordering_key if has("ordering_key") else None,
        {text(pair.key): text(pair.value) for pair in single.properties},
        single.event_time,
        single.null_value,
        single.compacted_out,
        single.null_partition_key,
    )
    return message, end + size
