"""Printing of the library's warnings on standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable


class _Lines(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(f"geminga: {record.getMessage()}")


def show(write: Callable[[str], None]) -> Callable[[], None]:
    """Pass warnings to ``write``, a line each, from now on; the returned function stops this."""
    logger = logging.getLogger("geminga")
    lines = _Lines(write)
    logger.addHandler(lines)
    return lambda: logger.removeHandler(lines)
