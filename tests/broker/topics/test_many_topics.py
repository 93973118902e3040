"""A thousand topics: what is in memory does not grow with them, and all of them are there after a kill.

``python -m benchmarks.topics`` does it with hundreds of thousands, and measures.
"""

from pathlib import Path
from typing import Any

import pytest

from geminga.broker.topics.topic import ROUND_SECONDS
from geminga.ids import TopicName
from geminga.ledger.settings import StoreSettings
from geminga.ledger.store import FileStore
from geminga.wire.metadata import parse_entry
from tests.broker.conftest import Harness, entry_bytes
from tests.support.disk_stores import succeeded

TOPICS = 1_000
SETTINGS = StoreSettings(sync="never", checkpoint_state_bytes=350_000)
NAMES = [TopicName.parse(f"device-{number * 2654435761 % (1 << 32):08x}") for number in range(TOPICS)]


def open_harness(folder: Path) -> Any:
    harness: Any = Harness(FileStore.open(folder, settings=SETTINGS, threads=False))
    harness.auto_poll = False
    return harness


@pytest.mark.slow
def test_many_topics_are_served_after_a_restart(tmp_path):
    harness = open_harness(tmp_path / "store")
    _create(harness)
    _leave_memory(harness)
    harness.store.abandon()

    harness = open_harness(tmp_path / "store")
    state = harness.store.state
    assert state.unsaved_records + len(state.ledgers.loaded) < TOPICS, "most of it was not replayed"
    assert list(harness.broker.topics.walk("public/default", persistent=True)) == sorted(map(str, NAMES))
    for name in NAMES[::100]:
        ledger = harness.broker.topics.find(name).ledger
        assert parse_entry(ledger.read_one(0)).payload == name.local.encode()
    _limit(harness)
    _delete(harness)
    harness.store.abandon()

    harness = open_harness(tmp_path / "store")
    for kind in ("topic/", "ledgers/", "counts/", "cursor/", "delays/"):
        assert list(harness.store.keys.names(kind)) == []
    harness.store.close()


def _create(harness: Any) -> None:
    """One half by administrators, the other by producers; a message in each."""
    store, peer, most = harness.store, harness.peer(), 0
    for number, name in enumerate(NAMES):
        if number % 2:
            harness.actions.create(name, succeeded)
        peer.command("producer", topic=str(name), producer_id=number, request_id=number, producer_name="one")
        peer.send(number, entry_bytes(name.local.encode()), producer_id=number)
        peer.command("close_producer", producer_id=number, request_id=number)
        if number % 70 == 0:
            harness.poll()
            most = max(most, store.state.unsaved_bytes)
            peer.frames.clear()
    harness.poll()
    assert most < 2 * SETTINGS.checkpoint_state_bytes
    assert len(store.state.ledgers.loaded) < TOPICS // 2


def _leave_memory(harness: Any) -> None:
    for _ in range(30):
        harness.advance(ROUND_SECONDS)
    assert harness.broker.topics.loaded_count == 0
    for _ in range(3):
        harness.store.checkpoint()
    assert len(harness.store.state.ledgers.loaded) == 0
    assert harness.store.state.keys.unsaved == 0


def _limit(harness: Any) -> None:
    """They are counted in slices when they are to be no more."""
    topics, one_more = harness.broker.topics, TopicName.parse("one-more")
    harness.broker.namespaces.set_policy("public", "default", "max_topics_per_namespace", TOPICS + 1)
    counted: list[Any] = []
    topics.loader.when_counted(one_more, counted.append)
    slices = 0
    while not counted:
        harness.broker.turn(harness.now, harness.now_ms)
        slices += 1
        assert slices < 1000
    topics.create(one_more, None, succeeded)
    harness.actions.delete(one_more, True, succeeded)


def _delete(harness: Any) -> None:
    for number, name in enumerate(NAMES):
        harness.actions.delete(name, True, succeeded)
        if number % 70 == 0:
            harness.poll()
    harness.poll()
