"""Commands that protobuf reads and the protocol does not know."""

from __future__ import annotations

import pytest

from geminga.errors import ProtocolError
from geminga.wire.commands import parse_command, type_name
from geminga.wire.proto import pulsar_wire_pb2 as pb


def refusal(data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse_command(data)
    return str(caught.value)


def test_a_command_is_known_complete_and_has_its_body():
    flow = pb.BaseCommand(type=pb.BaseCommand.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=2))
    assert parse_command(flow.SerializeToString()) == flow
    assert type_name(flow.type) == "FLOW"
    assert "a command of the unknown type 99" in refusal(b"\x08\x63")
    assert "a command without a type" in refusal(b"")
    assert "a FLOW command came without its body" in refusal(b"\x08\x0b")
    assert "a FLOW command lacks flow.messagePermits" in refusal(b"\x08\x0b\x5a\x02\x08\x01")
    assert "no protobuf" in refusal(b"\xff")


def test_a_body_alone_is_no_command():
    connect = pb.BaseCommand(type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="x"))
    data = connect.SerializeToString()
    assert parse_command(data).connect.client_version == "x"
    assert "a command without a type" in refusal(data[2:])
