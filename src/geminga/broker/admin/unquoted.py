"""Requests that are not HTTP, and what is said of them: never a part of them, which may be credentials.

The web framework writes what it cannot read into the log, with a traceback, and answers with it. A header
``Authorization`` that is too long, or that a program has put a line break into, would stand there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from geminga.loggers import shield

Tell = Callable[[str, object], None]
"""``tell(line, value)``: as `logging.Logger.warning`."""


def unquoted(log: logging.Logger, tell: Tell) -> logging.Logger:
    """``log`` for the framework, but ``tell`` is told who sent what cannot be read, and no more."""
    found = logging.Logger(log.name)
    found.parent = log
    found.addFilter(_Unquoted(tell))
    return shield(found)


class _Unquoted(logging.Filter):
    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (HttpProcessingError, RequestPayloadError)):
            self._tell(f"{record.getMessage()}: %s", type(error).__name__)
            return False
        return True


class Peer(web.RequestHandler):
    """A connection to the web port that is not told either."""

    __slots__ = ()

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
