"""Time limits of tasks, in virtual time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from virtual import Clock, Network, VirtualLoop, pass_time

from geminga.client.tasks import TimeLimit, TimeLimits


def run(main: Callable[[VirtualLoop, TimeLimits], Coroutine[Any, Any, None]]) -> None:
    numbers, clock = random.Random(0), Clock()
    loop = VirtualLoop(numbers, clock, Network(numbers), 0.0)
    try:
        loop.run_until_complete(main(loop, TimeLimits(loop)))
    finally:
        loop.close()


async def limited(limits: TimeLimits, when: float, seconds: float) -> None:
    with TimeLimit(limits, when):
        await pass_time(seconds)


def test_tasks_end_at_their_limits():
    async def main(loop: VirtualLoop, limits: TimeLimits) -> None:
        start = loop.time()
        ended: dict[float, float] = {}

        async def one(after: float) -> None:
            with pytest.raises(TimeoutError):
                await limited(limits, start + after, 100)
            ended[after] = loop.time() - start

        await asyncio.gather(*map(one, (5.0, 1.0, 3.0)), limited(limits, start + 2, 1.5))
        assert ended == {after: pytest.approx(after, abs=0.001) for after in (1.0, 3.0, 5.0)}
        with TimeLimit(limits, start + 30):
            await pass_time(1)
        await limited(limits, float("inf"), 1000)

    run(main)


def test_a_cancelled_task_does_not_time_out():
    async def main(loop: VirtualLoop, limits: TimeLimits) -> None:
        task = asyncio.ensure_future(limited(limits, loop.time() + 1, 100))
        await pass_time(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        both = asyncio.ensure_future(limited(limits, loop.time() + 1, 100))
        loop.call_at(loop.time() + 1, both.cancel)
        with pytest.raises(asyncio.CancelledError):
            await both

    run(main)


def test_only_the_inner_of_two_limits_ends_the_inner_block():
    async def main(loop: VirtualLoop, limits: TimeLimits) -> None:
        with TimeLimit(limits, loop.time() + 2):
            with pytest.raises(TimeoutError):
                await limited(limits, loop.time() + 1, 100)
            await pass_time(0.5)

    run(main)
