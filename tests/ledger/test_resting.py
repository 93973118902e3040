"""The offload worker pauses while clients publish, unless disk space is short or it has to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geminga.errors import StoreError
from geminga.ledger import offloading
from geminga.ledger.store import FileStore
from geminga.ledger.tier_storage import place_at
from geminga.ledger.tiered import TieredStore

TOPIC = "persistent://public/default/t"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TieredStore]:
    """Offload whose worker pauses for hours after each piece."""
    monkeypatch.setattr(offloading, "PUBLISHING_BYTES_MIN", -1)
    monkeypatch.setattr(offloading, "REST_SECONDS_MAX", 3600.0)
    monkeypatch.setattr(offloading, "rest_times", lambda load, between: 1e9)
    store = TieredStore(FileStore.open(tmp_path / "store"), place_at(str(tmp_path / "tier")))
    yield store
    store.close()


def until(store: TieredStore, found: list[StoreError | None]) -> None:
    deadline = time.monotonic() + 60
    while not found:
        store.poll()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begin(store: TieredStore) -> list[StoreError | None]:
    """Start an offload whose worker pauses."""
    ledger = store.create_ledger(TOPIC)
    written: list[StoreError | None] = []
    store.append(ledger, b"\0" * 100, written.append)
    until(store, written)
    rests: list[StoreError | None] = []
    rest, said = store.rests.rest, list[StoreError | None]()

    def noted(seconds: float) -> None:
        rests.append(None)
        rest(seconds)

    store.rests.rest = noted  # type: ignore[method-assign]
    store.offload(TOPIC, ledger, 1, said.append, offset=0)
    until(store, rests)
    return said


def test_the_worker_does_not_pause_while_disk_space_is_short(store: TieredStore) -> None:
    said = begin(store)
    store.poll()
    assert not said
    store.give_back(eagerly=True)
    until(store, said)
    assert said == [None]
    store.give_back(eagerly=False)
    again = begin(store)
    store.poll()
    assert not again


def test_a_pausing_worker_ends_at_once(store: TieredStore, caplog: pytest.LogCaptureFixture) -> None:
    begin(store)
    with caplog.at_level(logging.WARNING):
        store.close()
    assert "does not answer" not in caplog.text
