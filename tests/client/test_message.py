import pytest
from entries import encode_single_metadata

from geminga import Message, MessageBatch, MessageId
from geminga.errors import CorruptPayload
from geminga.wire.batch import append_full_message, encode_plain_batch


def test_a_batch_payload_at_hand():
    payload = encode_plain_batch([b"a", b"bb"], 5)
    place = MessageId(2, 3, 4)
    first, second = MessageBatch().with_message_id(place).parse_from(payload, 2)
    assert isinstance(first, Message)
    assert (first.data(), second.data()) == (b"a", b"bb")
    assert second.message_id() == MessageId(2, 3, 4, 1)
    assert second.sequence_id() == 6


def test_messages_compacted_out_are_skipped():
    pieces: list[bytes] = []
    for removed in (False, True):
        append_full_message(pieces, b"x", encode_single_metadata(1, compacted_out=removed))
    assert [m.message_id().batch_index for m in MessageBatch().parse_from(b"".join(pieces), 2)] == [0]


def test_refusals():
    with pytest.raises(CorruptPayload):
        MessageBatch().parse_from(b"garbage", 1)
    with pytest.raises(TypeError, match="msg_id"):
        MessageBatch().with_message_id("5:6")
