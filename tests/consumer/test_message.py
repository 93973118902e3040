"""Messages decode what was recorded from official clients, and batches keep track of their acks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded_frames

from geminga.consumer.message import ConsumerOrigin, EntryAcks, Message, ReceivedEntry, indexes_of, place_of
from geminga.consumer.opening import EntryOpener
from geminga.consumer.settings import ConsumerSettings
from geminga.ids import MessageId
from geminga.wire.metadata import build_entry

TOPIC = "persistent://public/default/t"


def open_all(frame: Any, **settings: Any) -> list[Message]:
    opener = EntryOpener(ConsumerSettings(**settings), ConsumerOrigin(TOPIC, -1))
    entry = opener.open(frame, 0.0, 0).entry
    return [] if entry is None else [Message(entry, index) for index in indexes_of(entry)]


def test_recorded_messages_say_what_the_recording_says():
    compared = 0
    for recorded in recorded_frames("MESSAGE"):
        frame, decoded = recorded.frame, recorded.decoded
        metadata = decoded["metadata"]
        if "encryption_keys" in metadata or "chunk_id" in metadata or "marker_type" in metadata:
            continue
        messages = open_all(frame)
        expected = decoded.get("batch") or [{"metadata": metadata, "payload": decoded["payload"]}]
        if not frame.ack_set:
            assert len(messages) == len(expected)
        for message in messages:
            wanted = expected[max(place_of(message)[1], 0)]
            own = wanted["metadata"]
            assert message.partition_key() == own.get("partition_key", "")
            assert message.properties() == {p["key"]: p["value"] for p in own.get("properties", [])}
            assert message.event_timestamp() == int(own.get("event_time", 0))
            assert message.publish_timestamp() == int(metadata["publish_time"])
            assert message.producer_name() == metadata["producer_name"]
            assert message.redelivery_count() == frame.redelivery_count
            assert message.message_id().entry_id == frame.entry_id
            if isinstance(wanted["payload"], str) and "..." not in wanted["payload"]:
                text = wanted["payload"]
                data = bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()
                assert message.data() == data
                assert message.size_bytes() == len(data)
            compared += 1
    assert compared > 60


def test_everything_about_a_batched_message(make):
    body = make.body(
        [b"one", b"two"], partition_key="k", ordering_key=b"\xff", properties={"a": "b"}, event_time=5
    )
    metadata = make.metadata(
        num_messages_in_batch=2, sequence_id=40, schema_version=b"\x00\x01", replicated_from="r"
    )
    frame = make.frame(build_entry(metadata.SerializeToString(), body), 9, redelivery_count=3)
    first, second = open_all(frame)
    assert (first.data(), second.data()) == (b"one", b"two")
    assert second.value() == b"two"
    assert second.partition_key() == "k"
    assert second.has_partition_key()
    assert not second.partition_key_is_base64()
    assert second.ordering_key() == "\udcff"
    assert second.properties() == {"a": "b"}
    assert second.event_timestamp() == 5
    assert second.publish_timestamp() == make.now_ms
    assert second.message_id() == MessageId(-1, 7, 9, 1)
    assert second.message_id().batch_size == 2
    assert second.message_id().topic == TOPIC
    assert second.topic_name() == TOPIC
    assert second.redelivery_count() == 3
    assert second.schema_version() == "\x00\x01"
    assert second.producer_name() == "p"
    assert second.sequence_id() == 1
    assert second.replicated_from() == "r"
    assert not second.has_null_value()
    assert second.encryption_context() is None
    assert "(7,9,-1,1)" in repr(second)


def test_a_single_message(make):
    (message,) = open_all(make.frame(make.single(b"x", sequence_id=12, null_value=True)))
    assert message.message_id() == MessageId(-1, 7, 0, -1)
    assert message.message_id().batch_size == 0
    assert message.sequence_id() == 12
    assert message.has_null_value()
    assert not message.has_partition_key()
    assert message.partition_key() == ""


def test_text_that_is_no_text(make):
    entry = make.single(b"x", partition_key="k")
    assert entry.count(b"\x32\x01k") == 1
    metadata = make.metadata(partition_key="k").SerializeToString().replace(b"\x32\x01k", b"\x32\x01\xff")
    (message,) = open_all(make.frame(build_entry(metadata, b"x")))
    assert message.partition_key() == "\ufffd"


def test_schemas_decode_the_value(make):
    class Upper:
        def decode(self, data: bytes) -> str:
            return data.decode().upper()

    class WithMessage(Upper):
        def decode_message(self, message: Message) -> tuple[str, bytes]:
            return ("message", message.data())

    for schema, value in ((None, b"x"), (Upper(), "X"), (WithMessage(), ("message", b"x"))):
        opener = EntryOpener(ConsumerSettings(), ConsumerOrigin(TOPIC, -1, schema))
        entry = opener.open(make.frame(make.single(b"x")), 0.0, 0).entry
        assert entry is not None
        assert Message(entry, indexes_of(entry)[0]).value() == value


def test_ids_of_partitions_and_chunks():
    entry = ReceivedEntry(ConsumerOrigin(TOPIC, 3), 5, 9, None, chunk_ids=[(5, 6), (5, 9)])
    assert entry.message_id(-1) == MessageId(3, 5, 9, -1)
    assert entry.message_id(-1).first_chunk == MessageId(3, 5, 6)


@pytest.mark.parametrize(
    ("acked", "size", "words"),
    [
        ([1], 5, [29]),
        ([1, 3], 5, [21]),
        (list(range(66)), 70, [0, 60]),
        ([], 64, [-1]),
        (list(range(5)), 5, []),
    ],
)
def test_bit_sets_as_java_writes_them(acked, size, words):
    acks = EntryAcks(size)
    for index in acked:
        acks.settle(index)
    assert acks.ack_set() == words
    assert acks.remaining == size - len(acked)


@given(st.integers(1, 70), st.lists(st.tuples(st.booleans(), st.integers(-2, 72)), max_size=40))
def test_acks_of_a_batch_against_a_set(size, steps):
    acks = EntryAcks(size)
    left = set(range(size))
    for through, index in steps:
        if through:
            left -= set(range(index + 1))
            assert acks.settle_through(index) == (not left)
        else:
            before = set(left)
            left.discard(index)
            assert acks.settle(index) == (bool(before) and not left and before != left)
        assert acks.remaining == len(left)
        assert {i for i, flag in enumerate(acks.flags) if flag} == left
