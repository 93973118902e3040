"""Answers have every field that official clients look for, byte for byte where recordings show it."""

from geminga.broker.commands import answers
from geminga.wire.frames import FrameDecoder
from geminga.wire.proto import pulsar_wire_pb2 as pb

U64 = (1 << 64) - 1


def body(data: bytes) -> pb.BaseCommand:
    [frame] = FrameDecoder().feed(data)
    return frame.command


def test_ping_and_pong_equal_the_recorded_bytes():
    assert answers.PING.hex() == "00000009000000050812920100"
    assert answers.PONG.hex() == "000000090000000508139a0100"


def test_a_partition_answer_equals_the_recorded_bytes():
    expected = "00000017000000130816b2010e080010be9aa6b4a3d9c3c51c1800"
    assert answers.partitions(2056753916485930302, 0).hex() == expected


def test_required_fields_are_there_even_when_zero():
    for data in (
        answers.success(0),
        answers.error(0, 0, ""),
        answers.send_error(0, 0, 0, ""),
        answers.partitions_failed(0, pb.TopicNotFound, ""),
        answers.lookup_failed(0, pb.TopicNotFound, ""),
        answers.schema_failed(0, pb.TopicNotFound, ""),
        answers.schema_refused(0, pb.IncompatibleSchema, ""),
        answers.watch_success(0, 0, (), "00000000"),
        answers.watch_update(0, (), (), "00000000"),
        answers.ack_response(0, 0),
        answers.reached_end_of_topic(0),
        answers.active_consumer_change(0, False),
    ):
        assert body(data).IsInitialized()
    assert body(answers.partitions_failed(0, pb.TopicNotFound, "")).partitionMetadataResponse.HasField(
        "message"
    )


def test_unrequested_close_commands_have_the_highest_request_id():
    assert body(answers.close_producer(3)).close_producer.request_id == U64
    assert body(answers.close_consumer(3)).close_consumer.request_id == U64


def test_producer_success_has_the_fields_that_clients_need():
    data = answers.producer_success(
        5, "n", last_sequence_id=-1, schema_version=b"", topic_epoch=None, ready=True
    )
    found = body(data).producer_success
    assert all(found.HasField(each) for each in ("last_sequence_id", "schema_version", "producer_ready"))
    assert not found.HasField("topic_epoch")
    data = answers.producer_success(
        5, "n", last_sequence_id=4, schema_version=b"x", topic_epoch=0, ready=False
    )
    found = body(data).producer_success
    assert (found.topic_epoch, found.producer_ready, found.last_sequence_id) == (0, False, 4)


def test_minus_one_is_sent_as_the_highest_unsigned_number():
    found = body(answers.last_message_id(1, (-1, -1), -1, -1, (4, -1))).getLastMessageIdResponse
    assert (found.last_message_id.ledgerId, found.last_message_id.entryId) == (U64, U64)
    assert found.consumer_mark_delete_position.entryId == U64


def test_a_failed_acknowledgement_is_answered_with_the_error():
    found = body(answers.ack_response(1, 2, (pb.PersistenceError, "disk"))).ackResponse
    assert (found.error, found.message) == (pb.PersistenceError, "disk")
