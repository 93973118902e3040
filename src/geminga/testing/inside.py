"""What a test wants to know of an embedded broker's insides, asked where they may be touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from geminga.broker.serving.embedded import EmbeddedBroker

T = TypeVar("T")


def inside(broker: EmbeddedBroker, function: Callable[[], T], timeout_seconds: float = 60) -> T:
    """What ``function()`` gives, or raises, on the thread of the broker's event loop.

    Topics, cursors and the store belong to that thread. A look at them from the test's own is now and then
    refused (SQLite tells: "Recursive use of cursors not allowed"), or harms what the broker is doing.
    """

    async def call() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), broker._loop).result(timeout_seconds)
