"""Runs of SENDs: consecutive small entries of one producer, read and receipted together.

A producer without batching sends a frame for each message, and its frames differ in entry and sequence id
only. So the bytes after the first frame are compared instead of parsed, a run passes the broker in columns,
and its receipts are built from a few pieces. Any difference ends the run; that frame is read as usual
(`wire.frames`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct

from geminga.wire.cache import Cache
from geminga.wire.checksum import crc32c
from geminga.wire.frame_encoding import encode_send, encode_send_receipt
from geminga.wire.frames import ENTRY_COPY_BYTES_MAX, Frame, SendFrame
from geminga.wire.metadata import MAGIC_CHECKSUM
from geminga.wire.varint import varint, varints

_CHECKED = Struct(">HI").unpack_from
_FIELD_HEADS = 2
"""Bytes of the tags of the two fields that every SEND has."""
_FIRST_PIECE = 8
"""Number of ids in the first comparison with a run; each next piece is four times as large."""
_BODY_START = 12
"""Start of the body: after two sizes, the command's type, and the body's tag and size."""


@dataclass(slots=True, repr=False, eq=False)
class SendRun(Frame):
    """Plain SENDs of one producer: single messages with consecutive sequence ids. ``type`` is SEND."""

    producer_id: int
    sequence_ids: range
    entries: list[bytes]
    entry: None = None

    type = SendFrame.type

    def frames(self) -> Iterator[SendFrame]:
        """Yield the frames one by one."""
        for sequence_id, entry in zip(self.sequence_ids, self.entries, strict=True):
            yield SendFrame(self.producer_id, sequence_id, 1, 0, entry)

    @property
    def is_intact(self) -> bool:
        """Whether every entry has a checksum, and the right one. A broken one is to be found singly."""
        entries = self.entries
        try:
            announced = list(map(_CHECKED, entries))
        except struct.error:
            return False
        found = zip(repeat(MAGIC_CHECKSUM), map(crc32c, [entry[6:] for entry in entries]))
        return announced == list(found)


@lru_cache(maxsize=256)
def _shape(head_size: int, number_size: int) -> Struct:
    """Total size; what is alike in all frames of a run; the sequence id."""
    return Struct(f">I{head_size}s{number_size}s")


def read_run(
    first: SendFrame, data: bytes, start: int, frame_end: int, frame_size_max: int, count_max: int
) -> tuple[SendRun | None, int]:
    """Return the run of the SEND at ``start`` and at most ``count_max`` more, and its end."""
    number = varint(first.sequence_id)
    whole = encode_send(first.producer_id, first.sequence_id, 1, None, len(first.entry))
    if not data.startswith(whole, start) or len(first.entry) > ENTRY_COPY_BYTES_MAX:
        return None, frame_end  # it says more than ids, or is large
    head = whole[4 : -len(number)]
    shape = _shape(len(head), len(number))
    unpack, size = shape.unpack_from, shape.size
    end = len(data)
    # A frame that ends inside its command is no SEND, even if an entry seems to follow.
    least, total_max = size - 4, min(frame_size_max - 4, size - 4 + ENTRY_COPY_BYTES_MAX)
    entries: list[bytes] = [first.entry]  # type: ignore[list-item]
    add_entry = entries.append
    at, stop, piece = frame_end, end - size, _FIRST_PIECE
    # A run may end soon, and many frames may follow: ids are expected in pieces of growing size.
    while count_max > 0:
        following = varints(first.sequence_id + len(entries), min(piece, count_max))
        for expected in following:
            if at > stop:
                break
            total, found, number = unpack(data, at)
            next_at = at + 4 + total
            if number != expected or found != head or next_at > end or not least <= total <= total_max:
                break
            add_entry(data[at + size : next_at])
            at = next_at
        else:
            count_max -= piece
            piece *= 4
            continue
        break
    if len(entries) == 1:
        return None, frame_end
    ids = range(first.sequence_id, first.sequence_id + len(entries))
    return SendRun(first.producer_id, ids, entries), at


_PACK_UINT32 = Struct(">I").pack


def encode_sends(
    producer_id: int,
    first_sequence_id: int,
    payloads: Sequence[bytes],
    fields: Sequence[bytes] | None,
    before: bytes,
    time: bytes,
    behind: bytes,
) -> bytes:
    """Return the SEND frames of single messages, not compressed.

    ``before`` is the metadata up to the sequence id, ``time`` follows it, then each message's own ``fields``
    (None: no message has any), then ``behind``.
    """
    numbers = varints(first_sequence_id, len(payloads))
    if len(numbers[0]) != len(numbers[-1]):
        # From some number on ids are longer, and so are the frames.
        same = sum(1 for number in numbers if len(number) == len(numbers[0]))
        parts = (slice(same), slice(same, None))
        return b"".join(
            encode_sends(
                producer_id, first_sequence_id + (part.start or 0), payloads[part],
                None if fields is None else fields[part], before, time, behind,
            )
            for part in parts
        )  # fmt: skip
    if fields is None:
        tail = time + behind
        rests = [number + tail for number in numbers]
    else:
        rests = [number + time + field + behind for number, field in zip(numbers, fields, strict=True)]
    sizes_and_before = Cache[int, bytes](lambda size: _PACK_UINT32(len(before) + size) + before)
    sized = list(map(sizes_and_before.__getitem__, map(len, rests)))
    checksums = map(crc32c, payloads, map(crc32c, rests, map(crc32c, sized)))
    # Bytes before the sequence id in the SEND of an entry of each size.
    heads = Cache[int, bytes](
        lambda size: encode_send(producer_id, first_sequence_id, 1, None, size)[: -len(numbers[0])]
    )
    overhead = _ENTRY_HEAD_SIZE + len(before)
    sizes = [overhead + len(rest) + len(payload) for rest, payload in zip(rests, payloads, strict=True)]
    return b"".join(
        chain.from_iterable(
            zip(
                map(heads.__getitem__, sizes),
                numbers,
                repeat(_MAGIC),
                map(_PACK_UINT32, checksums),
                sized,
                rests,
                payloads,
            )
        )
    )


_MAGIC = MAGIC_CHECKSUM.to_bytes(2, "big")
_ENTRY_HEAD_SIZE = 2 + 4 + 4
"""The magic number, the checksum, and the size of the metadata."""


def encode_send_receipts(producer_id: int, sequence_ids: range, ledger_id: int, first_entry_id: int) -> bytes:
    """Return the SEND_RECEIPTs of a run whose entries follow each other in a ledger."""
    count = len(sequence_ids)
    sequences, entries = varints(sequence_ids[0], count), varints(first_entry_id, count)
    if len(sequences[0]) == len(sequences[-1]) and len(entries[0]) == len(entries[-1]):
        # The bytes before and after the sequence id are the same in all receipts.
        receipt = encode_send_receipt(producer_id, sequence_ids[0], None, ledger_id, first_entry_id)
        behind = len(receipt) - len(entries[0])
        head_size = _BODY_START + _FIELD_HEADS + len(varint(producer_id))
        head, middle = receipt[:head_size], receipt[head_size + len(sequences[0]) : behind]
        return b"".join(chain.from_iterable(zip(repeat(head), sequences, repeat(middle), entries)))
    return b"".join(
        [
            encode_send_receipt(producer_id, sequence_id, None, ledger_id, first_entry_id + index)
            for index, sequence_id in enumerate(sequence_ids)
        ]
    )
