"""Handling of exceptions that an application's callback raises."""

import asyncio
import logging
from contextlib import suppress
from typing import NoReturn

from geminga.client.io.runtime import on_io_thread

logger = logging.getLogger("geminga.producer")


def callback_raised(error: BaseException) -> None:
    """Log ``error``, raised by a send callback, so that other waiters are still notified.

    SystemExit and KeyboardInterrupt are raised on the application's event loop at the end of its current
    iteration. On an I/O thread they would only end that thread, so there they are logged too. Outside any
    loop, where the application made the call itself, they are raised at once.
    """
    if not isinstance(error, (SystemExit, KeyboardInterrupt)) or on_io_thread():
        with suppress(Exception):  # a logging handler that raises
            logger.error("a send callback raised", exc_info=error)
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon(_raise, error)


def _raise(error: BaseException) -> NoReturn:
    raise error
