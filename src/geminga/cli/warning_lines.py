"""The library's warnings, as lines for the person at the terminal."""

from __future__ import annotations

import logging
from collections.abc import Callable

from geminga.cli.common import say


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"geminga: {record.getMessage()}")


_LINES = _Lines(logging.WARNING)


def show() -> Callable[[], None]:
    """Print them from now on, until the function that is returned is called."""
    logger = logging.getLogger("geminga")
    logger.addHandler(_LINES)  # the second time nothing is added
    return lambda: logger.removeHandler(_LINES)
