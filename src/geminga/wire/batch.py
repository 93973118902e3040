"""Batch payloads by rows (framing.md section 1.4).

A batch is, for each message: a 4-byte size, that many bytes of ``SingleMessageMetadata``, and
``payload_size`` bytes of payload. Nothing follows the last one. `wire.columnar` does the same by columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import add
from struct import Struct
from struct import error as StructError
from typing import Any

from google.protobuf.message import DecodeError

from geminga.errors import CorruptPayload
from geminga.wire.cache import Cache
from geminga.wire.checksum import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.strict import parse, text
from geminga.wire.varint import SHORT, low_bits, varint, varints

_SIZE = Struct(">I")
_SIZE_FROM = _SIZE.unpack_from

_HEAD = Struct(">IBBBB").unpack_from
_SIZE_BEHIND = Struct(">BBBB").unpack_from
_SMALLEST_MESSAGE_BYTES = 6
"""The size prefix and ``payload_size`` 0, which is required."""
_PLAIN_BYTES_MAX = 17
"""Bytes of metadata that hold only a payload's size and a sequence id."""

# Tags of SingleMessageMetadata: field number << 3 | wire type.
_KEY, _PAYLOAD_SIZE, _COMPACTED_OUT = 0x12, 0x18, 0x20


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
"""From a payload's size to the encoded field of that size and the tag of the sequence id."""


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


def encode_rich_batch(
    payloads: Sequence[bytes],
    fields: Sequence[bytes],
    first_sequence_id: int,
    further: Sequence[bytes] | None = None,
) -> bytes:
    """Return the batch payload of messages with consecutive sequence ids, some with more than that.

    ``fields`` are the properties and the key of each (`metadata_fields`), ``further`` all its other fields.
    """
    numbers = varints(first_sequence_id, len(payloads))
    if further is not None:
        numbers = list(map(add, numbers, further))
    sizes = list(map(_SIZE_FIELDS.__getitem__, map(len, payloads)))
    metadata_sizes = map(add, map(add, map(len, fields), map(len, sizes)), map(len, numbers))
    pieces = zip(map(_SIZE.pack, metadata_sizes), fields, sizes, numbers, payloads, strict=True)
    return b"".join(chain.from_iterable(pieces))


# --- reading ----------------------------------------------------------------------------------------


def split_batch(body: bytes, count: int) -> tuple[list[int], list[int]]:
    """Return the offsets of a batch's messages, and the indexes of those compacted out.

    There are ``count + 1`` offsets (the last is the end of the body). Raises `CorruptPayload` unless exactly
    ``count`` messages fill the body to its end.
    """
    size = len(body)
    if count < 0 or count * _SMALLEST_MESSAGE_BYTES > size:
        raise CorruptPayload(f"{count} messages announced in a batch of {size} bytes")
    if count > 1 and size % count == 0 and _is_even(body, count, size // count):
        return list(range(0, size + 1, size // count)), []
    starts: list[int] = []
    compacted_out: list[int] = []
    append = starts.append
    position = 0
    for index in range(count):
        append(position)
        try:
            metadata_size, tag, first, second, third = _HEAD(body, position)
        except StructError:
            tag = 0
        # Most messages begin with payload_size, in one or two bytes; 0x20 after it is compacted_out.
        if tag == _PAYLOAD_SIZE and first < 128 and (second != _COMPACTED_OUT or metadata_size == 2):
            position += 4 + metadata_size + first
        elif (
            tag == _PAYLOAD_SIZE
            and first > 127
            and second < 128
            and (third != _COMPACTED_OUT or metadata_size == 3)
        ):
            position += 4 + metadata_size + first - 128 + (second << 7)
        elif tag == _KEY and first < 128:
            # A short key, and then its payload size.
            try:
                tag, low, high, behind = _SIZE_BEHIND(body, position + 6 + first)
            except StructError:
                tag = 0
            if tag != _PAYLOAD_SIZE or first + 6 > metadata_size:
                position = _read_carefully(body, position, index, compacted_out)
            elif low < 128 and high != _COMPACTED_OUT:
                position += 4 + metadata_size + low
            elif low > 127 and high < 128 and behind != _COMPACTED_OUT:
                position += 4 + metadata_size + low - 128 + (high << 7)
            else:
                position = _read_carefully(body, position, index, compacted_out)
        else:
            position = _read_carefully(body, position, index, compacted_out)
    if position != size:
        raise CorruptPayload(f"{count} messages end at byte {position} of a batch of {size} bytes")
    append(size)
    return starts, compacted_out


def _is_even(body: bytes, count: int, step: int) -> bool:
    """Return whether all messages are ``step`` bytes long and have equal sizes of metadata and payload, so
    that none must be parsed individually. ``count`` is more than 1."""
    if step < 8:
        return False
    metadata_size, tag, first, second, third = _HEAD(body, 0)
    if tag != _PAYLOAD_SIZE:
        return False
    if first < 128:
        size, head, behind = first, 6, second
    elif second < 128:
        size, head, behind = first - 128 + (second << 7), 7, third
    else:
        return False
    if 4 + metadata_size + size != step:
        return False
    if metadata_size != head - 4:
        # Another field follows, the same in all messages.
        if behind == _COMPACTED_OUT:
            return False
        head += 1
    return all(body[place::step] == body[place : place + 1] * count for place in range(head))


def _read_carefully(body: bytes, position: int, index: int, compacted_out: list[int]) -> int:
    """Return the end of any message, parsed by protobuf; every field is checked."""
    start = position + 4
    if start > len(body):
        raise CorruptPayload(f"message {index} begins at byte {position} of {len(body)}")
    end = start + int(_SIZE_FROM(body, position)[0])
    if end > len(body):
        raise CorruptPayload(f"metadata of message {index} ends at byte {end} of {len(body)}")
    single = pb.SingleMessageMetadata()
    try:
        single.ParseFromString(body[start:end])
    except DecodeError as error:
        raise CorruptPayload(f"metadata of message {index} is no protobuf: {error}") from error
    if not single.HasField("payload_size") or single.payload_size < 0:
        raise CorruptPayload(f"message {index} has no valid payload_size")
    if single.compacted_out:
        compacted_out.append(index)
    return end + single.payload_size


def decode_batch(
    payload: Buffer, count: int, *, metadata_bytes_max: int | None = None
) -> list[SingleMessage]:
    """Return the messages of a batch, whose payload is decrypted and decompressed.

    ``count`` is ``MessageMetadata.num_messages_in_batch``. Raises `CorruptPayload` like `split_batch`, and
    for more than ``metadata_bytes_max`` bytes of keys, properties and the like.
    """
    data = payload if type(payload) is bytes else bytes(payload)
    starts, _ = split_batch(data, count)
    room = 1 << 63 if metadata_bytes_max is None else metadata_bytes_max
    messages: list[SingleMessage] = []
    for index, (start, after) in enumerate(pairwise(starts)):
        size = _SIZE_FROM(data, start)[0]
        room -= size if size > _PLAIN_BYTES_MAX else 0
        if room < 0:
            raise CorruptPayload(f"its messages have more than {metadata_bytes_max} bytes of metadata")
        end, what = start + 4 + size, f"the metadata of message {index}"
        single = parse(pb.SingleMessageMetadata, data[start + 4 : end], what, CorruptPayload)
        if single.payload_size != after - end:
            raise CorruptPayload(f"message {index} announces several sizes")
        has = single.HasField
        message = SingleMessage(
            data[end:after],
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
        messages.append(message)
    return messages
