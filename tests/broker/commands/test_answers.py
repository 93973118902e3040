"""Answers have every field that official clients look for, byte for byte where recordings show it."""

from geminga.broker.commands import answers
from geminga.broker.commands.answers import frame
from geminga.broker.runtime.refusal import Refused
from geminga.wire.frames import FrameDecoder
from geminga.wire.proto import pulsar_wire_pb2 as pb


def body(data: bytes) -> pb.BaseCommand:
    [frame] = FrameDecoder().feed(data)
    return frame.command


def test_ping_and_pong_equal_the_recorded_bytes():
    assert answers.PING.hex() == "00000009000000050812920100"
    assert answers.PONG.hex() == "000000090000000508139a0100"


def test_a_partition_answer_equals_the_recorded_bytes():
    expected = "00000017000000130816b2010e080010be9aa6b4a3d9c3c51c1800"
    success = pb.CommandPartitionedTopicMetadataResponse.Success
    found = frame("partitionMetadataResponse", partitions=0, request_id=2056753916485930302, response=success)
    assert found.hex() == expected


def test_required_fields_are_there_even_when_zero():
    schemas = {"getSchemaResponse", "getOrCreateSchemaResponse"}
    for field in ("error", "partitionMetadataResponse", "lookupTopicResponse", *schemas):
        command = body(answers.refusal(field, 0, Refused(pb.TopicNotFound, "")))
        assert command.IsInitialized()
        assert getattr(command, field).HasField("error_message" if field in schemas else "message")


def test_values_of_zero_are_sent_and_none_is_left_out():
    found = body(
        frame("producer_success", request_id=5, producer_name="n", last_sequence_id=-1, schema_version=b"",
              topic_epoch=None, producer_ready=False)
    ).producer_success  # fmt: skip
    assert all(found.HasField(each) for each in ("last_sequence_id", "schema_version", "producer_ready"))
    assert not found.HasField("topic_epoch")
