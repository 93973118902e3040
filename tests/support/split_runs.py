"""Fields of decoded frames, however the decoder joined them to runs."""

from typing import Any

from geminga.wire.client_frames import ReceiptRun
from geminga.wire.frames import Frame, ReceiptFrame, SendFrame
from geminga.wire.send_runs import SendRun


def singly(frames: list[Frame]) -> list[tuple[Any, ...]]:
    """Return the fields of all frames, with runs split."""
    found: list[tuple[Any, ...]] = []
    for frame in frames:
        run = list(frame.frames()) if isinstance(frame, ReceiptRun | SendRun) else [frame]
        assert len(run) > 1 or run == [frame], "a run of one frame"
        for each in run:
            if isinstance(each, ReceiptFrame | SendFrame):
                found.append((each.producer_id, each.sequence_id, each.highest_sequence_id))
                if isinstance(each, ReceiptFrame):
                    found[-1] += (each.ledger_id, each.entry_id)
                else:
                    found[-1] += (each.num_messages, each.is_chunk, bytes(each.entry))
            else:
                found.append((each.type, each.command.SerializeToString(deterministic=True)))
    return found
