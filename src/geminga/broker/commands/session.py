"""One client connection: from CONNECT to its end.

States of a session and the commands allowed in them:

====================  =========================  =====================================
state                 CONNECT                    other commands
====================  =========================  =====================================
CONNECTING            CONNECTED, or closed       PING and PONG are handled; else closed
CONNECTED             closed                     handled; unknown ones close the connection
CLOSED                nothing is read            nothing is read
====================  =========================  =====================================

A protocol violation closes the connection; other connections are not affected. The peer's producers and
consumers are closed in turn with other work. Clients that need a producer name or a subscription of a peer
that has disconnected wait for that: it is often the same client reconnecting.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any

from geminga.broker.commands import answers
from geminga.broker.commands.credentials import PeerIdentity
from geminga.broker.commands.handles import Handles
from geminga.broker.commands.probing import LivenessProbes
from geminga.broker.commands.services import Services
from geminga.broker.commands.watchers import TopicListWatcher
from geminga.broker.delivery.consumer import Consumer
from geminga.broker.rules.authentication import Authenticator
from geminga.broker.runtime.cooperative import DONE, SUSPENDED, Job
from geminga.broker.runtime.memory_backpressure import (
    COUNTED_BYTES,
    HELD_BY_PENDING,
    HELD_BY_RATE,
    HELD_BY_WORK,
)
from geminga.broker.runtime.peer import PeerOutput, RateHold
from geminga.broker.runtime.refusal import ProtocolViolation, Refused, storage_refusal
from geminga.broker.runtime.scheduler import Timer
from geminga.broker.topics.producer import Producer
from geminga.errors import ProtocolError, StoreError
from geminga.ledger.api import Buffer, Done
from geminga.transactions import TransactionId
from geminga.wire.broker_frames import BrokerFrameDecoder
from geminga.wire.frames import FRAME_PADDING, PROTOCOL_VERSION, SEND, SendFrame
from geminga.wire.proto import pulsar_wire_pb2 as pb
from geminga.wire.send_runs import SendRun

Command = pb.BaseCommand
Handler = Callable[["Session", pb.BaseCommand], Job | None]
"""A long command returns a job; the peer's next command waits for its end."""

FRAMES_AT_ONCE = 256
"""Frames that are decoded between two checks of the turn's time."""
RECENTLY_CLOSED_SECONDS = 30.0
RECENTLY_CLOSED_MAX = 1_000
"""SENDs of producers closed by the broker are ignored for this many seconds, for this number of producers."""
RATE_LOOK_SECONDS = 1.0
"""Longest interval of checks of a throttled peer: its limit may have changed."""
PONG_SECONDS = 10.0
"""Interval of PONGs to a peer that is not read from: its PING may be among the unread bytes."""
_VERSION_ACTIVE_CONSUMER_CHANGE = 12
_VERSION_END_OF_TOPIC = 9


class SessionState(Enum):
    """State of a session, see the module's table."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Handlers of commands. The most frequent, SEND, has its own fields."""

    on_send: Callable[[Session, SendFrame], None]
    on_send_run: Callable[[Session, SendRun], None]
    handlers: Mapping[int, Handler]
    before_connect: frozenset[int]
    """Commands with this field in `geminga.broker.commands.table.CommandSpec`; the next three likewise."""
    quick: frozenset[int]
    calm: frozenset[int]


class Session:
    """Session of a connection. ``receive`` handles bytes, ``output`` takes answers; implements `Peer`."""

    __slots__ = (
        "_backpressure", "_certificate_name", "_contact", "_counted", "_frames_at_once", "_handshake",
        "_held_at", "_holds", "_is_calm", "_keepalive", "_late", "_leaving", "_log_limited",
        "_ping_pending", "_probes", "_rate_timer", "_recently_closed", "_slices", "_slowed", "_suspended",
        "_table", "_work", "address", "answered_end", "client_version", "consumers", "decoder", "identity",
        "is_cpp_client", "last_message_requests", "output", "pending_bytes", "producers", "protocol_version",
        "scheduler", "services", "state", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        table: CommandTable,
        output: PeerOutput,
        address: str,
        certificate_name: str | None = None,
    ) -> None:
        """``certificate_name`` is the verified common name of the peer's TLS certificate."""
        self.services = services
        self.identity: PeerIdentity | None = None
        self._certificate_name = certificate_name
        self._backpressure = services.backpressure
        self._log_limited = services.rate_limited_log.log
        self._slices = services.slices
        self.scheduler = services.scheduler
        self.output = output
        self.address = address
        self.state = SessionState.CONNECTING
        self.decoder = BrokerFrameDecoder(services.settings.handshake_bytes_max)
        self.client_version = ""
        self.is_cpp_client = False
        self.protocol_version = 0
        self.producers: Handles[Producer] = Handles(services.backpressure)
        self.consumers: Handles[Consumer] = Handles(services.backpressure)
        self.watchers: dict[int, TopicListWatcher] = {}
        self.last_message_requests: dict[Consumer, list[int]] = {}
        """Unanswered requests of consumers, while the entry is read."""
        self.answered_end: TransactionId | None = None
        """The last transaction whose end was answered without delay."""
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
        self._leaving: Job | None = None
        self._is_calm = True
        services.peers.add(self)

    def __repr__(self) -> str:
        return f"Session({self.address}, {self.client_version or 'not connected'}, {self.state.value})"

    # --- from the shell ---
    def receive(self, data: Buffer, now: float, now_ms: int) -> None:
        """Handle bytes from the peer. Errors in them end this connection only."""
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
            if not self._is_calm and self._backpressure.is_behind() and not self.has_gone:
                self._backpressure.pause(self)  # the store cannot save as fast as peers send
        finally:
            scheduler.leave()

    def _handle_frames(self, data: Buffer) -> Job:
        """Return a job that handles the peer's commands, within a turn's time and while the peer reads."""
        try:
            yield from self._frames(data)
        except Exception as error:
            self._failed(error)
        if self._work is not None:
            self._work = None
            self._count_received()
            self.release(HELD_BY_WORK)

    def _failed(self, error: Exception) -> None:
        """Close the connection after an exception in a command."""
        if isinstance(error, (ProtocolError, ProtocolViolation)):
            error.__traceback__ = None  # its frames reference received data
            self._log_limited("%s: connection closed: %s", self, error)
        elif isinstance(error, StoreError):
            self._log_limited("%s: connection closed: the store failed: %s", self, error, level=logging.ERROR)
        else:
            # A bug in one session: the peer may reconnect, other sessions continue. Its port is left out, so
            # that a peer that triggers such a bug does not fill the log.
            host = self.address.rpartition(":")[0]
            self.scheduler.failed("session", f"connection from {host}", error)
        self.close()

    def later(self, command: Done) -> Done:
        """Return the rest of a command as a callback, run as if the peer had just sent it.

        Nothing is done for a peer that has gone. Other commands, above all PINGs, are handled meanwhile.
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
        quick = table.quick
        # The turn's time is checked only when there is more to do.
        should_yield, check_due, handled = False, True, False
        while True:
            # Until CONNECT is answered, the next frame may be no larger than a handshake.
            for frame in decoder.feed(data, self._frames_at_once if self.state is connected else 1):
                kind = frame.type
                if handled or kind not in quick:
                    if check_due:
                        unread = handled and not output.writable
                        should_yield = unread or (slices.should_yield if handled else slices.turn_used_up)
                        check_due = False
                    if should_yield:
                        yield self._wait()
                        should_yield = False
                        if self.state is SessionState.CLOSED:
                            return
                handled = True
                if kind == SEND:
                    if self.state is not connected:
                        raise ProtocolViolation("SEND before CONNECT")
                    self._is_calm = False
                    if type(frame) is SendRun:
                        table.on_send_run(self, frame)
                    else:
                        table.on_send(self, frame)  # type: ignore[arg-type]
                else:
                    job = self._handle(kind, frame.command)
                    if job is not None:
                        for is_parked in job:
                            yield is_parked or self._wait()
                            if self.state is SessionState.CLOSED:
                                return
                    check_due = True
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
            should_yield, check_due = should_yield or self._blocked or slices.should_yield, False

    @property
    def _blocked(self) -> bool:
        """Whether nothing is done for this peer: it does not read, or has too many pending entries."""
        return bool(self._holds & (HELD_BY_PENDING | HELD_BY_RATE)) or not self.output.writable

    @property
    def has_gone(self) -> bool:
        """Whether the connection has ended."""
        return self.state is SessionState.CLOSED

    def _wait(self) -> bool:
        """Return the value that an unfinished job yields: whether it is suspended until `_go_on`."""
        self._suspended = self._blocked
        return self._suspended

    def _go_on(self) -> None:
        """Resume the peer's job if it was suspended and may continue."""
        if self._suspended and self._work is not None and not self._blocked:
            self._suspended = False
            self._slices.start(self._work, self)

    def _count_received(self) -> None:
        size = self.decoder.pending_size + self.decoder.unread_size
        if self._late:
            size += sum(map(len, self._late))
        if (size > COUNTED_BYTES or self._counted) and not self.has_gone:
            self._counted = size > COUNTED_BYTES
            self._backpressure.received(self, size)

    def closed(self, now: float) -> None:
        """Handle the end of the connection: nothing more is done for its peer."""
        self.scheduler.enter(now)
        try:
            self._end()
        finally:
            self.scheduler.leave()

    def writable_again(self, now: float) -> None:
        """Resume dispatching, at first to all consumers of a subscription: the peer has read enough."""
        self.scheduler.enter(now)
        try:
            for consumer in self.consumers.values():
                consumer.subscription.writable_again(consumer)
            for subscription in {each.subscription: None for each in self.consumers.values()}:
                self.scheduler.isolated("dispatch", subscription, subscription.dispatch)
            self._go_on()
        finally:
            self.scheduler.leave()

    # --- life ---
    def close(self) -> None:
        """End the connection from this side; written bytes are still sent."""
        if self.state is not SessionState.CLOSED:
            self._end()
            self.output.close()

    def _end(self) -> None:
        if self.state is SessionState.CLOSED:
            return
        self.state = SessionState.CLOSED
        self.services.gone.add(self)
        for timer in (self._handshake, self._keepalive, self._rate_timer, self._contact):
            if timer is not None:
                timer.cancel()
        if self.identity is not None:
            self.identity.end()
        self._backpressure.forget(self)
        self._work = None
        self._late.clear()
        self.last_message_requests.clear()
        self._leaving = self._leave()
        self._slices.run(self._leaving, self)

    def _leave(self) -> Job:
        """Return a job that closes the peer's producers and consumers, possibly tens of thousands."""
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
        """Close all handles of the peer at once, without other work in between, because the broker ends."""
        self.close()
        leaving, self._leaving = self._leaving, None
        for _ in leaving or ():
            pass

    def _handshake_expired(self) -> None:
        self._handshake = None
        if self.state is SessionState.CONNECTING:
            self._log_limited("%s: connection closed: no CONNECT in time", self)
            self.close()

    def _keepalive_due(self) -> None:
        if self._ping_pending and not self._unheard:
            self._log_limited("%s: connection closed: the peer has been silent for too long", self)
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
        """Find out whether the peer lives: ``decided`` is called after it spoke, or was dropped for silence.

        For a disconnected peer it is called after the last of its producers and consumers is closed.
        """
        if self._unheard or self not in self.services.peers:
            # A PING would not be read, because the store is slow; or the peer has no handles any more.
            decided()
            return
        if not self._probes:
            self.output.write(answers.PING)
        self._probes.add(decided, self._probe_expired, self)

    def _probe_expired(self) -> None:
        if not self.has_gone:
            self._log_limited("%s: connection closed: no answer; another client waits to replace it", self)
        self.close()

    # --- commands ---
    def _handle(self, kind: int, command: pb.BaseCommand) -> Job | None:
        if self.state is SessionState.CONNECTING and kind not in self._table.before_connect:
            raise ProtocolViolation(f"{_name(kind)} before CONNECT")
        handler = self._table.handlers.get(kind)
        if handler is None:
            raise ProtocolViolation(f"{_name(kind)} is not for a broker")
        if kind not in self._table.calm:
            self._is_calm = False
        return handler(self, command)

    def connect(self, command: pb.BaseCommand) -> Job | None:
        """Handle CONNECT, which must be the first command, and sent once."""
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
        services.audit.connected(self.log_fields, self.client_version[:100])

    def _prove(self, body: pb.CommandConnect, authentication: Authenticator) -> Job:
        """Return a job that authenticates the peer; after a failure it is notified and closed."""
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
        """Handle AUTH_RESPONSE: fresh credentials. Valid ones are not answered."""
        if self.identity is None:
            raise ProtocolViolation("AUTH_RESPONSE without authentication")
        try:
            yield from self.identity.respond(command.authResponse)
        except Refused as refused:
            self._turn_away(refused)

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the peer and its role for logs."""
        identity = self.identity
        return {"connection": self.address} | ({"role": identity.principal.role} if identity else {})

    def _turn_away(self, refused: Refused) -> None:
        self.services.audit.failures["binary"] += 1
        self.services.audit.command(self.log_fields, "connect", "", refused.code)
        self.refuse(answers.UNSOLICITED, refused)
        self._close_because(str(refused))

    def _close_because(self, why: str) -> None:
        self._log_limited("%s: connection closed: %s", self, why)
        self.close()

    def answer(self, field: str, **values: Any) -> None:
        """Send a command by its field of `BaseCommand`; see `geminga.broker.commands.answers.frame`."""
        self.output.write(answers.frame(field, **values))

    def refuse(self, request_id: int, refused: Refused, field: str = "error") -> None:
        """Answer a request with an error, in an ERROR or in the answer ``field``."""
        self.output.write(answers.refusal(field, request_id, refused))

    @contextlib.contextmanager
    def answering_refusals(self, request_id: int, field: str = "error") -> Iterator[None]:
        """Answer a request with the `Refused` or `StoreError` that is raised inside, by `refuse`."""
        try:
            yield
        except Refused as refused:
            self.refuse(request_id, refused, field)
        except StoreError as error:
            self.refuse(request_id, storage_refusal(error), field)

    @property
    def handle_count(self) -> int:
        return self.producers.count + self.consumers.count + len(self.watchers)

    # --- back-pressure: entries that were taken in and are not durable yet ---
    def publish_started(self, size: int) -> None:
        backpressure = self._backpressure
        own = self.pending_bytes = self.pending_bytes + size
        total = backpressure.pending_bytes = backpressure.pending_bytes + size
        over = own >= backpressure.pending_bytes_per_peer_max or total >= backpressure.pending_bytes_max
        if over and not self._holds & HELD_BY_PENDING:
            backpressure.pause(self)

    def publish_finished(self, size: int) -> None:
        self.pending_bytes -= size
        self._backpressure.pending_bytes -= size

    @property
    def is_read(self) -> bool:
        """Whether the peer's bytes are read."""
        return not self._holds and self.output.writable

    @property
    def _unheard(self) -> bool:
        """Whether the peer is not read from although it reads, so that its silence has no meaning."""
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
        """Send PONGs at intervals to a peer that is not read from for longer than that."""
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
        """Do not read from the peer until ``limit`` allows it; its producers are delayed without errors.

        From then on its frames are decoded one by one, so that no large number of them passes at once.
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
        seconds = max(limit.wait(self.scheduler.now) for limit in self._slowed)
        if seconds > 0:
            self._arm_rate(seconds)
        else:
            self._slowed.clear()
            self.release(HELD_BY_RATE)

    def release(self, why: int) -> None:
        """Remove a reason; read again after the last one."""
        if self._holds & why:
            self._holds &= ~why
            if self.state is not SessionState.CLOSED:
                if not self._holds:
                    self.output.resume_reading()
                self._go_on()

    # --- unsolicited commands to the client ---
    def send_error(self, producer_id: int, sequence_id: int, code: int, reason: str) -> None:
        self.answer(
            "send_error", producer_id=producer_id, sequence_id=sequence_id, error=code, message=reason
        )

    def active_consumer_change(self, consumer_id: int, active: bool) -> None:
        if self.protocol_version >= _VERSION_ACTIVE_CONSUMER_CHANGE:
            self.answer("active_consumer_change", consumer_id=consumer_id, is_active=active)

    def end_of_topic(self, consumer_id: int) -> None:
        """Send nothing: the C++ client (and ``pulsar-client`` on it) has no handler for this command and
        drops its connection over it (framing.md section 9)."""
        if self.protocol_version >= _VERSION_END_OF_TOPIC and not self.is_cpp_client:
            self.answer("reachedEndOfTopic", consumer_id=consumer_id)

    def producer_closed(self, producer_id: int, producer: object) -> None:
        """Notify the client that the broker closed a producer, so that it can look the topic up again."""
        if self.producers.drop(producer_id, producer):
            self._remember_closed(producer_id)
            if self.state is not SessionState.CLOSED:
                self.answer("close_producer", producer_id=producer_id, request_id=answers.UNSOLICITED)

    def producer_lost(self, producer_id: int, producer: object) -> None:
        self.producers.drop(producer_id, producer)

    def _remember_closed(self, producer_id: int) -> None:
        recent = self._recently_closed
        recent[producer_id] = self.scheduler.now
        recent.move_to_end(producer_id)
        if len(recent) > RECENTLY_CLOSED_MAX:
            recent.popitem(last=False)

    def was_recently_closed(self, producer_id: int) -> bool:
        """Return whether the broker closed this producer recently: SENDs may have crossed the notice."""
        when = self._recently_closed.get(producer_id)
        return when is not None and self.scheduler.now - when <= RECENTLY_CLOSED_SECONDS

    def drop_consumer(self, consumer_id: int, consumer: object) -> bool:
        return self.consumers.drop(consumer_id, consumer)

    def consumer_closed(self, consumer_id: int) -> None:
        """Notify the client, unless it has reused the id meanwhile."""
        is_free = consumer_id not in self.consumers and consumer_id not in self.consumers.attempts
        if is_free and self.state is not SessionState.CLOSED:
            self.answer("close_consumer", consumer_id=consumer_id, request_id=answers.UNSOLICITED)


def _name(kind: int) -> str:
    return pb.BaseCommand.Type.Name(kind)
