"""Inner objects that tests look at or disturb: one function for each."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def inside(broker: Any, function: Callable[[], T], timeout_seconds: float = 60) -> T:
    """Run ``function()`` on the event loop's thread of an embedded broker and return its result.

    Topics, cursors and the store belong to that thread. Access from the test's thread sometimes fails
    (SQLite: "Recursive use of cursors not allowed"), or disturbs the broker.
    """

    async def call() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), broker._loop).result(timeout_seconds)


def inner_consumer(consumer: Any) -> Any:
    """Return the asyncio consumer behind one for threads."""
    return consumer._consumer


def group_of(consumer: Any) -> Any:
    """Return the connections of a consumer for threads, one for each topic."""
    return inner_consumer(consumer).group


def queue_of(consumer: Any) -> Any:
    """Return the queue of received messages of a consumer for threads."""
    return inner_consumer(consumer).queue


def publisher_of(producer: Any) -> Any:
    """Return what both kinds of producers send with."""
    return producer.publisher


def wait_queue_of(producer: Any) -> Any:
    """Return the calls of a producer that wait for permits."""
    return publisher_of(producer)._wait_queue


def server_of(embedded: Any) -> Any:
    """Return the server of an embedded broker."""
    return embedded._server
