"""The broker's decoder: clients' frames, with SENDs in runs."""

from geminga.wire.frames import Frame, FrameDecoder, SendFrame
from geminga.wire.send_runs import read_run


class BrokerFrameDecoder(FrameDecoder):
    """A `FrameDecoder` that returns consecutive SENDs as `SendRun`.

    A single SEND stays a `SendFrame`. ``frames_max`` counts the SENDs of a run.
    """

    __slots__ = ()

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
