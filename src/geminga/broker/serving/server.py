"""Sockets of the broker: one asyncio protocol per connection around the core of `geminga.broker.core`.

The core decides, this module moves bytes and time. Everything runs on one event loop:

* What the core writes during one entry (bytes received, store completions, a timer) is collected a
  connection and handed to the kernel once, at the end of the entry.
* A connection whose peer does not read is not `writable`; the core stops dispatching to it and this
  module stops reading its commands, so that answers to them cannot pile up either. The peer is
  disconnected at `BrokerSettings.write_buffer_limit_bytes`.
* Its calls into the core, the timer and the store's completions are in `geminga.broker.serving.core_calls`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from geminga.broker.admin.in_flight_requests import InFlightRequests
from geminga.broker.commands.session import Session
from geminga.broker.core import Broker, LoopAccess
from geminga.broker.rules.authentication import Judgement, common_name
from geminga.broker.serving.core_calls import CoreCalls
from geminga.broker.serving.handshakes import TlsPort
from geminga.broker.serving.listening import ACCEPTED_AT_ONCE, BACKLOG, bind, descriptors_free, peer_text
from geminga.broker.serving.opening import open_store
from geminga.broker.serving.proxy_header import ProxyHeaderError
from geminga.broker.serving.tls import LOOK_SECONDS, TlsFiles
from geminga.broker.settings import PORTS, BrokerSettings
from geminga.errors import StoreDamaged, StoreError, StoreStopped
from geminga.ledger.api import Buffer, EntryStore

if TYPE_CHECKING:
    from geminga.broker.admin.http import Site
    from geminga.broker.admin.web import WebServer

log = logging.getLogger(__name__)
T = TypeVar("T")
WebListener = tuple[socket.socket, bool]
"""Socket of the web server, and whether it speaks TLS."""

_JOIN_BYTES_MAX = 64 * 1024
"""Below this size, a copy into one buffer is cheaper than a gathered write of many."""
TAKE_IN_SECONDS_MAX = 0.25
"""Longest time for which a stopping broker still reads from peers."""
_LAST_TASKS_SECONDS = 1.0
UNSENT_FREE_BYTES = 64 * 1024
"""Unread bytes that each peer may have even if all together are at ``unsent_bytes_max``."""
_UNSENT_LOOK_SECONDS = 0.1


class PeerConnection(asyncio.Protocol):
    """Connection of one peer: the `Output` of the core's session."""

    __slots__ = (
        "_address", "_chunks", "_core", "_core_paused", "_flush_bytes", "_is_open", "_peer_paused",
        "_pending_bytes", "_reading", "_server", "_session", "_starved", "_transport", "_was_admitted",
        "unsent_bytes",
    )  # fmt: skip

    def __init__(self, server: BrokerServer, was_admitted: bool = False, address: Any = None) -> None:
        """``address``: of the client behind a proxy; None: that of the connection."""
        self._server = server
        self._core = server.core
        self._address = address
        self._was_admitted = was_admitted  # when it was accepted: its handshake still counts
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._chunks: list[Buffer] = []
        self._pending_bytes = 0
        self._peer_paused = False
        self._core_paused = False
        self._reading = True
        self._flush_bytes = server.flush_bytes
        self._starved = False
        self._is_open = False
        self.unsent_bytes = 0

    @property
    def session(self) -> Session | None:
        """The core's session of the peer; None before and after the connection."""
        return self._session

    @property
    def is_reading(self) -> bool:
        """Whether the peer's bytes are read."""
        return self._reading

    # --- from the event loop ---
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass
        server = self._server
        peer = self._address = self._address or transport.get_extra_info("peername")
        if not server.admits(peer, self._was_admitted):
            transport.abort()
            return
        settings = server.settings
        self._transport = transport
        self._is_open = True
        transport.set_write_buffer_limits(settings.write_buffer_high_bytes, settings.write_buffer_low_bytes)
        server.connections.add(self)
        server.connections_created += 1
        with self._core.entry():
            self._session = server.broker.open_session(
                self,
                peer_text(peer),
                time.monotonic(),
                None if server.tls is None else common_name(transport.get_extra_info("peercert")),
            )

    def data_received(self, data: bytes) -> None:
        session = self._session
        if session is None:
            return
        core = self._core
        now = time.monotonic()
        core.enter(now)
        try:
            session.receive(data, now, time.time_ns() // 1_000_000)
        finally:
            core.leave()

    def connection_lost(self, error: Exception | None) -> None:
        session, self._session = self._session, None
        self._transport = None
        self._is_open = False
        self._chunks.clear()
        self._pending_bytes = 0
        server = self._server
        server.unsent.record(self, 0)
        if session is not None:
            with self._core.entry():
                session.closed(time.monotonic())
        server.connections.discard(self)

    def pause_writing(self) -> None:
        self._peer_paused = True
        self._apply_reading()

    def resume_writing(self) -> None:
        self._peer_paused = False
        self._apply_reading()
        self.count_unsent()
        self.go_on()

    def go_on(self) -> None:
        """Resume writing to the peer."""
        session = self._session
        self._starved = False
        if session is not None:
            with self._core.entry():
                session.writable_again(time.monotonic())

    def count_unsent(self) -> int:
        """Return how many bytes the peer has not read, and record it."""
        transport = self._transport
        size = 0 if transport is None else transport.get_write_buffer_size()
        self._server.unsent.record(self, size)
        return size

    # --- from the core ---
    @property
    def writable(self) -> bool:
        """False while the peer's unread bytes exceed the high-water mark, or all peers' their limit."""
        if self._peer_paused or not self._is_open:
            return False
        if self.unsent_bytes <= UNSENT_FREE_BYTES or not self._server.unsent.is_full:
            return True
        if not self._starved:
            self._starved = True
            self._server.unsent.starve(self)
        return False

    def write(self, data: Buffer) -> None:
        if self._transport is None:
            return
        chunks = self._chunks
        if not chunks:
            self._core.mark_dirty(self.flush)
        chunks.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._flush_bytes:
            self.flush()

    def close(self) -> None:
        """Close the connection after the written bytes are sent."""
        transport = self._transport
        self._is_open = False
        if transport is not None:
            self.flush()
            if not transport.is_closing():
                transport.close()
                self._server.abort_later(transport)

    def pause_reading(self) -> None:
        self._core_paused = True
        self._apply_reading()

    def resume_reading(self) -> None:
        self._core_paused = False
        self._apply_reading()

    # --- inside ---
    def flush(self) -> None:
        """Pass the collected writes to the transport."""
        chunks = self._chunks
        transport = self._transport
        if not chunks or transport is None:
            return
        if len(chunks) == 1:
            data: Buffer | None = chunks[0]
        elif self._pending_bytes <= _JOIN_BYTES_MAX:
            data = b"".join(chunks)
        else:
            data = None
        self._chunks = []
        self._pending_bytes = 0
        if data is not None:
            transport.write(data)
        else:
            transport.writelines(chunks)
        unsent = self.count_unsent()
        if self._peer_paused and unsent > self._server.settings.write_buffer_limit_bytes:
            self._server.broker.rate_limited_log.log(
                "%s leaves too much unread and is disconnected", peer_text(self._address)
            )
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; unsent bytes are dropped, received ones are not handled."""
        if self._transport is not None:
            self._transport.abort()

    def _apply_reading(self) -> None:
        reading = not (self._core_paused or self._peer_paused)
        transport = self._transport
        if reading == self._reading or transport is None or transport.is_closing():
            return
        self._reading = reading
        if reading:
            transport.resume_reading()
        else:
            transport.pause_reading()


class WriteBuffers:
    """Account of what peers have not read (`geminga.broker.runtime.memory_backpressure`).

    Transports do not report sent bytes, so the recorded size is that after the last write, an upper bound; it
    is refreshed when the limit is reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._loop = loop
        self._holders: dict[PeerConnection, None] = {}
        self._starved: dict[PeerConnection, None] = {}
        self._looking = False

    @property
    def is_full(self) -> bool:
        return self.bytes >= self.bytes_max

    def record(self, connection: PeerConnection, size: int) -> None:
        """Record that ``size`` bytes are in the connection's buffer now."""
        self.bytes += size - connection.unsent_bytes
        connection.unsent_bytes = size
        if size:
            self._holders[connection] = None
        else:
            self._holders.pop(connection, None)
            self._starved.pop(connection, None)
        if self.bytes >= self.bytes_max and not self._looking:
            self._looking = True
            self._loop.call_later(_UNSENT_LOOK_SECONDS, self._look)

    def starve(self, connection: PeerConnection) -> None:
        """Call `PeerConnection.go_on` of the connection when there is space."""
        self._starved[connection] = None

    def _look(self) -> None:
        self._looking = False
        for connection in list(self._holders):
            connection.count_unsent()
        if self.is_full:
            return
        starved, self._starved = self._starved, {}
        for connection in starved:
            connection.go_on()


class BrokerServer:
    """Broker on this event loop: `start`, `stop`, and the URLs in between.

    ``store`` is for tests and for programs that bring their own; without it the store that the
    settings name is opened at start and closed at stop. ``site`` adds pages to the web port: the console.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        store: Callable[[Callable[[], None]], EntryStore] | None = None,
        site: Site | None = None,
    ) -> None:
        self.settings = settings
        self.site = site
        self.broker: Broker
        self.core: CoreCalls
        self.store: EntryStore
        self.connections: set[PeerConnection] = set()
        self.unsent: WriteBuffers
        self.flush_bytes = max(settings.write_buffer_low_bytes, 256 * 1024)
        self.connections_max = min(settings.connections_max, descriptors_free())
        self.connections_created = self.connections_refused = 0
        self.unanswered = InFlightRequests()
        self.started_at_ms = 0
        self.tls: TlsFiles | None = None
        self.web: WebServer | None = None
        self.web_ready: asyncio.Event
        self.stopped: asyncio.Event
        self.store_stopped: asyncio.Event
        """Set with ``store_failure``: nothing is persisted any more, and the broker must be stopped."""
        self._open_store = store or (lambda wakeup: open_store(settings, wakeup))
        self._loop: asyncio.AbstractEventLoop
        self._judges: ThreadPoolExecutor | None = None
        self._listeners: list[asyncio.Server] = []
        self._tls_ports: list[TlsPort] = []
        self._web_task: asyncio.Task[None] | None = None
        self._stopping = False
        self._web_listeners: list[WebListener] = []
        self.store_failure: StoreError | None = None

    # --- life ---
    async def start(self) -> None:
        """Start: on return the broker answers; the web server starts with its first connection.

        Raises `PortInUse`, `UsageError` for other bad addresses, and the store's errors
        (`StoreLocked`, `NotAStore`, `StoreDamaged`).
        """
        self._loop = asyncio.get_running_loop()
        self.core = CoreCalls(self._note_store_failure)
        self.unsent = WriteBuffers(self._loop, self.settings.unsent_bytes_max)
        self.web_ready, self.stopped, self.store_stopped = (asyncio.Event() for _ in range(3))
        settings = self.settings
        with contextlib.ExitStack() as undo:
            if settings.has_tls:
                self.tls = TlsFiles(settings)
                self._look_at_certificates()
            bound: dict[str, socket.socket] = {}
            for name in PORTS:
                port = getattr(settings, name)
                if port is not None:
                    bound[name] = undo.enter_context(bind(settings.host, port, name))
                    ports: dict[str, Any] = {name: bound[name].getsockname()[1]}
                    settings = replace(settings, **ports)
            self.settings = settings
            self.started_at_ms = time.time_ns() // 1_000_000
            self.broker = self.core.broker = self._open_broker(undo)
            plain = {"port": settings.has_plain_port, "web_port": settings.has_plain_web_port}
            speaks_tls = {name: not plain.get(name, False) for name in bound}
            for name in ("port", "tls_port"):
                if name in bound:
                    if speaks_tls[name] or settings.proxy_protocol:
                        port = TlsPort(
                            bound[name], lambda client: PeerConnection(self, True, client), self.admits,
                            self.tls.context if self.tls is not None and speaks_tls[name] else None,
                            settings.handshake_seconds, self._handshake_failed, settings.proxy_protocol,
                        )  # fmt: skip
                        self._tls_ports.append(port)
                        undo.callback(port.close)
                        continue
                    server = await self._loop.create_server(
                        lambda: PeerConnection(self), sock=bound[name], backlog=ACCEPTED_AT_ONCE
                    )
                    bound[name].listen(BACKLOG)
                    undo.callback(server.close)
                    self._listeners.append(server)
            undo.pop_all()
        self.core.tick()
        self._web_listeners = [(bound[name], speaks_tls[name]) for name in bound if name.startswith("web")]
        if not self._web_listeners:
            self.web_ready.set()
        for listener, _ in self._web_listeners:
            self._loop.add_reader(listener.fileno(), self.start_web)

    def _open_broker(self, undo: contextlib.ExitStack) -> Broker:
        """Open the store and the core. If the catalog proves damaged, open again, which rebuilds it."""
        try:
            return self._open_broker_once(undo)
        except StoreDamaged as error:
            from geminga.ledger.catalog.database import CatalogDamaged

            if not isinstance(error, CatalogDamaged):
                raise
            self.store.close()
            return self._open_broker_once(undo)

    def _open_broker_once(self, undo: contextlib.ExitStack) -> Broker:
        authentication = None
        if self.settings.authenticates:
            from geminga.broker.serving.credentials import make_authentication

            authentication = make_authentication(self.settings)
        if authentication is not None:
            authentication.aside = self._aside
        self.store = self._open_store(self.core.wakeup)
        undo.callback(self.store.close)
        return Broker(
            self.store,
            self.settings,
            now=time.monotonic(),
            now_ms=time.time_ns() // 1_000_000,
            loop=LoopAccess(time.monotonic, self.core.ask_for_turn),
            authentication=authentication,
            instance_id=uuid4().hex,
        )

    def _aside(self, work: Callable[[], Judgement], report: Callable[[Judgement], None]) -> None:
        """Run jobs one after the other on a thread, then ``report`` on the core."""

        def done(judging: asyncio.Future[Judgement]) -> None:
            if not judging.cancelled() and not self.stopped.is_set():
                self.call(lambda: report(judging.result()))

        if self._judges is None:
            self._judges = ThreadPoolExecutor(1, "geminga-passwords")
        self._loop.run_in_executor(self._judges, work).add_done_callback(done)

    def start_web(self) -> None:
        """Start the web server, because its first connection waits."""
        listeners, self._web_listeners = self._web_listeners, []
        for listener, _ in listeners:
            self._loop.remove_reader(listener.fileno())
        if listeners:
            self._web_task = self._loop.create_task(self._start_web(listeners))

    async def _start_web(self, listeners: list[WebListener]) -> None:
        # Importing the web framework takes longer than everything else together; the binary
        # protocol is served meanwhile and web requests wait in the listener's queue.
        try:
            web = await self._loop.run_in_executor(None, _import_web)
            self.web = web(self, self.site)
            await self.web.start(listeners)
        except Exception:
            for listener, _ in listeners:
                listener.close()
            log.exception("the web server did not start; the binary protocol continues without it")
        finally:
            self.web_ready.set()

    def tls_port(
        self, listener: socket.socket, make: Callable[[], asyncio.Protocol], admits: Callable[[Any], bool]
    ) -> TlsPort:
        """Speak TLS on a listening socket; ``admits(address)`` returns whether to accept a connection."""
        assert self.tls is not None
        seconds = self.settings.handshake_seconds
        return TlsPort(listener, lambda _: make(), admits, self.tls.context, seconds, self._handshake_failed)

    def _look_at_certificates(self) -> None:
        if self.tls is not None and not self._stopping:
            self.tls.refresh()
            self._loop.call_later(LOOK_SECONDS, self._look_at_certificates)

    async def stop(self) -> None:
        """Stop accepting, close the sessions, flush their output, close the store; also when cancelled."""
        if self._stopping:
            await self.stopped.wait()
            return
        self._stopping = True
        try:
            await self._stop_accepting()
            self.core.stop_timer()
            await self._take_in_what_came()
        finally:
            try:
                with self.core.entry():
                    self.broker.close()
                await self._drain_connections()
            finally:
                self._close_store()

    async def _stop_accepting(self) -> None:
        for end in [each.close for each in self._listeners] + [each.close for each in self._tls_ports]:
            end()
        for listener, _ in self._web_listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        if self._web_task is not None:
            self._web_task = self._loop.create_task(self._stop_web(self._web_task))
            await asyncio.shield(self._web_task)  # it ends also if this wait is cancelled

    async def _stop_web(self, started: asyncio.Task[None]) -> None:
        await started
        if self.web is not None:
            await self.web.stop()

    def _close_store(self) -> None:
        self._note_store_failure()
        if self._judges is not None:
            self._judges.shutdown(wait=False, cancel_futures=True)
        self.core.end()
        self.stopped.set()
        self.store.close()
        if not isinstance(self.store.failure, StoreStopped):  # that of a closed store
            self._note_store_failure()

    async def _take_in_what_came(self) -> None:
        """Handle what peers sent before the end, above all acknowledgements, which have no receipt.

        Sockets are read until a pass of the loop brings nothing, or for a little while.
        """
        scheduler = self.broker.scheduler
        deadline = time.monotonic() + TAKE_IN_SECONDS_MAX
        while time.monotonic() < deadline:
            seen = scheduler.now
            await asyncio.sleep(0)  # the loop reads the sockets after this, ...
            await asyncio.sleep(0)  # ... and has read them behind this
            if scheduler.now == seen:
                return

    async def _drain_connections(self) -> None:
        deadline = time.monotonic() + self.settings.shutdown_seconds
        for connection in list(self.connections):
            connection.close()
        while self.connections and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort()

    # --- calls from connections ---
    def admits(self, address: object, was_admitted: bool = False) -> bool:
        """Return whether one more connection is within the limit."""
        count = len(self.connections) + sum(map(len, self._tls_ports))
        if not self._stopping and (was_admitted or count < self.connections_max):
            return True
        self.connections_refused += 1
        line = "the limit of %d connections is reached, %s was refused (%d so far)"
        self._log_limited(line, self.connections_max, peer_text(address), self.connections_refused)
        return False

    def _log_limited(self, line: str, *values: object) -> None:
        self.call(lambda: self.broker.rate_limited_log.log(line, *values))

    def _handshake_failed(self, address: object, error: OSError) -> None:
        """Count a failed TLS handshake; log it, or a missing header of a proxy, unless the peer just left, as
        probes of ports do."""
        is_tls = not isinstance(error, ProxyHeaderError)
        self.broker.audit.failures["tls"] += is_tls
        if isinstance(error, ConnectionResetError):
            return
        if not is_tls:
            self._log_limited("%s: %s", peer_text(address), error)
        else:
            why = getattr(error, "reason", None) or error
            self._log_limited("%s: TLS handshake failed: %s", peer_text(address), why)

    def abort_later(self, transport: asyncio.Transport) -> None:
        """Abort a closing connection later, if its peer does not read the rest."""
        self._loop.call_later(self.settings.shutdown_seconds, transport.abort)

    def call(self, function: Callable[[], T]) -> T:
        """Run an administrative call on the core within an entry of its own."""
        return self.core.call(function)

    def _note_store_failure(self) -> None:
        if self.store_failure is None and self.store.failure is not None:
            self.store_failure = self.store.failure
            self.store_stopped.set()
            log.critical(
                "the store has stopped; nothing more is persisted until the broker is restarted: %s",
                self.store_failure,
            )


def _import_web() -> type[WebServer]:
    from geminga.broker.admin.web import WebServer

    return WebServer


def end_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what still runs, such as a web request whose peer has gone, and close the loop."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_TASKS_SECONDS))
        loop.run_until_complete(loop.shutdown_default_executor())
    except Exception:
        log.debug("ending the event loop", exc_info=True)
    finally:
        loop.close()
