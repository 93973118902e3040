"""CPU of a broker for the first page of the console.

``python -m benchmarks.row_console [TOPICS SUBSCRIPTIONS]`` makes a broker core over a store in memory, with a
third of the subscriptions behind, and requests the page of 50 rows as the console does: first with empty
caches, then again. It prints a Markdown table; CPU is that of the serving thread, so that the figures hold on
a busy machine.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

from geminga.broker.admin.subscription_overview import SubscriptionOverview
from geminga.ids import MessageId, TopicName

AGAIN = 50
QUESTION: dict[str, Any] = {
    "search": "", "sort": "trouble", "reverse": False, "level": None, "offset": 0, "limit": 50,
    "sight": None,
}  # fmt: skip


def _harness() -> Any:
    path = Path(__file__).parent.parent / "tests/broker/conftest.py"
    spec = importlib.util.spec_from_file_location("console_harness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["console_harness"] = module
    spec.loader.exec_module(module)
    return module.Harness()


def _done(error: Exception | None) -> None:
    assert error is None


def _fill(harness: Any, topics: int, subscriptions: int) -> None:
    for number in range(topics):
        harness.broker.topics.make(TopicName.parse(f"persistent://public/default/t-{number:06}"))
    for number in range(subscriptions):
        name = TopicName.parse(f"persistent://public/default/t-{number * (topics // subscriptions):06}")
        harness.actions.cursors.create(name, "s", MessageId.earliest, _done)
        if number % 3 == 0:
            peer = harness.peer()
            peer.producer(str(name))
            peer.publish(2)
            peer.disconnect()
    harness.poll()


async def _measure(harness: Any) -> tuple[float, float, float, bool]:
    """Wall and CPU of the first answer and its completeness; CPU of a survey; CPU of a page that follows."""
    boards = SubscriptionOverview(harness.broker)
    harness.broker.topics.resting.begin(lambda: None)
    while not harness.broker.topics.resting.is_complete:
        harness.advance(1)
    began = time.perf_counter()
    found = await boards.page(**QUESTION)
    first, was_complete = time.perf_counter() - began, found["complete"]
    while not found["complete"]:
        await asyncio.sleep(0.01)
        found = await boards.page(**QUESTION)
    cpu = time.thread_time()
    for _ in range(AGAIN):
        await boards.page(**QUESTION)
    again = (time.thread_time() - cpu) / AGAIN
    boards.close()
    return first, found["surveySeconds"], again, was_complete


def main() -> None:
    topics, subscriptions = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (10_000, 10_000)
    harness = _harness()
    _fill(harness, topics, subscriptions)
    print(
        "| topics | subscriptions | in memory | first answer | complete | a survey, CPU | a page again, CPU |"
    )
    print("|---|---|---|---|---|---|---|")
    for where in ("all", "none"):
        if where == "none":
            harness.restart()
        first, survey, again, complete = asyncio.run(_measure(harness))
        print(
            f"| {topics:,} | {subscriptions:,} | {where} | {first * 1000:.0f} ms "
            f"| {'yes' if complete else 'no'} | {survey * 1000:.0f} ms | {again * 1000:.1f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
