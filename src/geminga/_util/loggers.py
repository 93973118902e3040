"""Loggers whose handlers, filters and record factories may raise without any effect on the caller.

Programs have handlers and filters that raise outside of a web request, or while a disk is full. A log line
on an I/O thread must decide nothing: the error is printed on standard error, as `logging` prints what a
handler's ``emit`` raises, and the caller continues.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

AUDIT: Final = "geminga.audit"
"""Logger of changes and refusals by the broker, with role and address."""
NAMES: Final = (
    "geminga", AUDIT, "geminga.broker", "geminga.broker.admin.http", "geminga.broker.serving.server",
    "geminga.console", "geminga.functions", "geminga.ledger", "geminga.mirror", "geminga.offload",
    "geminga.producer", "geminga.spark", "geminga.statistics",
)  # fmt: skip
"""Loggers of this package; importing the module shields them."""


def shield(logger: logging.Logger) -> logging.Logger:
    """Return the logger, whose methods raise no ``Exception`` of handlers from now on."""
    if "_log" not in vars(logger):
        logger._log = _shielded(logger._log)  # type: ignore[method-assign]
    return logger


def _shielded(log: Callable[..., None]) -> Callable[..., None]:
    def log_and_continue(*arguments: Any, stacklevel: int = 1, **options: Any) -> None:
        try:
            log(*arguments, stacklevel=stacklevel + 1, **options)  # the record names the caller's line
        except Exception:
            report()

    return log_and_continue


def report() -> None:
    """Print the error of a log handler, unless ``logging.raiseExceptions`` is off."""
    if logging.raiseExceptions:
        with contextlib.suppress(Exception):  # standard error may be closed
            traceback.print_exc(file=sys.stderr)


for _name in NAMES:
    shield(logging.getLogger(_name))
