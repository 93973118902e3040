"""Transports of admin REST: one class for asyncio, one for threads, both with connection reuse.

Both read HTTP/1.1 with `geminga.client.admin.exchange`. A change always uses a new connection: on a reused
one, it would be unknown whether the server received it before closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
import time
import weakref

from geminga.client.admin.exchange import (
    IDLE_SECONDS_MAX,
    AdminResponse,
    AdminSettings,
    Exchange,
    RequestNotSent,
    ResponseReader,
)
from geminga.client.pool import obtain_credentials
from geminga.client.tls import make_context
from geminga.connection.addresses import Address
from geminga.connection.authentication import Credentials, CredentialsProvider, obtain
from geminga.errors import ConnectError, PulsarException

KEPT_MAX = 16
"""Limit on idle connections to one host."""
PIECE_BYTES = 256 * 1024


class _Tls:
    """TLS context of an admin's connections, created on first use."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = make_context(self._settings.tls)
        return self._context


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
        return RequestNotSent(f"the host name {address.host!r} is unknown; check the admin URL")
    if isinstance(error, TimeoutError):
        return RequestNotSent(f"no answer from {where}: it did not accept a connection in time")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return RequestNotSent(
        f"no answer from {where} ({reason}): is the broker running, and is this its web address?"
    )


def _lost(address: Address, error: BaseException | None = None) -> ConnectError:
    reason = f" ({error})" if error is not None and str(error) else ""
    return ConnectError(
        f"{address.host_port} ended the connection before its answer{reason}: is this its web address, and "
        "does it speak HTTP or HTTPS?"
    )


# --- asyncio --------------------------------------------------------------------------------------

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncTransport:
    """Connections of asyncio programs, separate for each loop."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings
        self._tls = _Tls(settings)
        self._idle: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Address, list[tuple[float, Streams]]]
        ] = weakref.WeakKeyDictionary()

    async def exchange(self, exchange: Exchange, headers: tuple[tuple[str, str], ...]) -> AdminResponse:
        """Make one try. Raises `ConnectError`, and `Timeout` at the call's time limit."""
        address, message = exchange.address, exchange.message(headers)
        try:
            async with asyncio.timeout(exchange.seconds_left(time.monotonic())):
                if exchange.request.safe:
                    while (streams := self._kept(address)) is not None:
                        with contextlib.suppress(ConnectError):
                            return await self._talk(streams, address, message, exchange)
                return await self._talk(await self._open(address), address, message, exchange)
        except PulsarException:
            raise
        except TimeoutError:
            raise exchange.timed_out() from None

    async def _open(self, address: Address) -> Streams:
        try:
            async with asyncio.timeout(self._settings.connection_timeout_seconds):
                return await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=self._tls() if address.tls else None,
                    server_hostname=address.host if address.tls else None,
                )
        except PulsarException:
            raise
        except (OSError, ValueError) as error:
            raise _unsent(address, error) from error

    async def _talk(
        self, streams: Streams, address: Address, message: bytes, exchange: Exchange
    ) -> AdminResponse:
        stream, writer = streams
        reader = ResponseReader(address.host_port, no_body=exchange.request.method == "HEAD")
        keep = False
        try:
            writer.write(message)
            answer = None
            while answer is None:
                data = await stream.read(PIECE_BYTES)
                answer = reader.feed(data) if data else reader.end()
                if answer is None and not data:
                    raise _lost(address)
            keep = answer.reusable
            return answer
        except PulsarException:
            raise
        except OSError as error:
            raise _lost(address, error) from error
        finally:
            if keep:
                self._keep(address, streams)
            else:
                writer.close()

    def _kept(self, address: Address) -> Streams | None:
        idle = self._idle.get(asyncio.get_running_loop(), {}).get(address, [])
        while idle:
            since, streams = idle.pop()
            if time.monotonic() - since < IDLE_SECONDS_MAX and not streams[0].at_eof():
                return streams
            streams[1].close()
        return None

    def _keep(self, address: Address, streams: Streams) -> None:
        idle = self._idle.setdefault(asyncio.get_running_loop(), {}).setdefault(address, [])
        idle.append((time.monotonic(), streams))
        while len(idle) > KEPT_MAX:
            idle.pop(0)[1][1].close()

    def close(self) -> None:
        """Close the idle connections of all loops."""
        for loop, by_address in list(self._idle.items()):
            for idle in by_address.values():
                for _, (_, writer) in idle:
                    with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections too
                        loop.call_soon_threadsafe(writer.close)
        self._idle.clear()


# --- threads --------------------------------------------------------------------------------------

_Idle = dict[Address, list[tuple[float, socket.socket]]]


class ThreadTransport:
    """Connections shared by threads; each serves one thread while that waits for an answer."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings
        self._tls = _Tls(settings)
        self._lock = threading.Lock()
        self._idle: _Idle = {}
        self._process_id = os.getpid()
        weakref.finalize(self, _close_all, self._idle)

    def exchange(self, exchange: Exchange, headers: tuple[tuple[str, str], ...]) -> AdminResponse:
        """Make one try. Raises `ConnectError`, and `Timeout` at the call's time limit."""
        address, message = exchange.address, exchange.message(headers)
        if exchange.request.safe:
            while (line := self._kept(address)) is not None:
                with contextlib.suppress(ConnectError):
                    return self._talk(line, address, message, exchange)
        return self._talk(self._open(address, exchange), address, message, exchange)

    def _open(self, address: Address, exchange: Exchange) -> socket.socket:
        seconds = min(self._settings.connection_timeout_seconds, exchange.seconds_left(time.monotonic()))
        try:
            connected = socket.create_connection((address.host, address.port), seconds)
        except (OSError, ValueError) as error:
            raise _unsent(address, error) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not address.tls:
                return connected
            return self._tls().wrap_socket(connected, server_hostname=address.host)
        except PulsarException:
            connected.close()
            raise
        except (OSError, ValueError) as error:
            connected.close()
            raise _unsent(address, error) from error
        except BaseException:
            connected.close()
            raise

    def _talk(
        self, line: socket.socket, address: Address, message: bytes, exchange: Exchange
    ) -> AdminResponse:
        reader = ResponseReader(address.host_port, no_body=exchange.request.method == "HEAD")
        keep = False
        try:
            line.settimeout(exchange.seconds_left(time.monotonic()))
            line.sendall(message)
            answer = None
            while answer is None:
                line.settimeout(exchange.seconds_left(time.monotonic()))
                data = line.recv(PIECE_BYTES)
                answer = reader.feed(data) if data else reader.end()
                if answer is None and not data:
                    raise _lost(address)
            keep = answer.reusable
            return answer
        except PulsarException:
            raise
        except TimeoutError:
            raise exchange.timed_out() from None
        except OSError as error:
            raise _lost(address, error) from error
        finally:
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
            gone = idle.pop(0)[1] if len(idle) > KEPT_MAX else None
        if gone is not None:
            gone.close()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            _close_all(self._idle)


def _close_all(idle: _Idle) -> None:
    for lines in idle.values():
        for _, line in lines:
            line.close()
    idle.clear()


# --- shared ---------------------------------------------------------------------------------------


async def async_credentials(provider: CredentialsProvider, challenge: bytes | None) -> Credentials:
    """Obtain credentials from a provider, in an executor thread if it may block."""
    return await obtain_credentials(asyncio.get_running_loop(), provider, challenge)


def credentials(provider: CredentialsProvider, challenge: bytes | None) -> Credentials:
    """Obtain credentials from a provider."""
    return obtain(provider, challenge)


async def async_pause(seconds: float) -> None:
    """Sleep on the loop."""
    if seconds:
        await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    """Sleep."""
    if seconds:
        time.sleep(seconds)
