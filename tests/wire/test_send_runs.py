"""Runs of SENDs: the decoder that finds them against the one that does not, and their receipts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_runs import singly

from geminga.errors import ProtocolError
from geminga.wire import send_runs
from geminga.wire.batch import metadata_fields
from geminga.wire.broker_frames import BrokerFrameDecoder
from geminga.wire.frames import (
    ENTRY_COPY_BYTES_MAX,
    FrameDecoder,
    encode_command,
    encode_send,
    encode_send_receipt,
)
from geminga.wire.metadata import build_entry
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun, _shape, encode_send_receipts, encode_sends
from geminga.wire.varint import varint

ENTRY = build_entry(b"\x0a\x01p\x10\x00\x18\x01", b"payload")
PING = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))


def send(sequence_id: int, entry: bytes = ENTRY, *, producer_id: int = 1, messages: int = 1) -> bytes:
    return encode_send(producer_id, sequence_id, messages, None, len(entry)) + entry


@pytest.mark.parametrize("first", [0, 120, 16_300, 20_000, (1 << 21) - 60, 1 << 40, (1 << 63) - 200])
def test_sends_that_follow_each_other_are_a_run(first):
    data = b"".join(send(first + n, ENTRY + bytes(n % 3)) for n in range(128))
    frames = BrokerFrameDecoder().feed(data)
    assert singly(frames) == singly(FrameDecoder().feed(data))
    # The frame's own bytes change where the number becomes longer, and nowhere else.
    assert len(frames) <= 2
    assert all(isinstance(frame, SendRun) and type(frame.sequence_ids) is range for frame in frames)


def test_any_difference_ends_a_run():
    others = [
        PING,
        send(7, messages=3),
        send(7, producer_id=2),
        send(7, bytes(ENTRY_COPY_BYTES_MAX + 1)),
        encode_send(1, 7, 1, None, len(ENTRY), is_chunk=True) + ENTRY,
        encode_send(1, 7, 1, 7, len(ENTRY)) + ENTRY,
        encode_send(1, 7, 1, None, len(ENTRY), transaction=(1, 1)) + ENTRY,
    ]
    for other in others:
        data = b"".join([send(5), send(6), other, send(8), send(9)])
        frames = BrokerFrameDecoder().feed(data)
        assert [isinstance(frame, SendRun) for frame in frames] == [True, False, True]
        assert singly(frames) == singly(FrameDecoder().feed(data))


def test_sends_with_gaps_or_malformed_sequence_ids_decode_as_without_runs():
    data = b"".join(map(send, [100, 101, 90, 90, 91, 3]))
    frames = BrokerFrameDecoder().feed(data)
    assert [isinstance(frame, SendRun) for frame in frames] == [True, False, True, False]
    assert singly(frames) == singly(FrameDecoder().feed(data))
    # A sequence id of two bytes that needs one, and one that does not end.
    for number in (b"\x85\x00", b"\x85\x85"):
        data = send(300) + send(301) + send(302).replace(b"\xae\x02", number) + send(303)
        singles: list[Any] = []
        runs: list[Any] = []
        for found, decoder in ((singles, FrameDecoder()), (runs, BrokerFrameDecoder())):
            try:
                found.extend(singly(decoder.feed(data)))
                found.append(decoder.error is None)
            except ProtocolError:
                found.append("error")
        assert runs == singles


@pytest.mark.parametrize("step", [0, 10, -1])
def test_ids_that_do_not_follow_each_other_cost_a_look_a_frame(step, monkeypatch):
    looks = 0

    class Counting:
        def __init__(self, head_size: int, number_size: int) -> None:
            self._shape = _shape(head_size, number_size)
            self.size = self._shape.size

        def unpack_from(self, data: bytes, at: int) -> tuple[Any, ...]:
            nonlocal looks
            looks += 1
            return self._shape.unpack_from(data, at)

    monkeypatch.setattr(send_runs, "_shape", Counting)
    data = b"".join(send(5000 + n * step) for n in range(1000))
    assert len(BrokerFrameDecoder().feed(data)) == 1000
    assert looks <= 1000


def test_frames_max_counts_the_sends_of_a_run():
    decoder = BrokerFrameDecoder()
    data = b"".join(send(n) for n in range(100))
    found = decoder.feed(data, 30)
    assert len(singly(found)) == 30
    assert decoder.unread_size == len(data) * 70 // 100
    while decoder.unread_size:
        found += decoder.feed(b"", 1)
    assert singly(found) == singly(FrameDecoder().feed(data))


@given(st.data())
def test_any_frames_in_any_pieces(data):
    chance = data.draw(st.randoms(use_true_random=False))
    stream, sequence_id = b"", chance.choice((0, 100, 16_380, 1 << 20))
    for _ in range(chance.randint(1, 60)):
        sequence_id += chance.choice((1, 1, 1, 1, 1, 0, 5, 20_000))
        entry = ENTRY + bytes(chance.choice((0, 0, 0, 1, 5000)))
        stream += chance.choice(
            (send(sequence_id, entry),) * 8
            + (send(sequence_id, messages=2), PING, send(sequence_id, producer_id=200))
        )
    expected = singly(FrameDecoder().feed(stream))
    decoder, found, position = BrokerFrameDecoder(), [], 0
    while position < len(stream) or decoder.unread_size:
        size = chance.choice((1, 50, 700, 100_000))
        found += decoder.feed(stream[position : position + size], chance.choice((1, 3, 1000)))
        position += size
    assert singly(found) == expected
    assert decoder.pending_size == 0


def test_a_run_is_intact_when_every_entry_is():
    def run(*entries: bytes) -> SendRun:
        return SendRun(1, range(len(entries)), list(entries))

    assert run(ENTRY, ENTRY + b"", build_entry(b"m", b"")).is_intact
    for index in range(len(ENTRY)):
        flipped = ENTRY[:index] + bytes((ENTRY[index] ^ 1,)) + ENTRY[index + 1 :]
        assert not run(ENTRY, flipped, ENTRY).is_intact
    assert not run(ENTRY, ENTRY[:5]).is_intact
    assert not run(ENTRY, b"").is_intact
    assert not run(b"\x00\x00\x00\x02\x00\x00").is_intact


@given(
    st.integers(0, 1 << 40),
    st.one_of(st.integers(0, 40_000), st.integers(0, 1 << 62)),
    st.integers(0, 1 << 40),
    st.one_of(st.integers(0, 60_000), st.integers(0, 1 << 40)),
    st.integers(1, 300),
)
def test_receipts_are_those_of_each(producer_id, first, ledger_id, first_entry_id, count):
    ids = range(first, first + count)
    expected = [
        encode_send_receipt(producer_id, sequence_id, None, ledger_id, first_entry_id + index)
        for index, sequence_id in enumerate(ids)
    ]
    assert encode_send_receipts(producer_id, ids, ledger_id, first_entry_id) == b"".join(expected)


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.sampled_from(["", "k", "another", "k" * 127, "k" * 200]),
            st.sampled_from([(), (("a", "b"),), (("a", "b"), ("", "v" * 200))]),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0, 100, 127, 16_370, 1 << 21, 1 << 40]),
    st.sampled_from([0, 1, 200]),
    st.sampled_from(["p", "a" * 130]),
    st.sampled_from([b"", b"\x01" * 8]),
)
def test_frames_of_a_run_are_those_of_its_messages(messages, first, producer_id, name, version):
    from geminga.producer.message import simple_message
    from geminga.producer.operation import SendOperation, name_field, schema_version_field

    producer_name, schema = name_field(name), schema_version_field(version)
    singles = bytearray()
    for index, (payload, key, properties) in enumerate(messages):
        operation = SendOperation(
            [payload], [None], 1, sequence_id=first + index, highest_sequence_id=first + index,
            size=len(payload), permits=1, opened_at=0.0, deadline=0.0, is_batch=False,
            messages={0: simple_message(payload, key, properties)} if key else None,
        )  # fmt: skip
        for piece in operation.frame(producer_id, producer_name, 1_700_000_000_000, 1 << 20, schema):
            singles += piece
    payloads = [payload for payload, _, _ in messages]
    fields = None
    if any(key for _, key, _ in messages):
        fields = metadata_fields(
            b"\x22", b"\x32", [simple_message(b"", key, each) if key else None for _, key, each in messages]
        )
        for index, payload in enumerate(payloads):
            fields[index] += b"" if payload or not fields[index] else b"\x48\0"  # the size of a deletion
    time = b"\x18" + varint(1_700_000_000_000)
    run = encode_sends(producer_id, first, payloads, fields, producer_name + b"\x10", time, schema)
    assert run == bytes(singles)


@pytest.mark.parametrize("left_out", [1, 4, 11, None])
def test_a_send_that_ends_inside_its_command_is_no_part_of_a_run(left_out):
    """Once, such a send was decoded as one without an entry, and an empty entry was stored."""
    head = encode_send(1, 3, 1, None, 0)
    total = 0 if left_out is None else len(head) - 4 - left_out
    data = send(1) + send(2) + total.to_bytes(4, "big") + head[4:] + send(4)
    plain, reading = FrameDecoder(), BrokerFrameDecoder()
    found = reading.feed(data)
    assert singly(found) == singly(plain.feed(data))
    assert len(singly(found)) == 2
    assert isinstance(reading.error, ProtocolError)
    assert str(reading.error) == str(plain.error)
