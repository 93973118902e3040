"""Fast readers for the commands that brokers receive most: runs of SENDs, and ACKs of single entries."""

from __future__ import annotations

from typing import ClassVar

from geminga.wire.acks import ACK_HEAD, read_ack
from geminga.wire.frames import HOT_READERS, Frame, FrameDecoder, SendFrame
from geminga.wire.send_runs import read_run


class BrokerFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that returns consecutive SENDs as `SendRun`, and plain ACKs as `AckFrame`.

    A single SEND stays a `SendFrame`. ``frames_max`` counts the SENDs of a run.
    """

    __slots__ = ()

    _readers: ClassVar = {**HOT_READERS, ACK_HEAD: read_ack}

    def _follow(
        self, first: Frame, data: bytes, start: int, frame_end: int, frames: list[Frame], room: int
    ) -> tuple[int, int]:
        if type(first) is not SendFrame or not room:
            return frame_end, 0
        run, end = read_run(first, data, start, frame_end, self.max_frame_size, room)
        if run is None:
            return frame_end, 0
        frames[-1] = run
        return end, len(run.entries) - 1
