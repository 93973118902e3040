"""Printing of the library's warnings on standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable

from geminga.cli.common import say


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"geminga: {record.getMessage()}")


_LINES = _Lines(logging.WARNING)


def show() -> Callable[[], None]:
    """Print warnings from now on; the returned function stops this."""
    logger = logging.getLogger("geminga")
    logger.addHandler(_LINES)  # the second time nothing is added
    return lambda: logger.removeHandler(_LINES)
