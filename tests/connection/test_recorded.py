"""Recorded traffic of official brokers to official clients passes through the connection without an error."""

from collections import defaultdict

import pytest
from pieces import receive
from recorded import recorded_frames

from geminga.connection.authentication import Credentials
from geminga.connection.core import HANDLE_FRAMES, ClientConnection, ConnectionState, RequestAnswered
from geminga.connection.requests import ANSWERS
from geminga.errors import ServerReportedError
from geminga.wire.frames import FrameDecoder
from geminga.wire.proto import pulsar_wire_pb2 as pb


def conversations():
    found = defaultdict(list)
    for recorded in recorded_frames():
        if recorded.direction == "broker_to_client":
            found[f"{recorded.case}-{recorded.connection}"].append(recorded.data)
    return found


CONVERSATIONS = conversations()


def first_type(frames):
    return FrameDecoder().feed(frames[0])[0].type


@pytest.mark.parametrize(
    "name", [n for n, f in CONVERSATIONS.items() if first_type(f) == pb.BaseCommand.CONNECTED]
)
def test_recorded_conversations_are_handled(name):
    frames = CONVERSATIONS[name]
    connection = ClientConnection(Credentials("none", b""), now=0.0, peer="recorded")
    connection.start(0.0)
    expected = answered = handed_on = delivered = 0
    for data in frames:
        (frame,) = FrameDecoder().feed(data)
        answer = getattr(frame.command, ANSWERS[frame.type].name) if frame.type in ANSWERS else None
        if answer is not None and getattr(answer, "producer_ready", True):
            request_id = answer.request_id
            if connection.state is ConnectionState.READY:
                connection.request(pb.BaseCommand(type=pb.BaseCommand.PING, ping={}), request_id, 1e9)
                expected += 1
        handed_on += frame.type in HANDLE_FRAMES
        events = receive(connection, data, 1.0)
        answered += sum(isinstance(event, RequestAnswered) for event in events)
        delivered += sum(getattr(event, "type", None) in HANDLE_FRAMES for event in events)
    assert answered == expected
    assert delivered == handed_on


@pytest.mark.parametrize(
    "name", [n for n, f in CONVERSATIONS.items() if first_type(f) == pb.BaseCommand.ERROR]
)
def test_recorded_refusals_become_their_errors(name):
    connection = ClientConnection(Credentials("none", b""), now=0.0, peer="recorded")
    connection.start(0.0)
    with pytest.raises(ServerReportedError):
        receive(connection, CONVERSATIONS[name][0], 1.0)
