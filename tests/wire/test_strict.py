"""Required fields and text, which protobuf does not check."""

import pytest

from geminga.errors import ProtocolError
from geminga.wire import strict
from geminga.wire.proto import pulsar_wire_pb2 as pb


def test_excerpt_is_bounded():
    assert strict.excerpt(b"\x01\x02") == "0102"
    assert strict.excerpt(bytes(1000)) == "00" * 32 + "..."


def test_text_is_read_as_java_reads_it():
    metadata = pb.MessageMetadata.FromString(b"\x0a\x03a\xffb\x10\x00\x18\x00")
    assert strict.text(metadata.producer_name) == "a�b"
    assert strict.text("é") == "é"


def test_messages_that_hold_text():
    assert strict.holds_text(pb.CommandSubscribe.DESCRIPTOR)
    assert strict.holds_text(pb.Schema.DESCRIPTOR)
    assert not strict.holds_text(pb.CommandFlow.DESCRIPTOR)
    # MessageIdData holds itself.
    assert not strict.holds_text(pb.MessageIdData.DESCRIPTOR)


def test_check_text_looks_inside():
    good = pb.CommandProducer(topic="é", producer_id=1, request_id=2)
    good.metadata.add(key="k", value="v")
    strict.check_text(good, "producer", ProtocolError)
    bad = pb.CommandProducer.FromString(good.SerializeToString().replace(b"\x12\x01v", b"\x12\x01\xff"))
    with pytest.raises(ProtocolError, match=r"producer\.metadata\.value is not UTF-8 text: ff"):
        strict.check_text(bad, "producer", ProtocolError)
