import json

import pytest

from geminga import schema
from geminga.errors import CorruptPayload
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_messages_are_encoded_and_decoded():
    codec = schema.ProtobufNativeSchema(pb.MessageIdData)
    place = pb.MessageIdData(ledgerId=1, entryId=2)
    assert codec.decode(codec.encode(place)) == place
    assert str(codec) == "ProtobufNativeSchema(MessageIdData)"
    with pytest.raises(TypeError):
        codec.encode(b"bytes")
    with pytest.raises(CorruptPayload, match="MessageIdData"):
        codec.decode(b"\xff\xff")


def test_definitions_equal_those_of_pulsar_client():
    info = schema.ProtobufNativeSchema(pb.MessageIdData).schema_info()
    assert info.type == 20
    definition = json.loads(info.data)
    assert definition["rootMessageTypeName"] == pb.MessageIdData.DESCRIPTOR.full_name
    theirs = pytest.importorskip("pulsar.schema")
    assert info.data.decode() == theirs.ProtobufNativeSchema(pb.MessageIdData).schema_info().schema()


def test_other_than_message_classes_are_refused():
    for wrong in (None, int, pb.MessageIdData()):
        with pytest.raises(TypeError):
            schema.ProtobufNativeSchema(wrong)
