"""The event loop that clients and brokers run on: uvloop's where it is installed, asyncio's otherwise."""

from __future__ import annotations

import asyncio

from geminga.descriptors import fill_standard


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new one; it is nobody's yet."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    fill_standard()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
