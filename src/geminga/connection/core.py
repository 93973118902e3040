"""The client's side of one broker connection, without I/O.

The owner calls `start` once, `received` for every piece of data that it has written to `space`, and `tick`
when `next_deadline` has passed; after each of these, it writes the result of `take_output`. ``received`` and
``tick`` return events. All take ``now``, seconds of a monotonic clock; this module reads neither a clock nor
a socket.

The states of a connection (framing.md section 3)::

    START -> HANDSHAKE -> READY -> CLOSED
                 |  ^
                 v  |
              CHALLENGED      the broker requests more credentials before CONNECTED

`TRANSITIONS` is the whole state machine. A missing pair of state and input is the peer's error if the input
came from the peer (`ProtocolError`), and the owner's otherwise (`RuntimeError`). Frames for producers and
consumers, the bulk of the traffic, are events themselves.
"""

from enum import Enum
from typing import NamedTuple

from geminga.connection import commands
from geminga.connection.addresses import Address, parse_broker_url
from geminga.connection.authentication import Credentials
from geminga.connection.requests import ANSWERS, PRODUCER_SUCCESS
from geminga.errors import ConnectError, InvalidUrl, ProtocolError, PulsarException, Timeout, from_server
from geminga.wire.client_frames import ClientFrameDecoder
from geminga.wire.frames import FRAME_PADDING, MAX_MESSAGE_SIZE, PROTOCOL_VERSION, Frame, encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

Type = pb.BaseCommand

ANNOUNCED_MESSAGE_SIZE_MAX = 1 << 30
"""Upper limit on the ``max_message_size`` that a broker announces."""


class ConnectionState(Enum):
    START = "start"
    HANDSHAKE = "handshake"
    CHALLENGED = "challenged"
    READY = "ready"
    CLOSED = "closed"


class ConnectionInput(Enum):
    """Inputs of a connection. The first group comes from the owner, the second from the peer."""

    OPENED = "transport opened"
    CREDENTIALS = "credentials given"
    REQUEST = "request sent"
    CLOSE = "transport closed"

    CONNECTED = "CONNECTED"
    CHALLENGE = "AUTH_CHALLENGE"
    ANSWER = "answer to a request"
    HANDLE_FRAME = "frame for a producer or consumer"
    PING = "PING"
    PONG = "PONG"


OWNER_INPUTS = frozenset(
    {ConnectionInput.OPENED, ConnectionInput.CREDENTIALS, ConnectionInput.REQUEST, ConnectionInput.CLOSE}
)

_S, _I = ConnectionState, ConnectionInput
_TABLE: dict[ConnectionState, dict[ConnectionInput, ConnectionState]] = {
    _S.START: {_I.OPENED: _S.HANDSHAKE, _I.CLOSE: _S.CLOSED},
    _S.HANDSHAKE: {
        _I.CONNECTED: _S.READY, _I.CHALLENGE: _S.CHALLENGED, _I.PING: _S.HANDSHAKE, _I.PONG: _S.HANDSHAKE,
        _I.ANSWER: _S.CLOSED, _I.CLOSE: _S.CLOSED,
    },
    _S.CHALLENGED: {
        _I.CREDENTIALS: _S.HANDSHAKE, _I.PING: _S.CHALLENGED, _I.PONG: _S.CHALLENGED, _I.ANSWER: _S.CLOSED,
        _I.CLOSE: _S.CLOSED,
    },
    _S.READY: {
        **dict.fromkeys((kind for kind in _I if kind not in (_I.OPENED, _I.CONNECTED)), _S.READY),
        _I.CLOSE: _S.CLOSED,
    },
    # Credentials may arrive late: the connection ended while a provider was obtaining them.
    _S.CLOSED: {_I.CLOSE: _S.CLOSED, _I.CREDENTIALS: _S.CLOSED},
}  # fmt: skip
TRANSITIONS = {(state, kind): end for state, row in _TABLE.items() for kind, end in row.items()}

HANDLE_FRAMES = frozenset((
    Type.SEND_RECEIPT, Type.SEND_ERROR, Type.MESSAGE, Type.ACTIVE_CONSUMER_CHANGE, Type.REACHED_END_OF_TOPIC,
    Type.ACK_RESPONSE,
))  # fmt: skip
"""Frames that are passed unchanged to one producer or consumer."""

NOTICES = frozenset({Type.CLOSE_PRODUCER, Type.CLOSE_CONSUMER, Type.TOPIC_MIGRATED, Type.WATCH_TOPIC_UPDATE})
"""Frames about one producer, consumer or watcher that the connection turns into events."""

INPUT_OF_TYPE: dict[int, ConnectionInput] = {
    Type.CONNECTED: ConnectionInput.CONNECTED,
    Type.AUTH_CHALLENGE: ConnectionInput.CHALLENGE,
    Type.PING: ConnectionInput.PING,
    Type.PONG: ConnectionInput.PONG,
    **dict.fromkeys(ANSWERS, ConnectionInput.ANSWER),
    **dict.fromkeys(HANDLE_FRAMES, ConnectionInput.HANDLE_FRAME),
    **dict.fromkeys(NOTICES, ConnectionInput.HANDLE_FRAME),
}


KEEPALIVE_SECONDS = 30.0


class KeepAliveAction(Enum):
    """Action that `KeepAlive.tick` requests."""

    NOTHING = "nothing"
    SEND_PING = "send ping"
    PEER_SILENT = "peer silent"


class KeepAlive:
    """Timer of one side (framing.md section 3): a PING after ``interval_seconds`` without data, the end of
    the connection after as long without any byte. The owner sets ``last_received`` for every piece of data:
    the hot path writes one float."""

    __slots__ = ("interval_seconds", "last_received", "ping_sent_at")

    def __init__(self, interval_seconds: float, now: float) -> None:
        self.interval_seconds = interval_seconds
        self.last_received = now
        self.ping_sent_at: float | None = None

    def next_deadline(self) -> float:
        """Return the time at which `tick` must run if nothing arrives until then."""
        base = self.last_received
        if self.ping_sent_at is not None and self.ping_sent_at > base:
            base = self.ping_sent_at
        return base + self.interval_seconds

    def tick(self, now: float) -> KeepAliveAction:
        """Return the action that is due; to be called at or after `next_deadline`, earlier calls do
        nothing."""
        if now < self.next_deadline():
            return KeepAliveAction.NOTHING
        if self.ping_sent_at is not None and self.ping_sent_at > self.last_received:
            return KeepAliveAction.PEER_SILENT
        self.ping_sent_at = now
        return KeepAliveAction.SEND_PING


class Connected(NamedTuple):
    """The handshake is complete. ``max_message_size`` is the broker's, in bytes."""

    max_message_size: int


class CredentialsWanted(NamedTuple):
    """The broker sent a challenge: ask the provider and call `ClientConnection.give_credentials`."""

    method: str
    challenge: bytes


class RequestAnswered(NamedTuple):
    """``command`` answers the request; `requests.error_of` returns its error."""

    request_id: int
    command: pb.BaseCommand


class RequestTimedOut(NamedTuple):
    request_id: int


class RequestMustWait(NamedTuple):
    """A producer's creation was accepted and waits for exclusive access; the final answer comes later."""

    request_id: int


class HandleClosed(NamedTuple):
    """The broker closed a producer or consumer; ``assigned`` is the new broker's address, if it was sent."""

    producer: bool
    handle_id: int
    assigned: Address | None


class TopicMoved(NamedTuple):
    """The topic of a producer or consumer moved to another cluster, with the given service URL."""

    producer: bool
    handle_id: int
    service_url: str


class WatchUpdate(NamedTuple):
    """A topic list watcher reports a change; ``command`` is the whole WATCH_TOPIC_UPDATE."""

    command: pb.BaseCommand


Event = (
    Frame
    | Connected
    | CredentialsWanted
    | RequestAnswered
    | RequestTimedOut
    | RequestMustWait
    | HandleClosed
    | TopicMoved
    | WatchUpdate
)


class ClientConnection:
    """The client's side of one connection. ``peer`` names the broker in error messages."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        now: float,
        peer: str,
        tls: bool = False,
        proxy_to_broker: str | None = None,
        handshake_timeout_seconds: float = 10.0,
        keepalive_interval_seconds: float = KEEPALIVE_SECONDS,
    ) -> None:
        self.peer = peer
        self.state = ConnectionState.START
        self.max_message_size = MAX_MESSAGE_SIZE
        self.connected = pb.CommandConnected()
        """The broker's CONNECTED command; empty before."""
        self.error: ProtocolError | None = None
        """The error in the peer's bytes: no later byte can be read, abort the connection."""
        self._tls = tls
        self._credentials: Credentials | None = credentials
        self._is_anonymous = credentials.method == "none"
        self._proxy_to_broker = proxy_to_broker
        self._handshake_timeout_seconds = handshake_timeout_seconds
        self._handshake_deadline = now + handshake_timeout_seconds
        self._keepalive = KeepAlive(keepalive_interval_seconds, now)
        self._deadlines: dict[int, float] = {}
        """Requests in flight, by their ids: seconds at which they time out."""
        self._decoder = ClientFrameDecoder()
        self._output: list[bytes] = []

    # --- the owner's side ------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Send CONNECT on an open transport."""
        self._move(ConnectionInput.OPENED)
        self._keepalive.last_received = now
        assert self._credentials is not None
        self._send(commands.connect(self._credentials, PROTOCOL_VERSION, self._proxy_to_broker))
        self._credentials = None  # not kept: a challenge asks the provider again

    def give_credentials(self, credentials: Credentials) -> None:
        """Answer a `CredentialsWanted`; ignored if the connection has ended meanwhile."""
        self._move(ConnectionInput.CREDENTIALS)
        if self.state is not ConnectionState.CLOSED:
            self._send(commands.auth_response(credentials, PROTOCOL_VERSION))

    def request(self, command: pb.BaseCommand, request_id: int, deadline: float) -> None:
        """Send a command that will be answered under ``request_id``. Raises `ConnectError` if the connection
        is closed or not ready, and `ValueError` if the id is in flight already."""
        if self.state is not ConnectionState.READY:
            raise ConnectError(f"the connection to {self.peer} is {self.state.value}, not ready")
        if request_id in self._deadlines:
            raise ValueError(f"request id {request_id} is in flight already")
        self._deadlines[request_id] = deadline
        self._output.append(encode_command(command))

    def abort(self, request_id: int) -> None:
        """Cancel a request: a late answer is dropped."""
        self._deadlines.pop(request_id, None)

    def close(self) -> list[int]:
        """Note that the transport ended. Return the ids of the requests that will never be answered."""
        self._move(ConnectionInput.CLOSE)
        ids = list(self._deadlines)
        self._deadlines.clear()
        return ids

    def take_output(self) -> list[bytes]:
        """Return the frames to write now, in order."""
        output = self._output
        if output:
            self._output = []
        return output

    def next_deadline(self) -> float:
        """Return the time at which `tick` must run; infinity when closed."""
        if self.state is ConnectionState.READY:
            return min((self._keepalive.next_deadline(), *self._deadlines.values()))
        if self.state is ConnectionState.CLOSED:
            return float("inf")
        return self._handshake_deadline

    def tick(self, now: float) -> list[Event]:
        """Handle time-outs. Raises `Timeout` (handshake) or `ConnectError` (silent peer): abort then."""
        if self.state is ConnectionState.CLOSED:
            return []
        if self.state is not ConnectionState.READY:
            if now < self._handshake_deadline:
                return []
            raise Timeout(
                f"{self.peer} did not finish the handshake within {self._handshake_timeout_seconds:g} s; "
                "is it a Pulsar broker, and does the scheme (pulsar:// or pulsar+ssl://) match the port?"
            )
        due = [request_id for request_id, deadline in self._deadlines.items() if deadline <= now]
        for request_id in due:
            del self._deadlines[request_id]
        events: list[Event] = [RequestTimedOut(request_id) for request_id in due]
        pulse = self._keepalive.tick(now)
        if pulse is KeepAliveAction.SEND_PING:
            self._send(commands.PING)
        elif pulse is KeepAliveAction.PEER_SILENT:
            raise ConnectError(
                f"{self.peer} sent nothing for {2 * self._keepalive.interval_seconds:g} s, "
                "not even the answer to a PING"
            )
        return events

    # --- the peer's side -------------------------------------------------------------------------

    def space(self) -> memoryview:
        """Return the memory for the next bytes, after the events of the last ones were handled."""
        return self._decoder.space()

    def received(self, size: int, now: float) -> list[Event]:
        """Handle ``size`` bytes that were written to `space`. Raises `ProtocolError` (abort the connection),
        or the broker's refusal of the handshake (`AuthenticationError`, `AuthorizationError`, ...).

        If intact frames precede bad bytes, their events are returned, and `error` is set from then on.
        """
        self._keepalive.last_received = now
        events: list[Event] = []
        try:
            frames = self._decoder.read(size)
        except ProtocolError as error:
            raise self._named(error) from None
        for frame in frames:
            ready = self.state is ConnectionState.READY
            if ready and frame.type in HANDLE_FRAMES:
                events.append(frame)
            else:
                is_answer = ready and frame.type in ANSWERS
                event = self._answer(frame.type, frame.command) if is_answer else self._control(frame)
                if event is not None:
                    events.append(event)
        if self._decoder.error is not None:
            self.error = self._named(self._decoder.error)
        return events

    def _named(self, error: ProtocolError) -> ProtocolError:
        return type(error)(f"{self.peer}: {error}")

    def _control(self, frame: Frame) -> Event | None:
        kind = INPUT_OF_TYPE.get(frame.type)
        if kind is None:
            raise ProtocolError(f"{self.peer} sent command type {frame.type}, which no client accepts")
        if self.state is ConnectionState.CLOSED:
            return None
        self._move(kind)
        command = frame.command
        if kind is ConnectionInput.ANSWER:
            raise self._refusal(command)
        if kind is ConnectionInput.PING:
            self._send(commands.PONG)
            return None
        if kind is ConnectionInput.CONNECTED:
            return self._connected(command.connected)
        if kind is ConnectionInput.CHALLENGE:
            challenge = command.authChallenge.challenge
            return CredentialsWanted(challenge.auth_method_name, challenge.auth_data)
        if kind is ConnectionInput.HANDLE_FRAME:
            return self._notice(command)
        return None

    def _connected(self, connected: pb.CommandConnected) -> Connected:
        if connected.HasField("max_message_size") and connected.max_message_size > 0:
            self.max_message_size = min(connected.max_message_size, ANNOUNCED_MESSAGE_SIZE_MAX)
        self._decoder.max_frame_size = self.max_message_size + FRAME_PADDING
        self.connected = connected
        return Connected(self.max_message_size)

    def _refusal(self, command: pb.BaseCommand) -> PulsarException:
        """Return the error for an answer before CONNECTED: the broker refuses the handshake with an ERROR
        without a request (framing.md section 3)."""
        if command.type != Type.ERROR:
            return ProtocolError(f"{self.peer} answered a request before CONNECTED")
        text = f"{self.peer} refused the connection: {command.error.message}"
        if command.error.error == pb.AuthenticationError:
            if self._is_anonymous:
                text += ": no credentials were given (--token-file, or authentication=...)"
            elif text.endswith("Failed to authenticate"):
                text += ": it does not accept these credentials; its log has the reason"
        return from_server(command.error.error, text)

    def _answer(self, kind: int, command: pb.BaseCommand) -> Event | None:
        answer = getattr(command, ANSWERS[kind].name)
        request_id: int = answer.request_id
        if kind == PRODUCER_SUCCESS and not answer.producer_ready:
            # The first of two answers to one request: the producer waits for exclusive access, without a time
            # limit, and is answered again when it gets it (framing.md section 5). The caller may cancel.
            if request_id in self._deadlines:
                self._deadlines[request_id] = float("inf")
            return RequestMustWait(request_id)
        if self._deadlines.pop(request_id, None) is None:
            return None  # late: timed out or abandoned
        return RequestAnswered(request_id, command)

    def _notice(self, command: pb.BaseCommand) -> Event:
        if command.type == Type.WATCH_TOPIC_UPDATE:
            return WatchUpdate(command)
        if command.type == Type.TOPIC_MIGRATED:
            moved = command.topicMigrated
            url = moved.brokerServiceUrlTls if self._tls else moved.brokerServiceUrl
            return TopicMoved(moved.resource_type == pb.CommandTopicMigrated.Producer, moved.resource_id, url)
        if command.type == Type.CLOSE_PRODUCER:
            producer = command.close_producer
            return HandleClosed(True, producer.producer_id, self._assigned(producer))
        consumer = command.close_consumer
        return HandleClosed(False, consumer.consumer_id, self._assigned(consumer))

    def _assigned(self, close: pb.CommandCloseProducer | pb.CommandCloseConsumer) -> Address | None:
        url = close.assignedBrokerServiceUrlTls if self._tls else close.assignedBrokerServiceUrl
        if not url:
            return None
        try:
            address = parse_broker_url(url)
        except InvalidUrl:
            return None  # only a hint: the lookup finds the broker
        return None if self._tls and not address.tls else address

    # --- shared ----------------------------------------------------------------------------------

    def _move(self, kind: ConnectionInput) -> None:
        state = TRANSITIONS.get((self.state, kind))
        if state is None:
            if kind in OWNER_INPUTS:
                raise RuntimeError(f"{kind.value} is not allowed in state {self.state.value}")
            raise ProtocolError(f"{self.peer} sent {kind.value} in state {self.state.value}")
        self.state = state

    def _send(self, command: pb.BaseCommand) -> None:
        self._output.append(encode_command(command))
