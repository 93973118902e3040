"""One client connection: from CONNECT to its end.

The session's states and what each command may do in them:

====================  =========================  =====================================
state                 CONNECT                    other commands
====================  =========================  =====================================
CONNECTING            CONNECTED, or closed       PING is answered, PONG is taken; else closed
CONNECTED             closed                     handled; unknown ones close the connection
CLOSED                nothing is read any more   nothing is read any more
====================  =========================  =====================================

A peer that breaks a rule loses its connection, and nobody else notices.

One that hangs up may have asked for more than there was time for until then. What it wants no answer to is
still done, acknowledgements above all: they would come again. That takes its turns like everybody's work.
Whoever wants a place that it holds waits until that is done: it may be the same client, which comes back.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain

from geminga.broker.commands import answers
from geminga.broker.commands.credentials import PeerIdentity
from geminga.broker.commands.handles import Handles
from geminga.broker.commands.last_message_id import LastMessageRequests
from geminga.broker.commands.probing import LivenessProbes
from geminga.broker.commands.services import Services
from geminga.broker.commands.watchers import TopicListWatcher
from geminga.broker.cooperative import DONE, SUSPENDED, Job
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.memory_backpressure import COUNTED_BYTES, HELD_BY_PENDING, HELD_BY_RATE, HELD_BY_WORK
from geminga.broker.peer import PeerOutput, RateHold
from geminga.broker.refusal import ProtocolViolation, Refused
from geminga.broker.rules.authentication import Authenticator
from geminga.broker.scheduler import Timer
from geminga.broker.topics.producer import Producer
from geminga.by_fields import ByFields
from geminga.errors import ProtocolError, StoreError
from geminga.ledger.api import Buffer, Done
from geminga.wire.acks import AckFrame
from geminga.wire.broker_frames import BrokerFrameDecoder
from geminga.wire.frames import FRAME_PADDING, PROTOCOL_VERSION, SEND, SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun

Command = pb.BaseCommand
Handler = Callable[["Session", pb.BaseCommand], Job | None]
"""What takes long is returned as a job; the peer's next command waits for its end."""

_QUICK = frozenset((Command.PING, Command.PONG, Command.FLOW, Command.ACK, SEND))
"""One of these is done even when a turn's time is used up, so that a calm peer does not wait for others."""
_CALM = frozenset((Command.PING, Command.PONG))
"""Whoever sends nothing else has nothing written, and is read from although the store is behind."""
_UNANSWERED = frozenset(
    (Command.ACK, SEND, Command.CLOSE_PRODUCER, Command.CLOSE_CONSUMER, Command.UNSUBSCRIBE)
)
"""What is still done for a peer that has hung up. Everything else asks for something, or opens it; a SEEK is
asked for again by whoever does not hear that it was done, and what its consumer sent behind it is meant for
the new place."""
LINGER_SECONDS = 10.0
"""What a peer that hung up had sent is worked on for so long at most: limits, and the disk, may hold it."""
FRAMES_AT_ONCE = 256
"""Frames that are decoded before it is looked whether the turn's time is used up."""
RECENTLY_CLOSED_SECONDS = 30.0
RECENTLY_CLOSED_MAX = 1_000
"""SENDs of producers that the broker itself closed are dropped silently for this long, for so many."""
RATE_LOOK_SECONDS = 1.0
"""A peer that is slowed down is looked at this often at least: its limit may be another one by then."""
PONG_SECONDS = 10.0
"""A peer that is not read from is sent a PONG this often: its PING may wait behind what is not read yet."""
_VERSION_ACTIVE_CONSUMER_CHANGE = 12
_VERSION_END_OF_TOPIC = 9


class SessionState(Enum):
    """See the table in the module's text."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CommandTable(ByFields):
    """Who answers what. The busiest commands, SEND and the ACK of one entry, have places of their own."""

    on_send: Callable[[Session, SendFrame], None]
    on_send_run: Callable[[Session, SendRun], None]
    on_single_ack: Callable[[Session, AckFrame], None]
    handlers: Mapping[int, Handler]


class Session:
    """``receive`` takes what came in; answers leave through ``output``. To topics it is a `Peer`."""

    __slots__ = (
        "_bytes",
        "_certificate_name",
        "_complain",
        "_contact",
        "_counted",
        "_frames_at_once",
        "_handshake",
        "_held_at",
        "_holds",
        "_is_calm",
        "_keepalive",
        "_late",
        "_leaving",
        "_linger",
        "_ping_pending",
        "_probes",
        "_rate_timer",
        "_recently_closed",
        "_slices",
        "_slowed",
        "_suspended",
        "_table",
        "_work",
        "address",
        "client_version",
        "consumers",
        "decoder",
        "identity",
        "is_cpp_client",
        "last_message_questions",
        "output",
        "pending_bytes",
        "producers",
        "protocol_version",
        "scheduler",
        "services",
        "state",
        "watchers",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        table: CommandTable,
        output: PeerOutput,
        address: str,
        certificate_name: str | None = None,
    ) -> None:
        """``certificate_name`` is whom the peer's TLS certificate names, verified."""
        self.services = services
        self.identity: PeerIdentity | None = None
        self._certificate_name = certificate_name
        self._bytes = services.bytes
        self._complain = services.rate_limited_log.tell
        self._slices = services.slices
        self.scheduler = services.scheduler
        self.output = output
        self.address = address
        self.state = SessionState.CONNECTING
        self.decoder = BrokerFrameDecoder(services.settings.handshake_bytes_max)
        self.client_version = ""
        self.is_cpp_client = False
        self.protocol_version = 0
        self.producers: Handles[Producer] = Handles()
        self.consumers: Handles[Consumer] = Handles()
        self.watchers: dict[int, TopicListWatcher] = {}
        self.last_message_questions: dict[Consumer, LastMessageRequests] = {}
        self.pending_bytes = 0
        self._table = table
        self._holds = 0
        self._work: Job | None = None
        self._late: deque[Buffer] = deque()
        self._suspended = False
        self._counted = False
        self._recently_closed: OrderedDict[int, float] = OrderedDict()
        self._ping_pending = False
        self._probes = LivenessProbes(self.scheduler, self._slices)
        self._handshake: Timer | None = self.scheduler.after(
            services.settings.handshake_seconds, self._handshake_expired, self
        )
        self._keepalive: Timer | None = None
        self._frames_at_once = FRAMES_AT_ONCE
        self._slowed: list[RateHold] = []
        self._rate_timer: Timer | None = None
        self._contact: Timer | None = None
        self._held_at = 0.0
        self._linger: Timer | None = None
        """Runs from when the peer hung up while there was work of it."""
        self._leaving: Job | None = None
        self._is_calm = True
        services.peers.add(self)

    def __repr__(self) -> str:
        return f"Session({self.address}, {self.client_version or 'not connected'}, {self.state.value})"

    # --- from the shell ---
    def receive(self, data: Buffer, now: float, now_ms: int) -> None:
        """Bytes from the peer. Whatever is wrong with them ends this connection only."""
        if self.state is SessionState.CLOSED:
            return
        scheduler = self.scheduler
        scheduler.enter(now, now_ms)
        self._ping_pending = False
        try:
            if self._probes:
                self._slices.start(self._probes.answer(self), self)
            if self._work is not None:
                self._late.append(data)
            else:
                self._is_calm = True
                work = self._handle_frames(data)
                outcome = self._slices.first_step(work, self)
                if outcome is not DONE:
                    # Not all could be done in this turn, or the peer does not read its answers.
                    self._work = work
                    self.hold(HELD_BY_WORK)
                    if outcome is not SUSPENDED:
                        self._slices.start(work, self)
            self._count_received()
            if not self._is_calm and self._bytes.is_behind():
                self._hold_back()
        finally:
            scheduler.leave()

    def _handle_frames(self, data: Buffer) -> Job:
        """A job: do what the peer's bytes ask for, as far as a turn's time and the peer's reading allow."""
        try:
            yield from self._frames(data)
        except Exception as error:
            self._failed(error)
        if self.has_gone:
            self.close()
        elif self._work is not None:
            self._work = None
            self._count_received()
            self.release(HELD_BY_WORK)

    def _failed(self, error: Exception) -> None:
        """What the peer asked for raised something: its connection ends."""
        if isinstance(error, (ProtocolError, ProtocolViolation)):
            error.__traceback__ = None  # its frames hold what was received
            self._complain("%s: connection closed: %s", self, error)
        elif isinstance(error, StoreError):
            self._complain("%s: connection closed: the store failed: %s", self, error, level=logging.ERROR)
        else:
            # A fault of ours in one session: the peer may come back, the others go on. Its port is left
            # out, so that a peer that finds such a fault does not fill the log with it.
            host = self.address.rpartition(":")[0]
            self.scheduler.failed("session", f"connection from {host}", error)
        self.close()

    def later(self, command: Done) -> Done:
        """The rest of a command, which goes on when something was waited for: as if the peer asked just then.

        Nothing is done for a peer that has gone. Other commands are done meanwhile, PINGs above all.
        """

        def go_on(error: StoreError | None) -> None:
            if not self.has_gone:
                try:
                    command(error)
                except Exception as problem:
                    self._failed(problem)

        return go_on

    def _frames(self, data: Buffer) -> Job:
        decoder, slices, output, late = self.decoder, self._slices, self.output, self._late
        table, connected = self._table, SessionState.CONNECTED
        # Whether that is enough for this turn is looked at only when there is more to do.
        should_yield, look, handled, has_gone = False, True, False, False
        while True:
            # Until CONNECT is answered, the next frame may be no larger than a handshake.
            for frame in decoder.feed(data, self._frames_at_once if self.state is connected else 1):
                kind = frame.type
                if handled or kind not in _QUICK:
                    if look:
                        unread = handled and not (output.writable or has_gone)
                        should_yield = unread or (slices.should_yield if handled else slices.over)
                        look = False
                    if should_yield:
                        yield self._wait()
                        should_yield, has_gone = False, self.has_gone
                        if self.state is SessionState.CLOSED:
                            return
                if has_gone and kind not in _UNANSWERED:
                    if kind == Command.SEEK:
                        self._close_consumer(frame.command.seek.consumer_id)
                    continue
                handled = True
                if kind == SEND:
                    if self.state is not connected:
                        raise ProtocolViolation("SEND before CONNECT")
                    self._is_calm = False
                    if type(frame) is SendRun:
                        table.on_send_run(self, frame)
                    else:
                        table.on_send(self, frame)  # type: ignore[arg-type]
                elif type(frame) is AckFrame and self.state is connected:
                    self._is_calm = False
                    table.on_single_ack(self, frame)
                    look = True
                else:
                    job = self._handle(kind, frame.command)
                    if job is not None:
                        for is_parked in job:
                            yield is_parked or self._wait()
                            if self.state is SessionState.CLOSED:
                                return
                            has_gone = self.has_gone
                            if has_gone:
                                job.close()
                    look = True
                if self.state is SessionState.CLOSED:
                    return
            if decoder.error is not None:
                raise decoder.error
            if decoder.unread_size:
                data = b""
            elif late:
                data = late.popleft()
            else:
                return
            should_yield, look = should_yield or self._blocked or slices.should_yield, False

    @property
    def _blocked(self) -> bool:
        """Whether nothing is done for this peer: it does not read, or has too much under way."""
        if self._holds & (HELD_BY_PENDING | HELD_BY_RATE):
            return True
        return not (self.output.writable or self.has_gone)

    @property
    def has_gone(self) -> bool:
        """Whether nobody is there any more. What the peer had sent may still be worked on."""
        return self._linger is not None or self.state is SessionState.CLOSED

    def _close_consumer(self, consumer_id: int) -> None:
        consumer = self.consumers.take(consumer_id)
        if consumer is not None:
            consumer.subscription.remove(consumer)

    def _wait(self) -> bool:
        """What the job yields when it is not done: whether a new turn is not enough to go on."""
        self._suspended = self._blocked
        return self._suspended

    def _go_on(self) -> None:
        """Go on with what the peer asked for, if it was parked and need not be any more."""
        if self._suspended and self._work is not None and not self._blocked:
            self._suspended = False
            self._slices.start(self._work, self)

    def _count_received(self) -> None:
        size = self.decoder.held_size
        if self._late:
            size += sum(map(len, self._late))
        if size > COUNTED_BYTES or self._counted:
            self._counted = size > COUNTED_BYTES
            self._bytes.received(self, size)

    def hung_up(self, now: float) -> None:
        """The peer has ended the connection. The output is closed when all is done that it had sent."""
        self.scheduler.enter(now)
        try:
            if self._work is None or self.state is not SessionState.CONNECTED:
                self._end()
                return
            self._linger = self.scheduler.after(LINGER_SECONDS, self.close, self)
            self.services.gone.add(self)
            for timer in (self._keepalive, self._contact):
                if timer is not None:
                    timer.cancel()
            self._go_on()
        finally:
            self.scheduler.leave()

    def closed(self, now: float) -> None:
        """The connection is gone, and not because its peer wanted that: nothing more is done for it."""
        self.scheduler.enter(now)
        try:
            self._end()
        finally:
            self.scheduler.leave()

    def writable_again(self, now: float) -> None:
        """The peer has read enough: dispatch to its consumers goes on."""
        self.scheduler.enter(now)
        try:
            for consumer in list(self.consumers.values()):
                subscription = consumer.subscription
                self.scheduler.isolated("dispatch", subscription, subscription.dispatch)
            self._go_on()
        finally:
            self.scheduler.leave()

    # --- life ---
    def close(self) -> None:
        """End the connection from this side; what was written still goes out."""
        if self.state is not SessionState.CLOSED:
            self._end()
            self.output.close()

    def _end(self) -> None:
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        self.services.gone.add(self)
        for timer in (self._handshake, self._keepalive, self._rate_timer, self._contact, self._linger):
            if timer is not None:
                timer.cancel()
        if self.identity is not None:
            self.identity.end()
        self._bytes.forget(self)
        self._work = None
        self._late.clear()
        self.last_message_questions.clear()
        leaving = self._leaving = self._leave()
        if self._slices.first_step(leaving, self) is not DONE:
            self._slices.start(leaving, self)

    def _leave(self) -> Job:
        """A job: end what the peer had open, which may be tens of thousands of producers and consumers."""
        watchers, self.watchers = self.watchers, {}
        ends = chain[Callable[[], object]](
            (each.close for each in watchers.values()),
            (partial(each.topic.remove_producer, each) for each in self.producers.take_all()),
            (partial(each.subscription.remove, each) for each in self.consumers.take_all()),
        )
        for end in ends:
            self.scheduler.isolated("session", self, end)
            if self._slices.should_yield:
                yield None
        self.services.peers.discard(self)
        self.services.gone.discard(self)
        yield from self._probes.answer(self)
        self._leaving = None

    def end_at_once(self) -> None:
        """The broker ends: so does all that the peer has open, and nobody else has a turn before."""
        self.close()
        leaving, self._leaving = self._leaving, None
        for _ in leaving or ():
            pass

    def _handshake_expired(self) -> None:
        self._handshake = None
        if self.state is SessionState.CONNECTING:
            self._complain("%s: connection closed: no CONNECT in time", self)
            self.close()

    def _keepalive_due(self) -> None:
        if self._ping_pending and not self._unheard:
            self._complain("%s: connection closed: the peer has been silent for too long", self)
            self.close()
            return
        if self.protocol_version >= 1:
            self._ping_pending = True
            self.output.write(answers.PING)
        self._arm_keepalive()

    def _arm_keepalive(self) -> None:
        seconds = self.services.settings.keepalive_seconds
        self._keepalive = self.scheduler.after(seconds, self._keepalive_due, self)

    def probe(self, decided: Callable[[], None]) -> None:
        """Find out whether the peer lives: ``decided`` runs when it spoke, or was dropped for silence.

        For one that has gone it runs when nothing is done for it any more, after as long at most.
        """
        if self._unheard or self not in self.services.peers:
            # We would not hear it: nobody is dropped because the store is slow. Or it has nothing any more.
            decided()
            return
        if not self._probes:
            self.output.write(answers.PING)
        self._probes.add(decided, self._probe_expired, self)

    def _probe_expired(self) -> None:
        if not self.has_gone:
            self._complain("%s: connection closed: no answer, and somebody waits for its place", self)
        self.close()

    # --- commands ---
    def _handle(self, kind: int, command: pb.BaseCommand) -> Job | None:
        if self.state is SessionState.CONNECTING and kind not in (
            Command.CONNECT,
            Command.PING,
            Command.PONG,
        ):
            raise ProtocolViolation(f"{_name(kind)} before CONNECT")
        handler = self._table.handlers.get(kind)
        if handler is None:
            raise ProtocolViolation(f"{_name(kind)} is not for a broker")
        if kind not in _CALM:
            self._is_calm = False
        return handler(self, command)

    def connect(self, command: pb.BaseCommand) -> Job | None:
        """CONNECT: once, and first."""
        if self.state is SessionState.CONNECTED:
            raise ProtocolViolation("a second CONNECT")
        if self.services.authentication is not None:
            return self._prove(command.connect, self.services.authentication)
        self._let_in(command.connect)
        return None

    def _let_in(self, body: pb.CommandConnect) -> None:
        self.state = SessionState.CONNECTED
        self.decoder.max_frame_size = self.services.settings.max_message_size + FRAME_PADDING
        self.client_version = body.client_version
        self.is_cpp_client = body.client_version.startswith("Pulsar-CPP")
        self.protocol_version = body.protocol_version
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None
        services, version = self.services, min(body.protocol_version, PROTOCOL_VERSION)
        self.output.write(
            answers.connected(version, services.settings, services.version, services.instance_id)
        )
        self._arm_keepalive()

    def _prove(self, body: pb.CommandConnect, authentication: Authenticator) -> Job:
        """A job: find out who the peer is; one that cannot prove it hears so and is closed."""
        identity = PeerIdentity(
            authentication,
            self.scheduler,
            self._slices,
            self.output,
            self.services.settings.authentication_refresh_seconds,
            self._close_because,
            self.address.rpartition(":")[0],
            self._certificate_name,
        )
        try:
            yield from identity.connect(body)
        except Refused as refused:
            self._turn_away(refused)
            return
        self.identity = identity
        self._let_in(body)

    def respond(self, command: pb.BaseCommand) -> Job:
        """AUTH_RESPONSE: fresh credentials. Nothing is answered when they are good."""
        if self.identity is None:
            raise ProtocolViolation("AUTH_RESPONSE without authentication")
        try:
            yield from self.identity.respond(command.authResponse)
        except Refused as refused:
            self._turn_away(refused)

    def _turn_away(self, refused: Refused) -> None:
        self.output.write(answers.error(answers.UNSOLICITED, refused.code, refused.reason))
        self._close_because(str(refused))

    def _close_because(self, why: str) -> None:
        self._complain("%s: connection closed: %s", self, why)
        self.close()

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
        over = own >= ledger.pending_bytes_per_peer_max or total >= ledger.pending_bytes_max
        if over and not self._holds & HELD_BY_PENDING:
            ledger.pause(self)

    def publish_finished(self, size: int) -> None:
        self.pending_bytes -= size
        self._bytes.pending_bytes -= size

    def _hold_back(self) -> None:
        """The store cannot save as fast as peers change it."""
        if self.state is not SessionState.CLOSED:
            self._bytes.pause(self)

    @property
    def is_read(self) -> bool:
        """Whether what the peer sends comes in."""
        return not self._holds and self.output.writable

    @property
    def _unheard(self) -> bool:
        """Whether the peer's silence says nothing, since we do not listen to it although it reads."""
        return self._holds != 0 and self.output.writable and not self.has_gone

    def hold(self, why: int) -> None:
        """Do not read from the peer, for one more reason."""
        if not self._holds:
            self.output.pause_reading()
            self._held_at = self.scheduler.now
            if self._contact is None:
                self._contact = self.scheduler.after(PONG_SECONDS, self._stay_in_contact, self)
        self._holds |= why

    def _stay_in_contact(self) -> None:
        """Looks every while; a peer that is held now and then for a moment is told nothing."""
        self._contact = None
        if not self._holds:
            return
        rest = self._held_at + PONG_SECONDS - self.scheduler.now
        if rest <= 0:
            rest, self._held_at = PONG_SECONDS, self.scheduler.now
            if self._unheard:
                self.output.write(answers.PONG)
        self._contact = self.scheduler.after(rest, self._stay_in_contact, self)

    def slow_down(self, limit: RateHold) -> None:
        """Do not read from the peer until ``limit`` lets it go on; its producers wait, nothing fails.

        From then on its frames are decoded one by one, so that no heap of them passes at once.
        """
        if self.state is SessionState.CLOSED:
            return
        if limit not in self._slowed:
            self._slowed.append(limit)
        if self._rate_timer is None:
            self._frames_at_once = 1
            self.hold(HELD_BY_RATE)
            self._arm_rate(limit.wait(self.scheduler.now))

    def _arm_rate(self, seconds: float) -> None:
        self._rate_timer = self.scheduler.after(min(seconds, RATE_LOOK_SECONDS), self._rate_due, self)

    def _rate_due(self) -> None:
        self._rate_timer = None
        now = self.scheduler.now
        seconds = max(limit.wait(now) for limit in self._slowed)
        if seconds > 0:
            self._arm_rate(seconds)
        else:
            self._slowed.clear()
            self.release(HELD_BY_RATE)

    def release(self, why: int) -> None:
        """One reason less; read on when it was the last."""
        if self._holds & why:
            self._holds &= ~why
            if self.state is not SessionState.CLOSED:
                if not self._holds:
                    self.output.resume_reading()
                self._go_on()

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
            if self.state is not SessionState.CLOSED:
                self.output.write(answers.close_producer(producer_id))

    def producer_lost(self, producer_id: int, producer: object) -> None:
        self.producers.drop(producer_id, producer)

    def _remember_closed(self, producer_id: int) -> None:
        recent = self._recently_closed
        recent[producer_id] = self.scheduler.now
        recent.move_to_end(producer_id)
        if len(recent) > RECENTLY_CLOSED_MAX:
            recent.popitem(last=False)

    def was_recently_closed(self, producer_id: int) -> bool:
        """Whether the broker closed this producer a moment ago: SENDs may have crossed that."""
        when = self._recently_closed.get(producer_id)
        return when is not None and self.scheduler.now - when <= RECENTLY_CLOSED_SECONDS

    def consumer_closed(self, consumer_id: int, consumer: object) -> None:
        """The broker closes a consumer: the client looks the topic up again."""
        if self.consumers.drop(consumer_id, consumer) and self.state is not SessionState.CLOSED:
            self.output.write(answers.close_consumer(consumer_id))


def _name(kind: int) -> str:
    return pb.BaseCommand.Type.Name(kind)
