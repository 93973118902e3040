"""Frames: recorded ones in any pieces, their fields, bad ones."""

import random
import struct
import tracemalloc
from typing import Any

import pytest
from cases import cases
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from geminga import errors
from geminga.errors import FrameTooLarge, ProtocolError
from geminga.wire import frames
from geminga.wire.frames import CommandFrame, Frame, FrameDecoder
from geminga.wire.proto import pulsar_wire_pb2 as pb

SEND_FIELDS = (
    "producer_id", "sequence_id", "num_messages", "highest_sequence_id", "is_chunk",
    "txnid_least_bits", "txnid_most_bits", "entry",
)  # fmt: skip
RECEIPT_FIELDS = ("producer_id", "sequence_id", "highest_sequence_id", "ledger_id", "entry_id", "entry")
MESSAGE_FIELDS = (
    "consumer_id", "ledger_id", "entry_id", "partition", "redelivery_count", "ack_set", "consumer_epoch",
    "entry",
)  # fmt: skip
FIELDS = {frames.SEND: SEND_FIELDS, frames.SEND_RECEIPT: RECEIPT_FIELDS, frames.MESSAGE: MESSAGE_FIELDS}


def content(frame: Frame) -> dict[str, Any]:
    """Return all fields of a frame, for comparison."""
    if isinstance(frame, CommandFrame):
        return {"type": frame.type, "command": frame.command, "entry": frame.entry}
    values = {name: getattr(frame, name) for name in FIELDS[frame.type]}
    return {"type": frame.type} | values


def by_protobuf(data: bytes) -> dict[str, Any]:
    return content(frames._read_frame(data, 0, len(data)))


@pytest.fixture(scope="module")
def stream(recorded):
    return b"".join(record.data for record in recorded)


@pytest.fixture(scope="module")
def stream_content(recorded):
    return [by_protobuf(record.data) for record in recorded]


# --- recorded frames ---
def test_recorded_frames_decode(recorded):
    assert len(recorded) == 774
    for record in recorded:
        decoder = FrameDecoder()
        (frame,) = decoder.feed(record.data)
        assert pb.BaseCommand.Type.Name(frame.type) == record.decoded["command"]["type"]
        assert frame.entry == record.entry
        assert decoder.error is None
        assert decoder.pending_size == 0


def test_recorded_commands_serialise_to_the_same_bytes(recorded):
    for record in recorded:
        command = frames.parse_command(record.command_data)
        assert (command.SerializeToString() == record.command_data) != record.patched
        if record.entry is None and not record.patched:
            assert frames.encode_command(command) == record.data


@pytest.mark.parametrize("seed", range(8))
def test_any_split(stream, stream_content, seed):
    chance = random.Random(seed)
    largest = chance.choice((5, 50, 500, 20_000))
    decoder = FrameDecoder()
    found: list[Frame] = []
    position = 0
    while position < len(stream):
        size = chance.randint(0, largest)
        piece: Any = stream[position : position + size]
        found += decoder.feed(chance.choice((bytes, bytearray, memoryview))(piece))
        position += size
    assert [content(frame) for frame in found] == stream_content


@pytest.mark.parametrize("seed", range(8))
def test_a_few_frames_at_a_time(stream, stream_content, seed):
    chance = random.Random(seed)
    decoder = FrameDecoder()
    found: list[dict[str, Any]] = []
    place = 0
    while place < len(stream) or decoder.unread_size:
        # The peer may send on, or not, while frames are left.
        piece = b""
        if not decoder.unread_size or chance.random() < 0.3:
            piece = stream[place : place + chance.choice((1, 9, 100, 5_000, 100_000))]
            place += len(piece)
        most = chance.choice((1, 2, 7))
        read = decoder.feed(piece, most)
        assert len(read) <= most
        found += [content(frame) for frame in read]
    assert found == stream_content
    assert decoder.pending_size == 0


@given(st.data())
def test_any_command_survives(messages_of, data):
    bodies = [field for field in pb.BaseCommand.DESCRIPTOR.fields if field.message_type is not None]
    field = data.draw(st.sampled_from(bodies))
    command = pb.BaseCommand(type=field.number)
    getattr(command, field.name).CopyFrom(data.draw(messages_of(GetMessageClass(field.message_type))))
    (frame,) = FrameDecoder().feed(frames.encode_command(command))
    assert frame.type == field.number
    if isinstance(frame, CommandFrame):
        assert frame.command == command


# --- contents of a frame ---
def test_each_kind_of_frame_has_its_type_and_entry():
    entry = b"entry"
    data = (
        frames.encode_send(1, 2, 3, 4, 5) + entry
        + frames.encode_send_receipt(1, 2, None, -1, -1)
        + frames.encode_message(1, 2, 3, -1, 5) + entry
        + frames.encode_flow(1, 2)
    )  # fmt: skip
    send, receipt, message, flow = FrameDecoder().feed(data)
    assert [send.type, receipt.type, message.type, flow.type] == [6, 7, 9, 11]
    assert [send.entry, receipt.entry, message.entry, flow.entry] == [entry, None, entry, None]
    assert repr(send) == "SendFrame(SEND, entry of 5 bytes)"
    assert repr(flow) == "CommandFrame(FLOW)"
    assert content(receipt)["highest_sequence_id"] == 0
    assert content(receipt)["ledger_id"] == -1


def test_small_entries_are_copied_and_large_ones_are_views():
    limit = frames.ENTRY_COPY_BYTES_MAX
    for size, kind in ((limit, bytes), (limit + 1, memoryview)):
        entry = bytes(size)
        for head in (frames.encode_send(1, 2, 1, None, size), frames.encode_message(1, 2, 3, -1, size)):
            data = head + entry
            (frame,) = FrameDecoder().feed(data)
            assert type(frame.entry) is kind
            assert frame.entry == entry
            if kind is memoryview:
                assert isinstance(frame.entry, memoryview)
                assert frame.entry.obj is data


def test_a_buffer_that_is_reused_by_its_owner():
    entry = b"x" * 10_000
    buffer = bytearray(frames.encode_send(1, 2, 1, None, len(entry)) + entry)
    (frame,) = FrameDecoder().feed(buffer)
    buffer[:] = bytes(len(buffer))
    assert frame.entry == entry


def test_a_five_mebibyte_frame_in_many_reads():
    size = frames.MAX_MESSAGE_SIZE
    data = frames.encode_send(1, 2, 1, None, size) + bytes(size) + frames.encode_flow(3, 4)
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        found: list[Frame] = []
        for start in range(0, len(data), 65536):
            found += decoder.feed(data[start : start + 65536])
            assert decoder.pending_size <= decoder.max_frame_size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [frame.type for frame in found] == [6, 11]
    entry = found[0].entry
    assert isinstance(entry, memoryview)
    assert entry.readonly
    assert entry == bytes(size)
    assert peak < 2 * size


# --- bad frames ---
PING = bytes.fromhex("00000009000000050812920100")


@pytest.mark.parametrize(("data", "error", "words"), cases("bad_frames"))
def test_bad_frames(data, error, words):
    error = getattr(errors, error)
    decoder = FrameDecoder()
    with pytest.raises(error, match=words) as caught:
        decoder.feed(bytes.fromhex(data))
    assert type(caught.value) is error
    assert decoder.error is caught.value
    assert decoder.pending_size == 0
    with pytest.raises(error, match=words):
        decoder.feed(PING)


def test_frames_before_the_bad_one_are_returned():
    decoder = FrameDecoder()
    (frame,) = decoder.feed(PING + bytes(4))
    assert frame.type == pb.BaseCommand.PING
    assert isinstance(decoder.error, ProtocolError)
    with pytest.raises(ProtocolError, match="announces 0 bytes"):
        decoder.feed(b"")


def test_the_limit_counts_the_whole_frame_and_can_be_set():
    decoder = FrameDecoder(max_frame_size=100)
    head = frames.encode_send(1, 2, 1, None, 0)
    fitting = frames.encode_send(1, 2, 1, None, 100 - len(head)) + bytes(100 - len(head))
    assert len(decoder.feed(fitting)) == 1
    larger = frames.encode_send(1, 2, 1, None, 101 - len(head)) + bytes(101 - len(head))
    with pytest.raises(FrameTooLarge, match="announces 101 bytes"):
        FrameDecoder(max_frame_size=100).feed(larger)
    decoder.max_frame_size = 101
    assert len(decoder.feed(larger)) == 1


def test_nested_messages_without_end_are_refused():
    inner = b"\x08\x01\x10\x01"
    for _ in range(2000):
        if len(inner) > 15_000:
            break
        size = len(inner)
        inner = b"\x08\x01\x10\x01\x3a" + bytes((size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + inner
    command = pb.BaseCommand(type=pb.BaseCommand.SEEK)
    command.seek.consumer_id = command.seek.request_id = 1
    tail = b"\x1a" + bytes((len(inner) & 127 | 128, len(inner) >> 7 & 127 | 128, len(inner) >> 14)) + inner
    body = b"\x08\x01\x10\x01" + tail
    size = bytes((len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14))
    data = b"\x08\x1c\xe2\x01" + size + body
    with pytest.raises(ProtocolError, match="no protobuf"):
        frames.parse_command(data)


def test_text_that_is_not_utf_8_is_refused():
    command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = "ab", 1
    data = frames.encode_command(command).replace(b"ab", b"a\xff")
    with pytest.raises(ProtocolError, match=r"lookupTopic.topic is not UTF-8 text: 61ff"):
        FrameDecoder().feed(data)


# --- fuzz ---
def feed_all(data: bytes, chance: random.Random) -> None:
    """Feed in random pieces; anything but ProtocolError is a failure of the test."""
    decoder = FrameDecoder()
    position = 0
    try:
        while position < len(data):
            size = chance.choice((1, 7, 100, 1000))
            for frame in decoder.feed(data[position : position + size]):
                repr(frame)
            position += size
    except ProtocolError:
        assert str(decoder.error)
    assert decoder.pending_size <= decoder.max_frame_size


@pytest.mark.parametrize("seed", range(10))
def test_mutated_recorded_frames_raise_nothing_else(recorded, seed):
    chance = random.Random(seed)
    for record in recorded:
        data = bytearray(record.data)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(min(len(data), 120))
            what = chance.randrange(4)
            if what == 0:
                data[place] ^= 1 << chance.randrange(8)
            elif what == 1:
                data[place] = chance.randrange(256)
            elif what == 2:
                del data[place]
            else:
                data.insert(place, chance.randrange(256))
        if chance.random() < 0.5:
            # Right sizes let the damage reach the command.
            command_size = min(int.from_bytes(data[4:8], "big"), max(len(data) - 8, 0))
            data[:8] = struct.pack(">II", max(len(data) - 4, 0), command_size)
        feed_all(bytes(data), chance)
