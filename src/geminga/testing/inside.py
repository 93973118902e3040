"""Access to the internals of an embedded broker on its event loop's thread, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from geminga.broker.serving.embedded import EmbeddedBroker

T = TypeVar("T")


def inside(broker: EmbeddedBroker, function: Callable[[], T], timeout_seconds: float = 60) -> T:
    """Run ``function()`` on the thread of the broker's event loop and return its result.

    Topics, cursors and the store belong to that thread. Access from the test's thread sometimes fails
    (SQLite: "Recursive use of cursors not allowed"), or disturbs the broker.
    """

    async def call() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), broker._loop).result(timeout_seconds)
