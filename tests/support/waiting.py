"""Waiting in tests. A limit ends a test that hangs; it never decides one that does not."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from geminga.errors import PulsarException

Value = TypeVar("Value")

LIMIT_SECONDS = 60.0
PAUSE_SECONDS_MAX = 0.05


def _describe(detail: object) -> str:
    return f"not in time: {detail() if callable(detail) else detail}"


def eventually(
    condition: Callable[[], Value],
    seconds: float = LIMIT_SECONDS,
    detail: object = "",
    but: type[Exception] | tuple[type[Exception], ...] = (),
) -> Value:
    """Return the first true value of the condition; fail with the detail, or its result, after the limit.

    A condition that raises one of ``but`` is not true yet.
    """
    end, pause = time.monotonic() + seconds, 0.001
    while True:
        try:
            if value := condition():
                return value
        except but as error:
            detail = error
        assert time.monotonic() < end, _describe(detail)
        time.sleep(pause)
        pause = min(1.5 * pause, PAUSE_SECONDS_MAX)


def until_accepted(call: Callable[[], object]) -> None:
    """Repeat a call of the admin API that Apache Pulsar refuses while it applies an earlier change."""
    eventually(lambda: (call(), True)[1], but=PulsarException)


def poll_until(store: Any, condition: Callable[[], Value], seconds: float = LIMIT_SECONDS) -> Value:
    """Do as `eventually` does, and poll the store before each look at the condition."""
    return eventually(lambda: (store.poll(), condition())[1], seconds)


async def eventually_async(
    condition: Callable[[], Value], seconds: float = LIMIT_SECONDS, detail: object = ""
) -> Value:
    """Do as `eventually` does, while other tasks run."""

    async def found() -> Value:
        return condition()

    return await eventually_awaited(found, seconds, detail)


async def eventually_awaited(
    condition: Callable[[], Awaitable[Value]], seconds: float = LIMIT_SECONDS, detail: object = ""
) -> Value:
    """Do as `eventually_async` does, with a condition that is awaited."""
    end, pause = time.monotonic() + seconds, 0.001
    while not (value := await condition()):
        assert time.monotonic() < end, _describe(detail)
        await asyncio.sleep(pause)
        pause = min(1.5 * pause, PAUSE_SECONDS_MAX)
    return value


def start_thread(target: Callable[..., object], *arguments: Any, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread


class Blocked:
    """A thread in a blocking call, and its outcome."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.outcome: Any = None
        self._call = call
        self._thread = start_thread(self._run)

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except Exception as error:
            self.outcome = error

    def ended(self) -> Any:
        """Wait for the end of the call; return its result, or the exception that it raised."""
        join_threads(self._thread)
        return self.outcome


@contextmanager
def repeating(work: Callable[[int], object], pause_seconds: float) -> Iterator[None]:
    """Call ``work`` with 0, 1, 2, ... on a thread, each after a pause, until the end of the context."""
    ending = threading.Event()

    def repeat() -> None:
        for number in itertools.count():
            if ending.wait(pause_seconds):
                return
            work(number)

    thread = start_thread(repeat)
    try:
        yield
    finally:
        ending.set()
        thread.join()


def join_threads(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), "still runs"


def until_some_moment(chance: random.Random, seconds: float) -> None:
    """Wait for a time by chance, up to the seconds: what follows may meet another process at anything."""
    time.sleep(chance.uniform(0, seconds))


def never(condition: Callable[[], object], seconds: float) -> None:
    """Fail as soon as the condition is true; return after the seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), "true, and must not be"
        time.sleep(0.005)


async def never_async(condition: Callable[[], object], seconds: float) -> None:
    """Do as `never` does, while other tasks run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), "true, and must not be"
        await asyncio.sleep(0.005)


async def loop_turns(count: int = 1) -> None:
    """Let the event loop run its ready callbacks, as many times as given."""
    for _ in range(count):
        await asyncio.sleep(0)


def moment_between() -> int:
    """Return a time in milliseconds that lies between the timestamps before this call and those after it."""
    started = time.time_ns() // 1_000_000
    eventually(lambda: time.time_ns() // 1_000_000 > started + 1)
    return started + 1
