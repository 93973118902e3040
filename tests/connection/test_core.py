"""The connection in virtual time: every state met with every input, and the conversations of framing.md."""

import itertools

import pytest
from pieces import receive
from scripted_broker import UNSOLICITED, command

from geminga import errors
from geminga.connection import core as connection_core
from geminga.connection.addresses import Address
from geminga.connection.authentication import REFRESH_CHALLENGE, Credentials
from geminga.connection.core import (
    OWNER_INPUTS,
    TRANSITIONS,
    ClientConnection,
    Connected,
    ConnectionInput,
    ConnectionState,
    CredentialsWanted,
    HandleClosed,
    RequestAnswered,
    RequestMustWait,
    RequestTimedOut,
    TopicMoved,
    WatchUpdate,
)
from geminga.wire.frames import (
    FRAME_PADDING,
    MAX_MESSAGE_SIZE,
    FrameDecoder,
    MessageFrame,
    ReceiptFrame,
    encode_command,
    encode_message,
    encode_send_receipt,
)
from geminga.wire.proto import pulsar_wire_pb2 as pb

NOW = 1000.0


def make(**arguments) -> ClientConnection:
    arguments.setdefault("now", NOW)
    arguments.setdefault("peer", "pulsar://broker:6650")
    return ClientConnection(Credentials("token", b"secret"), **arguments)


def encoded(*kind, **fields) -> bytes:
    return encode_command(command(*kind, **fields))


def connected(**values) -> bytes:
    values.setdefault("server_version", "test")
    return encoded(pb.BaseCommand.CONNECTED, "connected", **values)


def challenge(data: bytes = REFRESH_CHALLENGE) -> bytes:
    result = command(pb.BaseCommand.AUTH_CHALLENGE, "authChallenge")
    result.authChallenge.challenge.auth_method_name = "token"
    result.authChallenge.challenge.auth_data = data
    return encode_command(result)


PING = encoded(pb.BaseCommand.PING, "ping")
PONG = encoded(pb.BaseCommand.PONG, "pong")


def success(request_id: int) -> bytes:
    return encoded(pb.BaseCommand.SUCCESS, "success", request_id=request_id)


def refusal(code: int, message: str = "no") -> bytes:
    return encoded(pb.BaseCommand.ERROR, "error", request_id=UNSOLICITED, error=code, message=message)


def sent(connection: ClientConnection) -> list[pb.BaseCommand]:
    return [frame.command for frame in FrameDecoder().feed(b"".join(connection.take_output()))]


def ready(**arguments) -> ClientConnection:
    connection = make(**arguments)
    connection.start(NOW)
    receive(connection, connected(), NOW)
    connection.take_output()
    return connection


def in_state(state: ConnectionState) -> ClientConnection:
    connection = make()
    if state is ConnectionState.START:
        return connection
    connection.start(NOW)
    if state is ConnectionState.CHALLENGED:
        receive(connection, challenge(), NOW)
    elif state is ConnectionState.READY:
        receive(connection, connected(), NOW)
    elif state is ConnectionState.CLOSED:
        connection.close()
    connection.take_output()
    assert connection.state is state
    return connection


def lookup_command(request_id: int) -> pb.BaseCommand:
    return command(pb.BaseCommand.LOOKUP, "lookupTopic", topic="t", request_id=request_id)


INPUTS = {
    ConnectionInput.OPENED: lambda c: c.start(NOW),
    ConnectionInput.CREDENTIALS: lambda c: c.give_credentials(Credentials("token", b"x")),
    ConnectionInput.REQUEST: lambda c: c.request(lookup_command(5), 5, NOW + 30),
    ConnectionInput.CLOSE: lambda c: c.close(),
    ConnectionInput.CONNECTED: lambda c: receive(c, connected(), NOW),
    ConnectionInput.CHALLENGE: lambda c: receive(c, challenge(), NOW),
    ConnectionInput.ANSWER: lambda c: receive(c, success(5), NOW),
    ConnectionInput.HANDLE_FRAME: lambda c: receive(c, encode_send_receipt(1, 2, None, 3, 4), NOW),
    ConnectionInput.PING: lambda c: receive(c, PING, NOW),
    ConnectionInput.PONG: lambda c: receive(c, PONG, NOW),
}


@pytest.mark.parametrize(
    ("state", "kind"), list(itertools.product(ConnectionState, ConnectionInput)), ids=str
)
def test_every_state_handles_every_input(state, kind):
    connection = in_state(state)
    target = TRANSITIONS.get((state, kind))
    if kind is ConnectionInput.REQUEST and state is not ConnectionState.READY:
        with pytest.raises(errors.ConnectError, match=state.value):
            INPUTS[kind](connection)
        assert connection.state is state
    elif target is None and kind in OWNER_INPUTS:
        with pytest.raises(RuntimeError):
            INPUTS[kind](connection)
    elif target is None and state is ConnectionState.CLOSED:
        INPUTS[kind](connection)  # later input is dropped
        assert connection.state is ConnectionState.CLOSED
        assert connection.take_output() == []
    elif target is None:
        with pytest.raises(errors.ProtocolError, match=state.value):
            INPUTS[kind](connection)
        assert connection.state is state
    elif kind is ConnectionInput.ANSWER and state in (ConnectionState.HANDSHAKE, ConnectionState.CHALLENGED):
        with pytest.raises(errors.ProtocolError, match="before CONNECTED"):
            INPUTS[kind](connection)
        assert connection.state is ConnectionState.CLOSED
    else:
        INPUTS[kind](connection)
        assert connection.state is target


def test_the_handshake_makes_a_connection_ready():
    connection = make(proxy_to_broker="broker-7:6650")
    connection.start(NOW)
    (connect,) = sent(connection)
    body = connect.connect
    assert connect.type == pb.BaseCommand.CONNECT
    assert body.client_version.startswith("Geminga-v")
    assert (body.auth_method_name, body.auth_data) == ("token", b"secret")
    assert body.proxy_to_broker_url == "broker-7:6650"
    assert body.protocol_version == 21
    assert body.feature_flags.supports_auth_refresh
    (event,) = receive(connection, connected(protocol_version=20, max_message_size=1234), NOW)
    assert event == Connected(1234)
    assert connection.connected.protocol_version == 20
    assert connection.max_message_size == 1234


def test_the_announced_message_size_bounds_frames():
    connection = ready()
    assert connection.max_message_size == MAX_MESSAGE_SIZE
    connection = make()
    connection.start(NOW)
    receive(connection, connected(max_message_size=1000), NOW)
    too_large = (1000 + FRAME_PADDING).to_bytes(4, "big") + bytes(4)
    with pytest.raises(errors.FrameTooLarge):
        receive(connection, too_large, NOW)


def test_an_absurd_announced_message_size_is_ignored():
    connection = make()
    connection.start(NOW)
    receive(connection, connected(max_message_size=2**31 - 1), NOW)
    assert connection.max_message_size == connection_core.ANNOUNCED_MESSAGE_SIZE_MAX


@pytest.mark.parametrize(
    ("code", "expected"),
    [(pb.AuthenticationError, errors.AuthenticationError), (pb.ServiceNotReady, errors.ServiceUnitNotReady)],
)
def test_a_refused_handshake_raises_what_the_broker_reported(code, expected):
    connection = make()
    connection.start(NOW)
    with pytest.raises(expected, match="refused the connection: no"):
        receive(connection, refusal(code), NOW)


def test_a_refusal_without_credentials_says_that_none_were_given():
    connection = ClientConnection(Credentials("none", b""), now=NOW, peer="pulsar://broker:6650")
    connection.start(NOW)
    with pytest.raises(errors.AuthenticationError, match="no: no credentials were given"):
        receive(connection, refusal(pb.AuthenticationError), NOW)


def test_a_refusal_of_credentials_without_a_reason_names_the_brokers_log():
    connection = make()
    connection.start(NOW)
    with pytest.raises(errors.AuthenticationError, match="authenticate: it does not accept these"):
        receive(connection, refusal(pb.AuthenticationError, "Failed to authenticate"), NOW)


def test_a_handshake_past_its_deadline_fails():
    connection = make(handshake_timeout_seconds=10.0)
    connection.start(NOW)
    assert connection.next_deadline() == NOW + 10
    assert connection.tick(NOW + 9.9) == []
    with pytest.raises(errors.Timeout, match="10 s"):
        connection.tick(NOW + 10)


def test_authentication_may_take_several_steps():
    connection = make()
    connection.start(NOW)
    connection.take_output()
    assert receive(connection, challenge(b"step-1"), NOW) == [CredentialsWanted("token", b"step-1")]
    connection.give_credentials(Credentials("token", b"answer-1"))
    (response,) = sent(connection)
    assert response.authResponse.response.auth_data == b"answer-1"
    assert [type(event) for event in receive(connection, connected(), NOW)] == [Connected]


def test_credentials_are_refreshed_while_ready():
    connection = ready()
    assert receive(connection, challenge(), NOW) == [CredentialsWanted("token", REFRESH_CHALLENGE)]
    connection.give_credentials(Credentials("token", b"fresh"))
    (response,) = sent(connection)
    assert response.authResponse.response.auth_method_name == "token"
    assert response.authResponse.response.auth_data == b"fresh"
    assert connection.state is ConnectionState.READY


def test_credentials_for_a_closed_connection_are_dropped():
    connection = ready()
    receive(connection, challenge(), NOW)
    connection.close()
    connection.give_credentials(Credentials("token", b"late"))
    assert connection.take_output() == []


def test_ping_is_answered_in_the_order_of_frames():
    connection = ready()
    receive(connection, PING + PING, NOW)
    assert [c.type for c in sent(connection)] == [pb.BaseCommand.PONG] * 2


def test_keepalive_pings_and_detects_silence():
    connection = ready(keepalive_interval_seconds=30.0)
    assert connection.next_deadline() == NOW + 30
    assert connection.tick(NOW + 30) == []
    assert [c.type for c in sent(connection)] == [pb.BaseCommand.PING]
    receive(connection, PONG, NOW + 31)
    assert connection.next_deadline() == NOW + 61
    assert connection.tick(NOW + 61) == []
    connection.take_output()
    with pytest.raises(errors.ConnectError, match="sent nothing for 60 s"):
        connection.tick(NOW + 91)


def test_requests_are_answered_by_id_in_any_order():
    connection = ready()
    for request_id in (1, 2, 3):
        connection.request(lookup_command(request_id), request_id, NOW + 30)
    assert [c.lookupTopic.request_id for c in sent(connection)] == [1, 2, 3]
    events = receive(connection, success(3) + success(1), NOW)
    assert [event.request_id for event in events] == [3, 1]
    assert all(isinstance(event, RequestAnswered) for event in events)


def test_an_unknown_or_late_answer_is_dropped():
    connection = ready()
    connection.request(lookup_command(1), 1, NOW + 5)
    assert receive(connection, success(99), NOW) == []
    assert connection.next_deadline() == NOW + 5
    assert connection.tick(NOW + 5) == [RequestTimedOut(1)]
    assert receive(connection, success(1), NOW + 6) == []


def test_close_returns_the_pending_requests():
    connection = ready()
    connection.request(lookup_command(1), 1, NOW + 5)
    connection.request(lookup_command(2), 2, NOW + 5)
    receive(connection, success(1), NOW)
    assert connection.close() == [2]
    assert connection.close() == []
    assert connection.next_deadline() == float("inf")


def producer_success(ready_: bool) -> bytes:
    fields = {"request_id": 4, "producer_name": "p", "producer_ready": ready_}
    return encoded(pb.BaseCommand.PRODUCER_SUCCESS, "producer_success", **fields)


def test_a_wait_for_exclusive_access_outlasts_the_request_deadline():
    connection = ready(keepalive_interval_seconds=1000.0)
    connection.request(lookup_command(4), 4, NOW + 5)
    assert receive(connection, producer_success(False), NOW) == [RequestMustWait(4)]
    assert connection.tick(NOW + 500) == []
    (event,) = receive(connection, producer_success(True), NOW + 501)
    assert event.request_id == 4


@pytest.mark.parametrize("of_producer", [True, False], ids=["producer", "consumer"])
@pytest.mark.parametrize(
    ("tls", "url", "tls_url", "address"),
    [
        pytest.param(False, "pulsar://other:6650", "", Address("other", 6650), id="assigned"),
        pytest.param(False, "", "", None, id="none assigned"),
        pytest.param(False, "gopher://x", "", None, id="an unusable one is ignored"),
        pytest.param(True, "pulsar://a:6650", "pulsar://b:6650", None, id="one without TLS is ignored"),
        pytest.param(True, "pulsar://a:6650", "pulsar+ssl://b:6651", Address("b", 6651, True), id="TLS"),
    ],
)
def test_close_commands_name_the_assigned_broker(of_producer, tls, url, tls_url, address):
    kind = "producer" if of_producer else "consumer"
    close = encoded(
        pb.BaseCommand.Type.Value(f"CLOSE_{kind.upper()}"),
        f"close_{kind}",
        **{f"{kind}_id": 3},
        request_id=UNSOLICITED,
        assignedBrokerServiceUrl=url,
        assignedBrokerServiceUrlTls=tls_url,
    )
    assert receive(ready(tls=tls), close, NOW) == [HandleClosed(of_producer, 3, address)]


def test_topic_migrations_and_watch_updates_are_passed_on():
    moved = command(
        pb.BaseCommand.TOPIC_MIGRATED,
        "topicMigrated",
        resource_id=3,
        resource_type=pb.CommandTopicMigrated.Producer,
        brokerServiceUrl="pulsar://green:6650",
    )
    assert receive(ready(), encode_command(moved), NOW) == [TopicMoved(True, 3, "pulsar://green:6650")]
    update = command(pb.BaseCommand.WATCH_TOPIC_UPDATE, "watchTopicUpdate", watcher_id=1, topics_hash="0")
    (event,) = receive(ready(), encode_command(update), NOW)
    assert isinstance(event, WatchUpdate)


def test_a_command_for_brokers_closes_the_connection():
    with pytest.raises(errors.ProtocolError, match="which no client accepts"):
        receive(ready(), encode_command(lookup_command(1)), NOW)


def test_frames_before_a_reset_at_any_byte_are_handled():
    """Events of the whole frames are returned wherever the stream ends, and the rest is reported."""
    entry = b"\x00\x00\x00\x00"
    pieces = [
        PING,
        success(1),
        encode_message(9, 1, 2, -1, len(entry)) + entry,
        encode_send_receipt(7, 1, None, 3, 4),
        producer_success(True),
    ]
    stream = b"".join(pieces)
    kinds = [None, RequestAnswered, MessageFrame, ReceiptFrame, RequestAnswered]
    for cut in range(len(stream) + 1):
        connection = ready()
        connection.request(lookup_command(1), 1, NOW + 5)
        connection.request(lookup_command(4), 4, NOW + 5)
        events = receive(connection, stream[:cut], NOW)
        whole = sum(len(b"".join(pieces[: n + 1])) <= cut for n in range(len(pieces)))
        assert [type(event) for event in events] == [kind for kind in kinds[:whole] if kind]
        answered = {event.request_id for event in events if isinstance(event, RequestAnswered)}
        assert set(connection.close()) == {1, 4} - answered


def test_secrets_leave_memory_after_connect():
    connection = make()
    connection.start(NOW)
    connection.take_output()
    assert b"secret" not in repr(vars(connection)).encode()
