"""Health checks on a port of their own: ``/livez`` and ``/readyz``, answered by a thread of their own.

So they are answered while the broker starts and stops, and while the web port has no free connections.
"""

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from geminga._util.event_loops import new_event_loop

CONNECTIONS_MAX: Final = 64
"""Limit of connections, above which the oldest one is closed."""
REQUEST_SECONDS: Final = 5.0
"""Time for a request to arrive, and for the broker's event loop to answer it."""
_REQUEST_BYTES_MAX: Final = 8192
STARTING: Final = "the broker is starting"
STOPPING: Final = "the broker is stopping"

Check = Callable[[], str]
"""Returns why a check fails; empty if it succeeds. Called on the broker's event loop."""


class HealthPort:
    """Server of the checks on a listening socket, until `close`."""

    def __init__(
        self, listener: socket.socket, loop: asyncio.AbstractEventLoop, live: Check, ready: Check
    ) -> None:
        """``loop`` is the broker's event loop, on which the checks run; it is used while `phase` is empty."""
        self.phase = STARTING
        """Reason for not being ready while the broker starts or stops; empty while it serves."""
        self._checks = {"/livez": live, "/readyz": ready}
        self._broker_loop = loop
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        self._loop = new_event_loop()
        self._peers: dict[asyncio.StreamWriter, None] = {}
        self._thread = threading.Thread(target=self._run, name="geminga-health", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.create_task(self._listen())
        self._loop.run_forever()
        for peer in self._peers:
            peer.transport.abort()
        self._listener.close()

    async def _listen(self) -> None:
        await asyncio.start_server(
            self._answer, sock=self._listener, limit=_REQUEST_BYTES_MAX, backlog=CONNECTIONS_MAX
        )

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers[writer] = None
        if len(self._peers) > CONNECTIONS_MAX:
            next(iter(self._peers)).transport.abort()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, path = (*head.split(b" ", 2), b"", b"")[:2]
            status, text = await self._found(path.decode("ascii", "replace"))
            body = f"{text}\n".encode() if method != b"HEAD" else b""
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text.encode()) + 1}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._peers.pop(writer, None)
            writer.close()

    async def _found(self, path: str) -> tuple[str, str]:
        path = path.partition("?")[0]
        check = self._checks.get(path)
        if check is None:
            return "404 Not Found", "see /livez and /readyz"
        if self.phase:
            why = self.phase if path == "/readyz" else ""
        else:
            why = await self._on_broker(check)
        return ("503 Service Unavailable", why) if why else ("200 OK", "ok")

    async def _on_broker(self, check: Check) -> str:
        found: concurrent.futures.Future[str] = concurrent.futures.Future()

        def run() -> None:
            if found.set_running_or_notify_cancel():  # the request may have been answered without it
                found.set_result(check())

        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._broker_loop.call_soon_threadsafe(run)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(found), REQUEST_SECONDS)
        except TimeoutError:
            return f"the broker's event loop does not respond within {REQUEST_SECONDS:g} s"

    def close(self) -> None:
        """Close the port and its connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
