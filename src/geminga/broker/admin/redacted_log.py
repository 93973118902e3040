"""Requests that are not HTTP, and log lines about them without their text, which may be credentials.

The web framework logs and answers unreadable input verbatim, with a traceback. An ``Authorization`` header
that is too long, or that has a line break, would appear there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from geminga._util.loggers import shield

UNREAD_SECONDS: Final = 30.0
"""Time after which a peer that reads nothing of its answers is disconnected."""
LogLine = Callable[[str, object], None]
"""``log_line(line, value)``: as `logging.Logger.warning`."""


def peer_text(transport: asyncio.BaseTransport) -> str:
    """The peer's address for log lines."""
    address = transport.get_extra_info("peername")
    return str(address[0]) if isinstance(address, tuple) else "a peer"


def unquoted(log: logging.Logger, log_line: LogLine) -> logging.Logger:
    """Return ``log`` for the framework; unreadable input is reported to ``log_line`` by its sender alone."""
    found = logging.Logger(log.name)
    found.parent = log
    found.addFilter(_RedactedLogger(log_line))
    return shield(found)


class _RedactedLogger(logging.Filter):
    def __init__(self, log_line: LogLine) -> None:
        super().__init__()
        self._log_line = log_line

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (HttpProcessingError, RequestPayloadError)):
            self._log_line(f"{record.getMessage()}: %s", type(error).__name__)
            return False
        return True


class WebConnection(web.RequestHandler):
    """A connection to the web port: bad requests are answered without their text, answers must be read.

    ``made`` is called with the transport when the connection begins, ``lost`` when it ends.
    """

    __slots__ = ("_log_line", "_lost", "_made", "_unread_bytes", "_unread_timer")

    def __init__(
        self,
        serving: web.Server,
        log_line: LogLine,
        made: Callable[[asyncio.BaseTransport], object] = lambda _: None,
        lost: Callable[[WebConnection], object] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(serving, **options)
        self._log_line = log_line
        self._made = made
        self._lost = lost
        self._unread_bytes = 0
        self._unread_timer: asyncio.TimerHandle | None = None

    @property
    def is_behind(self) -> bool:
        """Return whether the peer has not read more than the write-ahead limit."""
        return self._unread_timer is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._made(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        self._expect_nothing()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._expect_nothing()
        self._lost(self)
        super().connection_lost(exc)

    def _expect_reading(self) -> None:
        if self.transport is not None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._unread_timer = asyncio.get_running_loop().call_later(UNREAD_SECONDS, self._look)

    def _expect_nothing(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _look(self) -> None:
        """Disconnect a peer that has read nothing. Until it reads, nothing more is written to it."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size() >= self._unread_bytes:
            self._log_line("web port: %s leaves its answers unread and is disconnected", peer_text(transport))
            transport.abort()
        else:
            self._expect_reading()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, HttpProcessingError):
            message = f"the request cannot be read: {type(exc).__name__}"
        return super().handle_error(request, status, exc, message)
