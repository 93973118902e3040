"""Frames read in the buffer that a transport writes to, against those of bytes that are kept."""

import random
from typing import Any

import entries
import pytest

from geminga.errors import FrameTooLarge
from geminga.wire.client_frames import READ_BYTES, ClientFrameDecoder
from geminga.wire.frames import FrameDecoder, encode_command, encode_message, encode_send_receipt
from geminga.wire.message_runs import MessageRun
from geminga.wire.proto import pulsar_wire_pb2 as pb


def message(entry_id: int, size: int, rng: random.Random) -> bytes:
    entry = entries.single_entry(rng.randbytes(size), sequence_id=entry_id)
    return encode_message(1, 7, entry_id, -1, len(entry)) + entry


def stream(rng: random.Random, sizes: list[int]) -> bytes:
    """Return frames of messages of these sizes in runs, of receipts and of other commands."""
    pieces, number = [], 0
    for _ in range(rng.randrange(1, 8)):
        kind, size = rng.random(), rng.choice(sizes)
        for _ in range(rng.randrange(1, 8)):
            number += 1
            if kind < 0.7:
                pieces.append(message(number, size, rng))
            elif kind < 0.9:
                pieces.append(encode_send_receipt(3, number, None, 9, number))
            else:
                pieces.append(encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing())))
    return b"".join(pieces)


def content(frames: list[Any]) -> list[Any]:
    """Return the frames one by one, and the columns of runs."""
    found: list[Any] = []
    for frame in frames:
        if isinstance(frame, MessageRun):
            columns = frame.columns()
            assert columns is not None
            assert {type(each) for column in columns for each in column} == {bytes}
        singles = frame.frames() if hasattr(frame, "frames") else [frame]
        found += [(type(each).__name__, each.command, each.entry) for each in singles]
    return found


def read_all(decoder: ClientFrameDecoder, data: bytes, piece_max: int, rng: random.Random) -> list[Any]:
    found: list[Any] = []
    start = 0
    while start < len(data):
        space = decoder.space()
        size = min(len(space), rng.randrange(1, piece_max + 1), len(data) - start)
        space[:size] = data[start : start + size]
        start += size
        frames = decoder.read(size)
        found += content(frames)
        kept = [frame.entry for frame in frames if frame.entry is not None]
        assert {type(entry) for entry in kept} <= {bytes}
    return found


@pytest.mark.parametrize("piece_max", [7, 5_000, READ_BYTES])
@pytest.mark.parametrize("seed", range(5))
def test_frames_are_those_of_kept_bytes(seed, piece_max):
    rng = random.Random(seed)
    sizes = [10, 300] if piece_max < 100 else [10, 300, 5_000, 10_000, 70_000]
    data = stream(rng, sizes)
    assert read_all(ClientFrameDecoder(), data, piece_max, rng) == content(FrameDecoder().feed(data))


def test_a_frame_larger_than_the_buffer_grows_it_until_it_was_read():
    rng = random.Random(1)
    data = message(1, 3 * READ_BYTES, rng) + message(2, 10, rng)
    decoder = ClientFrameDecoder()
    assert read_all(decoder, data, READ_BYTES, rng) == content(FrameDecoder().feed(data))
    assert len(decoder.space()) == READ_BYTES


def test_large_messages_that_arrive_together_are_a_run():
    rng = random.Random(1)
    data = b"".join(message(number, 10_000, rng) for number in range(20))
    decoder = ClientFrameDecoder()
    decoder.space()[: len(data)] = data
    (run,) = decoder.read(len(data))
    assert isinstance(run, MessageRun)
    assert len(run.entry_ids) == 20


def test_receipts_behind_a_large_message_are_a_run():
    rng = random.Random(1)
    receipts = [encode_send_receipt(3, number, None, 9, number) for number in range(50)]
    data = message(1, 10_000, rng) + b"".join(receipts)
    decoder = ClientFrameDecoder()
    decoder.space()[: len(data)] = data
    _, run = decoder.read(len(data))
    assert (type(run).__name__, run.count) == ("ReceiptRun", 50)


def test_a_frame_above_the_limit_is_refused_after_the_frames_before_it():
    rng = random.Random(1)
    data = message(1, 10_000, rng) + message(2, 30_000, rng)
    decoder = ClientFrameDecoder(max_frame_size=20_000)
    decoder.space()[: len(data)] = data
    (frame,) = decoder.read(len(data))
    assert frame.entry_id == 1
    assert isinstance(decoder.error, FrameTooLarge)
    with pytest.raises(FrameTooLarge):
        decoder.read(0)


def test_memory_for_an_announced_frame_grows_with_what_arrives_of_it():
    rng = random.Random(1)
    data = message(1, 19 * READ_BYTES, rng)
    decoder = ClientFrameDecoder(max_frame_size=1 << 30)
    decoder.space()[:4] = (1 << 29).to_bytes(4, "big")
    assert decoder.read(4) == []
    assert len(decoder.space()) < READ_BYTES
    decoder = ClientFrameDecoder()
    (found,) = read_all(decoder, data, READ_BYTES, rng)
    assert found[0] == "MessageFrame"
    assert len(decoder.space()) == READ_BYTES


def test_kept_messages_do_not_change_while_others_arrive():
    rng = random.Random(2)
    decoder = ClientFrameDecoder()
    kept: list[Any] = []
    for _ in range(3):
        data = b"".join(message(number, 10_000, rng) for number in range(20))
        decoder.space()[: len(data)] = data
        (run,) = decoder.read(len(data))
        kept.append(
            (run.columns(), [frame.entry for frame in run.frames()], content(FrameDecoder().feed(data)))
        )
    decoder.space()[:] = bytes(len(decoder.space()))
    for (metadata, payloads), entry_bytes, expected in kept:
        assert entry_bytes == [entry for _, _, entry in expected]
        whole = zip(entry_bytes, metadata, payloads, strict=True)
        assert all(entry[10:] == head + payload for entry, head, payload in whole)
