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
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from geminga.broker.commands import answers, consuming, lookup, producing, schema_commands
from geminga.broker.refusal import Refused, Violation
from geminga.broker.timers import Timer
from geminga.errors import ProtocolError, StoreError
from geminga.ledger.api import Buffer
from geminga.wire.frames import FRAME_PADDING, PROTOCOL_VERSION, SEND, FrameDecoder
from geminga.wire.proto import pulsar_wire_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.commands.lookup import TopicListWatcher
    from geminga.broker.core import Broker, Output
    from geminga.broker.delivery.consumer import Consumer
    from geminga.broker.topics.producer import Producer

log = logging.getLogger("geminga.broker")

Command = pb.BaseCommand
Handler = Callable[["Session", pb.BaseCommand], None]

RECENTLY_CLOSED_SECONDS = 30.0
RECENTLY_CLOSED_MAX = 1_000
"""SENDs of producers that the broker itself closed are dropped silently for this long, for so many."""
PROBE_SECONDS = 5.0
"""A connection whose place somebody else wants is dropped when it is silent for so long after a PING."""
_SEND_FRAME = SEND


class State(Enum):
    """See the table in the module's text."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class Session:
    """``receive`` takes what came in; answers leave through ``output``."""

    __slots__ = (
        "_handshake", "_keepalive", "_ping_pending", "_probe_timer", "_probes", "_reading_paused",
        "_recently_closed", "broker", "client_version", "connected_since_ms", "consumers", "decoder",
        "is_cpp_client", "output", "peer", "pending_bytes", "producers", "protocol_version", "state",
        "waiting_producers", "watchers",
    )  # fmt: skip

    def __init__(self, broker: Broker, output: Output, peer: str) -> None:
        self.broker = broker
        self.output = output
        self.peer = peer
        self.state = State.CONNECTING
        self.decoder = FrameDecoder(broker.settings.max_message_size + FRAME_PADDING)
        self.client_version = ""
        self.is_cpp_client = False
        self.protocol_version = 0
        self.connected_since_ms = broker.now_ms
        self.producers: dict[int, Producer | None] = {}
        self.waiting_producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer | None] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.pending_bytes = 0
        self._reading_paused = False
        self._recently_closed: OrderedDict[int, float] = OrderedDict()
        self._ping_pending = False
        self._probes: list[Callable[[], None]] = []
        self._probe_timer: Timer | None = None
        settings = broker.settings
        self._handshake: Timer | None = broker.timers.at(
            broker.now + settings.handshake_seconds, self._handshake_expired
        )
        self._keepalive: Timer | None = None

    def __repr__(self) -> str:
        return f"Session({self.peer}, {self.client_version or 'not connected'}, {self.state.value})"

    # --- from the shell ---
    def receive(self, data: Buffer, now: float, now_ms: int) -> None:
        """Bytes from the peer. Whatever is wrong with them ends this connection only."""
        if self.state is State.CLOSED:
            return
        broker = self.broker
        broker.enter(now, now_ms)
        self._ping_pending = False
        try:
            if self._probes:
                self._probe_answered()
            frames = self.decoder.feed(data)
            for frame in frames:
                if frame.type == _SEND_FRAME:
                    if self.state is not State.CONNECTED:
                        raise Violation("SEND before CONNECT")
                    producing.on_send(self, frame)  # type: ignore[arg-type]
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
            broker.leave()

    def closed(self, now: float) -> None:
        """The connection is gone."""
        self.broker.enter(now)
        try:
            self._end()
        finally:
            self.broker.leave()

    def writable_again(self, now: float) -> None:
        """The peer has read enough: dispatch to its consumers goes on."""
        self.broker.enter(now)
        try:
            for consumer in list(self.consumers.values()):
                if consumer is not None:
                    consumer.subscription.dispatch()
        finally:
            self.broker.leave()

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
        self.broker.sessions.discard(self)
        for watcher in list(self.watchers.values()):
            watcher.close()
        for producer in [*self.producers.values(), *self.waiting_producers.values()]:
            if producer is not None:
                producer.topic.access.remove(producer)
        for consumer in list(self.consumers.values()):
            if consumer is not None:
                consumer.subscription.remove(consumer)
        self.producers.clear()
        self.waiting_producers.clear()
        self.consumers.clear()
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
        broker = self.broker
        self._keepalive = broker.timers.at(
            broker.now + broker.settings.keepalive_seconds, self._keepalive_due
        )

    def probe(self, decided: Callable[[], None]) -> None:
        """Find out whether the peer lives: ``decided`` runs when it spoke, or was dropped for silence."""
        if self._reading_paused:
            # We would not hear it: nobody is dropped because the store is slow.
            decided()
            return
        if not self._probes:
            self.output.write(answers.PING)
            broker = self.broker
            self._probe_timer = broker.timers.at(broker.now + PROBE_SECONDS, self._probe_expired)
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
            decided()

    # --- commands ---
    def _handle(self, kind: int, command: pb.BaseCommand) -> None:
        if self.state is State.CONNECTING and kind not in (Command.CONNECT, Command.PING, Command.PONG):
            raise Violation(f"{_name(kind)} before CONNECT")
        handler = HANDLERS.get(kind)
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
        settings = self.broker.settings
        self.output.write(
            answers.connected(
                min(body.protocol_version, PROTOCOL_VERSION), settings.max_message_size, self.broker.version
            )
        )
        self._arm_keepalive()

    def refuse(self, request_id: int, refused: Refused) -> None:
        """Answer a request with an ERROR."""
        self.output.write(answers.error(request_id, refused.code, refused.reason))

    @property
    def handle_count(self) -> int:
        return len(self.producers) + len(self.consumers) + len(self.watchers)

    # --- back-pressure: entries that were taken in and are not durable yet ---
    def publish_started(self, size: int) -> None:
        self.pending_bytes += size
        self.broker.pending_bytes += size
        if not self._reading_paused and self.broker.must_pause(self.pending_bytes):
            self._reading_paused = True
            self.broker.paused_sessions[self] = None
            self.output.pause_reading()

    def publish_finished(self, size: int) -> None:
        self.pending_bytes -= size
        self.broker.pending_bytes -= size

    def resume_reading(self) -> None:
        """The broker has room again."""
        if self._reading_paused:
            self._reading_paused = False
            if self.state is not State.CLOSED:
                self.output.resume_reading()

    # --- producers ---
    def close_producer(self, producer: Producer) -> None:
        """The broker closes a producer: the client is told, and may look the topic up again."""
        known = self.producers.get(producer.producer_id) or self.waiting_producers.get(producer.producer_id)
        if known is producer:
            self.drop_producer(producer)
            self._remember_closed(producer.producer_id)
            if self.state is not State.CLOSED:
                self.output.write(answers.close_producer(producer.producer_id))
        producer.topic.access.remove(producer)

    def drop_producer(self, producer: Producer) -> None:
        """Forget a producer without telling the client."""
        producer_id = producer.producer_id
        if self.waiting_producers.get(producer_id) is producer:
            del self.waiting_producers[producer_id]
            self.producers.pop(producer_id, None)
        elif self.producers.get(producer_id) is producer:
            del self.producers[producer_id]

    def fence_producer(self, producer: Producer) -> None:
        """The producer lost its exclusive access: its next SEND closes the connection, as in Pulsar."""
        self.drop_producer(producer)

    def _remember_closed(self, producer_id: int) -> None:
        recent = self._recently_closed
        recent[producer_id] = self.broker.now
        recent.move_to_end(producer_id)
        if len(recent) > RECENTLY_CLOSED_MAX:
            recent.popitem(last=False)

    def was_recently_closed(self, producer_id: int) -> bool:
        """Whether the broker closed this producer a moment ago: SENDs may have crossed that."""
        when = self._recently_closed.get(producer_id)
        return when is not None and self.broker.now - when <= RECENTLY_CLOSED_SECONDS

    # --- consumers ---
    def close_consumer(self, consumer: Consumer) -> None:
        """The broker closes a consumer: the client looks the topic up again."""
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            if self.state is not State.CLOSED:
                self.output.write(answers.close_consumer(consumer.consumer_id))
        consumer.subscription.remove(consumer)


def _name(kind: int) -> str:
    return pb.BaseCommand.Type.Name(kind)


def _on_ping(session: Session, command: pb.BaseCommand) -> None:
    session.output.write(answers.PONG)


def _on_pong(session: Session, command: pb.BaseCommand) -> None:
    return


def _on_transaction(session: Session, command: pb.BaseCommand) -> None:
    """Transactions are off: every request about them is refused."""
    body = getattr(command, TRANSACTION_BODIES[command.type])
    session.refuse(body.request_id, Refused(pb.NotAllowedError, "Transactions are not enabled."))


TRANSACTION_BODIES = {
    Command.TC_CLIENT_CONNECT_REQUEST: "tcClientConnectRequest",
    Command.NEW_TXN: "newTxn",
    Command.ADD_PARTITION_TO_TXN: "addPartitionToTxn",
    Command.ADD_SUBSCRIPTION_TO_TXN: "addSubscriptionToTxn",
    Command.END_TXN: "endTxn",
    Command.END_TXN_ON_PARTITION: "endTxnOnPartition",
    Command.END_TXN_ON_SUBSCRIPTION: "endTxnOnSubscription",
}

HANDLERS: dict[int, Handler] = {
    Command.CONNECT: Session.connect,
    Command.PING: _on_ping,
    Command.PONG: _on_pong,
    Command.PARTITIONED_METADATA: lookup.on_partitioned_metadata,
    Command.LOOKUP: lookup.on_lookup,
    Command.GET_TOPICS_OF_NAMESPACE: lookup.on_topics_of_namespace,
    Command.WATCH_TOPIC_LIST: lookup.on_watch,
    Command.WATCH_TOPIC_LIST_CLOSE: lookup.on_watch_close,
    Command.PRODUCER: producing.on_producer,
    Command.CLOSE_PRODUCER: producing.on_close_producer,
    Command.SUBSCRIBE: consuming.on_subscribe,
    Command.FLOW: consuming.on_flow,
    Command.ACK: consuming.on_ack,
    Command.REDELIVER_UNACKNOWLEDGED_MESSAGES: consuming.on_redeliver,
    Command.UNSUBSCRIBE: consuming.on_unsubscribe,
    Command.SEEK: consuming.on_seek,
    Command.GET_LAST_MESSAGE_ID: consuming.on_last_message_id,
    Command.CONSUMER_STATS: consuming.on_consumer_stats,
    Command.CLOSE_CONSUMER: consuming.on_close_consumer,
    Command.GET_SCHEMA: schema_commands.on_get_schema,
    Command.GET_OR_CREATE_SCHEMA: schema_commands.on_get_or_create_schema,
    **dict.fromkeys(TRANSACTION_BODIES, _on_transaction),
}
"""What a connected client may send. Anything else closes the connection."""
