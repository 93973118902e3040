"""Sending of admin REST calls: one sender for threads, with connection reuse, and threads of it for asyncio.

A change always uses a new connection: on a reused one, it would be unknown whether the server received it
before closing.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from geminga.client.admin.exchange import (
    IDLE_SECONDS_MAX,
    AdminResponse,
    AdminSettings,
    Exchange,
    Request,
    RequestNotSent,
    lost,
    parse_admin_url,
    read_answer,
)
from geminga.client.io.tls import make_context
from geminga.connection.addresses import Address
from geminga.connection.authentication import REFRESH_CHALLENGE, obtain
from geminga.errors import AlreadyClosed, ConnectError, PulsarException, Timeout

KEPT_MAX = 16
"""Limit on idle connections to one host."""
THREADS_MAX = 32
"""Limit on the concurrent calls of an asyncio admin; further ones wait for a thread."""

_Idle = dict[Address, list[tuple[float, socket.socket]]]
Headers = tuple[tuple[str, str], ...]
T = TypeVar("T")
_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class AdminSender:
    """Sender of calls whose connections threads share; each serves one thread while that waits for an
    answer."""

    def __init__(self, settings: AdminSettings) -> None:
        self.settings = settings
        self.closed = False
        self._addresses = parse_admin_url(settings.admin_url)
        self._tls: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._idle: _Idle = {}
        self._process_id = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    async def send(self, request: Request) -> AdminResponse:
        """Send a request by `run`, on the calling thread."""
        return self.run(self.exchange(request))

    def exchange(self, request: Request, address: Address | None = None) -> Exchange:
        """Return the exchange of a request, for `run` or `follow`; ``address``: the only host to ask."""
        if self.closed:
            raise AlreadyClosed("the admin is closed")
        addresses = self._addresses if address is None else (address,)
        return Exchange(self.settings, addresses, request, time.monotonic())

    def run(self, exchange: Exchange) -> AdminResponse:
        """Make the exchange, with retries as configured, and return the answer; blocks the thread. Raises the
        error that the answer reports."""
        while True:
            challenge = REFRESH_CHALLENGE if exchange.challenged else None
            shown = obtain(self.settings.credentials, challenge)
            try:
                answer = self._try(exchange, shown.http_headers)
            except PulsarException as error:
                seconds = exchange.failed(error, time.monotonic())
            else:
                again = exchange.answered(answer, time.monotonic())
                if again is None:
                    return answer
                seconds = again
            if seconds:
                time.sleep(seconds)

    def follow(self, exchange: Exchange, headers: Headers | None) -> AdminResponse:
        """Send a request once and return the answer behind its redirects, of any status. ``headers``:
        those of other credentials than the configured ones. Raises `ConnectError`, `LookupError` for a
        redirect that is not followed, and `Timeout`."""
        if headers is None:
            headers = obtain(self.settings.credentials, None).http_headers
        while exchange.redirected(answer := self._try(exchange, headers)):
            pass
        return answer

    def _try(self, exchange: Exchange, headers: Headers) -> AdminResponse:
        """Make one try. Raises `ConnectError`, and `Timeout` at the call's time limit."""
        address, message = exchange.address, exchange.message(headers)
        if exchange.request.safe:
            while (line := self._kept(address)) is not None:
                with contextlib.suppress(ConnectError):
                    return self._talk(line, message, exchange)
        return self._talk(self._open(address, exchange), message, exchange)

    def _open(self, address: Address, exchange: Exchange) -> socket.socket:
        """Connect. Raises `RequestNotSent`."""
        try:
            line = self._connect(address, exchange)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls:
                if self._tls is None:
                    self._tls = make_context(self.settings.tls)
                line = self._tls.wrap_socket(
                    line, server_hostname=address.host, do_handshake_on_connect=False
                )
                self._limit(line, exchange)
                line.do_handshake()
            return line
        except BaseException as error:
            if exchange.line is not None:
                exchange.line.close()
            if isinstance(error, Timeout) or (
                isinstance(error, (OSError, ValueError)) and not isinstance(error, PulsarException)
            ):
                raise _unsent(address, error) from error
            raise

    def _connect(self, address: Address, exchange: Exchange) -> socket.socket:
        """Connect to the first of the host's addresses that accepts."""
        error = OSError("the host has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        ):
            try:
                line = socket.socket(family, kind, protocol)
                self._limit(line, exchange)
                line.connect(where)
                return line
            except OSError as failed:
                error = failed
                if exchange.line is not None:
                    exchange.line.close()
        raise error

    def _limit(self, line: socket.socket, exchange: Exchange) -> None:
        """Limit the time for connecting; `Exchange.abort` ends it."""
        exchange.line = line
        left = exchange.seconds_left(time.monotonic())
        line.settimeout(min(self.settings.connection_timeout_seconds, left))

    def _talk(self, line: socket.socket, message: bytes, exchange: Exchange) -> AdminResponse:
        address = exchange.address
        keep = False
        exchange.line = line
        try:
            line.settimeout(exchange.seconds_left(time.monotonic()))
            line.sendall(message)
            answer = read_answer(line, exchange)
            keep = answer.reusable
            return answer
        except PulsarException:
            raise
        except TimeoutError:
            raise exchange.timed_out() from None
        except OSError as error:
            raise lost(address) from error
        finally:
            exchange.line = None
            if keep:
                self._keep(address, line)
            else:
                line.close()

    def _kept(self, address: Address) -> socket.socket | None:
        if os.getpid() != self._process_id:  # the parent process uses these connections
            self._process_id = os.getpid()
            self._lock = threading.Lock()
            self._idle.clear()
        closed = []
        try:
            with self._lock:
                idle = self._idle.get(address, [])
                while idle:
                    since, line = idle.pop()
                    if time.monotonic() - since < IDLE_SECONDS_MAX:
                        return line
                    closed.append(line)
        finally:
            for line in closed:
                line.close()
        return None

    def _keep(self, address: Address, line: socket.socket) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            idle.append((time.monotonic(), line))
            gone = idle.pop(0)[1] if len(idle) > KEPT_MAX or self.closed else None
        if gone is not None:
            gone.close()

    def close(self) -> None:
        """Close the idle connections; later calls raise `AlreadyClosed`."""
        self.closed = True
        with self._lock:
            _close_all(self._idle)


class AsyncAdminSender:
    """Sender of calls for event loops: each call takes a thread while it waits for its answer."""

    def __init__(self, settings: AdminSettings) -> None:
        self.settings = settings
        self._sender = AdminSender(settings)
        self._threads: _DaemonThreads | None = None
        self._process_id = os.getpid()

    @property
    def closed(self) -> bool:
        return self._sender.closed

    async def send(self, request: Request) -> AdminResponse:
        """Send a request by `AdminSender.run`, on a thread. Cancelling the call ends the thread, at once if
        it is connected, else at the connection time-out."""
        return await self._in_thread(self._sender.run, self._sender.exchange(request))

    async def follow(
        self, request: Request, headers: Headers | None, address: Address | None = None, *, prefix: str = ""
    ) -> AdminResponse:
        """Call `AdminSender.follow` on a thread. ``prefix``: start of all paths at the configured host."""
        exchange = self._sender.exchange(request, address)
        exchange.prefix = prefix
        return await self._in_thread(partial(self._sender.follow, headers=headers), exchange)

    async def _in_thread(
        self, send: Callable[[Exchange], AdminResponse], exchange: Exchange
    ) -> AdminResponse:
        if self._threads is None or self._process_id != os.getpid():  # a child process lacks the threads
            self._threads = _DaemonThreads()
            self._process_id = os.getpid()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, send, exchange)
        except asyncio.CancelledError:
            exchange.abort()
            raise

    def close(self) -> None:
        """Close the idle connections; later calls raise `AlreadyClosed`."""
        self._sender.close()
        if self._threads is not None and self._process_id == os.getpid():
            self._threads.shutdown()


class _DaemonThreads(Executor):
    """Threads for calls, `THREADS_MAX` at most. A program that ends does not wait for them, as it would for
    those of `ThreadPoolExecutor`."""

    def __init__(self) -> None:
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._end = weakref.finalize(self, self._calls.put, None)

    def submit(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, partial(call, *arguments, **named)))
        if self._count < THREADS_MAX and not self._idle.acquire(blocking=False):
            self._count += 1
            name = f"geminga-admin_{self._count}"
            threading.Thread(target=_work, args=(self._calls, self._idle), name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the calls that were submitted; does not wait."""
        self._end()


def _work(calls: _Calls, idle: threading.Semaphore) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        result: Any = None
        error: BaseException | None = None
        is_wanted = future.set_running_or_notify_cancel()
        if is_wanted:
            try:
                result = call()
            except BaseException as raised:
                error = raised
        idle.release()  # before the result, after which the caller may submit its next call
        if error is not None:
            future.set_exception(error)
        elif is_wanted:
            future.set_result(result)
        del item, future, call, result, error
    calls.put(None)  # for the next thread


def _unsent(address: Address, error: OSError | ValueError) -> RequestNotSent:
    """Return the error for a failed connection, with advice."""
    where = f"{'https' if address.tls else 'http'}://{address.host_port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return RequestNotSent(
            f"the TLS certificate of {where} is not trusted: {error.verify_message}; give the signing "
            "certificate in tls_trust_certs_file_path, or use the host name that the certificate names"
        )
    if isinstance(error, ssl.SSLError):
        return RequestNotSent(f"TLS with {where} failed: {error.reason or error}; does that port speak TLS?")
    if isinstance(error, socket.gaierror):
        return RequestNotSent(f"the host name {address.host!r} is unknown; check the URL")
    if isinstance(error, TimeoutError):
        return RequestNotSent(f"no answer from {where}: it did not accept a connection in time")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RequestNotSent(
        f"no answer from {where} ({reason}): is the broker running, and is this its web address?"
    )


def _close_all(idle: _Idle) -> None:
    for lines in idle.values():
        for _, line in lines:
            line.close()
    idle.clear()
