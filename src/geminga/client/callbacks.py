"""What becomes of an exception that the application's callback raised: it harms nothing else."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NoReturn

from geminga.client.runtime import on_io_thread

logger = logging.getLogger("geminga.producer")


def callback_raised(error: BaseException) -> None:
    """To be called where ``error`` was caught; whoever else waits is told afterwards as if nothing were.

    It is logged. What asks for the end of the program does so on a loop of the application's own, as soon as
    this turn of it is over; on an I/O thread it would end the thread and nothing else, so there it is logged,
    too. Raises it where the application itself made the call in which it was raised.
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
