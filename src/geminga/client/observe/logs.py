"""Targets of a client's log lines.

The library logs to the standard logger ``geminga`` and prints nothing itself. The ``logger`` argument of a
client sends those lines to another logger, to standard output or to a file as well.
"""

import logging
import sys
import threading

from geminga.client.options.enums import LoggerLevel
from geminga.config import check_type
from geminga.errors import InvalidConfiguration

_LEVELS = {
    LoggerLevel.Debug: logging.DEBUG,
    LoggerLevel.Info: logging.INFO,
    LoggerLevel.Warn: logging.WARNING,
    LoggerLevel.Error: logging.ERROR,
}
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

root = logging.getLogger("geminga")

_lock = threading.Lock()
_attached: list[logging.Handler] = []
_level_before: list[int] = []


class ConsoleLogger:
    """Log target: writes lines of ``log_level`` and above to standard output."""

    def __init__(self, log_level: LoggerLevel = LoggerLevel.Info) -> None:
        self.log_level: LoggerLevel = check_type("log_level", log_level, LoggerLevel)


class FileLogger:
    """Log target: appends lines of ``log_level`` and above to ``log_file``."""

    def __init__(self, log_level: LoggerLevel, log_file: str) -> None:
        self.log_level: LoggerLevel = check_type("log_level", log_level, LoggerLevel)
        self.log_file: str = check_type("log_file", log_file, str)


class _Forward(logging.Handler):
    """Handler that passes records to another logger, subject to its level."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        if self._target.isEnabledFor(record.levelno):
            self._target.handle(record)


def attach(target: logging.Logger | ConsoleLogger | FileLogger | None) -> logging.Handler | None:
    """Start sending the library's log lines to ``target``; pass the result to `detach` later."""
    handler: logging.Handler
    if target is None or target is root:
        return None
    if isinstance(target, logging.Logger):
        handler = _Forward(target)
        level = target.getEffectiveLevel()
    elif isinstance(target, (ConsoleLogger, FileLogger)):
        if isinstance(target, ConsoleLogger):
            handler = logging.StreamHandler(sys.stdout)
        else:
            handler = logging.FileHandler(target.log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter(_FORMAT))
        level = _LEVELS[target.log_level]
    else:
        raise InvalidConfiguration(
            f"logger={target!r} is not allowed; allowed: None, logging.Logger, ConsoleLogger or FileLogger"
        )
    handler.setLevel(level)
    with _lock:
        if not _attached:
            _level_before.append(root.level)
        _attached.append(handler)
        # Only ever lowered: other handlers may need more lines than this one.
        if root.getEffectiveLevel() > level:
            root.setLevel(level)
        root.addHandler(handler)
    return handler


def detach(handler: logging.Handler | None) -> None:
    """Undo `attach`; a second call does nothing. The last one restores the logger's level."""
    with _lock:
        if handler is None or handler not in _attached:
            return
        _attached.remove(handler)
        root.removeHandler(handler)
        if not _attached:
            root.setLevel(_level_before.pop())
    handler.close()
