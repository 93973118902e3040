"""The cycle collector looks at what is young, and nothing of ours needs it when it is old."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from servers import serving

from geminga.broker.serving.garbage_collector import (
    MANY_BLOCKS,
    OLD_SECONDS,
    YOUNG_OBJECTS,
    YOUNG_PASSES,
    GarbageCollectorPacing,
)
from tests.broker.conftest import Command
from tests.broker.serving.test_stalled_disk import Client

MIDDLE_OBJECTS = YOUNG_OBJECTS * (YOUNG_PASSES + 2)


class Loop:
    """Event loop whose soon-called callbacks run on request."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        while self.soon:
            self.soon.pop()()


@pytest.fixture
def loop():
    loop = Loop()
    made = GarbageCollectorPacing(loop)
    made.start()
    yield loop
    made.stop()
    assert gc.get_freeze_count() == 0


def _hold(loop: Loop, count: int) -> list[list[int]]:
    held = []
    for number in range(count):
        held.append([number])
        loop.turn()
    return held


def test_long_lived_objects_are_frozen(loop):
    looked_at: list[int] = []

    def watch(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.append(watch)
    try:
        held = _hold(loop, 8 * MIDDLE_OBJECTS)
    finally:
        gc.callbacks.remove(watch)
    assert len(looked_at) >= 3
    assert max(looked_at) <= MANY_BLOCKS, "what was there at the start is not looked at again"
    set_apart = gc.get_freeze_count()
    del held[:]
    left = set_apart - gc.get_freeze_count()
    assert left >= 2 * MIDDLE_OBJECTS, "what is set apart still leaves memory"


def test_old_cycles_are_collected_once_a_minute(loop, monkeypatch):
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.MANY_BLOCKS", 1 << 40)
    gone = []

    class Circle:
        def __init__(self) -> None:
            self.itself: Any = self

        def __del__(self) -> None:
            gone.append(True)

    circle = Circle()
    held = _hold(loop, 2 * MIDDLE_OBJECTS)
    del circle
    held += _hold(loop, 2 * MIDDLE_OBJECTS)
    assert gone == []
    loop.now += OLD_SECONDS
    held += _hold(loop, 2 * MIDDLE_OBJECTS)
    assert gone == [True]


async def test_closed_peers_leave_no_reference_cycles(tmp_path):
    """An old cycle would stay for good in a broker with many objects."""
    async with serving(memory=False, data_dir=tmp_path / "data", web_port=None) as server:
        for kind in range(4):
            await _use(server.settings.port, kind)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for kind in range(4):
                await _use(server.settings.port, kind)
            gc.collect()
            # The tests' process may have clients of other tests in it.
            rooms = ("geminga.broker", "geminga.ledger")
            assert [thing for thing in gc.garbage if type(thing).__module__.startswith(rooms)] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


async def _use(port: int, kind: int) -> None:
    """A peer with a producer and a consumer of each kind, which closes them or just goes."""
    client = await Client.connect(port)
    await client.call(Command.PRODUCER_SUCCESS, "producer", topic="t", producer_id=1, request_id=1)
    client.send("subscribe", topic="t", subscription=f"s{kind}", consumer_id=1, request_id=2, subType=kind)
    await client.expect(Command.SUCCESS)
    client.send("flow", consumer_id=1, messagePermits=10)
    client.publish(5)
    await client.expect(Command.SEND_RECEIPT, 5)
    await client.expect(Command.MESSAGE, 5)
    if kind % 2:
        client.send("close_producer", producer_id=1, request_id=3)
        client.send("close_consumer", consumer_id=1, request_id=4)
        await client.expect(Command.SUCCESS, 2)
    client.close()
    await asyncio.sleep(0.1)
