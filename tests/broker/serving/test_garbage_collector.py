"""The cycle collector looks at what is young, and nothing of ours needs it when it is old."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually_async

from geminga.broker.serving.garbage_collector import (
    MIDDLE_PASSES,
    YOUNG_OBJECTS,
    YOUNG_PASSES,
    GarbageCollectorPacing,
    forget_what_is_remembered,
)
from geminga.broker.serving.server import BrokerServer
from geminga.broker.settings import BrokerSettings
from geminga.wire.proto import pulsar_wire_pb2 as pb
from tests.broker.serving.test_stalled_disk import Client

Command = pb.BaseCommand
MIDDLE_OBJECTS = YOUNG_OBJECTS * (YOUNG_PASSES + 2) * MIDDLE_PASSES


class Loop:
    """Event loop whose soon-called callbacks run on request."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_later(self, _: float, call: Callable[[], None]) -> Any:
        self.later[:] = [call]
        return SimpleNamespace(cancel=self.later.clear)

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        while self.soon:
            self.soon.pop()()


@pytest.fixture
def collector() -> Iterator[tuple[Any, Loop]]:
    loop = Loop()
    made: Any = GarbageCollectorPacing(loop)  # type: ignore[arg-type]
    made.start()
    yield made, loop
    made.stop()
    assert loop.later == []
    assert gc.get_freeze_count() == 0


def _hold(loop: Loop, count: int) -> list[list[int]]:
    held = []
    for number in range(count):
        held.append([number])
        loop.turn()
    return held


def test_long_lived_objects_are_frozen(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.FEW_SECONDS", -1.0)
    looked_at: list[int] = []
    settling, loop = collector

    def watch(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in range(3)))

    gc.callbacks.append(watch)
    try:
        held = _hold(loop, 4 * MIDDLE_OBJECTS)
    finally:
        gc.callbacks.remove(watch)
    assert len(looked_at) >= 3
    assert max(looked_at[1:]) <= MIDDLE_OBJECTS + 1_000, "the first may be over all"
    set_apart = gc.get_freeze_count()
    assert not settling._are_few
    del held[:]
    left = set_apart - gc.get_freeze_count()
    assert left >= 2 * MIDDLE_OBJECTS, "what is set apart still leaves memory"


def test_each_collection_visits_few_objects(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.FEW_SECONDS", 60.0)
    settling, loop = collector
    settling._are_few = True  # the tests' process has many
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
    assert gone == [True]


def test_memory_is_released_after_much_was_freed(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.MUCH_BLOCKS", 20_000)
    given_back: list[int] = []
    settling, loop = collector
    monkeypatch.setattr(settling, "_trim", lambda: given_back.append(threading.get_ident()))
    held = [str(number) for number in range(200_000)]
    for _ in range(3):
        loop.later[0]()
    assert given_back == []
    del held
    for _ in range(3):
        loop.later[0]()
    settling._giving_back.join()
    assert given_back, "also more than once, where other tests' threads free much meanwhile"
    assert threading.get_ident() not in given_back, "nobody else waits for it"


def test_memory_is_released_while_it_is_freed(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when nothing happens any more: the C library would be busy for long with all of it."""
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.MUCH_BLOCKS", 20_000)
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.BUSY_LOOK_SECONDS", 0.0)
    given_back: list[int] = []
    settling, loop = collector
    monkeypatch.setattr(settling, "_trim", lambda: given_back.append(1))
    held = [[str(number) for number in range(40_000)] for _ in range(5)]
    settling._settle()
    assert given_back == []
    for times in range(1, 6):
        del held[-1]
        settling._settle()
        settling._giving_back.join()
        assert len(given_back) == times
    assert loop.later


def test_caches_of_the_web_framework_are_cleared(collector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred addresses of the last requests, each in another mebibyte, kept all of these."""
    yarl = pytest.importorskip("yarl")
    monkeypatch.setattr("geminga.broker.serving.garbage_collector.MUCH_BLOCKS", 20_000)
    _, loop = collector
    held = [str(number) for number in range(200_000)]
    url = yarl.URL.build(path="/topic", encoded=True)
    loop.later[0]()
    assert yarl.URL.build(path="/topic", encoded=True) is url, "remembered"
    del held
    loop.later[0]()
    assert yarl.URL.build(path="/topic", encoded=True) is not url


def test_closed_peers_leave_no_reference_cycles(tmp_path: Path) -> None:
    """An old cycle would stay for good in a broker with many objects."""
    asyncio.run(_serve_and_look(tmp_path))


async def _serve_and_look(folder: Path) -> None:
    server = BrokerServer(BrokerSettings(data_dir=folder / "data", port=0, web_port=None))
    await server.start()
    try:
        for kind in range(4):
            await _use(server.settings.port, kind)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for kind in range(4):
            await _use(server.settings.port, kind)
        gc.collect()
        # The tests' process may have clients of other tests in it.
        rooms = ("geminga.broker", "geminga.ledger")
        ours = [thing for thing in gc.garbage if type(thing).__module__.startswith(rooms)]
        assert ours == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        await server.stop()


async def _use(port: int, kind: int) -> None:
    """A peer with a producer and a consumer of each kind, which closes them or just goes."""
    client = await Client.connect(port)
    client.send("producer", topic="t", producer_id=1, request_id=1)
    await client.expect(Command.PRODUCER_SUCCESS)
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
    await eventually_async(lambda: client._writer.transport is None or client._writer.is_closing())
    await asyncio.sleep(0.1)


def test_replaced_modules_do_not_stop_the_clearing_of_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may be replaced by None, or by any other object."""
    asked = lru_cache(lambda: 1)
    asked()
    monkeypatch.setitem(sys.modules, "aiohttp.absent", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "aiohttp.odd", object())  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "aiohttp.there", SimpleNamespace(asked=asked))  # type: ignore[arg-type]
    forget_what_is_remembered()
    assert asked.cache_info().currsize == 0
