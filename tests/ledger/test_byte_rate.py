"""Rate limit of offloads: exact in the long run, off while disk space is short, and no delay at the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from geminga.errors import StoreError
from geminga.ledger import byte_rate
from geminga.ledger.byte_rate import ByteRate
from geminga.ledger.store import FileStore
from geminga.ledger.tier_storage import place_at
from geminga.ledger.tiered import TieredStore

TOPIC = "persistent://public/default/t"
pytestmark = pytest.mark.timeout(180)


def test_bytes_take_as_long_as_the_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr(byte_rate, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rate = ByteRate(1000)

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return False

    monkeypatch.setattr(rate._is_off, "wait", wait)
    for _ in range(11):
        rate.wait(500)
        clock[0] += 0.25  # the work itself
    assert clock[0] == pytest.approx(5.0 + 5.0 + 0.25)
    clock[0] += 60  # a pause saves nothing
    for _ in range(3):
        rate.wait(500)
    assert clock[0] == pytest.approx(10.25 + 60 + 1.0)


def test_without_a_limit_nothing_waits() -> None:
    rate = ByteRate(-1)
    rate.wait(1 << 60)
    rate.lift(False)
    rate.wait(1 << 60)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TieredStore]:
    """Store that offloads a byte in ten minutes, and has just done so."""
    storage = place_at(str(tmp_path / "tier"))
    storage.worker_location = None  # type: ignore[misc]  # no worker process
    store = TieredStore(FileStore.open(tmp_path / "store"), storage, rate_bytes=1)
    store.tier.writers.rate._bytes_per_second = 1 / 600  # type: ignore[assignment]
    store.tier.writers.rate.wait(1)
    yield store
    store.close()


def until(store: TieredStore, found: list[StoreError | None]) -> None:
    deadline = time.monotonic() + 60
    while not found:
        store.poll()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begin(store: TieredStore) -> list[StoreError | None]:
    """Start an offload that waits for its rate."""
    ledger = store.create_ledger(TOPIC)
    written: list[StoreError | None] = []
    store.append(ledger, b"\0" * 100, written.append)
    until(store, written)
    waits: list[StoreError | None] = []
    wait, said = store.tier.writers.rate.wait, list[StoreError | None]()

    def noted(size_bytes: int) -> None:
        waits.append(None)
        wait(size_bytes)

    store.tier.writers.rate.wait = noted  # type: ignore[method-assign]
    store.tier.offload(TOPIC, ledger, 1, said.append, offset=0)
    until(store, waits)
    return said


def test_the_rate_does_not_apply_while_disk_space_is_short(store: TieredStore) -> None:
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


def test_a_waiting_offload_ends_at_once(store: TieredStore, caplog: pytest.LogCaptureFixture) -> None:
    begin(store)
    with caplog.at_level(logging.WARNING):
        store.close()
    assert "does not answer" not in caplog.text
