"""Connections to brokers: opening, sharing, dispatching frames, and coalescing writes.

`BrokerConnection` does the I/O of `connection.core.ClientConnection`; `ConnectionPool` holds one (or
``connections_per_broker``) for each destination. All of it runs on one event loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from geminga.client.io import forks
from geminga.client.io.runtime import on_io_thread
from geminga.client.io.tasks import run_task
from geminga.client.io.tls import CERTIFICATE_ADVICE, lost_text, make_context
from geminga.client.options.settings import ClientSettings
from geminga.connection.addresses import Address
from geminga.connection.authentication import Credentials, CredentialsProvider, obtain
from geminga.connection.core import (
    ClientConnection,
    Connected,
    CredentialsWanted,
    HandleClosed,
    RequestAnswered,
    RequestMustWait,
    RequestTimedOut,
    TopicMoved,
    WatchUpdate,
)
from geminga.connection.lookup import BrokerLocation
from geminga.connection.requests import error_of, explained
from geminga.errors import (
    AlreadyClosed,
    ConnectError,
    ProtocolError,
    PulsarException,
    ServerReportedError,
    Timeout,
)
from geminga.wire.checksum import Buffer
from geminga.wire.client_frames import ReceiptRun
from geminga.wire.frames import Frame, MessageFrame, ReceiptFrame
from geminga.wire.message_runs import MessageRun
from geminga.wire.proto import pulsar_wire_pb2 as pb

logger = logging.getLogger("geminga")

_FRAME_OWNERS: dict[int, tuple[str, bool]] = {
    # type: (sub-message that holds the handle's id, is a producer's)
    pb.BaseCommand.SEND_ERROR: ("send_error", True),
    pb.BaseCommand.ACTIVE_CONSUMER_CHANGE: ("active_consumer_change", False),
    pb.BaseCommand.REACHED_END_OF_TOPIC: ("reachedEndOfTopic", False),
    pb.BaseCommand.ACK_RESPONSE: ("ackResponse", False),
}

WRITE_HIGH_WATER_BYTES = 1 << 20
"""Bytes in the transport above which the connection is not ``writable`` until a quarter is left."""


class FrameReceiver(Protocol):
    """Receiver of a connection's frames: a producer's or consumer's handle."""

    def on_frame(self, frame: Frame) -> None: ...


DetachCallback = Callable[[Exception | None, Address | None], None]
"""Called once with the reason (None: the broker closed the handle) and the new broker, if it named one."""


class BrokerConnection(asyncio.BufferedProtocol):
    """Connection to a broker. Every method runs on the loop's thread.

    ``max_message_size``: bytes, as the broker announced. ``peer``: the address as text. ``writable`` is false
    while the transport holds more than `WRITE_HIGH_WATER_BYTES`.
    """

    def __init__(
        self,
        core: ClientConnection,
        provider: CredentialsProvider,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[BrokerConnection], None],
    ) -> None:
        self.peer = core.peer
        self.closed = False
        self.writable = True
        self.max_message_size = core.max_message_size
        self.only_location: BrokerLocation | None = None
        """Location of all topics, after the answer of one of Geminga's brokers to a lookup."""
        self.ready: asyncio.Future[None] = loop.create_future()
        self._core = core
        self._provider = provider
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._producers: dict[int, FrameReceiver] = {}
        self._consumers: dict[int, FrameReceiver] = {}
        self._detach_callbacks: dict[FrameReceiver, DetachCallback] = {}
        self._ids: dict[FrameReceiver, int] = {}
        self._answers: dict[int, tuple[asyncio.Future[pb.BaseCommand], Callable[[], None] | None]] = {}
        self._topic_watchers: dict[int, Callable[[pb.BaseCommand], None]] = {}
        self.new_request_id: Callable[[], int] = itertools.count().__next__
        """Returns a number that no other request of this connection has."""
        self._outgoing: list[Buffer] = []
        self._flush_scheduled = False
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<BrokerConnection {self.peer} {'closed' if self.closed else self._core.state.value}>"

    @property
    def server_version(self) -> str:
        return self._core.connected.server_version

    @property
    def connected(self) -> pb.CommandConnected:
        """The CONNECTED command that the broker sent."""
        return self._core.connected

    # --- writing ---------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Queue bytes; all bytes queued in a loop iteration are written together."""
        self.write_many([data])

    def write_many(self, data: list[Buffer]) -> None:
        """Queue several pieces in order."""
        self._outgoing.extend(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_now(self, data: list[Buffer]) -> None:
        """Write several pieces, and what is queued before them, at once."""
        self._outgoing.extend(data)
        self._flush()

    async def drain(self) -> None:
        """Wait until the connection is writable. Raises `ConnectError` if it ends meanwhile."""
        while not self.writable and not self.closed:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)
        if self.closed:
            raise self._lost_error()

    def _flush(self) -> None:
        self._flush_scheduled = False
        outgoing = self._outgoing
        if not outgoing:
            return
        self._outgoing = []
        transport = self._transport
        # uvloop's transport raises if the connection is lost before connection_lost was called.
        if transport is not None and not self.closed and not transport.is_closing():
            if len(outgoing) == 1:
                transport.write(outgoing[0])
            else:
                transport.writelines(outgoing)
                if transport.get_write_buffer_size() > WRITE_HIGH_WATER_BYTES:
                    # Pauses: in CPython 3.12 and early 3.13 asyncio's writelines does not
                    transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def _write_core_output(self) -> None:
        output = self._core.take_output()
        if output:
            self.write_many(output)  # type: ignore[arg-type]
        self._arm_timer()

    # --- requests --------------------------------------------------------------------------------

    async def request(
        self,
        make_command: Callable[[int], pb.BaseCommand],
        timeout: float,
        on_wait: Callable[[], None] | None = None,
    ) -> pb.BaseCommand:
        """Send the command that ``make_command`` makes with a request id, and wait for its answer, at most
        ``timeout`` seconds.

        ``on_wait`` is called when the broker reports that the answer must wait for exclusive access; from
        then on there is no time-out. Raises the `ServerReportedError` of the answer, `Timeout`, or
        `ConnectError`.
        """
        request_id = self.new_request_id()
        command = make_command(request_id)
        answer = self.ask(command, request_id, timeout, on_wait)
        try:
            return await answer
        except Timeout:
            name = pb.BaseCommand.Type.Name(command.type)
            raise Timeout(f"{self.peer} did not answer {name} within {timeout:g} s") from None
        except ServerReportedError as error:
            raise explained(error, command) from None
        finally:
            if answer.cancelled():
                self.abandon(request_id)

    def ask(
        self,
        command: pb.BaseCommand,
        request_id: int,
        timeout: float,
        on_wait: Callable[[], None] | None = None,
    ) -> asyncio.Future[pb.BaseCommand]:
        """Send a command and return a future of its answer or error; call `abandon` if it is not awaited."""
        if self.closed:
            raise self._lost_error()
        deadline = self._loop.time() + timeout
        self._core.request(command, request_id, deadline)
        answer: asyncio.Future[pb.BaseCommand] = self._loop.create_future()
        self._answers[request_id] = answer, on_wait
        self.write_many(self._core.take_output())  # type: ignore[arg-type]
        if deadline < self._timer_at:
            self._arm_timer()
        return answer

    def abandon(self, request_id: int) -> None:
        """Ignore the answer of a request from now on."""
        if self._answers.pop(request_id, None) is not None:
            self._core.abort(request_id)

    # --- handles ---------------------------------------------------------------------------------

    def add_producer(self, producer_id: int, handle: FrameReceiver) -> None:
        """Deliver frames of this producer to ``handle`` from now on."""
        self._producers[producer_id] = handle
        self._ids[handle] = producer_id

    def add_consumer(self, consumer_id: int, handle: FrameReceiver) -> None:
        """Deliver frames of this consumer to ``handle`` from now on."""
        self._consumers[consumer_id] = handle
        self._ids[handle] = consumer_id

    def watch(self, handle: FrameReceiver, callback: DetachCallback) -> None:
        """Call ``callback`` once when the handle loses this connection, for any reason."""
        self._detach_callbacks[handle] = callback

    def forget(self, handle: FrameReceiver) -> None:
        """Remove a handle, without calling its callback."""
        self._detach_callbacks.pop(handle, None)
        handle_id = self._ids.pop(handle, -1)
        for table in (self._producers, self._consumers):
            if table.get(handle_id) is handle:
                del table[handle_id]

    def add_topic_watcher(self, watcher_id: int, callback: Callable[[pb.BaseCommand], None]) -> None:
        """Deliver WATCH_TOPIC_UPDATE commands of this watcher to ``callback``."""
        self._topic_watchers[watcher_id] = callback

    def remove_topic_watcher(self, watcher_id: int) -> None:
        self._topic_watchers.pop(watcher_id, None)

    # --- asyncio.BufferedProtocol ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        forks.inherited.add(self)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)  # type: ignore[attr-defined]
        self._core.start(self._loop.time())
        self._write_core_output()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._core.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        try:
            events = self._core.received(nbytes, self._loop.time())
            producers, consumers = self._producers, self._consumers
            for event in events:
                if isinstance(event, (MessageFrame, MessageRun)):
                    handle = consumers.get(event.consumer_id)
                elif isinstance(event, (ReceiptFrame, ReceiptRun)):
                    handle = producers.get(event.producer_id)
                elif isinstance(event, Frame):
                    handle = self._owner(event)
                else:
                    self._handle_event(event)
                    continue
                if handle is not None:
                    handle.on_frame(event)
            if output := self._core.take_output():
                self.write_many(output)  # type: ignore[arg-type]
            if (error := self._core.error) is not None:
                raise error
        except PulsarException as error:
            self._core_failed(error)
        except BaseException as error:
            # A bug on our side, or an exit of the program during the handling: the connection's handles are
            # in an unknown state and must reattach.
            self._core_failed(ProtocolError(f"internal error on the connection to {self.peer}: {error!r}"))
            if not isinstance(error, Exception) and not on_io_thread():
                raise
            logger.exception("unexpected error while handling data from %s", self.peer)

    def _after_fork(self) -> None:
        """Detach the socket, in a child process."""
        if self._transport is not None and not self.closed and not self._transport.is_closing():
            forks.detach(self._transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._error = ConnectError(lost_text(self.peer, exc, was_ready=self.ready.done()))
            self._error.__cause__ = exc
        self._finish()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._wake_drained()

    # --- closing ---------------------------------------------------------------------------------

    def close(self, error: Exception | None = None) -> None:
        """Close the connection: queued bytes are written first if they fit; handles get ``error``."""
        if self.closed:
            return
        self._flush()
        self._error = error or ConnectError(f"the connection to {self.peer} was closed by this client")
        if self._transport is not None:
            self._transport.close()
        self._finish()

    def abort(self, error: Exception) -> None:
        """Close the connection at once."""
        if self.closed:
            return
        self._error = error
        if self._transport is not None:
            self._transport.abort()
        self._finish()

    def _core_failed(self, error: PulsarException) -> None:
        logger.warning("closing the connection to %s: %s", self.peer, error)
        self._write_core_output()
        self._flush()
        self.abort(error)

    def _finish(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.writable = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        error = self._error
        assert error is not None
        self._core.close()
        self._on_lost(self)
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # marked as retrieved: waiters still get it
        # Only a lost connection may be retried unchanged; a refusal of the broker stays a refusal.
        lost = self._lost_error()
        answers, self._answers = self._answers, {}
        for answer, _ in answers.values():
            if not answer.done():
                answer.set_exception(lost)
        callbacks, self._detach_callbacks = self._detach_callbacks, {}
        self._producers.clear()
        self._consumers.clear()
        self._topic_watchers.clear()
        self._wake_drained()
        for callback in callbacks.values():
            try:
                callback(lost, None)
            except Exception:
                logger.exception("unexpected error while detaching from %s", self.peer)

    def _lost_error(self) -> Exception:
        error = self._error or ConnectError(f"the connection to {self.peer} is closed")
        if isinstance(error, ConnectError):
            return error
        wrapped = ConnectError(f"the connection to {self.peer} ended: {error}")
        wrapped.__cause__ = error
        return wrapped

    def _wake_drained(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- events and time -------------------------------------------------------------------------

    def _owner(self, frame: Frame) -> FrameReceiver | None:
        field, is_producer = _FRAME_OWNERS[frame.type]
        body = getattr(frame.command, field)
        return self._producers.get(body.producer_id) if is_producer else self._consumers.get(body.consumer_id)

    def _handle_event(self, event: Any) -> None:
        if isinstance(event, RequestAnswered):
            answer, _ = self._answers.pop(event.request_id)
            error = error_of(event.command)
            if answer.done():
                pass  # cancelled in this iteration of the loop
            elif error is None:
                answer.set_result(event.command)
            else:
                answer.set_exception(error)
        elif isinstance(event, RequestTimedOut):
            answer, _ = self._answers.pop(event.request_id)
            if not answer.done():
                answer.set_exception(Timeout("no answer"))
        elif isinstance(event, RequestMustWait):
            waiting, on_wait = self._answers.get(event.request_id, (None, None))
            if on_wait is not None:
                on_wait()
            elif waiting is not None:
                raise ProtocolError(f"{self.peer} let a request wait that creates no producer")
        elif isinstance(event, HandleClosed):
            self._handle_closed(event)
        elif isinstance(event, Connected):
            self.max_message_size = event.max_message_size
            self._arm_timer()
            if not self.ready.done():
                self.ready.set_result(None)
        elif isinstance(event, CredentialsWanted):
            task = run_task(self._loop, self._give_credentials(event))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(event, WatchUpdate):
            callback = self._topic_watchers.get(event.command.watchTopicUpdate.watcher_id)
            if callback is not None:
                callback(event.command)
        elif isinstance(event, TopicMoved):
            logger.warning("%s moved a topic to another cluster: %s", self.peer, event.service_url)

    def _handle_closed(self, event: HandleClosed) -> None:
        table = self._producers if event.producer else self._consumers
        handle = table.pop(event.handle_id, None)
        if handle is None:
            return
        self._ids.pop(handle, None)
        callback = self._detach_callbacks.pop(handle, None)
        if callback is not None:
            callback(None, event.assigned)

    async def _give_credentials(self, event: CredentialsWanted) -> None:
        try:
            credentials = await obtain_credentials(self._loop, self._provider, event.challenge)
        except PulsarException as error:
            self._core_failed(error)
            return
        if not self.closed:
            self._core.give_credentials(credentials)
            self._write_core_output()

    def _arm_timer(self) -> None:
        """Keep one timer, never later than the core's deadline; an early one only re-arms itself."""
        if self.closed:
            return
        deadline = self._core.next_deadline()
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.closed:
            return
        try:
            for event in self._core.tick(self._loop.time()):
                self._handle_event(event)
        except PulsarException as error:
            self._core_failed(error)
            return
        self._write_core_output()


async def obtain_credentials(
    loop: asyncio.AbstractEventLoop, provider: CredentialsProvider, challenge: bytes | None = None
) -> Credentials:
    """Obtain credentials from a provider, in an executor thread if it may block."""
    if provider.blocking:
        return await loop.run_in_executor(None, obtain, provider, challenge)
    return obtain(provider, challenge)


class ConnectionCounters:
    """Counters of a client's connections, since its creation."""

    __slots__ = ("closed", "opened", "unreached", "unwelcome")

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.unreached = self.unwelcome = 0
        """Attempts that failed: before there was a connection, and during its handshake."""


ConnectionKey = tuple[Address, str | None, int]
"""Address to connect to, the broker behind it if that is a proxy, and a slot number below
``connections_per_broker``."""


class ConnectionPool:
    """The connections of one client. Concurrent callers for the same destination share one attempt."""

    def __init__(self, settings: ClientSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self.loop = loop
        self.closed = False
        self._open: dict[ConnectionKey, BrokerConnection] = {}
        self._opening: dict[ConnectionKey, tuple[asyncio.Task[BrokerConnection], asyncio.Event]] = {}
        """Running attempts, each with an event that is set at its end."""
        self._tls_context: ssl.SSLContext | None = None
        self._slot = 0
        self.counted = ConnectionCounters()

    async def get(
        self, address: Address, *, proxy_to_broker: str | None = None, slot: int | None = None
    ) -> BrokerConnection:
        """Return the connection to ``address``, opened if necessary. Raises `ConnectError`, `Timeout`,
        `AuthenticationError` and other errors of the handshake."""
        if self.closed:
            raise ConnectError("the client is closed")
        if slot is None:
            self._slot = slot = (self._slot + 1) % self._settings.connections_per_broker
        key = (address, proxy_to_broker, slot)
        if (connection := self._open.get(key)) is not None:
            return connection
        if key not in self._opening:
            task, ended = run_task(self.loop, self._attempt(key)), asyncio.Event()
            self._opening[key] = task, ended
            task.add_done_callback(functools.partial(self._attempted, key, ended))
        task, ended = self._opening[key]
        await ended.wait()
        if task.cancelled():
            raise AlreadyClosed("the client is closed")
        return task.result()

    def _attempted(
        self, key: ConnectionKey, ended: asyncio.Event, task: asyncio.Task[BrokerConnection]
    ) -> None:
        """Keep the new connection, unless it was lost or the client closed or moved meanwhile."""
        ended.set()
        connection = None if task.cancelled() or task.exception() is not None else task.result()
        if self._opening.get(key) == (task, ended):
            del self._opening[key]
            if connection is not None and not connection.closed:
                self._open[key] = connection
        elif connection is not None:
            connection.close(ConnectError(f"the client left {connection.peer}, or was closed"))

    def opened(self, address: Address) -> BrokerConnection | None:
        """Return the connection for lookups at ``address``, if it is open."""
        return self._open.get((address, None, 0))

    @property
    def connections(self) -> list[BrokerConnection]:
        """The open connections."""
        return list(self._open.values())

    async def _attempt(self, key: ConnectionKey) -> BrokerConnection:
        address, proxy_to_broker, _ = key
        timeout = self._settings.connection_timeout_seconds
        try:
            return await asyncio.wait_for(self._connect(address, proxy_to_broker, key), timeout)
        except TimeoutError as error:
            if isinstance(error, PulsarException):
                raise
            self.counted.unreached += 1
            raise ConnectError(
                f"{address} did not accept a connection within {timeout:g} s; is the address right and "
                "reachable from here (firewall, VPN)?"
            ) from None

    async def _connect(
        self, address: Address, proxy_to_broker: str | None, key: ConnectionKey
    ) -> BrokerConnection:
        provider = self._settings.credentials
        credentials = await obtain_credentials(self.loop, provider)

        def make_protocol() -> BrokerConnection:
            core = ClientConnection(
                credentials,
                now=self.loop.time(),
                peer=str(address) if proxy_to_broker is None else f"{address} (for {proxy_to_broker})",
                tls=address.tls,
                proxy_to_broker=proxy_to_broker,
                # wait_for limits the whole attempt; the core's limit expires first.
                handshake_timeout_seconds=self._settings.connection_timeout_seconds * 0.95,
                keepalive_interval_seconds=self._settings.keepalive_interval_seconds,
            )
            return BrokerConnection(core, provider, self.loop, lambda lost: self._lost(key, lost))

        connection: BrokerConnection | None = None
        try:
            _, connection = await self.loop.create_connection(
                make_protocol,
                address.host,
                address.port,
                ssl=self.tls_context() if address.tls else None,
                server_hostname=address.host if address.tls else None,
            )
            self.counted.opened += 1
            await connection.ready
        except (OSError, ssl.SSLError) as error:
            self._count_failure(connection)
            if isinstance(error, PulsarException) and not isinstance(error.__cause__, ssl.SSLError):
                raise
            raise connect_error(address, error) from error
        except PulsarException:
            self._count_failure(connection)
            raise
        except asyncio.CancelledError:
            if connection is not None:
                connection.abort(ConnectError(f"connecting to {address} was cancelled"))
            raise
        logger.debug("connected to %s, server %s", connection.peer, connection.server_version)
        return connection

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of all TLS connections of the client, created on first use."""
        if self._tls_context is None:
            self._tls_context = make_context(self._settings.tls)
        return self._tls_context

    def _count_failure(self, connection: BrokerConnection | None) -> None:
        if connection is None:
            self.counted.unreached += 1
        else:
            self.counted.unwelcome += 1

    def _lost(self, key: ConnectionKey, connection: BrokerConnection) -> None:
        self.counted.closed += 1
        if self._open.get(key) is connection:
            del self._open[key]

    def move_to(self, settings: ClientSettings) -> None:
        """Close all connections; new ones are opened with ``settings``."""
        self._settings = settings
        self._tls_context = None
        self._opening.clear()  # callers share a running attempt: its connection is closed when it is open
        for connection in self.connections:
            connection.close(ConnectError(f"the client left {connection.peer} for another cluster"))

    def close(self) -> None:
        """Close all connections and cancel running attempts."""
        self.closed = True
        opening, self._opening = self._opening, {}
        for task, _ in opening.values():
            task.cancel()
        for connection in self.connections:
            connection.close()


class Unreachable(ConnectError):
    """An address that waiting cannot make reachable: an unknown host name, a bad certificate, another
    protocol."""


def connect_error(address: Address, error: OSError | ssl.SSLError) -> ConnectError:
    """Return the error for a failed connection, with advice."""
    import socket

    if isinstance(error, ssl.SSLCertVerificationError):
        return Unreachable(
            f"the TLS certificate of {address} is not trusted: {error.verify_message}; give the signing "
            "certificate in tls_trust_certs_file_path, or use the host name that the certificate names"
        )
    error = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
    if isinstance(error, ssl.SSLError):
        if "ALERT" in (error.reason or ""):  # the broker's words
            return Unreachable(f"{address} ended the TLS handshake: {error.reason}; {CERTIFICATE_ADVICE}")
        return Unreachable(
            f"TLS with {address} failed: {error.reason or error}; does that port speak TLS (usually 6651)?"
        )
    if isinstance(error, socket.gaierror):
        return Unreachable(f"the host name {address.host!r} of {address} is unknown; check the service URL")
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return ConnectError(
            f"{address} refused the connection: nothing listens there; is the broker running, and is the "
            "port right (plain usually 6650, TLS 6651)?"
        )
    if address.tls and isinstance(error, ConnectionError):
        return ConnectError(
            f"{address} ended the connection during the TLS handshake; "
            f"does that port speak TLS (usually 6651)? Or {CERTIFICATE_ADVICE}"
        )
    reason = error.strerror or str(error) or type(error).__name__
    return ConnectError(f"cannot connect to {address}: {reason}")
