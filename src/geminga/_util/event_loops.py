"""Event loop of clients and brokers: uvloop's if it is installed, asyncio's otherwise."""

import _thread
import asyncio
import inspect
import logging
import selectors
from asyncio import _get_running_loop, _set_running_loop
from typing import Any

from geminga._util.descriptors import fill_standard
from geminga._util.loggers import shield


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop, which belongs to no thread yet."""
    # A loop logs what callbacks raise: an error of the log's handlers would end the loop.
    shield(logging.getLogger("asyncio"))
    if not inspect.isbuiltin(_thread.start_new_thread):
        return _loop_of_a_greenlet()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    fill_standard()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _loop_of_a_greenlet() -> asyncio.AbstractEventLoop:
    """Return asyncio's loop for programs in which gevent or eventlet has replaced threads with greenlets.

    In uvloop's compiled code a waiting greenlet would block all others. Here it waits in a selector that the
    library has replaced; meanwhile other greenlets of the same thread, which asyncio cannot distinguish, may
    run separate loops.
    """
    selector = selectors.DefaultSelector()
    select = selector.select

    def select_beside_others(timeout: float | None = None) -> list[Any]:
        loop = _get_running_loop()
        _set_running_loop(None)
        try:
            return select(timeout)
        finally:
            _set_running_loop(loop)

    selector.select = select_beside_others  # type: ignore[method-assign]
    return asyncio.SelectorEventLoop(selector)
