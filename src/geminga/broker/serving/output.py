"""Log of ``geminga standalone`` on standard error: text or JSON, and no write that waits for the reader."""

import contextlib
import datetime as dt
import json
import logging
import os
import select
from typing import Any, Final, TextIO

from geminga._util.loggers import AUDIT
from geminga.broker.commands.session import Session
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.runtime.rate_limited_logger import AuditedRequest
from geminga.broker.settings import ProcessSettings
from geminga.broker.topics.persistent import PersistentTopic

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_JOURNAL_TEXT: Final = "%(priority)s%(levelname)s %(name)s: %(message)s"
_PRIORITIES: Final = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
"""Priorities of syslog by level; journald reads them from ``<N>`` at the start of a line."""


def log_to(handler: logging.Handler, settings: ProcessSettings) -> None:
    """Write all log records with ``handler``, in the form of the settings, from their level on."""
    handler.setFormatter(_formatter(settings.log_format))
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        logging.getLogger("aiohttp").setLevel(logging.WARNING)
        logging.getLogger(AUDIT).setLevel(logging.INFO)  # at every log_level
    if handler in root.handlers:
        root.setLevel(settings.log_level.upper())


def _formatter(form: str) -> logging.Formatter:
    if form == "json":
        return JsonFormatter()
    return _JournalFormatter(_JOURNAL_TEXT) if "JOURNAL_STREAM" in os.environ else logging.Formatter(_TEXT)


class _JournalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.priority = f"<{_PRIORITIES.get(record.levelno, 7)}>"
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object per record.

    Connections, topics and subscriptions among the arguments of the line add their names: ``connection``,
    ``role``, ``topic``, ``subscription``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, without line breaks."""
        found: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for value in record.args if isinstance(record.args, tuple) else ():
            found |= _fields(value)
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def _fields(value: object) -> dict[str, str]:
    """Return the fields that an argument of a log line adds."""
    if isinstance(value, (Session, AuditedRequest)):
        return value.log_fields
    if isinstance(value, PersistentSubscription):
        return {"topic": value.topic_text, "subscription": value.name}
    return {"topic": value.text} if isinstance(value, PersistentTopic) else {}


class LogOutput(logging.Handler):
    """Handler that writes to the descriptor of ``stream``; None writes nothing.

    Records are dropped while the pipe is full, as a write would block the event loop and with it every client
    and signal, and where they cannot be written (the pipe is closed, the disk is full).
    """

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._fd = -1
        self._dropped = 0
        self._line_end = b""  # of a record of which only a part was written
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed
                stream.flush()
                self._fd = stream.fileno()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, preceded by a line about those that were dropped before."""
        text = self._line(record)
        if self._dropped:
            missing = f"{self._dropped} lines are missing here: the pipe or the disk was full"
            lost = logging.LogRecord("geminga.broker", logging.WARNING, "", 0, missing, None, None)
            text = self._line(lost) + text
        self._write(self._line_end + text.encode(errors="backslashreplace"))

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + "\n"
        except Exception as error:  # of a wrong log call; its text may be anything
            return f"a log line of {record.name} cannot be formatted: {type(error).__name__}\n"

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        poll, left = select.poll(), memoryview(data)
        poll.register(self._fd, select.POLLOUT)
        with contextlib.suppress(OSError):
            while left and poll.poll(0):
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
        self._line_end = (b"\n" if len(left) < len(data) else self._line_end) if left else b""
        self._dropped = self._dropped + 1 if left else 0
