"""Runs of SEND_RECEIPTs: the decoder that finds them against the one that does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_runs import singly

from geminga.wire import client_frames
from geminga.wire.client_frames import ClientFrameDecoder, ReceiptRun
from geminga.wire.frames import Frame, FrameDecoder, encode_command, encode_send_receipt
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.varint import varints

PING = encode_command(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))


def receipt(
    sequence_id: int, entry_id: int, *, producer_id: int = 1, ledger_id: int = 7, highest: int | None = None
) -> bytes:
    return encode_send_receipt(producer_id, sequence_id, highest, ledger_id, entry_id)


@pytest.mark.parametrize("highest", [None, -1, 5])
@pytest.mark.parametrize("first", [0, 120, 16_300, 20_000, (1 << 21) - 60, 1 << 40])
@pytest.mark.parametrize("entry", [0, 100, 16_380, 1 << 30])
def test_receipts_that_follow_each_other_are_a_run(first, entry, highest):
    data = b"".join(receipt(first + n, entry + n, highest=highest) for n in range(100))
    frames = ClientFrameDecoder().feed(data)
    assert singly(frames) == singly(FrameDecoder().feed(data))
    assert len(frames) <= 3  # a frame's own bytes change where one of its numbers becomes longer


def test_any_difference_ends_a_run():
    others = [
        receipt(12, 13),  # an entry id is skipped
        receipt(13, 12),
        receipt(12, 12, ledger_id=8),
        receipt(12, 12, producer_id=2),
        receipt(12, 12, highest=12),
        receipt(-1, -1),
        encode_send_receipt(1, 12, None, -1, -1),  # a duplicate's
        PING,
    ]
    for other in others:
        data = b"".join([receipt(10, 10), receipt(11, 11), other, receipt(12, 12), receipt(13, 13)])
        frames = ClientFrameDecoder().feed(data)
        assert singly(frames) == singly(FrameDecoder().feed(data))
        assert isinstance(frames[0], ReceiptRun)
        assert frames[0].count == 2


def test_receipts_of_duplicates_are_no_run():
    data = b"".join(encode_send_receipt(1, 12 + n, None, -1, -1) for n in range(5))
    assert not any(isinstance(frame, ReceiptRun) for frame in ClientFrameDecoder().feed(data))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.sampled_from([None, -1, 3])),
        max_size=60,
    ),
    st.integers(1, 60),
    st.sampled_from([0, 125, 16_380]),
)
def test_runs_keep_all_receipts(steps, cut, base):
    sequence_id = entry_id = base
    pieces = []
    for sequence_step, entry_step, producer_id, highest in steps:
        sequence_id += sequence_step
        entry_id += entry_step
        pieces.append(receipt(sequence_id, entry_id, producer_id=producer_id, highest=highest))
    data = b"".join(pieces)
    decoder, plain = ClientFrameDecoder(), FrameDecoder()
    found: list[Frame] = []
    for start in range(0, len(data), cut * 7):
        found += decoder.feed(data[start : start + cut * 7])
    assert singly(found) == singly(plain.feed(data))


def test_the_receipts_of_a_run_count_as_frames():
    data = b"".join(receipt(n, n) for n in range(10))
    decoder = ClientFrameDecoder()
    counts = []
    frames = decoder.feed(data, 4)
    while frames:
        counts.append(sum(f.count if isinstance(f, ReceiptRun) else 1 for f in frames))
        frames = decoder.feed(b"", 4)
    assert counts == [4, 4, 2]


def test_receipts_without_runs_cost_in_proportion_to_their_number(monkeypatch):
    compared = []

    def counted(first: int, count: int) -> list[bytes]:
        compared.append(count)
        return varints(first, count)

    monkeypatch.setattr(client_frames, "varints", counted)
    count = 10_000
    batches = b"".join(receipt(20_000 + n, 20_000 + n) for n in range(0, 10 * count, 10))
    frames = ClientFrameDecoder().feed(batches, count)
    assert len(frames) == count
    assert sum(compared) <= 16 * count
