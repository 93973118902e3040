"""The client's decoder: a broker's frames, with receipts and messages in runs."""

from __future__ import annotations

from geminga.wire.frames import Frame, FrameDecoder, MessageFrame, ReceiptFrame
from geminga.wire.message_runs import read_message_run
from geminga.wire.receipt_runs import read_receipt_run


class ClientFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that returns consecutive SEND_RECEIPTs as `ReceiptRun`, and MESSAGEs as `MessageRun`.

    A single one stays a `ReceiptFrame` or `MessageFrame`. ``frames_max`` counts the frames of a run.
    """

    __slots__ = ()

    def _follow(
        self, first: Frame, data: bytes, start: int, frame_end: int, frames: list[Frame], room: int
    ) -> tuple[int, int]:
        run: Frame | None = None
        end, count = frame_end, 1
        if type(first) is MessageFrame:
            messages, end = read_message_run(first, data, start, frame_end, self.max_frame_size, room)
            if messages is not None:
                run, count = messages, len(messages.entry_ids)
        elif type(first) is ReceiptFrame:
            receipts, end = read_receipt_run(first, data, start, frame_end, room)
            if receipts is not None:
                run, count = receipts, receipts.count
        if run is not None:
            frames[-1] = run
        return end, count - 1
