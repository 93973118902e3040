"""One client connection: from CONNECT to its end.

The session's states and what each command may do in them:

====================  =========================  =====================================
state                 CONNECT                    other commands
====================  =========================  =====================================
CONNECTING            answered, then CONNECTED   PING is answered, PONG is taken; else closed
CONNECTED             closed                     handled; unknown ones close the connection
CLOSED                nothing is read any more   nothing is read any more
====================  =========================  =====================================

A peer that breaks a rule loses its connection, and nobody else notices.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from geminga.broker.agenda import Timer
from geminga.broker.commands import answers
from geminga.broker.commands.handles import Handles
from geminga.broker.commands.services import Services
from geminga.broker.commands.topic_list import TopicListWatcher
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.peer import Output
from geminga.broker.refusal import Refused, Violation
from geminga.broker.topics.producer import Producer
from geminga.errors import ProtocolError, StoreError
from geminga.ledger.api import Buffer
from geminga.wire.frames import FRAME_PADDING, PROTOCOL_VERSION, SEND, FrameDecoder, SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb

log = logging.getLogger("geminga.broker")

Command = pb.BaseCommand
Handler = Callable[["Session", pb.BaseCommand], None]

RECENTLY_CLOSED_SECONDS = 30.0
RECENTLY_CLOSED_MAX = 1_000
"""SENDs of producers that the broker itself closed are dropped silently for this long, for so many."""
PROBE_SECONDS = 5.0
"""A connection whose place somebody else wants is dropped when it is silent for so long after a PING."""
_VERSION_ACTIVE_CONSUMER_CHANGE = 12
_VERSION_END_OF_TOPIC = 9


class State(Enum):
    """See the table in the module's text."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Who answers what. SEND, the busiest command, has a place of its own."""

    on_send: Callable[[Session, SendFrame], None]
    handlers: Mapping[int, Handler]


class Session:
    """``receive`` takes what came in; answers leave through ``output``. To topics it is a `Peer`."""

    __slots__ = (
        "_bytes", "_handshake", "_keepalive", "_ping_pending", "_probe_timer", "_probes", "_reading_paused",
        "_recently_closed", "_table", "address", "agenda", "client_version", "consumers", "decoder",
        "is_cpp_client", "output", "pending_bytes", "producers", "protocol_version", "services", "state",
        "watchers",
    )  # fmt: skip

    def __init__(self, services: Services, table: CommandTable, output: Output, address: str) -> None:
        self.services = services
        self._bytes = services.bytes
        self.agenda = services.agenda
        self.output = output
        self.address = address
        self.state = State.CONNECTING
        self.decoder = FrameDecoder(services.settings.max_message_size + FRAME_PADDING)
        self.client_version = ""
        self.is_cpp_client = False
        self.protocol_version = 0
        self.producers: Handles[Producer] = Handles()
        self.consumers: Handles[Consumer] = Handles()
        self.watchers: dict[int, TopicListWatcher] = {}
        self.pending_bytes = 0
        self._table = table
        self._reading_paused = False
        self._recently_closed: OrderedDict[int, float] = OrderedDict()
        self._ping_pending = False
        self._probes: list[Callable[[], None]] = []
        self._probe_timer: Timer | None = None
        self._handshake: Timer | None = self.agenda.after(
            services.settings.handshake_seconds, self._handshake_expired, self
        )
        self._keepalive: Timer | None = None
        services.peers.add(self)

    def __repr__(self) -> str:
        return f"Session({self.address}, {self.client_version or 'not connected'}, {self.state.value})"

    # --- from the shell ---
    def receive(self, data: Buffer, now: float, now_ms: int) -> None:
        """Bytes from the peer. Whatever is wrong with them ends this connection only."""
        if self.state is State.CLOSED:
            return
        agenda = self.agenda
        agenda.enter(now, now_ms)
        on_send = self._table.on_send
        self._ping_pending = False
        try:
            if self._probes:
                self._probe_answered()
            frames = self.decoder.feed(data)
            for frame in frames:
                if frame.type == SEND:
                    if self.state is not State.CONNECTED:
                        raise Violation("SEND before CONNECT")
                    on_send(self, frame)  # type: ignore[arg-type]
                else:
                    self._handle(frame.type, frame.command)
                if self.state is State.CLOSED:  # type: ignore[comparison-overlap]
                    break
            if self.decoder.error is not None:
                raise self.decoder.error
        except (ProtocolError, Violation) as error:
            log.warning("%s: connection closed: %s", self, error)
            self.close()
        except StoreError as error:
            log.error("%s: connection closed: the store failed: %s", self, error)
            self.close()
        finally:
            agenda.leave()

    def closed(self, now: float) -> None:
        """The connection is gone."""
        self.agenda.enter(now)
        try:
            self._end()
        finally:
            self.agenda.leave()

    def writable_again(self, now: float) -> None:
        """The peer has read enough: dispatch to its consumers goes on."""
        self.agenda.enter(now)
        try:
            for consumer in list(self.consumers.values()):
                subscription = consumer.subscription
                self.agenda.isolated("dispatch", subscription, subscription.dispatch)
        finally:
            self.agenda.leave()

    # --- life ---
    def close(self) -> None:
        """End the connection from this side; what was written still goes out."""
        if self.state is not State.CLOSED:
            self._end()
            self.output.close()

    def _end(self) -> None:
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        for timer in (self._handshake, self._keepalive):
            if timer is not None:
                timer.cancel()
        self.services.peers.discard(self)
        isolated = self.agenda.isolated
        for watcher in self.watchers.values():
            isolated("session", self, watcher.close)
        self.watchers.clear()
        for producer in self.producers.take_all():
            isolated("session", producer, producer.topic.remove_producer, producer)
        for consumer in self.consumers.take_all():
            isolated("session", consumer, consumer.subscription.remove, consumer)
        self._probe_answered()

    def _handshake_expired(self) -> None:
        self._handshake = None
        if self.state is State.CONNECTING:
            log.warning("%s: connection closed: no CONNECT in time", self)
            self.close()

    def _keepalive_due(self) -> None:
        if self._ping_pending and not self._reading_paused:
            log.warning("%s: connection closed: the peer has been silent for too long", self)
            self.close()
            return
        if self.protocol_version >= 1:
            self._ping_pending = True
            self.output.write(answers.PING)
        self._arm_keepalive()

    def _arm_keepalive(self) -> None:
        seconds = self.services.settings.keepalive_seconds
        self._keepalive = self.agenda.after(seconds, self._keepalive_due, self)

    def probe(self, decided: Callable[[], None]) -> None:
        """Find out whether the peer lives: ``decided`` runs when it spoke, or was dropped for silence."""
        if self._reading_paused:
            # We would not hear it: nobody is dropped because the store is slow.
            decided()
            return
        if not self._probes:
            self.output.write(answers.PING)
            self._probe_timer = self.agenda.after(PROBE_SECONDS, self._probe_expired, self)
        self._probes.append(decided)

    def _probe_expired(self) -> None:
        log.warning("%s: connection closed: it does not answer, and somebody waits for its place", self)
        self.close()

    def _probe_answered(self) -> None:
        probes, self._probes = self._probes, []
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None
        for decided in probes:
            self.agenda.isolated("session", self, decided)

    # --- commands ---
    def _handle(self, kind: int, command: pb.BaseCommand) -> None:
        if self.state is State.CONNECTING and kind not in (Command.CONNECT, Command.PING, Command.PONG):
            raise Violation(f"{_name(kind)} before CONNECT")
        handler = self._table.handlers.get(kind)
        if handler is None:
            raise Violation(f"{_name(kind)} is not for a broker")
        handler(self, command)

    def connect(self, command: pb.BaseCommand) -> None:
        """CONNECT: once, and first."""
        if self.state is State.CONNECTED:
            raise Violation("a second CONNECT")
        body = command.connect
        self.state = State.CONNECTED
        self.client_version = body.client_version
        self.is_cpp_client = body.client_version.startswith("Pulsar-CPP")
        self.protocol_version = body.protocol_version
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        self.output.write(
            answers.connected(
                min(body.protocol_version, PROTOCOL_VERSION),
                self.services.settings.max_message_size,
                self.services.version,
            )
        )
        self._arm_keepalive()

    def refuse(self, request_id: int, refused: Refused) -> None:
        """Answer a request with an ERROR."""
        self.output.write(answers.error(request_id, refused.code, refused.reason))

    @property
    def handle_count(self) -> int:
        return self.producers.count + self.consumers.count + len(self.watchers)

    # --- back-pressure: entries that were taken in and are not durable yet ---
    def publish_started(self, size: int) -> None:
        ledger = self._bytes
        own = self.pending_bytes = self.pending_bytes + size
        total = ledger.pending_bytes = ledger.pending_bytes + size
        if (own >= ledger.bytes_per_peer_max or total >= ledger.bytes_max) and not self._reading_paused:
            self._reading_paused = True
            ledger.pause(self)
            self.output.pause_reading()

    def publish_finished(self, size: int) -> None:
        self.pending_bytes -= size
        self._bytes.pending_bytes -= size

    def resume_reading(self) -> None:
        """The broker has room again."""
        if self._reading_paused:
            self._reading_paused = False
            if self.state is not State.CLOSED:
                self.output.resume_reading()

    # --- what the client is told unasked ---
    def send_error(self, producer_id: int, sequence_id: int, code: int, reason: str) -> None:
        self.output.write(answers.send_error(producer_id, sequence_id, code, reason))

    def active_consumer_change(self, consumer_id: int, active: bool) -> None:
        if self.protocol_version >= _VERSION_ACTIVE_CONSUMER_CHANGE:
            self.output.write(answers.active_consumer_change(consumer_id, active))

    def end_of_topic(self, consumer_id: int) -> None:
        """The C++ client (and ``pulsar-client`` on it) has no handler for this command and drops its
        connection over it (framing.md section 9), so it is not told.
        """
        if self.protocol_version >= _VERSION_END_OF_TOPIC and not self.is_cpp_client:
            self.output.write(answers.reached_end_of_topic(consumer_id))

    def producer_closed(self, producer_id: int, producer: object) -> None:
        """The broker closes a producer: the client is told, and may look the topic up again."""
        if self.producers.drop(producer_id, producer):
            self._remember_closed(producer_id)
            if self.state is not State.CLOSED:
                self.output.write(answers.close_producer(producer_id))

    def producer_lost(self, producer_id: int, producer: object) -> None:
        self.producers.drop(producer_id, producer)

    def _remember_closed(self, producer_id: int) -> None:
        recent = self._recently_closed
        recent[producer_id] = self.agenda.now
        recent.move_to_end(producer_id)
        if len(recent) > RECENTLY_CLOSED_MAX:
            recent.popitem(last=False)

    def was_recently_closed(self, producer_id: int) -> bool:
        """Whether the broker closed this producer a moment ago: SENDs may have crossed that."""
        when = self._recently_closed.get(producer_id)
        return when is not None and self.agenda.now - when <= RECENTLY_CLOSED_SECONDS

    def consumer_closed(self, consumer_id: int, consumer: object) -> None:
        """The broker closes a consumer: the client looks the topic up again."""
        if self.consumers.drop(consumer_id, consumer) and self.state is not State.CLOSED:
            self.output.write(answers.close_consumer(consumer_id))


def _name(kind: int) -> str:
    return pb.BaseCommand.Type.Name(kind)
