import json

import pytest

from geminga import schema
from geminga.errors import CorruptPayload
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_round_trip():
    codec = schema.ProtobufNativeSchema(pb.MessageIdData)
    place = pb.MessageIdData(ledgerId=1, entryId=2)
    assert codec.decode(codec.encode(place)) == place
    assert str(codec) == "ProtobufNativeSchema(MessageIdData)"
    with pytest.raises(TypeError):
        codec.encode(b"bytes")
    with pytest.raises(CorruptPayload, match="MessageIdData"):
        codec.decode(b"\xff\xff")


def test_definition_is_pulsar_clients():
    info = schema.ProtobufNativeSchema(pb.MessageIdData).schema_info()
    assert info.type == 20
    definition = json.loads(info.data)
    assert definition["rootMessageTypeName"] == pb.MessageIdData.DESCRIPTOR.full_name
    theirs = pytest.importorskip("pulsar.schema")
    assert info.data.decode() == theirs.ProtobufNativeSchema(pb.MessageIdData).schema_info().schema()


def test_only_message_classes():
    for wrong in (None, int, pb.MessageIdData()):
        with pytest.raises(TypeError):
            schema.ProtobufNativeSchema(wrong)
