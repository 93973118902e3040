"""Writing frames: any command by protobuf, the most frequent ones by hand.

Framing.md section 1. SEND and MESSAGE are written up to the entry, whose bytes follow unchanged: an entry is
never copied to be framed. Each writer joins cached bytes of slow-changing ids.
"""

from collections.abc import Sequence
from itertools import chain, repeat
from struct import Struct
from typing import Final

from geminga.wire.cache import Cache
from geminga.wire.checksum import Buffer
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import SHORT, varint, varints

SEND: Final = 6
SEND_RECEIPT: Final = 7
MESSAGE: Final = 9
_FLOW: Final = 11

_HEADER = Struct(">II")
_TOTAL = Struct(">I")


def encode_command(command: pb.BaseCommand) -> bytes:
    """Return the whole frame of a command that carries no entry."""
    body = command.SerializeToString()
    return _HEADER.pack(len(body) + 4, len(body)) + body


_ID_THEN_VARINT = Cache[int, bytes](lambda number: b"\x08" + varint(number) + b"\x10")
"""Field 1 and the tag of a number in field 2: producer then sequence id, ledger then entry id."""
_ID_THEN_BODY = Cache[int, bytes](lambda number: b"\x08" + varint(number) + b"\x12")
"""Field 1 and the tag of a message in field 2: consumer id, then message id."""
_PARTITION = Cache[int, bytes](lambda number: b"\x18" + varint(number))


_RECEIPT_PLACE = tuple(b"\x1a" + bytes((size,)) for size in range(64))
"""Tag and size of SEND_RECEIPT's message id, by its size."""
_HOT_PACK = Struct(">IIHBB").pack
_SHORT_BODY_MAX = 127
"""Longest body whose size is encoded in one byte; the body of a SEND_RECEIPT has at most 60 bytes."""
_RECEIPT_HEAD = tuple(_HOT_PACK(size + 8, size + 4, 0x0807, 0x3A, size) for size in range(64))
"""The bytes before SEND_RECEIPT's body, by its size."""


def _frame_head(kind: int, size: int, entry_size: int) -> bytes:
    """Return the bytes before a hot command's body; an entry of ``entry_size`` bytes follows."""
    if size <= _SHORT_BODY_MAX:
        return _HOT_PACK(size + 8 + entry_size, size + 4, 0x0800 | kind, kind << 3 | 2, size)
    command = bytes((0x08, kind, kind << 3 | 2)) + varint(size)
    return _HEADER.pack(size + len(command) + 4 + entry_size, size + len(command)) + command


def encode_send(
    producer_id: int,
    sequence_id: int,
    num_messages: int,
    highest_sequence_id: int | None,
    entry_size: int,
    *,
    is_chunk: bool = False,
    transaction: tuple[int, int] | None = None,
) -> bytes:
    """All of a SEND frame that precedes the entry of ``entry_size`` bytes.

    ``num_messages`` is left out when 1 and ``highest_sequence_id`` when None, as the Java client does.
    ``transaction``: the most and the least significant bits of its id.
    """
    body = _ID_THEN_VARINT[producer_id] + varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if transaction is not None:
        body += b"\x20" + varint(transaction[1]) + b"\x28" + varint(transaction[0])
    if highest_sequence_id is not None:
        body += b"\x30" + varint(highest_sequence_id)
    if is_chunk:
        body += b"\x38\x01"
    return _frame_head(SEND, len(body), entry_size) + body


def encode_send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int | None, ledger_id: int, entry_id: int
) -> bytes:
    """A SEND_RECEIPT frame. -1 for ledger and entry (a duplicate) travels as 2^64-1."""
    producer = _ID_THEN_VARINT[producer_id]
    sequence = SHORT[sequence_id] if sequence_id < 16384 else varint(sequence_id)
    ledger = _ID_THEN_VARINT[ledger_id]
    entry = SHORT[entry_id] if entry_id < 16384 else varint(entry_id)
    place_size = len(ledger) + len(entry)
    size = len(producer) + len(sequence) + place_size + 2
    highest = b""
    if highest_sequence_id is not None:
        highest = b"\x20" + varint(highest_sequence_id)
        size += len(highest)
    head = _RECEIPT_HEAD[size]
    return b"".join((head, producer, sequence, _RECEIPT_PLACE[place_size], ledger, entry, highest))


def encode_message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    entry_size: int,
    *,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int = -1,
) -> bytes:
    """All of a MESSAGE frame that precedes the entry of ``entry_size`` bytes.

    ``partition`` is always written, -1 too, as the Apache broker does; ``redelivery_count`` only above 0,
    ``consumer_epoch`` only above -1.
    """
    consumer = _ID_THEN_BODY[consumer_id]
    ledger = _ID_THEN_VARINT[ledger_id]
    entry = SHORT[entry_id] if entry_id < 16384 else varint(entry_id)
    tail = _PARTITION[partition]
    place_size = len(ledger) + len(entry) + len(tail)
    size = len(consumer) + place_size + 1
    if redelivery_count or ack_set or consumer_epoch >= 0:
        rest = _message_rest(redelivery_count, ack_set, consumer_epoch)
        tail += rest
        size += len(rest)
        head = _frame_head(MESSAGE, size, entry_size)
    else:
        head = _HOT_PACK(size + 8 + entry_size, size + 4, 0x0809, 0x4A, size)
    return b"".join((head, consumer, SHORT[place_size], ledger, entry, tail))


def encode_messages(
    consumer_id: int,
    ledger_id: int,
    first_entry_id: int,
    partition: int,
    entries: Sequence[Buffer],
    *,
    consumer_epoch: int = -1,
) -> bytes:
    """The MESSAGE frames of entries that follow each other in a ledger, with the entries: for small ones."""
    ids = varints(first_entry_id, len(entries))
    if len(ids[0]) != len(ids[-1]):
        parts: list[Buffer] = []
        for entry_id, entry in enumerate(entries, first_entry_id):
            size = len(entry)
            head = encode_message(
                consumer_id, ledger_id, entry_id, partition, size, consumer_epoch=consumer_epoch
            )
            parts += (head, entry)
        return b"".join(parts)
    # All but the total size and the entry id is alike.
    head = encode_message(consumer_id, ledger_id, first_entry_id, partition, 0, consumer_epoch=consumer_epoch)
    behind = len(head) - len(_PARTITION[partition]) - len(_message_rest(0, (), consumer_epoch))
    before, after = head[4 : behind - len(ids[0])], head[behind:]
    totals = map(_TOTAL.pack, [len(head) - 4 + len(entry) for entry in entries])
    return b"".join(
        chain.from_iterable(zip(totals, repeat(before), ids, repeat(after), entries, strict=False))
    )


def _message_rest(redelivery_count: int, ack_set: Sequence[int], consumer_epoch: int) -> bytes:
    """The optional fields of MESSAGE."""
    parts = []
    if redelivery_count:
        parts += [b"\x18", varint(redelivery_count)]
    for word in ack_set:
        parts += [b"\x20", varint(word)]
    if consumer_epoch >= 0:
        parts += [b"\x28", varint(consumer_epoch)]
    return b"".join(parts)


def encode_flow(consumer_id: int, permits: int) -> bytes:
    """Return a FLOW frame."""
    body = _ID_THEN_VARINT[consumer_id] + varint(permits)
    return _frame_head(_FLOW, len(body), 0) + body
