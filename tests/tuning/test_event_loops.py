"""When event loops wake up for a timer, by what they document and by the loops themselves."""

from __future__ import annotations

import asyncio
import math

import pytest

from geminga.event_loops import new_event_loop
from geminga.tuning.event_loops import EventLoop, installed

ASYNCIO, UVLOOP = EventLoop.ASYNCIO, EventLoop.UVLOOP


def slept(loop: EventLoop, asked_at: float, delay: float, woken_at: float | None = None) -> float:
    """Milliseconds from asking to waking up, when something else has woken the loop at a time."""
    timer = loop.set_for(asked_at + delay, asked_at)
    return 1000 * (loop.wakes_at(timer, asked_at if woken_at is None else woken_at) - asked_at)


@pytest.mark.parametrize("asked_at", [0.0, 0.0004, 0.9999, 12.3456])
@pytest.mark.parametrize(
    ("delay", "asyncio_ms", "uvloop_ms"), [(0.001, 1, 1), (0.0203, 21, 20), (0.0067, 7, 7)]
)
def test_an_undisturbed_loop_sleeps_whole_milliseconds(
    asked_at: float, delay: float, asyncio_ms: float, uvloop_ms: float
) -> None:
    assert slept(ASYNCIO, asked_at, delay) == pytest.approx(asyncio_ms)
    assert slept(UVLOOP, asked_at, delay) == pytest.approx(uvloop_ms)


def test_a_receipt_makes_asyncio_late_and_uvloop_late_or_early() -> None:
    assert slept(ASYNCIO, 1.0002, 0.02, woken_at=1.0009) == pytest.approx(20.7)
    assert slept(UVLOOP, 1.0002, 0.02, woken_at=1.0009) == pytest.approx(20.7)
    assert slept(ASYNCIO, 1.0009, 0.02, woken_at=1.0011) == pytest.approx(20.2)
    assert slept(UVLOOP, 1.0009, 0.02, woken_at=1.0011) == pytest.approx(19.2)


def test_a_timer_that_is_due_wakes_at_once() -> None:
    for loop in EventLoop:
        assert loop.wakes_at(loop.set_for(2.0, 1.99), 2.5) == 2.5


def test_the_loop_that_clients_run_on_never_wakes_earlier_than_foretold() -> None:
    """A busy machine makes it later; how much is not asked."""
    kind = installed()
    assert kind.value in ("asyncio", "uvloop")

    async def measure() -> list[float]:
        loop, found = asyncio.get_running_loop(), []
        for step in range(20):
            await asyncio.sleep(0.0007 * (step % 5))
            woken: asyncio.Future[None] = loop.create_future()
            asked_at = loop.time()
            loop.call_later(0.005, woken.set_result, None)
            await woken
            found.append(loop.time() - asked_at)
        return found

    loop = new_event_loop()
    try:
        shortest = min(loop.run_until_complete(measure()))
    finally:
        loop.close()
    allowed = 5.0 if kind is ASYNCIO else 4.0
    assert 1000 * shortest > math.floor(allowed) - 0.1
