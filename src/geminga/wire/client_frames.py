"""The client's decoder: a broker's frames, with receipts and messages in runs.

Receipts of unbatched messages differ in two numbers only, which both count up. So the bytes after the first
receipt are compared with the expected ones; any difference ends the run, and that frame is read as usual
(`wire.frames`). `message_runs` does the same for messages.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import cast

from geminga.wire.frames import (
    ENTRY_COPY_BYTES_MAX,
    FRAME_PADDING,
    FRAMES_UNLIMITED,
    MAX_MESSAGE_SIZE,
    Frame,
    FrameDecoder,
    MessageFrame,
    ReceiptFrame,
)
from geminga.wire.message_runs import read_message_run
from geminga.wire.varint import varint, varints

_BODY_START = 12
"""Start of the body: after two sizes, the command's type, and the body's tag and size."""
READ_BYTES = 1 << 18
"""Bytes that are read at once; more for a frame that is larger."""
RUN_ENTRY_BYTES_MAX = READ_BYTES // 4
"""Maximum bytes of an entry that may begin a run: of larger ones, too few are read at once."""
GROWTH = 8
"""Maximum size of the buffer as a multiple of what arrived of such a frame."""
RECEIPTS_BYTES_MAX = 1 << 14
"""Bytes after a large message that are searched for a run of receipts."""
_FIRST_PIECE = 1
"""Number of frames in the first comparison with a run; each next piece is four times as large."""


class ClientFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that returns consecutive SEND_RECEIPTs as `ReceiptRun`, and MESSAGEs as `MessageRun`.

    A single one stays a `ReceiptFrame` or `MessageFrame`. ``frames_max`` counts the frames of a run.

    A transport writes to `space`, from which `read` takes the frames; `feed` is for bytes that are kept.
    """

    __slots__ = ("_buffer", "_end", "_expected", "_start")

    def __init__(self, max_frame_size: int = MAX_MESSAGE_SIZE + FRAME_PADDING) -> None:
        super().__init__(max_frame_size)
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._start = self._end = 0
        """Begin and end of the incomplete frame in the buffer."""
        self._expected = 0
        """Its size in bytes, as far as it is known."""

    def space(self) -> memoryview:
        """Return the memory for the next bytes. The `MessageRun`s of the last `read` must have been opened:
        they are overwritten."""
        if self._start or self._expected > len(self._buffer) == self._end:
            left = self._buffer[self._start : self._end]
            # Four bytes of a peer announce a frame: memory grows with what arrives of it.
            size = max(min(self._expected, GROWTH * len(left)), READ_BYTES)
            if size != len(self._buffer):
                self._buffer = memoryview(bytearray(size))
            self._start, self._end = 0, len(left)
            self._buffer[: self._end] = left
        return self._buffer[self._end :]

    def read(self, size: int) -> list[Frame]:
        """Return the frames that the ``size`` bytes in `space` complete. Raises as `feed` does."""
        if self.error is not None:
            raise self.error
        self._end += size
        if self._end < self._expected:
            return []
        data = self._buffer[: self._end]
        # Many small frames are copied together: slices of bytes cost less than those of a view.
        is_large = int.from_bytes(data[:4], "big") > ENTRY_COPY_BYTES_MAX
        frames = self._frames_of(cast("bytes", data) if is_large else bytes(data), 0, FRAMES_UNLIMITED)
        self._start = self._end - self.pending_size
        self._expected, self._pending = self._needed if self._pending else 0, None
        for frame in frames:
            if isinstance(frame.entry, memoryview):
                frame.entry = bytes(frame.entry)
        return frames

    def _follow(
        self, first: Frame, data: bytes, start: int, frame_end: int, frames: list[Frame], room: int
    ) -> tuple[int, int]:
        run: Frame | None = None
        end, count = frame_end, 1
        if type(first) is MessageFrame and len(first.entry) <= RUN_ENTRY_BYTES_MAX and not first.ack_set:
            messages, end = read_message_run(first, data, start, frame_end, self.max_frame_size, room)
            if messages is not None:
                run, count = messages, len(messages.entry_ids)
        elif type(first) is ReceiptFrame:
            if at := start if isinstance(data, memoryview) else 0:  # behind a large message
                data = bytes(data[at : at + RECEIPTS_BYTES_MAX])
            receipts, end = read_receipt_run(first, data, start - at, frame_end - at, room)
            end += at
            if receipts is not None:
                run, count = receipts, receipts.count
        if run is not None:
            frames[-1] = run
        return end, count - 1


class ReceiptRun(Frame):
    """Receipts of ``count`` messages with consecutive sequence ids and entry ids.

    ``sequence_id`` and ``entry_id`` are the first ones. Ids are signed as in `ReceiptFrame`. ``type`` is
    SEND_RECEIPT.
    """

    __slots__ = ("count", "entry_id", "highest_sequence_id", "ledger_id", "producer_id", "sequence_id")

    type = ReceiptFrame.type

    def __init__(self, first: ReceiptFrame, count: int) -> None:
        self.producer_id = first.producer_id
        self.sequence_id = first.sequence_id
        self.highest_sequence_id = first.highest_sequence_id
        self.ledger_id = first.ledger_id
        self.entry_id = first.entry_id
        self.count = count
        self.entry = None

    def frames(self) -> Iterator[ReceiptFrame]:
        """Yield the receipts one by one."""
        for index in range(self.count):
            yield ReceiptFrame(
                self.producer_id,
                self.sequence_id + index,
                self.highest_sequence_id,
                self.ledger_id,
                self.entry_id + index,
            )


def read_receipt_run(
    first: ReceiptFrame, data: bytes, start: int, frame_end: int, count_max: int
) -> tuple[ReceiptRun | None, int]:
    """Return the run of the receipt at ``start`` and at most ``count_max`` more, and its end."""
    # Most often there is one receipt, which must be cheap to detect.
    if data[frame_end : frame_end + _BODY_START] != data[start : start + _BODY_START]:
        return None, frame_end
    size = frame_end - start
    count_max = min(count_max, (len(data) - frame_end) // size)
    # The low bits of its sequence id, which many producers choose with gaps.
    low = _BODY_START + 2 + len(varint(first.producer_id))
    if count_max < 1 or (data[frame_end + low] - data[start + low]) & 0x7F != 1:
        return None, frame_end
    more = _more(first, data, start, frame_end, count_max)
    return (ReceiptRun(first, 1 + more), frame_end + more * size) if more else (None, frame_end)


def _more(first: ReceiptFrame, data: bytes, start: int, frame_end: int, count_max: int) -> int:
    """Return the number of frames after the first, which ends at ``frame_end``, that continue its numbers."""
    sequence_id, entry_id = first.sequence_id, first.entry_id
    if sequence_id < 0 or entry_id < 0 or first.ledger_id < 0:
        return 0
    # As many as have numbers of the same size.
    sequence, entry = varint(sequence_id), varint(entry_id)
    count = min(count_max, (1 << 7 * len(sequence)) - 1 - sequence_id, (1 << 7 * len(entry)) - 1 - entry_id)
    producer, ledger = varint(first.producer_id), varint(first.ledger_id)
    head = data[start : start + _BODY_START] + b"\x08" + producer + b"\x10"
    middle = b"\x1a" + bytes((len(ledger) + len(entry) + 2,)) + b"\x08" + ledger + b"\x10"
    known = head + sequence + middle + entry
    if not data.startswith(known, start):
        return 0
    tail = data[start + len(known) : frame_end]
    # Most runs end soon, and thousands of frames may follow: pieces of growing size are compared.
    found, at, piece = 0, frame_end, _FIRST_PIECE
    while found < count:
        piece = min(piece, count - found)
        sequences, entries = varints(sequence_id + found + 1, piece), varints(entry_id + found + 1, piece)
        parts = zip(repeat(head), sequences, repeat(middle), entries, repeat(tail), strict=False)
        expected = list(map(b"".join, parts))
        whole = b"".join(expected)
        if not data.startswith(whole, at):
            offsets = range(at, at + len(whole), frame_end - start)
            matches = map(data.startswith, expected, offsets)
            return found + list(matches).index(False)
        found += piece
        at += len(whole)
        piece *= 4
    return found
